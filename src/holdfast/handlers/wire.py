"""One connection of a request: to checked addresses only, with every byte of the request counted before it is written
and the answer's body collected up to its limit. It must not know where a request may go, or what an answer means.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import httpcore

from holdfast.engine.errors import NotApplied

Connect = Callable[[str, int, float], Awaitable[httpcore.AsyncNetworkStream]]
"""An address, a port and a time-out to an open TCP stream."""

CONNECT_SECONDS = 10.0  # for one address, so that a silent first one leaves time for the second


class Wire:
    """What is known of one connection: its socket, and how many bytes of the request were handed to it."""

    def __init__(self, not_after: float | None, now: Callable[[], float]) -> None:
        self.bytes_written = 0
        self.not_after = not_after
        self.now = now
        self.origin = ""
        self.socket: httpcore.AsyncNetworkStream | None = None

    async def renew(self) -> None:
        """The next hop: a request of its own, of which nothing has left."""
        await self.close()
        self.bytes_written, self.socket = 0, None

    def about_to_write(self, size: int) -> None:
        """Counted before the write, not after: a write that fails may have sent some of it."""
        if self.bytes_written == 0 and self.not_after is not None and self.now() >= self.not_after:
            raise NotApplied("found late before its first byte, so it was not sent")
        self.bytes_written += size

    async def close(self) -> None:
        if self.socket is not None:
            try:
                await self.socket.aclose()
            except Exception:
                pass  # the answer is whole, or its failure is known already; closing adds nothing to either


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if buffer:
            self._wire.about_to_write(len(buffer))
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._wire.close()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        # The handshake goes through the inner stream: its bytes say nothing of the request and are not counted.
        return _Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._wire)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class Checked(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that were checked, whatever name httpcore asks for: nothing is resolved again."""

    def __init__(self, connect: Connect, addresses: Sequence[str], wire: Wire) -> None:
        self._connect = connect
        self._addresses = addresses
        self._wire = wire

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        failed: Exception = OSError("no address")
        for address in self._addresses:
            try:
                self._wire.socket = await self._connect(address, port, CONNECT_SECONDS)
            except Exception as error:  # the next address may answer
                failed = error
            else:
                return _Stream(self._wire.socket, self._wire)
        raise failed


class Unusable(Exception):
    """The body cannot be used; the text says why."""


class Body:
    """Collects a body, unpacked, up to its limit. Never unpacks further than one byte beyond it."""

    def __init__(self, encoding: str, limit: int) -> None:
        self.data = bytearray()
        self._limit = limit
        self._received = 0
        self._unpack = None
        if encoding in ("gzip", "x-gzip"):
            self._unpack = zlib.decompressobj(wbits=31)
        elif encoding not in ("", "identity"):
            raise Unusable(f"its body is encoded as {encoding[:40]!r}, which was not asked for")

    def feed(self, chunk: bytes) -> None:
        self._received += len(chunk)
        if self._unpack is None:
            self.data += chunk
        else:
            try:
                while chunk:
                    self.data += self._unpack.decompress(chunk, self._limit + 1 - len(self.data))
                    if len(self.data) > self._limit or not self._unpack.eof:
                        break
                    chunk = self._unpack.unused_data  # another member follows
                    if chunk:
                        self._unpack = zlib.decompressobj(wbits=31)
            except zlib.error:
                raise Unusable("its body is not the gzip it says it is") from None
        # The packed size counts too: empty members may follow each other for ever.
        if max(len(self.data), self._received) > self._limit:
            raise Unusable(f"its body is larger than max_response_bytes = {self._limit:,}")

    def end(self) -> None:
        if self._unpack is not None and self._received and not self._unpack.eof:
            raise Unusable("its gzip body ends in the middle")
