"""Whatever an author's code raises is a failure of that code: its instance does not wait for ever, nor do others."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context
from holdfast.testing import Harness


class Odd(BaseException):
    """Not an Exception, like what pytest.fail raises."""


def raises(error: type[BaseException]) -> Callable[..., Any]:
    def handler(*_: Any) -> Any:
        raise error("odd")

    return handler


def raises_async(error: type[BaseException]) -> Callable[..., Any]:
    async def handler(*_: Any) -> Any:
        raise error("odd")

    return handler


def raises_late(error: type[BaseException]) -> Callable[..., Any]:
    async def handler(*_: Any) -> Any:
        await asyncio.sleep(0)
        raise error("odd")

    return handler


def ways(ctx: Context, error: type[BaseException]) -> dict[str, Callable[[], Any]]:
    once: Any = {"max_attempts": 1}
    return {
        "in a thread": lambda: ctx.step("s", raises(error), **once),
        "in place": lambda: ctx.step("s", raises(error), thread=False, **once),
        "in line": lambda: ctx.step("s", raises_async(error), **once),
        "in line, and waits": lambda: ctx.step("s", raises_late(error), **once),
        "with a time-out": lambda: ctx.step("s", raises_late(error), timeout=60, **once),
        "transaction": lambda: ctx.transaction("s", raises(error), **once),
        "async transaction": lambda: ctx.transaction("s", raises_late(error), **once),
    }


async def neighbour_ends(harness: Harness) -> bool:
    """The worker goes on claiming and committing, on each of its connections."""

    @harness.workflow("neighbour")
    async def neighbour(ctx: Context) -> int:
        return await ctx.step("one", lambda: 1, thread=False)

    handles = [await harness.start("neighbour") for _ in range(5)]
    await harness.run_until_idle()
    return [await handle.result(0) for handle in handles] == [1] * 5


@pytest.mark.parametrize("error", [Odd, asyncio.CancelledError])
@pytest.mark.parametrize("way", ways(None, Odd))  # type: ignore[arg-type]
async def test_a_handler_that_raises_no_exception_has_failed(
    harness: Harness, way: str, error: type[BaseException]
) -> None:
    if "transaction" in way and way.startswith("async") != harness.url.startswith("postgres"):
        way = "in place"  # each database has its own kind of transaction

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        await ways(ctx, error)[way]()

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
    view = await handle.status()
    assert (view.status, view.error["type"]) == ("failed", "StepFailed")
    assert error.__name__ in view.error["message"]
    assert await neighbour_ends(harness)


async def test_an_effect_that_raises_no_exception_may_have_happened(harness: Harness) -> None:
    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        await ctx.effect("pay", raises_async(Odd))

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
    assert "a person" in str((await handle.status()).waiting_on)
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("after", ["at once", "a step", "a wake"])
@pytest.mark.parametrize("error", [Odd, asyncio.CancelledError])
async def test_a_body_that_raises_no_exception_fails_and_takes_no_worker_with_it(
    harness: Harness, after: str, error: type[BaseException]
) -> None:
    undone: list[str] = []

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        if after == "a step":
            await ctx.step("book", lambda: 1, compensate=lambda: undone.append("book"))
        elif after == "a wake":
            await ctx.sleep("rest", 1)
        if error is Odd:
            raise Odd("odd")
        branch = asyncio.create_task(ctx.wait_for_signal("never"))
        branch.cancel()
        await branch  # it raises CancelledError here

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.advance(seconds=2)
    view = await handle.status()
    assert (view.status, view.error["type"]) == ("failed", error.__name__)
    assert undone == (["book"] if after == "a step" else [])
    assert await neighbour_ends(harness)
