"""What the compiler refuses: each fault with the path of what has to be mended, and what only looks like one."""

import time
from contextlib import suppress
from typing import Any

import pytest

from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compile_guards import LEVELS_LIMIT
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.difference import difference
from holdfast.engine.charts.document import BadChart, Problem
from holdfast.engine.charts.interpreter import advance, start
from holdfast.engine.charts.lint import lint
from holdfast.engine.charts.mermaid import mermaid
from holdfast.engine.charts.svg import svg


def problems(document: dict[str, Any]) -> list[Problem]:
    try:
        compile_chart(doc.reread(document))
    except BadChart as refused:
        return refused.problems
    return []


def only(document: dict[str, Any]) -> Problem:
    """The one fault that there is."""
    [problem] = problems(document)
    assert problem.level == "error"
    return problem


def with_states(**states: Any) -> dict[str, Any]:
    """A chart that is fine, but for these states. Its first is `first`."""
    return {
        "id": "c",
        "initial": "first",
        "states": {"first": {"on": {"GO": "end"}}, "end": {"type": "final"}} | states,
    }


def running(action: dict[str, Any]) -> dict[str, Any]:
    return with_states(first={"entry": action, "on": {"GO": "end"}})


def test_the_chart_that_the_others_spoil_is_fine() -> None:
    assert problems(with_states()) == []


# -- names: events of our own are made of them, and a star in an event is a wildcard


def test_a_star_in_the_name_of_a_state_is_refused() -> None:
    problem = only(with_states(**{"a*": {"on": {"GO": "end"}}}))
    assert problem.path == "/states/a*"
    assert "no . # * / or \\" in problem.message


def test_a_star_in_an_id_is_refused() -> None:
    assert only(with_states() | {"id": "c*"}).path == "/id"
    assert only(with_states(first={"id": "*", "on": {"GO": "end"}})).path == "/states/first/id"


@pytest.mark.parametrize("id_", ["*", "pay*", "order.*"])
def test_a_star_in_the_id_of_an_invoke_is_refused(id_: str) -> None:
    problem = only(with_states(first={"invoke": {"id": id_, "src": "f", "onDone": "end"}}))
    assert problem.path == "/states/first/invoke/id"
    assert "without *" in problem.message


# -- history words


@pytest.mark.parametrize(("key", "value"), [("target", "end"), ("history", False)])
def test_history_words_in_an_ordinary_state_are_refused(key: str, value: Any) -> None:
    problem = only(with_states(first={"on": {"GO": "end"}, key: value}))
    assert problem.path == f"/states/first/{key}"
    assert "not known here" in problem.message


@pytest.mark.parametrize("type_", ["atomic", "compound", "parallel"])
def test_a_type_that_is_not_history_takes_no_history_words(type_: str) -> None:
    inside = {} if type_ == "atomic" else {"states": {"in": {}}} | ({"initial": "in"} if type_ == "compound" else {})
    document = with_states(first={"type": type_, "history": "deep", "target": "end", "on": {"GO": "end"}, **inside})
    assert [p.path for p in problems(document)] == ["/states/first/history", "/states/first/target"]


def test_a_state_with_nothing_but_history_is_a_history_state() -> None:
    past = {"in": {}, "past": {"history": "deep", "target": "in"}}
    assert problems(with_states(first={"initial": "in", "states": past, "on": {"GO": "end"}})) == []


# -- invokes that would answer for each other

INVOKE = {"id": "i", "src": "f", "onDone": "#c.end", "onError": "#c.end"}


def test_two_invokes_of_one_id_in_regions_are_refused() -> None:
    document = with_states(first={"type": "parallel", "states": {"l": {"invoke": INVOKE}, "r": {"invoke": INVOKE}}})
    problem = only(document)
    assert problem.path == "/states/first/states/r/invoke/id"
    assert "/states/first/states/l/invoke has the id 'i' too" in problem.message


def test_two_invokes_of_one_id_deep_in_regions_are_refused() -> None:
    deep = {"initial": "a", "states": {"a": {"on": {"NEXT": "b"}}, "b": {"invoke": [INVOKE]}}}
    document = with_states(first={"type": "parallel", "states": {"l": deep, "m": {}, "r": deep}})
    problem = only(document)
    assert problem.path == "/states/first/states/r/states/b/invoke/0/id"
    assert "/states/first/states/l/states/b/invoke/0 has" in problem.message


def test_an_invoke_with_the_id_of_one_around_it_is_refused() -> None:
    document = with_states(first={"invoke": INVOKE, "initial": "in", "states": {"in": {"invoke": INVOKE}}})
    assert only(document).path == "/states/first/states/in/invoke/id"
    inner = {"initial": "in", "states": {"in": {"invoke": INVOKE | {"onDone": "#c.first", "onError": "#c.first"}}}}
    around = with_states(first=inner) | {"invoke": INVOKE}
    assert only(around).path == "/states/first/states/in/invoke/id"


def test_two_invokes_of_one_id_in_one_state_are_refused() -> None:
    problem = problems(with_states(first={"invoke": [INVOKE, {"id": "i", "src": "g"}]}))[0]
    assert problem.path == "/states/first/invoke/1/id"


def test_states_that_are_never_active_together_may_share_the_id_of_an_invoke() -> None:
    assert problems(with_states(first={"invoke": INVOKE}, second={"invoke": INVOKE})) == []
    one_region = {"initial": "a", "states": {"a": {"invoke": INVOKE}, "b": {"invoke": INVOKE}}}
    assert problems(with_states(first={"type": "parallel", "states": {"l": one_region, "r": {}}})) == []


def test_one_id_in_every_state_is_looked_at_in_no_time() -> None:
    """Comparing every invoke with every other would take many seconds here."""
    states = {f"s{n}": {"invoke": [{"id": f"i{k}", "src": "f"} for k in range(8)]} for n in range(1_800)}
    document = doc.reread({"id": "c", "initial": "s0", "states": states})
    began = time.process_time()
    compile_chart(document)
    assert time.process_time() - began < 5


# -- an event said twice


def test_an_on_done_that_repeats_an_on_is_refused() -> None:
    inside = {"initial": "in", "states": {"in": {"type": "final"}}, "onDone": "end"}
    document = with_states(first={"id": "f", "on": {"xstate.done.state.f": "end"}, **inside})
    problem = only(document)
    assert problem.path == "/states/first/onDone"
    assert "say it in one place" in problem.message


@pytest.mark.parametrize(("key", "word"), [("onDone", "done"), ("onError", "error")])
def test_an_answer_of_an_invoke_that_repeats_an_on_is_refused(key: str, word: str) -> None:
    on = {f"xstate.{word}.actor.i": "end", "GO": "end"}
    assert only(with_states(first={"on": on, "invoke": {"id": "i", "src": "f", key: "end"}})).path == (
        f"/states/first/invoke/{key}"
    )
    assert problems(with_states(first={"on": on, "invoke": {"id": "j", "src": "f", key: "end"}})) == []


@pytest.mark.parametrize(("one", "again"), [("5", "05"), ("0", "000"), ("1000", "01000")])
def test_a_delay_that_stands_twice_is_refused(one: str, again: str) -> None:
    problem = only(with_states(first={"after": {one: "end", again: "first"}}))
    assert problem.path == f"/states/first/after/{again}"
    assert "stands twice" in problem.message


def test_delays_of_one_length_in_other_words_are_two() -> None:
    document = with_states(first={"after": {"1000": "end", "PT1S": "first", "second": "end"}})
    assert problems(document | {"delays": {"second": 1000}}) == []


# -- spans of time


@pytest.mark.parametrize("value", [{}, {"ms": 5}, {"@lang": "cel"}, [5], None, True, "soon", "P1M", -1])
def test_a_delay_that_is_no_span_and_no_expression_is_refused(value: Any) -> None:
    assert only(with_states() | {"delays": {"d": value}}).path == "/delays/d"
    raise_ = {"type": "raise", "event": "GO", "delay": value}
    assert only(running(raise_)).path == "/states/first/entry/delay"


@pytest.mark.parametrize("value", [5, 0.5, "PT1H", {"@expr": "event.ms"}])
def test_a_span_or_an_expression_is_a_delay(value: Any) -> None:
    raise_ = {"type": "raise", "event": "GO", "delay": value}
    assert problems(running(raise_) | {"delays": {"d": value}}) == []


def task(**params: Any) -> dict[str, Any]:
    return running({"type": "createTask", "params": {"name": "t"} | params})


SPANS = [
    ("delay", {"type": "TIMER"}),
    ("deadline", {"type": "HUMAN"}),
    ("timeout", {"type": "SYSTEM"}),
    ("due_in", {"type": "HUMAN"}),
    ("follow_up_in", {"type": "HUMAN"}),
    ("window", {"type": "HTTP", "url": "https://x.example"}),
]


@pytest.mark.parametrize(("key", "params"), SPANS, ids=[key for key, _ in SPANS])
def test_a_span_of_a_task_that_is_none_is_refused(key: str, params: dict[str, Any]) -> None:
    for value in ("soon", "P1Y", -1, True, None, {"ms": 5}):
        assert only(task(**params, **{key: value})).path == f"/states/first/entry/params/{key}", value
    for value in ("PT5M", 5, {"@expr": "event.span"}):
        assert problems(task(**params, **{key: value})) == []


@pytest.mark.parametrize(("key", "type_"), [("run_at", "TIMER"), ("due_at", "HUMAN"), ("follow_up_at", "HUMAN")])
def test_a_moment_of_a_task_that_is_none_is_refused(key: str, type_: str) -> None:
    for value in ("tomorrow", "2027-01-31T09:00:00", 5, None):
        assert only(task(type=type_, **{key: value})).path == f"/states/first/entry/params/{key}", value
    for value in ("2027-01-31T09:00:00Z", {"@expr": "event.at"}):
        assert problems(task(type=type_, **{key: value})) == []


@pytest.mark.parametrize("key", ["delay", "run_at", "redact", "calendar"])
def test_what_a_person_cannot_be_told_is_refused(key: str) -> None:
    paths = [problem.path for problem in problems(task(type="HUMAN", **{key: "PT1H"}))]
    assert paths and set(paths) == {f"/states/first/entry/params/{key}"}


@pytest.mark.parametrize("given", [{"factor": [2]}, {"first": "soon"}, {"jitter": "0.2"}, {"often": 3}, "soon"])
def test_a_backoff_that_is_none_is_refused(given: Any) -> None:
    assert only(task(type="SYSTEM", backoff=given)).path.startswith("/states/first/entry/params/backoff")
    right = {"first": "PT1S", "factor": 2, "cap": {"@expr": "context.cap"}, "jitter": 0.1}
    assert problems(task(type="SYSTEM", backoff=right)) == []


def test_a_handler_is_written_out() -> None:
    assert only(task(type="SYSTEM", handler={"@expr": "event.name"})).path == "/states/first/entry/params/handler"


# -- addresses


@pytest.mark.parametrize("to", [5, None, True, ["ins_1"], {"id": "ins_1"}, {"id": {"@expr": "event.id"}}])
def test_a_send_to_what_is_no_text_is_refused(to: Any) -> None:
    problem = only(running({"type": "send", "to": to, "event": "E"}))
    assert problem.path == "/states/first/entry/to"
    assert "an instance's id" in problem.message


def test_a_send_goes_to_a_text_or_what_an_expression_gives() -> None:
    for to in ("ins_1", {"@expr": "event.id"}):
        assert problems(running({"type": "send", "to": to, "event": "E"})) == []


# -- several targets


def test_targets_that_cannot_be_active_together_are_refused_in_whatever_order_they_stand() -> None:
    region = {"initial": "a", "states": {"a": {}, "b": {}}}
    chart = {"id": "c", "type": "parallel", "states": {"l": region, "m": region, "r": region}}
    for targets in ([".r.a", ".l.b", ".m.a"], [".m.b", ".r.b"]):
        assert problems(chart | {"on": {"E": {"target": targets}}}) == []
    for targets in ([".l.a", ".r.a", ".l.b"], [".r", ".m.a", ".r.b"], [".l.a", ".m", ".l.a"]):
        assert only(chart | {"on": {"E": {"target": targets}}}).path == "/on/E/target"


# -- names that lead on and on


def chained(what: str, length: int, *, backwards: bool) -> dict[str, Any]:
    end: Any = {"@expr": "event.x == 1"} if what == "guards" else {"type": "log"}
    named = {f"n{n}": f"n{n + 1}" for n in range(length - 1)} | {f"n{length - 1}": end}
    if backwards:
        named = dict(reversed(named.items()))
    use = {"guard": "n0", "target": "end"} if what == "guards" else {"actions": "n0", "target": "end"}
    return with_states(first={"on": {"GO": use}}) | {what: named}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("what", ["guards", "actions"])
def test_a_chain_of_names_ends_somewhere(what: str, backwards: bool) -> None:
    for length in (LEVELS_LIMIT, 5_000):
        found = problems(chained(what, length, backwards=backwards))
        assert found and "deeper than 120 levels" in found[0].message


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("what", ["guards", "actions"])
def test_the_longest_chain_that_is_taken_can_be_followed_everywhere(what: str, backwards: bool) -> None:
    document = doc.reread(chained(what, LEVELS_LIMIT - 1, backwards=backwards))
    made = compile_chart(document)
    begun = start(made, None, 0)
    assert advance(made, begun.snapshot, {"type": "GO", "x": 1}, 0).snapshot.status == "done"
    assert lint(made, document) == []
    assert difference(made, with_states()).changes
    assert mermaid(made) and svg(made)


def test_nesting_without_names_has_room() -> None:
    guard: Any = {"@expr": "event.x == 1"}
    for _ in range(100):
        guard = {"not": guard}
    assert problems(with_states(first={"on": {"GO": {"target": "end", "guard": guard}}})) == []


@pytest.mark.parametrize(
    "spoiled",
    [
        {"guards": {f"g{n}": "nobody" for n in range(20_000)}},
        {"actions": {f"g{n}": "nobody" for n in range(20_000)}},
        {"after": {f"{n}": {} for n in range(15_000)}},
        {"invoke": [{"id": f"i{n}", "src": "f"} for n in range(15_000)]},
        {"on": {"E": {"target": [".first"] * 50_000}}},
    ],
    ids=["guards", "actions", "after", "invoke", "target"],
)
def test_a_great_many_of_anything_is_looked_at_in_no_time(spoiled: dict[str, Any]) -> None:
    document = doc.reread(with_states() | spoiled)
    began = time.process_time()
    with suppress(BadChart):
        compile_chart(document)
    assert time.process_time() - began < 3
