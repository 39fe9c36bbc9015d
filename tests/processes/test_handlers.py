"""Handlers as authors write them, in a real worker: small faults found while writing the process tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, StepInfo
from holdfast.engine.errors import InstanceFailed


async def test_step_info_may_stand_anywhere_among_the_parameters(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'test.db'}")

    async def first(info: StepInfo, number: int, pause: float) -> list[Any]:
        return [info.step, number, pause]

    def middle(number: int, info: StepInfo, pause: float) -> list[Any]:
        return [info.step, number, pause]

    async def last(number: int, pause: float = 0.5, *, info: StepInfo) -> list[Any]:
        return [info.step, number, pause]

    @hf.workflow("places")
    async def places(ctx: Context) -> list[Any]:
        return [
            await ctx.step("first", first, 1, 2.5),
            await ctx.step("middle", middle, 1, 2.5),
            await ctx.step("last", last, 1),
        ]

    async with hf, hf.worker():
        handle = await hf.start("places")
        assert await handle.result(timeout=100) == [["first", 1, 2.5], ["middle", 1, 2.5], ["last", 1, 0.5]]


async def test_a_call_that_does_not_fit_its_handler_fails_the_step_not_the_worker(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'test.db'}")

    async def takes_one(number: int) -> int:
        return number

    @hf.workflow("wrong")
    async def wrong(ctx: Context) -> int:
        return await ctx.step("one", takes_one, 1, 2, max_attempts=1)

    async with hf, hf.worker():
        handle = await hf.start("wrong")
        try:
            await handle.result(timeout=100)
        except InstanceFailed as failed:
            assert "TypeError" in str(failed)
        else:
            raise AssertionError("it should have failed")
        assert "STEP_FAILED" in [entry.type for entry in await handle.history()]
