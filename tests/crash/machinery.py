"""Stops the engine at a chosen store call, or makes that call fail, and plays a scenario to its end all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.engine.effects import LEASE
from holdfast.testing import Harness, ManualClock
from tests.crash.scenarios import Scenario, World

WRITES = ("commit", "commit_alone", "claim", "write", "release_worker")
READS = ("fetch", "look_up", "pending_events", "next_due", "worker_gone")


class Fault(Exception):
    """A store call failed, or its answer was lost."""


class StillLiveness:
    """A worker whose death is announced by the test, not found out by a clock."""

    def __init__(self, store: Any, worker_id: bytes) -> None:
        self.store = store
        self.word = "0"

    async def acquire(self) -> None: ...

    def start(self, fenced: Callable[[], None]) -> None: ...

    def lease_end(self) -> int:
        return int(self.store.now()) + LEASE

    async def stop(self) -> None: ...

    async def forget(self) -> None: ...


class Meddler:
    """Counts store calls, and meddles with one of them."""

    def __init__(self, methods: tuple[str, ...], at: int | None, how: str) -> None:
        self.methods = methods
        self.at = at  # which call, from 1
        self.how = how  # crash_before | crash_after | fail | lost_reply
        self.names: list[str] = []  # of all calls so far
        self.met = ""
        self.died = asyncio.Event()

    @property
    def calls(self) -> int:
        return len(self.names)

    def wrap(self, store: Any) -> Any:
        return MeddledStore(store, self)

    async def silence(self) -> None:
        """The process is dead: it neither writes nor reads nor answers any more."""
        self.died.set()
        await asyncio.Event().wait()

    async def around(self, name: str, call: Callable[[], Any]) -> Any:
        if self.died.is_set():
            await self.silence()
        self.names.append(name)
        if self.calls != self.at:
            return await call()
        self.met = name
        if self.how == "crash_before":
            await self.silence()
        if self.how == "fail":
            raise Fault(f"call {self.at} ({name}) failed")
        answer = await call()
        if self.how == "crash_after":
            await self.silence()
        del answer
        raise TimeoutError(f"call {self.at} ({name}) was done, its answer was lost")


class MeddledStore:
    def __init__(self, store: Any, meddler: Meddler) -> None:
        self._store = store
        self._meddler = meddler

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in self._meddler.methods:
            return found

        async def meddled(*args: Any, **options: Any) -> Any:
            return await self._meddler.around(name, lambda: found(*args, **options))

        return meddled

    @property
    def clock(self) -> Any:
        return self._store.clock


class Stage:
    """One scenario on one database: harnesses come and go, world and clock stay."""

    def __init__(self, scenario: Scenario, url: str | None, tenant: str, folder_url: str) -> None:
        self.scenario = scenario
        self.url = url or folder_url
        self.dialect = "postgres" if self.url.startswith("postgres") else "sqlite"
        self.world = World(tenant)
        self.clock = ManualClock()
        self.app = scenario.app(self.world, self.dialect)

    def harness(self, meddler: Meddler | None) -> Harness:
        made: dict[str, Any] = {}

        def wrap(store: Any) -> Any:
            made["store"] = store
            return meddler.wrap(store) if meddler is not None else store

        return Harness(
            self.app,
            url=self.url,
            clock=self.clock,
            wrap_store=wrap,
            liveness=lambda worker_id: StillLiveness(made["store"], worker_id),
        )

    async def take_over(self, test: Harness) -> None:
        """What the liveness check does when it finds workers dead: fence them and put their instances back."""
        worker = test.test_worker
        assert worker is not None
        for worker_id, _, _ in await test.service.store.fetch("unfenced_workers", worker_id=worker.id):
            await test.service.store.release_worker(worker_id, worker.id, stopped=False)

    async def play(self, meddler: Meddler | None) -> dict[str, Any]:
        """Play to the end; after a crash or an error open again and play again, as a careful caller would."""
        for _ in range(12):
            current = meddler if meddler is None or not meddler.met else None
            test = self.harness(current)
            playing = asyncio.create_task(self._play_once(test))
            dying = asyncio.create_task((current.died if current is not None else asyncio.Event()).wait())
            await asyncio.wait({playing, dying}, return_when=asyncio.FIRST_COMPLETED)
            dying.cancel()
            if not playing.done():
                await kill(test, playing)
                continue
            error = playing.exception()
            if error is None:
                return playing.result()
            await kill(test, playing)
            if not isinstance(error, (Fault, TimeoutError)) and not isinstance(error.__cause__, (Fault, TimeoutError)):
                raise error
        raise AssertionError("did not get through in 12 tries")

    async def _play_once(self, test: Harness) -> dict[str, Any]:
        await test.open()
        await self.take_over(test)
        await self.scenario.play(test, self.world)
        ending = await self.ending(test)
        await test.close()
        return ending

    async def ending(self, test: Harness) -> dict[str, Any]:
        tenant = test.tenant(self.world.tenant)
        found = {}
        for view in await tenant.instances(limit=100):
            error = view.error["message"] if isinstance(view.error, dict) else view.error
            name = f"{view.workflow}/{view.input!r}/{view.business_key}"  # a fork has another's workflow and input
            found[name] = [view.status, comparable(view.result), error, view.compensation]
        return found


def comparable(result: Any) -> Any:
    """Random values differ from run to run; that they are journaled is another test's business."""
    if isinstance(result, dict):
        return {key: value for key, value in result.items() if key not in ("lucky", "id")}
    return result


async def kill(test: Harness, playing: asyncio.Task[Any]) -> None:
    """End the dead process's tasks and connections. Nothing of it may reach the database any more."""
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    worker = test.test_worker
    service = test._service
    if worker is not None:
        worker.stopping = True
        for execution in list(worker.executions.values()):
            execution.abandoned = True
        tasks = list(worker._tasks)
        for execution in worker.executions.values():
            tasks += [t for t in execution.running.values() if t is not None]
        for task in tasks:
            task.cancel()
        if hasattr(worker, "committer"):
            await worker.committer.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        worker.pool.shutdown(wait=True)
        for execution in list(worker.executions.values()):
            execution.close()
    if service is not None:
        await service.committer.stop()
        store = getattr(service.store, "_store", service.store)
        await store.close()
    test._service = None
