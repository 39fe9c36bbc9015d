"""Reading hostile text: a model's answer becomes one plain JSON value, or a problem in our words. It must not know what
the answer is for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.engine.ai.words import WHOLE_MAX, clip, shown
from holdfast.engine.codec import encode
from holdfast.engine.errors import NotJson, PayloadTooLarge
from holdfast.engine.retry import storable

ANSWER_LIMIT = 64 * 1024  # bytes of one answer, as text and again as it is stored
DEPTH_LIMIT = 32
NUMBER_LENGTH = 64
PROBLEM_LIMIT = 1000


class Answer(msgspec.Struct, frozen=True):
    value: Any


class Problem(msgspec.Struct, frozen=True):
    text: str


class _Unreadable(ValueError):
    pass


def read_answer(raw: object, limit: int = ANSWER_LIMIT) -> Answer | Problem:
    """One JSON value, alone or in one ```json fence. Never raises, whatever the text."""
    if not isinstance(raw, str):
        return Problem("the answer is not text")
    if len(raw) > limit or len(raw.encode("utf-8", "surrogatepass")) > limit:
        return Problem(f"the answer is larger than {limit:,} bytes")
    text = _unfenced(raw.strip(" \t\r\n"))
    if not text:
        return Problem("the answer is empty")
    if _deep(text):
        return Problem(f"the answer is nested deeper than {DEPTH_LIMIT} levels")
    try:
        value = json.loads(
            text, object_pairs_hook=_pairs, parse_constant=_constant, parse_int=_whole, parse_float=_fraction
        )
        _refuse_texts(value)
        encode(value, "the answer", limit)  # 1e15 takes four bytes to say and eighteen to keep
    except json.JSONDecodeError as error:
        return Problem(f"the answer is not one JSON value: {error.msg} at character {error.pos}")
    except PayloadTooLarge:
        return Problem(f"the answer takes more than {limit:,} bytes when it is written out")
    except (_Unreadable, NotJson) as error:
        return Problem(clip(storable(str(error)), PROBLEM_LIMIT))
    except (ValueError, RecursionError) as error:
        return Problem(f"the answer cannot be read as JSON ({type(error).__name__})")
    return Answer(value)


def _unfenced(text: str) -> str:
    first, newline, rest = text.partition("\n")
    if newline and first.strip().lower() in ("```", "```json") and rest.endswith("```"):
        return rest[:-3].strip(" \t\r\n")
    return text


# An escaped character is taken whole, so that its quote closes nothing. One pass: a pattern for whole strings would
# start again at every quote of a text that never closes one.
_MARKS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)


def _deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= DEPTH_LIMIT:
        return False
    depth, quoted = 0, False
    for found in _MARKS.finditer(text):
        mark = found[0]
        if mark == '"':
            quoted = not quoted
        elif not quoted and mark in "[{":
            depth += 1
            if depth > DEPTH_LIMIT:
                return True
        elif not quoted and mark in "]}":
            depth -= 1
    return False


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Unreadable(f"the answer holds the key {shown(name)} twice")
        found[name] = value
    return found


def _constant(text: str) -> Any:
    raise _Unreadable(f"the answer holds {text}, which is not JSON")


def _whole(text: str) -> int:
    if len(text) > NUMBER_LENGTH or abs(value := int(text)) > WHOLE_MAX:
        raise _Unreadable("the answer holds a whole number beyond 2^53")
    return value


def _fraction(text: str) -> float:
    if len(text) > NUMBER_LENGTH or not math.isfinite(value := float(text)):
        raise _Unreadable("the answer holds a number that is too long or too large")
    return value


def _refuse_texts(value: object) -> None:
    for text in _texts(value):
        if "\x00" in text:
            raise _Unreadable("the answer holds the character U+0000")
        if not text.isascii() and storable(text) != text:
            raise _Unreadable("the answer holds half of a surrogate pair")


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
