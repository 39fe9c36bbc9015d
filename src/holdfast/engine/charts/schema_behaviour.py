"""The chart schema of what states do: guards, actions, transitions and invokes."""

from __future__ import annotations

from holdfast.engine.charts.schema_words import (
    EVENT,
    INVOKE_ID,
    NO_CONTROLS,
    Schema,
    object_,
    or_null,
    ref,
    text,
    with_,
)


def guards() -> Schema:
    several = {"type": "array", "minItems": 1, "items": ref("guard")}
    return {
        "guard": {
            "description": "A condition: the name of one in `guards`, an expression, a named one with params, or "
            "and / or / not / stateIn.",
            "type": ["string", "object"],
            "if": {"type": "object", "required": ["@expr"]},
            "then": ref("expression"),
            "else": {
                "if": {"type": "object", "required": ["type"]},
                "then": object_(
                    {
                        "type": text("The name of an entry of `guards`."),
                        "params": ref("value", "What its expressions see as `params`."),
                    }
                ),
                "else": {
                    "properties": {
                        "and": {"description": "All of these hold.", **several},
                        "or": {"description": "At least one of these holds.", **several},
                        "not": ref("guard", "This one does not hold."),
                        "stateIn": ref("stateIn"),
                    },
                    "additionalProperties": False,
                    "minProperties": 1,
                    "maxProperties": 1,
                },
            },
            "examples": ["isLarge", {"@expr": "context.total > 0"}, {"and": ["isLarge", {"not": "isTrusted"}]}],
        },
        "stateIn": {
            "description": "These states are active: a path from the chart's root (review.waiting), #id, or an object "
            "as in a state value.",
            "type": ["string", "object"],
            "minLength": 1,
            "minProperties": 1,
            "additionalProperties": ref("stateInside"),
        },
        "stateInside": {
            "type": ["string", "object"],
            "minLength": 1,
            "additionalProperties": ref("stateInside"),
        },
    }


ACTIONS: dict[str, tuple[str, Schema, tuple[str, ...]]] = {
    "assign": (
        "Sets fields of the context.",
        {
            "assign": {
                "description": "Field → value. All values see the context from before this assign.",
                "type": "object",
                "minProperties": 1,
                "additionalProperties": ref("value"),
                "not": {"required": ["@expr"]},
            }
        },
        ("assign",),
    ),
    "raise": (
        "Raises an event inside this instance: at once, or as a timer when it has a `delay`.",
        {
            "event": ref("event"),
            "delay": ref("delay"),
            "id": {
                "description": "A name by which `cancel` finds the delayed event; the same id again replaces it.",
                "type": ["string", "null"],
                "minLength": 1,
                "pattern": r"^(?!xstate\.)",
            },
        },
        ("event",),
    ),
    "cancel": (
        "Cancels a delayed raise.",
        {"id": text("The id of the raise.", minLength=1)},
        ("id",),
    ),
    "choose": (
        "Runs the actions of the first choice whose guard holds.",
        {
            "conds": {
                "description": "The choices, asked in order; one without a guard always holds.",
                "type": "array",
                "minItems": 1,
                "items": object_({"guard": ref("guard"), "actions": ref("actions")}),
            }
        },
        ("conds",),
    ),
    "createTask": (
        "Creates a durable task; it answers with its completion_event or failure_event.",
        {"params": ref("task")},
        ("params",),
    ),
    "cancelTask": (
        "Cancels the open tasks of that name.",
        {"params": object_({"name": text("The task's name.")}, ("name",))},
        ("params",),
    ),
    "emit": ("Emits an event to whoever listens to this instance.", {"event": ref("event")}, ("event",)),
    "send": (
        "Sends an event to another instance.",
        {
            "to": {
                "description": "The instance's id, or an expression that gives it.",
                "type": ["string", "object"],
                "if": {"type": "object"},
                "then": ref("expression"),
            },
            "event": ref("event"),
        },
        ("to", "event"),
    ),
    "log": ("Writes a line into the instance's history.", {"params": ref("value", "What to write.")}, ()),
}


def actions() -> Schema:
    choice: Schema = object_(
        {
            "type": text("The name of an entry of `actions`."),
            "params": ref("value", "What its expressions see as `params`."),
        }
    )
    made: Schema = {}
    for type_, (description, properties, required) in reversed(ACTIONS.items()):
        own = {"type": {"const": type_}} | properties
        made[f"action.{type_}"] = object_(own, required, description=description)
        choice = {"if": with_("type", {"const": type_}), "then": ref(f"action.{type_}"), "else": choice}
    action = {
        "description": "The name of an entry of `actions`, or an action: " + ", ".join(ACTIONS) + ".",
        "type": ["string", "object"],
        "required": ["type"],
        "properties": {"type": {"type": "string", "examples": list(ACTIONS)}},
        **{word: {"if": {"type": "object"}, "then": choice}[word] for word in ("if", "then")},
    }
    actions = {
        "description": "One action or a list; they run in this order.",
        "if": {"type": "array"},
        "then": {"items": ref("action")},
        "else": ref("action"),
    }
    return {"action": action, "actions": actions} | dict(reversed(made.items()))


def transitions() -> Schema:
    return {
        "transition": {
            "description": "Where an event leads and what is done on the way. Without a target the state stays.",
            "type": ["null", "string", "object"],
            "minLength": 1,
            "properties": {
                "target": ref("targets"),
                "guard": or_null(ref("guard")),
                "actions": ref("actions"),
                "reenter": {
                    "description": "Leave and enter the source again when the target is the source or inside it.",
                    "type": "boolean",
                    "default": False,
                },
                "description": text("For people."),
                "meta": {"description": "Anything; the engine does not look at it."},
            },
            "additionalProperties": False,
        },
        "transitions": {
            "description": "A target, a transition, or a list of these: the first whose guard holds is taken.",
            "if": {"type": "array"},
            "then": {"items": ref("transition")},
            "else": ref("transition"),
        },
    }


def invokes() -> Schema:
    return {
        "invoke": object_(
            {
                "id": text("A name of its own; it makes onDone and onError unique.", pattern=INVOKE_ID),
                "src": ref("source"),
                "input": ref("value", "What it is given."),
                "onDone": ref("transitions", "When it is done; event.output is its result."),
                "onError": ref(
                    "transitions", "When it failed for good; event.error says why. Without one the instance fails."
                ),
                "description": {"description": "For people."},
                "meta": {"description": "Anything; the engine does not look at it."},
            },
            ("src",),
            description="Something that runs while the state is active and is stopped when it is left.",
        ),
        "invokes": {
            "description": "One invoke or a list.",
            "if": {"type": "array"},
            "then": {"items": ref("invoke")},
            "else": ref("invoke"),
        },
        "source": {
            "description": "What to run: the name of a SYSTEM handler, a task, or a child workflow.",
            "type": ["string", "object"],
            "minLength": 1,
            "maxLength": 100,
            "pattern": rf"^(?:(?!#){NO_CONTROLS})*$",
            "if": {"type": "object", "required": ["task"]},
            "then": object_({"task": ref("invokedTask")}),
            "else": {
                "properties": {
                    "workflow": text("The key of a workflow.", pattern=EVENT),
                    "version": {
                        "description": "Which version; the newest active one if left out.",
                        "type": ["integer", "null"],
                        "minimum": 1,
                    },
                },
                "required": ["workflow"],
                "additionalProperties": False,
            },
            "examples": ["ledger.post", {"task": {"type": "HTTP", "name": "pay", "url": "…"}}, {"workflow": "payout"}],
        },
    }
