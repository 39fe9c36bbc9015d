"""A database that an earlier version has filled, brought up to date: every row stays, and every list finds it."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from holdfast.facade import make_store
from holdfast.store import migrate
from holdfast.store.sqlite import connect
from holdfast.store.statements import migrations
from tests.store.many import other_rows_of, rows_of

SIZE = 400
BEFORE = 6  # the last migration of the version that filled it


async def fill(store: Any) -> None:
    rows = [*rows_of(store.dialect, SIZE), *other_rows_of(store.dialect, SIZE)]
    if store.dialect == "postgres":
        connection = await asyncpg.connect(store.url)
        for sql in rows:
            await connection.execute(sql)
        await connection.close()
    else:
        lite = connect(store.path)
        for sql in rows:
            lite.execute(sql.replace("holdfast.", "holdfast_"))
        lite.close()


async def columns_of(store: Any) -> dict[str, list[str]]:
    """Every table but the migrations, with its columns."""
    if store.dialect == "postgres":
        connection = await asyncpg.connect(store.url)
        found = await connection.fetch(
            """select c.relname::text, array_agg(a.attname::text order by a.attnum) from pg_class c
               join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
               where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' group by c.relname"""
        )
        await connection.close()
    else:
        lite = connect(store.path)
        names = lite.execute("select name from sqlite_schema where type = 'table' and name like 'holdfast%'").fetchall()
        found = [(t, [c for (c,) in lite.execute("select name from pragma_table_info(?)", (t,))]) for (t,) in names]
        lite.close()
    # What the roles may do is said by this version's migrations, like its statements.
    return {table: columns for table, columns in found if "migrations" not in table and table != "rights"}


async def all_rows(store: Any, columns: dict[str, list[str]]) -> dict[str, list[Any]]:
    """Every row of these tables, in these columns."""
    asked = {table: ", ".join(f'"{name}"' for name in names) for table, names in columns.items()}
    if store.dialect == "postgres":
        connection = await asyncpg.connect(store.url)
        found = {
            t: sorted(map(repr, await connection.fetch(f"select {names} from holdfast.{t}")))
            for t, names in asked.items()
        }
        await connection.close()
    else:
        lite = connect(store.path)
        found = {t: sorted(map(repr, lite.execute(f"select {names} from {t}"))) for t, names in asked.items()}
        lite.close()
    return found


async def test_a_database_of_the_version_before_keeps_its_rows_and_its_lists(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(migrate, "migrations", lambda dialect: [m for m in migrations(dialect) if m[0] <= BEFORE])
        old = make_store(empty_url)
        await old.open(migrate=True)
        await fill(old)
        columns = await columns_of(old)
        before = await all_rows(old, columns)
        await old.close()
    store = make_store(empty_url)
    await store.open(migrate=True)
    assert await all_rows(store, columns) == before
    assert len(before) > 10 and sum(map(len, before.values())) > 10 * SIZE
    far = {"before_at": 1 << 60, "before": b"\xff" * 16, "limit": 10, "most": 1000}
    listed = await store.fetch("list_instances", tenant_id="acme", statuses="completed", since=0, **far)
    assert len(listed) == 10
    [(id_, *_)] = await store.fetch("find_business_key", tenant_id="acme", definition_key="main", business_key="bk-10")
    assert id_ == (10).to_bytes(16, "big")
    shared = await store.fetch(
        "list_instances_of_business_key", tenant_id="acme", business_key="shared", definition_key=None,
        statuses="waiting", since=0, **far,
    )  # fmt: skip
    assert [row[17] for row in shared] == [n * 1000 for n in range(20, 10, -1)]
    # One instance for each definition and business key, as before.
    again = {
        "tenant_id": "acme", "kind": "code", "definition_version": 1, "queue": "default", "priority": 0, "run_at": 1,
        "input": b"{}", "trace_id": None, "created_at": 1,
    }  # fmt: skip
    taken = await store.write("start_alone", id=b"\x09" * 16, definition_key="main", business_key="bk-10", **again)
    other = await store.write("start_alone", id=b"\x09" * 16, definition_key="other", business_key="bk-10", **again)
    assert (taken, other) == (0, 1)
    await store.close()
