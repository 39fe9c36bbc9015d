"""The first turn of a fork: another instance's past is read, and taken over together with whatever follows from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from holdfast.engine import codec, ids
from holdfast.engine.forks import copied, rows_of
from holdfast.store.port import PendingEvent

if TYPE_CHECKING:
    from holdfast.worker.execution import Execution

log = structlog.get_logger("holdfast.worker")


def wanted(ex: Execution) -> PendingEvent | None:
    """The event that says whose past it goes on from, as long as it has none of its own."""
    return None if ex.claimed.history else next((e for e in ex.events.facts if e.kind == "fork"), None)


def begin(ex: Execution, event: PendingEvent) -> None:
    ex.committing = True  # nothing is decided before the past is here
    ex.worker.spawn(_read(ex, event))


async def _read(ex: Execution, event: PendingEvent) -> None:
    words = codec.decode(event.payload)
    while not ex.abandoned:
        try:
            found = await ex.worker.store.fetch(
                "read_history", tenant_id=ex.tenant_id, instance_id=ids.parse("ins", words["from"]),
                after=max(words.get("epoch_seq", 0) - 1, 0),
                limit=1_000_000_000,
            )  # fmt: skip
        except Exception as error:
            log.warning("past_not_read", error=repr(error))
            await asyncio.sleep(0.1)
            continue
        ex.committing = False
        if not ex.abandoned:
            ex.worker.guard(ex, _take_over, ex, event, words, found)
        return


def _take_over(ex: Execution, event: PendingEvent, words: dict[str, Any], found: list[tuple[Any, ...]]) -> None:
    """Into the turn: the first row, which takes the event, then the copies, under this instance's own chain."""
    copy = copied(rows_of(found), words["before_seq"])
    said = {"forked_from": words["from"], "step": words["step"], "reason": words["reason"], "actor": words["actor"]}
    ex.consume(event)
    if isinstance(copy, str):
        ex.started(said)
        ex.end("failed", {"type": "ForkRefused", "message": f"{words['from']}: {copy}"})
        return
    ex.started(said | {"before_seq": words["before_seq"], "copied": len(copy.entries), "settled": copy.settled})
    ex.copied = len(copy.entries)
    for type_, name, payload in copy.entries:
        ex.record(type_, name, payload)
    now = ex.worker.now()
    ex.read_journal([(seq, *entry, b"", now) for seq, entry in enumerate(ex.entries, 1)])
    ex.go()
