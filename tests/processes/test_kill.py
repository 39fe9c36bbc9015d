"""kill -9: another worker takes over, the one step in flight may run again, an effect in mode manual never does."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from holdfast.engine.errors import EffectNotOpen
from tests.processes.fleet import Fleet
from tests.support.auditor import assert_sound
from tests.support.size import sized

COUNT = sized(60, 200)
EACH = sized(10, 40)
KILLS = sized(2, 3)


def test_another_worker_takes_over_after_kill_nine(fleet: Fleet) -> None:
    # Neither has room for all, so that each has some.
    first, _ = fleet.workers(2, concurrency=COUNT // 2)
    started = fleet.start("five", [{"pause": 0.4, "thread": n % 10 == 0} for n in range(COUNT)])
    fleet.wait_until(
        lambda: len([run for run in fleet.runs() if run.pid == first.pid]) > COUNT // 2, "the first is in the middle"
    )
    first.kill()
    fleet.wait_all_ended()
    assert fleet.counts() == {"completed": COUNT}
    fleet.assert_in_order(again=1)
    fleet.assert_never_two_at_once()
    repeats = len(fleet.runs()) - COUNT * 5
    assert repeats <= COUNT // 2, "more ran again than the killed worker can have had in flight"
    assert_sound(fleet.url, acknowledged=started)


def test_a_child_that_outlives_its_worker_does_not_keep_its_claims(fleet: Fleet) -> None:
    first = fleet.worker()
    started = fleet.start("forks", [{}])
    fleet.wait_until(lambda: list(fleet.logs.glob("child-*")), "the step has forked a child")
    [child] = (int(path.name.removeprefix("child-")) for path in fleet.logs.glob("child-*"))
    try:
        fleet.worker()
        first.kill()
        fleet.wait_all_ended()
        assert fleet.counts() == {"completed": 1}
        os.kill(child, 0)  # it was there all along
    finally:
        os.kill(child, signal.SIGKILL)
    assert_sound(fleet.url, acknowledged=started)


def test_workers_killed_one_after_the_other_lose_nothing(fleet: Fleet) -> None:
    started: list[str] = []
    for _ in range(KILLS):
        # Work for each of them, counted from before there is anybody to do it: a slow test sees it done, too.
        for kind in ("five", "saga", "family", "booked", "chart-one"):
            started += fleet.start(kind, [{"pause": 0.2, "thread": n % 5 == 0} for n in range(EACH)])
        started += fleet.start("sleeper", [{"seconds": 1.0} for _ in range(EACH)])
        seen = len(fleet.runs())
        worker = fleet.worker(concurrency=100)
        fleet.wait_until(lambda seen=seen: len(fleet.runs()) > seen + EACH, "work goes on")
        worker.kill()
    fleet.worker(concurrency=100)
    fleet.wait_all_ended()
    # A family is two instances.
    assert fleet.counts() == {"completed": 6 * EACH * KILLS, "failed": EACH * KILLS}
    fleet.assert_in_order(again=KILLS)
    fleet.assert_never_two_at_once()
    assert sorted(fleet.execute("select count(*) from bookings group by instance")) == [(1,)] * EACH * KILLS
    assert_sound(fleet.url, acknowledged=started)


def test_a_manual_effect_in_flight_at_the_kill_waits_for_a_person(fleet: Fleet) -> None:
    first = fleet.worker(concurrency=50)
    slow = fleet.start("paid", [{"pause": 30, "thread": n % 2 == 0, "bare": n < 2} for n in range(4)])
    slow += fleet.start("chart-paid", [{"pause": 30, "thread": n % 2 == 0} for n in range(4)])
    quick = [*fleet.start("paid", [{} for _ in range(10)]), *fleet.start("chart-paid", [{} for _ in range(10)])]
    fleet.wait_until(lambda: len(fleet.provider_calls()) == 28 and fleet.ended() == 20, "the slow ones are being paid")
    first.kill()
    fleet.worker(concurrency=50)
    for_a_person = "select 1 from holdfast.instances where waiting_on like '%%a person: %%' and run_at is null"
    fleet.wait_until(lambda: len(fleet.execute(for_a_person)) == 8, "eight wait for a person")
    assert len(fleet.provider_calls()) == 28, "the provider was called again"
    assert_sound(fleet.url, provider_calls=fleet.provider_calls(), acknowledged=[*slow, *quick])

    async def settle(hf: Any) -> None:
        unknown = await hf.effects.list()
        assert sorted(effect.instance_id for effect in unknown) == sorted(slow)
        with pytest.raises(EffectNotOpen):  # the call may still be on its way
            await hf.effects.resolve(unknown[0].id, "did_not_happen", actor="ann", reason="not in the bank's list")
        for effect in unknown[:4]:
            await hf.effects.resolve(effect.id, "happened", actor="ann", reason="in the list", result={"id": "p-1"})
        for effect in unknown[4:6]:
            await hf.effects.resolve(effect.id, "abort", actor="ann", reason="the customer gave up")
        for effect in unknown[6:]:
            await hf.effects.resolve(
                effect.id, "did_not_happen", actor="ann", reason="no trace of it", accept_double=True
            )

    # Started again they would take their thirty seconds once more: what counts is that the provider hears of them.
    fleet.do(settle)
    fleet.wait_until(lambda: fleet.ended() == 26, "six are settled")
    fleet.wait_until(lambda: len(fleet.provider_calls()) == 30, "two are started again, with the same keys")
    assert fleet.counts() == {"completed": 24, "failed": 2, "running": 2}, fleet.stuck()
    assert len(set(fleet.provider_calls())) == 28
    assert_sound(fleet.url, finished=False, provider_calls=fleet.provider_calls())


def test_a_keyed_effect_in_flight_at_the_kill_is_repeated_with_the_same_key(fleet: Fleet) -> None:
    first = fleet.worker(concurrency=50)
    fleet.start("keyed", [{"pause": 1.0} for _ in range(10)])
    fleet.wait_until(lambda: len(fleet.provider_calls()) == 10, "all are in flight")
    first.kill()
    fleet.worker(concurrency=50)
    fleet.wait_all_ended()
    calls = fleet.provider_calls()
    assert len(calls) == 20 and len(set(calls)) == 10
    assert_sound(fleet.url, provider_calls=calls)
