"""The store on SQLite: apsw, WAL, synchronous=FULL, one writer thread that takes whole transactions.

Acknowledged means on disk. Several processes may share the file; the writer waits for the others' locks, so
nobody ever sees "database is locked".
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.engine.errors import BadDefinition, HoldfastError, StoreUnavailable
from holdfast.engine.turns import Change, Outcome, Turn
from holdfast.store import inherited
from holdfast.store.batch import Batch, lost_its_ground, with_claim
from holdfast.store.clock import Clock
from holdfast.store.migrate import migrate_sqlite
from holdfast.store.open_file import FileBusy, FileGone, OpenFile, busy
from holdfast.store.port import (
    ALL_NAMES,
    NAMES_READ,
    SIGNALS_READ,
    Claimed,
    HandlerRaised,
    Head,
    NotBegun,
    OpenTask,
    PastRow,
    PendingEvent,
    Place,
    claimed,
    of_tenant,
)
from holdfast.store.statements import statement, texts, translate

T = TypeVar("T")
CHECKPOINT_PAGES = 4000
BUSY_SECONDS = 30.0  # as long as a committer tries: a caller who has waited so long is told
FILLER_BYTES = 1_000_000
SHARED_MAX = 200  # single statements in one transaction
CLOSED = "the store was closed: take this anew from the Holdfast that is open now, hf.instance(id)"
REFUSALS = (
    FileGone, apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, UnicodeError, TypeError, OverflowError
)  # fmt: skip
ENDED_ITSELF = "the handler ended the transaction itself: leave commit and rollback to Holdfast"
NOTHING_KEPT: Mapping[bytes, Head] = {}
CHUNKS = (64, 16, 4, 1)  # rows per multi-row statement: few sizes, so that few statements are prepared


def connect(path: str) -> apsw.Connection:
    inherited.check_database(path)
    connection = apsw.Connection(path, statementcachesize=200)
    inherited.database(connection, path)
    connection.set_busy_timeout(round(BUSY_SECONDS * 1000))
    # Plans that never look at bound values: else a statement that might use a partial index is parsed at every use.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.execute("pragma journal_mode = wal")
    connection.execute(
        "pragma synchronous = full; pragma foreign_keys = on; pragma recursive_triggers = on;"
        f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}; pragma cache_size = -65536; pragma temp_store = memory"
    )
    return connection


def lengthen_log(path: str) -> None:
    """Bring the write-ahead log to its full length before it is needed: writing over a file's own blocks reaches the
    disk in about half the time of lengthening it. A transaction larger than its cache spills there, then is undone."""
    connection = connect(path)  # of its own: what it does to its cache is nobody else's business
    try:
        log = Path(path + "-wal")
        missing = CHECKPOINT_PAGES * connection.pragma("page_size") - (log.stat().st_size if log.exists() else 0)
        if missing <= 0:
            return
        connection.pragma("cache_size", 10)
        connection.execute("begin immediate; create table holdfast_filler (content blob)")
        for _ in range(missing // FILLER_BYTES + 1):
            connection.execute("insert into holdfast_filler values (zeroblob(?))", (FILLER_BYTES,))
        connection.execute("rollback")
    finally:
        connection.close()


class WriterThread:
    """The only thread that writes. Jobs are whole transactions; each answers on the loop that asked."""

    def __init__(self, path: str, file: OpenFile) -> None:
        self.path = path
        self.file = file
        self._closed = False
        self._lock = threading.Lock()  # nothing is put in line behind the end: nobody would ever answer it
        self._jobs: queue.SimpleQueue[tuple[Callable[[apsw.Connection], Any], Any, Any] | None] = queue.SimpleQueue()
        self._small: queue.SimpleQueue[tuple[str, tuple[Any, ...], Any, Any]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while (job := self._jobs.get()) is not None:
            work, loop, future = job
            try:
                if connection is None:
                    connection = connect(self.path)
                answer, error = work(connection), None
            except BaseException as raised:
                answer, error = None, raised
            connection = self._cleaned(connection)
            self._answer(loop, future, answer, error)
        if connection is not None:
            if self.file.is_gone:  # the log at that path is not ours to move into the file and remove
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()

    @staticmethod
    def _cleaned(connection: apsw.Connection | None) -> apsw.Connection | None:
        """A job that failed half-way leaves nothing behind. None: an author's handler closed or broke the connection,
        so the next job gets a new one."""
        if connection is None:
            return None
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except apsw.Error:
            connection.close(force=True)
            return None
        return connection

    def _refuse(self) -> None:
        if threading.current_thread() is self._thread:
            raise HoldfastError("a transaction handler cannot call Holdfast: it would wait for itself")
        if self._closed:
            raise HoldfastError(CLOSED)
        self.file.check()

    def ask(self, work: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            self._refuse()
            self._jobs.put((work, loop, future))
        return future

    def write(self, sql: str, bound: tuple[Any, ...]) -> asyncio.Future[int]:
        """One statement, and how many rows it changed. Those that wait at the same time share a transaction, so that
        they share the way to the disk; each has its own answer, and one that is refused takes no other with it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        with self._lock:
            self._refuse()
            self._small.put((sql, bound, loop, future))
            self._jobs.put((self._write_all, loop, loop.create_future()))
        return future

    def _write_all(self, connection: apsw.Connection) -> None:
        waiting: list[tuple[str, tuple[Any, ...], Any, Any]] = []
        while len(waiting) < SHARED_MAX:
            try:
                waiting.append(self._small.get_nowait())
            except queue.Empty:
                break
        answers: list[tuple[int, BaseException | None]] = []
        try:
            if len(waiting) > 1:
                connection.execute("begin immediate")
            for sql, bound, _, _ in waiting:
                try:
                    connection.execute(sql, bound)
                    answers.append((connection.changes(), None))
                except Exception as error:
                    # A statement that is refused is undone alone; what ends the transaction concerns everybody in it.
                    if len(waiting) > 1 and not connection.in_transaction:
                        raise
                    answers.append((0, error))
            if connection.in_transaction:
                connection.execute("commit")
        except Exception as error:
            answers = [(0, error)] * len(waiting)
        for (_, _, loop, future), (count, problem) in zip(waiting, answers, strict=True):
            self._answer(loop, future, count, problem)

    def _answer(self, loop: asyncio.AbstractEventLoop, future: Any, answer: Any, error: BaseException | None) -> None:
        if isinstance(error, apsw.BusyError):
            error = busy(self.path, BUSY_SECONDS)
        try:
            loop.call_soon_threadsafe(_settle, future, answer, error)
        except RuntimeError:
            pass  # the loop that asked is gone; what was committed stays committed

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            self._jobs.put(None)
        # Not in an executor: at the end of a process none takes work any more.
        while self._thread.is_alive():
            await asyncio.sleep(0.001)


def _settle(future: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(answer)


class _Lost(Exception):
    """A guard's count was off: some turn in this batch is not the winner."""


def _refuse_commit() -> bool:
    raise BadDefinition(ENDED_ITSELF)


def _take_back(connection: apsw.Connection) -> None:
    """What an author's handler may have set on its connection that would be asked about our own statements."""
    connection.row_trace = connection.exec_trace = connection.authorizer = None
    connection.set_commit_hook(None)
    connection.set_progress_handler(None)


def _check_still_ours(connection: apsw.Connection, savepoint: str) -> None:
    """Whether the transaction is the one that was begun for the handler: the savepoint is gone when the handler has
    ended it and begun another."""
    try:
        connection.execute(f"release {savepoint}")
    except apsw.SQLError as error:
        raise BadDefinition(ENDED_ITSELF) from error
    except apsw.BusyError as error:
        raise BadDefinition(
            "the handler left a statement unfinished: read what it returns, or close its cursor"
        ) from error


class SqliteCommits:
    """Applies batches inside an open transaction."""

    def __init__(self) -> None:
        self._sql: dict[tuple[str, int, int], str] = {}

    def _rows_sql(self, name: str, width: int, count: int) -> str:
        key = (name, width, count)
        sql = self._sql.get(key)
        if sql is None:
            row = "(" + ",".join("?" * width) + ")"
            text = texts("sqlite")[name].replace("{rows}", ",".join([row] * count)).replace(":worker_id", "?")
            sql = self._sql[key] = translate(text, "sqlite").sql
        return sql

    def each_chunk(
        self, connection: apsw.Connection, name: str, rows: Sequence[tuple[Any, ...]], tail: tuple[Any, ...] = ()
    ) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        at, left = 0, len(rows)
        for size in CHUNKS:
            while left >= size:
                values: list[Any] = []
                for row in rows[at : at + size]:
                    values += row
                sql = self._rows_sql(name, len(rows[0]), size)
                found += connection.execute(sql, (*values, *tail))
                at, left = at + size, left - size
        return found

    def apply(self, connection: apsw.Connection, worker_id: bytes | None, batch: Batch, now: int) -> set[bytes]:
        """Write the batch, or raise _Lost with nothing decided.

        Returns the instances whose claim is kept though it was to be handed back, and those born claimed."""
        kept: set[bytes] = set()
        if batch.first:
            assert worker_id is not None
            live = statement("worker_is_live", "sqlite").sql
            if connection.execute(live, (worker_id,)).fetchone() is None:
                raise _Lost
            guards = [
                (row[0], row[1], row[5], row[2], after) for row, after in zip(batch.first, batch.after, strict=True)
            ]
            if sum(n for (n,) in self.each_chunk(connection, "commit_guard", guards, (worker_id,))) != len(guards):
                raise _Lost
            try:
                self.each_chunk(connection, "commit_history", batch.first)
                if batch.more:
                    self.each_chunk(connection, "commit_history", batch.more)
            except apsw.ConstraintError as error:
                raise _Lost from error
        if batch.changes:
            kept = self._change(connection, batch.changes)
        # What a worker's turn starts or sends may be there already (a child's id is derived): its own row decides.
        facts_decide = len(batch.turns) > 1 or not batch.first
        if batch.starts:
            before = connection.total_changes()
            self.each_chunk(connection, "commit_starts", batch.starts)
            if connection.total_changes() - before == len(batch.starts):
                claimants = self._live(connection, {start.claimed_by for start in batch.starts})
                kept.update(start.id for start in batch.starts if start.claimed_by in claimants)
            elif facts_decide:
                raise _Lost
        if batch.task_changes:
            people = [change for change in batch.task_changes if change.by is None]
            before = connection.total_changes()
            if people:
                self.each_chunk(connection, "commit_task_changes", people)
                if connection.total_changes() - before != len(people):
                    raise _Lost  # a person's word came too late; a worker's own turn stands without it
            if len(people) < len(batch.task_changes):
                own = batch.task_changes if not people else [c for c in batch.task_changes if c.by is not None]
                self.each_chunk(connection, "commit_task_changes", own)
        if batch.events:
            to: dict[bytes, int] = {}
            numbered = []
            for event in batch.events:
                number = to[event.instance_id] = to.get(event.instance_id, 0) + 1
                numbered.append((*event, number))
            sent = self.each_chunk(connection, "commit_events", numbered)
            if len(sent) != len(batch.events) and facts_decide:
                raise _Lost
            wakes: dict[tuple[str, bytes], tuple[int, int]] = {}
            for tenant_id, instance_id, sent_at in sent:
                count, newest = wakes.get((tenant_id, instance_id), (0, 0))
                wakes[tenant_id, instance_id] = (count + 1, max(newest, sent_at))
            if wakes:
                rows = [(t, i, count, newest, now) for (t, i), (count, newest) in wakes.items()]
                self.each_chunk(connection, "commit_woken", rows)
        if batch.consumed:
            self.each_chunk(connection, "commit_consumed", batch.consumed)
        if batch.effects:
            self.each_chunk(connection, "commit_effects", batch.effects)
        if batch.dead_letters:
            self.each_chunk(connection, "commit_dead_letters", batch.dead_letters)
        if batch.tasks:
            self.each_chunk(connection, "commit_tasks", batch.tasks)
        return kept

    @staticmethod
    def _live(connection: apsw.Connection, workers: set[bytes | None]) -> set[bytes | None]:
        """Those of them who may hold claims."""
        live = statement("worker_is_live", "sqlite").sql
        return {one for one in workers if one is not None and connection.execute(live, (one,)).fetchone() is not None}

    def _change(self, connection: apsw.Connection, changes: Sequence[Change]) -> set[bytes]:
        """Change instances, and say whose claim is kept though it was to be handed back."""
        ends = [change for change in changes if change.ends()]
        if ends:
            self._end(connection, ends)
            if len(ends) == len(changes):  # as a rule
                return set()
            changes = [change for change in changes if not change.ends()]
        released = [change for change in changes if change.release]
        changed = self.each_chunk(connection, "commit_changes", released)
        if len(changed) != len(released):
            raise _Lost
        if len(released) < len(changes):
            self._move_on(connection, [change for change in changes if not change.release])
        return {id_ for id_, locked in changed if locked}

    @staticmethod
    def _end(connection: apsw.Connection, changes: Sequence[Change]) -> None:
        """Nothing is asked back, which is a sixth of the cost of a row."""
        rows = [
            (c.status, c.waiting_on, c.seq, c.hash, c.result, c.last_error, c.compensation, c.snapshot,
             c.current_state, c.completed_at, c.tenant_id, c.id, c.fence)
            for c in changes
        ]  # fmt: skip
        before = connection.total_changes()
        connection.executemany(statement("commit_ends", "sqlite").sql, rows)
        if connection.total_changes() - before != len(rows):
            raise _Lost

    def _move_on(self, connection: apsw.Connection, changes: Sequence[Change]) -> None:
        """Changes of instances whose claim stays. Nothing is asked back, which halves the cost of a row."""
        rows = [
            (c.tenant_id, c.id, c.fence, c.status, c.waiting_on, c.seq, c.hash, c.snapshot, c.current_state)
            for c in changes
        ]
        before = connection.total_changes()
        self.each_chunk(connection, "commit_moves", rows)
        if connection.total_changes() - before != len(rows):
            raise _Lost


class SqliteStore:
    dialect = "sqlite"
    # One writer at a time anyway: the larger the batch, the smaller its share of the fsync.
    writers = 2
    batch_limit = 1000
    sessions = 0

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = url.removeprefix("sqlite:///")
        self._commits = SqliteCommits()
        self._writer: WriterThread | None = None
        self._reader: WriterThread | None = None
        self._clock = Clock()
        self.clock: Callable[[], int] | None = None

    async def open(self, *, migrate: bool) -> None:
        if migrate:
            try:
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StoreUnavailable(f"cannot make the folder of {self.path}: {error}: correct the URL") from error
        elif not Path(self.path).exists():
            raise StoreUnavailable(f"no SQLite file at {self.path}: run `holdfast migrate`, or correct the URL")
        try:
            connection = connect(self.path)
        except apsw.Error as error:
            raise StoreUnavailable(
                f"cannot open the SQLite file {self.path}: {error}: check the path, its permissions and the disk"
            ) from error
        try:
            migrate_sqlite(connection, apply=migrate, where=f"the SQLite file {self.path}")
        except apsw.NotADBError as error:
            raise StoreUnavailable(f"{self.path} is not a SQLite database: correct the URL") from error
        finally:
            connection.close()
        file = OpenFile(self.path)
        self._writer = WriterThread(self.path, file)
        self._reader = WriterThread(self.path, file)
        for thread in (self._writer, self._reader):
            await thread.ask(lambda _: None)
        file.opened()
        self._clock.not_before((await self.fetch("newest_moment"))[0][0])

    async def warm_up(self) -> None:
        """Before the first turns of a worker."""
        assert self._writer is not None
        await self._writer.ask(lambda _: lengthen_log(self.path))

    async def close(self) -> None:
        for thread in (self._writer, self._reader):
            if thread is not None:
                await thread.close()

    def now(self) -> int:
        """The machine's clock, which here is the database's too. It never stands still and never runs backwards."""
        return self._clock.now() if self.clock is None else self.clock()

    async def look_at_clock(self) -> None:
        """It is looked at whenever it is asked."""

    def hint(self, turn: Turn) -> None:
        """Other processes find out by polling; this one was told directly."""

    def on_hint(self, service: Any) -> None: ...

    # -- statements

    async def fetch(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        found = statement(name, "sqlite")
        bound = found.bind(values)
        assert self._reader is not None
        return await self._reader.ask(lambda c: c.execute(found.sql, bound).fetchall())

    async def write(self, name: str, /, **values: Any) -> int:
        found = statement(name, "sqlite")
        assert self._writer is not None
        return await self._writer.write(found.sql, found.bind(values))

    async def change(
        self, tenant_id: str, statements: Sequence[tuple[str, dict[str, Any]]], *, guards: int = 1
    ) -> bool:
        """Run them in one transaction. Where the first, or one of the first `guards`, changes no row, nothing is
        changed and the answer is False."""
        asked = [
            (found.sql, found.bind(of_tenant(tenant_id, values)))
            for found, values in ((statement(name, "sqlite"), values) for name, values in statements)
        ]

        def work(connection: apsw.Connection) -> bool:
            connection.execute("begin immediate")
            for number, (sql, bound) in enumerate(asked):
                before = connection.total_changes()
                connection.execute(sql, bound)
                if number < guards and connection.total_changes() == before:
                    connection.execute("rollback")
                    return False
            connection.execute("commit")
            return True

        assert self._writer is not None
        return await self._writer.ask(work)

    async def fetch_key(self, hash: bytes) -> list[tuple[Any, ...]]:
        """The API keys of this hash, of whatever tenant."""
        return await self.fetch("find_api_key", hash=hash)

    async def in_transaction(self, work: Callable[[apsw.Connection], T]) -> T:
        def whole(connection: apsw.Connection) -> T:
            connection.execute("begin immediate")
            answer = work(connection)
            connection.execute("commit")
            return answer

        assert self._writer is not None
        return await self._writer.ask(whole)

    # -- turns

    def blames_the_data(self, error: BaseException) -> bool:
        """Whether the database refused a value, or is gone: trying the same again cannot help."""
        return isinstance(error, REFUSALS)

    def passes(self, error: BaseException) -> bool:
        """Whether a transaction was rolled back for what is nobody's fault: a lock of another process, or the disk."""
        return isinstance(error, (FileBusy, apsw.BusyError, apsw.LockedError, apsw.FullError, apsw.IOError))

    def is_away(self, error: BaseException) -> bool:
        """Whether the file cannot be opened or written just now, whatever is asked of it."""
        return self.passes(error) or isinstance(error, (apsw.CantOpenError, apsw.ReadOnlyError))

    async def commit(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome]:
        now = self.now()

        def work(connection: apsw.Connection) -> list[Outcome]:
            connection.execute("begin immediate")
            try:
                kept = self._commits.apply(connection, worker_id, Batch(turns), now)
            except _Lost:
                connection.execute("rollback")
                return self._one_by_one(connection, worker_id, turns, now)
            connection.execute("commit")
            return _committed(turns, kept)

        assert self._writer is not None
        return await self._writer.ask(work)

    def _one_by_one(
        self, connection: apsw.Connection, worker_id: bytes | None, turns: Sequence[Turn], now: int
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        connection.execute("begin immediate")
        for turn in turns:
            connection.execute("savepoint turn")
            try:
                kept = self._commits.apply(connection, worker_id, Batch([turn]), now)
                outcomes += _committed([turn], kept)
            except _Lost:
                connection.execute("rollback to turn")
                there = self._found(connection, worker_id, turn)
                outcomes.append(there or self._refused(connection, worker_id, turn))
            connection.execute("release turn")
        connection.execute("commit")
        return outcomes

    @staticmethod
    def _refused(connection: apsw.Connection, worker_id: bytes | None, turn: Turn) -> Outcome:
        """Why a turn was not written that is not there either."""
        if not turn.fence:
            return Outcome.MOVED
        if connection.execute(statement("worker_is_live", "sqlite").sql, (worker_id,)).fetchone() is None:
            return Outcome.FENCED
        found = statement("look_up_ground", "sqlite")
        values = {"tenant_id": turn.tenant_id, "id": turn.instance_id, "seq": turn.history[0][2] - 1}
        fence, before = connection.execute(found.sql, found.bind(values)).fetchone() or (None, None)
        return Outcome.GONE if lost_its_ground(turn, fence, before) else Outcome.MOVED

    @staticmethod
    def _is_there(connection: apsw.Connection, turn: Turn) -> bool:
        if turn.history:
            row = turn.history[0]
            sql = statement("look_up_history_row", "sqlite").sql
            return connection.execute(sql, (row[0], row[1], row[2])).fetchone() == (row[9],)
        if turn.starts:
            sql = statement("look_up_start", "sqlite").sql
            return connection.execute(sql, (turn.tenant_id, turn.starts[0].id)).fetchone() is not None
        event = turn.events[0]
        sql = statement("look_up_event", "sqlite").sql
        # Its id may be the caller's; when it was sent and what it says tell this very event from an earlier one.
        found = connection.execute(sql, (event.tenant_id, event.instance_id, event.id)).fetchone()
        return bool(found == (event.sent_at, event.payload))

    def _found(self, connection: apsw.Connection, worker_id: bytes | None, turn: Turn) -> Outcome | None:
        if not self._is_there(connection, turn):
            return None
        if turn.change is not None and turn.change.release:
            sql = statement("look_up_claim", "sqlite").sql
            if connection.execute(sql, (turn.tenant_id, turn.instance_id, turn.fence, worker_id)).fetchone():
                return Outcome.WOKEN
        return Outcome.COMMITTED

    async def look_up(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome | None]:
        """Which turns are there: found by the row that only this very turn could have written."""
        assert self._writer is not None
        return await self._writer.ask(lambda c: [self._found(c, worker_id, turn) for turn in turns])

    async def rows_there(self, rows: Sequence[tuple[Any, ...]]) -> set[bytes]:
        """The hashes of those of these history rows, (tenant, instance, seq, hash, …), that are there."""
        sql = statement("look_up_history_row", "sqlite").sql

        def work(connection: apsw.Connection) -> set[bytes]:
            return {row[3] for row in rows if connection.execute(sql, row[:3]).fetchone() == (row[3],)}

        assert self._reader is not None
        return await self._reader.ask(work)

    async def commit_alone(
        self, worker_id: bytes, work: Callable[[Any], Any], turn: Callable[[Any], Turn], timeout: float
    ) -> Outcome:
        """A transaction step: the author's writes and the turn in one transaction, on the writer's thread.

        On a connection of its own: a trace, a pragma or a hook that the author leaves on one must not meet others."""
        now = self.now()

        def whole(connection: apsw.Connection) -> Outcome:
            savepoint = f"holdfast_{os.urandom(8).hex()}"  # a name that the handler cannot give to one of its own
            try:
                connection.execute(f"begin immediate; savepoint {savepoint}")
            except apsw.Error as error:
                raise NotBegun(repr(error)) from error
            # The author's own `commit` is turned into a rollback: what it wrote would stay without the step's row.
            connection.set_commit_hook(_refuse_commit)
            timer = threading.Timer(timeout, connection.interrupt)
            timer.start()
            try:
                value = work(connection)
                _take_back(connection)
                batch = Batch([turn(value)])
                _check_still_ours(connection, savepoint)
            except BaseException as error:  # no signal lands in this thread: whatever it is, the handler raised it
                raise HandlerRaised(error) from error
            finally:
                timer.cancel()
            try:
                self._commits.apply(connection, worker_id, batch, now)
            except _Lost:
                connection.execute("rollback")
                return self._refused(connection, worker_id, batch.turns[0])
            except apsw.Error as error:
                if self.passes(error):
                    raise
                raise HandlerRaised(error) from error  # of what it did to its connection: a pragma, a table of our name
            try:
                connection.execute("commit")
            except apsw.ConstraintError as error:  # a deferred one, so the author's: ours are looked at in `apply`
                raise HandlerRaised(error) from error
            return Outcome.COMMITTED

        def alone(_: apsw.Connection) -> Outcome:
            try:
                own = connect(self.path)
            except apsw.Error as error:
                raise NotBegun(repr(error)) from error
            try:
                return whole(own)
            finally:
                own.close(force=True)

        assert self._writer is not None
        return await self._writer.ask(alone)

    # -- claims

    async def claim(
        self, worker_id: bytes, definitions: Sequence[Place], queue: str, limit: int, *, alone: bool,
        kept: Mapping[bytes, Head] = NOTHING_KEPT,
    ) -> tuple[list[Claimed], int | None]:  # fmt: skip
        """Claim due work; where there is none, say when the next falls due."""
        now = self.now()
        known = set(definitions)

        def work(connection: apsw.Connection) -> tuple[list[Claimed], int | None]:
            found = self._heads(connection, queue, known)
            heads = [at for earliest, at in found if earliest <= now]
            if not heads:
                return [], found[0][0] if found else None
            connection.execute("begin immediate")
            live = statement("worker_is_live", "sqlite").sql
            if connection.execute(live, (worker_id,)).fetchone() is None:
                connection.execute("rollback")
                return [], None
            heads = heads[:limit]
            share, due = statement("claim_share", "sqlite"), statement("due_of_share", "sqlite")
            rows: list[tuple[Any, ...]] = []
            for tenant_id, key, version in heads:
                values = {
                    "worker_id": worker_id, "now": now, "queue": queue, "tenant_id": tenant_id, "key": key,
                    "version": version, "alone": alone, "limit": max(limit // len(heads), 1),
                }  # fmt: skip
                found_due = connection.execute(due.sql, due.bind(values)).fetchall()
                connection.execute(share.sql, share.bind(values))
                assert connection.changes() == len(found_due), "claimed others than were read"
                rows += found_due
            connection.execute("commit")
            return [self._claimed(connection, row[:-1], row[-1], kept.get(row[1])) for row in rows], None

        assert self._writer is not None
        return await self._writer.ask(work)

    @staticmethod
    def _heads(connection: apsw.Connection, queue: str, known: set[Place]) -> list[tuple[int, tuple[str, str, int]]]:
        """The earliest run_at of every (tenant, definition) that has scheduled work, oldest first."""
        head = statement("next_head", "sqlite")
        at = ("", "", 0)
        found = []
        while True:
            values = {"queue": queue, "tenant_id": at[0], "key": at[1], "version": at[2]}
            row = connection.execute(head.sql, head.bind(values)).fetchone()
            if row is None:
                break
            at = row[:3]
            if (row[0], row[1], row[2]) in known or ("", row[1], row[2]) in known:
                found.append((row[3], at))
        return sorted(found)

    @staticmethod
    def _claimed(connection: apsw.Connection, row: tuple[Any, ...], due_at: int | None, head: Head | None) -> Claimed:
        past: list[PastRow] = []
        events: list[PendingEvent] = []
        key = (row[0], row[1])
        tasks: list[OpenTask] = []
        kept = False
        if head is not None and head.goes_on(row):
            past = [PastRow(*r) for r in connection.execute(statement("read_head_of", "sqlite").sql, key)]
            kept = bool(past) and (past[0].seq, past[0].hash) == (head.seq, head.hash)
        if row[8] > 1 and not kept:  # fence 1: claimed for the first time, so nothing to read
            # Code is replayed against its epoch's history; a chart has its snapshot and needs the head and open tasks.
            if row[2] == "code":
                history = statement("read_history_of", "sqlite").sql
                past = [PastRow(*r) for r in connection.execute(history, (*key, row[17]))]
            else:
                past = [PastRow(*r) for r in connection.execute(statement("read_head_of", "sqlite").sql, key)]
                tasks = [OpenTask(*r) for r in connection.execute(statement("read_open_tasks_of", "sqlite").sql, key)]
        if row[10] > 0:
            events = _events(connection, key, names=NAMES_READ if row[2] == "code" else ALL_NAMES)
        return claimed(row, past, events, tasks, due_at, kept)

    async def next_due(self, definitions: Sequence[Place], queue: str) -> int | None:
        assert self._reader is not None
        heads = await self._reader.ask(lambda c: self._heads(c, queue, set(definitions)))
        return heads[0][0] if heads else None

    async def pending_events(
        self, tenant_id: str, instance_id: bytes, *, names: int = NAMES_READ, skip: Sequence[str] = (),
        only: Sequence[str] | None = None,
    ) -> tuple[int, list[PendingEvent]]:  # fmt: skip
        """How many events the instance was ever sent, and those that no turn has taken: of signals the first of each
        name, in at most `names` names other than those to skip, or in `only` these names."""

        def work(connection: apsw.Connection) -> tuple[int, list[PendingEvent]]:
            key = (tenant_id, instance_id)
            [(woken,)] = connection.execute(statement("read_woken", "sqlite").sql, key)
            return woken, _events(connection, key, names=names, skip=skip, only=only)

        assert self._reader is not None
        return await self._reader.ask(work)

    # -- workers

    @property
    def locks(self) -> Path:
        """Where the workers of this file keep their lock files."""
        return Path(self.path + "-workers")

    def lock_is_free(self, word: str) -> bool:
        """Whether the process that held this lock file is gone. A stopped process still holds it."""
        try:
            file = os.open(self.locks / word, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile has the file too
        finally:
            os.close(file)
        return True

    async def worker_gone(self, worker_id: bytes) -> bool:
        """A clean exit, or the OS has freed its lock."""
        rows = await self.fetch("read_worker", worker_id=worker_id)
        return not rows or rows[0][0] is not None or self.lock_is_free(rows[0][1])

    async def release_worker(self, worker_id: bytes, by: bytes, *, stopped: bool, gone: bool = True) -> int:
        """Fence a worker and put its instances back, in one transaction. `stopped`: cleanly; not `gone`: a thread of it
        is in a call all the same."""
        values = {"now": self.now(), "by": by, "worker_id": worker_id, "stopped": stopped}

        def work(connection: apsw.Connection) -> int:
            names = ["fence_worker", "mark_stopped"] if stopped and gone else ["fence_worker"]
            for name in [*names, "release_claims"]:
                found = statement(name, "sqlite")
                connection.execute(found.sql, found.bind(values))
            return connection.changes()

        return await self.in_transaction(work)


def _events(
    connection: apsw.Connection, key: tuple[str, bytes], *, names: int, skip: Sequence[str] = (),
    only: Sequence[str] | None = None,
) -> list[PendingEvent]:  # fmt: skip
    """In the order of sending."""
    found = [PendingEvent(*r) for r in connection.execute(statement("read_words_of", "sqlite").sql, key)]
    signals, next_name = statement("read_signals_of", "sqlite").sql, statement("next_signal_name", "sqlite").sql
    for name in _names(connection, next_name, key, names, set(skip)) if only is None else only:
        found += [PendingEvent(*r) for r in connection.execute(signals, (*key, name, SIGNALS_READ))]
    return sorted(found, key=lambda event: (event.sent_at, event.id))


def _names(connection: apsw.Connection, sql: str, key: tuple[str, bytes], limit: int, skip: set[str]) -> Iterator[str]:
    """From one name of pending signals to the next, one descent of the index for each."""
    name = ""
    while limit > 0 and (row := connection.execute(sql, (*key, name)).fetchone()) is not None:
        [name] = row
        if name not in skip:
            limit -= 1
            yield name


def _committed(turns: Sequence[Turn], kept: set[bytes]) -> list[Outcome]:
    return [with_claim(t) if t.instance_id in kept else Outcome.COMMITTED for t in turns]
