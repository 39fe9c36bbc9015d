"""Sync handlers run in threads that cannot be stopped and may all be busy: no effect begins late or twice by that."""

import asyncio
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Context, EffectNotOpen, Holdfast, StepInfo
from holdfast.testing import FakeProvider, Harness
from tests.flows.support import entries, lose_worker, query, until
from tests.support.patience import PATIENCE_SECONDS


class Blocked:
    """A step that keeps the only thread of its worker."""

    def __init__(self, app: Holdfast) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

        def block() -> None:
            self.began.set()
            self.may_end.wait(PATIENCE_SECONDS)

        @app.workflow("blocks")
        async def blocks(ctx: Context) -> None:
            await ctx.step("block", block)


async def test_an_effect_that_waits_for_a_thread_past_its_time_out_is_never_sent(
    url: str, provider: FakeProvider
) -> None:
    app = Holdfast(url)
    blocked = Blocked(app)

    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    @app.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode="lookup", lookup=provider.find, timeout=0.1, max_attempts=1)

    async with app, app.worker(poll_seconds=0.01, threads=1) as worker:
        await app.start("blocks")
        await asyncio.to_thread(blocked.began.wait, PATIENCE_SECONDS)
        handle = await app.start("pay")
        await until(lambda: worker.pool.waiting())
        text = await app.metrics.render(app.service)
        assert b"holdfast_threads_busy 1.0" in text and b"holdfast_threads_waiting 1.0" in text
        with pytest.raises(Exception, match="no thread was free for it in time"):
            await handle.result(timeout=PATIENCE_SECONDS)
        blocked.may_end.set()
        await until(lambda: worker.pool.busy() == 0)
    assert provider.calls == []
    assert [e.payload["error"]["type"] for e in await entries_of(url, app, handle, "EFFECT_FAILED")] == ["NotApplied"]


async def entries_of(url: str, app: Holdfast, handle: Any, type_: str) -> list[Any]:
    async with Holdfast(url) as other:
        return await entries(other.instance(handle.id), type_)


async def test_why_says_that_all_threads_are_busy(url: str) -> None:
    app = Holdfast(url)
    blocked = Blocked(app)
    async with app, app.worker(poll_seconds=0.01, threads=1) as worker:
        handles = await app.start_many("blocks", [None, None])
        await until(lambda: worker.pool.waiting() == 1)
        assert "all 1 threads for sync handlers are busy there, and 1 calls wait for one" in await handles[0].why()
        blocked.may_end.set()


async def test_an_effect_that_gets_a_thread_after_its_last_moment_is_not_sent(
    harness: Harness, provider: FakeProvider
) -> None:
    worker = harness.test_worker
    assert worker is not None
    holds = threading.Event()
    for _ in range(worker.pool.size):
        worker.pool.begin(lambda: holds.wait(PATIENCE_SECONDS), effect=False)

    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, timeout=PATIENCE_SECONDS, max_attempts=1)

    handle = await harness.start("pay")
    await until(lambda: worker.pool.waiting(), harness)
    harness.clock.move(timedelta(seconds=20))
    holds.set()
    await harness.run_until_idle()
    assert provider.calls == []
    assert "found late when a thread was free" in str((await handle.status()).error)


async def test_a_lookup_that_finds_nothing_does_not_count_while_a_thread_is_in_the_call(
    harness: Harness, provider: FakeProvider
) -> None:
    began, may_end = threading.Event(), threading.Event()
    looked: list[Any] = []

    def pay(info: StepInfo) -> Any:
        began.set()
        may_end.wait(PATIENCE_SECONDS)
        return provider.call(info.idempotency_key)

    def find(key: str) -> Any:
        looked.append(provider.find(key))
        return looked[-1]

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect(
            "pay", pay, mode="lookup", lookup=find, timeout=0.05, backoff=timedelta(0), max_attempts=2
        )

    handle = await harness.start("pay")
    await until(lambda: began.is_set(), harness)
    began.clear()
    await until_unknown(harness)
    harness.clock.move(timedelta(minutes=5))  # far beyond the time-out, and the thread is in the call all the same
    await until(lambda: looked, harness)
    made_again = began.wait(0.1)
    may_end.set()
    assert not made_again
    await until(lambda: provider.calls, harness)
    await harness.advance(minutes=1)
    assert (await handle.status()).status == "completed"
    assert len(provider.calls) == 1


@pytest.mark.parametrize("books", [True, False], ids=["books", "raises"])
async def test_a_lookup_by_another_worker_does_not_count_while_a_thread_of_the_first_is_in_the_call(
    harness: Harness, provider: FakeProvider, books: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()
    looked: list[Any] = []
    calls: list[str] = []

    def pay(info: StepInfo) -> Any:
        calls.append("begun")
        if len(calls) > 1:
            return provider.call(info.idempotency_key)
        began.set()
        may_end.wait(PATIENCE_SECONDS)
        if not books:
            raise OSError("the line went dead")
        return provider.call(info.idempotency_key)

    def find(key: str) -> Any:
        looked.append(provider.find(key))
        return looked[-1]

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect(
            "pay", pay, mode="lookup", lookup=find, timeout=0.05, backoff=timedelta(0), max_attempts=2
        )

    handle = await harness.start("pay")
    await until(lambda: began.is_set(), harness)
    await until_unknown(harness)
    monkeypatch.setattr("holdfast.worker.running.IN_CALLS", set())  # another process knows nothing of its threads
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        harness.clock.move(timedelta(minutes=5))
        await until(lambda: looked, other)
        await other.run_until_idle()
        try:
            assert looked == [None] and calls == ["begun"]
            assert "a lookup of effect 'pay'" in str((await handle.status()).waiting_on)
        finally:
            may_end.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await other.effects.show((await other.effects.list())[0].id)).observations:
                await asyncio.sleep(0.01)
        await other.advance(minutes=1)
        await other.advance(minutes=1)
    assert (await handle.status()).status == "completed"
    assert len(provider.calls) == 1
    assert len(calls) == (1 if books else 2)


async def test_a_lookup_does_not_count_while_the_worker_that_was_fenced_in_a_coroutine_lives(
    harness: Harness, provider: FakeProvider
) -> None:
    """Its loop stands still, so nothing there was cancelled: whatever blocks it may pay when it goes on."""
    looked: list[Any] = []
    calls: list[str] = []

    async def pay(info: StepInfo) -> Any:
        calls.append("begun")
        if len(calls) == 1:
            await asyncio.Event().wait()
        return provider.call(info.idempotency_key)

    def find(key: str) -> Any:
        looked.append(provider.find(key))
        return looked[-1]

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode="lookup", lookup=find, backoff=timedelta(0), max_attempts=2)

    handle = await harness.start("pay")
    await until(lambda: calls, harness)
    assert harness.test_worker is not None
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        assert other.test_worker is not None
        await other.service.store.release_worker(harness.test_worker.id, other.test_worker.id, stopped=False)
        harness.clock.move(timedelta(minutes=5))
        await until(lambda: looked, other)
        await other.advance(minutes=5)
        assert set(looked) == {None} and calls == ["begun"]
        await lose_worker(harness)
        await other.advance(minutes=5)
    assert (await handle.status()).status == "completed"
    assert len(calls) == 2 and len(provider.calls) == 1


async def test_a_lookup_does_not_count_while_a_coroutine_takes_no_cancel_after_its_instance_was_let_go(
    harness: Harness, provider: FakeProvider
) -> None:
    """The same worker claims the instance again: what it had cancelled may still pay."""
    calls: list[str] = []
    may_pay = asyncio.Event()

    async def pay(info: StepInfo) -> Any:
        calls.append("begun")
        while not may_pay.is_set():
            try:
                await may_pay.wait()
            except asyncio.CancelledError:
                pass
        return provider.call(info.idempotency_key)

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        paid = ctx.effect("pay", pay, mode="lookup", lookup=provider.find, backoff=timedelta(0))
        return await asyncio.gather(paid, ctx.transaction("write", write if on_postgres else lambda tx: None))

    async def write(tx: Any) -> None: ...

    on_postgres = harness.url.startswith("postgres")
    store = harness.service.store
    alone, tried = store.commit_alone, list[int]()

    async def commit_alone(*given: Any) -> Any:
        tried.append(1)
        if len(tried) == 1:
            await until(lambda: calls)
            raise ConnectionResetError("cut off, and rolled back")
        return await alone(*given)

    store.commit_alone = commit_alone  # type: ignore[method-assign]
    try:
        handle = await harness.start("pay")
        await until(lambda: len(tried) > 1, harness)
        await harness.advance(minutes=10)
        assert calls == ["begun"] and (await handle.status()).status == "waiting"
    finally:
        may_pay.set()
    await harness.advance(minutes=1)
    assert (await handle.status()).status == "completed" and len(provider.calls) == 1


async def until_unknown(harness: Harness) -> None:
    """By the real clock, which a time-out goes by."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await harness.effects.list():
            await asyncio.sleep(0.01)


async def test_a_worker_is_not_known_to_be_gone_while_its_thread_is_in_a_call(url: str, provider: FakeProvider) -> None:
    app = Holdfast(url)
    began, may_end = threading.Event(), threading.Event()

    def pay(info: StepInfo) -> Any:
        began.set()
        may_end.wait(PATIENCE_SECONDS)
        return provider.call(info.idempotency_key)

    @app.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay)

    async with app:
        scope = app.worker(poll_seconds=0.01)
        worker = await scope.__aenter__()
        handle = await app.start("pay")
        await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
        app.service.workers.remove(worker)
        with capture_logs():
            await worker.stop(timeout=0.0)
        store = app.service.store
        [effect] = await app.effects.list()
        assert effect.state == "outcome_unknown", "its fate is on record, though no other worker has looked at it"
        assert not await store.worker_gone(worker.id)
        assert query(url, "select stopped_at from holdfast.workers") == [(None,)]
        store.clock = lambda: round((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1_000_000)
        with pytest.raises(EffectNotOpen, match="may still be running"):
            await app.effects.resolve(effect.id, "did_not_happen", actor="ann", reason="not on the list")
        may_end.set()
        assert worker._outlived is not None
        await asyncio.wait_for(worker._outlived, PATIENCE_SECONDS)
        assert await store.worker_gone(worker.id)
        [seen] = (await app.effects.show(effect.id)).observations
        assert seen.outcome == "returned", "what it came back with is evidence"
        assert (await handle.status()).status == "waiting"


@pytest.mark.parametrize("where", ["thread", "coroutine that takes no cancel"])
async def test_a_fenced_worker_is_not_known_to_be_gone_while_it_is_in_a_call(url: str, where: str) -> None:
    app = Holdfast(url)
    began, may_end = threading.Event(), threading.Event()

    def pay() -> None:
        began.set()
        may_end.wait(PATIENCE_SECONDS)

    async def pay_on_and_on() -> None:
        began.set()
        while not may_end.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    @app.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay if where == "thread" else pay_on_and_on)

    async with app, app.worker(poll_seconds=0.01) as worker:
        await app.start("pay")
        await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
        store, fenced = app.service.store, worker.id
        try:
            with capture_logs():
                await store.release_worker(fenced, b"0" * 16, stopped=False)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not worker._held:  # the next incarnation is there
                        await asyncio.sleep(0.01)
            assert worker.id != fenced and not await store.worker_gone(fenced)
        finally:
            may_end.set()
        await asyncio.wait_for(asyncio.gather(*worker._held), PATIENCE_SECONDS)
        assert await store.worker_gone(fenced)


async def test_a_call_in_line_for_a_thread_does_not_begin_after_its_worker_has_stopped(
    url: str, provider: FakeProvider
) -> None:
    app = Holdfast(url)
    blocked = Blocked(app)

    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    @app.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay)

    async with app:
        scope = app.worker(poll_seconds=0.01, threads=1)
        worker = await scope.__aenter__()
        await app.start("blocks")
        await asyncio.to_thread(blocked.began.wait, PATIENCE_SECONDS)
        await app.start("pay")
        await until(lambda: worker.pool.waiting())
        app.service.workers.remove(worker)
        await worker.stop(timeout=0.0)
        assert await app.service.store.worker_gone(worker.id)
        blocked.may_end.set()
        await until(lambda: worker.pool.busy() == 0)
        assert provider.calls == []
        [effect] = await app.effects.list(state=None)
        assert effect.state == "failed", "known not to have happened, and tried again by whoever claims it next"


# -- coroutines that take no cancel


class Stubborn:
    """A handler that goes on when it is cancelled, until it may end."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> str:
        self.calls += 1
        while not self.may_end.is_set():
            with suppress(asyncio.CancelledError):
                await self.may_end.wait()
        return "r1"


@pytest.fixture
def stubborn(monkeypatch: pytest.MonkeyPatch) -> Stubborn:
    monkeypatch.setattr("holdfast.handlers.calls.CANCEL_SECONDS", 0.05)
    return Stubborn()


async def test_an_effect_that_takes_no_cancel_is_unknown_when_its_time_is_over(
    harness: Harness, stubborn: Stubborn
) -> None:
    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", stubborn.__call__, timeout=0.05)

    handle = await harness.start("pay")
    await until(lambda: stubborn.calls, harness)
    await until_unknown(harness)
    [effect] = await harness.effects.list()
    said, waits = str(effect.error), str((await handle.status()).waiting_on)
    stubborn.may_end.set()
    assert "took no cancel" in said and "a person" in waits
    await until(lambda: harness.test_worker is not None and not harness.test_worker._under_way(), harness)
    await harness.run_until_idle()
    [seen] = (await harness.effects.show(effect.id)).observations
    assert seen.outcome == "returned", "what it came back with is evidence"
    assert (await handle.status()).status == "waiting"


async def test_a_lookup_does_not_count_while_a_coroutine_that_takes_no_cancel_is_in_the_call(
    harness: Harness, stubborn: Stubborn
) -> None:
    looked: list[str] = []

    def find(key: str) -> None:
        looked.append(key)

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", stubborn.__call__, mode="lookup", lookup=find, timeout=0.05, max_attempts=2)

    await harness.start("pay")
    await until(lambda: stubborn.calls, harness)
    await until_unknown(harness)
    await harness.advance(minutes=5)
    try:
        assert looked and stubborn.calls == 1
    finally:
        stubborn.may_end.set()


async def test_a_step_that_takes_no_cancel_fails_when_its_time_is_over(harness: Harness, stubborn: Stubborn) -> None:
    @harness.workflow("work")
    async def workflow(ctx: Context) -> Any:
        return await ctx.step("work", stubborn.__call__, timeout=0.05, max_attempts=2, backoff=timedelta(0))

    handle = await harness.start("work")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await handle.status()).status != "failed":
            await harness.run_until_idle()
    assert stubborn.calls == 2
    stubborn.may_end.set()
