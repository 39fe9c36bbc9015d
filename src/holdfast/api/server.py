"""The server: the table of endpoints on Litestar, behind a gate that lets in no more than can be served."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import uvicorn
from litestar import Litestar, Response
from litestar import Request as LitestarRequest
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, Receive, Scope, Send

from holdfast.api import (
    access,
    browsing,
    bulk,
    definitions,
    effects,
    health,
    instances,
    starting,
    streams,
    tasks,
    telling,
    workers,
)
from holdfast.api.endpoints import Endpoint, Endpoints, Reply, check
from holdfast.api.oidc import Oidc
from holdfast.api.openapi import document
from holdfast.api.pages import DocsPage
from holdfast.api.problems import Problem
from holdfast.api.requests import Trail, handle, headers_for, refused, send_reply, send_stream, trail_of
from holdfast.api.settings import ServerSettings, is_loopback
from holdfast.api.wire import NO_CONTENT, Request, connection_class, headers_of
from holdfast.app import idempotency
from holdfast.app.service import Service
from holdfast.engine.access import Caller
from holdfast.engine.errors import HoldfastError
from holdfast.store.faults import unreachable
from holdfast.store.postgres import PostgresStore

if TYPE_CHECKING:
    from holdfast.metrics import Metrics
    from holdfast.tracing import RequestTracing

log = structlog.get_logger("holdfast.api")
NOUNS = (definitions, starting, instances, telling, tasks, effects, workers, bulk, streams, access, health, browsing)
SWEEP_SECONDS = 600.0
CLOCK_SECONDS = 30.0
ENDPOINT = "endpoint"
NO_ROUTE = "(none)"
CUT_OFF_SECONDS = 2.0
BACKLOG = 1024
ServiceMaker = Callable[[str], Service]


class NotProtected(HoldfastError):
    """The server was to listen where others can reach it, and nobody would have to say who they are."""

    code = "not_protected"


class AddressInUse(HoldfastError):
    """Another program listens where the server was to listen."""

    code = "address_in_use"


def table() -> list[Endpoint]:
    """Every endpoint there is."""
    endpoints = Endpoints()
    for noun in NOUNS:
        noun.declare(endpoints)
    return endpoints.all


class Doors:
    """What the endpoints work with: a service for each tenant's database, and who comes with which key."""

    def __init__(
        self, service: Service, settings: ServerSettings, *, routed: Mapping[str, Service] | None = None,
        spanning: Service | None = None, metrics: Metrics | None = None, tracing: RequestTracing | None = None,
        log_requests: bool = False,
    ) -> None:  # fmt: skip
        self.service = service
        self.spanning = spanning or service  # sees every tenant: for what belongs to none
        self.settings = settings
        self.metrics = metrics
        self.tracing = tracing
        self.log_requests = log_requests
        self.stopping = asyncio.Event()
        self.draining = False  # it goes on answering, and says that it is not ready
        self.streams = 0
        self.waiting = 0  # requests that are held until something has happened
        self.thinking = asyncio.Semaphore(2)  # charts that are drawn or tried out: pure work, off the loop
        self.oidc = Oidc(settings) if settings.oidc_issuer else None
        self.endpoints = table()
        description = document(self.endpoints, settings.public_url)
        self.described = msgspec.json.encode(description)  # both are asked for often
        self.page = DocsPage(self.endpoints, description["components"]["schemas"])
        self._routed = dict(routed or {})  # tenant → service

    def service_for(self, tenant_id: str) -> Service:
        return self._routed.get(tenant_id, self.service)

    def services(self) -> Iterable[Service]:
        """Each once."""
        return {id(service): service for service in (self.service, *self._routed.values())}.values()

    async def caller_of_key(self, key: str) -> Caller | None:
        """A key says nothing about its tenant, so every database may be asked; the tenant must be at home there."""
        away: Exception | None = None
        for service in self.services():
            try:
                caller = await service.callers.of_key(key)
            except Exception as error:  # one group's database that is away keeps nobody of another group out
                if not unreachable(error):
                    raise
                away = error
                continue
            if caller is not None and self.service_for(caller.tenant_id) is service:
                return caller
        if away is not None:
            raise away
        return None

    @contextlib.contextmanager
    def held(self, seconds: float) -> Iterator[float]:
        """For how long a request may be held. So many of them that others would find no room are not held at all:
        that one waits was a preference."""
        allowed = seconds if self.waiting < self.settings.max_in_flight // 2 else 0.0
        self.waiting += 1
        try:
            yield allowed
        finally:
            self.waiting -= 1

    @property
    def open_metrics(self) -> bool:
        settings = self.settings
        return is_loopback(settings.host) and settings.metrics_key is None and settings.public_url is None

    def is_unreachable(self, error: BaseException) -> bool:
        return unreachable(error)

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        if self.metrics is not None:
            self.metrics.request(route, method, status, seconds)

    async def keep_house(self) -> None:
        """Now and then: old answers to requests are put away, and the databases are asked what time it is."""
        swept = -SWEEP_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            try:
                for service in self.every():
                    if isinstance(service.store, PostgresStore):
                        await service.store.synchronise_clock()
                if loop.time() - swept >= SWEEP_SECONDS:
                    swept = loop.time()
                    for service in self.databases():
                        await idempotency.sweep(service, self.settings.idempotency_tombstone_days)
            except Exception as error:
                log.warning("housekeeping_failed", error=repr(error))
            await asyncio.sleep(CLOCK_SECONDS)

    def databases(self) -> Iterable[Service]:
        """One service for each database, which may ask about all of it."""
        return {id(service): service for service in (self.spanning, *self._routed.values())}.values()

    def every(self) -> Iterable[Service]:
        return {id(service): service for service in (self.spanning, *self.services())}.values()


def make_app(doors: Doors) -> Litestar:
    for endpoint in doors.endpoints:
        check(endpoint)  # again: whatever was added, nothing starts without saying who may use it

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        sweeper = asyncio.create_task(doors.keep_house())
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)

    return Litestar(
        route_handlers=[_route(endpoint) for endpoint in doors.endpoints], openapi_config=None,
        exception_handlers={Exception: _refuser(doors)}, lifespan=[lifespan], logging_config=None,
        middleware=[_gate(doors)], request_max_body_size=None,
    )  # fmt: skip


def _route(endpoint: Endpoint) -> HTTPRouteHandler:
    """For Litestar to find: who comes through the gate with one is answered there."""
    path = endpoint.path
    for name in endpoint.parameters:
        path = path.replace("{" + name + "}", "{" + name + ":str}")

    async def found() -> None: ...

    method: Any = endpoint.method
    opt = {ENDPOINT: endpoint}
    return HTTPRouteHandler(path, http_method=method, include_in_schema=False, name=endpoint.operation, opt=opt)(found)


def _refuser(doors: Doors) -> Callable[[LitestarRequest[Any, Any, Any], Exception], Response[Any]]:
    """What Litestar refuses before a route is found, in our words."""

    def refuse(request: LitestarRequest[Any, Any, Any], error: Exception) -> Response[Any]:
        trail = trail_of(request.headers)
        problem = _outside_of_routes(request.method, error, trail)
        reply = refused(problem, request.scope["path"], trail)
        doors.observe(NO_ROUTE, request.method, reply.status, 0.0)
        log.info(
            "request", method=request.method, route=NO_ROUTE, status=reply.status, request_id=trail.request_id,
            trace_id=trail.trace_id,
        )  # fmt: skip
        content = msgspec.json.encode(reply.body)
        headers = headers_for(reply, trail)
        return Response(content, status_code=reply.status, media_type=reply.media_type, headers=headers)

    return refuse


def _outside_of_routes(method: str, error: Exception, trail: Trail) -> Problem:
    if isinstance(error, MethodNotAllowedException):
        allowed = dict(error.headers or {}).get("allow", "")
        words = f"{method} is not offered here: {allowed or 'see /openapi.json'}"
        return Problem("method-not-allowed", words, headers={"Allow": allowed} if allowed else {})
    if isinstance(error, HTTPException) and error.status_code == 404:
        return Problem("not-found", "there is no such route: /openapi.json lists them")
    if isinstance(error, HTTPException) and error.status_code < 500:
        return Problem("malformed-request", f"the request cannot be read: {error.detail}")
    log.error("request_failed", error=repr(error), trace_id=trail.trace_id, exc_info=error)
    return Problem("internal-error", f"this is our fault; the log has more under {trail.trace_id}")


class Room:
    """So many at once, and no more."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.inside = 0

    def __enter__(self) -> None:
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1

    @property
    def full(self) -> bool:
        return self.inside >= self.most


def _gate(doors: Doors) -> Callable[[ASGIApp], ASGIApp]:
    """Lets in as many requests at once as can be served; the rest is told at once, and costs nothing but that. A place
    is held while a request is carried out, not while its answer is fetched. Forms, which are read before anybody has
    said who they are, have room of their own."""
    room = Room(doors.settings.max_in_flight)
    forms = Room(max(1, doors.settings.max_in_flight // 8))
    always = ("/livez", "/readyz", "/metrics")

    def around(app: ASGIApp) -> ASGIApp:
        async def gate(scope: Scope, receive: Receive, send: Send) -> None:
            endpoint: Endpoint | None = scope["route_handler"].opt.get(ENDPOINT)
            if endpoint is None:
                await _offer(doors, scope, send)
                return
            request = Request(scope, receive)
            if endpoint.path in always or endpoint.stream:  # streams are counted by themselves
                reply, trail = await handle(doors, endpoint, request)
            else:
                here = forms if endpoint.form else room
                if here.full:
                    await _turn_away(doors, endpoint, request, send)
                    return
                try:
                    with here:
                        reply, trail = await handle(doors, endpoint, request)
                except asyncio.CancelledError:  # the server's grace is over
                    await _break_off(request, send)
                    raise
            if reply.events is None:
                await send_reply(send, reply, trail)
            else:
                await send_stream(scope, receive, send, reply, trail)

        return gate

    return around


async def _offer(doors: Doors, scope: Any, send: Send) -> None:
    """The answer to OPTIONS: what there is at this path."""
    methods = {e.method for e in doors.endpoints if e.path == scope["path_template"]}
    reply = Reply(NO_CONTENT, b"", None, {"Allow": ", ".join(sorted(methods | {"OPTIONS"}))})
    await send_reply(send, reply, trail_of(headers_of(scope)))


async def _break_off(request: Request, send: Send) -> None:
    trail = trail_of(request.headers)
    problem = Problem("unavailable", "the server stops: nothing is known to have changed; try again")
    await send_reply(send, refused(problem, request.path, trail), trail)


async def _turn_away(doors: Doors, endpoint: Endpoint, request: Request, send: Send) -> None:
    trail = trail_of(request.headers)
    problem = Problem("overloaded", "more requests are under way than this server can carry out at once: try again")
    doors.observe("(gate)", endpoint.method, problem.status, 0.0)
    log.info(
        "request", method=endpoint.method, route=endpoint.path, status=problem.status, request_id=trail.request_id,
        trace_id=trail.trace_id,
    )  # fmt: skip
    await send_reply(send, refused(problem, request.path, trail), trail)


# -- listening


async def check_protected(doors: Doors) -> None:
    """Refuse to listen where others can reach us while nobody could show who they are."""
    if is_loopback(doors.settings.host) or doors.oidc is not None:
        return
    for service in doors.every():
        [(found,)] = await service.store.fetch("count_ways_in", now=service.store.now())
        if found:
            return
    raise NotProtected(
        f"the server does not listen on {doors.settings.host}: nobody has an API key and no OIDC issuer is set, so "
        "nobody could get in, or everybody; make a key first (`holdfast principals create`, `holdfast keys create`), "
        "set HOLDFAST_OIDC_ISSUER, or listen on 127.0.0.1"
    )


class Server(uvicorn.Server):
    """uvicorn in our loop: the process's signals are its owner's business."""

    def __init__(self, doors: Doors, *, grace: float) -> None:
        self.doors = doors
        super().__init__(
            uvicorn.Config(
                make_app(doors), host=doors.settings.host, port=doors.settings.port, log_config=None, access_log=False,
                server_header=False, date_header=True, timeout_graceful_shutdown=max(1, round(grace)), lifespan="on",
                http=connection_class(doors.settings.max_connections), ws="none", proxy_headers=False,
                timeout_keep_alive=30, backlog=BACKLOG,
            )
        )  # fmt: skip

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield

    @property
    def url(self) -> str:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def stop(self) -> None:
        """Take nothing more, finish what is under way."""
        self.doors.stopping.set()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        # What outlasted the grace was cut off just now. It gives its Idempotency-Key back while the store is open.
        if left := set(self.server_state.tasks):
            await asyncio.wait(left, timeout=CUT_OFF_SECONDS)


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at an address, one for each that its name has. uvicorn, left to bind by itself, would log an
    error of the system and leave the process."""
    found: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            one = socket.socket(family, kind, protocol)
            found.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(BACKLOG)
    except OSError as error:
        for one in found:
            one.close()
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"port {port} on {host} is in use: another program listens there, perhaps another Holdfast; stop it, "
                "or take another port with --port (0 takes a free one)"
            ) from None
        words = f"the server cannot listen on {host}:{port}: {error.strerror or error}; see --host and --port"
        raise HoldfastError(words) from None
    return found


@asynccontextmanager
async def serving(doors: Doors, *, grace: float = 10.0) -> AsyncIterator[Server]:
    """A server for the length of a block."""
    await check_protected(doors)
    sockets = bound(doors.settings.host, doors.settings.port)
    server = Server(doors, grace=grace)
    task = asyncio.create_task(server.serve(sockets))
    try:
        while not server.started:
            if task.done():
                await task
                raise HoldfastError("the server ended before it could answer: the log says why")
            await asyncio.sleep(0.01)
        yield server
    finally:
        await server.stop()
        await asyncio.gather(task, return_exceptions=True)
