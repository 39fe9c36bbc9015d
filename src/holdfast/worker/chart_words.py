"""What charts write into histories and show to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine import codec
from holdfast.engine.calendar import moment_text
from holdfast.engine.charts.document import BadChart
from holdfast.engine.charts.interpreter import ChartTurn
from holdfast.engine.charts.nodes import StepFault
from holdfast.engine.charts.snapshots import Snapshot
from holdfast.engine.journal import PARKED
from holdfast.engine.stacks import message_of, type_of
from holdfast.engine.tasks import TaskFault
from holdfast.store.port import PendingEvent
from holdfast.worker import effects
from holdfast.worker.standing import Phase
from holdfast.worker.tasks import UNLIMITED, TaskCall
from holdfast.worker.turns import sent_by

if TYPE_CHECKING:
    from holdfast.worker.charts import ChartExecution

STEPS_SHOWN = 100  # microsteps of one turn that its history entry names


def waiting_on(ex: ChartExecution) -> str:
    if ex.paused is not None:
        return ex.paused.text()
    assert ex.snapshot is not None
    if ex.snapshot.incident is not None:
        return f"{PARKED}{ex.snapshot.incident['message']}"[:1000]
    parts = [describe(call) for call in ex.open.values() if isinstance(call, TaskCall)]
    if ex.undo is None:
        children, timers = ex.snapshot.children.items(), ex.snapshot.timers.items()
        parts += [f"child {id_!r}" for id_, child in children if child.workflow and not child.answered]
        parts += [f"timer {id_!r} until {moment_text(timer.due)}" for id_, timer in timers]
    elif ex.awaits_children():
        parts += [f"child {step.rpartition('@')[0]!r}, which was told to end" for step in sorted(ex.told)]
    shown = "; ".join(parts[:10]) + (f"; and {len(parts) - 10} more" if len(parts) > 10 else "")
    if ex.undo is not None:
        return f"its end ({ex.undo.status}): {shown}"[:1000]
    return f"in {ex.state or 'its state'}: {shown or 'an event'}"[:1000]


def describe(call: TaskCall) -> str:
    task, standing = call.task, call.state
    if call.kind == "effect" and standing.phase is Phase.WAITING and standing.attempt:
        return effects.describe(call)
    until = f" until {moment_text(standing.at)}" if standing.at is not None else ""
    if call.kind == "human":
        return f"a person for task {task.name!r}{until}"
    if call.kind == "timer":
        return f"timer {task.name!r}{until}"
    return f"{task.type} task {task.name!r}{until}"


def transition_words(turn: ChartTurn, event: str, before: Snapshot | None) -> bytes:
    """What it was about and where it went: event, from, to, seq; what changed in the context; the steps, if several."""
    snapshot = turn.snapshot
    head = b'{"event":%b,"from":%b,"to":%b,"seq":%d' % (
        codec.encode(event), b"null" if before is None else bytes(before.value), bytes(snapshot.value), snapshot.seq,
    )  # fmt: skip
    words: dict[str, Any] = {}
    old = {} if before is None else before.context
    changed = snapshot.context is not old and {
        key: value for key, value in snapshot.context.items() if key not in old or old[key] is not value
    }
    if changed:
        words["set"] = changed
    if len(turn.taken) > 1:
        words["steps"] = [[one.event, [repr(t) for t in one.transitions]] for one in turn.taken[:STEPS_SHOWN]]
    if len(turn.taken) > STEPS_SHOWN:
        words["steps_left_out"] = len(turn.taken) - STEPS_SHOWN
    return head + (b"," + codec.encode(words, limit=UNLIMITED)[1:] if words else b"}")


def event_words(event: PendingEvent) -> bytes:
    return b'{"event_id":' + codec.encode(event.id) + sent_by(event) + b',"payload":' + event.payload + b"}"


def said_by(words: dict[str, Any]) -> dict[str, Any]:
    """Who said it, and why."""
    return {key: words[key] for key in ("actor", "reason") if words.get(key)}


def fault_words(fault: BaseException) -> dict[str, Any]:
    words: dict[str, Any] = {"type": type_of(fault), "message": message_of(fault)}
    if isinstance(fault, StepFault):
        words = {"type": "StepFault", "message": f"{fault.path or '/'}: {message_of(fault)}"[:2000], "path": fault.path}
        if fault.cycle:
            words["cycle"] = fault.cycle
    elif isinstance(fault, TaskFault):
        words |= {"field": fault.field}
    elif isinstance(fault, BadChart):
        words |= {"problems": [str(p) for p in fault.problems[:10]]}
    return words
