"""For your own tests: a Holdfast on a temporary SQLite with a clock you move, and a provider that remembers.

async with Harness(hf) as test:                     # the workflows of your app, a fresh store
    handle = await test.start("refund", order)
    await test.run_until_idle()
    await test.advance(days=14)
    assert (await handle.status()).status == "completed"
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast import settings
from holdfast.app import history_file as files
from holdfast.app.registry import OURS, Definition, no_function
from holdfast.app.rehearsal import Rehearsed
from holdfast.engine.codec import PAYLOAD_LIMIT
from holdfast.engine.errors import BadInput, NotApplied, Rejected
from holdfast.facade import Handle, Holdfast, make_store
from holdfast.handlers.mailbox import FileMailbox
from holdfast.handlers.script import ScriptedLlm
from holdfast.handlers.secrets import DictSecrets
from holdfast.outside import Outside
from holdfast.tracing import tracing_by
from holdfast.worker.liveness import liveness_for
from holdfast.worker.rehearsal import rehearse, told
from holdfast.worker.worker import Worker

EPOCH = datetime(2026, 1, 1, 9, 0, tzinfo=UTC)
TURNS_LIMIT = 100_000
STILL_SECONDS = 5.0
IN_VAIN = (
    "no worker here is busy and the test's clock stands still, so it never ends by itself; "
    "`await test.finish(handle)` moves the clock until it has ended, `await test.advance(…)` as far as you say"
)
RAISED_KEPT = 1_000  # exceptions of instances that failed, for the `__cause__` of what `handle.result()` raises


class ManualClock:
    """Time that stands still until it is moved."""

    def __init__(self, at: datetime = EPOCH) -> None:
        self.micros = round(at.timestamp() * 1_000_000)

    def __call__(self) -> int:
        return self.micros

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.micros / 1_000_000, UTC)

    def move(self, span: timedelta) -> None:
        if span < timedelta(0):
            raise ValueError("the clock only moves forward")
        self.micros += round(span.total_seconds() * 1_000_000)


class Harness(Holdfast):
    """A Holdfast for tests. Nothing happens unless `run_until_idle()` or `advance(…)` is called.

    Every wake replays its body, so that a test finds what would not replay. `kept`: as of `hf.worker(…)`."""

    def __init__(
        self, app: Holdfast | None = None, *, url: str | None = None, clock: ManualClock | None = None, seed: int = 1,
        wrap_store: Callable[[Any], Any] | None = None, liveness: Callable[[bytes], Any] | None = None,
        verbose: bool = False, outside: Outside | None = None, kept: int = 0,
    ) -> None:  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-test-")
        super().__init__(
            url or f"sqlite:///{Path(self._folder.name) / 'test.db'}",
            registry=app.registry if app else None,
            payload_limit=app.payload_limit if app else PAYLOAD_LIMIT,
            outside=outside or (app.outside if app else None),
        )
        self.clock = clock or ManualClock()
        self._seed = seed
        self._wrap = wrap_store
        self._liveness = liveness
        self._verbose = verbose
        self._kept = kept
        self.test_worker: Worker | None = None
        self._passes = 0
        self._seen, self._seen_at = (-1, -1), 0.0

    def _make_store(self) -> Any:
        store = make_store(self.url)
        store.clock = self.clock
        return self._wrap(store) if self._wrap is not None else store

    async def open(self, *, migrate: bool = True) -> None:
        await super().open(migrate=migrate)
        service = self.service
        service.waiters.keep_raised, service.waiters.keep_locals = RAISED_KEPT, True
        service.waiters.in_vain = self._in_vain
        self.test_worker = Worker(
            service.store, service.registry, self._liveness or liveness_for(service.store),
            payload_limit=service.payload_limit, on_ended=service.waiters.ended,
            on_committed=service.stirred, seed=self._seed, verbose=self._verbose, charts=service.charts,
            handlers=self.built_in_handlers(), watch=self.metrics, kept=self._kept,
            tracing=tracing_by(self.tracer_provider),
        )  # fmt: skip
        self.test_worker.look_seconds = 0.0
        self.test_worker.kept_raised = {}
        await self.test_worker.start(background=False)
        service.workers.append(self.test_worker)

    async def close(self) -> None:
        worker, self.test_worker = self.test_worker, None
        if worker is not None:
            self.service.workers.remove(worker)
            await worker.stop(timeout=1.0)
        await super().close()

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        self._folder.cleanup()

    async def run_until_idle(self) -> None:
        """Run everything that can run at the present moment, and what that makes possible."""
        worker = self.test_worker
        assert worker is not None, "open the harness first: `async with Harness(hf) as test:`"
        for _ in range(TURNS_LIMIT):
            self._passes += 1
            worker.look_for_suspects()
            claimed, _ = await worker.run_once()
            while worker.busy():
                await asyncio.sleep(0.0005)
            if not claimed and not worker.executions:
                return
        raise AssertionError(f"not idle after {TURNS_LIMIT:,} passes: does a workflow loop without waiting?")

    def _in_vain(self, began: float) -> str:
        """Advice for a `result()` that has waited for five seconds while nothing here moved: a step that is tried again
        is due at a moment that does not come by itself. Another task of the test may move the clock, hence the time."""
        now = asyncio.get_running_loop().time()
        seen = (self.clock.micros, self._passes)
        if seen != self._seen or any(worker.busy() for worker in self.service.workers):
            self._seen, self._seen_at = seen, now
        return IN_VAIN if now - max(began, self._seen_at) >= STILL_SECONDS else ""

    async def advance(self, span: timedelta | None = None, **parts: float) -> None:
        """Move the clock, stopping at every moment something falls due on the way: `advance(days=14)`."""
        target = self.clock.micros + round((span or timedelta(**parts)).total_seconds() * 1_000_000)
        worker = self.test_worker
        assert worker is not None, "open the harness first: `async with Harness(hf) as test:`"
        await self.run_until_idle()
        while True:
            due = await worker.next_due()
            if due is None or due > target:
                break
            self.clock.micros = max(self.clock.micros, due)
            await self.run_until_idle()
        self.clock.micros = target
        await self.run_until_idle()

    async def finish(self, handle: Handle, *, within: timedelta = timedelta(days=365)) -> Any:
        """Advance until the instance has ended, and give its result."""
        __tracebackhide__ = True
        await self.advance(within)
        return await handle.result(timeout=0)


def replay(history_file: str | Path, app: Holdfast | None = None) -> Rehearsed:
    """What the code of `app` makes of an instance whose history was taken home:

        holdfast instances history ins_… -o jsonl > tests/stuck_order.jsonl
        assert replay("tests/stuck_order.jsonl", hf).verdict == "goes_on"

    Its body runs as far as the history reaches, as of the moment when it was taken. No handler is called, and no
    database is needed. Without `app` it is the one that the settings name, as for the `holdfast` command. A child that
    the app does not have is taken to be a published chart."""
    if app is not None and not isinstance(app, Holdfast):
        raise BadInput(f"app is {app!r}: expected the Holdfast that your workflows are registered with")
    path = Path(history_file)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror or error}") from error
    stored = files.from_lines(lines, path.name)
    found = app or _app_of_the_settings()
    if stored.kind != "code":
        return told(
            stored, "not_replayed", f"it is of a {stored.kind}, whose document is pinned: only code is replayed"
        )
    registry = found.registry

    def child(tenant_id: str, key: str, version: int | None) -> Definition:
        if registry.has(key) or key.startswith(OURS):
            return registry.find(key, version)
        return Definition("chart", key, version or 1, "default", no_function)

    return rehearse(stored, registry, payload_limit=found.payload_limit, child=child)


def _app_of_the_settings() -> Holdfast:
    from click import UsageError  # a test that names its app needs neither

    from holdfast.cli.app import find_app

    named = settings.load().values.app
    if not named:
        raise BadInput("name the app: replay(history_file, hf), HOLDFAST_APP, or `app` in holdfast.toml")
    try:
        return find_app(named)[1]
    except UsageError as error:
        raise BadInput(error.message) from error


class FakeProvider:
    """An outside provider that dedupes by key, remembers every call, and misbehaves on request.

    `provider.plan("timeout_after", …)` says what the next calls do: "ok", "not_applied" (refused before anything
    happened), "rejected", "timeout_before" and "timeout_after" (no answer; the deed was not, or was, done)."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.deeds: dict[str, Any] = {}
        self._plan: list[str] = []

    def plan(self, *behaviours: str) -> None:
        self._plan.extend(behaviours)

    def call(self, key: str, request: Any = None) -> Any:
        behaviour = self._plan.pop(0) if self._plan else "ok"
        self.calls.append(key)
        if behaviour == "not_applied":
            raise NotApplied("the provider could not be reached")
        if behaviour == "rejected":
            raise Rejected("the provider said no")
        if behaviour == "timeout_before":
            raise TimeoutError("no answer")
        receipt = self.deeds.setdefault(key, {"id": f"prov-{len(self.deeds) + 1}", "request": request})
        if behaviour == "timeout_after":
            raise TimeoutError("no answer")
        return receipt

    def find(self, key: str) -> Any:
        """What a lookup asks: the receipt, or None if the deed was never done."""
        return self.deeds.get(key)


__all__ = [
    "EPOCH",
    "DictSecrets",
    "FakeProvider",
    "FileMailbox",
    "Harness",
    "ManualClock",
    "Rehearsed",
    "ScriptedLlm",
    "replay",
]
