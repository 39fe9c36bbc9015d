"""Lists come in pages: where one ended is an opaque word, with which the next one begins."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from holdfast.api.endpoints import Reply
from holdfast.api.models import Listing
from holdfast.api.problems import Fault, Problem, storable_words
from holdfast.engine import codec

T = TypeVar("T")
PAGE_MAX = 200
PAGE = 50
Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
Cursor = Annotated[str, msgspec.Meta(max_length=2000)]


class PageQuery(msgspec.Struct, frozen=True):
    limit: Limit = PAGE
    cursor: Cursor | None = None


def paged(found: Sequence[T], limit: int, show: Callable[[T], Any], place: Callable[[T], tuple[Any, ...]]) -> Reply:
    """A page of what was found. One more than it holds was asked for, so as to know whether there is more."""
    following = cursor_of(*place(found[limit - 1])) if len(found) > limit else None
    return Reply(200, Listing[Any](items=[show(one) for one in found[:limit]], next_cursor=following))


def cursor_of(*values: Any) -> str:
    """An opaque word for where a page ended."""
    plain = [value.hex() if isinstance(value, bytes) else value for value in values]
    return base64.urlsafe_b64encode(codec.encode(plain)).decode().rstrip("=")


def _part(value: Any, kind: type | range) -> Any:
    if isinstance(kind, range):
        if type(value) is int and value in kind:
            return value
        raise ValueError
    if kind is bytes:
        return bytes.fromhex(value)
    if kind is int and type(value) is int and 0 <= value < 1 << 63:
        return value
    if kind is str and isinstance(value, str) and storable_words(value) == value and "\x00" not in value:
        return value
    raise ValueError


def read_cursor(word: str | None, *kinds: type | range) -> list[Any] | None:
    """What `cursor_of` was given; a word that is none of ours is refused. A range is of numbers in a narrow column."""
    if word is None:
        return None
    try:
        raw = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
        values = codec.decode(raw)
        if not isinstance(values, list) or len(values) != len(kinds):
            raise ValueError
        found = [_part(value, kind) for value, kind in zip(values, kinds, strict=True)]
    except (ValueError, TypeError, RecursionError, msgspec.DecodeError):
        words = "this cursor is none of ours: take next_cursor of the page before, as it is"
        raise Problem("validation-failed", f"cursor: {words}", errors=[Fault(words, "/query/cursor")]) from None
    return found
