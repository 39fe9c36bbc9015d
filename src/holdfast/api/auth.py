"""Who asks: an API key, an OIDC token, or a browser's session, in that order. Nobody is told why a key is not taken."""

from __future__ import annotations

import enum
from collections.abc import Mapping
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
        # A browser sends its cookie along with requests that other sites cause: those change nothing.
        if request.method not in SAFE and sender_of(request.headers, doors.settings.public_url) is not Sender.US:
            raise Problem(
                "forbidden", "this request was caused by another site: changes need a request of our own pages"
            )
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


class Sender(enum.Enum):
    """Whose page made a browser send a request."""

    US = "us"
    OTHERS = "others"
    UNSAID = "unsaid"  # no browser of today leaves both headers out of a form or a change


def sender_of(headers: Mapping[str, str], public_url: str | None) -> Sender:
    """By what browsers say and no page can change: Sec-Fetch-Site where it is sent (to HTTPS and to loopback), else
    Origin. `Origin: null` is also what a sandboxed frame of another site sends, so by itself it never means us."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site == "same-origin":
        return Sender.US
    if site not in (None, "none"):
        return Sender.OTHERS
    if origin is None:
        return Sender.UNSAID
    ours = _site(origin) is not None and (
        urlsplit(origin).netloc == headers.get("host", "")
        # Behind a proxy that changes Host, the address that the operator has set is ours as well.
        or (public_url is not None and _site(origin) == _site(public_url))
    )
    return Sender.US if ours else Sender.OTHERS


def _site(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port of a URL; None if it names no host."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None
