"""The store on PostgreSQL: asyncpg, READ COMMITTED, one statement and one round trip per batch of turns."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from operator import itemgetter
from typing import Any, NamedTuple

import asyncpg

from holdfast.engine.effects import LEASE
from holdfast.engine.errors import BadDefinition, StoreUnavailable
from holdfast.engine.turns import Outcome, Turn
from holdfast.store import inherited
from holdfast.store.batch import Batch, lost_its_ground, with_claim
from holdfast.store.hints import Hints
from holdfast.store.lent import OURS_MS, LentConnection, idle_limit
from holdfast.store.literals import Pack, packers
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
    without_values,
)
from holdfast.store.statements import statement, texts, translate

Fetch = Callable[..., Awaitable[list[tuple[Any, ...]]]]
PARTS = ("first", "more", "change", "start", "taskchange", "event", "consumed", "effect", "dead", "task")
ENDED_ITSELF = "the handler ended the transaction itself: leave commit and rollback to Holdfast"
LEFT_IN_USE = "the handler returned while its connection was in use: await everything that it begins there"
LOST = "the connection to PostgreSQL was lost while the handler ran"
CLOSED = "the handler closed its connection: leave that to Holdfast"
# Limits of the handler's own making are not for our turn.
LIMITS = (
    "set local statement_timeout = 0; set local lock_timeout = 0; "
    f"set local idle_in_transaction_session_timeout = '{OURS_MS}ms'"
)
SWALLOWED = (
    "the handler went on after a statement of its own had failed: PostgreSQL takes nothing more in that transaction; "
    "let the error out, or try the statement in a savepoint: async with tx.transaction()"
)
# What stands in for a part that the batch does not have where another part asks for it.
ABSENT = {
    "commit_won": "won as (select ''::text as tenant_id, null::bytea as instance_id where false)",
    "commit_told": """told as (
  select ''::text as tenant_id, null::bytea as instance_id, ''::text as id, null::bytea as task_id where false)""",
    "commit_starts": "started as (select ''::text as tenant_id, null::bytea as id where false)",
    "commit_task_changes": "tasked as (select null::bytea as id where false)",
}
# The commit's look-ups must go through the primary keys however small the tables were when it was planned.
WRITER_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "random_page_cost": "0.1",
    "enable_mergejoin": "off",
    "jit": "off",
    "idle_in_transaction_session_timeout": "10s",
    "lock_timeout": "30s",
    "application_name": "holdfast",
}

_id = itemgetter(1)  # of an instance, in a row of its history or of its changes
NOTHING_KEPT: Mapping[bytes, Head] = {}
TRANSACTIONS_MAX = 10  # transaction steps of one process at once: each has a connection of its own
CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 5.0  # for what connections have under way
CLOCK_SECONDS = 5.0  # how long the database's clock is believed to go as ours does
BY_LEASE = "lease"  # the liveness of a worker that holds no session lock
FRESH = 2_000_000  # two beats: a worker whose heartbeat is younger is alive, whatever its lock says


async def _keep_session(_connection: Any) -> None:
    """Our own statements leave nothing behind in a session, so handing it back needs no round trip."""


def commit_sql(present: Sequence[bool], *, careful: bool = False) -> str:
    """The one commit statement for a batch that writes the parts marked present. The careful one steps over a turn
    whose seq is taken; the other is refused whole."""
    first, more, change, start, task_change, event, consumed, effect, dead, task = present
    fragments = texts("postgres")
    parts = []
    if first:
        parts += [
            fragments["commit_me"],
            fragments["commit_won"].replace("{commit_careful}", fragments["commit_careful"] if careful else ""),
        ]
    else:
        parts.append(ABSENT["commit_won"])
    for wanted, name in (
        (more, "commit_more"),
        (change, "commit_changes"),
        (event, "commit_told"),
        (start, "commit_starts"),
        (task_change, "commit_task_changes"),
        (event, "commit_events"),
        (consumed, "commit_consumed"),
        (effect, "commit_effects"),
        (dead, "commit_dead_letters"),
        (task, "commit_tasks"),
    ):
        if wanted:
            parts.append(fragments[name])
        elif name in ABSENT:
            parts.append(ABSENT[name])
    return (
        "with "
        + ",\n".join(part.strip() for part in parts)
        + "\nselect (select count(*) from won)"
        + (", (select array_agg(id) from changed where kept)" if change else ", null")
        + (
            ", (select count(*) from started), (select array_agg(id) from started where claimed)"
            if start
            else ", 0, null"
        )
        + (", (select count(*) from sent)" if event else ", 0")
    )


class Written(NamedTuple):
    """What became of a batch."""

    won: int  # turns
    kept: set[bytes]  # instances whose claim is kept, or held from birth
    started: int  # new instances
    sent: int  # new events


class PostgresCommits:
    """Runs batches on one connection. Statements are prepared once per combination of parts."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._prepared: dict[tuple[bool, ...], tuple[Any, tuple[str, ...], dict[str, Pack]]] = {}

    async def run(self, worker_id: bytes | None, batch: Batch, now: int) -> Written:
        """Write the batch as a transaction of its own."""
        try:
            return await self._run(worker_id, batch, now, careful=False)
        except asyncpg.UniqueViolationError:
            # Nothing was written. A seq is taken; which one, and what else is, the careful statement finds out.
            return await self._run(worker_id, batch, now, careful=True)

    async def join(self, worker_id: bytes | None, batch: Batch, now: int) -> Written:
        """Write the batch in the transaction that is open, which a refused statement would end."""
        return await self._run(worker_id, batch, now, careful=True)

    async def _run(self, worker_id: bytes | None, batch: Batch, now: int, *, careful: bool) -> Written:
        rows: dict[str, Sequence[tuple[Any, ...]]] = {
            "first": [(*row, after) for row, after in zip(batch.first, batch.after, strict=True)],
            "more": batch.more, "change": batch.changes, "start": batch.starts,
            "event": batch.events, "consumed": batch.consumed, "effect": batch.effects, "dead": batch.dead_letters,
            "task": batch.tasks, "taskchange": batch.task_changes,
        }  # fmt: skip
        if len(batch.changes) > 1:
            # Every batch locks rows of instances by their ids upwards, as `woken` does: else two that meet, a worker's
            # and a door's, wait for each other until the server ends one of them, a second later.
            rows["first"], rows["change"] = sorted(rows["first"], key=_id), sorted(batch.changes, key=_id)
        shape = (*(bool(rows[part]) for part in PARTS), careful)
        found = self._prepared.get(shape)
        if found is None:
            sql = commit_sql(shape[:-1], careful=careful)
            translated = translate(sql, "postgres")
            found = (await self.connection.prepare(translated.sql), translated.parameters, packers(sql))
            self._prepared[shape] = found
        prepared, parameters, packs = found
        values: dict[str, Any] = {"worker_id": worker_id, "now": now}
        for part in PARTS:
            if rows[part]:
                for number, column in enumerate(zip(*rows[part], strict=True), 1):
                    name = f"{part}_{number}"
                    values[name] = packs[name](column)
        won, kept, started, claimed, sent = await prepared.fetchrow(*[values[name] for name in parameters])
        return Written(won, {*(kept or ()), *(claimed or ())}, started, sent)


class NothingChanged(Exception):
    """The first statement of a change found nothing to change, so the whole is undone."""


async def run_all(
    connection: Any, tenant_id: str, statements: Sequence[tuple[str, dict[str, Any]]], guards: int = 1
) -> None:
    """A change, in the transaction that is open."""
    for number, (name, values) in enumerate(statements):
        found = statement(name, "postgres")
        status = await connection.execute(found.sql, *found.bind(of_tenant(tenant_id, values)))
        if number < guards and not changed(status):
            raise NothingChanged


def changed(status: str) -> int:
    """How many rows, from the server's word on a statement: `UPDATE 3`."""
    return int(status.rpartition(" ")[2])


class PostgresStore:
    dialect = "postgres"
    # Smaller batches, several at once: the server works on one while we work on the answers of another.
    batch_limit = 128

    def __init__(
        self, url: str, *, writers: int = 3, readers: int = 4, hints: bool = True, session_locks: bool = True
    ) -> None:
        """Without `hints`, nothing is notified or listened to: polling finds it all, later. Without `session_locks`,
        no advisory lock is taken or asked for: a worker is dead when its lease is over, and not before."""
        self.url = url
        self.writers = writers
        self.sessions = 0
        self.session_locks = session_locks
        self.settings = WRITER_SETTINGS  # of every connection
        self._wants_hints = hints
        self.clock: Callable[[], int] | None = None
        self._reader_count = readers
        self._writers: asyncio.LifoQueue[PostgresCommits | None] = asyncio.LifoQueue()
        self._clock = (0, 0)
        self._transactions = asyncio.Semaphore(TRANSACTIONS_MAX)
        self._local = 0  # by how much this machine's clock was ahead of its monotonic one when that was read
        self._pool: Any = None
        self._hints: Hints | None = None

    # -- opening and closing

    async def open(self, *, migrate: bool) -> None:
        from holdfast.store.migrate import migrate_postgres

        try:
            await migrate_postgres(self.url, apply=migrate)
            await self._face_the_wall()
            self._pool = await asyncpg.create_pool(
                self.url, min_size=1, max_size=self._reader_count, reset=_keep_session,
                server_settings=self.settings, command_timeout=60, init=self._made,
            )  # fmt: skip
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise StoreUnavailable(
                f"cannot open PostgreSQL at {shown_url(self.url)}: {error}: check that the server runs and the "
                "URL, user and database are right"
            ) from error
        for _ in range(self.writers):
            self._writers.put_nowait(None)
        await self.synchronise_clock()

    async def close(self) -> None:
        if self._hints is not None:
            await self._hints.close()
        while not self._writers.empty():
            commits = self._writers.get_nowait()
            if commits is not None:
                with suppress(TimeoutError):  # cut off it is closed all the same
                    await commits.connection.close(timeout=CLOSE_SECONDS)
        if self._pool is not None:
            # A program that cancels all of its tasks may cancel what gives a connection back before it has begun: the
            # pool would wait for that connection for ever. Cut off, it closes those that it has.
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._pool.close()

    async def _made(self, connection: Any) -> None:
        self.sessions += 1
        inherited.session(connection)

    async def warm_up(self) -> None:
        """Before the first turns of a worker: nothing to do, the server keeps its log's files for use again."""

    async def connect(self) -> Any:
        connection = await asyncpg.connect(self.url, server_settings=self.settings, command_timeout=60)
        await self._made(connection)
        return connection

    # -- the second wall

    async def wall_is_up(self) -> bool:
        """Whether row-level security keeps doors to their tenant; it is not where the roles could not be made."""
        return bool((await self._wall())[0])

    async def _wall(self) -> Any:
        connection = await asyncpg.connect(self.url, command_timeout=60)
        try:
            return await connection.fetchrow(statement("how_the_wall_stands", "postgres").sql)
        finally:
            await connection.close()

    async def _face_the_wall(self) -> None:
        """A login behind the wall would find every table empty and say that there is nothing to do: refuse it."""
        _, holds, _, worker = await self._wall()
        if holds and not worker:
            raise StoreUnavailable(
                f"the login of {shown_url(self.url)} sees no rows: row-level security is on and it is not a member of "
                "holdfast_worker; grant holdfast_worker to it, or let it in by a door only"
            )

    # -- the clock

    async def synchronise_clock(self) -> None:
        before = time.monotonic_ns()
        found = await self._pool.fetchval(statement("read_clock", "postgres").sql)
        after = time.monotonic_ns()
        self.set_clock(found, (before + after) // 2)

    def set_clock(self, database_us: int, monotonic_ns: int) -> None:
        self._clock, self._local = (database_us, monotonic_ns), _local_offset()

    async def look_at_clock(self) -> None:
        """Where nobody beats, whoever uses the store reads the database's clock again: after a while, or where this
        machine's own was set or it was suspended, which the monotonic clock does not count."""
        if self.clock is not None:
            return
        age = time.monotonic_ns() - self._clock[1]
        if age > CLOCK_SECONDS * 1_000_000_000 or abs(_local_offset() - self._local) > 1_000_000_000:
            await self.synchronise_clock()

    def now(self) -> int:
        """The database's time: read once in a while, monotonic in between."""
        if self.clock is not None:
            return self.clock()
        at, monotonic = self._clock
        return at + (time.monotonic_ns() - monotonic) // 1000

    # -- hints

    def hint(self, turn: Turn) -> None:
        if self._hints is not None:
            self._hints.send(turn)

    def on_hint(self, service: Any) -> None:
        if self._wants_hints:
            self._hints = Hints(self, service)
            self._hints.start()

    # -- statements

    async def fetch(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        await self.look_at_clock()
        found = statement(name, "postgres")
        return list(await self._pool.fetch(found.sql, *found.bind(values)))

    async def write(self, name: str, /, **values: Any) -> int:
        found = statement(name, "postgres")
        return changed(await self._pool.execute(found.sql, *found.bind(values)))

    async def change(
        self, tenant_id: str, statements: Sequence[tuple[str, dict[str, Any]]], *, guards: int = 1
    ) -> bool:
        """Run them in one transaction. Where the first, or one of the first `guards`, changes no row, nothing is
        changed and the answer is False."""
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                await run_all(connection, tenant_id, statements, guards)
        except NothingChanged:
            return False
        return True

    async def fetch_key(self, hash: bytes) -> list[tuple[Any, ...]]:
        """The API keys of this hash, of whatever tenant."""
        return await self.fetch("find_api_key", hash=hash)

    # -- turns

    def blames_the_data(self, error: BaseException) -> bool:
        """Whether the database refused a value: trying the same again cannot help."""
        if isinstance(error, asyncpg.PostgresError):
            return str(error.sqlstate or "")[:2] in ("22", "23", "42", "54")
        return isinstance(error, (UnicodeError, TypeError, asyncpg.DataError))

    def passes(self, error: BaseException) -> bool:
        """Whether the server rolled a transaction back for what is nobody's fault: another transaction in its way, a
        lost connection, a limit, a failover."""
        state = str(error.sqlstate or "") if isinstance(error, asyncpg.PostgresError) else ""
        return state[:2] in ("08", "40", "53", "58") or state[:4] == "57P0" or state in ("25006", "55P03")

    def is_away(self, error: BaseException) -> bool:
        """Whether the server cannot be reached, lets nobody in, or cannot write just now, whatever it was asked."""
        login = str(getattr(error, "sqlstate", None) or "")[:2] in ("28", "3D")
        return login or self.passes(error) or isinstance(error, (OSError, TimeoutError, asyncpg.InterfaceError))

    @asynccontextmanager
    async def _writer(self) -> AsyncIterator[PostgresCommits]:
        commits = await self._writers.get()
        try:
            if commits is None or commits.connection.is_closed():
                commits = PostgresCommits(await self.connect())
            yield commits
        except BaseException:
            # Whatever went wrong, the connection's state is not known: use a new one.
            if commits is not None:
                commits.connection.terminate()
            commits = None
            raise
        finally:
            self._writers.put_nowait(commits)

    async def commit(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome]:
        batch = Batch(turns)
        async with self._writer() as commits:
            found = await commits.run(worker_id, batch, self.now())
        return await self._outcomes(worker_id, batch, found)

    async def _outcomes(self, worker_id: bytes | None, batch: Batch, found: Written) -> list[Outcome]:
        won, kept, started, sent = found
        if won == len(batch.first) and started == len(batch.starts) and sent == len(batch.events):
            if not kept:
                return [Outcome.COMMITTED] * len(batch.turns)
            return [with_claim(t) if t.instance_id in kept else Outcome.COMMITTED for t in batch.turns]
        there = await self.look_up(worker_id, batch.turns)
        why = await self._refused(worker_id, [t for t, o in zip(batch.turns, there, strict=True) if not o and t.fence])
        outcomes = []
        for turn, outcome in zip(batch.turns, there, strict=True):
            if outcome is Outcome.COMMITTED and turn.instance_id in kept:
                outcome = with_claim(turn)
            outcomes.append(outcome or (why[turn.instance_id] if turn.fence else Outcome.MOVED))
        return outcomes

    async def _refused(self, worker_id: bytes | None, turns: Sequence[Turn]) -> dict[bytes, Outcome]:
        """Why turns of a worker were not written that are not there either, by instance."""
        if not turns:
            return {}
        if not await self.fetch("worker_is_live", worker_id=worker_id):
            return {turn.instance_id: Outcome.FENCED for turn in turns}
        ground = {bytes(id_): (fence, before) for id_, fence, before in await self.fetch(
            "look_up_grounds", tenants=[t.tenant_id for t in turns], instances=[t.instance_id for t in turns],
            seqs=[t.history[0][2] - 1 for t in turns],
        )}  # fmt: skip
        nothing = (None, None)
        return {
            turn.instance_id: Outcome.GONE
            if lost_its_ground(turn, *ground.get(turn.instance_id, nothing))
            else Outcome.MOVED
            for turn in turns
        }

    async def look_up(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome | None]:
        """Which turns are there: found by the row that only this very turn could have written."""
        return await self._look_up(self.fetch, worker_id, turns)

    @staticmethod
    async def _look_up(fetch: Fetch, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome | None]:
        rows = [t.history[0] for t in turns if t.history]
        starts = [t.starts[0] for t in turns if not t.history and t.starts]
        events = [t.events[0] for t in turns if not t.history and not t.starts and t.events]
        hashes = {r[0] for r in await fetch(
            "look_up_history", tenants=[r[0] for r in rows], instances=[r[1] for r in rows], seqs=[r[2] for r in rows]
        )} if rows else set()  # fmt: skip
        born = {r[0] for r in await fetch(
            "look_up_starts", tenants=[s.tenant_id for s in starts], instances=[s.id for s in starts]
        )} if starts else set()  # fmt: skip
        kept = {tuple(r) for r in await fetch(
            "look_up_events", tenants=[e.tenant_id for e in events], instances=[e.instance_id for e in events],
            ids=[e.id for e in events],
        )} if events else set()  # fmt: skip
        releases = [t for t in turns if t.change is not None and t.change.release]
        held = {r[0] for r in await fetch(
            "look_up_claims", tenants=[t.tenant_id for t in releases], instances=[t.instance_id for t in releases],
            fences=[t.fence for t in releases], worker_id=worker_id,
        )} if releases else set()  # fmt: skip
        found: list[Outcome | None] = []
        for turn in turns:
            if turn.history:
                there = turn.history[0][9] in hashes
            elif turn.starts:
                there = turn.starts[0].id in born
            else:
                # Its id may be the caller's; its moment and its words tell this very event from an earlier one.
                event = turn.events[0]
                there = (event.instance_id, event.id, event.sent_at, event.payload) in kept
            woken = turn.change is not None and turn.change.release and turn.instance_id in held
            found.append(None if not there else Outcome.WOKEN if woken else Outcome.COMMITTED)
        return found

    async def rows_there(self, rows: Sequence[tuple[Any, ...]]) -> set[bytes]:
        """The hashes of those of these history rows, (tenant, instance, seq, hash, …), that are there."""
        found = await self.fetch(
            "look_up_history", tenants=[r[0] for r in rows], instances=[r[1] for r in rows], seqs=[r[2] for r in rows]
        )
        return {r[0] for r in found} & {r[3] for r in rows}

    async def commit_alone(
        self, worker_id: bytes, work: Callable[[Any], Any], turn: Callable[[Any], Turn], timeout: float
    ) -> Outcome:
        """A transaction step: the author's writes and the turn in one transaction of their own."""
        try:
            await asyncio.wait_for(self._transactions.acquire(), CONNECT_SECONDS)
        except TimeoutError as error:
            raise NotBegun(f"{TRANSACTIONS_MAX} transaction steps are under way, the limit of one process") from error
        try:
            return await self._commit_alone(worker_id, work, turn, timeout)
        finally:
            self._transactions.release()

    async def _commit_alone(
        self, worker_id: bytes, work: Callable[[Any], Any], turn: Callable[[Any], Turn], timeout: float
    ) -> Outcome:
        connection = None
        savepoint = f"holdfast_{os.urandom(8).hex()}"  # gone when the handler has ended the transaction itself
        try:
            try:
                # The author's statements run with the database's own settings and search path, not with ours.
                connection = await asyncpg.connect(
                    self.url, command_timeout=timeout, timeout=CONNECT_SECONDS, connection_class=LentConnection,
                    server_settings={
                        "application_name": "holdfast transaction",
                        "idle_in_transaction_session_timeout": idle_limit(timeout),
                    },
                )  # fmt: skip
                inherited.session(connection)
                transaction = connection.transaction()
                await transaction.start()
                await connection.execute(f"savepoint {savepoint}")
            except Exception as error:
                raise NotBegun(without_values(error)) from error
            try:
                async with asyncio.timeout(timeout):
                    value = await work(connection)
                    if connection.is_closed():
                        raise BadDefinition(CLOSED)
                    if not connection.is_in_transaction():
                        raise BadDefinition(ENDED_ITSELF)
                    batch = Batch([turn(value)])
            except Exception as error:  # the connection ends below, and the transaction with it
                if connection.was_lost() and not self.passes(error):  # whatever the handler has made of that
                    raise HandlerRaised(asyncpg.ConnectionDoesNotExistError(LOST)) from error
                raise HandlerRaised(error) from error
            try:
                try:
                    await connection.execute(f"release savepoint {savepoint}; {LIMITS}")
                except asyncpg.QueryCanceledError as error:  # by a limit of the handler's; nothing is committed
                    raise HandlerRaised(error) from error
                except Exception as error:
                    if connection.is_closed():  # before anything was sent that commits
                        lost = connection.was_lost()
                        words = asyncpg.ConnectionDoesNotExistError(LOST) if lost else BadDefinition(CLOSED)
                        raise HandlerRaised(words) from error
                    if isinstance(error, asyncpg.InterfaceError):
                        raise HandlerRaised(BadDefinition(LEFT_IN_USE)) from error
                    raise
                found = await PostgresCommits(connection).join(worker_id, batch, self.now())
                if found.won != 1:
                    await transaction.rollback()
                    return (await self._refused(worker_id, batch.turns))[batch.turns[0].instance_id]
                await transaction.commit()
            except asyncpg.InFailedSQLTransactionError as error:
                raise HandlerRaised(BadDefinition(SWALLOWED)) from error
            except asyncpg.InvalidSavepointSpecificationError as error:
                raise HandlerRaised(BadDefinition(ENDED_ITSELF)) from error
            except asyncpg.PostgresError as error:
                if _refused(error):
                    raise HandlerRaised(error) from error
                raise
        finally:
            if connection is not None:
                connection.terminate()
        return Outcome.COMMITTED

    # -- claims

    async def claim(
        self, worker_id: bytes, definitions: Sequence[Place], queue: str, limit: int, *, alone: bool,
        kept: Mapping[bytes, Head] = NOTHING_KEPT,
    ) -> tuple[list[Claimed], int | None]:  # fmt: skip
        """Claim due work; where there is none, say when the next falls due."""
        rows = await self.fetch(
            "claim_instances", worker_id=worker_id, queue=queue, limit=limit, now=self.now(), alone=alone,
            **_columns(definitions),
        )  # fmt: skip
        if not rows:
            return [], await self.next_due(definitions, queue)
        again = [row for row in rows if row[8] > 1]  # fence 1: claimed for the first time, so nothing to read
        past = await self._heads_of(rows, kept)
        where_left = set(past)
        tasks: dict[bytes, list[OpenTask]] = {}
        # Code is replayed against its epoch's history; a chart has its snapshot and needs the head and the open tasks.
        for name, part in (
            ("read_histories", [row for row in again if row[2] == "code" and row[1] not in where_left]),
            ("read_heads", [row for row in again if row[2] != "code"]),
        ):
            if part:
                found = await self.fetch(
                    name, tenants=[r[0] for r in part], instances=[r[1] for r in part],
                    epoch_seqs=[r[17] for r in part],
                )  # fmt: skip
                for instance_id, *row in found:
                    past.setdefault(instance_id, []).append(PastRow(*row))
                if name == "read_heads":
                    open_ = await self.fetch(
                        "read_open_tasks", tenants=[r[0] for r in part], instances=[r[1] for r in part]
                    )
                    for instance_id, *row in open_:
                        tasks.setdefault(instance_id, []).append(OpenTask(*row))
        events: dict[bytes, list[PendingEvent]] = {}
        stirred = [row for row in rows if row[10] > 0]
        if stirred:
            found = await self.fetch(
                "read_events", tenants=[r[0] for r in stirred], instances=[r[1] for r in stirred],
                names=[NAMES_READ if r[2] == "code" else ALL_NAMES for r in stirred], skip=[], each=SIGNALS_READ,
            )  # fmt: skip
            for instance_id, *row in found:
                events.setdefault(instance_id, []).append(PendingEvent(*row))
        return [
            claimed(
                row[:-1],
                past.get(row[1], []),
                events.get(row[1], []),
                tasks.get(row[1], []),
                row[-1],
                row[1] in where_left,
            )
            for row in rows
        ], None

    async def _heads_of(
        self, rows: Sequence[tuple[Any, ...]], kept: Mapping[bytes, Head]
    ) -> dict[bytes, list[PastRow]]:
        """The last row of each history that ends where its body, which is kept in memory, was left."""
        there = [row for row in rows if row[1] in kept and kept[row[1]].goes_on(row)]
        if not there:
            return {}
        found = await self.fetch("read_heads", tenants=[r[0] for r in there], instances=[r[1] for r in there])
        heads = {bytes(id_): PastRow(*row) for id_, *row in found}
        return {id_: [row] for id_, row in heads.items() if (row.seq, row.hash) == (kept[id_].seq, kept[id_].hash)}

    async def next_due(self, definitions: Sequence[Place], queue: str) -> int | None:
        [(due,)] = await self.fetch("next_due", queue=queue, **_columns(definitions))
        return None if due is None else int(due)

    async def pending_events(
        self, tenant_id: str, instance_id: bytes, *, names: int = NAMES_READ, skip: Sequence[str] = (),
        only: Sequence[str] | None = None,
    ) -> tuple[int, list[PendingEvent]]:  # fmt: skip
        """How many events the instance was ever sent, and those that no turn has taken: of signals the first of each
        name, in at most `names` names other than those to skip, or in `only` these names."""
        # The counter is read first: an event that arrives in between is seen, and merely counted again later.
        [(woken,)] = await self.fetch("read_woken", tenant_id=tenant_id, id=instance_id)
        whose = {"tenants": [tenant_id], "instances": [instance_id], "each": SIGNALS_READ}
        if only is None:
            rows = await self.fetch("read_events", names=[names], skip=list(skip), **whose)
        else:
            rows = await self.fetch("read_events_named", only=list(only), **whose)
        return woken, [PendingEvent(*row[1:]) for row in rows]

    # -- workers

    async def beat(self, connection: Any, worker_id: bytes, *, held: bool = False) -> tuple[bool, int]:
        """Renew the heartbeat. Answers whether this worker still lives, and the database's time. `held`: of one that
        was stopped, and has a call under way."""
        name = "beat_held" if held else "beat_and_clock"
        now, heartbeat_id = await connection.fetchrow(statement(name, "postgres").sql, worker_id)
        return heartbeat_id is not None, now

    async def others(self, connection: Any, worker_id: bytes) -> list[tuple[Any, ...]]:
        return list(await connection.fetch(statement("unfenced_workers", "postgres").sql, worker_id))

    async def release_on(
        self, connection: Any, worker_id: bytes, by: bytes, *, stopped: bool, gone: bool = True
    ) -> int:
        """Fence a worker and put its instances back, in one transaction. `stopped`: cleanly; not `gone`: a thread of it
        is in a call all the same."""
        now = self.now()
        async with connection.transaction():
            await connection.execute(statement("lock_worker", "postgres").sql, worker_id)
            fence = statement("fence_worker", "postgres")
            await connection.execute(fence.sql, *fence.bind({"now": now, "by": by, "worker_id": worker_id}))
            if stopped and gone:
                mark = statement("mark_stopped", "postgres")
                await connection.execute(mark.sql, *mark.bind({"now": now, "worker_id": worker_id}))
            release = statement("release_claims", "postgres")
            status = await connection.execute(
                release.sql, *release.bind({"now": now, "worker_id": worker_id, "stopped": stopped})
            )
        return changed(status)

    async def worker_gone(self, worker_id: bytes) -> bool:
        """A clean exit, or its session lock is free and, unless it was fenced, it has not beaten lately: one that has
        just begun beats before it has its lock. Where there are no locks, its lease is over. A network partition can
        free the lock of a worker that lives; a lease cannot tell one that is paused from one that is dead."""
        rows = await self.fetch("read_heartbeat", worker_id=worker_id)
        if not rows or rows[0][0] is not None:
            return True
        _, word, heartbeat_at, fenced_at = rows[0]
        [(now,)] = await self.fetch("read_clock")  # heartbeats are written by the database's clock, never by ours
        if not self.session_locks or word == BY_LEASE:
            return bool(now - heartbeat_at >= LEASE)
        if fenced_at is None and abs(now - heartbeat_at) < FRESH:  # the clock may have been set
            return False
        async with self._pool.acquire() as connection:
            free = await connection.fetchval("select pg_try_advisory_lock($1)", int(word))
            if free:
                await connection.execute("select pg_advisory_unlock($1)", int(word))
        return bool(free)

    async def release_worker(self, worker_id: bytes, by: bytes, *, stopped: bool, gone: bool = True) -> int:
        async with self._pool.acquire() as connection:
            return await self.release_on(connection, worker_id, by, stopped=stopped, gone=gone)


def _local_offset() -> int:
    return time.time_ns() - time.monotonic_ns()


def _refused(error: asyncpg.PostgresError) -> bool:
    """Whether the server says that what the author did cannot be committed: a deferred constraint, a trigger, a role
    that may not write. Not so where the connection, the server or its limits are the cause."""
    return str(error.sqlstate or "08")[:2] not in ("08", "53", "55", "57", "58", "XX")


def _columns(definitions: Sequence[Place]) -> dict[str, list[Any]]:
    return {
        "places": [d[0] for d in definitions], "keys": [d[1] for d in definitions],
        "versions": [d[2] for d in definitions],
    }  # fmt: skip


def shown_url(url: str) -> str:
    """The URL without its password."""
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")))
