"""What stands in line before a person's word on a task, and whether it takes the task away: the chart itself says so.

What came first is taken first. It only looks: nothing is written, and what is found may have changed a moment later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.engine.events import as_event

if TYPE_CHECKING:
    from holdfast.app.service import Service

LOOKED_AT = 100  # events; behind more of them a word may still come too late


async def what_takes_away(service: Service, tenant_id: str, instance_id: bytes, task: bytes, name: str) -> str | None:
    """The first in line that would end this open task before a word on it is taken, as words; None: nothing."""
    line = await service.store.fetch(
        "before_a_word", tenant_id=tenant_id, instance_id=instance_id, limit=LOOKED_AT
    )  # fmt: skip
    if not line:
        return None
    if any(kind == "cancel" for kind, *_ in line):
        return "a cancel"
    [(raw, key, version, status)] = await service.store.fetch("read_snapshot", tenant_id=tenant_id, id=instance_id)
    [(invoke_id, visit)] = await service.store.fetch("invocation_of_task", tenant_id=tenant_id, id=task)
    if raw is None or status in ("completed", "failed", "cancelled"):
        return None
    definition = await service.charts.load(tenant_id, key, version)
    return None if definition.chart is None else _taken_away(definition.chart, raw, line, invoke_id, visit, name)


def _taken_away(
    chart: Any, raw: bytes, line: list[tuple[Any, ...]], invoke_id: str | None, visit: int, name: str
) -> str | None:
    from holdfast.engine.charts.interpreter import advance  # CEL is large: only those who use charts wait for it
    from holdfast.engine.charts.nodes import StepFault
    from holdfast.engine.charts.snapshots import snapshot_from

    snapshot = snapshot_from(chart, raw)
    for _, event, payload, sent_at in line:
        if snapshot.incident is not None or event.startswith("xstate."):
            return None  # a chart that stands at an incident takes words on its tasks meanwhile
        try:
            turn = advance(chart, snapshot, as_event(event, payload, sent_at), sent_at)
        except StepFault:
            return None
        snapshot = turn.snapshot
        for effect in turn.effects:
            body = effect.body
            left = effect.type == "stop" and (body["id"], body["visit"]) == (invoke_id, visit)
            if left or (effect.type == "cancelTask" and body["params"]["name"] == name):
                return f"event {event!r}"
        if snapshot.status != "active":
            return f"event {event!r}"
    return None
