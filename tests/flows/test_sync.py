"""`hf.sync`: the same product for callers that block."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import BadInput, Context, Holdfast, HoldfastError, InstanceFailed, ResultNotReady


def make(url: str) -> Holdfast:
    app = Holdfast(url)

    @app.workflow("wait")
    async def wait(ctx: Context, given: Any) -> Any:
        heard = await ctx.wait_for_signal("go")
        return [given, heard]

    return app


@pytest.fixture
def worker(url: str) -> Iterator[None]:
    """A worker of another Holdfast on the same database, in a thread of its own."""
    stop, ready = threading.Event(), threading.Event()

    async def run() -> None:
        app = make(url)
        async with app, app.worker(poll_seconds=0.01):
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    ready.wait()
    yield
    stop.set()
    thread.join()


def test_a_blocking_caller_starts_signals_waits_and_reads(url: str, worker: None) -> None:
    hf = make(url)
    with hf.sync as sync:
        handle = sync.start("wait", 1, business_key="k", tenant="acme")
        assert sync.start("wait", 1, business_key="k", tenant="acme").id == handle.id
        with pytest.raises(ResultNotReady):
            handle.result(timeout=0)
        assert handle.signal("go", 2, id="evt-1") is True
        assert handle.result(timeout=20) == [1, 2]
        assert handle.status().status == "completed"
        assert handle.history()[-1].type == "INSTANCE_COMPLETED"
        assert [view.id for view in sync.instances(tenant="acme", status="completed")] == [handle.id]
        assert sync.tenant("acme").instance(handle.id).status().id == handle.id
        cancelled, other = sync.start_many("wait", [3, 4])
        cancelled.cancel("enough", actor="ann")
        with pytest.raises(InstanceFailed, match="enough"):
            cancelled.result(timeout=20)
        assert sync.instance(other.id).status().status in ("pending", "running", "waiting")
        with pytest.raises(BadInput):
            sync.start("wait", tenant="no such tenant!")


def test_a_blocking_caller_who_forgot_to_open_is_told_so(url: str) -> None:
    hf = make(url)
    with pytest.raises(HoldfastError, match="not open"):
        hf.sync.start("wait")


def test_the_facade_opens_closes_and_opens_again(url: str) -> None:
    hf = make(url)
    for n in range(2):
        with hf.sync as sync:
            sync.start("wait", n)
    with hf.sync as sync:
        assert len(sync.instances()) == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-sync"]


async def test_a_running_loop_may_use_the_blocking_facade_from_a_thread(url: str) -> None:
    hf = make(url)

    def use() -> int:
        with hf.sync as sync:
            sync.start("wait", 1)
            return len(sync.instances())

    assert await asyncio.to_thread(use) == 1


def test_blocking_callers_reach_the_desk_the_workers_and_verify(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'sync.db'}")
    with hf.sync as sync:
        assert sync.effects.list() == []
        assert sync.tenant("acme").effects.list(state=None) == []
        assert sync.dead_letters() == []
        assert sync.workers() == []
        assert sync.verify().faults == []
