"""A history with a hole is not written on: one instance stands still; rows lost by the database hold all of it back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from holdfast import Context, Handle, StepInfo
from holdfast.app import quarantine
from holdfast.engine import ids
from holdfast.testing import FakeProvider, Harness
from tests.flows.support import next_worker, query, tamper, until
from tests.support.auditor import assert_sound


def raw(handle: Handle) -> str:
    return ids.parse("ins", handle.id).hex()


def rows_of(harness: Harness, handle: Handle) -> list[int]:
    return [seq for (seq,) in query(
        harness.url, f"select seq from holdfast.history where instance_id = {of(harness, handle)} order by seq"
    )]  # fmt: skip


def of(harness: Harness, handle: Handle) -> str:
    return f"x'{raw(handle)}'" if harness.url.startswith("sqlite") else f"'\\x{raw(handle)}'"


def lose(harness: Harness, handle: Handle, which: str) -> None:
    tamper(harness.url, f"delete from holdfast.history where instance_id = x'{raw(handle)}' and {which}")


def waits(harness: Harness) -> list[str]:
    done: list[str] = []

    @harness.workflow("waits")
    async def waits(ctx: Context, name: str) -> list[str]:
        await ctx.step("first", note, name)
        await ctx.step("second", note, name)
        await ctx.wait_for_signal("go")
        await ctx.step("third", note, name)
        return [name]

    async def note(name: str) -> None:
        done.append(name)

    return done


async def held(harness: Harness) -> bool:
    return (await quarantine.show(harness.service)).quarantined


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("seq = 3", "row 3 is missing"),
        ("seq = 1", "row 1 is missing"),
        ("seq > 2", "it ends with row 2, but had reached row"),
        ("seq > 0", "row 1 is missing"),
    ],
)
async def test_a_hole_found_by_a_claim_parks_that_one_instance(harness: Harness, harm: str, said: str) -> None:
    done = waits(harness)
    broken, whole = [await harness.start("waits", name) for name in ("broken", "whole")]
    await harness.run_until_idle()
    lose(harness, broken, harm)
    before = rows_of(harness, broken)
    await forget_bodies(harness)
    for handle in (broken, whole):
        await handle.signal("go")
    assert await harness.finish(whole) == ["whole"]
    await harness.run_until_idle()
    view = await broken.status()
    assert view.status == "waiting" and view.waiting_on is not None
    assert view.waiting_on.startswith("parked: its history has a hole: ") and said in view.waiting_on
    assert said in await broken.why() and "holdfast verify" in await broken.why()
    assert rows_of(harness, broken) == before, "a history with a hole is not written on"
    assert done.count("broken") == 2 and not await held(harness)
    await broken.resume()  # nothing was mended
    await harness.run_until_idle()
    assert rows_of(harness, broken) == before and "has a hole" in await broken.why()


async def forget_bodies(harness: Harness) -> None:
    assert harness.test_worker is not None
    harness.test_worker.kept.drop_all()


async def test_a_row_that_is_not_the_one_the_instance_remembers_parks_it(harness: Harness) -> None:
    waits(harness)
    handle = await harness.start("waits", "x")
    await harness.run_until_idle()
    await forget_bodies(harness)
    last = rows_of(harness, handle)[-1]
    other = "ab" * 32
    tamper(
        harness.url,
        f"update holdfast.history set hash = x'{other}' where instance_id = x'{raw(handle)}' and seq = {last}",
    )
    await handle.signal("go")
    await harness.run_until_idle()
    assert f"row {last} is not the one that the instance remembers" in await handle.why()


@pytest.mark.parametrize("harm", ["payload = x'6e6f'", "payload = x'5b5d'"])
async def test_a_history_that_cannot_be_read_is_parked_after_a_while(harness: Harness, harm: str) -> None:
    waits(harness)
    broken, other = await harness.start("waits", "broken"), await harness.start("waits", "other")
    await harness.run_until_idle()
    where = f"seq = 2 and instance_id = x'{raw(broken)}'"
    tamper(harness.url, f"update holdfast.history set {harm} where {where}")
    assert harness.test_worker is not None
    for handle in (broken, other):
        harness.test_worker.kept.drop(ids.parse("ins", handle.id))
        await handle.signal("go")
    await harness.run_until_idle()
    assert await other.result(0) == ["other"]
    await harness.advance(minutes=5)
    assert "its history has a hole: it cannot be read" in str((await harness.instances(status="waiting"))[0].waiting_on)
    assert "cannot be read" in await broken.why() and not await held(harness)


async def test_what_was_tampered_with_is_shown_as_it_stands_and_hides_nothing_else(harness: Harness) -> None:
    waits(harness)
    broken, other = await harness.start("waits", "broken"), await harness.start("waits", "other")
    await harness.run_until_idle()
    tamper(
        harness.url,
        f"update holdfast.history set payload = x'6eff' where seq = 2 and instance_id = x'{raw(broken)}'",
        f"update holdfast.instances set input = x'6e6f' where id = x'{raw(broken)}'",
    )
    rows = await broken.history()
    assert [row.payload == {"unreadable": "n\\xff"} for row in rows] == [row.seq == 2 for row in rows]
    assert (await broken.status()).steps == {"second": None}
    shown = {view.id: view.input for view in await harness.instances()}
    assert shown == {broken.id: {"unreadable": "no"}, other.id: "other"}
    assert [fault.seq for fault in (await harness.verify()).faults] == [2]


async def test_a_chart_with_a_hole_is_parked_too(harness: Harness) -> None:
    await harness.publish(
        {
            "id": "light", "initial": "red",
            "states": {"red": {"on": {"go": "green"}}, "green": {"type": "final"}},
        }
    )  # fmt: skip
    handle = await harness.start("light", {})
    await harness.run_until_idle()
    last = rows_of(harness, handle)[-1]
    lose(harness, handle, f"seq = {last}")
    await handle.signal("go")
    await harness.run_until_idle()
    assert "has a hole" in await handle.why() and (await handle.status()).status == "waiting"
    assert rows_of(harness, handle) == list(range(1, last))


@pytest.mark.parametrize("others", [0, 3], ids=["at once", "after others had claimed it"])
async def test_rows_that_a_worker_was_told_are_on_disk_and_that_are_gone_hold_the_database_back(
    harness: Harness, provider: FakeProvider, others: int
) -> None:
    go = asyncio.Event()
    waits(harness)

    @harness.workflow("pay")
    async def pay(ctx: Context, name: str) -> str:
        await ctx.step("first", first)
        paid: str = await ctx.effect("pay", call, name, mode="manual")
        await ctx.step("wait", wait)
        return paid

    async def first() -> None: ...

    async def call(name: str, info: StepInfo) -> str:
        provider.call(info.idempotency_key, name)
        return name

    async def wait() -> None:
        await go.wait()

    with structlog.testing.capture_logs() as logs:
        handle = await harness.start("pay", "one")
        await until(lambda: len(provider.calls) == 1 and rows_of(harness, handle)[-1:] >= [4], harness)
        before = rows_of(harness, handle)
        lose(harness, handle, "seq > 2")  # the effect's start and its receipt: as a standby that was behind
        tamper(harness.url, f"update holdfast.instances set fence = fence + {others} where id = x'{raw(handle)}'")
        go.set()
        await until(lambda: any(line["event"] == "quarantined" for line in logs), harness)
        await until(lambda: not worker_of(harness).busy(), harness)
    [said] = [line for line in logs if line["event"] == "quarantined"]
    assert "is committed, and it is gone" in said["reason"] and "holdfast quarantine lift" in said["what_to_do"]
    assert await held(harness) and before != rows_of(harness, handle) == [1, 2]
    other = await harness.start("waits", "other")
    await worker_of(harness).run_once()
    assert (await other.status()).status == "pending", "nothing is claimed"

    await quarantine.lift(harness.service, reason="compared with the bank", actor="ann")
    await worker_of(harness).quarantine.look()
    await harness.run_until_idle()
    assert (await other.status()).status == "waiting", "one damaged history stops nobody else for good"
    assert "is gone" in await handle.why() and rows_of(harness, handle) == [1, 2]
    await worker_of(harness).quarantine.look()
    assert not await held(harness), "what was found once does not bring it back"
    for word in (handle.signal("go"), handle.pause("look", actor="ann")):
        await word
        await harness.run_until_idle()
        assert "is gone" in await handle.why() and "Compare with the providers" in await handle.why()
    assert len(provider.calls) == 1, "it is not paid a second time until a person says so"
    await handle.resume("the bank has never heard of it", actor="ann")
    await until(lambda: len(provider.calls) == 2, harness)
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == "one"
    assert_sound(harness.url)


async def paid_and_lost(harness: Harness, provider: FakeProvider) -> Handle:
    """Its manual effect is made and its end was acknowledged; then the database lost both, and the
    instance's row too is from before: in it nothing is missing."""

    @harness.workflow("pay")
    async def pay(ctx: Context, name: str) -> None:
        await ctx.wait_for_signal("go")
        await ctx.effect("pay", call, name, mode="manual")
        await ctx.wait_for_signal("done")

    async def call(name: str, info: StepInfo) -> None:
        provider.call(info.idempotency_key, name)

    handle = await harness.start("pay", "one")
    await harness.run_until_idle()
    before = stands(harness, handle)
    await handle.signal("go")
    await harness.run_until_idle()
    assert len(provider.calls) == 1
    go_back(harness, handle, *before)
    return handle


def stands(harness: Harness, handle: Handle) -> tuple[Any, ...]:
    [stand] = query(harness.url, f"select seq, woken from holdfast.instances where id = {of(harness, handle)}")
    return stand


def go_back(harness: Harness, handle: Handle, seq: int, woken: int) -> None:
    """As a standby knows it that had not got everything."""
    this = f"instance_id = x'{raw(handle)}'"
    lose(harness, handle, f"seq > {seq}")
    tamper(
        harness.url,
        f"delete from holdfast.effects where {this}",
        f"delete from holdfast.events where {this}",
        f"update holdfast.instances set seq = {seq}, woken = {woken}, "
        f"hash = (select hash from holdfast.history where {this} and seq = {seq}) where id = x'{raw(handle)}'",
    )


async def lifted(harness: Harness) -> None:
    await quarantine.lift(harness.service, reason="compared with the bank", actor="ann")
    await worker_of(harness).quarantine.look()
    await harness.run_until_idle()


async def test_a_claim_that_comes_with_less_than_its_worker_was_told_is_on_disk_does_nothing_again(
    harness: Harness, provider: FakeProvider
) -> None:
    """An earlier state was put in place within a second, before anybody looked back."""
    handle = await paid_and_lost(harness, provider)
    await handle.signal("go")
    await until(lambda: not worker_of(harness).busy() and "is gone" in str(waiting(harness, handle)), harness)
    assert await held(harness) and len(provider.calls) == 1
    await lifted(harness)
    assert "is gone" in await handle.why() and len(provider.calls) == 1
    await handle.resume("to be paid once more", actor="ann")
    await harness.run_until_idle()
    assert len(provider.calls) == 2 and (await handle.status()).waiting_on == "signal 'done'"
    assert not await held(harness)
    assert_sound(harness.url, finished=False)


def waiting(harness: Harness, handle: Handle) -> str | None:
    [(words,)] = query(harness.url, f"select waiting_on from holdfast.instances where id = {of(harness, handle)}")
    return str(words)


def worker_of(harness: Harness) -> Any:
    assert harness.test_worker is not None
    return harness.test_worker


async def test_a_row_from_before_the_claim_that_is_gone_stops_its_instance_only(harness: Harness) -> None:
    go = asyncio.Event()

    @harness.workflow("long")
    async def long(ctx: Context) -> str:
        await ctx.step("first", nothing)
        await ctx.step("second", wait)
        return "done"

    async def nothing() -> None: ...

    async def wait() -> None:
        await go.wait()

    handle = await harness.start("long")
    await until(lambda: len(rows_of(harness, handle)) == 2, harness)
    async with next_worker(harness) as other:  # it replays the first step and begins the second: nothing to commit
        await until(lambda: worker_of(other).executions, other)
        [execution] = worker_of(other).executions.values()
        await until(lambda: execution.running, other)
        lose(harness, handle, "seq = 2")
        go.set()
        await until(lambda: not worker_of(other).busy() and not worker_of(other).executions, other)
        assert not await held(other)
        assert "history has a hole: row 2 is missing" in await other.instance(handle.id).why()
        assert rows_of(harness, handle) == [1]


async def test_a_claim_that_the_database_has_forgotten_holds_it_back(harness: Harness) -> None:
    go = asyncio.Event()

    @harness.workflow("long")
    async def long(ctx: Context) -> None:
        await ctx.step("first", go.wait)

    handle = await harness.start("long")
    await until(lambda: worker_of(harness).executions, harness)
    tamper(harness.url, f"update holdfast.instances set fence = 0, locked_by = null where id = x'{raw(handle)}'")
    worker_of(harness).acknowledged._rows.clear()
    go.set()
    await until(lambda: not worker_of(harness).busy() and not worker_of(harness).executions, harness)
    assert await held(harness)
    assert "which the database does not know" in str((await quarantine.show(harness.service)).reason)


def fail_once(monkeypatch: pytest.MonkeyPatch, on: Any, method: str, name: str = "") -> list[str]:
    """The database is away for one call of `method`; with `name`, of the statement of this name."""
    failed: list[str] = []
    do = getattr(on, method)

    async def away(*args: Any, **values: Any) -> Any:
        if not failed and (not name or args[0] == name):
            failed.append(name or method)
            raise OSError("the database is away")
        return await do(*args, **values)

    monkeypatch.setattr(on, method, away)
    return failed


@pytest.mark.parametrize("found_by", ["a claim", "a look"])
async def test_what_could_not_be_stopped_the_first_time_is_stopped_the_next(
    harness: Harness, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    handle = await paid_and_lost(harness, provider)
    failed = fail_once(monkeypatch, worker_of(harness).store, "write", "stop_where_lost")
    if found_by == "a look":
        await worker_of(harness).quarantine.look()
    await handle.signal("go")
    await until(lambda: bool(failed) and not worker_of(harness).busy(), harness)
    assert await held(harness)
    await lifted(harness)
    while await held(harness):  # what it was held for once more is stopped by now
        await lifted(harness)
    assert "is gone" in await handle.why() and len(provider.calls) == 1
    await handle.resume("to be paid once more", actor="ann")
    await harness.run_until_idle()
    assert len(provider.calls) == 2 and not await held(harness)
    assert_sound(harness.url, finished=False)


@pytest.mark.parametrize("method", ["enter", "gone_back"])
async def test_a_quarantine_that_could_not_be_written_is_written_by_the_next_look(
    harness: Harness, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    handle = await paid_and_lost(harness, provider)
    failed = fail_once(monkeypatch, worker_of(harness).quarantine, method)
    await handle.signal("go")
    await until(lambda: bool(failed) and not worker_of(harness).busy(), harness)
    await worker_of(harness).quarantine.look()
    assert await held(harness) and len(provider.calls) == 1
    await lifted(harness)
    assert "is gone" in await handle.why() and len(provider.calls) == 1 and not await held(harness)


async def test_a_word_from_before_the_loss_has_nothing_done_again(harness: Harness, provider: FakeProvider) -> None:
    """A failover brings back the line of events too: a resume, which was taken long ago, stands in it again."""
    handle = await paid_and_lost(harness, provider)
    for word in (handle.signal("go"), handle.resume("of a pause, long before the loss", actor="ann")):
        await word
    harness.clock.micros += 5_000_000
    await worker_of(harness).quarantine.look()
    await harness.run_until_idle()
    assert await held(harness)
    await lifted(harness)
    await handle.signal("done")  # whatever has it claimed again
    await harness.run_until_idle()
    assert "is gone" in await handle.why() and len(provider.calls) == 1
    await harness.advance(seconds=5)
    await handle.resume("the bank has never heard of it", actor="ann")
    await harness.run_until_idle()
    assert len(provider.calls) == 2


async def test_a_parent_that_ends_its_child_says_nothing_about_what_the_child_lost(
    harness: Harness, provider: FakeProvider
) -> None:
    @harness.workflow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.child("child", "pays", "one")

    @harness.workflow("pays")
    async def pays(ctx: Context, name: str) -> None:
        await ctx.wait_for_signal("go")
        await ctx.effect("pay", call, name, mode="manual", compensate=refund)
        await ctx.wait_for_signal("done")

    async def call(name: str, info: StepInfo) -> None:
        provider.call(info.idempotency_key, name)

    async def refund(name: str, result: None) -> None:
        provider.call("refund", name)

    handle = await harness.start("parent")
    await harness.run_until_idle()
    [child] = [view for view in await harness.instances() if view.workflow == "pays"]
    paying = harness.instance(child.id)
    before = stands(harness, paying)
    await paying.signal("go")
    await harness.run_until_idle()
    assert len(provider.calls) == 1
    go_back(harness, paying, *before)
    await worker_of(harness).quarantine.look()
    await lifted(harness)
    assert "is gone" in await paying.why()
    await handle.cancel("not needed", actor="ann")
    await harness.run_until_idle()
    assert "is gone" in await paying.why() and (await handle.status()).status not in ("cancelled", "failed")
    await harness.advance(seconds=5)
    await paying.resume("compared with the bank", actor="ann")
    await harness.run_until_idle()
    assert (await handle.status()).status == "cancelled"
