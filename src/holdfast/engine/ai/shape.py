"""The shape of an answer: the JSON Schema that the model is told and its answer is checked against, made of the
author's schema and the policy. What is a schema at all, and what a check may cost, `engine.schemas` decides."""

from __future__ import annotations

from typing import Any

from holdfast.engine import schemas
from holdfast.engine.ai.answers import PROBLEM_LIMIT
from holdfast.engine.ai.policy import AiPolicy
from holdfast.engine.ai.words import clip, shown
from holdfast.engine.codec import encode
from holdfast.engine.errors import BadDefinition, NotJson, PayloadTooLarge
from holdfast.engine.schemas import DIALECT, BadSchema

SCHEMA_LIMIT = 32 * 1024


def answer_schema(policy: AiPolicy, schema: dict[str, Any] | None) -> dict[str, Any]:
    """What the model is told, and what its answer is checked against."""
    if not policy.allowed_events:
        return {"type": "object", **(schema or {})}
    properties: dict[str, Any] = {
        "event": {"type": "string", "enum": list(policy.allowed_events)},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "reason": {"type": "string", "description": "why, in one or two sentences"},
    }
    if schema is not None:
        properties["data"] = {"type": "object", **_moved(schema, "#/properties/data")}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})

_VALUES = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})


def _moved(schema: Any, to: str) -> Any:
    """The schema with its inner references following it to where it now stands."""
    if isinstance(schema, list):
        return [_moved(item, to) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for word, part in schema.items():
        if word == "$ref" and isinstance(part, str) and (part == "#" or part.startswith("#/")):
            moved[word] = to + part[1:]
        elif word in _NAMED and isinstance(part, dict):
            moved[word] = {name: _moved(item, to) for name, item in part.items()}
        elif word in _VALUES or word == "$schema":
            moved[word] = part
        else:
            moved[word] = _moved(part, to)
    moved.pop("$schema", None)  # it stands at the head of a document only
    return moved


class Checker:
    """A compiled schema, whose words repeat no value of an answer."""

    def __init__(self, schema: dict[str, Any]) -> None:
        try:
            self._checker = schemas.Checker(schema, mask="the value")
        except BadSchema as error:
            raise BadDefinition(f"schema{error.at} {error}") from None

    def problem(self, answer: object) -> str | None:
        """Why it does not fit, or None."""
        for misfit in self._checker.misfits(answer):
            if misfit.place is None:
                return f"the answer {misfit.words}"
            at = "".join("/" + ascii(clip(str(step), 60))[1:-1] for step in misfit.place)
            return clip(f"{at or 'the answer'}: {ascii(clip(misfit.words, 300))[1:-1]}", PROBLEM_LIMIT)
        return None


def read_schema(value: object, policy: AiPolicy) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("type", "object") != "object":
        raise BadDefinition(f"schema is {shown(value)}: expected a JSON Schema of type object")
    if value.get("$schema", DIALECT) != DIALECT:
        raise BadDefinition(f"schema.$schema is {shown(value['$schema'])}: expected {DIALECT}, or leave it out")
    try:
        raw = encode(value, "schema", SCHEMA_LIMIT)
    except (PayloadTooLarge, NotJson) as error:
        raise BadDefinition(str(error)) from None
    if b'"$id":' in raw:
        raise BadDefinition("schema holds $id: references stay inside it, write them as #/$defs/…")
    Checker(value)
    Checker(answer_schema(policy, value))
    return value
