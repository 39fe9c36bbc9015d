"""A small world for handlers: servers on loopback that do as they are told, names that resolve as we like, and a
certificate of our own."""

import asyncio
import base64
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpcore

from holdfast.engine.tasks import TaskInfo
from holdfast.handlers.egress import connect_address
from holdfast.handlers.ports import TenantPolicy

KEY = "hf_0123456789abcdef"
PUBLIC = "93.184.215.14"
PUBLIC_TOO = "151.101.1.69"

Script = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One connection, seen from the server."""

    def __init__(self, server: "Server", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.reader = reader
        self.writer = writer
        self.head = ""
        self.body = b""

    async def read(self) -> None:
        self.head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if length := self.header("content-length"):
            self.body = await self.reader.readexactly(int(length))
        self.server.seen.append(self)

    def header(self, name: str) -> str | None:
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(": ")
            if key.lower() == name.lower():
                return value
        return None

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: int = 200, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Whatever"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if "content_length" not in headers:
            lines.append(f"content-length: {len(body)}")
        await self.write("\r\n".join([*lines, "", ""]).encode("utf-8") + body)


class Server:
    """Runs a script per connection. `seen` holds the exchanges whose request was read, `connections` counts all."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.connections = 0
        self.seen: list[Exchange] = []
        self.port = 0
        self.running: set[asyncio.Task[Any]] = set()
        self.released = asyncio.Event()
        """Set at the end, for scripts that keep a client waiting."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self.scripts[min(self.connections, len(self.scripts) - 1)]
        self.connections += 1
        exchange = Exchange(self, reader, writer)
        if task := asyncio.current_task():
            self.running.add(task)
        try:
            await script(exchange)
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass  # the client went away, which many a test wants
        finally:
            writer.close()


@asynccontextmanager
async def serving(*scripts: Script, context: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(*scripts)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        server.released.set()
        listener.close()
        await asyncio.gather(*server.running)
        await listener.wait_closed()


def answering(status: int = 200, body: bytes = b"", **headers: str) -> Script:
    """Reads the request, then answers like this."""

    async def script(exchange: Exchange) -> None:
        await exchange.read()
        await exchange.answer(status, body, **headers)

    return script


def answering_json(body: bytes, status: int = 200, **headers: str) -> Script:
    return answering(status, body, content_type="application/json", **headers)


class Names:
    """A resolver that answers from a table, and counts."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table = table
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        found = self.table[host]
        if isinstance(found, Exception):
            raise found
        if isinstance(found, list) and found and isinstance(found[0], list):  # other answers each time
            return list(found.pop(0))
        return list(found)


class Dials:
    """Records each connection attempt. Leads all of them to one port on loopback, or nowhere."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port
        self.dialled: list[tuple[str, int]] = []

    async def __call__(self, address: str, port: int, timeout: float) -> httpcore.AsyncNetworkStream:
        self.dialled.append((address, port))
        if self.port is None:
            raise ConnectionRefusedError(f"nobody at {address}")
        return await connect_address("127.0.0.1", self.port, timeout)


class Policies:
    def __init__(self, *hosts: str) -> None:
        self.policy = TenantPolicy(http_hosts=hosts)

    async def of(self, tenant_id: str) -> TenantPolicy:
        return self.policy


def a_task(not_after: float | None = None, **options: Any) -> TaskInfo:
    return TaskInfo(
        tenant_id="acme", instance_id="ins_1", task_id="tsk_1", workflow="order", version=1, type="HTTP", name="pay",
        attempt=1, idempotency_key=KEY, not_after=not_after, options=options,
    )  # fmt: skip


# A certificate, written by hand: the standard library can read one and cannot make one. ECDSA on P-256, a fixed key
# and nonce, so it is the same each time; it is good for nothing but these tests.

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_Point = tuple[int, int] | None


def _add(a: _Point, b: _Point) -> _Point:
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % _P == 0:
        return None
    if a == b:
        slope = (3 * a[0] * a[0] - 3) * pow(2 * a[1], -1, _P)
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _P)
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _times(k: int) -> tuple[int, int]:
    found: _Point = None
    power: _Point = _G
    while k:
        if k & 1:
            found = _add(found, power)
        power = _add(power, power)
        k >>= 1
    assert found is not None
    return found


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _integer(value: int) -> bytes:
    return _der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    encoded = bytes([first * 40 + second])
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.append(number & 0x7F | 0x80)
        encoded += bytes(reversed(digits))
    return _der(6, encoded)


def certificate_for(host: str, folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for `host`, and a client's context that trusts it."""
    secret = int.from_bytes(hashlib.sha256(b"a key of no value").digest(), "big") % _N
    x, y = _times(secret)
    public = b"\x00\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    signing, curve = _der(0x30, _oid("1.2.840.10045.4.3.2")), _oid("1.2.840.10045.3.1.7")
    name = _der(0x30, _der(0x31, _der(0x30, _oid("2.5.4.3"), _der(12, host.encode()))))
    names = _der(0x30, _oid("2.5.29.17"), _der(4, _der(0x30, _der(0x82, host.encode()))))
    authority = _der(0x30, _oid("2.5.29.19"), _der(1, b"\xff"), _der(4, _der(0x30, _der(1, b"\xff"))))
    # Python 3.13 and later insist on these two in a certificate that vouches for itself.
    identifier = _der(0x30, _oid("2.5.29.14"), _der(4, _der(4, hashlib.sha256(public).digest()[:20])))
    usage = _der(0x30, _oid("2.5.29.15"), _der(1, b"\xff"), _der(4, _der(3, b"\x02\x84")))
    body = _der(
        0x30, _der(0xA0, _integer(2)), _integer(1), signing, name,
        _der(0x30, _der(0x17, b"200101000000Z"), _der(0x17, b"491231235959Z")), name,
        _der(0x30, _der(0x30, _oid("1.2.840.10045.2.1"), curve), _der(3, public)),
        _der(0xA3, _der(0x30, authority, usage, identifier, names)),
    )  # fmt: skip
    digest = int.from_bytes(hashlib.sha256(body).digest(), "big")
    nonce = int.from_bytes(hashlib.sha256(b"a nonce" + body).digest(), "big") % _N
    r = _times(nonce)[0] % _N
    s = pow(nonce, -1, _N) * (digest + r * secret) % _N
    signature = _der(3, b"\x00" + _der(0x30, _integer(r), _integer(s)))
    key = _der(0x30, _integer(1), _der(4, secret.to_bytes(32, "big")), _der(0xA0, curve), _der(0xA1, _der(3, public)))
    certificate = _pem("CERTIFICATE", _der(0x30, body, signing, signature))
    path = folder / "both.pem"
    path.write_text(certificate + _pem("EC PRIVATE KEY", key))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server, ssl.create_default_context(cadata=certificate)


def _pem(what: str, der: bytes) -> str:
    return f"-----BEGIN {what}-----\n{base64.encodebytes(der).decode()}-----END {what}-----\n"
