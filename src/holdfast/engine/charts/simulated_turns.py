"""One turn of a simulation, told in JSON: where it led from and to, what changed, and why it was refused if it was."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.engine import codec
from holdfast.engine.charts.configurations import configuration_of
from holdfast.engine.charts.interpreter import ChartTurn
from holdfast.engine.charts.nodes import Chart, StepFault
from holdfast.engine.charts.snapshots import Snapshot
from holdfast.engine.tasks import TaskFault


class SimulatedTurn(msgspec.Struct, frozen=True, kw_only=True, rename={"before": "from", "after": "to"}):
    """What one event came to. Everything in it is JSON."""

    event: dict[str, Any]
    at: int
    """Microseconds of the simulated clock."""
    handled: bool
    stale: bool = False
    """The instance had ended, or what the event answers was over: nothing happened."""
    before: Any = None
    after: Any = None
    """The state value; null before the start."""
    state: str = ""
    status: str = "active"
    changes: dict[str, dict[str, Any]] = {}
    """Context fields that changed: {"from": …, "to": …}, one of them missing when it was not there."""
    effects: list[dict[str, Any]] = []
    taken: list[dict[str, Any]] = []
    """Microsteps: which event, and the transitions taken for it, by their paths."""
    output: Any = None
    error: Any = None
    fault: dict[str, Any] | None = None
    """Why the step was refused: path, message, cycle. Then nothing of it happened."""


def taken_turn(event: dict[str, Any], at: int, old: Snapshot | None, new: Snapshot, turn: ChartTurn) -> SimulatedTurn:
    """A step that was taken. `old`: where the instance stood before; None at the start."""
    return SimulatedTurn(
        event=event,
        at=at,
        handled=turn.handled,
        stale=turn.stale,
        before=None if old is None else codec.decode(bytes(old.value)),
        after=codec.decode(bytes(new.value)),
        state=turn.state,
        status=new.status,
        changes=_changes({} if old is None else old.context, new.context),
        effects=[{"type": effect.type} | as_json(effect.body) for effect in turn.effects],
        taken=[{"event": step.event, "transitions": [t.path for t in step.transitions]} for step in turn.taken],
        output=new.output,
        error=new.error,
    )


def refused_turn(
    event: dict[str, Any], at: int, chart: Chart, snapshot: Snapshot | None, fault: StepFault | TaskFault
) -> SimulatedTurn:
    """A step that failed: nothing of it happened."""
    if isinstance(fault, StepFault):
        words = {"path": fault.path, "message": str(fault), "cycle": fault.cycle}
    else:
        words = {"path": fault.field, "message": str(fault), "cycle": []}
    value, state, status = None, "", "error"
    if snapshot is not None:
        config = configuration_of(chart, bytes(snapshot.value))
        value, state, status = config.value, config.text, snapshot.status
    return SimulatedTurn(
        event=event, at=at, handled=False, before=value, after=value, state=state, status=status, fault=words
    )


def as_json(value: Any) -> Any:
    return codec.decode(codec.encode(value))


def _changes(old: dict[str, Any], new: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for key in [*new, *(key for key in old if key not in new)]:
        if key in old and key in new and codec.encode(old[key]) == codec.encode(new[key]):
            continue
        found[key] = ({"from": old[key]} if key in old else {}) | ({"to": new[key]} if key in new else {})
    return found
