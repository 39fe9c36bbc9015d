"""The interpreter's own rules, beside what the comparison with XState shows: staleness, faults, limits, snapshots."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine import codec
from holdfast.engine.charts import document
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.configurations import SnapshotMismatch
from holdfast.engine.charts.interpreter import MICROSTEPS_LIMIT, RAISED_LIMIT, Answer, advance, start
from holdfast.engine.charts.nodes import Chart, StepFault
from holdfast.engine.charts.snapshots import due, snapshot_from, snapshot_text

AGAIN: dict[str, Any] = {
    "id": "c",
    "initial": "a",
    "states": {
        "a": {
            "invoke": {"id": "kid", "src": "busy", "onDone": "b"},
            "after": {"1000": "b"},
            "on": {"again": {"target": "a", "reenter": True}},
        },
        "b": {"on": {"back": "a"}},
    },
}


def compiled(spec: dict[str, Any], version: int = 1) -> Chart:
    return compile_chart(document.reread(spec), version=version)


def value(turn: Any) -> Any:
    return codec.decode(bytes(turn.snapshot.value))


def test_an_answer_to_an_earlier_visit_is_stale_and_changes_nothing() -> None:
    chart = compiled(AGAIN)
    first = start(chart, None, 0)
    old = first.snapshot.children["kid"].visit
    again = advance(chart, first.snapshot, {"type": "again"}, 1)
    late = advance(chart, again.snapshot, {"type": "xstate.done.actor.kid"}, 2, Answer("child", "kid", old))
    assert late.stale and late.snapshot is again.snapshot and late.effects == []
    new = again.snapshot.children["kid"].visit
    assert (
        value(advance(chart, again.snapshot, {"type": "xstate.done.actor.kid"}, 2, Answer("child", "kid", new))) == "b"
    )


def test_a_timer_of_a_state_left_or_entered_again_is_stale() -> None:
    chart = compiled(AGAIN)
    first = start(chart, None, 0)
    [(id_, timer)] = first.snapshot.timers.items()
    again = advance(chart, first.snapshot, {"type": "again"}, 500)
    assert again.snapshot.timers[id_].due == 500 + 1_000_000
    assert advance(chart, again.snapshot, timer.event, 2_000_000, Answer("timer", id_, timer.visit)).stale
    done = advance(chart, first.snapshot, {"type": "xstate.done.actor.kid"}, 1, Answer("child", "kid", 1))
    assert done.snapshot.timers == {}
    assert advance(chart, done.snapshot, timer.event, 2_000_000, Answer("timer", id_, timer.visit)).stale


def test_a_child_answers_once() -> None:
    spec = {
        "id": "c", "initial": "a",
        "states": {"a": {"invoke": {"id": "kid", "src": "busy", "onDone": {"actions": {"type": "log", "params": 1}}}}},
    }  # fmt: skip
    chart = compiled(spec)
    first = start(chart, None, 0)
    answer = Answer("child", "kid", first.snapshot.children["kid"].visit)
    once = advance(chart, first.snapshot, {"type": "xstate.done.actor.kid"}, 1, answer)
    assert [effect.type for effect in once.effects] == ["log"]
    assert advance(chart, once.snapshot, {"type": "xstate.done.actor.kid"}, 2, answer).stale


def test_of_two_timers_due_at_once_the_one_started_first_fires_first() -> None:
    spec = {"id": "c", "initial": "a", "states": {"a": {"after": {"20": "b", "10": "b", "PT0.01S": "b"}}, "b": {}}}
    found = due(start(compiled(spec), None, 0).snapshot)
    assert found is not None and found[0] == "xstate.after.10.c.a"


def test_a_guard_that_fails_refuses_the_step_and_leaves_the_snapshot_as_it_was() -> None:
    spec = {
        "id": "c", "context": {"n": 1}, "initial": "a",
        "states": {"a": {"on": {"go": [
            {"guard": {"@expr": "event.missing > 1"}, "target": "b"}, {"target": "b"}]}}, "b": {}},
    }  # fmt: skip
    chart = compiled(spec)
    first = start(chart, None, 0)
    before = snapshot_text(first.snapshot)
    with pytest.raises(StepFault, match="missing") as fault:
        advance(chart, first.snapshot, {"type": "go"}, 1)
    assert fault.value.path == "/states/a/on/go/0/guard"
    assert snapshot_text(first.snapshot) == before


def test_a_guard_that_gives_no_truth_value_is_a_fault_not_false() -> None:
    spec = {"id": "c", "initial": "a", "states": {
        "a": {"on": {"go": {"guard": {"@expr": "event.v"}, "target": "b"}}}, "b": {}}}  # fmt: skip
    chart = compiled(spec)
    with pytest.raises(StepFault, match="expected true or false"):
        advance(chart, start(chart, None, 0).snapshot, {"type": "go", "v": 0}, 1)


def test_deciding_the_same_turn_twice_asks_for_the_same() -> None:
    chart = compiled(AGAIN)
    first = start(chart, {"x": 1}, 7)
    assert start(chart, {"x": 1}, 7) == first
    one, two = (advance(chart, first.snapshot, {"type": "again"}, 9) for _ in range(2))
    assert (one.effects, snapshot_text(one.snapshot)) == (two.effects, snapshot_text(two.snapshot))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": "nowhere"}, "does not have"),
        ({"value": {"a": "x"}}, "does not have"),
        ({"historyValue": {"c.h": ["c.a"]}}, "remembers"),
        ({"timers": {"xstate.after.5.c.a": {"due": 1, "event": {"type": "x"}, "visit": 1}}}, "waits for"),
        ({"children": {"stranger": {"visit": 1}}}, "waits for"),
        ({"definition": {"id": "c", "version": 2, "hash": "0"}}, "was made by version 2"),
        ({"context": 5}, "cannot be read"),
    ],
)
def test_a_snapshot_that_names_what_its_version_does_not_have_is_refused(change: dict[str, Any], words: str) -> None:
    chart = compiled(AGAIN)
    good = codec.decode(snapshot_text(start(chart, None, 0).snapshot))
    snapshot_from(chart, codec.encode(good))
    with pytest.raises(SnapshotMismatch, match=words):
        snapshot_from(chart, codec.encode(good | change))


def test_a_step_that_asks_for_too_much_is_refused() -> None:
    log = {"type": "log", "params": 1}
    states = {
        "a": {"on": {"go": "b"}}, "b": {"entry": [log] * 900, "always": "d"}, "d": {"entry": [log] * 900},
    }  # fmt: skip
    spec = {"id": "c", "initial": "a", "states": states}
    chart = compiled(spec)
    with pytest.raises(StepFault, match="more than 1,000 effects"):
        advance(chart, start(chart, None, 0).snapshot, {"type": "go"}, 1)


def counting(to: int) -> dict[str, Any]:
    """Goes round until its context says so: `to` transitions without an event, after the one that begins it."""
    turn = {
        "guard": {"@expr": f"context.n < {to}"}, "reenter": True, "target": "busy",
        "actions": {"type": "assign", "assign": {"n": {"@expr": "context.n + 1"}}},
    }  # fmt: skip
    return {
        "id": "c", "initial": "idle", "context": {"n": 0},
        "states": {"idle": {"on": {"go": "busy"}}, "busy": {"always": [turn]}},
    }  # fmt: skip


def test_a_loop_over_as_many_items_as_the_limit_allows_comes_to_rest() -> None:
    chart = compiled(counting(MICROSTEPS_LIMIT - 1))
    turn = advance(chart, start(chart, None, 0).snapshot, {"type": "go"}, 1)
    assert (value(turn), turn.snapshot.context["n"], len(turn.taken)) == ("busy", 999, 1_000)


def test_a_loop_over_one_item_more_is_refused_with_what_went_round() -> None:
    chart = compiled(counting(MICROSTEPS_LIMIT))
    with pytest.raises(StepFault, match="no rest after 1,000 microsteps") as refused:
        advance(chart, start(chart, None, 0).snapshot, {"type": "go"}, 1)
    assert "#c.busy --always--> #c.busy" in str(refused.value.cycle)


def raising(count: int, rounds: int = 1) -> dict[str, Any]:
    spec = counting(rounds)
    spec["states"]["busy"]["entry"] = [{"type": "raise", "event": "nobody"}] * (count // (rounds + 1))
    return spec


def test_raised_events_that_nobody_takes_are_no_microsteps() -> None:
    chart = compiled(raising(RAISED_LIMIT))
    turn = advance(chart, start(chart, None, 0).snapshot, {"type": "go"}, 1)
    assert (turn.snapshot.status, len(turn.taken)) == ("active", 2)


def test_raised_events_have_a_limit_of_their_own() -> None:
    chart = compiled(raising(RAISED_LIMIT + 3, rounds=2))
    with pytest.raises(StepFault, match="one step raises more than 2,000 events") as refused:
        advance(chart, start(chart, None, 0).snapshot, {"type": "go"}, 1)
    assert refused.value.path.startswith("/states/busy/entry/")
