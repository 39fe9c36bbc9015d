"""JSON in and out. What goes in comes back the same on both databases, or is refused with the reason.

Values: None, bool, int, float, str, list, dict with str keys; and whatever msgspec knows how to write (dataclasses,
Structs, datetime, Decimal, UUID, Enum) or pydantic models. They come back as plain JSON unless a type is named.
"""

from __future__ import annotations

import math
from asyncio import Future
from collections.abc import Callable
from hashlib import sha256
from inspect import isawaitable
from types import CoroutineType
from typing import Any

import msgspec

from holdfast.engine.errors import NotAwaited, NotJson, PayloadTooLarge
from holdfast.engine.interrupts import is_interrupt

PAYLOAD_LIMIT = 1 << 20
UNLIMITED = 1 << 40
DEPTH_LIMIT = 200
SCHEMA_LIMIT = 16 * 1024  # of what is shown of a type
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_PLAIN = (str, int, float, type(None), msgspec.Raw)


def _hook(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)  # pydantic, without depending on it
    if callable(dump):
        return dump(mode="json")
    check_awaited(value)
    raise NotJson(
        f"{type(value).__module__}.{type(value).__qualname__} is not JSON: return plain values, a dataclass, "
        "a msgspec Struct or a pydantic model"
    )


def check_awaited(value: Any) -> None:
    """Of a coroutine nothing has run, and nothing will: what gave it has not done what it is there for."""
    if isinstance(value, Future):
        raise NotAwaited("it is a future, not what will come of it: put `await` before the call that gave it")
    if isawaitable(value):
        if isinstance(value, CoroutineType):
            value.close()  # else Python warns of it, somewhere
        raise NotAwaited(
            f"it is a {type(value).__name__} that nobody awaits, so nothing of it has run: give the async function "
            "itself, not a lambda around it, or put `await` before the call that gave it"
        )


_plain = msgspec.json.Encoder(enc_hook=_hook)
_sorted = msgspec.json.Encoder(enc_hook=_hook, order="deterministic")
_decode = msgspec.json.Decoder().decode


def encode(value: Any, what: str = "the value", limit: int = PAYLOAD_LIMIT, name: str = "") -> bytes:
    """`what` and `name` say in a refusal which value it was."""
    try:
        raw = _plain.encode(value)
    except BaseException as error:
        raise _not_json(error, what, name) from None
    if len(raw) > limit or b"null" in raw or (len(raw) > DEPTH_LIMIT and may_be_deep(raw)):
        _look_closer(raw, value, what, limit, name)
    return raw


def encode_sorted(value: Any, what: str = "the value", limit: int = PAYLOAD_LIMIT, name: str = "") -> bytes:
    """The same value gives the same bytes: for comparing and hashing."""
    try:
        raw = _sorted.encode(value)
    except BaseException as error:
        raise _not_json(error, what, name) from None
    if len(raw) > limit or b"null" in raw or (len(raw) > DEPTH_LIMIT and may_be_deep(raw)):
        _look_closer(raw, value, what, limit, name)
    return raw


def _not_json(error: BaseException, what: str, name: str) -> BaseException:
    named = f"{what} {name!r}" if name else what
    if not isinstance(error, (NotJson, TypeError, ValueError, RecursionError, OverflowError)):
        if isinstance(error, Exception) or is_interrupt(error):
            return error
        return NotJson(f"{named} is not JSON: making JSON of it raised {type(error).__name__}")
    if isinstance(error, NotJson):
        return type(error)(f"{named}: {error}")
    return NotJson(f"{named} is not JSON: {error or type(error).__name__}")


def _look_closer(raw: bytes, value: Any, what: str, limit: int, name: str) -> None:
    named = f"{what} {name!r}" if name else what
    if len(raw) > limit:
        raise PayloadTooLarge(named, len(raw), limit)
    _refuse_hidden(value, named)  # NaN and infinity would be written as null


def may_be_deep(raw: bytes) -> bool:
    """Whether it may be nested too deep to be read back: brackets are taken away in pairs, from the inside out."""
    if raw.count(b"[") + raw.count(b"{") <= DEPTH_LIMIT:
        return False
    left = raw.translate(None, _NOT_BRACKETS)
    for _ in range(DEPTH_LIMIT // 2):  # one round may take away two: {[]}
        less = left.replace(b"[]", b"").replace(b"{}", b"")
        if len(less) == len(left):  # none are left, or some that stand in a text are in the way
            break
        left = less
    return bool(left)


def _refuse_hidden(value: Any, what: str, depth: int = 0) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise NotJson(f"{what} holds {value}, which JSON cannot carry: use None or a string")
    if depth > DEPTH_LIMIT:
        raise NotJson(f"{what} is nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_hidden(item, what, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _refuse_hidden(item, what, depth + 1)
    elif not isinstance(value, _PLAIN):  # a dataclass, a Struct, a model: look at what was written of it
        _refuse_hidden(msgspec.to_builtins(value, enc_hook=_hook), what, depth + 1)


def decode(raw: bytes) -> Any:
    return _decode(raw)


_decoders: dict[Any, Callable[[bytes], Any]] = {}


def decoder_for(kind: Any) -> Callable[[bytes], Any]:
    """A decoder to an annotated type; plain JSON where the annotation says nothing that JSON does not know."""
    if kind is None or kind is Any or kind is object:
        return _decode
    try:
        found = _decoders.get(kind)
    except TypeError:  # an unhashable annotation
        return _decode
    if found is None:
        found = _decoders[kind] = _make_decoder(kind)
    return found


def _make_decoder(kind: Any) -> Callable[[bytes], Any]:
    validate = getattr(kind, "model_validate_json", None)
    if callable(validate):
        return _contained(lambda raw: validate(bytes(raw)))
    try:
        decode = msgspec.json.Decoder(kind, dec_hook=_unhook).decode
    except (TypeError, msgspec.ValidationError):
        return _decode
    return decode if kind in _PLAIN else _contained(decode)


def _contained(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """An author's type may raise anything when it is read. Whoever reads it counts on an Exception."""

    def contained(raw: bytes) -> Any:
        try:
            return decode(raw)
        except BaseException as error:
            if isinstance(error, Exception) or is_interrupt(error):
                raise
            raise ValueError(f"reading it raised {type(error).__name__}") from error

    return contained


def _unhook(kind: Any, value: Any) -> Any:
    """The other way round: a pydantic model inside a list, an optional or a Struct."""
    validate = getattr(kind, "model_validate_json", None)
    if callable(validate):
        return validate(_plain.encode(value))
    raise msgspec.ValidationError(f"Expected `{getattr(kind, '__name__', kind)}`, got `{type(value).__name__}`")


def schema_of(kind: Any) -> dict[str, Any] | None:
    """The JSON Schema of what `decoder_for(kind)` takes, for people to read; None where it takes anything."""
    if decoder_for(kind) is _decode:
        return None
    try:
        found: dict[str, Any] = _schema(kind)
        return found if len(_plain.encode(found)) <= SCHEMA_LIMIT else None
    except Exception:  # an author's type that describes itself badly, or not at all
        return None


def _schema(kind: Any) -> Any:
    described = getattr(kind, "model_json_schema", None)
    return described() if callable(described) else msgspec.json.schema(kind, schema_hook=_schema_of_other)


def _schema_of_other(kind: Any) -> Any:
    return _schema(kind) if callable(getattr(kind, "model_json_schema", None)) else {}


def digest(raw: bytes) -> str:
    return sha256(raw).hexdigest()
