"""PostgreSQL runs a batch and a fencing at the same time: one waits for the other, and the claim has one holder."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast.engine.turns import Outcome
from holdfast.store.statements import statement
from tests.store.support import a_turn, a_worker, an_id, an_instance, claim, history_of, put, row_of


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
async def other(store: Any) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(store.url)
    yield connection
    await connection.close()


async def begin_fencing(connection: Any, worker_id: bytes) -> Any:
    """The first statements of `release_worker`, not committed yet."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(statement("lock_worker", "postgres").sql, worker_id)
    fence = statement("fence_worker", "postgres")
    await connection.execute(fence.sql, *fence.bind({"now": 1, "by": an_id(), "worker_id": worker_id}))
    return transaction


async def still_waits(task: asyncio.Task[Any]) -> bool:
    return not (await asyncio.wait({task}, timeout=0.2))[0]


async def test_a_turn_waits_for_the_fencing_and_then_writes_nothing(store: Any, other: Any) -> None:
    worker_id = await a_worker(store)
    await put(store, an_instance(store))
    [one] = await claim(store, worker_id)
    fencing = await begin_fencing(other, worker_id)
    turn = asyncio.create_task(store.commit(worker_id, [a_turn(store, one)]))
    assert await still_waits(turn)
    await fencing.commit()
    assert await turn == [Outcome.FENCED]
    assert await history_of(store, one) == []


async def test_a_start_with_a_claim_waits_for_the_fencing_and_then_comes_without(store: Any, other: Any) -> None:
    worker_id = await a_worker(store)
    one = an_instance(store, claimed_by=worker_id)
    fencing = await begin_fencing(other, worker_id)
    birth = asyncio.create_task(put(store, one))
    assert await still_waits(birth)
    await fencing.commit()
    assert await birth == [Outcome.COMMITTED]
    assert (await row_of(store, one))["locked_by"] is None


async def test_a_fencing_waits_for_the_batch_under_way(store: Any, other: Any) -> None:
    worker_id = await a_worker(store)
    batch = other.transaction()
    await batch.start()
    await other.execute("select 1 from holdfast.workers where id = $1 for key share", worker_id)
    fencing = asyncio.create_task(store.release_worker(worker_id, an_id(), stopped=False))
    assert await still_waits(fencing)
    await batch.commit()
    await fencing
    assert await store.fetch("worker_is_live", worker_id=worker_id) == []
