"""Faults that are planted into the engine, each with what the simulator must say about it.

A fault is planted for good: `python -m tests.simulate --planted name` gives it a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.app import instances
from holdfast.worker import effects, undo
from holdfast.worker.execution import Execution
from tests.simulate.simulation import Simulation


@dataclass
class Planted:
    plant: Callable[[], None]
    kinds: tuple[str, ...]  # how a problem begins that tells of the fault
    seeds: int  # within as many it must be found


def _reserve_nothing() -> None:
    """An effect is not on record before its call."""
    reserve = effects.reserve

    def late(ex: Any, call: Any) -> None:
        record, ex.record = ex.record, lambda *_, **__: None
        rows, ex.effect_rows = ex.effect_rows, {}
        try:
            reserve(ex, call)
        finally:
            ex.record, ex.effect_rows = record, rows

    effects.reserve = late


def _repeat_manual() -> None:
    """A manual effect of unknown outcome is repeated."""
    after_unknown = effects.after_unknown
    effects.after_unknown = lambda mode, *more: after_unknown("keyed", *more)  # type: ignore[assignment]


def _repeat_manual_undo() -> None:
    """A manual compensation of unknown outcome is repeated."""
    undoing_spec = undo.undoing_spec

    def keyed(kind: str, spec: Any) -> Any:
        made = undoing_spec(kind, spec)
        return made if made is None or made.mode != "manual" else msgspec.structs.replace(made, mode="keyed")

    undo.undoing_spec = keyed


def _drop_signals() -> None:
    """A signal is acknowledged and dropped."""
    send = instances.send

    async def drop(service: Any, tenant_id: str, raw: bytes, kind: str, *more: Any) -> bool:
        return True if kind == "signal" else await send(service, tenant_id, raw, kind, *more)

    instances.send = drop  # type: ignore[assignment]


def _swallow_signals() -> None:
    """A signal is taken, and told to nobody."""
    release = Execution.release

    def swallow(self: Any, call: Any, type_: str, words: Any) -> None:
        release(self, call, "WAIT_TIMED_OUT" if type_ == "SIGNAL_RECEIVED" else type_, words)

    Execution.release = swallow  # type: ignore[method-assign]


def _undo_forward() -> None:
    """Compensations run in the order of starts."""
    undo_order = undo.undo_order
    undo.undo_order = lambda calls: list(reversed(undo_order(calls)))


def _undo_nothing() -> None:
    """An owed compensation is forgotten."""
    undo.begin_failing = lambda ex, error: False


def _fire_early() -> None:
    """A timer fires early."""
    was = Execution._open

    def hasty(self: Any, call: Any) -> None:
        was(self, call)
        if call.kind == "sleep":
            call.state.at -= 2_000_000

    Execution._open = hasty  # type: ignore[method-assign]


PLANTED = {
    "reserve nothing": Planted(_reserve_nothing, ("audit I2", "called twice"), 10),
    "repeat manual": Planted(_repeat_manual, ("called twice: manual",), 60),
    "repeat manual undo": Planted(_repeat_manual_undo, ("called twice: manual effect undo:",), 200),
    "drop signals": Planted(_drop_signals, ("signal lost",), 10),
    "swallow signals": Planted(_swallow_signals, ("signal swallowed",), 60),
    "undo forward": Planted(_undo_forward, ("undone",), 150),
    "undo nothing": Planted(_undo_nothing, ("forgotten",), 60),
    "fire early": Planted(_fire_early, ("early", "audit I8"), 60),
}


def find(name: str) -> str:
    """What is found of the fault, in the first seed that tells of it. Empty: nothing."""
    fault = PLANTED[name]
    fault.plant()
    for seed in range(fault.seeds):
        for text in Simulation(seed).run().problems:
            if text.startswith(fault.kinds):
                return f"seed {seed}: {text}"
    return ""
