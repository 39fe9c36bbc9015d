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
from holdfast.engine.retry import RetryAt, after_failure, error_payload
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
    if ex.undo is not None or isinstance(error, Rejected):
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
    if ex.undo is not None:
        return
    value = codec.decode(result)
    if done and call.task.type == "AI":
        ex.inbox.extend(ai.answered(ex, call, value))
    elif done and ai.REVIEW in call.task.options:
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
    inbox = [*ex.inbox, tasks.answer_of(call, True, codec.decode(result))]
    snapshot = msgspec.structs.replace(ex.snapshot, inbox=inbox)
    last = turn.history[-1]
    turn.change = Change(
        ex.tenant_id, ex.id, ex.fence, "running", None, None, False, ex.woken, last[2], last[9], None,
        None, None, snapshot_text(snapshot), ex.state or None, None,
    )  # fmt: skip
    return turn


def take_due(ex: ChartExecution) -> bool:
    """Go on with the open task whose time came first. False if none is due."""
    now = ex.worker.now()
    first: Call | None = None
    for call in ex.open.values():
        at = call.state.at if call.state.phase is Phase.WAITING else None
        if at is not None and at <= now and (first is None or at < first.state.at):
            first = call
    if first is None:
        return False
    assert isinstance(first, TaskCall)
    deadline = first.task.deadline
    if deadline is not None and deadline <= now and not (first.kind == "effect" and first.state.unknown):
        words = {"type": "DeadlinePassed", "message": f"not done by {moment_text(deadline)}"}
        settle(ex, first, "failed", codec.encode(words))
    elif first.kind == "timer":
        settle(ex, first, "succeeded", codec.encode({"due": first.state.at}))
    else:
        ex.waits -= 1
        first.state.ready()
        if first.kind == "effect":
            effects.due(ex, first)
    return True


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
        children.cancel(ex, f"{id_}@{body['visit']}", reason)


def drop_named(ex: ChartExecution, name: str) -> None:
    for call in [c for c in ex.open.values() if isinstance(c, TaskCall) and c.task.name == name]:
        drop(ex, call, "the chart cancelled it")


def drop(ex: ChartExecution, call: TaskCall, reason: str) -> None:
    """Nobody waits for it any more. An effect that may have happened is settled all the same."""
    if must_settle(call):
        return
    ex.open.pop((call.kind, call.key), None)
    if call.state.phase is Phase.WAITING:
        ex.waits -= 1
    ex.record(h.TASK_CANCELLED, call.key, codec.encode({"reason": reason}))
    tasks.change(ex, call, "cancelled")
    ex.worker.cancel_handler(ex, call)


def must_settle(call: Call) -> bool:
    """Whether it may have happened, so that its outcome must be known before the instance ends."""
    if call.kind == "transaction":
        return call.state.phase is Phase.RUNNING
    return call.kind == "effect" and (bool(call.state.unknown) or call.state.phase is Phase.RUNNING)
