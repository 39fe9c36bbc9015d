"""Two workers, fences and crashes: no task is run by two, and what a fenced worker brings changes nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, TaskInfo, TaskNotOpen, effect
from holdfast.engine.turns import Outcome, Turn
from holdfast.testing import FakeProvider, Harness
from tests.charts.support import human
from tests.flows.support import Gate, next_worker, query, until
from tests.support.auditor import assert_sound

CHAIN: dict[str, Any] = {
    "id": "chain",
    "context": {"n": 0},
    "initial": "work",
    "states": {
        "work": {
            "invoke": {
                "src": "work",
                "input": {"@expr": "context.n"},
                "onDone": {
                    "target": "check",
                    "actions": {"type": "assign", "assign": {"n": {"@expr": "context.n + 1"}}},
                },
                "onError": "broken",
            }
        },
        "check": {"always": [{"guard": {"@expr": "context.n >= 5"}, "target": "done"}, {"target": "work"}]},
        "done": {"type": "final"},
        "broken": {"type": "final"},
    },
}
PAYING: dict[str, Any] = {
    "id": "paying",
    "initial": "pay",
    "states": {
        "pay": {"invoke": {"src": "pay", "onDone": "paid", "onError": "refused"}},
        "paid": {"type": "final"},
        "refused": {"type": "final"},
    },
}


async def test_two_workers_never_run_one_task(url: str) -> None:
    runs: Counter[str] = Counter()
    under_way: set[str] = set()

    def app() -> Holdfast:
        hf = Holdfast(url)

        @hf.task_handler("SYSTEM", "work")
        async def work(given: Any, info: TaskInfo) -> Any:
            assert info.task_id not in under_way, "two at once"
            under_way.add(info.task_id)
            await asyncio.sleep(0.002)
            under_way.discard(info.task_id)
            runs[info.task_id] += 1
            return given

        return hf

    one, two = app(), app()
    async with one, two, one.worker(concurrency=20), two.worker(concurrency=20):
        await one.publish(CHAIN)
        handles = await one.start_many("chain", [None] * 60)
        await asyncio.gather(*(handle.result(60) for handle in handles))
    assert len(runs) == 300 and set(runs.values()) == {1}
    assert_sound(url)


async def test_two_events_at_once_are_both_applied_one_after_the_other(url: str) -> None:
    counting = {
        "id": "counting", "context": {"n": 0}, "initial": "on", "output": {"@expr": "context.n"},
        "states": {
            "on": {"on": {"more": {"actions": {"type": "assign", "assign": {"n": {"@expr": "context.n + 1"}}}},
                          "stop": "off"}},
            "off": {"type": "final"},
        },
    }  # fmt: skip
    one, two = Holdfast(url), Holdfast(url)
    async with one, two, one.worker(), two.worker():
        await one.publish(counting)
        handle = await one.start("counting")
        await asyncio.gather(*(hf.send(handle.id, "more", id=f"m{n}") for n in range(40) for hf in (one, two)))
        await one.send(handle.id, "stop", strict=True)
        assert await handle.result(60) == 40
    assert_sound(url)


async def test_a_strict_event_that_ends_the_instance_is_not_told_that_it_came_too_late(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = Holdfast(url)
    async with hf:
        await hf.publish(
            {"id": "short", "initial": "on", "states": {"on": {"on": {"stop": "off"}}, "off": {"type": "final"}}}
        )
        handle = await hf.start("short")
        store = hf.service.store
        fetch = store.fetch
        seen: list[str] = []

        async def slow(name: str, **values: Any) -> Any:
            rows = await fetch(name, **values)
            if name == "read_event" and not seen:  # between this look and the next, the event is taken
                seen.append(name)
                assert rows[0][4] is None
                async with hf.worker():
                    await handle.result(60)
            return rows

        monkeypatch.setattr(store, "fetch", slow)
        await hf.send(handle.id, "stop", strict=True)
        assert seen


async def test_a_word_that_is_overtaken_by_the_state_being_left_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = {
        "id": "looked-at", "initial": "look",
        "states": {
            "look": {"invoke": {"src": {"task": human("look")["params"]}}, "after": {"P3D": "later"}},
            "later": {},
        },
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(looked_at)
        handle = await test.start("looked-at")
        await test.run_until_idle()
        [task] = await test.tasks.list()
        commit = test.service.commit

        async def overtaken(turn: Turn) -> Outcome:
            if turn.task_changes:  # it was open when the person looked
                await test.advance(days=3)
            return await commit(turn)

        monkeypatch.setattr(test.service, "commit", overtaken)
        with pytest.raises(TaskNotOpen, match="skipped"):
            await test.tasks.complete(task.id, {"ok": True}, actor="ann")
        assert (await test.tasks.show(task.id)).completed_by is None
        assert not [e for e in await handle.history() if e.type in ("TASK_LATE", "TASK_COMPLETED")]
    assert_sound(url)


async def test_what_a_fenced_workers_task_brings_is_evidence_and_moves_nothing(url: str) -> None:
    provider, back = FakeProvider(), asyncio.Event()
    hf = Holdfast("sqlite:///unused.db")

    @hf.task_handler("SYSTEM", "pay", kind="effect")
    async def pay(given: Any, info: TaskInfo) -> Any:
        try:
            await back.wait()
        except asyncio.CancelledError:
            return provider.call(info.idempotency_key)  # it went through all the same

    async with Harness(hf, url=url) as first:
        await first.publish(PAYING)
        handle = await first.start("paying")
        worker = first.test_worker
        assert worker is not None
        await until(lambda: any(e.running for e in worker.executions.values()), first)
        async with Harness(hf, url=url, clock=first.clock) as other:
            assert other.test_worker is not None
            await until(lambda: query(url, "select 1 from holdfast.effects where state = 'started'"))
            await other.service.store.release_worker(worker.id, other.test_worker.id, stopped=False)
            worker.fenced(worker.id)
            await until(lambda: provider.calls)
            await until(lambda: query(url, "select 1 from holdfast.effect_observations"))
            await other.run_until_idle()
            assert "a person: the outcome of effect" in str((await other.instance(handle.id).status()).waiting_on)
            [view] = await other.effects.list()
            [seen] = (await other.effects.show(view.id)).observations
            assert seen.outcome == "returned"
            await other.effects.resolve(view.id, "happened", actor="ann", reason="seen", result=seen.payload)
            await other.run_until_idle()
            assert (await other.instance(handle.id).status()).status == "completed"
            assert provider.calls == [view.idempotency_key]
    assert_sound(url)


async def test_a_step_task_of_a_lost_worker_runs_again_and_its_late_answer_is_nothing(url: str) -> None:
    seen: list[int] = []
    hf = Holdfast("sqlite:///unused.db")

    @hf.task_handler("SYSTEM", "work")
    async def work(given: Any, info: TaskInfo) -> Any:
        seen.append(given)
        if len(seen) == 3:
            await asyncio.Event().wait()
        return given

    async with Harness(hf, url=url) as first:
        await first.publish(CHAIN)
        handle = await first.start("chain")
        await until(lambda: len(seen) == 3, first)
        async with next_worker(first, app=hf) as other:
            await other.run_until_idle()
            assert (await other.instance(handle.id).status()).status == "completed"
            assert seen == [0, 1, 2, 2, 3, 4]
    assert_sound(url)


async def test_a_person_and_the_clock_at_once_leave_one_of_the_two(url: str) -> None:
    """The word is committed while the turn that leaves the state is on its way: it is kept, and comes too late."""
    chart = {
        "id": "race", "initial": "ask",
        "states": {
            "ask": {"entry": {"type": "createTask", "params": {
                "type": "HUMAN", "name": "decide", "groups": ["g"], "completion_event": "decided"}},
                "exit": {"type": "cancelTask", "params": {"name": "decide"}},
                "on": {"decided": "yes"}, "after": {"PT1H": "no"}},
            "yes": {"on": {"end": "over"}}, "no": {"on": {"end": "over"}}, "over": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart)
        handle = await test.start("race")
        await test.run_until_idle()
        [task] = await test.tasks.list()
        worker = test.test_worker
        assert worker is not None
        submit = worker.committer.submit

        def held(turn: Any, done: Any) -> None:
            async def later() -> None:
                await test.tasks.complete(task.id, {"ok": True}, actor="ann")
                submit(turn, done)

            worker.committer.submit = submit  # type: ignore[method-assign]
            worker.spawn(later())

        worker.committer.submit = held  # type: ignore[method-assign]
        test.clock.micros += 3_600_000_000
        await test.run_until_idle()
        assert (await handle.snapshot() or {})["value"] == "no"
        assert [e.type for e in await handle.history()].count("TASK_LATE") == 1
        await handle.send("end")
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
    assert_sound(url)


@pytest.mark.parametrize("word", ["complete", "fail"])
async def test_a_word_behind_an_event_that_may_take_the_task_away_is_refused(url: str, word: str) -> None:
    chart = {
        "id": "withdrawn", "initial": "ask",
        "states": {
            "ask": {"invoke": {"src": {"task": {"type": "HUMAN", "name": "approve"}}, "onDone": "yes"},
                    "on": {"withdraw": "no"}},
            "yes": {"type": "final"}, "no": {"on": {"end": "yes"}},
        },
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart)
        handle = await test.start("withdrawn")
        await test.run_until_idle()
        [task] = await test.tasks.list()

        async def say() -> Any:
            if word == "complete":
                return await test.tasks.complete(task.id, {"ok": True}, actor="ann")
            return await test.tasks.fail(task.id, actor="ann", reason="no")

        await handle.pause("look", actor="bob")
        await test.run_until_idle()
        await handle.send("withdraw")
        with pytest.raises(TaskNotOpen, match=r"event 'withdraw' came before, and takes .* paused"):
            await say()
        await handle.resume("go on", actor="bob")
        await test.run_until_idle()
        view = await test.tasks.show(task.id)
        assert (view.status, view.completed_by) == ("skipped", None)
        with pytest.raises(TaskNotOpen, match="is skipped already"):
            await say()
        assert "TASK_LATE" not in [entry.type for entry in await handle.history()]

        other = await test.start("withdrawn")
        await test.run_until_idle()
        [task] = await test.tasks.list()
        await other.cancel("no more", actor="bob")
        with pytest.raises(TaskNotOpen, match="a cancel came before"):
            await say()
    assert_sound(url)


async def test_a_person_is_heard_while_an_event_that_nobody_can_take_stands_in_line(url: str) -> None:
    chart = {
        "id": "parked", "initial": "ask",
        "states": {
            "ask": {"invoke": {"src": {"task": {"type": "HUMAN", "name": "approve"}}, "onDone": "yes"},
                    "on": {"break": {"target": "ask", "guard": {"@expr": "event.payload.no > 1"}}}},
            "yes": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart)
        handle = await test.start("parked")
        await test.run_until_idle()
        await handle.send("break")
        await test.run_until_idle()
        assert (await handle.status()).waiting_on is not None
        [task] = await test.tasks.list()
        assert (await test.tasks.complete(task.id, {"ok": True}, actor="ann")).status == "succeeded"
        await test.run_until_idle()
        await handle.resume("not for us", actor="bob", drop_event=True)
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
    assert_sound(url)


async def test_a_worker_without_the_handler_leaves_the_instance_to_one_that_has_it(url: str) -> None:
    with_it, without = Holdfast(url), Holdfast(url)

    @with_it.task_handler("SYSTEM", "work", thread=False)
    def work(given: Any) -> Any:
        return given

    async with without, without.worker(poll_seconds=0.05) as idle_worker:
        await without.publish(CHAIN)
        await until(lambda: not idle_worker._more_likely)
        handle = await without.start("chain")
        for _ in range(3):
            assert await idle_worker.run_once() == (0, None)
        assert (await handle.status()).status == "pending"
        async with with_it, with_it.worker():
            await handle.result(20)
    assert_sound(url)


async def test_a_poison_chart_ends_with_its_tasks_closed(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    chart = {
        "id": "poison", "initial": "on",
        "states": {"on": {"entry": {"type": "createTask", "params": {"type": "HUMAN", "name": "look", "groups": ["g"]}},
                          "on": {"go": "off"}}, "off": {"type": "final"}},
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("poison")
        await test.run_until_idle()
        query(url, "update holdfast.instances set attempts = 9")
        await handle.send("go")
        await test.run_until_idle()
        assert (await handle.status()).status == "failed"
        assert {t.status for t in await test.tasks.list(status=None)} == {"cancelled"}
        assert len(await test.dead_letters()) == 1
    assert_sound(url)


async def test_a_chart_whose_handler_takes_its_workers_down_is_buried(url: str) -> None:
    """A lost attempt is begun again without a row of its own: that row would prove the instance harmless each time."""
    begun: list[int] = []
    hf = Holdfast("sqlite:///unused.db")

    @hf.task_handler("SYSTEM", "work")
    async def work(given: Any, info: TaskInfo) -> None:
        begun.append(info.attempt)
        await asyncio.Event().wait()

    async with AsyncExitStack() as stack:
        test = await stack.enter_async_context(Harness(hf, url=url))
        await test.publish(CHAIN)
        handle = await test.start("chain")
        await until(lambda: begun, test)
        for lives in range(2, 7):
            test = await stack.enter_async_context(next_worker(test, app=hf))
            await _until_begun(test, begun, lives)
        test = await stack.enter_async_context(next_worker(test, app=hf))
        await _until_begun(test, begun, 7)
        history = await handle.history()
        assert (await handle.status()).error["type"] == "Poison"
        assert begun == [1] * 6 and [e.type for e in history].count("TASK_STARTED") == 1
    assert_sound(url)


async def _until_begun(test: Harness, begun: list[int], times: int) -> None:
    """Or until the worker has found that it would be once too often."""
    for _ in range(300):
        assert test.test_worker is not None
        test.test_worker.look_for_suspects()
        await test.test_worker.run_once()
        await asyncio.sleep(0.001)
        if len(begun) >= times or (await test.instances())[0].status == "failed":
            return


@pytest.mark.parametrize("mode", ["manual", "keyed", "lookup", "asked already"])
async def test_what_a_buried_chart_left_in_doubt_is_settled_before_it_ends(url: str, mode: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    called: list[str] = []

    async def pay(given: Any) -> None:
        called.append("pay")
        if mode == "asked already":
            raise TimeoutError
        await asyncio.Event().wait()

    async def look(key: str) -> None:
        called.append("look")

    options: Any = {"mode": "lookup", "lookup": look} if mode == "lookup" else {"mode": "keyed"}
    hf.task_handler("SYSTEM", "pay", kind="effect", **(options if mode in ("keyed", "lookup") else {}))(pay)
    async with Harness(hf, url=url) as test:
        await test.publish(PAYING)
        handle = await test.start("paying")
        await until(lambda: called, test)
        if mode == "asked already":
            await test.run_until_idle()
        async with next_worker(test, app=hf) as other:
            query(url, "update holdfast.instances set attempts = 9, run_at = 0")
            assert other.test_worker is not None
            other.test_worker.look_for_suspects()
            await other.run_until_idle()
            [unknown] = await other.effects.list()
            assert unknown.state == "outcome_unknown" and "a person" in str((await handle.status()).waiting_on)
            await other.advance(hours=1)
            assert called == ["pay"]  # its author's code is not run any more
            await other.effects.resolve(unknown.id, "happened", result={"id": "p1"}, reason="seen", actor="ann")
            await other.run_until_idle()
            view = await other.instance(handle.id).status()
            assert (view.status, view.error["type"], len(await other.dead_letters())) == ("failed", "Poison", 1)
    assert_sound(url)


@pytest.mark.parametrize("how", ["heard", "not heard", "crash"])
async def test_a_word_that_a_lookup_has_overtaken_is_in_a_charts_history(url: str, how: str) -> None:
    """`heard`: the worker was told of it. `crash`: it dies right after the turn that settles the effect."""
    hf = Holdfast("sqlite:///unused.db")
    asked, answers = asyncio.Event(), asyncio.Event()

    async def pay(given: Any) -> None:
        raise TimeoutError

    async def look(key: str) -> Any:
        asked.set()
        await answers.wait()
        return {"id": "p1"}

    hf.task_handler("SYSTEM", "pay", kind="effect", mode="lookup", lookup=look)(pay)
    async with Harness(hf, url=url) as test, Harness(url=url, clock=test.clock) as desk:
        await test.publish(PAYING)
        handle = await test.start("paying")
        moves = asyncio.create_task(test.advance(minutes=5))
        await until(asked.is_set, test)
        [view] = await test.effects.list()
        teller = test if how == "heard" else desk
        await teller.effects.resolve(view.id, "happened", result={"id": "p1"}, reason="seen", actor="ann")
        if how == "crash":
            commit = test.service.store.commit

            async def the_last(worker_id: bytes | None, turns: Any) -> Any:
                outcomes = await commit(worker_id, turns)
                if any(row[3] == "EFFECT_SUCCEEDED" for turn in turns for row in turn.history):
                    test.service.store.commit = never  # type: ignore[method-assign]
                return outcomes

            async def never(*_: Any) -> Any:
                await asyncio.Event().wait()

            test.service.store.commit = the_last  # type: ignore[method-assign]
            answers.set()
            await until(lambda: test.service.store.commit is never)
            moves.cancel()
            async with next_worker(test, app=hf) as other:
                await other.run_until_idle()
        else:
            await asyncio.sleep(0.05 if how == "heard" else 0)
            answers.set()
            await moves
        assert (await desk.instance(handle.id).status()).status == "completed"
        past = await desk.instance(handle.id).history()
        assert [entry.payload["actor"] for entry in past if entry.name.startswith("resolution of ")] == ["ann"]
    assert_sound(url)


async def test_a_chart_ends_with_every_late_word_on_record_however_many(url: str) -> None:
    count = 60
    pays = {"pay": {"invoke": {"src": "pay", "onDone": "paid", "onError": "paid"}}, "paid": {"type": "final"}}
    many = {
        "id": "many",
        "type": "parallel",
        "states": {f"s{n}": {"initial": "pay", "states": pays} for n in range(60)},
    }
    hf = Holdfast("sqlite:///unused.db")
    asked, answers = list[str](), asyncio.Event()

    async def pay(given: Any) -> None:
        raise TimeoutError

    async def look(key: str) -> Any:
        asked.append(key)
        await answers.wait()
        return {"id": "p1"}

    hf.task_handler("SYSTEM", "pay", kind="effect", mode="lookup", lookup=look)(pay)
    async with Harness(hf, url=url) as test, Harness(url=url, clock=test.clock) as desk:
        await test.publish(many)
        handle = await test.start("many")
        moves = asyncio.create_task(test.advance(minutes=5))
        await until(lambda: len(asked) >= count, test)
        moves.cancel()
        for view in await desk.effects.list(state="outcome_unknown", limit=100):
            await desk.effects.resolve(view.id, "happened", result={"id": "p1"}, reason="seen", actor="ann")
        answers.set()
        for _ in range(500):
            assert test.test_worker is not None
            await test.test_worker.run_once()
            await asyncio.sleep(0.002)
            if (await handle.status()).status == "completed":
                break
        past = await handle.history()
        taken = [e for e in past if e.name.startswith("resolution of") or e.type == "EFFECT_RESOLVED"]
        assert ((await handle.status()).status, len(taken)) == ("completed", count)


async def test_of_two_people_at_once_one_claims_and_one_completes(url: str) -> None:
    chart = {
        "id": "ask", "initial": "on",
        "states": {"on": {"entry": {"type": "createTask", "params": {
            "type": "HUMAN", "name": "look", "groups": ["g"], "completion_event": "seen"}}, "on": {"seen": "off"}},
            "off": {"type": "final"}},
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart)
        for n in range(8):
            handle = await test.start("ask", business_key=str(n))
            await test.run_until_idle()
            [task] = await test.tasks.list()
            if n % 2:
                claims = [test.tasks.claim(task.id, actor=f"p{p}") for p in range(4)]
                won = [r for r in await asyncio.gather(*claims, return_exceptions=True) if not isinstance(r, Exception)]
                assert len({view.assignee for view in won}) == 1 == len(won)
                words = [test.tasks.complete(task.id, {"by": 1}, actor=won[0].assignee or "")]
            else:
                words = [test.tasks.complete(task.id, {"by": p}, actor=f"p{p}") for p in range(4)]
            said = [r for r in await asyncio.gather(*words, return_exceptions=True) if not isinstance(r, Exception)]
            assert len(said) == 1
            await test.run_until_idle()
            [entry] = [e for e in await handle.history() if e.type == "TASK_COMPLETED"]
            assert entry.payload["actor"] == said[0].completed_by
    assert_sound(url)


@pytest.mark.parametrize("left", [False, True])
async def test_a_cancelled_chart_ends_behind_its_children(harness: Harness, left: bool) -> None:
    """Whoever started the chart undoes its own when everything below is undone. `left`: the child's state was left."""
    seen: list[str] = []

    async def pay() -> None:
        seen.append("pay")
        raise RuntimeError("no answer")

    @harness.workflow("inner")
    async def inner(ctx: Context, given: Any) -> None:
        await ctx.effect("pay", pay, compensate=effect(lambda: seen.append("refund"), mode="keyed"))

    @harness.workflow("outer")
    async def outer(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", lambda: seen.append("reserve"), compensate=lambda _: seen.append("release"))
        await ctx.child("middle", "middle")

    invoke = {"src": {"workflow": "inner"}, "onDone": "done", "onError": "done"}
    await harness.publish({"id": "middle", "initial": "a", "states": {
        "a": {"invoke": invoke, "on": {"leave": "b"}}, "b": {"on": {"go": "done"}}, "done": {"type": "final"},
    }})  # fmt: skip
    handle = await harness.start("outer")
    await harness.run_until_idle()
    [middle] = await harness.instances(key="middle")
    if left:
        await harness.instance(middle.id).signal("leave")
        await harness.run_until_idle()
    await handle.cancel("enough", actor="ann")
    await harness.run_until_idle()
    assert "which was told to end" in str((await harness.instance(middle.id).status()).waiting_on)
    said = await harness.instance(middle.id).why()
    assert "It is ending (cancelled) and waits for child " in said and said.endswith(", compensating) to end.")
    assert (await handle.status()).status == "compensating" and seen == ["reserve", "pay"]
    async with next_worker(harness) as other:
        [unknown] = await other.effects.list(state="outcome_unknown")
        await other.effects.resolve(unknown.id, "happened", actor="ann", reason="asked the bank")
        await other.run_until_idle()
        assert (await other.instance(handle.id).status()).status == "cancelled"
        assert seen == ["reserve", "pay", "refund", "release"]
        assert_sound(harness.url)


NOTHING_TAKES_IT = {"guard": {"@expr": "context.nothing > 1"}, "target": "b"}


@pytest.mark.parametrize("child", ["completed", "left behind", "never began"])
async def test_a_chart_does_not_wait_for_a_child_whose_answer_was_dropped(harness: Harness, child: str) -> None:
    @harness.workflow("inner")
    async def inner(ctx: Context, given: Any) -> None: ...

    src = {"workflow": "inner"} | ({"version": 9} if child == "never began" else {})
    await harness.publish({"id": "outer", "context": {}, "initial": "a", "states": {
        "a": {"invoke": {"src": src, "onDone": NOTHING_TAKES_IT, "onError": NOTHING_TAKES_IT}, "on": {"go": "b"}},
        "b": {"on": {"done": "c"}}, "c": {"type": "final"},
    }})  # fmt: skip
    handle = await harness.start("outer")
    await harness.run_until_idle()
    assert "failed: Key not found" in str((await handle.status()).waiting_on)
    await handle.resume("not for us", actor="ann", drop_event=True)
    await harness.run_until_idle()
    if child == "left behind":
        await handle.signal("go")
        await harness.run_until_idle()
    assert (await handle.status()).waiting_on == f"in {'b' if child == 'left behind' else 'a'}: an event"
    await handle.cancel("enough", actor="ann")
    await harness.run_until_idle()
    assert (await handle.status()).status == "cancelled"
    assert_sound(harness.url)


async def test_a_person_has_a_chart_that_is_ending_wait_no_longer_for_its_children(harness: Harness) -> None:
    @harness.workflow("inner")
    async def inner(ctx: Context, given: Any) -> None:
        await ctx.effect("pay", pay, compensate=effect(pay, mode="keyed"))

    async def pay() -> None:
        raise RuntimeError("no answer")

    await harness.publish({"id": "outer", "initial": "a", "states": {
        "a": {"invoke": {"src": {"workflow": "inner"}, "onDone": "b"}}, "b": {"type": "final"},
    }})  # fmt: skip
    handle = await harness.start("outer")
    await harness.run_until_idle()
    await handle.cancel("enough", actor="ann")
    await harness.run_until_idle()
    await handle.resume("once more", actor="ann")
    await harness.run_until_idle()
    assert (await handle.status()).waiting_on == "its end (cancelled): child '0.outer.a', which was told to end"
    await handle.resume("it may end later", actor="ann", drop_event=True)
    await harness.run_until_idle()
    assert (await handle.status()).status == "cancelled"
    [dropped] = [entry for entry in await handle.history() if entry.type == "EVENT_DROPPED"]
    assert dropped.name == "0.outer.a@1"


async def test_a_chart_that_is_buried_while_it_ends_waits_for_no_child_that_has_ended(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    called: list[str] = []

    async def pay(given: Any) -> None:
        called.append("pay")
        await asyncio.Event().wait()

    hf.task_handler("SYSTEM", "pay", kind="effect", mode="keyed")(pay)

    @hf.workflow("inner")
    async def inner(ctx: Context, given: Any) -> None:
        await ctx.wait_for_signal("go")

    def region(src: Any) -> Any:
        invoke = {"src": src, "onDone": "z", "onError": "z"}
        return {"initial": "a", "states": {"a": {"invoke": invoke}, "z": {"type": "final"}}}

    async with Harness(hf, url=url) as test:
        states = {"child": region({"workflow": "inner"}), "payment": region("pay")}
        await test.publish({"id": "outer", "type": "parallel", "states": states})
        handle = await test.start("outer")
        await until(lambda: called, test)
        await handle.cancel("enough", actor="ann")
        await until(lambda: query(url, "select 1 from holdfast.history where type = 'CHILD_FAILED'"), test)
        async with next_worker(test, app=hf) as other:
            query(url, "update holdfast.instances set attempts = 9, run_at = 0 where kind = 'chart'")
            assert other.test_worker is not None
            other.test_worker.look_for_suspects()
            await other.run_until_idle()
            [unknown] = await other.effects.list(state="outcome_unknown")
            await other.advance(hours=1)
            await other.effects.resolve(unknown.id, "happened", result={}, reason="seen", actor="ann")
            await other.run_until_idle()
            view = await other.instance(handle.id).status()
            assert (view.status, view.error["type"], called) == ("failed", "Poison", ["pay"])
    assert_sound(url)


async def test_a_chart_that_ends_with_a_childs_answer_in_hand_waits_for_that_child_no_more(url: str) -> None:
    """It could not go on with the answer, so that it stood still with it; then it was cancelled, then buried."""
    hf = Holdfast("sqlite:///unused.db")
    called: list[str] = []

    async def pay(given: Any) -> None:
        called.append("pay")
        await asyncio.Event().wait()

    hf.task_handler("SYSTEM", "pay", kind="effect", mode="keyed")(pay)

    @hf.workflow("inner")
    async def inner(ctx: Context, given: Any) -> None: ...

    def region(src: Any, done: Any) -> Any:
        return {"initial": "a", "states": {"a": {"invoke": {"src": src, "onDone": done}}, "z": {"type": "final"}}}

    broken = {"guard": {"@expr": "context.nothing > 1"}, "target": "z"}
    async with Harness(hf, url=url) as test:
        states = {"child": region({"workflow": "inner"}, broken), "payment": region("pay", "z")}
        await test.publish({"id": "outer", "type": "parallel", "context": {}, "states": states})
        handle = await test.start("outer")
        await until(lambda: called, test)
        await until(lambda: query(url, "select 1 from holdfast.history where type = 'ERROR'"), test)
        await handle.cancel("enough", actor="ann")
        await until(lambda: query(url, "select 1 from holdfast.history where type = 'INSTANCE_CANCELLING'"), test)
        async with next_worker(test, app=hf) as other:
            query(url, "update holdfast.instances set attempts = 9, run_at = 0 where kind = 'chart'")
            assert other.test_worker is not None
            other.test_worker.look_for_suspects()
            await other.run_until_idle()
            [unknown] = await other.effects.list(state="outcome_unknown")
            await other.advance(hours=1)
            await other.effects.resolve(unknown.id, "happened", result={}, reason="seen", actor="ann")
            await other.run_until_idle()
            view = await other.instance(handle.id).status()
            assert (view.status, view.error["type"], called) == ("failed", "Poison", ["pay"])
    assert_sound(url)


async def test_what_a_chart_tells_itself_is_worked_off_whatever_is_read_meanwhile(harness: Harness) -> None:
    """Its line is read three times beside its turns: while a signal stands in it, and when none does any more."""
    gate = Gate(harness)
    tell = {"type": "send", "to": {"@expr": "event.me"}, "event": {"type": "next"}}
    await harness.publish({"id": "teller", "initial": "on", "states": {
        "on": {"on": {"begin": {"actions": [tell]}, "next": "off"}}, "off": {"type": "final"},
    }})  # fmt: skip
    gate.opened.clear()
    handle = await harness.start("teller")
    await until(lambda: gate.held == 1, harness)
    worker = harness.test_worker
    assert worker is not None
    [execution] = worker.executions.values()

    async def read() -> None:
        worker.event_for(execution.id)
        await until(lambda: not worker._reading, harness)

    await handle.send("begin", {"me": handle.id})
    await read()
    await read()
    gate.opened.set()
    gate.opened.clear()  # whoever waits goes on, and the next is held
    await until(lambda: gate.held == 2, harness)
    await read()
    gate.opened.set()
    await until(lambda: not worker.executions, harness)
    assert (await handle.status()).status == "completed"


async def test_a_charts_timer_that_falls_due_beside_a_turn_fires_though_a_handler_runs(harness: Harness) -> None:
    gate, over = Gate(harness), asyncio.Event()

    @harness.task_handler("SYSTEM", "long")
    async def long(given: Any) -> None:
        await over.wait()

    await harness.publish({"id": "timed", "type": "parallel", "states": {
        "work": {"initial": "a", "states": {"a": {"invoke": {"src": "long", "onDone": "z"}}, "z": {"type": "final"}}},
        "clock": {"initial": "a", "states": {"a": {"on": {"go": {}}, "after": {"PT5S": "late"}}, "late": {}}},
    }})  # fmt: skip
    handle = await harness.start("timed")
    await until(lambda: query(harness.url, "select 1 from holdfast.history where type = 'TASK_STARTED'"), harness)
    gate.opened.clear()
    await handle.signal("go")
    await until(lambda: gate.held, harness)
    harness.clock.move(timedelta(seconds=5))
    for _ in range(5):
        assert harness.test_worker is not None
        await harness.test_worker.run_once()
    gate.opened.set()
    late = "select 1 from holdfast.instances where current_state like '%late%'"
    await until(lambda: query(harness.url, late), harness)
    over.set()


async def test_no_attempt_begins_after_the_deadline_whoever_says_it_did_not_happen(harness: Harness) -> None:
    tried: list[int] = []

    @harness.task_handler("SYSTEM", "pay", kind="effect")
    async def pay(given: Any, info: TaskInfo) -> None:
        tried.append(info.attempt)
        raise RuntimeError("no answer")

    invoke = {
        "src": {"task": {"type": "SYSTEM", "name": "pay", "deadline": "PT10M"}},
        "onDone": "paid",
        "onError": "late",
    }
    await harness.publish({"id": "paying", "initial": "pay", "states": {
        "pay": {"invoke": invoke}, "paid": {"type": "final"}, "late": {"type": "final"},
    }})  # fmt: skip
    handle = await harness.start("paying")
    await harness.advance(minutes=30)
    [unknown] = await harness.effects.list(state="outcome_unknown")
    await harness.effects.resolve(unknown.id, "did_not_happen", actor="ann", reason="asked the bank")
    await harness.run_until_idle()
    assert tried == [1] and (await handle.snapshot())["value"] == "late"
    assert_sound(harness.url)
