"""`holdfast dead-letters`: work that was given up is looked at, replayed, or left alone."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from structlog.testing import capture_logs

from holdfast import Context
from holdfast.testing import Harness, ManualClock
from tests.cli.support import Desk
from tests.flows.support import query

NO_LETTER = "dlt_" + "0" * 32
CHART: dict[str, Any] = {
    "id": "lonely",
    "initial": "asked",
    "states": {"asked": {"entry": {"type": "createTask", "params": {"type": "SYSTEM", "name": "broken"}}}},
}


def poisoned(desk: Desk) -> str:
    """An instance that took worker after worker down with it, and then was given up."""

    async def whole() -> str:
        async with Harness(url=desk.url, clock=ManualClock(datetime.now(UTC))) as test:

            @test.workflow("order")
            async def order(ctx: Context) -> None:
                await ctx.effect("pay", lambda: "paid")
                await ctx.wait_for_signal("go")

            handle = await test.start("order")
            await test.run_until_idle()
            query(desk.url, "update holdfast.instances set attempts = 5")
            await handle.signal("go")
            with capture_logs():
                await test.run_until_idle()
            return handle.id

    return asyncio.run(whole())


def test_a_dead_letter_is_listed_shown_and_replayed_once(desk: Desk) -> None:
    instance = poisoned(desk)
    [letter] = desk.json("dead-letters", "list")
    assert (letter["instance_id"], letter["source"], letter["resolution"]) == (instance, "instance", None)
    assert "its worker died" in desk.json("dead-letters", "show", letter["id"])["reason"]
    replay = ("dead-letters", "replay", letter["id"], "--reason", "the name is mended")
    assert f"instance {instance} would go on as a new one" in desk.ok(*replay, "--dry-run").stderr
    assert len(desk.json("instances", "list")) == 1
    new = desk.ok(*replay, "--actor", "ann", "--yes").stdout.strip()
    assert new != instance and desk.json("instances", "show", new)["status"] == "pending"
    assert desk.json("dead-letters", "list") == []
    [kept] = desk.json("dead-letters", "list", "--all")
    assert (kept["resolution"], kept["resolved_by"]) == ("replayed", "ann")
    desk.refused(4, "was replayed by ann", *replay, "--actor", "bob", "--yes")


def test_a_dead_letter_is_ignored_with_a_reason(desk: Desk) -> None:
    poisoned(desk)
    [letter] = desk.json("dead-letters", "list")
    assert desk.run("dead-letters", "ignore", letter["id"]).exit_code == 2
    ignore = ("dead-letters", "ignore", letter["id"], "--reason", "a test order", "--actor", "ann")
    assert "nothing was done" in desk.ok(*ignore, "--dry-run").stderr
    assert desk.json(*ignore, "--yes")["resolution"] == "ignored"
    assert desk.json("dead-letters", "list") == []
    desk.refused(4, "was ignored by ann", *ignore, "--yes")
    desk.refused(3, "no dead letter", "dead-letters", "ignore", NO_LETTER, "--reason", "x")


def test_a_tasks_letter_says_why_it_cannot_be_replayed(desk: Desk) -> None:
    desk.publish(CHART)
    desk.start("lonely")

    async def whole() -> None:
        async with Harness(url=desk.url, clock=ManualClock(datetime.now(UTC))) as test:

            @test.task_handler("SYSTEM", "broken")
            def broken(given: Any) -> None:
                raise ValueError("no such account")

            await test.advance(days=1)

    asyncio.run(whole())
    [letter] = desk.json("dead-letters", "list")
    assert letter["source"] == "task"
    desk.refused(4, "start a new one, then ignore the letter", "dead-letters", "replay", letter["id"], "--reason", "x")
    desk.ok("dead-letters", "ignore", letter["id"], "--reason", "started anew")
