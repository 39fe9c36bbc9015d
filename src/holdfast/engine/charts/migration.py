"""Moves one instance's snapshot to another version of its chart, by a map of states that a person wrote.

It decides where the instance stands in the new version, which timers go on and which children keep running, or says
in words what is missing. Nothing runs by it: no entry, no exit, no guard. What is to be done besides the snapshot
comes back as effects. It must not guess: a state without a clear place in the new version is a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.engine import codec
from holdfast.engine.charts.configurations import by_order
from holdfast.engine.charts.document import Problem, escaped
from holdfast.engine.charts.expressions import Scope
from holdfast.engine.charts.interpreter import Effect
from holdfast.engine.charts.migration_places import Impossible, Placing
from holdfast.engine.charts.nodes import Chart, Invoke, Node, StepFault
from holdfast.engine.charts.plain import place
from holdfast.engine.charts.snapshots import Child, Pin, Snapshot, Timer, snapshot_from, snapshot_text
from holdfast.engine.charts.walking import upwards
from holdfast.engine.errors import HoldfastError
from holdfast.engine.spans import span

EVENT = "xstate.migrate"  # what expressions of delays and inputs see as the event


class Migration(msgspec.Struct, frozen=True):
    """Where the instance stands in the new version, and what the history says about it."""

    snapshot: Snapshot
    summary: dict[str, Any]
    effects: tuple[Effect, ...]  # cancel and schedule of timers, stop and invoke of children


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
    places = Placing(old, new, snapshot)
    plan = _Planning(places, now)
    try:
        places.read(states, enter)
        plan.read(dict(context or {}))
        plan.stand()
        plan.remember()
        plan.keep_timers()
        plan.keep_children(set(stop), set(start))
    except Impossible:
        pass
    if places.problems:
        return places.problems
    return plan.finished()


class _Planning:
    """What goes on in the new version: the context, what history states remember, timers and children."""

    def __init__(self, places: Placing, now: int) -> None:
        self.places = places
        self.old = places.old
        self.new = places.new
        self.snapshot = places.snapshot
        self.problem = places.problem
        self.now = now
        self.context: dict[str, Any] = {}
        self.changed: list[str] = []
        self.scope: Scope
        self.history: dict[str, list[str]] = {}
        self.timers: dict[str, Timer] = {}
        self.order = {id_: n for n, id_ in enumerate(self.snapshot.timers)}  # of two due at once, the first fires first
        self.children: dict[str, Child] = {}
        self.visits = self.snapshot.visits
        self.effects: list[Effect] = []
        self.notes: dict[str, list[str]] = {
            "timers_kept": [], "timers_dropped": [], "timers_started": [], "children_kept": [], "children_stopped": [],
            "children_started": [], "history_dropped": [],
        }  # fmt: skip

    def read(self, context: dict[str, Any]) -> None:
        try:
            codec.encode(context, "the context")
        except HoldfastError as error:
            self.problem("/context", str(error))
            raise Impossible from None
        self.changed = [key for key, value in context.items() if not _same(self.snapshot.context, key, value)]
        self.context = self.snapshot.context | context

    def stand(self) -> None:
        self.places.stand()
        self.scope = Scope(self.context, {"type": EVENT}, self.places.after.state)

    # -- history

    def remember(self) -> None:
        for id_, remembered in self.snapshot.history_value.items():
            node = self.old.by_id.get(id_)
            twin = None if node is None else self.places.twin(node)
            if node is None or twin is None:
                self.notes["history_dropped"].append(id_)
                continue
            nodes = [self.old.by_id[one] for one in remembered if one in self.old.by_id]
            found = {twin_.index: twin_ for one in nodes if (twin_ := self.places.recalled(one)) is not None}
            kept = sorted(found.values(), key=by_order)
            missing = [place(one) for one in nodes if self.places.recalled(one) is None]
            if missing or not self._recallable(twin, kept):
                words = ", ".join(missing or [place(one) for one in nodes])
                self.problem(
                    f"/states/{escaped((missing or [place(node)])[0])}",
                    f"{place(node)} remembers {words}, which {place(twin)} cannot go back to: say where it goes",
                )
                continue
            self.history[twin.id] = [one.id for one in kept]

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
        active = {at.index: at for node in nodes for at in upwards(node)}
        inside = [at for at in active.values() if at is parent or parent.holds(at)]
        return all(node.atomic for node in nodes) and all(
            sum(child.index in active for child in at.children)
            == (0 if at.atomic else 1 if at.type == "compound" else len(at.children))
            for at in inside
        )

    # -- timers

    def keep_timers(self) -> None:
        carried: set[str] = set()  # events of the new version that the old visit has begun already
        for node in self.places.before.nodes:
            twin = self.places.active_twin(node)
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
        for node in self.places.after.nodes:
            self._start_timers(node, carried)
        self.timers = dict(sorted(self.timers.items(), key=lambda one: self.order.get(one[0], len(self.order))))

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
            owners = [node for node in self.places.before.nodes if _invokes(node, id_)]
            stays = any(twin is not None and _invokes(twin, id_) for twin in map(self.places.active_twin, owners))
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
            for node in self.places.after.nodes
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
            self.snapshot, value=msgspec.Raw(self.places.after.raw), context=self.context, definition=pin,
            seq=self.snapshot.seq + 1, history_value=self.history, children=self.children, timers=self.timers,
            visits=self.visits,
        )  # fmt: skip
        moved = {place(node): place(leaf) for node, leaf in self.places.leaves}
        summary = {
            "from": {"version": self.old.version, "hash": self.old.hash, "value": self.places.before.value},
            "to": {"version": self.new.version, "hash": self.new.hash, "value": self.places.after.value},
            "map": self.places.given,
            "states": moved,
            "entered": [place(node) for _, node in self.places.enter],
            "context": self.changed,
            **self.notes,
        }
        return Migration(snapshot_from(self.new, snapshot_text(snapshot)), summary, tuple(self.effects))


def _invokes(node: Node, id_: str) -> bool:
    return any(invoke.id == id_ for invoke in node.invokes)


def _delay_key(node: Node, event: str) -> str:
    return event[len("xstate.after.") : -len(node.id) - 1]


def _same(context: dict[str, Any], key: str, value: Any) -> bool:
    return key in context and codec.encode(context[key]) == codec.encode(value)
