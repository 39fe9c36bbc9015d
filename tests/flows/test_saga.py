"""Compensation, cancelling and children: what was started is settled, then undone in reverse."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from holdfast import ChildFailed, Context, InstanceEnded, InstanceFailed, StepInfo
from holdfast.testing import Harness
from tests.flows.support import Gate, entries, next_worker, query, types, until
from tests.support.patience import PATIENCE_SECONDS


async def test_what_was_done_is_undone_in_reverse_start_order_with_its_own_results(harness: Harness) -> None:
    undone: list[Any] = []

    def release(hold: dict[str, Any]) -> None:
        undone.append(("release", hold))

    async def refund(payment: str, info: StepInfo) -> None:
        undone.append(("refund", payment, info.step, info.attempt))

    def unbook(info: StepInfo) -> None:
        undone.append(("unbook", info.result))

    def fails() -> None:
        raise RuntimeError("sold out")

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> None:
        await ctx.step("reserve", lambda: {"id": 1}, compensate=release)
        await ctx.effect("pay", lambda: "p-1", compensate=refund)
        await ctx.step("book", lambda: 3, compensate=unbook)
        await ctx.step("no undo", lambda: 4)
        await ctx.step("ship", fails, max_attempts=1, compensate=lambda: undone.append("never"))

    handle = await harness.start("saga")
    with pytest.raises(InstanceFailed, match="sold out"):
        await harness.finish(handle)
    assert undone == [("unbook", 3), ("refund", "p-1", "pay", 1), ("release", {"id": 1})]
    view = await handle.status()
    assert (view.status, view.compensation) == ("failed", "complete")
    assert [e.name for e in await entries(handle, "COMPENSATION_COMPLETED")] == ["book", "pay", "reserve"]


async def test_one_compensation_that_fails_is_recorded_and_the_others_still_run(harness: Harness) -> None:
    undone: list[str] = []

    def broken() -> None:
        undone.append("b tried")
        raise ValueError("cannot")

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> None:
        await ctx.step("a", lambda: 1, compensate=lambda: undone.append("a"))
        await ctx.step("b", lambda: 2, compensate=broken, max_attempts=2)
        await ctx.step("c", lambda: 3, compensate=lambda: undone.append("c"))
        raise RuntimeError("stop")

    handle = await harness.start("saga")
    await harness.advance(hours=1)
    assert undone == ["c", "b tried", "b tried", "a"]
    view = await handle.status()
    assert (view.status, view.compensation) == ("failed", "partial")
    assert view.error["message"] == "stop"
    [failed] = await entries(handle, "COMPENSATION_FAILED")
    assert (failed.name, failed.payload["error"]["message"]) == ("b", "cannot")


async def test_an_error_the_workflow_handles_itself_undoes_nothing(harness: Harness) -> None:
    undone: list[str] = []

    def fails() -> None:
        raise RuntimeError

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> str:
        await ctx.step("a", lambda: 1, compensate=lambda: undone.append("a"))
        try:
            await ctx.step("b", fails, max_attempts=1)
        except Exception:
            return "handled"
        return ""

    handle = await harness.start("saga")
    assert await harness.finish(handle) == "handled"
    assert undone == []
    assert (await handle.status()).compensation is None


async def test_undoing_survives_a_lost_worker_and_runs_each_compensation_once(harness: Harness) -> None:
    undone: list[str] = []
    tries: list[int] = []

    def flaky(info: StepInfo) -> None:
        tries.append(info.attempt)
        if len(tries) < 3:
            raise OSError("not yet")
        undone.append("b")

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> None:
        await ctx.step("a", lambda: 1, compensate=lambda: undone.append("a"))
        await ctx.step("b", lambda: 2, compensate=flaky, backoff=timedelta(minutes=1))
        await ctx.step("c", lambda: 3, compensate=lambda: undone.append("c"))
        raise RuntimeError("stop")

    handle = await harness.start("saga")
    await harness.run_until_idle()
    assert (undone, (await handle.status()).status) == (["c"], "compensating")
    async with next_worker(harness) as other:
        await other.advance(hours=1)
        assert undone == ["c", "b", "a"]
        assert tries == [1, 2, 3]
        assert (await other.instance(handle.id).status()).compensation == "complete"


async def test_a_step_under_way_when_the_instance_fails_is_settled_and_then_undone(harness: Harness) -> None:
    undone: list[str] = []
    release = asyncio.Event()

    async def slow() -> str:
        await release.wait()
        return "slow"

    def fails() -> None:
        raise RuntimeError("no")

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step("slow", slow, compensate=lambda r: undone.append(r)), ctx.step("fails", fails, max_attempts=1)
        )

    handle = await harness.start("saga")
    await until(lambda: query(harness.url, "select 1 from holdfast.history where type = 'INSTANCE_FAILING'"), harness)
    assert undone == []
    release.set()
    await harness.run_until_idle()
    assert undone == ["slow"]
    assert (await handle.status()).compensation == "complete"


async def test_a_step_that_waits_for_its_next_attempt_is_let_go_when_the_instance_fails(harness: Harness) -> None:
    undone: list[str] = []
    tries: list[int] = []

    def fails() -> None:
        raise OSError

    def stops() -> None:
        raise RuntimeError("stop")

    def flaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("again")
        undone.append("first")

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> None:
        await ctx.step("first", lambda: 1, compensate=flaky, backoff=timedelta(minutes=1))
        await asyncio.gather(
            ctx.step("fails", fails, compensate=lambda: undone.append("fails"), backoff=timedelta(hours=5)),
            ctx.step("stops", stops, max_attempts=1),
        )

    handle = await harness.start("saga")
    await harness.advance(hours=1)
    assert (await handle.status()).status == "failed"
    assert undone == ["first"]


async def test_a_body_that_was_closed_asks_for_nothing_more_whatever_its_open_steps_answer(harness: Harness) -> None:
    gate = threading.Event()
    undo: list[str] = []

    def flaky() -> None:
        undo.append("try")
        if len(undo) == 1:
            raise OSError("again")

    @harness.workflow("late child")
    async def late_child(ctx: Context) -> None:
        await ctx.sleep("long", timedelta(days=30))

    @harness.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.step("first", lambda: 1, compensate=flaky, backoff=timedelta(minutes=1))
        await ctx.step("slow", gate.wait, 30)  # a thread: it cannot be stopped, and ends after the cancel
        await ctx.sleep("after", 1)
        await ctx.child("child", "late child")

    @harness.workflow("parent of a child")
    async def parent_of_child(ctx: Context) -> None:
        await ctx.step("first", lambda: 1, compensate=flaky, backoff=timedelta(minutes=1))
        await ctx.step("slow", gate.wait, 30)
        await ctx.child("child", "late child")

    worker = harness.test_worker
    assert worker is not None
    for name in ("parent", "parent of a child"):
        gate.clear()
        undo.clear()
        handle = await harness.start(name)
        await until(lambda: any(e.threads for e in worker.executions.values()), harness)
        await handle.cancel("enough")
        await until(lambda: any(e.undo and not e.committing for e in worker.executions.values()), harness)
        gate.set()
        await harness.advance(minutes=10)
        assert (await handle.status()).status == "cancelled"
        assert undo == ["try", "try"]
        seen = await types(handle)
        ending = seen.index("INSTANCE_CANCELLING")
        assert not {"TIMER_STARTED", "CHILD_STARTED"} & set(seen[ending:]), seen
    assert query(harness.url, "select count(*) from holdfast.instances where definition_key = 'late child'") == [(0,)]


@pytest.mark.parametrize("wait", ["not begun", "sleep", "signal", "retry", "child", "step", "two at once"])
async def test_an_instance_can_be_cancelled_whatever_it_waits_for(harness: Harness, wait: str) -> None:
    never = asyncio.Event()
    undone: list[str] = []

    async def hang() -> None:
        await never.wait()

    def fails() -> None:
        raise OSError

    @harness.workflow("long")
    async def long(ctx: Context) -> None:
        await ctx.step("in child", lambda: 1, compensate=lambda: undone.append("in child"))
        await ctx.sleep("long", timedelta(days=30))

    @harness.workflow("waiting")
    async def workflow(ctx: Context) -> None:
        await ctx.step("first", lambda: 1, compensate=lambda: undone.append("first"))
        match wait:
            case "sleep":
                await ctx.sleep("nap", timedelta(days=30))
            case "signal":
                await ctx.wait_for_signal("go")
            case "retry":
                await ctx.step("fails", fails, backoff=timedelta(days=1))
            case "child":
                await ctx.child("child", "long")
            case "step":
                await ctx.step("hang", hang)
            case "two at once":
                await asyncio.gather(ctx.sleep("nap", 99), ctx.wait_for_signal("go"))

    handle = await harness.start("waiting")
    worker = harness.test_worker
    assert worker is not None
    if wait == "step":
        await until(lambda: any(any(e.running.values()) for e in worker.executions.values()), harness)
    elif wait != "not begun":
        await harness.run_until_idle()
    await handle.cancel("customer withdrew", actor="ann")
    if wait == "not begun":
        await harness.run_until_idle()
    else:
        await harness.advance(minutes=1)
    view = await handle.status()
    assert view.status == "cancelled"
    assert view.error["message"] == "customer withdrew"
    assert undone == {"not begun": [], "child": ["in child", "first"]}.get(wait, ["first"])
    with pytest.raises(InstanceFailed, match="cancelled: customer withdrew"):
        await handle.result(timeout=0)
    await harness.advance(days=60)
    assert (await handle.status()).status == "cancelled"


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a running step"])
async def test_a_step_that_waits_for_its_next_attempt_does_not_hold_up_a_cancel(harness: Harness, beside: bool) -> None:
    calls: list[str] = []
    undone: list[str] = []
    release = asyncio.Event()

    def fails() -> None:
        calls.append("fails")
        raise OSError

    async def slow() -> None:
        await release.wait()

    @harness.workflow("waiting")
    async def workflow(ctx: Context) -> None:
        await ctx.step("first", lambda: 1, compensate=lambda: undone.append("first"))
        waits = ctx.step("fails", fails, compensate=lambda: undone.append("fails"), backoff=timedelta(hours=1))
        if beside:
            await asyncio.gather(waits, ctx.step("slow", slow))
        await waits

    handle = await harness.start("waiting")
    if beside:
        await until(lambda: query(harness.url, "select 1 from holdfast.history where type = 'STEP_RETRIED'"), harness)
    else:
        await harness.run_until_idle()
    await handle.cancel("enough")
    worker = harness.test_worker
    assert worker is not None
    if beside:
        await until(lambda: all(e.undo for e in worker.executions.values()), harness)
    release.set()
    await harness.advance(minutes=1)
    assert (await handle.status()).status == "cancelled"
    assert (calls, undone) == (["fails"], ["first"])


@pytest.mark.parametrize("ends", ["is cancelled", "fails"])
async def test_a_step_whose_next_attempt_was_not_due_when_the_undoing_began_is_never_taken_up(
    harness: Harness, ends: str
) -> None:
    calls: list[str] = []
    undone: list[int] = []

    def sold_out() -> None:
        calls.append("sold out")
        raise OSError

    def release(info: StepInfo) -> None:
        undone.append(info.attempt)
        if info.attempt == 1:
            raise OSError

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> None:
        await ctx.step("first", lambda: 1, compensate=release, backoff=timedelta(hours=2))
        waits = ctx.step("sold out", sold_out, compensate=lambda: calls.append("undone"), backoff=timedelta(hours=1))
        if ends == "fails":
            await ctx.sleep("a minute", 60)
            raise RuntimeError("stop")
        await waits

    handle = await harness.start("saga")
    await harness.advance(minutes=2)
    if ends == "is cancelled":
        await handle.cancel("enough")
    await harness.run_until_idle()
    assert undone == [1]
    await harness.advance(hours=1.5)  # the step would be due, and the compensation is not
    await handle.signal("anything")  # it is claimed, and read from its history
    await harness.advance(hours=6)
    assert (calls, undone) == (["sold out"], [1, 2])
    assert (await handle.status()).status in ("cancelled", "failed")


async def test_a_cancel_that_arrives_just_as_a_step_is_started_is_carried_out(harness: Harness) -> None:
    undone: list[str] = []
    go = threading.Event()

    def first() -> bool:
        return go.wait(PATIENCE_SECONDS)

    async def hang() -> None:
        await asyncio.Event().wait()

    @harness.workflow("waiting")
    async def workflow(ctx: Context) -> None:
        await ctx.step("first", first, compensate=lambda: undone.append("first"))
        await ctx.step("hang", hang)

    worker = harness.test_worker
    assert worker is not None
    gate = Gate(harness)
    handle = await harness.start("waiting")
    await until(lambda: any(e.running for e in worker.executions.values()), harness)
    [execution] = worker.executions.values()
    gate.opened.clear()
    go.set()  # not before the gate is closed: its commit must be held
    await until(lambda: execution.committing and gate.held, harness)  # "first" is done, "hang" starts after the commit
    await handle.cancel("enough")
    await until(lambda: execution.events, harness)
    gate.opened.set()
    await until(lambda: not worker.executions, harness)
    assert (await handle.status()).status == "cancelled"
    assert undone == ["first"]


async def test_who_cancelled_and_why_is_in_the_history(harness: Harness) -> None:
    @harness.workflow("waiting")
    async def workflow(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    handle = await harness.start("waiting")
    await harness.run_until_idle()
    await handle.cancel("customer withdrew", actor="ann")
    await harness.run_until_idle()
    [entry] = await entries(handle, "INSTANCE_CANCELLING")
    assert (entry.payload["error"]["message"], entry.payload["error"]["actor"]) == ("customer withdrew", "ann")


async def test_a_second_cancel_changes_nothing_and_an_ended_instance_refuses_one(harness: Harness) -> None:
    undone: list[str] = []

    @harness.workflow("waiting")
    async def workflow(ctx: Context) -> None:
        await ctx.step("first", lambda: 1, compensate=lambda: undone.append("first"))
        await ctx.wait_for_signal("go")

    handle = await harness.start("waiting")
    await harness.run_until_idle()
    await handle.cancel("one")
    harness.clock.move(timedelta(seconds=1))
    await handle.cancel("two")
    await harness.run_until_idle()
    assert undone == ["first"]
    assert (await handle.status()).error["message"] == "one"
    with pytest.raises(InstanceEnded, match="is cancelled"):
        await handle.cancel("three")


@pytest.mark.parametrize("first", ["cancel", "complete"])
async def test_cancel_and_complete_race_and_there_is_one_ending(harness: Harness, first: str) -> None:
    @harness.workflow("race")
    async def workflow(ctx: Context) -> str:
        await ctx.wait_for_signal("go")
        return "done"

    handle = await harness.start("race")
    await harness.run_until_idle()
    gate = Gate(harness)
    await handle.signal("go")
    gate.opened.clear()
    await until(lambda: gate.held, harness)  # the turn that completes it is on its way to disk
    if first == "complete":
        gate.opened.set()
        await harness.run_until_idle()
        with pytest.raises(InstanceEnded, match="is completed: it cannot be cancelled any more"):
            await handle.cancel("too late")
    else:
        await handle.cancel("at the last moment")
        gate.opened.set()
        await harness.run_until_idle()
    endings = [t for t in await types(handle) if t in ("INSTANCE_COMPLETED", "INSTANCE_CANCELLED", "INSTANCE_FAILED")]
    assert len(endings) == 1
    assert (await handle.status()).status == endings[0].removeprefix("INSTANCE_").lower()


async def test_a_signal_or_cancel_never_reopens_what_has_ended(harness: Harness) -> None:
    @harness.workflow("quick")
    async def workflow(ctx: Context) -> int:
        return 1

    handle = await harness.start("quick")
    await harness.run_until_idle()
    for ask in (handle.cancel, handle.resume):
        with pytest.raises(InstanceEnded):
            await ask()
    assert query(harness.url, "select count(*) from holdfast.events") == [(0,)]
    assert await handle.result(timeout=0) == 1


async def test_a_child_runs_as_an_instance_of_its_own_and_its_result_comes_back(harness: Harness) -> None:
    @harness.workflow("make-invoice")
    async def invoice(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
        number = await ctx.step("number", lambda: 7)
        return {"order": given["order"], "number": number}

    @harness.workflow("order")
    async def order(ctx: Context) -> Any:
        return await ctx.child("invoice", "make-invoice", {"order": "o-1"})

    handle = await harness.start("order", tenant="acme")
    assert await harness.finish(handle) == {"order": "o-1", "number": 7}
    [child] = [view for view in await harness.instances(tenant="acme") if view.workflow == "make-invoice"]
    assert (child.parent_id, child.status, child.tenant_id) == (handle.id, "completed", "acme")


@pytest.mark.parametrize("how", ["raises", "unknown workflow", "input does not fit", "cancelled"])
async def test_a_child_that_does_not_complete_raises_in_its_parent(harness: Harness, how: str) -> None:
    @harness.workflow("child")
    async def child(ctx: Context, given: int) -> None:
        if how == "raises":
            raise ValueError("no good")
        await ctx.wait_for_signal("never")

    @harness.workflow("parent")
    async def parent(ctx: Context) -> list[str]:
        try:
            name = "nobody" if how == "unknown workflow" else "child"
            await ctx.child("child", name, "text" if how == "input does not fit" else 1)
        except ChildFailed as error:
            return [error.status, str(error.error)]
        return []

    handle = await harness.start("parent")
    await harness.run_until_idle()
    if how == "cancelled":
        [view] = [view for view in await harness.instances() if view.workflow == "child"]
        await harness.instance(view.id).cancel("by hand")
        await harness.run_until_idle()
    status, words = await handle.result(timeout=0)
    assert status == ("cancelled" if how == "cancelled" else "failed")
    expected = {
        "raises": "no good", "unknown workflow": "no workflow 'nobody'", "input does not fit": "does not fit",
        "cancelled": "by hand",
    }  # fmt: skip
    assert expected[how] in words


async def test_cancelling_a_parent_cancels_its_children_first(harness: Harness) -> None:
    order: list[str] = []

    @harness.workflow("child")
    async def child(ctx: Context) -> None:
        await ctx.step("work", lambda: 1, compensate=lambda: order.append("child undone"))
        await ctx.wait_for_signal("never")

    @harness.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.step("work", lambda: 1, compensate=lambda: order.append("parent undone"))
        await asyncio.gather(ctx.child("a", "child"), ctx.child("b", "child"))

    handle = await harness.start("parent")
    await harness.run_until_idle()
    await handle.cancel("stop everything")
    await harness.run_until_idle()
    assert order == ["child undone", "child undone", "parent undone"]
    assert {view.status for view in await harness.instances()} == {"cancelled"}


async def test_a_parent_that_fails_ends_its_children(harness: Harness) -> None:
    def fails() -> None:
        raise RuntimeError("no")

    @harness.workflow("child")
    async def child(ctx: Context) -> None:
        await ctx.wait_for_signal("never")

    @harness.workflow("parent")
    async def parent(ctx: Context) -> None:
        await asyncio.gather(ctx.child("a", "child"), ctx.step("fails", fails, max_attempts=1))

    handle = await harness.start("parent")
    await harness.run_until_idle()
    assert {view.workflow: view.status for view in await harness.instances()} == {
        "parent": "failed",
        "child": "cancelled",
    }
    assert (await handle.status()).error["message"] == "step 'fails' failed after 1 attempt(s): RuntimeError: no"


async def test_a_completed_child_may_be_compensated(harness: Harness) -> None:
    undone: list[Any] = []

    @harness.workflow("child")
    async def child(ctx: Context) -> str:
        return "made"

    @harness.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.child("a", "child", compensate=undone.append)
        raise RuntimeError("no")

    await harness.start("parent")
    await harness.run_until_idle()
    assert undone == ["made"]


async def test_a_finally_block_of_a_workflow_that_is_unwound_writes_nothing(harness: Harness) -> None:
    calls: list[str] = []

    @harness.workflow("tidy")
    async def workflow(ctx: Context) -> None:
        try:
            await ctx.wait_for_signal("go")
        finally:
            await ctx.step("tidy", lambda: calls.append("tidied"))

    handle = await harness.start("tidy")
    await harness.run_until_idle()
    before = await types(handle)
    assert before[-1] == "WAIT_STARTED"
    await handle.cancel()
    await harness.run_until_idle()
    assert calls == []
    assert "STEP_COMPLETED" not in await types(handle)
    assert (await handle.status()).status == "cancelled"


async def test_a_workflow_that_returns_early_ends_when_what_it_started_has_settled(harness: Harness) -> None:
    done: list[str] = []
    release = asyncio.Event()

    async def slow() -> None:
        await release.wait()
        done.append("slow")

    @harness.workflow("eager")
    async def workflow(ctx: Context) -> str:
        ctx.step("slow", slow)
        await ctx.step("quick", lambda: 1)
        return "returned"

    handle = await harness.start("eager")
    await until(lambda: query(harness.url, "select 1 from holdfast.history where name = 'quick'"), harness)
    assert (await handle.status()).status == "running"
    release.set()
    await harness.run_until_idle()
    assert (await handle.result(timeout=0), done) == ("returned", ["slow"])
