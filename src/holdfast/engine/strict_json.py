"""JSON from outside, read strictly: what two readers might understand differently is refused, with its place.

Refused: a key that stands twice in an object, NaN and infinities, numbers beyond 2^53 - 1 or the range of a double,
U+0000 and half surrogate pairs in texts and keys, anything nested deeper than the limit, and what is not UTF-8 or not
JSON.
"""

from __future__ import annotations

import json
import math
from typing import Any

from holdfast.engine import codec
from holdfast.engine.charts.document import escaped
from holdfast.engine.errors import Misplaced

TOO_BIG = "the number is beyond 2^53 - 1, where JSON readers differ: send a text"
INTEGER_MAX = (1 << 53) - 1  # the next one is also what 2^53 + 1 becomes in a reader with doubles
PROBLEMS_MAX = 20


class NotStrict(Exception):
    """The text cannot be taken as JSON."""

    def __init__(self, problems: list[Misplaced]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{p.pointer or '/'}: {p.detail}" for p in problems))


class _Twice:
    """Stands where an object with a repeated key stood, so that its place is known."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys


class _Constant:
    def __init__(self, word: str) -> None:
        self.word = word


def _pairs(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    return _Twice([key for key, _ in pairs if key in seen or seen.add(key)])  # type: ignore[func-returns-value]


def read(raw: bytes, depth_max: int = codec.DEPTH_LIMIT) -> Any:
    """The value, or NotStrict with every fault found, up to a limit."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotStrict([Misplaced("", f"the body is not UTF-8: byte {error.start} does not belong there")]) from None
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_Constant)
    except RecursionError:
        raise NotStrict([Misplaced("", f"the body is nested deeper than {depth_max} levels")]) from None
    except ValueError as error:
        words = "a number has too many digits" if "digits" in str(error) else str(error)
        raise NotStrict([Misplaced("", f"the body is not JSON: {words}")]) from None
    problems: list[Misplaced] = []
    _walk(value, None, 0, depth_max, problems)
    if problems:
        raise NotStrict(problems)
    return value


Path = tuple[Any, str | int] | None
"""Where one is, from the inside out: written as a pointer only when there is something to say about the place."""


def _pointer(at: Path) -> str:
    parts: list[str] = []
    while at is not None:
        at, step = at
        parts.append(escaped(step) if isinstance(step, str) else str(step))
    return "".join(f"/{part}" for part in reversed(parts))


def _walk(value: Any, at: Path, depth: int, depth_max: int, problems: list[Misplaced]) -> None:
    kind = type(value)
    if kind is str:
        if _unstorable(value):
            words = "the text holds U+0000 or half a surrogate pair, which cannot be kept"
            problems.append(Misplaced(_pointer(at), words))
    elif kind is int:
        if not -INTEGER_MAX <= value <= INTEGER_MAX:
            problems.append(Misplaced(_pointer(at), TOO_BIG))
    elif kind is float:
        if not math.isfinite(value):
            problems.append(Misplaced(_pointer(at), "the number is too large"))
    elif kind is dict or kind is list:
        if depth >= depth_max:
            problems.append(Misplaced(_pointer(at), f"nested deeper than {depth_max} levels"))
            return
        for step, item in value.items() if kind is dict else enumerate(value):
            if len(problems) >= PROBLEMS_MAX:
                return
            if isinstance(step, str) and _unstorable(step):
                words = "a key holds U+0000 or half a surrogate pair, which cannot be kept"
                problems.append(Misplaced(_pointer(at), words))
                continue
            _walk(item, (at, step), depth + 1, depth_max, problems)
    elif kind is _Constant:
        problems.append(Misplaced(_pointer(at), f"{value.word} is not JSON: send null or a text"))
    elif kind is _Twice:
        for key in value.keys[:PROBLEMS_MAX]:
            place: Path = at if _unstorable(key) else (at, key)
            problems.append(Misplaced(_pointer(place), "this key stands twice in its object"))


def _unstorable(text: str) -> bool:
    if text.isascii():
        return "\x00" in text
    return "\x00" in text or any("\ud800" <= c <= "\udfff" for c in text)
