"""The second wall: with the first one gone, row-level security still keeps a door to its tenant.

The first wall, the tenant in every statement, is removed by lying about it: statements ask for `acme` in a transaction
that belongs to `beta`. Superusers walk through row-level security, so everything is tried on a database whose owner is
an ordinary login, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import asyncpg
import psycopg
import pytest

from holdfast import Context, Holdfast, InstanceNotFound, StoreUnavailable
from holdfast.app.feed import Feed
from holdfast.app.service import Service
from holdfast.engine.turns import NewEvent, Outcome, Turn
from holdfast.facade import make_doors
from holdfast.store.batch import Batch
from holdfast.store.committer import Committer
from holdfast.store.doors import UNBOUND, DoorStore, NotForDoors
from holdfast.store.migrate import migrate_postgres
from holdfast.store.postgres import PostgresCommits, PostgresStore, commit_sql
from holdfast.store.statements import statement, texts, translate
from tests.store import everything as all_of
from tests.store.support import a_turn, a_worker, an_instance, claim, put
from tests.support.logins import login, make_roles, owned_database
from tests.support.postgres import Server


class Walled(NamedTuple):
    url: str  # of the owner
    admin: str  # of the superuser
    server: Server

    @contextmanager
    def login(self, *roles: str) -> Iterator[str]:
        """The URL of a login that is a member of these roles and of nothing else."""
        with login(self.server, *roles) as name:
            yield self.admin.replace("postgres@", f"{name}@")


@pytest.fixture(params=["superuser", "plain owner"])
async def walled(request: pytest.FixtureRequest, postgres: Server, postgres_template: str) -> AsyncIterator[Walled]:
    if request.param == "superuser":
        with postgres.database(template=postgres_template) as url:
            yield Walled(url, url, postgres)
        return
    make_roles(postgres)
    with (
        login(postgres, "holdfast_door", "holdfast_worker") as owner,
        owned_database(postgres, owner) as name,
    ):
        admin = postgres.dsn(name)
        url = admin.replace("postgres@", f"{owner}@")
        await migrate_postgres(url, apply=True)
        yield Walled(url, admin, postgres)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def door_store(url: str) -> AsyncIterator[DoorStore]:
    store = make_doors(url)
    assert isinstance(store, DoorStore)
    await store.open(migrate=False)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def worker_store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open(migrate=False)
    try:
        yield store
    finally:
        await store.close()


async def as_door(connection: Any, tenant: str | None) -> None:
    await connection.execute("set local role holdfast_door")
    if tenant is not None:
        await connection.execute("select set_config('holdfast.tenant', $1, true)", tenant)


async def as_owner(connection: Any) -> None:
    await connection.execute("set local role none")


async def tried(connection: Any, name: str, values: Any) -> Any:
    """What a statement says and how many rows it touched; or that it was refused."""
    prepared = await connection.prepare(statement(name, "postgres").sql)
    await connection.execute("savepoint one")
    try:
        rows = [tuple(row) for row in await prepared.fetch(*values)]
        said = prepared.get_statusmsg()
        return rows, "" if said.startswith("SELECT") else said
    except asyncpg.InsufficientPrivilegeError as error:
        await connection.execute("rollback to one")
        return "refused", "row-level security" in str(error)


# -- every statement, with the first wall removed


async def test_no_statement_of_a_door_touches_another_tenant_whatever_it_asks_for(walled: Walled) -> None:
    async with connected(walled.url) as connection:
        await connection.execute("begin")
        for tenant in ("acme", "beta"):
            await all_of.fill_postgres(connection, tenant)
        before = await all_of.dump_postgres(connection, "acme")
        theirs = await all_of.dump_postgres(connection, "beta")
        names = all_of.statements_of_a_tenant("postgres")
        assert len(names) > 40
        permitted = 0
        for name in names:
            find = await all_of.values_that_find(connection, name, "acme")
            asking, nobody = (statement(name, "postgres").bind(find | {"tenant_id": t}) for t in ("acme", "nobody"))
            told = {}
            for way, tenant, values in (
                ("own", "acme", asking), ("lie", "beta", asking), ("empty", "nobody", nobody), ("unset", None, asking)
            ):  # fmt: skip
                await connection.execute("savepoint way")
                await as_door(connection, tenant)
                told[way] = await tried(connection, name, values)
                await as_owner(connection)
                if way != "own":
                    assert await all_of.dump_postgres(connection, "acme") == before, f"{name} changed acme's rows"
                    assert await all_of.dump_postgres(connection, "beta") == theirs, f"{name} changed beta's rows"
                await connection.execute("rollback to way")
            if told["own"] == ("refused", False):  # not a door's statement: the role has no right to it at all
                assert told["lie"] == told["unset"] == told["own"]
                continue
            permitted += 1
            inserts = told["own"][1].startswith("INSERT")
            for way in ("lie", "unset"):
                allowed = [("refused", True), ([], "INSERT 0 0")] if inserts else [told["empty"]]
                assert told[way] in allowed, f"{name} says {told[way]} of another tenant"
        assert permitted > 35
        await connection.execute("rollback")


# A worker's, though they name a tenant.
NOT_A_DOORS = {"observe_effect", "release_claim", "stop_at_hole", "stop_where_lost", "give_back_claim"}


async def test_a_door_has_the_rights_that_its_statements_need(walled: Walled) -> None:
    refused = set()
    async with connected(walled.url) as connection:
        await connection.execute("begin")
        await all_of.fill_postgres(connection, "acme")
        for name in all_of.statements_of_a_tenant("postgres"):
            values = statement(name, "postgres").bind(await all_of.values_that_find(connection, name, "acme"))
            await connection.execute("savepoint way")
            await as_door(connection, "acme")
            if (await tried(connection, name, values))[0] == "refused":
                refused.add(name)
            await connection.execute("rollback to way")
    assert refused == NOT_A_DOORS, "say in holdfast.rights (store/migrations) what a door may do"


# -- raw SQL, without any where


async def test_raw_sql_of_a_door_sees_and_changes_its_own_tenant_only(walled: Walled) -> None:
    async with connected(walled.url) as connection:
        await connection.execute("begin")
        for tenant in ("acme", "beta"):
            await all_of.fill_postgres(connection, tenant)
        acme = await all_of.dump_postgres(connection, "acme")
        for table, rows in acme.items():
            seen = {}
            for tenant in ("beta", "", "*", None):
                await connection.execute("savepoint way")
                await as_door(connection, tenant)
                seen[tenant] = [r[0] for r in await connection.fetch(f"select tenant_id from holdfast.{table}")]
                await connection.execute("rollback to way")
            assert seen == {"beta": ["beta"] * len(rows), "": [], "*": [], None: []}, table
            for sql in (
                "update holdfast.{} set tenant_id = 'beta'", "update holdfast.{} set tenant_id = 'acme'",
                "delete from holdfast.{}", "truncate holdfast.{}", "truncate holdfast.{} cascade",
                "insert into holdfast.{0} select * from holdfast.{0} on conflict do nothing",
                "drop policy door_keeps_to_its_tenant on holdfast.{}",
                "alter table holdfast.{} disable row level security",
                "alter table holdfast.{} no force row level security",
            ):  # fmt: skip
                await connection.execute("savepoint way")
                await as_door(connection, "beta")
                try:
                    await connection.execute(sql.format(table))
                except asyncpg.PostgresError:
                    await connection.execute("rollback to way")
                await as_owner(connection)
                assert await all_of.dump_postgres(connection, "acme") == acme, sql.format(table)
                await connection.execute("rollback to way")
        await connection.execute("rollback")


async def test_a_row_for_another_tenant_is_refused_in_every_table(walled: Walled) -> None:
    async with connected(walled.url) as connection:
        await connection.execute("begin")
        tables = await all_of.tables_of_postgres(connection)
        for table, row in all_of.rows_for(tables, "acme"):
            marks = ", ".join(f"${n + 1}" for n in range(len(row)))
            sql = f"insert into holdfast.{table} ({', '.join(row)}) values ({marks})"
            for tenant in ("beta", None):
                await connection.execute("savepoint way")
                await as_door(connection, tenant)
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(sql, *row.values())
                await connection.execute("rollback to way")
        await connection.execute("rollback")


async def test_a_door_cannot_read_around_the_wall(walled: Walled) -> None:
    """Views and functions run with their owner's rights: none of them may show a row."""
    async with connected(walled.admin) as connection:
        views = await connection.fetch("select viewname::text from pg_views where schemaname = 'holdfast'")
        assert views
        for (view,) in views:
            assert not await connection.fetchval(
                f"select has_table_privilege('holdfast_door', 'holdfast.{view}', 'select')"
            )
        functions = await connection.fetch(
            "select p.proname::text, p.proconfig, p.oid from pg_proc p where p.prosecdef"
            " and p.pronamespace = 'holdfast'::regnamespace"
        )
        assert {name for name, _, _ in functions} >= {"count_backlog", "queue_numbers", "claims_of", "count_ways_in"}
        for name, settings, oid in functions:
            assert "search_path=pg_catalog, pg_temp" in settings, name
            assert not await connection.fetchval(
                "select exists (select 1 from pg_proc p, aclexplode(p.proacl) a where p.oid = $1 and a.grantee = 0)",
                oid,
            ), f"anybody may call {name}"
        for name in ("put_up_walls()",):
            assert not await connection.fetchval(
                f"select has_function_privilege('holdfast_door', 'holdfast.{name}', 'execute')"
            )


# -- the schema's side


async def test_every_table_of_tenants_is_walled_in_and_its_rights_are_written_down(walled: Walled) -> None:
    async with connected(walled.admin) as connection:
        tables = await connection.fetch(
            "select c.relname::text, c.relrowsecurity, c.relforcerowsecurity, exists (select 1 from pg_attribute a"
            " where a.attrelid = c.oid and a.attname = 'tenant_id') from pg_class c"
            " where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p')"
        )
        assert len(tables) > 14
        rights = {
            (r, t): p for t, r, p in await connection.fetch("select relation, role, privileges from holdfast.rights")
        }
        for table, enabled, forced, of_tenants in tables:
            assert (enabled, forced) == (of_tenants, of_tenants), table
            if table != "rights":
                for role in ("holdfast_door", "holdfast_worker"):
                    assert (role, table) in rights, f"what may {role} do with {table}? Say it in holdfast.rights"
        for role in ("holdfast_door", "holdfast_worker"):
            for table, *_ in tables:
                may = {
                    word: await connection.fetchval(
                        f"select has_table_privilege('{role}', 'holdfast.{table}', '{word}')"
                    )
                    for word in ("truncate", "references", "trigger", "delete", "update")
                }
                assert not (may["truncate"] or may["references"] or may["trigger"]), (role, table)
                leaves = table == "idempotency_keys" or (table, role) == ("task_groups", "holdfast_worker")
                assert may["delete"] == leaves, (role, table)
                if table in ("history", "audit_events", "effect_observations", "migrations", "rights"):
                    assert not may["update"], (role, table)
                    assert not await connection.fetchval(
                        f"select has_any_column_privilege('{role}', 'holdfast.{table}', 'update')"
                    )
        assert not await connection.fetchval(
            "select has_table_privilege('holdfast_door', 'holdfast.history', 'insert')"
        )
    async with worker_store(walled.url) as store:
        assert await store.wall_is_up()


async def test_putting_the_walls_up_again_changes_nothing(walled: Walled) -> None:
    catalogue = (
        "select array_agg(p::text order by p::text) from (select schemaname, tablename, policyname, roles, cmd, qual,"
        " with_check from pg_policies where schemaname = 'holdfast') p"
    )
    grants = (
        "select array_agg(c.relacl::text order by c.relname) from pg_class c"
        " where c.relnamespace = 'holdfast'::regnamespace"
    )
    async with connected(walled.url) as connection:
        before = await connection.fetchval(catalogue), await connection.fetchval(grants)
        assert await connection.fetchval("select holdfast.put_up_walls()") is True
        assert (await connection.fetchval(catalogue), await connection.fetchval(grants)) == before


# -- the store at the doors


async def test_what_names_no_tenant_is_refused_unless_it_is_on_the_list(walled: Walled) -> None:
    async with door_store(walled.url) as store:
        for name, text in texts("postgres").items():
            if ":tenant_id" in text or name.startswith("commit_") or name in UNBOUND:
                continue
            with pytest.raises(NotForDoors):
                await store.fetch(name)
            with pytest.raises(NotForDoors):
                await store.write(name)
        with pytest.raises(NotForDoors):
            await store.commit(b"w" * 16, [])
        for call in (
            store.claim(b"w", [], "q", 1, alone=False), store.next_due([], "q"), store.pending_events("acme", b"i"),
            store.release_worker(b"w", b"w", stopped=True), store.commit_alone(b"w", print, print, 1.0),
        ):  # fmt: skip
            with pytest.raises(NotForDoors):
                await call
        with pytest.raises(AssertionError, match="names tenant 'beta'"):
            await store.change("acme", [("read_task", {"tenant_id": "beta"})])


async def test_a_door_hears_the_same_numbers_as_a_worker(walled: Walled) -> None:
    asked = {
        "count_backlog": {"queue": "default", "limit": 3}, "queue_heads": {"heads": 100},
        "queue_depths": {"heads": 100, "now": 1 << 60, "counted": 2, "looked": 10},
        "count_open_dead_letters": {"limit": 10}, "count_unknown_effects": {"limit": 10}, "count_ways_in": {"now": 1},
        "count_parked": {"limit": 10},
        "list_workers": {"limit": 10}, "read_installation": {},
    }  # fmt: skip
    async with worker_store(walled.url) as store, door_store(walled.url) as door, connected(walled.url) as connection:
        worker_id = await a_worker(store)
        for tenant in ("acme", "beta"):
            await put(store, *(an_instance(store, tenant=tenant) for _ in range(4)))
            await all_of.fill_postgres(connection, tenant)
        await claim(store, worker_id, 2)
        for name, values in asked.items():
            if name in texts("postgres"):
                expected = [tuple(row) for row in await store.fetch(name, **values)]
                assert [tuple(row) for row in await door.fetch(name, **values)] == expected, name
                assert expected or name == "read_installation"
        [(now,)] = await door.fetch("read_clock")
        assert abs(now - door.now()) < 5_000_000
        assert await door.worker_gone(worker_id) == await store.worker_gone(worker_id)
        for name, values in (
            ("bury_requests", {"now": 1 << 60, "limit": 500}),
            ("remove_tombstones", {"before": 1 << 60, "limit": 500}),
        ):
            there = await connection.fetchval("select count(*) from holdfast.idempotency_keys")
            assert await door.write(name, **values) == there > 0, name
        assert await connection.fetchval("select count(*) from holdfast.idempotency_keys") == 0


async def test_a_doors_feed_brings_the_index_of_the_newest_history_up_to_date(walled: Walled) -> None:
    """Where no vacuum comes round to it. What is not summarized is read whole, by every look at the feed."""
    rows = (
        "insert into holdfast.history (tenant_id, instance_id, seq, type, name, fence, at, payload, hash)"
        " select 'acme', '\\x01', n, 'STEP_COMPLETED', 's', 1, n, '{}', 'x' from generate_series(%s, %s) as n"
    )
    left = "select brin_summarize_new_values('holdfast.history_of_late')"
    async with door_store(walled.url) as door, connected(walled.admin) as connection:
        await connection.execute("alter table holdfast.history set (autovacuum_enabled = off)")
        feed = Feed(Service(door, None, 1 << 20), "acme")  # type: ignore[arg-type]
        await feed.read()
        await connection.execute(rows % (1, 10_000))
        await feed.read()
        assert await connection.fetchval(left) == 0
        # A vacuum is not disturbed: whoever waits for its lock would have it cancelled.
        await connection.execute(rows % (10_001, 20_000))
        async with connection.transaction():
            await connection.execute("lock table holdfast.history in share update exclusive mode")
            await door.fetch("summarize_history", tenant_id="acme")
        assert await connection.fetchval(left) > 0


async def test_a_batch_is_committed_tenant_by_tenant_and_answered_in_order(walled: Walled) -> None:
    async with door_store(walled.url) as door:
        born = [an_instance(door, tenant=f"t{n % 3}", business_key=f"k{n // 6}") for n in range(9)]
        turns = [Turn(one.tenant_id, one.id, starts=[one]) for one in born]
        assert await door.commit(None, turns[:6]) == [Outcome.COMMITTED] * 3 + [Outcome.MOVED] * 3
        assert await door.commit(None, turns) == (
            [Outcome.COMMITTED] * 3 + [Outcome.MOVED] * 3 + [Outcome.COMMITTED] * 3
        )
        assert await door.look_up(None, turns) == [Outcome.COMMITTED] * 3 + [None] * 3 + [Outcome.COMMITTED] * 3


async def test_a_turn_that_reaches_into_another_tenant_fails_alone(walled: Walled) -> None:
    async with worker_store(walled.url) as store, door_store(walled.url) as door:
        committer = Committer(door)
        committer.start()
        born = [an_instance(door, tenant=tenant) for tenant in ("acme", "beta", "gamma")]
        liar = Turn("beta", born[1].id, starts=[born[1]._replace(tenant_id="acme")])
        turns = [Turn("acme", born[0].id, starts=[born[0]]), liar, Turn("gamma", born[2].id, starts=[born[2]])]
        told = await asyncio.gather(*(committer.commit(turn) for turn in turns), return_exceptions=True)
        assert [told[0], told[2]] == [Outcome.COMMITTED] * 2
        assert isinstance(told[1], asyncpg.InsufficientPrivilegeError)
        event = NewEvent("acme", born[0].id, "e1", "signal", "go", b"1", door.now())
        # Not even whether there is such an instance: it is as if there were none.
        assert await committer.commit(Turn("beta", born[0].id, events=[event])) is Outcome.MOVED
        await committer.close()
        assert await store.fetch("read_instance", tenant_id="acme", id=born[1].id) == []
        assert (await store.pending_events("acme", born[0].id)) == (0, [])


async def test_a_door_writes_no_history(walled: Walled) -> None:
    async with worker_store(walled.url) as store:
        worker_id = await a_worker(store)
        await put(store, an_instance(store))
        [one] = await claim(store, worker_id)
        async with connected(walled.url) as connection:
            for tenant in ("acme", "beta"):
                await connection.execute("begin")
                await as_door(connection, tenant)
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await PostgresCommits(connection).run(worker_id, Batch([a_turn(store, one)]), 1)
                await connection.execute("rollback")


@pytest.mark.parametrize("executed", [True, False])
async def test_a_door_that_loses_a_reply_looks_for_its_turns_and_connects_anew(walled: Walled, executed: bool) -> None:
    async with door_store(walled.url) as door:
        one, two = an_instance(door, tenant="acme"), an_instance(door, tenant="beta")
        real, calls = door._commit_of, []

        async def cut(tenant_id: str, turns: Any) -> Any:
            calls.append(tenant_id)
            if calls == ["acme"]:
                if executed:
                    await real(tenant_id, turns)
                async with connected(walled.admin) as admin:
                    await admin.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity"
                        " where datname = current_database() and pid <> pg_backend_pid()"
                    )
                raise ConnectionResetError("the reply was lost")
            return await real(tenant_id, turns)

        door._commit_of = cut  # type: ignore[method-assign]
        committer = Committer(door)
        committer.start()
        turns = [Turn(born.tenant_id, born.id, starts=[born]) for born in (one, two)]
        assert await asyncio.gather(*map(committer.commit, turns)) == [Outcome.COMMITTED] * 2
        await committer.close()
        assert calls.count("acme") == (1 if executed else 2)
        for born in (one, two):
            assert len(await door.fetch("read_instance", tenant_id=born.tenant_id, id=born.id)) == 1


async def test_a_request_finds_the_key_it_shows_and_no_other(walled: Walled) -> None:
    async with worker_store(walled.url) as store, door_store(walled.url) as door, connected(walled.url) as connection:
        for tenant in ("acme", "beta"):
            await all_of.fill_postgres(connection, tenant)
        await connection.execute("update holdfast.api_keys set hash = $1 where tenant_id = 'beta'", all_of.OTHER)
        for keys in (store, door):
            assert [tuple(row)[:3] for row in await keys.fetch_key(all_of.OTHER)] == [("beta", all_of.ID, "live")]
            assert await keys.fetch_key(all_of.NEW) == []
        await connection.execute("begin")
        await as_door(connection, None)
        await connection.execute("select set_config('holdfast.key_hash', $1, true)", all_of.OTHER.hex())
        assert await connection.fetchval("select count(*) from holdfast.api_keys") == 1
        with pytest.raises(asyncpg.InsufficientPrivilegeError):  # seen, but not to be changed
            await connection.execute("update holdfast.api_keys set hash = 'x'")
        await connection.execute("rollback")
        await connection.execute("begin")
        await as_door(connection, None)
        await connection.execute("select set_config('holdfast.key_hash', $1, true)", all_of.OTHER.hex())
        assert await connection.execute("update holdfast.api_keys set revoked_at = 1") == "UPDATE 0"
        await connection.execute("rollback")


async def test_a_tenant_that_is_no_tenant_never_reaches_the_database(walled: Walled) -> None:
    from holdfast import HoldfastError

    async with door_store(walled.url) as door:
        for word in ("", "*", "a'; reset role; --", "a\\", "ä", None):
            with pytest.raises(HoldfastError):
                await door.fetch("read_instance", tenant_id=word, id=b"x" * 16)
            with pytest.raises(HoldfastError):
                await door.change(word, [])  # type: ignore[arg-type]


# -- logins


def declare(hf: Holdfast) -> None:
    @hf.workflow("echo")
    async def echo(ctx: Context, given: Any) -> Any:
        said = await ctx.wait_for_signal("go", timeout=None) if given == "wait" else None
        return [given, said]


class DoorHoldfast(Holdfast):
    def _make_store(self) -> Any:
        return make_doors(self.url)


ASK = {
    "id": "ask", "initial": "open", "states": {
        "open": {
            "entry": {"type": "createTask", "params": {"type": "HUMAN", "name": "review", "groups": ["staff"]}},
            "on": {"task.done.review": "closed"},
        },
        "closed": {"type": "final"},
    },
}  # fmt: skip


async def test_a_login_of_the_door_alone_lives_a_whole_life_and_sees_no_other_tenant(walled: Walled) -> None:
    with walled.login("holdfast_door") as url, walled.login("holdfast_worker") as worker_url:
        served, door = Holdfast(worker_url), DoorHoldfast(url, backlog_limit=1000)
        declare(served)
        declare(door)
        await served.open(migrate=False)  # neither owns a table, so neither could migrate
        await door.open(migrate=True)  # and nothing is left to do, so it need not
        async with served.worker(poll_seconds=0.05):
            acme, beta = door.tenant("acme"), door.tenant("beta")
            handle = await acme.start("echo", "wait", business_key="b-1")
            assert (await acme.start("echo", "wait", business_key="b-1")).id == handle.id
            assert await acme.send(handle.id, "go", 42) is True
            assert await handle.result(timeout=100) == ["wait", 42]
            assert len(await handle.history()) > 1
            assert [one.id for one in await acme.instances()] == [handle.id]
            await acme.definitions.publish(ASK)
            asked = await acme.start("ask")
            for _ in range(200):
                tasks = await acme.tasks.list()
                if tasks:
                    break
                await asyncio.sleep(0.05)
            [task] = tasks
            await acme.tasks.claim(task.id, actor="ann")
            assert (await acme.tasks.complete(task.id, {"ok": True}, actor="ann")).status == "succeeded"
            await asked.result(timeout=100)
            assert (await acme.set_policy(ai_enabled=False)).ai_enabled is False
            assert [w.state for w in await door.workers()] == ["live"]
            with pytest.raises(InstanceNotFound):
                await beta.instance(handle.id).status()
            assert await beta.instances() == await beta.tasks.list() == []
        async with connected(url) as connection:
            for words in ("reset role", "set role none", "reset session authorization"):
                await connection.execute(words)
                assert await connection.fetchval("select count(*) from holdfast.instances") == 0
            for words in ("set role holdfast_worker", "set session authorization postgres"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(words)
            await connection.execute("set holdfast.tenant = 'beta'")
            assert await connection.fetchval("select count(*) from holdfast.history") == 0
        await door.close()
        await served.close()


async def test_a_login_behind_the_wall_is_told_so_when_it_opens(walled: Walled) -> None:
    with walled.login("holdfast_door") as door, walled.login("holdfast_worker") as worker, walled.login() as nobody:
        with pytest.raises(StoreUnavailable, match="not a member of holdfast_worker"):
            await PostgresStore(door).open(migrate=False)
        with pytest.raises(StoreUnavailable, match="cannot act as a door"):
            await DoorStore(worker).open(migrate=False)
        for kind in (PostgresStore, DoorStore):
            with pytest.raises(StoreUnavailable, match="permission denied"):
                await kind(nobody).open(migrate=False)


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_a_door_login_starts_inside_its_own_transaction(walled: Walled, library: str) -> None:
    with walled.login("holdfast_door") as url:
        hf = Holdfast(walled.url)
        declare(hf)
        async with hf:
            if library == "asyncpg":
                async with connected(url) as connection, connection.transaction():
                    first = await hf.start("echo", 1, connection=connection, tenant="acme", business_key="k")
                    again = await hf.start("echo", 1, connection=connection, tenant="acme", business_key="k")
                    other = await hf.start("echo", 1, connection=connection, tenant="beta", business_key="k")
            else:
                with psycopg.connect(url) as connection:
                    first = await hf.start("echo", 1, connection=connection, tenant="acme", business_key="k")
                    again = await hf.start("echo", 1, connection=connection, tenant="acme", business_key="k")
                    other = await hf.start("echo", 1, connection=connection, tenant="beta", business_key="k")
            assert first.id == again.id != other.id
            for handle in (first, other):
                assert (await handle.status()).status == "pending"


async def test_a_transaction_step_keeps_the_rights_of_its_login(walled: Walled) -> None:
    """Workers have their rights by membership: under SET ROLE an author could not reach tables of their own."""
    hf = Holdfast(walled.url)

    async def book(tx: Any) -> str:
        await tx.execute("insert into books values ('b-1')")
        return str(await tx.fetchval("select current_user"))

    @hf.workflow("book")
    async def workflow(ctx: Context) -> str:
        return await ctx.transaction("book", book)

    async with connected(walled.url) as connection:
        await connection.execute("create table books (id text primary key)")
        owner = await connection.fetchval("select current_user")
    async with hf, hf.worker():
        assert await (await hf.start("book")).result(timeout=100) == owner


# -- speed


async def test_the_wall_changes_no_plan_of_a_worker(walled: Walled) -> None:
    asked = {
        name: statement(name, "postgres") for name in ("claim_instances", "next_due", "held_claims", "read_histories")
    }
    for parts in ({0}, {0, 1, 2}, {3}, {5}, {0, 2, 3, 5, 6, 7, 8, 9}, {4, 5}):
        asked[f"commit {parts}"] = translate(commit_sql([n in parts for n in range(10)]), "postgres")
    async with worker_store(walled.url) as store:
        connection = await store.connect()
        plans: dict[bool, dict[str, str]] = {True: {}, False: {}}
        for up in (True, False):
            transaction = connection.transaction()
            await transaction.start()
            if not up:
                for table in (*await all_of.tables_of_postgres(connection), "workers"):
                    await connection.execute(f"alter table holdfast.{table} disable row level security")
            for number, (name, found) in enumerate(asked.items()):
                await connection.execute(f"prepare q{number} as {found.sql}")
                nulls = ",".join(["null"] * len(found.parameters))
                rows = await connection.fetch(f"explain (costs off) execute q{number}({nulls})")
                plans[up][name] = "\n".join(row[0] for row in rows)
                await connection.execute(f"deallocate q{number}")
            await transaction.rollback()
        await connection.close()
    assert plans[True] == plans[False]
