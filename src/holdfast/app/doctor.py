"""`doctor`: what is well, what is doubtful, what is broken, and what to do about it.

Here is what this machine and the database can tell; `handlers/probe.py` asks the mail server and the model.
Nothing is changed anywhere.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
import zoneinfo
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.app import quarantine
from holdfast.app.workers import list_workers
from holdfast.store.postgres import PostgresStore
from holdfast.store.statements import statement

if TYPE_CHECKING:
    from holdfast.app.service import Service
    from holdfast.store.port import Store

State = Literal["ok", "warn", "fail"]
PYTHON_MIN = (3, 11)
SQLITE_SAFE = (3, 51, 3)  # before it, a checkpoint at the wrong moment may corrupt a file in WAL mode
POSTGRES_MIN = 140_000
CLOCK_SECONDS = 2.0
DISK_FEW, DISK_TOO_FEW = 1 << 30, 64 << 20
CHECK_SECONDS = 20.0
PARKED_MAX = 10_000
NETWORK_FILE_SYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "fuse.sshfs",
    "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "virtiofs",
})  # fmt: skip


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    state: State
    found: str
    what_to_do: str = ""


Examination = tuple[str, Callable[[], Awaitable[Check]]]


async def examine(name: str, look: Callable[[], Awaitable[Check]]) -> Check:
    """Whatever goes wrong while looking is itself what was found."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            return await look()
    except TimeoutError:
        return Check(check=name, state="fail", found=f"no answer in {CHECK_SECONDS:g} s", what_to_do="look there first")
    except Exception as error:
        return Check(check=name, state="fail", found=f"{type(error).__name__}: {error}", what_to_do="mend that first")


# -- this machine


async def python() -> Check:
    found = sys.version.split()[0]
    if sys.version_info < PYTHON_MIN:
        return Check(check="python", state="fail", found=found, what_to_do="install Python 3.11 or newer")
    return Check(check="python", state="ok", found=found)


async def time_zones() -> Check:
    known = len(zoneinfo.available_timezones())
    try:
        zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError:
        return Check(
            check="time zones", state="fail", found="no time zone data: timers by calendar cannot be reckoned",
            what_to_do="install the system's tzdata, or `pip install tzdata`",
        )  # fmt: skip
    return Check(check="time zones", state="ok", found=f"{known:,} zones")


def file_system_of(path: Path, mounts: str) -> str:
    """The type of the file system that a path is on, by /proc/self/mountinfo; "" where it does not say."""
    best, found = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) < 5 or not kind:
            continue
        point = Path(fields[4].encode().decode("unicode_escape"))
        if (point == path or point in path.parents) and len(point.parts) >= best:
            best, found = len(point.parts), kind
    return found


async def disk(path: Path, free: int | None = None) -> Check:
    free = shutil.disk_usage(path.parent).free if free is None else free
    state: State = "fail" if free < DISK_TOO_FEW else "warn" if free < DISK_FEW else "ok"
    words = "" if state == "ok" else "make room: a commit that finds the disk full fails, and workers try it again"
    return Check(check="disk space", state=state, found=f"{free / (1 << 30):,.1f} GiB free", what_to_do=words)


async def file_system(path: Path, mounts: str | None = None) -> Check:
    if mounts is None:
        source = Path("/proc/self/mountinfo")
        mounts = source.read_text() if source.exists() else ""
    kind = file_system_of(path.resolve(), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        return Check(
            check="file system", state="warn", found=f"{path.name} is on {kind}, a network file system",
            what_to_do="move it to a local disk, or use PostgreSQL: locks are not kept there, and commits may be lost",
        )  # fmt: skip
    return Check(check="file system", state="ok", found=kind or "cannot be told on this system")


# -- the database


def of_database(service: Service) -> Iterator[Examination]:
    """What to look at once the store is open."""
    store = service.store
    yield "database version", lambda: version(store)
    if store.dialect == "sqlite":
        path = Path(store.url.removeprefix("sqlite:///")).absolute()
        yield "disk space", lambda: disk(path)
        yield "file system", lambda: file_system(path)
    else:
        yield "pooler", lambda: pooler(store)
        yield "tenant wall", lambda: wall(store)
    yield "clock", lambda: clock(store)
    yield "workers", lambda: workers(service)
    yield "quarantine", lambda: held_back(service)
    yield "dead letters", lambda: dead_letters(store)
    yield "unknown effects", lambda: unknown_effects(store)
    yield "parked", lambda: parked(store)


async def version(store: Store) -> Check:
    if store.dialect == "sqlite":
        [(number,)], [(mode,)] = await store.fetch("database_version"), await store.fetch("journal_mode")
        return judge_sqlite(number, mode)
    [(number, words)] = await store.fetch("database_version")
    return judge_postgres(number, words)


def judge_sqlite(number: str, mode: str) -> Check:
    found = f"SQLite {number}, journal {mode}"
    if mode.lower() != "wal":
        return Check(
            check="database version", state="fail", found=found,
            what_to_do="set the journal mode to WAL: nothing else may have the file open in another mode",
        )  # fmt: skip
    if tuple(int(part) for part in number.split(".")) < SQLITE_SAFE:
        return Check(
            check="database version", state="warn", found=found,
            what_to_do="upgrade apsw: SQLite before 3.51.3 may corrupt a file when its log is reset",
        )  # fmt: skip
    return Check(check="database version", state="ok", found=found)


def judge_postgres(number: int, words: str) -> Check:
    found = " ".join(words.split()[:2])
    if number < POSTGRES_MIN:
        return Check(
            check="database version", state="fail", found=found, what_to_do="upgrade to PostgreSQL 14 or newer"
        )
    return Check(check="database version", state="ok", found=found)


async def pooler(store: Store) -> Check:
    """Two sessions that are open at once have two processes on the server, unless somebody between hands out one."""
    assert isinstance(store, PostgresStore)
    sessions: list[Any] = []
    try:
        for _ in range(2):
            sessions.append(await store.connect())
        pids = [await one.fetchval(statement("backend_pid", "postgres").sql) for one in sessions]
        return judge_sessions(pids, store.session_locks)
    finally:
        for one in sessions:
            await one.close()


def judge_sessions(pids: list[int], session_locks: bool) -> Check:
    if len(set(pids)) < len(pids):
        return Check(
            check="pooler", state="fail" if session_locks else "warn",
            found="two sessions share one server process: a pooler in transaction mode",
            what_to_do="connect directly, or set the pooler to session mode: workers would take each other for dead",
        )  # fmt: skip
    return Check(check="pooler", state="ok", found="none, or in session mode")


async def wall(store: Store) -> Check:
    [(enabled, forced, roles)] = await store.fetch("read_wall")
    return judge_wall(enabled, forced, roles)


def judge_wall(enabled: bool, forced: bool, roles: int) -> Check:
    missing = [
        words
        for words, there in (
            ("row-level security is off", enabled),
            ("the tables' owner is not held to it", forced),
            ("the roles holdfast_door and holdfast_worker are missing", roles == 2),
        )
        if not there
    ]
    if missing:
        return Check(
            check="tenant wall", state="warn", found="; ".join(missing),
            what_to_do="run `holdfast migrate` as a user who may create roles: statements name their tenant all the "
            "same, this is the second wall",
        )  # fmt: skip
    return Check(check="tenant wall", state="ok", found="row-level security is on and forced; both roles are there")


async def clock(store: Store) -> Check:
    if store.dialect == "sqlite":
        return Check(check="clock", state="ok", found="the machine's own")
    before = time.time()
    [(micros,)] = await store.fetch("read_clock")
    after = time.time()
    return judge_clock(micros / 1_000_000, before, after)


def judge_clock(database: float, before: float, after: float) -> Check:
    """The database read its clock some time between: what lies in there is no difference."""
    off = database - after if database > after else min(database - before, 0.0)
    if abs(off) > CLOCK_SECONDS:
        return Check(
            check="clock", state="warn", found=f"the database is {off:+.1f} s off this machine",
            what_to_do="keep both by NTP: the database's time counts, but logs and providers have the other",
        )  # fmt: skip
    return Check(check="clock", state="ok", found=f"within {CLOCK_SECONDS:g} s of the database")


async def workers(service: Service) -> Check:
    found = await list_workers(service, 1000)
    live, gone = (sum(1 for one in found if one.state == state) for state in ("live", "gone"))
    words = f"{live} live" + (f", {gone} dead and not taken over yet" if gone else "")
    if not live:
        return Check(check="workers", state="warn", found=words, what_to_do="start one: `holdfast worker --app …`")
    return Check(check="workers", state="ok", found=words)


async def held_back(service: Service) -> Check:
    view = await quarantine.show(service)
    if view.quarantined:
        return Check(
            check="quarantine", state="fail", found=f"held back: {view.reason}", what_to_do=quarantine.WHAT_TO_DO
        )
    if view.differs:
        return Check(
            check="quarantine", state="fail", found=f"the next worker will hold it back: {view.differs}",
            what_to_do=quarantine.WHAT_TO_DO,
        )  # fmt: skip
    return Check(check="quarantine", state="ok", found="not held back")


async def dead_letters(store: Store) -> Check:
    [(count,)] = await store.fetch("doctor_dead_letters")
    if count:
        return Check(check="dead letters", state="warn", found=f"{count:,} open", what_to_do="look at each of them")
    return Check(check="dead letters", state="ok", found="none")


async def unknown_effects(store: Store) -> Check:
    [(count,)] = await store.fetch("doctor_unknown_effects")
    if count:
        return Check(
            check="unknown effects", state="warn", found=f"{count:,} wait for a person",
            what_to_do="`holdfast effects list` shows them",
        )  # fmt: skip
    return Check(check="unknown effects", state="ok", found="none")


async def parked(store: Store) -> Check:
    [(count,)] = await store.fetch("count_parked", limit=PARKED_MAX)
    if count:
        more = "at least " if count >= PARKED_MAX else ""
        which = "1 instance stands" if count == 1 else f"{more}{count:,} instances stand"
        return Check(
            check="parked", state="warn", found=f"{which} still until something is mended",
            what_to_do="`holdfast instances why INSTANCE` says what; then deploy, and `holdfast resume INSTANCE`",
        )  # fmt: skip
    return Check(check="parked", state="ok", found="none")
