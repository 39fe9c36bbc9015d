"""The past of an instance: entry types, and the seal that makes tampering show.

Each row's hash covers the row before it, its own header and a salted hash of its payload. Erasing a payload
erases its salt and keeps the payload's hash, so the chain stays whole and the erased words cannot be guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Protocol

SALT_SIZE = 16
# (tenant_id, instance_id, seq, type, name, fence, at, payload, salt, hash)
HistoryRow = tuple[str, bytes, int, str, str, int, int, bytes, bytes, bytes]

INSTANCE_STARTED = "INSTANCE_STARTED"
INSTANCE_COMPLETED = "INSTANCE_COMPLETED"
INSTANCE_FAILED = "INSTANCE_FAILED"
INSTANCE_CANCELLED = "INSTANCE_CANCELLED"
INSTANCE_FAILING = "INSTANCE_FAILING"
INSTANCE_CANCELLING = "INSTANCE_CANCELLING"
INSTANCE_PARKED = "INSTANCE_PARKED"
INSTANCE_PAUSED = "INSTANCE_PAUSED"
INSTANCE_RESUMED = "INSTANCE_RESUMED"
INSTANCE_RETRIED = "INSTANCE_RETRIED"
INSTANCE_RESTARTED = "INSTANCE_RESTARTED"
INSTANCE_WAITING = "INSTANCE_WAITING"
STEP_STARTED = "STEP_STARTED"
STEP_COMPLETED = "STEP_COMPLETED"
STEP_FAILED = "STEP_FAILED"
STEP_RETRIED = "STEP_RETRIED"
TRANSACTION_COMMITTED = "TRANSACTION_COMMITTED"
TRANSACTION_RETRIED = "TRANSACTION_RETRIED"
TRANSACTION_FAILED = "TRANSACTION_FAILED"
EFFECT_STARTED = "EFFECT_STARTED"
EFFECT_SUCCEEDED = "EFFECT_SUCCEEDED"
EFFECT_FAILED = "EFFECT_FAILED"
EFFECT_RETRIED = "EFFECT_RETRIED"
EFFECT_UNKNOWN = "EFFECT_UNKNOWN"
EFFECT_RESOLVED = "EFFECT_RESOLVED"
TIMER_STARTED = "TIMER_STARTED"
TIMER_FIRED = "TIMER_FIRED"
WAIT_STARTED = "WAIT_STARTED"
WAIT_TIMED_OUT = "WAIT_TIMED_OUT"
SIGNAL_RECEIVED = "SIGNAL_RECEIVED"
CHILD_STARTED = "CHILD_STARTED"
CHILD_COMPLETED = "CHILD_COMPLETED"
CHILD_FAILED = "CHILD_FAILED"
VALUE_RECORDED = "VALUE_RECORDED"
COMPENSATION_STARTED = "COMPENSATION_STARTED"
COMPENSATION_RETRIED = "COMPENSATION_RETRIED"
COMPENSATION_UNKNOWN = "COMPENSATION_UNKNOWN"
COMPENSATION_RESOLVED = "COMPENSATION_RESOLVED"
COMPENSATION_COMPLETED = "COMPENSATION_COMPLETED"
COMPENSATION_FAILED = "COMPENSATION_FAILED"
EVENT_RECEIVED = "EVENT_RECEIVED"
EVENT_IGNORED = "EVENT_IGNORED"
EVENT_DROPPED = "EVENT_DROPPED"
EVENT_SENT = "EVENT_SENT"
EVENT_EMITTED = "EVENT_EMITTED"
STATE_TRANSITION = "STATE_TRANSITION"
LOGGED = "LOGGED"
TASK_CREATED = "TASK_CREATED"
TASK_STARTED = "TASK_STARTED"
TASK_RETRIED = "TASK_RETRIED"
TASK_COMPLETED = "TASK_COMPLETED"
TASK_FAILED = "TASK_FAILED"
TASK_CANCELLED = "TASK_CANCELLED"
TASK_SKIPPED = "TASK_SKIPPED"
TASK_LATE = "TASK_LATE"
TASK_LEFT = "TASK_LEFT"
TIMER_CANCELLED = "TIMER_CANCELLED"
DECISION_RECORDED = "DECISION_RECORDED"
ERROR = "ERROR"
INCIDENT_RAISED = "INCIDENT_RAISED"  # what an ERROR was called; histories of before have it
INSTANCE_MIGRATED = "INSTANCE_MIGRATED"


def genesis(tenant_id: str, instance_id: bytes) -> bytes:
    """What the first row is chained to: the instance's own identity."""
    return sha256(b"holdfast\x1f" + tenant_id.encode() + b"\x1f" + instance_id).digest()


def seal(previous: bytes, seq: int, type_: str, name: str, fence: int, at: int, payload_hash: bytes) -> bytes:
    header = f"{seq}\x1f{type_}\x1f{name}\x1f{fence}\x1f{at}".encode()
    return sha256(previous + payload_hash + header).digest()


def payload_seal(salt: bytes, payload: bytes) -> bytes:
    return sha256(salt + payload).digest()


def seal_rows(
    previous: bytes, seq: int, tenant_id: str, instance_id: bytes, fence: int, at: int,
    entries: Sequence[tuple[str, str, bytes]], salt: Callable[[], bytes],
) -> list[HistoryRow]:  # fmt: skip
    """New entries as rows that follow `previous`, row `seq`. The same rule as `seal`, written out: it runs per step."""
    rows: list[HistoryRow] = []
    for type_, name, payload in entries:
        seq += 1
        salted = salt()
        header = f"{seq}\x1f{type_}\x1f{name}\x1f{fence}\x1f{at}".encode()
        previous = sha256(previous + sha256(salted + payload).digest() + header).digest()
        rows.append((tenant_id, instance_id, seq, type_, name, fence, at, payload, salted, previous))
    return rows


class Sealed(Protocol):
    """A row of a history as it is read."""

    @property
    def seq(self) -> int: ...
    @property
    def hash(self) -> bytes: ...


def hole(rows: Sequence[Sealed], first: int, seq: int, digest: bytes | None) -> str | None:
    """What is missing of a history that is read from row `first` on, in order of seq; None: nothing. Its instance
    remembers that row `seq` had this hash; None: only that there was such a row."""
    if not rows:
        return f"row {first} is missing" if seq else None
    last = rows[-1].seq
    if rows[0].seq != first or last - first + 1 != len(rows):
        expected = next(first + n for n, row in enumerate(rows) if row.seq != first + n)
        return f"row {expected} is missing"
    if last < seq:
        return f"it ends with row {last}, but had reached row {seq}"
    if digest is not None and seq >= first and rows[seq - first].hash != digest:
        return f"row {seq} is not the one that the instance remembers"
    return None


def first_bad_row(tenant_id: str, instance_id: bytes, rows: Iterable[tuple[object, ...]]) -> tuple[int, str] | None:
    """The sequence number and the fault of the first row that does not follow from the one before it.

    `rows` are (seq, type, name, fence, at, payload, salt, hash, payload_hash) in order of seq.
    """
    previous = genesis(tenant_id, instance_id)
    expected = 1
    fence_before = 0
    for seq, type_, name, fence, at, payload, salt, digest, kept in rows:
        assert isinstance(seq, int) and isinstance(fence, int) and isinstance(at, int)
        if seq != expected:
            return expected, f"row {expected} is missing (the next one found is {seq})"
        if payload is None:
            if not isinstance(kept, bytes):
                return seq, "its payload is gone and no hash was kept in its place"
            if salt is not None:
                return seq, "its payload is gone and its salt is not: what was erased could be guessed"
            payload_hash = kept
        else:
            assert isinstance(payload, bytes)
            if not isinstance(salt, bytes):
                return seq, "its salt is gone although its payload is there"
            if len(salt) != SALT_SIZE:  # a byte moved from the payload to its salt leaves their hash as it was
                return seq, f"its salt has {len(salt)} bytes, not {SALT_SIZE}"
            payload_hash = payload_seal(salt, payload)
            if kept is not None and kept != payload_hash:
                return seq, "the hash kept for its payload is not the hash of its payload"
        if seal(previous, seq, str(type_), str(name), fence, at, payload_hash) != digest:
            return seq, "its content or the hash before it does not match its hash"
        if fence < fence_before:
            return seq, f"it was written under fence {fence}, lower than {fence_before} before it"
        assert isinstance(digest, bytes)
        previous, expected, fence_before = digest, seq + 1, fence
    return None
