"""The first wall: every statement that names a tenant touches that tenant's rows, whatever the others' look like.

Two tenants have the same ids in every table. A statement must answer and change the same whether the other tenant is
there or not, and leave the other's rows as they were. Workers span tenants, so for them this is the only wall.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from holdfast.engine.turns import Change, DeadLetter, NewEvent, Outcome, Turn
from holdfast.store.migrate import migrate_postgres
from holdfast.store.sqlite import connect
from holdfast.store.statements import statement, texts
from tests.store import everything as all_of
from tests.store.support import a_turn, a_worker, an_instance, claim, put

# Statements for many rows at once name their tenants in a column.
MANY = {
    "tenants": ["acme"], "instances": [all_of.ID], "seqs": [1], "ids": ["e1"], "fences": [1],
    "worker_id": all_of.WORKER, "names": [9], "skip": [], "only": ["k"], "each": 9,
    "epoch_seqs": [0],
}  # fmt: skip
# Statements that only SQLite has.
ONE = {
    "id": all_of.ID, "instance_id": all_of.ID, "seq": 1, "fence": 1, "worker_id": all_of.WORKER, "now": 9, "limit": 9,
    "queue": "q", "key": "k", "version": 1, "alone": False, "tenant_id": "acme", "after": "", "name": "k",
    "epoch_seq": 0,
}  # fmt: skip
CLAIMED = {"id": all_of.OTHER, "instances": [all_of.OTHER]}
THEIR_OWN = {"look_up_event": {"id": "e1"}, "look_up_claim": CLAIMED, "look_up_claims": CLAIMED}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def asked_of(dialect: Any, postgres_url: str) -> dict[str, tuple[Any, ...]]:
    """Every statement that names a tenant, with values that find something of `acme`."""
    await migrate_postgres(postgres_url, apply=True)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("begin")
    await all_of.fill_postgres(connection, "acme")
    common = set(all_of.statements_of_a_tenant("postgres"))
    asked = {}
    for name, text in texts(dialect).items():
        found = statement(name, dialect)
        if name in common:
            values = await all_of.values_that_find(connection, name, "acme")
        elif ":tenants" in text:
            values = MANY | THEIR_OWN.get(name, {})
        elif name in all_of.statements_of_a_tenant(dialect):
            values = ONE | THEIR_OWN.get(name, {})
        else:
            continue
        asked[name] = found.bind(values)
    await connection.close()
    return asked


class Lite:
    def __init__(self, store: Any) -> None:
        self.connection = connect(store.path)

    async def say(self, word: str) -> None:
        self.connection.execute(word)

    async def fill(self, tenant_id: str) -> None:
        all_of.fill_sqlite(self.connection, tenant_id)

    async def dump(self, tenant_id: str) -> Any:
        return all_of.dump_sqlite(self.connection, tenant_id)

    async def ask(self, name: str, values: Any) -> Any:
        return self.connection.execute(statement(name, "sqlite").sql, values).fetchall()

    async def close(self) -> None:
        self.connection.close()


class Post(Lite):
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def say(self, word: str) -> None:
        await self.connection.execute(word)

    async def fill(self, tenant_id: str) -> None:
        await all_of.fill_postgres(self.connection, tenant_id)

    async def dump(self, tenant_id: str) -> Any:
        return await all_of.dump_postgres(self.connection, tenant_id)

    async def ask(self, name: str, values: Any) -> Any:
        return [tuple(row) for row in await self.connection.fetch(statement(name, "postgres").sql, *values)]

    async def close(self) -> None:
        await self.connection.close()


async def opened(store: Any) -> Lite:
    return Lite(store) if store.dialect == "sqlite" else Post(await store.connect())


async def played(store: Any, asked: dict[str, Any], others: list[str]) -> dict[str, tuple[Any, Any, Any]]:
    """Of every statement: what it answers for `acme`, and acme's rows before and after. The others' must stay."""
    found = {}
    it = await opened(store)
    await it.say("begin")
    for tenant in ("acme", *others):
        await it.fill(tenant)
    before, theirs = await it.dump("acme"), [await it.dump(other) for other in others]
    for name, values in asked.items():
        await it.say("savepoint one")
        answer = await it.ask(name, values)
        found[name] = (answer, before, await it.dump("acme"))
        assert [await it.dump(other) for other in others] == theirs, f"{name} changed rows of another tenant"
        await it.say("rollback to one")
    await it.say("rollback")
    await it.close()
    return found


async def test_every_statement_of_a_tenant_keeps_to_it(store: Any, postgres_url: str) -> None:
    asked = await asked_of(store.dialect, postgres_url)
    assert len(asked) > 40
    alone, together = await played(store, asked, []), await played(store, asked, ["Acme", "beta"])
    for name, (answer, _, after) in alone.items():
        assert together[name][0] == answer, f"{name} answers with rows of another tenant"
        assert together[name][2] == after, f"{name} changes other rows when another tenant has the same ids"
    idle = {n for n, (answer, before, after) in alone.items() if after == before and not any(map(any, answer))}
    # Other tests of this process look for values of other statements.
    assert not idle | (all_of.silent.keys() & asked.keys()), (
        "these found nothing, so nothing is shown by them: give them a row or a value in tests/store/everything.py"
    )


async def test_a_turn_writes_only_rows_of_its_tenant(store: Any) -> None:
    """All parts of a commit at once, while another tenant has the same ids."""
    worker_id = await a_worker(store)
    for tenant in ("acme", "beta"):
        await put(store, an_instance(store, tenant=tenant, id=all_of.ID))
    claimed = next(one for one in await claim(store, worker_id) if one.tenant_id == "acme")
    it = await opened(store)
    theirs = await it.dump("beta")
    turn = a_turn(store, claimed, count=2)
    last, now = turn.history[-1], store.now()
    turn.starts = [an_instance(store, id=all_of.OTHER, by=all_of.ID)]
    turn.events = [NewEvent("acme", all_of.OTHER, "e1", "signal", "go", b"1", now, all_of.ID)]
    turn.change = Change(
        "acme", all_of.ID, claimed.fence, "waiting", "x", None, True, 9, last[2], last[9], None, None, None, None, None,
        None,
    )  # fmt: skip
    turn.dead_letters = [DeadLetter("acme", all_of.ID, "effect", all_of.ID, "work", "why", b"1", now)]
    assert await store.commit(worker_id, [turn]) == [Outcome.COMMITTED]
    assert await it.dump("beta") == theirs
    mine = await it.dump("acme")
    assert [len(mine[table]) for table in ("instances", "history", "events", "dead_letters")] == [2, 2, 1, 1]
    await it.close()


async def test_a_door_moves_nothing_of_another_tenant_that_has_the_same_ids(store: Any) -> None:
    for tenant in ("acme", "beta"):
        await put(store, an_instance(store, tenant=tenant, id=all_of.ID))
    it = await opened(store)
    theirs = await it.dump("beta")
    event = NewEvent("acme", all_of.ID, "e1", "signal", "go", b"1", store.now())
    assert await store.commit(None, [Turn("acme", all_of.ID, events=[event])]) == [Outcome.COMMITTED]
    assert await store.look_up(None, [Turn("beta", all_of.ID, events=[event._replace(tenant_id="beta")])]) == [None]
    assert await it.dump("beta") == theirs
    await it.close()


async def test_a_claim_for_one_tenants_chart_takes_nothing_of_another(store: Any) -> None:
    worker_id = await a_worker(store)
    for tenant in ("acme", "beta"):
        await put(store, an_instance(store, tenant=tenant, id=all_of.ID))
    claimed, _ = await store.claim(worker_id, [("acme", "work", 1)], "default", 10, alone=False)
    assert [one.tenant_id for one in claimed] == ["acme"]
