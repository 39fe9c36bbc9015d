"""Sleeping and waiting: never early, never twice, never lost, and nothing kept in memory."""

import asyncio
import gc
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import BadInput, Context, InstanceEnded
from holdfast.testing import EPOCH, Harness
from holdfast.worker.execution import Execution
from tests.flows.support import Gate, entries, next_worker, query, types, until


async def test_a_sleep_ends_when_its_time_has_come_and_not_before(harness: Harness) -> None:
    @harness.workflow("nap")
    async def workflow(ctx: Context) -> list[str]:
        before = ctx.now()
        await ctx.sleep("nap", timedelta(days=14))
        return [before.isoformat(), ctx.now().isoformat()]

    handle = await harness.start("nap")
    await harness.advance(timedelta(days=14) - timedelta(microseconds=1))
    view = await handle.status()
    assert (view.status, view.waiting_on) == ("waiting", "timer 'nap' until 2026-01-15T09:00:00Z")
    await harness.advance(microseconds=1)
    assert await handle.result(timeout=0) == ["2026-01-01T09:00:00+00:00", "2026-01-15T09:00:00+00:00"]


async def test_a_sleep_until_a_moment_ends_at_that_moment(harness: Harness) -> None:
    @harness.workflow("until")
    async def workflow(ctx: Context) -> str:
        await ctx.sleep("until", until=EPOCH + timedelta(hours=3))
        await ctx.sleep("long past", until=datetime(2020, 1, 1, tzinfo=UTC))
        return ctx.now().isoformat()

    handle = await harness.start("until")
    assert await harness.finish(handle) == "2026-01-01T12:00:00+00:00"


async def test_a_sleep_survives_a_lost_worker_and_keeps_its_due_time(harness: Harness) -> None:
    @harness.workflow("nap")
    async def workflow(ctx: Context) -> str:
        await ctx.sleep("nap", timedelta(hours=2))
        return ctx.now().isoformat()

    handle = await harness.start("nap")
    await harness.advance(hours=1)
    async with next_worker(harness) as other:
        assert await other.finish(other.instance(handle.id)) == "2026-01-01T11:00:00+00:00"


@pytest.mark.parametrize("span", [timedelta.max, 1e18], ids=["timedelta.max", "seconds"])
async def test_a_sleep_of_a_million_years_harms_nobody(harness: Harness, span: Any) -> None:
    @harness.workflow("for ever")
    async def for_ever(ctx: Context) -> None:
        await ctx.sleep("for ever", span)

    @harness.workflow("quick")
    async def quick(ctx: Context) -> str:
        await ctx.sleep("nap", 1)
        return "done"

    long = await harness.start("for ever")
    short = await harness.start("quick")
    await harness.advance(seconds=1)
    assert await short.result(timeout=0) == "done"
    view = await long.status()
    assert view.status == "waiting" or (view.status == "failed" and "sleep" in view.error["message"])


async def test_a_signal_sent_before_the_wait_is_kept_and_taken(harness: Harness) -> None:
    @harness.workflow("early")
    async def workflow(ctx: Context) -> Any:
        await ctx.sleep("nap", 60)
        return await ctx.wait_for_signal("confirmed", timeout=timedelta(days=3))

    handle = await harness.start("early")
    await harness.run_until_idle()
    assert await handle.signal("confirmed", {"by": "ann"})
    await harness.run_until_idle()
    assert (await handle.status()).status == "waiting"
    await harness.advance(seconds=60)
    assert await handle.result(timeout=0) == {"by": "ann"}


async def test_a_signal_sent_to_an_instance_that_has_not_begun_is_kept(harness: Harness) -> None:
    @harness.workflow("early")
    async def workflow(ctx: Context) -> Any:
        return await ctx.wait_for_signal("confirmed")

    handle = await harness.start("early")
    await handle.signal("confirmed", 1)
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == 1


async def test_a_signal_sent_during_the_wait_ends_it(harness: Harness) -> None:
    @harness.workflow("late")
    async def workflow(ctx: Context) -> Any:
        return await ctx.wait_for_signal("confirmed", timeout=timedelta(days=3))

    handle = await harness.start("late")
    await harness.advance(days=1)
    assert (await handle.status()).waiting_on == "signal 'confirmed' until 2026-01-04T09:00:00Z"
    await handle.signal("confirmed", {"by": "ann"}, id="evt-7")
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == {"by": "ann"}
    [received] = await entries(handle, "SIGNAL_RECEIVED")
    assert received.payload["event_id"] == "evt-7"
    assert query(harness.url, "select id, consumed_seq from holdfast.events") == [("evt-7", received.seq)]


async def test_a_wait_that_times_out_gives_none(harness: Harness) -> None:
    @harness.workflow("patient")
    async def workflow(ctx: Context) -> list[Any]:
        first = await ctx.wait_for_signal("confirmed", timeout=timedelta(days=3))
        second = await ctx.wait_for_signal("confirmed", timeout=timedelta(days=3))
        return [first, second]

    handle = await harness.start("patient")
    await harness.advance(days=4)
    await handle.signal("confirmed", "late")
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == [None, "late"]
    assert "WAIT_TIMED_OUT" in await types(handle)


async def test_the_same_signal_id_twice_is_one_signal(harness: Harness) -> None:
    @harness.workflow("twice")
    async def workflow(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("go"), await ctx.wait_for_signal("go", timeout=60)]

    handle = await harness.start("twice")
    assert [await handle.signal("go", 1, id="evt-1") for _ in range(3)] == [True, False, False]
    harness.clock.move(timedelta(seconds=1))
    assert not await handle.signal("go", 1, id="evt-1")
    await harness.run_until_idle()
    assert not await handle.signal("go", 1, id="evt-1")
    await harness.advance(minutes=5)
    assert await handle.result(timeout=0) == [1, None]


async def test_a_signal_id_used_again_for_something_else_is_refused(harness: Harness) -> None:
    @harness.workflow("twice")
    async def workflow(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    handle = await harness.start("twice")
    await handle.signal("go", {"n": 1}, id="evt-1")
    harness.clock.move(timedelta(seconds=1))
    for name, payload in (("go", {"n": 2}), ("stop", {"n": 1})):
        with pytest.raises(BadInput, match="already used"):
            await handle.signal(name, payload, id="evt-1")


async def test_a_signal_id_used_again_at_the_very_same_moment_is_refused_too(harness: Harness) -> None:
    @harness.workflow("twice")
    async def workflow(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    handle = await harness.start("twice")
    assert await handle.signal("go", 1, id="evt-1")
    with pytest.raises(BadInput, match="already used"):
        await handle.signal("go", 2, id="evt-1")


async def test_signals_of_one_name_are_taken_in_the_order_they_were_sent(harness: Harness) -> None:
    @harness.workflow("queue")
    async def workflow(ctx: Context) -> list[Any]:
        return [await ctx.wait_for_signal("item") for _ in range(3)]

    handle = await harness.start("queue")
    for n in range(3):
        await handle.signal("item", n)
        harness.clock.move(timedelta(milliseconds=1))
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == [0, 1, 2]


async def test_a_signal_is_taken_once_even_if_another_arrives_while_the_first_is_being_written(
    harness: Harness,
) -> None:
    busy = asyncio.Event()

    async def slow() -> str:
        await busy.wait()
        return "slow"

    @harness.workflow("two signals")
    async def workflow(ctx: Context) -> list[Any]:
        async def listen() -> list[Any]:
            return [await ctx.wait_for_signal("go"), await ctx.wait_for_signal("go")]

        _, heard = await asyncio.gather(ctx.step("slow", slow), listen())
        return list(heard)

    gate = Gate(harness)
    handle = await harness.start("two signals")
    worker = harness.test_worker
    assert worker is not None
    await until(lambda: worker.executions and all(not e.committing for e in worker.executions.values()), harness)
    [execution] = worker.executions.values()
    await handle.signal("go", "A", id="a")
    gate.opened.clear()
    await until(lambda: gate.held, harness)  # the turn that takes A is on its way to disk
    harness.clock.move(timedelta(seconds=1))
    await handle.signal("go", "B", id="b")
    await until(lambda: execution.woken == 2, harness)
    gate.opened.set()
    busy.set()
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == ["A", "B"]
    assert len(query(harness.url, "select distinct consumed_seq from holdfast.events")) == 2


async def test_a_timer_that_falls_due_while_a_turn_is_being_written_still_fires(harness: Harness) -> None:
    busy = asyncio.Event()
    woken: list[str] = []

    async def slow() -> str:
        await busy.wait()
        return "slow"

    @harness.workflow("alarm")
    async def workflow(ctx: Context) -> None:
        async def alarm() -> None:
            await ctx.sleep("nap", 10)
            await ctx.step("ring", lambda: woken.append("rang"))

        async def steps() -> None:
            await ctx.wait_for_signal("go")
            await ctx.wait_for_signal("never")

        await asyncio.gather(ctx.step("slow", slow), alarm(), steps())

    gate = Gate(harness)
    handle = await harness.start("alarm")
    worker = harness.test_worker
    assert worker is not None
    await until(lambda: worker.executions and all(not e.committing for e in worker.executions.values()), harness)
    await handle.signal("go")
    gate.opened.clear()
    await until(lambda: gate.held, harness)
    harness.clock.move(timedelta(seconds=10))
    await worker.run_once()  # the timer is due, and the turn is not yet on disk
    gate.opened.set()
    await until(lambda: woken, harness)
    await handle.cancel("enough")
    busy.set()
    await harness.run_until_idle()


async def test_a_signal_that_arrives_while_the_instance_hands_itself_back_is_not_lost(harness: Harness) -> None:
    @harness.workflow("race")
    async def workflow(ctx: Context) -> Any:
        return await ctx.wait_for_signal("go")

    gate = Gate(harness)
    handle = await harness.start("race")
    gate.opened.clear()
    worker = harness.test_worker
    assert worker is not None
    await until(lambda: gate.held, harness)  # the turn that parks it is on its way
    await handle.signal("go", "in time")
    gate.opened.set()
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == "in time"


async def test_a_signal_to_an_instance_that_ended_is_refused(harness: Harness) -> None:
    @harness.workflow("quick")
    async def workflow(ctx: Context) -> int:
        return 1

    handle = await harness.start("quick")
    await harness.run_until_idle()
    with pytest.raises(InstanceEnded, match=r"is completed: it cannot take .* any more"):
        await handle.signal("go")


@pytest.mark.parametrize("kind", ["sleep", "signal", "child", "unknown effect", "retry"])
async def test_a_waiting_instance_is_a_row_and_nothing_in_memory(harness: Harness, kind: str) -> None:
    def lost() -> None:
        raise TimeoutError("no answer")

    @harness.workflow("long")
    async def long(ctx: Context) -> None:
        await ctx.sleep("long", timedelta(days=300))

    @harness.workflow("waiting")
    async def workflow(ctx: Context) -> None:
        match kind:
            case "sleep":
                await ctx.sleep("nap", timedelta(days=30))
            case "signal":
                await ctx.wait_for_signal("go")
            case "child":
                await ctx.child("child", "long")
            case "unknown effect":
                await ctx.effect("pay", lost)
            case "retry":
                await ctx.step("fails", lost, backoff=timedelta(days=1))

    handles = [await harness.start("waiting") for _ in range(5)]
    await harness.run_until_idle()
    assert {(await handle.status()).status for handle in handles} == {"waiting"}
    assert harness.test_worker is not None and harness.test_worker.executions == {}
    gc.collect()
    assert [found for found in gc.get_objects() if isinstance(found, Execution)] == []
    assert query(harness.url, "select count(*) from holdfast.instances where locked_by is not null") == [(0,)]


@pytest.mark.parametrize("woken", ["by the same worker", "by another one"])
@pytest.mark.parametrize("how", ["wait", "future", "task group", "same drain"])
async def test_a_wait_that_its_author_cancelled_takes_nothing(harness: Harness, how: str, woken: str) -> None:
    @harness.workflow("approval")
    async def workflow(ctx: Context) -> Any:
        asked: Any = ctx.wait_for_signal("approved", timeout=timedelta(days=30))
        if how == "same drain":
            asked.cancel()
        elif how == "task group":
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(asked)
                    await ctx.sleep("a while", 60)
                    raise LookupError("enough")
            except* LookupError:
                pass
        else:
            rest: Any = ctx.sleep("a while", 60)
            await asyncio.wait({asked, rest} if how == "future" else {asyncio.ensure_future(asked), rest},
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            asked.cancel()
        await ctx.sleep("later", 60)
        return await ctx.wait_for_signal("approved")

    handle = await harness.start("approval")
    await harness.advance(minutes=3)
    view = await handle.status()
    assert (view.waiting_on, view.run_at) == ("signal 'approved'", None)
    if woken == "by the same worker":
        await handle.signal("approved", "yes")
        assert await harness.finish(handle) == "yes"
    else:
        async with next_worker(harness) as other:
            again = other.instance(handle.id)
            await again.signal("approved", "yes")
            assert await other.finish(again) == "yes"
    assert len(await entries(handle, "SIGNAL_RECEIVED")) == 1


async def test_a_history_in_which_a_cancelled_wait_took_a_signal_is_replayed_as_it_was(harness: Harness) -> None:
    @harness.workflow("approval")
    async def workflow(ctx: Context) -> Any:
        asked: Any = ctx.wait_for_signal("approved")
        rest: Any = ctx.sleep("a while", 60)
        await asyncio.wait({asked, rest}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        return await ctx.wait_for_signal("approved")

    handle = await harness.start("approval")
    await harness.advance(minutes=2)
    execution = Execution._forget_cancelled
    Execution._forget_cancelled = lambda _: None  # type: ignore[method-assign]  # as it was
    try:
        async with next_worker(harness) as old:
            await old.instance(handle.id).signal("approved", "lost")
            await old.run_until_idle()
            assert (await old.instance(handle.id).status()).status == "waiting"
            Execution._forget_cancelled = execution  # type: ignore[method-assign]
            async with next_worker(old) as new:
                again = new.instance(handle.id)
                await again.signal("approved", "yes")
                assert await new.finish(again) == "yes"
    finally:
        Execution._forget_cancelled = execution  # type: ignore[method-assign]


@pytest.mark.parametrize("asleep", [False, True])
async def test_a_signal_after_the_deadline_is_late_and_stays_for_the_next_wait(harness: Harness, asleep: bool) -> None:
    @harness.workflow("approval")
    async def workflow(ctx: Context) -> list[Any]:
        first = await ctx.wait_for_signal("approved", timeout=60)
        return [first, await ctx.wait_for_signal("approved", timeout=60)]

    handle = await harness.start("approval")
    await harness.run_until_idle()
    if asleep:
        harness.clock.move(timedelta(days=2))  # and no worker looks
    else:
        await harness.advance(days=2)
        handle = await harness.start("approval")
        await harness.run_until_idle()
        await harness.advance(seconds=61)
    await handle.signal("approved", "late")
    assert await harness.finish(handle) == [None, "late"]


async def test_a_signal_in_time_is_taken_however_late_a_worker_looks(harness: Harness) -> None:
    @harness.workflow("approval")
    async def workflow(ctx: Context) -> Any:
        return await ctx.wait_for_signal("approved", timeout=60)

    handle = await harness.start("approval")
    await harness.run_until_idle()
    harness.clock.move(timedelta(seconds=60))
    await handle.signal("approved", "just in time")
    harness.clock.move(timedelta(days=2))
    assert await harness.finish(handle) == "just in time"


@pytest.mark.parametrize("order", ["timer", "signal"])
async def test_what_happened_first_is_taken_first_whoever_was_asleep(harness: Harness, order: str) -> None:
    @harness.workflow("race")
    async def workflow(ctx: Context) -> str:
        timer: Any = ctx.sleep("timer", 60)
        signal: Any = ctx.wait_for_signal("go")
        await asyncio.wait({timer, signal}, return_when=asyncio.FIRST_COMPLETED)
        first = "timer" if timer.done() else "signal"
        await asyncio.wait({timer, signal})
        return first

    handle = await harness.start("race")
    await harness.run_until_idle()
    if order == "signal":
        await handle.signal("go", 1)
    harness.clock.move(timedelta(minutes=5))
    if order == "timer":
        await handle.signal("go", 1)
    assert await harness.finish(handle) == order


async def test_of_signals_of_two_names_the_one_that_was_sent_first_is_taken_first(harness: Harness) -> None:
    @harness.workflow("race")
    async def race(ctx: Context) -> list[str]:
        taken: list[str] = []

        async def waits(name: str) -> None:
            await ctx.wait_for_signal(name)
            taken.append(name)

        await asyncio.gather(waits("paid"), waits("refused"))
        return taken

    handle = await harness.start("race")
    await harness.run_until_idle()
    await handle.signal("refused")
    harness.clock.move(timedelta(seconds=1))
    await handle.signal("paid")
    await harness.run_until_idle()
    assert await handle.result(0) == ["refused", "paid"]


@pytest.mark.parametrize("first", ["child", "signal"])
async def test_of_a_signal_and_a_childs_end_the_one_that_came_first_is_taken_first(
    harness: Harness, first: str
) -> None:
    @harness.workflow("little one")
    async def little(ctx: Context) -> None:
        await ctx.sleep("rest", 10)

    @harness.workflow("race")
    async def race(ctx: Context) -> list[str]:
        taken: list[str] = []

        async def waits(name: str, answer: Any) -> None:
            await answer
            taken.append(name)

        await asyncio.gather(waits("child", ctx.child("it", "little one")), waits("signal", ctx.wait_for_signal("go")))
        return taken

    handle = await harness.start("race")
    await harness.run_until_idle()
    await handle.pause("let both come", actor="ann")
    await harness.run_until_idle()
    if first == "child":
        await harness.advance(seconds=20)
        await handle.signal("go")
    else:
        await handle.signal("go")
        await harness.advance(seconds=20)
    await handle.resume("now", actor="ann")
    await harness.run_until_idle()
    assert await handle.result(0) == [first, *({"child", "signal"} - {first})]
