"""From an HTTP request to an endpoint's call and back: read strictly, checked who asks, carried out once, answered.

The order matters: who asks, whether they may, whether the request can be read, whether it was carried out before; only
then the endpoint runs.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import parse_qsl

import msgspec
import rfc8785
import structlog
from litestar.types import Receive, Scope, Send

from holdfast.api.auth import SAFE, authenticate
from holdfast.api.endpoints import ANYONE, PUBLIC, Call, Endpoint, Reply
from holdfast.api.problems import MEDIA_TYPE, Fault, Problem, misfit, not_strict, problem_of, storable_words
from holdfast.api.wire import Request, send_events, send_whole
from holdfast.app import idempotency
from holdfast.engine import strict_json
from holdfast.engine.access import Caller
from holdfast.engine.errors import HoldfastError
from holdfast.engine.trace import format_traceparent, parse_traceparent

if TYPE_CHECKING:
    from holdfast.api.server import Doors

log = structlog.get_logger("holdfast.api")
REQUEST_ID = re.compile(r"[A-Za-z0-9_\-:.]{1,128}\Z")
INTEGER = re.compile(r"-?\d{1,18}\Z", re.ASCII)
KEY = re.compile(r"[A-Za-z0-9_\-:.]{1,255}\Z")
WAIT = re.compile(r"\s*wait\s*=\s*(\d{1,4})\s*\Z", re.I)
WAIT_MAX = 60
LARGE_BYTES = 64 * 1024
FORM_BYTES = 8 * 1024
FORM_SECONDS = 5.0
WATCH_SECONDS = 2.0
ENTITY_MAX = 300
LOGGED = {"ins": "instance_id", "tsk": "task_id"}
NOBODY = Caller("", "", "", "", (), frozenset(), frozenset())
# What is refused before anything happens, or may go better another time, burns no key.
UNKEPT = frozenset({400, 401, 403, 413, 415, 422, 429})

_encode = msgspec.json.Encoder().encode


class Trail(msgspec.Struct, frozen=True):
    """By what a request is found again."""

    request_id: str
    trace_id: str
    traceparent: str
    given: bool = False  # whether the caller said in which trace it is


def trail_of(headers: Mapping[str, str]) -> Trail:
    given = headers.get("x-request-id", "")
    parent = parse_traceparent(headers.get("traceparent"))
    fresh = os.urandom(40).hex()
    trace_id = parent.trace_id if parent else fresh[:32]
    traceparent = format_traceparent(parent) if parent else f"00-{trace_id}-{fresh[32:48]}-01"
    request_id = given if REQUEST_ID.match(given) else fresh[48:]
    return Trail(request_id, trace_id, traceparent, parent is not None)


async def handle(doors: Doors, endpoint: Endpoint, request: Request) -> tuple[Reply, Trail]:
    """One request, from the first byte to the answer; whatever happens, there is one."""
    began = time.perf_counter()
    trail = trail_of(request.headers)
    span = None
    if doors.tracing is not None:
        span = doors.tracing.began(endpoint.method, endpoint.path, trail.traceparent if trail.given else None)
        if span is not None and span.traceparent is not None:  # whatever is started is this request's doing
            trail = Trail(trail.request_id, span.traceparent[3:35], span.traceparent)
    caller = NOBODY
    try:
        # Who reads what is public is nobody's business, unless it tells them who they are.
        if endpoint.capability != PUBLIC or endpoint.method not in SAFE or endpoint.greets:
            caller = await authenticate(doors, request, required=endpoint.capability != PUBLIC)
        reply = await _answer(doors, endpoint, request, caller, trail)
    except Problem as problem:
        reply = refused(problem, request.path, trail)
    except Exception as error:
        reply = refused(_problem(doors, error, endpoint, trail), request.path, trail)
    seconds = time.perf_counter() - began
    doors.observe(endpoint.path, endpoint.method, reply.status, seconds)
    if span is not None:
        span.answered(reply.status, caller.tenant_id)
    # Whoever is refused is told a trace_id, so it is in the log.
    wanted = doors.log_requests or reply.status >= 400
    level = log.warning if reply.status >= 500 else log.info if wanted else log.debug
    level(
        "request", method=endpoint.method, route=endpoint.path, status=reply.status, ms=round(seconds * 1000, 1),
        tenant_id=caller.tenant_id or None, principal=caller.name or None, **_whose(endpoint, request),
        request_id=trail.request_id, trace_id=trail.trace_id,
    )  # fmt: skip
    return reply, trail


def _whose(endpoint: Endpoint, request: Request) -> dict[str, str]:
    """The instance or the task that a path names, by the names that all log lines have for them."""
    word = request.path_params.get("id", "")
    name = LOGGED.get(endpoint.prefix)
    return {name: word} if name is not None and word.startswith(f"{endpoint.prefix}_") and word.isascii() else {}


def _problem(doors: Doors, error: Exception, endpoint: Endpoint, trail: Trail) -> Problem:
    if isinstance(error, HoldfastError) and (known := problem_of(error)) is not None:
        return known
    if doors.is_unreachable(error):
        log.warning("store_unreachable", route=endpoint.path, error=repr(error), trace_id=trail.trace_id)
        return Problem("unavailable", "the database does not answer: nothing is known to have changed; try again")
    log.error("request_failed", route=endpoint.path, error=repr(error), trace_id=trail.trace_id, exc_info=error)
    return Problem("internal-error", f"this is our fault; the log has more under the trace id {trail.trace_id}")


def refused(problem: Problem, path: str, trail: Trail) -> Reply:
    body = problem.body(storable_words(path), trail.trace_id)
    return Reply(problem.status, body, None, problem.headers, MEDIA_TYPE)


async def send_stream(scope: Scope, receive: Receive, send: Send, reply: Reply, trail: Trail) -> None:
    assert reply.events is not None
    headers = {**headers_for(reply, trail), "X-Accel-Buffering": "no"}
    await send_events(scope, receive, send, headers, reply.media_type, reply.events)


async def send_reply(send: Send, reply: Reply, trail: Trail) -> None:
    body = reply.body if isinstance(reply.body, bytes) else _encode(reply.body)
    await send_whole(send, reply.status, headers_for(reply, trail), reply.media_type, body)


def headers_for(reply: Reply, trail: Trail) -> dict[str, str]:
    headers = {"X-Request-Id": trail.request_id, "Cache-Control": "no-store", **reply.headers}
    if reply.etag is not None:
        headers["ETag"] = f'"{reply.etag}"'
    return headers


async def _answer(doors: Doors, endpoint: Endpoint, request: Request, caller: Caller, trail: Trail) -> Reply:
    if endpoint.capability not in (PUBLIC, ANYONE) and not caller.may(endpoint.capability):
        raise Problem(
            "forbidden",
            f"{caller.name} may not do this: it takes the capability {endpoint.capability!r}, and the roles "
            f"{', '.join(caller.roles) or '(none)'} do not have it, or this key's scopes leave it out",
        )
    call = Call(
        doors=doors, service=doors.service_for(caller.tenant_id), caller=caller, request_id=trail.request_id,
        trace_id=trail.trace_id, traceparent=trail.traceparent, path=request.path_params, headers=request.headers,
        if_match=_if_match(endpoint, request.headers), wait_seconds=_wait(endpoint, request.headers),
    )  # fmt: skip
    if endpoint.stream:
        call.still_may = _watched(doors, endpoint, request, caller)
    arguments: list[Any] = [call]
    raw, value = b"", None
    if endpoint.body is not None:
        raw = await request.body(doors.settings.max_body_bytes)
        if len(raw) > LARGE_BYTES:  # others go on meanwhile
            value = await asyncio.to_thread(_read, endpoint, request.headers, raw)
        else:
            value = _read(endpoint, request.headers, raw)
        arguments.append(_fits(value, endpoint.body))
    if endpoint.form:
        call.form = dict(_query(await request.body(FORM_BYTES, FORM_SECONDS)))
    query = _query(request.query_string)
    if endpoint.query is not None or query:
        arguments += _query_model(endpoint, query)
    if not endpoint.keyed:
        return await endpoint.function(*arguments)
    return await _once(call, endpoint, arguments, value, raw, query)


def _watched(doors: Doors, endpoint: Endpoint, request: Request, caller: Caller) -> Callable[[], Awaitable[bool]]:
    """Whether whoever follows a stream may still do so; asked every few seconds."""
    loop = asyncio.get_running_loop()
    asked = loop.time()

    async def still_may() -> bool:
        nonlocal asked
        if loop.time() - asked < WATCH_SECONDS:
            return True
        asked = loop.time()
        try:
            now = await authenticate(doors, request, required=True)
        except Problem:
            return False
        return now.principal_id == caller.principal_id and now.may(endpoint.capability)

    return still_may


# -- once


async def _once(
    call: Call, endpoint: Endpoint, arguments: list[Any], value: Any, raw: bytes, query: list[tuple[str, str]]
) -> Reply:
    key = _idempotency_key(endpoint, call)
    if key is None:
        return await endpoint.function(*arguments)
    place = idempotency.Place(call.tenant_id, call.caller.principal_id, endpoint.operation, _entity(call), key)
    if len(raw) > LARGE_BYTES:
        hashed = await asyncio.to_thread(request_hash, endpoint, media_type(call.headers), value, raw, query)
    else:
        hashed = request_hash(endpoint, media_type(call.headers), value, raw, query)
    found = await idempotency.claim(call.service, place, hashed, keep_days=call.doors.settings.idempotency_days)
    match found:
        case idempotency.Claim():
            return await _carry_out(call, endpoint, arguments, found)
        case idempotency.Answered(status, headers, body):
            return Reply(
                status, body, None, {**headers, "Idempotent-Replayed": "true"},
                MEDIA_TYPE if status >= 400 else "application/json",
            )  # fmt: skip
        case idempotency.InProgress(seconds):
            raise Problem(
                "idempotency-key-in-use", "the first request with this key is still being carried out: ask again",
                headers={"Retry-After": str(seconds)},
            )  # fmt: skip
        case idempotency.Reused():
            raise Problem(
                "idempotency-key-reused",
                "this Idempotency-Key was used for another request: a key names one request; take a new one",
            )
        case idempotency.Gone():
            raise Problem(
                "idempotency-key-expired",
                "a request with this key was carried out, so long ago that its answer is not kept any more",
            )


def _path(endpoint: Endpoint, call: Call) -> str:
    return "/".join(call.path.get(part[1:-1], part) for part in endpoint.path.split("/"))


def _entity(call: Call) -> str:
    """Whom the path names. A word that no database would keep in an index stands there by its hash."""
    word = "/".join(call.path.values())
    if len(word) <= ENTITY_MAX and word.isascii() and word.isprintable():
        return word
    return hashlib.sha256(word.encode("utf-8", "replace")).hexdigest()


async def _carry_out(call: Call, endpoint: Endpoint, arguments: list[Any], claim: idempotency.Claim) -> Reply:
    call.claim = claim
    trail = Trail(call.request_id, call.trace_id, call.traceparent)
    try:
        with idempotency.under(claim):
            if claim.done and endpoint.again is not None:  # its change is there already: what is left is to say so
                reply = await endpoint.again(call)
            else:
                reply = await endpoint.function(*arguments)
    except asyncio.CancelledError:
        await _let_go(call, claim)  # the server stops: whoever asks the next one need not wait for a lease to run out
        raise
    except Exception as error:
        problem = error if isinstance(error, Problem) else _problem(call.doors, error, endpoint, trail)
        if problem.status in UNKEPT and not claim.taken_over:
            await idempotency.forget(call.service, claim)
            raise problem from None
        if problem.status >= 500 or problem.status in UNKEPT:
            await _let_go(call, claim)
            raise problem from error
        reply = refused(problem, _path(endpoint, call), trail)
    kept = reply.body
    if endpoint.secret:
        kept = {**msgspec.to_builtins(reply.body), "key": None}
    headers = dict(reply.headers) | ({"ETag": f'"{reply.etag}"'} if reply.etag is not None else {})
    body = kept if isinstance(kept, bytes) else _encode(kept)
    try:
        await idempotency.settle(call.service, claim, reply.status, headers, body)
    except Exception as error:  # it is done, and the caller hears so; who asks again finds it done
        log.warning("answer_not_kept", error=repr(error), trace_id=call.trace_id)
        await _let_go(call, claim)
    return reply


async def _let_go(call: Call, claim: idempotency.Claim) -> None:
    try:
        await idempotency.release(call.service, claim)
    except Exception as error:  # then its lease runs out instead
        log.warning("key_not_released", error=repr(error), trace_id=call.trace_id)


def request_hash(endpoint: Endpoint, kind: str, value: Any, raw: bytes, query: list[tuple[str, str]]) -> bytes:
    """Over what was asked: method, route, sorted query, content type and body, JSON in its canonical form."""
    body = rfc8785.dumps(value) if endpoint.body is not None else raw
    head = [endpoint.method, endpoint.path, sorted(query), kind if raw else ""]
    return hashlib.sha256(_encode(head) + b"\n" + body).digest()


def _idempotency_key(endpoint: Endpoint, call: Call) -> str | None:
    given = call.headers.get("idempotency-key")
    if given is None:
        if endpoint.keyed == "required" or call.doors.settings.require_idempotency_keys:
            raise Problem(
                "idempotency-key-missing",
                "this request does something that must not happen twice: send a header Idempotency-Key with a text "
                "of your own, and the same one when you ask again",
            )
        return None
    word = given.strip()
    if len(word) >= 2 and word[0] == word[-1] == '"':
        word = word[1:-1]
    if not KEY.match(word):
        words = "expected 1 to 255 of letters, digits, '_', '-', ':' and '.', quoted or not"
        raise Problem(
            "malformed-request", f"Idempotency-Key: {words}", errors=[Fault(words, "/headers/Idempotency-Key")]
        )
    return word


# -- reading


def media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _read(endpoint: Endpoint, headers: Mapping[str, str], raw: bytes) -> Any:
    if not raw.strip() and endpoint.body_optional:
        return {}
    kind = media_type(headers)
    if kind != "application/json" and not kind.endswith("+json"):
        raise Problem(
            "unsupported-media-type", f"Content-Type is {kind[:100] or 'missing'!r}: expected application/json"
        )
    try:
        return strict_json.read(raw)
    except strict_json.NotStrict as error:
        raise not_strict(error) from None


def _fits(value: Any, model: Any) -> Any:
    try:
        return msgspec.convert(value, model)
    except msgspec.ValidationError as error:
        raise misfit(error, model) from None


def _query(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except (ValueError, UnicodeDecodeError):
        raise Problem("malformed-request", "the query cannot be read: expected name=value pairs in UTF-8") from None


def _query_model(endpoint: Endpoint, query: list[tuple[str, str]]) -> list[Any]:
    """The query as the endpoint's model. A field that is a list may come as a,b or several times."""
    model = endpoint.query
    known = {} if model is None else {field.name: field for field in msgspec.structs.fields(model)}
    given: dict[str, Any] = {}
    for name, value in query:
        if name not in known:
            words = f"expected {', '.join(known)}" if known else "this route takes none"
            raise _bad_query(name, f"there is no such parameter: {words}")
        if "\x00" in value:
            raise _bad_query(name, "the text holds U+0000")
        if known[name].encode_name in getattr(model, "LISTS", ()):
            given.setdefault(name, []).extend(value.split(","))
        elif name in given:
            raise _bad_query(name, "it stands twice")
        else:
            given[name] = int(value) if name in _integers(model) and INTEGER.match(value) else value
    if model is None:
        return []
    try:
        return [msgspec.convert(given, model)]
    except msgspec.ValidationError as error:
        raise misfit(error, model, "/query") from None


@functools.cache
def _integers(model: Any) -> frozenset[str]:
    """The fields that are numbers: all else in a query stays the text it is. Reading it loosely would also take `null`
    for nothing and a number for a moment."""
    return frozenset(field.name for field in msgspec.structs.fields(model) if _is_integer(field.type))


def _is_integer(kind: Any) -> bool:
    return kind is int or any(_is_integer(part) for part in get_args(kind) if not isinstance(part, msgspec.Meta))


def _bad_query(name: str, words: str) -> Problem:
    shown = storable_words(name[:100])
    return Problem("validation-failed", f"{shown}: {words}", errors=[Fault(words, f"/query/{shown}")])


def _if_match(endpoint: Endpoint, headers: Mapping[str, str]) -> str | None:
    given = headers.get("if-match")
    if given is None and endpoint.if_match == "required":
        raise Problem(
            "precondition-required",
            "this replaces what is there: send If-Match with the ETag of the version you decided on",
        )
    return given if endpoint.if_match else None


def _wait(endpoint: Endpoint, headers: Mapping[str, str]) -> float | None:
    if not endpoint.prefer:
        return None
    for preference in headers.get("prefer", "").split(","):
        if (found := WAIT.match(preference)) is not None:
            return float(min(int(found[1]), WAIT_MAX))
    return None
