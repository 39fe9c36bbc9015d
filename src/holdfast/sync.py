"""`hf.sync`: the same coroutines for blocking callers (Django, scripts). A loop in a thread, nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.engine.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.app.dead_letters import DeadLetterView
    from holdfast.app.effects import EffectView
    from holdfast.app.instances import HistoryEntry, InstanceView
    from holdfast.app.verify import Verdict
    from holdfast.app.workers import WorkerView
    from holdfast.facade import Effects, Handle, Holdfast, Tenant

T = TypeVar("T")


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

    def cancel(self, reason: str = "", *, actor: str = "") -> None:
        self._sync.run(self._handle.cancel(reason, actor=actor))

    def resume(self, reason: str = "", *, actor: str = "") -> None:
        self._sync.run(self._handle.resume(reason, actor=actor))


class SyncTenant:
    def __init__(self, sync: Sync, tenant: Tenant) -> None:
        self._sync = sync
        self._tenant = tenant

    def start(self, workflow: str, input: Any = None, **options: Any) -> SyncHandle:
        return SyncHandle(self._sync, self._sync.run(self._tenant.start(workflow, input, **options)))

    def start_many(self, workflow: str, inputs: Iterable[Any], **options: Any) -> list[SyncHandle]:
        found = self._sync.run(self._tenant.start_many(workflow, inputs, **options))
        return [SyncHandle(self._sync, handle) for handle in found]

    def instance(self, id: str) -> SyncHandle:
        return SyncHandle(self._sync, self._tenant.instance(id))

    def instances(self, **options: Any) -> list[InstanceView]:
        return self._sync.run(self._tenant.instances(**options))

    def dead_letters(self, **options: Any) -> list[DeadLetterView]:
        return self._sync.run(self._tenant.dead_letters(**options))

    @property
    def effects(self) -> SyncEffects:
        return SyncEffects(self._sync, self._tenant.effects)


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


class Sync:
    """Blocking use: `with hf.sync as sync: sync.start(…)`. Opens the store on a thread of its own."""

    def __init__(self, holdfast: Holdfast) -> None:
        self._holdfast = holdfast
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self, *, migrate: bool = True) -> Sync:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-sync", daemon=True)
            self._thread.start()
            try:
                self.run(self._holdfast.open(migrate=migrate))
            except BaseException:
                self._stop()
                raise
        return self

    def close(self) -> None:
        if self._loop is not None:
            self.run(self._holdfast.close())
            self._stop()

    def _stop(self) -> None:
        assert self._loop is not None and self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = self._thread = None

    def __enter__(self) -> Sync:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread().name == "holdfast-writer":
            coroutine.close()
            raise HoldfastError("a transaction handler cannot call Holdfast: it would wait for itself")
        if self._loop is None:
            coroutine.close()
            raise HoldfastError("the store is not open: use `with hf.sync:` around this call")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

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

    def workers(self, limit: int = 100) -> list[WorkerView]:
        return self.run(self._holdfast.workers(limit))

    def verify(self) -> Verdict:
        return self.run(self._holdfast.verify())
