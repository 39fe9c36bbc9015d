"""How an instance of a chart ends: nothing new begins, what may have happened is settled, then the last turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.charts.snapshots import Waiting
from holdfast.engine.errors import HoldfastError
from holdfast.engine.stacks import causes_from, error_payload
from holdfast.engine.turns import ALWAYS, DeadLetter
from holdfast.store.port import PendingEvent
from holdfast.worker import children, settling, tasks
from holdfast.worker.tasks import TaskCall
from holdfast.worker.undo import Undo

if TYPE_CHECKING:
    from holdfast.worker.charts import ChartExecution


def reached(ex: ChartExecution) -> None:
    """The chart itself says that it is done, or that it cannot go on."""
    snapshot = ex.snapshot
    assert snapshot is not None
    if snapshot.status == "done":
        begin(ex, "completed", None)
    else:
        error = snapshot.error if isinstance(snapshot.error, dict) else {"message": str(snapshot.error)}
        begin(ex, "failed", {"type": "TaskFailed"} | error | _stack(ex, error))


def unhandled_failure(ex: ChartExecution, waiting: Waiting) -> None:
    """A task is out of attempts and no state takes its failure."""
    task, error = waiting.event.get("task") or {}, waiting.event.get("error") or {}
    words = {
        "type": "TaskFailed", "task": task,
        "message": f"task {task.get('name')!r} failed and no state takes {waiting.event['type']!r}: "
        f"{error.get('message', '')}",
    } | _stack(ex, error)  # fmt: skip
    ex.beyond_history()
    ex.dead_letters.append(DeadLetter(
        ex.tenant_id, ids.derived("dead", ex.tenant_id, ex.id, str(task.get("id"))), "task", ex.id,
        ex.claimed.definition_key, words["message"][:500], codec.encode(words), ex.worker.now(),
    ))  # fmt: skip
    begin(ex, "failed", words)


def _stack(ex: ChartExecution, error: dict[str, Any]) -> dict[str, Any]:
    """The stack of what the chart failed by, which the chart itself was not told."""
    what, words = ex.failure
    same = isinstance(words, dict) and words.get("message") == error.get("message")
    return causes_from(what, words) if same else {}


def cancel(ex: ChartExecution, event: PendingEvent) -> None:
    words = codec.decode(event.payload)
    ex.consume(event)
    ex.paused = None
    if ex.undo is not None:  # it is ending already: the request is noted, nothing else follows
        ex.record(h.INSTANCE_RESUMED, "cancel", event.payload)
        return
    error = {"type": "Cancelled", "message": words.get("reason") or "cancelled", "actor": words.get("actor")}
    ex.record(h.INSTANCE_CANCELLING, "", codec.encode({"error": error, "reason": error["message"]}))
    begin(ex, "cancelled", error)


def bury(ex: ChartExecution) -> None:
    """It took its worker down again and again: none of its handlers is called any more. Nothing of a chart is undone,
    but what may have happened is settled by a person before it ends."""
    for row in ex.claimed.tasks:
        if not tasks.leave_to_person(ex, row, "its instance took its workers down, so only a person can find out"):
            tasks.close(ex, row, "its instance took its worker down again and again")
    ex.paused = None
    begin(ex, "failed", ex.poison())
    if ex.open or ex.told:
        ex.decide()
    else:
        finish(ex)


def begin(ex: ChartExecution, status: str, error: dict[str, Any] | None) -> None:
    """Nothing new begins. What may have happened is settled first; the rest is dropped, and with it the step that was
    refused: nobody has to mend what does not go on."""
    ex.undo = Undo(status, error or {})
    drop_open(ex)
    for own in ex.inbox:
        if own.kind == "child":
            children.answered(ex, own.id, own.visit)
    if ex.snapshot is not None:
        ex.snapshot = msgspec.structs.replace(ex.snapshot, incident=None)
        for id_, child in ex.snapshot.children.items():
            if child.workflow and not child.answered:
                children.cancel(ex, id_, child.visit, "its parent is ending")
    ex.inbox.clear()


def drop_open(ex: ChartExecution) -> None:
    assert ex.undo is not None
    for call in list(ex.open.values()):
        assert isinstance(call, TaskCall)
        settling.drop(ex, call, f"the instance is {ex.undo.status}", cancelled=ex.undo.status == "cancelled")


def go_on(ex: ChartExecution, words: dict[str, Any]) -> None:
    """An earlier claim began to end it."""
    ex.undo = Undo(words["status"], words.get("error") or {})


def finish(ex: ChartExecution) -> None:
    """Everything is settled: the last turn."""
    assert ex.undo is not None
    if ex.undo.status != "completed":
        ex.end(ex.undo.status, ex.undo.error, **ex.where())
        return
    assert ex.snapshot is not None
    try:
        result = codec.encode(ex.snapshot.output, "the chart's output", ex.worker.payload_limit)
    except HoldfastError as refused:
        if not ex.told:
            ex.end("failed", refused, **ex.where())
            return
        ex.undo = Undo("failed", error_payload(refused))  # which ends behind its children
        ex.decide()
        return
    ex.record(h.INSTANCE_COMPLETED, ex.claimed.definition_key, b'{"result":' + result + b"}")
    ex.tell_parent("completed", result, None)
    ex.submit(status="completed", result=result, woken=ALWAYS, completed_at=ex.worker.now(), **ex.where())
    if ex.worker.verbose:
        ex.worker.note(ex, "instance_completed")
