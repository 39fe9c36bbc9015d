"""What a statement touches does not grow with the tables, whatever the planner knew when it made the plan.

Every named statement and every shape of a commit, as a worker and as a door run them, with 50,000 rows in each table,
98 % of them one tenant's. PostgreSQL counts the pages of the plan that a connection keeps, SQLite the steps of its
machine. No clock is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import asyncpg
import pytest

from holdfast.engine.turns import (
    ALWAYS,
    Change,
    Consumed,
    DeadLetter,
    EffectRow,
    NewEvent,
    NewInstance,
    NewTask,
    TaskChange,
    Turn,
)  # fmt: skip
from holdfast.facade import make_doors, make_store
from holdfast.store.batch import Batch
from holdfast.store.doors import UNBOUND
from holdfast.store.migrate import migrate_postgres
from holdfast.store.postgres import PostgresCommits
from holdfast.store.sqlite import SqliteCommits, _Lost, connect
from holdfast.store.statements import statement, texts
from tests.store import everything as all_of
from tests.store.many import other_rows_of, rows_of
from tests.store.test_tenants_apart import MANY, ONE, THEIR_OWN
from tests.support.postgres import Server

SIZE, SMALL = 50_000, 100
TENANT = "case when n % 50 <> 3 then 'acme' when n % 100 = 3 then 'abel' else 'zoe' end"
HOLDER = (1).to_bytes(16, "big")  # the worker that holds the claims
FAR = 1 << 60
# A walk through a tenant's part of any index is 400 pages and more, or a step for each of its 49,000 entries.
PAGES, PAGES_PER_ROW = 60, 30
STEPS, STEPS_PER_ROW = 2000, 1000
pytestmark = pytest.mark.timeout(600)

# These grow, by design, and say with what.
GROWS = {
    "count_instances": "`holdfast verify` says how far it is: it counts every instance, once",
    "count_due": "for a person who asks about the quarantine: counts what is scheduled, not what is done",
    "doctor_dead_letters": "`holdfast doctor` counts all that are open",
    "doctor_unknown_effects": "`holdfast doctor` counts all that are open",
    "suspects": "looks at all instances of a queue that are due, not at those that are done",
    "how_the_wall_stands": "reads the catalog when a store is opened",
}
# These find nothing here, or say nothing of rows; the others must find something, or nothing is shown by them.
QUIET = {
    "suspects", "record_installation", "enter_quarantine", "lock_worker", "beat_and_clock", "beat_held", "bind_tenant",
    "ping", "summarize_history", "words_not_taken",
}  # fmt: skip
SWEEPS = {"door_bury_requests": 10, "door_remove_tombstones": 10}  # rows that a function changes and does not show
NOT_A_DOORS = {
    "observe_effect",
    "release_claim",
    "stop_at_hole",
    "stop_where_lost",
    "give_back_claim",
    "verify_instances",
}


class Cost(NamedTuple):
    amount: int  # pages, or steps
    rows: int
    plan: str

    def above(self, base: int, per_row: int) -> bool:
        return self.amount > base + per_row * max(1, self.rows)


Costs = dict[str, Cost]


# -- what is asked


WIDE: dict[str, Any] = {"limit": 10, "looked": 10, "counted": 10, "heads": 50, "before_at": FAR, "until": FAR}
NOW = {"now": SIZE + 1}
EXPIRED = {"now": 1000, "before": 1000}
OWN: dict[str, dict[str, Any]] = {
    "suspects": {"queue": "default", **NOW}, "queue_depths": NOW, "queues_of_tenant": NOW, "count_due": NOW,
    "door_queue_depths": NOW, "bury_requests": EXPIRED, "remove_tombstones": EXPIRED, "door_bury_requests": EXPIRED,
    "door_remove_tombstones": EXPIRED,
    "claim_instances": {
        "worker_id": HOLDER, "queue": "default", "places": [""], "keys": ["main"], "versions": [1], **NOW
    },
    "claim_share": {"worker_id": HOLDER, "queue": "default", "key": "main", **NOW},
    "next_head": {"queue": "default", "key": ""},
    "next_due": {"queue": "default", "places": [""], "keys": ["main"], "versions": [1]},
    "changed_definitions": {"since": SIZE - 5},
    "feed_between": {"since": (SIZE - 100) * 1_000_000, "after_at": 0},
}  # fmt: skip


async def asked_of(dialect: Any, url: str) -> dict[str, tuple[Any, ...]]:
    """Every named statement but the parts of commits, with values that find something. `url` is of a PostgreSQL."""
    connection = await asyncpg.connect(url)
    await connection.execute("begin")
    await all_of.fill_postgres(connection, "acme")
    asked = {}
    for name, text in texts(dialect).items():
        if name.startswith("commit_"):
            continue
        found = statement(name, dialect)
        if ":tenants" in text or ":places" in text:
            values = MANY | THEIR_OWN.get(name, {}) | {"alone": False}
        elif name in texts("postgres"):
            values = await all_of.values_that_find(connection, name, "acme")
        else:
            values = ONE | THEIR_OWN.get(name, {})
        values = values | {word: WIDE[word] for word in found.parameters if word in WIDE} | OWN.get(name, {})
        if isinstance(values.get("before"), bytes):
            values["before"] = b"\xff" * 16
        if name == "feed_between":
            values |= {"low": SIZE - 100, "high": SIZE} if dialect == "sqlite" else {"low": 0, "high": 4_000_000_000}
        asked[name] = found.bind(values)
    await connection.execute("rollback")
    await connection.close()
    return asked


def shapes(*, door: bool) -> dict[str, list[Turn]]:
    """Batches of ten turns: each part of a turn by itself, and all together."""
    claimed = [n * 100 + 99 for n in range(1, 11)]  # of HOLDER, with fence 1

    def id_(n: int) -> bytes:
        return n.to_bytes(16, "big")

    def start(n: int, **fields: Any) -> NewInstance:
        made = NewInstance(
            "acme", id_(FAR + n), "code", "main", 1, f"new-{n}", "default", 0, 9, b"{}", None, None, None, 9
        )
        return made._replace(**fields)

    def event(n: int, to: bytes, **fields: Any) -> NewEvent:
        return NewEvent("acme", to, f"new-{n}", "signal", "go", b"1", 9)._replace(**fields)

    def settled(n: int, by: bytes | None) -> TaskChange:
        return TaskChange(
            "acme", task_of(n), id_(n), "succeeded", None, 1, None, 0, b"1", None, None, None, 9, 9, "ann", by, None,
            None if by else 0,
        )  # fmt: skip

    def task_of(n: int) -> bytes:
        return id_(n // 100 * 70 + 35)  # a person's, and open

    if door:
        return {
            "starts": [Turn("acme", id_(FAR + n), starts=[start(n)]) for n in claimed],
            "events": [Turn("acme", id_(n - 1), events=[event(n, id_(n - 1))]) for n in claimed],
            "starts with events": [
                Turn("acme", id_(FAR + n), starts=[start(n)], events=[event(n, id_(FAR + n))]) for n in claimed
            ],
            "words on tasks": [
                Turn("acme", id_(n), events=[event(n, id_(n), task_id=task_of(n))], task_changes=[settled(n, None)])
                for n in claimed
            ],
        }

    def turn(n: int, *, rows: int = 1, **parts: Any) -> Turn:
        history: Any = [  # after the last row that it has
            ("acme", id_(n), 5 * n + m, "STEP_COMPLETED", "s", 1, 9, b"{}", b"s" * 16, b"h" * 32) for m in range(rows)
        ]
        return Turn("acme", id_(n), 1, history, **parts, after=b"x" * 32)

    def change(n: int, *, release: bool = True) -> Change:
        return Change(
            "acme", id_(n), 1, "waiting", "x", None, release, 9, FAR, b"h", None, None, None, None, None, None
        )

    def end(n: int) -> Change:
        return change(n)._replace(status="completed", waiting_on=None, woken=ALWAYS, completed_at=9)

    def effect(n: int) -> EffectRow:
        return EffectRow(
            "acme", id_(n), id_(n), "s", "manual", "started", 1, "k", b"x", b"{}", 1, HOLDER, 1, 1, 1, 1, None, None,
            None, None, None, None,
        )  # fmt: skip

    def task(n: int) -> NewTask:
        return NewTask(
            "acme", id_(FAR + n), id_(n), "main", f"new/{n}", "HUMAN", "t", None, "pending", None, 0, 1, None, None, 0,
            "k", b"{}", b"{}", None, None, '["all"]', 0, None, None, None, 0, 9,
        )  # fmt: skip

    def parts(n: int) -> dict[str, Any]:
        return {
            "change": change(n), "starts": [start(n, by=id_(n), claimed_by=HOLDER)], "effects": [effect(n)],
            "events": [event(n, id_(n - 1), by=id_(n))],
            "consumed": [Consumed("acme", id_(n), f"e{n}", 1)], "tasks": [task(n)],
            "task_changes": [settled(n, id_(n))],
            "dead_letters": [DeadLetter("acme", id_(FAR + n), "effect", id_(n), "main", "r", b"{}", 9)],
        }  # fmt: skip

    found = {part: [turn(n, **{part: parts(n)[part]}) for n in claimed] for part in parts(99)}
    return found | {
        "births": [Turn("acme", id_(FAR + n), starts=[start(n, claimed_by=HOLDER)]) for n in claimed],
        "steps": [turn(n) for n in claimed],
        "several steps": [turn(n, rows=3) for n in claimed],
        "moves": [turn(n, change=change(n, release=False)) for n in claimed],
        "ends": [turn(n, change=end(n)) for n in claimed],
        "a child that is told": [
            turn(n, starts=[start(n, by=id_(n))], events=[event(n, id_(FAR + n), by=id_(n))]) for n in claimed
        ],
        "everything": [turn(n, rows=2, **parts(n)) for n in claimed],
    }


# -- PostgreSQL


def literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    if isinstance(value, list):
        return f"array[{', '.join(map(literal, value))}]" if value else "'{}'"
    if isinstance(value, bool | int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


def own_pages(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def pages(node: dict[str, Any]) -> Iterator[int]:
    """Of every node without those below it: a part that writes, and that nobody reads, runs after the whole is done."""
    inner = node.get("Plans", ())
    if node["Node Type"] != "CTE Scan":  # what it reads is counted where it is made
        yield max(0, own_pages(node) - sum(map(own_pages, inner)))
    for one in inner:
        yield from pages(one)


def written(node: dict[str, Any]) -> Iterator[int]:
    for one in node.get("Plans", ()):
        if node["Node Type"] == "ModifyTable":
            yield round(one["Actual Rows"] * one["Actual Loops"])
        yield from written(one)


def shown(node: dict[str, Any], depth: int = 0) -> str:
    what = " ".join(str(node[word]) for word in ("Node Type", "Relation Name", "Index Name") if word in node)
    rows = f"{node['Actual Rows']} rows, {node['Actual Loops']} times, {own_pages(node)} pages"
    return f"{'  ' * depth}{what}: {rows}\n" + "".join(shown(one, depth + 1) for one in node.get("Plans", ()))


class Kept:
    """A connection of a store, with its role and settings and the plans that it keeps, asked by way of EXPLAIN."""

    def __init__(self, connection: Any, *, door: bool) -> None:
        self.connection = connection
        self.door = door
        self.commits = PostgresCommits(self)
        self.prepared: dict[str, str] = {}
        self.runs = False
        self.cost = Cost(0, 0, "")

    async def prepare(self, sql: str) -> Any:
        """For PostgresCommits."""
        return Answering(self, sql)

    async def explain(self, sql: str, values: tuple[Any, ...]) -> None:
        if sql not in self.prepared:
            self.prepared[sql] = f"s{len(self.prepared)}"
            await self.connection.execute(f"prepare {self.prepared[sql]} as {sql}")
        arguments = f"({', '.join(map(literal, values))})" if values else ""
        how = "(analyze, buffers, format json)" if self.runs else "(format json)"
        [(raw,)] = await self.connection.fetch(f"explain {how} execute {self.prepared[sql]}{arguments}")
        plan = json.loads(raw)[0]["Plan"]
        if self.runs:
            self.cost = Cost(sum(pages(plan)), max(round(plan["Actual Rows"]), sum(written(plan))), shown(plan))

    async def plan(self, asked: dict[str, tuple[Any, ...]]) -> None:
        self.runs = False
        await self._ask_all(asked, {})

    async def measure(self, asked: dict[str, tuple[Any, ...]]) -> Costs:
        """The least of several tries: a session reads the catalog when it is new, and whenever another test changes so
        much elsewhere on the server that it forgets what it knew."""
        self.runs = True
        found: Costs = {}
        for _ in range(4):
            await self._ask_all(asked, found)
        return found

    async def _ask_all(self, asked: dict[str, tuple[Any, ...]], found: Costs) -> None:
        """Ask what has not been found cheap already."""

        def is_open(name: str) -> bool:
            return name not in found or found[name].above(PAGES, PAGES_PER_ROW)

        for name, values in asked.items():
            if is_open(name) and (for_doors(name) if self.door else not name.startswith("door_")):
                await self._ask(name, self.explain(statement(name, "postgres").sql, values), found)
        for shape, turns in shapes(door=self.door).items():
            for how in ("join",) if self.door else ("join", "run"):  # a door's transaction is open already
                name = f"commit ({how}) of {shape}"
                if is_open(name):
                    work = getattr(self.commits, how)(None if self.door else HOLDER, Batch(turns), SIZE + 1)
                    await self._ask(name, work, found)

    async def _ask(self, name: str, work: Awaitable[Any], found: Costs) -> None:
        """In a transaction that is undone. A statement that is no good is stopped, and then has cost too much."""
        self.cost = Cost(1 << 40, 0, "stopped after 20 seconds")
        await self.connection.execute("begin; set local statement_timeout = '20s'")
        if self.door:
            await self.connection.execute("set local holdfast.tenant = 'acme'")
        try:
            await work
        except asyncpg.QueryCanceledError:
            pass
        finally:
            await self.connection.execute("rollback")
        cost = self.cost._replace(rows=SWEEPS.get(name, self.cost.rows))
        found[name] = min(cost, found.get(name, cost))


class Answering:
    def __init__(self, kept: Kept, sql: str) -> None:
        self.kept, self.sql = kept, sql

    async def fetchrow(self, *values: Any) -> Any:
        await self.kept.explain(self.sql, values)
        return 0, [], 0, [], 0


def for_doors(name: str) -> bool:
    if "tenant_id" in statement(name, "postgres").parameters:
        return name not in NOT_A_DOORS
    return name.startswith("door_") or (name in UNBOUND and f"door_{name}" not in texts("postgres"))


@asynccontextmanager
async def sessions(url: str) -> AsyncIterator[dict[str, Kept]]:
    made = {}
    for role, maker in (("worker", make_store), ("door", make_doors)):
        store: Any = maker(url)
        await store.open(migrate=False)
        made[role] = Kept(await store.connect(), door=role == "door")
        await store.close()
    assert await made["door"].connection.fetchval("show role") == "holdfast_door"
    yield made
    for session in made.values():
        await session.connection.close()


async def migrated(url: str) -> None:
    await migrate_postgres(url, apply=True)
    connection = await asyncpg.connect(url)
    for (table,) in await connection.fetch(
        "select oid::regclass::text from pg_class where relnamespace = 'holdfast'::regnamespace and relkind = 'r'"
    ):
        await connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
    await connection.close()


async def filled(url: str, first: int, last: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("set synchronous_commit = off")
    for sql in (*rows_of("postgres", SIZE, tenant=TENANT, few=SIZE), *other_rows_of("postgres", SIZE, tenant=TENANT)):
        part = sql.replace(f"generate_series(1::bigint, {SIZE})", f"generate_series({first}::bigint, {last})")
        if part != sql or last == SIZE:
            await connection.execute(part)
    if last == SIZE:
        await all_of.fill_postgres(connection, "acme")
        await connection.execute("select holdfast.summarize_history()")  # as the feed does before it reads
    await connection.close()


async def turned_round(url: str) -> None:
    """All indexes made anew, the last one first: of two that cost the same PostgreSQL takes the newer, and a dump that
    is restored has them in an order of its own."""
    connection = await asyncpg.connect(url)
    for name, text in await connection.fetch(
        "select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index"
        " join pg_class c on c.oid = indrelid where c.relnamespace = 'holdfast'::regnamespace and not indisprimary"
        " order by indexrelid desc"
    ):
        await connection.execute(f"drop index {name}; {text}")
    await connection.close()


async def said(url: str, word: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(word)
    await connection.close()


def judged(found: dict[tuple[str, str], Costs], base: int, per_row: int) -> None:
    wrong = [
        f"{name} ({state}, {role}): {cost.amount:,} for {cost.rows} rows\n{cost.plan}"
        for (state, role), costs in found.items()
        for name, cost in costs.items()
        if cost.above(base, per_row) and name not in GROWS
    ]
    assert not wrong, f"{len(wrong)} grow with the table:\n" + "\n".join(wrong)
    silent = {
        name for costs in found.values() for name, cost in costs.items()
        if cost.rows == 0 and name not in QUIET
    }  # fmt: skip
    assert not silent, "these found nothing, so nothing is shown by them"


async def test_plans_made_on_empty_tables_still_hold_with_50_000_rows(postgres: Server) -> None:
    """Kept by a connection from before the first row; and made when nobody had ever counted the rows."""
    with postgres.database() as url:
        await migrated(url)
        asked = await asked_of("postgres", url)
        found = {}
        async with sessions(url) as early:
            for session in early.values():
                await session.plan(asked)
            await filled(url, 1, SIZE)
            for role, session in early.items():
                found["planned on empty tables", role] = await session.measure(asked)
            in_commits = " ".join(sql for session in early.values() for sql in session.prepared)
        async with sessions(url) as late:
            for role, session in late.items():
                found["planned late, never analyzed", role] = await session.measure(asked)
    judged(found, PAGES, PAGES_PER_ROW)
    for name, text in texts("postgres").items():
        if name.startswith("commit_"):
            part = re.search(r"^\w+ as .*", text, re.M)
            assert (part[0] if part else text.strip()) in in_commits, f"no shape of a commit has {name}"


async def test_plans_hold_whatever_the_statistics_say(postgres: Server) -> None:
    """Statistics of a hundred rows, in a plan that was kept since then and in one made late; then fresh ones."""
    with postgres.database() as url:
        await migrated(url)
        asked = await asked_of("postgres", url)
        found = {}
        await turned_round(url)
        await filled(url, 1, SMALL)
        await said(url, "analyze")
        async with sessions(url) as early:
            for session in early.values():
                await session.plan(asked)
            await filled(url, SMALL + 1, SIZE)
            for role, session in early.items():
                found["planned with a hundred rows", role] = await session.measure(asked)
        for state in ("stale statistics", "fresh statistics"):
            if state.startswith("fresh"):
                await said(url, "analyze")
            async with sessions(url) as late:
                for role, session in late.items():
                    found[state, role] = await session.measure(asked)
    judged(found, PAGES, PAGES_PER_ROW)


async def test_every_index_but_a_primary_key_is_named_by_its_own_statements(postgres_url: str) -> None:
    """Said again here because a new index without its name would be taken by statements that nobody thought of."""
    await migrate_postgres(postgres_url, apply=True)
    connection = await asyncpg.connect(postgres_url)
    indexes = await connection.fetch(
        "select c.relname, coalesce(pg_get_expr(i.indpred, i.indrelid), ''), i.indisunique from pg_index i"
        " join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam"
        " where c.relnamespace = 'holdfast'::regnamespace and not i.indisprimary and a.amname = 'btree'"
    )
    functions = await connection.fetch(
        "select prosrc from pg_proc where pronamespace = 'holdfast'::regnamespace and prolang = "
        "(select oid from pg_language where lanname = 'sql')"
    )
    await connection.close()
    nameless = [name for name, predicate, _ in indexes if f"<> '#{name}'" not in predicate]
    assert not nameless, f"an index without its name in `where`: {nameless}"
    said = set(re.findall(r"<> '#(\w+)'", " ".join([*texts("postgres").values(), *(row[0] for row in functions)])))
    assert said <= {name for name, *_ in indexes}, "a statement names an index that is not there"
    assert {name for name, _, unique in indexes if not unique} <= said, "no statement names the index: it costs, only"


# -- SQLite


class KeptBySqlite:
    """A connection with the statements that it has prepared, and the steps that each has taken."""

    def __init__(self, path: Path) -> None:
        self.connection = connect(str(path))
        self.commits = SqliteCommits()
        self.taken: dict[str, int] = {}
        self.steps = 0
        self.empty = False
        self.connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._profiled)

    def _profiled(self, event: dict[str, Any]) -> None:
        # A statement that is kept for use again adds its steps up.
        steps = event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
        self.steps += steps - self.taken.get(event["sql"], 0)
        self.taken[event["sql"]] = steps

    def measure(self, asked: dict[str, tuple[Any, ...]]) -> Costs:
        found: Costs = {}
        for name, values in asked.items():
            sql = statement(name, "sqlite").sql
            plan = self.connection.execute("explain query plan " + sql, values).fetchall()
            found[name] = self._ask(
                lambda sql=sql, values=values: self._rows(sql, values), "\n".join(r[3] for r in plan)
            )
        for door in (False, True):
            for name, turns in shapes(door=door).items():
                found[f"commit of {name}"] = self._ask(lambda turns=turns, door=door: self._commit(turns, door), "")
        return found

    def _ask(self, work: Any, plan: str) -> Cost:
        self.connection.execute("begin immediate")
        self.steps, before = 0, self.connection.total_changes()
        rows = work()
        cost = Cost(self.steps, max(rows, self.connection.total_changes() - before), plan)
        self.connection.execute("rollback")
        return cost

    def _rows(self, sql: str, values: tuple[Any, ...]) -> int:
        return len(self.connection.execute(sql, values).fetchall())

    def _commit(self, turns: list[Turn], door: bool) -> int:
        with suppress(_Lost) if self.empty else nullcontext():
            self.commits.apply(self.connection, None if door else HOLDER, Batch(turns), SIZE + 1)
        return 0


async def test_on_sqlite_plans_hold_with_50_000_rows_analyzed_or_not(tmp_path: Path, postgres_url: str) -> None:
    """Prepared before the first row, then after the last, then with the statistics of somebody's ANALYZE."""
    path = tmp_path / "many.db"
    store: Any = make_store(f"sqlite:///{path}")
    await store.open(migrate=True)
    await store.close()
    await migrate_postgres(postgres_url, apply=True)
    asked = await asked_of("sqlite", postgres_url)
    early = KeptBySqlite(path)
    early.empty = True
    early.measure(asked)
    early.empty = False
    filling = connect(str(path))
    filling.execute("pragma synchronous = off; pragma recursive_triggers = off; begin")
    for sql in (*rows_of("sqlite", SIZE, tenant=TENANT, few=SIZE), *other_rows_of("sqlite", SIZE, tenant=TENANT)):
        filling.execute(sql.replace("holdfast.", "holdfast_"))
    all_of.fill_sqlite(filling, "acme")
    filling.execute("commit")
    found = {("planned on empty tables", "sqlite"): early.measure(asked)}
    found["planned late", "sqlite"] = KeptBySqlite(path).measure(asked)
    filling.execute("analyze")
    found["analyzed", "sqlite"] = KeptBySqlite(path).measure(asked)
    judged(found, STEPS, STEPS_PER_ROW)
    run = " ".join(early.taken)
    for name in texts("sqlite"):
        if name.startswith("commit_"):
            assert statement(name, "sqlite").sql.split("{rows}")[0] in run, f"no shape of a commit has {name}"
