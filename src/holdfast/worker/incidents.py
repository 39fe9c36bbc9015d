"""A step that is refused as a whole: the instance stands still with its event until a person resumes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec
from holdfast.engine import history as h
from holdfast.store.port import PendingEvent
from holdfast.worker import children, control, tasks
from holdfast.worker.chart_words import event_words, fault_words
from holdfast.worker.tasks import UNLIMITED, TaskCall

if TYPE_CHECKING:
    from holdfast.worker.charts import ChartExecution


def raise_(ex: ChartExecution, event: dict[str, Any], fault: BaseException, source: dict[str, str]) -> None:
    """The step is refused as a whole and the event kept; a person mends the chart or the data and resumes."""
    assert ex.snapshot is not None
    words = fault_words(fault) | {"event": event["type"], "source": source}
    ex.snapshot = msgspec.structs.replace(ex.snapshot, incident=words)
    ex.record(h.ERROR, event["type"], codec.encode(words))
    ex.worker.note(ex, "incident", "error", on=event["type"], error=words["message"])


def resume(ex: ChartExecution, event: PendingEvent) -> None:
    words = codec.decode(event.payload)
    ex.consume(event)
    ex.record(h.INSTANCE_RESUMED, "", event.payload)
    ex.paused = None
    if words.get("drop_event"):
        _wait_for_no_child(ex)
    if ex.snapshot is None or ex.snapshot.incident is None:
        return
    source = ex.snapshot.incident.get("source") or {}
    ex.snapshot = msgspec.structs.replace(ex.snapshot, incident=None)
    if words.get("drop_event"):
        _drop(ex, source)


def retry(ex: ChartExecution, event: PendingEvent) -> None:
    """Like a resume; and tasks that wait for their next attempt begin it now."""
    due = [call for call in ex.open.values() if control.backs_off(call)]
    control.record_retry(ex, event, due)
    for call in due:
        assert isinstance(call, TaskCall)
        tasks.try_now(ex, call)
    if ex.snapshot is not None and ex.snapshot.incident is not None:
        ex.snapshot = msgspec.structs.replace(ex.snapshot, incident=None)


def _wait_for_no_child(ex: ChartExecution) -> None:
    """A person has an instance that is ending not wait any longer for children that were told to end."""
    if ex.undo is not None and ex.undo.status != "completed":
        for step in sorted(ex.told):
            ex.record(h.EVENT_DROPPED, step, b'{"type":"the end of a child that was told to end"}')
        ex.told.clear()


def _drop(ex: ChartExecution, source: dict[str, str]) -> None:
    """What could not be worked off is put aside, on record; nothing else that has come since."""
    assert ex.snapshot is not None
    if "answer" in source and ex.inbox:  # they are worked off in order, so it still stands first
        dropped = ex.inbox.popleft()
        ex.record(h.EVENT_DROPPED, dropped.event["type"], codec.encode(dropped.event, limit=UNLIMITED))
        if dropped.kind == "child":
            children.answered(ex, dropped.id, dropped.visit)
    elif source.get("timer") in ex.snapshot.timers:
        timers = ex.snapshot.timers.copy()
        timer = timers.pop(source["timer"])
        ex.snapshot = msgspec.structs.replace(ex.snapshot, timers=timers)
        ex.record(h.EVENT_DROPPED, source["timer"], codec.encode(timer.event, limit=UNLIMITED))
    else:
        event = ex.events.find(source.get("event"))
        if event is not None:
            ex.consume(event)
            ex.record(h.EVENT_DROPPED, event.name, event_words(event))
