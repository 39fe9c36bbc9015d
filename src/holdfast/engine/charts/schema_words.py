"""The words that the chart schema is written in: patterns of names, small helpers, and values with expressions."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
NO_CONTROLS = r"[^\u0000-\u001f\u007f]"
EVENT = rf"^{NO_CONTROLS}{{1,200}}$"
OWN_EVENT = rf"^(?!\*$)(?!xstate\.){NO_CONTROLS}{{1,200}}$"
HANDLED = rf"^(?:\*|(?=.{{1,200}}$)(?:(?!\*){NO_CONTROLS})+(?:\.\*)?|\.\*)$"
NAME = r"^[^\u0000-\u001f\u007f.#*/\\]{1,100}$"
STATE_NAME = r"^(?![0-9]+$)[^\u0000-\u001f\u007f.#*/\\]{1,100}$"
STATE_ID = r"^[^\u0000-\u001f\u007f.#*/\\]{1,200}$"
INVOKE_ID = r"^[^\u0000-\u001f\u007f*]{1,200}$"
SPAN = (
    r"^P(?!$)(?:[0-9]{1,6}W)?(?:[0-9]{1,6}D)?"
    r"(?:T(?!$)(?:[0-9]{1,7}H)?(?:[0-9]{1,9}M)?(?:[0-9]{1,10}(?:\.[0-9]{1,6})?S)?)?$"
)


def ref(name: str, description: str = "") -> Schema:
    return {"description": description, "$ref": f"#/$defs/{name}"} if description else {"$ref": f"#/$defs/{name}"}


def text(description: str, **more: Any) -> Schema:
    return {"description": description, "type": "string", **more}


def object_(properties: Schema, required: tuple[str, ...] = (), **more: Any) -> Schema:
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False, **more}
    return made | ({"required": list(required)} if required else {})


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [{"type": "null"}, schema]}


def with_(key: str, schema: Schema) -> Schema:
    """For `if`: an object that has this key, and it is like that."""
    return {"type": "object", "properties": {key: schema}, "required": [key]}


def both(*keys: str) -> list[Schema]:
    """For `not` and `anyOf`: every two of these together."""
    return [{"required": [one, other]} for n, one in enumerate(keys) for other in keys[n + 1 :]]


def values() -> Schema:
    return {
        "expression": object_(
            {
                "@expr": text(
                    "A CEL expression. It sees `context`, `event` and `state`; inside a named guard or action that is "
                    "called with params also `params`. There is no now(): time arrives with events.",
                    minLength=1,
                    maxLength=4096,
                    pattern=r"\S",
                ),
                "@lang": {"description": "The language of this expression.", "const": "cel"},
            },
            ("@expr",),
            description='A value that is computed: {"@expr": "context.amount_minor >= 100000"}.',
            examples=[{"@expr": "event.output.status"}],
        ),
        "value": {
            "description": 'Any JSON value; anywhere inside it may stand {"@expr": …}.',
            "if": {"type": "object", "anyOf": [{"required": ["@expr"]}, {"required": ["@lang"]}]},
            "then": ref("expression"),
            "else": {"additionalProperties": ref("value"), "items": ref("value")},
        },
        "span": {
            "description": "A span of time: milliseconds, an ISO 8601 duration (PT30S, PT2H, P3D, P1W; no months or "
            "years), or an expression that gives one of these.",
            "type": ["number", "string", "object"],
            "minimum": 0,
            "maximum": 31_536_000_000_000,
            "pattern": SPAN,
            "if": {"type": "object"},
            "then": ref("expression"),
            "examples": [1500, "PT2H", "P3D"],
        },
        "delay": {
            "description": "A span of time, or the name of one in `delays`.",
            "if": {"type": "string"},
            "then": {"minLength": 1},
            "else": ref("span"),
        },
        "event": {
            "description": "An event: its name, or an object with `type` and whatever it carries. Names that begin "
            "with xstate. belong to the engine.",
            "type": ["string", "object"],
            "pattern": OWN_EVENT,
            "properties": {"type": text("The event's name, written out.", pattern=OWN_EVENT)},
            "required": ["type"],
            "additionalProperties": ref("value"),
            "not": {"type": "object", "anyOf": [{"required": ["@expr"]}, {"required": ["@lang"]}]},
        },
        "target": {
            "description": "Where to go: a sibling, sibling.child, .child, #id or #id.path.",
            "type": "string",
            "minLength": 1,
            "examples": ["review", "review.waiting", ".first", "#paid"],
        },
        "targets": {
            "description": "One target, or several that are active together in regions of one parallel state.",
            "type": ["null", "string", "array"],
            "minLength": 1,
            "minItems": 1,
            "items": ref("target"),
        },
    }
