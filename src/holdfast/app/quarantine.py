"""A restored backup is a zombie: it does not know what was done after it was taken, and would do it again.

So every database has an identity on record, and a worker that starts compares it with what it finds. Where the two
differ the database is put in quarantine: its workers register and beat, and claim nothing, until a person lifts it.
Doors go on taking facts.

PostgreSQL is known by its server's system identifier and the database's number. A SQLite file is known by its inode and
by a witness, a small file beside it that says how far the history had come. A witness that is missing, belongs to
another database, or has seen more than the history holds, means a copy or an older state put in place of a newer one.

A running worker looks on: once a second, and wherever a new connection was made, it compares the identity, the server's
timeline and the rows that it was itself told are on disk. A timeline that grows is a promotion: workers then pause for
a moment, so that whoever lost rows by it can say so before anything is done a second time.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog
from uuid_utils import uuid4

from holdfast.app import audit
from holdfast.engine import ids
from holdfast.engine.errors import BadInput
from holdfast.store.open_file import FileGone
from holdfast.store.tended import Tended

if TYPE_CHECKING:
    from holdfast.app.service import Service
    from holdfast.store.port import Store

log = structlog.get_logger("holdfast.quarantine")
EVERY = "*"  # an installation serves every tenant
LOOK_SECONDS = 1.0
PROMOTED_SECONDS = 5.0  # several looks of every worker
LOCK_SECONDS = 0.01
NOT_KNOWN = "?"
WHAT_TO_DO = (
    "nothing is claimed until a person has looked: compare with what the providers have, settle what differs, then "
    "`holdfast quarantine lift --reason …`"
)


class QuarantineView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a database is held back, why, and what would begin to move if it were not."""

    quarantined: bool
    quarantined_at: int | None
    reason: str | None
    identity: str | None  # on record
    found: str  # what it is now
    differs: str | None  # how, where that is not the same
    due: int
    changed_at: int | None
    changed_by: str | None


class Installation(NamedTuple):
    """The row."""

    identity: str | None
    quarantined_at: int | None
    reason: str | None
    changed_at: int | None
    changed_by: str | None


class Seen(NamedTuple):
    """What a witness has seen: of which database, and how far its history had come."""

    token: str
    mark: int


class Witness:
    """The file beside a SQLite file. Its length never changes, so that one write replaces all of it."""

    LINE = re.compile(r"holdfast-witness ([0-9a-f]{32}) ([0-9]{20})\n")

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Seen | None:
        try:
            found = self.LINE.fullmatch(self.path.read_text(encoding="ascii"))
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        return None if found is None else Seen(found[1], int(found[2]))

    def write(self, seen: Seen, *, lasting: bool = False) -> None:
        """`lasting`: also after a power cut. Without, an older mark may come back, which only sees less."""
        file = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(file, f"holdfast-witness {seen.token} {seen.mark:020d}\n".encode(), 0)
            if lasting:
                os.fsync(file)
        finally:
            os.close(file)


# -- which database it is


class SqliteIdentity:
    """`sqlite:inode:token`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.path = Path(store.url.removeprefix("sqlite:///"))
        self.witness = Witness(Path(f"{self.path}-witness"))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """One process at a time compares or records: else one sees what another has written by half."""
        file = os.open(self.witness.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(LOCK_SECONDS)
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile has the file too
            os.close(file)

    async def difference(self, recorded: str, *, running: bool = False) -> str | None:
        """`running`: asked by a worker that had compared before. To it a witness that was removed says nothing: it is
        about to write the next one."""
        _, inode, token = recorded.split(":")
        seen, mark = self.witness.read(), await self._mark()
        name = self.path.name
        if seen is None and running:
            seen = Seen(token, mark)
        if seen is None:
            return f"there is no witness beside {name}: the file was copied or restored from a backup"
        if seen.token != token:
            return f"the witness beside {name} belongs to another database: this file was put here from elsewhere"
        if self._inode() != inode:
            return f"{name} is another file than the one on record: a copy, or restored from a backup"
        if mark < seen.mark:
            return (
                f"the history in {name} ends at row {mark:,}, but it had reached row {seen.mark:,}: "
                "an older state was put in its place"
            )
        return None

    async def timeline(self) -> int | None:
        """A file has none."""
        return None

    async def denied(self) -> str | None:
        """Why a database with no identity on record is not given one: a witness has seen more than it holds."""
        seen, mark = self.witness.read(), await self._mark()
        if seen is None or seen.mark <= mark:
            return None
        return (
            f"the history in {self.path.name} ends at row {mark:,}, but the witness beside it has seen row "
            f"{seen.mark:,}: the file, or its write-ahead log, was removed (where that was meant, remove "
            f"{self.witness.path.name} too)"
        )

    async def make(self) -> str:
        """A new identity. The witness comes first: a database on record without one is a copy."""
        token: str = uuid4().hex
        self.witness.write(Seen(token, await self._mark()), lasting=True)
        return f"sqlite:{self._inode()}:{token}"

    async def found(self) -> str:
        seen = self.witness.read()
        return f"sqlite:{self._inode()}:{NOT_KNOWN if seen is None else seen.token}"

    async def remember(self, recorded: str) -> None:
        """How far the history has come. What is read here is on disk, so the witness never says too much."""
        seen = Seen(recorded.split(":")[2], await self._mark())
        if seen != self.witness.read():
            self.witness.write(seen)

    async def _mark(self) -> int:
        [(mark,)] = await self.store.fetch("history_mark")
        return int(mark)

    def _inode(self) -> str:
        return str(self.path.stat().st_ino)


class PostgresIdentity:
    """`postgres:system identifier:database`. What a provider does not let us ask for is `?`, and fits everything."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        yield  # the server says the same to everybody

    async def difference(self, recorded: str, *, running: bool = False) -> str | None:
        _, system, database = recorded.split(":")
        _, system_now, database_now = (await self.found()).split(":")
        if system != system_now and NOT_KNOWN not in (system, system_now):
            return f"this PostgreSQL server ({system_now}) is not the one on record ({system}): it is a restored copy"
        if database != database_now:
            return f"this database (number {database_now}) is not the one on record ({database}): it is a copy"
        return None

    async def denied(self) -> str | None:
        return None

    async def make(self) -> str:
        return await self.found()

    async def found(self) -> str:
        found = await self._ask("database_identity")
        if found is None:
            [(database,)] = await self.store.fetch("database_oid")
            return f"postgres:{NOT_KNOWN}:{database}"
        return f"postgres:{found[0]}:{found[1]}"

    async def timeline(self) -> int | None:
        """How often this server, or the one whose standby it was, has been followed by another; None: not known."""
        found = await self._ask("timeline")
        return None if found is None else found[0]

    async def _ask(self, name: str) -> tuple[Any, ...] | None:
        """None: a managed service, or one that only speaks PostgreSQL, does not say."""
        import asyncpg  # only where it is in use: whoever works on SQLite does not wait for it

        try:
            [found] = await self.store.fetch(name)
        except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError, asyncpg.FeatureNotSupportedError):
            return None
        return found

    async def remember(self, recorded: str) -> None:
        """The server remembers who it is."""


def identity_of(store: Store) -> SqliteIdentity | PostgresIdentity:
    return SqliteIdentity(store) if store.dialect == "sqlite" else PostgresIdentity(store)


async def read(store: Store) -> Installation:
    rows = await store.fetch("read_installation")
    return Installation(*rows[0]) if rows else Installation(None, None, None, None, None)


# -- what a worker asks


class Quarantine:
    """Says whether a worker may claim. The word is kept here and renewed once a second, so that a claim asks nobody."""

    def __init__(
        self, store: Store, look_back: Callable[[], Awaitable[str | None]] | None = None,
        on_record: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`look_back` says what is gone that was told to be on disk, if anything is; `on_record` hears that this is why
        the database is held back now."""
        self.holds = False
        self._held = False  # by the word on record; `holds` also while a promotion is waited out
        self._store = store
        self._look_back = look_back
        self._on_record = on_record
        self._identity = identity_of(store)
        self._timeline: int | None = None
        self._claims_at = 0.0  # on the monotonic clock: not earlier, after a promotion
        self._sessions = -1  # as many connections had been made when the database was last looked at
        self._recorded: str | None = None
        self._tended: Tended | None = None

    async def begin(self) -> None:
        """Compare what is on record with what is here; the first to start puts it on record."""
        await self._compare(None)

    async def again(self, worker_id: bytes) -> None:
        """Before a worker whose row is fenced or gone takes a new name. Where it is not known at all, not even as
        fenced, the database was put back to an earlier state under its feet."""
        if self._tended is not None:
            await self._compare(worker_id)

    async def _compare(self, worker_id: bytes | None) -> None:
        async with self._identity.alone():
            row = await read(self._store)
            if row.quarantined_at is None and row.identity is None:
                if (reason := await self._identity.denied()) is not None:
                    await self.enter(reason)
                else:
                    values = {"identity": await self._identity.make(), "now": self._store.now(), "actor": "worker"}
                    await self._store.write("record_installation", **values)
            elif row.quarantined_at is None and row.identity is not None:
                reason = await self._identity.difference(row.identity)
                if reason is None and worker_id is not None:
                    reason = await self._forgotten(worker_id)
                if reason is not None:
                    await self.enter(reason)
            self._take(await read(self._store))

    async def doubtful(self) -> bool:
        """Whether what was claimed just now must not begin. Asks only where a connection was made since the last time:
        behind it may be another server, which the claim has reached before any look."""
        if self._store.sessions != self._sessions:
            await self._look_again()
        return self.holds

    async def _look_again(self) -> None:
        sessions = self._store.sessions
        reason = await self._look_at_timeline()
        if not await self.gone_back() and reason is not None:
            await self.enter(reason)
        self._sessions = sessions

    async def _look_at_timeline(self) -> str | None:
        now, before = await self._identity.timeline(), self._timeline
        if now is None:
            return None
        self._timeline = now
        if before is None or now == before:
            return None
        if now < before:
            return (
                f"this PostgreSQL server is on timeline {now}, and the one before it was on {before}: it does not have "
                "what was committed since its standby was promoted"
            )
        log.warning("promoted", timeline=now, before=before, claims_in=PROMOTED_SECONDS)
        self._claims_at, self.holds = time.monotonic() + PROMOTED_SECONDS, True
        return None

    async def gone_back(self) -> bool:
        """Hold the database back where it lost what a worker was told is on disk."""
        reason = None if self._look_back is None else await self._look_back()
        if reason is not None:
            await self.enter(reason)
            self._on_record()
        return reason is not None

    async def enter(self, reason: str) -> None:
        await self._store.write("enter_quarantine", now=self._store.now(), reason=reason, actor="worker")
        self._take(await read(self._store))

    async def _forgotten(self, worker_id: bytes) -> str | None:
        if await self._store.fetch("read_worker", worker_id=worker_id):
            return None
        return (
            f"worker {ids.worker_word(worker_id)} was registered here and is not known any more: an earlier state was "
            "put in place while it ran"
        )

    def _take(self, row: Installation) -> None:
        held, self._recorded = row.quarantined_at is not None, row.identity
        if held and not self._held:
            log.warning("quarantined", reason=row.reason, by=row.changed_by, what_to_do=WHAT_TO_DO)
        elif self._held and not held:
            log.warning("quarantine_lifted", reason=row.reason, by=row.changed_by)
        self._held = held
        self.holds = held or time.monotonic() < self._claims_at

    def start(self, lifted: Callable[[], None]) -> None:
        self._tended = Tended("quarantine", lambda: self._run(lifted))
        self._tended.start()

    @property
    def is_down(self) -> bool:
        return self._tended is not None and self._tended.is_down

    async def _run(self, lifted: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before = self.holds
            try:
                await self.look()
            except FileGone as error:
                if not self.holds:
                    log.error("database_file_gone", error=str(error))
                self.holds = True  # nothing can be put on record
            except Exception as error:
                log.warning("quarantine_not_read", error=repr(error))  # what we knew last still counts
            if before and not self.holds:
                lifted()

    async def look(self) -> None:
        self._take(await read(self._store))
        # Also while held back: each worker has rows of its own to miss, and must not bring the quarantine back later.
        await self._look_again()
        if self._recorded is None or self._held:
            return
        async with self._identity.alone():
            reason = await self._identity.difference(self._recorded, running=True)
        if reason is not None:
            await self.enter(reason)
        else:
            await self._identity.remember(self._recorded)

    async def stop(self) -> None:
        if self._tended is None:
            return
        await self._tended.stop()
        try:
            await self.look()
        except Exception as error:
            log.warning("quarantine_not_read", error=repr(error))


# -- what a person asks


async def show(service: Service) -> QuarantineView:
    store = service.store
    identity, row = identity_of(store), await read(store)
    [(due,)] = await store.fetch("count_due", now=store.now())
    return QuarantineView(
        quarantined=row.quarantined_at is not None,
        quarantined_at=row.quarantined_at,
        reason=row.reason,
        identity=row.identity,
        found=await identity.found(),
        differs=None if row.identity is None else await identity.difference(row.identity),
        due=due,
        changed_at=row.changed_at,
        changed_by=row.changed_by,
    )


async def enter(service: Service, *, reason: str, actor: str) -> bool:
    """Hold the database back. False: it is held back already, for a reason that stays."""
    _check(reason, actor)
    store, now = service.store, service.store.now()
    return await store.change(
        EVERY,
        [
            ("enter_quarantine", {"now": now, "reason": reason, "actor": actor}),
            _audited(now, "quarantine.enter", reason, actor),
        ],
    )


async def lift(service: Service, *, reason: str, actor: str) -> bool:
    """This database is the one from now on, and its workers may claim. False: it was that already."""
    _check(reason, actor)
    store = service.store
    identity = identity_of(store)
    async with identity.alone():
        row = await read(store)
        known = row.identity is not None and await identity.difference(row.identity) is None
        if row.quarantined_at is None and known:
            return False
        # Held back by hand, and no other than it was: then the witness that runs along stays the right one.
        record = row.identity if known else await identity.make()
        now = store.now()
        return await store.change(
            EVERY,
            [
                ("lift_quarantine", {"identity": record, "now": now, "reason": reason, "actor": actor}),
                _audited(now, "quarantine.lift", reason, actor),
            ],
        )


def _check(reason: str, actor: str) -> None:
    if not reason.strip() or not actor.strip():
        raise BadInput("a quarantine is entered and lifted by a named person with a reason: give both")


def _audited(now: int, action: str, reason: str, actor: str) -> tuple[str, dict[str, object]]:
    return audit.entry(EVERY, now, audit.By(actor), action, ("installation", EVERY), {"reason": reason})
