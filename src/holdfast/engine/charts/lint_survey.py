"""What every rule of lint asks about a chart: who hears which event, what can be reached, which guards are certain."""

from __future__ import annotations

import re
from typing import Any

from holdfast.engine.charts.document import Problem
from holdfast.engine.charts.expressions import Scope
from holdfast.engine.charts.nodes import Chart, Constant, ExpressionGuard, Guard, NamedGuard, Node, ObjectOf, Value
from holdfast.engine.charts.walking import all_actions, common, transitions_of, upwards

_TEXTS = re.compile(r"""[bBrR]{0,2}(?:\"\"\".*?\"\"\"|'''.*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""", re.DOTALL)
_COMMENTS = re.compile(r"//[^\n]*")
VARIABLE = re.compile(r"(?<![\w.])(?:context|event|state|params)\b")


class Survey:
    """A chart, its document, and what follows from both."""

    def __init__(self, chart: Chart, document: dict[str, Any]) -> None:
        self.chart = chart
        self.document = document
        self.actions = list(all_actions(chart))
        self.reachable = _reachable(chart)
        self.listeners: dict[str, list[Node]] = {}
        for node in chart.nodes:
            for event in node.on:
                self.listeners.setdefault(event, []).append(node)
        self.wild = [event for event in self.listeners if event.endswith("*")]

    def handled(self, event: str) -> bool:
        return event in self.listeners or any(matches(event, word) for word in self.wild)

    def heard_with(self, node: Node, event: str) -> bool:
        """Whether a state handles this event that is active together with `node`."""
        if any(event in at.on or any(matches(event, word) for word in at.on) for at in upwards(node)):
            return True
        listening = [event, *(word for word in self.wild if word != event and matches(event, word))]
        return any(asked_with(at, node) for word in listening for at in self.listeners.get(word, ()))


def warning(path: str, message: str) -> Problem:
    return Problem(path, message, "warning")


def matches(event: str, word: str) -> bool:
    """Whether a word of `on` takes this event."""
    if word == event or word == "*":
        return True
    return word.endswith(".*") and (event == word[:-2] or event.startswith(word[:-1]))


def asked_with(one: Node, other: Node) -> bool:
    """Whether both can be active at one time."""
    at = common(one, other)
    return at in (one, other) or at.type == "parallel"


def _reachable(chart: Chart) -> set[int]:
    found: set[int] = set()
    waiting: list[Node] = []

    def enter(node: Node) -> None:
        if node.index in found:
            return
        found.add(node.index)
        waiting.append(node)

    enter(chart.root)
    while waiting:
        node = waiting.pop()
        if node.parent is not None:
            enter(node.parent)
        if node.type == "compound" and node.initial is not None:
            enter(node.initial)
        elif node.type == "parallel":
            for child in node.children:
                enter(child)
        for target in [*node.history_targets, *(target for t in transitions_of(node) for target in t.targets)]:
            enter(target)
    return found


def certain(guard: Guard | None) -> bool:
    return guard is None or constant_answer(guard.guard if isinstance(guard, NamedGuard) else guard) is True


def constant_answer(guard: Guard) -> bool | None:
    """What an expression that looks at nothing says; None for every other guard."""
    if not isinstance(guard, ExpressionGuard) or VARIABLE.search(bare(guard.value.program.text)):
        return None
    try:
        answer = guard.value.program.run(Scope({}, {}, {}))
    except Exception:  # it fails wherever it is asked; the compiler or the first step says so
        return None
    return answer if isinstance(answer, bool) else None


def bare(text: str) -> str:
    """An expression without its texts and comments."""
    return _COMMENTS.sub(" ", _TEXTS.sub('""', text))


def constant_fields(value: Value) -> dict[str, Any]:
    return value.value if isinstance(value, Constant) and isinstance(value.value, dict) else {}


def type_of(event: Value) -> str | None:
    """The name of a raised event."""
    if isinstance(event, ObjectOf):
        event = event.items["type"]
        return str(event.value) if isinstance(event, Constant) else None
    type_ = constant_fields(event).get("type")
    return type_ if isinstance(type_, str) else None
