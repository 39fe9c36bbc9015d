"""What every use case needs: the store, the doors' committer, the registry, and who waits for whose end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from traceback import clear_frames
from typing import Any, Protocol

from holdfast.app import idempotency
from holdfast.app.api_keys import Callers
from holdfast.app.definitions import Charts
from holdfast.app.registry import Registry
from holdfast.app.tenants import Policies
from holdfast.engine.errors import Backlogged, HoldfastError
from holdfast.engine.stacks import linked
from holdfast.engine.turns import Change, NewInstance, Outcome, Turn
from holdfast.store.committer import Committer, Watch
from holdfast.store.port import Store

BACKLOG_SECONDS = 0.5
RAISED_KEPT = 16
IN_TRANSACTION: ContextVar[bool] = ContextVar("holdfast_in_transaction", default=False)


class WorkerHere(Protocol):
    """What the doors ask of a worker in their own process."""

    id: bytes

    def has_room_for(self, born: NewInstance) -> bool: ...
    def expect(self, born: NewInstance) -> None: ...
    def born(self, born: NewInstance, outcome: Outcome | BaseException) -> None: ...
    def runs(self, tenant_id: str, id_: bytes) -> bool: ...
    def short_of_threads(self, id_: bytes) -> str: ...
    def load(self) -> tuple[int, int, int]: ...
    def busy(self) -> bool: ...
    def more_work(self) -> None: ...
    def event_for(self, instance_id: bytes) -> None: ...
    def down(self) -> list[str]: ...


Ending = tuple[Change, BaseException | None]
"""The change that ended an instance, and what it died of."""


class Waiters:
    """Callers in this process that wait for an instance to end. They are told how, if it ended here."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[asyncio.Future[Ending | None]]] = {}
        self.raised: dict[bytes, BaseException] = {}
        """What instances died of that ended here, the newest few of them: a caller may ask a moment after the end."""
        self.keep_raised = RAISED_KEPT
        self.keep_locals = False  # of their tracebacks: in a test people look at them, elsewhere they would fill memory
        self.in_vain: Callable[[float], str] = lambda _began: ""
        """Why a wait that began then will never end, and what to do about that; empty while it may end."""

    @contextmanager
    def waiting(self, id_: bytes) -> Iterator[asyncio.Future[Ending | None]]:
        future: asyncio.Future[Ending | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id_, []).append(future)
        try:
            yield future
        finally:
            queue = self._waiting.get(id_, [])
            if future in queue:
                queue.remove(future)
            if not queue:
                self._waiting.pop(id_, None)

    async def wait(self, future: asyncio.Future[Ending | None], seconds: float) -> Ending | None:
        """What ended it; None when the time is up or it ended elsewhere: then look."""
        handle = asyncio.get_running_loop().call_later(seconds, _finish, future)
        try:
            return await future
        finally:
            handle.cancel()

    def ended(self, id_: bytes, change: Change | None = None, raised: BaseException | None = None) -> None:
        if raised is not None:
            if not self.keep_locals:
                for one in linked(raised):
                    clear_frames(one.__traceback__)
            self.raised[id_] = raised
            if len(self.raised) > self.keep_raised:
                del self.raised[next(iter(self.raised))]
        for future in self._waiting.get(id_, ()):
            _finish(future, None if change is None else (change, raised))


def _finish(future: asyncio.Future[Ending | None], ending: Ending | None = None) -> None:
    if not future.done():
        future.set_result(ending)


class Service:
    def __init__(
        self, store: Store, registry: Registry, payload_limit: int, backlog_limit: int | None = None,
        watch: Watch | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.registry = registry
        self.payload_limit = payload_limit
        self.backlog_limit = backlog_limit
        self._backlog: dict[str, tuple[float, int]] = {}
        self.summarized_at = 0  # when the feed last brought the index of the newest history up to date
        self.committer = Committer(store, watch=watch)
        self.charts = Charts(store, registry)
        self.policies = Policies(store)
        self.waiters = Waiters()
        self.callers = Callers(self)
        self._sent_at = 0
        self.workers: list[WorkerHere] = []
        self.closed = False

    async def commit(self, turn: Turn) -> Outcome:
        self._check_open()
        return await self.committer.commit(turn, lambda _: self.stirred(turn))

    async def change(self, tenant_id: str, statements: Sequence[tuple[str, dict[str, Any]]]) -> bool:
        """Several statements in one transaction; False, and nothing changed, if the first finds nothing to change."""
        refuse_in_transaction()
        request = idempotency.current()
        if request is None:
            return await self.store.change(tenant_id, statements)
        first, *rest = statements
        mark = request.mark(self.store.now())
        return await self.store.change(tenant_id, [first, mark, *rest], guards=2)

    async def start(self, born: Sequence[NewInstance]) -> list[Outcome]:
        """Commit starts, each with an outcome of its own.

        A worker here that has nothing better to do gets the claim in the same commit."""
        self._check_open()
        if not born:
            return []
        all_told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcomes: list[Outcome | BaseException] = [Outcome.MOVED] * len(born)
        left = len(born)

        def told(number: int, turn: Turn, claimant: WorkerHere | None, outcome: Outcome | BaseException) -> None:
            """Also when the caller has gone: the worker must hear of its claim."""
            nonlocal left
            try:
                if claimant is not None:
                    claimant.born(turn.starts[0], outcome)
                if outcome is not Outcome.CLAIMED:
                    self.stirred(turn)
            finally:
                outcomes[number] = outcome
                left -= 1
                if left == 0 and not all_told.done():
                    all_told.set_result(None)

        for number, one in enumerate(born):
            claimant = next((worker for worker in self.workers if worker.has_room_for(one)), None)
            if claimant is not None:
                one = one._replace(claimed_by=claimant.id)
                claimant.expect(one)
            turn = Turn(one.tenant_id, one.id, starts=[one])
            self.committer.submit(turn, partial(told, number, turn, claimant))
        await all_told
        return [_known(outcome) for outcome in outcomes]

    def _check_open(self) -> None:
        refuse_in_transaction()
        if self.closed:  # nobody commits any more: who asks would wait for ever
            raise HoldfastError("the store was closed: take this anew from the Holdfast that is open now")

    def sent_at(self) -> int:
        """When an event is sent: now, or right after the one that was sent last, at whichever moment. A commit that is
        repeated knows its own event by id and moment, so no two have the same."""
        self._sent_at = max(self.store.now(), self._sent_at + 1)
        return self._sent_at

    def runs_here(self, tenant_id: str, id_: bytes) -> bool:
        """Whether a worker in this process is at it, and so will say how it ends."""
        return any(worker.runs(tenant_id, id_) for worker in self.workers)

    def down(self) -> list[str]:
        """Which parts of this process have ended, and were not begun again yet."""
        own = ["committer"] if self.committer.is_down else []
        return own + [part for worker in self.workers for part in worker.down()]

    async def check_backlog(self, queue: str, more: int) -> None:
        """Refuse a start that would wait behind too many others. The count may be half a second old."""
        if self.backlog_limit is None:
            return
        now = asyncio.get_running_loop().time()
        counted_at, waiting = self._backlog.get(queue, (-1.0, 0))
        if now - counted_at > BACKLOG_SECONDS:
            [(waiting,)] = await self.store.fetch("count_backlog", queue=queue, limit=self.backlog_limit)
            counted_at = now
        self._backlog[queue] = (counted_at, waiting)
        if waiting + more > self.backlog_limit:
            raise Backlogged(
                f"queue {queue!r} has {waiting:,} instances waiting for a claim, the limit is {self.backlog_limit:,}: "
                "start again later, add workers, or raise the backlog_limit"
            )
        self._backlog[queue] = (counted_at, waiting + more)

    def stirred(self, turn: Turn) -> None:
        """After a commit: wake the workers here and hint to those elsewhere. Only a hint: they poll anyway."""
        for worker in self.workers:
            if turn.starts:
                worker.more_work()
            for event in turn.events:
                worker.event_for(event.instance_id)
        self.store.hint(turn)


def refuse_in_transaction() -> None:
    if IN_TRANSACTION.get():
        raise HoldfastError(
            "a transaction handler cannot call Holdfast: on SQLite it would wait for itself, and anywhere its word "
            "would outlive a rollback; return first, or start(connection=tx) what must commit with it"
        )


def _known(outcome: Outcome | BaseException) -> Outcome:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome
