"""Compensation: which steps are owed an undo, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engine import history as h
from holdfast.engine.replay import Call

HAPPENED = (h.STEP_COMPLETED, h.TRANSACTION_COMMITTED, h.EFFECT_SUCCEEDED, h.CHILD_COMPLETED)


def owed(call: Call) -> bool:
    """A step is undone when it happened, and when nobody can say that it did not."""
    if call.spec.compensate is None:
        return False
    if call.outcome in HAPPENED:
        return True
    return call.outcome == h.EFFECT_FAILED and call.words is not None and call.words.aborted


def unsettled(call: Call) -> bool:
    """Started, and nobody knows yet how it ended: it stands in the way of undoing what started before it."""
    return not call.outcome and call.kind in ("effect", "child", "step", "transaction") and call.state is not None


def undo_order(calls: Iterable[Call]) -> list[Call]:
    """Last started, first undone."""
    return sorted(calls, key=lambda call: call.order, reverse=True)
