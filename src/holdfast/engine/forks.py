"""Forks: which part of an ended instance's past a new one may go on from, and what it takes over.

Everything answered before the chosen point is taken over as it stands and answers from the journal. What was only
opened by then is not: it is asked for afresh, which is why nothing that may have happened may be among it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.engine import history as h
from holdfast.engine.codec import decode
from holdfast.engine.journal import ANSWERS, ENDINGS, OPENINGS, UNDOINGS, Recorded, read, space_of

ENDS = (h.INSTANCE_COMPLETED, h.INSTANCE_FAILED, h.INSTANCE_CANCELLED)
FAILURES = (h.STEP_FAILED, h.TRANSACTION_FAILED, h.EFFECT_FAILED, h.CHILD_FAILED)
Entry = tuple[str, str, bytes]
Place = tuple[str, str]


class Row(msgspec.Struct, frozen=True):
    """A history row as a fork reads it."""

    seq: int
    type: str
    name: str
    payload: bytes | None

    @property
    def place(self) -> Place | None:
        """The call it belongs to, in the journal's words."""
        kind = ANSWERS.get(self.type) or OPENINGS.get(self.type)
        return None if kind is None else (space_of(kind), self.name)


class Point(msgspec.Struct, frozen=True):
    """Where a fork begins: what stands before this row is taken over. `step`: what is done afresh first, if known."""

    before_seq: int
    step: str | None
    again: list[str]  # effects that happened, or may have, and would be done once more
    children: dict[
        str, str
    ] = {}  # by name, ids: children that would be started once more, with whatever they have done


class Copy(msgspec.Struct, frozen=True):
    entries: list[Entry]
    settled: int  # how many, from the first on, owe no compensation in the fork


def rows_of(found: Iterable[Sequence[Any]]) -> list[Row]:
    """From (seq, type, name, fence, at, payload, …) rows."""
    return [Row(r[0], r[1], r[2], None if r[5] is None else bytes(r[5])) for r in found]


def fork_point(rows: Sequence[Row], step: str | None) -> Point | str:
    """Where the fork begins, or why it cannot begin there."""
    if any(row.payload is None for row in rows):
        return "payloads of its history were erased, so its past cannot be taken over: start a new one"
    if step is None:
        seq, step = _default(rows)
    else:
        found = next((r.seq for r in rows if r.name == step and r.place is not None and r.place[0] != "value"), None)
        if found is None:
            known = ", ".join(dict.fromkeys(repr(r.name) for r in rows if r.place and r.place[0] != "value"))
            where = "history since it last restarted" if rows[0].type == h.INSTANCE_RESTARTED else "history"
            return f"{step!r} is not in its {where}: name one of {known[:500] or 'nothing, it has no steps'}"
        seq = found
    refused = _undone(rows, seq) or _under_way(rows, seq)
    return refused or Point(seq, step, _again(rows, seq), _children(rows, seq))


def _default(rows: Sequence[Row]) -> tuple[int, str | None]:
    """The first row of the step whose failure ended the instance; else the row where it began to end."""
    end = next((r for r in rows if r.type in ENDINGS), None) or next(r for r in rows if r.type in ENDS)
    before = [r for r in rows if r.seq < end.seq and r.place is not None]
    error = decode(end.payload or b"{}").get("error") or {}
    message = str(error.get("message", ""))
    failed = [r for r in before if r.type in FAILURES]
    blamed = [r for r in failed if message.startswith((f"step {r.name!r} failed", f"child {r.name!r} ("))]
    if not blamed and end.type in (h.INSTANCE_FAILING, h.INSTANCE_FAILED) and before and before[-1].type in FAILURES:
        blamed = before[-1:]  # the author wrapped its error into one of their own
    if not blamed:
        return end.seq, None
    name = blamed[-1].name
    return next(r.seq for r in before if r.name == name and r.place == blamed[-1].place), name


def _undone(rows: Sequence[Row], seq: int) -> str | None:
    """What was undone is not done any more; what was being undone when the instance ended may not be. What a
    compensation has failed to undo is still done, and its result good."""
    undoing = {r.name: r.type for r in rows if r.type in UNDOINGS}
    undoing |= dict.fromkeys(_given_up(rows), h.COMPENSATION_STARTED)
    for row in rows:
        how = undoing.get(row.name, h.COMPENSATION_FAILED)
        if row.seq < seq and row.type in ANSWERS and row.place == ("", row.name) and how != h.COMPENSATION_FAILED:
            was = "was undone by its compensation" if how == h.COMPENSATION_COMPLETED else "may have been undone"
            instead = f"fork from {row.name!r} or from a step before it"
            return f"{row.name!r}, which would be taken over as done, {was}: {instead}"
    return None


def _given_up(rows: Sequence[Row]) -> list[str]:
    """Undos of which a person gave up finding out whether they have happened: as if they were under way."""
    words = ((r.name, decode(r.payload or b"{}")) for r in rows if r.type == h.COMPENSATION_RESOLVED)
    return [name for name, said in words if said.get("resolution") == "abort"]


def _under_way(rows: Sequence[Row], seq: int) -> str | None:
    """An effect that had begun by then and was not settled: nobody may do it once more without saying so."""
    before, whole = read(_past(rows, seq)), read(_past(rows))
    undone = {r.name for r in rows if r.type == h.COMPENSATION_COMPLETED}
    for (space, name), recorded in before.calls.items():
        if recorded.kind != "effect" or recorded.answer_seq:
            continue
        later = whole.calls[space, name]
        if not later.answer_seq:
            return f"nobody knows the outcome of effect {name!r}: find out what became of it, then start a new instance"
        if _happened(later.answer_type, later.answer) and name not in undone:
            return f"effect {name!r} was under way there, and it was done: fork from {name!r} or from a step before it"
    return None


def _again(rows: Sequence[Row], seq: int) -> list[str]:
    """Effects from the point on that happened, or may have, and were not undone."""
    return [
        name
        for name, recorded in _not_taken_over(rows, seq, "effect").items()
        if not recorded.answer_seq or _happened(recorded.answer_type, recorded.answer)
    ]


def _children(rows: Sequence[Row], seq: int) -> dict[str, str]:
    found = _not_taken_over(rows, seq, "child").items()
    return {name: recorded.opened.child_id for name, recorded in found if recorded.opened is not None}


def _not_taken_over(rows: Sequence[Row], seq: int, kind: str) -> dict[str, Recorded]:
    """Calls that a fork would make once more, and that were not undone."""
    undone = {r.name for r in rows if r.type == h.COMPENSATION_COMPLETED}
    taken = read(_past(rows, seq)).calls
    return {
        name: recorded
        for (space, name), recorded in read(_past(rows)).calls.items()
        if recorded.kind == kind and name not in undone
        if (space, name) not in taken or not taken[space, name].answer_seq
    }


def _happened(type_: str, words: Any) -> bool:
    """It did, or a person gave up finding out."""
    return type_ == h.EFFECT_SUCCEEDED or bool(words is not None and words.aborted)


def _past(rows: Sequence[Row], before: int | None = None) -> list[tuple[Any, ...]]:
    return [(r.seq, r.type, r.name, r.payload, b"", 0) for r in rows if before is None or r.seq < before]


def copied(rows: Sequence[Row], before_seq: int) -> Copy | str:
    """What a fork takes over, in committed order: every row of the calls that were answered by then."""
    if not rows or rows[-1].seq < before_seq or any(r.payload is None for r in rows):
        return "the past it was to go on from is not there any more"
    past = [r for r in rows if r.seq < before_seq and r.place is not None]
    answered = {r.place for r in past if r.type in ANSWERS}
    kept = [r for r in past if r.place in answered]
    # Of one that completed nothing is owed any more, and of a fork of one neither.
    last = rows[-1].seq if rows[-1].type == h.INSTANCE_COMPLETED else read(_past(rows[:1])).settled_seq
    entries = [(r.type, r.name, r.payload or b"{}") for r in kept]
    return Copy(entries, sum(r.seq <= last for r in kept))
