"""Moves one instance's snapshot to another version of its chart, by a map of states that a person wrote.

It decides where the instance stands in the new version, which timers go on and which children keep running, or says
in words what is missing. Nothing runs by it: no entry, no exit, no guard. What is to be done besides the snapshot
comes back as effects. It must not guess: a state without a clear place in the new version is a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.engine import codec
from holdfast.engine.charts.configurations import (
    Configuration,
    SnapshotMismatch,
    by_order,
    configuration,
    configuration_of,
)
from holdfast.engine.charts.difference import place
from holdfast.engine.charts.document import Problem, escaped
from holdfast.engine.charts.expressions import Scope
from holdfast.engine.charts.interpreter import Effect
from holdfast.engine.charts.nodes import Chart, Invoke, Node, StepFault
from holdfast.engine.charts.snapshots import Child, Pin, Snapshot, Timer, snapshot_from, snapshot_text
from holdfast.engine.errors import HoldfastError
from holdfast.engine.spans import span

EVENT = "xstate.migrate"  # what expressions of delays and inputs see as the event


class Migration(msgspec.Struct, frozen=True):
    """Where the instance stands in the new version, and what the history says about it."""

    snapshot: Snapshot
    summary: dict[str, Any]
    effects: tuple[Effect, ...]  # cancel and schedule of timers, stop and invoke of children


class _Impossible(Exception):
    """Problems that leave nothing to go on with."""


def plan_migration(
    old: Chart,
    new: Chart,
    snapshot: Snapshot,
    states: Mapping[str, str],
    *,
    now: int,
    context: Mapping[str, Any] | None = None,
    enter: Iterable[str] = (),
    stop: Iterable[str] = (),
    start: Iterable[str] = (),
) -> Migration | list[Problem]:
    """The migrated snapshot, or everything that stands in its way. A problem's path points into this request.

    `states`: old path → new path (review.waiting, or #id). A state inside a mapped one follows it; what is not mapped
    stays where it is if the new version has that path with the same kind. "" says that a region is gone for good.
    `context`: fields to set. `enter`: states of the new version to stand in besides, where it has regions that the old
    one had not. `stop`: running children to stop. `start`: invokes of the new states to start.
    """
    plan = _Planning(old, new, snapshot, now)
    try:
        plan.read(states, dict(context or {}), list(enter))
        plan.stand()
        plan.remember()
        plan.keep_timers()
        plan.keep_children(set(stop), set(start))
    except _Impossible:
        pass
    if plan.problems:
        return plan.problems
    return plan.finished()


class _Planning:
    def __init__(self, old: Chart, new: Chart, snapshot: Snapshot, now: int) -> None:
        self.old = old
        self.new = new
        self.snapshot = snapshot
        self.now = now
        self.problems: list[Problem] = []
        self.map: dict[int, Node | None] = {}  # as written, by the old state's number; None: gone for good
        self.given: dict[str, str] = {}
        self.enter: list[tuple[str, Node]] = []
        self.context: dict[str, Any] = {}
        self.changed: list[str] = []
        self.before: Configuration
        self.after: Configuration
        self.leaves: list[tuple[Node, Node]] = []
        self.scope: Scope
        self.history: dict[str, list[str]] = {}
        self.timers: dict[str, Timer] = {}
        self.order = {id_: n for n, id_ in enumerate(snapshot.timers)}  # of two due at once, the first fires first
        self.children: dict[str, Child] = {}
        self.visits = snapshot.visits
        self.effects: list[Effect] = []
        self.notes: dict[str, list[str]] = {
            "timers_kept": [], "timers_dropped": [], "timers_started": [], "children_kept": [], "children_stopped": [],
            "children_started": [], "history_dropped": [],
        }  # fmt: skip

    def problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    # -- the request

    def read(self, states: Mapping[str, str], context: dict[str, Any], enter: list[str]) -> None:
        pin = self.snapshot.definition
        if (pin.hash, pin.version) != (self.old.hash, self.old.version):
            self.problem("", f"the instance is of version {pin.version}, not of version {self.old.version}")
            raise _Impossible
        if self.snapshot.status != "active":
            self.problem("", f"the instance has ended ({self.snapshot.status}): there is nothing to migrate")
            raise _Impossible
        if self.snapshot.ending is not None:
            self.problem("", "the instance is ending: it only waits for what is under way")
            raise _Impossible
        try:
            self.before = configuration_of(self.old, bytes(self.snapshot.value))
        except SnapshotMismatch as error:
            self.problem("", str(error))
            raise _Impossible from None
        for key, word in states.items():
            path = f"/states/{escaped(key)}"
            source, target = _find(self.old, key), _find(self.new, word) if word else None
            if source is None:
                self.problem(path, f"version {self.old.version} has no state {key!r}")
            elif word == "":
                if source.parent is None or source.parent.type != "parallel":
                    self.problem(path, f"{place(source)} is no region of a parallel state: say where it goes")
                self.map[source.index] = None
                self.given[key] = word
            elif target is None:
                self.problem(path, f"version {self.new.version} has no state {word!r}")
            elif (source.type == "history") != (target.type == "history"):
                self.problem(path, "a history state is mapped to a history state, and no other is")
            elif source.parent is None or target.parent is None:
                self.problem(path, "the chart itself is not mapped: map the states inside it")
            elif source.index in self.map:
                self.problem(path, f"{place(source)} is mapped twice")
            else:
                self.map[source.index] = target
                self.given[key] = word
        for n, word in enumerate(enter):
            target = _find(self.new, word)
            if target is None or not target.atomic:
                self.problem(f"/enter/{n}", f"version {self.new.version} has no atomic state {word!r}")
            else:
                self.enter.append((f"/enter/{n}", target))
        try:
            codec.encode(context, "the context")
        except HoldfastError as error:
            self.problem("/context", str(error))
            raise _Impossible from None
        self.changed = [key for key, value in context.items() if not _same(self.snapshot.context, key, value)]
        self.context = self.snapshot.context | context

    def twin(self, node: Node) -> Node | None:
        """The state that `node` is in the new version: as mapped, else inside what its parent is now."""
        if node.index in self.map:
            return self.map[node.index]
        if node.parent is None:
            return self.new.root
        above = self.twin(node.parent)
        found = None if above is None else above.states.get(node.key)
        return found if found is not None and found.type == node.type else None

    # -- where it stands

    def stand(self) -> None:
        for node in self.before.atomic:
            twin = None if self._gone(node) else self._landing(node)
            if twin is not None:
                self.leaves.append((node, twin))
        if not self.leaves and not self.problems:
            self.problem("/states", "nothing is left to stand in: map one of the regions")
        if self.problems:
            raise _Impossible
        active = {node.index: node for _, leaf in self.leaves for node in _upwards(leaf)}
        for path, target in self.enter:
            if target.index in active:
                self.problem(path, f"the instance stands in {place(target)} anyway: leave it out")
            active |= {node.index: node for node in _upwards(target)}
        nodes = tuple(sorted(active.values(), key=by_order))
        self._check_legal(nodes, active)
        if self.problems:
            raise _Impossible
        self.after = configuration(self.new, nodes)
        self._check_done()
        self.scope = Scope(self.context, {"type": EVENT}, self.after.state)

    def _gone(self, node: Node) -> bool:
        nearest = next((at for at in _upwards(node) if at.index in self.map), None)
        return nearest is not None and self.map[nearest.index] is None

    def _landing(self, node: Node) -> Node | None:
        path = f"/states/{escaped(place(node))}"
        twin = self.twin(node)
        if twin is None:
            twin = self._collapsed(node)
        if twin is None:
            self.problem(path, f"{self._why(node)}: say where it goes")
            return None
        if not twin.atomic:
            names = ", ".join(f"{place(twin)}.{key}" for key in list(twin.states)[:5])
            self.problem(path, f"{place(twin)} has states inside: name one of those ({names})")
            return None
        if twin.type == "final" and node.type != "final":
            self.problem(
                path, f"{place(twin)} is final, and being done is not something a migration can say: map {place(node)} "
                "to a state before it and send the event that ends it"
            )  # fmt: skip
            return None
        return twin

    def _collapsed(self, node: Node) -> Node | None:
        """A state with states inside may have become one without: then all of them are that one."""
        for at in _upwards(node):
            found = self.map.get(at.index)
            if found is not None:
                return found if found.type == "atomic" else None
        return None

    def _why(self, node: Node) -> str:
        there = _find(self.new, place(node))
        if there is not None and not any(at.index in self.map for at in _upwards(node)):
            return f"{place(node)} was {node.type} and is {there.type} in version {self.new.version}"
        for at in _upwards(node):
            mapped = self.map.get(at.index)
            if mapped is not None:
                return f"{place(at)} is mapped to {place(mapped)}, which has no {node.type} state {node.key!r}"
        return f"the instance stands in {place(node)}, which version {self.new.version} does not have"

    def _check_legal(self, nodes: Iterable[Node], active: dict[int, Node]) -> None:
        for node in nodes:
            inside = [child for child in node.children if child.index in active]
            if node.type == "compound" and len(inside) > 1:
                names = " and ".join(place(child) for child in inside)
                self.problem("/states", f"the map leads to {names}, which cannot be active together")
            elif node.type == "parallel":
                for child in node.children:
                    if child.index not in active:
                        self.problem(
                            "/enter",
                            f"{place(node)} has a region {child.key!r} that no active state is mapped to: name in "
                            f"`enter` the state of {place(child)} to stand in",
                        )

    def _check_done(self) -> None:
        """A parallel state that would be done only because a region is gone: nobody would hear of it."""
        for node in self.after.nodes:
            if node.type != "parallel" or not _done(self.after.active, node):
                continue
            sources = [source for source, leaf in self.leaves if node.holds(leaf)]
            around = [at for at in _upwards(sources[0]) if at.type == "parallel"] if sources else []
            if not any(_done(self.before.active, at) and all(at.holds(s) for s in sources) for at in around):
                self.problem(
                    "/states",
                    f"{place(node)} would be done by the migration, and nobody would hear of it: map one of its states "
                    "to one that is not final",
                )

    # -- history

    def remember(self) -> None:
        for id_, remembered in self.snapshot.history_value.items():
            node = self.old.by_id.get(id_)
            twin = None if node is None else self.twin(node)
            if node is None or twin is None:
                self.notes["history_dropped"].append(id_)
                continue
            nodes = [self.old.by_id[one] for one in remembered if one in self.old.by_id]
            found = {twin_.index: twin_ for one in nodes if (twin_ := self._recalled(one)) is not None}
            kept = sorted(found.values(), key=by_order)
            missing = [place(one) for one in nodes if self._recalled(one) is None]
            if missing or not self._recallable(twin, kept):
                words = ", ".join(missing or [place(one) for one in nodes])
                self.problem(
                    f"/states/{escaped((missing or [place(node)])[0])}",
                    f"{place(node)} remembers {words}, which {place(twin)} cannot go back to: say where it goes",
                )
                continue
            self.history[twin.id] = [one.id for one in kept]

    def _recalled(self, node: Node) -> Node | None:
        return self.twin(node) or self._collapsed(node)

    @staticmethod
    def _recallable(history: Node, nodes: list[Node]) -> bool:
        """Whether these are what such a history state remembers: all of one level, or all the innermost."""
        parent = history.parent
        assert parent is not None
        if not nodes or not all(parent.holds(node) for node in nodes):
            return False
        if history.history == "shallow":
            return all(node.parent is parent for node in nodes) and (
                len(nodes) == (1 if parent.type == "compound" else len(parent.children))
            )
        active = {at.index: at for node in nodes for at in _upwards(node)}
        inside = [at for at in active.values() if at is parent or parent.holds(at)]
        return all(node.atomic for node in nodes) and all(
            sum(child.index in active for child in at.children)
            == (0 if at.atomic else 1 if at.type == "compound" else len(at.children))
            for at in inside
        )

    # -- timers

    def keep_timers(self) -> None:
        carried: set[str] = set()  # events of the new version that the old visit has begun already
        for node in self.before.nodes:
            twin = self._active_twin(node)
            for delay in node.after:
                word = _delay_key(node, delay.event)
                now_ = None if twin is None else f"xstate.after.{word}.{twin.id}"
                goes_on = twin is not None and any(one.event == now_ for one in twin.after)
                timer = self.snapshot.timers.get(delay.event)
                if goes_on and now_ is not None:
                    carried.add(now_)
                if timer is None:
                    continue  # it has fired already
                if not goes_on or now_ is None:
                    self.notes["timers_dropped"].append(delay.event)
                    self.effects.append(Effect("cancel", {"id": delay.event}))
                elif now_ not in self.timers or timer.due < self.timers[now_].due:
                    self._keep_timer(delay.event, now_, timer)
        for id_, timer in self.snapshot.timers.items():
            if not id_.startswith("xstate.after."):  # a delayed raise belongs to no state
                self.timers[id_] = timer
                self.notes["timers_kept"].append(id_)
        for node in self.after.nodes:
            self._start_timers(node, carried)
        self.timers = dict(sorted(self.timers.items(), key=lambda one: self.order.get(one[0], len(self.order))))

    def _active_twin(self, node: Node) -> Node | None:
        """What `node` is now, if the instance stands in it."""
        landed = next((leaf for source, leaf in self.leaves if source is node), None)
        twin = landed or self.twin(node)
        return twin if twin is not None and twin.index in self.after.active else None

    def _keep_timer(self, was: str, id_: str, timer: Timer) -> None:
        self.timers[id_] = Timer(timer.due, {"type": id_}, timer.visit)
        self.order[id_] = self.order[was]
        self.notes["timers_kept"].append(id_)
        if was != id_:
            left = max(timer.due - self.now, 0)
            self.effects.append(Effect("cancel", {"id": was}))
            body = {"id": id_, "event": {"type": id_}, "delay": left, "due": timer.due}
            self.effects.append(Effect("schedule", body))

    def _start_timers(self, node: Node, carried: set[str]) -> None:
        fresh = [delay for delay in node.after if delay.event not in carried]
        if not fresh:
            return
        self.visits += 1
        for delay in fresh:
            micros = self._valued(delay.path, lambda value=delay.value: span(value.of(self.scope)))
            if isinstance(micros, str):
                self.problem(delay.path, micros)
            elif isinstance(micros, int):
                event = {"type": delay.event}
                self.timers[delay.event] = Timer(self.now + micros, event, self.visits)
                self.notes["timers_started"].append(delay.event)
                body = {"id": delay.event, "event": event, "delay": micros, "due": self.now + micros}
                self.effects.append(Effect("schedule", body))

    def _valued(self, path: str, work: Any) -> Any:
        try:
            return work()
        except StepFault as fault:
            self.problem(fault.path or path, f"cannot be worked out by a migration: {fault}")
            return None

    # -- children

    def keep_children(self, stop: set[str], start: set[str]) -> None:
        for id_, child in self.snapshot.children.items():
            owners = [node for node in self.before.nodes if _invokes(node, id_)]
            stays = any(twin is not None and _invokes(twin, id_) for twin in map(self._active_twin, owners))
            if stays and id_ not in stop:
                self.children[id_] = child
                self.notes["children_kept"].append(id_)
            elif id_ in stop or child.answered:
                self.notes["children_stopped"].append(id_)
                body = {"id": id_, "visit": child.visit, "answered": child.answered, "workflow": child.workflow}
                self.effects.append(Effect("stop", body))
            else:
                self.problem(
                    f"/stop/{escaped(id_)}",
                    f"the child {id_!r} is running, and its state has no invoke of that id in version "
                    f"{self.new.version}: give the new invoke that id, or list it in `stop`",
                )
        for id_ in sorted(stop - self.snapshot.children.keys()):
            self.problem(f"/stop/{escaped(id_)}", f"no child {id_!r} is running")
        missing = {
            invoke.id: (node, invoke)
            for node in self.after.nodes
            for invoke in node.invokes
            if invoke.id not in self.children
        }
        for id_ in sorted(start - missing.keys()):
            self.problem(f"/start/{escaped(id_)}", f"no state to stand in has an invoke {id_!r} that is to be started")
        for id_, (node, invoke) in missing.items():
            if id_ in start:
                self._start_child(invoke)
            elif id_ not in stop:
                self.problem(
                    f"/start/{escaped(id_)}",
                    f"{place(node)} invokes {id_!r}, which is not running: list it in `start`, or it never answers",
                )

    def _start_child(self, invoke: Invoke) -> None:
        input_ = self._valued(invoke.path, lambda: invoke.input.of(self.scope))
        src = invoke.src
        if "task" in src:
            src = {"task": self._valued(invoke.path, lambda: invoke.src["task"].of(self.scope))}
        self.visits += 1
        self.children[invoke.id] = Child(self.visits, "workflow" in src)
        body = {"id": invoke.id, "src": src, "input": input_, "visit": self.visits}
        self.effects.append(Effect("invoke", body))
        self.notes["children_started"].append(invoke.id)

    # -- the end

    def finished(self) -> Migration:
        pin = Pin(self.new.id, self.new.version, self.new.hash)
        snapshot = msgspec.structs.replace(
            self.snapshot, value=msgspec.Raw(self.after.raw), context=self.context, definition=pin,
            seq=self.snapshot.seq + 1, history_value=self.history, children=self.children, timers=self.timers,
            visits=self.visits,
        )  # fmt: skip
        moved = {place(node): place(leaf) for node, leaf in self.leaves}
        summary = {
            "from": {"version": self.old.version, "hash": self.old.hash, "value": self.before.value},
            "to": {"version": self.new.version, "hash": self.new.hash, "value": self.after.value},
            "map": self.given,
            "states": moved,
            "entered": [place(node) for _, node in self.enter],
            "context": self.changed,
            **self.notes,
        }
        return Migration(snapshot_from(self.new, snapshot_text(snapshot)), summary, tuple(self.effects))


def _find(chart: Chart, word: str) -> Node | None:
    if word.startswith("#"):
        id_, _, rest = word[1:].partition(".")
        at = chart.by_id.get(id_)
        if at is None:
            return chart.by_id.get(word[1:])
        keys = rest.split(".") if rest else []
    else:
        at, keys = chart.root, word.split(".")
    for key in keys:
        at = None if at is None else at.states.get(key)
    return at


def _upwards(node: Node) -> Iterator[Node]:
    at: Node | None = node
    while at is not None:
        yield at
        at = at.parent


def _invokes(node: Node, id_: str) -> bool:
    return any(invoke.id == id_ for invoke in node.invokes)


def _delay_key(node: Node, event: str) -> str:
    return event[len("xstate.after.") : -len(node.id) - 1]


def _same(context: dict[str, Any], key: str, value: Any) -> bool:
    return key in context and codec.encode(context[key]) == codec.encode(value)


def _done(active: frozenset[int], node: Node) -> bool:
    if node.type == "compound":
        return any(child.type == "final" and child.index in active for child in node.children)
    if node.type == "parallel":
        return all(_done(active, child) for child in node.children)
    return node.type == "final"
