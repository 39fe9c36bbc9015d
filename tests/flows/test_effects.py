"""Effects: on record before they start, and started again only if that is known to be allowed."""

import asyncio
import socket
import threading
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, EffectFailed, Found, NotApplied, Rejected, StepInfo, effect
from holdfast.testing import FakeProvider, Harness
from tests.flows.support import entries, next_worker, query, types, until
from tests.support.patience import PATIENCE_SECONDS

DAY = timedelta(days=1)


def declare(harness: Harness, provider: FakeProvider, **options: Any) -> None:
    def pay(amount: int, info: StepInfo) -> Any:
        return provider.call(info.idempotency_key, amount)

    def find(key: str) -> Any:
        return provider.find(key)

    if options.get("mode") == "lookup":
        options["lookup"] = find

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        try:
            return await ctx.effect("pay", pay, 4200, **options)
        except EffectFailed as error:
            return f"failed: {error.message}"


@pytest.mark.parametrize("mode", ["keyed", "lookup", "manual"])
async def test_an_effect_is_on_record_before_it_starts_and_its_receipt_after(
    harness: Harness, provider: FakeProvider, mode: Any
) -> None:
    before: list[Any] = []

    async def pay(amount: int, info: StepInfo) -> Any:
        [view] = await harness.effects.list(state="started")
        before.append((view.state, view.idempotency_key == info.idempotency_key, view.request, view.receipt))
        assert info.not_after is not None
        assert info.not_after == view.not_after.timestamp()
        return provider.call(info.idempotency_key, amount)

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        lookup = provider.find if mode == "lookup" else None
        return await ctx.effect("pay", pay, 4200, mode=mode, lookup=lookup)

    handle = await harness.start("pay")
    result = await harness.finish(handle)
    assert before == [("started", True, [4200], None)]
    assert result == {"id": "prov-1", "request": 4200}
    [view] = await harness.effects.list(state=None)
    assert (view.state, view.mode, view.attempt, view.receipt) == ("succeeded", mode, 1, result)
    assert await types(handle) == [
        "INSTANCE_STARTED", "EFFECT_STARTED", "EFFECT_SUCCEEDED", "INSTANCE_COMPLETED",
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["keyed", "lookup", "manual"])
async def test_what_is_known_not_to_have_happened_is_tried_again_with_the_same_key_in_every_mode(
    harness: Harness, provider: FakeProvider, mode: str
) -> None:
    declare(harness, provider, mode=mode)
    provider.plan("not_applied", "not_applied", "ok")
    handle = await harness.start("pay")
    assert await harness.finish(handle) == {"id": "prov-1", "request": 4200}
    assert len(provider.calls) == 3
    assert len(set(provider.calls)) == 1


@pytest.mark.parametrize("mode", ["keyed", "lookup", "manual"])
async def test_an_effect_out_of_attempts_is_known_to_have_failed(
    harness: Harness, provider: FakeProvider, mode: str
) -> None:
    declare(harness, provider, mode=mode, max_attempts=2)
    provider.plan("not_applied", "not_applied")
    handle = await harness.start("pay")
    assert await harness.finish(handle) == "failed: the provider could not be reached"
    assert [view.state for view in await harness.effects.list(state=None)] == ["failed"]


@pytest.mark.parametrize("mode", ["keyed", "lookup", "manual"])
async def test_a_rejected_effect_is_not_tried_again(harness: Harness, provider: FakeProvider, mode: str) -> None:
    declare(harness, provider, mode=mode)
    provider.plan("rejected")
    handle = await harness.start("pay")
    assert await harness.finish(handle) == "failed: the provider said no"
    assert len(provider.calls) == 1


@pytest.mark.parametrize("error", [ConnectionRefusedError("nobody"), socket.gaierror(-2, "no such name")], ids=repr)
async def test_a_connection_refused_after_the_payment_does_not_make_it_again(
    harness: Harness, provider: FakeProvider, error: OSError
) -> None:
    def pay(info: StepInfo) -> None:
        provider.call(info.idempotency_key)
        raise error  # by the second host, to which the receipt should go

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> None:
        await ctx.effect("pay", pay)

    await harness.start("pay")
    await harness.advance(days=30)
    assert len(provider.calls) == 1
    assert [view.state for view in await harness.effects.list()] == ["outcome_unknown"]


class AskedToWait(TimeoutError):
    retry_after = 600


class AskedToWaitUnsent(NotApplied):
    retry_after = 600


@pytest.mark.parametrize("mode", ["keyed", "lookup"])
@pytest.mark.parametrize("asked", [AskedToWait, AskedToWaitUnsent])
async def test_a_provider_that_asks_to_wait_is_left_alone_where_nobody_knows_what_happened(
    harness: Harness, provider: FakeProvider, mode: str, asked: type[Exception]
) -> None:
    """The first answer is lost; what comes next says when to come again: a repeat, or the lookup."""
    at: list[float] = []

    def told(times: int) -> None:
        at.append(harness.clock.now.timestamp())
        if len(at) == times:
            raise asked("come back in ten minutes")

    def pay(info: StepInfo) -> Any:
        if mode == "keyed":
            told(2)
        provider.call(info.idempotency_key, 4200)
        return "paid"

    def find(key: str) -> Any:
        told(1)
        return provider.find(key)

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode=mode, lookup=find if mode == "lookup" else None)

    provider.plan("timeout_after")
    handle = await harness.start("pay")
    await harness.finish(handle)
    asked_at, after = at[-2:]
    assert 600 <= (after - asked_at) < 700
    assert len(provider.calls) == (2 if mode == "keyed" else 1)


async def test_a_first_answer_that_asks_to_wait_holds_the_lookup_back(harness: Harness, provider: FakeProvider) -> None:
    at: list[float] = []

    def pay(info: StepInfo) -> Any:
        at.append(harness.clock.now.timestamp())
        raise AskedToWait("come back in ten minutes")

    def find(key: str) -> Any:
        at.append(harness.clock.now.timestamp())
        return Found("paid")

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode="lookup", lookup=find)

    assert await harness.finish(await harness.start("pay")) == "paid"
    assert 600 <= at[1] - at[0] < 700


async def test_a_provider_that_asks_for_more_than_its_window_is_not_asked_again(
    harness: Harness, provider: FakeProvider
) -> None:
    def pay(info: StepInfo) -> None:
        provider.call(info.idempotency_key)
        raise AskedToWait("come back in ten minutes")

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        await ctx.effect("pay", pay, mode="keyed", window=timedelta(minutes=5))

    handle = await harness.start("pay")
    await harness.advance(days=1)
    assert len(provider.calls) == 1
    assert "asks to be left alone for longer than it knows our key" in ((await handle.status()).waiting_on or "")


@pytest.mark.parametrize("did", ["timeout_before", "timeout_after"])
async def test_a_manual_effect_of_unknown_outcome_is_never_repeated_by_itself(
    harness: Harness, provider: FakeProvider, did: str
) -> None:
    declare(harness, provider)
    provider.plan(did)
    handle = await harness.start("pay")
    await harness.advance(days=300)
    assert len(provider.calls) == 1
    view = await handle.status()
    assert view.status == "waiting"
    assert view.waiting_on == (
        "a person: the outcome of effect 'pay' is unknown (its outcome is unknown and only a person may repeat it)"
    )
    [found] = await harness.effects.list()
    assert (found.state, found.instance_id, found.step) == ("outcome_unknown", handle.id, "pay")


async def test_a_keyed_effect_of_unknown_outcome_is_repeated_with_the_same_key_and_done_once(
    harness: Harness, provider: FakeProvider
) -> None:
    declare(harness, provider, mode="keyed")
    provider.plan("timeout_after", "timeout_after")
    handle = await harness.start("pay")
    assert await harness.finish(handle) == {"id": "prov-1", "request": 4200}
    assert len(provider.calls) == 3
    assert len(provider.deeds) == 1


async def test_a_keyed_effect_is_not_repeated_after_the_window_is_over(
    harness: Harness, provider: FakeProvider
) -> None:
    declare(harness, provider, mode="keyed", window=timedelta(minutes=1), backoff=timedelta(seconds=50))
    provider.plan(*["timeout_after"] * 5)
    handle = await harness.start("pay")
    await harness.advance(days=2)
    assert len(provider.calls) == 2
    assert "window" in ((await handle.status()).waiting_on or "")


async def test_a_keyed_effect_whose_outcome_stays_unknown_ends_on_the_desk(
    harness: Harness, provider: FakeProvider
) -> None:
    declare(harness, provider, mode="keyed", max_attempts=2)
    provider.plan(*["timeout_after"] * 5)
    await harness.start("pay")
    await harness.advance(days=2)
    assert len(provider.calls) == 2
    assert [view.state for view in await harness.effects.list()] == ["outcome_unknown"]


@pytest.mark.parametrize("attempts", [2, 3])
async def test_an_effect_that_may_have_happened_is_not_called_failed_because_a_repeat_never_left(
    harness: Harness, provider: FakeProvider, attempts: int
) -> None:
    declare(harness, provider, mode="keyed", max_attempts=attempts)
    provider.plan("timeout_after", *["not_applied"] * (attempts - 1))
    handle = await harness.start("pay")
    await harness.advance(days=2)
    assert len(provider.deeds) == 1  # the first call was done, whatever became of the repeats
    assert (await handle.status()).status == "waiting"
    assert [view.state for view in await harness.effects.list()] == ["outcome_unknown"]


async def test_a_lookup_that_finds_the_deed_settles_it_without_a_second_call(
    harness: Harness, provider: FakeProvider
) -> None:
    declare(harness, provider, mode="lookup")
    provider.plan("timeout_after")
    handle = await harness.start("pay")
    assert await harness.finish(handle) == {"id": "prov-1", "request": 4200}
    assert len(provider.calls) == 1
    [entry] = await entries(handle, "EFFECT_SUCCEEDED")
    assert entry.payload["via"] == "lookup"


async def test_a_lookup_that_finds_nothing_lets_the_call_be_made_again(
    harness: Harness, provider: FakeProvider
) -> None:
    declare(harness, provider, mode="lookup")
    provider.plan("timeout_before")
    handle = await harness.start("pay")
    assert await harness.finish(handle) == {"id": "prov-1", "request": 4200}
    assert len(provider.calls) == 2
    assert len(set(provider.calls)) == 1


async def test_a_found_deed_without_a_result_counts_as_done(harness: Harness) -> None:
    calls: list[int] = []

    def pay() -> None:
        calls.append(1)
        raise TimeoutError

    async def find(info: StepInfo) -> Found | None:
        assert info.idempotency_key
        return Found(None)

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return ["done", await ctx.effect("pay", pay, mode="lookup", lookup=find)]

    handle = await harness.start("pay")
    assert await harness.finish(handle) == ["done", None]
    assert calls == [1]


@pytest.mark.parametrize("settle_after", [None, 60, "branch"], ids=["by default", "slow provider", "slow, in a branch"])
@pytest.mark.parametrize("trouble", [TimeoutError, ConnectionResetError])
async def test_a_payment_that_is_booked_after_our_time_out_is_not_made_again(
    harness: Harness, provider: FakeProvider, trouble: type[Exception], settle_after: Any
) -> None:
    """The lookup finds nothing at first: that is not known yet, and no proof that it did not happen."""
    asked: list[int] = []
    key = ""

    async def pay(info: StepInfo) -> Any:
        nonlocal key
        key = info.idempotency_key
        asked.append(-1)
        raise trouble("no answer; the bank is still at it")

    def find(key: str) -> Any:
        asked.append(harness.clock.micros)
        return provider.find(key)

    options: Any = {} if settle_after is None else {"settle_after": timedelta(seconds=60)}
    options |= {"mode": "lookup", "lookup": find, "timeout": 1}

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        if settle_after == "branch":
            [paid] = await ctx.parallel("money", {"pay": effect(pay, **options)})
            return paid
        return await ctx.effect("pay", pay, **options)

    handle = await harness.start("pay")
    await harness.advance(seconds=3)
    provider.call(key)  # the bank books it
    await harness.advance(seconds=14 if settle_after is None else 50)
    assert (await handle.status()).status == "waiting"
    assert await harness.finish(handle) == provider.find(key)
    assert asked.count(-1) == 1
    assert len(asked) == 3, "asked at once, and when the call must be over"


async def test_what_a_slow_lookup_says_is_of_the_moment_at_which_it_was_asked(
    harness: Harness, provider: FakeProvider
) -> None:
    calls: list[str] = []

    async def pay(info: StepInfo) -> Any:
        calls.append(info.idempotency_key)
        raise ConnectionResetError("no answer; the bank is still at it")

    async def find(key: str) -> Any:
        found = provider.find(key)
        if found is None:
            provider.call(key)  # booked right after we were told that it is not
            harness.clock.move(timedelta(seconds=60))  # and the answer takes its time
        return found

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode="lookup", lookup=find)

    handle = await harness.start("pay")
    assert await harness.finish(handle) == provider.find(calls[0])
    assert len(calls) == 1, "paid again on the word of a moment at which the first call could still be booked"


async def test_an_author_may_say_that_the_provider_answers_truly_at_once(harness: Harness) -> None:
    calls: list[int] = []

    async def pay() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionResetError("cut")
        return "paid"

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> str:
        return await ctx.effect("pay", pay, mode="lookup", lookup=lambda key: None, settle_after=timedelta(0))

    handle = await harness.start("pay")
    await harness.advance(seconds=5)
    assert await handle.result(timeout=0) == "paid"


async def test_a_lookup_that_keeps_failing_ends_on_the_desk(harness: Harness) -> None:
    lookups: list[int] = []

    def pay() -> None:
        raise TimeoutError

    def find(key: str) -> Any:
        lookups.append(1)
        raise OSError("the provider is down")

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode="lookup", lookup=find)

    handle = await harness.start("pay")
    await harness.advance(days=2)
    assert len(lookups) == 10
    assert "10 lookups failed" in ((await handle.status()).waiting_on or "")


@pytest.mark.parametrize(
    ("mode", "calls", "status"), [("manual", 1, "waiting"), ("keyed", 2, "completed"), ("lookup", 1, "completed")]
)
async def test_an_effect_whose_worker_is_lost_is_settled_as_its_mode_allows(
    harness: Harness, provider: FakeProvider, mode: Any, calls: int, status: str
) -> None:
    never = asyncio.Event()

    async def pay(info: StepInfo) -> Any:
        receipt = provider.call(info.idempotency_key)
        if len(provider.calls) == 1:
            await never.wait()  # done, and the worker dies before it can say so
        return receipt

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode=mode, lookup=provider.find if mode == "lookup" else None)

    handle = await harness.start("pay")
    await until(lambda: provider.calls, harness)
    async with next_worker(harness) as other:
        await other.advance(days=1)
        view = await other.instance(handle.id).status()
        assert (len(provider.calls), len(provider.deeds), view.status) == (calls, 1, status)
        found = await other.effects.list(state=None)
        if mode == "manual":
            assert (found[0].state, found[0].error["type"]) == ("outcome_unknown", "WorkerLost")
            assert found[0].fence == 1
        else:
            assert (found[0].state, view.result) == ("succeeded", {"id": "prov-1", "request": None})


async def test_a_result_that_cannot_be_stored_asks_a_person_instead_of_repeating(harness: Harness) -> None:
    calls: list[int] = []

    def pay() -> Any:
        calls.append(1)
        return object()

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay, mode="keyed")

    handle = await harness.start("pay")
    await harness.advance(days=2)
    assert calls == [1]
    assert "it happened, but its result cannot be stored" in ((await handle.status()).waiting_on or "")


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_call_found_late_before_it_began_is_not_sent(
    harness: Harness, provider: FakeProvider, is_async: bool
) -> None:
    async def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key, 4200)

    def pay_in_thread(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key, 4200)

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay if is_async else pay_in_thread)

    worker = harness.test_worker
    assert worker is not None
    real, late = worker.not_after, [True]
    worker.not_after = lambda: harness.clock.micros if late and late.pop() else real()  # type: ignore[method-assign]
    handle = await harness.start("pay")
    await harness.run_until_idle()
    assert provider.calls == []
    [retried] = await entries(handle, "EFFECT_RETRIED")
    assert "late" in retried.payload["error"]["message"]
    assert await harness.finish(handle) == {"id": "prov-1", "request": 4200}
    assert len(provider.calls) == 1


async def test_an_async_call_that_times_out_is_cancelled_and_unknown(harness: Harness) -> None:
    ended: list[str] = []

    async def pay() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> None:
        await ctx.effect("pay", pay, timeout=0.01)

    await harness.start("pay")
    await harness.run_until_idle()
    assert ended == ["cancelled"]
    assert [view.error["type"] for view in await harness.effects.list()] == ["TimeoutError"]


async def test_what_a_timed_out_thread_returns_late_is_kept_as_evidence(harness: Harness) -> None:
    release = threading.Event()

    def pay() -> str:
        release.wait(PATIENCE_SECONDS)
        return "paid after all"

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> None:
        await ctx.effect("pay", pay, timeout=0.01)

    await harness.start("pay")
    await harness.run_until_idle()
    [view] = await harness.effects.list()
    release.set()
    await until(lambda: query(harness.url, "select 1 from holdfast.effect_observations"))
    [seen] = (await harness.effects.show(view.id)).observations
    assert (seen.outcome, seen.payload, seen.attempt) == ("returned", "paid after all", 1)
    assert (await harness.effects.show(view.id)).state == "outcome_unknown"


async def test_what_a_fenced_worker_learns_is_evidence_and_moves_nothing(
    harness: Harness, provider: FakeProvider
) -> None:
    back = asyncio.Event()

    async def pay(info: StepInfo) -> Any:
        try:
            await back.wait()
        except asyncio.CancelledError:
            return provider.call(info.idempotency_key)  # it went through all the same

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay)

    handle = await harness.start("pay")
    worker = harness.test_worker
    assert worker is not None
    await until(lambda: worker.executions and any(e.running for e in worker.executions.values()), harness)
    async with Harness(harness, url=harness.url, clock=harness.clock) as other:
        assert other.test_worker is not None
        await until(lambda: query(harness.url, "select 1 from holdfast.effects where state = 'started'"))
        await other.service.store.release_worker(worker.id, other.test_worker.id, stopped=False)
        worker.fenced(worker.id)
        await until(lambda: provider.calls)
        await until(lambda: query(harness.url, "select 1 from holdfast.effect_observations"))
        await other.run_until_idle()
        assert (await other.instance(handle.id).status()).status == "waiting"
        [view] = await other.effects.list()
        assert len((await other.effects.show(view.id)).observations) == 1


async def test_effects_may_be_branches_of_parallel(harness: Harness, provider: FakeProvider) -> None:
    def send(what: str, info: StepInfo) -> Any:
        return provider.call(info.idempotency_key, what)

    @harness.workflow("notify")
    async def workflow(ctx: Context) -> Any:
        return await ctx.parallel(
            "notify",
            {
                "crm": (lambda x: x, "pushed"),
                "mail": effect(send, "hello", mode="keyed"),
                "sms": effect(send, "hi"),
            },
        )

    handle = await harness.start("notify")
    crm, mail, sms = await harness.finish(handle)
    assert (crm, mail["request"], sms["request"]) == ("pushed", "hello", "hi")
    assert len(provider.deeds) == 2


async def test_every_effect_of_every_instance_has_a_key_of_its_own(harness: Harness, provider: FakeProvider) -> None:
    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key)

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> None:
        await ctx.effect("pay", pay)
        await ctx.effect("pay", pay)
        await ctx.effect("pay", pay, key="other")

    for tenant in ("acme", "globex"):
        await harness.start("pay", tenant=tenant)
    await harness.run_until_idle()
    assert len(provider.calls) == len(set(provider.calls)) == 6


async def test_effects_are_listed_by_state_however_many_others_there_are(
    harness: Harness, provider: FakeProvider
) -> None:
    declare(harness, provider)
    provider.plan("rejected")
    await harness.start("pay")
    await harness.run_until_idle()
    for _ in range(3):
        harness.clock.move(timedelta(seconds=1))
        await harness.start("pay")
        await harness.run_until_idle()
    assert [view.state for view in await harness.effects.list(state="failed", limit=1)] == ["failed"]
    assert len(await harness.effects.list(state="succeeded", limit=2)) == 2


async def test_nothing_in_the_desk_crosses_tenants(harness: Harness, provider: FakeProvider) -> None:
    declare(harness, provider)
    provider.plan("timeout_before")
    await harness.start("pay", tenant="acme")
    await harness.run_until_idle()
    assert await harness.effects.list(state=None) == []
    assert len(await harness.tenant("acme").effects.list()) == 1


async def test_not_applied_and_rejected_are_ordinary_errors_in_a_step(harness: Harness) -> None:
    def step(kind: str) -> None:
        raise NotApplied("x") if kind == "a" else Rejected("y")

    @harness.workflow("plain")
    async def workflow(ctx: Context, kind: str) -> None:
        await ctx.step("step", step, kind, max_attempts=1)

    for kind in "ab":
        handle = await harness.start("plain", kind)
        await harness.run_until_idle()
        assert (await handle.status()).status == "failed"


async def test_a_lookup_that_finds_nothing_starts_the_next_attempt_whatever_retry_on_says(
    harness: Harness, provider: FakeProvider
) -> None:
    @harness.workflow("order")
    async def order(ctx: Context) -> Any:
        def pay(info: StepInfo) -> Any:
            return provider.call(info.idempotency_key)

        return await ctx.effect("pay", pay, mode="lookup", lookup=provider.find, retry_on=ConnectionError)

    provider.plan("timeout_before")
    handle = await harness.start("order")
    await harness.advance(minutes=5)
    assert (await handle.status()).status == "completed"
    assert len(provider.calls) == 2
