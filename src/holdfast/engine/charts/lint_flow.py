"""Lint of where a chart goes: states that cannot be reached or left, transitions never taken, circles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.engine import codec
from holdfast.engine.charts.document import Problem
from holdfast.engine.charts.lint_survey import Survey, certain, constant_answer, warning
from holdfast.engine.charts.nodes import Action, Assign, Choose, Constant, ExpressionGuard, Named, Node, Transition
from holdfast.engine.charts.plain import event_words, place, plain_guard
from holdfast.engine.charts.walking import all_guards, transitions_of, upwards
from holdfast.engine.spans import span


class Flow:
    def __init__(self, survey: Survey) -> None:
        self.chart = survey.chart
        self.reachable = survey.reachable
        self.movers: dict[int, set[int]] = {}

    def warnings(self) -> Iterator[Problem]:
        for rule in (
            self._unreachable, self._dead_ends, self._shadowed, self._constant_guards, self._loops, self._no_delay,
        ):  # fmt: skip
            yield from rule()

    # -- states

    def _unreachable(self) -> Iterator[Problem]:
        for node in self.chart.nodes:
            parent = node.parent
            if node.index in self.reachable or parent is None or parent.index not in self.reachable:
                continue  # of a whole unreachable part only its top is named
            if node.type == "history":
                yield warning(node.path, f"no transition leads to the history state {place(node)}: remove it")
            else:
                yield warning(
                    node.path, f"nothing leads to the state {place(node)}: add a transition to it, or remove it"
                )

    def _dead_ends(self) -> Iterator[Problem]:
        for node in self.chart.nodes:
            if node.index not in self.reachable:
                continue
            if node.type == "atomic" and not any(_moves(at) for at in upwards(node)) and not self._taken_away(node):
                yield warning(
                    node.path, f"{place(node)} is a dead end: no transition leaves it. Add one, or make it type final"
                )
            elif node.type == "final" and _unheard(node) and not self._taken_away(node):
                assert node.parent is not None
                yield warning(
                    node.path,
                    f"{place(node)} ends {place(node.parent)}, and nobody hears of it: give {place(node.parent)} an "
                    "onDone",
                )

    def _taken_away(self, node: Node) -> bool:
        """Whether a neighbouring region has a transition that moves this one along."""
        for at in upwards(node):
            if at.parent is not None and at.parent.type == "parallel" and self._movers(at.parent) - {at.index}:
                return True
        return False

    def _movers(self, parallel: Node) -> set[int]:
        """The regions from which a transition leads out of the region: it moves all of them."""
        found = self.movers.get(parallel.index)
        if found is None:
            found = self.movers[parallel.index] = {
                region.index
                for region in parallel.children
                for node in self.chart.nodes[region.index : region.last + 1]
                for transition in transitions_of(node)
                if any(target is not region and not region.holds(target) for target in transition.targets)
            }
        return found

    # -- transitions

    def _lists(self) -> Iterator[tuple[Node, list[Transition]]]:
        for node in self.chart.nodes:
            for transitions in node.on.values():
                yield node, transitions
            yield node, node.always

    def _shadowed(self) -> Iterator[Problem]:
        for node, transitions in self._lists():
            seen: dict[bytes, Transition] = {}
            sure: Transition | None = None
            for transition in transitions:
                key = codec.encode_sorted(plain_guard(transition.guard))
                if sure is not None:
                    yield warning(
                        transition.path,
                        f"never taken: {sure.path} comes first for {event_words(node, transition.event)!r} and has "
                        "no condition. Put this one before it, or give that one a guard",
                    )
                elif key in seen:
                    yield warning(
                        transition.path,
                        f"never taken: {seen[key].path} comes first with the same guard. Change a guard, or remove one",
                    )
                elif certain(transition.guard):
                    sure = transition
                seen.setdefault(key, transition)

    def _constant_guards(self) -> Iterator[Problem]:
        for guard in all_guards(self.chart):
            answer = constant_answer(guard)
            if answer is None:
                continue
            assert isinstance(guard, ExpressionGuard)
            what = "always holds: leave the guard out" if answer else "never holds: remove what it guards"
            yield warning(guard.value.path, f"`{guard.value.program.text}` {what}, or let it look at the context")

    def _loops(self) -> Iterator[Problem]:
        reported: set[int] = set()
        for node in self.chart.nodes:
            if not node.always or not certain(node.always[0].guard) or node.index not in self.reachable:
                continue
            first = node.always[0]
            circle = _circle(node)
            if not first.targets or all(target is node for target in first.targets) or circle == [node]:
                actions = [*first.actions, *(node.exit + node.entry if first.reenter else [])]
                if first.targets or actions:
                    endless = any(isinstance(action, Assign) for action in _flat(actions))
                    then = (
                        "no rest after 1,000 microsteps, so the step is refused" if endless else "taken at every event"
                    )
                    yield warning(first.path, f"an always without a guard leads back to itself: {then}. Guard it")
            elif circle and not reported & {one.index for one in circle}:
                reported |= {one.index for one in circle}
                names = " → ".join(place(one) for one in [*circle, circle[0]])
                yield warning(first.path, f"always goes round in a circle without a guard ({names}): guard one of them")

    def _no_delay(self) -> Iterator[Problem]:
        for node in self.chart.nodes:
            for delay in node.after:
                if isinstance(delay.value, Constant) and span(delay.value.value) == 0:
                    yield warning(delay.path, "after no time at all: write `always`, or give it a time")


def _moves(node: Node) -> bool:
    return bool(node.always) or any(node.on.values())


def _unheard(node: Node) -> bool:
    """Whether a final state ends its parent without anybody taking notice: the chart is not done by it either."""
    at = node.parent
    cascades = True
    while at is not None:
        if _moves(at):
            return False
        if at.parent is not None and at.parent.type != "parallel":
            cascades = False
        at = at.parent
    return not cascades


def _circle(node: Node) -> list[Node]:
    """The states that unguarded eventless transitions go round through, from this one on."""
    seen: list[Node] = []
    at: Node | None = node
    while at is not None and at not in seen:
        seen.append(at)
        at = _next(at)
    return seen[seen.index(at) :] if at is not None and at is node else []


def _next(node: Node) -> Node | None:
    """The state whose `always` is asked after that of `node` was taken; None if it cannot be known."""
    [*targets] = node.always[0].targets
    at: Node | None = targets[0] if len(targets) == 1 else None
    while at is not None and at.type == "compound":
        at = at.initial
    if at is None or at.type != "atomic":
        return None
    for one in upwards(at):
        if one.always:
            return one if certain(one.always[0].guard) else None
    return None


def _flat(actions: Iterable[Action]) -> Iterator[Action]:
    for action in actions:
        yield action
        if isinstance(action, Named):
            yield from _flat(action.actions)
        elif isinstance(action, Choose):
            for _, inner in action.choices:
                yield from _flat(inner)
