"""A chart tried out: events in, turns out, nothing stored and nothing done. Time, tasks and children are played.

An event is what an instance is sent: a name, or an object with `type`. Besides, these stand for the world's answers:

    {"$advance": "PT3H"}                      time passes, and what falls due on the way fires in order
    {"$timer": id}                            time passes until this timer is due; never early
    {"$done": invoke, "output": …}            an invoke is done
    {"$error": invoke, "error": …}            an invoke failed for good
    {"$task": name, "output"|"error": …}      the newest open task of that name is answered

It must not know what tasks really do; a TIMER task is the only one that answers by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from holdfast.engine.calendar import moment_text
from holdfast.engine.charts.interpreter import INIT, Answer, ChartTurn, Effect, advance, start
from holdfast.engine.charts.nodes import Chart, StepFault
from holdfast.engine.charts.simulated_turns import SimulatedTurn, as_json, refused_turn, taken_turn
from holdfast.engine.charts.snapshots import Snapshot, due, snapshot_from, snapshot_text
from holdfast.engine.errors import HoldfastError
from holdfast.engine.spans import span
from holdfast.engine.tasks import TaskFault, plan_task

TURNS_LIMIT = 1_000
LAST_MOMENT = 253_402_300_799 * 1_000_000
_FIELDS = {"$advance": (), "$timer": (), "$done": ("output",), "$error": ("error",), "$task": ("output", "error")}


class BadSimulation(HoldfastError):
    """A list of events that cannot be played; `turns` is what happened before."""

    code = "bad_simulation"

    def __init__(self, number: int, message: str, turns: list[SimulatedTurn]) -> None:
        self.turns = turns
        super().__init__(f"/events/{number}: {message}")


def simulate(
    chart: Chart, input_: Any, events: Iterable[Any], now: int = 0, *, on_fault: Literal["stop", "skip"] = "stop"
) -> list[SimulatedTurn]:
    """One turn for the start, then those of each event. A step that fails ends it, or is skipped if you say so."""
    simulation = _Simulation(chart, now, skip=on_fault == "skip")
    simulation.start(input_)
    for number, event in enumerate(events):
        if simulation.stopped:
            break
        simulation.number = number
        simulation.play(event)
    return simulation.turns


class _Task(msgspec.Struct):
    """A task that was created and not answered yet."""

    params: dict[str, Any]
    due: int | None  # of a TIMER that fires by itself


class _Simulation:
    def __init__(self, chart: Chart, now: int, *, skip: bool) -> None:
        self.chart = chart
        self.now = now
        self.skip = skip
        self.stopped = False
        self.number = 0
        self.turns: list[SimulatedTurn] = []
        self.tasks: list[_Task] = []
        self.children: dict[str, int] = {}  # invoked TIMER tasks, and when they fire
        self.started = False
        self.snapshot: Snapshot

    def refuse(self, message: str) -> BadSimulation:
        return BadSimulation(self.number, message, self.turns)

    # -- the ways in

    def start(self, input_: Any) -> None:
        event = {"type": INIT, "input": as_json(input_)}
        try:
            turn = start(self.chart, event["input"], self.now)
            moments = self._moments(turn.effects)
        except (StepFault, TaskFault) as fault:
            self._refused(event, fault)
            self.stopped = True  # there is nothing to go on with
            return
        self._record(event, turn, moments)

    def play(self, given: Any) -> None:
        if isinstance(given, str):
            given = {"type": given}
        if not isinstance(given, dict):
            raise self.refuse('expected an event: a name, {"type": …}, or one of ' + ", ".join(_FIELDS))
        special = [key for key in given if key.startswith("$")]
        if not special:
            self._event(given)
            return
        word = special[0]
        if len(special) > 1 or word not in _FIELDS:
            raise self.refuse(f"{', '.join(special)} is not known: expected one of {', '.join(_FIELDS)}")
        unknown = [key for key in given if key != word and key not in _FIELDS[word]]
        if unknown:
            more = " and ".join(_FIELDS[word]) or "nothing else"
            raise self.refuse(f"{unknown[0]!r} does not go with {word}: it takes {more}")
        if word == "$advance":
            self._advance(given[word])
        elif not isinstance(given[word], str):
            raise self.refuse(f"{word} takes a name, found {given[word]!r}")
        elif word == "$timer":
            self._timer(given[word])
        elif word == "$task":
            self._task(given)
        else:
            self._child(word[1:], given[word], given.get("output" if word == "$done" else "error"))

    def _event(self, given: dict[str, Any]) -> None:
        type_ = given.get("type")
        if not isinstance(type_, str) or not type_:
            raise self.refuse("an event needs a `type`: its name")
        if type_.startswith("xstate."):
            raise self.refuse(f"{type_!r} comes from the engine: use $timer, $done or $error")
        # As the worker passes it on: with the moment at which it was sent.
        sent_at = moment_text(self.now)
        self._step({**given, "at": sent_at}, None)

    # -- time

    def _advance(self, given: Any) -> None:
        micros = span(given)
        if isinstance(micros, str):
            raise self.refuse(micros)
        if self.now + micros > LAST_MOMENT:
            raise self.refuse("it leads beyond the year 9999")
        self._until(self.now + micros)

    def _timer(self, id_: str) -> None:
        timer = self.snapshot.timers.get(id_)
        if timer is None:
            raise self.refuse(f"no timer {id_!r} is running ({_running(self.snapshot.timers)})")
        visit = timer.visit
        self._until(timer.due, upto=id_)
        timer = self.snapshot.timers.get(id_)
        if not self.stopped and timer is not None and timer.visit == visit:
            self._step(timer.event, Answer("timer", id_, visit))

    def _until(self, moment: int, upto: str = "") -> None:
        """Everything fires that falls due, in order; `upto`: but what comes after this timer."""
        while not self.stopped and (next_ := self._next()) is not None:
            at, kind, id_ = next_
            if at > moment or (kind == "timer" and id_ == upto):
                break
            self.now = max(self.now, at)
            if kind == "timer":
                timer = self.snapshot.timers[id_]
                self._step(timer.event, Answer("timer", id_, timer.visit))
            elif kind == "child":
                self._child("done", id_, None)
            else:
                self._answer(next(task for task in self.tasks if task.due == at), {"output": None})
        self.now = max(self.now, moment) if not self.stopped else self.now

    def _next(self) -> tuple[int, str, str] | None:
        """What falls due next. Of several at one moment tasks come first, then the chart's timers, in the order in
        which they were started."""
        found = [(task.due, "task", "") for task in self.tasks if task.due is not None]
        first = due(self.snapshot)
        if first is not None:
            found.append((first[1].due, "timer", first[0]))
        found += [(at, "child", id_) for id_, at in self.children.items() if self._waits(id_)]
        return min(found, key=lambda one: one[0]) if found else None

    def _waits(self, id_: str) -> bool:
        child = self.snapshot.children.get(id_)
        return child is not None and not child.answered

    # -- answers

    def _child(self, word: str, id_: str, value: Any) -> None:
        if not self._waits(id_):
            waiting = {key: child for key, child in self.snapshot.children.items() if not child.answered}
            raise self.refuse(f"no invoke {id_!r} is running ({_running(waiting)})")
        field = "output" if word == "done" else "error"
        event = {"type": f"xstate.{word}.actor.{id_}", field: value}
        self._step(event, Answer("child", id_, self.snapshot.children[id_].visit))

    def _task(self, given: dict[str, Any]) -> None:
        name = given["$task"]
        if "output" in given and "error" in given:
            raise self.refuse("a task is answered with output or error, not with both")
        task = next((task for task in reversed(self.tasks) if task.params.get("name") == name), None)
        if task is None:
            names = _running({str(task.params.get("name")): task for task in self.tasks})
            raise self.refuse(f"no open task is named {name!r} ({names})")
        self._answer(task, given)

    def _answer(self, task: _Task, given: dict[str, Any]) -> None:
        self.tasks = [other for other in self.tasks if other is not task]
        name, failed = task.params["name"], "error" in given
        if failed:
            event = {"type": task.params.get("failure_event", f"task.failed.{name}"), "error": given["error"]}
        else:
            event = {"type": task.params.get("completion_event", f"task.done.{name}"), "output": given.get("output")}
        turn = self._step(event | {"task": {"name": name, "type": task.params["type"]}}, None)
        if failed and turn is not None and not turn.handled and not turn.stale:
            self._fail(given["error"])

    def _fail(self, error: Any) -> None:
        """A task that failed for good and no state took it: the instance fails by it."""
        self.snapshot = msgspec.structs.replace(self.snapshot, status="error", error=error, timers={}, children={})
        self.tasks.clear()
        self.turns[-1] = msgspec.structs.replace(self.turns[-1], status="error", error=error)

    # -- turns

    def _step(self, event: dict[str, Any], answer: Answer | None) -> ChartTurn | None:
        event = as_json(event)
        try:
            turn = advance(self.chart, self.snapshot, event, self.now, answer)
            moments = self._moments(turn.effects)
        except (StepFault, TaskFault) as fault:
            self._refused(event, fault)
            self.stopped = not self.skip
            if answer is not None and self.skip:
                self._drop(answer)
            return None
        self._record(event, turn, moments)
        return turn

    def _moments(self, effects: list[Effect]) -> list[int | None]:
        """When the TIMER among these effects fire. A task that cannot be made refuses the whole step."""
        moments: list[int | None] = []
        for effect in effects:
            at = None
            if effect.type == "createTask":
                at = self._moment(effect.body["params"])
            elif effect.type == "invoke" and "task" in effect.body["src"]:
                at = self._moment(effect.body["src"]["task"])
            moments.append(at)
        return moments

    def _moment(self, params: dict[str, Any]) -> int | None:
        plan = plan_task(params, None, self.now)
        return None if plan.type != "TIMER" else self.now if plan.run_at is None else plan.run_at

    def _drop(self, answer: Answer) -> None:
        """A skipped answer is over, or it would fall due again at once."""
        if answer.kind == "timer":
            timers = {id_: timer for id_, timer in self.snapshot.timers.items() if id_ != answer.id}
            self.snapshot = msgspec.structs.replace(self.snapshot, timers=timers)
        else:
            self.children.pop(answer.id, None)

    def _turn(self, turn: SimulatedTurn) -> None:
        if len(self.turns) >= TURNS_LIMIT:
            raise self.refuse(f"the simulation comes to more than {TURNS_LIMIT:,} turns: let less time pass")
        self.turns.append(turn)

    def _refused(self, event: dict[str, Any], fault: StepFault | TaskFault) -> None:
        self._turn(refused_turn(event, self.now, self.chart, self.snapshot if self.started else None, fault))

    def _record(self, event: dict[str, Any], turn: ChartTurn, moments: list[int | None]) -> None:
        old = self.snapshot if self.started else None
        # Through JSON, as between the turns of a real instance.
        self.snapshot = snapshot_from(self.chart, snapshot_text(turn.snapshot))
        self.started = True
        self._follow(turn.effects, moments)
        self._turn(taken_turn(event, self.now, old, self.snapshot, turn))
        if self.snapshot.status != "active":
            self.tasks.clear()

    def _follow(self, effects: list[Effect], moments: list[int | None]) -> None:
        """What the effects leave open: tasks to answer, and timers among them that answer by themselves."""
        for effect, at in zip(effects, moments, strict=True):
            if effect.type == "createTask":
                self.tasks.append(_Task(effect.body["params"], at))
            elif effect.type == "cancelTask":
                name = effect.body["params"]["name"]
                self.tasks = [task for task in self.tasks if task.params.get("name") != name]
            elif effect.type == "invoke":
                self.children.pop(effect.body["id"], None)
                if at is not None:
                    self.children[effect.body["id"]] = at


def _running(things: dict[str, Any]) -> str:
    return f"open: {', '.join(sorted(things)[:8])}" if things else "none is open"
