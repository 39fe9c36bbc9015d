"""What asks for nothing: is it alive, is it ready, its metrics, its own description, and the way in for a browser."""

from __future__ import annotations

import hmac
import html
from typing import Any

import msgspec

from holdfast.api.auth import COOKIE, site_of
from holdfast.api.endpoints import PUBLIC, Answer, Call, Endpoints, Reply
from holdfast.api.pages import login_page
from holdfast.api.problems import Problem
from holdfast.app import api_keys

HTML = "text/html; charset=utf-8"
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
}  # fmt: skip


class LoginQuery(msgspec.Struct, frozen=True):
    key: str = ""


async def livez(call: Call) -> Reply:
    """The process answers."""
    return Reply(200, {"status": "alive"})


async def readyz(call: Call) -> Reply:
    """Requests can be served: every database answers, and the server is not stopping."""
    if call.doors.stopping.is_set() or call.doors.draining:
        raise Problem("overloaded", "this server is stopping")
    for service in call.doors.services():
        await service.store.fetch("read_clock" if service.store.dialect == "postgres" else "ping")
    return Reply(200, {"status": "ready"})


async def metrics(call: Call) -> Reply:
    """Prometheus metrics, of all tenants together: for the operator, with the metrics key. Open where none is set and
    the server listens on the loopback address, with no public address in front of it."""
    doors = call.doors
    if doors.metrics is None:
        raise Problem("not-found", "this server keeps no metrics")
    word = call.headers.get("authorization", "").partition(" ")[2].strip()
    key = doors.settings.metrics_key
    if not doors.open_metrics and not (key and hmac.compare_digest(key.encode(), word.encode())):
        raise Problem("unauthenticated", "the metrics are the operator's: send the server's metrics_key as a Bearer")
    return Reply(200, await doors.metrics.render(*doors.databases()), None, {}, doors.metrics.content_type)


async def openapi(call: Call) -> Reply:
    """This description."""
    return Reply(200, call.doors.described)


async def docs(call: Call) -> Reply:
    """This description, to read."""
    return Reply(200, call.doors.page, None, PAGE_HEADERS, HTML)


async def login(call: Call, query: LoginQuery) -> Reply:
    """The page behind a login link. Looking at it does nothing: a button logs in."""
    return Reply(200, login_page(html.escape(query.key)).encode(), None, PAGE_HEADERS, HTML)


def _check_sent_here(call: Call) -> None:
    origin = call.headers.get("origin")
    if origin is not None and site_of(origin) != call.headers.get("host", ""):
        raise Problem("forbidden", "this form was sent by another site")


async def log_in(call: Call) -> Reply:
    """Exchange a login link, once, for a session in this browser."""
    _check_sent_here(call)
    word = call.form.get("key", "")
    for service in call.doors.services():
        session = await api_keys.open_session(service, word)
        if session is not None:
            secure = "; Secure" if (call.doors.settings.public_url or "").startswith("https://") else ""
            cookie = f"{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200{secure}"
            return Reply(303, b"", None, {"Set-Cookie": cookie, "Location": "/docs"}, HTML)
    raise Problem("unauthenticated", "this login link was used, or is too old: ask for a new one")


async def log_out(call: Call) -> Reply:
    """End this browser's session, here and everywhere."""
    _check_sent_here(call)
    caller = call.caller
    if caller.key_id is not None:
        view = await api_keys.read(call.service, caller.tenant_id, caller.key_id)
        if view.kind == "session":
            await api_keys.revoke(call.service, caller.tenant_id, caller.key_id, by=call.by)
    cookie = f"{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
    return Reply(303, b"", None, {"Set-Cookie": cookie, "Location": "/docs"}, HTML)


def declare(endpoints: Endpoints) -> None:
    status: dict[str, Any] = {"status": "alive"}
    endpoints.add(
        "GET /livez", capability=PUBLIC, tag="server", summary="Is it alive?",
        answers={200: Answer("It is.", dict[str, str], status)},
    )(livez)  # fmt: skip
    endpoints.add(
        "GET /readyz", capability=PUBLIC, tag="server", summary="Is it ready?",
        answers={200: Answer("It is.", dict[str, str], {"status": "ready"})}, problems=("overloaded", "unavailable"),
    )(readyz)  # fmt: skip
    endpoints.add(
        "GET /metrics", capability=PUBLIC, tag="server", summary="Metrics",
        answers={200: Answer("Prometheus text.", None, "holdfast_queue_depth 0", "text/plain")},
        problems=("unauthenticated", "not-found"),
    )(metrics)  # fmt: skip
    endpoints.add(
        "GET /openapi.json", capability=PUBLIC, tag="server", summary="This description as OpenAPI 3.1",
        answers={200: Answer("The document.", dict[str, Any], {"openapi": "3.1.0"})},
    )(openapi)  # fmt: skip
    endpoints.add(
        "GET /docs", capability=PUBLIC, tag="server", summary="This description as a page",
        answers={200: Answer("A page.", None, "<html>", "text/html")},
    )(docs)  # fmt: skip
    endpoints.add(
        "GET /login", capability=PUBLIC, tag="server", summary="The page behind a login link", query=LoginQuery,
        answers={200: Answer("A page.", None, "<html>", "text/html")},
    )(login)  # fmt: skip
    endpoints.add(
        "POST /login", capability=PUBLIC, tag="server", summary="Log a browser in", form=("key",),
        answers={303: Answer("Logged in: on to /docs.", None, None, "", location=True)},
        problems=("unauthenticated", "forbidden", "malformed-request"),
    )(log_in)  # fmt: skip
    endpoints.add(
        "POST /logout", capability=PUBLIC, tag="server", summary="Log a browser out",
        answers={303: Answer("Logged out: on to /docs.", None, None, "", location=True)}, problems=("forbidden",),
    )(log_out)  # fmt: skip
