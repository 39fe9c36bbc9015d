"""A row in every table for a tenant, and a value for every parameter, so that each named statement finds something.

The rows of two tenants are the same but for the tenant: a statement that forgets to ask for its tenant shows.
A new table is filled by itself; a new column with a check, or a new parameter, wants a word here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice, product
from typing import Any

from holdfast.store.statements import statement, texts

ID, OTHER, NEW, WORKER = b"\x01" * 16, b"\x02" * 16, b"\x03" * 16, b"\x04" * 16
TEXTS = {
    "kind": "chart", "status": "pending", "state": "outcome_unknown", "mode": "manual", "type": "HUMAN", "id": "e1",
    "hash": "h", "groups": '["g"]', "roles": "[]", "handlers": "[]", "http_hosts": "[]", "scopes": "[]", "queue": "q",
    "response_headers": "{}", "locked_by": "w", "assignee": "ann",
}  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {
    "definitions": {"status": "active"},
    "principals": {"kind": "human", "status": "active"},
    "api_keys": {"kind": "live", "expires_at": 99},
    "idempotency_keys": {"status": "STARTED", "expires_at": 99, "locked_at": 1, "locked_by": "w"},
    "events": {"kind": "signal"},
}
# What may be null is null, which is how most things are found open; but not these.
FILLED = {
    "business_key", "parent_id", "run_at", "snapshot", "payload", "salt", "issuer", "subject", "response", "assignee",
    "groups", "scopes", "response_headers",
}  # fmt: skip
CLAIMED = {"id": OTHER, "business_key": "other", "run_at": None, "locked_by": WORKER, "fence": 1, "status": "running"}
MORE: list[tuple[str, dict[str, Any]]] = [  # further rows, for statements that ask for something in particular
    ("instances", CLAIMED),
    ("events", {"id": "e2", "consumed_seq": 1}),
    ("events", {"id": "e3", "kind": "resume"}),
    ("events", {"id": "e4", "kind": "cancel"}),
    ("effects", {"id": OTHER, "reason": "k"}),
    ("history", {"seq": 2, "type": "EFFECT_UNKNOWN"}),
]
EVERYBODYS: dict[str, dict[str, Any]] = {
    "workers": {
        "tenant_id": "*", "id": WORKER, "host": "here", "pid": 1, "started_at": 1, "heartbeat_at": 1, "liveness": "0",
        "definitions": "work v1",
    },
    "installation": {"tenant_id": "*", "quarantined_at": 1, "changed_at": 1, "changed_by": "k"},
}  # fmt: skip
ELSEWHERE = ("migrations", "rights", "workers", "installation")  # not of tenants

# What is worth trying for a parameter, the likeliest first: of its name, else of its type.
NAMED: dict[str, list[Any]] = {
    "worker_id": [WORKER], "statuses": ["pending running waiting"], "states": ["started outcome_unknown"], "ids": ["%"],
    "state": ["outcome_unknown"], "queue": ["q"], "limit": [100], "alone": [False], "roles": ["[]"], "groups": ["[]"],
    "kind": ["chart", "signal", "human", "live"], "status": [None, "inactive", "SUCCEEDED", "disabled", "pending"],
    "type": [None], "assignee": [None, "ann"], "group": [None], "after_key": [""],
    "low": [0], "high": [4_000_000_000], "skip": [0],
}  # fmt: skip
TOGETHER: dict[str, dict[str, Any]] = {  # where more than one must be right at once
    "add_principal": {"id": NEW, "kind": "human", "name": "new", "subject": "new"},
    "add_api_key": {"id": NEW, "kind": "live", "hash": NEW},
    "settle_request": {"status": "SUCCEEDED", "locked_by": "w"},
    "list_definitions_of_status": {"status": "active"},
    "list_definitions_of_key_and_status": {"status": "active"},
}
TYPED: dict[str, list[Any]] = {
    "text": ["k", "new", "e1", "h", "w", "", "~", None], "bytea": [ID, OTHER, NEW, b"", b"\xff" * 16],
    "bool": [True, False], "int8": [1, 0, 9, 2, 3], "int4": [1, 0, 9, 2], "int2": [1, 0],
}  # fmt: skip
TRIES = 2000
# These walk over all tenants, and their tenant_id is where they have come to; or they ask for no row at all.
CURSORS = ("verify_instances", "next_head", "feed_horizon", "summarize_history")


def statements_of_a_tenant(dialect: Any) -> list[str]:
    return [
        name for name, text in texts(dialect).items()
        if ":tenant_id" in text and not name.startswith("commit_") and name not in (*CURSORS, "bind_tenant")
    ]  # fmt: skip


_found: dict[str, dict[str, Any]] = {}


silent: dict[str, set[str]] = {}
"""Statements for which no such values were found, and what the database had against those that were tried."""


async def values_that_find(connection: Any, name: str, tenant_id: str) -> dict[str, Any]:
    """Values with which a statement finds or changes a row of this tenant, tried out once and undone again."""
    if name not in _found:
        _found[name] = await _search(connection, name, tenant_id)
    return _found[name] | {"tenant_id": tenant_id}


async def _search(connection: Any, name: str, tenant_id: str) -> dict[str, Any]:
    found = statement(name, "postgres")
    prepared = await connection.prepare(found.sql)
    fixed = TOGETHER.get(name, {}) | {"tenant_id": tenant_id}
    choices = [
        [fixed[word]] if word in fixed else NAMED.get(word, []) + TYPED[kind.name]
        for word, kind in zip(found.parameters, prepared.get_parameters(), strict=True)
    ]
    reasons: set[str] = set()
    accepted = dict(zip(found.parameters, (choice[0] for choice in choices), strict=True))
    for values in islice(_nearest_first(choices), TRIES):
        await connection.execute("savepoint fit")
        try:
            rows = await prepared.fetch(*values)
            said = prepared.get_statusmsg()
            accepted = dict(zip(found.parameters, values, strict=True))
            if any(map(any, rows)) or (not said.startswith("SELECT") and not said.endswith(" 0")):
                return accepted
        except Exception as error:  # a value of the wrong type, or one that a check refuses
            reasons.add(str(error)[:100])
        finally:
            await connection.execute("rollback to fit")
    silent[name] = reasons
    return accepted


def _nearest_first(choices: list[list[Any]]) -> Iterator[tuple[Any, ...]]:
    """Every combination, those first that differ little from the first."""
    for changes in range(len(choices) + 1):
        for places in combinations(range(len(choices)), changes):
            for picked in product(*(choices[at][1:] for at in places)):
                values = [choice[0] for choice in choices]
                for at, value in zip(places, picked, strict=True):
                    values[at] = value
                yield tuple(values)


def row_for(table: str, columns: list[tuple[str, str, bool]], tenant_id: str) -> dict[str, Any]:
    """`columns`: (name, type, may be null)."""
    row: dict[str, Any] = {}
    for name, kind, nullable in columns:
        if nullable and name not in FILLED:
            continue
        if "bool" in kind:
            row[name] = True
        elif "int" in kind:
            row[name] = 5 if name == "run_at" else 1
        elif kind in ("bytea", "blob"):
            row[name] = ID
        else:
            row[name] = TEXTS.get(name, "k")
    row |= ROWS.get(table, {}) | {"tenant_id": tenant_id}
    return row


def rows_for(tables: dict[str, list[tuple[str, str, bool]]], tenant_id: str) -> list[tuple[str, dict[str, Any]]]:
    found = [(table, row_for(table, columns, tenant_id)) for table, columns in sorted(tables.items())]
    rows = dict(found)
    return found + [(table, rows[table] | more) for table, more in MORE]


_tables: dict[str, list[tuple[str, str, bool]]] = {}


async def tables_of_postgres(connection: Any) -> dict[str, list[tuple[str, str, bool]]]:
    if _tables:
        return _tables
    tables: dict[str, list[tuple[str, str, bool]]] = {}
    for table, *column in await connection.fetch(
        "select c.table_name::text, c.column_name::text, c.udt_name::text, c.is_nullable = 'YES'"
        " from information_schema.columns c join information_schema.tables t using (table_schema, table_name)"
        " where c.table_schema = 'holdfast' and t.table_type = 'BASE TABLE' order by c.ordinal_position"
    ):
        if table not in ELSEWHERE:
            tables.setdefault(table, []).append((column[0], column[1], column[2]))
    _tables.update(tables)
    return tables


def inserting(table: str, row: dict[str, Any], marks: list[str]) -> str:
    once = " on conflict do nothing" if row["tenant_id"] == "*" else ""
    return f"insert into {table} ({', '.join(row)}) values ({', '.join(marks)}){once}"


async def fill_postgres(connection: Any, tenant_id: str) -> None:
    for table, row in [*rows_for(await tables_of_postgres(connection), tenant_id), *EVERYBODYS.items()]:
        await connection.execute(
            inserting(f"holdfast.{table}", row, [f"${n + 1}" for n in range(len(row))]), *row.values()
        )


async def dump_postgres(connection: Any, tenant_id: str) -> dict[str, list[Any]]:
    found = {}
    for table in await tables_of_postgres(connection):
        rows = await connection.fetch(f"select * from holdfast.{table} where tenant_id = $1", tenant_id)
        found[table] = sorted((tuple(row) for row in rows), key=repr)
    return found


def tables_of_sqlite(connection: Any) -> dict[str, list[tuple[str, str, bool]]]:
    tables = {}
    for (table,) in list(
        connection.execute("select name from sqlite_schema where type = 'table' and name like 'holdfast@_%' escape '@'")
    ):
        short = table.removeprefix("holdfast_")
        if short not in ELSEWHERE:
            tables[short] = [(r[1], r[2].lower(), not r[3]) for r in connection.execute(f"pragma table_info({table})")]
    return tables


def fill_sqlite(connection: Any, tenant_id: str) -> None:
    for table, row in [*rows_for(tables_of_sqlite(connection), tenant_id), *EVERYBODYS.items()]:
        connection.execute(inserting(f"holdfast_{table}", row, ["?"] * len(row)), tuple(row.values()))


def dump_sqlite(connection: Any, tenant_id: str) -> dict[str, list[Any]]:
    return {
        table: sorted(
            connection.execute(f"select * from holdfast_{table} where tenant_id = ?", (tenant_id,)).fetchall(), key=repr
        )
        for table in tables_of_sqlite(connection)
    }
