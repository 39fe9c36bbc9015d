"""What a journal owes is never forgotten: deploys that change code while effects are open and undos are owed."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, EffectNotOpen, ForkRefused, Handle, Holdfast, InstanceFailed, NotApplied, StepInfo, effect
from holdfast.app import instances
from holdfast.engine.effects import GRACE, LEASE
from holdfast.testing import Harness
from tests.flows.support import entries, next_worker, types, until
from tests.support.auditor import assert_sound

Body = Callable[[Context, Any], Awaitable[Any]]
CALL_IS_OVER = (LEASE + GRACE) / 1_000_000 + 60


class World:
    """The warehouse and the bank: what was reserved, paid and undone."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.hangs = asyncio.Event()

    def reserve(self) -> str:
        self.seen.append("reserved")
        return "r1"

    def release(self) -> None:
        self.seen.append("released")

    async def pay(self) -> str:
        self.seen.append("paid")
        await self.hangs.wait()
        return "p1"

    async def refund(self) -> None:
        self.seen.append("refunded")

    def price(self) -> int:
        self.seen.append("priced")
        return 10


def app_of(body: Body, **options: Any) -> Holdfast:
    app = Holdfast()
    app.workflow("order", **options)(body)
    return app


async def paying(harness: Harness, world: World) -> Handle:
    """Reserved, and the payment under way."""

    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.effect("pay", world.pay, timeout=60)

    harness.workflow("order")(order)
    handle = await harness.start("order")
    await until(lambda: world.seen == ["reserved", "paid"], harness)
    return handle


def again(world: World) -> Body:
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.effect("pay", world.pay, timeout=60)

    return order


def with_a_price_first(world: World) -> Body:
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.wait_for_signal("priced")
        return await again(world)(ctx, given)

    return order


def raises_first(world: World) -> Body:
    async def order(ctx: Context, given: Any) -> Any:
        raise ValueError("no orders on Sundays")

    return order


def returns_first(world: World) -> Body:
    async def order(ctx: Context, given: Any) -> Any:
        return "nothing to do"

    return order


def without_the_payment(world: World) -> Body:
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)

    return order


def with_another_name(world: World) -> Body:
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.effect("charge", world.pay, timeout=60)

    return order


async def parked(handle: Handle) -> str:
    view = await handle.status()
    assert view.waiting_on is not None and view.waiting_on.startswith("parked: "), view
    return view.waiting_on


async def settle(harness: Harness, handle: Handle, resolution: str, **said: Any) -> None:
    await harness.advance(seconds=CALL_IS_OVER)
    [effect] = await harness.effects.list(state="outcome_unknown")
    await harness.effects.resolve(effect.id, resolution, actor="ann", reason="asked the bank", **said)
    await harness.run_until_idle()


async def test_a_cancel_waits_for_code_that_asks_again_for_what_is_owed(harness: Harness) -> None:
    world = World()
    handle = await paying(harness, world)
    async with next_worker(harness, app=app_of(with_a_price_first(world))) as other:
        await other.run_until_idle()
        await other.instance(handle.id).cancel("not wanted any more", actor="ann")
        await other.run_until_idle()
        assert "cannot be cancelled as it stands" in await parked(handle)
        assert "the code has not come to it: it waits for 'priced' first" in await handle.why()
        assert_sound(harness.url, finished=False)
        assert world.seen == ["reserved", "paid"]
        async with next_worker(other, app=app_of(again(world))) as mended:
            await mended.instance(handle.id).resume("the code is back", actor="ann")
            await mended.run_until_idle()
            assert (await handle.status()).status == "compensating"
            await settle(mended, handle, "did_not_happen")
            view = await handle.status()
            assert (view.status, view.compensation) == ("cancelled", "complete")
            assert world.seen == ["reserved", "paid", "released"]
            assert_sound(harness.url, finished=False)


async def test_a_cancel_waits_for_an_added_step_that_is_under_way(harness: Harness) -> None:
    """Then the code comes to what it owes, and nothing that the added step leads to has begun."""
    world = World()

    async def before(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        await ctx.wait_for_signal("go")

    async def price() -> None:
        world.seen.append("asked")
        await world.hangs.wait()

    async def with_a_step_first(ctx: Context, given: Any) -> None:
        await ctx.step("price", price)
        ctx.step("stamp", lambda: world.seen.append("stamped"))
        await before(ctx, given)

    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app_of(with_a_step_first)) as other:
        await other.instance(handle.id).resume("look", actor="ann")
        await until(lambda: "asked" in world.seen, other)
        await other.instance(handle.id).cancel("enough", actor="ann")
        for _ in range(20):
            assert other.test_worker is not None
            await other.test_worker.run_once()
            await asyncio.sleep(0.005)
        world.hangs.set()
        await other.run_until_idle()
        view = await handle.status()
        assert (view.status, view.compensation) == ("cancelled", "complete")
        assert world.seen == ["reserved", "asked", "released"]
        assert_sound(harness.url)


@pytest.mark.parametrize("kind", ["manual", "lookup", "keyed", "child"])
async def test_a_cancel_waits_for_an_added_call_that_is_in_doubt_or_under_way(harness: Harness, kind: str) -> None:
    """It was begun before the cancel, and ends by itself or by a person's word, which counts."""
    world = World()

    async def before(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        await ctx.wait_for_signal("go")

    async def charge() -> str:
        world.seen.append("charged")
        if world.seen.count("charged") == 1:
            raise RuntimeError("no answer")
        return "c2"

    def find(key: str) -> str:
        world.seen.append("looked up")
        if world.seen.count("looked up") == 1:
            raise RuntimeError("no answer")
        return "c1"

    async def with_more_first(ctx: Context, given: Any) -> None:
        if kind == "child":
            await ctx.child("charge", "charging")
        else:
            more: Any = {"lookup": find} if kind == "lookup" else {}
            await ctx.effect("charge", charge, mode=kind, backoff=timedelta(minutes=1), **more)
        ctx.step("stamp", lambda: world.seen.append("stamped"))
        await before(ctx, given)

    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    app = app_of(with_more_first)

    @app.workflow("charging")
    async def charging(ctx: Context, given: Any) -> None:
        await ctx.sleep("a while", timedelta(minutes=1))

    async with next_worker(harness, app=app) as other:
        await other.instance(handle.id).resume("look", actor="ann")
        await look(other)
        await other.instance(handle.id).cancel("enough", actor="ann")
        await look(other)
        view = await handle.status()
        assert (view.status, "; then it is cancelled" in str(view.waiting_on)) == ("waiting", True)
        if kind == "manual":
            async with next_worker(other, app=app) as desk:  # a crash in between changes nothing
                [unknown] = await desk.effects.list()
                await desk.effects.resolve(unknown.id, "happened", result="c1", actor="bob", reason="asked the bank")
                await desk.run_until_idle()
        else:
            await other.advance(minutes=2)
        assert ((await handle.status()).status, (await handle.status()).compensation) == ("cancelled", "complete")
        assert world.seen.count("charged") == {"keyed": 2, "child": 0}.get(kind, 1)
        assert world.seen[-1] == "released" and "stamped" not in world.seen
        assert_sound(harness.url)


@pytest.mark.parametrize("words", ["pause,cancel,resume", "cancel,pause,resume"])
async def test_a_pause_beside_a_cancel_that_waits_holds_until_it_is_resumed(harness: Harness, words: str) -> None:
    world = World()

    async def before(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        await ctx.wait_for_signal("go")

    async def charge() -> str:
        world.seen.append("charged")
        if world.seen.count("charged") == 1:
            raise RuntimeError("no answer")
        return "c2"

    async def with_more_first(ctx: Context, given: Any) -> None:
        await ctx.effect("charge", charge, mode="keyed", backoff=timedelta(minutes=1))
        await before(ctx, given)

    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app_of(with_more_first)) as other:
        said = other.instance(handle.id)
        await said.resume("look", actor="ann")
        await look(other)
        for word in words.split(","):
            if word == "resume":
                await other.advance(minutes=5)
                view = await handle.status()
                assert str(view.waiting_on).endswith("resume it to go on; then it is cancelled")
                assert (await said.why()) == "It is paused by ann: x; resume it to go on; then it is cancelled."
                assert world.seen == ["reserved", "charged"]
            await getattr(said, word)("x", actor="ann")
            await look(other)
        await other.advance(minutes=2)
        assert (await handle.status()).status == "cancelled"
        assert world.seen == ["reserved", "charged", "charged", "released"]
        assert_sound(harness.url)


@pytest.mark.parametrize("choice", ["happened", "did_not_happen", "abort"])
async def test_a_parked_cancel_is_taken_once_a_person_has_settled_what_it_waited_for(
    harness: Harness, choice: str
) -> None:
    world = World()
    handle = await paying(harness, world)

    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        await ctx.wait_for_signal("priced")
        return await ctx.effect("pay", world.pay, timeout=60)

    async with next_worker(harness, app=app_of(order)) as other:
        await other.instance(handle.id).cancel("not wanted any more", actor="ann")
        await other.advance(seconds=CALL_IS_OVER)
        assert "cannot be cancelled as it stands" in await parked(handle)
        [unknown] = await other.effects.list()
        result = "p1" if choice == "happened" else None
        await other.effects.resolve(unknown.id, choice, result=result, actor="bob", reason="asked the bank")
        await other.run_until_idle()
        assert ((await handle.status()).status, (await handle.status()).compensation) == ("cancelled", "complete")
        assert world.seen == ["reserved", "paid", "released"]
        assert_sound(harness.url)


@pytest.mark.parametrize("kind", ["mistake", "names"])
async def test_a_turn_that_is_found_to_park_begins_nothing_of_what_was_asked_for_with_it(
    harness: Harness, kind: str
) -> None:
    world = World()
    handle = await paying(harness, world)

    async def order(ctx: Context, given: Any) -> Any:
        price = ctx.step("price", world.price, compensate=world.refund)
        if kind == "mistake":
            ctx.step("stamp", world.price, nonsense=5)  # type: ignore[call-overload]
        await asyncio.gather(price, ctx.effect("charge", world.pay))

    async def original(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.effect("pay", world.pay, timeout=60)

    async with next_worker(harness, app=app_of(order)) as other:
        await other.advance(seconds=CALL_IS_OVER)
        assert str((await handle.status()).waiting_on).startswith("parked")
        assert [e.name for e in await entries(handle, "STEP_STARTED")] == ["reserve"]
        async with next_worker(other, app=app_of(original)) as last:
            await last.instance(handle.id).resume("rolled back", actor="ann")
            await last.run_until_idle()
            [unknown] = await last.effects.list()
            await last.effects.resolve(unknown.id, "happened", result="p1", actor="bob", reason="asked the bank")
            await last.run_until_idle()
            assert (await handle.status()).status == "completed"
            assert world.seen == ["reserved", "paid"]


async def test_what_the_code_asks_for_otherwise_is_settled_at_the_desk_meanwhile(harness: Harness) -> None:
    """Its worker was lost in the call, and the code now passes other arguments: the journal is enough."""
    world = World()
    handle = await paying(harness, world)

    async def other_arguments(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.effect("pay", lambda amount: world.price(), 12, timeout=60)

    async def original(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.effect("pay", world.pay, timeout=60)

    async with next_worker(harness, app=app_of(other_arguments)) as other:
        await other.advance(seconds=CALL_IS_OVER)
        assert "the code now passes [12]" in await parked(handle)
        [unknown] = await other.effects.list()
        await other.effects.resolve(unknown.id, "happened", result="p1", actor="bob", reason="asked the bank")
        await other.run_until_idle()
        assert await other.effects.list() == [] and "EFFECT_SUCCEEDED" in await types(handle)
        async with next_worker(other, app=app_of(original)) as last:
            await last.instance(handle.id).resume("rolled back", actor="ann")
            await last.run_until_idle()
            assert await handle.result(0) == "p1" and world.seen == ["reserved", "paid"]
            assert_sound(harness.url)


async def look(harness: Harness) -> None:
    for _ in range(30):
        assert harness.test_worker is not None
        await harness.test_worker.run_once()
        await asyncio.sleep(0.003)


@pytest.mark.parametrize("word", ["cancel", "signal"])
async def test_a_turn_that_parks_leaves_nothing_behind_of_code_that_is_taken_back(harness: Harness, word: str) -> None:
    """What the parked code asked for has not begun, so the code as it was owes nothing for it."""
    world = World()

    async def before(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        await ctx.wait_for_signal("go")

    async def deployed(ctx: Context, given: Any) -> None:
        price = ctx.step("price", world.price, compensate=world.refund)
        if word == "cancel":
            await price
            await before(ctx, given)
        else:
            await asyncio.gather(price, ctx.step("reserve", lambda more: world.reserve(), 5))

    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app_of(deployed)) as other:
        if word == "cancel":
            await other.instance(handle.id).cancel("enough", actor="ann")
        else:
            await other.instance(handle.id).signal("hello")
        await other.run_until_idle()
        assert "the code contradicts its journal" in await parked(handle)
        async with next_worker(other, app=app_of(before)) as last:
            await last.instance(handle.id).resume("rolled back", actor="ann")
            await last.instance(handle.id).signal("go")
            await last.run_until_idle()
            assert (await handle.status()).status == ("cancelled" if word == "cancel" else "completed")
            assert world.seen == (["reserved", "released"] if word == "cancel" else ["reserved"])
            assert_sound(harness.url)


async def test_no_further_attempt_begins_while_a_cancel_waits(harness: Harness) -> None:
    world = World()

    async def before(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        await ctx.wait_for_signal("go")

    async def price() -> None:
        world.seen.append("asked")
        await world.hangs.wait()

    def weigh() -> None:
        world.seen.append("weighed")
        raise ValueError("again")

    async def charge() -> None:
        world.seen.append("charged")
        raise NotApplied("no network")

    async def added(ctx: Context, given: Any) -> None:
        others = [ctx.step("weigh", weigh), ctx.effect("charge", charge)]
        await ctx.step("price", price)
        await before(ctx, given)
        await asyncio.gather(*others)

    async def look(other: Harness) -> None:
        for _ in range(20):
            assert other.test_worker is not None
            await other.test_worker.run_once()
            await asyncio.sleep(0.002)

    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app_of(added)) as other:
        await other.instance(handle.id).resume("look", actor="ann")
        await until(lambda: {"asked", "weighed", "charged"} <= set(world.seen), other)
        await look(other)
        await other.instance(handle.id).cancel("enough", actor="ann")
        await look(other)
        at_the_cancel = list(world.seen)
        for _ in range(3):
            harness.clock.move(timedelta(seconds=30))
            await look(other)
        assert world.seen == at_the_cancel
        world.hangs.set()
        await other.run_until_idle()
        assert ((await handle.status()).status, world.seen[len(at_the_cancel) :]) == ("cancelled", ["released"])
        assert_sound(harness.url)


@pytest.mark.parametrize("changed", [raises_first, returns_first, without_the_payment])
async def test_a_body_that_ends_without_what_it_owes_is_parked(harness: Harness, changed: Any) -> None:
    world = World()
    handle = await paying(harness, world)
    async with next_worker(harness, app=app_of(changed(world))) as other:
        await other.run_until_idle()
        assert "nobody knows the outcome of effect 'pay' yet" in await parked(handle)
        assert_sound(harness.url, finished=False)
        async with next_worker(other, app=app_of(again(world))) as mended:
            await mended.instance(handle.id).resume("the code is back", actor="ann")
            await mended.run_until_idle()
            await settle(mended, handle, "happened", result="p1")
            assert await handle.result(0) == "p1"
            assert world.seen == ["reserved", "paid"]


@pytest.mark.parametrize("changed", [raises_first, returns_first])
async def test_an_undo_is_owed_by_the_journal_whatever_the_code_says_now(harness: Harness, changed: Any) -> None:
    world = World()

    async def order(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        await ctx.wait_for_signal("go")
        raise ValueError("sold out")

    harness.workflow("order")(order)
    handle = await harness.start("order")
    await harness.run_until_idle()
    await handle.signal("go", 1)
    async with next_worker(harness, app=app_of(changed(world))) as other:
        await other.run_until_idle()
        assert "'reserve' may have to be undone" in await parked(handle)
        async with next_worker(other, app=app_of(order)) as mended:
            await mended.instance(handle.id).resume("the code is back", actor="ann")
            await mended.run_until_idle()
            with pytest.raises(InstanceFailed, match="sold out"):
                await handle.result(0)
            assert world.seen == ["reserved", "released"]
            assert (await handle.status()).compensation == "complete"
            assert_sound(harness.url)


@pytest.mark.parametrize("kind", ["effect", "transaction", "child"])
async def test_every_kind_of_call_says_that_it_was_begun_with_a_compensation(harness: Harness, kind: str) -> None:
    undone: list[str] = []
    sqlite = harness.url.startswith("sqlite")

    def write(tx: Any) -> int:
        return 1

    async def write_async(tx: Any) -> int:
        return 1

    async def done() -> int:
        return 1

    @harness.workflow("little one")
    async def little(ctx: Context) -> int:
        return 1

    async def order(ctx: Context, given: Any) -> None:
        if kind == "effect":
            await ctx.effect("it", done, compensate=lambda: undone.append("it"))
        elif kind == "transaction":
            await ctx.transaction("it", write if sqlite else write_async, compensate=lambda: undone.append("it"))
        else:
            await ctx.child("it", "little one", compensate=lambda: undone.append("it"))
        await ctx.wait_for_signal("go")

    harness.workflow("order")(order)
    handle = await harness.start("order")
    await harness.run_until_idle()

    async def nothing(ctx: Context, given: Any) -> None: ...

    app = app_of(nothing)
    app.workflow("little one")(little)
    await handle.signal("go", 1)
    async with next_worker(harness, app=app) as other:
        await other.run_until_idle()
        assert "'it' may have to be undone" in await parked(handle)
        app = app_of(order)
        app.workflow("little one")(little)
        async with next_worker(other, app=app) as mended:
            await mended.instance(handle.id).cancel("enough", actor="ann")
            await mended.run_until_idle()
            assert (await handle.status()).status == "cancelled" and undone == ["it"]


async def test_an_undoing_that_has_begun_goes_on_only_with_the_code_that_knows_it(harness: Harness) -> None:
    world = World()
    handle = await paying(harness, world)
    await handle.cancel("not wanted any more", actor="ann")
    await until(lambda: harness.test_worker is not None and _undoing(harness), harness)
    async with next_worker(harness, app=app_of(raises_first(world))) as other:
        await other.run_until_idle()
        assert (await handle.status()).status == "compensating"
        assert "nobody knows the outcome of effect 'pay' yet" in await parked(handle)
        assert_sound(harness.url, finished=False)
        async with next_worker(other, app=app_of(again(world))) as mended:
            await mended.instance(handle.id).resume("the code is back", actor="ann")
            await mended.run_until_idle()
            await settle(mended, handle, "did_not_happen")
            assert (await handle.status()).status == "cancelled"
            assert world.seen == ["reserved", "paid", "released"]


def _undoing(harness: Harness) -> bool:
    assert harness.test_worker is not None
    return any(ex.undo is not None and not ex.committing for ex in harness.test_worker.executions.values())


async def test_an_effect_under_way_is_not_made_again_under_another_name(harness: Harness) -> None:
    world = World()
    handle = await paying(harness, world)
    async with next_worker(harness, app=app_of(with_another_name(world))) as other:
        await other.run_until_idle()
        assert "asks for effect 'charge' before it" in await parked(handle)
        assert world.seen == ["reserved", "paid"], "the bank was called once"
        assert_sound(harness.url, finished=False)


@pytest.mark.parametrize("resolution", ["happened", "did_not_happen", "abort"])
async def test_a_person_settles_by_the_journal_what_the_code_does_not_ask_for(
    harness: Harness, resolution: str
) -> None:
    """And the code, once it asks again, hears of it."""
    world = World()
    handle = await paying(harness, world)
    async with next_worker(harness, app=app_of(without_the_payment(world))) as other:
        await other.run_until_idle()
        await parked(handle)
        await settle(other, handle, resolution, **({"result": "p1"} if resolution == "happened" else {}))
        assert await other.effects.list(state="outcome_unknown") == []
        assert (await handle.status()).status == "completed", "nothing is in doubt any more, and it owes no undo"
        assert_sound(harness.url, finished=False)
        assert (await entries(handle, "EFFECT_RESOLVED"))[0].name == "pay"
        assert world.seen == ["reserved", "paid"]


@pytest.mark.parametrize("kept", [0, 100])
async def test_what_a_person_settled_meanwhile_answers_code_that_asks_for_it_later(url: str, kept: int) -> None:
    world = World()

    def changed(ended: list[str]) -> Body:
        async def order(ctx: Context, given: Any) -> Any:
            await ctx.wait_for_signal("priced")
            try:
                return await again(world)(ctx, given)
            finally:
                ended.append("asked again")

        return order

    async with Harness(url=url, kept=kept) as harness:
        handle = await paying(harness, world)
        async with next_worker(harness, app=app_of(raises_first(world)), kept=kept) as other:
            await other.run_until_idle()
            await parked(handle)
            ended: list[str] = []
            async with next_worker(other, app=app_of(changed(ended)), kept=kept) as third:
                await third.instance(handle.id).resume("a price first", actor="ann")
                await third.run_until_idle()
                await settle(third, handle, "happened", result="p1")
                assert not ended and "priced" in ((await handle.status()).waiting_on or "")
                await third.instance(handle.id).signal("priced", 1)
                await third.run_until_idle()
                assert await handle.result(0) == "p1"
                assert world.seen == ["reserved", "paid"]
                assert_sound(url, finished=False)


# -- modes


def effect_in(mode: str, world: World, found: str | None = None) -> Body:
    async def lookup(key: str) -> str | None:
        world.seen.append("looked up")
        return found

    more: dict[str, Any] = {"lookup": lookup} if mode == "lookup" else {}

    async def order(ctx: Context, given: Any) -> Any:
        return await ctx.effect("pay", world.pay, mode=mode, timeout=5, **more)

    return order


@pytest.mark.parametrize("now", ["keyed", "lookup", "manual"])
@pytest.mark.parametrize("before", ["keyed", "lookup", "manual"])
async def test_an_effect_in_doubt_is_never_repeated_under_another_mode(harness: Harness, before: str, now: str) -> None:
    world = World()
    harness.workflow("order")(effect_in(before, world))
    handle = await harness.start("order")
    await until(lambda: world.seen == ["paid"], harness)
    async with next_worker(harness, app=app_of(effect_in(now, world, found="p1"))) as other:
        world.hangs.set()
        await other.advance(seconds=CALL_IS_OVER)
        view = await handle.status()
        if before == now == "keyed":
            assert view.status == "completed" and world.seen == ["paid", "paid"]
        elif before == now == "lookup":
            assert view.status == "completed" and world.seen == ["paid", "looked up"]
        else:
            assert world.seen == ["paid"], "neither repeated nor looked up"
            [effect] = await other.effects.list(state="outcome_unknown")
            assert effect.reason is not None
            assert before == now or f"begun as {before!r} and the code now says {now!r}" in effect.reason
            await other.effects.resolve(effect.id, "happened", result="p1", actor="ann", reason="the bank says so")
            await other.run_until_idle()
            assert await handle.result(0) == "p1"
        assert_sound(harness.url)


async def test_a_repeat_that_was_planned_under_keyed_is_not_made_under_manual(harness: Harness) -> None:
    """The emergency fix: this provider does not keep its word about keys."""
    calls: list[int] = []

    async def pay(info: StepInfo) -> str:
        calls.append(info.attempt)
        raise OSError("the line went dead")

    async def keyed(ctx: Context, given: Any) -> Any:
        return await ctx.effect("pay", pay, mode="keyed")

    async def manual(ctx: Context, given: Any) -> Any:
        return await ctx.effect("pay", pay)

    harness.workflow("order")(keyed)
    handle = await harness.start("order")
    await harness.run_until_idle()
    assert calls == [1]
    async with next_worker(harness, app=app_of(manual)) as other:
        await other.advance(minutes=5)
        assert calls == [1]
        [effect] = await other.effects.list(state="outcome_unknown")
        assert effect.reason is not None and "the code now says 'manual'" in effect.reason
        await other.effects.resolve(
            effect.id, "did_not_happen", actor="ann", reason="asked the bank", accept_double=True
        )
        await other.run_until_idle()
        assert calls == [1, 2], "a person decided so"
        [effect] = await other.effects.list(state="outcome_unknown")
        assert (effect.mode, effect.attempt) == ("manual", 2)
    assert "EFFECT_UNKNOWN" in await types(handle)


async def test_what_is_known_not_to_have_happened_goes_on_under_the_new_mode(harness: Harness) -> None:
    calls: list[int] = []

    async def pay(info: StepInfo) -> str:
        calls.append(info.attempt)
        if len(calls) == 1:
            raise NotApplied("no credit at this hour")
        return "p1"

    async def manual(ctx: Context, given: Any) -> Any:
        return await ctx.effect("pay", pay)

    async def keyed(ctx: Context, given: Any) -> Any:
        return await ctx.effect("pay", pay, mode="keyed")

    harness.workflow("order")(manual)
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app_of(keyed)) as other:
        await other.advance(minutes=5)
        assert calls == [1, 2]
        assert await handle.result(0) == "p1"


# -- order and children, as the journal has them


async def test_undoing_follows_the_recorded_starts_not_the_order_of_todays_code(harness: Harness) -> None:
    undone: list[str] = []

    def deploy(*order: str) -> Body:
        async def body(ctx: Context, given: Any) -> None:
            for name in order:
                await ctx.step(name, str, name, compensate=undone.append)
            await ctx.wait_for_signal("go")

        return body

    harness.workflow("order")(deploy("a", "b", "c"))
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app_of(deploy("c", "a", "b"))) as other:
        await other.instance(handle.id).cancel("enough", actor="ann")
        await other.run_until_idle()
        assert undone == ["c", "b", "a"]
        assert_sound(harness.url)


@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled"])
async def test_a_child_that_the_code_forgot_is_told_to_end_with_its_parent(harness: Harness, ends: str) -> None:
    @harness.workflow("little one")
    async def little(ctx: Context) -> None:
        await ctx.wait_for_signal("never")

    async def before(ctx: Context, given: Any) -> None:
        await asyncio.gather(ctx.child("kid", "little one"), ctx.wait_for_signal("go"))

    async def after(ctx: Context, given: Any) -> None:
        await ctx.wait_for_signal("go")
        if ends == "failed":
            raise ValueError("enough")

    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    app = app_of(after)
    app.workflow("little one")(little)
    async with next_worker(harness, app=app) as other:
        if ends == "cancelled":
            await other.instance(handle.id).cancel("enough", actor="ann")
        else:
            await other.instance(handle.id).signal("go", 1)
        await other.run_until_idle()
        assert (await handle.status()).status == ends
        assert [one.status for one in await other.instances(key="little one")] == ["cancelled"]
        assert_sound(harness.url)


async def test_a_child_that_the_code_forgot_is_told_to_end_with_its_epoch(harness: Harness) -> None:
    @harness.workflow("little one")
    async def little(ctx: Context) -> None:
        await ctx.wait_for_signal("never")

    async def before(ctx: Context, given: Any) -> None:
        await asyncio.gather(ctx.child("kid", "little one"), ctx.wait_for_signal("go"))

    async def after(ctx: Context, given: Any) -> None:
        await ctx.wait_for_signal("go")
        if ctx.epoch == 0:
            ctx.restart()

    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    app = app_of(after)
    app.workflow("little one")(little)
    async with next_worker(harness, app=app) as other:
        await other.instance(handle.id).signal("go", 1)
        await other.run_until_idle()
        assert [one.status for one in await other.instances(key="little one")] == ["cancelled"]
        assert (await handle.status()).status == "waiting"
        assert_sound(harness.url)


async def test_an_undo_that_a_person_settles_by_the_journal_counts_as_done(harness: Harness) -> None:
    world = World()

    async def refund() -> None:
        raise ConnectionResetError("the line went dead")

    def deploy(*, pays: bool) -> Body:
        async def order(ctx: Context, given: Any) -> None:
            await ctx.step("reserve", world.reserve, compensate=world.release)
            if pays:
                await ctx.effect("pay", world.pay, compensate=refund)
            raise ValueError("sold out")

        return order

    world.hangs.set()
    harness.workflow("order")(deploy(pays=True))
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app_of(deploy(pays=False))) as other:
        await settle(other, handle, "happened")
        view = await handle.status()
        assert (view.status, view.compensation) == ("failed", "complete")
        assert world.seen == ["reserved", "paid", "released"]
        assert_sound(harness.url)


async def test_a_resume_behind_a_cancel_that_cannot_be_taken_is_heard(harness: Harness) -> None:
    world = World()
    handle = await paying(harness, world)
    async with next_worker(harness, app=app_of(raises_first(world))) as other:
        await other.run_until_idle()
        again_ = other.instance(handle.id)
        await again_.pause("wait", actor="ann")
        await again_.cancel("enough", actor="ann")
        await other.run_until_idle()
        await again_.resume("go on", actor="ann")
        await other.run_until_idle()
        assert "cannot be cancelled" in await parked(handle) or "nobody knows" in await parked(handle)
        assert len(await entries(handle, "INSTANCE_RESUMED")) == 1
        assert_sound(harness.url, finished=False)


def with_or_without_its_undo(world: World, release: Any, *, kind: str = "step", raises: bool = True) -> Body:
    async def order(ctx: Context, given: Any) -> str:
        call: Any = ctx.step if kind == "step" else ctx.effect
        await call("reserve", world.reserve, compensate=release)
        await ctx.wait_for_signal("go")
        if raises:
            raise ValueError("sold out")
        return "sold"

    return order


@pytest.mark.parametrize("kind", ["step", "effect"])
@pytest.mark.parametrize("ends", ["cancelled", "raises"])
async def test_an_undo_is_owed_though_the_code_names_it_no_more(harness: Harness, kind: str, ends: str) -> None:
    world = World()
    before = with_or_without_its_undo(world, world.release, kind=kind)
    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app_of(with_or_without_its_undo(world, None, kind=kind))) as other:
        if ends == "cancelled":
            await other.instance(handle.id).cancel("enough", actor="ann")
        else:
            await other.instance(handle.id).signal("go", 1)
        await other.run_until_idle()
        assert "'reserve' has to be undone, and the code does not say how any more" in await parked(handle)
        assert_sound(harness.url, finished=False)
        async with next_worker(other, app=app_of(before)) as mended:
            await mended.instance(handle.id).resume("the code is back", actor="ann")
            await mended.run_until_idle()
            view = await handle.status()
            assert (view.status, view.compensation) == ("cancelled" if ends == "cancelled" else "failed", "complete")
            assert world.seen == ["reserved", "released"]


async def test_an_undo_that_nobody_needs_any_more_may_go(harness: Harness) -> None:
    world = World()
    harness.workflow("order")(with_or_without_its_undo(world, world.release, raises=False))
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app_of(with_or_without_its_undo(world, None, raises=False))) as other:
        await other.instance(handle.id).signal("go", 1)
        await other.run_until_idle()
        assert await handle.result(0) == "sold"


async def test_a_step_without_its_undo_that_fails_after_the_deploy_owes_none(harness: Harness) -> None:
    world = World()
    fails = asyncio.Event()

    async def reserve() -> None:
        world.seen.append("reserving")
        if fails.is_set():
            raise ValueError("sold out")
        await asyncio.Event().wait()

    def deploy(release: Any) -> Body:
        async def order(ctx: Context, given: Any) -> None:
            await ctx.step("reserve", reserve, compensate=release, max_attempts=1)

        return order

    harness.workflow("order")(deploy(world.release))
    handle = await harness.start("order")
    await until(lambda: world.seen, harness)
    fails.set()
    async with next_worker(harness, app=app_of(deploy(None))) as other:
        await other.run_until_idle()
        view = await handle.status()
        assert (view.status, view.compensation) == ("failed", None)


def refund_changes(world: World) -> dict[str, tuple[Any, Any]]:
    """By what a deploy does to it: the compensation that is under way, and what the code says then."""

    async def refund(amount: Any = 0) -> None:
        world.seen.append(f"refunded {amount}")
        await world.hangs.wait()

    return {
        "a step": (effect(refund, 10), refund),
        "other arguments": (effect(refund, 10, mode="keyed"), effect(refund, 20, mode="keyed")),
        "none": (effect(refund, 10), None),
    }


@pytest.mark.parametrize("change", ["a step", "other arguments", "none"])
async def test_an_undo_under_way_is_not_made_again_by_code_that_says_something_else(
    harness: Harness, change: str
) -> None:
    world = World()
    before, after = refund_changes(world)[change]
    harness.workflow("order")(with_or_without_its_undo(world, before))
    handle = await harness.start("order")
    await harness.run_until_idle()
    await handle.cancel("enough", actor="ann")
    await until(lambda: "refunded 10" in world.seen, harness)
    world.hangs.set()
    async with next_worker(harness, app=app_of(with_or_without_its_undo(world, after))) as other:
        await other.advance(seconds=CALL_IS_OVER)
        assert "reserve" in await parked(handle)
        assert world.seen == ["reserved", "refunded 10"]
        assert_sound(harness.url, finished=False)
        [unknown] = await other.effects.list(state="outcome_unknown")
        assert unknown.step == "undo:reserve"
        async with next_worker(other, app=app_of(with_or_without_its_undo(world, before))) as mended:
            await mended.instance(handle.id).resume("the code is back", actor="ann")
            await mended.advance(seconds=CALL_IS_OVER)
            if change != "other arguments":
                await settle(mended, handle, "happened")
            view = await handle.status()
            assert (view.status, view.compensation) == ("cancelled", "complete")
            assert_sound(harness.url)


@pytest.mark.parametrize("said", ["happened", "did_not_happen", "abort"])
@pytest.mark.parametrize("change", ["a step", "none"])
async def test_a_person_settles_by_the_journal_an_undo_that_the_code_has_changed(
    harness: Harness, change: str, said: str
) -> None:
    world = World()
    before, after = refund_changes(world)[change]
    harness.workflow("order")(with_or_without_its_undo(world, before))
    handle = await harness.start("order")
    await harness.run_until_idle()
    await handle.cancel("enough", actor="ann")
    await until(lambda: "refunded 10" in world.seen, harness)
    world.hangs.set()
    async with next_worker(harness, app=app_of(with_or_without_its_undo(world, after))) as other:
        await other.run_until_idle()
        await settle(other, handle, said)
        if not (await handle.status()).completed_at:
            await other.instance(handle.id).resume("go on", actor="ann")
            await other.run_until_idle()
        assert_sound(harness.url, finished=False)
        view = await handle.status()
        if said != "did_not_happen":
            assert (view.status, view.compensation) == (
                "cancelled",
                "complete" if said == "happened" else "partial",
            )
            assert world.seen == ["reserved", "refunded 10"]
        else:  # it is owed still, and this code cannot go on with it
            assert "'reserve' has to be undone" in await parked(handle) or "an effect" in await parked(handle)


@pytest.mark.parametrize("lost", [True, False])
async def test_a_keyed_effect_of_a_parked_instance_can_be_settled(harness: Harness, lost: bool) -> None:
    world = World()

    async def pay() -> str:
        world.seen.append("paid")
        if lost:
            await world.hangs.wait()
        raise ConnectionResetError("the line went dead")

    async def order(ctx: Context, given: Any) -> str:
        return await ctx.effect("pay", pay, mode="keyed", timeout=60, backoff=lambda failed: 3600)

    harness.workflow("order")(order)
    handle = await harness.start("order")
    await until(lambda: world.seen, harness)
    if not lost:
        await harness.run_until_idle()
    async with next_worker(harness, app=app_of(returns_first(world))) as other:
        await other.instance(handle.id).resume("look again", actor="ann")
        await other.run_until_idle()
        assert "nobody knows the outcome of effect 'pay' yet" in await parked(handle)
        await settle(other, handle, "happened", result="p1")
        assert await handle.result(0) == "nothing to do"
        assert world.seen == ["paid"]
        assert_sound(harness.url)


async def test_an_effect_in_doubt_that_was_moved_into_a_child_is_not_made_there(harness: Harness) -> None:
    world = World()
    handle = await paying(harness, world)

    async def payment(ctx: Context, given: Any) -> Any:
        return await ctx.effect("pay", world.pay)

    async def moved(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.child("payment", "payment")

    app = app_of(moved)
    app.workflow("payment")(payment)
    async with next_worker(harness, app=app) as other:
        await other.advance(seconds=CALL_IS_OVER)
        assert "asks for child 'payment' before it" in str((await other.instance(handle.id).status()).waiting_on)
    assert world.seen == ["reserved", "paid"]
    assert "CHILD_STARTED" not in await types(handle)


@pytest.mark.parametrize("again", ["once more", "for the first time"])
async def test_nothing_new_begins_once_a_cancel_is_in_line(harness: Harness, again: str) -> None:
    seen: list[str] = []

    def undo_a() -> None:
        seen.append("undo a")
        if again == "once more" and seen.count("undo a") == 1:
            raise NotApplied("later")  # the next claim takes up the undoing

    def app(*, more: bool) -> Holdfast:
        async def order(ctx: Context, given: Any) -> None:
            await ctx.step("a", lambda: seen.append("a"), compensate=undo_a)
            if more:
                await ctx.step("b", lambda: seen.append("b"), compensate=lambda: seen.append("undo b"))
            await ctx.wait_for_signal("go")

        return app_of(order)

    async with Harness(app(more=False), url=harness.url, clock=harness.clock) as first:
        handle = await first.start("order")
        await first.run_until_idle()
        await handle.cancel("enough", actor="ann")
    async with Harness(app(more=True), url=harness.url, clock=harness.clock) as other:
        await other.advance(minutes=5)
        assert (await other.instance(handle.id).status()).status == "cancelled"
    assert set(seen) == {"a", "undo a"}


async def test_an_undo_that_a_person_gave_up_on_is_not_made_again_by_a_retry(harness: Harness) -> None:
    refunds: list[str] = []

    def refund(info: StepInfo) -> None:
        refunds.append(info.idempotency_key)
        raise ConnectionResetError("no answer")

    def ship() -> None:
        raise ValueError("no courier")

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.effect("pay", lambda: "r1", compensate=refund)
        await ctx.step("ship", ship, max_attempts=1)

    handle = await harness.start("order")
    await harness.run_until_idle()
    [view] = await harness.effects.list()
    await harness.effects.resolve(view.id, "abort", actor="ann", reason="the bank cannot tell")
    await harness.run_until_idle()
    with pytest.raises(ForkRefused, match="'pay', which would be taken over as done, may have been undone"):
        await handle.retry("again", actor="bob")
    assert len(refunds) == 1


async def test_a_word_about_an_earlier_attempt_settles_nothing_that_the_code_asks_for_no_more(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise ConnectionResetError("no answer")

    async def order(ctx: Context, given: Any) -> None:
        await ctx.effect("pay", lost, mode="lookup", lookup=lambda key: None)

    async def without(ctx: Context, given: Any) -> None:
        return None

    async with Harness(app_of(order), url=harness.url, clock=harness.clock) as first:
        handle = await first.start("order")
        await first.run_until_idle()
        [view] = await first.effects.list()
        put = instances.put

        async def late(*words: Any) -> Any:
            """Between the desk's look and its word the lookup begins another attempt; then the worker ends."""
            while (await first.effects.show(view.id)).attempt == 1:
                await first.advance(seconds=10)
            await first.run_until_idle()
            assert first.test_worker is not None
            first.test_worker.stopping = True
            return await put(*words)

        monkeypatch.setattr(instances, "put", late)
        with pytest.raises(EffectNotOpen, match="settled while you decided"):
            await first.effects.resolve(view.id, "happened", actor="ann", reason="on the list", result="r1")
        monkeypatch.setattr(instances, "put", put)
    async with Harness(app_of(without), url=harness.url, clock=harness.clock) as other:
        await other.advance(minutes=5)
        status = await other.instance(handle.id).status()
        assert status.status == "waiting" and "nobody knows the outcome of effect 'pay'" in str(status.waiting_on)
