"""`ctx.restart(input)`: the same instance begins again with an empty journal, and nothing is lost on the way."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from holdfast import Context, ForkRefused, Holdfast, RestartRefused, StepInfo
from holdfast.engine import ids
from holdfast.store.port import Claimed
from holdfast.testing import FakeProvider, Harness, ManualClock
from tests.flows.support import entries, next_worker, query, tamper, types
from tests.support.auditor import assert_sound

CALLS: Counter[str] = Counter()


class Round(msgspec.Struct):
    number: int
    last: int
    total: int = 0


def app(provider: FakeProvider | None = None) -> Holdfast:
    hf = Holdfast("sqlite:///unused.db")
    paid = provider or FakeProvider()

    async def charge(info: StepInfo) -> Any:
        return paid.call(info.idempotency_key)

    @hf.workflow("rounds")
    async def rounds(ctx: Context, given: Round) -> dict[str, int]:
        """A step, an effect, a child, a timer and a signal in each epoch."""
        await ctx.step("count", lambda: CALLS.update(["count"]), thread=False)
        receipt = await ctx.effect("charge", charge, mode="keyed", window=timedelta(hours=1))
        doubled = await ctx.child("double", "double", given.number)
        await ctx.sleep("rest", timedelta(hours=1))
        note = await ctx.wait_for_signal("go")
        ctx.now()
        if given.number < given.last:
            ctx.restart(Round(given.number + 1, given.last, given.total + doubled + note))
        return {"epoch": ctx.epoch, "total": given.total + doubled + note, "receipts": len(receipt)}

    @hf.workflow("double")
    async def double(ctx: Context, n: int) -> int:
        return n * 2

    @hf.workflow("poll")
    async def poll(ctx: Context, seen: int) -> int:
        found = await ctx.wait_for_signal("item", timeout=timedelta(days=1))
        if found != "stop":
            ctx.restart(seen + 1)
        return seen

    return hf


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLS.clear()


async def test_an_instance_that_restarts_goes_on_with_its_new_input_as_itself(url: str, provider: FakeProvider) -> None:
    async with Harness(app(provider), url=url) as test:
        handle = await test.start("rounds", Round(0, 3), business_key="sub-1", trace_id="ours")
        for n in range(4):
            await test.advance(hours=2)
            assert (await handle.status()).epoch == n
            await handle.signal("go", n + 1)
        await test.run_until_idle()
        assert await handle.result(0) == {"epoch": 3, "total": 0 + 2 + 4 + 6 + 1 + 2 + 3 + 4, "receipts": 2}
        view = await handle.status()
        assert (view.epoch, view.business_key, view.trace_id) == (3, "sub-1", "ours")
        assert view.input == {"number": 0, "last": 3, "total": 0}
        assert CALLS["count"] == 4
        found = await entries(handle, "INSTANCE_RESTARTED")
        assert [e.payload["epoch"] for e in found] == [1, 2, 3]
        assert found[0].payload["input"] == {"number": 1, "last": 3, "total": 1}
        # A new key at the provider in every epoch, the first one as ever.
        raw = ids.parse("ins", handle.id)
        expected = [ids.idempotency_key(ids.effect_id("default", raw, "charge", n)) for n in range(4)]
        assert provider.calls == expected
        assert expected[0] == ids.idempotency_key(ids.derived("effect", "default", raw, "charge"))
        rows = query(url, "select idempotency_key from holdfast.effects where state = 'succeeded' order by started_at")
        assert [key for (key,) in rows] == expected
        again = await test.start("rounds", Round(0, 3), business_key="sub-1")
        assert again.id == handle.id
        assert (await test.verify()).faults == []
    assert_sound(url, provider_calls=provider.calls)


async def test_a_claim_reads_the_epoch_and_not_what_was_before(url: str) -> None:
    read: list[int] = []
    async with Harness(app(), url=url) as test:
        claim = test.service.store.claim

        async def counted(*given: Any, **more: Any) -> Any:
            found: tuple[list[Claimed], Any] = await claim(*given, **more)
            read.extend(len(one.history) for one in found[0])
            return found

        test.service.store.claim = counted  # type: ignore[method-assign]
        handle = await test.start("poll", 0)
        for n in range(40):
            await handle.signal("item", n)
            await test.run_until_idle()
        assert (await handle.status()).epoch == 40
        assert max(read) <= 3, "an epoch has its restart and one wait"
        await handle.signal("item", "stop")
        await test.run_until_idle()
        assert await handle.result(0) == 40
        history = await handle.history()
        assert [e.seq for e in history] == list(range(1, len(history) + 1))
        assert Counter(e.type for e in history)["SIGNAL_RECEIVED"] == 41
    assert_sound(url)


async def test_signals_nobody_has_taken_stay_for_the_next_epoch_in_their_order(url: str) -> None:
    async with Harness(app(), url=url) as test:
        handle = await test.start("poll", 0)
        for n in range(150):
            await handle.signal("item", n, id=f"i{n:04}")
        await test.run_until_idle()
        assert [e.payload["result"] for e in await entries(handle, "SIGNAL_RECEIVED")] == list(range(150))
        assert (await handle.status()).epoch == 150
    assert_sound(url)


async def refused(test: Harness, body: Any, given: Any = None) -> str:
    name = f"refused{len(list(test.registry.names()))}"
    test.workflow(name)(body)
    handle = await test.start(name, given)
    await test.advance(days=2)
    view = await handle.status()
    assert (view.status, (await types(handle))[-1]) == ("waiting", "INSTANCE_PARKED")
    assert "INSTANCE_RESTARTED" not in await types(handle)
    await handle.cancel("enough")
    await test.advance(days=2)
    assert (await handle.status()).status == "cancelled"
    return view.waiting_on or ""


async def forever() -> None:
    await asyncio.sleep(0.01)


async def test_work_under_way_refuses_a_restart_and_is_named(harness: Harness, provider: FakeProvider) -> None:
    first_done = asyncio.Event()

    async def step(ctx: Context) -> None:
        ctx.step("slow", forever)
        ctx.restart()

    async def charges(ctx: Context) -> None:
        ctx.effect("charge", forever)
        ctx.restart()

    async def child(ctx: Context) -> None:
        ctx.child("sub", "nothing")
        ctx.restart()

    async def branches(ctx: Context) -> None:
        async def one() -> None:
            await ctx.step("first", forever)
            try:
                ctx.restart()
            finally:
                first_done.set()

        await asyncio.gather(one(), ctx.step("second", first_done.wait))

    async def cancelled(ctx: Context) -> None:
        task = asyncio.ensure_future(ctx.step("dropped", forever))
        await ctx.step("other", lambda: 1, thread=False)
        task.cancel()
        ctx.restart()

    @harness.workflow("nothing")
    async def nothing(ctx: Context) -> None: ...

    assert "step 'slow' has no result yet" in await refused(harness, step)
    assert "effect 'charge' has no result yet" in await refused(harness, charges)
    assert "child 'sub' has no result yet" in await refused(harness, child)
    assert "step 'second' has no result yet" in await refused(harness, branches)
    assert "step 'dropped' has no result yet" in await refused(harness, cancelled)


async def test_steps_that_may_have_to_be_undone_refuse_a_restart(harness: Harness) -> None:
    undone: list[str] = []

    async def body(ctx: Context) -> None:
        await ctx.step("reserve", lambda: 1, thread=False, compensate=lambda: undone.append("reserve"))
        ctx.restart()

    assert "step 'reserve' may have to be undone" in await refused(harness, body)
    assert undone == ["reserve"]


async def test_a_failure_that_nobody_looked_at_refuses_a_restart(harness: Harness) -> None:
    def fails() -> None:
        raise ValueError("no")

    async def body(ctx: Context) -> None:
        ctx.step("broken", fails, max_attempts=1, thread=False)
        await ctx.sleep("rest", 1)
        ctx.restart()

    assert "the failure of step 'broken' was never awaited" in await refused(harness, body)


async def test_an_input_that_does_not_fit_is_refused_where_it_is_given(harness: Harness) -> None:
    async def body(ctx: Context, given: Round) -> None:
        ctx.restart({"number": "many"})

    assert "the input does not fit" in await refused(harness, body, Round(1, 1))


async def test_a_refused_restart_can_be_caught_and_the_workflow_goes_on_also_after_a_crash(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")

    @hf.workflow("careful")
    async def careful(ctx: Context, n: int) -> str:
        if not n:
            slow = ctx.step("slow", forever)
            try:
                ctx.restart(1)
            except RestartRefused as error:
                found = str(error)
            assert "slow" in found
            await ctx.wait_for_signal("go")
            await slow
            ctx.restart(1)
        return "restarted"

    async with Harness(hf, url=url) as test:
        handle = await test.start("careful", 0)
        await test.run_until_idle()
        async with next_worker(test) as other:
            await other.instance(handle.id).signal("go")
            await other.run_until_idle()
            assert await other.instance(handle.id).result(0) == "restarted"
    assert_sound(url)


async def test_whoever_catches_everything_restarts_all_the_same(harness: Harness) -> None:
    said: list[str] = []

    @harness.workflow("stubborn")
    async def stubborn(ctx: Context, n: int) -> int:
        if n == 2:
            return n
        try:
            try:
                ctx.restart(n + 1)
            except Exception:
                said.append("taken for an error")
        except BaseException:
            try:
                ctx.child("a child", "stubborn", 2)  # a new instance, if it were heard
                await ctx.step("after", lambda: said.append("ran"), thread=False)
            finally:
                return -1  # noqa: B012

    @harness.workflow("branch")
    async def branch(ctx: Context, n: int) -> int:
        async def one() -> None:
            await ctx.wait_for_signal("a")
            if n < 1:
                ctx.restart(n + 1)

        async def two() -> None:
            await ctx.wait_for_signal("b")
            await ctx.step("two", lambda: said.append("two"), thread=False)

        await asyncio.gather(one(), two(), return_exceptions=True)
        return n

    first = await harness.start("stubborn", 0)
    second = await harness.start("branch", 0)
    await second.signal("a")
    await harness.run_until_idle()
    assert await first.result(0) == 2
    assert said == [] and len(await harness.instances()) == 2
    assert [type_ for type_ in await types(first) if type_ != "INSTANCE_STARTED"] == [
        "INSTANCE_RESTARTED", "INSTANCE_RESTARTED", "INSTANCE_COMPLETED",
    ]  # fmt: skip
    assert (await second.status()).epoch == 1
    await second.signal("a")
    await second.signal("b")
    await harness.run_until_idle()
    assert (await second.result(0), said) == (1, ["two"])


async def test_restart_belongs_to_the_workflows_own_code(harness: Harness) -> None:
    asked: list[Context] = []

    async def inside(_: str) -> None:
        asked[0].restart()

    @harness.workflow("inside")
    async def body(ctx: Context) -> None:
        asked.append(ctx)
        await ctx.step("inside", inside, ctx.instance_id, max_attempts=1)

    handle = await harness.start("inside")
    await harness.run_until_idle()
    assert "INSTANCE_RESTARTED" not in await types(handle)
    assert (await handle.status()).status != "completed"


async def test_a_paused_instance_restarts_when_it_is_resumed_and_a_cancelled_one_ends(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    began, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        await gate.wait()

    @hf.workflow("work")
    async def work(ctx: Context, n: int) -> int:
        if not n:
            await ctx.step("slow", slow)
            ctx.restart(1)
        await ctx.wait_for_signal("end")
        return n

    async with Harness(hf, url=url) as test:
        handle = await test.start("work", 0)
        running = asyncio.create_task(test.run_until_idle())
        await began.wait()
        await handle.pause("audit", actor="ann")
        while "INSTANCE_PAUSED" not in await types(handle):
            await asyncio.sleep(0.001)
        gate.set()
        await running
        await test.run_until_idle()
        assert ((await handle.status()).epoch, "paused" in ((await handle.status()).waiting_on or "")) == (0, True)
        await handle.resume()
        await test.run_until_idle()
        assert (await handle.status()).epoch == 1
        await handle.cancel("enough", actor="ann")
        await test.run_until_idle()
        assert (await handle.status()).status == "cancelled"
    assert_sound(url)


async def test_a_fork_of_an_instance_that_restarted_goes_on_from_its_last_epoch(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    broken = [True]
    ran: list[str] = []

    def fragile(n: int) -> int:
        ran.append(f"fragile {n}")
        if broken[0]:
            raise ValueError("not yet")
        return n

    @hf.workflow("work")
    async def work(ctx: Context, n: int) -> int:
        await ctx.step("count", lambda: ran.append(f"count {n}"), thread=False)
        if n < 2:
            await ctx.step("early", lambda: 1, thread=False)
            ctx.restart(n + 1)
        return await ctx.step("fragile", fragile, n, max_attempts=1, thread=False)

    async with Harness(hf, url=url) as test:
        handle = await test.start("work", 0)
        await test.run_until_idle()
        assert (await handle.status()).status == "failed"
        broken[0] = False
        with pytest.raises(ForkRefused, match="'early' is not in its history since it last restarted"):
            await handle.fork("early", reason="x", actor="ann")
        again = await handle.retry(reason="mended", actor="ann")
        assert again is not None
        await test.run_until_idle()
        assert await again.result(0) == 2
        assert ran == ["count 0", "count 1", "count 2", "fragile 2", "fragile 2"]
        view = await again.status()
        assert (view.epoch, view.input) == (0, 2)
        fork = await handle.fork("count", reason="x", actor="ann")
        await test.run_until_idle()
        assert (await fork.result(0), ran[-2:]) == (2, ["count 2", "fragile 2"])
    assert_sound(url)


@pytest.mark.parametrize("said", ["while it is looked up", "while the turn is on its way"])
async def test_a_word_about_an_effect_of_an_earlier_epoch_decides_nothing_in_a_later_one(url: str, said: str) -> None:
    """Said of an effect that a lookup then found out about by itself."""
    hf = Holdfast("sqlite:///unused.db")
    looking, go_on = asyncio.Event(), asyncio.Event()
    calls: list[int] = []

    async def pay(n: int) -> str:
        calls.append(n)
        raise ConnectionResetError("no answer")

    async def look(key: str) -> str:
        looking.set()
        await go_on.wait()
        return "paid"

    @hf.workflow("monthly")
    async def monthly(ctx: Context, n: int) -> str:
        if n == 0:
            await ctx.effect("pay", pay, n, mode="lookup", lookup=look)
            ctx.restart(1)
        return await ctx.effect("pay", pay, n)

    async with Harness(hf, url=url) as test:
        handle = await test.start("monthly", 0)
        running = asyncio.create_task(test.advance(minutes=5))
        await looking.wait()
        [effect] = await test.effects.list(state="outcome_unknown")

        async def say() -> None:
            await test.effects.resolve(effect.id, "did_not_happen", actor="ann", reason="the bank knows nothing of it")

        if said == "while it is looked up":
            await say()
        else:
            worker = test.test_worker
            assert worker is not None
            submit = worker.committer.submit

            def held(turn: Any, done: Any) -> None:
                async def later() -> None:
                    await say()
                    submit(turn, done)

                worker.committer.submit = submit  # type: ignore[method-assign]
                worker.spawn(later())

            worker.committer.submit = held  # type: ignore[method-assign]
        go_on.set()
        await running
        await test.run_until_idle()
        assert (await handle.status()).epoch == 1
        assert calls == [0, 1], "paid again, and nobody has decided so"
        [open_] = await test.effects.list(state="outcome_unknown")
        assert (open_.attempt, open_.id == effect.id) == (1, False)
        assert [entry.name for entry in await handle.history() if entry.type == "INSTANCE_RESUMED"] == [
            "resolution of pay"
        ]
        await test.effects.resolve(open_.id, "happened", result="paid", actor="ann", reason="the bank has it")
        await test.run_until_idle()
        assert (await handle.result(0), calls) == ("paid", [0, 1])
    assert_sound(url)


@pytest.mark.parametrize(
    ("epoch", "change"),
    [(1, "epoch_seq = epoch_seq + 1"), (1, "epoch_seq = 0, epoch = 0"), (1, "epoch = 3"), (0, "epoch_seq = 6")],
)
async def test_a_row_that_tells_of_another_epoch_shows_and_nothing_is_done_again(
    url: str, provider: FakeProvider, epoch: int, change: str
) -> None:
    async with Harness(app(provider), url=url) as test:
        handle = await test.start("rounds", Round(0, 3))
        if epoch:
            await handle.signal("go", 1)
        await test.advance(minutes=90)
        assert ((await handle.status()).epoch, len(provider.calls)) == (epoch, epoch + 1)
        tamper(url, f"update holdfast.instances set {change} where parent_id is null")
        [fault] = (await test.verify()).faults
        assert fault.instance_id == handle.id and "begins with row" in fault.fault
        await handle.signal("go", 2)
        with capture_logs() as logs:
            await test.run_until_idle()
        assert [log["event"] for log in logs if log["log_level"] == "error"] == ["instance_unreadable"]
        assert len(provider.calls) == epoch + 1


async def test_a_child_of_an_earlier_epoch_does_not_answer_for_the_next_ones(url: str) -> None:
    """The code was changed under it: it restarts without the child that it had begun."""

    def deploy(body: Any) -> Holdfast:
        hf = Holdfast("sqlite:///unused.db")

        @hf.workflow("kid")
        async def kid(ctx: Context, n: int) -> str:
            await ctx.sleep("nap", timedelta(hours=1 + n))
            return f"kid {n}"

        hf.workflow("parent")(body)
        return hf

    async def before(ctx: Context, n: int) -> str:
        return str(await ctx.child("kid", "kid", n))

    async def after(ctx: Context, n: int) -> str:
        if not ctx.epoch:
            ctx.restart(1)
        return str(await ctx.child("kid", "kid", n))

    clock = ManualClock()
    async with Harness(deploy(before), url=url, clock=clock) as test:
        handle = await test.start("parent", 0)
        await test.run_until_idle()
    async with Harness(deploy(after), url=url, clock=clock) as test:
        again = test.instance(handle.id)
        await again.resume("deployed", actor="ann")
        await test.advance(minutes=90)
        assert ((await again.status()).status, (await again.status()).epoch) == ("waiting", 1)
        await test.advance(hours=2)
        assert await again.result(0) == "kid 1"


async def test_why_tells_of_the_epoch_it_is_in(url: str) -> None:
    async with Harness(app(), url=url) as test:
        handle = await test.start("rounds", Round(0, 5))
        await handle.signal("go", 1)
        await test.advance(minutes=90)
        assert (await handle.status()).epoch == 1
        assert "the timer 'rest'" in await handle.why()
    assert_sound(url)


async def test_a_child_that_restarts_answers_its_parent_once(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")

    @hf.workflow("parent")
    async def parent(ctx: Context) -> int:
        return await ctx.child("sub", "sub", 0)

    @hf.workflow("sub")
    async def sub(ctx: Context, n: int) -> int:
        if n < 3:
            ctx.restart(n + 1)
        return n

    async with Harness(hf, url=url) as test:
        handle = await test.start("parent")
        await test.run_until_idle()
        assert await handle.result(0) == 3
    assert_sound(url)
    assert query(url, "select epoch from holdfast.instances order by epoch") == [(0,), (3,)]
