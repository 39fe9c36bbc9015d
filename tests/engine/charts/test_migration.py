"""An instance moves to another version of its chart: where it stands then, what goes on, and what stands in the way."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine import codec
from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.interpreter import Answer, advance, start
from holdfast.engine.charts.migration import Migration, plan_migration
from holdfast.engine.charts.nodes import Chart
from holdfast.engine.charts.snapshots import Snapshot, snapshot_from, snapshot_text
from tests.engine.charts.test_lint import BOOKING, EDITOR, EXPENSE, ORDER

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
CLAIM = {"amount_minor": 12_000, "email": "ada@example.org", "purpose": "a train"}
Charts = tuple[Chart, Chart]


def versions(old: dict[str, Any], new: dict[str, Any]) -> Charts:
    return compile_chart(doc.reread(old), version=1), compile_chart(doc.reread(new), version=2)


def standing(chart: Chart, *events: Any, input_: Any = None, at: int = 0) -> Snapshot:
    snapshot = start(chart, input_, at).snapshot
    for event in events:
        snapshot = advance(chart, snapshot, {"type": event} if isinstance(event, str) else event, at).snapshot
    return snapshot_from(chart, snapshot_text(snapshot))


def migrated(charts: Charts, snapshot: Snapshot, states: dict[str, str] | None = None, **options: Any) -> Migration:
    found = plan_migration(*charts, snapshot, states or {}, **{"now": HOUR, **options})
    assert isinstance(found, Migration), [str(problem) for problem in found]
    # Whatever comes out can be stored, read back, and goes on.
    again = snapshot_from(charts[1], snapshot_text(found.snapshot))
    assert again == found.snapshot
    codec.encode(found.summary)
    advance(charts[1], again, {"type": "nothing in particular"}, 0)
    return found


def refused(charts: Charts, snapshot: Snapshot, states: dict[str, str] | None = None, **options: Any) -> list[str]:
    found = plan_migration(*charts, snapshot, states or {}, **{"now": HOUR, **options})
    assert isinstance(found, list)
    return [str(problem) for problem in found]


def value(migration: Migration) -> Any:
    return codec.decode(bytes(migration.snapshot.value))


def small(**states: Any) -> dict[str, Any]:
    return {"id": "c", "initial": next(iter(states)), "states": states}


# -- where it stands


def test_what_is_still_there_stays_where_it_is() -> None:
    new = copy.deepcopy(ORDER)
    new["states"]["refunded"] = {"type": "final"}
    new["states"]["placed"]["on"]["REFUND"] = "refunded"
    charts = versions(ORDER, new)
    snapshot = standing(charts[0], input_={"items": [1]})
    moved = migrated(charts, snapshot)
    assert value(moved) == "placed"
    assert moved.snapshot.definition.version == 2
    assert moved.snapshot.context == snapshot.context
    assert moved.snapshot.timers == snapshot.timers
    assert moved.snapshot.seq == snapshot.seq + 1
    assert moved.summary["states"] == {"placed": "placed"}
    assert moved.summary["from"]["version"] == 1
    assert moved.summary["to"]["version"] == 2
    assert moved.effects == ()


def test_a_state_that_is_gone_goes_where_the_map_says() -> None:
    charts = versions(small(a={"on": {"GO": "b"}}, b={}), small(a={}, c={}))
    snapshot = standing(charts[0], "GO")
    assert refused(charts, snapshot) == [
        "/states/b: the instance stands in b, which version 2 does not have: say where it goes"
    ]
    moved = migrated(charts, snapshot, {"b": "c"})
    assert value(moved) == "c"
    assert moved.summary["map"] == {"b": "c"}


def test_what_stands_inside_a_mapped_state_follows_it() -> None:
    old = small(a={"initial": "x", "states": {"x": {"on": {"GO": "y"}}, "y": {}}})
    new = small(b={"initial": "x", "states": {"x": {}, "y": {}}}, end={})
    charts = versions(old, new)
    snapshot = standing(charts[0], "GO")
    assert value(migrated(charts, snapshot, {"a": "b"})) == {"b": "y"}
    assert value(migrated(charts, snapshot, {"a": "b", "a.y": "b.x"})) == {"b": "x"}
    assert value(migrated(charts, snapshot, {"a": "end"})) == "end"  # it has no states inside any more


def test_ids_name_states_too() -> None:
    charts = versions(small(a={"id": "one"}), small(x={"initial": "y", "states": {"y": {"id": "two"}}}))
    assert value(migrated(charts, standing(charts[0]), {"#one": "#two"})) == {"x": "y"}
    assert value(migrated(charts, standing(charts[0]), {"#c.a": "#c.x.y"})) == {"x": "y"}


def test_a_state_of_another_kind_must_be_mapped() -> None:
    charts = versions(small(a={}), small(a={"initial": "x", "states": {"x": {}, "z": {"type": "final"}}}))
    snapshot = standing(charts[0])
    assert "a was atomic and is compound in version 2" in refused(charts, snapshot)[0]
    assert "a has states inside: name one of those (a.x, a.z)" in refused(charts, snapshot, {"a": "a"})[0]
    assert "being done is not something a migration can say" in refused(charts, snapshot, {"a": "a.z"})[0]
    assert value(migrated(charts, snapshot, {"a": "a.x"})) == {"a": "x"}


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({"nowhere": "a"}, "/states/nowhere: version 1 has no state 'nowhere'"),
        ({"a": "nowhere"}, "/states/a: version 2 has no state 'nowhere'"),
        ({"a": "h.past"}, "/states/a: a history state is mapped to a history state"),
        ({"a": "#c"}, "/states/a: the chart itself is not mapped"),
        ({"#c": "a"}, "/states/#c: the chart itself is not mapped"),
        ({"a": "a", "#c.a": "a"}, "/states/#c.a: a is mapped twice"),
        ({"a~/b": "a"}, "/states/a~0~1b: version 1 has no state 'a~/b'"),
    ],
)
def test_a_map_that_makes_no_sense(states: dict[str, str], words: str) -> None:
    chart = small(a={}, h={"initial": "x", "states": {"x": {}, "past": {"type": "history"}}})
    charts = versions(chart, chart)
    assert any(problem.startswith(words) for problem in refused(charts, standing(charts[0]), states))


def test_an_instance_of_another_version_or_one_that_ended() -> None:
    charts = versions(small(a={"on": {"GO": "z"}}, z={"type": "final"}), small(a={}))
    assert "of version 2, not of version 1" in refused(charts, standing(charts[1]))[0]
    assert "has ended (done)" in refused(charts, standing(charts[0], "GO"))[0]
    ending = msgspec.structs.replace(standing(charts[0]), ending={"status": "cancelled"})
    assert "is ending" in refused(charts, ending)[0]


# -- regions


def region(*names: str) -> dict[str, Any]:
    return {"initial": names[0], "states": {name: {"on": {"GO": names[-1]}} for name in names}}


def test_every_region_is_moved() -> None:
    old = {"id": "c", "type": "parallel", "states": {"l": region("l1", "l2"), "r": region("r1", "r2")}}
    new = {"id": "c", "type": "parallel", "states": {"r": region("r1", "x2"), "l": region("l1", "l2")}}
    charts = versions(old, new)
    snapshot = standing(charts[0], "GO")
    [problem] = refused(charts, snapshot)
    assert problem.startswith("/states/r.r2: the instance stands in r.r2")
    assert value(migrated(charts, snapshot, {"r.r2": "r.x2"})) == {"r": "x2", "l": "l2"}


def test_a_new_region_is_entered_where_the_request_says() -> None:
    old = {"id": "c", "type": "parallel", "states": {"l": region("l1")}}
    new = {"id": "c", "type": "parallel", "states": {"l": region("l1"), "r": region("r1", "r2")}}
    charts = versions(old, new)
    snapshot = standing(charts[0])
    [problem] = refused(charts, snapshot)
    assert "has a region 'r' that no active state is mapped to" in problem
    assert "no atomic state 'r'" in refused(charts, snapshot, enter=["r"])[0]
    assert "stands in l.l1 anyway" in refused(charts, snapshot, enter=["l.l1", "r.r1"])[0]
    moved = migrated(charts, snapshot, enter=["r.r2"])
    assert value(moved) == {"l": "l1", "r": "r2"}
    assert moved.summary["entered"] == ["r.r2"]


def test_regions_that_became_one_state() -> None:
    old = {"id": "c", "type": "parallel", "states": {"l": region("l1"), "r": region("r1")}}
    charts = versions(old, small(a={}, b={}))
    snapshot = standing(charts[0])
    assert value(migrated(charts, snapshot, {"l": "a", "r": "a"})) == "a"
    assert "cannot be active together" in refused(charts, snapshot, {"l": "a", "r": "b"})[0]


def test_a_parallel_state_is_not_done_by_losing_a_region() -> None:
    done = {"initial": "w", "states": {"w": {"on": {"GO": "z"}}, "z": {"type": "final"}}}
    old = small(p={"type": "parallel", "states": {"l": done, "r": region("r1")}, "onDone": "end"}, end={})
    new = small(p={"type": "parallel", "states": {"l": done}, "onDone": "end"}, end={})
    charts = versions(old, new)
    snapshot = standing(charts[0], "GO")
    assert "p would be done by the migration" in refused(charts, snapshot, {"p.r": ""})[0]
    assert value(migrated(charts, snapshot, {"p.r": "", "p.l.z": "p.l.w"})) == {"p": {"l": "w"}}


def test_a_region_that_is_gone_for_good() -> None:
    old = {"id": "c", "type": "parallel", "states": {"l": region("l1", "l2"), "r": region("r1") | {"after": {"5": {}}}}}
    new = {"id": "c", "type": "parallel", "states": {"l": region("l1", "l2")}}
    charts = versions(old, new)
    snapshot = standing(charts[0], "GO")
    assert refused(charts, snapshot)
    moved = migrated(charts, snapshot, {"r": ""})
    assert value(moved) == {"l": "l2"}
    assert moved.summary["timers_dropped"] == ["xstate.after.5.c.r"]
    assert "no region of a parallel state" in refused(charts, snapshot, {"r.r1": ""})[0]
    assert "nothing is left" in refused(charts, snapshot, {"r": "", "l": ""})[0]


def test_a_region_that_was_done_stays_done() -> None:
    done = {"initial": "w", "states": {"w": {"on": {"GO": "z"}}, "z": {"type": "final"}}}
    old = small(p={"type": "parallel", "states": {"l": done, "r": done}, "onDone": "end"}, end={})
    old["states"]["p"]["states"]["r"] = {"initial": "w", "states": {"w": {"on": {"R": "z"}}, "z": {"type": "final"}}}
    charts = versions(old, old | {"description": "the same"})
    moved = migrated(charts, standing(charts[0], "GO"))
    assert value(moved) == {"p": {"l": "z", "r": "w"}}
    turn = advance(charts[1], moved.snapshot, {"type": "R"}, 0)
    assert turn.state == "end"


def test_a_chart_whose_only_open_region_is_gone_is_not_taken_for_done() -> None:
    done = {"initial": "w", "states": {"w": {"on": {"GO": "z"}}, "z": {"type": "final"}}}
    outer = {"type": "parallel", "states": {"l": done}}
    old = small(p={"type": "parallel", "states": {"l": done, "r": region("r1")}}, q={})
    new = small(p={"type": "parallel", "states": {"p": outer, "q": {"initial": "y", "states": {"y": {}}}}}, q={})
    charts = versions(old, new)
    found = refused(charts, standing(charts[0], "GO"), {"p.l": "p.p.l", "p.r.r1": "p.q.y"})
    assert "p.p would be done by the migration" in found[0]


# -- context


def test_context_is_kept_and_patched() -> None:
    charts = versions(small(a={}) | {"context": {"n": 1, "m": 2}}, small(a={}) | {"context": {"n": 1}})
    moved = migrated(charts, standing(charts[0]), context={"n": 5, "m": 2, "new": [1]})
    assert moved.snapshot.context == {"n": 5, "m": 2, "new": [1]}
    assert moved.summary["context"] == ["n", "new"]
    assert refused(charts, standing(charts[0]), context={"n": float("nan")})[0].startswith("/context: ")


# -- history


def test_what_is_remembered_moves_along() -> None:
    charts = versions(EXPENSE, _renamed(EXPENSE, "review", "checking"))
    snapshot = standing(charts[0], "SUGGESTED", "HOLD", input_=CLAIM)
    assert snapshot.history_value == {"expense.review.memory": ["expense.review.waiting"]}
    moved = migrated(charts, snapshot, {"review": "checking"})
    assert moved.snapshot.history_value == {"expense.checking.memory": ["expense.checking.waiting"]}
    assert advance(charts[1], moved.snapshot, {"type": "RESUME"}, 0).state == "checking.waiting"


def _renamed(document: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    text = doc.written(document)
    for before, after in ((f'"{old}":', f'"{new}":'), (f'"{old}"', f'"{new}"'), (f'"{old}.', f'"{new}.')):
        text = text.replace(before, after)
    return doc.read(text)


def test_what_is_remembered_and_gone_must_be_mapped() -> None:
    new = copy.deepcopy(EDITOR)
    inside = new["states"]["window"]["states"]["open"]["states"]
    inside["tree"] = inside.pop("outline")
    inside["page"]["on"] = {"OUTLINE": "tree"}
    charts = versions(EDITOR, new)
    snapshot = standing(charts[0], "OUTLINE", "MINIMIZE")
    [problem] = refused(charts, snapshot)
    assert problem.startswith("/states/window.open.outline: window.open.again remembers window.open.outline")
    moved = migrated(charts, snapshot, {"window.open.outline": "window.open.tree"})
    assert advance(charts[1], moved.snapshot, {"type": "RESTORE"}, 0).state == "text.clean, window.open.tree"
    # A history state remembers what is inside its parent, and nothing else.
    assert refused(charts, snapshot, {"window.open.outline": "window.icon"})


def test_a_history_state_that_is_gone_forgets() -> None:
    new = copy.deepcopy(EDITOR)
    del new["states"]["window"]["states"]["open"]["states"]["again"]
    new["states"]["window"]["states"]["icon"]["on"]["RESTORE"] = "open"
    charts = versions(EDITOR, new)
    moved = migrated(charts, standing(charts[0], "MINIMIZE"))
    assert moved.snapshot.history_value == {}
    assert moved.summary["history_dropped"] == ["editor.window.open.again"]


# -- timers


def test_a_timer_keeps_its_moment_under_the_new_name() -> None:
    old = small(a={"after": {"P1D": "b", "PT5H": "b"}}, b={})
    new = small(x={"after": {"P1D": "b", "PT9H": "b"}}, b={})
    charts = versions(old, new)
    moved = migrated(charts, standing(charts[0]), {"a": "x"}, now=HOUR)
    timers = moved.snapshot.timers
    assert {id_: timer.due for id_, timer in timers.items()} == {
        "xstate.after.P1D.c.x": DAY, "xstate.after.PT9H.c.x": 10 * HOUR,
    }  # fmt: skip
    assert timers["xstate.after.P1D.c.x"].event == {"type": "xstate.after.P1D.c.x"}
    assert moved.summary["timers_kept"] == ["xstate.after.P1D.c.x"]
    assert moved.summary["timers_dropped"] == ["xstate.after.PT5H.c.a"]
    assert moved.summary["timers_started"] == ["xstate.after.PT9H.c.x"]
    assert [(e.type, e.body["id"]) for e in moved.effects] == [
        ("cancel", "xstate.after.P1D.c.a"), ("schedule", "xstate.after.P1D.c.x"), ("cancel", "xstate.after.PT5H.c.a"),
        ("schedule", "xstate.after.PT9H.c.x"),
    ]  # fmt: skip
    timer = timers["xstate.after.P1D.c.x"]
    turn = advance(charts[1], moved.snapshot, timer.event, DAY, Answer("timer", "xstate.after.P1D.c.x", timer.visit))
    assert turn.state == "b"


def test_a_timer_that_has_fired_is_not_started_again() -> None:
    chart = small(a={"after": {"PT1H": {"actions": {"type": "log"}}}, "on": {"GO": "b"}}, b={})
    charts = versions(chart, chart | {"description": "another"})
    snapshot = standing(charts[0])
    [(id_, timer)] = snapshot.timers.items()
    fired = advance(charts[0], snapshot, timer.event, HOUR, Answer("timer", id_, timer.visit)).snapshot
    assert migrated(charts, fired).snapshot.timers == {}


def test_the_timer_of_a_state_around_is_carried_too() -> None:
    inner = {"initial": "x", "states": {"x": {}}, "after": {"P1D": "#c.end"}}
    charts = versions(small(a=inner, end={}), small(b=inner, end={}))
    assert migrated(charts, standing(charts[0]), {"a": "b"}).summary["timers_kept"] == ["xstate.after.P1D.c.b"]
    # Mapped without what is around it, it is not known which state that is.
    moved = migrated(charts, standing(charts[0]), {"a.x": "b.x"})
    assert moved.summary["timers_dropped"] == ["xstate.after.P1D.c.a"]
    assert moved.summary["timers_started"] == ["xstate.after.P1D.c.b"]


def test_a_named_delay_keeps_its_moment_though_its_length_changed() -> None:
    charts = versions(
        small(a={"after": {"patience": "b"}}, b={}) | {"delays": {"patience": "P3D"}},
        small(a={"after": {"patience": "b"}}, b={}) | {"delays": {"patience": "P5D"}},
    )
    [timer] = migrated(charts, standing(charts[0])).snapshot.timers.values()
    assert timer.due == 3 * DAY


def test_a_delayed_raise_goes_on() -> None:
    entry = {"type": "raise", "event": "LATER", "delay": "PT2H", "id": "later"}
    charts = versions(small(a={"entry": entry}), small(b={}))
    moved = migrated(charts, standing(charts[0]), {"a": "b"})
    assert moved.snapshot.timers["later"].due == 2 * HOUR
    assert moved.summary["timers_kept"] == ["later"]


def test_timers_due_at_one_moment_keep_their_order() -> None:
    entry = {"type": "raise", "event": "R", "delay": "PT1H", "id": "r"}
    old = small(a={"entry": entry, "after": {"PT1H": "b"}}, b={})
    charts = versions(old, small(x={"after": {"PT1H": "b"}}, b={}))
    assert list(migrated(charts, standing(charts[0]), {"a": "x"}).snapshot.timers) == ["r", "xstate.after.PT1H.c.x"]


def test_a_new_delay_is_worked_out_on_the_new_context() -> None:
    new = small(a={"after": {"wait": "b"}}, b={}) | {"delays": {"wait": {"@expr": "context.hours * 3600000"}}}
    charts = versions(small(a={}), new)
    snapshot = standing(charts[0])
    assert refused(charts, snapshot)[0].startswith("/delays/wait: cannot be worked out by a migration")
    moved = migrated(charts, snapshot, context={"hours": 2})
    assert [t.due for t in moved.snapshot.timers.values()] == [3 * HOUR]
    assert "expected 0 to a thousand years" in refused(charts, snapshot, context={"hours": -2})[0]


# -- children


def invoking(id_: str | None, src: Any = "f") -> dict[str, Any]:
    return {"invoke": {"src": src, "onDone": "end", "onError": "end"} | ({"id": id_} if id_ else {})}


def test_a_child_goes_on_where_the_new_state_has_its_invoke() -> None:
    charts = versions(small(a=invoking("i"), end={}), small(x=invoking("i"), end={}))
    moved = migrated(charts, standing(charts[0]), {"a": "x"})
    assert moved.snapshot.children == standing(charts[0]).children
    assert moved.summary["children_kept"] == ["i"]
    event = {"type": "xstate.done.actor.i", "output": 1}
    turn = advance(charts[1], moved.snapshot, event, 0, Answer("child", "i", moved.snapshot.children["i"].visit))
    assert (turn.state, turn.stale) == ("end", False)


def test_a_child_without_a_place_is_stopped_only_if_so_asked() -> None:
    charts = versions(small(a=invoking("i", {"workflow": "w"}), end={}), small(a={}))
    snapshot = standing(charts[0])
    [problem] = refused(charts, snapshot)
    assert problem.startswith("/stop/i: the child 'i' is running")
    moved = migrated(charts, snapshot, stop=["i"])
    assert moved.snapshot.children == {}
    [stop] = moved.effects
    assert stop == ("stop", {"id": "i", "visit": 1, "answered": False, "workflow": True})
    assert refused(charts, snapshot, stop=["i", "j"]) == ["/stop/j: no child 'j' is running"]


def test_a_generated_invoke_id_does_not_survive_another_state_name() -> None:
    charts = versions(small(a=invoking(None), end={}), small(x=invoking(None), end={}))
    problems = refused(charts, standing(charts[0]), {"a": "x"})
    assert [p.split(":")[0] for p in problems] == ["/stop/0.c.a", "/start/0.c.x"]


def test_a_new_invoke_is_started_only_if_so_asked() -> None:
    src = {"task": {"type": "HTTP", "name": "call", "url": {"@expr": "context.url"}}}
    charts = versions(small(a={}), small(a=invoking("i", src), end={}))
    snapshot = standing(charts[0])
    assert refused(charts, snapshot)[0].startswith("/start/i: a invokes 'i', which is not running")
    assert "cannot be worked out" in refused(charts, snapshot, start=["i"])[0]
    moved = migrated(charts, snapshot, start=["i"], context={"url": "https://x.example"})
    [invoke] = moved.effects
    assert invoke.body["src"]["task"]["url"] == "https://x.example"
    assert moved.snapshot.children["i"].visit == invoke.body["visit"] == 1
    assert refused(charts, snapshot, start=["j"])[0].startswith("/start/j: no state to stand in has an invoke 'j'")


def test_a_child_is_stopped_and_started_anew() -> None:
    charts = versions(small(a=invoking("i"), end={}), small(a=invoking("i", {"workflow": "w"}), end={}))
    moved = migrated(charts, standing(charts[0]), stop=["i"], start=["i"])
    assert [e.type for e in moved.effects] == ["stop", "invoke"]
    assert moved.snapshot.children["i"].workflow
    assert migrated(charts, standing(charts[0]), stop=["i"]).snapshot.children == {}


def test_answers_that_wait_and_an_incident_stay() -> None:
    charts = versions(small(a={}), small(a={}, b={}))
    snapshot = msgspec.structs.replace(standing(charts[0]), incident={"message": "x"})
    assert migrated(charts, snapshot).snapshot.incident == {"message": "x"}


# -- laws


WALKS = {
    "order": (ORDER, {"items": []}, ["PAY", "CANCEL", "PACKED"]),
    "expense": (EXPENSE, CLAIM, ["SUGGESTED", "HOLD", "RESUME", "APPROVE", "WITHDRAW"]),
    "booking": (BOOKING, {"to": "Rome"}, ["CANCEL", "SETTLED", "LATE"]),
    "editor": (EDITOR, None, ["TYPE", "SAVE", "OUTLINE", "PAGE", "MINIMIZE", "RESTORE"]),
}


@given(st.data())
def test_a_migration_to_the_same_chart_changes_nothing_but_the_version(data: st.DataObject) -> None:
    document, input_, events = WALKS[data.draw(st.sampled_from(sorted(WALKS)))]
    charts = versions(document, document)
    snapshot = standing(charts[0], *data.draw(st.lists(st.sampled_from(events), max_size=8)), input_=input_)
    found = plan_migration(*charts, snapshot, {}, now=DAY)
    if snapshot.status != "active":
        assert isinstance(found, list)
        return
    assert isinstance(found, Migration)
    same = {"definition": found.snapshot.definition, "seq": found.snapshot.seq}
    assert msgspec.structs.replace(snapshot, **same) == found.snapshot
    assert found.effects == ()


@given(st.data())
def test_any_map_leads_to_a_snapshot_that_can_be_read_or_to_problems(data: st.DataObject) -> None:
    one, two = (WALKS[data.draw(st.sampled_from(sorted(WALKS)))] for _ in range(2))
    charts = versions(one[0], two[0])
    snapshot = standing(charts[0], *data.draw(st.lists(st.sampled_from(one[2]), max_size=6)), input_=one[1])
    paths = [[n.path.replace("/states/", ".")[1:] for n in chart.nodes if n.parent is not None] for chart in charts]
    states = data.draw(st.dictionaries(st.sampled_from(paths[0]), st.sampled_from(paths[1]), max_size=12))
    enter = data.draw(st.lists(st.sampled_from(paths[1]), max_size=2))
    running = sorted(snapshot.children)
    found = plan_migration(*charts, snapshot, states, now=0, enter=enter, stop=running, start=["payment", "flight"])
    if isinstance(found, Migration):
        again = snapshot_from(charts[1], snapshot_text(found.snapshot))
        advance(charts[1], again, {"type": "CANCEL"}, 0)
    else:
        assert found
        assert all(problem.path == "" or problem.path.startswith("/") for problem in found)
