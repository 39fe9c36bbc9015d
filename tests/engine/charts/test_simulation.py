"""A chart tried out: what each event comes to, how time passes, who answers, and which lists of events are refused."""

import json
from typing import Any

import msgspec
import pytest

from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.simulation import TURNS_LIMIT, BadSimulation, SimulatedTurn, simulate
from tests.engine.charts.test_lint import BOOKING, EXPENSE, ORDER, TRAFFIC_LIGHT

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
CLAIM = {"amount_minor": 12_000, "email": "ada@example.org", "purpose": "a train"}


def play(document: dict[str, Any], input_: Any, *events: Any, **options: Any) -> list[SimulatedTurn]:
    return simulate(compile_chart(doc.reread(document)), input_, events, **options)


def types(turn: SimulatedTurn) -> list[str]:
    return [effect["type"] for effect in turn.effects]


def small(**states: Any) -> dict[str, Any]:
    return {"id": "c", "initial": "a", "states": states}


# -- events


def test_a_simulation_begins_with_the_start() -> None:
    [first] = play(ORDER, {"items": ["a book"]})
    assert first.event == {"type": "xstate.init", "input": {"items": ["a book"]}}
    assert (first.before, first.after, first.state, first.status) == (None, "placed", "placed", "active")
    assert first.changes == {"items": {"to": ["a book"]}, "payment": {"to": None}}
    assert types(first) == ["schedule"]


def test_each_event_has_a_turn_that_says_what_it_came_to() -> None:
    turns = play(
        ORDER, {"items": []}, "PAY", {"$done": "payment", "output": {"body": {"id": 7}}}, {"$task": "pack"}, "PAY",
    )  # fmt: skip
    assert [(t.before, t.after) for t in turns[1:]] == [
        ("placed", "paying"), ("paying", "packing"), ("packing", "shipped"), ("shipped", "shipped"),
    ]  # fmt: skip
    assert turns[2].changes == {"payment": {"from": None, "to": {"id": 7}}}
    assert turns[2].taken == [{"event": "xstate.done.actor.payment", "transitions": ["/states/paying/invoke/onDone"]}]
    assert (turns[3].status, turns[3].output) == ("done", None)
    assert (turns[4].handled, turns[4].stale) == (False, True)


def test_an_event_that_no_state_takes_is_not_handled() -> None:
    turn = play(ORDER, {"items": []}, {"type": "NONSENSE", "n": 1})[1]
    assert (turn.handled, turn.stale, turn.before, turn.after, turn.effects) == (False, False, "placed", "placed", [])
    assert turn.event == {"type": "NONSENSE", "n": 1, "at": "1970-01-01T00:00:00Z"}


def test_effects_are_plain_json_in_their_order() -> None:
    turns = play(EXPENSE, CLAIM)
    assert types(turns[0]) == ["createTask", "schedule"]
    [task, timer] = turns[0].effects
    assert task["params"]["input"] == CLAIM
    assert timer == {
        "type": "schedule", "id": "xstate.after.PT10M.expense.review.triage", "delay": 600 * SECOND,
        "due": 600 * SECOND, "event": {"type": "xstate.after.PT10M.expense.review.triage"},
    }  # fmt: skip
    text = msgspec.json.encode(turns)
    assert json.loads(text)[0]["to"] == {"review": "triage"}


# -- time


def test_time_passes_and_what_falls_due_fires_in_order() -> None:
    turns = play(TRAFFIC_LIGHT, None, {"$advance": "PT1M"})
    assert [(t.at // SECOND, t.state) for t in turns] == [
        (0, "green"), (30, "yellow"), (33, "red.walk"), (53, "red.wait"), (58, "green"),
    ]  # fmt: skip


def test_nothing_fires_early() -> None:
    almost = {"$advance": 29_999}
    assert len(play(TRAFFIC_LIGHT, None, almost)) == 1
    turns = play(TRAFFIC_LIGHT, None, almost, {"$advance": 1})
    assert [(t.at, t.state) for t in turns[1:]] == [(30 * SECOND, "yellow")]


def test_time_that_has_passed_counts_for_what_is_started_later() -> None:
    turns = play(ORDER, {"items": []}, {"$advance": "PT5H"}, "PAY", {"$error": "payment", "error": "no funds"}, now=DAY)
    assert turns[1].at == DAY + 5 * HOUR
    [invoke] = [e for e in turns[2].effects if e["type"] == "schedule"]
    assert invoke["due"] == DAY + 5 * HOUR + DAY


def test_one_timer_is_awaited_and_the_earlier_ones_fire_on_the_way() -> None:
    document = small(
        a={
            "entry": [
                {"type": "raise", "event": "late", "delay": "PT2S", "id": "late"},
                {"type": "raise", "event": "soon", "delay": "PT1S"},
                {"type": "raise", "event": "same", "delay": "PT2S"},
            ],
            "on": {"*": {"actions": {"type": "log"}}},
        }
    )
    turns = play(document, None, {"$timer": "late"}, {"$advance": 0})
    assert [(t.event["type"], t.at) for t in turns[1:]] == [
        ("soon", SECOND), ("late", 2 * SECOND), ("same", 2 * SECOND),
    ]  # fmt: skip


def test_a_timer_that_another_one_ends_on_the_way_does_not_fire() -> None:
    document = small(a={"after": {"PT1S": "b", "PT1H": "c"}}, b={"on": {"X": "c"}}, c={"type": "final"})
    turns = play(document, None, {"$timer": "xstate.after.PT1H.c.a"})
    assert [t.state for t in turns] == ["a", "b"]


def test_a_timer_task_answers_by_itself() -> None:
    create = {"type": "createTask", "params": {"type": "TIMER", "name": "t", "delay": "PT1H"}}
    document = small(a={"entry": [create], "on": {"task.done.t": "b"}}, b={"type": "final"})
    turns = play(document, None, {"$advance": "PT2H"})
    assert [(t.at, t.event["type"]) for t in turns[1:]] == [(HOUR, "task.done.t")]
    assert turns[1].status == "done"


def test_at_one_moment_a_task_answers_before_the_charts_own_timers_fire() -> None:
    create = {"type": "createTask", "params": {"type": "TIMER", "name": "t", "delay": "PT1H"}}
    document = small(
        a={"entry": [create], "on": {"task.done.t": "b"}, "after": {"PT1H": "c"}},
        b={"type": "final"},
        c={"type": "final"},
    )
    assert [turn.state for turn in play(document, None, {"$advance": "PT2H"})] == ["a", "b"]


def test_a_timer_task_fires_at_a_moment_and_as_an_invoke_too() -> None:
    create = {"type": "createTask", "params": {"type": "TIMER", "name": "t", "run_at": "1970-01-02T00:00:00Z"}}
    invoke = {"id": "i", "src": {"task": {"type": "TIMER", "name": "u", "delay": 1000}}, "onDone": "c"}
    document = small(
        a={"entry": create, "on": {"task.done.t": "b"}}, b={"invoke": invoke}, c={"type": "final"}
    )  # fmt: skip
    turns = play(document, None, {"$advance": "P2D"})
    assert [(t.at, t.state) for t in turns[1:]] == [(DAY, "b"), (DAY + SECOND, "c")]


def test_a_timer_task_fires_at_the_moment_its_calendar_says() -> None:
    calendar = {"time": "09:00", "zone": "Europe/Rome"}
    create = {"type": "createTask", "params": {"type": "TIMER", "name": "t", "calendar": calendar}}
    document = small(a={"entry": create, "on": {"task.done.t": "b"}}, b={"type": "final"})
    turns = play(document, None, {"$advance": "P2D"})
    assert [(t.at, t.state) for t in turns] == [(0, "a"), (8 * HOUR, "b")]


# -- answers


def test_an_invoke_is_answered_with_done_or_error() -> None:
    turns = play(
        BOOKING, {"to": "Rome"}, {"$done": "flight", "output": 1}, {"$error": "hotel", "error": {"message": "full"}},
        {"$task": "call the hotel", "output": {"booked": True}},
    )  # fmt: skip
    assert [t.handled for t in turns] == [True] * 4
    assert turns[2].after["booking"]["hotel"] == "asking by phone"
    assert turns[3].after == "confirmed"
    assert turns[3].event == {
        "type": "task.done.call the hotel", "output": {"booked": True},
        "task": {"name": "call the hotel", "type": "HUMAN"},
    }  # fmt: skip


def test_an_error_that_nobody_handles_ends_the_instance() -> None:
    turns = play(small(a={"invoke": {"id": "i", "src": "f", "onDone": "b"}}, b={}), None, {"$error": "i", "error": "x"})
    assert (turns[1].status, turns[1].error) == ("error", "x")


def test_the_newest_open_task_of_a_name_is_answered() -> None:
    waited = [{"$advance": "PT10M"}, {"$advance": "P9D"}]
    turns = play(EXPENSE, CLAIM, *waited, {"$task": "decide", "output": {"approved": False, "by": "cfo"}})
    states = [t.state for t in turns]
    assert states == ["review.triage", *["review.waiting"] * 3, "review.escalated", "rejected"]
    assert turns[-1].changes["decided_by"] == {"from": None, "to": "cfo"}
    with pytest.raises(BadSimulation, match="no open task is named 'decide'"):
        play(
            EXPENSE, CLAIM, *waited, {"$task": "decide", "output": {"approved": False, "by": "a"}}, {"$task": "decide"}
        )


def test_a_task_answers_with_the_events_it_names() -> None:
    turns = play(EXPENSE, CLAIM, {"$task": "suggest", "error": "the model is away"})
    assert turns[1].event == {
        "type": "NO_SUGGESTION",
        "error": "the model is away",
        "task": {"name": "suggest", "type": "AI"},
    }
    assert play(EXPENSE, CLAIM, {"$task": "suggest"})[1].event["type"] == "SUGGESTED"


def test_a_task_that_was_cancelled_is_not_open() -> None:
    with pytest.raises(BadSimulation, match=r"/events/2: no open task is named 'decide' \(open: suggest\)"):
        play(EXPENSE, CLAIM, {"$advance": "PT10M"}, "HOLD", {"$task": "decide"})


def test_a_failed_task_that_no_state_takes_fails_the_instance() -> None:
    create = {"type": "createTask", "params": {"type": "SYSTEM", "name": "call"}}
    turns = play(small(a={"entry": create, "on": {"X": "b"}}, b={}), None, {"$task": "call", "error": "down"}, "X")
    assert (turns[1].status, turns[1].error, turns[1].handled) == ("error", "down", False)
    assert turns[2].stale


# -- faults

FAULTY = small(
    a={
        "on": {
            "BAD": {"target": "b", "guard": {"@expr": "event.n > 1"}},
            "LOOP": "b",
            "GOOD": {"actions": {"type": "assign", "assign": {"n": {"@expr": "context.n + 1"}}}},
        },
        "after": {"PT1S": {"guard": {"@expr": "event.nothing == 1"}}, "PT2S": {"actions": {"type": "log"}}},
    },
    b={"always": "b2"},
    b2={"always": "b"},
) | {"context": {"n": 0}}


def test_a_step_that_fails_is_recorded_and_ends_the_simulation() -> None:
    turns = play(FAULTY, None, "GOOD", "BAD", "GOOD")
    assert len(turns) == 3
    last = turns[-1]
    assert last.fault is not None
    assert last.fault["path"] == "/states/a/on/BAD/guard"
    assert (last.handled, last.before, last.after, last.effects) == (False, "a", "a", [])


def test_a_step_that_fails_is_skipped_if_so_chosen() -> None:
    turns = play(FAULTY, None, "BAD", "LOOP", "GOOD", {"$advance": "PT3S"}, on_fault="skip")
    assert [t.fault is not None for t in turns] == [False, True, True, False, True, False]
    assert turns[2].fault is not None
    assert len(turns[2].fault["cycle"]) > 1
    assert turns[3].changes == {"n": {"from": 0, "to": 1}}


def test_a_start_that_fails_is_all_there_is() -> None:
    [turn] = play(EXPENSE, {"no": "amount"}, "APPROVE", on_fault="skip")
    assert turn.fault is not None
    assert turn.fault["path"] == "/context/amount_minor"


def test_a_task_that_cannot_be_made_refuses_the_step() -> None:
    create = {"type": "createTask", "params": {"type": "HUMAN", "name": "t", "due_in": {"@expr": "event.due"}}}
    document = small(a={"on": {"ASK": {"target": "b", "actions": create}}}, b={})
    turns = play(document, None, {"type": "ASK", "due": "soon"}, {"type": "ASK", "due": "P1D"}, on_fault="skip")
    assert turns[1].fault is not None
    assert turns[1].fault["path"] == "due_in"
    assert [t.state for t in turns] == ["a", "a", "b"]


# -- refusals


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (5, "expected an event"),
        ({}, "needs a `type`"),
        ({"type": ""}, "needs a `type`"),
        ({"type": "xstate.done.state.order"}, "use $timer, $done or $error"),
        ({"$wait": "PT1H"}, "$wait is not known: expected one of $advance, $timer, $done, $error, $task"),
        ({"$done": "payment", "$error": "payment"}, "$done, $error is not known"),
        ({"$done": "payment", "error": 1}, "'error' does not go with $done: it takes output"),
        ({"$timer": "x", "type": "y"}, "'type' does not go with $timer: it takes nothing else"),
        ({"$advance": "P1M"}, "months"),
        ({"$advance": -1}, "not a span of time"),
        ({"$advance": "P366000D"}, "longer than a thousand years"),
        ({"$advance": None}, "not a span of time"),
        ({"$timer": 5}, "$timer takes a name"),
        ({"$timer": "nothing"}, "no timer 'nothing' is running (open: xstate.after.P1D.order.placed)"),
        ({"$done": "payment"}, "no invoke 'payment' is running (none is open)"),
        ({"$error": "payment"}, "no invoke 'payment' is running (none is open)"),
        ({"$task": "pack"}, "no open task is named 'pack' (none is open)"),
        ({"$task": "pack", "output": 1, "error": 2}, "not with both"),
    ],
)
def test_what_cannot_be_played_is_refused_with_its_place(event: Any, words: str) -> None:
    with pytest.raises(BadSimulation) as refused:
        play(ORDER, {"items": []}, "NONSENSE", event)
    assert str(refused.value).startswith("/events/1: ")
    assert words in str(refused.value)
    assert len(refused.value.turns) == 2  # what happened before is not lost


def test_an_invoke_is_answered_once() -> None:
    document = small(a={"invoke": {"id": "i", "src": "f", "onDone": {"actions": {"type": "log"}}}})
    with pytest.raises(BadSimulation, match="no invoke 'i' is running"):
        play(document, None, {"$done": "i"}, {"$done": "i"})


def test_a_simulation_has_an_end() -> None:
    document = small(a={"after": {"1": {"target": "a", "reenter": True}}})
    with pytest.raises(BadSimulation, match="more than 1,000 turns") as refused:
        play(document, None, {"$advance": "P1D"})
    assert len(refused.value.turns) == TURNS_LIMIT


def test_time_has_an_end_too() -> None:
    with pytest.raises(BadSimulation, match="/events/8: it leads beyond the year 9999"):
        play(ORDER, {"items": []}, *[{"$advance": "P360000D"}] * 9)
