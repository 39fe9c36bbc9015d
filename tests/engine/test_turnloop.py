"""A workflow's own loop: it drains, it refuses the world, and it unwinds without a trace."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.engine.context import Context
from holdfast.engine.errors import NotInWorkflow
from holdfast.engine.turnloop import TurnLoop
from tests.engine.support import Play

Begin = Callable[..., Play]


async def nothing() -> None: ...


async def with_timeout(_: Context) -> None:
    async with asyncio.timeout(5):
        await nothing()


NO_CLOCK = "a workflow has no clock and no timers of its own .* use ctx.now"
NO_THREADS = "a workflow cannot use threads: do the work in a ctx.step"
NO_WORLD = "a workflow cannot touch the outside world .*: do the work in a ctx.step"


@pytest.mark.parametrize(
    ("touch", "said"),
    [
        (lambda ctx: asyncio.sleep(1), NO_CLOCK),
        (lambda ctx: asyncio.wait_for(ctx.step("s", nothing), 5), NO_CLOCK),
        (with_timeout, NO_CLOCK),
        (lambda ctx: asyncio.wait([asyncio.ensure_future(ctx.sleep("s", 1))], timeout=1), NO_CLOCK),
        (lambda ctx: asyncio.to_thread(print), NO_THREADS),
        (lambda ctx: asyncio.get_running_loop().run_in_executor(None, print), NO_THREADS),
        (lambda ctx: asyncio.open_connection("127.0.0.1", 1), NO_WORLD),
        (lambda ctx: asyncio.start_server(print, "127.0.0.1", 0), NO_WORLD),
        (lambda ctx: asyncio.open_unix_connection("nowhere"), NO_WORLD),
        (lambda ctx: asyncio.create_subprocess_exec("true"), NO_WORLD),
        (lambda ctx: asyncio.create_subprocess_shell("true"), NO_WORLD),
        (lambda ctx: asyncio.get_running_loop().getaddrinfo("localhost", 1), NO_WORLD),
    ],
    ids=["sleep", "wait_for", "timeout", "wait", "to_thread", "run_in_executor", "open_connection", "start_server",
         "open_unix_connection", "subprocess_exec", "subprocess_shell", "getaddrinfo"],
)  # fmt: skip
def test_time_threads_and_the_world_are_refused_with_what_to_use_instead(
    play: Begin, touch: Callable[[Context], Awaitable[Any]], said: str
) -> None:
    async def workflow(ctx: Context) -> None:
        await touch(ctx)

    played = play(workflow)
    assert played.replay.done
    with pytest.raises(NotInWorkflow, match=said):
        _ = played.result


@pytest.mark.parametrize("name", ["time", "call_later", "call_at", "call_soon_threadsafe", "add_reader", "sock_recv"])
def test_the_loop_itself_refuses_too(name: str) -> None:
    with pytest.raises(NotInWorkflow):
        getattr(TurnLoop(), name)(*[print] * {"time": 0, "call_later": 2, "call_at": 2}.get(name, 1))  # type: ignore[abstract]


def test_what_asyncio_offers_without_time_works(play: Begin) -> None:
    async def workflow(ctx: Context) -> list[Any]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        lock, ready = asyncio.Lock(), asyncio.Event()
        seen: list[Any] = []

        async def take() -> None:
            await ready.wait()
            async with lock:
                seen.append(await queue.get())

        async with asyncio.TaskGroup() as group:
            group.create_task(take())
            group.create_task(take())
            await asyncio.sleep(0)
            for number in (1, 2):
                queue.put_nowait(number)
            ready.set()
        async with asyncio.timeout(None):
            seen.append(await asyncio.wait_for(asyncio.shield(ctx.step("s", lambda: "done")), None))
        return seen

    played = play(workflow)
    played.answer("s", "done")
    assert played.result == [1, 2, "done"]


def test_a_workflow_that_never_comes_to_rest_is_stopped(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        while True:
            await asyncio.sleep(0)

    played = play(workflow)
    assert played.replay.done
    with pytest.raises(NotInWorkflow, match="100,000 hops without asking for anything: it seems to loop for ever"):
        _ = played.result


def test_the_loop_around_the_workflow_is_as_it_was_afterwards() -> None:
    async def outer() -> tuple[Any, Any]:
        before = asyncio.get_running_loop()

        async def workflow(ctx: Context) -> Any:
            inner = asyncio.get_running_loop()
            await ctx.step("s", nothing)
            return inner

        def begin() -> Play:
            return Play(workflow)

        played = await _called_plainly(begin)
        await _called_plainly(lambda: played.answer("s"))
        return before is asyncio.get_running_loop(), played.result is before

    assert asyncio.run(outer()) == (True, False)


async def _called_plainly(what: Callable[[], Any]) -> Any:
    """From a callback of the outer loop, as the worker does it."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(lambda: done.set_result(what()))
    return await done


def test_an_unawaited_failure_of_an_own_task_does_not_disturb_the_workflow(play: Begin) -> None:
    async def breaks() -> None:
        raise ValueError

    async def workflow(ctx: Context) -> str:
        task = asyncio.create_task(breaks())
        await ctx.step("s", nothing)
        return f"still here, {task.done()}"

    played = play(workflow)
    played.answer("s")
    assert played.result == "still here, True"


def test_an_evicted_workflow_unwinds_and_its_finally_blocks_can_ask_for_nothing() -> None:
    unwound: list[str] = []

    async def branch(ctx: Context, name: str) -> None:
        try:
            await ctx.step(name, nothing)
        finally:
            unwound.append(name)
            for ask in (
                lambda: ctx.step("clean up", nothing),
                lambda: ctx.effect("refund", nothing),
                lambda: ctx.transaction("book", nothing),
                lambda: ctx.sleep("nap", 1),
                lambda: ctx.wait_for_signal("go"),
                lambda: ctx.child("c", "other"),
                ctx.now,
                ctx.random,
                ctx.uuid,
            ):
                with pytest.raises(NotInWorkflow, match="being unwound"):
                    ask()

    async def workflow(ctx: Context) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch(ctx, "left"))
                group.create_task(branch(ctx, "right"))
        finally:
            unwound.append("main")

    played = Play(workflow)
    before, asked = list(played.rows), list(played.path)
    played.replay.close()
    assert set(unwound) >= {"left", "right", "main"}
    assert (played.rows, played.path, played.replay.asked, played.ctx.soft) == (before, asked, [], [])


def test_a_finally_block_that_awaits_or_raises_does_not_stop_the_unwinding() -> None:
    unwound: list[str] = []

    async def stubborn(ctx: Context) -> None:
        try:
            await ctx.sleep("long", 9)
        finally:
            unwound.append("stubborn")
            await asyncio.sleep(0)
            unwound.append("never")

    async def loud(ctx: Context) -> None:
        try:
            await ctx.sleep("longer", 9)
        finally:
            unwound.append("loud")
            raise SystemExit

    async def workflow(ctx: Context) -> None:
        try:
            await asyncio.gather(stubborn(ctx), loud(ctx))
        finally:
            unwound.append("main")

    played = Play(workflow)
    played.replay.close()
    assert sorted(unwound) == ["loud", "main", "stubborn"]


def test_a_closed_workflow_can_be_closed_again() -> None:
    async def workflow(ctx: Context) -> None:
        await ctx.sleep("long", 9)

    played = Play(workflow)
    played.replay.close()
    played.replay.close()


def test_tasks_of_many_workflows_have_hashes_of_their_own_in_asyncios_set_of_all_tasks() -> None:
    """Numbered alike in each workflow, they would be compared with one another, all with all."""
    loops = [TurnLoop() for _ in range(500)]
    tasks = [loop.create_task(nothing()) for loop in loops for _ in range(2)]
    name = "_scheduled_tasks" if hasattr(asyncio.tasks, "_scheduled_tasks") else "_all_tasks"  # the latter up to 3.11
    kept = [ref for ref in getattr(asyncio.tasks, name).data if ref() in tasks]
    assert len(kept) == len(tasks) and len({hash(ref) for ref in kept}) > len(tasks) * 0.9
    assert [hash(task) for task in tasks] == [1, 2] * len(loops)
    for loop in loops:
        loop.dispose()
