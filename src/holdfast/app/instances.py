"""Instances as their users see them: start one, send it a fact, read how it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from uuid_utils import uuid7

from holdfast.app.views import View
from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.differences import differences
from holdfast.engine.errors import (
    BadInput,
    BusinessKeyTaken,
    EventInLine,
    EventNotTaken,
    EventNotTakenYet,
    InstanceEnded,
    InstanceFailed,
    InstanceNotFound,
    ResultNotReady,
    VersionMoved,
)
from holdfast.engine.journal import is_paused
from holdfast.engine.moments import Moment, micros, moment, when
from holdfast.engine.retry import storable
from holdfast.engine.stacks import recorded_text, summary
from holdfast.engine.turns import NewEvent, NewInstance, Outcome, Turn

if TYPE_CHECKING:
    from holdfast.app.registry import Definition
    from holdfast.app.service import Service

ENDED = ("completed", "failed", "cancelled")
LIVE = ("pending", "running", "waiting", "compensating")
Edge = tuple[int, bytes]
"""Where a page ends: when its last instance was created, and its id."""
FAR_AHEAD: Edge = ((1 << 63) - 1, b"\xff" * 16)
PAGE_MAX = 1000
ANY_SIZE = (1 << 31) - 1
ANSWERS = (h.STEP_COMPLETED, h.TRANSACTION_COMMITTED, h.EFFECT_SUCCEEDED, h.CHILD_COMPLETED)
UNREADABLE = "unreadable"
PAGE_BYTES = 4 << 20
INDEXED_BYTES = 2400  # of a business key and its definition's key together: they are an entry of an index


class InstanceView(View, frozen=True, kw_only=True):
    """An instance as it stands now."""

    id: str
    tenant_id: str
    kind: str
    workflow: str
    version: int
    status: str
    waiting_on: str | None
    business_key: str | None
    queue: str
    input: Any
    result: Any
    error: Any
    compensation: str | None
    parent_id: str | None
    created_at: Moment
    started_at: Moment | None
    completed_at: Moment | None
    run_at: Moment | None
    state: str | None = None
    """Where an instance of a chart stands, for people: `review, ledger.posting`."""
    current_step: str | None = None
    """Of a code workflow: the call that its newest history entries tell of, open or done last."""
    updated_at: Moment
    """When the newest entry of its history was written; before the first, when it was created."""
    steps: dict[str, Any] = msgspec.field(default_factory=dict)
    """Results of finished steps by name; filled by `status()`, not by lists."""
    moved: int = 0
    """Counts every entry of its history and every event delivered to it; filled by `status()`, not by lists."""
    trace_id: str | None = None
    created_by: str | None = None
    epoch: int = 0
    """How often it has restarted: `ctx.restart(…)`."""
    left_out: list[str] = msgspec.field(default_factory=list)
    """In lists: which values are too large to be shown there."""


class HistoryEntry(View, frozen=True, kw_only=True):
    """One row of an instance's past."""

    seq: int
    type: str
    name: str
    at: Moment
    fence: int
    payload: Any
    hash: str


def new_instance(
    definition: Definition, raw: bytes, *, tenant_id: str, now: int, business_key: str | None, run_at: int | None,
    trace_id: str | None, id_: bytes | None = None, created_by: str | None = None,
) -> NewInstance:  # fmt: skip
    for what, word in (("business_key", business_key), ("trace_id", trace_id)):
        if word is not None and (not isinstance(word, str) or not 1 <= len(word) <= 500 or storable(word) != word):
            raise BadInput(
                f"{what} is {word!r}: expected a text of 1 to 500 characters, none of them NUL or half a pair"
            )
    indexed = len((definition.key + (business_key or "")).encode())
    if indexed > INDEXED_BYTES:
        raise BadInput(
            f"business_key and {definition.key[:50]!r} have {indexed:,} bytes together in UTF-8, the limit is "
            f"{INDEXED_BYTES:,}: shorten one of them"
        )
    return NewInstance(
        ids.check_tenant(tenant_id), id_ or uuid7().bytes, definition.kind, definition.key, definition.version,
        business_key, definition.queue, 0, now if run_at is None else max(now, run_at), raw, None, None, trace_id, now,
        created_by=created_by,
    )  # fmt: skip


async def start(service: Service, born: Sequence[NewInstance]) -> list[bytes]:
    """The id of each started instance, or of the one that already has its business key and input."""
    outcomes = await service.start(born)
    if Outcome.MOVED not in outcomes:  # as a rule
        return [one.id for one in born]
    return [await found(service, one, outcome) for one, outcome in zip(born, outcomes, strict=True)]


async def found(service: Service, born: NewInstance, outcome: Outcome) -> bytes:
    """The id of what was started, or of the one that was there before."""
    return await existing(service, born) if outcome is Outcome.MOVED else born.id


async def existing(service: Service, born: NewInstance) -> bytes:
    # A separate statement: the one that lost against the other transaction cannot see its row.
    if await service.store.fetch("read_ending", tenant_id=born.tenant_id, id=born.id):
        return born.id  # started before, by the same request
    rows = await service.store.fetch(
        "find_business_key", tenant_id=born.tenant_id, definition_key=born.definition_key,
        business_key=born.business_key,
    )  # fmt: skip
    assert rows, "a start was refused though no other instance has its key"
    [(id_, input_, _)] = rows
    there, given = codec.decode(input_), codec.decode(born.input)
    if there != given:
        assert born.business_key is not None
        raise BusinessKeyTaken(born.business_key, ids.instance_word(id_), differences(there, given))
    return bytes(id_)


async def send(
    service: Service, tenant_id: str, id_: bytes, kind: str, name: str, payload: bytes, event_id: str, asked: str,
    *, moved: int | None = None, sent_by: str | None = None,
) -> bool:  # fmt: skip
    """Commit a fact for an instance and wake it. False if this very event was there already.

    `moved`: only if nothing has happened to it since it was read."""
    await service.store.look_at_clock()
    sent_at = service.sent_at()
    event = NewEvent(tenant_id, id_, event_id, kind, name, payload, sent_at, sent_by=sent_by)
    there = await (put(service, event, asked) if moved is None else put_unless_moved(service, event, asked, moved))
    if there is not None and (there[:2] != (kind, name) or there[2] != codec.decode(payload)):
        raise BadInput(
            f"event id {event_id!r} was already used for another {there[0]} ({there[1]!r}): ids name one event"
        )
    return there is None


async def snapshot(service: Service, tenant_id: str, id_: bytes) -> dict[str, Any] | None:
    rows = await service.store.fetch("read_snapshot", tenant_id=tenant_id, id=id_)
    if not rows:
        raise InstanceNotFound(ids.instance_word(id_), tenant_id)
    return None if rows[0][0] is None else codec.decode(rows[0][0])


async def taken(service: Service, tenant_id: str, id_: bytes, name: str, event_id: str, timeout: float) -> None:
    """Wait until the instance's turn has taken the event; raise if no state of it did."""
    row = await taken_by(service, tenant_id, id_, name, event_id, timeout, signal=True)
    if row[1] in (h.EVENT_IGNORED, h.EVENT_DROPPED):
        [found] = await service.store.fetch("read_instance", tenant_id=tenant_id, id=id_)
        raise EventNotTaken(name, found[16] or "")


async def taken_by(
    service: Service, tenant_id: str, id_: bytes, name: str, event_id: str, timeout: float, *, signal: bool = False
) -> Any:
    """The history row that took the event, as soon as there is one. Nothing is taken during a pause, and no
    signal during an incident."""
    loop = asyncio.get_running_loop()
    deadline, pause, ended = loop.time() + timeout, 0.002, ""
    while True:
        rows = await service.store.fetch("read_event", tenant_id=tenant_id, instance_id=id_, id=event_id)
        seq = rows[0][4] if rows else None
        if seq is not None:
            break
        if ended:
            raise InstanceEnded(ids.instance_word(id_), ended, f"take {name!r}")
        [(status, _, _, waiting_on, _)] = await service.store.fetch("read_ending", tenant_id=tenant_id, id=id_)
        if is_paused(waiting_on) and not await _lifted(service, "count_unpausing_events", tenant_id, id_):
            raise EventInLine(event_id, waiting_on, paused=True)
        stands = await snapshot(service, tenant_id, id_) if signal and status not in ENDED else None
        incident = stands.get("incident") if stands is not None else None
        if incident and not await _lifted(service, "count_lifting_events", tenant_id, id_):
            raise EventInLine(event_id, incident["message"])
        if status in ENDED:  # perhaps by this very event, since we looked: look once more
            ended = status
            continue
        if loop.time() > deadline:
            raise EventNotTakenYet(event_id, timeout)
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.25)
    [row] = await service.store.fetch("read_history", tenant_id=tenant_id, instance_id=id_, after=seq - 1, limit=1)
    return row


async def _lifted(service: Service, words: str, tenant_id: str, id_: bytes) -> bool:
    """Whether a word that ends the standstill is in line: then the event's turn comes, and its sender waits for it."""
    [(count,)] = await service.store.fetch(words, tenant_id=tenant_id, instance_id=id_)
    return bool(count)


async def put(service: Service, event: NewEvent, asked: str) -> tuple[str, str, Any] | None:
    """Commit an event, or say what stands under its id already: kind, name and payload. The id is the guard."""
    tenant_id, id_ = event.tenant_id, event.instance_id
    if await service.commit(Turn(tenant_id, id_, events=[event])) is Outcome.COMMITTED:
        return None
    found = await service.store.fetch("read_event", tenant_id=tenant_id, instance_id=id_, id=event.id)
    if found:
        kind, name, payload, _, _ = found[0]
        return kind, name, codec.decode(payload)
    view = await read(service, tenant_id, id_, steps=False)
    raise InstanceEnded(view.id, view.status, asked)


async def put_unless_moved(service: Service, event: NewEvent, asked: str, moved: int) -> tuple[str, str, Any] | None:
    """`put`, only if the instance stands as the caller saw it. Of several who saw the same, one gets it."""
    tenant_id, id_ = event.tenant_id, event.instance_id
    where = {"tenant_id": tenant_id, "instance_id": id_}
    found = await service.store.fetch("read_event", **where, id=event.id)
    if not found:
        wake = {**where, "now": service.store.now(), "moved": moved, "sent_at": event.sent_at}
        row: dict[str, Any] = {
            **where, "id": event.id, "kind": event.kind, "name": event.name, "payload": event.payload,
            "sent_by": event.sent_by,
        }  # fmt: skip
        if await service.change(tenant_id, [("wake_unless_moved", wake), ("add_event", row)]):
            service.stirred(Turn(tenant_id, id_, events=[event]))
            return None
        found = await service.store.fetch("read_event", **where, id=event.id)
    if found:
        kind, name, payload, _, _ = found[0]
        return kind, name, codec.decode(payload)
    view = await read(service, tenant_id, id_, steps=False)
    if view.status in ENDED:
        raise InstanceEnded(view.id, view.status, asked)
    raise VersionMoved(f"instance {view.id}", str(moved), str(view.moved))


async def read(service: Service, tenant_id: str, id_: bytes, *, steps: bool = True) -> InstanceView:
    rows = await service.store.fetch("read_instance", tenant_id=tenant_id, id=id_)
    if not rows:
        raise InstanceNotFound(ids.instance_word(id_), tenant_id)
    done = _results(await history(service, tenant_id, id_)) if steps else {}
    return _view(tenant_id, rows[0], done)


def _results(entries: Sequence[HistoryEntry]) -> dict[str, Any]:
    return {
        entry.name: entry.payload.get("result")
        for entry in entries
        if entry.type in ANSWERS and isinstance(entry.payload, dict) and UNREADABLE not in entry.payload
    }


async def step_results(service: Service, tenant_id: str, id_: bytes, limit: int) -> dict[str, Any]:
    """The results of its newest steps, by name."""
    return _results((await history_page(service, tenant_id, id_, types=ANSWERS, limit=limit)).entries)


def _view(tenant_id: str, row: Sequence[Any], steps: dict[str, Any]) -> InstanceView:
    (id_, kind, key, version, business_key, status, waiting_on, queue, _, input_, result, error, compensation,
     parent, _, _, state, created_at, started_at, completed_at, run_at, _, woken, trace_id, created_by,
     epoch, head, updated_at, step) = row  # fmt: skip
    return InstanceView(
        id=ids.instance_word(id_), tenant_id=tenant_id, kind=kind, workflow=key, version=version, status=status,
        waiting_on=waiting_on, business_key=business_key, queue=queue,
        input=_readable(input_), result=_readable(result), error=_readable(error),
        compensation=compensation, parent_id=None if parent is None else ids.instance_word(parent),
        created_at=when(created_at), started_at=moment(started_at), completed_at=moment(completed_at),
        run_at=moment(run_at), state=state, current_step=step if kind == "code" else None,
        updated_at=when(created_at if updated_at is None else updated_at), steps=steps,
        moved=woken + head if isinstance(head, int) else 0,
        left_out=head.split() if isinstance(head, str) else [], trace_id=trace_id, created_by=created_by,
        epoch=epoch,
    )  # fmt: skip


async def list_instances(
    service: Service, tenant_id: str, *, status: str | Sequence[str] | None = None, key: str | None = None,
    business_key: str | None = None, limit: int = 50, before: Edge = FAR_AHEAD, since: int = 0, most: int = ANY_SIZE,
) -> list[InstanceView]:  # fmt: skip
    """A page, newest first. Every filter, and every set of them, is answered by an index.

    `most`: values of more bytes are left out."""
    statuses = LIVE + ENDED if status is None else (status,) if isinstance(status, str) else tuple(status)
    for one in statuses:
        if one not in LIVE + ENDED:
            raise BadInput(f"status is {one!r}: expected one of {', '.join(LIVE + ENDED)}")
    if not 1 <= limit <= PAGE_MAX:
        raise BadInput(f"limit is {limit}: expected 1 to {PAGE_MAX}")
    for what, word in (("key", key), ("business_key", business_key)):
        if word is not None and storable(word) != word:
            raise BadInput(f"{what} is {word!r}: no stored text holds NUL or half a surrogate pair")
    name = "list_instances" if key is None else "list_instances_of_definition"
    if business_key is not None:
        name = "list_instances_of_business_key"
    rows = await service.store.fetch(
        name, tenant_id=tenant_id, statuses=" ".join(statuses), definition_key=key, business_key=business_key,
        before_at=before[0], before=before[1], since=since, limit=limit, most=most,
    )  # fmt: skip
    return [_view(tenant_id, row, {}) for row in rows]


async def edge_of(service: Service, tenant_id: str, instance: str) -> Edge:
    """Where the page ends whose last instance has this id."""
    id_ = ids.parse("ins", instance)
    return micros((await read(service, tenant_id, id_, steps=False)).created_at), id_


async def list_children(
    service: Service, tenant_id: str, id_: bytes, *, limit: int = 50, before: Edge = FAR_AHEAD, most: int = ANY_SIZE
) -> list[InstanceView]:
    """The instances that this one started, newest first."""
    if not 1 <= limit <= PAGE_MAX:
        raise BadInput(f"limit is {limit}: expected 1 to {PAGE_MAX}")
    rows = await service.store.fetch(
        "list_children", tenant_id=tenant_id, parent_id=id_, before_at=before[0], before=before[1], since=0,
        limit=limit, most=most,
    )  # fmt: skip
    return [_view(tenant_id, row, {}) for row in rows]


async def history(
    service: Service, tenant_id: str, id_: bytes, *, after: int = 0, limit: int = 100_000
) -> list[HistoryEntry]:
    rows = await service.store.fetch(
        "read_history", tenant_id=tenant_id, instance_id=id_, after=after, limit=limit
    )  # fmt: skip
    if not rows:
        await exists(service, tenant_id, id_)
    return [_entry(row) for row in rows]


class HistoryPage(NamedTuple):
    """Entries in their order, and whether there are more in the direction they were read in."""

    entries: list[HistoryEntry]
    more: bool


async def history_page(
    service: Service, tenant_id: str, id_: bytes, *, after: int | None = None, before: int | None = None,
    types: Sequence[str] = (), limit: int, most: int = PAGE_BYTES,
) -> HistoryPage:  # fmt: skip
    """A page from either end: `after` goes forward from there, else back from `before` or from the end; entries of
    these types only, if any are named. It ends where its payloads come to more than `most` bytes."""
    name = "history_forward" if after is not None else "history_back"
    values = {
        "tenant_id": tenant_id, "instance_id": id_, "limit": limit + 1, "most": most,
        "types": f" {' '.join(types)} " if types else None, "after": after,
        "before": before if before is not None else 1 << 62,
    }  # fmt: skip
    rows = await service.store.fetch(name, **values)
    if not rows:
        await exists(service, tenant_id, id_)
    more = len(rows) > limit
    rows = rows[:limit]
    if not more and sum(len(row[5] or b"") for row in rows) > most:  # cut short by its size, or just full
        edge = {"after": rows[-1][0], "before": rows[-1][0], "limit": 1, "most": 0}
        more = bool(await service.store.fetch(name, **values | edge))
    entries = [_entry(row) for row in rows]
    return HistoryPage(entries if after is not None else entries[::-1], more)


async def exists(service: Service, tenant_id: str, id_: bytes) -> None:
    if not await service.store.fetch("read_ending", tenant_id=tenant_id, id=id_):
        raise InstanceNotFound(ids.instance_word(id_), tenant_id)


def _entry(row: Sequence[Any]) -> HistoryEntry:
    seq, type_, name, fence, at, payload, _, digest, _ = row
    return HistoryEntry(
        seq=seq, type=type_, name=name, at=when(at), fence=fence, hash=digest.hex(),
        payload=_readable(payload),
    )  # fmt: skip


def _readable(raw: bytes | None) -> Any:
    """Of what was tampered with, what stands there: everything else is read all the same."""
    if raw is None:
        return None
    try:
        return codec.decode(raw)
    except msgspec.DecodeError:
        return {UNREADABLE: raw.decode(errors="backslashreplace")}


async def result(service: Service, tenant_id: str, id_: bytes, timeout: float | None) -> Any:
    """Wait for the end. A worker's word or a hint makes it quick; polling makes it sure."""
    __tracebackhide__ = True  # pytest then shows the author's lines, not ours
    loop = asyncio.get_running_loop()
    began = loop.time()
    deadline = None if timeout is None else began + timeout
    pause = 0.02
    raised: BaseException | None = None
    told = service.runs_here(tenant_id, id_)  # then its worker's word comes first, as a rule: no need to look before
    while True:
        with service.waiters.waiting(id_) as ended:
            left = None if deadline is None else deadline - loop.time()
            if not told or (left is not None and left <= 0):
                rows = await service.store.fetch("read_ending", tenant_id=tenant_id, id=id_)
                if not rows:
                    raise InstanceNotFound(ids.instance_word(id_), tenant_id)
                status, raw, error, waiting_on, completed_at = rows[0]
                if completed_at is not None:
                    break
                if left is not None and left <= 0:
                    raise ResultNotReady(ids.instance_word(id_), status, waiting_on)
                if left is None and (advice := service.waiters.in_vain(began)):
                    raise ResultNotReady(ids.instance_word(id_), status, waiting_on, advice)
            ending = await service.waiters.wait(ended, pause if left is None else min(pause, left))
            if ending is not None and ending[0].tenant_id == tenant_id:
                change, raised = ending
                status, raw, error = change.status, change.result, change.last_error
                break
        told = False
        pause = min(pause * 1.5, 1.0)
    if status == "completed":
        assert raw is not None
        return codec.decode(raw)
    words = codec.decode(error) if error else None
    raised = raised or service.waiters.raised.get(id_)
    failed = InstanceFailed(ids.instance_word(id_), status, words, summary(words))
    trace = recorded_text(words) if raised is None else ""
    if trace:
        failed.add_note(trace)
    raise failed from raised
