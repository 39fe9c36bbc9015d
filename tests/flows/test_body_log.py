"""`ctx.log`: a line of a workflow's body comes once, however often the body is replayed."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Context
from holdfast.testing import Harness
from tests.flows.support import next_worker


def own(lines: Any) -> list[str]:
    known = {"worker_started", "worker_stopped", "worker_taken_over", "instance_failed", "step_failed"}
    return [line["event"] for line in lines if line["event"] not in known]


async def nothing(*_: Any) -> None: ...


async def test_a_line_comes_once_though_the_body_runs_again_after_each_wait(harness: Harness) -> None:
    runs = []

    @harness.workflow("waits")
    async def waits(ctx: Context, _: None) -> None:
        runs.append(1)
        ctx.log.info("begun")
        await ctx.step("one", nothing)
        ctx.log.info("after one")
        moment = ctx.now()
        ctx.log.info("at", now=moment.isoformat())
        await ctx.sleep("nap", 60)
        ctx.log.info("after the nap")
        await ctx.wait_for_signal("go", timeout=60)
        ctx.log.info("after the signal")
        await asyncio.gather(ctx.step("left", nothing), ctx.sleep("right", 60))
        ctx.log.info("over")

    with capture_logs() as lines:
        handle = await harness.start("waits", None)
        await harness.finish(handle)
    assert own(lines) == ["begun", "after one", "at", "after the nap", "after the signal", "over"]
    assert len(runs) == 4
    assert all(line["instance_id"] == handle.id for line in lines if line["event"] in own(lines))


async def test_another_worker_does_not_repeat_what_the_first_has_said(harness: Harness) -> None:
    @harness.workflow("handed-on")
    async def handed_on(ctx: Context, _: None) -> None:
        ctx.log.info("before")
        await ctx.sleep("nap", 60)
        ctx.log.info("after")

    with capture_logs() as lines:
        await harness.start("handed-on", None)
        await harness.run_until_idle()
        async with next_worker(harness, app=harness) as other:
            await other.advance(hours=1)
    assert own(lines) == ["before", "after"]


async def test_a_body_that_is_undone_says_nothing_again(harness: Harness) -> None:
    async def fails_once() -> None:
        if not tries:
            tries.append(1)
            raise ValueError("once")

    tries: list[int] = []

    @harness.workflow("undone")
    async def undone(ctx: Context, _: None) -> None:
        ctx.log.info("begun")
        await ctx.step("one", nothing, compensate=fails_once)
        ctx.log.info("fails")
        try:
            raise ValueError("no")
        except ValueError:
            ctx.log.exception("because")
            raise
        finally:
            ctx.log.info("unwound")

    with capture_logs() as lines:
        handle = await harness.start("undone", None)
        await harness.advance(hours=1)
    assert (await handle.status()).compensation == "complete"
    assert own(lines) == ["begun", "fails", "because", "unwound", "compensation_failed"]
    [because] = [line for line in lines if line["event"] == "because"]
    assert because["log_level"] == "error" and because["exception"].endswith("ValueError: no")


async def test_a_body_that_is_put_away_while_it_waits_does_not_speak_on_its_way_out(harness: Harness) -> None:
    @harness.workflow("put-away")
    async def put_away(ctx: Context, _: None) -> None:
        try:
            await ctx.sleep("nap", 60)
        finally:
            ctx.log.info("over")

    with capture_logs() as lines:
        await harness.start("put-away", None)
        await harness.run_until_idle()
        assert own(lines) == []
        await harness.advance(hours=1)
    assert own(lines) == ["over"]


async def test_a_fork_does_not_repeat_the_lines_of_the_past_it_takes_over(harness: Harness) -> None:
    broken = [True]

    async def shaky() -> None:
        if broken[0]:
            raise ValueError("not yet")

    @harness.workflow("forked")
    async def forked(ctx: Context, _: None) -> None:
        await ctx.step("one", nothing)
        ctx.log.info("between")
        await ctx.step("two", nothing)
        await ctx.step("shaky", shaky, max_attempts=1)
        ctx.log.info("done")

    with capture_logs() as lines:
        handle = await harness.start("forked", None)
        await harness.run_until_idle()
        broken[0] = False
        again = await handle.retry(actor="ann")
        await harness.run_until_idle()
        await again.result(timeout=0)
    assert own(lines) == ["between", "done"]


async def test_code_that_lost_a_call_goes_on_logging(harness: Harness) -> None:
    short = [False]

    @harness.workflow("mended")
    async def mended(ctx: Context, _: None) -> None:
        if not short[0]:
            await ctx.step("gone", nothing)
        await ctx.sleep("nap", 60)
        await ctx.sleep("second", 60)
        ctx.log.info("still here")

    with capture_logs() as lines:
        handle = await harness.start("mended", None)
        await harness.run_until_idle()
        short[0] = True
        await harness.finish(handle)
    assert own(lines) == ["still here"]


@pytest.mark.parametrize(
    ("args", "said"), [((), "100 %"), (("x", 5), "100 % ('x', 5)")], ids=["no arguments", "arguments that do not fit"]
)
async def test_a_line_does_not_end_a_workflow(harness: Harness, args: tuple[Any, ...], said: str) -> None:
    @harness.workflow("odd")
    async def odd(ctx: Context, _: None) -> None:
        ctx.log.warning("100 %", *args, event="mine", level="high")

    with capture_logs() as lines:
        await harness.finish(await harness.start("odd", None))
    [line] = [line for line in lines if line["event"] == said]
    assert line["event_"] == "mine"
