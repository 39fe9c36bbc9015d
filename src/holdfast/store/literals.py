"""Columns as PostgreSQL array literals. Joining text in C beats asking the driver to encode element by element."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

Pack = Callable[[Sequence[Any]], str | bytes]
_TYPED = re.compile(r":(\w+)::text::(\w+)\[\]")
_JOINED = re.compile(r"string_to_array\(:(\w+),")
_CUT = re.compile(r"substr\(:(\w+)::bytea,")
SEPARATOR = b"\x1f"


def pack_text(column: Sequence[str | None]) -> str:
    if _all_null(column):
        return _nulls(column)
    try:
        joined = '","'.join(column)  # type: ignore[arg-type]
    except TypeError:
        return "{" + ",".join("NULL" if value is None else _quoted(value) for value in column) + "}"
    if "\\" in joined or joined.count('"') != 2 * (len(column) - 1):
        return "{" + ",".join(_quoted(value) for value in column if value is not None) + "}"
    return '{"' + joined + '"}'


def _all_null(column: Sequence[Any]) -> bool:
    """Most columns of most rows: what a task may have and seldom does."""
    return bool(column) and column[0] is None and column.count(None) == len(column)


def _nulls(column: Sequence[Any]) -> str:
    return "{" + "NULL," * (len(column) - 1) + "NULL}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def pack_number(column: Sequence[int | bool | None]) -> str:
    if _all_null(column):
        return _nulls(column)
    joined = ",".join(map(str, column))
    return "{" + (joined.replace("None", "NULL") if "None" in joined else joined) + "}"


def pack_bytes(column: Sequence[bytes | None]) -> str:
    if not column:
        return "{}"  # what follows would write one empty value
    if _all_null(column):
        return _nulls(column)
    try:
        return '{"\\\\x' + '","\\\\x'.join([value.hex() for value in column]) + '"}'  # type: ignore[union-attr]
    except AttributeError:
        return "{" + ",".join("NULL" if v is None else '"\\\\x' + v.hex() + '"' for v in column) + "}"


def pack_json(column: Sequence[bytes]) -> str:
    return SEPARATOR.join(column).decode()


_PACKS: dict[str, Pack] = {
    "text": pack_text,
    "bigint": pack_number,
    "integer": pack_number,
    "boolean": pack_number,
    "bytea": pack_bytes,
}


def packers(sql: str) -> dict[str, Pack]:
    """How each column parameter of a statement is packed, from the casts the statement itself writes."""
    found = {name: _PACKS[kind] for name, kind in _TYPED.findall(sql)}
    found.update((name, pack_json) for name in _JOINED.findall(sql))
    found.update((name, b"".join) for name in _CUT.findall(sql))  # values of one size, cut out by their position
    return found
