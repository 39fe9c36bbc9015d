"""A history file: the rows of one history as JSON lines, to be replayed elsewhere.

What the rows do not say of their instance (input, epoch, pending events, …) is a field of the first row, `instance`, so
that a program which reads rows finds rows and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from holdfast.app.rehearsal import Stored, StoredRow
from holdfast.engine import ids
from holdfast.engine.errors import BadInput
from holdfast.engine.moments import Moment, micros, when
from holdfast.store.port import PendingEvent

FORMAT = 1


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    name: str
    payload: msgspec.Raw
    sent_at: Moment
    sent_by: str | None = None


class _Instance(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    id: str
    tenant_id: str
    kind: str
    workflow: str
    version: int
    status: str
    waiting_on: str | None
    input: msgspec.Raw
    fence: int
    attempts: int
    is_held: bool
    woken: int
    created_at: Moment
    epoch: int
    epoch_seq: int
    seq: int
    hash: str | None
    events: list[_Event]
    taken_at: Moment


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    seq: int
    type: str
    name: str
    at: str
    fence: int
    payload: msgspec.Raw
    hash: str
    instance: _Instance | None = None


class _Format(msgspec.Struct, frozen=True):
    """What is read of a file that a later Holdfast has written."""

    format: int = 0


class _Head(msgspec.Struct, frozen=True):
    instance: _Format | None = None


EXPECTED = "expected what `holdfast instances history INSTANCE -o jsonl` prints"
_line = msgspec.json.Decoder(_Line).decode
_head = msgspec.json.Decoder(_Head).decode


def lines_of(stored: Stored, *, after: int = 0) -> Iterator[bytes]:
    """The rows behind `after`. A part of a history cannot be replayed, so it says nothing of its instance."""
    about = _about(stored) if not after else None
    for row in stored.rows:
        if row.seq > after:
            at = when(row.at).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line = _Line(
                seq=row.seq, type=row.type, name=row.name, at=at, fence=row.fence, payload=_raw(row.payload),
                hash=row.hash.hex(), instance=about,
            )  # fmt: skip
            about = None
            yield msgspec.json.encode(line)


def _about(stored: Stored) -> _Instance:
    events = [
        _Event(id=e.id, kind=e.kind, name=e.name, payload=_raw(e.payload), sent_at=when(e.sent_at), sent_by=e.sent_by)
        for e in stored.events
    ]
    return _Instance(
        format=FORMAT, id=ids.instance_word(stored.id), tenant_id=stored.tenant_id, kind=stored.kind,
        workflow=stored.workflow, version=stored.version, status=stored.status, waiting_on=stored.waiting_on,
        input=_raw(stored.input), fence=stored.fence, attempts=stored.attempts, is_held=stored.is_held,
        woken=stored.woken, created_at=when(stored.created_at), epoch=stored.epoch, epoch_seq=stored.epoch_seq,
        seq=stored.seq, hash=None if stored.hash is None else stored.hash.hex(), events=events,
        taken_at=when(stored.taken_at),
    )  # fmt: skip


def _raw(payload: bytes | None) -> msgspec.Raw:
    """The stored bytes as they are, since a replay compares bytes; on one line, since no JSON text holds a line end."""
    return msgspec.Raw(b"null" if payload is None else payload.replace(b"\n", b" "))


def from_lines(lines: Iterable[bytes], name: str) -> Stored:
    """What a history file says. `name`: how a refusal calls it."""
    about: _Instance | None = None
    rows: list[StoredRow] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if about is None:
            _check_head(line, f"{name}, line {number}")
        try:
            read = _line(line)
            digest, at = bytes.fromhex(read.hash), datetime.fromisoformat(read.at)
        except ValueError as error:
            raise BadInput(f"{name}, line {number} is no history row ({error}): {EXPECTED}") from None
        about = about or read.instance
        assert about is not None
        payload = None if bytes(read.payload) == b"null" else bytes(read.payload)
        rows.append(StoredRow(read.seq, read.type, read.name, read.fence, micros(at), payload, digest))
    if about is None:
        raise BadInput(f"{name} is empty: {EXPECTED}, of an instance that a worker has begun")
    try:
        id_, digest_ = ids.parse("ins", about.id), None if about.hash is None else bytes.fromhex(about.hash)
    except ValueError as error:
        raise BadInput(f"{name}, line 1: {error}: {EXPECTED}") from None
    return Stored(
        tenant_id=about.tenant_id, id=id_, kind=about.kind, workflow=about.workflow, version=about.version,
        status=about.status, waiting_on=about.waiting_on, input=bytes(about.input), fence=about.fence,
        attempts=about.attempts, is_held=about.is_held, woken=about.woken, created_at=micros(about.created_at),
        epoch=about.epoch, epoch_seq=about.epoch_seq, seq=about.seq, hash=digest_, rows=rows,
        events=[
            PendingEvent(e.id, e.kind, e.name, bytes(e.payload), micros(e.sent_at), e.sent_by) for e in about.events
        ],
        taken_at=micros(about.taken_at),
    )  # fmt: skip


def _check_head(line: bytes, place: str) -> None:
    """Refuse a file whose first row does not say what instance it is of, or says it in words of a later Holdfast."""
    try:
        head = _head(line)
    except ValueError as error:
        raise BadInput(f"{place} is no history row ({error}): {EXPECTED}") from None
    if head.instance is None:
        raise BadInput(f"{place} says nothing of its instance: {EXPECTED}, whole and without --after")
    if head.instance.format > FORMAT:
        raise BadInput(f"{place} was written by a later Holdfast: upgrade this one to replay it")
