"""Claims: atomic, fair, counted, and only of what the worker knows."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from holdfast.engine.turns import Outcome
from holdfast.store.port import Head
from tests.store.support import PLACES, a_turn, a_worker, an_instance, claim, ending, parking, put, row_of


async def test_two_workers_never_claim_the_same_instance(store: Any) -> None:
    one, two = await a_worker(store), await a_worker(store)
    await put(store, *[an_instance(store) for _ in range(60)])
    taken: list[bytes] = []
    while True:
        first, second = await asyncio.gather(claim(store, one, 7), claim(store, two, 7))
        if not first and not second:
            break
        taken += [c.id for c in [*first, *second]]
    assert len(taken) == len(set(taken)) == 60


async def test_a_worker_claims_only_what_it_has_registered(store: Any) -> None:
    worker_id = await a_worker(store)
    await put(store, an_instance(store, key="foreign"), an_instance(store, version=2), an_instance(store))
    [found] = await claim(store, worker_id)
    assert (found.definition_key, found.definition_version) == ("work", 1)


async def test_nothing_is_claimed_before_it_is_due(store: Any) -> None:
    worker_id = await a_worker(store)
    later = store.now() + 1_000
    await put(store, an_instance(store, run_at=later))
    assert await store.claim(worker_id, PLACES, "default", 10, alone=False) == ([], later)
    assert await store.next_due(PLACES, "default") == later
    store.clock.micros = later - 1
    assert await claim(store, worker_id) == []
    store.clock.micros = later
    assert len(await claim(store, worker_id)) == 1


async def test_a_tenant_with_a_hundredfold_backlog_does_not_starve_another(store: Any) -> None:
    worker_id = await a_worker(store)
    await put(store, *[an_instance(store, tenant="big") for _ in range(1000)])
    store.clock.micros += 1_000_000
    await put(store, *[an_instance(store, tenant="small") for _ in range(10)])
    found = Counter(c.tenant_id for c in await claim(store, worker_id, 20))
    assert found == {"big": 10, "small": 10}


async def test_the_oldest_of_a_tenant_comes_first(store: Any) -> None:
    worker_id = await a_worker(store)
    order = []
    for _ in range(5):
        one = an_instance(store)
        await put(store, one)
        order.append(one.id)
        store.clock.micros += 10
    assert {c.id for c in await claim(store, worker_id, 3)} == set(order[:3])


async def test_queues_are_apart(store: Any) -> None:
    worker_id = await a_worker(store)
    await put(store, an_instance(store, queue="slow"))
    assert await claim(store, worker_id) == []
    found, _ = await store.claim(worker_id, PLACES, "slow", 10, alone=False)
    assert len(found) == 1


async def test_a_fenced_worker_claims_nothing(store: Any) -> None:
    worker_id, other = await a_worker(store), await a_worker(store)
    await put(store, an_instance(store))
    await store.release_worker(worker_id, other, stopped=False)
    assert await claim(store, worker_id) == []
    assert len(await claim(store, other)) == 1


async def test_attempts_are_counted_in_the_claim(store: Any) -> None:
    """A crash leaves no time to count afterwards."""
    by = await a_worker(store)
    await put(store, an_instance(store))
    for crash in range(1, 6):
        worker_id = await a_worker(store)
        [one] = await claim(store, worker_id, alone=crash > 2)
        assert (one.attempts, one.fence) == (crash, crash)
        assert await store.release_worker(worker_id, by, stopped=False) == 1
    assert (await row_of(store, one))["attempts"] == 5


async def test_only_a_death_is_counted_and_a_clean_stop_forgives_none(store: Any) -> None:
    by = await a_worker(store)
    await put(store, an_instance(store))
    for crashed, counted in ((False, 0), (True, 1), (False, 1), (True, 2), (False, 2)):
        worker_id = await a_worker(store)
        [one] = await claim(store, worker_id, alone=counted == 2 and not crashed)
        await store.release_worker(worker_id, by, stopped=not crashed)
        assert (await row_of(store, one))["attempts"] == counted


async def test_a_committed_turn_forgives_earlier_crashes(store: Any) -> None:
    by = await a_worker(store)
    await put(store, an_instance(store))
    worker_id = await a_worker(store)
    [one] = await claim(store, worker_id)
    await store.release_worker(worker_id, by, stopped=False)
    worker_id = await a_worker(store)
    [one] = await claim(store, worker_id)
    assert one.attempts == 2
    assert await store.commit(worker_id, [a_turn(store, one)]) == [Outcome.COMMITTED]
    await store.release_worker(worker_id, by, stopped=False)
    assert (await row_of(store, one))["attempts"] == 0


async def test_what_took_its_worker_down_twice_is_claimed_alone(store: Any) -> None:
    by = await a_worker(store)
    await put(store, an_instance(store))
    for _ in range(2):
        worker_id = await a_worker(store)
        assert len(await claim(store, worker_id)) == 1
        await store.release_worker(worker_id, by, stopped=False)
    await put(store, an_instance(store))
    together = await claim(store, by)
    assert [c.attempts for c in together] == [1]
    suspects = await store.fetch("suspects", queue="default", now=store.now())
    assert [tuple(row) for row in suspects] == [("acme", "work", 1)]
    alone = await claim(store, by, 10, alone=True)
    assert [c.attempts for c in alone] == [3]


async def test_a_finished_instance_is_never_claimed_again(store: Any) -> None:
    worker_id = await a_worker(store)
    await put(store, an_instance(store))
    [one] = await claim(store, worker_id)
    await store.commit(worker_id, [ending(store, one, a_turn(store, one))])
    store.clock.micros += 10**12
    assert await claim(store, worker_id) == []


async def test_of_a_history_that_ends_where_it_was_left_only_the_last_row_is_read(store: Any) -> None:
    worker_id = await a_worker(store)

    async def again(tenant: str = "acme", fence: int = 0, seq: int = 0, digest: bytes | None = None) -> Any:
        """What the next claim reads if the head that was left differs from the true one by this much."""
        await put(store, an_instance(store))
        [one] = await claim(store, worker_id)
        turn = parking(store, one, a_turn(store, one, count=5), run_at=store.now())
        assert await store.commit(worker_id, [turn]) == [Outcome.COMMITTED]
        last = turn.history[-1]
        head = Head(tenant, one.fence + fence, last[2] + seq, digest or last[9])
        [[found], _] = await store.claim(worker_id, PLACES, "default", 10, alone=False, kept={one.id: head})
        return found.kept, [row.seq for row in found.history]

    assert await again() == (True, [5])
    whole = (False, [1, 2, 3, 4, 5])
    assert await again(fence=-1) == whole, "somebody had it since"
    assert await again(seq=-1) == whole
    assert await again(digest=b"x" * 32) == whole
    assert await again(tenant="other") == whole
