"""The chart format as a JSON Schema, for editors and for anybody who writes charts by program.

It says what can be said without looking elsewhere in the document: shapes, names, unknown keys. That a target exists or
an expression compiles is the compiler's to say. What the schema refuses, the compiler refuses too; a test holds them
together. `docs/chart.schema.json` is this value, written out.
"""

from __future__ import annotations

import json

from holdfast.engine.charts.schema_behaviour import ACTIONS, actions, guards, invokes, transitions
from holdfast.engine.charts.schema_tasks import tasks
from holdfast.engine.charts.schema_words import (
    HANDLED,
    NAME,
    STATE_ID,
    STATE_NAME,
    Schema,
    object_,
    ref,
    text,
    values,
    with_,
)

ID = "https://holdfast.dev/schemas/chart-1.json"


def _of_states() -> Schema:
    return {
        "initial": {
            "description": "The state inside that is entered first, or {target, actions}.",
            "type": ["null", "string", "object"],
            "properties": {
                "target": text("The name of a state inside.", minLength=1),
                "actions": ref("actions"),
                "description": {"description": "For people."},
                "meta": {"description": "Anything; the engine does not look at it."},
            },
            "required": ["target"],
            "additionalProperties": False,
        },
        "states": {
            "description": "The states inside, in document order.",
            "type": "object",
            "propertyNames": {"pattern": STATE_NAME},
            "additionalProperties": ref("state"),
        },
        "type": {
            "description": "Left out: compound if there are states inside, else atomic.",
            "enum": [None, "atomic", "compound", "parallel", "final", "history"],
        },
        "on": {
            "description": "Event → transitions. Wildcards stand alone (*) or at the end (order.*).",
            "type": "object",
            "propertyNames": {"pattern": HANDLED},
            "additionalProperties": ref("transitions"),
        },
        "always": ref("transitions", "Taken as soon as a guard holds, without an event."),
        "after": {
            "description": "Span of time → transitions: milliseconds, an ISO 8601 duration or a name of `delays`, "
            "counted from entering the state.",
            "type": "object",
            "additionalProperties": ref("transitions"),
        },
        "entry": ref("actions", "Run when the state is entered."),
        "exit": ref("actions", "Run when the state is left."),
        "invoke": ref("invokes"),
        "onDone": ref("transitions", "Taken when the states inside have come to a final state."),
        "tags": {
            "description": "Words that expressions see in state.tags.",
            "type": ["string", "array"],
            "items": {"type": "string"},
        },
        "description": text("For people."),
        "meta": {"description": "Anything; the engine does not look at it."},
        "output": ref("value", "Of a final state: what onDone sees as event.output. Of the chart: its result."),
        "id": {
            "description": "A name unique in the chart, for targets written #id.",
            "type": ["string", "null"],
            "pattern": STATE_ID,
        },
    }


_ORDINARY = (
    "id", "initial", "states", "type", "on", "always", "after", "entry", "exit", "invoke", "onDone", "tags",
    "description", "meta",
)  # fmt: skip
_FINAL = ("id", "type", "entry", "exit", "output", "tags", "description", "meta")
_ROOT = (
    "initial", "states", "type", "on", "always", "after", "entry", "exit", "invoke", "tags", "description", "meta",
    "output",
)  # fmt: skip


def _inside_rules(*, root: bool) -> list[Schema]:
    """Which keys go together in a state that may have states inside."""
    filled = {"minProperties": 1}
    parallel = with_("type", {"const": "parallel"})
    rules: list[Schema] = [
        {
            "if": parallel,
            "then": {"properties": {"states": filled, "initial": {"type": "null"}}, "required": ["states"]},
            "else": {
                "if": with_("states", filled),
                "then": {"required": ["initial"], "properties": {"initial": {"type": ["string", "object"]}}},
            },
        },
        {
            "if": with_("type", {"const": "compound"}),
            "then": {"required": ["states"], "properties": {"states": filled}},
        },
        {"if": with_("type", {"const": "atomic"}), "then": {"properties": {"states": {"maxProperties": 0}}}},
    ]
    if not root:
        rules.append(
            {
                "if": {"not": with_("states", filled)},
                "then": {"properties": {"initial": {"type": "null"}, "onDone": False}},
            }
        )
    return rules


def _states() -> Schema:
    of = _of_states()
    any_of_history = {
        "type": "object",
        "required": ["history"],
        "properties": {
            "type": {"type": "null"},
            "history": {"not": {"enum": [None, False, 0, "", [], {}]}},
            "states": {"maxProperties": 0},
        },
    }
    history = object_(
        {
            "id": of["id"],
            "type": of["type"],
            "history": {
                "description": "shallow: the state directly inside that was active last; deep: all of them.",
                "enum": ["shallow", "deep", True],
            },
            "target": {
                "description": "Where to go when there is nothing to remember yet.",
                "type": ["string", "array"],
                "minLength": 1,
                "items": ref("target"),
            },
            "description": {"description": "For people."},
            "meta": of["meta"],
        },
        description="Remembers what was active in its parent and leads there again.",
    )
    ordinary = object_(
        {key: of[key] for key in _ORDINARY} | {"output": False},
        description="A state: atomic, compound (with `initial` and `states`) or parallel.",
        allOf=_inside_rules(root=False),
    )
    return {
        "state": {
            "type": "object",
            "properties": {"type": of["type"]},
            "if": with_("type", {"const": "final"}),
            "then": ref("finalState"),
            "else": {
                "if": {"anyOf": [with_("type", {"const": "history"}), any_of_history]},
                "then": ref("historyState"),
                "else": ref("ordinaryState"),
            },
        },
        "ordinaryState": ordinary,
        "finalState": object_(
            {key: of[key] for key in _FINAL}, description="Entering it means that its parent is done."
        ),
        "historyState": history,
    }


def _root() -> Schema:
    of = _of_states()
    properties: Schema = {
        "$schema": {"description": "This schema, for editors."},
        "id": text("The chart's name; generated state ids begin with it.", pattern=NAME),
        "context": {"type": "object", **ref("value", "The fields an instance starts with; event.input is its input.")},
        "inputSchema": {
            "description": "A JSON Schema of the input an instance is started with.",
            "type": ["object", "null"],
        },
        "guards": {
            "description": "Name → guard.",
            "type": "object",
            "additionalProperties": ref("guard"),
        },
        "actions": {
            "description": "Name → action or list of actions. The names of built-in actions are taken.",
            "type": "object",
            "propertyNames": {"not": {"enum": list(ACTIONS)}},
            "additionalProperties": ref("actions"),
        },
        "delays": {
            "description": "Name → span of time, for `after` and for raise.",
            "type": "object",
            "additionalProperties": ref("span"),
        },
        "@exprLang": {"description": "The language of all expressions.", "const": "cel"},
    }
    properties |= {key: of[key] for key in _ROOT}
    properties["type"] = {"description": "compound (if left out) or parallel.", "enum": [None, "compound", "parallel"]}
    properties["states"] = {**of["states"], "minProperties": 1}
    return object_(properties, ("states",), allOf=_inside_rules(root=True))


CHART_SCHEMA: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": ID,
    "title": "Holdfast chart",
    "description": "A statechart in XState's words, whose actions create durable tasks. Key order is meaning.",
    **_root(),
    "$defs": _states() | transitions() | guards() | actions() | tasks() | invokes() | values(),
}


def schema_text() -> str:
    """The schema as it is published in docs/chart.schema.json."""
    return json.dumps(CHART_SCHEMA, indent=2, ensure_ascii=False) + "\n"
