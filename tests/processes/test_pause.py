"""SIGSTOP: on PostgreSQL a worker silent beyond its lease is fenced and writes nothing but evidence when it wakes;
on SQLite it keeps its lock, nobody takes over, and it goes on."""

from __future__ import annotations

from tests.processes.fleet import Fleet
from tests.support.auditor import assert_sound

LEASE = 4.0


def test_on_postgres_a_stopped_worker_is_replaced_and_wakes_up_fenced(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    stopped = fleet.worker(concurrency=50, lease=LEASE)
    fleet.start("five", [{"pause": 0.3} for _ in range(40)])
    fleet.wait_until(lambda: len(fleet.runs()) > 40, "it is in the middle")
    stopped.stop()
    other = fleet.worker(concurrency=50, lease=LEASE)
    fleet.wait_all_ended()
    assert fleet.counts() == {"completed": 40}
    before = fleet.execute("select count(*), max(at) from holdfast.history")
    [(lost, by)] = fleet.execute(
        "select id, fenced_by from holdfast.workers where pid = %s and fenced_at is not null", stopped.pid
    )
    assert bytes(by).hex() == other.said("ready")[0]["worker"]
    stopped.wake()
    fleet.wait_until(
        lambda: stopped.said("memory")[-1]["worker"] != bytes(lost).hex(), "it goes on as a new incarnation"
    )
    assert fleet.execute("select count(*), max(at) from holdfast.history") == before, "the woken worker wrote history"
    other.end()
    started = fleet.start("five", [{} for _ in range(10)])
    fleet.wait_all_ended()  # by the new incarnation, which is the only one left
    assert {run.pid for run in fleet.runs() if run.instance in started} == {stopped.pid}
    assert_sound(fleet.url)


def test_on_postgres_a_woken_worker_cannot_finish_what_another_has_begun_again(postgres_fleet: Fleet) -> None:
    """The sharpest moment: the step is under way elsewhere, nothing new is in the history, and the old result comes."""
    fleet = postgres_fleet
    stopped = fleet.worker(concurrency=50, lease=LEASE)
    for kind in ("one", "chart-one"):
        fleet.start(kind, [{"pause": 2.9, "thread": n % 2 == 0} for n in range(10)])
    fleet.wait_until(lambda: len(fleet.runs()) == 20, "all are in flight")
    stopped.stop()
    fleet.worker(concurrency=50, lease=LEASE)
    fleet.wait_until(lambda: len(fleet.runs()) == 40, "all are in flight again")
    stopped.wake()  # its own three seconds are over: twenty results at once, under a fence that is no more
    fleet.wait_all_ended()
    assert fleet.counts() == {"completed": 20}
    done = (
        "select fence, count(*) from holdfast.history where type in ('STEP_COMPLETED', 'TASK_COMPLETED') group by fence"
    )
    assert fleet.execute(done) == [(2, 20)], "a fenced worker's result was taken"
    assert_sound(fleet.url)


def test_on_postgres_a_late_result_of_a_fenced_worker_is_kept_as_evidence_only(postgres_fleet: Fleet) -> None:
    fleet = postgres_fleet
    stopped = fleet.worker(concurrency=50, lease=LEASE)
    # Four will have come back when it wakes, before it knows that it was fenced; four in threads come back later.
    for kind in ("paid", "chart-paid"):
        fleet.start(kind, [{"pause": 7.0, "thread": True} if n < 2 else {"pause": 2.0} for n in range(4)])
    fleet.wait_until(lambda: len(fleet.provider_calls()) == 8, "all are being paid")
    stopped.stop()
    fleet.worker(concurrency=50, lease=LEASE)
    for_a_person = "select 1 from holdfast.instances where waiting_on like '%%a person: %%' and run_at is null"
    fleet.wait_until(lambda: len(fleet.execute(for_a_person)) == 8, "eight wait for a person")
    [(lost,)] = fleet.execute("select id from holdfast.workers where pid = %s", stopped.pid)
    stopped.wake()
    fleet.wait_until(
        lambda: len(fleet.execute("select 1 from holdfast.effect_observations where outcome = 'returned'")) >= 4,
        "the receipts of the sync handlers are kept",
    )
    fleet.wait_until(
        lambda: fleet.execute("select count(*) from holdfast.effect_observations") == [(8,)], "all are heard"
    )
    seen = fleet.execute("select distinct worker_id, fence from holdfast.effect_observations")
    assert seen == [(lost, 1)], "evidence names the incarnation that made the call"
    assert fleet.counts() == {"waiting": 8}, "evidence moved an instance by itself"
    assert len(fleet.provider_calls()) == 8
    assert_sound(fleet.url, provider_calls=fleet.provider_calls())


def test_on_sqlite_a_stopped_worker_keeps_its_instances_and_goes_on(sqlite_fleet: Fleet) -> None:
    fleet = sqlite_fleet
    stopped = fleet.worker(concurrency=50)
    mine = fleet.start("five", [{"pause": 0.5} for _ in range(30)])
    mine += fleet.start("paid", [{"pause": 0.5} for _ in range(5)])
    mine += fleet.start("chart-paid", [{"pause": 0.5} for _ in range(5)])
    fleet.wait_until(lambda: len(fleet.provider_calls()) == 10, "it is in the middle")
    stopped.stop_between_writes()
    fleet.worker(concurrency=50)
    yours = fleet.start("five", [{} for _ in range(30)])
    # The other one has looked for dead workers several times when it has slept and worked through all this.
    yours += fleet.start("sleeper", [{"seconds": 3.0} for _ in range(3)])
    fleet.wait_until(lambda: fleet.ended() == 33, "the other one works")
    assert fleet.execute("select count(*) from holdfast.workers where fenced_at is not null") == [(0,)]
    stopped.wake()
    fleet.wait_all_ended()
    assert fleet.counts() == {"completed": 73}
    fleet.assert_each_once()
    assert {run.pid for run in fleet.runs() if run.instance in mine} == {stopped.pid}
    assert_sound(fleet.url, provider_calls=fleet.provider_calls())
