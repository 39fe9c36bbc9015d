"""What runs while its servers and workers are restarted: every step says that it ran, in a file of its own folder."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, TaskInfo

hf = Holdfast()


def said(step: str, key: str) -> None:
    """One line for each time a handler runs."""
    file = os.open(Path(os.environ["HOLDFAST_TEST_FOLDER"]) / "ran.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{step} {key}\n".encode())
    os.close(file)


async def _one(key: str) -> str:
    said("one", key)
    await asyncio.sleep(0.05)
    return key


async def _two(key: str) -> str:
    said("two", key)
    return key


@hf.workflow("quick")
async def quick(ctx: Context, given: dict[str, Any]) -> Any:
    await ctx.step("one", _one, given["key"])
    return await ctx.step("two", _two, given["key"])


@hf.workflow("order")
async def order(ctx: Context, given: dict[str, Any]) -> Any:
    """A step, a word from outside, another step."""
    await ctx.step("one", _one, given["key"])
    note: Any = await ctx.wait_for_signal("confirmed", timeout=timedelta(days=1))
    await ctx.step("two", _two, given["key"])
    return {"key": given["key"], "by": note["by"]}


@hf.workflow("endless")
async def endless(ctx: Context, given: dict[str, Any]) -> Any:
    return await ctx.step("endless", _endless, given["key"])


async def _endless(key: str) -> str:
    """Does not end in a process that is told so."""
    said("endless", key)
    if os.environ.get("HOLDFAST_TEST_ENDLESS"):
        await asyncio.sleep(3600)
    return key


@hf.task_handler("SYSTEM", "book", kind="step")
def book(given: dict[str, Any], task: TaskInfo) -> dict[str, Any]:
    said("book", task.instance_id)
    return {"booked": True}
