"""An instance as it is stored, with all that a replay needs to know, and what a replay says of it.

It is read here from the database and by `history_file.py` from a file; `worker/rehearsal.py` replays it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from holdfast.app.views import View
from holdfast.engine import codec, ids
from holdfast.engine.errors import InstanceNotFound
from holdfast.store.port import ALL_NAMES, Claimed, OpenTask, PastRow, PendingEvent

if TYPE_CHECKING:
    from holdfast.app.service import Service

PAGE = 10_000  # rows
COUNT_MAX = 1_000_000
READINGS = 20  # of an instance that moves while it is read
Foretold = Literal["goes_on", "ends", "waits_for_person", "parked", "unknown", "not_replayed"]
BAD: tuple[Foretold, ...] = ("parked", "unknown", "not_replayed")  # a deploy would leave it standing


class Rehearsed(View, frozen=True, kw_only=True):
    """What a worker with the code at hand would do with one instance."""

    id: str
    tenant_id: str
    workflow: str
    version: int
    status: str
    """As it stands now."""
    verdict: Foretold
    """`goes_on`; `ends`; `waits_for_person`: the mode of its effect in doubt was changed, or a chart's handler makes no
    effect any more; `parked`; `unknown`: nobody with this code would claim it; `not_replayed`: nothing can be said."""
    why: str = ""
    """Of one that is parked, what `waiting_on` will say. Of one that goes on or ends, what to look at first."""
    next: str = ""
    """What it does next: which handlers run, what it waits for, as what it ends."""
    after_resume: bool = False
    """It is paused or parked: this is what follows a resume."""


class StoredRow(NamedTuple):
    """A history row with what a history file shows of it."""

    seq: int
    type: str
    name: str
    fence: int
    at: int
    payload: bytes | None  # None: erased
    hash: bytes


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: str
    id: bytes
    kind: str
    workflow: str
    version: int
    status: str
    waiting_on: str | None
    input: bytes
    fence: int
    attempts: int
    is_held: bool  # by a worker's claim
    woken: int
    created_at: int
    epoch: int
    epoch_seq: int
    seq: int
    hash: bytes | None
    rows: list[StoredRow]
    events: list[PendingEvent]
    tasks: list[OpenTask] = []  # of a chart
    taken_at: int
    """When it was read. The replay decides as of this moment."""
    original: list[tuple[Any, ...]] = []
    """Of a fork that has no history yet: the rows of the instance whose past it goes on from."""

    def claimed(self) -> Claimed:
        """What a worker would be given that claims the instance next."""
        first = max(self.epoch_seq, 1)
        past = [
            PastRow(row.seq, row.type, row.name, row.payload, row.hash, row.at)  # type: ignore[arg-type]
            for row in self.rows
            if row.seq >= first
        ]
        # The claim that is held was counted when it was made. Only the death of its worker would make it count twice.
        attempts = self.attempts if self.is_held else self.attempts + 1
        status = self.status if self.status == "compensating" else "running"
        return Claimed(
            self.tenant_id, self.id, self.kind, self.workflow, self.version, status, self.input, None, self.fence + 1,
            attempts, self.woken, None, None, None, self.created_at, None, self.epoch, self.epoch_seq, self.seq,
            self.hash, past, list(self.events),
        )  # fmt: skip


async def tenants(service: Service) -> list[str]:
    """Those that have instances."""
    found: list[str] = []
    while True:
        [(name,)] = await service.store.fetch("next_tenant", after=found[-1] if found else "")
        if name is None:
            return found
        found.append(name)


async def count(service: Service, tenant_id: str, statuses: Iterable[str], key: str | None) -> int:
    """How many there are to replay, counted no further than a million."""
    name = "count_matching" if key is None else "count_matching_of_definition"
    [(found,)] = await service.store.fetch(
        name, tenant_id=tenant_id, statuses=" ".join(statuses), definition_key=key, until=(1 << 63) - 1, since=0,
        limit=COUNT_MAX,
    )  # fmt: skip
    return int(found)


async def read(service: Service, tenant_id: str, id_: bytes, *, whole: bool = False) -> Stored:
    """As of one moment: what moves meanwhile is read again. `whole`: the rows of earlier epochs, too."""
    for _ in range(READINGS):
        found, is_settled = await _read_once(service, tenant_id, id_, whole)
        if is_settled:
            break
    return found  # one that never stands still is taken as it was last seen


async def _read_once(service: Service, tenant_id: str, id_: bytes, whole: bool) -> tuple[Stored, bool]:
    store, where = service.store, {"tenant_id": tenant_id, "instance_id": id_}
    taken_at = store.now()
    there = await store.fetch("read_stored", tenant_id=tenant_id, id=id_)
    if not there:
        raise InstanceNotFound(ids.instance_word(id_), tenant_id)
    (kind, key, version, status, waiting_on, input_, fence, attempts, woken, created_at, epoch, epoch_seq, seq, digest,
     locked_by) = there[0]  # fmt: skip
    rows: list[StoredRow] = []
    last = 0 if whole else max(epoch_seq - 1, 0)
    if whole or kind == "code":  # a chart is not replayed
        async for piece in _pieces(service, where, last):
            rows += piece
        last = rows[-1].seq if rows else last
    events: list[PendingEvent] = []
    if woken and kind == "code":
        _, events = await store.pending_events(tenant_id, id_, names=ALL_NAMES)
    tasks = [OpenTask(*row) for row in await store.fetch("read_stored_tasks", **where)] if kind == "chart" else []
    found = Stored(
        tenant_id=tenant_id, id=id_, kind=kind, workflow=key, version=version, status=status, waiting_on=waiting_on,
        input=bytes(input_), fence=fence, attempts=attempts, is_held=locked_by is not None, woken=woken,
        created_at=created_at, epoch=epoch, epoch_seq=epoch_seq, seq=seq,
        hash=None if digest is None else bytes(digest), rows=rows, events=events, tasks=tasks, taken_at=taken_at,
        original=[] if rows else await _original(service, tenant_id, events),
    )  # fmt: skip
    # A turn that was committed since may have taken an event which the rows read before do not tell of.
    moved = rows and await store.fetch("read_history", **where, after=last, limit=1)
    again = await store.fetch("read_stored", tenant_id=tenant_id, id=id_)
    return found, not moved and list(map(tuple, again)) == list(map(tuple, there))


async def _pieces(service: Service, where: dict[str, Any], after: int) -> Any:
    while True:
        found = await service.store.fetch("read_history", **where, after=after, limit=PAGE)
        yield [
            StoredRow(seq, type_, name, fence, at, None if payload is None else bytes(payload), bytes(digest))
            for seq, type_, name, fence, at, payload, _, digest, _ in found
        ]
        if len(found) < PAGE:
            return
        after = found[-1][0]


async def _original(service: Service, tenant_id: str, events: Iterable[PendingEvent]) -> list[tuple[Any, ...]]:
    fork = next((event for event in events if event.kind == "fork"), None)
    if fork is None:
        return []
    words = codec.decode(fork.payload)
    return await service.store.fetch(
        "read_history", tenant_id=tenant_id, instance_id=ids.parse("ins", words["from"]),
        after=max(words.get("epoch_seq", 0) - 1, 0), limit=1_000_000_000,
    )  # fmt: skip
