"""Faults that were found once and must not come back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast, HoldfastError, Rejected, StepInfo
from holdfast.testing import FakeProvider, Harness
from tests.crash.machinery import Meddler, StillLiveness, kill


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'found.db'}"


def paying(provider: FakeProvider, **options: Any) -> Holdfast:
    hf = Holdfast("sqlite:///unused.db")

    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    @hf.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode="keyed", **options)

    return hf


async def test_a_repeat_planned_inside_the_window_is_not_started_after_it(url: str) -> None:
    provider = FakeProvider()
    provider.plan("timeout_after")
    async with Harness(paying(provider, window=timedelta(hours=24)), url=url) as test:
        handle = await test.start("pay")
        await test.run_until_idle()
        assert len(provider.calls) == 1
        test.clock.move(timedelta(hours=48))  # nobody was there to start the repeat
        await test.run_until_idle()
        assert len(provider.calls) == 1
        assert "the window in which the provider knows our key is over" in str((await handle.status()).waiting_on)
        assert [e.state for e in await test.effects.list()] == ["outcome_unknown"]


async def test_a_rejected_repeat_does_not_close_an_attempt_of_unknown_outcome(url: str) -> None:
    provider = FakeProvider()
    provider.plan("timeout_after", "rejected")
    async with Harness(paying(provider), url=url) as test:
        handle = await test.start("pay")
        await test.advance(minutes=5)
        assert len(provider.calls) == 2
        assert (await handle.status()).status == "waiting"
        assert [e.state for e in await test.effects.list()] == ["outcome_unknown"]


async def test_a_first_attempt_that_is_rejected_is_known_not_to_have_happened(url: str) -> None:
    provider = FakeProvider()
    provider.plan("rejected")
    async with Harness(paying(provider), url=url) as test:
        handle = await test.start("pay")
        await test.advance(minutes=5)
        assert (await handle.status()).status == "failed"
        assert issubclass(Rejected, Exception)


async def test_a_transaction_handler_cannot_call_holdfast(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    seen: list[str] = []
    tests: list[Harness] = []

    @hf.workflow("other")
    async def other(ctx: Context) -> None: ...

    def book(tx: Any) -> None:
        with pytest.raises(HoldfastError, match="transaction handler cannot call"):
            asyncio.run(tests[0].start("other"))
        seen.append("refused")

    async def book_async(tx: Any) -> None:
        with pytest.raises(HoldfastError, match="transaction handler cannot call"):
            await tests[0].start("other")
        seen.append("refused")

    async def after() -> str:
        handle = await tests[0].start("other")  # a step may: only the transaction is closed to it
        return handle.id

    @hf.workflow("book")
    async def workflow(ctx: Context) -> str:
        await ctx.transaction("book", book_async if url.startswith("postgres") else book)
        return await ctx.step("after", after)

    async with Harness(hf, url=url) as test:
        tests.append(test)
        handle = await test.start("book")
        await test.run_until_idle()
        assert seen == ["refused"]
        assert (await test.instance(await handle.result(0)).status()).status == "completed"


def still(app: Holdfast, url: str, meddler: Meddler | None = None) -> Harness:
    """A harness whose worker is dead only when the test says so."""
    stores: list[Any] = []

    def wrap(store: Any) -> Any:
        stores.append(store)
        return meddler.wrap(store) if meddler is not None else store

    return Harness(app, url=url, wrap_store=wrap, liveness=lambda id_: StillLiveness(stores[0], id_))


async def test_a_step_in_flight_when_its_worker_died_is_settled_and_undone_by_a_cancel(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    calls: list[str] = []
    undone: list[str] = []

    async def reserve() -> str:
        calls.append("reserve")
        if len(calls) == 1:
            await asyncio.Event().wait()
        return "hold"

    async def release(hold: str) -> None:
        undone.append(hold)

    @hf.workflow("reserve")
    async def workflow(ctx: Context) -> None:
        await ctx.step("reserve", reserve, compensate=release)

    first = still(hf, url)
    await first.open()
    handle = await first.start("reserve")
    assert first.test_worker is not None
    await first.test_worker.run_once()
    while not calls:
        await asyncio.sleep(0)
    lost = first.test_worker.id
    await kill(first, asyncio.create_task(asyncio.sleep(0)))
    async with still(hf, url) as second:
        assert second.test_worker is not None
        await second.instance(handle.id).cancel("enough")
        await second.service.store.release_worker(lost, second.test_worker.id, stopped=False)
        await second.run_until_idle()
        assert (await second.instance(handle.id).status()).status == "cancelled"
    assert (calls, undone) == (["reserve", "reserve"], ["hold"])


async def test_a_claim_whose_reply_was_lost_is_let_go_by_the_worker_that_made_it(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")

    @hf.workflow("plain")
    async def workflow(ctx: Context) -> int:
        return 7

    async with still(hf, url, Meddler(("claim",), 1, "lost_reply")) as test:
        handle = await test.start("plain")
        with pytest.raises(TimeoutError):
            await test.run_until_idle()
        await test.run_until_idle()
        assert await handle.result(0) == 7
