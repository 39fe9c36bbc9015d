"""The interpreter: a chart, a snapshot and an event go in, a turn comes out. Nothing is executed, nothing is read.

The semantics are XState 5's; docs/charts-and-xstate.md lists where we differ on purpose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.engine.charts.configurations import Configuration, configuration_of, is_done
from holdfast.engine.charts.expressions import Scope
from holdfast.engine.charts.nodes import (
    Action,
    Assign,
    Cancel,
    Chart,
    Choose,
    Deed,
    Delay,
    Invoke,
    Named,
    Node,
    Raise,
    StepFault,
    Transition,
    Value,
)  # fmt: skip
from holdfast.engine.charts.planning import Plan, initial_plan, plan
from holdfast.engine.charts.selection import select, select_eventless
from holdfast.engine.charts.snapshots import Child, Pin, Snapshot, Timer
from holdfast.engine.spans import span

MICROSTEPS_LIMIT = 1_000  # of one turn, those that take a transition
RAISED_LIMIT = 2_000  # events of one turn, taken or not
EFFECTS_LIMIT = 1_000  # of one turn
TIMERS_LIMIT = 1_000  # of one instance
INIT = "xstate.init"
ERROR = "xstate.error.actor"


class Effect(NamedTuple):
    """Something to be done after the commit. Its place in the turn is its identity."""

    type: str  # createTask | cancelTask | emit | send | log | schedule | cancel | invoke | stop
    body: dict[str, Any]


class Taken(NamedTuple):
    """One microstep: which event it was for, and which transitions were taken."""

    event: str
    transitions: Sequence[Transition]


class Answer(NamedTuple):
    """What the event answers, so that an answer to an earlier visit of a state is seen to be stale."""

    kind: str  # timer | child
    id: str
    visit: int


class ChartTurn(NamedTuple):
    snapshot: Snapshot
    effects: list[Effect]
    taken: list[Taken]
    handled: bool  # some transition took the event
    stale: bool
    state: str  # where it stands, for people


# -- one macrostep


class _Step:
    """What moves while one event is worked off."""

    __slots__ = (
        "changed", "chart", "children", "config", "effects", "error", "history", "now", "output", "queue", "raised",
        "scope", "seq", "status", "taken", "timers", "visits",
    )  # fmt: skip

    def __init__(
        self, chart: Chart, config: Configuration, scope: Scope, now: int, before: Snapshot | None = None
    ) -> None:
        self.chart = chart
        self.config = config
        self.scope = scope
        self.now = now
        self.status = "active"
        self.output: Any = None
        self.error: Any = None
        self.history: dict[str, list[str]] = {} if before is None else before.history_value
        self.children: dict[str, Child] = {} if before is None else before.children.copy()
        self.timers: dict[str, Timer] = {} if before is None else before.timers.copy()
        self.visits = 0 if before is None else before.visits
        self.seq = 1 if before is None else before.seq + 1
        self.queue: deque[dict[str, Any]] = deque()
        self.raised = 0
        self.effects: list[Effect] = []
        self.taken: list[Taken] = []
        self.changed = False

    def effect(self, type_: str, body: dict[str, Any], path: str = "") -> None:
        if len(self.effects) >= EFFECTS_LIMIT:
            raise StepFault(path, f"one step asks for more than {EFFECTS_LIMIT:,} effects, which is the limit")
        self.effects.append(Effect(type_, body))

    def put(self, event: dict[str, Any], path: str) -> None:
        """Queue an event for this turn. One that nobody takes costs no microstep, so that events have a limit too."""
        if self.raised >= RAISED_LIMIT:
            raise StepFault(path, f"one step raises more than {RAISED_LIMIT:,} events, which is the limit")
        self.raised += 1
        self.queue.append(event)

    # -- actions

    def run(self, actions: Sequence[Action]) -> None:
        scope = self.scope
        for action in actions:
            kind = type(action)
            if kind is Assign:
                assert isinstance(action, Assign)
                scope.context = scope.context | {key: value.of(scope) for key, value in action.values.items()}
                self.changed = True
            elif kind is Deed:
                assert isinstance(action, Deed)
                self._deed(action)
            elif kind is Raise:
                assert isinstance(action, Raise)
                self._raise(action)
            elif kind is Choose:
                assert isinstance(action, Choose)
                for guard, chosen in action.choices:
                    if guard is None or guard.holds(scope, self.config.active):
                        self.run(chosen)
                        break
            elif kind is Named:
                assert isinstance(action, Named)
                before = scope.params
                scope.params = None if action.params is None else action.params.of(scope)
                self.run(action.actions)
                scope.params = before
            else:
                assert isinstance(action, Cancel)
                self.cancel(action.id)

    def _deed(self, action: Deed) -> None:
        value: Any = None if action.params is None else action.params.of(self.scope)
        if action.type == "emit":
            self.effect("emit", {"event": value}, action.path)
        elif action.type == "send":
            if not isinstance(value["to"], str):
                raise StepFault(action.path + "/to", f"the address is {value['to']!r}: expected an instance's id")
            self.effect("send", value, action.path)
        else:
            self.effect(action.type, {"params": value}, action.path)

    def _raise(self, action: Raise) -> None:
        event = action.event.of(self.scope)
        if action.delay is None:
            self.put(event, action.path)
            return
        self.schedule(action.id, event, action.delay, action.path + "/delay", 0)

    def schedule(self, id_: str | None, event: dict[str, Any], delay: Value, path: str, visit: int) -> None:
        given = delay.of(self.scope)
        micros = span(given)
        if isinstance(micros, str):
            raise StepFault(path, micros)
        key = id_ if id_ is not None else f"raise.{self.seq}.{len(self.effects)}"
        self.timers.pop(key, None)  # one that is started again moves to the end
        if len(self.timers) >= TIMERS_LIMIT:
            raise StepFault(path, f"the instance has more than {TIMERS_LIMIT:,} timers, which is the limit")
        self.timers[key] = Timer(self.now + micros, event, visit)
        self.effect("schedule", {"id": id_, "event": event, "delay": micros, "due": self.now + micros}, path)

    def cancel(self, id_: str) -> None:
        self.timers.pop(id_, None)
        self.effect("cancel", {"id": id_})

    # -- leaving and entering

    def leave(self, node: Node) -> None:
        if node.exit:
            self.run(node.exit)
        for delay in node.after:
            self.cancel(delay.event)

    def stop(self, id_: str) -> None:
        self.changed = True
        child = self.children.pop(id_, None)
        if child is not None:
            body = {"id": id_, "visit": child.visit, "answered": child.answered, "workflow": child.workflow}
            self.effect("stop", body)

    def enter(self, node: Node) -> None:
        if node.entry:
            self.run(node.entry)
        if node.after or node.invokes:
            self.visits += 1
            for delay in node.after:
                self._start_timer(delay)
            for invoke in node.invokes:
                self._start_child(invoke)

    def _start_timer(self, delay: Delay) -> None:
        self.schedule(delay.event, {"type": delay.event}, delay.value, delay.path, self.visits)

    def _start_child(self, invoke: Invoke) -> None:
        given = invoke.input.of(self.scope)
        src = {"task": invoke.src["task"].of(self.scope)} if "task" in invoke.src else invoke.src
        body = {"id": invoke.id, "src": src, "input": given, "visit": self.visits}
        self.children.pop(invoke.id, None)
        self.children[invoke.id] = Child(self.visits, "workflow" in src)
        self.effect("invoke", body, invoke.path)
        self.changed = True

    def _finished(self, node: Node, active: frozenset[int], completed: set[int]) -> None:
        """A final state was entered: who is done by that?"""
        parent = node.parent
        assert parent is not None
        marker = parent if parent.type == "parallel" else parent.parent
        completion = marker or node
        if parent.type == "compound":
            output = None if node.output is None else node.output.of(self.scope)
            self.put(_done(parent, output, node.output is not None), node.path)
        while marker is not None and marker.type == "parallel" and marker.index not in completed:
            if not is_done(active, marker):
                break
            completed.add(marker.index)
            self.put(_done(marker, None, False), marker.path)
            completion = marker
            marker = marker.parent
        if marker is not None:
            return
        self.status = "done"
        root = self.chart.root
        if root.output is not None:
            # The chart's own output is worked out as if for the event that says it is done.
            given = completion.output is not None and completion.parent is not None
            output = completion.output.of(self.scope) if given and completion.output is not None else None
            before, self.scope.event = self.scope.event, _done(completion, output, given)
            self.output = root.output.of(self.scope)
            self.scope.event = before
        else:
            self.output = None

    # -- steps

    def microstep(self, given: Plan) -> None:
        self.changed = given.moved
        for node in given.exits:
            self.leave(node)
            for invoke in node.invokes:
                self.stop(invoke.id)
        for transition in given.taken:
            if transition.actions:
                self.run(transition.actions)
        if given.history:
            self.history = self.history | given.history
        if given.entries:
            self._enter_all(given)
        if self.status == "done":
            for node in reversed(given.after.nodes):
                self.leave(node)
        if given.after is not self.config:
            self.config = given.after
            self.scope.state = given.after.state

    def _enter_all(self, given: Plan) -> None:
        completed: set[int] = set()
        for n, node in enumerate(given.entries):
            self.enter(node)
            if node.index in given.initial and node.initial_actions:
                self.run(node.initial_actions)
            if node.type == "final":
                active = given.staying | {other.index for other in given.entries[: n + 1]}
                self._finished(node, active, completed)

    def take(self, transitions: Sequence[Transition]) -> None:
        if len(self.taken) >= MICROSTEPS_LIMIT:
            raise self._endless()
        self.taken.append(Taken(self.scope.event["type"], transitions))
        self.microstep(plan(self.chart, self.config, transitions, self.history))

    def run_to_completion(self) -> None:
        ask = True
        has_always = self.chart.has_always
        while self.status == "active":
            transitions = select_eventless(self.config, self.scope) if ask and has_always else []
            if transitions:
                self.take(transitions)
                ask = self.changed
                continue
            if not self.queue:
                return
            self.scope.event = self.queue.popleft()
            transitions = select(self.chart, self.config, self.scope, self.scope.event["type"])
            if transitions:
                self.take(transitions)
            ask = True

    def _endless(self) -> StepFault:
        last = [f"{taken.event}: {', '.join(map(repr, taken.transitions))}" for taken in self.taken[-8:]]
        return StepFault(
            self.taken[-1].transitions[0].path,
            f"no rest after {MICROSTEPS_LIMIT:,} microsteps: the chart goes round in a circle ({'; '.join(last[-3:])})",
            last,
        )

    def stop_children(self) -> None:
        for id_ in list(self.children):
            self.stop(id_)
        self.timers.clear()

    def turn(self, handled: bool) -> ChartTurn:
        if self.status != "active":
            self.stop_children()
        pin = Pin(self.chart.id, self.chart.version, self.chart.hash)
        snapshot = Snapshot(
            self.status, msgspec.Raw(self.config.raw), self.scope.context, pin, self.seq, self.history, self.children,
            self.timers, self.visits, self.output, self.error,
        )  # fmt: skip
        return ChartTurn(snapshot, self.effects, self.taken, handled, False, self.config.text)


def _done(node: Node, output: Any, given: bool) -> dict[str, Any]:
    event: dict[str, Any] = {"type": f"xstate.done.state.{node.id}"}
    if given:
        event["output"] = output
    return event


# -- the two ways in


def start(chart: Chart, input_: Any, now: int) -> ChartTurn:
    """The first turn of an instance."""
    first = initial_plan(chart)
    step = _Step(chart, first.after, Scope({}, {"type": INIT, "input": input_}, first.after.state), now)
    step.scope.context = chart.context.of(step.scope)
    step.microstep(first)
    step.run_to_completion()
    return step.turn(True)


def advance(
    chart: Chart, snapshot: Snapshot, event: dict[str, Any], now: int, answer: Answer | None = None
) -> ChartTurn:
    """What this event makes of the instance. `answer`: the timer or child it comes from."""
    config = configuration_of(chart, bytes(snapshot.value))
    if snapshot.status != "active" or (answer is not None and _is_stale(snapshot, answer)):
        return ChartTurn(snapshot, [], [], False, True, config.text)
    type_ = event["type"]
    step = _Step(chart, config, Scope(snapshot.context, event, config.state), now, snapshot)
    if answer is not None:
        _answered(step, answer)
    transitions = select(chart, config, step.scope, type_)
    if transitions:
        step.take(transitions)
    elif type_.startswith(ERROR):
        step.status, step.error = "error", event.get("error")
        step.stop_children()
    step.run_to_completion()
    return step.turn(bool(transitions))


def _is_stale(snapshot: Snapshot, answer: Answer) -> bool:
    if answer.kind == "timer":
        timer = snapshot.timers.get(answer.id)
        return timer is None or timer.visit != answer.visit
    child = snapshot.children.get(answer.id)
    return child is None or child.visit != answer.visit or child.answered


def _answered(step: _Step, answer: Answer) -> None:
    if answer.kind == "timer":
        del step.timers[answer.id]
    else:
        step.children[answer.id] = msgspec.structs.replace(step.children[answer.id], answered=True)
