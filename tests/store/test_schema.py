"""The schema's own promises: append-only history, tenant first in every key, forward migrations, index use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from holdfast import StoreNotMigrated, StoreTooNew, StoreUnavailable
from holdfast.facade import make_store
from holdfast.store.sqlite import connect
from holdfast.store.statements import statement, texts
from tests.store.support import a_turn, a_worker, an_instance, claim, ending, put


async def with_history(store: Any) -> Any:
    worker_id = await a_worker(store)
    await put(store, an_instance(store))
    [one] = await claim(store, worker_id)
    await store.commit(worker_id, [ending(store, one, a_turn(store, one, count=3))])
    return one


REFUSED_SQLITE = [
    "update holdfast_history set payload = x'00'",
    "delete from holdfast_history",
    "insert or replace into holdfast_history select tenant_id, instance_id, seq, type, 'x', fence, at, payload, salt,"
    " hash, payload_hash, codec, key_id from holdfast_history limit 1",
    "replace into holdfast_history select * from holdfast_history limit 1",
]
REFUSED_POSTGRES = [
    "update holdfast.history set payload = '\\x00'",
    "delete from holdfast.history",
    "truncate holdfast.history",
    "insert into holdfast.history select * from holdfast.history limit 1"
    " on conflict (tenant_id, instance_id, seq) do update set name = 'x'",
]


@pytest.mark.parametrize("at", range(4))
async def test_history_can_only_grow(store: Any, at: int) -> None:
    await with_history(store)
    before = await whole_history(store)
    if store.dialect == "postgres":
        connection = await asyncpg.connect(store.url)
        with pytest.raises(asyncpg.PostgresError, match="append-only"):
            await connection.execute(REFUSED_POSTGRES[at])
        await connection.close()
    else:
        plain = apsw.Connection(store.path)  # a stranger's connection: recursive_triggers is off
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            plain.execute(REFUSED_SQLITE[at])
        plain.close()
        ours = connect(store.path)
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            ours.execute(REFUSED_SQLITE[at])
        ours.close()
    assert await whole_history(store) == before


async def whole_history(store: Any) -> list[Any]:
    found = []
    for row in await store.fetch("verify_instances", tenant_id="", id=b"", limit=1000):
        found += await store.fetch("read_history", tenant_id=row[0], instance_id=row[1], after=0, limit=1000)
    return [tuple(row) for row in found]


async def test_tenant_id_leads_every_key(store: Any) -> None:
    keys = await keys_of(store)
    assert len(keys) >= 20
    for table, columns in keys:
        assert columns[0] == "tenant_id", f"a key of {table} begins with {columns[0]}"


NOT_OF_TENANTS = ("migrations", "rights")


async def keys_of(store: Any) -> list[tuple[str, list[str]]]:
    """The columns of every primary key, unique index and foreign key, on both of its sides."""
    if store.dialect == "postgres":
        connection = await asyncpg.connect(store.url)
        rows = await connection.fetch(
            "select c.relname, array_agg(a.attname::text order by k.n) from pg_index i"
            " join pg_class c on c.oid = i.indrelid join pg_namespace s on s.oid = c.relnamespace"
            " cross join lateral unnest(i.indkey::int[]) with ordinality as k(attnum, n)"
            " join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum"
            " where s.nspname = 'holdfast' and (i.indisprimary or i.indisunique) and c.relname <> all($1)"
            " group by i.indexrelid, c.relname",
            NOT_OF_TENANTS,
        )
        rows += await connection.fetch(
            "select c.relname, array_agg(a.attname::text order by k.n) from pg_constraint f"
            " cross join lateral (values (f.conrelid, f.conkey), (f.confrelid, f.confkey)) as side(relation, key)"
            " join pg_class c on c.oid = side.relation"
            " cross join lateral unnest(side.key::int[]) with ordinality as k(attnum, n)"
            " join pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum"
            " where f.contype = 'f' and f.connamespace = 'holdfast'::regnamespace group by f.oid, c.relname"
        )
        # An exclusion constraint would be one more way to tell another tenant's rows from their absence.
        assert not await connection.fetchval("select count(*) from pg_constraint where contype = 'x'")
        await connection.close()
        return [(row[0], list(row[1])) for row in rows]
    connection = connect(store.path)
    found = []
    for (table,) in connection.execute(
        "select name from sqlite_schema where type = 'table' and name like 'holdfast_%'"
    ):
        if table.removeprefix("holdfast_") in NOT_OF_TENANTS:
            continue
        primary = sorted((row[5], row[1]) for row in connection.execute(f"pragma table_info({table})") if row[5])
        found.append((table, [name for _, name in primary]))
        for _, at, _, mine, theirs, *_ in list(connection.execute(f"pragma foreign_key_list({table})")):
            if at == 0:
                found += [(table, [mine]), (table, [theirs])]
        for _, index, unique, *_ in list(connection.execute(f"pragma index_list({table})")):
            if unique:
                found.append((table, [row[2] for row in connection.execute(f"pragma index_info({index})")]))
    connection.close()
    return found


async def test_every_named_statement_is_understood_by_its_database(store: Any) -> None:
    if store.dialect == "postgres":
        connection = await asyncpg.connect(store.url)
        for name in texts("postgres"):
            if not name.startswith("commit_"):
                await connection.prepare(statement(name, "postgres").sql)
        await connection.close()
    else:
        connection = connect(store.path)
        for name in texts("sqlite"):
            found = statement(name, "sqlite")
            if "{rows}" not in found.sql:
                connection.execute("explain " + found.sql, (None,) * len(found.parameters)).fetchall()
        connection.close()


async def test_opening_without_migrating_says_what_to_do(empty_url: str) -> None:
    store = make_store(empty_url)
    with pytest.raises((StoreNotMigrated, StoreUnavailable), match="holdfast migrate"):
        await store.open(migrate=False)


async def test_a_database_of_a_newer_holdfast_is_refused(url: str) -> None:
    store = make_store(url)
    await store.open(migrate=True)
    await store.close()
    if url.startswith("postgres"):
        connection = await asyncpg.connect(url)
        await connection.execute("insert into holdfast.migrations values (9999, 'from the future')")
        await connection.close()
    else:
        connection = connect(url.removeprefix("sqlite:///"))
        connection.execute("insert into holdfast_migrations values (9999, 'from the future')")
        connection.close()
    for migrate in (True, False):
        with pytest.raises(StoreTooNew, match="upgrade"):
            await make_store(url).open(migrate=migrate)


async def test_opening_twice_migrates_once(empty_url: str) -> None:
    for _ in range(2):
        store = make_store(empty_url)
        await store.open(migrate=True)
        await store.close()


async def test_a_database_that_is_not_there_is_a_clear_refusal(tmp_path: Path) -> None:
    for url in (
        "postgresql://nobody@127.0.0.1:9/none",
        f"sqlite:///{tmp_path}",
        f"sqlite:///{tmp_path / 'file'}",
    ):
        (tmp_path / "file").write_text("this is not a database, it is a letter to a friend\n" * 100)
        with pytest.raises(StoreUnavailable):
            await make_store(url).open(migrate=True)


PLANS = {
    "claim": r"instances_due",
    "list_instances": r"instances_of_status",
    "list_instances_of_definition": r"instances_of_definition",
    "list_instances_of_business_key": r"instances_business_key",
    "list_children": r"instances_of_parent",
    "list_inbox": r"tasks_inbox",
    "list_open_tasks": r"tasks_open",
    "list_tasks": r"tasks_of_status",
    "list_tasks_of_assignee": r"tasks_of_assignee",
    "list_tasks_of_group": r"task_groups_inbox",
    "list_definitions_of_status": r"definitions_of_status",
    "list_audit_of_entity": r"audit_events_of_entity",
    "find_business_key": r"instances_business_key",
    "unknown_effects": r"effects_unknown",
    "effects_of_instance": r"effects_of_instance",
    "effects_that_may_have_happened": r"effects_of_instance",
    "child_ids": r"instances_of_parent",
    "read_history": r"history_pkey|autoindex_holdfast_history",
}


@pytest.mark.parametrize("name", PLANS)
async def test_the_questions_asked_often_are_answered_by_an_index(store: Any, name: str) -> None:
    await with_history(store)
    if store.dialect == "postgres":
        found = statement("claim_instances" if name == "claim" else name, "postgres")
        connection = await store.connect()
        await connection.execute("set plan_cache_mode = force_generic_plan")
        await connection.execute(f"prepare q as {found.sql}")
        nulls = ",".join(["null"] * len(found.parameters))
        plan = "\n".join(row[0] for row in await connection.fetch(f"explain execute q({nulls})"))
        await connection.close()
        assert "Seq Scan" not in plan, plan
    else:
        found = statement("claim_share" if name == "claim" else name, "sqlite")
        connection = connect(store.path)
        rows = connection.execute("explain query plan " + found.sql, (None,) * len(found.parameters)).fetchall()
        plan = "\n".join(str(row[3]) for row in rows)
        connection.close()
        assert not re.search(r"SCAN holdfast", plan), plan
    assert re.search(PLANS[name], plan), plan
