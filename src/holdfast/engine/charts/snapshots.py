"""Where an instance of a chart stands, as it is stored: a value that survives JSON and says which version made it."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.engine.charts.configurations import SnapshotMismatch, configuration_of
from holdfast.engine.charts.nodes import Chart


class Timer(msgspec.Struct):
    due: int
    event: dict[str, Any]
    visit: int


class Child(msgspec.Struct, omit_defaults=True):
    visit: int
    workflow: bool = False  # a child instance; else a task
    answered: bool = False


class Waiting(msgspec.Struct, omit_defaults=True):
    """An event of the instance's own making: a task's, a child's or a timer's answer."""

    event: dict[str, Any]
    kind: str = ""  # timer | child; "": it answers nothing that a state started
    id: str = ""
    visit: int = 0
    failure: bool = False  # of a task: if nobody takes it, the instance fails
    sent_at: int = 0  # of an event that the chart sent to itself: it stands in line with everybody's


class Pin(msgspec.Struct):
    id: str
    version: int
    hash: str


class Snapshot(msgspec.Struct, rename={"history_value": "historyValue"}, omit_defaults=True):
    """Where an instance stands, as it is stored."""

    status: str  # active | done | error
    value: msgspec.Raw
    context: dict[str, Any]
    definition: Pin
    seq: int = 0  # of the turn that made it
    history_value: dict[str, list[str]] = {}
    children: dict[str, Child] = {}
    timers: dict[str, Timer] = {}
    visits: int = 0  # how often states were entered that start timers or invokes
    output: Any = None
    error: Any = None
    inbox: list[Waiting] = []  # answers that are on record and not yet worked off
    left: list[str] = []  # keys of open tasks that nobody waits for, and that may have happened
    told: list[str] = []  # child instances that were told to end and have not yet
    incident: dict[str, Any] | None = None  # why it does not go on, until a person resumes it
    paused: dict[str, str] | None = None  # who had it stand still, and why, until a person resumes it
    ending: dict[str, Any] | None = None  # how it will end once what is under way is settled


_read = msgspec.json.Decoder(Snapshot).decode
_write = msgspec.json.Encoder().encode


def snapshot_from(chart: Chart, raw: bytes) -> Snapshot:
    """A stored snapshot, checked against the definition it is to be advanced by."""
    try:
        snapshot = _read(raw)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise SnapshotMismatch(f"the snapshot cannot be read: {error}") from None
    if snapshot.definition.hash != chart.hash or snapshot.definition.version != chart.version:
        raise SnapshotMismatch(
            f"the snapshot was made by version {snapshot.definition.version} of {snapshot.definition.id!r}, "
            f"not by version {chart.version}"
        )
    configuration_of(chart, bytes(snapshot.value))
    for key, ids in snapshot.history_value.items():
        if key not in chart.by_id or any(id_ not in chart.by_id for id_ in ids):
            raise SnapshotMismatch(f"the snapshot remembers {key!r}, which version {chart.version} does not have")
    strangers = [id_ for id_ in snapshot.timers if id_.startswith("xstate.after.") and id_ not in chart.timer_ids]
    strangers += [id_ for id_ in snapshot.children if id_ not in chart.invoke_ids]
    if strangers:
        raise SnapshotMismatch(f"the snapshot waits for {strangers[0]!r}, which version {chart.version} does not have")
    return snapshot


def snapshot_text(snapshot: Snapshot) -> bytes:
    return _write(snapshot)


def due(snapshot: Snapshot) -> tuple[str, Timer] | None:
    """The timer that fires next: the earliest, and of several at one moment the one started first."""
    best: tuple[str, Timer] | None = None
    for id_, timer in snapshot.timers.items():
        if best is None or timer.due < best[1].due:
            best = (id_, timer)
    return best
