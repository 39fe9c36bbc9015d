"""Instances of charts that a person has stand still, has try again, or asks about."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import EffectNotOpen, EventInLine, ForkRefused, Handle, Holdfast, TaskInfo
from holdfast.engine.steps import Mode
from holdfast.testing import FakeProvider, Harness
from tests.charts.support import EXPENSE, app, human
from tests.flows.support import next_worker, until
from tests.support.auditor import assert_sound

PAUSED = "paused by ann: audit; resume it to go on"


async def types(handle: Handle) -> list[str]:
    return [entry.type for entry in await handle.history()]


async def begun(test: Harness, chart: dict[str, Any], given: Any = None) -> Handle:
    await test.publish(chart)
    handle = await test.start(chart["id"], given)
    await test.run_until_idle()
    return handle


async def paused(test: Harness, handle: Handle) -> None:
    await handle.pause("audit", actor="ann")
    await test.run_until_idle()
    found = await handle.status()
    assert (found.status, found.waiting_on, found.run_at) == ("waiting", PAUSED, None)


async def test_while_paused_people_answer_and_time_passes_and_nothing_moves(url: str) -> None:
    provider = FakeProvider()
    async with Harness(app(provider), url=url) as test:
        handle = await begun(test, EXPENSE, {"amount": 500})
        await paused(test, handle)
        await handle.send("remind")
        [task] = await test.tasks.list()
        await test.tasks.complete(task.id, {"ok": True}, actor="bob")
        await test.advance(days=9)  # the state would have been left after three days
        assert (await handle.status()).waiting_on == PAUSED
        assert (await handle.status()).state == "review"
        assert provider.calls == []
        assert_sound(url)
        await handle.resume("done", actor="ann")
        await test.run_until_idle()
        # What was said first is taken first, and what a person said in time counts before the time that was up.
        assert await handle.result(0) == {"amount": 500, "reminders": 1}
        assert len(provider.calls) == 1
        assert (await test.verify()).faults == []
        assert_sound(url)


async def test_a_pause_before_the_chart_began_lets_nothing_begin(url: str) -> None:
    async with Harness(app(), url=url) as test:
        await test.publish(EXPENSE)
        handle = await test.start("expense", {"amount": 5})
        await paused(test, handle)
        await handle.send("remind")
        await test.run_until_idle()
        assert (await handle.status()).waiting_on == PAUSED
        assert await handle.snapshot() is None
        assert await test.tasks.list() == []
        assert await handle.why() == "It is paused by ann: audit; resume it to go on."
        assert_sound(url)
        await handle.resume()
        await test.run_until_idle()
        assert (await handle.status()).state == "review"
        assert len(await test.tasks.list()) == 1
        assert_sound(url)


async def test_a_chart_paused_before_it_began_can_be_cancelled(url: str) -> None:
    async with Harness(app(), url=url) as test:
        await test.publish(EXPENSE)
        handle = await test.start("expense", {"amount": 5})
        await paused(test, handle)
        await handle.cancel("enough")
        await test.run_until_idle()
        assert (await handle.status()).status == "cancelled"
        assert_sound(url)


async def test_cancel_lifts_the_pause_of_a_chart(url: str) -> None:
    async with Harness(app(), url=url) as test:
        handle = await begun(test, EXPENSE, {"amount": 5})
        await paused(test, handle)
        await handle.cancel("enough", actor="bob")
        await test.run_until_idle()
        assert (await handle.status()).status == "cancelled"
        assert_sound(url)


async def test_a_strict_send_to_a_paused_chart_is_told_at_once(url: str) -> None:
    async with Harness(app(), url=url) as test:
        handle = await begun(test, EXPENSE, {"amount": 5})
        await paused(test, handle)
        with pytest.raises(EventInLine, match="paused by ann: audit"):
            await handle.send("remind", strict=True, timeout=3600)
        with pytest.raises(EventInLine, match="paused by ann: audit"):
            chart = EXPENSE | {"states": EXPENSE["states"] | {"more": {"type": "final"}}}
            await handle.migrate((await test.publish(chart)).version, actor="ann", timeout=3600)
        await handle.resume()
        await test.run_until_idle()
        assert (await handle.snapshot() or {})["context"]["reminders"] == 1
        assert (await handle.status()).version == 2


def slow(provider: FakeProvider, gate: list[Any]) -> Holdfast:
    hf = Holdfast("sqlite:///unused.db")

    @hf.task_handler("SYSTEM", "slow")
    async def work(given: Any) -> str:
        if gate:
            await gate.pop(0).wait()
        return "worked"

    @hf.task_handler("SYSTEM", "flaky", thread=False)
    def flaky(given: Any) -> str:
        provider.call("flaky")
        return "there"

    @hf.task_handler("SYSTEM", "pay", kind="effect", thread=False)
    def pay(given: Any, info: TaskInfo) -> Any:
        return provider.call(info.idempotency_key)

    return hf


def one_task(name: str, **more: Any) -> dict[str, Any]:
    task = {"type": "SYSTEM", "name": name, "max_attempts": 3, "backoff": "PT1H", **more}
    return {
        "id": "one",
        "initial": "doing",
        "states": {
            "doing": {"invoke": {"src": {"task": task}, "onDone": "next", "onError": "bad"}},
            "next": {"entry": human("look"), "on": {"go": "over"}},
            "bad": {"type": "final"},
            "over": {"type": "final"},
        },
    }


async def test_a_task_under_way_is_settled_and_its_answer_waits(url: str) -> None:
    gate = asyncio.Event()
    async with Harness(slow(FakeProvider(), [gate]), url=url) as test:
        await test.publish(one_task("slow"))
        handle = await test.start("one")
        worker = test.test_worker
        assert worker is not None
        await until(lambda: any(ex.running for ex in worker.executions.values()), test)
        await handle.pause("audit", actor="ann")
        held = worker.executions[handle._raw]
        await until(lambda: held.paused is not None, test)
        gate.set()
        await test.run_until_idle()
        assert (await handle.status()).waiting_on == PAUSED
        assert (await handle.status()).state == "doing"
        assert "TASK_COMPLETED" in await types(handle)
        assert_sound(url)
        async with next_worker(test) as other:
            await other.instance(handle.id).resume()
            await other.run_until_idle()
            assert (await other.instance(handle.id).status()).state == "next"
            assert_sound(url)


async def test_a_retry_has_a_task_begin_its_next_attempt_at_once(url: str) -> None:
    provider = FakeProvider()
    provider.plan("timeout_before", "timeout_before")
    async with Harness(slow(provider, []), url=url) as test:
        handle = await begun(test, one_task("flaky"))
        said = await handle.why()
        assert "attempt 2 of 3 of SYSTEM task 'flaky' at 2026-01-01T" in said
        assert "after TimeoutError: no answer, at " in said
        for calls in (2, 3):
            await handle.retry("the line is back", actor="ann")
            await test.run_until_idle()
            assert len(provider.calls) == calls
        assert (await handle.status()).state == "next"
        assert_sound(url)


async def test_a_retry_of_a_paused_chart_is_kept_for_its_resume_by_another_worker(url: str) -> None:
    provider = FakeProvider()
    provider.plan("timeout_before")
    async with Harness(slow(provider, []), url=url) as test:
        handle = await begun(test, one_task("flaky"))
        await paused(test, handle)
        await handle.retry()
        await test.run_until_idle()
        assert len(provider.calls) == 1
        assert_sound(url)
        async with next_worker(test) as other:
            await other.instance(handle.id).resume()
            await other.run_until_idle()
            assert len(provider.calls) == 2
            assert (await other.instance(handle.id).status()).state == "next"
            assert_sound(url)


async def test_a_retry_starts_what_did_not_happen_and_never_what_may_have(url: str) -> None:
    provider = FakeProvider()
    provider.plan("not_applied", "timeout_after")
    async with Harness(slow(provider, []), url=url) as test:
        handle = await begun(test, one_task("pay"))
        await handle.retry()
        await test.run_until_idle()
        assert len(provider.calls) == 2
        await handle.retry()
        await test.run_until_idle()
        assert len(provider.calls) == 2
        assert "at the effect desk what became of effect 'pay/1.0'" in await handle.why()
        assert_sound(url, provider_calls=provider.calls)


async def test_a_delayed_task_is_not_hurried_by_a_retry(url: str) -> None:
    provider = FakeProvider()
    async with Harness(slow(provider, []), url=url) as test:
        handle = await begun(test, one_task("flaky", delay="PT5H"))
        await handle.retry()
        await test.run_until_idle()
        assert provider.calls == []
        assert await handle.why() == "It waits for the timer 'flaky' at 2026-01-01T14:00:00Z."


def keyed(provider: FakeProvider, mode: Mode = "keyed") -> Holdfast:
    hf = Holdfast("sqlite:///unused.db")

    @hf.task_handler(
        "SYSTEM", "pay", kind="effect", mode=mode, lookup=provider.find if mode == "lookup" else None, thread=False
    )
    def pay(given: Any, info: TaskInfo) -> Any:
        return provider.call(info.idempotency_key)

    return hf


@pytest.mark.parametrize(
    ("mode", "plan", "said"),
    [
        ("keyed", "timeout_before", "attempt 2 of 3 of SYSTEM task 'pay' at 2026-01-01T{at}, after TimeoutError: no"),
        ("keyed", "not_applied", "attempt 2 of 3 of SYSTEM task 'pay' at 2026-01-01T{at}, after NotApplied: the"),
        ("lookup", "timeout_before", "a lookup of effect 'pay/1.0' at 2026-01-01T{at}, after TimeoutError: no answer"),
    ],
)
async def test_why_names_the_next_attempt_at_an_effect_or_its_lookup(
    url: str, mode: Mode, plan: str, said: str
) -> None:
    provider = FakeProvider()
    provider.plan(plan)
    async with Harness(keyed(provider, mode), url=url) as test:
        handle = await begun(test, one_task("pay"))
        [task] = await test.tasks.list()
        at = (await handle.status()).run_at
        assert task.run_at == at is not None
        assert f"It waits for {said.format(at=f'{at:%H:%M:%SZ}')}" in await handle.why()
        assert ("a retry begins it at once" in await handle.why()) is (plan == "not_applied")
        assert_sound(url)
        async with next_worker(test) as other:  # which reads it from the row
            await other.advance(hours=1)
            assert (await other.instance(handle.id).status()).state == "next"
            assert_sound(url, provider_calls=provider.calls)


DIVIDED = {"@expr": "1 / context.n"}
INCIDENT: dict[str, Any] = {
    "id": "fragile",
    "context": {"n": {"@expr": "event.input.n"}},
    "initial": "calm",
    "states": {
        "calm": {"on": {"go": {"target": "over", "actions": {"type": "assign", "assign": {"x": DIVIDED}}}}},
        "over": {"type": "final"},
    },
}


async def test_a_retry_resumes_an_incident_and_why_names_it(url: str) -> None:
    async with Harness(app(), url=url) as test:
        handle = await begun(test, INCIDENT, {"n": 0})
        assert await handle.why() == "It waits for an event that moves it on from 'calm'."
        await handle.send("go")
        await test.run_until_idle()
        said = await handle.why()
        assert said.startswith("A step of its chart was refused (") and "resume it and drop the event" in said
        await handle.retry(actor="ann")
        await test.run_until_idle()
        assert (await types(handle))[-2:] == ["INSTANCE_RETRIED", "ERROR"]
        await handle.resume(drop_event=True)
        await test.run_until_idle()
        assert (await handle.status()).waiting_on == "in calm: an event"
        assert_sound(url)


PAYING_AND_CALM: dict[str, Any] = {
    "id": "paying",
    "type": "parallel",
    "states": {
        "paying": {"initial": "pay", "states": one_task("pay")["states"] | {"pay": one_task("pay")["states"]["doing"]}},
        "calm": {
            "initial": "calm",
            "states": {
                "calm": {"on": {"go": {"guard": {"@expr": "event.x > 3"}, "target": "over"}}, "after": {"P9D": "over"}},
                "over": {"type": "final"},
            },
        },
    },
}


async def test_a_chart_that_was_refused_a_step_and_is_cancelled_waits_for_its_end_alone(url: str) -> None:
    provider = FakeProvider()
    provider.plan("timeout_after")
    async with Harness(slow(provider, []), url=url) as test:
        handle = await begun(test, PAYING_AND_CALM)
        await handle.send("go")
        await test.run_until_idle()
        assert str((await handle.status()).waiting_on).startswith("parked: /states/calm/")
        await handle.cancel("enough", actor="ann")
        await test.run_until_idle()
        found = await handle.status()
        assert str(found.waiting_on).startswith("its end (cancelled): a person: the outcome of effect 'pay/1.0'")
        assert "at the effect desk what became of effect 'pay/1.0'" in await handle.why()
        assert (await handle.why()).startswith("It is ending (cancelled) and waits for a person to say at the")
        assert "xstate.after" not in await handle.why(), "none of its timers fires any more"
        assert await test.service.store.fetch("count_parked", limit=10) == [(0,)]
        [effect] = await test.effects.list()
        await test.effects.resolve(effect.id, "happened", actor="ann", reason="in the list", result={"id": 1})
        await test.run_until_idle()
        assert (await handle.status()).status == "cancelled"
        assert_sound(url, provider_calls=provider.calls)


async def test_a_keyed_effect_repeats_itself_though_its_chart_was_refused_a_step(url: str) -> None:
    provider = FakeProvider()
    provider.plan("timeout_after")
    async with Harness(keyed(provider), url=url) as test:
        handle = await begun(test, PAYING_AND_CALM)
        await handle.send("go")
        await test.run_until_idle()
        assert str((await handle.status()).waiting_on).startswith("parked: ")
        [effect] = await test.effects.list()
        with pytest.raises(EffectNotOpen, match="repeats itself with the same key"):
            await test.effects.resolve(effect.id, "did_not_happen", actor="ann", reason="not in the list")
        await test.advance(hours=1)
        assert await test.effects.list() == []
        assert len(provider.calls) == 2
        assert_sound(url, provider_calls=provider.calls)


async def test_a_chart_cannot_be_forked(url: str) -> None:
    async with Harness(app(), url=url) as test:
        handle = await begun(test, EXPENSE, {"amount": 5})
        await handle.cancel()
        await test.run_until_idle()
        assert await handle.why() == "It was cancelled (cancelled): start a new one."
        for ask in (handle.fork, handle.retry):
            with pytest.raises(ForkRefused, match="it is of kind chart: start a new one, or migrate"):
                await ask()


async def test_why_names_the_task_that_gives_no_answer_and_counts_from_where_it_began(url: str) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    doing = one_task("slow")["states"]["doing"]["invoke"]
    final = {"type": "final"}
    chart = {"id": "twice", "initial": "a", "states": {
        "a": {"invoke": doing | {"onDone": "b"}}, "b": {"invoke": doing}, "next": final, "bad": final}}  # fmt: skip
    async with Harness(slow(FakeProvider(), [first, second]), url=url) as test:
        await test.publish(chart)
        handle = await test.start("twice")

        async def silent(key: str) -> str:
            worker = test.test_worker
            assert worker is not None
            await until(
                lambda: any(key in str(ex.running) and not ex.committing for ex in worker.executions.values()), test
            )
            test.clock.move(timedelta(minutes=10))
            return await handle.why()

        for at, key, gate in (("09:00", "slow/1.", first), ("09:10", "slow/2.", second)):
            said = f"is at work on it, without an answer of SYSTEM task 'slow' for 0:10:00 (since 2026-01-01T{at}:00Z)"
            assert said in await silent(key)
            gate.set()
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"


async def test_why_names_the_person_or_the_groups(url: str) -> None:
    async with Harness(app(), url=url) as test:
        handle = await begun(test, EXPENSE, {"amount": 5})
        assert await handle.why() == (
            "It waits for somebody of staff to take the task 'approve', open since 2026-01-01T09:00:00Z; and for the "
            "timer 'xstate.after.P3D.expense.review' at 2026-01-04T09:00:00Z."
        )
        [task] = await test.tasks.list()
        await test.tasks.claim(task.id, actor="bob")
        assert "bob to finish the task 'approve'" in await handle.why()


async def test_why_names_the_handler_or_the_child_that_no_worker_has(url: str) -> None:
    chart = one_task("unheard") | {"id": "lonely"}
    child = {
        "id": "above",
        "initial": "a",
        "states": {"a": {"invoke": {"src": {"workflow": "nowhere"}, "onDone": "b"}}, "b": {"type": "final"}},
    }
    async with Harness(app(), url=url) as test:
        for spec, missing in ((chart, "handler 'unheard'"), (child, "child workflow 'nowhere'")):
            handle = await begun(test, spec)
            assert f"no living worker has {missing}: start a worker that has" in await handle.why()
