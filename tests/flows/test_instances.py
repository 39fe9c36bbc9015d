"""Starting, finding, listing; tenants kept apart; a history whose tampering shows."""

import asyncio
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Backlogged,
    BadInput,
    BusinessKeyTaken,
    Context,
    Holdfast,
    HoldfastError,
    InstanceFailed,
    InstanceNotFound,
    ResultNotReady,
)
from holdfast.testing import EPOCH, Harness
from holdfast.worker.turns import UnderClaim
from tests.flows.support import row_counts, tamper


def declare(app: Holdfast) -> None:
    @app.workflow("wait")
    async def wait(ctx: Context, given: Any) -> Any:
        return await ctx.wait_for_signal("go", timeout=timedelta(days=1))

    @app.workflow("echo")
    async def echo(ctx: Context, given: Any) -> Any:
        return await ctx.step("echo", lambda x: x, given)


async def test_the_same_business_key_and_input_start_one_instance(harness: Harness) -> None:
    declare(harness)
    first = await harness.start("echo", {"id": 1, "x": 2}, business_key="o-1")
    again = await harness.start("echo", {"x": 2, "id": 1}, business_key="o-1")
    await harness.run_until_idle()
    later = await harness.start("echo", {"id": 1, "x": 2}, business_key="o-1")
    assert first.id == again.id == later.id
    assert (await first.status()).business_key == "o-1"
    assert row_counts(harness.url)["instances"] == 1


async def test_a_business_key_with_another_input_is_refused_and_names_the_instance(harness: Harness) -> None:
    declare(harness)
    first = await harness.start("echo", {"id": 1}, business_key="o-1")
    with pytest.raises(BusinessKeyTaken) as caught:
        await harness.start("echo", {"id": 2}, business_key="o-1")
    assert caught.value.instance_id == first.id
    assert row_counts(harness.url)["instances"] == 1


async def test_a_business_key_belongs_to_one_workflow_of_one_tenant(harness: Harness) -> None:
    declare(harness)
    handles = [
        await harness.start("echo", 1, business_key="o-1"),
        await harness.start("wait", 2, business_key="o-1"),
        await harness.start("echo", 3, business_key="o-1", tenant="acme"),
        await harness.start("echo", 4),
        await harness.start("echo", 4),
    ]
    assert len({handle.id for handle in handles}) == 5


async def test_many_starts_at_once_with_one_business_key_make_one_instance(harness: Harness) -> None:
    declare(harness)
    handles = await asyncio.gather(*(harness.start("echo", 1, business_key="o-1") for _ in range(20)))
    assert len({handle.id for handle in handles}) == 1
    assert row_counts(harness.url)["instances"] == 1


async def test_start_many_starts_each_input_and_shares_business_keys(harness: Harness) -> None:
    declare(harness)
    handles = await harness.start_many("echo", range(50), business_keys=[f"k-{n % 25}" for n in range(25)] * 2 and None)
    await harness.run_until_idle()
    assert [await handle.result(timeout=0) for handle in handles] == list(range(50))
    keyed = await harness.start_many("echo", [1, 1, 2], business_keys=["a", "a", "b"])
    assert (keyed[0].id == keyed[1].id, keyed[1].id == keyed[2].id) == (True, False)
    with pytest.raises(BadInput, match="3 inputs but 1 business keys"):
        await harness.start_many("echo", [1, 2, 3], business_keys=["a"])


async def test_an_instance_may_be_started_for_later(harness: Harness) -> None:
    declare(harness)
    handle = await harness.start("echo", 1, start_at=EPOCH + timedelta(hours=1))
    await harness.advance(minutes=59)
    assert (await handle.status()).status == "pending"
    await harness.advance(minutes=1)
    assert await handle.result(timeout=0) == 1


async def test_tenants_see_nothing_of_each_other(harness: Harness) -> None:
    declare(harness)
    handle = await harness.start("wait", {"secret": 1}, tenant="acme")
    await harness.run_until_idle()
    stranger = harness.tenant("globex")
    assert await stranger.instances() == []
    assert await harness.instances() == []
    other = stranger.instance(handle.id)
    for ask in (other.status, other.history, other.cancel, lambda: other.signal("go"), lambda: other.result(0)):
        with pytest.raises(InstanceNotFound, match="in tenant 'globex'"):
            await ask()
    assert row_counts(harness.url)["events"] == 0
    assert (await handle.status()).status == "waiting"


async def test_unbound_means_the_default_tenant(harness: Harness) -> None:
    declare(harness)
    handle = await harness.start("echo", 1)
    assert handle.tenant_id == "default"
    assert (await harness.tenant("default").instance(handle.id).status()).id == handle.id
    assert [view.id for view in await harness.tenant("default").instances()] == [handle.id]


def test_a_tenant_id_that_is_none_is_refused() -> None:
    for tenant in ("", " ", "a b", "ä", "*", "-x", "x" * 64, "a\x00", "a\n", None, 7):
        with pytest.raises(BadInput, match="is not a tenant id"):
            Holdfast("sqlite:///not-opened.db").tenant(tenant)  # type: ignore[arg-type]


async def test_lists_come_newest_first_by_status_and_in_pages(harness: Harness) -> None:
    declare(harness)
    waiting = [await harness.start("wait", n) for n in range(5)]
    done = [await harness.start("echo", n) for n in range(3)]
    await harness.run_until_idle()
    pending = await harness.start("echo", 9, start_at=EPOCH + timedelta(days=9))
    everything = [h.id for h in (*waiting, *done, pending)][::-1]
    assert [view.id for view in await harness.instances()] == everything
    assert [view.id for view in await harness.instances(status="waiting")] == [h.id for h in waiting][::-1]
    assert [view.id for view in await harness.instances(status="completed")] == [h.id for h in done][::-1]
    assert [view.id for view in await harness.instances(status="pending")] == [pending.id]
    assert await harness.instances(status="failed") == []
    seen: list[str] = []
    page = await harness.instances(limit=4)
    while page:
        seen += [view.id for view in page]
        page = await harness.instances(limit=4, before=page[-1].id)
    assert seen == everything
    second = await harness.instances(status="waiting", limit=2, before=waiting[3].id)
    assert [view.id for view in second] == [waiting[2].id, waiting[1].id]


async def test_a_list_that_makes_no_sense_is_refused(harness: Harness) -> None:
    odd: list[dict[str, Any]] = [{"limit": 0}, {"limit": -1}, {"limit": 1001}, {"status": "x"}, {"before": "x"}]
    for options in odd:
        with pytest.raises(BadInput, match="expected"):
            await harness.instances(**options)


async def test_the_status_tells_what_it_is_and_how_it_stands(harness: Harness) -> None:
    declare(harness)
    handle = await harness.start("echo", {"a": 1}, business_key="k", trace_id="t-1")
    before = await handle.status()
    assert (before.status, before.started_at, before.completed_at) == ("pending", None, None)
    harness.clock.move(timedelta(seconds=5))
    await harness.run_until_idle()
    view = await handle.status()
    assert (view.id, view.tenant_id, view.kind, view.workflow, view.version) == (
        handle.id, "default", "code", "echo", 1,
    )  # fmt: skip
    assert (view.status, view.input, view.result, view.error) == ("completed", {"a": 1}, {"a": 1}, None)
    assert view.started_at is not None and view.started_at - view.created_at == timedelta(seconds=5)
    assert view.completed_at == view.started_at


async def test_a_result_that_is_not_there_yet_is_said_to_be_so(harness: Harness) -> None:
    declare(harness)
    handle = await harness.start("wait")
    with pytest.raises(ResultNotReady, match="is still pending"):
        await handle.result(timeout=0)
    await harness.run_until_idle()
    with pytest.raises(ResultNotReady, match="is still waiting on signal 'go'"):
        await handle.result(timeout=0.01)


async def test_a_caller_who_waits_for_the_result_is_told_when_it_is_there(harness: Harness) -> None:
    declare(harness)
    handle = await harness.start("echo", 5)
    waiting = asyncio.create_task(handle.result(timeout=100))
    await asyncio.sleep(0)
    await harness.run_until_idle()
    assert await waiting == 5


@pytest.mark.parametrize("own_worker", [False, True])
async def test_a_result_that_no_clock_will_bring_is_refused_with_what_it_waits_for(
    harness: Harness, own_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.testing.STILL_SECONDS", 0.2)

    @harness.workflow("tries")
    async def tries(ctx: Context, given: dict[str, Any]) -> Any:
        return await ctx.step("price", lambda order: order["amuont"], given)

    handle = await harness.start("tries", {"amount": 5})
    await harness.run_until_idle()
    async with harness.worker() if own_worker else nullcontext():
        with pytest.raises(ResultNotReady, match=r"attempt 2 of step 'price'.*clock stands still") as refused:
            await asyncio.wait_for(handle.result(), 30)
    assert "test.finish(handle)" in str(refused.value)
    with pytest.raises(InstanceFailed, match="KeyError: 'amuont'"):
        await harness.finish(handle)


async def test_a_result_is_waited_for_while_another_task_of_the_test_moves_the_clock_or_a_handler_runs(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.testing.STILL_SECONDS", 0.3)

    async def slow() -> str:
        await asyncio.sleep(1)
        return "done"

    @harness.workflow("slow")
    async def slow_one(ctx: Context, given: None) -> Any:
        await ctx.sleep("rest", timedelta(hours=8))
        return await ctx.step("slow", slow)

    handle = await harness.start("slow", None)
    waiting = asyncio.create_task(handle.result())
    for _ in range(8):
        await asyncio.sleep(0.1)
        await harness.advance(hours=1)
    assert await asyncio.wait_for(waiting, 30) == "done"


async def test_a_worker_in_the_background_runs_what_is_started(url: str) -> None:
    app = Holdfast(url)
    declare(app)
    async with app:
        async with app.worker(concurrency=10):
            handles = await app.start_many("echo", range(30))
            assert [await handle.result(timeout=100) for handle in handles] == list(range(30))
            waiting = await app.start("wait")
            await waiting.signal("go", "now")
            assert await waiting.result(timeout=100) == "now"
            assert [view.state for view in await app.workers()] == ["live"]
        assert [view.state for view in await app.workers()] == ["stopped"]


async def test_a_start_beyond_the_backlog_is_refused_and_nothing_is_dropped(url: str) -> None:
    app = Holdfast(url, backlog_limit=3)
    declare(app)
    async with app:
        for n in range(3):
            await app.start("echo", n)
        with pytest.raises(Backlogged, match="the limit is 3"):
            await app.start("echo", 9)
        assert row_counts(url)["instances"] == 3


async def test_a_holdfast_that_is_not_open_says_so(url: str) -> None:
    app = Holdfast(url)
    declare(app)
    for call in (lambda: app.start("echo"), lambda: app.instances(), app.workers, app.verify):
        with pytest.raises(HoldfastError, match="the store is not open"):
            await call()


async def test_every_history_that_nobody_touched_is_whole(harness: Harness) -> None:
    declare(harness)
    for n in range(5):
        await harness.start("echo", n)
        await harness.start("wait", n, tenant="acme")
    await harness.advance(days=2)
    verdict = await harness.verify()
    assert (verdict.instances, verdict.faults) == (10, [])
    assert verdict.rows == row_counts(harness.url)["history"]


async def test_a_step_effect_or_undo_that_is_answered_twice_in_an_epoch_is_the_first_bad_row(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of our own, made up: some answers are written twice, in a chain that is whole."""
    seal = UnderClaim.seal_turn

    def twice(self: UnderClaim, entries: list[tuple[str, str, bytes]]) -> Any:
        times = [
            2
            if (name == "twice" and "STARTED" not in type_) or (name, type_) == ("undone", "COMPENSATION_COMPLETED")
            else 1
            for type_, name, _ in entries
        ]
        return seal(self, [entry for entry, count in zip(entries, times, strict=True) for _ in range(count)])

    @harness.workflow("undoes")
    async def undoes(ctx: Context) -> None:
        await ctx.step("undone", int, compensate=lambda: None)
        raise ValueError("no more")

    @harness.workflow("steps")
    async def steps(ctx: Context, given: list[str]) -> None:
        await ctx.step("a", int)
        for kind in given:
            await getattr(ctx, kind)("twice", int)
        if ctx.epoch == 0:
            ctx.restart(given)

    plain = await harness.start("steps", [])
    await harness.run_until_idle()
    monkeypatch.setattr(UnderClaim, "seal_turn", twice)
    step, effect = await harness.start("steps", ["step"]), await harness.start("steps", ["effect"])
    undo = await harness.start("undoes")
    await harness.run_until_idle()
    faults = {fault.instance_id: fault for fault in (await harness.verify()).faults}
    assert plain.id not in faults, "each epoch may answer it once"
    for handle in (step, effect, undo):
        name, skipped = ("undone", "STEP") if handle is undo else ("twice", "STARTED")
        first, second, *_ = [e for e in await handle.history() if e.name == name and skipped not in e.type]
        words = f"{name!r} is answered twice: row {first.seq} has its first answer"
        assert (faults[handle.id].seq, faults[handle.id].fault) == (second.seq, words)


EDITS = [
    ("update holdfast.history set name = 'other' where seq = 2", 2),
    ("update holdfast.history set type = 'STEP_FAILED' where seq = 2", 2),
    ("update holdfast.history set fence = fence + 1 where seq = 3", 3),
    ("update holdfast.history set at = at + 1 where seq = 1", 1),
    ("update holdfast.history set payload = x'7b7d' where seq = 2", 2),
    ("update holdfast.history set payload = null, salt = null where seq = 2", 2),
    ("update holdfast.history set salt = x'00112233445566778899aabbccddeeff' where seq = 3", 3),
    ("delete from holdfast.history where seq = 1", 1),
    ("delete from holdfast.history where seq = 2", 2),
    ("delete from holdfast.history where seq = 3", 3),
    ("update holdfast.instances set hash = x'00' where true", 3),
    ("update holdfast.instances set input = x'32' where true", 1),
    ("update holdfast.instances set epoch_seq = 2 where true", 1),
    ("update holdfast.instances set epoch = 1 where true", 1),
]


async def test_tampering_shows_and_the_first_bad_row_is_named(harness: Harness) -> None:
    declare(harness)
    handles = [await harness.start("echo", 1) for _ in (*EDITS, "untouched")]
    await harness.run_until_idle()
    assert {len(await handle.history()) for handle in handles} == {3}
    for handle, (statement, _) in zip(handles, EDITS, strict=False):
        column = "id" if "instances" in statement else "instance_id"
        tamper(harness.url, f"{statement} and {column} = x'{handle.id.removeprefix('ins_')}'")
    verdict = await harness.verify()
    expected = {handle.id: seq for handle, (_, seq) in zip(handles, EDITS, strict=False)}
    assert {fault.instance_id: fault.seq for fault in verdict.faults} == expected
    assert len(verdict.faults) == len(EDITS)


async def test_swapped_rows_show(harness: Harness) -> None:
    declare(harness)
    handle = await harness.start("echo", 1)
    await harness.run_until_idle()
    tamper(
        harness.url,
        "update holdfast.history set seq = 99 where seq = 2",
        "update holdfast.history set seq = 2 where seq = 3",
        "update holdfast.history set seq = 3 where seq = 99",
    )
    assert [fault.seq for fault in (await harness.verify()).faults] == [2]
    assert [fault.instance_id for fault in (await harness.verify()).faults] == [handle.id]


async def test_a_history_moved_to_another_tenant_or_instance_shows(harness: Harness) -> None:
    declare(harness)
    await harness.start("echo", 1)
    await harness.run_until_idle()
    for table, column in (("instances", "tenant_id"), ("history", "tenant_id")):
        tamper(harness.url, f"update holdfast.{table} set {column} = 'acme'")
    assert [(fault.tenant_id, fault.seq) for fault in (await harness.verify()).faults] == [("acme", 1)]
