"""What flow tests share: reading tables, losing a worker the hard way, holding a commit back."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import apsw
import psycopg

from holdfast import Handle
from holdfast.engine.turns import Outcome, Turn
from holdfast.testing import Harness

TABLES = ("instances", "history", "events", "effects", "effect_observations", "dead_letters")


async def types(handle: Handle) -> list[str]:
    return [entry.type for entry in await handle.history()]


async def entries(handle: Handle, type_: str) -> list[Any]:
    return [entry for entry in await handle.history() if entry.type == type_]


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    """Look into the tables from outside; `holdfast.` becomes the table prefix on SQLite."""
    if url.startswith("sqlite:///"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(30_000)  # somebody may be recovering the log of a worker that was killed
        try:
            return list(connection.execute(sql.replace("holdfast.", "holdfast_")))
        finally:
            connection.close()
    with psycopg.connect(url, autocommit=True) as postgres:
        cursor = postgres.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def row_counts(url: str) -> dict[str, int]:
    return {table: query(url, f"select count(*) from holdfast.{table}")[0][0] for table in TABLES}


async def lose_worker(harness: Harness) -> bytes:
    """Make the harness's worker vanish like a killed process: nothing is handed back, nothing more is written."""
    worker = harness.test_worker
    assert worker is not None
    harness.test_worker = None

    async def say_nothing(*_: Any) -> None: ...

    worker.observe = say_nothing  # type: ignore[method-assign]
    worker.stopping = True
    tasks: list[asyncio.Task[Any]] = [*worker._tasks]
    for execution in worker.executions.values():
        execution.abandon()
        tasks += [task for task in execution.running.values() if task is not None]
    for task in tasks:
        task.cancel()
    await worker.committer.stop()
    await asyncio.gather(*tasks, return_exceptions=True)
    await worker.liveness.stop()
    if (file := getattr(worker.liveness, "_file", None)) is not None:
        os.close(file)
    worker.pool.shutdown(wait=False)
    return worker.id


@asynccontextmanager
async def next_worker(harness: Harness, **options: Any) -> AsyncIterator[Harness]:
    """Another Holdfast on the same database, taking over from a lost worker; the clock is the same one."""
    lost = await lose_worker(harness)
    async with Harness(options.pop("app", harness), url=harness.url, clock=harness.clock, **options) as other:
        assert other.test_worker is not None
        await other.service.store.release_worker(lost, other.test_worker.id, stopped=False)
        yield other


async def until(condition: Callable[[], Any], harness: Harness | None = None) -> None:
    """Let things run until `condition` holds; the harness's worker looks around meanwhile."""
    for _ in range(2000):
        if condition():
            return
        if harness is not None and harness.test_worker is not None:
            await harness.test_worker.run_once()
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to pass")


class Gate:
    """Holds back the commits of workers while it is closed. Doors pass."""

    def __init__(self, harness: Harness) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self.held = 0
        self._store = harness.service.store
        self._commit = self._store.commit
        self._store.commit = self.commit  # type: ignore[method-assign]

    async def commit(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome]:
        if worker_id is not None and not self.opened.is_set():
            self.held += len(turns)
            await self.opened.wait()
        return await self._commit(worker_id, turns)


def tamper(url: str, *statements: str) -> None:
    """Somebody with full rights over the database, and no respect."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        for trigger in ("no_update", "no_delete", "no_replace"):
            connection.execute(f"drop trigger if exists holdfast_history_{trigger}")
        for statement in statements:
            connection.execute(statement.replace("holdfast.", "holdfast_"))
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as postgres:
        postgres.execute("set session_replication_role = replica")
        for statement in statements:
            postgres.execute(statement.replace("x'", "'\\x").encode())
