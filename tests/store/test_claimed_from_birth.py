"""A start may name a worker that gets the claim in the same commit: a live one, and nobody else."""

from typing import Any

import pytest

from holdfast.engine.turns import Outcome, Turn
from holdfast.store.port import claimed_at_birth
from tests.store.support import a_turn, a_worker, an_id, an_instance, claim, history_of, put, row_of


async def test_the_named_worker_holds_the_claim_and_can_go_on_at_once(store: Any) -> None:
    worker_id = await a_worker(store)
    one = an_instance(store, claimed_by=worker_id)
    assert await put(store, one) == [Outcome.CLAIMED]
    row = await row_of(store, one)
    assert (row["status"], row["attempts"], row["run_at"], row["locked_by"]) == ("running", 1, None, worker_id)
    assert await claim(store, await a_worker(store)) == []
    assert await store.commit(worker_id, [a_turn(store, claimed_at_birth(one))]) == [Outcome.COMMITTED]
    assert await history_of(store, one) == [1]


async def test_what_a_dead_worker_held_from_birth_is_claimed_by_another(store: Any) -> None:
    dead, other = await a_worker(store), await a_worker(store)
    one = an_instance(store, claimed_by=dead)
    await put(store, one)
    assert await store.release_worker(dead, other, stopped=False) == 1
    [again] = await claim(store, other)
    assert (again.id, again.fence, again.attempts) == (one.id, 2, 2)
    assert await store.commit(dead, [a_turn(store, claimed_at_birth(one))]) == [Outcome.FENCED]
    assert await history_of(store, one) == []


@pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "unknown"])
async def test_a_worker_that_is_not_there_gets_nothing_and_the_start_waits_for_another(
    store: Any, fenced: bool
) -> None:
    worker_id = await a_worker(store) if fenced else an_id()
    if fenced:
        await store.write("fence_worker", now=store.now(), by=an_id(), worker_id=worker_id)
    one = an_instance(store, claimed_by=worker_id)
    assert await put(store, one) == [Outcome.COMMITTED]
    row = await row_of(store, one)
    assert (row["status"], row["attempts"], row["locked_by"]) == ("pending", 0, None)
    [found] = await claim(store, await a_worker(store))
    assert (found.id, found.fence, found.attempts) == (one.id, 1, 1)


async def test_each_start_of_a_batch_is_told_its_own_outcome(store: Any) -> None:
    worker_id = await a_worker(store)
    first = an_instance(store, business_key="k", claimed_by=worker_id)
    await put(store, first)
    taken = an_instance(store, business_key="k", claimed_by=worker_id)
    mine, open_to_all = an_instance(store, claimed_by=worker_id), an_instance(store)
    assert await put(store, taken, mine, open_to_all) == [Outcome.MOVED, Outcome.CLAIMED, Outcome.COMMITTED]
    assert [c.id for c in await claim(store, await a_worker(store))] == [open_to_all.id]


async def test_a_start_that_is_looked_up_says_nothing_of_its_claim(store: Any) -> None:
    """The reply was lost and time has passed: whether the claim still holds is for the worker to find out."""
    worker_id = await a_worker(store)
    one = an_instance(store, claimed_by=worker_id)
    await put(store, one)
    assert await store.look_up(None, [Turn(one.tenant_id, one.id, starts=[one])]) == [Outcome.COMMITTED]
