"""What becomes of a chart's tasks: answered, tried again, put aside, or settled though nobody waits any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec
from holdfast.engine import history as h
from holdfast.engine.calendar import moment_text
from holdfast.engine.charts.snapshots import snapshot_text
from holdfast.engine.errors import HoldfastError, Rejected
from holdfast.engine.replay import Call
from holdfast.engine.retry import RetryAt, after_failure
from holdfast.engine.stacks import error_payload
from holdfast.engine.turns import Change, Turn
from holdfast.worker import ai, children, effects, tasks
from holdfast.worker.chart_words import said_by
from holdfast.worker.standing import Phase
from holdfast.worker.tasks import TaskCall

if TYPE_CHECKING:
    from holdfast.worker.charts import ChartExecution


def take_result(ex: ChartExecution, call: TaskCall, value: Any, error: BaseException | None) -> None:
    """A handler is done, well or not."""
    if (call.kind, call.key) not in ex.open:
        return  # cancelled while it ran
    if call.kind == "effect":
        effects.arrived(ex, call, value, error)
        return
    result = b"null"
    if error is None:
        try:
            result = codec.encode(value, "the result of task", ex.worker.payload_limit, call.task.name)
        except HoldfastError as refused:
            error = refused
    if error is None:
        settle(ex, call, "succeeded", result)
        return
    attempt = call.state.attempt
    ex.complain("task_failed", error, step=call.key, attempt=attempt)
    words = {"attempt": attempt, "error": error_payload(error)}
    verdict = after_failure(attempt, call.spec.policy, error, ex.worker.now(), ex.worker.entropy.random())
    if isinstance(verdict, RetryAt) and _may_retry(ex, call, error, verdict.at):
        payload = codec.encode(words | {"retry_at": verdict.at})
        ex.record(h.TASK_RETRIED, call.key, payload)
        call.state.wait_until(verdict.at)
        ex.waits += 1
        tasks.change(
            ex, call, "pending", run_at=verdict.at, standing_type=h.TASK_RETRIED, standing=payload,
            error=codec.encode(words["error"]),
        )  # fmt: skip
        call.state.attempt += 1
    else:
        settle(ex, call, "failed", codec.encode(words["error"]))


def _may_retry(ex: ChartExecution, call: TaskCall, error: BaseException, at: int) -> bool:
    if ex.unwanted(call) or isinstance(error, Rejected):
        return False
    if isinstance(error, HoldfastError) and error.code in ("not_json", "payload_too_large"):
        return False
    return call.task.deadline is None or at < call.task.deadline


def settle(
    ex: ChartExecution, call: TaskCall, status: str, result: bytes, by: str | None = None,
    said: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """The task has its outcome: on record, in its row, and on its way to the chart."""
    type_ = h.TASK_COMPLETED if status == "succeeded" else h.TASK_FAILED
    name = b"output" if status == "succeeded" else b"error"
    head = f'{{"task":"{call.task.word}","attempt":{call.state.attempt}}}'.encode()
    if said is not None:
        head = codec.encode(codec.decode(head) | said_by(said))
    if call.kind == "effect" and status == "succeeded":  # its result stands in the entry just before
        ex.record(type_, call.key, head)
    elif call.kind == "effect" and b'"asked":' in result:  # likewise what a model was asked
        words = codec.decode(result)
        words.pop("asked", None)
        ex.record(type_, call.key, head[:-1] + b',"error":' + codec.encode(words) + b"}")
    else:
        ex.record(type_, call.key, head[:-1] + b',"' + name + b'":' + result + b"}")
    _settled(ex, call, status, result, by, said)


def _settled(
    ex: ChartExecution, call: TaskCall, status: str, result: bytes, by: str | None, said: dict[str, Any] | None
) -> None:
    if ex.open.pop((call.kind, call.key), None) is not None and call.state.phase is Phase.WAITING:
        ex.waits -= 1
    done = status == "succeeded"
    tasks.change(ex, call, status, output=result if done else None, error=None if done else result, completed_by=by)
    if ex.unwanted(call):
        ex.left.discard(call.key)
        return
    value = codec.decode(result)
    if not done:
        ex.failure = ("task", value)
    if done and call.task.type == "AI":
        ex.inbox.extend(ai.answered(ex, call, value))
    elif done and tasks.REVIEW in call.task.options:
        ex.inbox.extend(ai.reviewed(ex, call, value, said or {}))
    else:
        ex.inbox.append(tasks.answer_of(call, done, value))


def transaction_turn(ex: ChartExecution, call: TaskCall, entries: list[tuple[str, str, bytes]], result: bytes) -> Turn:
    """The author's writes, the task's end and its answer to the chart in one commit; the chart moves after it."""
    assert ex.snapshot is not None
    words = codec.encode({"task": call.task.word, "attempt": call.state.attempt})
    payload = words[:-1] + b',"output":' + result + b"}"
    tasks.change(ex, call, "succeeded", output=result)
    turn = ex.seal_turn([*entries, (h.TASK_COMPLETED, call.key, payload)])
    answer = [] if ex.unwanted(call) else [tasks.answer_of(call, True, codec.decode(result))]
    inbox = [*ex.inbox, *answer]
    snapshot = msgspec.structs.replace(
        ex.snapshot, inbox=inbox, left=sorted(ex.left - {call.key}), told=sorted(ex.told)
    )
    last = turn.history[-1]
    turn.change = Change(
        ex.tenant_id, ex.id, ex.fence, "running", None, None, False, ex.woken, last[2], last[9], None,
        None, None, snapshot_text(snapshot), ex.state or None, None,
    )  # fmt: skip
    return turn


def begin_no_later(ex: ChartExecution, call: Call) -> None:
    """No further attempt begins once the task's deadline is over, whoever says that the last one did not happen."""
    deadline = call.task.deadline if isinstance(call, TaskCall) else None
    if call.state.phase is Phase.READY and deadline is not None and deadline <= ex.worker.now():
        call.state.wait_until(deadline)
        ex.waits += 1


def due_at(call: Call) -> int | None:
    """When a call that waits goes on: at its time, or at its task's deadline if that is sooner."""
    if call.state.phase is not Phase.WAITING:
        return None
    at, deadline = call.state.at, call.task.deadline if isinstance(call, TaskCall) else None
    if deadline is None or may_have_happened(call):
        found: int | None = at
    else:
        found = deadline if at is None else min(at, deadline)
    return found


def _came_in_time(call: TaskCall, deadline: int) -> bool:
    """A timer's time came before its deadline, however late somebody looks."""
    return call.kind == "timer" and call.state.at is not None and bool(call.state.at <= deadline)


def first_due_at(ex: ChartExecution) -> int | None:
    return min((at for call in ex.open.values() if (at := due_at(call)) is not None), default=None)


def may_have_happened(call: Call) -> bool:
    return call.kind == "effect" and bool(call.state.unknown)


def take_due(ex: ChartExecution) -> bool:
    """Go on with the open task whose time came first. False if none is due."""
    now = ex.worker.now()
    found = [(at, call) for call in ex.open.values() if (at := due_at(call)) is not None and at <= now]
    if not found:
        return False
    first = min(found, key=lambda one: one[0])[1]
    assert isinstance(first, TaskCall)
    deadline = first.task.deadline
    if deadline is not None and deadline <= now and not may_have_happened(first) and not _came_in_time(first, deadline):
        words = {"type": "DeadlinePassed", "message": f"not done by {moment_text(deadline)}"}
        settle(ex, first, "failed", codec.encode(words))
    elif first.kind == "timer":
        settle(ex, first, "succeeded", codec.encode({"due": first.state.at}))
    else:
        ex.waits -= 1
        first.state.ready()
        if first.kind == "effect":
            effects.due(ex, first)
        else:
            tasks.change(ex, first, "running")
    return True


def started(ex: ChartExecution, call: Call) -> None:
    """An attempt at a step or transaction begins, the first one too. Of an effect EFFECT_STARTED says the same."""
    assert isinstance(call, TaskCall)
    if call.begun == call.state.attempt:
        # On record already. A row that each claim writes anew would prove the instance harmless before its handler
        # runs: one that takes its worker down each time would never be buried.
        return
    call.begun = call.state.attempt
    ex.record(h.TASK_STARTED, call.key, b'{"task":"%b","attempt":%d}' % (call.task.word.encode(), call.state.attempt))


def stop(ex: ChartExecution, body: dict[str, Any]) -> None:
    """The state that invoked it was left."""
    if body["answered"]:
        return
    id_, reason = body["id"], f"the state that invoked {body['id']!r} was left"
    invoked = [c for c in ex.open.values() if isinstance(c, TaskCall) and c.task.invoke_id == id_]
    for call in invoked:
        if call.task.visit == body["visit"]:
            drop(ex, call, reason)
    if body["workflow"]:
        children.cancel(ex, id_, body["visit"], reason)


def drop_named(ex: ChartExecution, name: str) -> None:
    for call in [c for c in ex.open.values() if isinstance(c, TaskCall) and c.task.name == name]:
        drop(ex, call, "the chart cancelled it", cancelled=True)


def drop(ex: ChartExecution, call: TaskCall, reason: str, *, cancelled: bool = False) -> None:
    """Nobody waits for it any more. An effect that may have happened is settled all the same, and nothing follows.

    One that had not begun is skipped: the chart went on without it. `cancelled`: somebody said that it is to end."""
    if must_settle(ex, call):
        if call.key not in ex.left:
            ex.left.add(call.key)
            ex.record(h.TASK_LEFT, call.key, codec.encode({"reason": reason}))
        return
    if call in ex.transactions:  # in line behind the turn, and not begun
        ex.transactions.remove(call)
        ex.running.pop(call.key, None)
    ex.open.pop((call.kind, call.key), None)
    if call.state.phase is Phase.WAITING:
        ex.waits -= 1
    if cancelled or _begun(call):
        ex.record(h.TASK_CANCELLED, call.key, codec.encode({"reason": reason}))
        tasks.change(ex, call, "cancelled")
    else:
        call.state.attempt = 0
        if (born := ex.tasks.get(call.task.id)) is not None:  # in this very turn, after which it would have begun
            ex.tasks[call.task.id] = born._replace(started_at=None)
        ex.record(h.TASK_SKIPPED, call.key, codec.encode({"reason": reason}))
        tasks.change(ex, call, "skipped")
    ex.worker.cancel_handler(ex, call)


def _begun(call: TaskCall) -> bool:
    """Whether an attempt at it was made. People hand in their one attempt, and a timer's ends it."""
    if call.kind in ("human", "timer"):
        return False
    # To be ready is not to have begun: a task that falls due may be dropped later in the same turn.
    return bool(call.begun) or call.state.attempt > 1 or (call.kind == "effect" and bool(call.state.first_started_at))


def must_settle(ex: ChartExecution, call: Call) -> bool:
    """Whether it may have happened, so that its outcome must be known before the instance ends."""
    if call.kind == "transaction":
        return call.state.phase is Phase.RUNNING and call not in ex.transactions
    return call.kind == "effect" and (bool(call.state.unknown) or call.state.phase is Phase.RUNNING)
