"""Compensations that touch the world are effects: on record before they start, repeated only as their mode allows."""

import asyncio
from typing import Any

import pytest

from holdfast import Context, Handle, InstanceFailed, NotApplied, Rejected, StepInfo, Workflow, effect
from holdfast.engine.effects import GRACE, LEASE
from holdfast.testing import Harness
from tests.flows.support import entries, next_worker, query, types, until
from tests.support.auditor import assert_sound

CALL_IS_OVER = (LEASE + GRACE) / 1_000_000 + 60


class Bank:
    """It remembers every refund, and may let one hang."""

    def __init__(self) -> None:
        self.refunds: list[str] = []
        self.hangs = asyncio.Event()
        self.raises: list[BaseException] = []

    async def refund(self, payment: str, info: StepInfo) -> str:
        self.refunds.append(info.idempotency_key)
        if self.raises:
            raise self.raises.pop(0)
        await self.hangs.wait()
        return f"refund of {payment}"

    async def find(self, key: str) -> str | None:
        return "r-1" if key in self.refunds else None


def failing(harness: Harness, compensate: Any) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.effect("pay", lambda: "p-1", compensate=compensate)
        raise RuntimeError("sold out")


async def refunding(harness: Harness, bank: Bank, compensate: Any) -> Handle:
    """The refund is under way."""
    failing(harness, compensate)
    handle = await harness.start("order")
    await until(lambda: bank.refunds, harness)
    return handle


async def test_a_refund_is_on_record_before_it_starts(harness: Harness) -> None:
    seen: list[Any] = []

    async def refund(payment: str, info: StepInfo) -> None:
        handle = harness.instance(info.instance_id)
        [started] = await entries(handle, "COMPENSATION_STARTED")
        [row] = await harness.effects.list(state="started")
        seen.append((started.name, started.payload["args"], row.step, row.mode, row.request))
        seen.append((row.idempotency_key == info.idempotency_key, info.not_after is not None, info.step, info.attempt))
        view = await handle.status()
        listed = [one.id for one in await harness.instances(status="compensating")]
        seen.append((view.status, listed == [info.instance_id]))

    failing(harness, refund)
    handle = await harness.start("order")
    with pytest.raises(InstanceFailed, match="sold out"):
        await harness.finish(handle)
    assert seen == [
        ("pay", ["p-1"], "undo:pay", "manual", ["p-1"]), (True, True, "pay", 1), ("compensating", True),
    ]  # fmt: skip
    assert (await handle.status()).compensation == "complete"
    assert_sound(harness.url)


async def test_a_refund_whose_worker_died_waits_for_a_person_and_is_not_made_again(harness: Harness) -> None:
    bank = Bank()
    handle = await refunding(harness, bank, bank.refund)
    async with next_worker(harness) as other:
        bank.hangs.set()
        await other.advance(seconds=CALL_IS_OVER)
        assert len(bank.refunds) == 1
        [unknown] = await other.effects.list(state="outcome_unknown")
        assert (unknown.step, unknown.expected) == ("undo:pay", None)
        view = await handle.status()
        assert view.status == "compensating" and "'undo:pay' is unknown" in (view.waiting_on or "")
        assert "effect 'undo:pay', unknown since" in await handle.why()
        assert_sound(harness.url)
        await other.effects.resolve(unknown.id, "happened", actor="ann", reason="the bank says so")
        await other.run_until_idle()
        view = await handle.status()
        assert (view.status, view.compensation, len(bank.refunds)) == ("failed", "complete", 1)
        assert_sound(harness.url)


@pytest.mark.parametrize("said", ["did_not_happen", "abort"])
async def test_a_person_may_have_a_refund_made_again_or_give_it_up(harness: Harness, said: str) -> None:
    bank = Bank()
    handle = await refunding(harness, bank, bank.refund)
    async with next_worker(harness) as other:
        bank.hangs.set()
        await other.advance(seconds=CALL_IS_OVER)
        [unknown] = await other.effects.list(state="outcome_unknown")
        await other.effects.resolve(unknown.id, said, actor="ann", reason="asked the bank")
        await other.run_until_idle()
        view = await handle.status()
        if said == "abort":
            assert (view.status, view.compensation, len(bank.refunds)) == ("failed", "partial", 1)
        else:
            assert (view.status, view.compensation, len(bank.refunds)) == ("failed", "complete", 2)
            assert len(set(bank.refunds)) == 1, "under the same key"
        assert_sound(harness.url)


async def test_a_keyed_refund_is_repeated_under_its_own_key(harness: Harness) -> None:
    bank = Bank()
    handle = await refunding(harness, bank, effect(bank.refund, mode="keyed"))
    async with next_worker(harness) as other:
        bank.hangs.set()
        await other.advance(seconds=CALL_IS_OVER)
        assert len(bank.refunds) == 2 and len(set(bank.refunds)) == 1
        [(paid,)] = query(harness.url, "select idempotency_key from holdfast.effects where step = 'pay'")
        assert paid not in bank.refunds
        assert (await handle.status()).compensation == "complete"
        assert_sound(harness.url)


async def test_a_refund_that_can_be_looked_up_is_looked_up(harness: Harness) -> None:
    bank = Bank()
    handle = await refunding(harness, bank, effect(bank.refund, mode="lookup", lookup=bank.find))
    async with next_worker(harness) as other:
        await other.advance(seconds=CALL_IS_OVER)
        assert len(bank.refunds) == 1
        assert (await handle.status()).compensation == "complete"
        assert_sound(harness.url)


async def test_what_undoes_a_plain_step_is_a_step_unless_it_is_spelled_as_an_effect(harness: Harness) -> None:
    bank = Bank()

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", lambda: "r-1", compensate=effect(bank.refund) if given else bank.refund)
        raise RuntimeError("sold out")

    step, as_effect = await harness.start("order", False), await harness.start("order", True)
    await until(lambda: len(bank.refunds) == 2, harness)
    async with next_worker(harness) as other:
        bank.hangs.set()
        await other.advance(seconds=CALL_IS_OVER)
        assert len(bank.refunds) == 3, "the step ran again, the effect did not"
        assert (await step.status()).compensation == "complete"
        assert "COMPENSATION_STARTED" not in await types(step)
        assert (await as_effect.status()).status == "compensating"
        assert [e.step for e in await other.effects.list(state="outcome_unknown")] == ["undo:reserve"]
        assert_sound(harness.url)


async def test_a_refund_that_raises_may_have_been_made(harness: Harness) -> None:
    bank = Bank()
    bank.raises = [NotApplied("try later"), RuntimeError("the line went dead")]
    failing(harness, bank.refund)
    handle = await harness.start("order")
    await harness.advance(minutes=5)
    assert len(bank.refunds) == 2, "the first is known not to have happened"
    assert (await handle.status()).status == "compensating"
    [unknown] = await harness.effects.list(state="outcome_unknown")
    assert (unknown.step, unknown.attempt) == ("undo:pay", 2)
    assert_sound(harness.url)


async def test_a_refund_that_the_bank_refuses_leaves_the_undoing_partial(harness: Harness) -> None:
    bank = Bank()
    bank.raises = [Rejected("too late")]
    undone: list[str] = []

    @harness.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("reserve", lambda: "r-1", compensate=lambda: undone.append("reserve"))
        await ctx.effect("pay", lambda: "p-1", compensate=bank.refund)
        raise RuntimeError("sold out")

    handle = await harness.start("order")
    await harness.advance(minutes=5)
    view = await handle.status()
    assert (view.status, view.compensation, undone) == ("failed", "partial", ["reserve"])
    assert [e.name for e in await entries(handle, "COMPENSATION_FAILED")] == ["pay"]
    assert_sound(harness.url)


async def test_undoing_waits_for_an_unknown_refund_before_it_goes_on(harness: Harness) -> None:
    bank = Bank()
    bank.raises = [RuntimeError("the line went dead")]
    undone: list[str] = []

    @harness.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("reserve", lambda: "r-1", compensate=lambda: undone.append("reserve"))
        await ctx.effect("pay", lambda: "p-1", compensate=bank.refund)
        await ctx.step("book", lambda: "b-1", compensate=lambda: undone.append("book"))
        await ctx.wait_for_signal("go")

    handle = await harness.start("order")
    await harness.run_until_idle()
    await handle.cancel("not wanted", actor="ann")
    await harness.run_until_idle()
    assert undone == ["book"]
    [unknown] = await harness.effects.list(state="outcome_unknown")
    await harness.effects.resolve(unknown.id, "happened", actor="ann", reason="the bank says so")
    await harness.run_until_idle()
    assert undone == ["book", "reserve"]
    assert ((await handle.status()).status, (await handle.status()).compensation) == ("cancelled", "complete")
    assert_sound(harness.url)


async def test_a_compensation_sees_the_input_and_all_results(harness: Harness) -> None:
    seen: list[StepInfo] = []

    def release(info: StepInfo) -> None:
        seen.append(info)

    async def refund(info: StepInfo) -> None:
        seen.append(info)

    @harness.workflow("order")
    async def order(ctx: Context, given: dict[str, int]) -> None:
        await ctx.step("price", lambda: 10)
        await ctx.step("reserve", lambda: "r-1", compensate=release)
        await ctx.effect("pay", lambda: "p-1", compensate=refund)
        await ctx.step("book", lambda: {"id": 3})
        raise RuntimeError("sold out")

    handle = await harness.start("order", {"amount": 5})
    with pytest.raises(InstanceFailed):
        await harness.finish(handle)
    assert [(info.step, info.result, info.attempt) for info in seen] == [("pay", "p-1", 1), ("reserve", "r-1", 1)]
    for info in seen:
        assert info.input == {"amount": 5}
        assert info.results == {"price": 10, "reserve": "r-1", "pay": "p-1", "book": {"id": 3}}


async def test_the_builder_takes_a_compensation_that_is_an_effect(harness: Harness) -> None:
    seen: list[Any] = []

    def refund(info: StepInfo) -> None:
        seen.append((info.input, info.result, info.results))

    def fails(info: StepInfo) -> None:
        raise RuntimeError("sold out")

    harness.register(
        Workflow("built")
        .step("reserve", lambda info: "r-1", compensate=effect(refund, mode="keyed"))
        .step("ship", fails, max_attempts=1)
    )
    handle = await harness.start("built", 7)
    with pytest.raises(InstanceFailed):
        await harness.finish(handle)
    assert seen == [(7, "r-1", {"reserve": "r-1"})]
    assert "COMPENSATION_STARTED" in await types(handle)
    assert_sound(harness.url)


@pytest.mark.parametrize(
    ("compensate", "words"),
    [
        (5, "expected a function or an effect"),
        (effect(print, mode="lookup"), "needs lookup="),
        (effect(print, compensate=print), "what undoes is not undone"),
    ],
)
async def test_a_compensation_that_cannot_work_is_refused_where_it_is_declared(
    harness: Harness, compensate: Any, words: str
) -> None:
    failing(harness, compensate)
    handle = await harness.start("order")
    await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "waiting" and words in (view.waiting_on or "")


async def test_the_names_of_compensations_are_not_for_effects(harness: Harness) -> None:
    @harness.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.effect("undo:pay", lambda: 1)

    handle = await harness.start("order")
    await harness.run_until_idle()
    assert "are those of compensations" in ((await handle.status()).waiting_on or "")


async def test_a_retry_cuts_the_wait_of_a_refund_short(harness: Harness) -> None:
    bank = Bank()
    bank.hangs.set()
    bank.raises = [NotApplied("try later")]
    failing(harness, bank.refund)
    handle = await harness.start("order")
    await harness.run_until_idle()
    assert "compensation of 'pay'" in await handle.why()
    await handle.retry("it is open again", actor="ann")
    await harness.run_until_idle()
    assert len(bank.refunds) == 2 and (await handle.status()).compensation == "complete"
    assert_sound(harness.url)


@pytest.mark.parametrize("takes", ["result", "info", "both", "nothing"])
async def test_the_compensation_of_an_aborted_effect_gets_nothing_whatever_it_returns(
    harness: Harness, takes: str
) -> None:
    """The handler says `-> str`, and nobody knows what it would have returned."""
    seen: list[Any] = []

    def result(payment: str) -> None:
        seen.append(payment)

    def info(info: StepInfo) -> None:
        seen.append(info.result)

    def both(payment: str, info: StepInfo) -> None:
        seen.append(payment or info.result)

    def nothing() -> None:
        seen.append(None)

    undo = {"result": result, "info": info, "both": both, "nothing": nothing}[takes]

    def pay() -> str:
        raise RuntimeError("the line went dead")

    @harness.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.effect("pay", pay, compensate=undo)

    handle = await harness.start("order")
    await harness.run_until_idle()
    [unknown] = await harness.effects.list(state="outcome_unknown")
    await harness.effects.resolve(unknown.id, "abort", actor="ann", reason="enough")
    await harness.run_until_idle()
    view = await handle.status()
    assert (view.status, view.compensation, seen) == ("failed", "complete", [None])
    assert_sound(harness.url)


async def test_each_attempt_at_a_compensation_sees_the_same_results(harness: Harness) -> None:
    """Under one key the provider must be sent the same, whatever was settled in between."""
    seen: list[Any] = []

    def refund(info: StepInfo) -> None:
        seen.append(info.results)
        if len(seen) == 1:
            raise RuntimeError("no answer")

    def fails(*_: Any) -> None:
        raise RuntimeError("no answer")

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        parcel = asyncio.create_task(ctx.effect("parcel", fails, compensate=lambda: None))
        await ctx.effect("pay", lambda: "p-1", compensate=effect(refund, mode="keyed"))
        await ctx.step("stamp", fails, max_attempts=1)
        await parcel

    await harness.start("order")
    await harness.run_until_idle()
    for unknown in await harness.effects.list(state="outcome_unknown"):
        if unknown.step == "parcel":
            await harness.effects.resolve(unknown.id, "happened", actor="ann", reason="it came")
    await harness.advance(minutes=5)
    assert seen == [{"pay": "p-1"}, {"pay": "p-1"}]
