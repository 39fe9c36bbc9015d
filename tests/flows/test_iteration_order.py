"""Sets of futures are iterated, and abandoned generators closed, in the same order live and in replay."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from holdfast import Context
from holdfast.testing import Harness
from tests.flows.support import next_worker, types


async def one(number: int) -> int:
    return number


async def ends(harness: Harness, name: str) -> Any:
    """Each wake replays the body, and the last ones do so in another worker, among other objects in memory."""
    handle = await harness.start(name)
    ballast = [object() for _ in range(1000)]
    await harness.run_until_idle()
    await handle.signal("go", 1)
    await harness.run_until_idle()
    async with next_worker(harness) as other:
        again = other.instance(handle.id)
        ballast.append([asyncio.get_running_loop().create_future() for _ in range(777)])
        await again.signal("go", 2)
        await other.run_until_idle()
        view = await again.status()
        assert view.status == "completed", view.waiting_on or view.error
        return view.result


@pytest.mark.parametrize("kind", ["answers", "tasks", "as_completed"])
async def test_what_asyncio_wait_gives_is_iterated_in_the_same_order_in_replay(harness: Harness, kind: str) -> None:
    @harness.workflow("sets")
    async def workflow(ctx: Context) -> list[int]:
        asked: list[Any] = [ctx.step(f"one {n}", one, n) for n in range(20)]
        if kind == "tasks":
            asked = [asyncio.create_task(each) for each in asked]
        found: list[int] = []
        if kind == "as_completed":
            for each in asyncio.as_completed(asked):
                found.append(await each)
        else:
            done, _ = await asyncio.wait(asked)
            found = [each.result() for each in done]
        await ctx.wait_for_signal("go")
        for number in found:
            await ctx.step("again", one, number)
        await ctx.wait_for_signal("go")
        return found

    assert sorted(await ends(harness, "sets")) == list(range(20))


async def test_branches_of_a_task_group_are_cancelled_in_the_same_order_in_replay(harness: Harness) -> None:
    @harness.workflow("group")
    async def workflow(ctx: Context) -> list[int]:
        cancelled: list[int] = []

        async def branch(number: int) -> None:
            try:
                await ctx.wait_for_signal("never", key=str(number))
            except asyncio.CancelledError:
                cancelled.append(number)
                raise

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(branch(number))
                await ctx.sleep("a moment", 0)
                raise LookupError("enough")
        except* LookupError:
            pass
        await ctx.wait_for_signal("go")
        for number in cancelled:
            await ctx.step("again", one, number)
        await ctx.wait_for_signal("go")
        return cancelled

    assert sorted(await ends(harness, "group")) == list(range(20))


@pytest.mark.parametrize("closed", ["when the body ends", "by its author"])
async def test_an_abandoned_generator_is_closed_at_the_end_of_the_body_and_may_ask_there(
    harness: Harness, closed: str
) -> None:
    said: list[str] = []

    @harness.workflow("generator")
    async def workflow(ctx: Context) -> list[str]:
        steps: list[str] = []

        async def pages() -> AsyncGenerator[int, None]:
            try:
                for number in range(5):
                    yield await ctx.step("page", one, number)
            finally:
                steps.append("closed")
                await ctx.step("release", one, 7)
                said.append("released")

        if closed == "by its author":
            async with aclosing(pages()) as found:
                async for number in found:
                    if number == 2:
                        break
        else:
            async for number in pages():
                if number == 2:
                    break
        await ctx.wait_for_signal("go")
        await ctx.step("then", lambda steps: None, steps)
        await ctx.wait_for_signal("go")
        return list(steps)

    expected = ["closed"] if closed == "by its author" else []
    assert await ends(harness, "generator") == expected
    assert said[-1] == "released"


async def test_a_generator_whose_closing_fails_parks_its_instance(harness: Harness) -> None:
    @harness.workflow("generator")
    async def workflow(ctx: Context) -> None:
        async def pages() -> AsyncGenerator[int, None]:
            try:
                yield await ctx.step("page", one, 1)
            finally:
                raise ValueError("cannot close")

        async for _ in pages():
            break

    handle = await harness.start("generator")
    await harness.run_until_idle()
    assert "cannot close" in str((await handle.status()).waiting_on)


async def test_a_generator_of_a_body_that_is_cancelled_is_unwound_and_asks_for_nothing(harness: Harness) -> None:
    seen: list[str] = []

    @harness.workflow("generator")
    async def workflow(ctx: Context) -> None:
        async def pages() -> AsyncGenerator[int, None]:
            try:
                yield 1
            finally:
                try:
                    await ctx.step("release", one, 7)
                except Exception as error:
                    seen.append(str(error))

        async for _ in pages():
            break
        await ctx.wait_for_signal("never")

    handle = await harness.start("generator")
    await harness.run_until_idle()
    seen.clear()
    await handle.cancel("enough", actor="ann")
    await harness.run_until_idle()
    assert (await handle.status()).status == "cancelled"
    assert "a finally block cannot ask for anything any more" in seen[0]
    assert "STEP_COMPLETED" not in await types(handle)


async def test_a_handlers_own_generators_are_closed_by_the_loop_as_ever(harness: Harness) -> None:
    closed = asyncio.Event()

    async def handler() -> int:
        async def numbers() -> AsyncGenerator[int, None]:
            try:
                yield 1
            finally:
                closed.set()

        async for number in numbers():
            return number
        return 0

    @harness.workflow("handler")
    async def workflow(ctx: Context) -> int:
        return await ctx.step("one", handler)

    assert await harness.finish(await harness.start("handler")) == 1
    async with asyncio.timeout(30):
        await closed.wait()
