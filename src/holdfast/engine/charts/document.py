"""A chart as a document: strict JSON text in, key order kept as JavaScript keeps it, and errors that name their place.

Key order is meaning here: it is document order. So a definition is never sorted, and never stored as `jsonb`.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec

from holdfast.engine import codec
from holdfast.engine.errors import HoldfastError

TEXT_LIMIT = 1 << 20
DEPTH_LIMIT = 120  # brackets within brackets
INTEGER_MAX = 1 << 53
ERRORS_MAX = 50
_INDEX = re.compile(r"(?:0|[1-9]\d{0,9})\Z")  # what JavaScript sorts to the front


class Problem(msgspec.Struct, frozen=True):
    """One fault of a document: where it is, as a JSON pointer, and what was expected there."""

    path: str
    message: str
    level: str = "error"  # or "warning", from lint

    def __str__(self) -> str:
        return f"{self.path or '/'}: {self.message}"


class BadChart(HoldfastError):
    """A chart that is refused; `problems` lists every fault found, with its path."""

    code = "bad_chart"

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        super().__init__("the chart is refused: " + "; ".join(str(p) for p in problems[:5]) + more)


class _Duplicate(Exception):
    pass


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Duplicate(key)
            seen.add(key)
    numbers = sorted(int(key) for key in found if _INDEX.match(key))
    if not numbers:
        return found
    first = {str(n): found[str(n)] for n in numbers}
    return first | {key: value for key, value in found.items() if key not in first}


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def read(text: str | bytes) -> dict[str, Any]:
    """The document as Python values. Refuses what two JSON readers might read differently."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(raw) > TEXT_LIMIT:
        raise BadChart([Problem("", f"the definition has {len(raw):,} bytes, the limit is {TEXT_LIMIT:,}")])
    if _too_deep(raw):
        raise BadChart([Problem("", f"the definition is nested deeper than {DEPTH_LIMIT} brackets")])
    try:
        document = json.loads(raw, object_pairs_hook=_pairs, parse_constant=_no_constant)
    except _Duplicate as twice:
        raise BadChart([Problem("", f"the key {twice.args[0]!r} stands twice in one object")]) from None
    except (ValueError, RecursionError) as error:
        raise BadChart([Problem("", f"not JSON: {error}")]) from None
    problems: list[Problem] = []
    _check_values(document, "", problems)
    if not isinstance(document, dict):
        problems.append(Problem("", f"expected an object, found {found(document)}"))
    if problems:
        raise BadChart(problems)
    assert isinstance(document, dict)
    return document


def reread(document: Any) -> dict[str, Any]:
    """A chart given as Python values, read as if it had come as text."""
    if isinstance(document, (str, bytes)):
        return read(document)
    try:
        return read(codec.encode(document, "the definition", TEXT_LIMIT))
    except HoldfastError as error:
        if isinstance(error, BadChart):
            raise
        raise BadChart([Problem("", str(error))]) from None


def written(document: dict[str, Any]) -> str:
    """The document as it is stored and hashed: compact, in its own key order."""
    return codec.encode(document, "the definition", TEXT_LIMIT).decode()


def _too_deep(raw: bytes) -> bool:
    depth = deepest = 0
    inside = escaped = False
    for byte in raw:
        if inside:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                inside = False
        elif byte == 0x22:
            inside = True
        elif byte in (0x7B, 0x5B):
            depth += 1
            deepest = max(deepest, depth)
        elif byte in (0x7D, 0x5D):
            depth -= 1
    return deepest > DEPTH_LIMIT


def _check_values(value: Any, path: str, problems: list[Problem]) -> None:
    if len(problems) >= ERRORS_MAX:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if _unstorable(key):
                problems.append(Problem(path, f"the key {key!r} holds a character that databases cannot keep"))
            _check_values(item, f"{path}/{escaped(key)}", problems)
    elif isinstance(value, list):
        for n, item in enumerate(value):
            _check_values(item, f"{path}/{n}", problems)
    elif isinstance(value, str):
        if _unstorable(value):
            problems.append(Problem(path, "the text holds U+0000 or half a surrogate pair, which cannot be kept"))
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > INTEGER_MAX:
        problems.append(Problem(path, f"{value} is beyond 2^53, which not every JSON reader keeps exactly"))
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        problems.append(Problem(path, "the number is too large"))


def _unstorable(text: str) -> bool:
    if text.isascii():
        return "\x00" in text
    return "\x00" in text or any("\ud800" <= c <= "\udfff" for c in text)


def escaped(key: str) -> str:
    """A key as a piece of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def found(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:60]!r}"
    return "a list" if isinstance(value, list) else "an object"
