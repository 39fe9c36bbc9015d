"""What a person may do with an instance as a whole: pause it, have it try again, fork it, ask why it does not move."""

import asyncio
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    BadInput,
    Context,
    EventInLine,
    ForkRefused,
    Handle,
    Holdfast,
    InstanceEnded,
    InstanceNotFound,
    Rejected,
    StepInfo,
    effect,
)
from holdfast.app import control
from holdfast.engine import ids
from holdfast.engine.stacks import shown_path
from holdfast.testing import EPOCH, FakeProvider, Harness
from holdfast.worker.execution import Execution
from holdfast.worker.turns import UnderClaim
from tests.flows.support import Gate, entries, lose_worker, next_worker, query, types, until
from tests.support.auditor import assert_sound
from tests.support.patience import PATIENCE_SECONDS

HOUR = timedelta(hours=1)


class Runs(list[str]):
    """What ran, in order; a name may be made to fail, or to wait until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, int] = {}
        self.gates: dict[str, asyncio.Event] = {}

    async def do(self, name: str) -> str:
        self.append(name)
        if name in self.gates:
            await self.gates[name].wait()
        if self.failures.get(name, 0) > 0:
            self.failures[name] -= 1
            raise ConnectionError(f"{name} is down")
        return name

    async def undo(self, name: str) -> None:
        await self.do(f"undo {name}")


@pytest.fixture
def runs() -> Runs:
    return Runs()


def declare(app: Holdfast, runs: Runs) -> None:
    @app.workflow("walk")
    async def walk(ctx: Context, given: Any) -> list[Any]:
        first = await ctx.step("first", runs.do, "first")
        said = await ctx.wait_for_signal("go", timeout=timedelta(days=1))
        second = await ctx.step("second", runs.do, "second", backoff=HOUR)
        await ctx.sleep("rest", HOUR)
        return [first, said, second, await ctx.step("third", runs.do, "third")]


async def view(handle: Handle) -> tuple[str, str | None, int | None]:
    found = await handle.status()
    return found.status, found.waiting_on, found.run_at


# -- pause and resume

PAUSED = ("waiting", "paused by ann: audit; resume it to go on", None)


async def test_a_paused_instance_takes_nothing_until_it_is_resumed(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    handle = await harness.start("walk")
    await harness.run_until_idle()
    await handle.pause("audit", actor="ann")
    await harness.run_until_idle()
    assert await view(handle) == PAUSED
    await handle.signal("go", "now")
    await harness.advance(days=3)  # the wait for the signal is long over
    assert await view(handle) == PAUSED
    assert runs == ["first"]
    [paused] = await entries(handle, "INSTANCE_PAUSED")
    assert paused.payload == {"reason": "audit", "actor": "ann"}
    assert_sound(harness.url)
    await handle.resume("done", actor="bob")
    await harness.advance(hours=2)
    assert await handle.result(0) == ["first", "now", "second", "third"]
    assert_sound(harness.url)


async def test_a_pause_before_the_first_turn_lets_nothing_begin(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)

    @harness.workflow("parent")
    async def parent(ctx: Context) -> Any:
        return await ctx.child("kid", "walk")

    handles = [await harness.start(name) for name in ("walk", "parent")]
    for handle in handles:
        await handle.pause()
    await harness.advance(days=1)
    for handle in handles:
        assert (await handle.status()).waiting_on == "paused by somebody; resume it to go on"
        assert (await types(handle))[:2] == ["INSTANCE_STARTED", "INSTANCE_PAUSED"]
    assert runs == []
    assert len(await harness.instances()) == 2
    assert_sound(harness.url)


async def test_what_runs_is_settled_and_nothing_follows_it(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    runs.gates["first"] = asyncio.Event()
    handle = await harness.start("walk")
    await until(lambda: runs == ["first"], harness)
    await handle.pause("audit", actor="ann")
    await until(lambda: "INSTANCE_PAUSED" in query_types(harness, handle), harness)
    assert (await handle.status()).status == "running"
    runs.gates["first"].set()
    await harness.run_until_idle()
    assert await view(handle) == PAUSED
    assert (await handle.status()).steps == {"first": "first"}
    assert "WAIT_STARTED" not in await types(handle)
    assert_sound(harness.url)


def query_types(harness: Harness, handle: Handle) -> list[str]:
    return [row[0] for row in query(harness.url, "select type from holdfast.history order by seq")]


async def test_an_effect_under_way_is_recorded_and_no_other_begins(harness: Harness, provider: FakeProvider) -> None:
    gate = asyncio.Event()

    async def pay(info: StepInfo) -> Any:
        await gate.wait()
        return provider.call(info.idempotency_key)

    @harness.workflow("pay")
    async def pays(ctx: Context) -> str:
        await ctx.effect("one", pay)
        await ctx.effect("two", pay)
        return "paid"

    handle = await harness.start("pay")
    await until(lambda: "EFFECT_STARTED" in query_types(harness, handle), harness)
    await handle.pause("audit", actor="ann")
    await until(lambda: "INSTANCE_PAUSED" in query_types(harness, handle), harness)
    gate.set()
    await harness.run_until_idle()
    assert await view(handle) == PAUSED
    assert len(provider.calls) == 1
    await handle.resume()
    await harness.run_until_idle()
    assert await handle.result(0) == "paid"
    assert len(provider.calls) == 2
    assert_sound(harness.url, provider_calls=provider.calls)


async def test_timers_and_retries_do_not_fire_while_paused(harness: Harness, runs: Runs) -> None:
    runs.failures["flaky"] = 1

    @harness.workflow("two")
    async def two(ctx: Context) -> list[Any]:
        async def other() -> str:
            await ctx.sleep("nap", HOUR)
            return await ctx.step("after", runs.do, "after")

        return list(await asyncio.gather(ctx.step("flaky", runs.do, "flaky", backoff=HOUR), other()))

    handle = await harness.start("two")
    await harness.run_until_idle()
    await handle.pause("audit", actor="ann")
    await harness.advance(days=1)
    assert runs == ["flaky"]
    assert "TIMER_FIRED" not in await types(handle)
    await handle.resume()
    await harness.run_until_idle()
    assert await handle.result(0) == ["flaky", "after"]
    assert_sound(harness.url)


async def test_a_pause_survives_the_worker_and_an_effect_it_lost_is_put_on_the_desk(
    harness: Harness, provider: FakeProvider
) -> None:
    """What may have happened is not left as if it were under way, though nobody may look at anything else."""
    never = asyncio.Event()

    async def pay() -> None:
        await never.wait()

    @harness.workflow("pay")
    async def pays(ctx: Context) -> str:
        await ctx.effect("pay", pay)
        return "paid"

    handle = await harness.start("pay")
    await until(lambda: "EFFECT_STARTED" in query_types(harness, handle), harness)
    await handle.pause("audit", actor="ann")
    await until(lambda: "INSTANCE_PAUSED" in query_types(harness, handle), harness)
    async with next_worker(harness) as test:
        await test.run_until_idle()
        handle = test.instance(handle.id)
        assert await view(handle) == PAUSED
        [effect] = await test.effects.list()
        assert_sound(test.url)
        await test.effects.resolve(effect.id, "happened", actor="bob", reason="seen")
        await test.run_until_idle()
        assert "EFFECT_RESOLVED" not in await types(handle)  # kept in line
        assert await view(handle) == PAUSED
        await handle.resume()
        await test.run_until_idle()
        assert await handle.result(0) == "paid"
        assert_sound(test.url)


async def test_a_step_that_was_lost_with_its_worker_runs_again_only_after_the_pause(
    harness: Harness, runs: Runs
) -> None:
    @harness.workflow("saga")
    async def saga(ctx: Context) -> str:
        return await ctx.step("book", runs.do, "book", compensate=runs.undo)

    runs.gates["book"] = asyncio.Event()
    handle = await harness.start("saga")
    await until(lambda: runs == ["book"], harness)
    del runs.gates["book"]
    await handle.pause("audit", actor="ann")
    async with next_worker(harness) as test:
        await test.run_until_idle()
        handle = test.instance(handle.id)
        assert await view(handle) == PAUSED
        assert runs == ["book"]
        await handle.resume()
        await test.run_until_idle()
        assert await handle.result(0) == "book"
        assert runs == ["book", "book"]
        assert_sound(test.url)


async def test_a_child_that_ends_while_its_parent_is_paused_is_kept_in_line(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)

    @harness.workflow("parent")
    async def parent(ctx: Context) -> Any:
        return await ctx.child("kid", "walk")

    handle = await harness.start("parent")
    await harness.run_until_idle()
    await handle.pause("audit", actor="ann")
    await harness.run_until_idle()
    [child] = [one for one in await harness.instances() if one.workflow == "walk"]
    await harness.instance(child.id).signal("go")
    await harness.advance(hours=2)
    assert (await harness.instance(child.id).status()).status == "completed"
    assert await view(handle) == PAUSED
    await handle.resume()
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"
    assert_sound(harness.url)


async def test_pausing_twice_is_on_record_and_the_first_word_stands(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    handle = await harness.start("walk")
    await harness.run_until_idle()
    await handle.pause("audit", actor="ann")
    await harness.run_until_idle()
    await handle.pause("me too", actor="bob")
    await harness.run_until_idle()
    assert [e.payload["actor"] for e in await entries(handle, "INSTANCE_PAUSED")] == ["ann", "bob"]
    assert await view(handle) == PAUSED
    await handle.resume()
    await harness.run_until_idle()
    assert (await handle.status()).waiting_on == "signal 'go' until 2026-01-02T09:00:00Z"


async def test_words_in_line_are_taken_in_the_order_they_were_said(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    handle = await harness.start("walk")
    await handle.pause("one", actor="ann")
    await handle.resume("two", actor="ann")
    await handle.pause("audit", actor="ann")
    await handle.signal("go")
    await harness.run_until_idle()
    assert await types(handle) == ["INSTANCE_STARTED", "INSTANCE_PAUSED", "INSTANCE_RESUMED", "INSTANCE_PAUSED"]
    assert await view(handle) == PAUSED


async def test_cancel_lifts_a_pause_and_undoes(harness: Harness, runs: Runs) -> None:
    @harness.workflow("saga")
    async def saga(ctx: Context) -> None:
        await ctx.step("book", runs.do, "book", compensate=lambda: runs.append("undo"))
        await ctx.wait_for_signal("go")

    handle = await harness.start("saga")
    await harness.run_until_idle()
    await handle.pause("audit", actor="ann")
    await harness.run_until_idle()
    await handle.cancel("enough", actor="bob")
    await harness.run_until_idle()
    assert (await handle.status()).status == "cancelled"
    assert runs == ["book", "undo"]
    assert_sound(harness.url)


async def test_a_compensation_may_be_paused_too(harness: Harness, runs: Runs) -> None:
    runs.failures["undo two"] = 1

    @harness.workflow("saga")
    async def saga(ctx: Context) -> None:
        for name in ("one", "two"):
            await ctx.step(name, runs.do, name, compensate=runs.undo, backoff=HOUR)
        await ctx.wait_for_signal("go")

    handle = await harness.start("saga")
    await harness.run_until_idle()
    await handle.cancel("enough", actor="bob")
    await harness.run_until_idle()
    await handle.pause("audit", actor="ann")
    await harness.advance(days=1)
    assert await view(handle) == ("compensating", *PAUSED[1:])
    assert runs == ["one", "two", "undo two"]
    assert_sound(harness.url)
    await handle.resume()
    await harness.run_until_idle()
    assert runs[3:] == ["undo two", "undo one"]
    assert (await handle.status()).compensation == "complete"
    assert_sound(harness.url)


async def test_a_paused_body_that_is_done_ends_only_when_resumed(harness: Harness, runs: Runs) -> None:
    runs.gates["only"] = asyncio.Event()

    @harness.workflow("short")
    async def short(ctx: Context) -> str:
        return await ctx.step("only", runs.do, "only")

    handle = await harness.start("short")
    await until(lambda: runs == ["only"], harness)
    await handle.pause("audit", actor="ann")
    await until(lambda: "INSTANCE_PAUSED" in query_types(harness, handle), harness)
    runs.gates["only"].set()
    await harness.run_until_idle()
    assert await view(handle) == PAUSED
    await handle.resume()
    await harness.run_until_idle()
    assert await handle.result(0) == "only"
    assert runs == ["only"]


async def test_a_strict_send_to_a_paused_instance_is_told_at_once(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    handle = await harness.start("walk")
    await harness.run_until_idle()
    await handle.pause("audit", actor="ann")
    await harness.run_until_idle()
    with pytest.raises(EventInLine, match="paused by ann: audit; resume it to go on"):
        await handle.send("go", "now", strict=True, timeout=3600)
    await harness.run_until_idle()
    await handle.resume()
    # The resume is in line already: whoever sends now waits for the turn that comes.
    sending = asyncio.create_task(handle.send("other", strict=True, timeout=0.0))
    with pytest.raises(Exception, match="no worker has taken it"):
        await sending
    await harness.advance(hours=2)
    assert (await handle.result(0))[1] == "now"


async def test_words_that_cannot_be_kept_are_refused(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    handle = await harness.start("walk")
    for words in ({"reason": "a\x00b"}, {"actor": "x" * 201}, {"reason": 5}):
        with pytest.raises(BadInput):
            await handle.pause(**words)  # type: ignore[arg-type]
    with pytest.raises(InstanceNotFound):
        await harness.instance("ins_" + "0" * 32).pause()


async def test_an_ended_instance_cannot_be_paused(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    handle = await harness.start("walk")
    await handle.cancel()
    await harness.run_until_idle()
    with pytest.raises(InstanceEnded, match="cannot be paused"):
        await handle.pause()


# -- retry


async def test_a_retry_cuts_the_back_off_short(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    runs.failures["second"] = 2
    handle = await harness.start("walk")
    await handle.signal("go")
    await harness.run_until_idle()
    for attempts in (2, 3):
        same = await handle.retry("the network is back", actor="ann")
        assert same.id == handle.id
        await harness.run_until_idle()
        assert runs.count("second") == attempts
    assert [e.payload["due"] for e in await entries(handle, "INSTANCE_RETRIED")] == [["second"], ["second"]]
    await harness.run_until_idle()
    assert (await handle.status()).waiting_on == "timer 'rest' until 2026-01-01T10:00:00Z"
    await handle.retry()
    await harness.run_until_idle()
    assert (await handle.status()).waiting_on == "timer 'rest' until 2026-01-01T10:00:00Z"  # a timer is no back-off
    assert_sound(harness.url)


async def test_a_retry_is_not_forgotten_when_the_worker_is(harness: Harness, runs: Runs) -> None:
    """The cut is on record: the next worker does not wait for the old time."""
    declare(harness, runs)
    runs.failures["second"] = 1
    handle = await harness.start("walk")
    await handle.signal("go")
    await harness.run_until_idle()
    runs.gates["second"] = asyncio.Event()
    await handle.retry()
    await until(lambda: runs.count("second") == 2, harness)
    del runs.gates["second"]
    async with next_worker(harness) as test:
        await test.run_until_idle()
        assert runs.count("second") == 3
        assert (await test.instance(handle.id).status()).steps["second"] == "second"
        assert_sound(test.url)


async def test_a_retry_of_a_paused_instance_waits_for_its_resume(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    runs.failures["second"] = 1
    handle = await harness.start("walk")
    await handle.signal("go")
    await harness.run_until_idle()
    await handle.pause("audit", actor="ann")
    await handle.retry()
    await harness.run_until_idle()
    assert await view(handle) == PAUSED
    assert runs.count("second") == 1
    await handle.resume()
    await harness.run_until_idle()
    assert runs.count("second") == 2
    assert_sound(harness.url)


async def test_a_retry_tries_a_compensation_again(harness: Harness, runs: Runs) -> None:
    runs.failures["undo book"] = 1

    @harness.workflow("saga")
    async def saga(ctx: Context) -> None:
        await ctx.step("book", runs.do, "book", compensate=runs.undo, backoff=HOUR)
        await ctx.wait_for_signal("go")

    handle = await harness.start("saga")
    await harness.run_until_idle()
    await handle.cancel("enough")
    await harness.run_until_idle()
    assert runs == ["book", "undo book"]
    await handle.retry()
    await harness.run_until_idle()
    assert runs == ["book", "undo book", "undo book"]
    assert (await handle.status()).compensation == "complete"
    assert [e.payload["undo"] for e in await entries(handle, "INSTANCE_RETRIED")] == ["book"]
    assert_sound(harness.url)


@pytest.mark.parametrize("mode", ["manual", "keyed", "lookup"])
async def test_a_retry_never_starts_an_effect_of_unknown_outcome(
    harness: Harness, provider: FakeProvider, mode: str
) -> None:
    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    lookup: dict[str, Any] = {"lookup": lambda key: (_ for _ in ()).throw(OSError("down"))} if mode == "lookup" else {}

    @harness.workflow("pay")
    async def pays(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode=mode, backoff=HOUR, thread=False, **lookup)  # type: ignore[arg-type]

    provider.plan("timeout_after")
    handle = await harness.start("pay")
    await harness.run_until_idle()
    assert len(provider.calls) == 1
    await handle.retry(actor="ann")
    await harness.run_until_idle()
    assert len(provider.calls) == 1
    assert [e.payload["due"] for e in await entries(handle, "INSTANCE_RETRIED")] == [[]]
    assert_sound(harness.url, provider_calls=provider.calls)


async def test_a_retry_starts_an_effect_that_is_known_not_to_have_happened(
    harness: Harness, provider: FakeProvider
) -> None:
    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    @harness.workflow("pay")
    async def pays(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, backoff=HOUR, thread=False)

    provider.plan("not_applied")
    handle = await harness.start("pay")
    await harness.run_until_idle()
    await handle.retry()
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"
    assert len(provider.calls) == 2 and len(provider.deeds) == 1
    assert_sound(harness.url, provider_calls=provider.calls)


async def test_a_retry_has_a_parked_instance_looked_at_again(url: str) -> None:
    def app(amount: int) -> Holdfast:
        hf = Holdfast("sqlite:///unused.db")

        @hf.workflow("order")
        async def order(ctx: Context) -> int:
            found: int = await ctx.step("price", lambda n: n, amount, thread=False)
            await ctx.sleep("nap", HOUR)
            return found

        return hf

    async with Harness(app(1), url=url) as test:
        id_ = (await test.start("order")).id
        await test.run_until_idle()
    async with Harness(app(2), url=url, clock=test.clock) as test:
        await test.advance(hours=2)
        assert "contradicts" in await test.instance(id_).why()
        await test.instance(id_).retry()
        await test.run_until_idle()
        assert (await types(test.instance(id_)))[-2:] == ["INSTANCE_RETRIED", "INSTANCE_PARKED"]
    async with Harness(app(1), url=url, clock=test.clock) as test:
        await test.instance(id_).retry()
        await test.run_until_idle()
        assert await test.instance(id_).result(0) == 1


async def test_a_completed_instance_is_not_tried_again(harness: Harness) -> None:
    @harness.workflow("nothing")
    async def nothing(ctx: Context) -> None: ...

    handle = await harness.start("nothing")
    await harness.run_until_idle()
    with pytest.raises(InstanceEnded, match="is completed: it cannot be tried again"):
        await handle.retry()


# -- forks


def declare_order(app: Holdfast, runs: Runs, provider: FakeProvider) -> None:
    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    @app.workflow("kid")
    async def kid(ctx: Context, given: Any) -> Any:
        return await ctx.step("inner", runs.do, "inner")

    @app.workflow("order")
    async def order(ctx: Context, given: Any) -> dict[str, Any]:
        token, now = str(ctx.uuid()), ctx.now().isoformat()
        await ctx.step("check", runs.do, "check")
        await ctx.effect("pay", pay, thread=False)
        said = await ctx.wait_for_signal("go")
        await ctx.sleep("rest", HOUR)
        inner = await ctx.child("kid", "kid")
        for _ in range(2):
            await ctx.step("ship", runs.do, "ship", max_attempts=1)
        return {"given": given, "token": token, "now": now, "said": said, "inner": inner}


async def failed_order(harness: Harness, runs: Runs, provider: FakeProvider) -> Handle:
    """All kinds of calls are done; the second `ship` has failed."""
    declare_order(harness, runs, provider)
    handle = await harness.start("order", {"id": 7}, business_key="o-7")
    await handle.signal("go", "yes")
    await harness.run_until_idle()
    await harness.advance(minutes=59)
    runs.failures["ship"] = 0
    real = runs.do

    async def second_fails(name: str) -> str:
        if name == "ship" and runs.count("ship") == 1:
            runs.failures["ship"] = 1
        return await real(name)

    runs.do = second_fails  # type: ignore[method-assign]
    await harness.advance(minutes=2)
    runs.do = real  # type: ignore[method-assign]
    assert (await handle.status()).status == "failed"
    assert runs == ["check", "inner", "ship", "ship"]
    return handle


async def test_a_retry_of_a_failed_instance_goes_on_from_the_step_that_failed(
    harness: Harness, runs: Runs, provider: FakeProvider
) -> None:
    original = await failed_order(harness, runs, provider)
    again = await original.retry("the courier is back", actor="ann")
    assert again.id != original.id
    await harness.run_until_idle()
    view_ = await again.status()
    assert (view_.status, view_.workflow, view_.version, view_.input) == ("completed", "order", 1, {"id": 7})
    assert runs == ["check", "inner", "ship", "ship", "ship"]  # only what had failed ran again
    assert len(provider.calls) == 1
    first = (await again.history())[0]
    words = {"forked_from": original.id, "step": "ship#2", "reason": "the courier is back", "actor": "ann"}
    assert first.payload.items() >= words.items()
    recorded = {e.name: e.payload["result"] for e in await original.history() if e.type == "VALUE_RECORDED"}
    assert (await again.result(0))["token"] == recorded["uuid"]
    assert (await again.result(0))["said"] == "yes"
    assert (await original.retry(actor="bob")).id == again.id  # asked again: the same one
    assert (await harness.verify()).faults == []
    assert_sound(harness.url, provider_calls=provider.calls)


async def test_a_retry_whose_input_fits_the_code_no_more_is_parked_with_what_it_owes(harness: Harness) -> None:
    seen: list[str] = []

    @dataclass
    class Order:
        id: int
        currency: str

    async def ship() -> None:
        raise OSError("no courier")

    async def order(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", lambda: seen.append("reserved"), compensate=undo, max_attempts=1)
        await ctx.step("ship", ship, max_attempts=1)

    def undo() -> None:
        seen.append("undone")
        if len(seen) == 2:
            raise OSError("it cannot be undone today")

    async def changed(ctx: Context, given: Order) -> None:
        await order(ctx, given)

    harness.workflow("order")(order)
    original = await harness.start("order", {"id": 7})
    await harness.run_until_idle()
    await harness.advance(minutes=5)
    assert (await original.status()).compensation == "partial"
    app = Holdfast("sqlite:///unused.db")
    app.workflow("order")(changed)
    async with next_worker(harness, app=app) as other:
        again = await other.instance(original.id).retry("the courier is back", actor="ann")
        await other.run_until_idle()
        view = await again.status()
        assert view.status == "waiting" and "Object missing required field `currency`" in str(view.waiting_on)
        mended = Holdfast("sqlite:///unused.db")
        mended.workflow("order")(order)
        async with next_worker(other, app=mended) as last:
            await last.instance(again.id).resume("the old code is back", actor="ann")
            await last.advance(minutes=5)
            assert (await last.instance(again.id).status()).compensation == "complete"
    assert seen.count("reserved") == 1 and seen[-1] == "undone"
    assert_sound(harness.url)


async def test_a_fork_takes_over_what_a_compensation_failed_to_undo_and_owes_its_undo(harness: Harness) -> None:
    calls: list[str] = []
    broken = [True]

    def undo(result: str) -> None:
        calls.append(f"undo {result}")
        if broken:
            raise Rejected("the bank does not refund")

    def ship() -> None:
        calls.append("ship")
        raise OSError("no courier")

    @harness.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.effect("pay", lambda: calls.append("pay") or "paid", compensate=undo, max_attempts=1)
        await ctx.step("ship", ship, max_attempts=1)

    original = await harness.start("order")
    await harness.advance(minutes=1)
    assert (await original.status()).compensation == "partial"
    broken.clear()
    fork = await original.fork(reason="the courier is back", actor="ann")
    await harness.advance(minutes=1)
    assert calls == ["pay", "ship", "undo paid", "ship", "undo paid"]
    assert (await fork.status()).compensation == "complete"
    with pytest.raises(ForkRefused, match="'pay', which would be taken over as done, was undone"):
        await fork.fork()


async def test_a_fork_from_a_step_runs_that_step_and_what_follows_afresh(
    harness: Harness, runs: Runs, provider: FakeProvider
) -> None:
    original = await failed_order(harness, runs, provider)
    fork = await original.fork("kid", reason="once more", actor="ann")
    await harness.run_until_idle()
    assert (await fork.status()).status == "completed"
    assert runs[4:] == ["inner", "ship", "ship"]
    assert len(await harness.instances(key="kid")) == 2  # a child of its own
    assert len(provider.calls) == 1
    assert_sound(harness.url, provider_calls=provider.calls)


async def test_what_a_child_did_in_an_earlier_epoch_counts_though_it_was_undone_in_a_later_one(
    harness: Harness,
) -> None:
    @harness.workflow("kid")
    async def kid(ctx: Context, epoch: int) -> None:
        undo: Any = {"compensate": effect(lambda: None, mode="keyed")} if epoch else {}
        await ctx.effect("pay", lambda: "paid", **undo)
        if epoch == 0:
            ctx.restart(1)
        raise RuntimeError("sold out")

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.child("kid", "kid", 0)

    handle = await harness.start("order")
    await harness.run_until_idle()
    with pytest.raises(ForkRefused, match=r"'kid/pay'.*actor"):
        await handle.retry("once more")


async def test_an_effect_is_done_again_only_by_a_named_person_and_under_a_new_key(
    harness: Harness, runs: Runs, provider: FakeProvider
) -> None:
    original = await failed_order(harness, runs, provider)
    with pytest.raises(ForkRefused, match=r"'pay'.*actor"):
        await original.fork("pay")
    fork = await original.fork("pay", actor="ann", reason="the first one was returned")
    await harness.run_until_idle()
    assert len(set(provider.calls)) == len(provider.calls) == 2
    assert (await fork.status()).waiting_on == "signal 'go'"  # a signal is not taken over from after the point
    assert_sound(harness.url, provider_calls=provider.calls)


async def test_the_same_id_gives_the_same_fork(harness: Harness, runs: Runs, provider: FakeProvider) -> None:
    original = await failed_order(harness, runs, provider)
    first = await original.fork("ship#2", id="req-1")
    again = await original.fork("ship#2", id="req-1", reason="asked again")
    other = await original.fork("ship#2", id="req-2")
    anonymous = await original.fork("ship#2")
    assert first.id == again.id
    assert len({first.id, other.id, anonymous.id, original.id}) == 4
    with pytest.raises(BadInput, match="names another fork"):
        await original.fork("ship", id="req-1")
    await harness.run_until_idle()
    assert (await original.fork("ship#2", id="req-1")).id == first.id
    for fork in (first, other, anonymous):
        assert (await fork.status()).status == "completed"
    assert_sound(harness.url, provider_calls=provider.calls)


async def test_a_fork_may_have_a_business_key_of_its_own(harness: Harness, runs: Runs, provider: FakeProvider) -> None:
    original = await failed_order(harness, runs, provider)
    fork = await original.fork("ship#2", business_key="o-7-again")
    assert (await fork.status()).business_key == "o-7-again"
    assert (await original.fork("ship#2", business_key="o-7-again")).id == fork.id
    with pytest.raises(ForkRefused, match="business key 'o-7' belongs to"):
        await original.fork("ship#2", business_key="o-7")


async def test_a_fork_of_a_fork_goes_on_from_what_both_have_done(
    harness: Harness, runs: Runs, provider: FakeProvider
) -> None:
    original = await failed_order(harness, runs, provider)
    runs.failures["ship"] = 1
    second = await original.retry()
    await harness.run_until_idle()
    assert (await second.status()).status == "failed"
    third = await second.retry()
    await harness.run_until_idle()
    assert (await third.status()).status == "completed"
    assert runs.count("check") == 1
    assert_sound(harness.url, provider_calls=provider.calls)


async def test_a_fork_is_refused_with_what_to_do_instead(harness: Harness, runs: Runs, provider: FakeProvider) -> None:
    declare_order(harness, runs, provider)
    handle = await harness.start("order", 1)
    await harness.run_until_idle()
    with pytest.raises(ForkRefused, match="it is waiting: wait for its end, or cancel it"):
        await handle.fork("pay", actor="ann")
    await handle.cancel()
    await harness.run_until_idle()
    with pytest.raises(ForkRefused, match="'nowhere' is not in its history: name one of 'check', 'pay', 'go'"):
        await handle.fork("nowhere")
    with pytest.raises(InstanceNotFound):
        await harness.tenant("acme").instance(handle.id).fork()


async def test_a_cancelled_instance_goes_on_from_where_it_was_cancelled(
    harness: Harness, runs: Runs, provider: FakeProvider
) -> None:
    declare_order(harness, runs, provider)
    handle = await harness.start("order", 1)
    await harness.run_until_idle()
    await handle.cancel("a mistake")
    await harness.run_until_idle()
    again = await handle.retry(actor="ann")
    await harness.run_until_idle()
    assert (await again.status()).waiting_on == "signal 'go'"
    await again.signal("go")
    await harness.advance(hours=2)
    assert (await again.status()).status == "completed"
    assert runs.count("check") == 1 and len(provider.calls) == 1
    assert_sound(harness.url, provider_calls=provider.calls)


def declare_saga(app: Holdfast, runs: Runs) -> None:
    @app.workflow("saga")
    async def saga(ctx: Context, given: Any) -> str:
        await ctx.step("look", runs.do, "look")
        await ctx.step("book", runs.do, "book", compensate=lambda: runs.append("undo book"))
        await ctx.step("ship", runs.do, "ship", max_attempts=1, compensate=lambda: runs.append("undo ship"))
        await ctx.step("mail", runs.do, "mail", max_attempts=1)
        return "done"


async def test_what_was_undone_is_not_taken_over_as_done(harness: Harness, runs: Runs) -> None:
    declare_saga(harness, runs)
    runs.failures["ship"] = 1
    handle = await harness.start("saga")
    await harness.run_until_idle()
    assert runs[-1] == "undo book"
    with pytest.raises(ForkRefused, match=r"'book'.*was undone.*fork from 'book' or from a step before it"):
        await handle.retry()
    fork = await handle.fork("book")
    await harness.run_until_idle()
    assert (await fork.status()).status == "completed"
    assert runs.count("look") == 1 and runs.count("book") == 2
    assert_sound(harness.url)


async def test_a_fork_of_a_completed_instance_does_not_undo_what_it_took_over(harness: Harness, runs: Runs) -> None:
    declare_saga(harness, runs)
    handle = await harness.start("saga")
    await harness.run_until_idle()
    assert await handle.result(0) == "done"
    del runs[:]
    runs.failures["mail"] = 1
    fork = await handle.fork("ship")
    await harness.run_until_idle()
    assert (await fork.status()).status == "failed"
    assert runs == ["ship", "mail", "undo ship"]  # `book` is the original's, which completed
    assert (await fork.status()).compensation == "complete"
    again = await fork.fork("ship")  # and not the grandchild's either
    runs.failures["mail"] = 1
    del runs[:]
    await harness.run_until_idle()
    assert runs == ["ship", "mail", "undo ship"]
    assert (await again.history())[0].payload["settled"] == 3
    assert_sound(harness.url)


async def test_a_compensation_that_nobody_ran_is_inherited(
    harness: Harness, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that an earlier version buried has undone nothing; its fork owes what it took over."""
    monkeypatch.setattr(Execution, "bury", UnderClaim.bury)
    declare_saga(harness, runs)
    runs.gates["ship"] = asyncio.Event()
    handle = await harness.start("saga")
    await until(lambda: "ship" in runs, harness)
    await lose_worker(harness)
    async with Harness(harness, url=harness.url, clock=harness.clock) as test:
        assert test.test_worker is not None
        for worker_id, _, _ in await test.service.store.fetch("unfenced_workers", worker_id=test.test_worker.id):
            await test.service.store.release_worker(worker_id, test.test_worker.id, stopped=False)
        test.test_worker.attempts_limit = 0
        await test.run_until_idle()
        assert (await test.instance(handle.id).status()).status == "failed"
        test.test_worker.attempts_limit = 5
        del runs.gates["ship"]
        del runs[:]
        runs.failures["mail"] = 1
        fork = await test.instance(handle.id).fork("ship")
        await test.run_until_idle()
        assert (await fork.status()).status == "failed"
        assert runs == ["ship", "mail", "undo ship", "undo book"]
        assert_sound(test.url)


async def test_an_effect_of_unknown_outcome_is_not_forgotten_by_a_fork(
    harness: Harness, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version buried what it belonged to."""
    monkeypatch.setattr(Execution, "bury", UnderClaim.bury)
    never = asyncio.Event()

    async def pay() -> None:
        await never.wait()

    async def fine() -> str:
        return "fine"

    @harness.workflow("both")
    async def both(ctx: Context, given: Any) -> Any:
        async def other() -> None:
            await ctx.step("a", fine)
            await ctx.step("b", fine)

        await asyncio.gather(ctx.effect("pay", pay), other())

    handle = await harness.start("both")
    await until(lambda: query_types(harness, handle).count("STEP_COMPLETED") == 2, harness)
    await lose_worker(harness)
    async with Harness(harness, url=harness.url, clock=harness.clock) as test:
        assert test.test_worker is not None
        for worker_id, _, _ in await test.service.store.fetch("unfenced_workers", worker_id=test.test_worker.id):
            await test.service.store.release_worker(worker_id, test.test_worker.id, stopped=False)
        test.test_worker.attempts_limit = 0
        await test.run_until_idle()
        with pytest.raises(ForkRefused, match="nobody knows the outcome of effect 'pay'"):
            await test.instance(handle.id).fork("b", actor="ann")
        with pytest.raises(ForkRefused, match="actor"):
            await test.instance(handle.id).fork("pay")


async def test_a_fork_of_a_child_is_nobodys_child(harness: Harness, runs: Runs) -> None:
    @harness.workflow("kid")
    async def kid(ctx: Context, given: Any) -> str:
        return await ctx.step("inner", runs.do, "inner", max_attempts=1)

    @harness.workflow("parent")
    async def parent(ctx: Context) -> Any:
        return await ctx.child("kid", "kid")

    runs.failures["inner"] = 1
    await harness.start("parent")
    await harness.run_until_idle()
    [child] = await harness.instances(key="kid")
    fork = await harness.instance(child.id).retry()
    await harness.run_until_idle()
    assert (await fork.status()).parent_id is None
    assert (await fork.status()).status == "completed"
    assert_sound(harness.url)


async def test_a_paused_fork_has_taken_its_past_over_and_does_nothing(
    harness: Harness, runs: Runs, provider: FakeProvider
) -> None:
    original = await failed_order(harness, runs, provider)
    fork = await original.retry()
    await fork.pause("audit", actor="ann")
    await harness.run_until_idle()
    assert await view(fork) == PAUSED
    assert runs.count("ship") == 2
    await fork.resume()
    await harness.run_until_idle()
    assert (await fork.status()).status == "completed"
    assert_sound(harness.url, provider_calls=provider.calls)


# -- why


async def test_why_names_what_it_waits_for(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    runs.failures["second"] = 1
    handle = await harness.start("walk")
    assert "It has been due since 2026-01-01T09:00:00Z, and is the next in queue 'default'" in await handle.why()
    await harness.run_until_idle()
    assert await handle.why() == "It waits for the signal 'go', at the latest until 2026-01-02T09:00:00Z."
    await handle.signal("go")
    await harness.run_until_idle()
    assert await handle.why() == (
        "It waits for attempt 2 of 3 of step 'second' at 2026-01-01T10:00:00Z, after ConnectionError: second is down, "
        f"at {shown_path(__file__)}:{Runs.do.__code__.co_firstlineno + 6} in Runs.do (a retry begins it "
        "at once)."
    )
    await handle.retry()
    await harness.run_until_idle()
    assert await handle.why() == "It waits for the timer 'rest' at 2026-01-01T10:00:00Z."
    await handle.pause("audit", actor="ann")
    await harness.run_until_idle()
    assert await handle.why() == "It is paused by ann: audit; resume it to go on."
    await handle.resume()
    assert "is the next in queue" in await handle.why()
    await harness.advance(hours=2)
    assert await handle.why() == "It has completed: nothing moves it any more."


async def test_why_of_an_end_a_child_and_an_unknown_effect(harness: Harness, provider: FakeProvider) -> None:
    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    @harness.workflow("pay")
    async def pays(ctx: Context, given: Any) -> Any:
        return await ctx.effect("pay", pay, thread=False)

    @harness.workflow("parent")
    async def parent(ctx: Context) -> Any:
        return await ctx.child("kid", "pay")

    provider.plan("timeout_after")
    handle = await harness.start("parent")
    await harness.run_until_idle()
    [kid] = await harness.instances(key="pay")
    assert await handle.why() == f"It waits for child 'kid' ({kid.id}, waiting) to end."
    assert await harness.instance(kid.id).why() == (
        "It waits for a person to say at the effect desk what became of effect 'pay', unknown since "
        "2026-01-01T09:00:00Z."
    )
    [effect] = await harness.effects.list()
    await harness.effects.resolve(effect.id, "abort", actor="ann", reason="gone")
    await harness.run_until_idle()
    assert (await harness.instance(kid.id).why()).startswith("It failed (step 'pay' failed after 1 attempt(s): Aborted")


async def test_why_nobody_claims_it(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    later = await harness.start("walk", start_at=EPOCH + HOUR)
    first = await harness.start("walk")
    assert await later.why() == "It is to start at 2026-01-01T10:00:00Z: the time moves it."
    harness.clock.move(timedelta(seconds=1))
    second = await harness.start("walk")
    assert "queue 'default' has 1 before it" in await second.why()
    worker, harness.service.workers[:] = harness.service.workers[:], []
    assert "no living worker has workflow 'walk' version 1: start a worker that has" in await first.why()
    harness.service.workers[:] = worker
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        mine, other.service.workers[:] = other.service.workers[:], []  # it registered with the workflow
        async with asyncio.timeout(PATIENCE_SECONDS):  # on PostgreSQL it lives once its heartbeat has its lock
            while "no living worker" in (said := await other.instance(first.id).why()):
                await asyncio.sleep(0.01)
        assert "is the next in queue" in said
        other.service.workers[:] = mine


async def test_why_a_worker_holds_it_and_why_nothing_moves_in_quarantine(harness: Harness, runs: Runs) -> None:
    declare(harness, runs)
    runs.gates["first"] = asyncio.Event()
    handle = await harness.start("walk")
    await until(lambda: runs == ["first"], harness)
    said = await handle.why()
    assert said.startswith("Worker wrk_") and "has held it since 2026-01-01T09:00:00Z and is at work on it:" in said
    harness.clock.move(timedelta(minutes=90))
    said = await handle.why()
    assert "is at work on it, without an answer for 1:30:00 (since 2026-01-01T09:00:00Z): it moves" in said
    runs.gates["first"].set()
    await harness.run_until_idle()
    query(
        harness.url,
        "insert into holdfast.installation (tenant_id, quarantined_at, changed_at, changed_by)"
        " values ('*', 1767258000000000, 1, 'ann')"
        " on conflict (tenant_id) do update set quarantined_at = excluded.quarantined_at",
    )
    assert (await handle.why()).startswith("The database has been in quarantine since 2026-01-01T09:00:00Z")


def test_blocking_callers_have_the_same_words(url: str) -> None:
    hf = Holdfast(url)

    @hf.workflow("wait")
    async def wait(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    with hf.sync as sync:
        handle = sync.start("wait")
        handle.pause("audit", actor="ann")
        assert handle.retry().id == handle.id
        assert "no worker is alive" in handle.why()
        with pytest.raises(ForkRefused, match="it is pending"):
            handle.fork("go")


async def test_a_cancel_that_lost_against_the_last_turn_is_told_so(harness: Harness) -> None:
    gate = Gate(harness)

    @harness.workflow("quick")
    async def quick(ctx: Context) -> str:
        return "done"

    handle = await harness.start("quick")
    gate.opened.clear()
    await until(lambda: gate.held, harness)
    await handle.cancel("not wanted", actor="ann")  # taken down while the last turn is on its way
    gate.opened.set()
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"
    assert "The cancel of ann at" in await handle.why() and "it did nothing" in await handle.why()
    with pytest.raises(InstanceEnded):
        await handle.cancel()


@pytest.mark.parametrize("ends", ["completed", "failed"])
async def test_every_word_that_lost_against_the_last_turn_is_told_so(harness: Harness, ends: str) -> None:
    gate = Gate(harness)

    @harness.workflow("quick")
    async def quick(ctx: Context) -> None:
        if ends == "failed":
            raise ValueError("no more")

    handle = await harness.start("quick")
    gate.opened.clear()
    await until(lambda: gate.held, harness)
    await handle.pause("audit", actor="ann")
    await handle.resume("no audit", actor="bo")
    await handle.retry("once more", actor="cy")
    await handle.cancel("enough", actor="di")
    gate.opened.set()
    await harness.run_until_idle()
    assert (await handle.status()).status == ends
    told = await handle.why()
    assert told.startswith("It has completed: " if ends == "completed" else "It failed (ValueError: no more, at ")
    for word in ("pause of ann", "resume of bo", "retry of cy", "cancel of di"):
        assert re.search(f"The {word} at [^ ]+ was still in line when it ended, so it did nothing", told)


@pytest.mark.parametrize("way", ["retry", "fork", "bulk"])
async def test_what_a_child_has_done_is_not_done_again_without_a_person(harness: Harness, way: str) -> None:
    """Also not two levels down, and in a chart between: a fork starts the child once more, with all below it."""
    provider = FakeProvider()
    broken = [True]

    def ship() -> None:
        if broken:
            raise ValueError("down")

    @harness.workflow("kid")
    async def kid(ctx: Context, given: Any) -> Any:
        await ctx.effect("pay", pay)
        await ctx.step("ship", ship, max_attempts=1)

    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.child("middle", "middle")

    invoke = {"src": {"workflow": "kid"}, "onDone": "done"}
    await harness.publish(
        {"id": "middle", "initial": "a", "states": {"a": {"invoke": invoke}, "done": {"type": "final"}}}
    )
    handle = await harness.start("order")
    await harness.run_until_idle()
    assert (await handle.status()).status == "failed" and len(provider.calls) == 1
    broken.clear()
    with pytest.raises(ForkRefused, match=r"'middle/pay'.*done once more"):
        if way == "bulk":
            await control.retry(
                harness.service, "default", ids.parse("ins", handle.id), reason="x", actor="ann", again=False
            )
        else:
            await (handle.retry() if way == "retry" else handle.fork("middle"))
    await harness.run_until_idle()
    assert len(provider.calls) == 1
    again = await handle.retry("the first one was returned", actor="ann")
    await harness.run_until_idle()
    assert (await again.status()).status == "completed" and len(provider.calls) == 2


async def test_what_a_child_has_undone_may_be_done_again_by_anybody(harness: Harness) -> None:
    provider = FakeProvider()
    broken = [True]

    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    def ship() -> None:
        if broken:
            raise ValueError("down")

    @harness.workflow("kid")
    async def kid(ctx: Context, given: Any) -> Any:
        await ctx.effect("pay", pay, compensate=lambda: None)
        await ctx.step("ship", ship, max_attempts=1)

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> Any:
        await ctx.child("kid", "kid")

    handle = await harness.start("order")
    await harness.run_until_idle()
    broken.clear()
    again = await handle.retry()
    await harness.run_until_idle()
    assert (await again.status()).status == "completed" and len(provider.calls) == 2
