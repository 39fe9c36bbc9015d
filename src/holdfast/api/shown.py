"""Views of the app as the API shows them."""

from __future__ import annotations

from typing import Any

from holdfast.api.models import (
    EffectOut,
    HistoryOut,
    InstanceOut,
    ObservationOut,
    TaskOut,
)
from holdfast.app.effects import EffectView
from holdfast.app.instances import HistoryEntry, InstanceView
from holdfast.app.tasks import TaskView
from holdfast.engine import ids
from holdfast.engine.moments import micros
from holdfast.engine.trace import trace_id_of


def instance_fields(view: InstanceView) -> dict[str, Any]:
    return {
        "id": view.id, "definition_key": view.workflow, "definition_version": view.version, "kind": view.kind,
        "status": view.status, "waiting_on": view.waiting_on, "current_state": view.state,
        "current_step": view.current_step, "updated_at": view.updated_at,
        "business_key": view.business_key, "queue": view.queue, "input": view.input, "result": view.result,
        "last_error": view.error, "compensation": view.compensation, "parent_id": view.parent_id,
        "trace_id": None if view.trace_id is None else trace_id_of(view.trace_id), "created_by": view.created_by,
        "epoch": view.epoch, "created_at": view.created_at, "started_at": view.started_at,
        "completed_at": view.completed_at, "run_at": view.run_at, "left_out": view.left_out,
    }  # fmt: skip


def instance(view: InstanceView) -> InstanceOut:
    return InstanceOut(**instance_fields(view))


def history(entry: HistoryEntry) -> HistoryOut:
    return HistoryOut(
        seq=entry.seq, type=entry.type, name=entry.name, at=entry.at, payload=entry.payload, hash=entry.hash
    )


def task(view: TaskView) -> TaskOut:
    return TaskOut(
        id=view.id, instance_id=view.instance_id, definition_key=view.workflow, key=view.key, type=view.type,  # type: ignore[arg-type]
        name=view.name, title=view.title, status=view.status, run_at=view.run_at, attempts=view.attempts,  # type: ignore[arg-type]
        max_attempts=view.max_attempts, idempotency_key=view.idempotency_key, input=view.input, form=view.form,
        output=view.output, error=view.error,
        trace_id=None if view.trace_id is None else trace_id_of(view.trace_id), assignee=view.assignee,
        groups=view.groups, priority=view.priority, due_at=view.due_at, follow_up_at=view.follow_up_at,
        version=view.version, created_at=view.created_at, started_at=view.started_at,
        completed_at=view.completed_at, completed_by=view.completed_by, left_out=view.left_out,
    )  # fmt: skip


def effect(view: EffectView) -> EffectOut:
    return EffectOut(
        id=view.id, instance_id=view.instance_id, step=view.step, mode=view.mode, state=view.state,  # type: ignore[arg-type]
        attempt=view.attempt, idempotency_key=view.idempotency_key, request=view.request, worker=view.worker,
        first_started_at=view.first_started_at, started_at=view.started_at,
        not_after=view.not_after, opens_at=view.opens_at, settled_at=view.settled_at,
        receipt=view.receipt, error=view.error, resolution=view.resolution, resolved_by=view.resolved_by,  # type: ignore[arg-type]
        reason=view.reason, expected=view.expected,
        observations=[
            ObservationOut(
                at=o.observed_at, worker=o.worker, attempt=o.attempt, outcome=o.outcome, payload=o.payload
            )
            for o in view.observations
        ],
        left_out=view.left_out,
    )  # fmt: skip


def effect_place(view: EffectView) -> tuple[int, bytes]:
    """Where it stands in a list."""
    return micros(view.started_at), ids.parse("eff", view.id)
