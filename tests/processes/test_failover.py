"""A standby takes the place of PostgreSQL under load: with everything, or without the last commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import Holdfast
from holdfast.app import quarantine
from tests.processes.conftest import closing, scale
from tests.processes.fleet import Fleet, wait_until
from tests.processes.proxy import Proxy
from tests.support.auditor import assert_sound, audit
from tests.support.postgres import Cluster, Standby

COUNT = scale("FAILOVER", 20, 100)


class Pair(NamedTuple):
    primary: Cluster
    standby: Standby
    proxy: Proxy
    fleet: Fleet

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()
        self.proxy.lead_to(self.standby.port)
        self.proxy.cut_all()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Cluster(durable=False) as primary, Standby(primary) as standby:
        wait_until(standby.follows, "the standby follows")
        with Proxy(primary.dsn(primary.create_database())) as proxy:
            for fleet in closing(Fleet(proxy.url, tmp_path)):
                yield Pair(primary, standby, proxy, fleet)


def test_a_synchronous_failover_loses_nothing_and_does_nothing_twice(pair: Pair) -> None:
    fleet = pair.fleet
    with pair.primary._admin() as admin:
        admin.execute("alter system set synchronous_standby_names = 'standby'")
        admin.execute("select pg_reload_conf()")
    synchronous = "select count(*) from pg_stat_replication where sync_state = 'sync'"
    wait_until(lambda: fleet.execute(synchronous) == [(1,)], "commits wait for the standby")
    fleet.workers(2, concurrency=COUNT // 4)  # several rounds: some have ended, some run, some wait
    started = fleet.start("five", [{"pause": 0.1} for _ in range(COUNT)])
    started += fleet.start("paid", [{"pause": 0.2, "thread": n % 2 == 0} for n in range(COUNT)])
    fleet.wait_until(lambda: len(set(fleet.provider_calls())) >= COUNT // 4, "it is in the middle of it")
    pair.fail_over()
    fleet.wait_all_ended()
    assert fleet.counts() == {"completed": len(started)}
    paid = fleet.provider_calls()
    assert len(paid) == len(set(paid)) == COUNT, "a payment was made twice, or not at all"
    assert fleet.execute("select count(*) from holdfast.installation where quarantined_at is not null") == [(0,)]
    assert_sound(fleet.url, acknowledged=started)


def test_an_asynchronous_failover_holds_the_database_back_and_pays_nothing_again(pair: Pair) -> None:
    fleet = pair.fleet
    workers = fleet.workers(2, concurrency=COUNT)
    fleet.start("later", [{"seconds": 8} for _ in range(COUNT)])
    asleep = "select count(*) from holdfast.instances where status = 'waiting'"
    fleet.wait_until(lambda: fleet.execute(asleep) == [(COUNT,)], "all sleep")
    pair.standby.fall_behind()
    wait_until(lambda: not pair.standby.follows(), "the standby is on its own")
    fleet.wait_until(lambda: fleet.ended() == COUNT, "all have paid")
    assert len(set(fleet.provider_calls())) == COUNT

    pair.fail_over()  # to a state in which all of them sleep, and are due
    parked = "select count(*) from holdfast.instances where waiting_on like 'parked: its history has a hole: %'"
    fleet.wait_until(lambda: fleet.execute(parked) == [(COUNT,)], "whoever lost rows has stopped their instances")
    [(held, reason)] = fleet.execute("select quarantined_at is not null, reason from holdfast.installation")
    assert held and "is committed, and it is gone" in reason
    assert all(worker.alive for worker in workers)

    async def lift(hf: Holdfast) -> None:
        await quarantine.lift(hf.service, reason="compared with the bank", actor="ann")

    fleet.do(lift)
    [after] = fleet.start("paid", [{}])  # the neighbours go on
    fleet.wait_until(lambda: fleet.ended() == 1, "what came after the lift is done")
    assert fleet.execute(parked) == [(COUNT,)]
    paid = fleet.provider_calls()
    assert len(paid) == len(set(paid)) == COUNT + 1, "a payment was made twice"
    assert_sound(fleet.url, acknowledged=[after])


def test_an_asynchronous_failover_in_the_middle_of_the_work_leaves_what_is_in_doubt_to_people(pair: Pair) -> None:
    """Of some payments the standby knows all, of some that they were begun, of some nothing; some are under way."""
    fleet = pair.fleet
    fleet.workers(2, concurrency=COUNT // 4)
    started = fleet.start("paid", [{"pause": 1.0, "thread": n % 2 == 0} for n in range(COUNT)])
    fleet.wait_until(lambda: fleet.ended() >= COUNT // 5, "some are done")
    called = len(fleet.provider_calls())
    fleet.wait_until(lambda: len(fleet.provider_calls()) > called, "more have just begun")
    pair.standby.fall_behind()
    wait_until(lambda: not pair.standby.follows(), "the standby is on its own")
    known = fleet.ended()
    fleet.wait_until(lambda: fleet.ended() >= known + COUNT // 4, "more are done")
    pair.fail_over()
    held = "select quarantined_at is not null from holdfast.installation"
    fleet.wait_until(lambda: fleet.execute(held) == [(True,)], "the database is held back")

    async def lift(hf: Holdfast) -> None:
        """Each worker misses rows of its own and says so at its next look: who lifts within a moment lifts twice."""
        await quarantine.lift(hf.service, reason="compared with the bank", actor="ann")

    async def look_after(hf: Holdfast) -> None:
        """A person goes on with those whose payment is on record as begun, and gives up those of which nothing is."""
        for view in await hf.instances(status="waiting", limit=500):
            if str(view.waiting_on).startswith("parked: its history has a hole: "):
                begun = any(entry.type == "EFFECT_STARTED" for entry in await hf.instance(view.id).history())
                said = hf.instance(view.id)
                await (said.resume("compared", actor="ann") if begun else said.cancel("compared", actor="ann"))

    async def settle(hf: Holdfast) -> None:
        for effect in await hf.effects.list(limit=500):
            receipt = {"id": f"prov-{effect.idempotency_key[:8]}"}
            await hf.effects.resolve(effect.id, "happened", result=receipt, reason="the bank has it", actor="ann")

    def rests() -> bool:
        if fleet.execute(held) == [(True,)]:
            fleet.do(lift)
        at_rest = "locked_by is null and (completed_at is not null or (run_at is null and status <> 'pending'))"
        return fleet.execute(f"select count(*) from holdfast.instances where {at_rest}") == [(COUNT,)]

    fleet.wait_until(rests, "everything is done, or waits for a person")
    lost = fleet.execute(
        "select count(*) from holdfast.instances where waiting_on like 'parked: its history has a hole%'"
    )
    assert lost[0][0] >= COUNT // 4, "what was done behind the standby's back is gone"
    fleet.do(look_after)
    fleet.wait_until(rests, "whatever goes on has come to the desk")
    asked = fleet.execute("select count(*) from holdfast.effects where state = 'outcome_unknown'")
    assert asked[0][0] > 0, "some were on record as begun alone"
    fleet.do(settle)
    fleet.wait_all_ended()
    assert set(fleet.counts()) <= {"completed", "cancelled"}
    paid = fleet.provider_calls()
    assert len(paid) == len(set(paid)), "a payment was made twice"
    evidence = "evidence about an effect of another instance or tenant"  # whose own row is among those that are lost
    assert [v for v in audit(fleet.url, acknowledged=started) if evidence not in str(v)] == []
