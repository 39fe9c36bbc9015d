"""An operator's words about an instance as a whole: pause, resume, retry. They come before anything else in line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.engine import codec
from holdfast.engine import history as h
from holdfast.engine.journal import Pause
from holdfast.engine.replay import Call
from holdfast.store.port import PendingEvent
from holdfast.worker.standing import Phase

if TYPE_CHECKING:
    from holdfast.worker.execution import Execution
    from holdfast.worker.turns import UnderClaim


def hear(ex: UnderClaim) -> None:
    """Take what says whether the instance may move at all, in order, up to a request to end it that can be taken."""
    for event in ex.events.orders:
        if event.kind == "cancel":
            if ex.can_end:
                return
            continue
        if event.kind == "pause":
            pause(ex, event)
        elif event.kind == "resume":
            ex.consume(event)
            ex.record(h.INSTANCE_RESUMED, "", event.payload)
            ex.paused = None
            ex.resumed()


def spend(ex: UnderClaim, kinds: tuple[str, ...]) -> list[str]:
    """Take orders of these kinds out of the line, because they had their try and killed whoever took them: on record,
    in front of the row that buries the instance again."""
    spent = [event for event in ex.events.orders if event.kind in kinds]
    for event in spent:
        if event.kind == "retry":
            record_retry(ex, event, [])
        else:
            ex.consume(event)
            ex.record(h.INSTANCE_RESUMED, "cancel" if event.kind == "cancel" else "", event.payload)
    return list(dict.fromkeys(event.kind for event in spent))


def pause(ex: UnderClaim, event: PendingEvent) -> None:
    """Nothing new begins from here on. Paused again while paused: on record, and the first word stands."""
    ex.consume(event)
    ex.hold_transactions()
    ex.record(h.INSTANCE_PAUSED, "", event.payload)
    if ex.paused is None:
        ex.paused = msgspec.json.decode(event.payload, type=Pause)
    if ex.worker.verbose:
        ex.worker.note(ex, "paused", on=ex.paused.text())


def backs_off(call: Call) -> bool:
    """Whether it waits for its next attempt, and may begin it: never what may have happened, or waits for a person."""
    if call.state.phase is not Phase.WAITING or call.state.at is None:
        return False
    if call.kind == "effect":
        return call.state.next == "start" and not call.state.unknown and call.state.attempt >= 1
    return call.kind in ("step", "transaction") and call.state.attempt > 1


def record_retry(ex: UnderClaim, event: PendingEvent, due: list[Call], undo: str | None = None) -> None:
    words = codec.decode(event.payload) | {"due": [call.key for call in due]} | ({"undo": undo} if undo else {})
    ex.consume(event)
    ex.record(h.INSTANCE_RETRIED, "", codec.encode(words))
    if ex.worker.verbose:
        ex.worker.note(ex, "retried", due=words["due"])


def retry(ex: Execution, event: PendingEvent) -> None:
    """What waits for its next attempt begins it now. The journal says so too: a crash must not restore the wait."""
    due = [call for call in ex.open.values() if backs_off(call)]
    record_retry(ex, event, due, _cut_undo(ex))
    for call in due:
        call.state.at = ex.worker.now()


def _cut_undo(ex: Execution) -> str | None:
    """The step whose compensation waited for its next attempt, if one did."""
    undo, now = ex.undo, ex.worker.now()
    if undo is None:
        return None
    if undo.current is not None and undo.retry_at is not None:
        undo.retry_at = min(undo.retry_at, now)
        return undo.current.key
    for key, recorded in ex.replay.journal.undone.items():
        words = recorded.opened
        if words is not None and words.retry_at and not words.unknown and not recorded.answer_seq:
            words.retry_at = min(words.retry_at, now)
            return key
    return None
