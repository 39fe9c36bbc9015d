"""Ways through a compiled chart: up from a state, and over every transition, action and guard that it holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.engine.charts.nodes import (
    Action,
    All,
    AnyOf,
    Chart,
    Choose,
    Guard,
    Named,
    NamedGuard,
    Node,
    Not,
    Transition,
)


def upwards(node: Node) -> Iterator[Node]:
    """A state and all around it, from the inside out."""
    at: Node | None = node
    while at is not None:
        yield at
        at = at.parent


def common(one: Node, other: Node) -> Node:
    """The innermost state that holds both, or is one of them and holds the other."""
    at = one
    while at is not other and not at.holds(other):
        assert at.parent is not None
        at = at.parent
    return at


def transitions_of(node: Node) -> Iterator[Transition]:
    for transitions in node.on.values():
        yield from transitions
    yield from node.always


def all_transitions(chart: Chart) -> Iterator[Transition]:
    for node in chart.nodes:
        yield from transitions_of(node)


def all_actions(chart: Chart) -> Iterator[Action]:
    """Every action that a state or transition may run, the inner ones too, each once."""
    seen: set[int] = set()

    def walk(actions: Iterable[Action]) -> Iterator[Action]:
        for action in actions:
            if id(action) in seen:
                continue
            seen.add(id(action))
            yield action
            if isinstance(action, Choose):
                for _, inner in action.choices:
                    yield from walk(inner)
            elif isinstance(action, Named):
                yield from walk(action.actions)

    for node in chart.nodes:
        yield from walk([*node.entry, *node.exit, *node.initial_actions])
    for transition in all_transitions(chart):
        yield from walk(transition.actions)


def all_guards(chart: Chart) -> Iterator[Guard]:
    """Every guard that is asked somewhere, the inner ones too, each once."""
    seen: set[int] = set()

    def walk(guard: Guard | None) -> Iterator[Guard]:
        if guard is None or id(guard) in seen:
            return
        seen.add(id(guard))
        yield guard
        if isinstance(guard, (NamedGuard, Not)):
            yield from walk(guard.guard)
        elif isinstance(guard, (All, AnyOf)):
            for inner in guard.guards:
                yield from walk(inner)

    for transition in all_transitions(chart):
        yield from walk(transition.guard)
    for action in all_actions(chart):
        if isinstance(action, Choose):
            for guard, _ in action.choices:
                yield from walk(guard)
