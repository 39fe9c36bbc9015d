"""The store at the doors of PostgreSQL: a statement runs as `holdfast_door`, in a transaction that names its tenant.

The statements name their tenant too; that is the first wall. Here is the second: what a statement forgets to say, the
database adds, because row-level security shows this role the rows of one tenant only. It knows nothing of turns: a
door commits facts, and whatever a worker does is refused here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import structlog

from holdfast.engine import ids
from holdfast.engine.errors import StoreUnavailable
from holdfast.engine.turns import Outcome, Turn
from holdfast.store.batch import Batch
from holdfast.store.faults import unreachable
from holdfast.store.port import Place
from holdfast.store.postgres import WRITER_SETTINGS, NothingChanged, PostgresStore, changed, run_all, shown_url
from holdfast.store.statements import statement, texts

log = structlog.get_logger("holdfast.doors")
ROLE = "holdfast_door"
SHARED_MAX = 32  # single statements in one transaction
Waiting = tuple[str, tuple[Any, ...], "asyncio.Future[int]"]
# What may be asked without a tenant. Where a statement has that name with `door_` before it, that one is run: it goes
# through a function that answers numbers.
UNBOUND = {
    "read_clock", "read_heartbeat", "read_installation", "database_version", "read_wall", "list_workers",
    "count_backlog", "count_ways_in", "queue_heads", "queue_depths", "count_open_dead_letters", "count_unknown_effects",
    "count_parked",
    "bury_requests", "remove_tombstones", "count_ahead", "working_workers", "quarantined_since",
}  # fmt: skip


class NotForDoors(AssertionError):
    """A broken promise of our own: something was asked at a door that names no tenant, or that only workers do."""


class DoorStore(PostgresStore):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._as_door = ""
        self._waiting: dict[str, list[Waiting]] = {}  # single statements, by tenant
        self._writing: dict[str, asyncio.Task[None]] = {}

    async def _face_the_wall(self) -> None:
        up, _, door, _ = await self._wall()
        if not up:
            log.warning("no_row_level_security", database=shown_url(self.url))
            return
        if not door:
            raise StoreUnavailable(f"the login of {shown_url(self.url)} cannot act as a door: grant {ROLE} to it")
        self.settings = WRITER_SETTINGS | {"role": ROLE}
        # Said again in every transaction: a pooler may drop what a connection was opened with.
        self._as_door = f"set local role {ROLE}; "

    # -- statements

    async def fetch(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        if "tenant_id" not in statement(name, "postgres").parameters:
            return await super().fetch(self._unbound(name), **values)
        return await self._fetch_of(values["tenant_id"], name, **values)

    async def write(self, name: str, /, **values: Any) -> int:
        found = statement(name, "postgres")
        if "tenant_id" not in found.parameters:
            asked = self._unbound(name)
            if asked == name:
                return await super().write(name, **values)
            [(count,)] = await super().fetch(asked, **values)  # its function says how many rows it changed
            return int(count)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        tenant_id = values["tenant_id"]
        self._waiting.setdefault(tenant_id, []).append((found.sql, found.bind(values), answer))
        if tenant_id not in self._writing:
            self._writing[tenant_id] = asyncio.create_task(self._write_all(tenant_id))
        return await answer

    async def _write_all(self, tenant_id: str) -> None:
        """Single statements of a tenant that wait at the same time share a transaction, its round trips and its way to
        the disk. Each has its own answer."""
        try:
            while waiting := self._waiting.pop(tenant_id, None):
                for at in range(0, len(waiting), SHARED_MAX):
                    await self._write_together(tenant_id, waiting[at : at + SHARED_MAX])
        finally:
            del self._writing[tenant_id]

    async def _write_together(self, tenant_id: str, waiting: Sequence[Waiting]) -> None:
        counts: list[int] = []
        try:
            async with self._pool.acquire() as connection, self._bound(connection, self._tenant(tenant_id)):
                for sql, bound, _ in waiting:
                    counts.append(changed(await connection.execute(sql, *bound)))
        except asyncpg.PostgresError as error:
            # One is refused, and the transaction with it: nothing of it is there. Not so if the server went away.
            if len(waiting) > 1 and not unreachable(error):
                for one in waiting:
                    await self._write_together(tenant_id, [one])
                return
            _tell(waiting, error)
        except BaseException as error:
            _tell(waiting, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, _, answer), count in zip(waiting, counts, strict=True):
                if not answer.done():
                    answer.set_result(count)

    async def change(
        self, tenant_id: str, statements: Sequence[tuple[str, dict[str, Any]]], *, guards: int = 1
    ) -> bool:
        try:
            async with self._pool.acquire() as connection, self._bound(connection, self._tenant(tenant_id)):
                await run_all(connection, tenant_id, statements, guards)
        except NothingChanged:
            return False
        return True

    async def fetch_key(self, hash: bytes) -> list[tuple[Any, ...]]:
        found = statement("find_api_key", "postgres")
        shown = f"set local holdfast.key_hash = '{bytes(hash).hex()}'"
        async with self._pool.acquire() as connection, self._bound(connection, shown):
            return list(await connection.fetch(found.sql, *found.bind({"hash": hash})))

    async def _fetch_of(self, tenant_id: str, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        found = statement(name, "postgres")
        async with self._pool.acquire() as connection, self._bound(connection, self._tenant(tenant_id)):
            return list(await connection.fetch(found.sql, *found.bind(values)))

    def _unbound(self, name: str) -> str:
        if name not in UNBOUND:
            raise NotForDoors(f"{name} names no tenant, and is not among what a door may ask without one")
        return f"door_{name}" if self._as_door and f"door_{name}" in texts("postgres") else name

    @staticmethod
    def _tenant(tenant_id: str) -> str:
        # Written into the text, so that it goes with BEGIN in one round trip: the check leaves nothing to quote.
        return f"set local holdfast.tenant = '{ids.check_tenant(tenant_id)}'"

    @asynccontextmanager
    async def _bound(self, connection: Any, binding: str) -> AsyncIterator[None]:
        """A transaction of the door's role with this binding. Committed at the end of the block."""
        try:
            await connection.execute(f"begin; {self._as_door}{binding}")
            yield
            await connection.execute("commit")
        except (asyncpg.PostgresError, asyncpg.InterfaceError, NothingChanged):
            await self._roll_back(connection)
            raise
        except BaseException:
            connection.terminate()  # nobody knows how far it came
            raise

    @staticmethod
    async def _roll_back(connection: Any) -> None:
        """Nothing is on its way to the server, so the session is good for others once this transaction is gone."""
        try:
            await connection.execute("rollback")
        except BaseException:
            connection.terminate()

    # -- turns

    async def commit(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome]:
        """One transaction for each tenant. All are tried before an error of one is raised: whoever asked looks for
        each turn then, and finds those of the other tenants."""
        if worker_id is not None:
            raise NotForDoors("a door commits facts; turns are a worker's")
        return await self._by_tenant(turns, self._commit_of)

    async def _commit_of(self, tenant_id: str, turns: Sequence[Turn]) -> list[Outcome]:
        batch = Batch(turns)
        async with self._writer() as commits, self._bound(commits.connection, self._tenant(tenant_id)):
            found = await commits.join(None, batch, self.now())
        return await self._outcomes(None, batch, found)

    async def look_up(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome | None]:
        return await self._by_tenant(turns, self._look_up_of)

    async def _look_up_of(self, tenant_id: str, turns: Sequence[Turn]) -> list[Outcome | None]:
        async def fetch(name: str, /, **values: Any) -> list[tuple[Any, ...]]:
            return await self._fetch_of(tenant_id, name, **values)

        return await self._look_up(fetch, None, turns)

    @staticmethod
    async def _by_tenant(turns: Sequence[Turn], work: Callable[[str, Sequence[Turn]], Any]) -> list[Any]:
        """The answers to all turns in their order, asked for tenant by tenant."""
        places: dict[str, list[int]] = {}
        for number, turn in enumerate(turns):
            places.setdefault(turn.tenant_id, []).append(number)
        answers = await asyncio.gather(
            *(work(tenant_id, [turns[n] for n in numbers]) for tenant_id, numbers in places.items()),
            return_exceptions=True,
        )
        found: dict[int, Any] = {}
        for numbers, answer in zip(places.values(), answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            found.update(zip(numbers, answer, strict=True))
        return [found[n] for n in range(len(turns))]

    # -- what only workers do

    async def commit_alone(self, *_: Any, **__: Any) -> Outcome:
        raise NotForDoors("a transaction step is a worker's")

    async def release_on(self, *_: Any, **__: Any) -> int:
        raise NotForDoors("a door fences nobody")

    async def pending_events(self, *_: Any, **__: Any) -> Any:
        raise NotForDoors("events are read by whoever holds the claim")

    async def claim(self, *_: Any, **__: Any) -> Any:
        raise NotForDoors("a door claims nothing")

    async def next_due(self, definitions: Sequence[Place], queue: str) -> int | None:
        raise NotForDoors("a door has nothing to do that falls due")


def _tell(waiting: Sequence[Waiting], error: BaseException) -> None:
    for _, _, answer in waiting:
        if not answer.done():
            answer.set_exception(error if isinstance(error, Exception) else ConnectionError("the store was closed"))
