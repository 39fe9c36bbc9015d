"""`hf.sync`: the same coroutines for blocking callers (Django, scripts). A loop in a thread, nothing else.

Opened at the first use and closed at the end of the process, or for the length of a `with` block. A forked child begins
afresh: the parent's loop, thread and store are not the child's.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from holdfast.app.joining import of_driver
from holdfast.engine.errors import HoldfastError
from holdfast.store import inherited

if TYPE_CHECKING:
    from holdfast.app.dead_letters import DeadLetterView
    from holdfast.app.definitions import DefinitionView, MigrationView
    from holdfast.app.effects import EffectView
    from holdfast.app.instances import HistoryEntry, InstanceView
    from holdfast.app.tasks import TaskView
    from holdfast.app.verify import Verdict
    from holdfast.app.workers import WorkerView
    from holdfast.engine.tenants import TenantPolicy
    from holdfast.facade import Definitions, Effects, Handle, Holdfast, Tasks, Tenant

T = TypeVar("T")
END_SECONDS = 5.0  # at the end of a process, for a database that does not answer


class SyncHandle:
    """A `Handle` whose methods block."""

    def __init__(self, sync: Sync, handle: Handle) -> None:
        self._sync = sync
        self._handle = handle
        self.id = handle.id
        self.tenant_id = handle.tenant_id

    def status(self) -> InstanceView:
        return self._sync.run(self._handle.status())

    def history(self, *, after: int = 0) -> list[HistoryEntry]:
        return self._sync.run(self._handle.history(after=after))

    def result(self, timeout: float | None = None) -> Any:
        return self._sync.run(self._handle.result(timeout))

    def signal(self, name: str, payload: Any = None, *, id: str | None = None) -> bool:
        return self._sync.run(self._handle.signal(name, payload, id=id))

    def send(self, event: str, payload: Any = None, **options: Any) -> bool:
        return self._sync.run(self._handle.send(event, payload, **options))

    def snapshot(self) -> dict[str, Any] | None:
        return self._sync.run(self._handle.snapshot())

    def migrate(self, version: int, states: dict[str, str] | None = None, **options: Any) -> MigrationView:
        return self._sync.run(self._handle.migrate(version, states, **options))

    def cancel(self, reason: str = "", *, actor: str = "") -> None:
        self._sync.run(self._handle.cancel(reason, actor=actor))

    def resume(self, reason: str = "", **options: Any) -> None:
        self._sync.run(self._handle.resume(reason, **options))

    def pause(self, reason: str = "", *, actor: str = "") -> None:
        self._sync.run(self._handle.pause(reason, actor=actor))

    def retry(self, reason: str = "", *, actor: str = "") -> SyncHandle:
        return SyncHandle(self._sync, self._sync.run(self._handle.retry(reason, actor=actor)))

    def fork(self, step: str | None = None, **options: Any) -> SyncHandle:
        return SyncHandle(self._sync, self._sync.run(self._handle.fork(step, **options)))

    def why(self) -> str:
        return self._sync.run(self._handle.why())


class SyncTenant:
    def __init__(self, sync: Sync, tenant: Tenant) -> None:
        self._sync = sync
        self._tenant = tenant

    def start(self, workflow: str, input: Any = None, **options: Any) -> SyncHandle:
        if options.get("connection") is not None:
            options["connection"] = of_driver(options["connection"])
        return SyncHandle(self._sync, self._sync.run(self._tenant.start(workflow, input, **options)))

    def start_many(self, workflow: str, inputs: Iterable[Any], **options: Any) -> list[SyncHandle]:
        found = self._sync.run(self._tenant.start_many(workflow, inputs, **options))
        return [SyncHandle(self._sync, handle) for handle in found]

    def instance(self, id: str) -> SyncHandle:
        self._sync.ready()
        return SyncHandle(self._sync, self._tenant.instance(id))

    def instances(self, **options: Any) -> list[InstanceView]:
        return self._sync.run(self._tenant.instances(**options))

    def dead_letters(self, **options: Any) -> list[DeadLetterView]:
        return self._sync.run(self._tenant.dead_letters(**options))

    @property
    def effects(self) -> SyncEffects:
        return SyncEffects(self._sync, self._tenant.effects)

    @property
    def definitions(self) -> SyncDefinitions:
        return SyncDefinitions(self._sync, self._tenant.definitions)

    @property
    def tasks(self) -> SyncTasks:
        return SyncTasks(self._sync, self._tenant.tasks)

    def send(self, instance: str, event: str, payload: Any = None, **options: Any) -> bool:
        return self._sync.run(self._tenant.send(instance, event, payload, **options))

    def policy(self) -> TenantPolicy:
        return self._sync.run(self._tenant.policy())

    def set_policy(self, **options: Any) -> TenantPolicy:
        return self._sync.run(self._tenant.set_policy(**options))


class SyncEffects:
    """The effect desk for blocking callers."""

    def __init__(self, sync: Sync, effects: Effects) -> None:
        self._sync = sync
        self._effects = effects

    def list(self, **options: Any) -> list[EffectView]:
        return self._sync.run(self._effects.list(**options))

    def show(self, effect: str) -> EffectView:
        return self._sync.run(self._effects.show(effect))

    def resolve(self, effect: str, resolution: str, *, actor: str, reason: str, **options: Any) -> None:
        self._sync.run(self._effects.resolve(effect, resolution, actor=actor, reason=reason, **options))


class SyncDefinitions:
    """Published definitions for blocking callers."""

    def __init__(self, sync: Sync, definitions: Definitions) -> None:
        self._sync = sync
        self._definitions = definitions

    def publish(self, spec: Any, **options: Any) -> DefinitionView:
        return self._sync.run(self._definitions.publish(spec, **options))

    def list(self, **options: Any) -> list[DefinitionView]:
        return self._sync.run(self._definitions.list(**options))

    def show(self, key: str, version: int | None = None) -> DefinitionView:
        return self._sync.run(self._definitions.show(key, version))

    def set_status(self, key: str, version: int, status: str, **options: Any) -> DefinitionView:
        return self._sync.run(self._definitions.set_status(key, version, status, **options))


class SyncTasks:
    """The inbox for blocking callers."""

    def __init__(self, sync: Sync, tasks: Tasks) -> None:
        self._sync = sync
        self._tasks = tasks

    def list(self, **wanted: Any) -> list[TaskView]:
        return self._sync.run(self._tasks.list(**wanted))

    def show(self, task: str) -> TaskView:
        return self._sync.run(self._tasks.show(task))

    def claim(self, task: str, *, actor: str) -> TaskView:
        return self._sync.run(self._tasks.claim(task, actor=actor))

    def unclaim(self, task: str, *, actor: str) -> TaskView:
        return self._sync.run(self._tasks.unclaim(task, actor=actor))

    def complete(self, task: str, output: Any = None, *, actor: str, reason: str = "") -> TaskView:
        return self._sync.run(self._tasks.complete(task, output, actor=actor, reason=reason))

    def fail(self, task: str, *, actor: str, reason: str) -> TaskView:
        return self._sync.run(self._tasks.fail(task, actor=actor, reason=reason))


class Sync:
    """Blocking use: `hf.sync.start(…)`. The store opens at the first call, on a thread of its own, and is closed at the
    end of the process; `with hf.sync as sync:` closes it at the end of the block. Any thread may call."""

    def __init__(self, holdfast: Holdfast) -> None:
        self._holdfast = holdfast
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._blocks = 0  # `with` blocks that have begun
        self._stays = False  # open until `close` or the end of the process, not only until the last block ends
        ALL.add(self)

    def open(self, *, migrate: bool = True) -> Sync:
        """Open now and stay open until `close` or the end of the process."""
        with self._lock:
            self._begin(migrate=migrate)
            self._stays = True
        return self

    def close(self) -> None:
        with self._lock:
            self._end()

    def __enter__(self) -> Sync:
        with self._lock:
            self._begin()
            self._blocks += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks <= 0 and not self._stays:
                self._end()

    def ready(self) -> asyncio.AbstractEventLoop:
        """The loop to ask, opened if nobody has. Refused where the caller would wait for itself."""
        if threading.current_thread().name == "holdfast-writer":
            raise HoldfastError("a transaction handler cannot call Holdfast: it would wait for itself")
        loop = self._loop
        if loop is None:
            with self._lock:
                if self._holdfast.loop is None:
                    self._begin()
                    self._stays = True
                loop = self._loop or self._holdfast.loop
        assert loop is not None
        if _running_loop() is loop:
            raise HoldfastError(
                "hf.sync was called on the event loop that Holdfast runs on, and would wait for itself: await the same "
                "call on hf, or make this one in a thread, asyncio.to_thread(…)"
            )
        return loop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self.ready()
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    def _begin(self, *, migrate: bool = True) -> None:
        if self._loop is not None or self._holdfast.loop is not None:
            return  # open already; an `async with hf:` of this process has a loop that serves us too
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(loop,), name="holdfast-sync", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._holdfast.open(migrate=migrate), loop).result()
        except BaseException:
            _stop(loop, thread)
            raise
        self._loop, self._thread = loop, thread  # from here on other threads use them without the lock
        OPEN.add(self)

    def _end(self, timeout: float | None = None) -> None:
        self._stays = False
        OPEN.discard(self)
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            try:
                asyncio.run_coroutine_threadsafe(self._holdfast.close(), loop).result(timeout)
            finally:
                _stop(loop, thread, timeout)

    def at_exit(self) -> None:
        with contextlib.suppress(Exception):
            self._end(END_SECONDS)

    def left_behind(self) -> None:
        """In a forked child."""
        inherited.keep_for_ever(self._loop, self._thread)
        self._loop = self._thread = None
        self._lock = threading.Lock()  # another thread of the parent may have held the old one
        self._stays = False

    # -- the same names as Holdfast

    def tenant(self, tenant_id: str) -> SyncTenant:
        return SyncTenant(self, self._holdfast.tenant(tenant_id))

    def start(self, workflow: str, input: Any = None, *, tenant: str = "default", **options: Any) -> SyncHandle:
        return self.tenant(tenant).start(workflow, input, **options)

    def start_many(
        self, workflow: str, inputs: Iterable[Any], *, tenant: str = "default", **options: Any
    ) -> list[SyncHandle]:
        return self.tenant(tenant).start_many(workflow, inputs, **options)

    def instance(self, id: str, *, tenant: str = "default") -> SyncHandle:
        return self.tenant(tenant).instance(id)

    def instances(self, *, tenant: str = "default", **options: Any) -> list[InstanceView]:
        return self.tenant(tenant).instances(**options)

    def dead_letters(self, *, tenant: str = "default", **options: Any) -> list[DeadLetterView]:
        return self.tenant(tenant).dead_letters(**options)

    @property
    def effects(self) -> SyncEffects:
        return self.tenant("default").effects

    @property
    def definitions(self) -> SyncDefinitions:
        return self.tenant("default").definitions

    @property
    def tasks(self) -> SyncTasks:
        return self.tenant("default").tasks

    def publish(self, spec: Any, *, tenant: str = "default", **options: Any) -> DefinitionView:
        return self.tenant(tenant).definitions.publish(spec, **options)

    def send(self, instance: str, event: str, payload: Any = None, *, tenant: str = "default", **options: Any) -> bool:
        return self.tenant(tenant).send(instance, event, payload, **options)

    def workers(self, limit: int = 100) -> list[WorkerView]:
        return self.run(self._holdfast.workers(limit))

    def verify(self) -> Verdict:
        return self.run(self._holdfast.verify())


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, timeout: float | None = None) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        # Of a close that was given up: a pending task that is freed would say so on standard error.
        loop.run_until_complete(_cancel_all())
        loop.close()


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


ALL: WeakSet[Sync] = WeakSet()
OPEN: set[Sync] = set()  # held, so that each lives until it is closed


def _at_exit() -> None:
    for sync in list(OPEN):
        sync.at_exit()


def _forked() -> None:
    OPEN.clear()
    for sync in list(ALL):
        sync.left_behind()


atexit.register(_at_exit)
inherited.in_child(_forked)
