"""A simulated process with Holdfast in it: a real SQLite file, threads that are drawn, a store that may fail."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any
from unittest import mock

import apsw

from holdfast import Holdfast
from holdfast.app.quarantine import LOCK_SECONDS, SqliteIdentity
from holdfast.engine.effects import LEASE
from holdfast.store import inherited, sqlite
from holdfast.store.tended import Tended
from holdfast.worker.liveness import FileLiveness
from holdfast.worker.worker import Worker
from tests.simulate.loop import PROCESS, Process, SimLoop

BEAT_SECONDS = 3.0


class Fault(Exception):
    """A store call failed, or its answer was lost."""


class Rates:
    """How often things go wrong; all of it ends when the simulation heals."""

    def __init__(self, rng: Random, features: frozenset[str]) -> None:
        self.store = rng.choice((0.0, 0.0, 0.01, 0.03)) if "store_faults" in features else 0.0
        self.slow_store = rng.choice((0.0, 0.05, 0.3))
        self.slow_thread = rng.choice((0.1, 0.2)) if "slow_threads" in features else 0.0

    def heal(self) -> None:
        self.store = 0.0
        self.slow_thread = 0.0


class Jobs:
    """Stands for the store's thread: whole transactions, one after the other, each with a drawn way there and back."""

    def __init__(self, connection: apsw.Connection, loop: SimLoop, rng: Random, rates: Rates) -> None:
        self._connection = connection
        self._loop = loop
        self._rng = rng
        self._rates = rates
        self._free_at = 0.0

    def ask(self, work: Callable[[apsw.Connection], Any]) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        slow = self._rng.random() < self._rates.slow_store
        self._free_at = max(self._free_at, self._loop.time() + (self._rng.random() * 0.2 if slow else 0.0))
        self._loop.call_at(self._free_at, self._work, work, future)
        return future

    def write(self, sql: str, bound: tuple[Any, ...]) -> asyncio.Future[int]:
        def work(connection: apsw.Connection) -> int:
            connection.execute(sql, bound)
            return connection.changes()

        return self.ask(work)

    def _work(self, work: Callable[[apsw.Connection], Any], future: asyncio.Future[Any]) -> None:
        fails = self._rng.random() < self._rates.store
        lost = fails and self._rng.random() < 0.5
        answer, error = None, None
        if not fails or lost:
            try:
                answer = work(self._connection)
            except BaseException as raised:
                error = raised
            if self._connection.in_transaction:
                self._connection.execute("rollback")
        if lost:
            error = TimeoutError("the call was done, its answer was lost")
        elif fails:
            error = Fault("the call failed")
        self._loop.call_soon(sqlite._settle, future, answer, error)

    async def close(self) -> None: ...


class Pool(ThreadPoolExecutor):
    """Threads of the simulation: a call runs in one moment, but that moment and the one of its answer are drawn."""

    def __init__(self, loop: SimLoop, rng: Random, rates: Rates) -> None:
        super().__init__(1)
        self._sim, self._rng, self._rates = loop, rng, rates
        self._in_line: set[Future[Any]] = set()

    def submit(self, fn: Any, /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._in_line.add(future)
        self._sim.call_later(self._delay(0.1), self._begin, future, fn, args, options)
        return future

    def _delay(self, usual: float) -> float:
        most = 8.0 if self._rng.random() < self._rates.slow_thread else usual
        return self._rng.random() * most

    def _begin(self, future: Future[Any], fn: Any, args: Any, options: Any) -> None:
        self._in_line.discard(future)
        if not future.set_running_or_notify_cancel():
            return
        try:
            value, error = fn(*args, **options), None
        except BaseException as raised:
            value, error = None, raised
        self._sim.call_later(self._delay(0.1), self._end, future, value, error)

    @staticmethod
    def _end(future: Future[Any], value: Any, error: BaseException | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future in self._in_line if cancel_futures else ():
            future.cancel()


class Clock:
    """The machine's clock: the loop's, and by how much it was set since."""

    START = 1_767_258_000_000_000  # 2026-01-01 09:00 UTC

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.offset = 0
        self.went_back = False

    def __call__(self) -> int:
        return self.START + round(self._loop.time() * 1_000_000) + self.offset

    def step(self, seconds: float) -> None:
        self.offset += round(seconds * 1_000_000)
        self.went_back |= seconds < 0


class Beats(FileLiveness):
    """The lock file of SQLite, and the lease of PostgreSQL: a worker that was frozen for longer is taken over, too."""

    def __init__(self, store: Any, worker_id: bytes, loop: SimLoop, all_: dict[bytes, Beats]) -> None:
        super().__init__(store, worker_id)
        self._sim = loop
        self._all = all_
        self.process = PROCESS.get()
        self.beaten_at = loop.time()

    async def acquire(self) -> None:
        await super().acquire()
        self._all[self.worker_id] = self
        self.process.on_death.append(self.let_go)

    def start(self, fenced: Callable[[], None]) -> None:
        """Without the thread that looks whether the loop turns: it would go by the real clock."""
        self._tended = Tended("liveness", lambda: self._watch(fenced))
        self._tended.start()

    def let_go(self) -> None:
        if self._file is not None:
            inherited.no_lock_file(self._file)
            os.close(self._file)
            self._file = None

    def lease_end(self) -> int:
        left = LEASE - round((self._sim.time() - self.beaten_at) * 1_000_000)
        return int(self.store.now()) + left

    async def _watch(self, fenced: Callable[[], None]) -> None:
        while True:
            began = self._sim.time()
            try:
                if not await self.store.fetch("worker_is_live", worker_id=self.worker_id):
                    fenced()
                    return
                self.beaten_at = began
                for other in list(self._all.values()):
                    late = self._sim.time() - other.beaten_at > LEASE / 1_000_000
                    if late and not other.process.dead and other.process.frozen:
                        await self.store.release_worker(other.worker_id, self.worker_id, stopped=False)
                        (self.folder / other.word).unlink(missing_ok=True)  # gone, as far as anybody can say
                await self.fence_the_dead()
            except Exception:
                pass
            await asyncio.sleep(BEAT_SECONDS)


class Machine:
    """What all simulated processes share: the file, the clock, the faults."""

    def __init__(self, url: str, loop: SimLoop, rng: Random, rates: Rates) -> None:
        self.url, self.loop, self.rng, self.rates = url, loop, rng, rates
        self.clock = Clock(loop)
        self.beats: dict[bytes, Beats] = {}
        self.compares: Process | None = None  # the process that compares the database with what is on record

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Stand in for the store's threads, and for a lock that goes with its process. The patches span the simulation,
        never one process's `await`: a process that is killed there would leave them behind."""
        machine = self

        class Threadless:
            def __new__(cls, path: str, _: Any) -> Any:
                connection = sqlite.connect(path)
                PROCESS.get().on_death.append(connection.close)
                return Jobs(connection, machine.loop, machine.rng, machine.rates)

        @contextlib.asynccontextmanager
        async def alone(_: SqliteIdentity) -> AsyncIterator[None]:
            while machine.compares is not None and not machine.compares.dead:
                await asyncio.sleep(LOCK_SECONDS)
            machine.compares = PROCESS.get()
            try:
                yield
            finally:  # also where a store call within fails
                machine.compares = None

        with mock.patch.object(sqlite, "WriterThread", Threadless), mock.patch.object(SqliteIdentity, "alone", alone):
            yield

    async def open(self, hf: Holdfast, *, migrate: bool = False) -> None:
        """Open it in the present process."""
        hf._make_store = self._store  # type: ignore[method-assign]
        await hf.open(migrate=migrate)

    def _store(self) -> Any:
        async def at_once() -> None: ...

        store = sqlite.SqliteStore(self.url)
        store.clock = self.clock
        store.warm_up = at_once  # type: ignore[method-assign]
        return store

    async def worker(self, hf: Holdfast, *, kept: int, seed: int, poll_seconds: float) -> Worker:
        service = hf.service
        store = service.store
        worker = Worker(
            store, service.registry, lambda id_: Beats(store, id_, self.loop, self.beats),
            payload_limit=service.payload_limit, on_ended=service.waiters.ended, on_committed=service.stirred,
            seed=seed, charts=service.charts, handlers=hf.built_in_handlers(), watch=None, kept=kept,
            poll_seconds=poll_seconds,
        )  # fmt: skip
        worker.pool._pool = Pool(self.loop, self.rng, self.rates)
        await worker.start()
        service.workers.append(worker)
        return worker


class _Id:
    """As much of a UUID as the engine asks for."""

    def __init__(self, raw: bytes) -> None:
        self.bytes = raw
        self.hex = raw.hex()


PLACES = (
    "holdfast.facade.uuid7", "holdfast.app.instances.uuid7", "holdfast.app.control.uuid7",
    "holdfast.app.definitions.uuid7", "holdfast.app.tasks.uuid7", "holdfast.app.audit.uuid7",
    "holdfast.app.quarantine.uuid4", "holdfast.worker.worker.uuid4",
)  # fmt: skip


@contextlib.contextmanager
def drawn_ids(rng: Random) -> Iterator[None]:
    """Ids that follow from the seed, else the order in which instances are claimed would differ from run to run."""
    count = 0

    def make() -> _Id:
        nonlocal count
        count += 1
        return _Id(count.to_bytes(6, "big") + rng.randbytes(10))

    with contextlib.ExitStack() as stack:
        for place in PLACES:
            stack.enter_context(mock.patch(place, make))
        yield
