"""Named SQL statements, read from `sql/*.sql` once and translated for the database that runs them.

The common tongue is written once with `:name` parameters and tables as `holdfast.instances`. PostgreSQL gets
`$1` and the schema `holdfast`; SQLite gets `?1` and the prefix `holdfast_`. `sql/postgres/` and `sql/sqlite/`
hold the few statements that must differ. What several statements of a file repeat is written once, as `-- part: x`,
and stands in them as `{x}`; also in the statements of the one database in the file of the same name.

A statement names the index that is to answer it, by a condition that holds for every row: `tenant_id <> '#the_index'`
(decision 16). For PostgreSQL it stands as it is, for SQLite it becomes `indexed by` at its table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

Dialect = Literal["sqlite", "postgres"]
_NAME = re.compile(r"^-- (name|part): (\w+)\s*$", re.M)
_PART = re.compile(r"\{(\w+)\}")
_INDEX = re.compile(r"(?:(\w+)\.)?(?:tenant_id|host) <> '#(\w+)'")
_NAMED = re.compile(rf"\s+and\s+{_INDEX.pattern}|{_INDEX.pattern}\s+and\s+")
_TABLE = re.compile(r"holdfast\.\w+(?:\s+(?:as\s+)?(?!where\b|set\b|on\b|order\b|limit\b)(\w+))?")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


class Statement(NamedTuple):
    sql: str
    parameters: tuple[str, ...]

    def bind(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(values[name] for name in self.parameters)


def translate(text: str, dialect: Dialect) -> Statement:
    names: list[str] = []
    if dialect == "sqlite":
        text = _indexed(text)

    def place(match: re.Match[str]) -> str:
        name = match[1]
        if name not in names:
            names.append(name)
        return f"{'$' if dialect == 'postgres' else '?'}{names.index(name) + 1}"

    sql = _PARAMETER.sub(place, text)
    if dialect == "sqlite":
        sql = sql.replace("holdfast.", "holdfast_")
    return Statement(sql.strip(), tuple(names))


def _indexed(text: str) -> str:
    """The names of indexes at their tables: each belongs to the table before it that has its alias, or has none."""
    while named := _NAMED.search(text):
        alias, index = (one or other for one, other in zip(named.groups()[:2], named.groups()[2:], strict=True))
        tables = [table for table in _TABLE.finditer(text, 0, named.start()) if alias in (None, table[1])]
        at = tables[-1].end()
        text = f"{text[:at]} indexed by holdfast_{index}{text[at : named.start()]}{text[named.end() :]}"
    return text


@cache
def texts(dialect: Dialect) -> dict[str, str]:
    """Every statement's own text for this database, by name."""
    found: dict[str, str] = {}
    parts: dict[str, dict[str, str]] = {}
    root = files("holdfast.store") / "sql"
    for folder in (root, root / dialect):
        for file in sorted(folder.iterdir(), key=lambda f: f.name):
            if file.name.endswith(".sql"):
                found.update(_statements(file.read_text(), parts.setdefault(file.name, {})))
    return found


def _statements(text: str, parts: dict[str, str]) -> dict[str, str]:
    """The statements of one file, with parts in their places: its own, and those that are known already."""
    split = _NAME.split(text)
    written = list(zip(split[1::3], split[2::3], split[3::3], strict=True))
    parts |= {name: body.strip() for kind, name, body in written if kind == "part"}
    return {
        name: _PART.sub(lambda place: parts.get(place[1], place[0]), body)
        for kind, name, body in written
        if kind == "name"
    }


@cache
def statement(name: str, dialect: Dialect) -> Statement:
    return translate(texts(dialect)[name], dialect)


def migrations(dialect: Dialect) -> list[tuple[int, str, str]]:
    """(number, name, sql) of every migration, in order."""
    folder = files("holdfast.store") / "migrations" / dialect
    found = []
    for file in folder.iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append((int(number), name, file.read_text()))
    return sorted(found)
