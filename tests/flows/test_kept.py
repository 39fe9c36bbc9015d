"""Bodies of busy instances stay in memory between two claims, and nobody can tell from what they do."""

import asyncio
import copy
import gc
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Context, Handle, Holdfast
from holdfast.engine import ids
from holdfast.store.port import Claimed
from holdfast.testing import Harness
from holdfast.worker import kept
from holdfast.worker.execution import BODY_BYTES, Execution
from tests.flows.support import Gate, next_worker, types, until
from tests.support.auditor import assert_sound


def app() -> Holdfast:
    hf = Holdfast("sqlite:///unused.db")

    @hf.workflow("busy")
    async def busy(ctx: Context) -> int:
        total = 0
        while (item := await ctx.wait_for_signal("item")) is not None and item >= 0:
            total += await ctx.step("add", lambda n: n, item, thread=False)
        return total

    return hf


class Reading:
    """How many rows of history each claim read, and how many calls a body was asked for again."""

    def __init__(self, test: Harness) -> None:
        self.rows: list[int] = []
        self._claim = test.service.store.claim
        test.service.store.claim = self.claim  # type: ignore[method-assign]

    async def claim(self, *asked: Any, **more: Any) -> Any:
        found: tuple[list[Claimed], Any] = await self._claim(*asked, **more)
        self.rows.extend(len(one.history) for one in found[0])
        return found


def keeps(test: Harness, most: int) -> None:
    assert test.test_worker is not None
    test.test_worker.kept.drop_all()
    test.test_worker.kept = kept.Kept(most, test.test_worker.loop.time)


async def send(test: Harness, handle: Handle, count: int) -> None:
    for n in range(count):
        await handle.signal("item", n)
        await test.run_until_idle()


async def test_a_wake_of_a_busy_instance_costs_the_same_however_long_its_past(url: str) -> None:
    async with Harness(app(), url=url, kept=100) as test:
        reading = Reading(test)
        handle = await test.start("busy")
        await test.run_until_idle()
        await send(test, handle, 50)
        early = reading.rows[-20:]
        await send(test, handle, 150)
        assert early == reading.rows[-20:] == [1] * 20
        keeps(test, 0)
        await send(test, handle, 3)
        assert reading.rows[-1] > 400, "without it, a wake reads and replays everything"
        await handle.signal("item", -1)
        await test.run_until_idle()
        assert await handle.result(0) == sum(range(50)) + sum(range(150)) + 3
        assert (await test.verify()).faults == []
    assert_sound(url)


async def test_an_instance_that_wakes_once_in_a_while_is_not_kept(url: str) -> None:
    async with Harness(app(), url=url, kept=100) as test:
        worker = test.test_worker
        assert worker is not None
        for _ in range(20):
            await test.start("busy")
        await test.run_until_idle()
        assert len(worker.kept) == 0
        gc.collect()
        assert [one for one in gc.get_objects() if isinstance(one, Execution)] == []


async def test_no_more_are_kept_than_are_allowed_and_none_for_long(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Harness(app(), url=url, kept=100) as test:
        worker = test.test_worker
        assert worker is not None
        keeps(test, 3)
        handles = [await test.start("busy") for _ in range(8)]
        await test.run_until_idle()
        for _ in range(3):
            for handle in handles:
                await handle.signal("item", 1)
            await test.run_until_idle()
            assert len(worker.kept) <= 3
        assert len(worker.kept) == 3
        monkeypatch.setattr(kept, "BYTES_MAX", 2 * BODY_BYTES + 10_000)
        await handles[0].signal("item", 1)
        await handles[1].signal("item", 1)
        await test.run_until_idle()
        assert len(worker.kept) <= 2
        monkeypatch.setattr(kept, "IDLE_SECONDS", 0.0)
        await test.run_until_idle()
        assert len(worker.kept) == 0
        for handle in handles:
            await handle.signal("item", -1)
        await test.run_until_idle()
        assert [await handle.result(0) for handle in handles] == [4, 4, *[3] * 6]
    assert_sound(url)


@pytest.mark.parametrize("how", ["signal", "step", "transaction", "child"])
async def test_a_body_that_gathers_much_is_not_kept(url: str, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    much = "x" * 50_000

    def load(*_: Any) -> str:
        return much

    async def load_async(*_: Any) -> str:
        return much

    @hf.workflow("kid")
    async def kid(ctx: Context) -> str:
        return much

    @hf.workflow("gathers")
    async def gathers(ctx: Context) -> int:
        held: list[str] = []
        while (said := await ctx.wait_for_signal("item")) != -1:
            if how == "signal":
                held.append(said)
            elif how == "step":
                held.append(await ctx.step("load", load, thread=False))
            elif how == "child":
                held.append(await ctx.child("kid", "kid"))
            else:
                held.append(await ctx.transaction("load", load if url.startswith("sqlite") else load_async))
        return sum(map(len, held))

    monkeypatch.setattr(kept, "BYTES_MAX", BODY_BYTES + 4 * len(much))
    async with Harness(hf, url=url, kept=100) as test:
        worker = test.test_worker
        assert worker is not None
        handle = await test.start("gathers")
        await test.run_until_idle()
        there = []
        for _ in range(6):
            await handle.signal("item", much if how == "signal" else 1)
            await test.run_until_idle()
            there.append(len(worker.kept))
        assert there[0] == 1 and there[-2:] == [0, 0], there
        await handle.signal("item", -1)
        await test.run_until_idle()
        assert await handle.result(0) == 6 * len(much)
    assert_sound(url)


async def test_a_body_that_is_handed_back_late_takes_the_place_of_no_other(url: str) -> None:
    """The reply to a hand-back may be lost, and come after the next claim's."""
    async with Harness(app(), url=url) as test:
        keeps(test, 10)
        handle = await test.start("busy")
        await test.run_until_idle()
        await send(test, handle, 2)
        assert test.test_worker is not None
        bodies = test.test_worker.kept
        [(first, size, _)] = bodies._bodies.values()
        assert bodies.keep(copy.copy(first))
        assert first.replay.closed and bodies._bytes == size
        bodies.drop_all()
        assert (bodies._bytes, len(bodies)) == (0, 0)


async def test_what_another_worker_wrote_meanwhile_throws_the_body_away(url: str) -> None:
    """The other one is lost in the middle of its claim: the row's own word on the head of its history is stale."""
    async with Harness(app(), url=url, kept=100) as test:
        handle = await test.start("busy")
        await test.run_until_idle()
        await send(test, handle, 4)
        assert test.test_worker is not None and len(test.test_worker.kept) == 1
        async with Harness(test, url=url, clock=test.clock) as other:
            await send(other, other.instance(handle.id), 2)
        reading = Reading(test)
        await send(test, handle, 1)
        assert reading.rows[0] > 1
        await handle.signal("item", -1)
        await test.run_until_idle()
        assert await handle.result(0) == sum(range(4)) + 1
    assert_sound(url)


async def test_a_body_that_is_evicted_unwinds_and_writes_nothing(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    said: list[str] = []

    @hf.workflow("careful")
    async def careful(ctx: Context) -> int:
        n = 0
        try:
            while await ctx.wait_for_signal("go") != "end":
                n += 1
        finally:
            try:
                await ctx.step("last", lambda: 1, thread=False)
            except Exception as error:
                said.append(type(error).__name__)
        return n

    async with Harness(hf, url=url, kept=100) as test:
        handle = await test.start("careful")
        for _ in range(4):
            await handle.signal("go", "on")
            await test.run_until_idle()
        before = len(await handle.history())
        assert test.test_worker is not None and len(test.test_worker.kept) == 1
        said.clear()
        test.test_worker.kept.drop_all()
        assert said == ["NotInWorkflow"]
        assert len(await handle.history()) == before
        await handle.signal("go", "end")
        await test.run_until_idle()
        assert await handle.result(0) == 4
    assert_sound(url)


async def test_a_fenced_worker_keeps_nothing(url: str) -> None:
    async with Harness(app(), url=url, kept=100) as test:
        handle = await test.start("busy")
        await test.run_until_idle()
        await send(test, handle, 4)
        worker = test.test_worker
        assert worker is not None and len(worker.kept) == 1
        worker.fenced(worker.id)
        assert len(worker.kept) == 0
        while worker.busy():
            await asyncio.sleep(0.001)
        await send(test, handle, 2)
        await handle.signal("item", -1)
        await test.run_until_idle()
        assert await handle.result(0) == sum(range(4)) + 1


async def test_a_body_that_is_gone_when_its_claim_arrives_is_replayed_by_the_next_claim(url: str) -> None:
    async with Harness(app(), url=url, kept=100) as test:
        handle = await test.start("busy")
        await test.run_until_idle()
        await send(test, handle, 4)
        worker = test.test_worker
        assert worker is not None
        claim = test.service.store.claim

        async def and_evict(*asked: Any, **more: Any) -> Any:
            found = await claim(*asked, **more)
            if found[0]:
                worker.kept.drop_all()
            return found

        test.service.store.claim = and_evict  # type: ignore[method-assign]
        await handle.signal("item", -1)
        await test.run_until_idle()
        assert await handle.result(0) == sum(range(4))
    assert_sound(url)


async def test_pause_resume_and_cancel_reach_a_body_that_is_kept(url: str) -> None:
    async with Harness(app(), url=url, kept=100) as test:
        handle = await test.start("busy")
        await test.run_until_idle()
        await send(test, handle, 4)
        await handle.pause("audit", actor="ann")
        await test.run_until_idle()
        assert "paused by ann" in ((await handle.status()).waiting_on or "")
        await handle.signal("item", 5)
        await handle.resume("done", actor="ann")
        await test.run_until_idle()
        await send(test, handle, 2)
        async with next_worker(test, kept=100) as other:
            again = other.instance(handle.id)
            await send(other, again, 3)
            await again.cancel("enough")
            await other.run_until_idle()
            assert (await again.status()).status == "cancelled"
    assert_sound(url)


class Answers:
    """Holds back what was read of an instance's events, as a slow reply does."""

    def __init__(self, test: Harness) -> None:
        self.read, self.go_on = asyncio.Event(), asyncio.Event()
        self._store = test.service.store
        self._pending_events = self._store.pending_events

    def hold(self) -> None:
        self._store.pending_events = self.pending_events  # type: ignore[method-assign]

    async def pending_events(self, *where: Any, **asked: Any) -> Any:
        self._store.pending_events = self._pending_events  # type: ignore[method-assign]
        found = await self._pending_events(*where, **asked)
        self.read.set()
        await self.go_on.wait()
        return found


async def test_what_was_read_under_one_claim_is_not_taken_under_the_next(url: str) -> None:
    """The reply comes so late that the signal in it was taken, the instance handed back and claimed again."""
    hf = Holdfast("sqlite:///unused.db")
    begun, end = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await end.wait()

    @hf.workflow("busy")
    async def busy(ctx: Context) -> list[Any]:
        found = [await ctx.wait_for_signal("item") for _ in range(3)]
        await ctx.sleep("rest", timedelta(minutes=1))
        more, _ = await asyncio.gather(ctx.wait_for_signal("item"), ctx.step("slow", slow))
        return [*found, more]

    async with Harness(hf, url=url, kept=100) as test:
        worker, answers, gate = test.test_worker, Answers(test), Gate(test)
        assert worker is not None
        handle = await test.start("busy")
        await test.run_until_idle()
        await send(test, handle, 2)
        assert len(worker.kept) == 1
        gate.opened.clear()
        await handle.signal("item", 2)
        await until(lambda: gate.held, test)
        answers.hold()
        worker.event_for(ids.parse("ins", handle.id))  # as when another process's word comes late
        await answers.read.wait()
        gate.opened.set()
        await until(lambda: not worker.executions)
        assert len(worker.kept) == 1
        test.clock.micros += 61_000_000
        await until(begun.is_set, test)
        answers.go_on.set()
        await asyncio.sleep(0.01)
        assert "SIGNAL_RECEIVED" not in (await types(handle))[-3:], "taken twice"
        await handle.signal("item", 3)
        await until(lambda: not worker._reading, test)
        end.set()
        await test.run_until_idle()
        assert await handle.result(0) == [0, 1, 2, 3]
    assert_sound(url)


async def test_what_is_read_after_the_hand_back_does_not_move_a_kept_body(url: str) -> None:
    async with Harness(app(), url=url, kept=100) as test:
        worker, answers, gate = test.test_worker, Answers(test), Gate(test)
        assert worker is not None
        handle = await test.start("busy")
        await test.run_until_idle()
        await send(test, handle, 3)
        gate.opened.clear()
        await handle.signal("item", 3)
        await until(lambda: gate.held, test)
        answers.hold()
        worker.event_for(ids.parse("ins", handle.id))
        await answers.read.wait()
        gate.opened.set()
        await until(lambda: not worker.executions)
        reading, submitted = Reading(test), worker.committer.turns
        answers.go_on.set()
        await until(lambda: not worker._reading)
        await asyncio.sleep(0.01)
        assert worker.committer.turns == submitted, "nobody holds the claim"
        await send(test, handle, 1)
        assert reading.rows == [1], "the body stands where it was left"
        await handle.signal("item", -1)
        await test.run_until_idle()
        assert await handle.result(0) == 0 + 1 + 2 + 3
    assert_sound(url)


# -- the law: kept, replayed or thrown away at random, the history is the same

OPS = st.sampled_from(["signal", "step", "sleep", "now", "both", "child", "retry", "catch", "wait"])


def program(ops: list[str]) -> Holdfast:
    hf = Holdfast("sqlite:///unused.db")
    tried: dict[str, int] = {}

    @hf.workflow("kid")
    async def kid(ctx: Context, n: int) -> Any:
        await ctx.sleep("nap", timedelta(minutes=7))
        return n

    def flaky(place: str) -> str:
        tried[place] = tried.get(place, 0) + 1
        if tried[place] == 1:
            raise ConnectionError("not yet")
        return place

    def broken() -> None:
        raise ValueError("never")

    @hf.workflow("random")
    async def body(ctx: Context) -> list[Any]:
        found: list[Any] = []

        async def branch(name: str, number: int) -> Any:
            await ctx.sleep(f"{name}.nap", timedelta(minutes=number))
            return await ctx.step(f"{name}.step", lambda: number, thread=False)

        for number, op in enumerate(ops):
            match op:
                case "signal":
                    found.append(await ctx.wait_for_signal("go"))
                case "wait":
                    found.append(await ctx.wait_for_signal("never", timeout=timedelta(minutes=3)))
                case "step":
                    found.append(await ctx.step("step", lambda n: n, number, thread=False))
                case "sleep":
                    await ctx.sleep("sleep", timedelta(minutes=5))
                case "now":
                    found.append([ctx.now().isoformat(), ctx.random()])
                case "both":
                    pair = asyncio.gather(branch(f"a{number}", 4), branch(f"b{number}", 2), ctx.wait_for_signal("go"))
                    found.append(await pair)
                case "child":
                    found.append(await ctx.child("kid", "kid", number))
                case "retry":
                    place = f"{number}"
                    found.append(await ctx.step("flaky", flaky, place, backoff=timedelta(minutes=1), thread=False))
                case _:
                    try:
                        await ctx.step("broken", broken, max_attempts=1, thread=False)
                    except Exception as error:
                        found.append(str(error))
        return found

    return hf


async def played(ops: list[str], url: str, most: int, meddle: Callable[[Harness], None]) -> list[Any]:
    async with Harness(program(ops), url=url) as test:
        keeps(test, most)
        handle = await test.start("random")
        for n in range(2 * len(ops) + 4):
            await test.run_until_idle()
            meddle(test)
            if n % 3 != 2 and (await handle.status()).completed_at is None:
                await handle.signal("go", n, id=f"s{n}")
            await test.advance(minutes=2)
            meddle(test)
        await test.advance(days=1)
        status = await handle.status()
        past = [(e.type, e.name, _but_ids(e.payload)) for e in await handle.history()]
        return [status.status, status.result, *past]


def _but_ids(payload: dict[str, Any]) -> dict[str, Any]:
    """A child's id follows from its parent's, which differs from run to run."""
    return {key: value for key, value in payload.items() if key != "child_id"}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=st.lists(OPS, min_size=2, max_size=9), seed=st.integers(0, 1000))
def test_kept_or_replayed_or_thrown_away_at_random_the_history_is_the_same(
    ops: list[str], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    dice = random.Random(seed)

    def throw(test: Harness) -> None:
        if test.test_worker is not None and dice.random() < 0.3:
            test.test_worker.kept.drop_all()

    def url() -> str:
        return f"sqlite:///{Path(tmp_path_factory.mktemp('kept')) / 'kept.db'}"

    async def run() -> None:
        replayed = await played(ops, url(), 0, lambda _: None)
        assert await played(ops, url(), 100, lambda _: None) == replayed
        assert await played(ops, url(), 100, throw) == replayed

    asyncio.run(run())
