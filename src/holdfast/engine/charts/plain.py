"""Compiled parts as the document writes them, and states and events in the words that people use for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.engine.charts.nodes import (
    Action,
    All,
    AnyOf,
    Assign,
    Cancel,
    Choose,
    Computed,
    Constant,
    Deed,
    ExpressionGuard,
    Guard,
    ListOf,
    Named,
    NamedGuard,
    Node,
    Not,
    ObjectOf,
    Raise,
    StateIn,
    Value,
)  # fmt: skip


def plain(value: Value | None) -> Any:
    """A value as the document writes it."""
    match value:
        case Constant():
            return value.value
        case Computed():
            return {"@expr": value.program.text}
        case ListOf():
            return [plain(item) for item in value.items]
        case ObjectOf():
            return {key: plain(item) for key, item in value.items.items()}
    return None


def plain_guard(guard: Guard | None, *, open_: bool = False) -> Any:
    """A guard as the document writes it; a named one by its name, or `open_` as what stands under that name."""
    match guard:
        case ExpressionGuard():
            return plain(guard.value)
        case NamedGuard():
            if open_:
                return plain_guard(guard.guard)
            return guard.name if guard.params is None else {"type": guard.name, "params": plain(guard.params)}
        case All():
            return {"and": [plain_guard(inner) for inner in guard.guards]}
        case AnyOf():
            return {"or": [plain_guard(inner) for inner in guard.guards]}
        case Not():
            return {"not": plain_guard(guard.guard)}
        case StateIn():
            return {"stateIn": [place(node) for node in guard.nodes]}
    return None


def plain_action(action: Action) -> Any:
    """An action as the document writes it; a named one by its name, a task by its type and name."""
    match action:
        case Assign():
            return {"type": "assign", "assign": {key: plain(value) for key, value in action.values.items()}}
        case Raise():
            made = {"type": "raise", "event": plain(action.event)}
            made |= {} if action.delay is None else {"delay": plain(action.delay)}
            return made | ({} if action.id is None else {"id": action.id})
        case Cancel():
            return {"type": "cancel", "id": action.id}
        case Choose():
            conds = [{"guard": plain_guard(guard), "actions": plain_actions(inner)} for guard, inner in action.choices]
            return {"type": "choose", "conds": conds}
        case Named():
            return action.name if action.params is None else {"type": action.name, "params": plain(action.params)}
        case Deed():
            params = plain(action.params)
            if action.type == "createTask":
                return f"createTask {params.get('name')} ({params.get('type')})"
            return {"type": action.type, "event" if action.type == "emit" else "params": params}
    return None


def plain_actions(actions: Iterable[Action]) -> list[Any]:
    return [plain_action(action) for action in actions]


def place(node: Node) -> str:
    """A state's place by keys: review.waiting. The chart itself is (chart)."""
    return ".".join(node.keys()) or "(chart)"


def event_words(node: Node, event: str) -> str:
    """An event as people say it: `after P3D`, `done`, `done pay`, `error pay`; others by their name."""
    if event == "":
        return "always"
    if event == f"xstate.done.state.{node.id}":
        return "done"
    if event.startswith("xstate.after.") and event.endswith(f".{node.id}"):
        word = event[len("xstate.after.") : -len(node.id) - 1]
        return f"after {word} ms" if word.isdigit() else f"after {word}"
    for n, invoke in enumerate(node.invokes):
        # A generated id says nothing; the number tells several apart.
        named = f" {n + 1}" if len(node.invokes) > 1 else ""
        name = named if invoke.id == f"{n}.{node.id}" else f" {invoke.id}"
        if event == f"xstate.done.actor.{invoke.id}":
            return f"done{name or ' invoke'}"
        if event == f"xstate.error.actor.{invoke.id}":
            return f"error{name or ' invoke'}"
    return event
