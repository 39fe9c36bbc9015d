"""The table of safe deploys in docs/steps.md, as cases: `python -m tests.flows.safe_deploys` writes the table again.

A case is a workflow before and after a deploy. Its instance has come to a wait for the signal `go` under the old code,
or to an effect that nobody knows the outcome of; the signal has been sent, and an hour has passed. test_safe_deploys.py
takes its history home, replays it against the new code, and then has a worker with the new code do what was foretold.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import Context, Holdfast

PAGE = Path(__file__).resolve().parents[2] / "docs" / "steps.md"
BEGIN, END = (
    "<!-- safe deploys: python -m tests.flows.safe_deploys writes this table -->\n",
    "<!-- safe deploys end -->",
)
Body = Callable[[Context, Any], Awaitable[Any]]


class World:
    """What handlers did, in order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def price(self, amount: int = 10) -> int:
        self.seen.append(f"priced {amount}")
        return amount

    def broken(self) -> int:
        self.seen.append("broke")
        raise ValueError("not yet")

    def reserve(self) -> str:
        self.seen.append("reserved")
        return "r1"

    def release(self) -> None:
        self.seen.append("released")

    async def pay(self, amount: int = 10) -> str:
        self.seen.append(f"paid {amount}")
        return "p1"

    async def unheard(self, amount: int = 10) -> str:
        self.seen.append(f"paid {amount}")
        raise TimeoutError("no answer")

    def in_words(self) -> str:
        self.seen.append("priced")
        return "ten"

    def in_figures(self) -> int:
        raise AssertionError("its result is on record")


@dataclass
class Order:
    amount: int


class Case(NamedTuple):
    change: str
    waiting: str  # what becomes of instances that wait
    verdict: str
    why: str  # a part of it
    next: str  # likewise
    old: Callable[[World], Body]
    new: Callable[[World], Body] | None  # None: the workflow is not there any more
    status: str  # of the instance, once a worker has run the new code
    seen: list[str]  # what that worker's handlers did


def go(body: Callable[[World, Context, Any], Awaitable[Any]]) -> Callable[[World], Body]:
    def bound(world: World) -> Body:
        async def order(ctx: Context, given: Any) -> Any:
            return await body(world, ctx, given)

        return order

    return bound


# -- workflows


@go
async def priced(world: World, ctx: Context, given: Any) -> Any:
    found = await ctx.step("price", world.price)
    await ctx.wait_for_signal("go")
    return found


@go
async def fails_first(world: World, ctx: Context, given: Any) -> Any:
    return await ctx.step("price", world.broken, backoff=timedelta(minutes=1))


@go
async def mended_handler(world: World, ctx: Context, given: Any) -> Any:
    return await ctx.step("price", world.price)


@go
async def a_step_more(world: World, ctx: Context, given: Any) -> Any:
    await ctx.step("reserve", world.reserve)
    return await priced(world)(ctx, given)


@go
async def reserved_and_priced(world: World, ctx: Context, given: Any) -> Any:
    await ctx.step("reserve", world.reserve)
    return await priced(world)(ctx, given)


@go
async def priced_and_reserved(world: World, ctx: Context, given: Any) -> Any:
    await ctx.step("price", world.price)
    await ctx.step("reserve", world.reserve)
    await waits_and_rests(world)(ctx, given)


@go
async def waits_and_rests(world: World, ctx: Context, given: Any) -> Any:
    await ctx.wait_for_signal("go")
    await ctx.sleep("rest", timedelta(days=1))


@go
async def waits_only(world: World, ctx: Context, given: Any) -> Any:
    await ctx.wait_for_signal("go")


@go
async def owing(world: World, ctx: Context, given: Any) -> Any:
    await ctx.step("reserve", world.reserve, compensate=world.release)
    await ctx.wait_for_signal("go")


@go
async def unknown_payment(world: World, ctx: Context, given: Any) -> Any:
    await ctx.effect("pay", world.unheard)


@go
async def unknown_payment_of_12(world: World, ctx: Context, given: Any) -> Any:
    await ctx.effect("pay", world.unheard, 12)


@go
async def keyed_payment(world: World, ctx: Context, given: Any) -> Any:
    await ctx.effect("pay", world.unheard, mode="keyed", backoff=timedelta(hours=2))


@go
async def nothing(world: World, ctx: Context, given: Any) -> Any:
    return None


@go
async def renamed_step(world: World, ctx: Context, given: Any) -> Any:
    found = await ctx.step("cost", world.price)
    await ctx.wait_for_signal("go")
    return found


@go
async def paid(world: World, ctx: Context, given: Any) -> Any:
    await ctx.effect("pay", world.pay)
    await ctx.wait_for_signal("go")


@go
async def charged(world: World, ctx: Context, given: Any) -> Any:
    await ctx.effect("charge", world.pay)
    await ctx.wait_for_signal("go")


@go
async def unknown_charge(world: World, ctx: Context, given: Any) -> Any:
    await ctx.effect("charge", world.unheard)


@go
async def priced_at_12(world: World, ctx: Context, given: Any) -> Any:
    found = await ctx.step("price", world.price, 12)
    await ctx.wait_for_signal("go")
    return found


@go
async def price_as_effect(world: World, ctx: Context, given: Any) -> Any:
    found = await ctx.effect("price", world.price)
    await ctx.wait_for_signal("go")
    return found


@go
async def price_in_words(world: World, ctx: Context, given: Any) -> Any:
    await ctx.step("price", world.in_words)
    await ctx.wait_for_signal("go")


@go
async def price_in_figures(world: World, ctx: Context, given: Any) -> Any:
    await ctx.step("price", world.in_figures)
    await ctx.wait_for_signal("go")


def with_an_order(world: World) -> Body:
    async def order(ctx: Context, given: Order) -> Any:
        return await priced(world)(ctx, given)

    order.__annotations__["given"] = Order
    return order


@go
async def sleeps_a_day(world: World, ctx: Context, given: Any) -> Any:
    await ctx.sleep("rest", timedelta(days=1))


@go
async def sleeps_a_week(world: World, ctx: Context, given: Any) -> Any:
    await ctx.sleep("rest", timedelta(days=7))


@go
async def with_a_child(world: World, ctx: Context, given: Any) -> Any:
    await ctx.child("audit", "audit")


@go
async def with_a_renamed_child(world: World, ctx: Context, given: Any) -> Any:
    await ctx.child("review", "audit")


@go
async def raises_later(world: World, ctx: Context, given: Any) -> Any:
    await ctx.step("reserve", world.reserve, compensate=world.release)
    raise ValueError("no orders on Sundays")


@go
async def raises(world: World, ctx: Context, given: Any) -> Any:
    raise ValueError("no orders on Sundays")


@go
async def with_a_mistake(world: World, ctx: Context, given: Any) -> Any:
    await ctx.step("price", world.price)
    await asyncio.sleep(1)


PARKED = "**parked**"
RAISES = ("let the body raise", "fail, and what was done is undone")
ARGUMENTS = ("pass other arguments to a step or effect that is done or under way", PARKED, "parked")
CASES = [
    Case("the body of a handler", "use the new one from the next attempt on", "goes_on", "",
         "attempt 2 of step 'price'", fails_first, mended_handler, "completed", ["priced 10"]),
    Case("add a step, anywhere", "run it when replay comes to it, also before steps that are done", "goes_on", "",
         "step 'reserve'", priced, a_step_more, "completed", ["reserved"]),
    Case("reorder steps", "go on; answers are found by name", "goes_on", "", "timer 'rest'", reserved_and_priced,
         priced_and_reserved, "waiting", []),
    Case("remove a step that is done", "go on; its row is not read any more", "goes_on", "", "timer 'rest'", priced,
         waits_and_rests, "waiting", []),
    Case("remove a step that is done and named a compensation", f"{PARKED} before it ends or is undone", "parked",
         "'reserve' may have to be undone", "", owing, waits_only, "waiting", []),
    Case("remove an effect whose outcome nobody knows", f"{PARKED} before it ends, restarts or is undone", "parked",
         "nobody knows the outcome of effect 'pay' yet", "", unknown_payment, nothing, "waiting", []),
    Case("remove a child that is under way", "go on; the child is told to end when its parent ends", "ends", "",
         "completed", with_a_child, nothing, "completed", []),
    Case("rename a step", "the new name has no answer, so it **runs again**", "goes_on", "", "step 'cost'", priced,
         renamed_step, "completed", ["priced 10"]),
    Case("rename an effect that is done", "the new name has no answer, so it is **made again**: use a new version",
         "goes_on", "if 'charge' is its new name, it is made twice", "effect 'charge'", paid, charged, "completed",
         ["paid 10"]),
    Case("rename an effect whose outcome nobody knows", f"{PARKED} before the new one begins", "parked",
         "the code asks for effect 'charge' before it", "", unknown_payment, unknown_charge, "waiting", []),
    Case("rename a child that is under way", f"{PARKED} before the new one begins", "parked",
         "child 'audit' is under way, and the code asks for child 'review' of the same workflow", "", with_a_child,
         with_a_renamed_child, "waiting", []),
    Case("the `mode=` of an effect whose outcome nobody knows",
         "it waits for a person at the desk, whatever both modes allow", "waits_for_person",
         "it was begun as 'keyed' and the code now says 'manual'", "a person: the outcome of effect 'pay'",
         keyed_payment, unknown_payment, "waiting", []),
    Case(*ARGUMENTS, "recorded with the arguments [], the code now passes [12]", "", priced, priced_at_12, "waiting",
         []),
    Case(*ARGUMENTS, "'pay' is recorded with the arguments [], the code now passes [12]", "", unknown_payment,
         unknown_payment_of_12, "waiting", []),
    Case("make a step an effect, or any other change of kind", PARKED, "parked",
         "recorded as a step, the code now asks for an effect", "", priced, price_as_effect, "waiting", []),
    Case("a return annotation that the recorded result does not fit", PARKED, "parked",
         "the recorded result of 'price' does not fit its annotation any more", "", price_in_words, price_in_figures,
         "waiting", []),
    Case("the type of the input, so that the recorded input does not fit", PARKED, "parked",
         "the input does not fit what workflow 'order' version 1 expects", "", priced, with_an_order, "waiting", []),
    Case("the length of a sleep or a wait that has begun", "keep the moment that is on record", "goes_on", "",
         "timer 'rest' until 2026-01-02T09:00:00Z", sleeps_a_day, sleeps_a_week, "waiting", []),
    Case(*RAISES, "goes_on", "it fails, and is undone: ", "the compensation of 'reserve'", owing, raises_later,
         "failed", ["released"]),
    Case(*RAISES, "ends", "it fails: ", "failed: ValueError: no orders on Sundays", priced, raises, "failed", []),
    Case("make a mistake in the body itself, see below", f"{PARKED}, instead of failed and undone", "parked",
         "asyncio.sleep", "", priced, with_a_mistake, "waiting", []),
    Case("remove a workflow, or a version of one", "left alone: no worker claims them until it is back", "unknown",
         "the app has no workflow 'order'", "", priced, None, "waiting", []),
]  # fmt: skip


def app_of(body: Callable[[World], Body] | None, world: World) -> Holdfast:
    app = Holdfast()

    @app.workflow("audit")
    async def audit(ctx: Context) -> None:
        await ctx.wait_for_signal("audited")

    if body is not None:
        app.workflow("order")(body(world))
    return app


def render() -> str:
    verdicts: dict[tuple[str, str], dict[str, None]] = {}
    for case in CASES:
        verdicts.setdefault((case.change, case.waiting), {})[f"`{case.verdict}`"] = None
    rows = [f"| {change} | {waiting} | {' or '.join(said)} |\n" for (change, waiting), said in verdicts.items()]
    return "| you change | waiting instances | `holdfast replay` |\n|---|---|---|\n" + "".join(rows)


def page_with(table: str) -> str:
    found, count = re.subn(
        re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: BEGIN + "\n" + table + "\n" + END, PAGE.read_text(),
        flags=re.S,
    )  # fmt: skip
    assert count == 1, f"{PAGE.name} has no place for the table"
    return found


if __name__ == "__main__":
    PAGE.write_text(page_with(render()))
