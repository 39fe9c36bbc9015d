"""What the rest of the house may ask of a store, whichever database is behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.engine.history import hole
from holdfast.engine.journal import LOST
from holdfast.engine.stacks import spelled
from holdfast.engine.turns import NewInstance, Outcome, Turn


class PastRow(NamedTuple):
    """A history row as replay reads it."""

    seq: int
    type: str
    name: str
    payload: bytes
    hash: bytes
    at: int


class PendingEvent(NamedTuple):
    id: str
    kind: str
    name: str
    payload: bytes
    sent_at: int
    sent_by: str | None = None


class OpenTask(NamedTuple):
    """A task of a claimed chart that is not settled."""

    id: bytes
    key: str
    type: str
    name: str
    status: str
    run_at: int | None
    attempts: int
    max_attempts: int
    input: bytes
    options: bytes
    invoke_id: str | None
    visit: int
    standing_type: str | None
    standing: bytes | None
    created_at: int


Row = tuple[Any, ...]
SIGNALS_READ = 100  # of one name, at a time
NAMES_READ = 20  # of signals to an instance of code, at a time: more are rare, and read when they are waited for
ALL_NAMES = (1 << 31) - 1  # of signals to any other kind of instance, which takes them in the order of sending
Place = tuple[str, str, int]
"""What a worker can run: (tenant, key, version), the tenant "" for code, which serves every tenant."""


class Head(NamedTuple):
    """Where a claim left an instance: its tenant, the claim's fence, and the last row of its history."""

    tenant_id: str
    fence: int
    seq: int
    hash: bytes

    def goes_on(self, row: Row) -> bool:
        """Whether this claim is the very next one, so that nobody can have written in between."""
        return bool(row[0] == self.tenant_id and row[8] == self.fence + 1 and row[9] == 1)


class Claimed(NamedTuple):
    """An instance this worker may move, with everything a turn needs to know."""

    tenant_id: str
    id: bytes
    kind: str
    definition_key: str
    definition_version: int
    status: str
    input: bytes
    snapshot: bytes | None
    fence: int
    attempts: int
    woken: int
    parent_id: bytes | None
    parent_step: str | None
    trace_id: str | None
    created_at: int
    created_by: str | None
    epoch: int
    epoch_seq: int
    seq: int  # of the history, when the instance itself last changed
    hash: bytes | None  # of that row; eight bytes: since when that row and those before it are known to be lost
    history: list[PastRow]  # of code its epoch, of a chart the last row
    events: list[PendingEvent]  # of signals the first of each name, everything else whole
    tasks: Sequence[OpenTask] = ()
    due_at: int | None = None  # since when it could have been claimed; None: from birth on, or not known
    kept: bool = False  # its body is in memory, and stands where the history ends: that last row is all that was read


def claimed(
    row: Row, past: list[PastRow], events: list[PendingEvent], tasks: list[OpenTask], due_at: int | None = None,
    kept: bool = False,
) -> Claimed:  # fmt: skip
    """A claim's own columns, in the order of the fields of `Claimed`, with what was read beside them."""
    return Claimed(*(*row, past, events, tasks, due_at, kept))


GOES_ON = ("resume", "retry", "cancel")
"""Kinds of events by which a person has an instance go on that has lost the end of its history."""
BY_PARENT = "cancel:"
"""So begin ids of cancels that a parent sends."""


def missing(one: Claimed) -> str | None:
    """What is missing of the history that came with a claim, in words; None: nothing."""
    if one.kept or one.fence == 1:  # compared already, or not read
        return None
    since = lost_since(one)
    if since is not None and _lost_its_end_only(one):
        if any(_says_go_on(event, since) for event in one.events):
            return None
        return lost_words(one.seq)
    return hole(one.history, _first(one), one.seq, None if since is not None else one.hash)


def _first(one: Claimed) -> int:
    return max(one.epoch_seq, 1) if one.kind == "code" or not one.history else one.history[0].seq


def since_bytes(moment: int) -> bytes:
    return moment.to_bytes(8, "big")


def lost_since(one: Claimed) -> int | None:
    """When a worker saw the end of the history disappear, and wrote down how far it had come; None: nobody did."""
    return int.from_bytes(one.hash, "big") if one.hash is not None and len(one.hash) == 8 else None


def _lost_its_end_only(one: Claimed) -> bool:
    first, last = _first(one), one.history[-1].seq if one.history else 0
    return first - 1 <= last < one.seq and hole(one.history, first, last, None) is None


def _says_go_on(event: PendingEvent, since: int) -> bool:
    """By a person who may know of it: not a word from before, which came back with the earlier state, and not a parent
    that has its children end."""
    return event.kind in GOES_ON and event.sent_at >= since and not event.id.startswith(BY_PARENT)


def lost_words(seq: int) -> str:
    return f"row {seq} {LOST}"


def claimed_at_birth(born: NewInstance) -> Claimed:
    """The claim that came with the start itself: the first of its instance, and nothing has happened to it yet."""
    return Claimed(
        born.tenant_id, born.id, born.kind, born.definition_key, born.definition_version, "running", born.input, None,
        1, 1, 0, born.parent_id, born.parent_step, born.trace_id, born.created_at,
        born.created_by, 0, 0, 0, None, [], [],
    )  # fmt: skip


def of_tenant(tenant_id: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a statement that is run for this tenant, and for no other."""
    if values.get("tenant_id", tenant_id) != tenant_id:
        raise AssertionError(f"a change of tenant {tenant_id!r} names tenant {values['tenant_id']!r}")
    return values | {"tenant_id": tenant_id}


class HandlerRaised(Exception):
    """An author's transaction handler raised: everything it wrote is rolled back, and that is known."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__(type(error).__name__)  # its text may raise


class NotBegun(Exception):
    """A transaction step could not begin: no connection, or no lock in time. Its handler was not called."""


def without_values(error: BaseException) -> str:
    """An error of the database, for logs and histories: without the row that it is about, which PostgreSQL puts into
    its details, and, where a value itself was refused, without the words that quote it."""
    name, state = type(error).__name__, getattr(error, "sqlstate", None)
    if state is None:
        return name if isinstance(error, (ValueError, TypeError, OverflowError)) else spelled(error)
    return f"{name} ({state})" if state[:2] == "22" else f"{name} ({state}): {error.args[0]}"


class Store(Protocol):
    url: str
    dialect: str
    clock: Callable[[], int] | None
    sessions: int  # how often a connection was made: behind a new one may be another server
    writers: int  # how many batches may be on their way at once
    batch_limit: int  # how many turns one of them may hold

    async def open(self, *, migrate: bool) -> None: ...
    async def close(self) -> None: ...
    async def warm_up(self) -> None: ...
    def now(self) -> int: ...
    async def look_at_clock(self) -> None: ...
    async def commit(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome]: ...
    async def look_up(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome | None]: ...
    async def rows_there(self, rows: Sequence[Row]) -> set[bytes]: ...
    async def commit_alone(
        self, worker_id: bytes, work: Callable[[Any], Any], turn: Callable[[Any], Turn], timeout: float
    ) -> Outcome: ...
    async def claim(
        self, worker_id: bytes, definitions: Sequence[Place], queue: str, limit: int, *, alone: bool,
        kept: Mapping[bytes, Head] = ...,
    ) -> tuple[list[Claimed], int | None]: ...  # fmt: skip
    async def next_due(self, definitions: Sequence[Place], queue: str) -> int | None: ...
    async def pending_events(
        self, tenant_id: str, instance_id: bytes, *, names: int = NAMES_READ, skip: Sequence[str] = (),
        only: Sequence[str] | None = None,
    ) -> tuple[int, list[PendingEvent]]: ...  # fmt: skip
    async def fetch(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]: ...
    async def write(self, name: str, /, **values: Any) -> int: ...
    async def change(
        self, tenant_id: str, statements: Sequence[tuple[str, dict[str, Any]]], *, guards: int = 1
    ) -> bool: ...
    async def fetch_key(self, hash: bytes) -> list[tuple[Any, ...]]: ...
    async def worker_gone(self, worker_id: bytes) -> bool: ...
    async def release_worker(self, worker_id: bytes, by: bytes, *, stopped: bool, gone: bool = True) -> int: ...
    def hint(self, turn: Turn) -> None: ...
    def blames_the_data(self, error: BaseException) -> bool: ...
    def passes(self, error: BaseException) -> bool: ...
    def is_away(self, error: BaseException) -> bool: ...
