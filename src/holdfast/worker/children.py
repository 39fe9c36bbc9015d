"""What a chart starts and tells beyond itself: child instances, and events to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.charts.snapshots import Waiting
from holdfast.engine.errors import BadInput, HoldfastError
from holdfast.engine.events import OUR_EVENTS
from holdfast.engine.stacks import error_payload, without_stack
from holdfast.engine.turns import NewEvent, NewInstance
from holdfast.store.port import PendingEvent
from holdfast.worker.tasks import UNLIMITED

if TYPE_CHECKING:
    from holdfast.worker.charts import ChartExecution


def start(ex: ChartExecution, body: dict[str, Any]) -> None:
    """With the turn that invokes it. One that cannot be started answers as one that failed."""
    src, step = body["src"], f"{body['id']}@{body['visit']}"
    try:
        definition = ex.worker.child_definition(ex.tenant_id, src["workflow"], src["version"])
    except HoldfastError as error:
        ex.record(h.CHILD_FAILED, step, codec.encode({"error": error_payload(error), "status": "failed"}))
        _answer(ex, body["id"], body["visit"], None, error_payload(error))
        return
    child = ids.child_id(ex.tenant_id, ex.id, step)
    words = {"child_id": ids.instance_word(child), "workflow": definition.key, "version": definition.version}
    ex.record(h.CHILD_STARTED, step, codec.encode(words))
    now = ex.worker.now()
    ex.beyond_history()
    ex.starts.append(NewInstance(
        ex.tenant_id, child, definition.kind, definition.key, definition.version, None, definition.queue, 0, now,
        codec.encode(body["input"], limit=UNLIMITED), ex.id, step, ex.claimed.trace_id, now, ex.id,
    ))  # fmt: skip


def ended(ex: ChartExecution, event: PendingEvent) -> None:
    words = codec.decode(event.payload)
    completed = words["status"] == "completed"
    ex.consume(event)
    ex.record(h.CHILD_COMPLETED if completed else h.CHILD_FAILED, event.name, event.payload)
    if not completed:
        ex.failure = ("child", words.get("error"))
    ex.told.discard(event.name)
    id_, _, visit = event.name.rpartition("@")
    if ex.undo is not None:
        answered(ex, id_, int(visit))
        return
    _answer(ex, id_, int(visit), words.get("result") if completed else None, None if completed else words)


def _answer(ex: ChartExecution, id_: str, visit: int, output: Any, error: Any) -> None:
    if error is None:
        event = {"type": f"xstate.done.actor.{id_}", "output": output}
    else:
        event = {"type": f"xstate.error.actor.{id_}", "error": without_stack(error.get("error") or error)}
    ex.inbox.append(Waiting(event, "child", id_, visit))


def answered(ex: ChartExecution, id_: str, visit: int) -> None:
    """Its end is on record, and nothing of it is worked off: it must not be told to end, nor waited for."""
    snapshot = ex.snapshot
    child = None if snapshot is None else snapshot.children.get(id_)
    if snapshot is not None and child is not None and child.visit == visit:
        children = {**snapshot.children, id_: msgspec.structs.replace(child, answered=True)}
        ex.snapshot = msgspec.structs.replace(snapshot, children=children)


def cancel(ex: ChartExecution, id_: str, visit: int, reason: str) -> None:
    """Tell it to end, unless it has, and that has not been worked off yet."""
    if any(own.kind == "child" and (own.id, own.visit) == (id_, visit) for own in ex.inbox):
        return
    step = f"{id_}@{visit}"
    ex.told.add(step)
    ex.beyond_history()
    ex.sends.append(NewEvent(
        ex.tenant_id, ids.child_id(ex.tenant_id, ex.id, step), f"cancel:{ex.id.hex()}", "cancel", "",
        codec.encode({"reason": reason, "actor": "holdfast"}), ex.worker.now(), ex.id,
    ))  # fmt: skip


def send(ex: ChartExecution, body: dict[str, Any], seq: int, index: int) -> None:
    """An event for another instance, or for this one. `seq`, `index`: its place in the turn, which is its identity."""
    event = body["event"]
    try:
        to = ids.parse("ins", body["to"])
        if event["type"].startswith(OUR_EVENTS):
            raise BadInput(f"names that begin with {', '.join(OUR_EVENTS)} are the engine's own")
    except HoldfastError as error:
        ex.record(h.EVENT_SENT, event["type"], codec.encode({"to": body["to"][:100], "error": str(error)}))
        return
    id_ = ids.derived("send", ex.tenant_id, ex.id, f"{seq}.{index}").hex()
    payload = codec.encode({key: value for key, value in event.items() if key != "type"}, limit=UNLIMITED)
    ex.record(h.EVENT_SENT, event["type"], codec.encode({"to": body["to"], "event_id": id_}))
    if to == ex.id:
        ex.inbox.append(Waiting({**event}, sent_at=ex.worker.now()))
        return
    ex.beyond_history()
    ex.sends.append(NewEvent(ex.tenant_id, to, id_, "signal", event["type"], payload, ex.worker.now(), ex.id))
