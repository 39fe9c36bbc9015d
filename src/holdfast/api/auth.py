"""Who asks: an API key, an OIDC token, or a browser's session, in that order. Nobody is told why a key is not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from holdfast.api.problems import Problem
from holdfast.api.wire import Request
from holdfast.engine.access import Caller
from holdfast.engine.keys import KEY

if TYPE_CHECKING:
    from holdfast.api.server import Doors

COOKIE = "holdfast_session"
SAFE = ("GET", "HEAD", "OPTIONS")
NOBODY = Caller("", "", "", "", (), frozenset(), frozenset())
HOW = "send Authorization: Bearer with an API key (`holdfast keys create` makes one)"


async def authenticate(doors: Doors, request: Request, *, required: bool) -> Caller:
    header = request.headers.get("authorization", "")
    if header and not required:  # it may be meant for somebody else, such as the metrics' own key
        scheme, _, word = header.partition(" ")
        return await _bearer(doors, word.strip()) or NOBODY
    if header:
        scheme, _, word = header.partition(" ")
        word = word.strip()
        if scheme.lower() != "bearer" or not word:
            raise Problem("unauthenticated", f"the Authorization header is not understood: {HOW}")
        caller = await _bearer(doors, word)
        if caller is None:
            raise Problem("unauthenticated", "this key or token is not valid, or not any more")
        return caller
    cookie = request.cookies.get(COOKIE, "")
    if cookie and KEY.match(cookie) and (caller := await doors.caller_of_key(cookie)) is not None:
        if request.method not in SAFE:
            _check_origin(request)
        return caller
    if required:
        raise Problem("unauthenticated", f"nobody is logged in: {HOW}")
    return NOBODY


async def _bearer(doors: Doors, word: str) -> Caller | None:
    if KEY.match(word):
        return await doors.caller_of_key(word)
    if doors.oidc is not None and word.count(".") == 2:
        return await doors.oidc.caller(doors, word)
    return None


def _check_origin(request: Request) -> None:
    """A browser sends its cookie along with requests that other sites cause: those change nothing."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    same = origin is not None and site_of(origin) == request.headers.get("host", "")
    if site not in (None, "same-origin", "none") or not (same or site == "same-origin"):
        raise Problem("forbidden", "this request was caused by another site: changes need a request of our own pages")


def site_of(origin: str) -> str | None:
    """The host and port that an Origin names; None if it is none."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None
