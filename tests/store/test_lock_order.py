"""Batches of several processes that touch the same instances on PostgreSQL: one waits for the other, in no ring."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast.engine.turns import Outcome, Turn
from tests.store.support import a_turn, a_worker, an_event, an_instance, claim, parking, put

SIZE = 20


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
async def other(store: Any) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(store.url)
    yield connection
    await connection.close()


async def waits_for_a_lock(other: Any) -> None:
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    async with asyncio.timeout(60):
        while not await other.fetchval(waiting):
            await asyncio.sleep(0.01)


async def is_free(other: Any, id_: bytes) -> bool:
    try:
        async with other.transaction():
            await other.execute("select 1 from holdfast.instances where id = $1 for no key update nowait", id_)
    except asyncpg.LockNotAvailableError:
        return False
    return True


@pytest.mark.parametrize("who", ["worker", "door"])
async def test_a_batch_locks_its_instances_by_their_ids_upwards(store: Any, other: Any, who: str) -> None:
    worker_id = await a_worker(store)
    await put(store, *(an_instance(store) for _ in range(SIZE)))
    claimed = sorted(await claim(store, worker_id, SIZE), key=lambda one: one.id, reverse=True)
    lowest, *higher = [one.id for one in reversed(claimed)]
    turns: list[Turn] = [
        parking(store, one, a_turn(store, one)) if who == "worker" else an_event(store, one.tenant_id, one.id)
        for one in claimed
    ]
    holder = await asyncpg.connect(store.url)
    holding = holder.transaction()
    await holding.start()
    await holder.execute("update holdfast.instances set priority = 1 where id = $1", lowest)
    batch = asyncio.create_task(store.commit(worker_id if who == "worker" else None, turns))
    await waits_for_a_lock(other)
    assert all([await is_free(other, id_) for id_ in higher]), "it holds what the one it waits for may ask for next"
    await holding.commit()
    await holder.close()
    assert await batch == [Outcome.COMMITTED] * SIZE
