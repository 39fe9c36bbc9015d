"""A live instance goes on by another version of its chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.engine import codec
from holdfast.engine import history as h
from holdfast.engine.charts.configurations import configuration_of
from holdfast.engine.charts.interpreter import ChartTurn, Taken
from holdfast.engine.charts.migration import plan_migration
from holdfast.engine.charts.nodes import StepFault
from holdfast.engine.errors import NotJson
from holdfast.engine.tasks import TaskFault
from holdfast.store.port import PendingEvent
from holdfast.worker.chart_words import fault_words

if TYPE_CHECKING:
    from holdfast.worker.charts import ChartExecution


def migrate(ex: ChartExecution, event: PendingEvent) -> None:
    """To another version, by an explicit state map: whole or not at all."""
    words = codec.decode(event.payload)
    found = ex.worker.charts.loaded(ex.tenant_id, ex.claimed.definition_key, words["version"])
    before = ex.snapshot
    ex.consume(event)
    if ex.undo is not None or before is None or found is None or found.chart is None:
        why = (
            "it is ending" if found else f"version {words['version']} is not published, or cannot be read by its worker"
        )
        ex.record(h.EVENT_IGNORED, "migrate", codec.encode({"problems": [why]} | words))
        return
    now = ex.worker.now()
    moved = plan_migration(
        ex.chart, found.chart, msgspec.structs.replace(before, incident=None, inbox=[]), words["states"],
        now=now, context=words.get("context") or {}, enter=words.get("enter") or (),
        stop=words.get("stop") or (), start=words.get("start") or (),
    )  # fmt: skip
    if isinstance(moved, list):
        ex.record(h.EVENT_IGNORED, "migrate", codec.encode({"problems": [str(p) for p in moved]} | words))
        return
    state = configuration_of(found.chart, bytes(moved.snapshot.value)).text
    turn = ChartTurn(moved.snapshot, list(moved.effects), [Taken("migrate", ())], True, False, state)
    try:
        plans = ex.plans(turn, now)
    except (StepFault, TaskFault, NotJson) as fault:
        ex.record(h.EVENT_IGNORED, "migrate", codec.encode({"problems": [fault_words(fault)["message"]]} | words))
        return
    said = {"actor": words.get("actor"), "reason": words.get("reason")}
    ex.record(h.INSTANCE_MIGRATED, ex.claimed.definition_key, codec.encode(moved.summary | said))
    ex.moving_to = words["version"]  # this turn begins nothing: what it asks for falls due in the next claim
    ex.apply(turn, plans, "migrate", before, now)
