"""A world that behaves badly: a stand-in for the server that does what its script says, and a wire that is cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from holdfast.client import Client
from tests.api.served import Served
from tests.api.support import House

ME = {
    "tenant_id": "default", "principal_id": "prn_1", "name": "ann", "kind": "human", "roles": [], "groups": [],
    "capabilities": [],
}  # fmt: skip


class Seen(msgspec.Struct, frozen=True):
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str | None:
        return self.headers.get("idempotency-key")


Behaviour = Callable[["StandIn", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def drop_before(server: StandIn, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hang up without reading a byte."""
    writer.transport.abort()


async def drop_after(server: StandIn, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the request, and hang up."""
    await server.take(reader)


async def hang(server: StandIn, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the request, and say nothing."""
    await server.take(reader)
    await asyncio.Event().wait()


async def half(server: StandIn, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with half of what was announced."""
    await server.take(reader)
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"tenant_')


async def trickle(server: StandIn, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer, a byte now and then, and never to the end."""
    await server.take(reader)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n")
    while not writer.transport.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


def raw(text: str | bytes) -> Behaviour:
    """Answer with these bytes, and hang up."""
    content = text.encode() if isinstance(text, str) else text

    async def behave(server: StandIn, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await server.take(reader)
        writer.write(content)

    return behave


def answer(status: int, body: Any, media_type: str = "application/json", **headers: str) -> Behaviour:
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Word", f"Content-Type: {media_type}", f"Content-Length: {len(content)}"]
    lines += ["Connection: close", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return raw("\r\n".join(lines).encode() + b"\r\n\r\n" + content)


def problem(status: int, code: str, **headers: str) -> Behaviour:
    body = {
        "type": f"https://holdfast.dev/problems/{code}", "title": "T", "status": status, "detail": "do this",
        "instance": "/x", "code": code, "trace_id": "ab" * 16, "errors": [{"detail": "no", "pointer": "/a"}],
    }  # fmt: skip
    return answer(status, body, "application/problem+json", **headers)


class StandIn:
    """A server that does what its script says, once for each connection; the last line of it again and again."""

    def __init__(self, script: tuple[Behaviour, ...]) -> None:
        self.script = list(script)
        self.seen: list[Seen] = []
        self.connections = 0
        self.url = ""

    async def take(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.seen.append(Seen(method, path, headers, body))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behave = self.script[min(self.connections, len(self.script) - 1)]
        self.connections += 1
        try:
            await behave(self, reader, writer)
            if not writer.transport.is_closing():
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the test is over, or the client has had enough
        finally:
            writer.close()


@asynccontextmanager
async def stand_in(*script: Behaviour) -> AsyncIterator[StandIn]:
    found = StandIn(script)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(found.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Wire:
    """TCP between a client and a real server. `cut(number)` says after how many bytes of the answer the connection with
    that number is cut (from 1), or after which word of it; None: never. `before(number)` runs before it is made."""

    def __init__(self, target: str) -> None:
        self.lead_to(target)
        self.connections = 0
        self.cut: Callable[[int], int | bytes | None] = lambda number: None
        self.before: Callable[[int], Awaitable[None]] | None = None
        self.url = ""

    def lead_to(self, target: str) -> None:
        """From now on new connections go there."""
        where = urlsplit(target)
        assert where.hostname is not None and where.port is not None
        self.target = (where.hostname, where.port)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number, limit = self.connections, self.cut(self.connections)
        try:
            if self.before is not None:
                await self.before(number)
            there, back = await asyncio.open_connection(*self.target)
            try:
                asking = asyncio.create_task(self._pump(reader, back))
                await self._pump(there, writer, limit)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            finally:
                back.close()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | bytes | None = None
    ) -> None:
        carried = b""
        while chunk := await reader.read(65536):
            passed = chunk[: max(0, limit - len(carried))] if isinstance(limit, int) else chunk
            carried += chunk
            writer.write(passed)
            await writer.drain()
            if passed != chunk or (isinstance(limit, bytes) and limit in carried):
                return
        if limit is None:
            writer.close()


@asynccontextmanager
async def wire(target: str) -> AsyncIterator[Wire]:
    found = Wire(target)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(found.carry(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Pauses(list[float]):
    """Instead of sleeping: how long it would have been."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        assert len(self) < 500, "it asks again and again"
        await asyncio.sleep(0)


def patient(url: str, key: str = "hfst_test_x", *, pauses: Pauses | None = None, **options: Any) -> Client:
    """A client that never sleeps, and whose chance is always a half."""
    return Client(url, key, sleep=Pauses() if pauses is None else pauses, chance=lambda: 0.5, **options)


def mocked(handler: Callable[[httpx.Request], httpx.Response], **options: Any) -> Client:
    return patient("http://holdfast.test", transport=httpx.MockTransport(handler), **options)


def key_of(served: Served | House, role: str = "admin", tenant: str = "default", **more: str) -> str:
    """A key, also from inside a loop: the house makes one in a loop of its own."""
    house = served if isinstance(served, House) else served.house
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: house.key(role, tenant, **more)).result()
