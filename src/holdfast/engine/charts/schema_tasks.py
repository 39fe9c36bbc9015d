"""The chart schema of tasks: the fields that all have, those of each type, and which go together."""

from __future__ import annotations

from holdfast.engine.charts.schema_words import Schema, both, object_, ref, text, with_

_OF_ALL: Schema = {
    "type": text("Who does it.", enum=["HUMAN", "TIMER", "HTTP", "EMAIL", "AI", "SYSTEM"]),
    "name": text("Its name in the inbox and the history.", minLength=1, maxLength=100, pattern="^[^#]*$"),
    "title": ref("value", "A line for people."),
    "description": ref("value", "More for people."),
    "input": ref("value", "What it is given."),
    "deadline": ref("taskSpan", "It fails if it is not done this span of time after it was created."),
    "max_attempts": {"description": "How often it is tried.", "type": "integer", "minimum": 1, "maximum": 1000},
    "backoff": ref("value", "How long to wait between attempts."),
    "timeout": ref("taskSpan", "How long one attempt may take."),
    "completion_event": text(
        "The event it sends when it is done. Left out: task.done.<name>.", minLength=1, pattern=r"^(?!xstate\.)"
    ),
    "failure_event": text(
        "The event it sends when it failed for good. Left out: task.failed.<name>. If no state takes it, the instance "
        "fails.",
        minLength=1,
        pattern=r"^(?!xstate\.)",
    ),
    "tags": ref("value", "Words to find it by."),
}
_LATER: Schema = {
    "delay": ref("taskSpan", "Start only after this span of time; not together with `run_at`."),
    "run_at": ref("taskMoment", "Start only at this moment; not together with `delay`."),
}
_COMPUTED: Schema = {"type": ["object", "array"]}  # for `if`: an expression is an object
_PEOPLE: Schema = {
    "assignee": ref("value", "The person who is to do it."),
    "groups": ref("value", "Groups whose members may claim it."),
    "priority": {
        "description": "Higher comes first.",
        "if": _COMPUTED,
        "then": ref("value"),
        "else": {"type": "integer", "minimum": -1000, "maximum": 1000},
    },
    "due_in": ref("taskSpan", "Due this span of time after it was created."),
}
_EFFECT: Schema = {
    **_LATER,
    "mode": text(
        "keyed: the receiver recognises our idempotency key, so it may be tried again; manual: a person settles an "
        "unknown outcome.",
        enum=["keyed", "manual"],
    ),
    "window": ref("taskSpan", "For how long the receiver remembers the key."),
}
_EVENTS: Schema = {
    "type": "array",
    "maxItems": 100,
    "uniqueItems": True,
    "items": {
        "type": "string",
        "minLength": 1,
        "maxLength": 200,
        "pattern": r"^(?!(?:xstate|error|done|holdfast)\.)[^*]*$",
    },
}
_OF_TYPE: dict[str, Schema] = {
    "HUMAN": {
        **_PEOPLE,
        "due_at": ref("taskMoment", "Due at this moment."),
        "follow_up_in": ref("taskSpan", "Look again after this span of time."),
        "follow_up_at": ref("taskMoment", "Look again at this moment."),
        "form": {
            "description": "A JSON Schema that the answer is checked against. Not an expression.",
            "type": ["object", "boolean"],
        },
    },
    "TIMER": {**_LATER, "calendar": ref("value", "A moment in a calendar and zone.")},
    "HTTP": {
        **_EFFECT,
        "method": ref("value", "GET, POST … (POST if left out)."),
        "url": ref("value", "Where to."),
        "headers": ref("value", "Name → value; secrets by reference."),
        "query": ref("value", "Name → value."),
        "json": ref("value", "The body, as JSON."),
        "form": ref("value", "The body, as a form."),
        "body": ref("value", "The body, as text."),
        "max_response_bytes": ref("value", "How much of the answer is read at most."),
        "follow_redirects": ref("value", "How many redirects are followed."),
        "outcomes": {
            "description": 'Status or class ("409", "5xx") → what it means.',
            "type": "object",
            "propertyNames": {"pattern": "^[1-5](?:[0-9][0-9]|xx)$"},
            "additionalProperties": {"enum": ["succeeded", "not_applied", "rejected", "unknown"]},
        },
        "output": ref("value", "full: status, headers and body; body: the body alone."),
        "idempotency_header": ref("value", "The header that carries the key (Idempotency-Key)."),
    },
    "EMAIL": {
        **_EFFECT,
        "to": ref("value", "An address or a list."),
        "cc": ref("value", "An address or a list."),
        "bcc": ref("value", "An address or a list."),
        "reply_to": ref("value", "An address or a list."),
        "from": ref("value", "The sender, if not the usual one."),
        "subject": ref("value", "A template."),
        "text": ref("value", "The plain text, a template."),
        "html": ref("value", "The HTML, a template; values are escaped."),
        "headers": ref("value", "More headers."),
        "data": ref("value", "What the templates see; `input` if left out."),
    },
    "AI": {
        **_EFFECT,
        **_PEOPLE,
        "prompt": object_(
            {
                "id": text("Its name in the records.", minLength=1, maxLength=200),
                "version": {
                    "description": "Raise it with every change.",
                    "type": ["string", "integer"],
                    "minLength": 1,
                    "maxLength": 40,
                },
                "system": {"description": "What the model is told to be.", "type": ["string", "null"]},
                "user": text("What it is asked: a template that sees `input`.", minLength=1),
            },
            ("id", "version", "user"),
            description="What the model is told. Written out: data must not change it.",
        ),
        "model": ref("value", "Which model, if not the usual one."),
        "schema": {"description": "A JSON Schema of the answer.", "type": ["object", "null"]},
        "redact": ref("value", "Fields of the input whose values are not kept."),
        "policy": {
            "description": "What the answer may cause. Left out: nothing, and only as a suggestion.",
            "type": ["object", "null"],
            "properties": {
                "allowed_events": {"description": "Events it may cause; no wildcards.", **_EVENTS},
                "mode": {"description": "suggest (a person applies it) or apply.", "enum": ["suggest", "apply"]},
                "confidence_min": {
                    "description": "Below it, apply becomes suggest.",
                    "type": "number",
                    "minimum": 0,
                    "maximum": 1,
                },
                "human_only": {
                    "description": "Allowed events that it may only suggest; true: all of them.",
                    "if": {"type": "array"},
                    "then": _EVENTS,
                    "else": {"type": "boolean"},
                },
            },
            "additionalProperties": False,
        },
        "max_tokens": ref("value", "Of the answer."),
        "max_cost": ref("value", "In micro-units of the currency."),
        "price_in": ref("value", "For a million tokens in."),
        "price_out": ref("value", "For a million tokens out."),
        "currency": ref("value", "Of the prices."),
        "max_input_bytes": ref("value", "How much input is passed on at most."),
        "max_output_bytes": ref("value", "How much answer is read at most."),
        "timeout_seconds": ref("value", "How long one call may take."),
    },
    "SYSTEM": {**_LATER, "handler": text("The registered function; the task's name if left out.", minLength=1)},
}
_RULES: dict[str, Schema] = {
    "TIMER": {"anyOf": [{"required": [key]} for key in ("delay", "run_at", "calendar")]},
    "HTTP": {"required": ["url"], "not": {"anyOf": both("json", "form", "body")}},
    "EMAIL": {"required": ["to", "subject"], "anyOf": [{"required": ["text"]}, {"required": ["html"]}]},
    "AI": {"required": ["prompt"]},
}


def tasks() -> Schema:
    made: Schema = {}
    dispatch = []
    for type_, own in _OF_TYPE.items():
        properties = _OF_ALL | own | {"type": {"const": type_}}
        made[f"task.{type_}"] = object_(properties, ("type", "name"), description=f"A {type_} task.")
        if type_ in _RULES:
            made[f"task.{type_}"]["allOf"] = [_RULES[type_]]
        dispatch.append({"if": with_("type", {"const": type_}), "then": ref(f"task.{type_}")})
    task = {
        "description": "A durable task: a person, a clock, a request, a mail, a model or a function of yours.",
        "type": "object",
        "properties": {"type": _OF_ALL["type"]},
        "required": ["type", "name"],
        "not": {"anyOf": both("delay", "run_at", "calendar")},
        "allOf": dispatch,
    }
    invoked = {
        "description": "A task that an invoke starts; it answers with onDone and onError.",
        "$ref": "#/$defs/task",
        "properties": {"completion_event": False, "failure_event": False},
    }
    return {"task": task, "invokedTask": invoked} | made | _times()


def _times() -> Schema:
    return {
        "taskSpan": {
            "description": "A span of time: milliseconds, an ISO 8601 duration or an expression.",
            "if": _COMPUTED,
            "then": {"minProperties": 1, "minItems": 1, **ref("value")},
            "else": ref("span"),
        },
        "taskMoment": {
            "description": "A moment such as 2027-01-31T09:00:00Z, with its zone, or an expression.",
            "if": _COMPUTED,
            "then": {"minProperties": 1, "minItems": 1, **ref("value")},
            "else": {"type": "string", "pattern": "^[0-9]{4}-?(?:[0-9]{2}|W)"},
        },
    }
