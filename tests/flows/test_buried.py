"""A poison instance that owes something stands still: its effects can be settled, and a person may have it undone."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Handle, Holdfast, NotApplied
from holdfast import effect as compensation
from holdfast.engine.effects import GRACE, LEASE
from holdfast.testing import Harness
from tests.flows.support import Gate, entries, lose_worker, next_worker, query, until
from tests.support.auditor import assert_sound

CALL_IS_OVER = (LEASE + GRACE) / 1_000_000 + 60


class World:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.kills = True
        self.bodies = 0  # times that the body was begun
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

    async def bite(self) -> str:
        """What kills the process: here it only says that it was reached, and hangs."""
        self.seen.append("bitten")
        if self.kills:
            await asyncio.Event().wait()
        return "survived"


def order(harness: Harness, world: World, *, owes: bool = True, pays: bool = False) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        world.bodies += 1
        if owes:
            await ctx.step("reserve", world.reserve, compensate=world.release)
        if pays:
            await asyncio.gather(ctx.effect("pay", world.pay), ctx.step("bite", world.bite))
        return await ctx.step("bite", world.bite)


async def kill_five_workers(harness: Harness, world: World) -> Handle:
    handle = await harness.start("order")
    await until(lambda: "bitten" in world.seen, harness)
    await _kill(harness, handle, world, 7)
    return handle


async def _kill(harness: Harness, handle: Handle, world: World, times: int) -> None:
    if times == 0:
        return
    before = world.seen.count("bitten")
    async with next_worker(harness) as other:
        view = await handle.status()
        for _ in range(500):
            assert other.test_worker is not None
            other.test_worker.look_for_suspects()
            await other.test_worker.run_once()
            await asyncio.sleep(0.001)
            view = await handle.status()
            buried = view.status == "failed" or str(view.waiting_on).startswith("parked")
            if world.seen.count("bitten") > before or buried:
                break
        if not buried:
            await _kill(other, handle, world, times - 1)
        else:
            await other.run_until_idle()


async def test_poison_that_owes_nothing_ends_as_failed(harness: Harness) -> None:
    world = World()
    order(harness, world, owes=False)
    handle = await kill_five_workers(harness, world)
    view = await handle.status()
    assert (view.status, view.compensation) == ("failed", None)
    assert view.error is not None and view.error["type"] == "Poison"
    assert_sound(harness.url, finished=False)


async def test_poison_that_owes_an_undo_stands_still_until_a_person_cancels_it(harness: Harness) -> None:
    world = World()
    order(harness, world)
    handle = await kill_five_workers(harness, world)
    view = await handle.status()
    assert view.status == "waiting" and "its worker died or was lost" in (view.waiting_on or "")
    assert "cancel it to have that undone" in await handle.why()
    bites = world.seen.count("bitten")
    assert_sound(harness.url, finished=False)
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        [letter] = await other.dead_letters()
        assert letter.instance_id == handle.id
        await other.instance(handle.id).signal("hello", 1)
        await other.run_until_idle()
        assert world.seen.count("bitten") == bites, "a signal does not make it run"
        await other.instance(handle.id).cancel("it kills", actor="ann")
        await other.run_until_idle()
        view = await handle.status()
        assert (view.status, view.compensation) == ("cancelled", "complete")
        assert world.seen.count("bitten") == bites and world.seen[-1] == "released"
        assert_sound(harness.url, finished=False)


async def test_poison_goes_on_where_it_stood_once_a_person_says_so(harness: Harness) -> None:
    world = World()
    order(harness, world)
    handle = await kill_five_workers(harness, world)
    world.kills = False
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        await other.instance(handle.id).retry("the library is mended", actor="ann")
        await other.run_until_idle()
        assert await handle.result(0) == "survived"
        assert world.seen.count("reserved") == 1 and "released" not in world.seen
        assert_sound(harness.url, finished=False)


@pytest.mark.parametrize("resolution", ["happened", "did_not_happen", "abort"])
async def test_an_effect_of_poison_can_be_settled(harness: Harness, resolution: str) -> None:
    world = World()
    order(harness, world, owes=False, pays=True)
    handle = await kill_five_workers(harness, world)
    bites = world.seen.count("bitten")
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        await other.advance(seconds=CALL_IS_OVER)
        [unknown] = await other.effects.list(state="outcome_unknown")
        more = {"result": "p1"} if resolution == "happened" else {}
        await other.effects.resolve(unknown.id, resolution, actor="ann", reason="asked the bank", **more)
        await other.run_until_idle()
        assert await other.effects.list(state="outcome_unknown") == []
        assert [e.name for e in await entries(handle, "EFFECT_RESOLVED")] == ["pay"]
        assert (await handle.status()).status == "waiting"
        assert world.seen.count("bitten") == bites and world.seen.count("paid") == 1
        await other.instance(handle.id).cancel("it kills", actor="ann")
        await other.run_until_idle()
        assert (await handle.status()).status == "cancelled"
        assert_sound(harness.url, finished=False)


@pytest.mark.parametrize("kind", ["step", "keyed", "lookup"])
async def test_a_cancel_of_poison_calls_nothing_again_that_was_under_way(harness: Harness, kind: str) -> None:
    """It may have happened: a step is undone, and of an effect a person finds out."""
    world = World()

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        if kind == "step":
            return await ctx.step("bite", world.bite, compensate=lambda wound: world.seen.append(f"healed {wound}"))
        more: Any = {"lookup": lambda key: world.pay()} if kind == "lookup" else {}
        return await asyncio.gather(ctx.effect("pay", world.pay, mode=kind, **more), ctx.step("bite", world.bite))

    handle = await kill_five_workers(harness, world)
    assert "what was under way is not called again" in await handle.why()
    bites = world.seen.count("bitten")
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        await other.instance(handle.id).cancel("it kills", actor="ann")
        await other.advance(seconds=CALL_IS_OVER)
        if kind != "step":
            [unknown] = await other.effects.list(state="outcome_unknown")
            assert "it is not called again" in str((await handle.status()).waiting_on)
            await other.effects.resolve(unknown.id, "abort", actor="ann", reason="let it be")
            await other.run_until_idle()
        view = await handle.status()
        assert (view.status, view.compensation) == ("cancelled", "complete")
        assert world.seen.count("bitten") == bites and world.seen.count("paid") <= 1
        assert world.seen[-2:] == ["healed None", "released"] if kind == "step" else world.seen[-1] == "released"
        assert_sound(harness.url, finished=False)


@pytest.mark.parametrize("kind", ["step", "effect"])
async def test_resumed_poison_that_is_cancelled_awaits_what_it_runs(harness: Harness, kind: str) -> None:
    """It is no poison any more: what is under way came after the resume."""
    world, may_end = World(), asyncio.Event()

    async def bite() -> str:
        await world.bite()
        await may_end.wait()
        return "w1"

    async def pay() -> str:
        world.seen.append("paid")
        await may_end.wait()
        return "p1"

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        if kind == "step":
            return await ctx.step("bite", bite, compensate=lambda wound: world.seen.append(f"healed {wound}"))
        if world.kills:
            await ctx.step("bite", bite)
        return await ctx.effect("pay", pay, timeout=60)

    handle = await kill_five_workers(harness, world)
    world.kills = False
    bites = world.seen.count("bitten")
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        await other.instance(handle.id).resume("mended", actor="ann")
        await until(lambda: world.seen.count("bitten") > bites or "paid" in world.seen, other)
        await other.instance(handle.id).cancel("not wanted", actor="ann")
        for _ in range(30):
            assert other.test_worker is not None
            await other.test_worker.run_once()
            await asyncio.sleep(0.002)
        may_end.set()
        await other.run_until_idle()
        assert (await handle.status()).status == "cancelled"
        assert world.seen[-1] == "released" and (kind == "effect" or "healed w1" in world.seen)
        assert_sound(harness.url, finished=False)


async def test_poison_whose_cancel_had_to_wait_for_code_is_poison_still(harness: Harness) -> None:
    world = World()

    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.step("bite", world.bite, compensate=lambda wound: world.seen.append(f"healed {wound}"))

    async def waits_first(ctx: Context, given: Any) -> Any:
        await ctx.wait_for_signal("priced")
        return await order(ctx, given)

    harness.workflow("order")(order)
    handle = await kill_five_workers(harness, world)
    bites = world.seen.count("bitten")
    for body in (waits_first, order):
        app = Holdfast("sqlite:///unused.db")
        app.workflow("order")(body)
        async with Harness(app, url=harness.url, clock=harness.clock) as other:
            await other.instance(handle.id).cancel("it kills", actor="ann")
            await other.run_until_idle()
            if body is waits_first:
                assert "cannot be cancelled as it stands" in str((await handle.status()).waiting_on)
    assert (await handle.status()).status == "cancelled"
    assert world.seen.count("bitten") == bites and world.seen[-2:] == ["healed None", "released"]
    assert_sound(harness.url, finished=False)


def biting(harness: Harness, world: World) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.step("bite", world.bite, compensate=lambda wound: world.seen.append(f"healed {wound}"))


async def look(harness: Harness, times: int = 100) -> None:
    for _ in range(times):
        assert harness.test_worker is not None
        await harness.test_worker.run_once()
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("word", ["cancel", "signal"])
async def test_trouble_of_our_own_does_not_make_poison_harmless(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    world = World()
    biting(harness, world)
    handle = await kill_five_workers(harness, world)
    bites = world.seen.count("bitten")
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        with monkeypatch.context() as broken:
            where = "_dispatch" if word == "cancel" else "_stand_buried"
            broken.setattr(f"holdfast.worker.execution.Execution.{where}", lambda *_: 1 / 0)
            if word == "cancel":
                await other.instance(handle.id).cancel("it kills", actor="ann")
            else:
                await other.instance(handle.id).signal("hello", 1)
            await other.advance(minutes=1)
        assert "Holdfast failed 5 times" in str((await handle.status()).waiting_on)
        await other.instance(handle.id).signal("hello", 1)
        await look(other)
        ends = "cancelled" if word == "cancel" else "waiting"
        assert ((await handle.status()).status, world.seen.count("bitten")) == (ends, bites)


@pytest.mark.parametrize("before", ["hung", "not applied"])
async def test_what_is_known_not_to_have_happened_is_nobodys_question_while_a_cancel_waits(
    harness: Harness, before: str
) -> None:
    """A deploy has put a wait before the step that owes an undo, so that the cancel waits. The payment hung when the
    workers died, and a person says that it did not happen; or its provider said so, before they did."""
    world = World()

    async def pay() -> str:
        if before == "hung":
            return await world.pay()
        world.seen.append("paid")
        raise NotApplied("refused before a byte left")

    def body(*, deployed: bool) -> Any:
        async def order(ctx: Context, given: Any) -> None:
            async def one() -> None:
                if deployed:
                    await ctx.wait_for_signal("added")
                await ctx.step("reserve", world.reserve, compensate=world.release)
                await ctx.step("bite", world.bite)

            refund = compensation(lambda paid: world.seen.append("refunded"), mode="keyed")
            await asyncio.gather(one(), ctx.effect("pay", pay, compensate=refund, backoff=timedelta(hours=9)))

        return order

    harness.workflow("order")(body(deployed=False))
    handle = await harness.start("order")
    await until(lambda: "bitten" in world.seen and "paid" in world.seen, harness)
    await _kill(harness, handle, world, 7)
    async with Harness(_of(body(deployed=True)), url=harness.url, clock=harness.clock) as other:
        said = other.instance(handle.id)
        await said.cancel("it kills", actor="ann")
        await other.advance(seconds=CALL_IS_OVER)
        unknown = await other.effects.list(state="outcome_unknown")
        assert len(unknown) == (1 if before == "hung" else 0)
        for effect in unknown:
            await other.effects.resolve(effect.id, "did_not_happen", actor="bob", reason="asked the bank")
        await other.run_until_idle()
        assert await other.effects.list(state="outcome_unknown") == []
        assert "it waits for 'added'" in str((await handle.status()).waiting_on)
    async with Harness(_of(body(deployed=False)), url=harness.url, clock=harness.clock) as mended:
        await mended.instance(handle.id).resume("mended", actor="ann")
        await mended.run_until_idle()
        assert (await handle.status()).status == "cancelled"
    assert world.seen.count("paid") == 1 and world.seen[-1] == "released" and "refunded" not in world.seen
    assert_sound(harness.url, finished=False)


def _of(body: Any) -> Holdfast:
    app = Holdfast("sqlite:///unused.db")
    app.workflow("order")(body)
    return app


@pytest.mark.parametrize(
    "words", ["retry,cancel", "resume,cancel", "pause,retry;cancel", "pause;retry;cancel", "pause;cancel",
              "cancel,retry", "cancel,resume"],
)  # fmt: skip
async def test_a_cancel_finds_poison_that_was_told_to_go_on_and_has_begun_nothing(harness: Harness, words: str) -> None:
    """`;`: what follows is heard by another worker."""
    world = World()
    biting(harness, world)
    handle = await kill_five_workers(harness, world)
    bites = world.seen.count("bitten")
    for group in words.split(";"):
        async with Harness(url=harness.url, clock=harness.clock) as desk:
            for word in group.split(","):
                await getattr(desk.instance(handle.id), word)("x", actor="ann")
        async with Harness(harness, url=harness.url, clock=harness.clock) as other:
            await look(other, 60)
            await lose_worker(other)
    assert ((await handle.status()).status, world.seen.count("bitten")) == ("cancelled", bites)


@pytest.mark.parametrize("word", ["retry", "resume"])
@pytest.mark.parametrize("code", ["contradicts", "waits"])
async def test_poison_that_began_nothing_under_other_code_is_poison_still(
    harness: Harness, word: str, code: str
) -> None:
    """It was to go on with code that did not come to what kills; a cancel under the old code finds it as it was."""
    world = World()

    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        paid = ctx.effect("pay", world.pay, mode="keyed")
        return await asyncio.gather(
            paid, ctx.step("bite", world.bite, compensate=lambda wound: world.seen.append(f"healed {wound}"))
        )

    async def contradicts(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", lambda more: world.reserve(), 5, compensate=world.release)

    async def waits(ctx: Context, given: Any) -> Any:
        await ctx.wait_for_signal("priced")
        await order(ctx, given)

    harness.workflow("order")(order)
    handle = await kill_five_workers(harness, world)
    seen = list(world.seen)
    for body in (contradicts if code == "contradicts" else waits, order):
        app = Holdfast("sqlite:///unused.db")
        app.workflow("order")(body)
        async with Harness(app, url=harness.url, clock=harness.clock) as other:
            said = other.instance(handle.id)
            await (said.cancel if body is order else getattr(said, word))("x", actor="ann")
            await other.advance(seconds=CALL_IS_OVER)
            if body is not order:
                await lose_worker(other)
                continue
            [unknown] = await other.effects.list(state="outcome_unknown")
            await other.effects.resolve(unknown.id, "abort", actor="ann", reason="let it be")
            await other.run_until_idle()
    assert (await handle.status()).status == "cancelled"
    assert world.seen == [*seen, "healed None", "released"]
    assert_sound(harness.url, finished=False)


async def test_poison_that_was_resumed_and_parked_by_other_trouble_awaits_what_it_began(harness: Harness) -> None:
    """What stood open when its code was found to contradict the journal did not take any worker down."""
    world = World()

    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        return await ctx.effect("pay", world.pay, mode="keyed", timeout=60)

    async def contradicts(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", lambda more: world.reserve(), 5, compensate=world.release)

    harness.workflow("order")(order)
    handle = await harness.start("order")
    await until(lambda: "paid" in world.seen, harness)
    world.hangs.set()
    for body in (contradicts, order):
        app = Holdfast("sqlite:///unused.db")
        app.workflow("order")(body)
        async with (
            next_worker(harness, app=app)
            if body is contradicts
            else Harness(app, url=harness.url, clock=harness.clock) as other
        ):
            await (other.instance(handle.id).cancel if body is order else other.instance(handle.id).resume)("x")
            await other.advance(seconds=CALL_IS_OVER)
            if body is contradicts:
                assert str((await handle.status()).waiting_on).startswith("parked")
                await lose_worker(other)
    assert (await handle.status()).status == "cancelled"
    assert world.seen == ["reserved", "paid", "paid", "released"]
    assert_sound(harness.url, finished=False)


async def test_a_word_in_line_at_the_burial_is_taken(harness: Harness) -> None:
    """Of an effect whose outcome was unknown before its neighbour took the workers down."""
    world = World()

    async def pay() -> str:
        world.seen.append("paid")
        raise RuntimeError("no answer")

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        await asyncio.gather(ctx.effect("pay", pay), ctx.step("bite", world.bite))

    async def say() -> None:
        async with Harness(url=harness.url, clock=harness.clock) as desk:
            for unknown in await desk.effects.list(state="outcome_unknown"):
                await desk.effects.resolve(unknown.id, "happened", result="p1", actor="ann", reason="asked the bank")

    handle = await harness.start("order")
    await until(lambda: {"paid", "bitten"} <= set(world.seen), harness)
    await look(harness, 20)
    await kill_on(harness, handle, world, 9, cancel_at=5, say=say)
    assert "EFFECT_SUCCEEDED" in [entry.type for entry in await handle.history()]
    assert query(harness.url, "select count(*) from holdfast.events where consumed_seq is null") == [(0,)]


@pytest.mark.parametrize("kind", ["effect", "child"])
async def test_a_cancel_of_poison_waits_for_what_kills_nobody(harness: Harness, kind: str) -> None:
    """A deploy has added a call before what is owed: a child, or an effect that waits for a person."""
    world = World()

    async def before(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        await ctx.wait_for_signal("go")

    async def pay() -> str:
        raise RuntimeError("no answer")

    async def added(ctx: Context, given: Any) -> Any:
        if kind == "child":
            await asyncio.gather(ctx.child("pay", "kid"), ctx.step("bite", world.bite))
        await asyncio.gather(ctx.effect("pay", pay), ctx.step("bite", world.bite))
        await before(ctx, given)

    async def mended(ctx: Context, given: Any) -> Any:
        await (ctx.child("pay", "kid") if kind == "child" else ctx.effect("pay", pay))
        await before(ctx, given)

    async def kid(ctx: Context, given: Any) -> Any:
        await ctx.wait_for_signal("go")

    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    for body in (added, mended):
        app = Holdfast("sqlite:///unused.db")
        app.workflow("order")(body)
        app.workflow("kid")(kid)
        if body is added:
            async with next_worker(harness, app=app) as other:
                await other.instance(handle.id).resume("look", actor="ann")
                await until(lambda: "bitten" in world.seen, other)
                await look(other, 20)
                await _kill(other, handle, world, 7)
            assert "its worker died or was lost" in str((await handle.status()).waiting_on)
            bites = world.seen.count("bitten")
            continue
        async with Harness(app, url=harness.url, clock=harness.clock) as other:
            await other.instance(handle.id).cancel("enough", actor="ann")
            await look(other, 30)
            assert str((await handle.status()).waiting_on).endswith("; then it is cancelled")
            for child in await other.instances(key="kid"):
                await other.instance(child.id).signal("go")
            for unknown in await other.effects.list(state="outcome_unknown"):
                await other.effects.resolve(unknown.id, "happened", result="p", actor="ann", reason="it came")
            await other.run_until_idle()
    assert (await handle.status()).status == "cancelled"
    assert world.seen.count("bitten") == bites and world.seen[-1] == "released"


@pytest.mark.parametrize("beside", ["alone", "a child"])
@pytest.mark.parametrize("mode", ["manual", "keyed", "lookup"])
async def test_what_poison_was_doing_is_asked_of_a_person_while_its_cancel_waits(
    harness: Harness, mode: str, beside: str
) -> None:
    """A deploy has added what kills before what is owed. It is not called again, so the cancel waits for a word."""
    world = World()

    async def before(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.release)
        await ctx.wait_for_signal("go")

    async def look_up(key: str) -> None:
        world.seen.append("looked up")

    async def kid(ctx: Context, given: Any) -> Any:
        await ctx.wait_for_signal("go")

    async def added(ctx: Context, given: Any) -> Any:
        more: dict[str, Any] = {"lookup": look_up} if mode == "lookup" else {}
        pays = ctx.effect("pay", world.pay, mode=mode, **more)
        await asyncio.gather(*([ctx.child("kid", "kid")] if beside == "a child" else []), pays)
        await before(ctx, given)

    app = Holdfast("sqlite:///unused.db")
    app.workflow("order")(added)
    app.workflow("kid")(kid)
    harness.workflow("order")(before)
    handle = await harness.start("order")
    await harness.run_until_idle()
    async with next_worker(harness, app=app) as other:
        await other.instance(handle.id).resume("look", actor="ann")
        await until(lambda: "paid" in world.seen, other)
        async with next_worker(other, app=app) as last:
            query(harness.url, "update holdfast.instances set attempts = 9, run_at = 0 where parent_id is null")
            assert last.test_worker is not None
            last.test_worker.look_for_suspects()
            await last.run_until_idle()
            await last.instance(handle.id).cancel("enough", actor="ann")
            await last.run_until_idle()
            await last.advance(hours=1)
            waits = str((await handle.status()).waiting_on)
            assert waits.startswith("a person: the outcome of effect 'pay'") and waits.endswith("then it is cancelled")
            [unknown] = await last.effects.list(state="outcome_unknown")
            assert unknown.attempt == 1
            await last.effects.resolve(unknown.id, "happened", result="p1", actor="ann", reason="on the list")
            for child in await last.instances(key="kid"):
                await last.instance(child.id).signal("go")
            await last.run_until_idle()
    assert (await handle.status()).status == "cancelled"
    assert world.seen == ["reserved", "paid", "released"]
    assert_sound(harness.url)


async def test_what_stood_in_line_when_it_was_buried_again_does_not_make_it_run(harness: Harness) -> None:
    """A cancel that killed who took it has had its try: on record, out of the line, and told."""
    world = World()

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.bite)
        raise ValueError("sold out")

    handle = await harness.start("order")
    await until(lambda: "bitten" in world.seen, harness)
    await kill_on(harness, handle, world, 12, cancel_at=5)
    assert "(cancel) has had its try: say it again" in str((await handle.status()).waiting_on)
    assert query(harness.url, "select count(*) from holdfast.events where consumed_seq is null") == [(0,)]
    bites = world.seen.count("bitten")
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        await other.instance(handle.id).signal("hello", 1)
        await look(other, 60)
        assert world.seen.count("bitten") == bites
        await lose_worker(other)
    assert_sound(harness.url, finished=False)


async def kill_on(
    harness: Harness, handle: Handle, world: World, times: int, *, cancel_at: int, cancelled: bool = False,
    say: Callable[[], Awaitable[None]] | None = None,
) -> None:  # fmt: skip
    """Kill workers until it is buried or ends. Once it was claimed so often, somebody cancels it, or has their say."""
    before, lost = world.seen.count("bitten"), await lose_worker(harness)
    claims = query(harness.url, "select attempts from holdfast.instances")[0][0]
    if claims >= cancel_at and not cancelled:
        cancelled = True
        async with Harness(url=harness.url, clock=harness.clock) as desk:
            await (desk.instance(handle.id).cancel("it kills", actor="ann") if say is None else say())
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        assert other.test_worker is not None
        await other.service.store.release_worker(lost, other.test_worker.id, stopped=False)
        for _ in range(300):
            other.test_worker.look_for_suspects()
            await look(other, 1)
            view = await handle.status()
            over = view.status == "cancelled" or "parked" in str(view.waiting_on)
            if over or world.seen.count("bitten") > before:
                break
        if world.seen.count("bitten") > before and times:
            await kill_on(other, handle, world, times - 1, cancel_at=cancel_at, cancelled=cancelled, say=say)
        else:
            for _ in range(3):
                await other.run_until_idle()


async def test_a_cancel_that_is_in_line_when_poison_is_buried_is_taken(harness: Harness) -> None:
    world = World()
    biting(harness, world)
    handle = await harness.start("order")
    await until(lambda: "bitten" in world.seen, harness)
    await kill_on(harness, handle, world, 8, cancel_at=5)
    view = await handle.status()
    assert (view.status, view.compensation) == ("cancelled", "complete")
    assert world.seen[-2:] == ["healed None", "released"]


async def test_a_second_cancel_gives_up_what_kills_while_the_first_one_is_taken(harness: Harness) -> None:
    world = World()
    biting(harness, world)
    handle = await harness.start("order")
    await until(lambda: "bitten" in world.seen, harness)
    await kill_on(harness, handle, world, 16, cancel_at=2)
    assert (await handle.status()).status == "compensating"
    bites = world.seen.count("bitten")
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        await other.instance(handle.id).cancel("really", actor="ann")
        await look(other, 60)
        assert world.seen.count("bitten") == bites
        await other.run_until_idle()
        view = await handle.status()
        assert (view.status, view.compensation) == ("cancelled", "complete")
        assert world.seen[-2:] == ["healed None", "released"]
        assert_sound(harness.url, finished=False)


async def test_poison_that_was_being_undone_is_not_told_to_be_cancelled(harness: Harness) -> None:
    world = World()

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.step("reserve", world.reserve, compensate=world.bite)
        raise ValueError("sold out")

    handle = await kill_five_workers(harness, world)
    view = await handle.status()
    assert (view.status, "then retry it" in str(view.waiting_on)) == ("compensating", True)
    assert "cancel" not in str(view.waiting_on)
    world.kills = False
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        await other.instance(handle.id).retry("mended", actor="ann")
        await other.run_until_idle()
        assert ((await handle.status()).status, (await handle.status()).compensation) == ("failed", "complete")
        assert_sound(harness.url, finished=False)


@pytest.mark.parametrize("word", ["cancel", "retry"])
@pytest.mark.parametrize("when", ["after other words", "while its turn is on its way"])
async def test_poison_whose_body_was_not_begun_is_begun_for_a_persons_word(
    harness: Harness, word: str, when: str
) -> None:
    """The worker that stopped it, and now hears the word, has no body that asked for what is to be undone."""
    world = World()
    order(harness, world)
    handle = await kill_five_workers(harness, world)
    world.kills = False
    async with Harness(harness, url=harness.url, clock=harness.clock, kept=100) as other:
        same, gate = other.instance(handle.id), Gate(other)
        for _ in range(3):  # it is busy, as the worker sees it: a body that waits would stay in memory
            await same.signal("hello", 1)
            await other.run_until_idle()
        if when == "while its turn is on its way":
            gate.opened.clear()
            await same.signal("hello", 1)
            await until(lambda: gate.held, other)
        await (same.cancel("it kills", actor="ann") if word == "cancel" else same.retry("mended", actor="ann"))
        gate.opened.set()
        for _ in range(2):  # a claim that is let go once its turn is refused is made again by the next pass
            await other.run_until_idle()
        view = await handle.status()
        ends = ("cancelled", "complete") if word == "cancel" else ("completed", None)
        assert (view.status, view.compensation) == ends
    assert_sound(harness.url, finished=False)


async def test_a_pause_does_not_run_the_body_of_poison_and_counts_once_it_is_tried_again(harness: Harness) -> None:
    world = World()
    order(harness, world)
    handle = await kill_five_workers(harness, world)
    world.kills = False
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        same, bodies = other.instance(handle.id), world.bodies
        await same.pause("wait", actor="ann")
        await other.run_until_idle()
        assert world.bodies == bodies and str((await handle.status()).waiting_on).startswith("parked: ")
        await same.retry("mended", actor="ann")
        await other.run_until_idle()
        assert str((await handle.status()).waiting_on).startswith("paused by ann")
        await same.resume("go", actor="ann")
        await other.run_until_idle()
        assert await handle.result(0) == "survived"
    assert_sound(harness.url, finished=False)
