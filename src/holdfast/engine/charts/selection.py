"""Which transitions an event takes: innermost first, the exact event before wildcards, the first guard that holds."""

from __future__ import annotations

from holdfast.engine.charts.configurations import Configuration
from holdfast.engine.charts.expressions import Scope
from holdfast.engine.charts.nodes import Chart, Node, Transition


def _candidates(node: Node, event: str) -> list[Transition]:
    """In the order they are asked: the exact event's, then wildcards, the longest first."""
    found = node.candidates.get(event)
    if found is None:
        if len(node.candidates) > 1000:
            node.candidates.clear()
        found = list(node.on.get(event, ()))
        wild = [word for word in node.on if word != event and _matches(event, word)]
        for word in sorted(wild, key=len, reverse=True):
            found += node.on[word]
        node.candidates[event] = found
    return found


def _matches(event: str, word: str) -> bool:
    if word == "*":
        return True
    if not word.endswith(".*"):
        return False
    parts, given = word.split("."), event.split(".")
    for n, part in enumerate(parts):
        if part == "*":
            return n == len(parts) - 1
        if n >= len(given) or part != given[n]:
            return False
    return True


def _enabled(config: Configuration, scope: Scope, candidates: list[Transition]) -> Transition | None:
    for transition in candidates:
        guard = transition.guard
        if guard is None or guard.holds(scope, config.active):
            return transition
    return None


def _select(config: Configuration, scope: Scope, node: Node, event: str) -> list[Transition]:
    """Innermost first; a parallel state is asked only if none of its regions took a transition."""
    children = config.inner.get(node.index)
    if children:
        taken: list[Transition] = []
        for child in children:
            taken += _select(config, scope, child, event)
        if taken:
            return taken
    candidates = node.candidates.get(event)
    if candidates is None:
        candidates = _candidates(node, event)
    if candidates:
        found = _enabled(config, scope, candidates)
        if found is not None:
            return [found]
    return []


def select(chart: Chart, config: Configuration, scope: Scope, event: str) -> list[Transition]:
    reacts = config.reacts.get(event)
    if reacts is None:
        if len(config.reacts) > 1000:
            config.reacts.clear()
        reacts = config.reacts[event] = any(_candidates(node, event) for node in config.nodes)
    return _select(config, scope, chart.root, event) if reacts else []


def select_eventless(config: Configuration, scope: Scope) -> list[Transition]:
    chosen: dict[int, Transition] = {}
    for leaf in config.atomic:
        node: Node | None = leaf
        while node is not None:
            if node.always:
                found = _enabled(config, scope, node.always)
                if found is not None:
                    chosen[id(found)] = found
                    break
            node = node.parent
    return list(chosen.values())
