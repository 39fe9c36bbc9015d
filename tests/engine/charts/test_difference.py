"""What changed between two versions of a chart, and what did not although it is written otherwise."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine import codec
from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.difference import Difference, difference
from holdfast.engine.charts.document import BadChart
from tests.engine.charts.test_lint import EXPENSE, ORDER, REALISTIC


def small(**states: Any) -> dict[str, Any]:
    return {"id": "c", "initial": next(iter(states)), "states": states}


def lines(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return difference(old, new).text().splitlines()


def edited(document: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(document)


# -- nothing


@pytest.mark.parametrize("name", REALISTIC)
def test_a_chart_does_not_differ_from_itself(name: str) -> None:
    assert difference(REALISTIC[name], copy.deepcopy(REALISTIC[name])) == Difference(())


def test_compiled_charts_and_documents_are_compared_alike() -> None:
    new = edited(ORDER)
    new["states"]["placed"]["on"]["CANCEL"] = {"target": "cancelled", "actions": {"type": "log"}}
    charts = [compile_chart(doc.reread(one)) for one in (ORDER, new)]
    assert difference(*charts) == difference(ORDER, new) == difference(charts[0], new)
    assert difference(*charts).changes != ()


def test_other_words_for_the_same_are_no_difference() -> None:
    old = small(a={"on": {"GO": "b"}, "entry": {"type": "log"}}, b={"after": {"PT1H": "a"}})
    new = small(
        a={"on": {"GO": [{"target": "#c.b"}]}, "entry": [{"type": "log"}], "type": "atomic"},
        b={"after": {"PT1H": {"target": "a", "reenter": False}}},
    )
    assert lines(old, new) == []


def test_key_order_counts_only_where_it_is_meaning() -> None:
    old = small(a={"on": {"X": "b", "Y": "b"}}, b={}) | {"context": {"n": {"a": 1, "b": 2}, "m": 1}}
    new = {"id": "c", "initial": "a", "context": {"m": 1, "n": {"b": 2, "a": 1}}, "states": {
        "b": {}, "a": {"on": {"Y": "b", "X": "b"}}}}  # fmt: skip
    assert lines(old, new) == []


def test_what_is_not_a_chart_is_refused() -> None:
    with pytest.raises(BadChart):
        difference(ORDER, {"id": "x"})


# -- states


def test_states_that_came_and_went() -> None:
    changes = difference(small(a={}, b={}), small(a={}, c={"initial": "d", "states": {"d": {}}})).changes
    assert [(c.kind, c.what, c.name, c.path, c.before, c.after) for c in changes] == [
        ("removed", "state", "b", "/states/b", "atomic", None),
        ("added", "state", "c", "/states/c", None, "compound"),
        ("added", "state", "c.d", "/states/c/states/d", None, "atomic"),
    ]


def test_a_state_that_changed_its_kind() -> None:
    assert lines(small(a={"on": {"GO": "b"}}, b={}), small(a={"on": {"GO": "b"}}, b={"type": "final"})) == [
        "~ state b: atomic → final"
    ]


def test_a_state_that_moved_takes_along_what_is_inside_and_who_leads_there() -> None:
    old = small(
        a={"on": {"GO": "box"}},
        box={"initial": "x", "states": {"x": {"on": {"Y": "y"}}, "y": {}}, "after": {"PT1H": "a"}},
        room={"initial": "door", "states": {"door": {}}},
    )
    new = small(
        a={"on": {"GO": "room.box"}},
        room={
            "initial": "door",
            "states": {
                "door": {},
                "box": {"initial": "x", "states": {"x": {"on": {"Y": "y"}}, "y": {}}, "after": {"PT1H": "#c.a"}},
            },
        },
    )
    assert lines(old, new) == ["> state box is now room.box"]


def test_a_state_with_an_id_is_known_by_it() -> None:
    old = small(a={"on": {"GO": "#x"}}, b={"id": "x"}, c={})
    new = small(a={"on": {"GO": "#x"}}, other={"id": "x"}, c={})
    assert lines(old, new) == ["> state b is now other"]


def test_a_state_that_only_has_another_name() -> None:
    old = small(a={"on": {"GO": "b"}}, b={"on": {"BACK": "a", "ON": "a"}})
    new = small(a={"on": {"GO": "z"}}, z={"on": {"BACK": "a", "ON": "a"}})
    assert lines(old, new) == ["> state b is now z"]


def test_two_states_that_could_each_be_the_one_that_moved() -> None:
    old = small(a={"initial": "x", "states": {"x": {}}}, b={"initial": "y", "states": {"y": {}}})
    new = small(
        a={"initial": "p", "states": {"p": {"initial": "x", "states": {"x": {}}}}},
        b={"initial": "q", "states": {"q": {"initial": "x", "states": {"x": {}}}}},
    )
    assert not difference(old, new).of("state", "moved")


def test_the_order_of_regions_is_meaning_and_that_of_other_states_is_not() -> None:
    old = {"id": "c", "type": "parallel", "states": {"l": {}, "r": {}, "s": {}}}
    new = {"id": "c", "type": "parallel", "states": {"r": {}, "l": {}, "t": {}}}
    found = difference(old, new)
    [order] = found.of("regions of", "reordered")
    assert (order.before, order.after) == (["l", "r"], ["r", "l"])
    assert order.text() == "~ regions of (chart): the order changed from l, r to r, l"


# -- transitions


def with_go(*transitions: Any) -> dict[str, Any]:
    return small(a={"on": {"GO": list(transitions)}}, b={}, d={})


def guarded(text: str, target: str = "b") -> dict[str, Any]:
    return {"target": target, "guard": {"@expr": text}}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (["b"], ["b", guarded("event.x == 1")],
         ['+ transition a on GO: [event.x == 1] → b']),
        ([guarded("event.x == 1"), "b"], ["b"],
         ['- transition a on GO: [event.x == 1] → b']),
        (["b"], ["d"], ["~ transition a on GO: b → d"]),
        ([guarded("event.x == 1")], [guarded("event.x == 2")],
         ['~ guard of transition a on GO: event.x == 1 → event.x == 2']),
        (["b"], [{"target": "b", "actions": {"type": "log"}}],
         ['~ actions of transition a on GO: (nothing) → [{"type":"log","params":null}]']),
        (["b"], [{"target": "b", "reenter": True}], ["~ reenter of transition a on GO: false → true"]),
        (["b"], [{"target": "b", "description": "on"}], ["~ description of transition a on GO: (nothing) → on"]),
        ([guarded("event.x == 1"), guarded("event.y == 1", "d")],
         [guarded("event.y == 1", "d"), guarded("event.x == 1")],
         ['~ transitions of a on GO: the order changed from [event.x == 1] → b, '
          '[event.y == 1] → d to [event.y == 1] → d, [event.x == 1] → b']),
        ([{}], ["b"], ["~ transition a on GO: (nothing) → b"]),
    ],
)  # fmt: skip
def test_transitions(old: list[Any], new: list[Any], expected: list[str]) -> None:
    assert lines(with_go(*old), with_go(*new)) == expected


def test_a_transition_in_the_middle_moves_no_other() -> None:
    three = [guarded("event.x == 1"), guarded("event.y == 1"), "b"]
    assert len(lines(with_go(three[0], three[2]), with_go(*three))) == 1


def test_an_event_with_an_empty_list_is_one_that_is_not_there() -> None:
    assert lines(with_go(), small(a={}, b={}, d={})) == []
    assert lines(with_go(), with_go("b")) == ["+ transition a on GO: → b"]


def test_timers_done_and_always_are_named_as_people_say_them() -> None:
    old = small(
        a={"after": {"PT1H": "b"}, "always": guarded("event.x == 1"), "invoke": {"src": "f", "onDone": "b"}}, b={}
    )
    new = small(a={"after": {"PT2H": "b"}, "always": "b", "invoke": {"src": "f", "onError": "b"}}, b={})
    assert lines(old, new) == [
        "- transition a on done invoke: → b",
        "- transition a on after PT1H: → b",
        "~ guard of transition a on always: event.x == 1 → (nothing)",
        "+ transition a on error invoke: → b",
        "+ transition a on after PT2H: → b",
    ]


def test_an_event_called_done_is_not_taken_for_being_done() -> None:
    inner = {"initial": "x", "states": {"x": {"type": "final"}}}
    old = small(a={**inner, "onDone": "b"}, b={}, d={})
    new = small(a={**inner, "on": {"done": "b"}}, b={}, d={})
    assert len(lines(old, new)) == 2


# -- what states do, and what the chart names


def test_what_a_state_does() -> None:
    old = small(a={"entry": {"type": "log"}, "tags": ["x"], "description": "one", "meta": {"y": 1}})
    new = small(
        a={"exit": {"type": "log"}, "tags": ["x", "y"], "description": "two", "meta": {"y": 2}, "invoke": {"src": "f"}}
    )
    assert [(c.kind, c.what) for c in difference(old, new).changes] == [
        ("removed", "entry of"), ("added", "exit of"), ("added", "invokes of"), ("changed", "tags of"),
        ("changed", "description of"), ("changed", "meta of"), ("added", "task"),
    ]  # fmt: skip


def test_where_it_begins_and_what_it_remembers() -> None:
    old = small(a={}, b={"initial": "x", "states": {"x": {}, "y": {}, "h": {"type": "history"}}})
    new = edited(old)
    new["initial"] = "b"
    new["states"]["b"]["states"]["h"] = {"type": "history", "history": "deep", "target": "y"}
    assert lines(old, new) == [
        "~ initial of (chart): a → b",
        "~ history of b.h: shallow → deep",
        "+ default of b.h: b.y",
    ]


def test_a_name_is_said_even_where_nothing_stands_under_it_that_has_a_path() -> None:
    old = small(a={"on": {"GO": {"target": "b", "guard": "there"}}, "entry": "quiet"}, b={}) | {
        "guards": {"there": {"stateIn": "a"}, "here": {"stateIn": "b"}}, "actions": {"quiet": [], "loud": []},
    }  # fmt: skip
    new = edited(old)
    new["states"]["a"] = {"on": {"GO": {"target": "b", "guard": "here"}}, "entry": "loud"}
    found = lines(old, new)
    assert "~ entry of a: quiet → loud" in found
    assert "~ guard of transition a on GO: there → here" in found


def test_a_named_guard_is_reported_once_however_often_it_is_used() -> None:
    new = edited(EXPENSE)
    new["guards"]["small"] = {"@expr": "context.amount_minor <= params.limit"}
    assert lines(EXPENSE, new) == [
        "~ guard small: context.amount_minor < params.limit → context.amount_minor <= params.limit"
    ]


def test_a_guard_made_of_others_goes_by_its_own_name() -> None:
    guards = {"one": {"@expr": "event.x == 1"}, "both": {"and": ["one", {"@expr": "event.y == 1"}]}}
    old = small(a={"on": {"GO": {"target": "b", "guard": "both"}}}, b={}) | {"guards": guards}
    new = edited(old)
    new["guards"]["both"]["and"][1] = {"@expr": "event.y == 2"}
    [change] = difference(old, new).changes
    assert (change.what, change.name) == ("guard", "both")
    assert change.after == {"and": ["one", {"@expr": "event.y == 2"}]}


def test_context_actions_delays_and_input() -> None:
    new = edited(EXPENSE)
    new["context"] = {**new["context"], "reminders": 1, "note": ""}
    del new["context"]["decided_by"]
    new["actions"]["countReminder"]["assign"]["reminders"]["@expr"] = "context.reminders + 2"
    new["delays"]["patience"] = "P4D"
    new["inputSchema"] = {"type": "object"}
    found = difference(EXPENSE, new)
    assert [(c.kind, c.what, c.name) for c in found.changes] == [
        ("removed", "context", "decided_by"), ("changed", "context", "reminders"), ("added", "context", "note"),
        ("changed", "delay", "patience"), ("changed", "action", "countReminder"), ("changed", "inputSchema", ""),
    ]  # fmt: skip
    assert "~ delay patience: P3D → P4D" in found.text()


def test_a_task_is_compared_field_by_field() -> None:
    new = edited(EXPENSE)
    task = new["states"]["review"]["states"]["triage"]["entry"]["params"]
    task["policy"] = {"allowed_events": ["APPROVE"], "mode": "apply"}
    task["model"] = "large"
    del task["failure_event"]
    found = difference(EXPENSE, new)
    assert [(c.kind, c.what, c.name) for c in found.changes] == [
        ("changed", "task", "suggest policy"), ("removed", "task", "suggest failure_event"),
        ("added", "task", "suggest model"),
    ]  # fmt: skip
    assert found.changes[0].path == "/states/review/states/triage/entry/params/policy"


def test_tasks_of_one_name_are_told_apart() -> None:
    new = edited(EXPENSE)
    new["states"]["review"]["states"]["escalated"]["entry"]["params"]["assignee"] = "ceo@example.org"
    assert lines(EXPENSE, new) == ["~ task decide (2) assignee: cfo@example.org → ceo@example.org"]


def test_true_is_not_one() -> None:
    assert len(lines(small(a={}) | {"context": {"n": 1}}, small(a={}) | {"context": {"n": True}})) == 1


def test_a_line_has_an_end_and_the_values_are_json() -> None:
    found = difference(small(a={}) | {"context": {"n": "x" * 5000}}, small(a={}) | {"context": {"n": "y" * 5000}})
    assert len(found.text()) < 600
    codec.encode(list(found.changes))


@given(st.sampled_from(sorted(REALISTIC)), st.sampled_from(sorted(REALISTIC)))
def test_what_is_added_one_way_is_removed_the_other_way(one: str, two: str) -> None:
    there, back = difference(REALISTIC[one], REALISTIC[two]), difference(REALISTIC[two], REALISTIC[one])

    def places(found: Difference, kind: str) -> list[str]:
        return sorted(change.name for change in found.of("state", kind))

    assert places(there, "added") == places(back, "removed")
    assert places(there, "removed") == places(back, "added")
    assert bool(there.changes) == (one != two)
