"""Pages for a browser: where to begin, the API to read and to try, and the way in and out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.api.auth import COOKIE, Sender, sender_of
from holdfast.api.endpoints import PUBLIC, Answer, Call, Endpoints, Reply
from holdfast.api.pages import front_page, login_page, login_refused_page
from holdfast.api.problems import Problem
from holdfast.app import api_keys

HTML = "text/html; charset=utf-8"
SCRIPT = Path(__file__).with_name("docs.js").read_bytes()
# With `no-referrer` a browser sends `Origin: null` with the form of our own page, as it does for a stranger's.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}  # fmt: skip
USED = "this login link was used, or is too old: ask for a new one"
ELSEWHERE = "this form was sent by another site"


class LoginQuery(msgspec.Struct, frozen=True):
    key: str = ""


def shown(status: int, page: str) -> Reply:
    return Reply(status, page.encode(), None, PAGE_HEADERS, HTML)


def address(call: Call) -> str:
    """Where whoever asks finds this server. Forwarded headers are not looked at: anybody can send them."""
    settings = call.doors.settings
    if settings.public_url:
        return settings.public_url.rstrip("/")
    return f"http://{call.headers.get('host') or f'{settings.host}:{settings.port}'}"


async def front(call: Call) -> Reply:
    """Where to begin."""
    return shown(200, front_page(call.caller.name, address(call)))


async def docs(call: Call) -> Reply:
    """This description, to read and to try."""
    return shown(200, call.doors.page.shown(address(call), call.caller.name))


async def script(call: Call) -> Reply:
    """What sends a request from /docs."""
    return Reply(200, SCRIPT, None, {"X-Content-Type-Options": "nosniff"}, "text/javascript; charset=utf-8")


async def login(call: Call, query: LoginQuery) -> Reply:
    """The page behind a login link. Looking at it does nothing: a button logs in."""
    return shown(200, login_page(query.key))


async def log_in(call: Call) -> Reply:
    """Exchange a login link, once, for a session in this browser."""
    if _sender(call) is Sender.OTHERS:
        return _refused(call, "forbidden", ELSEWHERE)
    word = call.form.get("key", "")
    for service in call.doors.services():
        session = await api_keys.open_session(service, word)
        if session is not None:
            secure = "; Secure" if (call.doors.settings.public_url or "").startswith("https://") else ""
            cookie = f"{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age=43200{secure}"
            return Reply(303, b"", None, {"Set-Cookie": cookie, "Location": "/docs"}, HTML)
    return _refused(call, "unauthenticated", USED)


async def log_out(call: Call) -> Reply:
    """End this browser's session, here and everywhere."""
    if _sender(call) is Sender.OTHERS:
        return _refused(call, "forbidden", ELSEWHERE)
    caller = call.caller
    if caller.key_id is not None:
        view = await api_keys.read(call.service, caller.tenant_id, caller.key_id)
        if view.kind == "session":
            await api_keys.revoke(call.service, caller.tenant_id, caller.key_id, by=call.by)
    cookie = f"{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"
    return Reply(303, b"", None, {"Set-Cookie": cookie, "Location": "/docs"}, HTML)


def _sender(call: Call) -> Sender:
    return sender_of(call.headers, call.doors.settings.public_url)


def _refused(call: Call, slug: str, words: str) -> Reply:
    """A page for whoever looks at pages, a problem document for programs."""
    problem = Problem(slug, words)
    if "text/html" not in call.headers.get("accept", ""):
        raise problem
    return shown(problem.status, login_refused_page(words, call.caller.name))


def declare(endpoints: Endpoints) -> None:
    endpoints.add(
        "GET /", capability=PUBLIC, tag="server", summary="Where to begin", page=True, greets=True,
        answers={200: Answer("A page.", None, "<html>", "text/html")},
    )(front)  # fmt: skip
    endpoints.add(
        "GET /docs", capability=PUBLIC, tag="server", summary="This description as a page", greets=True,
        answers={200: Answer("A page.", None, "<html>", "text/html")},
    )(docs)  # fmt: skip
    endpoints.add(
        "GET /docs.js", capability=PUBLIC, tag="server", summary="The script of /docs", page=True,
        answers={200: Answer("A script.", None, "", "text/javascript")},
    )(script)  # fmt: skip
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
