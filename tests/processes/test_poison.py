"""One instance that kills its worker again and again: it ends as failed with a dead letter, its neighbours finish."""

from __future__ import annotations

from tests.processes.fleet import Fleet
from tests.support.auditor import assert_sound
from tests.support.size import sized


def test_a_poison_instance_is_buried_and_its_neighbours_finish(fleet: Fleet) -> None:
    # Each runs alone for a while once it has gone down with the poison twice, so most of them are short.
    before, after, long = sized((40, 20, 10), (100, 60, 40))
    fleet.start("one", [{"pause": 0.01} for _ in range(before)])
    [poison] = fleet.start("poison", [{}])
    fleet.start("one", [{"pause": 0.01} for _ in range(after)])
    fleet.start("five", [{"pause": 0.01, "thread": n % 10 == 0} for n in range(long)])
    supervisor = fleet.supervise(concurrency=250)
    fleet.wait_all_ended()
    supervisor.stop()
    assert fleet.counts() == {"completed": before + after + long, "failed": 1}
    assert fleet.counts(definition_key="poison") == {"failed": 1}
    [(source, reason, id_)] = fleet.execute("select source, reason, instance_id from holdfast.dead_letters")
    assert source == "instance" and "its worker died" in reason and bytes(id_).hex() in poison
    assert 3 <= supervisor.deaths <= 6, f"{supervisor.deaths} workers died"
    bites = [run for run in fleet.runs() if run.step == "bite"]
    assert len(bites) == supervisor.deaths
    fleet.assert_in_order(again=supervisor.deaths)
    fleet.assert_never_two_at_once()
    assert_sound(fleet.url)


def test_a_poison_chart_is_buried_too(fleet: Fleet) -> None:
    fleet.start("chart-poison", [{}])
    fleet.start("one", [{"pause": 0.01} for _ in range(10)])
    supervisor = fleet.supervise(concurrency=50)
    fleet.wait_all_ended()
    supervisor.stop()
    assert fleet.counts() == {"completed": 10, "failed": 1}
    assert 3 <= supervisor.deaths <= 6, f"{supervisor.deaths} workers died"
    assert_sound(fleet.url)
