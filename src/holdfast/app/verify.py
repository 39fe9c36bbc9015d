"""`verify`: walk every history, check its chain, and name the first row that does not follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec, ids
from holdfast.engine.history import INSTANCE_RESTARTED, INSTANCE_STARTED, first_bad_row
from holdfast.engine.journal import answered_twice

if TYPE_CHECKING:
    from holdfast.app.service import Service

PAGE = 200


class Fault(msgspec.Struct, frozen=True):
    """The first row of one history that does not follow from the row before it."""

    tenant_id: str
    instance_id: str
    seq: int
    fault: str


class Verdict(msgspec.Struct, frozen=True):
    """What `verify` found: how much it read, and the faults."""

    instances: int
    rows: int
    faults: list[Fault]


async def verify(
    service: Service, *, instance: tuple[str, bytes] | None = None, progress: Callable[[int, int], None] | None = None
) -> Verdict:
    store = service.store
    faults: list[Fault] = []
    seen = rows_seen = 0
    [(total,)] = await store.fetch("count_instances")
    at: tuple[str, bytes] = ("", b"")
    while True:
        page = await store.fetch("verify_instances", tenant_id=at[0], id=at[1], limit=PAGE)
        for row in page:
            at = (row[0], bytes(row[1]))
            if instance is not None and at != instance:
                continue
            rows = await store.fetch("read_history", tenant_id=at[0], instance_id=at[1], after=0, limit=1_000_000_000)
            seen, rows_seen = seen + 1, rows_seen + len(rows)
            fault = _check(at, row, rows)
            if fault is not None:
                faults.append(Fault(at[0], ids.instance_word(at[1]), *fault))
        if progress is not None:
            progress(seen, total)
        if len(page) < PAGE:
            return Verdict(seen, rows_seen, faults)


def _check(at: tuple[str, bytes], row: Any, rows: list[tuple[Any, ...]]) -> tuple[int, str] | None:
    bad = first_bad_row(at[0], at[1], rows)
    if bad is not None:
        return bad
    _, _, seq, digest, given, epoch, epoch_seq = row
    if len(rows) < seq:
        return len(rows) + 1, f"the history ends at row {len(rows)}, but the instance had reached row {seq}"
    if seq and rows[seq - 1][7] != digest:
        return seq, "its hash is not the one the instance remembers"
    twice = answered_twice(rows)
    if twice is not None:
        return twice
    # A worker replays from the row that begins the epoch: told of another one, it would do again what was done before.
    began = [r[0] for r in rows[:seq] if r[1] == INSTANCE_RESTARTED]
    if (epoch, epoch_seq) != (len(began), began[-1] if began else 0):
        return began[-1] if began else 1, f"the instance says that epoch {epoch} begins with row {epoch_seq}"
    first = rows[0] if rows else None
    if first is None or first[1] != INSTANCE_STARTED or first[5] is None:
        return None
    if codec.decode(first[5])["input_hash"] != codec.digest(given):
        return 1, "the instance's input is not the one it was started with"
    return None
