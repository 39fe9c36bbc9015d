"""One request from its words to its answer: sent with a time limit, tried again where that cannot do harm, read.

A change carries an Idempotency-Key that is made once per call and is the same on every attempt, so that the server
carries it out once however often it is asked. What has no key is not sent again once the server may have it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
import msgspec

from holdfast.api.models import Listing
from holdfast.client.errors import ApiError, Fault, TimedOut, Unreachable, UnreadableReply, kind_of
from holdfast.client.pages import Pages
from holdfast.engine import codec
from holdfast.engine.errors import BadInput

T = TypeVar("T")
IfMatch = str | int | None  # an answer's etag, or a version
Query = Mapping[str, object]

AGAIN = frozenset({429, 502, 503, 504})
IN_USE = "idempotency-key-in-use"
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 45.0  # a stream gives a sign of life every 15
PAUSE_FIRST = 0.2
PAUSE_MAX = 10.0
RETRY_AFTER_MAX = 60.0  # whoever is to wait for longer is told, and decides
WAIT_MAX = 60
KEY = re.compile(r"[A-Za-z0-9_\-:.]{1,255}\Z")
PRINTABLE = re.compile(r"[\x21-\x7e]+\Z")
PROBLEM = "application/problem+json"


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request, the same on every attempt. `repeatable`: asking twice does no more than asking once."""

    method: str
    path: str
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    content: bytes | None = None
    repeatable: bool
    held_seconds: float = 0.0
    """For how long the server was asked to hold its answer."""
    expected: int | None = None
    """An answer that is right though it is no 2xx."""

    @property
    def operation(self) -> str:
        return f"{self.method} {self.path}"


class _Problem(msgspec.Struct, frozen=True):
    """What of a problem we read; a server may say more, or an older one less."""

    code: str
    title: str = ""
    detail: str = ""
    trace_id: str = ""
    errors: list[Fault] = []


# -- deciding


def pause_seconds(attempt: int, retry_after: float | None, chance: float) -> float:
    """How long to wait after that attempt: twice as long each time, and never less than the server asks for; `chance`
    (0 to 1) spreads those who were refused together."""
    pause = min(PAUSE_FIRST * 2.0 ** (attempt - 1), PAUSE_MAX) * (0.5 + chance / 2)
    return pause if retry_after is None else retry_after + pause


def may_ask_again(ask: Ask, error: ApiError) -> bool:
    """Whether another attempt may go better, and cannot do harm."""
    if isinstance(error, Unreachable):
        return ask.repeatable or not error.sent
    if error.status not in AGAIN and error.code != IN_USE:
        return False
    return ask.repeatable and (error.retry_after is None or error.retry_after <= RETRY_AFTER_MAX)


def retry_after_seconds(word: str | None, now: datetime) -> float | None:
    """Seconds, or a date."""
    if word is None:
        return None
    if word.strip().isdecimal() and len(word) < 10:
        return float(word)
    try:
        at = parsedate_to_datetime(word)
    except ValueError:
        return None
    return max(0.0, ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds())


# -- words


def at(*parts: str) -> str:
    """A path of the API, from words that may hold anything."""
    for part in parts:
        if part in ("", ".", ".."):
            raise BadInput(f"{part!r} is no id: a part of the address would be missing")
    return "/workflow/" + "/".join(quote(part, safe="@") for part in parts)


def query_of(query: Query) -> dict[str, str]:
    """What is None stays away; a list goes as a,b; a moment as RFC 3339."""
    return {name: _word(value) for name, value in query.items() if value is not None}


def _word(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(str(one) for one in value)
    return str(value)


def etag_word(if_match: str | int) -> str:
    word = f'"{if_match}"' if isinstance(if_match, int) else if_match
    return word if word == "*" or word.endswith('"') else f'"{word}"'


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    found = _decoders.get(kind)
    if found is None:
        found = _decoders[kind] = msgspec.json.Decoder(kind)
    return found


class Connection:
    """A server, a key and one pool of connections."""

    def __init__(
        self, url: str, key: str | None, *, timeout: float, retries: int, transport: httpx.AsyncBaseTransport | None,
        sleep: Callable[[float], Awaitable[None]], chance: Callable[[], float],
    ) -> None:  # fmt: skip
        if not re.match(r"https?://[^/]", url):
            raise BadInput(f"{url!r} is no address of a server: expected http://… or https://…")
        if key is not None and not PRINTABLE.match(key):
            raise BadInput("the key is empty or holds what no key holds: expected hfst_…, without spaces around it")
        if timeout <= 0 or retries < 0:
            raise BadInput("expected a timeout above 0 and at least 0 retries")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.retries = retries
        self.sleep = sleep
        self.chance = chance
        headers = {"Accept": "application/json", "User-Agent": "holdfast-client"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        self.http = httpx.AsyncClient(
            base_url=self.url, headers=headers, transport=transport, follow_redirects=False,
            timeout=httpx.Timeout(None, connect=min(timeout, CONNECT_SECONDS)),
        )  # fmt: skip

    # -- asking

    async def read(self, kind: type[T], path: str, *, query: Query | None = None) -> T:
        return self.answer(kind, await self.send(Ask(
            method="GET", path=path, query=query_of(query or {}), repeatable=True,
        )))  # fmt: skip

    async def try_out(self, kind: type[T], path: str, body: object) -> T:
        """A POST that changes nothing."""
        headers = {"Content-Type": "application/json"}
        return self.answer(kind, await self.send(Ask(
            method="POST", path=path, headers=headers, content=_encode(body), repeatable=True,
        )))  # fmt: skip

    async def text(self, path: str, *, query: Query | None = None) -> str:
        """An answer that is no JSON."""
        ask = Ask(method="GET", path=path, query=query_of(query or {}), repeatable=True, headers={"Accept": "*/*"})
        return (await self.send(ask)).text  # fmt: skip

    async def change(
        self, kind: type[T], path: str, body: object = None, *, method: str = "POST", if_match: IfMatch = None,
        wait: float | None = None, idempotency_key: str | None = None,
    ) -> T:  # fmt: skip
        reply = await self.changed(
            path, body, method=method, if_match=if_match, wait=wait, idempotency_key=idempotency_key
        )
        return self.answer(kind, reply)

    async def changed(
        self, path: str, body: object = None, *, method: str = "POST", if_match: IfMatch = None,
        wait: float | None = None, idempotency_key: str | None = None,
    ) -> httpx.Response:  # fmt: skip
        """Have something done, once, and give the answer as it came."""
        key = uuid4().hex if idempotency_key is None else idempotency_key
        if not KEY.match(key):
            raise BadInput("idempotency_key: expected 1 to 255 of letters, digits, '_', '-', ':' and '.'")
        headers = {"Idempotency-Key": f'"{key}"'}
        if if_match is not None:
            headers["If-Match"] = etag_word(if_match)
        held = 0
        if wait is not None:
            held = max(0, min(WAIT_MAX, -int(-wait // 1)))
            headers["Prefer"] = f"wait={held}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        return await self.send(Ask(
            method=method, path=path, headers=headers, content=None if body is None else _encode(body),
            repeatable=True, held_seconds=held,
        ))  # fmt: skip

    def pages(self, kind: type[Listing[T]], path: str, query: Query | None = None) -> Pages[T]:
        """A list: `cursor` asks for the next page."""

        async def fetch(cursor: str | None) -> Listing[T]:
            return await self.read(kind, path, query={**(query or {}), "cursor": cursor})

        return Pages(fetch)

    def whole(self, kind: type[Listing[T]], path: str) -> Pages[T]:
        """A list that comes in one piece."""

        async def fetch(cursor: str | None) -> Listing[T]:
            return await self.read(kind, path)

        return Pages(fetch)

    # -- sending

    async def send(self, ask: Ask) -> httpx.Response:
        """The answer of the first attempt that gets one; without attempts left, the last error."""
        attempt = 1
        while True:
            try:
                return await self.once(ask)
            except ApiError as error:
                if attempt > self.retries or not may_ask_again(ask, error):
                    raise
                pause = pause_seconds(attempt, error.retry_after, self.chance())
            await self.sleep(pause)
            attempt += 1

    async def once(self, ask: Ask) -> httpx.Response:
        """One attempt: an answer that went well, or the error."""
        limit = self.timeout + ask.held_seconds
        try:
            async with asyncio.timeout(limit):
                reply = await self.http.request(
                    ask.method, ask.path, params=ask.query, headers=ask.headers, content=ask.content
                )
        except (httpx.RequestError, TimeoutError) as error:
            raise self.unreachable(ask.operation, error, limit) from error
        if reply.is_success or reply.status_code == ask.expected:
            return reply
        raise self.refusal(reply, ask.operation)

    @asynccontextmanager
    async def follow(self, path: str, last_id: str | None) -> AsyncIterator[AsyncIterator[bytes] | None]:
        """A stream's bytes as they come; None: there is nothing more to come (204)."""
        operation = f"GET {path}"
        headers = {"Accept": "text/event-stream"} | ({} if last_id is None else {"Last-Event-ID": last_id})
        limits = httpx.Timeout(SILENCE_SECONDS, connect=min(self.timeout, CONNECT_SECONDS))
        try:
            async with self.http.stream("GET", path, headers=headers, timeout=limits) as reply:
                if reply.status_code == 204:
                    yield None
                elif reply.is_success and reply.headers.get("content-type", "").startswith("text/event-stream"):
                    yield reply.aiter_bytes()
                else:
                    await reply.aread()
                    raise self.refusal(reply, operation)
        except httpx.RequestError as error:
            raise self.unreachable(operation, error, SILENCE_SECONDS) from error

    # -- reading

    def answer(self, kind: type[T], reply: httpx.Response) -> T:
        """What came, as the model that it is; a field that this client does not know is passed over."""
        operation = _operation(reply)
        if not _media_type(reply).endswith("json"):
            raise self.foreign(reply, operation)
        try:
            found: T = _decoder(kind).decode(reply.content)
        except msgspec.DecodeError as error:
            raise UnreadableReply(
                f"it went well, and the answer is not as this client knows it ({error}): is the server newer?",
                operation=operation, status=reply.status_code,
            ) from None  # fmt: skip
        if hasattr(kind, "etag"):
            msgspec.structs.force_setattr(found, "etag", reply.headers.get("etag"))  # type: ignore[arg-type]
        return found

    def refusal(self, reply: httpx.Response, operation: str) -> ApiError:
        status = reply.status_code
        if _media_type(reply) != PROBLEM:
            return self.foreign(reply, operation)
        try:
            problem = _decoder(_Problem).decode(reply.content)
        except msgspec.DecodeError:
            return self.foreign(reply, operation)
        return kind_of(problem.code, status)(
            problem.detail, operation=operation, code=problem.code, status=status, title=problem.title,
            trace_id=problem.trace_id, errors=problem.errors, retry_after=_retry_after(reply),
        )  # fmt: skip

    def foreign(self, reply: httpx.Response, operation: str) -> UnreadableReply:
        where = f" to {reply.headers['location']!r}" if "location" in reply.headers else ""
        begins = reply.content[:200].decode("utf-8", "replace").strip()
        return UnreadableReply(
            f"{self.url} answered with {_media_type(reply) or 'no content type'}{where}, which is not Holdfast's: is "
            f"the address right, or is a proxy in between? It begins {begins!r}",
            operation=operation, status=reply.status_code, retry_after=_retry_after(reply),
        )  # fmt: skip

    def unreachable(self, operation: str, error: Exception, limit: float) -> Unreachable:
        if isinstance(error, TimeoutError | httpx.ReadTimeout):
            return TimedOut(f"{self.url} did not answer within {limit:g} seconds", operation=operation)
        sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        how = "the connection was lost" if sent else "there is no connection"
        kind = TimedOut if isinstance(error, httpx.TimeoutException) else Unreachable
        return kind(f"{how} to {self.url} ({words})", operation=operation, sent=sent)


def _encode(body: object) -> bytes:
    return codec.encode(body, "the request", codec.UNLIMITED)


def _operation(reply: httpx.Response) -> str:
    return f"{reply.request.method} {reply.request.url.path}"


def _media_type(reply: httpx.Response) -> str:
    return str(reply.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _retry_after(reply: httpx.Response) -> float | None:
    return retry_after_seconds(reply.headers.get("retry-after"), datetime.now(UTC))
