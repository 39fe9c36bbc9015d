"""What a handler is given is what is on record, at every attempt, whatever anybody does to the objects meanwhile."""

import asyncio
import datetime
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from holdfast import Context, Holdfast, NotApplied, StepInfo, Workflow, effect
from holdfast.testing import Harness
from tests.flows.support import entries, next_worker, query

T = TypeVar("T")
MOMENT = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


@dataclass
class Order:
    id: str
    lines: list[int] = field(default_factory=list)


@dataclass
class Rush(Order):
    fee: int = 0


@dataclass
class InCents:
    """It converts what it is made of, and so would convert again what is read back."""

    amount: int

    def __post_init__(self) -> None:
        self.amount *= 100


class Hold(msgspec.Struct):
    order: Order
    units: int


class Receipt(pydantic.BaseModel):
    number: int
    lines: list[str]


class Aliased(pydantic.BaseModel):
    """Written by its fields' names and read by their aliases, so its JSON cannot be read back."""

    number: int = pydantic.Field(alias="Number")


class Colour(enum.StrEnum):
    RED = "red"


class Own:
    """JSON can be made of it, and never be read back as one."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def model_dump(self, mode: str) -> dict[str, int]:
        return {"amount": self.amount}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and other.amount == self.amount


async def test_what_is_sent_is_what_was_passed_at_the_call(harness: Harness) -> None:
    sent: list[Any] = []

    async def pay(order: dict[str, Any]) -> None:
        sent.append(order["amount"])

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> None:
        order = {"amount": 10}
        asked = ctx.effect("pay", pay, order)
        order["amount"] = 999
        await asked

    await harness.finish(await harness.start("pay"))
    assert sent == [10]
    assert [bytes(row[0]) for row in query(harness.url, "select request from holdfast.effects")] == [b'[{"amount":10}]']


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", ["step", "thread", "in place", "effect", "transaction", "info"])
async def test_each_attempt_gets_the_arguments_afresh(harness: Harness, kind: str, large: bool) -> None:
    seen: list[int] = []

    def convert(order: dict[str, Any]) -> int:
        order["amount"] *= 100
        seen.append(order["amount"])
        if len(seen) < 3:
            raise NotApplied("not yet")
        return seen[-1]

    async def convert_async(order: dict[str, Any]) -> int:
        return convert(order)

    async def convert_informed(order: dict[str, Any], info: StepInfo) -> int:
        return convert(order)

    def write(tx: Any, order: dict[str, Any]) -> int:
        return convert(order)

    async def write_async(tx: Any, order: dict[str, Any]) -> int:
        return convert(order)

    @harness.workflow("convert")
    async def workflow(ctx: Context) -> list[int]:
        order: dict[str, Any] = {"amount": 42, "text": "x" * (5_000 if large else 1)}
        asked = {
            "step": lambda: ctx.step("a", convert_async, order),
            "thread": lambda: ctx.step("a", convert, order),
            "in place": lambda: ctx.step("a", convert, order, thread=False),
            "effect": lambda: ctx.effect("a", convert_async, order),
            "transaction": lambda: ctx.transaction(
                "a", write_async if harness.url.startswith("postgres") else write, order
            ),
            "info": lambda: ctx.step("a", convert_informed, order),
        }[kind]()
        return [await asked, order["amount"]]

    assert await harness.finish(await harness.start("convert")) == [4200, 42]
    assert seen == [4200] * 3


async def test_branches_do_not_see_what_another_one_does_to_its_arguments(harness: Harness) -> None:
    mailed: list[Any] = []

    def push(order: dict[str, Any]) -> None:
        order["crm"] = 7

    async def send(order: dict[str, Any]) -> None:
        mailed.append(order)

    @harness.workflow("tell")
    async def workflow(ctx: Context) -> dict[str, int]:
        order = {"id": 1}
        await ctx.parallel("tell", {"crm": (push, order), "mail": effect(send, order)})
        return order

    assert await harness.finish(await harness.start("tell")) == {"id": 1}
    assert mailed == [{"id": 1}]


async def test_a_step_that_changes_its_argument_does_not_change_what_follows_in_a_replay(harness: Harness) -> None:
    def add(order: dict[str, Any]) -> None:
        order["total"] = 5

    @harness.workflow("add")
    async def workflow(ctx: Context) -> Any:
        order: dict[str, Any] = {"id": 1}
        await ctx.step("add", add, order)
        await ctx.step("book", lambda order: None, order)
        await ctx.wait_for_signal("go")
        return order

    handle = await harness.start("add")
    await harness.run_until_idle()
    async with next_worker(harness) as other:
        again = other.instance(handle.id)
        await again.signal("go", 1)
        assert await other.finish(again) == {"id": 1}


CASES: list[tuple[Any, Any, Any]] = [
    (Order("a", [1]), Order, Order("a", [1])),
    (Hold(Order("a"), 2), Hold, Hold(Order("a"), 2)),
    ([Hold(Order("a"), 2)], list[Hold], [Hold(Order("a"), 2)]),
    (Receipt(number=1, lines=["x"]), Receipt, Receipt(number=1, lines=["x"])),
    (Receipt(number=1, lines=["x"]), Receipt | None, Receipt(number=1, lines=["x"])),
    (Colour.RED, Colour, Colour.RED),
    (MOMENT, datetime.datetime, MOMENT),
    (Decimal("1.10"), Decimal, Decimal("1.10")),
    (b"\x00\xff", bytes, b"\x00\xff"),
    (UUID(int=7), UUID, UUID(int=7)),
    ({1, 2}, set[int], {1, 2}),
    ((1, "a"), tuple[int, str], (1, "a")),
    # Nothing is said, so plain JSON comes.
    (Order("a", [1]), None, {"id": "a", "lines": [1]}),
    (Order("a", [1]), Any, {"id": "a", "lines": [1]}),
    (Order("a", [1]), T, {"id": "a", "lines": [1]}),
    ((1, 2), None, [1, 2]),
    (Decimal("1.10"), None, "1.10"),
    # What the annotation cannot read comes as it was passed.
    (Own(3), Own, Own(3)),
    ([Own(3)], Sequence[Own], [{"amount": 3}]),
    (Aliased(Number=3), Aliased, Aliased(Number=3)),
    (Order("a"), Order | Own | Hold, Order("a")),
    (Order("a"), Callable[[], int], Order("a")),
    ({"amount": 1}, Order, {"amount": 1}),
    ([1, 2], str, [1, 2]),
    (1.5, int, 1.5),
    (None, str, None),
    # Reading it under the annotation would give another value than the one on record.
    (InCents(1), InCents, InCents(1)),
    ([InCents(1)], list[InCents], [InCents(1)]),
    ({"a": InCents(1)}, dict[str, InCents | None], {"a": InCents(1)}),
    (Rush("a", [1], 5), Order, Rush("a", [1], 5)),
    # But plain values become what the annotation says.
    ({"id": "a"}, Order, Order("a")),
    (["1.10"], list[Decimal], [Decimal("1.10")]),
    ((1,), list[Decimal], [Decimal(1)]),
    ("2026-01-02", datetime.date, "2026-01-02"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(CASES)))
async def test_an_argument_comes_as_its_parameter_is_annotated(harness: Harness, case: int) -> None:
    passed, annotation, expected = CASES[case]
    seen: list[Any] = []

    async def plain(value: Any) -> None:
        seen.append(value)

    async def many(first: str, *values: Any) -> None:
        seen.extend(values)

    def in_thread(other: int, info: StepInfo, value: Any) -> None:
        seen.append(value)
        if info.attempt == 1:
            raise ValueError("again")

    class Service:
        async def method(self, value: Any, more: int = 1) -> None:
            seen.append(value)

    for function, name in ((plain, "value"), (many, "values"), (in_thread, "value"), (Service.method, "value")):
        function.__annotations__[name] = annotation
        if annotation is None:
            del function.__annotations__[name]

    @harness.workflow("typed")
    async def workflow(ctx: Context) -> None:
        await ctx.step("plain", plain, passed)
        await ctx.step("many", many, "a", passed, passed)
        await ctx.effect("thread", partial(in_thread, 1), passed, mode="keyed")
        await ctx.step("method", Service().method, passed)

    await harness.finish(await harness.start("typed"))
    assert seen == [expected] * 6
    assert [type(one) for one in seen] == [type(expected)] * 6


async def test_an_object_that_cannot_be_read_back_and_was_changed_is_not_handed_over(harness: Harness) -> None:
    called: list[Own] = []

    async def pay(amount: Own) -> None:
        called.append(amount)

    @harness.workflow("pay")
    async def workflow(ctx: Context, kind: str) -> None:
        amount = Own(10)
        asked = ctx.effect("pay", pay, amount) if kind == "effect" else ctx.step("pay", pay, amount, max_attempts=1)
        amount.amount = 999
        await asked

    for kind in ("effect", "step"):
        handle = await harness.start("pay", kind)
        await harness.run_until_idle()
        view = await handle.status()
        assert view.status == "failed" and "was changed after the call" in view.error["message"]
    assert called == []


async def test_a_repeat_after_a_deploy_that_changed_the_annotation_harms_its_own_call_only(harness: Harness) -> None:
    class Stricter(msgspec.Struct):
        id: str
        currency: str

    def deploy(hf: Any, annotation: Any, seen: list[Any]) -> None:
        async def pay(order: Any) -> str:
            seen.append(order)
            if annotation is Order:
                raise NotApplied("not yet")
            return str(order.currency)

        pay.__annotations__["order"] = annotation

        @hf.workflow("pay")
        async def workflow(ctx: Context) -> str:
            return await ctx.effect("pay", pay, {"id": "a"})

    before: list[Any] = []
    after: list[Any] = []
    deploy(harness, Order, before)
    handle = await harness.start("pay")
    await harness.run_until_idle()
    assert before == [Order("a")]
    new = Holdfast(harness.url)
    deploy(new, Stricter, after)
    async with next_worker(harness, app=new) as other:
        await other.advance(minutes=5)
        assert after == [{"id": "a"}]  # as it is on record
        again = other.instance(handle.id)
        assert "a person" in str((await again.status()).waiting_on)
        assert "AttributeError" in str(await entries(again, "EFFECT_UNKNOWN"))


async def test_a_builders_handlers_cannot_change_what_others_are_told(harness: Harness) -> None:
    seen: list[Any] = []

    def price(info: StepInfo) -> dict[str, Any]:
        info.input["amount"] *= 100
        seen.append(info.input["amount"])
        if info.attempt == 1:
            raise ValueError("again")
        return {"price": 5}

    async def book(info: StepInfo) -> str:
        info.results["price"]["price"] = 0
        info.results["other"] = 1
        seen.append(info.input["amount"])
        if info.attempt == 1:
            raise NotApplied("again")
        return "booked"

    def last(info: StepInfo) -> Any:
        return [info.input, info.results]

    built = Workflow("built").step("price", price).effect("book", book).step("last", last)
    harness.register(built)
    result = await harness.finish(await harness.start("built", {"amount": 1}))
    assert seen == [100, 100, 1, 1]
    assert result["last"] == [{"amount": 1}, {"price": {"price": 5}, "book": "booked"}]


async def test_what_a_body_is_given_is_its_own(harness: Harness) -> None:
    """What a body does to its input, to results, to payloads and to a child's input is the same in a replay."""

    @harness.workflow("child")
    async def child(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
        return given

    async def load() -> dict[str, list[int]]:
        return {"n": [1]}

    @harness.workflow("mutator")
    async def workflow(ctx: Context, given: dict[str, Any]) -> Any:
        given["seen"] = True
        loaded = await ctx.step("load", load)
        loaded["n"].append(2)
        asked = asyncio.ensure_future(ctx.child("child", "child", loaded))
        told = await ctx.wait_for_signal("told")
        told["n"] = loaded["n"]
        loaded["n"].append(3)
        answer = await asked
        await ctx.step("check", lambda *_: None, given, loaded, told, answer)
        await ctx.wait_for_signal("go")
        return [given, loaded, told, answer]

    handle = await harness.start("mutator", {"id": 1})
    await harness.run_until_idle()
    await handle.signal("told", {"a": 1})
    await harness.run_until_idle()
    async with next_worker(harness) as other:
        again = other.instance(handle.id)
        await again.signal("go", 1)
        result = await other.finish(again)
    assert result == [{"id": 1, "seen": True}, {"n": [1, 2, 3]}, {"a": 1, "n": [1, 2, 3]}, {"n": [1, 2]}]
