"""What the server and the worker of the API's tests run: a little of everything."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from holdfast import Backoff, Context, Holdfast, NotApplied, TaskInfo

hf = Holdfast()


def reserve(order: dict[str, Any]) -> dict[str, Any]:
    return {"hold": f"hold-{order.get('id')}"}


def release(hold: dict[str, Any]) -> None:
    return None


def pay(hold: dict[str, Any]) -> dict[str, Any]:
    return {"paid": hold["hold"]}


def lost(order: dict[str, Any]) -> dict[str, Any]:
    raise TimeoutError("the bank did not answer")


def busy(order: dict[str, Any]) -> None:
    raise NotApplied("the bank is closed")


def broken(order: dict[str, Any]) -> None:
    raise ValueError("no such account")


@hf.workflow("order")
async def order(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    """A step, a payment, a person's word."""
    hold = await ctx.step("reserve", reserve, given, compensate=release)
    paid = await ctx.effect("pay", pay, hold, mode="keyed", window=timedelta(hours=1))
    note = await ctx.wait_for_signal("confirmed", timeout=timedelta(days=30))
    return {"paid": paid, "by": note and note.get("by")}


@hf.workflow("quick")
async def quick(ctx: Context, given: Any) -> Any:
    return await ctx.step("echo", _echo, given)


class Line(BaseModel):
    sku: str
    count: int


class Invoice(BaseModel):
    amount: Decimal
    lines: list[Line]


@hf.workflow("invoice")
async def invoice(ctx: Context, given: Invoice) -> str:
    """What it takes is a pydantic model."""
    return str(given.amount)


def _echo(given: Any) -> Any:
    return given


@hf.workflow("many")
async def many(ctx: Context, given: dict[str, Any]) -> int:
    """Many steps, each with a large result."""
    for _ in range(given["steps"]):
        await ctx.step("echo", _echo, given["text"])
    return int(given["steps"])


@hf.workflow("unknown")
async def unknown(ctx: Context, given: dict[str, Any]) -> Any:
    """An effect of which nobody can say whether it happened."""
    return await ctx.effect("pay", lost, given, mode="manual", timeout=1)


@hf.workflow("failing")
async def failing(ctx: Context, given: dict[str, Any]) -> Any:
    """Fails in its second step."""
    hold = await ctx.step("reserve", reserve, given)
    await ctx.step("check", broken, given, max_attempts=1)
    return hold


@hf.workflow("backing-off")
async def backing_off(ctx: Context, given: dict[str, Any]) -> Any:
    """Waits an hour for its next attempt."""
    hour = timedelta(hours=1)
    return await ctx.step("try", broken, given, max_attempts=5, backoff=Backoff(first=hour, cap=hour))


@hf.workflow("parent")
async def parent(ctx: Context, given: dict[str, Any]) -> Any:
    return await ctx.child("kid", "quick", given)


@hf.workflow("slow")
async def slow(ctx: Context, given: Any) -> Any:
    return await ctx.step("sleep", _sleep, given)


async def _sleep(given: Any) -> Any:
    await asyncio.sleep(float(given.get("seconds", 1)))
    return given


@hf.task_handler("SYSTEM", "book", kind="step")
def book(given: dict[str, Any], task: TaskInfo) -> dict[str, Any]:
    return {"booked": True}
