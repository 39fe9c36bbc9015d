"""A page is answered by an index, by any filter, however many there are: read from the plan, and from what was visited.

30,000 of each; HOLDFAST_TEST_PAGES=1000000 asks for more."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import apsw
import asyncpg
import pytest

from holdfast.app import api_keys, audit, dead_letters, definitions, effects, instances, principals, tasks
from holdfast.app.feed import Feed
from holdfast.app.service import Service
from holdfast.engine import ids
from holdfast.facade import make_doors, make_store
from holdfast.store.sqlite import connect
from holdfast.store.statements import statement
from tests.store.many import rows_of
from tests.support.postgres import Server

SIZE = int(os.environ.get("HOLDFAST_TEST_PAGES", "30000"))
PAGE = 50
TENANT = "acme"  # has nine of ten
ROWS_MAX = 12 * (PAGE + 1)  # a run of an index for each of seven statuses, some of them read twice
STEPS_MAX = 100 * ROWS_MAX  # of SQLite's machine: what a row costs, with all its columns, and a merge
SEARCHED = tasks.LOOKED_AT / (PAGE + 1)  # so many times as much where a page looks through a bounded number of rows
pytestmark = pytest.mark.timeout(3600 if SIZE > 100_000 else 600)


# -- many rows


@pytest.fixture(scope="module")
def filled_sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('pages') / 'pages.db'}"
    asyncio.run(_migrated(url))
    connection = connect(url.removeprefix("sqlite:///"))
    connection.execute("pragma synchronous = off; pragma recursive_triggers = off")
    for sql in rows_of("sqlite", SIZE):
        with connection:
            connection.execute(sql.replace("holdfast.", "holdfast_"))
    connection.close()
    return url


@pytest.fixture(scope="module")
def filled_postgres(postgres: Server) -> Iterator[str]:
    with postgres.database() as url:
        asyncio.run(_filled_postgres(url))
        yield url


async def _migrated(url: str) -> None:
    store = make_store(url)
    await store.open(migrate=True)
    await store.close()


async def _filled_postgres(url: str) -> None:
    await _migrated(url)
    connection = await asyncpg.connect(url)
    for sql in rows_of("postgres", SIZE):
        await connection.execute(sql)
    await connection.execute("vacuum analyze")
    await connection.close()


# -- what a statement visits


class Asked:
    """A store that notes what it is asked, and looks at how that is answered."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def fetch(self, name: str, /, **values: Any) -> Any:
        self.asked.append((name, values))
        return await self.store.fetch(name, **values)


def literal(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    if isinstance(value, bool | int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"


class OfPostgres:
    """How many rows a statement touches, and its plan. As the store that was asked: its settings, role and tenant."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.connection: Any = None
        self.prepared: set[str] = set()

    async def visits(self, name: str, values: dict[str, Any]) -> tuple[int, str]:
        found = statement(name, "postgres")
        if self.connection is None:
            self.connection = await self.store.connect()
        if name not in self.prepared:
            self.prepared.add(name)
            await self.connection.execute(f"prepare {name} as {found.sql}")
        if self.store.settings.get("role"):
            await self.connection.execute(f"set holdfast.tenant = '{values['tenant_id']}'")
        arguments = ", ".join(literal(value) for value in found.bind(values))
        explain = f"explain (analyze, buffers, format json) execute {name}{f'({arguments})' if arguments else ''}"
        [(raw,)] = await self.connection.fetch(explain)
        [whole] = json.loads(raw)
        return sum(_visited(whole["Plan"])), json.dumps(whole["Plan"], indent=1)

    async def close(self) -> None:
        if self.connection is not None:
            await self.connection.close()


def _visited(node: dict[str, Any]) -> Iterator[int]:
    """Rows that a node took from a table or an index, and pages beyond what such rows explain."""
    kind = node["Node Type"]
    assert kind != "Seq Scan", f"a table is read from end to end: {node.get('Relation Name')}"
    if "Relation Name" in node or kind == "Bitmap Index Scan":
        loops = node["Actual Loops"]
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        yield round((node["Actual Rows"] + removed) * loops)
        # An index that is walked past rows that do not fit says nothing of them, but has to read them.
        yield max(0, node["Shared Hit Blocks"] + node["Shared Read Blocks"] - 8 * loops) // 4
    for inner in node.get("Plans", ()):
        yield from _visited(inner)


class OfSqlite:
    """How many steps SQLite's machine takes, and the plan."""

    def __init__(self, store: Any) -> None:
        self.connection = connect(store.path)

    async def visits(self, name: str, values: dict[str, Any]) -> tuple[int, str]:
        found = statement(name, "sqlite")
        bound = found.bind(values)
        rows = self.connection.execute("explain query plan " + found.sql, bound).fetchall()
        plan = "\n".join(str(row[3]) for row in rows)
        assert not re.search(r"SCAN (holdfast_|i\b)", plan), plan
        counted: list[dict[str, Any]] = []
        self.connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, lambda event: counted.append(event["stmt_status"]))
        # A statement that is kept for use again adds its steps up.
        self.connection.execute(found.sql, bound, can_cache=False).fetchall()
        self.connection.trace_v2(0, None)
        return max(one["SQLITE_STMTSTATUS_VM_STEP"] for one in counted), plan

    async def close(self) -> None:
        self.connection.close()


class Pages:
    """The lists of one database, as its API reads them."""

    def __init__(self, store: Any) -> None:
        self.store = Asked(store)
        self.service = Service(self.store, None, 1 << 20)  # type: ignore[arg-type]
        self.plans = OfPostgres(store) if store.dialect == "postgres" else OfSqlite(store)
        self.most: dict[str, int] = {}

    async def check(self, *, times: float = 1.0) -> None:
        """What was asked since, each statement by what it visits."""
        limit = (ROWS_MAX if self.store.dialect == "postgres" else STEPS_MAX) * times
        asked, self.store.asked = self.store.asked, []
        for name, values in asked:
            visits, plan = await self.plans.visits(name, values)
            assert visits <= limit, f"{name} {values} visits {visits}, at most {limit:.0f} are right:\n{plan}"
            self.most[name] = max(self.most.get(name, 0), visits)


@pytest.fixture(params=["sqlite", "postgres", "door"])
def url_and_maker(request: pytest.FixtureRequest) -> tuple[str, Any]:
    if request.param == "sqlite":
        return request.getfixturevalue("filled_sqlite"), make_store
    return request.getfixturevalue("filled_postgres"), make_doors if request.param == "door" else make_store


@pytest.fixture
async def pages(url_and_maker: tuple[str, Any]) -> Any:
    url, maker = url_and_maker
    store = maker(url)
    await store.open(migrate=False)
    found = Pages(store)
    yield found
    for name, visits in sorted(found.most.items()):
        print(f"{name}: {visits:,} {'rows' if store.dialect == 'postgres' else 'steps'} at most")
    await found.plans.close()
    await store.close()


# -- every list, by every filter


MIDDLE = SIZE // 2 // 3 * 1000
AN_ID = (SIZE // 2).to_bytes(16, "big")


async def test_a_page_of_instances_by_any_filter(pages: Pages) -> None:
    statuses: list[Any] = [None, "completed", "compensating", ["pending", "running"], ["failed", "compensating"]]
    keys = [None, "main", "rare", "none of ours"]
    business_keys = [None, "bk-1000", "shared", "none of ours"]
    befores = [instances.FAR_AHEAD, (MIDDLE, b""), (MIDDLE, AN_ID), (3000, b"")]
    sinces = [0, MIDDLE - 50_000]
    for status, key, business_key, before, since in product(statuses, keys, business_keys, befores, sinces):
        await instances.list_instances(
            pages.service, TENANT, status=status, key=key, business_key=business_key, before=before, since=since,
            limit=PAGE + 1,
        )  # fmt: skip
        await pages.check()


async def test_a_page_of_tasks_by_any_filter(pages: Pages) -> None:
    statuses = ["open", None, "pending", "running", "succeeded", "failed", "skipped"]
    types = [None, "HUMAN", "SYSTEM", "AI"]
    middle = (0, MIDDLE, f"t/{SIZE // 2}", AN_ID)
    for status, type_, assignee, group, after in product(
        statuses, types, [None, "ann", "rarely", "nobody"], [None, "all", "rare", "none"], [None, middle]
    ):
        await tasks.page(
            pages.service, TENANT, status=status, type=type_, assignee=assignee, group=group, limit=PAGE, after=after
        )
        await pages.check(times=SEARCHED if type_ or assignee or group else 1.0)


async def test_tasks_are_searched_page_by_page_until_the_end(pages: Pages) -> None:
    found, after, turns = 0, None, 0
    while turns == 0 or after is not None:
        part, after = await tasks.page(
            pages.service, TENANT, status="succeeded", type="AI", limit=PAGE, after=after
        )  # fmt: skip
        found, turns = found + len(part), turns + 1
    wanted = [n for n in range(1, SIZE + 1) if n % 10 < 9 and n % 1000 == 6]
    gone = [n for n in wanted if n % 7 < 2 or n % 700 == 2 or n % 500 == 9 or n % 300 == 9 or n % 9000 == 9]
    assert (found, turns > 1) == (len(wanted) - len(gone), True)


async def test_pages_of_a_group_are_its_open_tasks_in_order(pages: Pages) -> None:
    found: list[tasks.TaskView] = []
    after = None
    while not found or after is not None:
        part, after = await tasks.page(pages.service, TENANT, group="rare", limit=PAGE, after=after)
        found += part
    wanted = [n for n in range(1, SIZE + 1) if n % 10 < 9 and n % 1000 == 5 and (n % 7 < 2 or n % 700 == 2)]
    in_order = sorted(wanted, key=lambda n: (-5 if n % 500 == 5 else 0, n // 3, f"t/{n}"))
    assert [int.from_bytes(ids.parse("tsk", view.id), "big") for view in found] == in_order


async def test_a_page_of_every_other_list(pages: Pages) -> None:
    service = pages.service
    for state, before in product([None, *effects.STATES], [effects.LAST, (MIDDLE, AN_ID)]):
        await effects.list_effects(service, TENANT, state=state, instance=None, limit=PAGE + 1, before=before)
        await pages.check()
    await effects.list_effects(service, TENANT, state="outcome_unknown", instance=None, limit=PAGE + 1)
    for key, status, after in product(
        [None, "busy", "def-1"], [None, "active", "inactive", "archived"], [None, ("busy", 700), ("def-5", 5)]
    ):
        await definitions.page(service, TENANT, key=key, status=status, after=after, limit=PAGE + 1)
        await pages.check()
    for entity, before in product([None, ("task", "one"), ("key", "e5")], [b"\xff" * 16, AN_ID]):
        await audit.list_audit(service, TENANT, entity=entity, before=before, limit=PAGE + 1)
    for edge in (None, (MIDDLE, AN_ID)):
        await dead_letters.page(service, TENANT, before=edge, limit=PAGE + 1)
    parent = (1).to_bytes(16, "big")
    for edge in (instances.FAR_AHEAD, (MIDDLE, AN_ID)):
        await instances.list_children(service, TENANT, parent, limit=PAGE + 1, before=edge)
    for after, before in ((0, None), (SIZE // 2, None), (None, None), (None, SIZE // 2)):
        await instances.history_page(service, TENANT, parent, after=after, before=before, limit=PAGE + 1)
    await principals.list_principals(service, TENANT, after="p5", limit=PAGE + 1)
    await api_keys.list_keys(service, TENANT, after=(100).to_bytes(16, "big"), limit=PAGE + 1)
    await tasks.comments(service, TENANT, ids.shown("tsk", parent), after=(500, AN_ID), limit=PAGE + 1)
    await pages.check()


async def test_the_queues_of_a_tenant_are_counted_no_further_than_asked(pages: Pages) -> None:
    now = SIZE + 1
    for tenant in (TENANT, "zoe", "none"):
        rows = await pages.store.fetch("queues_of_tenant", tenant_id=tenant, now=now, counted=10, heads=1000)
        assert [(row[0], row[1]) for row in rows] == ([("default", 10), ("slow", 10)] if tenant == TENANT else [])
    due = [n for n in range(1, SIZE + 1) if n % 10 < 9 and n % 100 == 98]
    if pages.store.dialect == "postgres":
        pages.store.asked.clear()  # a function's plan is not shown; its answer is
    whole = await pages.store.fetch("queues_of_tenant", tenant_id=TENANT, now=now, counted=SIZE, heads=1000)
    pages.store.asked = pages.store.asked[:3]
    slow = [n for n in due if n % 1000 == 998]
    assert [tuple(row) for row in whole] == [("default", len(due) - len(slow), 98), ("slow", len(slow), slow[0])]
    await pages.check()


async def test_the_feed_reads_what_was_written_lately(pages: Pages) -> None:
    """The newest of a long history: a few pages of the table, however much lies before them."""
    if pages.store.dialect == "sqlite":
        feed = Feed(pages.service, TENANT, str(SIZE - 200))
        assert len(await feed.read()) > 100
        await pages.check(times=4)
        return
    pages.store.store.clock = lambda: SIZE * 1_000_000
    [(horizon,)] = await pages.store.store.fetch("feed_horizon", tenant_id=TENANT)
    feed = Feed(pages.service, TENANT, f"{0:x}.{horizon:x}.{SIZE * 1_000_000:x}.0.0.")
    assert 80 < len(await feed.read()) <= 500
    pages.store.asked = [one for one in pages.store.asked if one[0] == "feed_between"]
    assert len(pages.store.asked) == 1
    # 120 s of history come with it, as rows of a second each, and whole stretches of the table around them.
    await pages.check(times=20)
