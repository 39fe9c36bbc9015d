"""Compensation: which steps are owed an undo, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.engine import history as h
from holdfast.engine.journal import HAPPENED
from holdfast.engine.mistakes import unread
from holdfast.engine.replay import Call, Replay


def owed(call: Call) -> bool:
    """A step is undone when it happened, and when nobody can say that it did not."""
    if call.spec.compensate is None:
        return False
    if call.outcome in HAPPENED:
        return True
    return call.outcome in (h.EFFECT_FAILED, h.STEP_FAILED) and call.words is not None and call.words.aborted


def unsettled(call: Call) -> bool:
    """Started, and nobody knows yet how it ended: it stands in the way of undoing what started before it."""
    return not call.outcome and call.kind in ("effect", "child", "step", "transaction") and call.state is not None


def refuses_restart(replay: Replay) -> str | None:
    """What an epoch must not leave behind: work under way, and steps that may have to be undone. Timers and waits for
    signals may go; a signal that nobody has taken stays for the next epoch."""
    open_ = [call for call in replay.unsettled if call.kind in ("effect", "child", "step", "transaction")]
    if open_:
        named = ", ".join(f"{call.kind} {call.key!r}" for call in sorted(open_, key=lambda call: call.order)[:5])
        more = f" and {len(open_) - 5} more" if len(open_) > 5 else ""
        return f"{named}{more} has no result yet: await everything first"
    unheard = next((call for call in replay.failed if unread(call.future)), None)
    if unheard is not None:
        return f"the failure of {unheard.kind} {unheard.key!r} was never awaited: await it, or catch what it raises"
    owing = [call for call in replay.compensable if owed(call) and replay.journal.owes(call.recorded)]
    if owing:
        named = ", ".join(f"{call.kind} {call.key!r}" for call in owing[:5])
        more = f" and {len(owing) - 5} more" if len(owing) > 5 else ""
        return (
            f"{named}{more} may have to be undone if the instance fails, and the next epoch would not know: let a "
            "child do what has compensations"
        )
    return None


def undo_order(calls: Iterable[Call]) -> list[Call]:
    """Last started, first undone. The order of starting is the one on record, whatever the order in which today's code
    asks; what has no record of it comes behind what was asked for before it, and what began under this claim last."""
    began: list[tuple[float, int, Call]] = []
    last = 0.0
    for call in sorted(calls, key=lambda call: call.order):
        seq = last if call.recorded is not None else float("inf")
        if call.recorded is not None and call.recorded.began_seq:
            seq = call.recorded.began_seq
        began.append((seq, call.order, call))
        last = max(last, seq)
    return [call for *_, call in sorted(began, key=lambda one: one[:2], reverse=True)]
