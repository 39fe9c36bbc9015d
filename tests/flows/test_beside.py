"""What comes while a turn, a reading or another call is on its way: nothing waits for what has come already."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import ChildFailed, Context, DeadLetterView, Holdfast
from holdfast.testing import Harness
from holdfast.worker.execution import ENTRIES_OF_TURN
from tests.flows.support import Gate, entries, query, types, until
from tests.support.auditor import assert_sound


async def nobody(ctx: Context) -> None:
    """Asks for a child that cannot be begun."""
    with pytest.raises(ChildFailed):
        await ctx.child("kid", "nobody-knows-it")


async def test_a_body_goes_on_behind_a_child_that_could_not_be_begun(harness: Harness) -> None:
    @harness.workflow("parent")
    async def parent(ctx: Context) -> str:
        await nobody(ctx)
        await ctx.sleep("after", timedelta(seconds=5))
        return "done"

    handle = await harness.start("parent")
    await harness.advance(seconds=10)
    assert await handle.result(timeout=0) == "done"
    assert await types(handle) == [
        "INSTANCE_STARTED", "CHILD_FAILED", "TIMER_STARTED", "TIMER_FIRED", "INSTANCE_COMPLETED",
    ]  # fmt: skip


async def test_a_body_that_asks_for_such_children_again_and_again_lets_its_neighbours_have_their_turns(
    harness: Harness,
) -> None:
    """No more of them are answered in one turn than of anything else."""
    times = ENTRIES_OF_TURN * 2 + 1

    @harness.workflow("parent")
    async def parent(ctx: Context) -> None:
        for _ in range(times):
            await nobody(ctx)

    store, largest = harness.service.store, 0
    commit = store.commit

    async def counted(worker_id: Any, turns: Any) -> Any:
        nonlocal largest
        largest = max([largest, *(len(turn.history) for turn in turns)])
        return await commit(worker_id, turns)

    store.commit = counted  # type: ignore[method-assign]
    handle = await harness.start("parent")
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"
    assert (await types(handle)).count("CHILD_FAILED") == times
    assert largest <= ENTRIES_OF_TURN + 1


@pytest.mark.parametrize("held", [False, True], ids=["handed back", "a step runs"])
async def test_a_timer_beside_a_child_that_could_not_be_begun_fires_once_it_is_due(
    harness: Harness, held: bool
) -> None:
    over, fired = asyncio.Event(), asyncio.Event()

    @harness.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.sleep("first", timedelta(seconds=1))  # so that the body was kept before
        timer = asyncio.ensure_future(ctx.sleep("timer", timedelta(seconds=5)))
        slow = asyncio.ensure_future(ctx.step("slow", over.wait)) if held else None
        await nobody(ctx)
        await timer
        await ctx.step("fired", fired.set, thread=False)
        if slow is not None:
            await slow

    handle = await harness.start("parent")
    for _ in range(12):
        harness.clock.move(timedelta(seconds=1))
        for _ in range(5):
            assert harness.test_worker is not None
            await harness.test_worker.run_once()
            await asyncio.sleep(0.002)
    assert fired.is_set()
    over.set()
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"
    assert (await types(handle)).count("INSTANCE_WAITING") <= 1


async def test_an_undo_that_is_tried_again_is_not_late_for_a_call_beside_it(harness: Harness) -> None:
    over, tried = asyncio.Event(), 0
    called: list[int] = []

    async def pay() -> str:
        called.append(1)
        if len(called) == 1:
            raise ConnectionError("lost")
        await over.wait()
        return "p1"

    def release() -> None:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise ValueError("not yet")

    async def reject() -> None:
        await until(lambda: called)
        raise ValueError("no")

    @harness.workflow("order")
    async def order(ctx: Context) -> None:
        window = timedelta(hours=1)
        paid = ctx.effect("pay", pay, mode="keyed", window=window, backoff=timedelta(seconds=2))
        await ctx.step("first", lambda: None)  # so that the payment began before what is undone
        await ctx.step("reserve", lambda: "r1", compensate=release, backoff=timedelta(seconds=5))
        await ctx.step("reject", reject, max_attempts=1)
        await paid

    handle = await harness.start("order")
    await until(lambda: tried == 1, harness)
    harness.clock.move(timedelta(seconds=2))
    await until(lambda: len(called) == 2, harness)  # its claim is held from here on
    await until(lambda: query(harness.url, "select 1 from holdfast.effects where attempt = 2"), harness)
    harness.clock.move(timedelta(seconds=4))
    await until(lambda: tried == 2, harness)
    over.set()
    await harness.run_until_idle()
    assert ((await handle.status()).status, len(called)) == ("failed", 2)
    assert_sound(harness.url)


async def test_a_transaction_in_line_does_not_begin_once_a_pause_is_on_record(postgres_url: str) -> None:
    """On SQLite nobody can say anything while a transaction is under way."""
    hf = Holdfast(postgres_url)
    begun: list[str] = []
    over = asyncio.Event()

    async def book(tx: Any, name: str) -> None:
        begun.append(name)
        if name == "first":
            await over.wait()

    @hf.workflow("books")
    async def books(ctx: Context) -> None:
        await asyncio.gather(*(ctx.transaction(name, book, name) for name in ("first", "second")))

    async with hf, hf.worker():
        handle = await hf.start("books")
        await until(lambda: begun)
        await handle.pause("audit", actor="ann")
        execution = next(iter(hf.service.workers[0].executions.values()))
        await until(lambda: execution.events.orders)
        over.set()
        waits = "select 1 from holdfast.instances where status = 'waiting'"
        await until(lambda: query(postgres_url, waits))
        assert begun == ["first"]
        await handle.resume("go on", actor="ann")
        await handle.result(60)
        assert begun == ["first", "second"]
    assert_sound(postgres_url)


async def test_an_event_of_this_process_wakes_what_was_handed_back_just_now(harness: Harness) -> None:
    """The hand-back is on disk and its answer is not here yet: whoever reads the event finds the claim gone."""

    @harness.workflow("waits")
    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    store, over = harness.service.store, asyncio.Event()
    commit = store.commit

    async def late(worker_id: Any, turns: Any) -> Any:
        found = await commit(worker_id, turns)
        if worker_id is not None:
            await over.wait()
        return found

    store.commit = late  # type: ignore[method-assign]
    handle = await harness.start("waits")
    worker = harness.test_worker
    assert worker is not None
    await until(lambda: query(harness.url, "select 1 from holdfast.instances where status = 'waiting'"), harness)
    pending, read = store.pending_events, asyncio.Event()

    async def slow(*given: Any, **more: Any) -> Any:
        found = await pending(*given, **more)
        await read.wait()
        return found

    store.pending_events = slow  # type: ignore[method-assign]
    await handle.signal("go", 7)
    worker.event_for(next(iter(worker.executions)))
    over.set()
    await until(lambda: not worker.executions)
    worker.wakeup.clear()
    read.set()
    await asyncio.wait_for(worker.wakeup.wait(), 20)


async def test_a_timer_that_came_beside_a_turn_is_watched_again_where_the_clock_is_set_back(harness: Harness) -> None:
    gate, over, fired = Gate(harness), asyncio.Event(), asyncio.Event()

    async def quick() -> int:
        await over.wait()
        return 1

    late = asyncio.Event()

    @harness.workflow("both")
    async def both(ctx: Context) -> None:
        async def timed() -> None:
            await ctx.sleep("timer", timedelta(seconds=5))
            await ctx.step("fired", fired.set, thread=False)

        async def works() -> None:
            await ctx.step("quick", quick)
            await ctx.step("slow", late.wait)

        await asyncio.gather(timed(), works())

    await harness.start("both")
    await until(lambda: query(harness.url, "select 1 from holdfast.history where type = 'TIMER_STARTED'"), harness)
    gate.opened.clear()
    over.set()
    await until(lambda: gate.held, harness)
    harness.clock.move(timedelta(seconds=5))
    worker = harness.test_worker
    assert worker is not None
    await worker.run_once()
    harness.clock.micros -= 2_000_000
    gate.opened.set()
    await until(lambda: all(not one.committing for one in worker.executions.values()), harness)
    harness.clock.move(timedelta(seconds=2))
    await until(fired.is_set, harness)
    late.set()
    await harness.run_until_idle()


async def test_nobody_is_told_of_a_dead_letter_whose_turn_was_refused(harness: Harness) -> None:
    told: list[DeadLetterView] = []
    harness.on_dead_letter(told.append)

    @harness.workflow("bites")
    async def bites(ctx: Context) -> None: ...

    worker, store = harness.test_worker, harness.service.store
    assert worker is not None
    worker.attempts_limit, commit = 0, store.commit

    async def fenced(worker_id: Any, turns: Any) -> Any:
        if worker_id is not None and any(turn.dead_letters for turn in turns):
            store.commit = commit  # type: ignore[method-assign]
            await store.release_worker(worker_id, b"x" * 16, stopped=False)
        return await commit(worker_id, turns)

    store.commit = fenced  # type: ignore[method-assign]
    handle = await harness.start("bites")
    await until(lambda: store.commit == commit, harness)
    for _ in range(20):
        await worker.run_once()
        await asyncio.sleep(0.005)
    assert [letter.id for letter in told] == [letter.id for letter in await harness.dead_letters()]
    assert handle.id and entries
