"""The tenants' way out: every HTTP request an author can write leaves through `Egress.send`, to a public address or not
at all. Calls to the model do not pass here: their URL is the operator's own (see `llm.py`).

It holds each hop to the rules of `engine.egress` (scheme, host, port, address) and tells whether the request left, by
counting the bytes handed to the network. It must not know tasks, secrets or what a status means.

A request gets a connection of its own, closed afterwards. A kept one may have been closed by the server while it was
idle; the request then fails after its bytes were written, and an effect that certainly never arrived looks unknown.

It stands on httpcore, the transport inside httpx, and not on `httpx.AsyncClient`: that one logs URLs with their
queries, where secrets may stand, and unpacks a compressed body whole before its size can be looked at.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from urllib.parse import urljoin

import httpcore
import msgspec

from holdfast.engine.egress import (
    BROKEN,
    Entry,
    Target,
    entry_of,
    is_address,
    may_be_public,
    refuse_if_not_public,
    target_of,
    why_not_allowed,
)
from holdfast.engine.errors import NotApplied, Rejected
from holdfast.handlers.wire import Body, Checked, Connect, Unusable, Wire

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""A host name and a port to its addresses; `socket.gaierror` when there are none."""

TIMEOUT = 30.0
RESPONSE_BYTES = 1 << 20
REDIRECTS_MAX = 3


class OutcomeUnknown(Exception):
    """Bytes of the request left, and what came back, if anything, does not say whether it was done. `retry_after` is
    how many seconds the server asks to wait, if it says."""

    def __init__(self, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.retry_after = retry_after


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
        wire = Wire(request.not_after, self.now)
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

    async def _follow(self, request: Request, wire: Wire, tenant_id: str, allowed: Sequence[str]) -> Answer:
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

    async def _admit(self, target: Target, wire: Wire, tenant_id: str, allowed: Sequence[str]) -> Sequence[str]:
        """The addresses to connect to, each of them checked. A host that is not allowed is not even looked up."""
        wire.origin = target.origin
        private = any(entry.names(target.host) and entry.port in (None, target.port) for entry in self._private)
        literal = is_address(target.host)
        if literal:
            refuse_if_not_public(target.host, "", private)
        elif not private and not may_be_public(target.host):
            raise Rejected(f"{target.host} is not a public host: requests leave only to public addresses")
        if problem := why_not_allowed(target, allowed, tenant_id, private):
            raise Rejected(problem)
        if literal:
            return [target.host]
        addresses = list(dict.fromkeys(await self._resolve(target.host, target.port)))
        if not addresses:
            raise NotApplied(f"host {target.host} has no address, so nothing was sent")
        for address in addresses:
            refuse_if_not_public(address, f", one of the addresses of {target.host},", private)
        return addresses

    async def _exchange(
        self, request: Request, target: Target, headers: Iterable[tuple[str, str]], addresses: Sequence[str],
        wire: Wire,
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
            network_backend=Checked(self._connect, addresses, wire),
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


async def _read(response: httpcore.Response, origin: str, limit: int) -> Answer:
    headers = tuple(
        (name.decode("latin-1").lower(), value.decode("utf-8", "replace")) for name, value in response.headers
    )
    encoding = ", ".join(value for name, value in headers if name == "content-encoding").strip().lower()
    try:
        body = Body(encoding, limit)
        async for chunk in response.aiter_stream():
            body.feed(chunk)
        body.end()
    except Unusable as unusable:
        return Answer(status=response.status, origin=origin, headers=headers, body=b"", problem=str(unusable))
    return Answer(status=response.status, origin=origin, headers=headers, body=bytes(body.data))


def _redirected(base: Target, location: str) -> Target:
    if BROKEN.search(location):  # before joining: urljoin drops some of these characters
        raise Rejected("its location holds a space, a control character or a backslash")
    try:
        return target_of(urljoin(base.origin + base.path, location))
    except ValueError:
        raise Rejected("its location cannot be read") from None


def _root_words(error: BaseException) -> str:
    """httpcore and anyio wrap what happened; the innermost error says it best."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"[:300]
