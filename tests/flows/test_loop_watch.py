"""A loop that stands still is said, with whose code it runs, and is not vouched for."""

import asyncio
import threading
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Context, Holdfast
from holdfast.engine import ids
from holdfast.worker.loop_watch import TICK_SECONDS, LoopWatch

LEASE = 4.0


async def until(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)


def app(url: str, free: threading.Event, kind: str) -> Holdfast:
    hf = Holdfast(url)

    @hf.workflow("spin")
    async def spin(ctx: Context) -> str:
        if kind == "body":
            busy()
        return await ctx.step("work", work)

    def busy() -> None:
        while not free.is_set():
            time.sleep(0)  # as if it computed

    async def work() -> str:
        if kind == "step":
            busy()
        return "done"

    return hf


@pytest.mark.parametrize("kind", ["body", "step"])
async def test_code_that_never_awaits_is_named_and_its_worker_does_not_vouch_for_it(url: str, kind: str) -> None:
    free, stop, nobody = threading.Event(), threading.Event(), threading.Event()
    nobody.set()

    async def stuck() -> None:
        async with app(url, free, kind) as hf, hf.worker(lease=LEASE):
            while not stop.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(stuck()))
    with capture_logs() as lines:

        def said(event: str) -> list[Any]:
            return [line for line in lines if line["event"] == event]

        async with app(url, nobody, kind) as other:
            handle = await other.start("spin")
            thread.start()
            try:
                await until(lambda: said("loop_stands_still"))
                async with other.worker(lease=LEASE):
                    assert await handle.result(120) == "done"  # by another worker, while the first one stands
                assert not free.is_set()
                [stuck_worker] = [one for one in await other.workers() if one.state == "fenced"]
                assert not await other.service.store.worker_gone(ids.parse("wrk", stuck_worker.id)), "its process lives"
                free.set()
                await until(lambda: said("worker_fenced"))
            finally:
                free.set()
                stop.set()
                await asyncio.to_thread(thread.join)
    [line] = said("loop_stands_still")
    assert (line["log_level"], line["instance_id"], line["workflow"]) == ("error", handle.id, "spin")
    assert "in busy" in line["stack"]
    assert line.get("step") == ("work" if kind == "step" else None)


async def test_a_loop_that_comes_back_in_time_and_a_process_that_was_stopped_are_not_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = LoopWatch(10.0)
    with capture_logs() as lines:
        for _ in range(9):
            now[0] += TICK_SECONDS
            watch.look()
        watch._ticked = True
        watch.look()
        now[0] += 3600.0  # stopped: nobody looked
        watch.look()
        assert not watch.is_silent and lines == []
        for _ in range(9):
            now[0] += TICK_SECONDS
            watch.look()
    assert watch.is_silent and [line["event"] for line in lines] == ["loop_stands_still"]
