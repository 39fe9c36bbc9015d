"""A worker's own tasks are watched: one that ends is said, shows at /readyz, and is begun again."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Context, Holdfast
from holdfast.cli.health import why_not_ready
from holdfast.store import tended
from holdfast.worker.liveness import SessionLiveness
from holdfast.worker.worker import Worker


async def until_ready(hf: Holdfast, *, ready: bool) -> str | None:
    async with asyncio.timeout(60):
        while ((said := await why_not_ready(hf)) is None) is not ready:
            await asyncio.sleep(0.01)
    return said


def served(url: str) -> Holdfast:
    hf = Holdfast(url)

    @hf.workflow("plain")
    async def plain(ctx: Context) -> int:
        return await ctx.step("one", one)

    async def one() -> int:
        return 1

    @hf.workflow("rude")
    async def rude(ctx: Context) -> int:
        return await ctx.step("cancel", cancel_everybody)

    async def cancel_everybody() -> None:
        """An author who takes every task of the loop for its own."""
        for task in asyncio.all_tasks():
            if task.get_name().startswith("holdfast-") and task is not asyncio.current_task():
                task.cancel()

    return hf


async def test_a_handler_that_cancels_the_workers_own_tasks_stops_it_for_a_moment_only(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tended, "AGAIN_SECONDS", 0.2)
    hf = served(url)
    with capture_logs() as lines:
        async with hf, hf.worker():
            await hf.start("rude")
            said = await until_ready(hf, ready=False)
            assert said is not None and "has ended and is begun again" in said
            await until_ready(hf, ready=True)
            handle = await hf.start("plain")
            assert await handle.result(60) == 1
    ended = {line["task"] for line in lines if line["event"] == "worker_task_ended"}
    assert {"claiming", "committer", "quarantine"} <= ended
    assert {line["log_level"] for line in lines if line["event"] == "worker_task_ended"} == {"error"}


async def test_a_worker_whose_claiming_breaks_says_so_and_goes_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(BaseException):
        """Whatever nobody thought of."""

    broken: list[int] = []
    run_once = Worker.run_once

    async def breaks(worker: Worker) -> Any:
        if len(broken) < 2:
            broken.append(1)
            raise Broken
        return await run_once(worker)

    monkeypatch.setattr(tended, "AGAIN_SECONDS", 0.2)
    monkeypatch.setattr(Worker, "run_once", breaks)
    hf = served(url)
    with capture_logs() as lines:
        async with hf, hf.worker():
            handle = await hf.start("plain")
            assert await handle.result(60) == 1
    ended = [line for line in lines if line["event"] == "worker_task_ended"]
    assert [(line["task"], line["error"]) for line in ended] == [("claiming", "Broken()")] * 2


async def test_a_heartbeat_that_breaks_is_begun_again(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(BaseException):
        pass

    broken: list[int] = []
    beat = SessionLiveness._beat

    async def breaks(liveness: SessionLiveness, fenced: Any) -> None:
        if not broken:
            broken.append(1)
            raise Broken
        await beat(liveness, fenced)

    monkeypatch.setattr(SessionLiveness, "_beat", breaks)
    hf = served(postgres_url)
    with capture_logs() as lines:
        async with hf, hf.worker():
            assert "liveness" in str(await until_ready(hf, ready=False))
            await until_ready(hf, ready=True)
            handle = await hf.start("plain")
            assert await handle.result(60) == 1
    assert [line["task"] for line in lines if line["event"] == "worker_task_ended"] == ["heartbeat"]
