"""How a worker shows that it lives, and how the others find out that it does not.

SQLite: an OS lock on a file of its own, held by the process. A stopped process keeps it and goes on when it wakes;
a dead one loses it at once. PostgreSQL: a heartbeat row and a session lock, renewed from a thread of its own, so
that a handler which blocks the loop for a moment does not cost the lease. The lock only makes a take-over quick: where
the store has none, the lease alone decides.

A loop that stands still for as long as the lease is fenced by a thread of its own process, on both databases: others
take its instances over. Its lock stays, because threads of the process may be in effects' calls.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import structlog

from holdfast.engine import ids
from holdfast.engine.effects import LEASE
from holdfast.engine.errors import BadInput
from holdfast.engine.retry import SECOND
from holdfast.engine.stacks import spelled
from holdfast.store import inherited
from holdfast.store.postgres import BY_LEASE, PostgresStore
from holdfast.store.sqlite import SqliteStore
from holdfast.store.tended import Tended
from holdfast.worker.loop_watch import LoopWatch

log = structlog.get_logger("holdfast.liveness")
BEAT_SECONDS = 1.0
MISSED_BEATS = 2
AGAIN_SECONDS = 0.2  # after a failed beat: soon enough that one cut connection is not two missed beats
RETURN_SECONDS = 3.0
LEASE_SECONDS = LEASE / SECOND
LEASE_SECONDS_MIN = 4.0  # an effect may begin until the lease's margin: below this hardly ever


class Liveness(Protocol):
    word: str

    async def acquire(self) -> None: ...
    def start(self, fenced: Callable[[], None]) -> None: ...
    def lease_end(self) -> int: ...
    @property
    def is_down(self) -> bool: ...
    async def stop(self) -> None: ...
    async def hold(self) -> None: ...  # in place of `stop`: judge nobody any more, and show until `forget` that we live
    async def forget(self) -> None: ...


class FileLiveness:
    def __init__(self, store: SqliteStore, worker_id: bytes, lease: float = LEASE_SECONDS) -> None:
        self.store = store
        self.worker_id = worker_id
        self.folder = store.locks
        self.word = worker_id.hex() + ".lock"
        self._file: int | None = None
        self._tended: Tended | None = None
        self._loop_watch = LoopWatch(lease)
        self._stop = threading.Event()

    async def acquire(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self._file = os.open(self.folder / self.word, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        inherited.lock_file(self._file)

    def start(self, fenced: Callable[[], None]) -> None:
        self._tended = Tended("liveness", lambda: self._watch(fenced))
        self._tended.start()
        self._loop_watch.begin()
        threading.Thread(target=self._look, name="holdfast-loop-watch", daemon=True).start()

    def _look(self) -> None:
        given_up = False
        while not self._stop.wait(BEAT_SECONDS):
            self._loop_watch.look()
            if self._loop_watch.is_silent and not given_up:
                given_up = self._give_up()

    def _give_up(self) -> bool:
        """In the name of a loop that stands still. The lock stays: threads of this process may be in calls."""
        try:
            count = asyncio.run(self.store.release_worker(self.worker_id, self.worker_id, stopped=False))
        except Exception as error:
            log.warning("liveness_check_failed", error=repr(error))
            return False
        log.warning("worker_taken_over", worker=ids.worker_word(self.worker_id), instances=count)
        return True

    @property
    def is_down(self) -> bool:
        return self._tended is not None and self._tended.is_down

    def lease_end(self) -> int:
        return self.store.now() + LEASE  # the lock does not expire

    async def _watch(self, fenced: Callable[[], None]) -> None:
        while True:
            try:
                if not await self.store.fetch("worker_is_live", worker_id=self.worker_id):
                    fenced()
                    return
                await self.fence_the_dead()
            except Exception as error:
                log.warning("liveness_check_failed", error=repr(error))
            await asyncio.sleep(BEAT_SECONDS)

    async def fence_the_dead(self) -> None:
        for worker_id, _, word in await self.store.fetch("unfenced_workers", worker_id=self.worker_id):
            if self.store.lock_is_free(word):
                count = await self.store.release_worker(worker_id, self.worker_id, stopped=False)
                log.warning("worker_taken_over", worker=ids.worker_word(worker_id), instances=count)
                (self.folder / word).unlink(missing_ok=True)

    async def stop(self) -> None:
        self._stop.set()
        self._loop_watch.end()
        if self._tended is not None:
            await self._tended.stop()

    async def hold(self) -> None:
        await self.stop()  # the lock stays

    async def forget(self) -> None:
        """After the hand-back: let the lock go."""
        if self._file is not None:
            (self.folder / self.word).unlink(missing_ok=True)
            inherited.no_lock_file(self._file)
            os.close(self._file)
            self._file = None


class SessionLiveness:
    def __init__(self, store: PostgresStore, worker_id: bytes, lease: int = LEASE) -> None:
        self.store = store
        self.worker_id = worker_id
        self.word = str(int.from_bytes(worker_id[:8], "big", signed=True)) if store.session_locks else BY_LEASE
        self.lease = lease
        self._loop_watch = LoopWatch(lease / SECOND)
        self.is_down = False  # its thread has ended, and was not begun again yet
        self._beaten_at = time.monotonic_ns()
        self._seen: dict[bytes, tuple[int, float]] = {}  # each other worker's heartbeat, and since when we see that one
        self._stop = threading.Event()
        self._held = False
        self._thread: threading.Thread | None = None

    async def acquire(self) -> None:
        self._beaten_at = time.monotonic_ns()

    def start(self, fenced: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._loop_watch.begin()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(fenced)

        def serve() -> None:
            while not self._stop.is_set():
                try:
                    asyncio.run(self._beat(tell))
                    return
                except BaseException as error:
                    self.is_down = True
                    log.error("worker_task_ended", task="heartbeat", error=spelled(error))
                    self._stop.wait(BEAT_SECONDS)

        self._thread = threading.Thread(target=serve, name="holdfast-heartbeat", daemon=True)
        self._thread.start()

    def lease_end(self) -> int:
        return self.store.now() + self.lease - (time.monotonic_ns() - self._beaten_at) // 1000

    async def _beat(self, fenced: Callable[[], None]) -> None:
        connection: Any = None
        locked = False
        judges_at: float | None = None
        while not self._stop.is_set():
            pause = BEAT_SECONDS
            self._loop_watch.look()
            try:
                if connection is None or connection.is_closed():
                    connection, locked = await self.store.connect(), False
                    # When the database was away, nobody could beat: let the others come back before judging them.
                    judges_at = 0.0 if judges_at is None else time.monotonic() + RETURN_SECONDS
                if not locked and self.store.session_locks:
                    # After a lost connection the old session may hold it for a while: beat on meanwhile.
                    locked = await connection.fetchval("select pg_try_advisory_lock($1)", int(self.word))
                if self._loop_watch.is_silent and not self._held:
                    count = await self.store.release_on(connection, self.worker_id, self.worker_id, stopped=False)
                    log.warning("worker_taken_over", worker=ids.worker_word(self.worker_id), instances=count)
                before = time.monotonic_ns()
                alive, now = await self.store.beat(connection, self.worker_id, held=self._held)
                self.store.set_clock(now, (before + time.monotonic_ns()) // 2)
                if not alive and not self._held:
                    fenced()
                    self._held = True  # until we are stopped: a thread of this worker may be in a call
                self._beaten_at, self.is_down = before, False
                if self._held:
                    pass
                elif judges_at is not None and time.monotonic() >= judges_at:
                    await self._fence_the_dead(connection, now)
            except Exception as error:
                log.warning("heartbeat_failed", error=repr(error))
                pause = AGAIN_SECONDS
                if connection is not None:
                    connection.terminate()
                    connection = None
            await asyncio.to_thread(self._stop.wait, pause)
        if connection is not None:
            await connection.close()

    async def _fence_the_dead(self, connection: Any, now: int) -> None:
        """The database's clock may be set: a worker is judged by whether its heartbeat changes while we look. What it
        says about the time before we looked only adds to that."""
        others = await self.store.others(connection, self.worker_id)
        for worker_id, heartbeat_at, word in others:
            silent = self._silence(worker_id, heartbeat_at)
            if silent < MISSED_BEATS * BEAT_SECONDS:
                continue
            lease_over = max(silent * SECOND, now - heartbeat_at) >= self.lease
            if not lease_over and not await self._lock_is_free(connection, word):
                continue
            count = await self.store.release_on(connection, worker_id, self.worker_id, stopped=False)
            if not lease_over:
                await connection.execute("select pg_advisory_unlock($1)", int(word))
            log.warning("worker_taken_over", worker=ids.worker_word(worker_id), instances=count)

    def _silence(self, worker_id: bytes, heartbeat_at: int) -> float:
        """For how many seconds, by our own clock, this worker's heartbeat has been the same."""
        now = time.monotonic()
        if self._seen.get(worker_id, (None,))[0] != heartbeat_at:
            self._seen[worker_id] = (heartbeat_at, now)
        return now - self._seen[worker_id][1]

    async def _lock_is_free(self, connection: Any, word: str) -> bool:
        """Then it is ours for the moment. One that holds no lock, or is asked without, has its whole lease."""
        if not self.store.session_locks or word == BY_LEASE:
            return False
        return bool(await connection.fetchval("select pg_try_advisory_lock($1)", int(word)))

    async def stop(self) -> None:
        self._stop.set()
        self._loop_watch.end()
        if self._thread is not None and self._thread is not threading.current_thread():
            await asyncio.to_thread(self._thread.join)

    async def hold(self) -> None:
        self._held = True

    async def forget(self) -> None:
        """The session lock goes with its connection."""
        await self.stop()


def liveness_for(store: Any, lease: float = LEASE_SECONDS) -> Callable[[bytes], Liveness]:
    if lease < LEASE_SECONDS_MIN:
        raise BadInput(f"lease is {lease!r}: expected at least {LEASE_SECONDS_MIN} seconds, several heartbeats")
    if isinstance(store, SqliteStore):
        return lambda worker_id: FileLiveness(store, worker_id, lease)
    return lambda worker_id: SessionLiveness(store, worker_id, round(lease * SECOND))
