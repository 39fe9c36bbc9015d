"""The one way out: every HTTP request of Holdfast leaves through `Egress.send`, to a public address or not at all.

It decides where a request may go (scheme, host, port, address) and tells whether it left, by counting the bytes
handed to the network. It must not know tasks, secrets or what a status means.

A request gets a connection of its own, closed afterwards. A kept one may have been closed by the server while it was
idle; the request then fails after its bytes were written, and an effect that certainly never arrived looks unknown.

It stands on httpcore, the transport inside httpx, and not on `httpx.AsyncClient`: that one logs URLs with their
queries, where secrets may stand, and unpacks a compressed body whole before its size can be looked at.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
import ssl
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote, urlencode, urljoin

import httpcore
import msgspec

from holdfast.engine.errors import NotApplied, Rejected

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""A host name and a port to its addresses; `socket.gaierror` when there are none."""
Connect = Callable[[str, int, float], Awaitable[httpcore.AsyncNetworkStream]]
"""An address, a port and a time-out to an open TCP stream."""

TIMEOUT = 30.0
RESPONSE_BYTES = 1 << 20
REDIRECTS_MAX = 3
CONNECT_SECONDS = 10.0  # for one address, so that a silent first one leaves time for the second
PORTS = {"http": 80, "https": 443}


class OutcomeUnknown(Exception):
    """Bytes of the request left, and no whole answer came back: nobody knows whether it was done."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What to send. Names and values of headers are taken as they are: whoever builds a request checks them."""

    method: str
    url: str
    query: tuple[tuple[str, str], ...] = ()
    """Added to the query in the URL."""
    headers: tuple[tuple[str, str], ...] = ()
    travelling: frozenset[str] = frozenset({"accept", "user-agent"})
    """Lower-case names of the headers that follow a redirect to another origin. The others may hold secrets."""
    content: bytes = b""
    timeout_seconds: float = TIMEOUT
    """From the look-up of the name to the last byte of the answer, redirects included."""
    max_response_bytes: int = RESPONSE_BYTES
    follow_redirects: int = 0
    not_after: float | None = None
    """Unix time after which the first byte must not leave."""

    def __repr__(self) -> str:
        return f"<Request {self.method}>"  # the rest may hold secrets


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer; or, when `problem` says so, its head and no usable body."""

    status: int
    origin: str
    """Of the server that gave it, after any redirects."""
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    body: bytes
    problem: str | None = None

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def __repr__(self) -> str:
        return f"<Answer {self.status}>"  # it may echo what was sent


class Target(msgspec.Struct, frozen=True):
    """A URL, taken apart once; what is checked here is what is connected to."""

    scheme: str
    host: str
    port: int
    path: str
    """Path and query, as they go on the wire."""

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.netloc}"


# ---- Addresses -----------------------------------------------------------------------------------------------------

# The first network that holds an address names it.
_NOT_PUBLIC = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
    "cloud metadata": ("fd00:ec2::254/128", "168.63.129.16/32"),
    "unique local": ("fc00::/7",),
    "unspecified": ("0.0.0.0/8", "::/128"),
    "link-local (cloud metadata)": ("169.254.0.0/16", "fe80::/10"),
    "carrier-grade NAT": ("100.64.0.0/10",),
    "benchmarking": ("198.18.0.0/15", "2001:2::/48"),
    "documentation": ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
    "multicast": ("224.0.0.0/4", "ff00::/8"),
    "IPv4-mapped": ("::ffff:0:0/96",),
    "IPv4-translated": ("::ffff:0:0:0/96",),
    "IPv4-compatible": ("::/96",),
    "NAT64": ("64:ff9b::/96", "64:ff9b:1::/48"),
    "6to4": ("192.88.99.0/24", "2002::/16"),
    "Teredo": ("2001::/32",),
    "site-local": ("fec0::/10",),
    # The rest of what IANA's registries of special purposes hold, wide rather than narrow.
    "reserved": (
        "192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "240.0.0.0/4", "2001::/23",
        "2620:4f:8000::/48",
    ),
}  # fmt: skip
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_FORBIDDEN: list[tuple[_Network, str]] = [
    (ipaddress.ip_network(network), word) for word, networks in _NOT_PUBLIC.items() for network in networks
]
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_OPENED = {"loopback", "private", "unique local"}  # what `private_hosts` opens; metadata services stay closed


def why_not_public(address: str) -> str | None:
    """What kind of address it is, if it is none that a request may go to; None for a public one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "malformed"
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.scope_id is not None:
        return "zoned"
    for network, word in _FORBIDDEN:
        if parsed.version == network.version and parsed in network:
            return word
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed not in _GLOBAL_UNICAST:
            return "reserved"
        if (int(parsed) >> 32) & 0xFCFF_FFFF == 0x0000_5EFE:  # ISATAP: an IPv4 address behind any prefix
            return "ISATAP"
    return None


# ---- URLs ----------------------------------------------------------------------------------------------------------

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>/*)(?P<authority>[^/?#]*)(?P<rest>[^#]*)", re.ASCII)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]*))?\Z", re.ASCII)
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z", re.ASCII)
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\Z", re.ASCII)
_BROKEN = re.compile(r"[\x00-\x20\x7f-\xa0\\\u2028\u2029\ud800-\udfff]")


def target_of(url: str, query: Sequence[tuple[str, str]] = ()) -> Target:
    """The URL, strictly read: what two parsers could read differently is refused."""
    if _BROKEN.search(url):
        raise Rejected("the URL holds a space, a control character or a backslash: write it percent-encoded")
    found = _URL.match(url)
    if not found or found["slashes"] != "//":
        raise Rejected("the URL is not complete: write it as https://host/path")
    scheme = found["scheme"].lower()
    if scheme not in PORTS:
        raise Rejected(f"the URL's scheme is {scheme!r}: only https, and http where it is allowed, can be called")
    authority = found["authority"]
    if "@" in authority:
        raise Rejected("the URL holds a user or a password (…@host): put credentials into a header, as a secret")
    if "%" in authority:
        raise Rejected("the URL's host is percent-encoded or has a zone: write the plain host name")
    if not authority.isascii():
        raise Rejected("the URL's host is not ASCII: write it in its xn--… form")
    parts = _AUTHORITY.match(authority)
    if not parts:
        raise Rejected("the URL's host cannot be read: write it as host, host:port or [IPv6 address]:port")
    host = _host(parts["host"].lower())
    port = parts["port"]
    if port is not None and not (re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) <= 65535):
        raise Rejected(f"the URL's port is {port!r}: expected a number from 1 to 65535")
    rest = found["rest"] if found["rest"].startswith("/") else f"/{found['rest']}"
    if query:
        rest += ("&" if "?" in rest else "?") + urlencode(query)
    path = quote(rest, safe="/?%:@!$&'()*+,;=~-._")
    return Target(scheme, host, int(port) if port else PORTS[scheme], path)


def _host(host: str) -> str:
    if not host:
        raise Rejected("the URL has no host: write it as https://host/path")
    if host.startswith("["):
        try:
            return ipaddress.IPv6Address(host[1:-1]).compressed
        except ValueError:
            raise Rejected(f"the URL's host {host} is not an IPv6 address") from None
    if host.endswith("."):
        raise Rejected(f"the URL's host {host!r} ends in a dot: write it without")
    if len(host) > 253 or not _NAME.match(host):
        raise Rejected(f"the URL's host {host[:253]!r} is not a host name")
    if _NUMBER.match(host.rpartition(".")[2]):
        # A name never ends in a number, so this is an IPv4 address; 127.1, 0x7f000001 and 0177.0.0.1 are too,
        # for some resolvers. We take the one spelling that has one meaning.
        try:
            return ipaddress.IPv4Address(host).compressed
        except ValueError:
            raise Rejected(
                f"the URL's host {host!r} is an IPv4 address in disguise: write it as four decimal numbers"
            ) from None
    return host


# ---- Who may call what ---------------------------------------------------------------------------------------------

_ENTRY = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\*|(?:\*\.)?[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?/?\Z",
    re.ASCII | re.IGNORECASE,
)
_NEVER_PUBLIC = (".localhost", ".localdomain", ".local", ".internal", ".home.arpa")


class Entry(msgspec.Struct, frozen=True):
    """One allowed host: `api.example.org`, `*.example.org`, `*`, `http://…` for plain HTTP too, `…:8443`."""

    host: str
    port: int | None
    plain: bool

    def names(self, host: str) -> bool:
        if self.host.startswith("*."):
            return host.endswith(self.host[1:]) and len(host) >= len(self.host)
        return self.host in ("*", host)

    def allows(self, target: Target) -> bool:
        if target.scheme == "http" and not self.plain:
            return False
        ports = PORTS.values() if self.port is None else (self.port,)
        return self.names(target.host) and target.port in ports


def entry_of(text: str) -> Entry | None:
    """None: it cannot be read, so it allows nothing."""
    found = _ENTRY.match(text.strip())
    if not found:
        return None
    host = found["host"].lower()
    if host.startswith("["):
        try:
            host = ipaddress.IPv6Address(host[1:-1]).compressed
        except ValueError:
            return None
    return Entry(host, int(found["port"]) if found["port"] else None, (found["scheme"] or "").lower() == "http")


def why_not_allowed(target: Target, allowed: Iterable[str], tenant_id: str, private: bool) -> str | None:
    """`private`: the operator opened this host for private addresses, so `*` (any public host) does not mean it."""
    entries = {text: entry_of(text) for text in allowed}
    usable = [entry for entry in entries.values() if entry is not None and not (private and entry.host == "*")]
    if any(entry.allows(target) for entry in usable):
        return None
    host = f"[{target.host}]" if ":" in target.host else target.host
    wanted = ("http://" if target.scheme == "http" else "") + host
    if target.port not in PORTS.values():
        wanted += f":{target.port}"
    if not any(entry.names(target.host) for entry in usable):
        problem = f"host {host} is not among the hosts that tenant {tenant_id!r} may call"
    elif target.scheme == "http" and not any(entry.plain and entry.names(target.host) for entry in usable):
        problem = f"tenant {tenant_id!r} may not call host {host} by plain http"
    else:
        problem = f"tenant {tenant_id!r} may not call port {target.port} of host {host}"
    unread = [repr(text) for text, entry in entries.items() if entry is None]
    hint = f" (it holds {', '.join(unread)}, which cannot be read)" if unread else ""
    return f"{problem}: add {wanted!r} to the tenant's setting http_hosts{hint}"


# ---- The wire ------------------------------------------------------------------------------------------------------


class _Wire:
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
    def __init__(self, inner: httpcore.AsyncNetworkStream, wire: _Wire) -> None:
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


class _Checked(httpcore.AsyncNetworkBackend):
    """Connects to the addresses that were checked, whatever name httpcore asks for: nothing is resolved again."""

    def __init__(self, connect: Connect, addresses: Sequence[str], wire: _Wire) -> None:
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


class _Unusable(Exception):
    """The body cannot be used; the text says why."""


class _Body:
    """Collects a body, unpacked, up to its limit. Never unpacks further than one byte beyond it."""

    def __init__(self, encoding: str, limit: int) -> None:
        self.data = bytearray()
        self._limit = limit
        self._received = 0
        self._unpack = None
        if encoding in ("gzip", "x-gzip"):
            self._unpack = zlib.decompressobj(wbits=31)
        elif encoding not in ("", "identity"):
            raise _Unusable(f"its body is encoded as {encoding[:40]!r}, which was not asked for")

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
                raise _Unusable("its body is not the gzip it says it is") from None
        # The packed size counts too: empty members may follow each other for ever.
        if max(len(self.data), self._received) > self._limit:
            raise _Unusable(f"its body is larger than max_response_bytes = {self._limit:,}")

    def end(self) -> None:
        if self._unpack is not None and self._received and not self._unpack.eof:
            raise _Unusable("its gzip body ends in the middle")


# ---- The way out ---------------------------------------------------------------------------------------------------

_sending: ContextVar[bool] = ContextVar("holdfast_egress_sending", default=False)


class _Discreet(logging.Filter):
    """httpcore's debug lines quote response headers, and a server may echo a secret there."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _sending.get()


for _name in ("httpcore.connection", "httpcore.http11"):
    logging.getLogger(_name).addFilter(_Discreet())


async def resolve_name(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]


async def connect_address(address: str, port: int, timeout: float) -> httpcore.AsyncNetworkStream:
    return await httpcore.AnyIOBackend().connect_tcp(address, port, timeout)


class Egress:
    """Sends requests to public hosts that the tenant allows; takes no proxy and no netrc from the environment.

    `private_hosts` ("127.0.0.1:8123", "mailhog") opens single hosts whose addresses are loopback or private, for tests
    and `dev`; the tenant must still name them, `*` does not. `now` is the clock that `not_after` was read from.
    """

    def __init__(
        self, *, private_hosts: Iterable[str] = (), resolve: Resolve = resolve_name,
        connect: Connect = connect_address, ssl_context: ssl.SSLContext | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._private: list[Entry] = []
        for text in private_hosts:
            entry = entry_of(text)
            if entry is None or "*" in entry.host:
                raise ValueError(f'private_hosts holds {text!r}: expected a host such as "127.0.0.1:8123"')
            self._private.append(entry)
        self._resolve = resolve
        self._connect = connect
        self._ssl_context = ssl_context
        self.now = now

    async def send(self, request: Request, *, tenant_id: str, allowed: Sequence[str]) -> Answer:
        """An answer, whatever its status. Or `NotApplied` or `Rejected`: nothing left, or all it got was a redirect;
        or `OutcomeUnknown`: bytes of the request left and no whole answer came back."""
        assert not request.follow_redirects or (request.method in ("GET", "HEAD") and not request.content)
        wire = _Wire(request.not_after, self.now)
        quiet = _sending.set(True)
        try:
            async with asyncio.timeout(request.timeout_seconds):
                return await self._follow(request, wire, tenant_id, allowed)
        except (NotApplied, Rejected):
            raise
        except Exception as error:
            failed = error
        finally:
            await wire.close()
            _sending.reset(quiet)
        # Raised out here, so that the error carries no other one along: their texts may quote what was sent.
        what = f"{request.method} {wire.origin}"
        if isinstance(failed, TimeoutError):
            why = f"it took longer than {request.timeout_seconds:g} s"
        else:
            why = _root_words(failed)
        if wire.bytes_written == 0:
            raise NotApplied(f"{what} was not sent: {why}")
        raise OutcomeUnknown(f"{what} was sent and no whole answer came back: {why}")

    async def _follow(self, request: Request, wire: _Wire, tenant_id: str, allowed: Sequence[str]) -> Answer:
        target = target_of(request.url, request.query)
        addresses = await self._admit(target, wire, tenant_id, allowed)
        headers = request.headers
        for left in range(request.follow_redirects, -1, -1):
            answer = await self._exchange(request, target, headers, addresses, wire)
            location = answer.header("location")
            if not request.follow_redirects or answer.status not in (301, 302, 303, 307, 308) or location is None:
                return answer
            if left == 0:
                break
            before = target
            try:
                target = _redirected(before, location)
                await wire.renew()
                addresses = await self._admit(target, wire, tenant_id, allowed)
            except Rejected as refused:
                raise Rejected(f"{before.origin} answered with a redirect that is not followed: {refused}") from None
            if target.origin != before.origin:
                headers = tuple((name, value) for name, value in headers if name.lower() in request.travelling)
        raise Rejected(
            f"{target.origin} answered with one more redirect than follow_redirects = {request.follow_redirects} allows"
        )

    async def _admit(self, target: Target, wire: _Wire, tenant_id: str, allowed: Sequence[str]) -> Sequence[str]:
        """The addresses to connect to, each of them checked. A host that is not allowed is not even looked up."""
        wire.origin = target.origin
        private = any(entry.names(target.host) and entry.port in (None, target.port) for entry in self._private)
        literal = _is_address(target.host)
        if literal:
            _refuse_if_not_public(target.host, "", private)
        elif not private and ("." not in target.host or f".{target.host}".endswith(_NEVER_PUBLIC)):
            raise Rejected(f"{target.host} is not a public host: requests leave only to public addresses")
        if problem := why_not_allowed(target, allowed, tenant_id, private):
            raise Rejected(problem)
        if literal:
            return [target.host]
        addresses = list(dict.fromkeys(await self._resolve(target.host, target.port)))
        if not addresses:
            raise NotApplied(f"host {target.host} has no address, so nothing was sent")
        for address in addresses:
            _refuse_if_not_public(address, f", one of the addresses of {target.host},", private)
        return addresses

    async def _exchange(
        self, request: Request, target: Target, headers: Iterable[tuple[str, str]], addresses: Sequence[str],
        wire: _Wire,
    ) -> Answer:  # fmt: skip
        if target.scheme == "https" and self._ssl_context is None:
            self._ssl_context = httpcore.default_ssl_context()
        sent = [("Host", target.netloc), ("Connection", "close"), ("Accept-Encoding", "gzip"), *headers]
        if request.content or request.method in ("POST", "PUT", "PATCH"):
            sent.append(("Content-Length", str(len(request.content))))
        scheme, host = target.scheme.encode(), target.host.encode()
        connection = httpcore.AsyncHTTPConnection(
            origin=httpcore.Origin(scheme, host, target.port),
            ssl_context=self._ssl_context,
            network_backend=_Checked(self._connect, addresses, wire),
        )
        response = await connection.handle_async_request(
            httpcore.Request(
                request.method,
                httpcore.URL(scheme=scheme, host=host, port=target.port, target=target.path.encode()),
                headers=sent,
                content=request.content,
            )
        )
        return await _read(response, target.origin, request.max_response_bytes)


def _refuse_if_not_public(address: str, whose: str, private: bool) -> None:
    kind = why_not_public(address)
    if kind is not None and not (private and kind in _OPENED):
        raise Rejected(f"{address}{whose} is not public ({kind}): requests leave only to public addresses")


async def _read(response: httpcore.Response, origin: str, limit: int) -> Answer:
    headers = tuple(
        (name.decode("latin-1").lower(), value.decode("utf-8", "replace")) for name, value in response.headers
    )
    encoding = ", ".join(value for name, value in headers if name == "content-encoding").strip().lower()
    try:
        body = _Body(encoding, limit)
        async for chunk in response.aiter_stream():
            body.feed(chunk)
        body.end()
    except _Unusable as unusable:
        return Answer(status=response.status, origin=origin, headers=headers, body=b"", problem=str(unusable))
    return Answer(status=response.status, origin=origin, headers=headers, body=bytes(body.data))


def _redirected(base: Target, location: str) -> Target:
    if _BROKEN.search(location):  # before joining: urljoin drops some of these characters
        raise Rejected("its location holds a space, a control character or a backslash")
    try:
        return target_of(urljoin(base.origin + base.path, location))
    except ValueError:
        raise Rejected("its location cannot be read") from None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _root_words(error: BaseException) -> str:
    """httpcore and anyio wrap what happened; the innermost error says it best."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"[:300]
