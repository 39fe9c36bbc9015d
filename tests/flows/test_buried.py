"""A poison instance that owes something stands still: its effects can be settled, and a person may have it undone."""

import asyncio
from typing import Any

import pytest

from holdfast import Context, Handle
from holdfast.engine.effects import GRACE, LEASE
from holdfast.testing import Harness
from tests.flows.support import Gate, entries, next_worker, until
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
        view = None
        for _ in range(500):
            assert other.test_worker is not None
            other.test_worker.look_for_suspects()
            await other.test_worker.run_once()
            await asyncio.sleep(0.001)
            view = await handle.status()
            if world.seen.count("bitten") > before or view.status in ("failed", "waiting"):
                break
        if view is not None and view.status == "running":
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
