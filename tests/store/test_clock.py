"""Clocks are set: time goes on, the dead are found, the living are let live, and events keep the order of arrival."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.engine.turns import Outcome
from holdfast.store import clock as clock_module
from holdfast.store import postgres as postgres_module
from holdfast.store.clock import APART, Clock
from holdfast.store.sqlite import SqliteStore
from holdfast.worker import liveness
from holdfast.worker.liveness import SessionLiveness
from tests.store.support import a_worker, an_event, an_instance, claim, put

SECOND = 1_000_000
HOUR = 3600 * SECOND


class Machine:
    """A machine's two clocks: the one that people set, and the one that only goes on."""

    def __init__(self) -> None:
        self.wall, self.monotonic = 1_800_000_000 * SECOND, 5 * SECOND

    def time_ns(self) -> int:
        return self.wall * 1000

    def monotonic_ns(self) -> int:
        return self.monotonic * 1000

    def go_on(self, micros: int) -> None:
        self.wall += micros
        self.monotonic += micros


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(clock_module, "time", found)
    return found


def test_time_goes_on_when_the_clock_is_set_back_and_comes_back_to_it(machine: Machine) -> None:
    clock = Clock()
    before = clock.now()
    machine.wall -= HOUR
    assert clock.now() == before
    for _ in range(100):
        machine.go_on(SECOND)
        now = clock.now()
        assert before + SECOND * 9 // 10 <= now <= before + SECOND, "it neither stands still nor is early"
        before = now
    machine.go_on(10 * HOUR)
    assert clock.now() == machine.wall


def test_a_clock_that_is_set_forward_is_followed_at_once(machine: Machine) -> None:
    clock = Clock()
    clock.now()
    machine.wall += HOUR
    assert clock.now() == machine.wall


def test_a_process_that_starts_after_the_step_takes_the_time_of_those_before_it(machine: Machine) -> None:
    written = Clock().now()
    machine.wall -= HOUR
    later = Clock()
    later.not_before(written)
    assert written <= later.now() < written + APART
    machine.go_on(7)
    other = Clock()
    other.not_before(written)
    assert other.now() != later.now(), "each has microseconds of its own"
    machine.wall -= 400 * 24 * HOUR
    wrong = Clock()
    wrong.not_before(written)
    assert wrong.now() == machine.wall, "a date that was a year off is not kept for a year"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # PostgreSQL is asked for its own
async def test_a_sqlite_file_hands_its_time_on(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.store.support import a_turn

    worker_id, one = await a_worker(store), an_instance(store)
    await put(store, one)
    [held] = await claim(store, worker_id)
    written = store.now()
    await store.commit(worker_id, [a_turn(store, held)])
    real = time.time_ns
    monkeypatch.setattr("holdfast.store.clock.time.time_ns", lambda: real() - HOUR * 1000)
    other = SqliteStore(store.url)
    await other.open(migrate=False)
    try:
        assert other.now() >= written
    finally:
        await other.close()


async def test_events_are_taken_in_the_order_in_which_they_were_acknowledged(store: Any) -> None:
    one = an_instance(store)
    await put(store, one)
    now = store.now()
    guesses = [now + 5 * SECOND, now, now + 4 * SECOND, now - HOUR]  # of senders whose clocks differ
    for number, sent_at in enumerate(guesses):
        turn = an_event(store, one.tenant_id, one.id, f"e{9 - number}", sent_at=sent_at, name=f"n{number % 2}")
        assert await store.commit(None, [turn]) == [Outcome.COMMITTED]
    together = [
        an_event(store, one.tenant_id, one.id, event_id, sent_at=now - n) for n, event_id in enumerate(("b", "a"))
    ]
    assert await store.commit(None, together) == [Outcome.COMMITTED] * 2
    _, found = await store.pending_events(one.tenant_id, one.id)
    assert [event.id for event in found] == ["e9", "e8", "e7", "e6", "b", "a"]


async def test_the_moment_of_an_event_in_its_turn_is_its_senders(store: Any) -> None:
    one = an_instance(store)
    await put(store, one)
    now = store.now()
    turns = [an_event(store, one.tenant_id, one.id, f"e{n}", sent_at=now + n) for n in range(3)]
    assert await store.commit(None, turns) == [Outcome.COMMITTED] * 3
    _, found = await store.pending_events(one.tenant_id, one.id)
    assert [event.sent_at for event in found] == [now, now + 1, now + 2]
    assert await store.look_up(None, turns) == [Outcome.COMMITTED] * 3


@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # the machine's own is looked at whenever it is asked
async def test_a_process_without_a_worker_reads_the_databases_clock_again(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.clock = None
    await store.synchronise_clock()
    at, monotonic = store._clock
    store._clock = (at + 600 * SECOND, monotonic)  # as read before the database's clock was set back
    await store.look_at_clock()
    assert store.now() > at + 599 * SECOND, "it is believed for a while"
    monkeypatch.setattr(postgres_module, "CLOCK_SECONDS", 0.0)
    await store.fetch("ping")
    assert abs(store.now() - at) < 300 * SECOND


# -- who lives


class Bench:
    """A judge, with a clock of its own, and workers that have heartbeats in a database whose clock is set."""

    session_locks = True

    def __init__(self) -> None:
        self.workers: dict[bytes, int] = {}
        self.free: set[str] = set()
        self.fenced: list[bytes] = []
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def monotonic_ns(self) -> int:
        return round(self.seconds * 1e9)

    async def others(self, connection: Any, worker_id: bytes) -> list[tuple[bytes, int, str]]:
        return [(id_, at, str(id_[0])) for id_, at in self.workers.items()]

    async def release_on(self, connection: Any, worker_id: bytes, by: bytes, *, stopped: bool) -> int:
        self.fenced.append(worker_id)
        del self.workers[worker_id]
        return 0

    async def fetchval(self, sql: str, word: int) -> bool:
        return str(word) in self.free

    async def execute(self, sql: str, word: int) -> None: ...


DEAD, ALIVE = b"\x01" * 16, b"\x02" * 16


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    found = Bench()
    monkeypatch.setattr(liveness, "time", found)
    return found


async def judged(bench: Bench, steps: list[int], *, beats: set[bytes]) -> list[bytes]:
    """Whom a judge fences who looks once a second while the database's clock says `steps`."""
    judge = SessionLiveness(bench, b"\x09" * 16)  # type: ignore[arg-type]
    for now in steps:
        bench.workers.update({id_: now for id_ in beats if id_ in bench.workers})
        await judge._fence_the_dead(bench, now)
        bench.seconds += 1.0
    return bench.fenced


async def test_a_dead_worker_is_found_though_the_clock_was_set_back(bench: Bench) -> None:
    now = 1_000_000 * SECOND
    bench.workers = {DEAD: now, ALIVE: now}
    bench.free = {"1"}
    back = now - 600 * SECOND
    assert await judged(bench, [back + n * SECOND for n in range(5)], beats={ALIVE}) == [DEAD]


async def test_one_whose_lock_is_held_is_dead_after_a_lease_whatever_the_clock_says(bench: Bench) -> None:
    now = 1_000_000 * SECOND
    bench.workers = {DEAD: now, ALIVE: now}
    lease = int(liveness.LEASE_SECONDS)
    back = [now - (600 - n) * SECOND for n in range(lease + 2)]
    assert await judged(bench, back[:lease], beats={ALIVE}) == []
    assert await judged(bench, back, beats={ALIVE}) == [DEAD]


async def test_a_clock_that_jumps_forward_fences_nobody_who_renews(bench: Bench) -> None:
    now = 1_000_000 * SECOND
    bench.workers = {DEAD: now, ALIVE: now}
    jumped = now + 3600 * SECOND
    # The jump comes before the next beat of either: for a moment both look an hour old.
    judge = SessionLiveness(bench, b"\x09" * 16)  # type: ignore[arg-type]
    await judge._fence_the_dead(bench, jumped)
    for n in range(1, 6):
        bench.seconds += 1.0
        bench.workers[ALIVE] = jumped + n * SECOND
        await judge._fence_the_dead(bench, jumped + n * SECOND)
    assert bench.fenced == [DEAD]
