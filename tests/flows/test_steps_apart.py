"""Async steps that are begun together share nothing: no task, no context variable, no time-out, no cancelling."""

import asyncio
from contextvars import ContextVar
from typing import Any

from holdfast import Context
from holdfast.testing import Harness

color: ContextVar[str] = ContextVar("color", default="none")


async def side_by_side(harness: Harness, *steps: Any) -> list[Any]:
    """The results of these steps, started in one turn."""

    @harness.workflow("side by side")
    async def workflow(ctx: Context, _: None) -> list[Any]:
        return await asyncio.gather(*(ctx.step(f"s{n}", step) for n, step in enumerate(steps)))

    found: list[Any] = await harness.finish(await harness.start("side by side"))
    return found


async def test_a_step_that_waits_does_not_hold_up_those_behind_it(harness: Harness) -> None:
    reached = asyncio.Event()

    async def waits() -> str:
        await reached.wait()
        return "waited"

    async def reaches() -> str:
        reached.set()
        return "reached"

    assert await side_by_side(harness, waits, waits, reaches) == ["waited", "waited", "reached"]


async def test_steps_do_not_see_each_others_context_variables(harness: Harness) -> None:
    async def paints() -> str:
        color.set("red")
        return color.get()

    async def looks() -> str:
        before = color.get()
        await asyncio.sleep(0)
        return f"{before}, {color.get()}"

    assert await side_by_side(harness, paints, looks, paints, looks) == ["red", "none, none", "red", "none, none"]


async def test_what_a_step_sets_in_its_context_is_seen_by_no_other_instance(harness: Harness) -> None:
    def paints(*_: Any) -> str:
        before = color.get()
        color.set("red")
        return before

    async def paints_async(*_: Any) -> str:
        before = paints()
        await asyncio.sleep(0)
        return before

    in_the_database = paints if harness.url.startswith("sqlite") else paints_async

    @harness.workflow("paints")
    async def workflow(ctx: Context) -> list[str]:
        return [
            await ctx.step("in place", paints, thread=False),
            await ctx.step("in a thread", paints),
            await ctx.step("in a task", paints_async),
            await ctx.step("with a time-out", paints_async, timeout=60),
            await ctx.effect("effect in place", paints, thread=False),
            await ctx.effect("effect", paints_async),
            await ctx.transaction("transaction", in_the_database),
        ]

    for _ in range(2):
        assert await harness.finish(await harness.start("paints")) == ["none"] * 7


async def test_a_time_out_inside_a_step_ends_that_step_alone(harness: Harness) -> None:
    async def gives_up() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "gave up"
        return "impossible"

    async def in_time() -> str:
        async with asyncio.timeout(60):  # noqa: ASYNC100 it ends at once, and must leave no timer behind
            return "in time"

    async def goes_on() -> str:
        await asyncio.sleep(0.03)
        return "went on"

    expected = ["in time", "gave up", "went on", "in time"]
    assert await side_by_side(harness, in_time, gives_up, goes_on, in_time) == expected


async def test_a_step_that_cancels_its_own_task_takes_no_other_with_it(harness: Harness) -> None:
    async def cancels_itself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done before it showed"

    begun: list[int] = []

    async def waits() -> int:
        begun.append(1)
        await asyncio.sleep(0)
        return len(begun)

    assert await side_by_side(harness, cancels_itself, waits, waits) == ["done before it showed", 2, 2]
    assert len(begun) == 2


async def test_every_step_is_a_task_of_its_own(harness: Harness) -> None:
    """Libraries keep sessions by the current task, and whoever remembers it may cancel it later."""
    sessions: dict[asyncio.Task[Any] | None, list[str]] = {}

    @harness.workflow("customer")
    async def workflow(ctx: Context, name: str) -> list[str]:
        return await ctx.step("add", adds, name)

    async def adds(name: str) -> list[str]:
        task = asyncio.current_task()
        assert task is not None
        session = sessions.setdefault(task, [])
        session.append(name)
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        return list(session)

    async def outlives_them() -> str:
        await asyncio.sleep(0.05)
        return "undisturbed"

    handles = [await harness.start("customer", name) for name in ("ann", "bob")]
    assert await side_by_side(harness, outlives_them, outlives_them) == ["undisturbed"] * 2
    assert [await harness.finish(handle) for handle in handles] == [["ann"], ["bob"]]


async def test_a_step_may_use_tasks_of_its_own(harness: Harness) -> None:
    async def part(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def in_parts() -> int:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part(n)) for n in range(3)]
        return sum(task.result() for task in tasks)

    assert await side_by_side(harness, in_parts, in_parts) == [3, 3]


async def test_steps_of_a_worker_that_was_fenced_do_not_begin(harness: Harness) -> None:
    begun: list[bytes] = []
    taken_over: list[asyncio.Task[int]] = []

    async def fences() -> None:
        worker = harness.test_worker
        assert worker is not None
        begun.append(worker.id)
        if len(begun) == 1:
            work = harness.service.store.release_worker(worker.id, b"another worker..", stopped=False)
            taken_over.append(asyncio.create_task(work))
            worker.fenced(worker.id)

    await side_by_side(harness, fences, fences, fences)
    first, *later = begun
    assert len(later) == 3 and first not in later
