"""Several worker processes on one database: nothing runs twice, nothing runs at the same time, nothing is lost."""

from __future__ import annotations

from tests.processes.app import STEPS
from tests.processes.fleet import Fleet
from tests.support.auditor import assert_sound
from tests.support.size import sized

COUNT = sized(100, 200)


def test_two_processes_share_the_work_and_each_step_runs_once(fleet: Fleet) -> None:
    # One process alone would need four rounds of a second each: the other polls at least once meanwhile.
    fleet.workers(2, concurrency=COUNT // 4)
    started = fleet.start("five", [{"thread": n % 4 == 0, "pause": 0.2} for n in range(COUNT)])
    fleet.wait_all_ended()
    assert fleet.counts() == {"completed": COUNT}
    runs = fleet.runs()
    assert len(runs) == COUNT * STEPS
    assert len({run.pid for run in runs}) == 2, "only one process took part"
    fleet.assert_each_once()
    fleet.assert_never_two_at_once()
    assert_sound(fleet.url, acknowledged=started)


def test_a_clean_exit_hands_everything_over(fleet: Fleet) -> None:
    first, _ = fleet.workers(2, concurrency=100)
    started = fleet.start("five", [{"pause": 0.05} for _ in range(COUNT)])
    assert first.end() == 0
    fleet.wait_all_ended()
    fleet.assert_each_once()
    fleet.assert_never_two_at_once()
    assert_sound(fleet.url, acknowledged=started)
