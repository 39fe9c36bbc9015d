"""A tenant with a hundred times the backlog does not starve another."""

from __future__ import annotations

import time
from typing import Any

from tests.processes.fleet import Fleet, Run
from tests.support.auditor import assert_sound
from tests.support.size import sized


def test_a_small_tenant_does_not_wait_behind_a_big_one(fleet: Fleet) -> None:
    big = sized(600, 2000)
    fleet.start("five", [{} for _ in range(big)], tenant="big")
    fleet.start("five", [{} for _ in range(20)], tenant="small")
    fleet.worker(concurrency=40)
    fleet.wait_all_ended()
    [(when,)] = fleet.execute("select max(completed_at) from holdfast.instances where tenant_id = 'small'")
    [(before,)] = fleet.execute(
        "select count(*) from holdfast.instances where tenant_id = 'big' and completed_at <= %s", when
    )
    assert before <= 200, f"{before} of the big tenant's {big} were finished before the last of the small one's 20"
    assert_sound(fleet.url)


def test_neither_does_one_that_floods_while_another_trickles(fleet: Fleet) -> None:
    """Counted in claims, not in time: whichever worker takes the small one took it with its first claim after it."""
    fleet.start("five", [{} for _ in range(sized(500, 1500))], tenant="big")
    fleet.workers(2, concurrency=20)

    async def trickle(hf: Any) -> dict[str, int]:
        handles = [(await hf.start("five", {}, tenant=f"small-{n}"), time.monotonic_ns()) for n in range(10)]
        return {handle.id: stored for handle, stored in handles}

    stored = fleet.do(trickle)
    fleet.wait_all_ended()
    first: dict[str, Run] = {}
    for run in fleet.runs():
        first.setdefault(run.instance, run)
    worst = 0
    for small, since in stored.items():
        mine = first[small]
        overtaking = [
            run
            for instance, run in first.items()
            if instance not in stored and run.pid == mine.pid and since < run.start < mine.start
        ]
        worst = max(worst, len(overtaking))
    assert worst <= 100, f"the worker that ran a small tenant's one began {worst} of the big one's before it"
    assert_sound(fleet.url)
