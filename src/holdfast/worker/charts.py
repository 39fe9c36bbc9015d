"""One claimed instance of a chart, from the claim to the turn that hands it back.

An event arrives: somebody's, a timer's, a task's answer, a child's end. The interpreter says what it makes of the
snapshot; that, the history and the tasks it asks for are one turn. Only after its commit do handlers start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.calendar import moment_text
from holdfast.engine.charts.configurations import configuration_of
from holdfast.engine.charts.interpreter import Answer, ChartTurn, advance, start
from holdfast.engine.charts.nodes import StepFault
from holdfast.engine.charts.snapshots import Snapshot, Waiting, due, snapshot_from, snapshot_text
from holdfast.engine.errors import HoldfastError, NotJson
from holdfast.engine.events import as_event
from holdfast.engine.journal import Pause, RowWords
from holdfast.engine.replay import Call
from holdfast.engine.tasks import TaskFault, TaskInfo, TaskPlan, plan_task
from holdfast.engine.turns import Turn
from holdfast.store.port import Claimed, PendingEvent
from holdfast.worker import children, control, effects, endings, incidents, migrating, settling, tasks
from holdfast.worker.chart_words import event_words, fault_words, transition_words, waiting_on
from holdfast.worker.inbox import sent
from holdfast.worker.standing import Phase
from holdfast.worker.tasks import UNLIMITED, TaskCall
from holdfast.worker.turns import UnderClaim

if TYPE_CHECKING:
    from holdfast.app.registry import Definition
    from holdfast.worker.worker import Worker

RUNNABLE = ("step", "transaction", "effect")
EVENTS_OF_TURN = 50  # worked off in one commit; the rest go into the next
OPEN_TASKS_LIMIT = 1_000
STANDINGS = frozenset((h.EFFECT_STARTED, h.EFFECT_RETRIED, h.EFFECT_UNKNOWN, h.EFFECT_RESOLVED))


class ChartExecution(UnderClaim):
    def __init__(self, worker: Worker, claimed: Claimed, definition: Definition) -> None:
        super().__init__(worker, claimed, definition)
        assert definition.chart is not None
        self.chart = definition.chart
        self.snapshot: Snapshot | None = None
        self.inbox: deque[Waiting] = deque()
        self.state = ""
        self.moving_to: int | None = None  # the version the next claim goes on with
        self.task_id = ids.effect_ids(self.tenant_id, self.id)
        self.failure: tuple[str, Any] = ("", None)  # what failed last under this claim: task or child, and its error
        self.more = False  # events, answers or timers did not fit into the turn
        self.left: set[str] = set()  # keys of open tasks that nobody waits for, and that may have happened
        self.told: set[str] = set()  # child instances that were told to end and have not yet
        self._written: tuple[Snapshot | None, bytes] = (None, b"")  # the snapshot that was encoded last
        if claimed.snapshot is not None:
            self.snapshot = snapshot_from(self.chart, claimed.snapshot)
            self.state = configuration_of(self.chart, bytes(self.snapshot.value)).text
            self.inbox.extend(self.snapshot.inbox)
            self.left.update(self.snapshot.left)
            self.told.update(self.snapshot.told)
            if self.snapshot.paused is not None:
                self.paused = Pause(**self.snapshot.paused)
        elif claimed.history and claimed.history[-1].type != h.INSTANCE_PARKED:
            # Paused before it could begin: that is all that its last row is about.
            words = codec.decode(claimed.history[-1].payload)
            self.paused = msgspec.convert(words.get("paused", words), Pause)

    # -- from the claim on

    def begin(self) -> None:
        claimed = self.claimed
        if not claimed.history:
            self.started({})
        if claimed.attempts > self.worker.attempts_limit:
            endings.bury(self)
            return
        if self.snapshot is not None:
            if self.snapshot.ending is not None:
                endings.go_on(self, self.snapshot.ending)
            for row in claimed.tasks:
                tasks.take_up(self, row)
            if self.undo is not None:
                endings.drop_open(self)
        self.decide()

    def started(self, more: dict[str, Any]) -> None:
        claimed = self.claimed
        words = {
            "definition": claimed.definition_key, "version": claimed.definition_version, "hash": self.chart.hash,
            "input_hash": codec.digest(claimed.input),
        } | ({"created_by": claimed.created_by} if claimed.created_by else {})  # fmt: skip
        self.record(h.INSTANCE_STARTED, claimed.definition_key, codec.encode(words | more))

    def _start(self) -> bool:
        try:
            given = self.definition.decode_input(self.claimed.input)
            now = self.worker.now()
            turn = start(self.chart, given, now)
            plans = self.plans(turn, now)
        except (StepFault, TaskFault, HoldfastError) as fault:
            self.end("failed", fault_words(fault))
            return False
        self.apply(turn, plans, "xstate.init", None, now)
        return True

    def decide(self) -> None:
        """Work off what is there, then commit what this caused or start what needs no commit."""
        if self.moving_to is not None:  # the claim was to end with the migration, and an event kept it
            self.worker.let_go(self)
            return
        if self.snapshot is None and not self._may_begin():
            return
        self.more = True
        for _ in range(EVENTS_OF_TURN):
            if self._has_reached_its_end():
                endings.reached(self)
            if not self._one() or self.moving_to is not None:
                self.more = False
                break
        busy = self.more or self.open or self.running or self.awaits_children()
        if self.undo is not None and not busy and self.paused is None:
            if not self.hear_before_the_end():
                endings.finish(self)
            return
        self._dispatch()

    def awaits_children(self) -> bool:
        """What is cancelled or has failed ends behind its children, so that whoever undoes does so in order."""
        return bool(self.told) and self.undo is not None and self.undo.status != "completed"

    def _may_begin(self) -> bool:
        """Begin, unless it is paused before it could: then the first turn is one that waits."""
        control.hear(self)
        if self.paused is not None and not any(e.kind == "cancel" for e in self.events.orders):
            self._hand_back()
            return False
        self.paused = None
        return self._start()

    def _has_reached_its_end(self) -> bool:
        return (
            self.undo is None and self.paused is None and self.snapshot is not None and self.snapshot.status != "active"
        )

    def _one(self) -> bool:
        """Take one event, answer or due timer. False if there is nothing to take."""
        if self.events.lacks() and self.lacking() and not self.events.orders:
            return False  # a signal that was not read yet may come before anything that was
        if self.events.any and self._said():
            return True
        if self.paused is not None:
            return False
        if self.undo is not None:
            return settling.take_due(self)
        assert self.snapshot is not None
        if self.snapshot.incident is not None:  # what tasks answer is kept until somebody has resumed it
            return self.waits > 0 and settling.take_due(self)
        own = self.inbox[0] if self.inbox else None
        if own is not None and not own.sent_at:
            return self._work_off(own)  # an answer that is on record
        return self._earliest(own)

    def _earliest(self, own: Waiting | None) -> bool:
        """What happened first is taken first, whoever was asleep since: an event, a time that was up, or an event that
        the chart sent to itself. What was sent at the very moment at which a time was up was sent in time."""
        assert self.snapshot is not None
        event = self.events.first()
        due_at = self.next_at() if self.waits or self.snapshot.timers else None
        if due_at is not None and due_at <= self.worker.now():
            sooner = (event is not None and event.sent_at <= due_at) or (own is not None and own.sent_at <= due_at)
            if not sooner:
                # A timer that the chart cannot go on with has the rest wait for a person.
                is_timers = due_at != settling.first_due_at(self)
                return self._due_timer() if is_timers else settling.take_due(self)
        if own is not None and (event is None or own.sent_at < event.sent_at):
            return self._work_off(own)
        return event is not None and self._event(event)

    def _said(self) -> bool:
        """Take one word of a person, a child or an operator."""
        for order in self.events.orders:
            self._control(order)
            return True
        if self.paused is not None:
            return False
        signals = self.undo is None and self.snapshot is not None and self.snapshot.incident is None
        first = self.events.first() if signals else None
        for event in self.events.facts:
            if first is not None and sent(first) < sent(event):
                return False  # it came first, so it is taken first
            if event.kind == "resolution":
                call = self.open.get(("effect", event.name))
                if call is None:
                    effects.note_late(self, event)
                    return True
                if effects.resolved(self, call, event):
                    settling.begin_no_later(self, call)
                    return True
            elif event.kind == "task":
                self._person_answered(event)
                return True
            elif event.kind == "child":
                children.ended(self, event)
                return True
            elif event.kind == "migrate" and not self.running and self.moving_to is None:
                migrating.migrate(self, event)
                return True
        return False

    def _control(self, word: PendingEvent) -> None:
        if word.kind == "cancel":
            endings.cancel(self, word)
        elif word.kind == "resume":
            incidents.resume(self, word)
        elif word.kind == "pause":
            control.pause(self, word)
        else:
            incidents.retry(self, word)

    # -- the chart moves

    def plans(self, turn: ChartTurn, now: int) -> dict[int, TaskPlan]:
        """The tasks it asks for, by their place among its effects. One that cannot be made refuses the whole step."""
        plans, limit = {}, self.worker.payload_limit
        for index, effect in enumerate(turn.effects):
            if effect.type == "createTask" or (effect.type == "invoke" and "task" in effect.body["src"]):
                params, given = _task_of(effect.type, effect.body)
                plans[index] = plan_task(params, given, now, limit)
            elif effect.type == "invoke":
                size = len(codec.encode(effect.body["input"], limit=UNLIMITED))
                self._check_size(f"the input of child {effect.body['id']!r}", size)
            elif effect.type in ("log", "emit", "send"):
                self._check_size(f"what it {effect.type}s", len(codec.encode(effect.body, limit=UNLIMITED)))
        text = self._text(turn.snapshot)
        self._check_size("its context", len(text))
        if codec.may_be_deep(text):
            found = turn.snapshot  # history wraps it once more
            codec.encode([[found.context, found.output, found.error]], "its context or output", UNLIMITED)
        if len(self.open) + len(plans) > OPEN_TASKS_LIMIT:
            raise StepFault("", f"the instance would have more than {OPEN_TASKS_LIMIT:,} open tasks, the limit")
        return plans

    def _text(self, snapshot: Snapshot) -> bytes:
        if self._written[0] is not snapshot:
            self._written = (snapshot, snapshot_text(snapshot))
        return self._written[1]

    def _check_size(self, what: str, size: int) -> None:
        limit = self.worker.payload_limit
        if size > limit:
            raise StepFault(
                "", f"{what} would have {size:,} bytes, the limit is {limit:,}: keep large things elsewhere"
            )

    def apply(self, turn: ChartTurn, plans: dict[int, TaskPlan], event: str, before: Snapshot | None, now: int) -> None:
        """Into the turn: where it went, and everything it asks for."""
        snapshot = turn.snapshot
        self.snapshot, self.state = snapshot, turn.state
        if turn.taken or before is None:
            self.record(h.STATE_TRANSITION, turn.state[:200] or self.chart.id, transition_words(turn, event, before))
        for index, effect in enumerate(turn.effects):
            kind, body = effect.type, effect.body
            if index in plans:
                invoked = body["id"] if kind == "invoke" else None
                tasks.create(self, plans[index], f"{snapshot.seq}.{index}", invoked, body.get("visit", 0), now)
            elif kind == "invoke":
                children.start(self, body)
            elif kind == "stop":
                settling.stop(self, body)
            elif kind == "cancelTask":
                settling.drop_named(self, body["params"]["name"])
            elif kind == "schedule":
                due_at = codec.encode({"due": body["due"]})
                self.record(h.TIMER_STARTED, body["id"] or f"raise.{snapshot.seq}.{index}", due_at)
            elif kind == "cancel":
                if before is not None and body["id"] in before.timers:
                    self.record(h.TIMER_CANCELLED, body["id"], b"{}")
            elif kind == "send":
                children.send(self, body, snapshot.seq, index)
            elif kind == "emit":
                self.record(h.EVENT_EMITTED, body["event"]["type"], codec.encode(body["event"], limit=UNLIMITED))
            elif kind == "log":
                self.record(h.LOGGED, "", codec.encode({"params": body["params"]}, limit=UNLIMITED))

    def _take(
        self, event: dict[str, Any], at: int, answer: Answer | None, source: dict[str, str],
        cause: Callable[[ChartTurn], None],
    ) -> ChartTurn | None:  # fmt: skip
        """Advance; `cause(turn)` records what it was about; then everything that follows. None after an incident.

        `at`: when it happened. `source`: what to put aside if it cannot be worked off."""
        assert self.snapshot is not None
        before, now = self.snapshot, self.worker.now()
        event = {**event, "at": moment_text(at)}  # a copy: it may be the chart's own constant
        try:
            turn = advance(self.chart, before, event, now, answer)
            plans = {} if turn.stale else self.plans(turn, now)
        except (StepFault, TaskFault, NotJson) as fault:
            incidents.raise_(self, event, fault, source)
            return None
        cause(turn)
        if not turn.stale:
            self.apply(turn, plans, event["type"], before, now)
        return turn

    def _event(self, event: PendingEvent) -> bool:
        def cause(turn: ChartTurn) -> None:
            self.consume(event)
            type_ = h.EVENT_RECEIVED if turn.handled else h.EVENT_IGNORED
            self.record(type_, event.name, event_words(event))

        if event.name.startswith("xstate."):  # those are the chart's own; no door lets one in
            self.consume(event)
            self.record(h.EVENT_IGNORED, event.name, event_words(event))
            return True
        given = as_event(event.name, event.payload, event.sent_at)
        return self._take(given, event.sent_at, None, {"event": event.id}, cause) is not None

    def _work_off(self, waiting: Waiting) -> bool:
        answer = Answer(waiting.kind, waiting.id, waiting.visit) if waiting.kind else None

        def cause(turn: ChartTurn) -> None:
            self.inbox.popleft()
            if turn.stale or not turn.handled:
                words = {"stale": turn.stale, "task": waiting.event.get("task")}
                self.record(h.EVENT_IGNORED, waiting.event["type"], codec.encode(words))

        turn = self._take(waiting.event, self.worker.now(), answer, {"answer": waiting.event["type"]}, cause)
        if turn is not None and waiting.failure and not turn.handled:
            endings.unhandled_failure(self, waiting)
        return turn is not None

    def _due_timer(self) -> bool:
        """Fire the chart's earliest timer, whose time is up."""
        assert self.snapshot is not None
        found = due(self.snapshot)
        if found is None:
            return False
        id_, timer = found

        def cause(turn: ChartTurn) -> None:
            self.record(h.TIMER_FIRED, id_, codec.encode({"due": timer.due}))

        answer = Answer("timer", id_, timer.visit)
        return self._take(timer.event, timer.due, answer, {"timer": id_}, cause) is not None

    # -- what people and children say

    def _person_answered(self, event: PendingEvent) -> None:
        words = codec.decode(event.payload)
        id_ = ids.parse("tsk", event.name)
        call = next((c for c in self.open.values() if isinstance(c, TaskCall) and c.task.id == id_), None)
        self.consume(event)
        if call is None:  # settled or cancelled before this was seen: kept, and nothing follows from it
            self.record(h.TASK_LATE, event.name, event.payload)
            return
        if words["outcome"] == "completed":
            output = codec.encode(words.get("output"), limit=UNLIMITED)
            settling.settle(self, call, "succeeded", output, words.get("actor"), words)
        else:
            settling.settle(self, call, "failed", codec.encode(words["error"]), words.get("actor"), words)

    # -- tasks

    def record(self, type_: str, name: str, payload: bytes, *, hard: bool = True) -> None:
        self.entries.append((type_, name, payload))  # everything here is on disk before a handler starts
        if type_ in STANDINGS:
            call = self.open.get(("effect", name))
            if isinstance(call, TaskCall):
                words = codec.decode(payload)
                standing = effects.standing_words(call) | {
                    key: value for key, value in words.items() if key in ("retry_at", "reason")
                }
                tasks.change(
                    self, call, "running" if type_ == h.EFFECT_STARTED else "pending", run_at=words.get("retry_at"),
                    error=codec.encode(words["error"]) if "error" in words else None, standing_type=type_,
                    standing=codec.encode(standing),
                )  # fmt: skip

    def info(self, call: Call) -> TaskInfo:
        assert isinstance(call, TaskCall)
        return tasks.info(self, call)

    def take_result(self, call: Call, value: Any, error: BaseException | None) -> None:
        assert isinstance(call, TaskCall)
        settling.take_result(self, call, value, error)

    def transaction_turn(self, call: Call, entries: list[tuple[str, str, bytes]], result: bytes) -> Turn:
        assert isinstance(call, TaskCall)
        return settling.transaction_turn(self, call, entries, result)

    def release(self, call: Call, type_: str, words: RowWords) -> None:
        """An effect or a transaction has its result."""
        assert isinstance(call, TaskCall)
        if type_ == h.TRANSACTION_COMMITTED:  # its row and its history entry went with its own commit
            self.open.pop((call.kind, call.key), None)
            assert self.snapshot is not None
            if not self.unwanted(call):
                self.inbox.append(tasks.answer_of(call, True, codec.decode(bytes(words.result))))
            self.left.discard(call.key)
            return
        settling.settle(self, call, "succeeded", bytes(words.result))

    def answer(self, call: Call, type_: str, words: dict[str, Any]) -> None:
        """An effect is known not to have happened, and no further attempt follows."""
        assert isinstance(call, TaskCall)
        self.record(type_, call.key, codec.encode(words))
        settling.settle(self, call, "failed", codec.encode(words["error"]))

    # -- after deciding

    def _dispatch(self) -> None:
        if self.moving_to is not None:  # whoever claims it next, perhaps we ourselves, goes on by the other version
            for call in self.open.values():
                if isinstance(call, TaskCall) and call.kind in RUNNABLE and call.state.phase is Phase.READY:
                    tasks.change(self, call, "pending", run_at=self.worker.now())  # its attempt begins there
            self.submit(
                status="waiting", waiting_on="its next turn, by another version", run_at=self.worker.now(),
                definition_version=self.moving_to, **self.where(),
            )  # fmt: skip
            return
        ready = [c for c in self.open.values() if c.kind in RUNNABLE and c.state.phase is Phase.READY]
        if self.paused is not None:
            ready = []
        elif self.undo is not None:
            ready = [c for c in ready if settling.must_settle(self, c)]
        for call in ready:
            call.state.phase = Phase.RUNNING
            self.running[call.key] = None
            if call.kind != "effect":
                settling.started(self, call)
            elif call.state.next == "start":
                effects.reserve(self, call)
        if not ready and not self.running and not self.more and not self.lacking():
            self._hand_back()
            return
        if self.entries:
            self._ready = ready
            self.go_on_with()
        else:
            for call in ready:
                self.worker.run(self, call)
        if self.paused is None and (self.waits or (self.snapshot is not None and self.snapshot.timers)):
            self._watch_clock()
        self._refill()

    def go_on_with(self) -> None:
        self.submit("running", release=False, **self.where())

    def has_more(self) -> bool:
        # While the turn was on its way, a timer of its own may have fallen due, and a reading may have come for which
        # what it sent to itself had waited.
        timers = self.snapshot is not None and bool(self.snapshot.timers)
        return self.more or timers or bool(self.inbox) or bool(self.lacking()) or super().has_more()

    def lacking(self) -> list[str]:
        takes = self.undo is None and self.paused is None and self.moving_to is None
        if not takes or not self.events.lacks() or (self.snapshot is not None and self.snapshot.incident is not None):
            return []
        return [""]

    def unwanted(self, call: Call) -> bool:
        return self.undo is not None or call.key in self.left

    def harmless(self, call: Call) -> bool:
        """A model that is asked twice answers twice, and nothing else happens."""
        return isinstance(call, TaskCall) and call.task.type == "AI"

    def where(self) -> dict[str, Any]:
        if self.snapshot is None:
            return {}
        snapshot = self.snapshot
        ending = None if self.undo is None else {"status": self.undo.status, "error": self.undo.error}
        paused = None if self.paused is None else msgspec.structs.asdict(self.paused)
        changed = ending != snapshot.ending or paused != snapshot.paused
        if changed or self.inbox or snapshot.inbox or self.left or snapshot.left or self.told or snapshot.told:
            snapshot = self.snapshot = msgspec.structs.replace(
                snapshot, inbox=list(self.inbox), left=sorted(self.left), told=sorted(self.told), ending=ending,
                paused=paused,
            )  # fmt: skip
        return {"snapshot": self._text(snapshot), "current_state": self.state or None}

    def next_at(self) -> int | None:
        if self.paused is not None:
            return None
        at = settling.first_due_at(self)
        times = [] if at is None else [at]
        if self.snapshot is not None and self.undo is None and self.snapshot.incident is None:
            times += [timer.due for timer in self.snapshot.timers.values()]
        return min(times, default=None)

    def _hand_back(self) -> None:
        on = waiting_on(self)
        if not self.entries:
            words: dict[str, Any] = {"on": on}
            if self.snapshot is None and self.paused is not None:  # there is none yet that could remember it
                words["paused"] = msgspec.structs.asdict(self.paused)
            self.record(h.INSTANCE_WAITING, "", codec.encode(words))
        self.submit(status="waiting", waiting_on=on, run_at=self.next_at(), **self.where())


def _task_of(type_: str, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    if type_ == "createTask":
        return body["params"], body["params"].get("input")
    params = body["src"]["task"]
    return params, body["input"] if body["input"] is not None else params.get("input")
