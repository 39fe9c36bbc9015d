"""A person's word that a lookup overtakes while turns are on their way: taken or noted, and the instance ends."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from structlog.testing import capture_logs

from holdfast import Context, EffectView, Handle, StepInfo
from holdfast.testing import FakeProvider, Harness
from tests.flows.support import Gate, query, until
from tests.support.auditor import assert_sound

ANN = {"actor": "ann", "reason": "the bank confirmed it by phone"}


class Lookup:
    """A provider whose answer to a lookup waits for a word of the test's."""

    def __init__(self, harness: Harness, provider: FakeProvider, body: Callable[..., Any] | None = None) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()
        self.harness, self.provider = harness, provider
        provider.plan("timeout_after")
        harness.workflow("pay")(self.waits if body is None else body(self))

    def pay(self, info: StepInfo) -> dict[str, Any]:
        found: dict[str, Any] = self.provider.call(info.idempotency_key)
        return found

    async def find(self, key: str) -> Any:
        self.asked.set()
        await self.answers.wait()
        return self.provider.find(key)

    async def waits(self, ctx: Context) -> None:
        await ctx.effect("pay", self.pay, mode="lookup", lookup=self.find)

    async def begin(self) -> tuple[Handle, EffectView]:
        handle = await self.harness.start("pay")
        moves = asyncio.create_task(self.harness.advance(minutes=5))
        await until(self.asked.is_set, self.harness)
        moves.cancel()
        [view] = await self.harness.effects.list()
        return handle, view

    async def ends(self, handle: Handle) -> None:
        for _ in range(1000):
            assert self.harness.test_worker is not None
            await self.harness.test_worker.run_once()
            await asyncio.sleep(0.002)
            if (await handle.status()).status == "completed":
                break
        assert (await handle.status()).status == "completed"
        assert query(self.harness.url, "select id from holdfast.events where kind = 'resolution'") == query(
            self.harness.url, "select id from holdfast.events where kind = 'resolution' and consumed_seq is not null"
        )
        assert_sound(self.harness.url)


async def test_what_is_read_while_the_settling_turn_is_on_its_way_does_not_keep_it_from_ending(
    harness: Harness, provider: FakeProvider
) -> None:
    def body(lookup: Lookup) -> Any:
        async def both(ctx: Context) -> None:
            await asyncio.gather(lookup.waits(ctx), ctx.wait_for_signal("go"))

        return both

    lookup = Lookup(harness, provider, body)
    handle, _ = await lookup.begin()
    async with Harness(url=harness.url, clock=harness.clock) as elsewhere:
        await elsewhere.instance(handle.id).signal("go", 1)
    lookup.answers.set()
    await lookup.ends(handle)


async def test_a_reading_of_events_that_began_too_early_is_not_the_last_look(
    harness: Harness, provider: FakeProvider
) -> None:
    lookup = Lookup(harness, provider)
    handle, view = await lookup.begin()
    gate = Gate(harness)
    gate.opened.clear()
    lookup.answers.set()
    await until(lambda: gate.held == 1)
    await handle.signal("hello", 1)  # the worker reads its events while the turn is on its way
    await asyncio.sleep(0.05)
    async with Harness(url=harness.url, clock=harness.clock) as desk:
        await desk.effects.resolve(view.id, "happened", result={"id": "prov-1"}, **ANN)
        gate.opened.set()
        await asyncio.sleep(0.1)
    await lookup.ends(handle)
    assert [entry.payload["actor"] for entry in await handle.history() if entry.name == "resolution of pay"] == ["ann"]


async def test_a_timer_during_the_last_look_hands_nothing_back(harness: Harness, provider: FakeProvider) -> None:
    """A pause is in the inbox by then, from a reading that began too early."""

    def body(lookup: Lookup) -> Any:
        async def both(ctx: Context) -> None:
            nap = asyncio.ensure_future(ctx.sleep("nap", timedelta(hours=1)))
            paid = asyncio.ensure_future(lookup.waits(ctx))
            await asyncio.wait([nap, paid], return_when=asyncio.FIRST_COMPLETED)
            nap.cancel()

        return both

    lookup = Lookup(harness, provider, body)
    handle, _ = await lookup.begin()
    gate = Gate(harness)
    gate.opened.clear()
    lookup.answers.set()
    await until(lambda: gate.held == 1)
    store, reads, arrive = harness.service.store, list[int](), [asyncio.Event(), asyncio.Event()]
    read = store.pending_events

    async def slowly(*given: Any, **asked: Any) -> Any:
        found = await read(*given, **asked)
        reads.append(1)
        if len(reads) <= 2:
            await arrive[len(reads) - 1].wait()
        return found

    store.pending_events = slowly  # type: ignore[method-assign]
    await handle.pause("wait", actor="bob")
    await until(lambda: reads)
    gate.opened.set()
    await asyncio.sleep(0.05)
    arrive[0].set()
    await until(lambda: len(reads) == 2)
    assert harness.test_worker is not None
    with capture_logs() as logs:
        harness.clock.move(timedelta(hours=2))
        await harness.test_worker.run_once()
        await asyncio.sleep(0.1)
        arrive[1].set()
        await asyncio.sleep(0.2)
    await handle.resume("go", actor="bob")
    await lookup.ends(handle)
    assert [line for line in logs if line["event"] == "turn_refused"] == []


async def test_a_slow_reading_of_events_is_of_the_moment_at_which_it_began(
    harness: Harness, provider: FakeProvider
) -> None:
    lookup = Lookup(harness, provider)
    handle, view = await lookup.begin()
    gate = Gate(harness)
    gate.opened.clear()
    lookup.answers.set()
    await until(lambda: gate.held == 1)
    store, reads, arrives = harness.service.store, list[int](), asyncio.Event()
    read = store.pending_events

    async def slowly(*given: Any, **asked: Any) -> Any:
        found = await read(*given, **asked)
        reads.append(1)
        if len(reads) == 1:
            await arrives.wait()
        return found

    store.pending_events = slowly  # type: ignore[method-assign]
    await handle.signal("hello", 1)
    await until(lambda: reads)
    async with Harness(url=harness.url, clock=harness.clock) as desk:
        await desk.effects.resolve(view.id, "happened", result={"id": "prov-1"}, **ANN)
        gate.opened.set()
        await asyncio.sleep(0.05)
        arrives.set()
        await asyncio.sleep(0.1)
    await lookup.ends(handle)
    assert [entry.payload["actor"] for entry in await handle.history() if entry.name == "resolution of pay"] == ["ann"]
