"""`lambda r: release(r)` around an async function: nothing of it runs, and nothing of it counts as done."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

from holdfast import Context, InstanceFailed, StepInfo, Workflow, effect
from holdfast.testing import Harness
from tests.flows.support import entries, types

SAID = "that nobody awaits, so nothing of it has run"


@pytest.fixture(autouse=True)
def nothing_else_warns() -> Any:
    """Python's own warning of a coroutine comes later, somewhere else: ours is the only word."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(one.message) for one in heard if "never awaited" in str(one.message)] == []


async def release(result: Any = None) -> str:
    return f"released {result}"


async def reserve() -> str:
    return "r-1"


def failing(harness: Harness, compensate: Any, *, paid: bool) -> None:
    @harness.workflow("order")
    async def order(ctx: Context) -> None:
        if paid:
            await ctx.effect("reserve", reserve, compensate=compensate)
        else:
            await ctx.step("reserve", reserve, compensate=compensate, max_attempts=1)
        raise RuntimeError("sold out")


@pytest.mark.parametrize("thread", [True, False])
async def test_a_step_that_gives_a_coroutine_fails(harness: Harness, thread: bool) -> None:
    @harness.workflow("plain")
    async def plain(ctx: Context) -> Any:
        return await ctx.step("reserve", lambda: reserve(), thread=thread, max_attempts=1)

    handle = await harness.start("plain")
    await harness.run_until_idle()
    assert SAID in await handle.why()


@pytest.mark.parametrize("shape", ["a lambda", "with info", "an async function that does not await"])
async def test_an_undo_that_gives_a_coroutine_has_undone_nothing(harness: Harness, shape: str) -> None:
    async def forgets(result: str) -> Any:
        return release(result)

    def asks(result: str, info: StepInfo) -> Any:
        return release(result)

    failing(harness, {"a lambda": lambda r: release(r), "with info": asks}.get(shape, forgets), paid=False)
    handle = await harness.start("order")
    with pytest.raises(InstanceFailed, match="sold out"):
        await harness.finish(handle)
    assert (await handle.status()).compensation == "partial"
    [failed] = await entries(handle, "COMPENSATION_FAILED")
    assert SAID in failed.payload["error"]["message"]


@pytest.mark.parametrize("spelled", [False, True], ids=["bare", "effect"])
async def test_a_refund_that_gives_a_coroutine_waits_for_a_person(harness: Harness, spelled: bool) -> None:
    refund: Any = lambda r: release(r)  # noqa: E731
    failing(harness, effect(refund, mode="manual") if spelled else refund, paid=True)
    handle = await harness.start("order")
    await harness.run_until_idle()
    [row] = await harness.effects.list()
    assert (row.step, row.state) == ("undo:reserve", "outcome_unknown")
    assert SAID in str(row.error) and "COMPENSATION_COMPLETED" not in await types(handle)


async def test_an_effect_that_gives_a_coroutine_is_not_said_to_have_happened(harness: Harness) -> None:
    @harness.workflow("pay")
    async def pay(ctx: Context) -> Any:
        return await ctx.effect("reserve", lambda: reserve(), mode="manual")

    await harness.start("pay")
    await harness.run_until_idle()
    [row] = await harness.effects.list()
    assert row.state == "outcome_unknown" and SAID in str(row.error) and "happened, but" not in str(row)


async def test_a_lookup_that_gives_a_coroutine_has_found_nothing(harness: Harness) -> None:
    calls: list[str] = []

    async def pays(info: StepInfo) -> str:
        calls.append(info.idempotency_key)
        raise RuntimeError("no answer")

    async def find(key: str) -> str | None:
        return None

    @harness.workflow("pay")
    async def pay(ctx: Context) -> Any:
        return await ctx.effect("reserve", pays, mode="lookup", lookup=lambda key: find(key))

    handle = await harness.start("pay")
    await harness.advance(days=1)
    assert "EFFECT_SUCCEEDED" not in await types(handle) and len(calls) == 1
    [row] = await harness.effects.list()
    assert (row.state, row.reason) == ("outcome_unknown", "10 lookups failed")


@pytest.mark.parametrize("built", [False, True], ids=["code", "builder"])
async def test_a_loop_is_not_ended_by_a_coroutine(harness: Harness, built: bool) -> None:
    async def enough(said: Any) -> bool:
        return False

    if built:
        harness.register(Workflow("again").loop("look", reserve, until=enough, max_rounds=3))
    else:

        @harness.workflow("again")
        async def again(ctx: Context) -> Any:
            return await ctx.loop("look", reserve, until=enough, max_rounds=3)

    handle = await harness.start("again", {})
    await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "waiting" and SAID in await handle.why() and "until" in await handle.why()


async def test_a_loop_whose_until_is_a_plain_function_goes_on(harness: Harness) -> None:
    @harness.workflow("again")
    async def again(ctx: Context) -> Any:
        return await ctx.loop("look", reserve, until=lambda said: said == "r-2", max_rounds=3)

    with pytest.raises(InstanceFailed, match="was not done after 3 rounds"):
        await harness.finish(await harness.start("again"))
