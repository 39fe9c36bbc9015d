"""Compiles how states are left: transitions and their targets, delays, and invokes with their answers."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Any

from holdfast.engine.charts.compile_actions import ActionCompiler
from holdfast.engine.charts.compile_values import EVENT
from holdfast.engine.charts.configurations import by_order
from holdfast.engine.charts.document import escaped, found
from holdfast.engine.charts.nodes import Constant, Delay, Invoke, Node, Transition
from holdfast.engine.charts.walking import common
from holdfast.engine.spans import span

TRANSITION_KEYS = frozenset(("target", "guard", "actions", "reenter", "description", "meta"))


class TransitionCompiler(ActionCompiler):
    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.transitions = 0

    def _transitions(self, node: Node, event: str, given: Any, path: str) -> list[Transition]:
        several = isinstance(given, list)
        made = []
        for n, one in enumerate(given if isinstance(given, list) else [given]):
            made.append(self._transition(node, event, one, f"{path}/{n}" if several else path))
        return [transition for transition in made if transition is not None]

    def _transition(self, node: Node, event: str, given: Any, path: str) -> Transition | None:
        self.transitions += 1
        if given is None:
            given = {}
        if isinstance(given, str):
            given, place = {"target": given}, path
        elif isinstance(given, dict):
            place = f"{path}/target"
            self._keys(given, TRANSITION_KEYS, path)
        else:
            self.problem(path, f"expected a target, a transition (an object) or a list of these, found {found(given)}")
            return None
        words = given.get("target")
        targets = []
        if words is not None:
            if isinstance(words, list) and not words:
                self.problem(place, "the list of targets is empty: leave `target` out to stay")
            for n, word in enumerate(words if isinstance(words, list) else [words]):
                target = self._find(node, word, f"{place}/{n}" if isinstance(words, list) else place)
                if target is not None:
                    targets.append(target)
            self._together(targets, place)
        reenter = given.get("reenter", False)
        if not isinstance(reenter, bool):
            self.problem(f"{path}/reenter", f"expected true or false, found {found(reenter)}")
        guard = self._guard(given["guard"], f"{path}/guard") if given.get("guard") is not None else None
        actions = self._actions(given.get("actions", []), f"{path}/actions")
        description = self._text(given.get("description", ""), f"{path}/description")
        return Transition(node, event, tuple(targets), guard, actions, bool(reenter), path, description)

    def _together(self, targets: list[Node], path: str) -> None:
        """Several targets can only be entered together if each pair lies in different regions of a parallel state.

        In document order it is enough to look at neighbours: what two others have in common lies around one of these.
        """
        for one, other in pairwise(sorted(targets, key=by_order)):
            if one is other or one.holds(other):
                self.problem(path, f"{one!r} and {other!r} are both targets, and one holds the other")
            elif common(one, other).type != "parallel":
                self.problem(
                    path, f"{one!r} and {other!r} cannot be active together: they are not in regions of one "
                    "parallel state"
                )  # fmt: skip

    def _event_name(self, event: str, path: str) -> None:
        if not EVENT.match(event):
            self.problem(path, "an event's name has 1 to 200 characters and no control characters")
        elif "*" in event and event != "*" and (not event.endswith(".*") or event.count("*") > 1):
            self.problem(path, "a wildcard stands alone (*) or at the end after a dot (order.*)")

    # -- delays

    def _after(self, node: Node, config: dict[str, Any]) -> None:
        after = config.get("after", {})
        path = f"{node.path}/after"
        if not isinstance(after, dict):
            self.problem(path, f"expected an object of delays, found {found(after)}")
            return
        seen: set[str] = set()
        for word, given in after.items():
            place = f"{path}/{escaped(word)}"
            if word in self.delays:
                value = self.delays[word]
            elif word.isascii() and word.isdigit():
                if len(word) > 15:
                    self.problem(place, "that many milliseconds is longer than a thousand years")
                    continue
                word = str(int(word))
                value = self._span(int(word), place)
            else:
                micros = span(word)
                if isinstance(micros, str):
                    self.problem(place, f"expected milliseconds, an ISO 8601 duration or a name of `delays`: {micros}")
                    continue
                value = Constant(word)
            event = f"xstate.after.{word}.{node.id}"
            if event in seen:
                self.problem(place, f"the delay {word} stands twice in this state")
                continue
            seen.add(event)
            node.after.append(Delay(event, value, place))
            node.on.setdefault(event, []).extend(self._transitions(node, event, given, place))

    # -- invokes

    def _invokes(self, node: Node, config: dict[str, Any]) -> None:
        given = config.get("invoke", [])
        several = isinstance(given, list)
        seen: set[str] = set()
        for n, one in enumerate(given if isinstance(given, list) else [given]):
            path = f"{node.path}/invoke" + (f"/{n}" if several else "")
            if not isinstance(one, dict):
                self.problem(path, f"expected an object with `src`, found {found(one)}")
                continue
            self._keys(one, frozenset(("id", "src", "input", "onDone", "onError", "description", "meta")), path)
            id_ = one.get("id", f"{n}.{node.id}")
            if not isinstance(id_, str) or not EVENT.match(id_) or "*" in id_:
                self.problem(f"{path}/id", f"expected a name without *, found {found(id_)}")
                continue
            if id_ in seen:
                self.problem(f"{path}/id", f"the id {id_!r} is taken by another invoke of this state")
            seen.add(id_)
            src = self._source(one.get("src"), f"{path}/src")
            node.invokes.append(Invoke(id_, src, self._value(one.get("input"), f"{path}/input"), path))
            for key, event in (("onDone", f"xstate.done.actor.{id_}"), ("onError", f"xstate.error.actor.{id_}")):
                if key in one:
                    self._not_twice(node, event, f"{path}/{key}")
                    node.on[event] = self._transitions(node, event, one[key], f"{path}/{key}")

    def _source(self, given: Any, path: str) -> Any:
        if isinstance(given, str) and EVENT.match(given):
            given = {"task": {"type": "SYSTEM", "name": given}}
        if not isinstance(given, dict) or len(given.keys() & {"task", "workflow"}) != 1:
            self.problem(
                path,
                'expected the name of a SYSTEM handler, {"task": {"type": …}} or {"workflow": "key"}, '
                f"found {found(given)}",
            )
            return {}
        if "task" in given:
            self._keys(given, frozenset(("task",)), path)
            return {"task": self._task(given["task"], f"{path}/task", invoked=True)}
        self._keys(given, frozenset(("workflow", "version")), path)
        key, version = given["workflow"], given.get("version")
        if not isinstance(key, str) or not EVENT.match(key):
            self.problem(f"{path}/workflow", f"expected the key of a workflow, found {found(key)}")
            key = ""
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 1):
            self.problem(f"{path}/version", f"expected a whole number from 1 on, found {found(version)}")
        self.chart.workflows.append((path, key))
        return {"workflow": key, "version": version}

    def _not_twice(self, node: Node, event: str, path: str) -> None:
        if event in node.on:
            self.problem(path, f"this state's `on` has {event!r} already: say it in one place")

    def _one_child_at_a_time(self) -> None:
        """Two invokes with one id, in states that may be active together, would answer for each other."""
        before: dict[str, tuple[list[int], list[str]]] = {}  # by id: states that came first, and their invokes' paths
        for node in self.nodes:
            for invoke in node.invokes:
                owners, paths = before.setdefault(invoke.id, ([], []))
                first = _first_together(node, owners)
                if first is not None:
                    self.problem(
                        f"{invoke.path}/id", f"{paths[first]} has the id {invoke.id!r} too, and both may run at once"
                    )
                owners.append(node.index)
                paths.append(invoke.path)


def _first_together(node: Node, owners: list[int]) -> int | None:
    """Which of these earlier states comes first that may be active together with `node`: around it, or in a region
    before its own. They are numbered in document order, so one look per level is enough."""
    found: int | None = None
    region = node
    while region.parent is not None:
        around = region.parent
        first = bisect_left(owners, around.index)
        if first < len(owners) and owners[first] < (region.index if around.type == "parallel" else around.index + 1):
            found = first
        region = around
    return found
