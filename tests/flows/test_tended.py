"""A worker's own tasks are watched: one that ends is said, shows at /readyz, and is begun again."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Context, Holdfast, InstanceFailed
from holdfast.cli.health import why_not_ready
from holdfast.store import postgres, tended
from holdfast.store.committer import Committer
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

    return hf


async def test_the_workers_own_tasks_are_begun_again_where_somebody_cancels_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tended, "AGAIN_SECONDS", 0.2)
    hf = served(url)
    with capture_logs() as lines:
        async with hf, hf.worker():
            for task in ours():
                task.cancel()
            said = await until_ready(hf, ready=False)
            assert said is not None and "has ended and is begun again" in said
            await until_ready(hf, ready=True)
            handle = await hf.start("plain")
            assert await handle.result(60) == 1
    ended = {line["task"] for line in lines if line["event"] == "worker_task_ended"}
    assert {"claiming", "committer", "quarantine"} <= ended
    assert {line["log_level"] for line in lines if line["event"] == "worker_task_ended"} == {"error"}


def ours() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name().startswith("holdfast-")]


async def test_a_handler_that_cancels_every_task_reaches_neither_the_worker_nor_its_neighbours(url: str) -> None:
    hf = served(url)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        begun.set()
        await may_end.wait()
        return "undisturbed"

    @hf.workflow("neighbour")
    async def neighbour(ctx: Context) -> Any:
        return await ctx.step("wait", wait, max_attempts=1)

    @hf.workflow("rude")
    async def rude(ctx: Context) -> None:
        await ctx.step("cancel", cancel_everybody, max_attempts=1)

    async def cancel_everybody() -> None:
        """An author who takes every task of the loop for its own."""
        for task in ours():
            task.cancel()
        await asyncio.sleep(0)

    with capture_logs() as lines:
        async with hf, hf.worker():
            quiet = await hf.start("neighbour")
            await begun.wait()
            with pytest.raises(InstanceFailed, match="CancelledError"):
                await (await hf.start("rude")).result(60)
            may_end.set()
            assert await quiet.result(60) == "undisturbed"
    events = Counter(line["event"] for line in lines)
    assert events["cancel_refused"] > 3 and not events["worker_task_ended"]


@pytest.mark.parametrize("with_worker", [False, True], ids=["a door", "a worker"])
async def test_a_program_that_cancels_every_task_in_the_middle_of_a_commit_may_still_close(
    url: str, monkeypatch: pytest.MonkeyPatch, with_worker: bool
) -> None:
    """The usual way to shut down: cancel all tasks but one's own, then leave."""
    hf = served(url)
    committing, go = asyncio.Event(), asyncio.Event()
    settle = Committer._settle

    async def held(committer: Committer, turns: Any) -> Any:
        committing.set()
        await go.wait()
        return await settle(committer, turns)

    async with asyncio.timeout(60), hf, AsyncExitStack() as stack:
        if with_worker:
            await stack.enter_async_context(hf.worker())
        monkeypatch.setattr(Committer, "_settle", held)
        starting = asyncio.create_task(hf.start("plain"))
        await committing.wait()
        for task in [starting, *ours()]:
            task.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        go.set()


async def test_a_program_that_cancels_every_task_while_a_connection_is_given_back_may_still_close(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "CLOSE_SECONDS", 0.05)
    hf = served(postgres_url)
    loop = asyncio.get_running_loop()
    cut_off: list[asyncio.Task[Any]] = []

    def in_the_nick_of_time(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop, **named)
        if work.__qualname__ == "PoolConnectionHolder.release":
            task.cancel()  # before it has begun: the pool believes that the connection is still in use
            cut_off.append(task)
        return task

    async with asyncio.timeout(60):
        async with hf:
            loop.set_task_factory(in_the_nick_of_time)
            with pytest.raises(asyncio.CancelledError):
                await hf.instances()
            loop.set_task_factory(None)
    assert cut_off


@pytest.mark.parametrize("with_worker", [False, True], ids=["to read", "with a worker"])
async def test_a_step_may_open_and_close_a_holdfast_of_its_own(url: str, tmp_path: Path, with_worker: bool) -> None:
    """Its tasks end where an author's code closes it: that is no cancel by the author."""
    hf = served(url)

    @hf.workflow("asks another")
    async def asks_another(ctx: Context) -> int:
        return await ctx.step("ask", ask, max_attempts=1)

    async def ask() -> int:
        async with served(f"sqlite:///{tmp_path}/another.db") as other:
            if with_worker:
                async with other.worker():
                    return int(await (await other.start("plain")).result(60))
            return len(await other.instances())

    with capture_logs() as lines:
        async with hf, hf.worker():
            async with asyncio.timeout(60):
                assert await (await hf.start("asks another")).result(60) == int(with_worker)
    assert not [line for line in lines if line["event"] == "cancel_refused"]


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
