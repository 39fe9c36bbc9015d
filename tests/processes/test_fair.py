"""A tenant with a hundred times the backlog does not starve another."""

from __future__ import annotations

from tests.processes.fleet import Fleet
from tests.support.auditor import assert_sound


def test_a_small_tenant_does_not_wait_behind_a_big_one(fleet: Fleet) -> None:
    fleet.start("five", [{} for _ in range(2000)], tenant="big")
    fleet.start("five", [{} for _ in range(20)], tenant="small")
    fleet.worker(concurrency=40)
    fleet.wait_all_ended()
    [(when,)] = fleet.execute("select max(completed_at) from holdfast.instances where tenant_id = 'small'")
    [(before,)] = fleet.execute(
        "select count(*) from holdfast.instances where tenant_id = 'big' and completed_at <= %s", when
    )
    assert before <= 200, f"{before} of the big tenant's 2000 were finished before the last of the small one's 20"
    assert_sound(fleet.url)


def test_neither_does_one_that_floods_while_another_trickles(fleet: Fleet) -> None:
    fleet.start("five", [{} for _ in range(1500)], tenant="big")
    fleet.workers(2, concurrency=20)
    for n in range(10):
        fleet.start("five", [{}], tenant=f"small-{n}")
    fleet.wait_all_ended()
    [(worst,)] = fleet.execute(
        "select max((select count(*) from holdfast.instances b where b.tenant_id = 'big' "
        "and b.completed_at between s.created_at and s.completed_at)) "
        "from holdfast.instances s where s.tenant_id <> 'big'"
    )
    assert worst < 750, f"while one small tenant waited, {worst} of the big one's were finished"
    assert_sound(fleet.url)
