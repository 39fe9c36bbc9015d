"""A step that is refused as a whole: the instance stands still with its event until a person resumes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec
from holdfast.engine import history as h
from holdfast.engine.charts.nodes import StepFault
from holdfast.engine.charts.snapshots import due
from holdfast.engine.tasks import TaskFault
from holdfast.store.port import PendingEvent
from holdfast.worker.chart_words import event_words, fault_words

if TYPE_CHECKING:
    from holdfast.worker.charts import ChartExecution


def raise_(ex: ChartExecution, event: dict[str, Any], fault: StepFault | TaskFault) -> None:
    """The step is refused as a whole and the event kept; a person mends the chart or the data and resumes."""
    assert ex.snapshot is not None
    words = fault_words(fault) | {"event": event["type"]}
    ex.snapshot = msgspec.structs.replace(ex.snapshot, incident=words)
    ex.record(h.INCIDENT_RAISED, event["type"], codec.encode(words))
    ex.worker.note(ex, "incident", on=event["type"], error=words["message"])


def resume(ex: ChartExecution, event: PendingEvent) -> None:
    words = codec.decode(event.payload)
    ex.consume(event)
    ex.record(h.INSTANCE_RESUMED, "", event.payload)
    if ex.snapshot is None or ex.snapshot.incident is None:
        return
    ex.snapshot = msgspec.structs.replace(ex.snapshot, incident=None)
    if words.get("drop_event"):
        _drop_event(ex)


def _drop_event(ex: ChartExecution) -> None:
    """Whatever would be worked off next is put aside, on record."""
    assert ex.snapshot is not None
    if ex.inbox:
        dropped = ex.inbox.popleft().event
        ex.record(h.EVENT_DROPPED, dropped["type"], codec.encode(dropped))
        return
    timer = due(ex.snapshot)
    if timer is not None and timer[1].due <= ex.worker.now():
        ex.snapshot.timers.pop(timer[0])
        ex.record(h.EVENT_DROPPED, timer[0], codec.encode(timer[1].event))
        return
    event = next((e for e in ex.events if e.kind == "signal"), None)
    if event is not None:
        ex.consume(event)
        ex.record(h.EVENT_DROPPED, event.name, event_words(event))
