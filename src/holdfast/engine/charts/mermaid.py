"""A chart as a Mermaid state diagram, and the short words that drawings use for events, guards and actions.

Names come from authors and may hold anything. In the diagram a state goes by a number of ours; its name and every
label are written with entity codes for all that could mean something to Mermaid or to a browser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.engine.charts.configurations import configuration_of
from holdfast.engine.charts.nodes import (
    Action,
    All,
    AnyOf,
    Assign,
    Cancel,
    Chart,
    Choose,
    Deed,
    ExpressionGuard,
    Guard,
    Named,
    NamedGuard,
    Node,
    Not,
    Raise,
    StateIn,
    Transition,
)  # fmt: skip
from holdfast.engine.charts.plain import event_words, place, plain
from holdfast.engine.charts.walking import transitions_of

NAME_MAX = 60
PART_MAX = 48
_DIRECTION = re.compile("(directio)(n)", re.IGNORECASE)
_PLAIN = frozenset(" _.,/()+=!?")  # what has no meaning anywhere in Mermaid, besides letters and digits


# -- words


def clip(text: str, limit: int) -> str:
    """On one line, printable, and not longer than `limit`."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: limit * 4]).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def guard_words(guard: Guard) -> str:
    match guard:
        case ExpressionGuard():
            return guard.value.program.text
        case NamedGuard():
            return guard.name
        case Not():
            return f"not {_inner(guard.guard)}"
        case All():
            return " and ".join(_inner(one) for one in guard.guards[:8])
        case AnyOf():
            return " or ".join(_inner(one) for one in guard.guards[:8])
        case StateIn():
            return "in " + ", ".join(".".join(place(node).split(".")[-2:]) for node in guard.nodes[:4])
    return "…"


def _inner(guard: Guard) -> str:
    words = guard_words(guard)
    return f"({words})" if isinstance(guard, (All, AnyOf)) else words


def action_words(action: Action) -> str:
    match action:
        case Assign():
            return "set " + ", ".join(action.values)
        case Raise():
            event = plain(action.event)
            return f"raise {event.get('type')}" + ("" if action.delay is None else " later")
        case Cancel():
            return f"cancel {action.id}"
        case Choose():
            return "choose"
        case Named():
            return action.name
        case Deed():
            params = plain(action.params)
            if action.type == "createTask":
                return f"{params.get('type')} {params.get('name')}"
            if action.type in ("emit", "send"):
                event = params if action.type == "emit" else params.get("event", {})
                return f"{action.type} {event.get('type')}"
            return f"cancel {params['name']}" if action.type == "cancelTask" else action.type
    return "…"


def label_lines(transition: Transition) -> list[str]:
    """The event, [its guard] and / its actions, each short enough to stand on a line."""
    lines = [clip(event_words(transition.source, transition.event), PART_MAX)]
    if transition.guard is not None:
        lines.append(f"[{clip(guard_words(transition.guard), PART_MAX)}]")
    if transition.actions:
        lines.append("/ " + clip(", ".join(map(action_words, transition.actions[:8])), PART_MAX))
    return lines


# -- the diagram


def mermaid(chart: Chart, active: bytes | None = None) -> str:
    """`stateDiagram-v2`. `active`: the value of a snapshot, whose states are marked."""
    lines = ["stateDiagram-v2"]
    lines += _indented(_block(chart.root))
    for node in chart.nodes:
        lines += (f"    {line}" for line in _arrows(node, inside=False))
    lines.append("    classDef history fill:#ffffff,stroke:#52606d,stroke-dasharray:3 2,color:#1f2933")
    history = [_id(node) for node in chart.nodes if node.type == "history"]
    if history:
        lines.append(f"    class {','.join(history)} history")
    if active is not None:
        lines.append("    classDef active fill:#ffe8a3,stroke:#b45309,stroke-width:3px,color:#1f2933")
        marked = [_id(node) for node in configuration_of(chart, active).atomic]
        lines.append(f"    class {','.join(marked)} active")
    return "\n".join(lines) + "\n"


def _id(node: Node) -> str:
    return f"s{node.index}"


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _block(node: Node) -> Iterator[str]:
    """What stands between the braces of a state with states inside; the root is drawn as one if it is parallel."""
    if node.type == "parallel" and node.parent is None:
        yield from _state(node)
        return
    if node.initial is not None:
        yield f"[*] --> {_id(node.initial)}"
    for n, child in enumerate(node.states.values()):
        if node.type == "parallel" and n:
            yield "--"
        yield from _state(child)
    for child in node.states.values():
        yield from _arrows(child, inside=True)


def _state(node: Node) -> Iterator[str]:
    name = {"shallow": "H", "deep": "H*"}.get(node.history, node.key) if node.type == "history" else node.key
    yield f'state "{escaped(clip(name, NAME_MAX))}" as {_id(node)}'
    if node.children:
        yield f"state {_id(node)} {{"
        if node.parent is None:  # a parallel chart
            for n, child in enumerate(node.states.values()):
                yield from ["    --"] if n else []
                yield from _indented(_state(child))
        else:
            yield from _indented(_block(node))
        yield "}"
    if node.type == "final":
        yield f"{_id(node)} --> [*]"


def _arrows(node: Node, *, inside: bool) -> Iterator[str]:
    """Its transitions. Between siblings they stand in the parent's block; others at the end, where Mermaid does not
    take them for a word about where a state lies."""
    for target in node.history_targets:
        if (target.parent is node.parent and node.parent is not None) is inside:
            yield f"{_id(node)} --> {_id(target)}"
    if node.parent is None and node.type == "compound":
        yield from _of_the_chart(node, inside)
        return
    for transition in transitions_of(node):
        text = escaped(" ".join(label_lines(transition)))
        for target in transition.targets or (node,):
            siblings = target.parent is node.parent and node.parent is not None and not _in_parallel_root(node)
            if siblings is inside:
                yield f"{_id(node)} --> {_id(target)} : {text}"


def _in_parallel_root(node: Node) -> bool:
    return node.parent is not None and node.parent.parent is None and node.parent.type == "parallel"


def _of_the_chart(root: Node, inside: bool) -> Iterator[str]:
    """The chart itself has no box: what it does from anywhere starts at a state of its own."""
    found = list(transitions_of(root))
    if inside or not found:
        return
    yield f'state "(anywhere)" as {_id(root)}'
    for transition in found:
        text = escaped(" ".join(label_lines(transition)))
        for target in transition.targets or (root,):
            yield f"{_id(root)} --> {_id(target)} : {text}"


def escaped(text: str) -> str:
    """Every sign that could mean something, as an entity code; what is left is letters, digits and a few marks."""
    made = "".join(c if c.isalnum() or c in _PLAIN else f"#{ord(c)};" for c in text)
    # Mermaid looks for this word anywhere in a line, even between quotes.
    return _DIRECTION.sub(lambda found: f"{found[1]}#{ord(found[2])};", made) or "#32;"
