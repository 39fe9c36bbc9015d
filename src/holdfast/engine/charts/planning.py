"""What taking a set of transitions amounts to: which states are left and entered, in which order.

It follows from the configuration, the transitions and the remembered history alone, so it is worked out once and
memoised on the chart. The domain is found once, by the history from before anything is left; a history state leads to
what was remembered last, which may be what this very step leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.engine.charts.configurations import MEMO_MAX, Configuration, by_order, configuration
from holdfast.engine.charts.nodes import Chart, Node, Transition


class Plan(NamedTuple):
    """What taking these transitions from that configuration amounts to."""

    taken: tuple[Transition, ...]
    exits: list[Node]
    entries: list[Node]
    initial: frozenset[int]  # entered by default: their initial actions run
    staying: frozenset[int]  # active before and not left
    after: Configuration
    history: dict[str, list[str]]
    moved: bool


def _effective(targets: tuple[Node, ...], history: dict[str, list[Node]]) -> list[Node]:
    found: dict[int, Node] = {}
    for target in targets:
        if target.type != "history":
            found[target.index] = target
        elif target.id in history:
            found.update((node.index, node) for node in history[target.id])
        else:
            found.update((node.index, node) for node in _effective(_default(target), history))
    return list(found.values())


def _default(node: Node) -> tuple[Node, ...]:
    """Where a history state leads that remembers nothing yet."""
    if node.history_targets:
        return node.history_targets
    assert node.parent is not None
    if node.parent.type == "parallel":
        return (node.parent,)
    assert node.parent.initial is not None
    return (node.parent.initial,)


def _domain(transition: Transition, history: dict[str, list[Node]]) -> Node | None:
    """The state inside which everything happens. None: the chart itself is left and entered again."""
    source = transition.source
    targets = _effective(transition.targets, history)
    if not transition.reenter and all(target is source or source.holds(target) for target in targets):
        return source
    head, *tail = [*targets, source]
    node = head.parent
    while node is not None:
        if all(node.holds(other) for other in tail):
            return node
        node = node.parent
    return None if transition.reenter else _root(source)


def _root(node: Node) -> Node:
    while node.parent is not None:
        node = node.parent
    return node


def _exit_set(transition: Transition, nodes: Sequence[Node], history: dict[str, list[Node]]) -> set[int]:
    if not transition.targets:
        return set()
    domain = _domain(transition, history)
    if domain is None:
        return {node.index for node in nodes}
    left = {node.index for node in nodes if domain.holds(node)}
    if transition.reenter and transition.source is domain:
        left.add(domain.index)
    return left


def _without_conflicts(
    transitions: Sequence[Transition], nodes: Sequence[Node], history: dict[str, list[Node]]
) -> list[Transition]:
    kept: dict[int, Transition] = {}
    sets: dict[int, set[int]] = {}
    for one in transitions:
        sets[id(one)] = _exit_set(one, nodes, history)
        preempted = False
        beaten = []
        for other in kept.values():
            if not sets[id(one)].isdisjoint(sets[id(other)]):
                if other.source.holds(one.source):
                    beaten.append(other)
                else:
                    preempted = True
                    break
        if not preempted:
            for other in beaten:
                del kept[id(other)]
            kept[id(one)] = one
    return list(kept.values())


class _Entry:
    """The states that a set of transitions enters."""

    def __init__(self, before: dict[str, list[Node]], history: dict[str, list[Node]]) -> None:
        self.before = before
        self.history = history  # with what this step remembers
        self.nodes: dict[int, Node] = {}
        self.initial: set[int] = set()

    def add(self, node: Node, *, initial: bool = False) -> None:
        self.nodes[node.index] = node
        if initial:
            self.initial.add(node.index)

    def transition(self, transition: Transition) -> None:
        source = transition.source
        domain = _domain(transition, self.before)
        for target in transition.targets:
            if target.type != "history" and (source is not target or source is not domain or transition.reenter):
                self.add(target, initial=True)
            self.descend(target)
        within = None if source.parent is None and transition.reenter else domain
        for target in _effective(transition.targets, self.history):
            ancestors = _ancestors(target, domain)
            if domain is not None and domain.type == "parallel":
                ancestors.append(domain)
            self.ancestors(ancestors, within)

    def descend(self, node: Node) -> None:
        if node.type == "history":
            assert node.parent is not None
            remembered = self.history.get(node.id)
            targets = list(_default(node)) if remembered is None else remembered
            by_initial = remembered is None and not node.history_targets and node.parent.type != "parallel"
            for target in targets:
                self.add(target)
                if by_initial:
                    self.initial.add(node.parent.index)
                self.descend(target)
            for target in targets:
                self.ancestors(_ancestors(target, node.parent), None)
        elif node.type == "compound":
            inner = node.initial
            assert inner is not None
            if inner.type != "history":
                self.add(inner, initial=True)
            self.descend(inner)
            self.ancestors(_ancestors(inner, node), None)
        elif node.type == "parallel":
            for child in node.children:
                if not self._inside(child):
                    self.add(child, initial=True)
                    self.descend(child)

    def ancestors(self, ancestors: list[Node], within: Node | None) -> None:
        for node in ancestors:
            if within is None or within.holds(node):
                self.add(node)
            if node.type == "parallel":
                for child in node.children:
                    if not self._inside(child):
                        self.add(child)
                        self.descend(child)

    def _inside(self, region: Node) -> bool:
        return any(region.index < index <= region.last for index in self.nodes)


def _ancestors(node: Node, upto: Node | None) -> list[Node]:
    found: list[Node] = []
    if node is upto:
        return found
    at = node.parent
    while at is not None and at is not upto:
        found.append(at)
        at = at.parent
    return found


def _remembered(chart: Chart, history: dict[str, list[str]]) -> dict[str, list[Node]]:
    return {key: [chart.by_id[id_] for id_ in value] for key, value in history.items()}


def plan(chart: Chart, config: Configuration, transitions: Sequence[Transition], history: dict[str, list[str]]) -> Plan:
    key: Any = (config.raw, *map(id, transitions))
    if chart.has_history:
        key = (key, tuple((k, tuple(v)) for k, v in sorted(history.items())))
    found: Plan | None = chart.plans.get(key)
    if found is None:
        if len(chart.plans) > MEMO_MAX:
            chart.plans.clear()
        found = chart.plans[key] = _work_out(chart, config, transitions, _remembered(chart, history))
    return found


def _work_out(
    chart: Chart, config: Configuration, transitions: Sequence[Transition], history: dict[str, list[Node]]
) -> Plan:
    taken = _without_conflicts(transitions, config.nodes, history)
    left: set[int] = set()
    for transition in taken:
        left |= _exit_set(transition, config.nodes, history)
    exits = sorted((node for node in config.nodes if node.index in left), key=by_order, reverse=True)
    remembered = {}
    for node in exits:
        for place in node.history_nodes:
            remembered[place.id] = [
                other.id
                for other in config.nodes
                if (other.atomic and node.holds(other) if place.history == "deep" else other.parent is node)
            ]
    entry = _Entry(history, history | _remembered(chart, remembered))
    for transition in taken:
        entry.transition(transition)
    staying = config.active - left
    # A transition that stays inside its source may meet one that leaves the source's ancestors: those are entered too.
    for node in list(entry.nodes.values()):
        entry.ancestors([a for a in _ancestors(node, None) if a.index not in staying], None)
    entries = sorted(entry.nodes.values(), key=by_order)
    stay = {node.index: node for node in config.nodes if node.index not in left} | entry.nodes
    after = configuration(chart, tuple(sorted(stay.values(), key=by_order)))
    moved = bool(remembered) or after.active != config.active
    return Plan(tuple(taken), exits, entries, frozenset(entry.initial), staying, after, remembered, moved)


def initial_plan(chart: Chart) -> Plan:
    found: Plan | None = chart.plans.get("initial")
    if found is None:
        targets: dict[int, Node] = {}

        def gather(node: Node) -> None:
            if node.index in targets:
                return
            targets[node.index] = node
            if node.type == "compound":
                assert node.initial is not None
                gather(node.initial)
            elif node.type == "parallel":
                for child in node.children:
                    gather(child)

        gather(chart.root)
        start = Transition(chart.root, "", tuple(targets.values()), None, [], True, "")
        entry = _Entry({}, {})
        entry.transition(start)
        entry.initial.add(chart.root.index)
        entries = sorted(entry.nodes.values(), key=by_order)
        after = configuration(chart, tuple(entries))
        found = chart.plans["initial"] = Plan((), [], entries, frozenset(entry.initial), frozenset(), after, {}, True)
    return found
