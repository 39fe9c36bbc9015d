"""Many signals to one instance: the work grows with their number and no faster, none is lost, and neighbours move."""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.engine.turns import Outcome, Turn
from holdfast.store.port import NAMES_READ, SIGNALS_READ
from holdfast.testing import Harness
from holdfast.worker.execution import ENTRIES_OF_TURN
from tests.flows.support import query, types

TOGGLE = {
    "id": "toggle", "initial": "off",
    "states": {"off": {"on": {"TOGGLE": "on"}}, "on": {"on": {"TOGGLE": "off"}}},
}  # fmt: skip
hf = Holdfast("sqlite:///unused.db")
SOURCES = str(Path(sys.modules["holdfast"].__file__ or "").parent)


@hf.workflow("collect")
async def collect(ctx: Context, count: int) -> list[int]:
    return [await ctx.wait_for_signal("item") for _ in range(count)]


@hf.workflow("work")
async def work(ctx: Context, count: int) -> int:
    total = 0
    for _ in range(count):
        item = await ctx.wait_for_signal("item")
        total += await ctx.step("add", lambda n: n, item, thread=False)
    return total


@hf.workflow("many_names")
async def many_names(ctx: Context, names: list[str]) -> list[Any]:
    return [await ctx.wait_for_signal(name) for name in names]


@hf.workflow("either")
async def either(ctx: Context, count: int) -> list[Any]:
    found = [await ctx.wait_for_signal("item") for _ in range(count)]
    return [await ctx.wait_for_signal("stop"), *found]


class Counting:
    """What a stretch of work costs, without a clock: rows read, statements for events, calls of our own functions."""

    def __init__(self, harness: Harness) -> None:
        self.store = harness.service.store
        self.counts: Counter[str] = Counter()
        self.largest = 0
        self._pending_events, self._claim, self._commit = self.store.pending_events, self.store.claim, self.store.commit
        self.store.pending_events = self.pending_events  # type: ignore[method-assign]
        self.store.claim = self.claim  # type: ignore[method-assign]
        self.store.commit = self.commit  # type: ignore[method-assign]

    async def pending_events(self, *where: Any, **asked: Any) -> Any:
        woken, events = await self._pending_events(*where, **asked)
        self.counts["readings"] += 1
        self.counts["events"] += len(events)
        return woken, events

    async def claim(self, *asked: Any, **more: Any) -> Any:
        claimed, due = await self._claim(*asked, **more)
        self.counts["events"] += sum(len(one.events) for one in claimed)
        return claimed, due

    async def commit(self, worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome]:
        self.largest = max([self.largest, *(len(turn.history) for turn in turns)])
        return await self._commit(worker_id, turns)

    def profile(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            self.counts["calls"] += 1

    async def of(self, something: Callable[[], Any]) -> Counter[str]:
        self.counts = Counter()
        sys.setprofile(self.profile)
        try:
            await something()
        finally:
            sys.setprofile(None)
        return self.counts


async def send(handle: Any, count: int, name: str = "item") -> None:
    await asyncio.gather(*(handle.signal(name, n, id=f"{name}-{n:06}") for n in range(count)))


@pytest.fixture
async def harness(url: str) -> Any:
    async with Harness(hf, url=url) as test:
        yield test


@pytest.mark.parametrize("workflow", ["collect", "work"])
async def test_four_times_the_signals_are_four_times_the_work(harness: Harness, workflow: str) -> None:
    costs = []
    counting = Counting(harness)
    for count in (250, 1_000):
        handle = await harness.start(workflow, count)
        await harness.run_until_idle()

        async def all_of_it(handle: Any = handle, count: int = count) -> None:
            await send(handle, count)
            await harness.run_until_idle()

        costs.append(await counting.of(all_of_it))
        assert await handle.result(0) == (list(range(count)) if workflow == "collect" else sum(range(count)))
    few, many = costs
    assert many["events"] <= 1_000 * 2
    assert many["calls"] < few["calls"] * 4 * 1.25, (few, many)
    assert counting.largest <= ENTRIES_OF_TURN + 3


async def test_signals_that_come_while_it_runs_are_read_once_or_twice_however_many_wait(harness: Harness) -> None:
    """The worker runs and is told of every single one, as in a process of its own."""
    counting = Counting(harness)
    costs = []
    for count in (250, 1_000):
        handle = await harness.start("work", count)

        async def all_of_it(handle: Any = handle, count: int = count) -> None:
            sending = asyncio.create_task(send(handle, count))
            while not sending.done():
                await harness.run_until_idle()
                await asyncio.sleep(0)
            await harness.run_until_idle()

        costs.append(await counting.of(all_of_it))
        assert await handle.result(0) == sum(range(count))
    few, many = costs
    assert many["events"] <= 1_000 * 3
    assert many["calls"] < few["calls"] * 4 * 1.4, (few, many)


async def test_however_many_ask_while_events_are_read_they_are_read_once_more(url: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await go_on.wait()

    async with Harness(url=url) as harness:

        @harness.workflow("busy")
        async def busy(ctx: Context) -> None:
            await ctx.step("wait", wait)

        await harness.start("busy")
        counting = Counting(harness)
        running = asyncio.create_task(harness.run_until_idle())
        await begun.wait()
        assert harness.test_worker is not None
        [execution] = harness.test_worker.executions.values()
        before = counting.counts["readings"]
        for _ in range(50):
            harness.test_worker.fetch_events(execution)
        go_on.set()
        await running
        assert 1 <= counting.counts["readings"] - before <= 3


async def test_a_long_line_is_taken_in_the_order_of_sending_over_several_claims(harness: Harness) -> None:
    handle = await harness.start("collect", 3 * SIGNALS_READ)
    await harness.run_until_idle()
    await asyncio.gather(*(handle.signal("item", n, id=f"i{n:05}") for n in range(SIGNALS_READ + 7)))
    await harness.run_until_idle()
    assert (await handle.status()).status == "waiting"
    harness.clock.micros += 1
    for n in range(SIGNALS_READ + 7, 3 * SIGNALS_READ):
        await handle.signal("item", n, id=f"i{n:05}")
        await handle.signal("item", n, id=f"i{n:05}")  # the same event: it counts once
    await harness.run_until_idle()
    assert await handle.result(0) == list(range(3 * SIGNALS_READ))
    taken = query(harness.url, "select count(*), count(consumed_seq) from holdfast.events")
    assert taken == [(3 * SIGNALS_READ, 3 * SIGNALS_READ)]


async def test_signals_nobody_waits_for_do_not_stand_before_those_somebody_does(harness: Harness) -> None:
    handle = await harness.start("either", 3)
    counting = Counting(harness)
    for name in ("aaa", "stop", "zzz"):
        await send(handle, 3 * SIGNALS_READ, name)
    await send(handle, 3)
    await harness.run_until_idle()
    assert await handle.result(0) == [0, 0, 1, 2]
    assert counting.counts["events"] <= 4 * SIGNALS_READ


async def test_signals_of_more_names_than_are_read_at_once_are_found_when_they_are_waited_for(harness: Harness) -> None:
    names = [f"name-{n:03}" for n in range(3 * NAMES_READ)]
    handle = await harness.start("many_names", names[::-1])
    await asyncio.gather(*(handle.signal(name, name) for name in names[1:]))
    await harness.run_until_idle()
    assert (await handle.status()).waiting_on == "signal 'name-000'"
    await handle.signal("name-000", "last")
    await harness.run_until_idle()
    assert await handle.result(0) == [*names[:0:-1], "last"]


async def test_a_pause_is_heard_in_the_middle_of_a_long_line(harness: Harness) -> None:
    handle = await harness.start("collect", 5 * SIGNALS_READ)
    await harness.run_until_idle()
    await send(handle, 5 * SIGNALS_READ)
    await handle.pause(reason="too much", actor="ann")
    await harness.run_until_idle()
    assert (await types(handle)).count("SIGNAL_RECEIVED") == 0
    await handle.resume()
    await harness.run_until_idle()
    assert await handle.result(0) == list(range(5 * SIGNALS_READ))


async def test_a_chart_takes_a_long_line_of_many_names_in_the_order_of_sending(harness: Harness) -> None:
    await harness.publish(TOGGLE)
    handle = await harness.start("toggle", {})
    await harness.run_until_idle()
    sent = []
    counting = Counting(harness)
    for n in range(3 * SIGNALS_READ):
        name = "TOGGLE" if n % 3 else f"other-{n % 2}"
        sent.append(name)
        harness.clock.micros += 1
        await handle.signal(name, {}, id=f"{9999 - n}")
    await harness.run_until_idle()
    found = [e.name for e in await handle.history() if e.type in ("EVENT_RECEIVED", "EVENT_IGNORED")]
    assert found == sent
    assert counting.counts["events"] <= 3 * len(sent)
