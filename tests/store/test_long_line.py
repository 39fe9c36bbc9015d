"""What stands in line before a person's word on a task: in its order, and at the same cost however long the line is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.facade import make_store
from holdfast.store.statements import statement
from tests.store.many import SPELLED
from tests.store.support import an_event, an_instance, put
from tests.store.test_plans import PAGES, PAGES_PER_ROW, STEPS, STEPS_PER_ROW, KeptBySqlite, migrated, said, sessions
from tests.support.postgres import Server

LINE, LIMIT = 30_000, 20
ONE = (7).to_bytes(16, "big")
ASKED = {"before_a_word": {"tenant_id": "acme", "instance_id": ONE, "limit": LIMIT}}


async def test_the_first_in_line_come_in_their_order_whatever_their_names(store: Any) -> None:
    drawn = random.Random(11)
    instance = an_instance(store)
    await put(store, instance)
    line = [drawn.choice("abcdef") for _ in range(60)]
    for n, name in enumerate(line):  # the order of arrival counts, whatever the ids
        await store.commit(None, [an_event(store, "acme", instance.id, f"e{99 - n}", name=name, payload=b"%d" % n)])
    asked: dict[str, Any] = {"tenant_id": "acme", "instance_id": instance.id}
    for limit in (1, 3, LIMIT, 100):
        names = sorted(set(line))[:limit]
        first = [("signal", name, b"%d" % n) for n, name in enumerate(line) if name in names][:limit]
        found = await store.fetch("before_a_word", **asked, limit=limit)
        assert [(kind, name, bytes(payload)) for kind, name, payload, _ in found] == first
    await store.commit(None, [an_event(store, "acme", instance.id, "no", kind="cancel", name="")])
    [(kind, *_), *_] = await store.fetch("before_a_word", **asked, limit=LIMIT)
    assert kind == "cancel"


def filling(dialect: str) -> str:
    words = SPELLED[dialect]
    return f"""insert into holdfast.events (tenant_id, instance_id, id, kind, name, payload, sent_at)
      select 'acme', {words["id"].format(n=7)}, 'e' || n, 'signal', 'name-' || n % 5,
        {words["blob"].format(value="1")}, n
      {words["series"].format(size=LINE)}"""


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_long_line_costs_no_more_than_a_short_one(postgres: Server, analyzed: bool) -> None:
    with postgres.database() as url:
        await migrated(url)
        await said(url, filling("postgres"))
        if analyzed:
            await said(url, "analyze")
        async with sessions(url) as made:
            for session in made.values():
                session.runs = True
                values = statement("before_a_word", "postgres").bind(ASKED["before_a_word"])
                for _ in range(3):
                    await session.connection.execute("begin; set local holdfast.tenant = 'acme'")
                    await session.explain(statement("before_a_word", "postgres").sql, values)
                    await session.connection.execute("rollback")
                assert session.cost.rows == LIMIT
                assert not session.cost.above(PAGES, PAGES_PER_ROW), session.cost.plan


async def test_a_long_line_costs_no_more_than_a_short_one_on_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "line.db"
    store: Any = make_store(f"sqlite:///{path}")
    await store.open(migrate=True)
    await store.close()
    kept = KeptBySqlite(path)
    kept.connection.execute(filling("sqlite").replace("holdfast.", "holdfast_"))
    sql = statement("before_a_word", "sqlite")
    cost = kept._ask(lambda: kept._rows(sql.sql, sql.bind(ASKED["before_a_word"])), "")
    assert cost.rows == LIMIT
    assert not cost.above(STEPS, STEPS_PER_ROW), cost
