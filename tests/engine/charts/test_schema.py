"""The published schema and the compiler say the same: both take every good chart, both refuse every fault of form."""

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.charts import compile_actions, compile_transitions, compiler, task_params
from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.document import BadChart, Problem
from holdfast.engine.charts.schema import CHART_SCHEMA, schema_text
from tests.engine.charts.test_lint import REALISTIC

PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "chart.schema.json"
VALIDATOR = jsonschema_rs.Draft202012Validator(CHART_SCHEMA)
EXPR = {"@expr": "context.n == 1"}


def problems_of(document: Any) -> list[Problem]:
    try:
        compile_chart(doc.reread(document))
    except BadChart as refused:
        return refused.problems
    return []


# -- what is published


def test_the_published_file_is_the_schema_written_out() -> None:
    assert PUBLISHED.read_text() == schema_text()
    assert json.loads(schema_text()) == CHART_SCHEMA
    assert CHART_SCHEMA["$id"] == "https://holdfast.dev/schemas/chart-1.json"


def test_the_schema_is_a_schema() -> None:
    jsonschema_rs.meta.validate(CHART_SCHEMA)


def _properties(name: str) -> set[str]:
    found = CHART_SCHEMA if name == "" else CHART_SCHEMA["$defs"][name]
    return {key for key, value in found["properties"].items() if value is not False}


def test_the_schema_knows_the_keys_that_the_compiler_knows() -> None:
    assert _properties("") == compiler.ROOT_KEYS
    assert _properties("ordinaryState") | {"output"} == compiler.STATE_KEYS
    assert _properties("finalState") == compiler.FINAL_KEYS
    assert _properties("historyState") == compiler.HISTORY_KEYS
    assert _properties("transition") == compile_transitions.TRANSITION_KEYS
    for type_, own in task_params.OF_TYPE.items():
        assert _properties(f"task.{type_}") == task_params.COMMON | own, type_
    named = {name.removeprefix("action.") for name in CHART_SCHEMA["$defs"] if name.startswith("action.")}
    assert named == set(compile_actions.BUILT_IN)


def test_everything_an_editor_shows_is_described() -> None:
    for name in ("", "ordinaryState", "finalState", "historyState", "transition", "invoke", *(
        f"task.{type_}" for type_ in task_params.OF_TYPE
    )):  # fmt: skip
        found = CHART_SCHEMA if name == "" else CHART_SCHEMA["$defs"][name]
        for key, value in found["properties"].items():
            if value is False or key == "type":
                continue
            target = CHART_SCHEMA["$defs"][value["$ref"].rpartition("/")[2]] if "$ref" in value else {}
            inner = value.get("anyOf", [{}])[-1]
            described = value.get("description") or target.get("description") or inner.get("$ref")
            assert described, f"{name}/{key}"


# -- good charts

EVERYTHING: dict[str, Any] = {
    "$schema": "https://holdfast.dev/schemas/chart-1.json",
    "id": "everything",
    "@exprLang": "cel",
    "description": "One of each.",
    "meta": {"owner": {"@expr": "not an expression here"}},
    "tags": "all",
    "inputSchema": {"type": "object"},
    "context": {"n": 0, "list": [1, {"x": {"@expr": "event.input", "@lang": "cel"}}]},
    "guards": {
        "a": EXPR, "b": "a", "c": {"type": "a"}, "d": {"type": "e", "params": {"x": 1}},
        "e": {"@expr": "params.x == 1"}, "f": {"and": ["a", {"or": ["b", {"not": "c"}]}]},
        "g": {"stateIn": "one"}, "h": {"stateIn": "#two"}, "i": {"stateIn": {"three": {"left": "l1", "right": {}}}},
    },
    "actions": {
        "x": {"type": "log"}, "y": ["x", {"type": "x", "params": {"n": EXPR}}], "z": [],
    },
    "delays": {"short": 5, "half": 0.5, "long": "P1W", "asked": {"@expr": "context.n * 1000"}},
    "initial": {"target": "one", "actions": ["x"], "description": "here", "meta": None},
    "entry": "x",
    "exit": [],
    "on": {"*": None, "a.*": [], "order.paid": ".one", "E": {"description": "stay"}},
    "always": {"guard": {"and": [EXPR, EXPR]}, "target": ".one", "reenter": True},
    "after": {"P1D": ".one", "1000": {"target": [".one"]}, "short": []},
    "invoke": [],
    "output": {"n": {"@expr": "context.n"}},
    "states": {
        "one": {
            "id": None, "type": None, "initial": None, "tags": ["a", "b"], "meta": [1], "description": "",
            "entry": [
                {"type": "assign", "assign": {"n": 1, "m": {"@expr": "context.n + 1"}}},
                {"type": "raise", "event": "E"},
                {"type": "raise", "event": {"type": "E", "x": EXPR}, "delay": "short", "id": "r"},
                {"type": "raise", "event": "E", "delay": 5, "id": None},
                {"type": "raise", "event": "E", "delay": {"@expr": "context.n"}},
                {"type": "cancel", "id": "r"},
                {"type": "choose", "conds": [{"guard": "a", "actions": ["x"]}, {"actions": {"type": "log"}}, {}]},
                {"type": "emit", "event": {"type": "out", "n": EXPR}},
                {"type": "send", "to": {"@expr": "context.other"}, "event": "E"},
                {"type": "send", "to": "ins_1", "event": {"type": "E"}},
                {"type": "log", "params": ["text", EXPR]},
                {"type": "cancelTask", "params": {"name": "t"}},
                {"type": "createTask", "params": {
                    "type": "HUMAN", "name": "t", "assignee": EXPR, "groups": ["g"], "form": {"@expr": 5},
                    "completion_event": "E", "failure_event": "E", "max_attempts": 3, "deadline": "PT1H",
                }},
                {"type": "createTask", "params": {"type": "TIMER", "name": "t", "run_at": {"@expr": "context.at"}}},
                {"type": "createTask", "params": {
                    "type": "AI", "name": "t", "prompt": {"id": "p", "version": 1, "user": "Hm?"},
                    "policy": {"allowed_events": ["E"], "human_only": True}, "schema": {}, "mode": "manual",
                }},
                {"type": "createTask", "params": {
                    "type": "EMAIL", "name": "t", "to": "a@b.example", "subject": "s", "text": "t",
                }},
            ],
            "on": {"GO": [{"target": ["three.left.l2", "three.right.r2"], "guard": None}, "two", None]},
            "invoke": [
                {"src": "handler"},
                {"id": "w", "src": {"workflow": "child", "version": 2}, "input": EXPR, "onDone": "two", "onError": []},
                {"id": "v", "src": {"workflow": "child", "version": None}, "description": 5, "meta": 5},
                {"id": "t", "src": {"task": {
                    "type": "HTTP", "name": "h", "url": EXPR, "outcomes": {"5xx": "unknown"},
                }}},
            ],
        },
        "two": {
            "id": "two", "type": "compound", "initial": "in",
            "states": {
                "in": {"type": "atomic", "states": {}},
                "h": {"type": "history", "history": "deep", "target": ["in"]},
                "h2": {"history": "shallow", "description": "past", "meta": 1},
                "h3": {"history": True, "target": "in"},
                "end": {"type": "final", "output": EXPR, "entry": "x", "exit": "x", "tags": [], "id": "the end"},
            },
            "onDone": {"target": "one", "meta": 1},
        },
        "three": {
            "type": "parallel", "onDone": "one", "initial": None,
            "states": {
                "left": {"initial": "l1", "states": {"l1": {}, "l2": {}}},
                "right": {"initial": "r1", "states": {"r1": {}, "r2": {}}},
                "past": {"history": "deep"},
            },
        },
    },
}  # fmt: skip
GOOD = REALISTIC | {
    "everything": EVERYTHING,
    "least": {"initial": "a", "states": {"a": {}}},
    "parallel": {"type": "parallel", "states": {"a": {}}},
    "names": {"id": "Bestellung 7", "initial": "ä ö", "states": {"ä ö": {"on": {"späß.*": {}, "日本": {}}}, "🙂": {}}},
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_chart_passes_both(name: str) -> None:
    assert problems_of(GOOD[name]) == []
    VALIDATOR.validate(GOOD[name])


# -- one fault each


class Fault(NamedTuple):
    at: str  # where something is put into EVERYTHING
    value: Any
    path: str | None = None  # where the compiler points; `at` if left out
    semantic: bool = False  # only the compiler can know


REMOVED = object()
ONE = "/states/one"
ENTRY = f"{ONE}/entry/0"
TASK = f"{ONE}/entry/12/params"
INVOKE = f"{ONE}/invoke/1"
FAULTS = [
    # the chart itself
    Fault("/staets", {}),
    Fault("/onDone", "one"),
    Fault("/id", "a.b"),
    Fault("/id", "a*"),
    Fault("/id", ""),
    Fault("/id", None),
    Fault("/id", "x" * 101),
    Fault("/@exprLang", "js"),
    Fault("/context", [1]),
    Fault("/context/n", {"@expr": "1 +"}, "/context/n/@expr", semantic=True),
    Fault("/context/n", {"@expr": ""}, "/context/n/@expr"),
    Fault("/context/n", {"@expr": 5}, "/context/n/@expr"),
    Fault("/context/n", {"@expr": "1", "@lang": "js"}, "/context/n/@lang"),
    Fault("/context/n", {"@expr": "1", "else": 2}, "/context/n/else"),
    Fault("/context/n", {"@lang": "cel"}, "/context/n/@lang"),
    Fault("/context/n", {"@expr": "params.x"}, "/context/n/@expr", semantic=True),
    Fault("/context/n", {"@expr": "nothing.x"}, "/context/n/@expr", semantic=True),
    Fault("/context/n", {"deep": [{"@expr": "a" * 4097}]}, "/context/n/deep/0/@expr"),
    Fault("/inputSchema", "object"),
    Fault("/type", "final", "/states"),
    Fault("/states", REMOVED, ""),
    Fault("/states", {}, ""),
    Fault("/states", [], "/states"),
    Fault("/initial", REMOVED, ""),
    Fault("/initial", "four", semantic=True),
    Fault("/initial", {"actions": []}, "/initial/target"),
    Fault("/initial", {"target": "one", "guard": EXPR}, "/initial/guard"),
    Fault("/initial", ["one"]),
    Fault("/guards", []),
    Fault("/guards/a", True),
    Fault("/guards/a", "zz", semantic=True),
    Fault("/guards/b", "b", semantic=True),
    Fault("/guards/a", {"@expr": "'text'"}, semantic=True),
    Fault("/guards/c", {"type": "a", "input": 1}, "/guards/c/input"),
    Fault("/guards/c", {"type": 5}, "/guards/c/type"),
    Fault("/guards/f", {"and": []}, "/guards/f/and"),
    Fault("/guards/f", {"or": "a"}, "/guards/f/or"),
    Fault("/guards/f", {"and": ["a"], "or": ["b"]}),
    Fault("/guards/f", {"xor": ["a"]}),
    Fault("/guards/f", {}),
    Fault("/guards/f", {"not": ["a"]}, "/guards/f/not"),
    Fault("/guards/g", {"stateIn": ""}, "/guards/g/stateIn"),
    Fault("/guards/g", {"stateIn": {}}, "/guards/g/stateIn"),
    Fault("/guards/g", {"stateIn": {"one": 5}}, "/guards/g/stateIn/one"),
    Fault("/guards/g", {"stateIn": "four"}, "/guards/g/stateIn", semantic=True),
    Fault("/actions", "x"),
    Fault("/actions/log", {"type": "log"}),
    Fault("/actions/x", "zz", semantic=True),
    Fault("/actions/x", 5),
    Fault("/actions/x", {"params": {}}),
    Fault("/actions/y/1", {"type": "x", "event": "E"}, "/actions/y/1/event"),
    Fault("/actions/x", ["y"], "/actions/y/0", semantic=True),
    Fault("/delays/short", -1),
    Fault("/delays/short", True),
    Fault("/delays/short", "P1M"),
    Fault("/delays/short", "soon"),
    Fault("/delays/short", "PT"),
    Fault("/delays/short", None),
    Fault("/delays/asked", {"ms": 5}),
    # states
    Fault("/states/a.b", {}),
    Fault("/states/7", {}),
    Fault("/states/a~1b", {}),
    Fault("/states/" + "x" * 101, {}),
    Fault(ONE, "text"),
    Fault(f"{ONE}/oon", {}),
    Fault("/states/a*", {}),
    Fault(f"{ONE}/type", "fianl"),
    Fault(f"{ONE}/id", "o*e"),
    Fault(f"{ONE}/history", False),
    Fault(f"{ONE}/target", "two"),
    Fault("/states/two/history", "deep"),
    Fault("/states/two/target", "one"),
    Fault(f"{ONE}/id", "#one"),
    Fault(f"{ONE}/id", "two", "/states/two/id", semantic=True),
    Fault(f"{ONE}/initial", "in"),
    Fault(f"{ONE}/onDone", "two"),
    Fault(f"{ONE}/output", 5),
    Fault(f"{ONE}/tags", 5),
    Fault(f"{ONE}/tags", ["a", 5]),
    Fault(f"{ONE}/description", 5),
    Fault(f"{ONE}/on", ["GO"]),
    Fault(f"{ONE}/entry", None),
    Fault("/states/two/initial", REMOVED, "/states/two"),
    Fault("/states/two/states/in/states", {"x": {}}),
    Fault("/states/two/states/end/on", {}),
    Fault("/states/two/states/end/always", []),
    Fault("/states/two/states/h/entry", []),
    Fault("/states/two/states/h/history", "wide"),
    Fault("/states/two/states/h/target", "#one", semantic=True),
    Fault("/states/two/states/h/target", 5),
    Fault("/states/three/initial", "left"),
    Fault("/states/three/states", {}, "/states/three"),
    Fault("/states/three/states", {"h": {"type": "history"}}, "/states/three", semantic=True),
    # transitions
    Fault(f"{ONE}/on/a*", "two"),
    Fault(f"{ONE}/on/*.a", "two"),
    Fault(f"{ONE}/on/" + "e" * 201, "two"),
    Fault(f"{ONE}/on/GO", 5),
    Fault(f"{ONE}/on/GO", ""),
    Fault(f"{ONE}/on/GO", "four", semantic=True),
    Fault(f"{ONE}/on/GO", "#four", semantic=True),
    Fault(f"{ONE}/on/GO", [["two"]], f"{ONE}/on/GO/0"),
    Fault(f"{ONE}/on/GO", {"targets": "two"}, f"{ONE}/on/GO/targets"),
    Fault(f"{ONE}/on/GO", {"cond": EXPR}, f"{ONE}/on/GO/cond"),
    Fault(f"{ONE}/on/GO", {"target": []}, f"{ONE}/on/GO/target"),
    Fault(f"{ONE}/on/GO", {"target": [5]}, f"{ONE}/on/GO/target/0"),
    Fault(f"{ONE}/on/GO", {"target": ["one", "two"]}, f"{ONE}/on/GO/target", semantic=True),
    Fault(f"{ONE}/on/GO", {"reenter": "yes"}, f"{ONE}/on/GO/reenter"),
    Fault(f"{ONE}/on/GO", {"guard": 5}, f"{ONE}/on/GO/guard"),
    Fault(f"{ONE}/on/GO", {"actions": None}, f"{ONE}/on/GO/actions"),
    Fault("/always", "one", semantic=True),
    Fault("/after", "P1D"),
    Fault("/after/soon", ".one", semantic=True),
    Fault("/after/P1Y", ".one", semantic=True),
    Fault("/after/01000", ".one", semantic=True),
    Fault(f"{ONE}/on/xstate.done.actor.w", "two", f"{INVOKE}/onDone", semantic=True),
    Fault("/states/two/on", {"xstate.done.state.two": "one"}, "/states/two/onDone", semantic=True),
    # actions
    Fault(f"{ENTRY}/values", 1),
    Fault(f"{ENTRY}/assign", REMOVED),
    Fault(f"{ENTRY}/assign", {}),
    Fault(f"{ENTRY}/assign", EXPR),
    Fault(f"{ONE}/entry/1/event", "xstate.done"),
    Fault(f"{ONE}/entry/1/event", "*"),
    Fault(f"{ONE}/entry/1/event", {"name": "E"}),
    Fault(f"{ONE}/entry/1/event", REMOVED),
    Fault(f"{ONE}/entry/2/delay", "soon", semantic=True),
    Fault(f"{ONE}/entry/2/delay", -5),
    Fault(f"{ONE}/entry/2/delay", {"ms": 5}),
    Fault(f"{ONE}/entry/2/id", "xstate.after.5"),
    Fault(f"{ONE}/entry/2/to", "self"),
    Fault(f"{ONE}/entry/5/id", REMOVED),
    Fault(f"{ONE}/entry/5/id", 5),
    Fault(f"{ONE}/entry/6/conds", []),
    Fault(f"{ONE}/entry/6/conds/1", "x"),
    Fault(f"{ONE}/entry/6/conds/0/guard", None),
    Fault(f"{ONE}/entry/6/conds/0/target", "two"),
    Fault(f"{ONE}/entry/7/event", {"@expr": "event"}),
    Fault(f"{ONE}/entry/9/to", 5),
    Fault(f"{ONE}/entry/9/to", REMOVED),
    Fault(f"{ONE}/entry/9/to", {"id": "ins_1"}),
    Fault(f"{ONE}/entry/10/message", "x"),
    Fault(f"{ONE}/entry/11/params", {"id": "t"}),
    Fault(f"{ONE}/entry/11/params", REMOVED),
    # tasks and invokes
    Fault(TASK, REMOVED),
    Fault(TASK, {"@expr": "context.task"}),
    Fault(f"{TASK}/type", "ROBOT"),
    Fault(f"{TASK}/name", REMOVED),
    Fault(f"{TASK}/name", ""),
    Fault(f"{TASK}/name", "a#b"),
    Fault(f"{TASK}/name", EXPR),
    Fault(f"{TASK}/url", "https://x.example"),
    Fault(f"{TASK}/completion_event", {"@expr": "'E'"}),
    Fault(f"{TASK}/failure_event", "xstate.error.x"),
    Fault(f"{TASK}/max_attempts", 0),
    Fault(f"{TASK}/max_attempts", "3"),
    Fault(f"{TASK}/run_at", "2027-01-31T09:00:00Z"),
    Fault(f"{TASK}/deadline", "soon"),
    Fault(f"{TASK}/deadline", None),
    Fault(f"{TASK}/deadline", {}),
    Fault(f"{TASK}/deadline", {"ms": 5}, semantic=True),
    Fault(f"{TASK}/due_in", "P1M"),
    Fault(f"{TASK}/follow_up_in", -1),
    Fault(f"{TASK}/deadline", True),
    Fault(f"{TASK}/timeout", "30 s"),
    Fault(f"{ONE}/invoke/3/src/task/window", "a day"),
    Fault(f"{TASK}/due_at", "tomorrow"),
    Fault(f"{TASK}/due_at", 5),
    Fault(f"{TASK}/follow_up_at", "2027-01-31T09:00:00", semantic=True),
    Fault(f"{ONE}/entry/13/params/run_at", None),
    Fault(f"{TASK}/priority", "high"),
    Fault(f"{TASK}/priority", 1001),
    Fault(f"{ONE}/entry/14/params/mode", "fast"),
    Fault(f"{ONE}/entry/14/params/model", {"@expr": "1 +"}, f"{ONE}/entry/14/params/model/@expr", semantic=True),
    Fault(f"{TASK}/form", "schema"),
    Fault(f"{TASK}/form", {"type": "no such type"}, semantic=True),
    Fault(f"{ONE}/entry/13/params/run_at", REMOVED, f"{ONE}/entry/13/params"),
    Fault(f"{ONE}/entry/13/params/calendar", {"time": "09:00"}, f"{ONE}/entry/13/params/run_at"),
    Fault(f"{ONE}/entry/14/params/prompt", REMOVED, f"{ONE}/entry/14/params"),
    Fault(f"{ONE}/entry/14/params/prompt/user", 5, f"{ONE}/entry/14/params"),
    Fault(f"{ONE}/entry/14/params/policy/allow", [], f"{ONE}/entry/14/params"),
    Fault(f"{ONE}/entry/14/params/policy/mode", "act", f"{ONE}/entry/14/params"),
    Fault(f"{ONE}/entry/14/params/policy/allowed_events", ["*"], f"{ONE}/entry/14/params"),
    Fault(f"{ONE}/entry/14/params/policy/confidence_min", 2, f"{ONE}/entry/14/params"),
    Fault(f"{ONE}/entry/15/params/subject", REMOVED),
    Fault(f"{ONE}/entry/15/params/text", REMOVED),
    Fault(f"{ONE}/invoke/3/src/task/url", REMOVED),
    Fault(f"{ONE}/invoke/3/src/task/outcomes", {"409": "fine"}),
    Fault(INVOKE, "child"),
    Fault(f"{INVOKE}/onSuccess", "two"),
    Fault(f"{INVOKE}/id", 5),
    Fault(f"{INVOKE}/id", "a*"),
    Fault(f"{INVOKE}/id", "v", f"{ONE}/invoke/2/id", semantic=True),
    Fault(f"{INVOKE}/src", REMOVED),
    Fault(f"{INVOKE}/src", ""),
    Fault(f"{INVOKE}/src", {"function": "f"}),
    Fault(f"{INVOKE}/src/version", 0),
    Fault(f"{INVOKE}/src/workflow", ""),
    Fault(f"{INVOKE}/src/task", {"type": "SYSTEM", "name": "f"}, f"{INVOKE}/src"),
    Fault(f"{ONE}/invoke/3/src/task/completion_event", "E"),
    Fault(f"{ONE}/invoke", None),
]


def faulty(fault: Fault) -> dict[str, Any]:
    document = copy.deepcopy(EVERYTHING)
    at: Any = document
    *way, last = [piece.replace("~1", "/").replace("~0", "~") for piece in fault.at.split("/")[1:]]
    for piece in way:
        at = at[int(piece)] if isinstance(at, list) else at[piece]
    if fault.value is REMOVED:
        del at[last]
    elif isinstance(at, list):
        at[int(last)] = fault.value
    else:
        at[last] = fault.value
    return document


def shown(fault: Fault) -> str:
    value = "removed" if fault.value is REMOVED else json.dumps(fault.value)[:40]
    return f"{fault.at[:60]} {value}"


@pytest.mark.parametrize("fault", FAULTS, ids=shown)
def test_a_fault_is_refused_with_its_place(fault: Fault) -> None:
    document = faulty(fault)
    paths = [problem.path for problem in problems_of(document)]
    assert (fault.at if fault.path is None else fault.path) in paths
    assert VALIDATOR.is_valid(document) is fault.semantic


def test_there_are_enough_of_them() -> None:
    assert len(FAULTS) >= 60
    assert sum(not fault.semantic for fault in FAULTS) >= 60


# -- random damage

JUNK: list[Any] = [
    None, True, False, 0, -1, 3, 2.5, "", "x", "#x", "a.b", "xstate.x", "*", "P1D", [], ["x"], {}, {"x": 1},
    {"@expr": "context.n"}, {"@expr": ""}, {"@lang": "cel"}, {"type": "x"}, {"target": "x"}, [[]], [None],
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


PLACES = {name: [place for place in places(document) if place] for name, document in GOOD.items()}


@given(st.data())
def test_what_the_schema_refuses_the_compiler_refuses_too(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(GOOD)))
    document = copy.deepcopy(GOOD[name])
    *way, last = data.draw(st.sampled_from(PLACES[name]))
    at: Any = document
    for key in way:
        at = at[key]
    do = data.draw(st.sampled_from(["put", "remove", "add"]))
    if do == "remove":
        del at[last]
    elif do == "add" and isinstance(at, dict):
        word = data.draw(
            st.sampled_from(["x", "type", "on", "target", "guard", "history", "@expr", "@lang", "states", "a.b"])
        )
        at[word] = data.draw(st.sampled_from(JUNK))
    else:
        at[last] = data.draw(st.sampled_from(JUNK))
    if not VALIDATOR.is_valid(document):
        assert problems_of(document), next(iter(VALIDATOR.iter_errors(document)))
