"""kill -9: another worker takes over, the one step in flight may run again, an effect in mode manual never does."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.errors import EffectNotOpen
from tests.processes.fleet import Fleet, wait_until
from tests.support.auditor import assert_sound


def test_another_worker_takes_over_after_kill_nine(fleet: Fleet) -> None:
    first, _ = fleet.workers(2, concurrency=100)
    started = fleet.start("five", [{"pause": 0.1, "thread": n % 10 == 0} for n in range(150)])
    wait_until(lambda: len([run for run in fleet.runs() if run.pid == first.pid]) > 100, "the first is in the middle")
    first.kill()
    fleet.wait_all_ended()
    assert fleet.counts() == {"completed": 150}
    fleet.assert_in_order(again=1)
    fleet.assert_never_two_at_once()
    repeats = len(fleet.runs()) - 150 * 5
    assert repeats <= 100, "more ran again than the killed worker can have had in flight"
    assert_sound(fleet.url, acknowledged=started)


def test_workers_killed_one_after_the_other_lose_nothing(fleet: Fleet) -> None:
    fleet.worker(concurrency=100)
    started = [
        *fleet.start("five", [{"pause": 0.05} for _ in range(100)]),
        *fleet.start("saga", [{"pause": 0.05} for _ in range(40)]),
        *fleet.start("family", [{"pause": 0.05} for _ in range(40)]),
        *fleet.start("booked", [{"pause": 0.05} for _ in range(40)]),
        *fleet.start("sleeper", [{"seconds": 1.0} for _ in range(40)]),
        *fleet.start("chart-one", [{"pause": 0.05, "thread": n % 5 == 0} for n in range(40)]),
    ]
    kills = 3
    for _ in range(kills):
        seen = len(fleet.runs())
        wait_until(lambda seen=seen: len(fleet.runs()) > seen + 40, "work goes on")
        fleet.processes[-1].kill()
        fleet.worker(concurrency=100)
    fleet.wait_all_ended()
    assert fleet.counts() == {"completed": 300, "failed": 40}
    fleet.assert_in_order(again=kills)
    fleet.assert_never_two_at_once()
    assert sorted(fleet.execute("select count(*) from bookings group by instance")) == [(1,)] * 40
    assert_sound(fleet.url, acknowledged=started)


def test_a_manual_effect_in_flight_at_the_kill_waits_for_a_person(fleet: Fleet) -> None:
    first = fleet.worker(concurrency=50)
    slow = fleet.start("paid", [{"pause": 30, "thread": n % 2 == 0, "bare": n < 2} for n in range(4)])
    slow += fleet.start("chart-paid", [{"pause": 30, "thread": n % 2 == 0} for n in range(4)])
    quick = [*fleet.start("paid", [{} for _ in range(10)]), *fleet.start("chart-paid", [{} for _ in range(10)])]
    wait_until(lambda: len(fleet.provider_calls()) == 28 and fleet.ended() == 20, "the slow ones are being paid")
    first.kill()
    fleet.worker(concurrency=50)
    for_a_person = "select 1 from holdfast.instances where waiting_on like '%%a person: %%' and run_at is null"
    wait_until(lambda: len(fleet.execute(for_a_person)) == 8, lambda: f"eight wait for a person: {fleet.stuck()}")
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
    wait_until(lambda: fleet.ended() == 26, lambda: f"six are settled: {fleet.counts()}")
    wait_until(lambda: len(fleet.provider_calls()) == 30, "two are started again, with the same keys")
    assert fleet.counts() == {"completed": 24, "failed": 2, "running": 2}, fleet.stuck()
    assert len(set(fleet.provider_calls())) == 28
    assert_sound(fleet.url, finished=False, provider_calls=fleet.provider_calls())


def test_a_keyed_effect_in_flight_at_the_kill_is_repeated_with_the_same_key(fleet: Fleet) -> None:
    first = fleet.worker(concurrency=50)
    fleet.start("keyed", [{"pause": 1.0} for _ in range(10)])
    wait_until(lambda: len(fleet.provider_calls()) == 10, "all are in flight")
    first.kill()
    fleet.worker(concurrency=50)
    fleet.wait_all_ended()
    calls = fleet.provider_calls()
    assert len(calls) == 20 and len(set(calls)) == 10
    assert_sound(fleet.url, provider_calls=calls)
