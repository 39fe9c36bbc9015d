"""One claimed instance of a chart, from the claim to the turn that hands it back.

An event arrives: somebody's, a timer's, a task's answer, a child's end. The interpreter says what it makes of the
snapshot; that, the history and the tasks it asks for are one turn. Only after its commit do handlers start.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.charts.configurations import configuration_of
from holdfast.engine.charts.document import BadChart
from holdfast.engine.charts.interpreter import Answer, ChartTurn, Taken, advance, start
from holdfast.engine.charts.migration import plan_migration
from holdfast.engine.charts.nodes import StepFault
from holdfast.engine.charts.snapshots import Snapshot, Waiting, due, snapshot_from, snapshot_text
from holdfast.engine.errors import HoldfastError, Rejected
from holdfast.engine.journal import RowWords
from holdfast.engine.replay import Call
from holdfast.engine.retry import RetryAt, after_failure, error_payload
from holdfast.engine.tasks import TaskFault, TaskInfo, TaskPlan, plan_task
from holdfast.engine.turns import Change, DeadLetter, NewEvent, NewInstance, Turn
from holdfast.store.port import Claimed, PendingEvent
from holdfast.worker import ai, effects, tasks
from holdfast.worker.standing import Phase
from holdfast.worker.tasks import TaskCall
from holdfast.worker.turns import ALWAYS, UnderClaim
from holdfast.worker.undo import Undo

if TYPE_CHECKING:
    from holdfast.app.registry import Definition
    from holdfast.worker.worker import Worker

UNLIMITED = 1 << 40  # checked before, as a whole
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
        self._written: tuple[Snapshot | None, bytes] = (None, b"")  # the snapshot that was encoded last
        if claimed.snapshot is not None:
            self.snapshot = snapshot_from(self.chart, claimed.snapshot)
            self.state = configuration_of(self.chart, bytes(self.snapshot.value)).text
            self.inbox.extend(self.snapshot.inbox)

    # -- from the claim on

    def begin(self) -> None:
        claimed = self.claimed
        if not claimed.history:
            words = {
                "definition": claimed.definition_key, "version": claimed.definition_version, "hash": self.chart.hash,
                "input_hash": codec.digest(claimed.input),
            }  # fmt: skip
            self.record(h.INSTANCE_STARTED, claimed.definition_key, codec.encode(words))
        if claimed.attempts > self.worker.attempts_limit:
            for row in claimed.tasks:
                tasks.close(self, row, "its instance took its worker down again and again")
            self.bury()
            return
        if self.snapshot is None:
            if not self._start():
                return
        else:
            if self.snapshot.ending is not None:
                self._resume_ending(self.snapshot.ending)
            for row in claimed.tasks:
                tasks.take_up(self, row)
        self.decide()

    def _start(self) -> bool:
        try:
            given = self.definition.decode_input(self.claimed.input)
            now = self.worker.now()
            turn = start(self.chart, given, now)
            self._apply(turn, self._plans(turn, now), "xstate.init", None, now)
        except (StepFault, TaskFault, HoldfastError) as fault:
            self.end("failed", _fault_words(fault))
            return False
        return True

    def decide(self) -> None:
        """Work off what is there, then commit what this caused or start what needs no commit."""
        for _ in range(EVENTS_OF_TURN):
            if self.undo is None and self.snapshot is not None and self.snapshot.status != "active":
                self._ended()
            if self.moving_to is not None or not self._one():
                break
        if self.undo is not None and not self._unsettled():
            self._end()
            return
        self._dispatch()

    def _one(self) -> bool:
        """Take one event, answer or due timer. False if there is nothing to take."""
        if self.events and self._said():
            return True
        if self.undo is not None:
            return self._due_call()
        assert self.snapshot is not None
        if self.snapshot.incident is not None:
            return False
        if self.inbox:
            return self._work_off(self.inbox[0])
        if (self.waits and self._due_call()) or (self.snapshot.timers and self._due_timer()):
            return True
        event = next((e for e in self.events if e.kind == "signal"), None) if self.events else None
        return event is not None and self._event(event)

    def _said(self) -> bool:
        """Take one word of a person, a child or an operator."""
        cancel = next((e for e in self.events if e.kind == "cancel"), None)
        if cancel is not None:
            self._cancel(cancel)
            return True
        for event in self.events:
            if event.kind == "resolution":
                call = self.open.get(("effect", event.name))
                if call is not None and effects.resolved(self, call, event):
                    return True
            elif event.kind == "resume":
                self._resume(event)
                return True
            elif event.kind == "task":
                self._person_answered(event)
                return True
            elif event.kind == "child":
                self._child_ended(event)
                return True
            elif event.kind == "migrate" and not self.running and self.moving_to is None:
                self._migrate(event)
                return True
        return False

    # -- the chart moves

    def _plans(self, turn: ChartTurn, now: int) -> dict[int, TaskPlan]:
        """The tasks it asks for, by their place among its effects. One that cannot be made refuses the whole step."""
        plans, limit = {}, self.worker.payload_limit
        for index, effect in enumerate(turn.effects):
            if effect.type == "createTask" or (effect.type == "invoke" and "task" in effect.body["src"]):
                params, given = _task_of(effect.type, effect.body)
                plans[index] = plan_task(params, given, now, limit)
            elif effect.type in ("log", "emit", "send"):
                self._check_size(f"what it {effect.type}s", len(codec.encode(effect.body, limit=UNLIMITED)))
        self._check_size("its context", len(self._text(turn.snapshot)))
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

    def _apply(
        self, turn: ChartTurn, plans: dict[int, TaskPlan], event: str, before: Snapshot | None, now: int
    ) -> None:
        """Into the turn: where it went, and everything it asks for."""
        snapshot = turn.snapshot
        self.snapshot, self.state = snapshot, turn.state
        if turn.taken or before is None:
            self.record(h.STATE_TRANSITION, turn.state[:200] or self.chart.id, _transition(turn, event, before))
        for index, effect in enumerate(turn.effects):
            kind, body = effect.type, effect.body
            if index in plans:
                invoked = body["id"] if kind == "invoke" else None
                tasks.create(self, plans[index], f"{snapshot.seq}.{index}", invoked, body.get("visit", 0), now)
            elif kind == "invoke":
                self._start_child(body)
            elif kind == "stop":
                self._stop(body)
            elif kind == "cancelTask":
                self._cancel_named(body["params"]["name"])
            elif kind == "schedule":
                due_at = codec.encode({"due": body["due"]})
                self.record(h.TIMER_STARTED, body["id"] or f"raise.{snapshot.seq}.{index}", due_at)
            elif kind == "cancel":
                if before is not None and body["id"] in before.timers:
                    self.record(h.TIMER_CANCELLED, body["id"], b"{}")
            elif kind == "send":
                self._send(body, snapshot.seq, index)
            elif kind == "emit":
                self.record(h.EVENT_EMITTED, body["event"]["type"], codec.encode(body["event"]))
            elif kind == "log":
                self.record(h.LOGGED, "", codec.encode({"params": body["params"]}))

    def _take(self, event: dict[str, Any], answer: Answer | None, cause: Any) -> ChartTurn | None:
        """Advance; `cause(turn)` records what it was about; then everything that follows. None after an incident."""
        assert self.snapshot is not None
        before, now = self.snapshot, self.worker.now()
        try:
            turn = advance(self.chart, before, event, now, answer)
            plans = self._plans(turn, now)
        except (StepFault, TaskFault) as fault:
            self._incident(event, fault)
            return None
        cause(turn)
        if not turn.stale:
            self._apply(turn, plans, event["type"], before, now)
        return turn

    def _event(self, event: PendingEvent) -> bool:
        payload = codec.decode(event.payload)
        given = {**payload} if isinstance(payload, dict) else {"data": payload}
        given["type"], given["at"] = event.name, _moment_text(event.sent_at)

        def cause(turn: ChartTurn) -> None:
            self.consume(event)
            type_ = h.EVENT_RECEIVED if turn.handled else h.EVENT_IGNORED
            self.record(type_, event.name, _event_words(event))

        return self._take(given, None, cause) is not None

    def _work_off(self, waiting: Waiting) -> bool:
        answer = Answer(waiting.kind, waiting.id, waiting.visit) if waiting.kind else None

        def cause(turn: ChartTurn) -> None:
            self.inbox.popleft()
            if turn.stale or not turn.handled:
                words = {"stale": turn.stale, "task": waiting.event.get("task")}
                self.record(h.EVENT_IGNORED, waiting.event["type"], codec.encode(words))

        turn = self._take(waiting.event, answer, cause)
        if turn is not None and waiting.failure and not turn.handled:
            self._unhandled_failure(waiting)
        return turn is not None

    def _unhandled_failure(self, waiting: Waiting) -> None:
        """A task is out of attempts and no state takes its failure."""
        task, error = waiting.event.get("task") or {}, waiting.event.get("error") or {}
        words = {
            "type": "TaskFailed", "task": task,
            "message": f"task {task.get('name')!r} failed and no state takes {waiting.event['type']!r}: "
            f"{error.get('message', '')}",
        }  # fmt: skip
        self.beyond_history()
        self.dead_letters.append(DeadLetter(
            self.tenant_id, ids.derived("dead", self.tenant_id, self.id, str(task.get("id"))), "task", self.id,
            self.claimed.definition_key, words["message"][:500], codec.encode(words), self.worker.now(),
        ))  # fmt: skip
        self._begin_ending("failed", words)

    def _due_timer(self) -> bool:
        assert self.snapshot is not None
        found = due(self.snapshot)
        if found is None or found[1].due > self.worker.now():
            return False
        id_, timer = found

        def cause(turn: ChartTurn) -> None:
            self.record(h.TIMER_FIRED, id_, codec.encode({"due": timer.due}))

        return self._take(timer.event, Answer("timer", id_, timer.visit), cause) is not None

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
            self._settle(call, "succeeded", codec.encode(words.get("output")), words.get("actor"), words)
        else:
            self._settle(call, "failed", codec.encode(words["error"]), words.get("actor"), words)

    def _start_child(self, body: dict[str, Any]) -> None:
        src, step = body["src"], f"{body['id']}@{body['visit']}"
        try:
            definition = self.worker.child_definition(self.tenant_id, src["workflow"], src["version"])
        except HoldfastError as error:
            self.record(h.CHILD_FAILED, step, codec.encode({"error": error_payload(error), "status": "failed"}))
            self._child_answer(body["id"], body["visit"], None, error_payload(error))
            return
        child = ids.child_id(self.tenant_id, self.id, step)
        words = {"child_id": ids.instance_word(child), "workflow": definition.key, "version": definition.version}
        self.record(h.CHILD_STARTED, step, codec.encode(words))
        now = self.worker.now()
        self.beyond_history()
        self.starts.append(NewInstance(
            self.tenant_id, child, definition.kind, definition.key, definition.version, None, definition.queue, 0, now,
            codec.encode(body["input"]), self.id, step, self.claimed.trace_id, now, self.id,
        ))  # fmt: skip

    def _child_ended(self, event: PendingEvent) -> None:
        words = codec.decode(event.payload)
        completed = words["status"] == "completed"
        self.consume(event)
        self.record(h.CHILD_COMPLETED if completed else h.CHILD_FAILED, event.name, event.payload)
        id_, _, visit = event.name.rpartition("@")
        self._child_answer(id_, int(visit), words.get("result") if completed else None, None if completed else words)

    def _child_answer(self, id_: str, visit: int, output: Any, error: Any) -> None:
        if error is None:
            event = {"type": f"xstate.done.actor.{id_}", "output": output}
        else:
            event = {"type": f"xstate.error.actor.{id_}", "error": error.get("error") or error}
        self.inbox.append(Waiting(event, "child", id_, visit))

    def _send(self, body: dict[str, Any], seq: int, index: int) -> None:
        event = body["event"]
        try:
            to = ids.parse("ins", body["to"])
        except HoldfastError as error:
            self.record(h.EVENT_SENT, event["type"], codec.encode({"to": body["to"][:100], "error": str(error)}))
            return
        id_ = ids.derived("send", self.tenant_id, self.id, f"{seq}.{index}").hex()
        payload = codec.encode({key: value for key, value in event.items() if key != "type"})
        self.record(h.EVENT_SENT, event["type"], codec.encode({"to": body["to"], "event_id": id_}))
        self.beyond_history()
        if to != self.id:
            self.sends.append(
                NewEvent(self.tenant_id, to, id_, "signal", event["type"], payload, self.worker.now(), self.id)
            )

    # -- tasks

    def record(self, type_: str, name: str, payload: bytes, *, hard: bool = True) -> None:
        self.entries.append((type_, name, payload))  # everything here is on disk before a handler starts
        if type_ in STANDINGS:
            call = self.open.get(("effect", name))
            if isinstance(call, TaskCall):
                words = codec.encode(effects.standing_words(call) | {
                    key: value for key, value in codec.decode(payload).items() if key in ("retry_at", "reason")
                })  # fmt: skip
                status = "running" if type_ == h.EFFECT_STARTED else "pending"
                tasks.change(self, call, status, standing_type=type_, standing=words, run_at=call.state.at)

    def info(self, call: Call) -> TaskInfo:
        assert isinstance(call, TaskCall)
        return tasks.info(self, call)

    def take_result(self, call: Call, value: Any, error: BaseException | None) -> None:
        assert isinstance(call, TaskCall)
        if (call.kind, call.key) not in self.open:
            return  # cancelled while it ran
        if call.kind == "effect":
            effects.arrived(self, call, value, error)
            return
        result = b"null"
        if error is None:
            try:
                result = codec.encode(value, "the result of task", self.worker.payload_limit, call.task.name)
            except HoldfastError as refused:
                error = refused
        if error is None:
            self._settle(call, "succeeded", result)
            return
        attempt = call.state.attempt
        words = {"attempt": attempt, "error": error_payload(error)}
        verdict = after_failure(attempt, call.spec.policy, error, self.worker.now(), self.worker.entropy.random())
        if isinstance(verdict, RetryAt) and self._may_retry(call, error, verdict.at):
            payload = codec.encode(words | {"retry_at": verdict.at})
            self.record(h.TASK_RETRIED, call.key, payload)
            call.state.wait_until(verdict.at)
            self.waits += 1
            tasks.change(
                self, call, "pending", run_at=verdict.at, standing_type=h.TASK_RETRIED, standing=payload,
                error=codec.encode(words["error"]),
            )  # fmt: skip
            call.state.attempt += 1
        else:
            self._settle(call, "failed", codec.encode(words["error"]))

    def _may_retry(self, call: TaskCall, error: BaseException, at: int) -> bool:
        if self.undo is not None or isinstance(error, Rejected):
            return False
        if isinstance(error, HoldfastError) and error.code in ("not_json", "payload_too_large"):
            return False
        return call.task.deadline is None or at < call.task.deadline

    def _settle(
        self, call: TaskCall, status: str, result: bytes, by: str | None = None, said: dict[str, Any] | None = None
    ) -> None:
        """The task has its outcome: on record, in its row, and on its way to the chart."""
        type_ = h.TASK_COMPLETED if status == "succeeded" else h.TASK_FAILED
        name = b"output" if status == "succeeded" else b"error"
        head = f'{{"task":"{call.task.word}","attempt":{call.state.attempt}}}'.encode()
        if said is not None:
            head = codec.encode(codec.decode(head) | _said(said))
        if call.kind == "effect" and status == "succeeded":  # its result stands in the entry just before
            self.record(type_, call.key, head)
        else:
            self.record(type_, call.key, head[:-1] + b',"' + name + b'":' + result + b"}")
        self._settled(call, status, result, by, said)

    def _settled(self, call: TaskCall, status: str, result: bytes, by: str | None, said: dict[str, Any] | None) -> None:
        if self.open.pop((call.kind, call.key), None) is not None and call.state.phase is Phase.WAITING:
            self.waits -= 1
        done = status == "succeeded"
        tasks.change(
            self, call, status, output=result if done else None, error=None if done else result, completed_by=by
        )
        if self.undo is not None:
            return
        value = codec.decode(result)
        if done and call.task.type == "AI":
            self.inbox.extend(ai.answered(self, call, value))
        elif done and ai.REVIEW in call.task.options:
            self.inbox.extend(ai.reviewed(self, call, value, said or {}))
        else:
            self.inbox.append(tasks.answer_of(call, done, value))

    def release(self, call: Call, type_: str, words: RowWords) -> None:
        """An effect or a transaction has its result."""
        assert isinstance(call, TaskCall)
        if type_ == h.TRANSACTION_COMMITTED:  # its row and its history entry went with its own commit
            self.open.pop((call.kind, call.key), None)
            assert self.snapshot is not None
            if self.undo is None:
                self.inbox.append(tasks.answer_of(call, True, codec.decode(bytes(words.result))))
            return
        self._settle(call, "succeeded", bytes(words.result))

    def answer(self, call: Call, type_: str, words: dict[str, Any]) -> None:
        """An effect is known not to have happened, and no further attempt follows."""
        assert isinstance(call, TaskCall)
        self.record(type_, call.key, codec.encode(words))
        self._settle(call, "failed", codec.encode(words["error"]))

    def transaction_turn(self, call: Call, entries: list[tuple[str, str, bytes]], result: bytes) -> Turn:
        """The author's writes, the task's end and its answer to the chart in one commit; the chart moves after it."""
        assert isinstance(call, TaskCall) and self.snapshot is not None
        words = codec.encode({"task": call.task.word, "attempt": call.state.attempt})
        payload = words[:-1] + b',"output":' + result + b"}"
        tasks.change(self, call, "succeeded", output=result)
        turn = self.seal_turn([*entries, (h.TASK_COMPLETED, call.key, payload)])
        inbox = [*self.inbox, tasks.answer_of(call, True, codec.decode(result))]
        snapshot = msgspec.structs.replace(self.snapshot, inbox=inbox)
        last = turn.history[-1]
        turn.change = Change(
            self.tenant_id, self.id, self.fence, "running", None, None, False, self.woken, last[2], last[9], None,
            None, None, snapshot_text(snapshot), self.state or None, None,
        )  # fmt: skip
        return turn

    def _due_call(self) -> bool:
        now = self.worker.now()
        first: Call | None = None
        for call in self.open.values():
            at = call.state.at if call.state.phase is Phase.WAITING else None
            if at is not None and at <= now and (first is None or at < first.state.at):
                first = call
        if first is None:
            return False
        assert isinstance(first, TaskCall)
        deadline = first.task.deadline
        if deadline is not None and deadline <= now and not (first.kind == "effect" and first.state.unknown):
            words = {"type": "DeadlinePassed", "message": f"not done by {_moment_text(deadline)}"}
            self._settle(first, "failed", codec.encode(words))
        elif first.kind == "timer":
            self._settle(first, "succeeded", codec.encode({"due": first.state.at}))
        else:
            self.waits -= 1
            first.state.ready()
            if first.kind == "effect":
                effects.due(self, first)
        return True

    def _stop(self, body: dict[str, Any]) -> None:
        """The state that invoked it was left."""
        if body["answered"]:
            return
        id_, reason = body["id"], f"the state that invoked {body['id']!r} was left"
        invoked = [c for c in self.open.values() if isinstance(c, TaskCall) and c.task.invoke_id == id_]
        for call in invoked:
            if call.task.visit == body["visit"]:
                self._drop(call, reason)
        if body["workflow"]:
            self._cancel_child(f"{id_}@{body['visit']}", reason)

    def _cancel_child(self, step: str, reason: str) -> None:
        self.beyond_history()
        self.sends.append(NewEvent(
            self.tenant_id, ids.child_id(self.tenant_id, self.id, step), f"cancel:{self.id.hex()}", "cancel", "",
            codec.encode({"reason": reason, "actor": "holdfast"}), self.worker.now(), self.id,
        ))  # fmt: skip

    def _cancel_named(self, name: str) -> None:
        for call in [c for c in self.open.values() if isinstance(c, TaskCall) and c.task.name == name]:
            self._drop(call, "the chart cancelled it")

    def _drop(self, call: TaskCall, reason: str) -> None:
        """Nobody waits for it any more. An effect that may have happened is settled all the same."""
        if self._must_settle(call):
            return
        self.open.pop((call.kind, call.key), None)
        if call.state.phase is Phase.WAITING:
            self.waits -= 1
        self.record(h.TASK_CANCELLED, call.key, codec.encode({"reason": reason}))
        tasks.change(self, call, "cancelled")
        self.worker.cancel_handler(self, call)

    @staticmethod
    def _must_settle(call: Call) -> bool:
        if call.kind == "transaction":
            return call.state.phase is Phase.RUNNING
        return call.kind == "effect" and (bool(call.state.unknown) or call.state.phase is Phase.RUNNING)

    # -- ends

    def _ended(self) -> None:
        snapshot = self.snapshot
        assert snapshot is not None
        if snapshot.status == "done":
            self._begin_ending("completed", None)
        else:
            error = snapshot.error if isinstance(snapshot.error, dict) else {"message": str(snapshot.error)}
            self._begin_ending("failed", {"type": "TaskFailed"} | error)

    def _cancel(self, event: PendingEvent) -> None:
        words = codec.decode(event.payload)
        self.consume(event)
        if self.undo is not None:  # it is ending already: the request is noted, nothing else follows
            self.record(h.INSTANCE_RESUMED, "cancel", event.payload)
            return
        error = {"type": "Cancelled", "message": words.get("reason") or "cancelled", "actor": words.get("actor")}
        self.record(h.INSTANCE_CANCELLING, "", codec.encode({"error": error, "reason": error["message"]}))
        self._begin_ending("cancelled", error)

    def _begin_ending(self, status: str, error: dict[str, Any] | None) -> None:
        """Nothing new begins. What may have happened is settled first; the rest is dropped."""
        self.undo = Undo(status, error or {})
        self.inbox.clear()
        for call in list(self.open.values()):
            assert isinstance(call, TaskCall)
            self._drop(call, f"the instance is {status}")
        if self.snapshot is not None:
            for id_, child in self.snapshot.children.items():
                if child.workflow and not child.answered:
                    self._cancel_child(f"{id_}@{child.visit}", "its parent is ending")

    def _resume_ending(self, words: dict[str, Any]) -> None:
        self.undo = Undo(words["status"], words.get("error") or {})

    def _unsettled(self) -> bool:
        return bool(self.open) or bool(self.running)

    def _end(self) -> None:
        assert self.undo is not None
        if self.undo.status != "completed":
            self.end(self.undo.status, self.undo.error, **self._where())
            return
        assert self.snapshot is not None
        result = codec.encode(self.snapshot.output, "the chart's output", self.worker.payload_limit)
        self.record(h.INSTANCE_COMPLETED, self.claimed.definition_key, b'{"result":' + result + b"}")
        self.tell_parent("completed", result, None)
        self.submit(status="completed", result=result, woken=ALWAYS, completed_at=self.worker.now(), **self._where())
        if self.worker.verbose:
            self.worker.note(self, "instance_completed")

    def _incident(self, event: dict[str, Any], fault: StepFault | TaskFault) -> None:
        """The step is refused as a whole and the event kept; a person mends the chart or the data and resumes."""
        assert self.snapshot is not None
        words = _fault_words(fault) | {"event": event["type"]}
        self.snapshot = msgspec.structs.replace(self.snapshot, incident=words)
        self.record(h.INCIDENT_RAISED, event["type"], codec.encode(words))
        self.worker.note(self, "incident", on=event["type"], error=words["message"])

    def _resume(self, event: PendingEvent) -> None:
        words = codec.decode(event.payload)
        self.consume(event)
        self.record(h.INSTANCE_RESUMED, "", event.payload)
        if self.snapshot is None or self.snapshot.incident is None:
            return
        self.snapshot = msgspec.structs.replace(self.snapshot, incident=None)
        if words.get("drop_event"):
            self._drop_event()

    def _drop_event(self) -> None:
        """Whatever would be worked off next is put aside, on record."""
        assert self.snapshot is not None
        if self.inbox:
            dropped = self.inbox.popleft().event
            self.record(h.EVENT_DROPPED, dropped["type"], codec.encode(dropped))
            return
        timer = due(self.snapshot)
        if timer is not None and timer[1].due <= self.worker.now():
            self.snapshot.timers.pop(timer[0])
            self.record(h.EVENT_DROPPED, timer[0], codec.encode(timer[1].event))
            return
        event = next((e for e in self.events if e.kind == "signal"), None)
        if event is not None:
            self.consume(event)
            self.record(h.EVENT_DROPPED, event.name, _event_words(event))

    # -- after deciding

    def _migrate(self, event: PendingEvent) -> None:
        """To another version, by an explicit state map: whole or not at all."""
        words = codec.decode(event.payload)
        found = self.worker.charts.loaded(self.tenant_id, self.claimed.definition_key, words["version"])
        before = self.snapshot
        self.consume(event)
        if self.undo is not None or before is None or found is None or found.chart is None:
            why = "it is ending" if found else f"version {words['version']} is not published"
            self.record(h.EVENT_IGNORED, "migrate", codec.encode({"problems": [why]} | words))
            return
        moved = plan_migration(
            self.chart, found.chart, msgspec.structs.replace(before, incident=None, inbox=[]), words["states"],
            now=self.worker.now(), context=words.get("context") or {}, enter=words.get("enter") or (),
            stop=words.get("stop") or (), start=words.get("start") or (),
        )  # fmt: skip
        if isinstance(moved, list):
            self.record(h.EVENT_IGNORED, "migrate", codec.encode({"problems": [str(p) for p in moved]} | words))
            return
        said = {"actor": words.get("actor"), "reason": words.get("reason")}
        self.record(h.INSTANCE_MIGRATED, self.claimed.definition_key, codec.encode(moved.summary | said))
        state = configuration_of(found.chart, bytes(moved.snapshot.value)).text
        turn = ChartTurn(moved.snapshot, list(moved.effects), [Taken("migrate", ())], True, False, state)
        now = self.worker.now()
        self._apply(turn, self._plans(turn, now), "migrate", before, now)
        self.moving_to = words["version"]

    def _dispatch(self) -> None:
        ready = [c for c in self.open.values() if c.kind in RUNNABLE and c.state.phase is Phase.READY]
        if self.undo is not None:
            ready = [c for c in ready if self._must_settle(c)]
        for call in ready:
            call.state.phase = Phase.RUNNING
            self.running[call.key] = None
            if call.kind == "effect" and call.state.next == "start":
                effects.reserve(self, call)
        if self.moving_to is not None:  # whoever claims it next, perhaps we ourselves, goes on by the other version
            self.submit(
                status="waiting", waiting_on="its next turn, by another version", run_at=self.worker.now(),
                definition_version=self.moving_to, **self._where(),
            )  # fmt: skip
            return
        more = self._more()
        if not ready and not self.running and not more:
            self._hand_back()
            return
        if self.entries:
            self._ready = ready
            self.submit("running", release=False, **self._where())
        else:
            for call in ready:
                self.worker.run(self, call)
        if self.waits or (self.snapshot is not None and self.snapshot.timers):
            self._watch_clock()

    def _more(self) -> bool:
        """Whether there is more to work off than went into this turn."""
        if self.undo is not None or self.snapshot is None or self.snapshot.incident is not None:
            return False
        return bool(self.inbox) or any(e.kind == "signal" for e in self.events)

    def _where(self) -> dict[str, Any]:
        if self.snapshot is None:
            return {}
        snapshot = self.snapshot
        ending = None if self.undo is None else {"status": self.undo.status, "error": self.undo.error}
        if self.inbox or snapshot.inbox or ending != snapshot.ending:
            snapshot = self.snapshot = msgspec.structs.replace(snapshot, inbox=list(self.inbox), ending=ending)
        return {"snapshot": self._text(snapshot), "current_state": self.state or None}

    def next_at(self) -> int | None:
        times = [c.state.at for c in self.open.values() if c.state.phase is Phase.WAITING and c.state.at is not None]
        if self.snapshot is not None and self.undo is None and self.snapshot.incident is None:
            times += [timer.due for timer in self.snapshot.timers.values()]
        return min(times, default=None)

    def _hand_back(self) -> None:
        waiting_on = self._waiting_on()
        if not self.entries:
            self.record(h.INSTANCE_WAITING, "", codec.encode({"on": waiting_on}))
        self.submit(status="waiting", waiting_on=waiting_on, run_at=self.next_at(), **self._where())

    def _waiting_on(self) -> str:
        assert self.snapshot is not None
        if self.snapshot.incident is not None:
            return f"a person: {self.snapshot.incident['message']}"[:1000]
        parts = [_describe(call) for call in self.open.values() if isinstance(call, TaskCall)]
        children = self.snapshot.children.items()
        parts += [f"child {id_!r}" for id_, child in children if child.workflow and not child.answered]
        parts += [f"timer {id_!r} until {_moment_text(timer.due)}" for id_, timer in self.snapshot.timers.items()]
        shown = "; ".join(parts[:10]) + (f"; and {len(parts) - 10} more" if len(parts) > 10 else "")
        return f"in {self.state or 'its state'}: {shown or 'an event'}"[:1000]


def _task_of(type_: str, body: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    if type_ == "createTask":
        return body["params"], body["params"].get("input")
    params = body["src"]["task"]
    return params, body["input"] if body["input"] is not None else params.get("input")


def _event_words(event: PendingEvent) -> bytes:
    return b'{"event_id":' + codec.encode(event.id) + b',"payload":' + event.payload + b"}"


def _said(words: dict[str, Any] | None) -> dict[str, Any]:
    return {} if words is None else {key: words[key] for key in ("actor", "reason") if words.get(key)}


def _transition(turn: ChartTurn, event: str, before: Snapshot | None) -> bytes:
    """What it was about and where it went: event, from, to, seq; what changed in the context; all steps, if several."""
    snapshot = turn.snapshot
    head = b'{"event":%b,"from":%b,"to":%b,"seq":%d' % (
        codec.encode(event), b"null" if before is None else bytes(before.value), bytes(snapshot.value), snapshot.seq,
    )  # fmt: skip
    words: dict[str, Any] = {}
    old = {} if before is None else before.context
    if snapshot.context is not old:
        words["set"] = {k: v for k, v in snapshot.context.items() if k not in old or old[k] is not v}
    if len(turn.taken) > 1:
        words["steps"] = [[taken.event, [repr(t) for t in taken.transitions]] for taken in turn.taken]
    return head + (b"," + codec.encode(words, limit=UNLIMITED)[1:] if words else b"}")


def _fault_words(fault: BaseException) -> dict[str, Any]:
    words = error_payload(fault)
    if isinstance(fault, StepFault):
        words = {"type": "StepFault", "message": f"{fault.path or '/'}: {fault}"[:2000], "path": fault.path}
        if fault.cycle:
            words["cycle"] = fault.cycle
    elif isinstance(fault, TaskFault):
        words |= {"field": fault.field}
    elif isinstance(fault, BadChart):
        words |= {"problems": [str(p) for p in fault.problems[:10]]}
    return words


def _describe(call: TaskCall) -> str:
    task, standing = call.task, call.state
    if call.kind == "effect" and standing.phase is Phase.WAITING and standing.attempt:
        return effects.describe(call)
    until = f" until {_moment_text(standing.at)}" if standing.at is not None else ""
    if call.kind == "human":
        return f"a person for task {task.name!r}{until}"
    if call.kind == "timer":
        return f"timer {task.name!r}{until}"
    return f"{task.type} task {task.name!r}{until}"


def _moment_text(at: int) -> str:
    return datetime.fromtimestamp(at / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
