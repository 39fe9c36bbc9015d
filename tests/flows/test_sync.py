"""`hf.sync`: the same product for callers that block."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
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
        assert handle.result(timeout=100) == [1, 2]
        assert handle.status().status == "completed"
        assert handle.history()[-1].type == "INSTANCE_COMPLETED"
        assert [view.id for view in sync.instances(tenant="acme", status="completed")] == [handle.id]
        assert sync.tenant("acme").instance(handle.id).status().id == handle.id
        cancelled, other = sync.start_many("wait", [3, 4])
        cancelled.cancel("enough", actor="ann")
        with pytest.raises(InstanceFailed, match="enough"):
            cancelled.result(timeout=100)
        assert sync.instance(other.id).status().status in ("pending", "running", "waiting")
        with pytest.raises(BadInput):
            sync.start("wait", tenant="no such tenant!")


def test_a_blocking_caller_need_not_open_anything(url: str) -> None:
    """As in a Django project, where no block is around every request: the first call opens, in whatever thread."""
    hf = make(url)
    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda n: hf.sync.start("wait", n).id, range(20)))
    assert sorted(view.id for view in hf.sync.instances()) == sorted(ids)
    assert hf.sync.instance(ids[0]).status().id == ids[0]
    assert len([thread for thread in threading.enumerate() if thread.name == "holdfast-sync"]) == 1
    hf.sync.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-sync"]


def test_the_end_of_one_block_does_not_close_what_others_use(url: str) -> None:
    hf = make(url)
    with hf.sync as outer:
        service = hf.service
        with hf.sync as inner:
            id_ = inner.start("wait", 1).id
        assert hf.service is service
        assert outer.instance(id_).status().status == "pending"
    assert hf.loop is None
    hf.sync.open()
    with hf.sync:
        pass
    assert hf.sync.instance(id_).status().status == "pending"
    hf.sync.close()
    assert hf.loop is None


def test_a_handle_of_a_store_that_was_closed_is_refused_at_once(url: str) -> None:
    hf = make(url)
    with hf.sync as sync:
        handle = sync.start("wait", 1)
    with hf.sync:
        for use in (lambda: handle.signal("go"), lambda: handle.cancel(), handle.status):
            with pytest.raises((HoldfastError, asyncpg.InterfaceError), match="closed"):
                use()


async def test_blocking_callers_share_a_store_that_is_open_already(url: str) -> None:
    """As in FastAPI: `async with hf` in the lifespan, and an endpoint without `async` in a thread."""
    hf = make(url)
    async with hf:
        service = hf.service
        id_ = (await asyncio.to_thread(hf.sync.start, "wait", 1)).id
        assert (await hf.instance(id_).status()).id == id_
        assert hf.service is service
        with pytest.raises(HoldfastError, match="would wait for itself"):
            hf.sync.start("wait", 2)
        with pytest.raises(HoldfastError, match="open already"):
            await hf.open()
    assert hf.loop is None


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
