"""Instances of charts, through the public surface: published, started, moved by events, tasks and time."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from holdfast import (
    BadChart,
    BadDefinition,
    BadInput,
    DeadLetterView,
    DefinitionNotActive,
    DefinitionNotFound,
    EventNotTaken,
    FormRefused,
    Holdfast,
    InstanceFailed,
    TaskInfo,
    TaskNotOpen,
    WorkflowNotRegistered,
)
from holdfast.testing import FakeProvider, Harness
from tests.charts.support import EXPENSE, app, human
from tests.flows.support import next_worker, until
from tests.support.auditor import assert_sound

LATER = {"type": "createTask", "params": {"type": "TIMER", "name": "later", "delay": "P1D"}}


def types(entries: list[Any]) -> list[str]:
    return [entry.type for entry in entries]


async def test_an_expense_is_approved_by_a_person_and_paid_once(url: str) -> None:
    provider = FakeProvider()
    async with Harness(app(provider), url=url) as test:
        await test.publish(EXPENSE, actor="ann")
        handle = await test.start("expense", {"amount": 500})
        await test.run_until_idle()
        assert "a person for task 'approve'" in str((await handle.status()).waiting_on)
        [task] = await test.tasks.list(type="HUMAN", group="staff")
        assert (task.status, task.assignee, task.instance_id) == ("pending", None, handle.id)
        done = await test.tasks.complete(task.id, {"ok": True}, actor="bob")
        assert (done.status, done.completed_by, done.output) == ("succeeded", "bob", {"ok": True})
        await test.run_until_idle()
        assert await handle.result(0) == {"amount": 500, "reminders": 0}
        assert len(provider.calls) == 1
        assert types(await handle.history()) == [
            "INSTANCE_STARTED", "STATE_TRANSITION", "TASK_CREATED", "TIMER_STARTED", "TASK_COMPLETED",
            "STATE_TRANSITION", "TIMER_CANCELLED", "TASK_CREATED", "TASK_STARTED", "TASK_COMPLETED",
            "STATE_TRANSITION", "TASK_CREATED", "EFFECT_STARTED", "EFFECT_SUCCEEDED", "TASK_COMPLETED",
            "STATE_TRANSITION", "INSTANCE_COMPLETED",
        ]  # fmt: skip
        assert (await test.verify()).faults == []


async def test_a_state_left_by_time_skips_the_task_and_a_late_word_is_refused(url: str) -> None:
    async with Harness(app(), url=url) as test:
        await test.publish(EXPENSE)
        handle = await test.start("expense", {"amount": 5})
        await test.run_until_idle()
        [task] = await test.tasks.list()
        await test.advance(days=2, hours=23)
        assert (await handle.status()).status == "waiting"
        await test.advance(hours=1)
        assert (await handle.status()).status == "completed"
        assert (await test.tasks.show(task.id)).status == "skipped"
        with pytest.raises(TaskNotOpen, match="skipped already"):
            await test.tasks.complete(task.id, {"ok": True}, actor="bob")


async def test_a_task_that_had_not_begun_is_skipped_and_one_that_had_is_cancelled(url: str) -> None:
    hf = Holdfast(url)
    begun: list[str] = []
    tried: list[str] = []

    @hf.task_handler("SYSTEM", "slow")
    async def slow(given: Any, info: TaskInfo) -> None:
        begun.append(info.name)
        await asyncio.Event().wait()

    @hf.task_handler("SYSTEM", "shaky")
    async def shaky(given: Any) -> None:
        tried.append("once")
        raise OSError("down")

    def invoked(name: str, **more: Any) -> dict[str, Any]:
        task = {"type": "SYSTEM", "name": name, **more}
        return {"id": name, "src": {"task": task}}

    created = [
        {"type": "createTask", "params": {"type": "SYSTEM", "name": "later", "handler": "slow", "delay": "P1D"}},
        {"type": "createTask", "params": {"type": "HUMAN", "name": "asked"}},
        {"type": "createTask", "params": {"type": "HUMAN", "name": "taken back"}},
    ]
    chart = {
        "id": "leaving", "initial": "on",
        "states": {
            "on": {
                "entry": created,
                "invoke": [
                    invoked("slow"), invoked("shaky", backoff="PT1H"), invoked("tomorrow", handler="slow", delay="P1D"),
                    invoked("person", type="HUMAN"), invoked("timer", type="TIMER", delay="P1D"),
                ],
                "on": {"leave": {"target": "off", "actions": {"type": "cancelTask", "params": {"name": "taken back"}}}},
            },
            "off": {"invoke": invoked("at once", handler="slow"), "always": "over"},
            "over": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        left, stopped = await test.start("leaving"), await test.start("leaving")
        await until(lambda: len(begun) == 2 and len(tried) == 2, test)
        await left.send("leave")
        await stopped.cancel("enough", actor="ann")
        await test.run_until_idle()
        ends = {t.name: t for t in await test.tasks.list(status=None, instance=left.id)}
        assert {name: task.status for name, task in ends.items()} == {
            "slow": "cancelled", "shaky": "cancelled", "taken back": "cancelled", "later": "skipped",
            "asked": "skipped", "tomorrow": "skipped", "person": "skipped", "timer": "skipped", "at once": "skipped",
        }  # fmt: skip
        assert {(t.attempts, t.started_at) for t in ends.values() if t.status == "skipped"} == {(0, None)}
        started = {e.name.partition("/")[0] for e in await left.history() if e.type == "TASK_STARTED"}
        assert started == {"slow", "shaky"}
        assert (await left.status()).status == "completed"
        assert {t.status for t in await test.tasks.list(status=None, instance=stopped.id)} == {"cancelled"}
    assert_sound(url)


@pytest.mark.parametrize("kind", ["step", "transaction", "effect"])
@pytest.mark.parametrize("how", ["an event", "a timer"])
async def test_a_task_that_falls_due_in_the_turn_that_leaves_its_state_is_skipped(
    url: str, kind: str, how: str
) -> None:
    hf = Holdfast(url)
    begun: list[int] = []

    @hf.task_handler("SYSTEM", "work", kind=kind)
    def work(*_: Any) -> None:
        begun.append(1)

    task = {"type": "SYSTEM", "name": "work", "delay": "PT10S"}
    chart = {
        "id": "leaving", "initial": "on",
        "states": {
            "on": {"invoke": {"src": {"task": task}}, "on": {"leave": "off"}, "after": {"PT20S": "off"}},
            "off": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("leaving")
        await test.run_until_idle()
        test.clock.move(timedelta(seconds=15))  # and no worker looks
        if how == "an event":
            await handle.send("leave")
        test.clock.move(timedelta(seconds=15))
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
        [row] = await test.tasks.list(status=None, instance=handle.id)
        assert (row.status, row.attempts, row.started_at, begun) == ("skipped", 0, None, [])
        assert types(await handle.history())[-2:] == ["TASK_SKIPPED", "INSTANCE_COMPLETED"]
    assert_sound(url)


async def test_a_task_that_was_begun_and_lost_with_its_worker_is_cancelled_with_its_state(url: str) -> None:
    hf = Holdfast(url)
    begun: list[int] = []

    @hf.task_handler("SYSTEM", "slow")
    async def slow(given: Any) -> None:
        begun.append(1)
        await asyncio.Event().wait()

    task = {"type": "SYSTEM", "name": "slow", "deadline": "PT1H"}
    chart = {
        "id": "leaving", "initial": "on",
        "states": {"on": {"invoke": {"src": {"task": task}}, "on": {"leave": "off"}}, "off": {"type": "final"}},
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("leaving")
        await until(lambda: begun, test)
        async with next_worker(test) as other:
            await handle.send("leave")
            test.clock.move(timedelta(hours=2))  # no further attempt begins
            await other.run_until_idle()
            [row] = await other.tasks.list(status=None, instance=handle.id)
            assert (row.status, row.attempts, begun) == ("cancelled", 1, [1])
    assert_sound(url)


async def test_an_event_is_taken_once_however_often_it_is_sent(url: str) -> None:
    async with Harness(app(), url=url) as test:
        await test.publish(EXPENSE)
        handle = await test.start("expense", {"amount": 5})
        await test.run_until_idle()
        assert await test.send(handle.id, "remind", {"n": 1}, id="r1")
        test.clock.move(timedelta(seconds=1))
        assert not await test.send(handle.id, "remind", {"n": 1}, id="r1")
        await test.run_until_idle()
        assert not await test.send(handle.id, "remind", {"n": 1}, id="r1")
        with pytest.raises(BadInput, match="already used"):
            await test.send(handle.id, "remind", {"n": 2}, id="r1")
        await handle.send("remind", id="r2")
        await handle.send("remind", id="r3")
        test.clock.move(timedelta(seconds=1))
        await handle.send("withdraw")
        await test.run_until_idle()
        assert await handle.result(0) == {"amount": 5, "reminders": 3}


async def test_an_event_nobody_takes_is_recorded_and_refused_when_strict(url: str) -> None:
    async with Harness(app(), url=url) as test:
        await test.publish(EXPENSE)
        handle = await test.start("expense", {"amount": 5})
        await test.run_until_idle()
        await test.send(handle.id, "nonsense", {"a": 1}, id="n1")
        await test.run_until_idle()
        [ignored] = [e for e in await handle.history() if e.type == "EVENT_IGNORED"]
        assert (ignored.name, ignored.payload) == ("nonsense", {"event_id": "n1", "payload": {"a": 1}})
        async with test.worker():
            with pytest.raises(EventNotTaken, match="takes no 'nonsense'"):
                await test.send(handle.id, "nonsense", strict=True)
            assert await test.send(handle.id, "remind", strict=True)
        with pytest.raises(BadInput, match="engine's own"):
            await test.send(handle.id, "xstate.done.actor.0.expense.posting")


async def test_the_form_the_claim_and_the_first_word_are_kept(url: str) -> None:
    async with Harness(app(), url=url) as test:
        await test.publish(EXPENSE)
        handle = await test.start("expense", {"amount": 5})
        await test.run_until_idle()
        [task] = await test.tasks.list()
        with pytest.raises(FormRefused, match="/ok"):
            await test.tasks.complete(task.id, {"ok": "yes"}, actor="ann")
        await test.tasks.claim(task.id, actor="ann")
        with pytest.raises(TaskNotOpen, match="belongs to 'ann'"):
            await test.tasks.claim(task.id, actor="bob")
        with pytest.raises(TaskNotOpen, match="belongs to 'ann'"):
            await test.tasks.complete(task.id, {"ok": True}, actor="bob")
        await test.tasks.unclaim(task.id, actor="ann")
        await test.tasks.claim(task.id, actor="bob")
        await test.tasks.complete(task.id, {"ok": False}, actor="bob")
        with pytest.raises(TaskNotOpen, match="succeeded already by bob"):
            await test.tasks.complete(task.id, {"ok": True}, actor="bob")
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
        assert "posting" not in [e.name for e in await handle.history()]


async def test_a_task_that_fails_is_tried_again_then_its_error_is_the_charts(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    tries: list[int] = []

    @hf.task_handler("SYSTEM", "shaky", thread=False)
    def shaky(given: Any, info: TaskInfo) -> Any:
        tries.append(info.attempt)
        if len(tries) < given:
            raise ValueError("not yet")
        return "fine"

    def chart(handled: bool) -> dict[str, Any]:
        task = {"type": "SYSTEM", "name": "shaky", "max_attempts": 3, "backoff": 60_000, "input": {
            "@expr": "context.n"}, "completion_event": "worked", "failure_event": "broke"}  # fmt: skip
        on: dict[str, Any] = {"worked": "good"}
        if handled:
            on["broke"] = "bad"
        return {
            "id": "shaky-chart", "context": {"n": {"@expr": "event.input"}}, "initial": "on",
            "states": {"on": {"entry": {"type": "createTask", "params": task}, "on": on}, "good": {"type": "final"},
                       "bad": {"type": "final"}},
        }  # fmt: skip

    async with Harness(hf, url=url) as test:
        await test.publish(chart(True))
        handle = await test.start("shaky-chart", 3)
        await test.run_until_idle()
        assert tries == [1] and "SYSTEM task 'shaky' until" in str((await handle.status()).waiting_on)
        await test.advance(minutes=5)
        assert tries == [1, 2, 3]
        assert types(await handle.history()).count("TASK_RETRIED") == 2
        started = [e.payload["attempt"] for e in await handle.history() if e.type == "TASK_STARTED"]
        assert started == [1, 2, 3]
        assert (await handle.status()).status == "completed"
        tries.clear()
        handle = await test.start("shaky-chart", 9)
        await test.advance(minutes=5)
        assert tries == [1, 2, 3]
        assert [e.name for e in await handle.history() if e.type == "STATE_TRANSITION"] == ["on", "bad"]
        tries.clear()
        await test.publish(chart(False))
        handle = await test.start("shaky-chart", 9)
        await test.advance(minutes=5)
        with pytest.raises(InstanceFailed, match="no state takes 'broke'"):
            await handle.result(0)
        [letter] = await test.dead_letters()
        assert letter.source == "task"


async def test_authors_are_told_of_a_dead_letter_after_its_commit_whatever_their_functions_raise(url: str) -> None:
    hf = Holdfast(url)
    told: list[DeadLetterView] = []
    paged: list[str] = []

    @hf.task_handler("SYSTEM", "broken")
    def broken(given: Any) -> None:
        raise OSError("down")

    @hf.on_dead_letter
    def leave(letter: DeadLetterView) -> None:
        raise SystemExit("no")

    @hf.on_dead_letter
    async def interrupt(letter: DeadLetterView) -> None:
        raise asyncio.CancelledError

    @hf.on_dead_letter
    async def cancel_everybody(letter: DeadLetterView) -> None:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("holdfast-"):
                task.cancel()

    @hf.on_dead_letter
    async def page_somebody(letter: DeadLetterView) -> None:
        """Time-outs and task groups cancel the task that they run in: that is no cancel of anybody else's."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        with contextlib.suppress(TimeoutError), anyio.fail_after(0.01):
            await asyncio.Event().wait()
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(interrupted())
                await asyncio.Event().wait()
        paged.append(letter.instance_id)

    async def interrupted() -> None:
        raise OSError("down")

    @hf.on_dead_letter
    def ask_in_vain(letter: DeadLetterView) -> Any:
        return interrupt(letter)

    @hf.on_dead_letter
    async def tell(letter: DeadLetterView) -> None:
        assert await test.dead_letters() == [letter], "it is on disk"
        told.append(letter)

    task = {"type": "SYSTEM", "name": "broken", "max_attempts": 1}
    chart = {"id": "lost", "initial": "on", "states": {"on": {"entry": {"type": "createTask", "params": task}}}}
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        with capture_logs() as lines:
            handle = await test.start("lost")
            await test.run_until_idle()
        assert paged == [handle.id]
        assert [(letter.source, letter.instance_id, letter.workflow) for letter in told] == [
            ("task", handle.id, "lost")
        ]
        failed = [line for line in lines if line["event"] == "dead_letter_hook_failed"]
        assert sorted(line["error"].partition(":")[0] for line in failed) == [
            "CancelledError",
            "HandlerExited",
            "NotAwaited",
        ]
        assert {line["instance_id"] for line in lines if line["event"] == "cancel_refused"} == {handle.id}
        assert not [line for line in lines if line["event"] == "worker_task_ended"]
        assert {line["dead_letter_id"] for line in failed} == {told[0].id}

    with pytest.raises(BadDefinition, match="should take one argument"):
        hf.on_dead_letter(lambda: None)


async def test_a_function_that_is_told_of_a_dead_letter_and_takes_no_cancel_does_not_hold_the_worker(url: str) -> None:
    hf, begun, over = Holdfast(url), asyncio.Event(), asyncio.Event()

    @hf.task_handler("SYSTEM", "broken")
    def broken(given: Any) -> None:
        raise OSError("down")

    @hf.on_dead_letter
    async def stubborn(letter: DeadLetterView) -> None:
        begun.set()
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    task = {"type": "SYSTEM", "name": "broken", "max_attempts": 1}
    async with hf:
        await hf.publish(
            {"id": "c", "initial": "on", "states": {"on": {"entry": {"type": "createTask", "params": task}}}}
        )

        async def work() -> None:
            async with hf.worker():
                await hf.start("c")
                await begun.wait()

        stopped, _ = await asyncio.wait({asyncio.create_task(work())}, timeout=40)
        over.set()
        assert stopped, "its worker waits for it"


async def test_versions_live_side_by_side_and_instances_pin_theirs(url: str) -> None:
    def chart(end: str) -> dict[str, Any]:
        return {
            "id": "pinned", "initial": "wait",
            "states": {"wait": {"on": {"go": end}}, "one": {"type": "final"}, "two": {"type": "final"}},
        }  # fmt: skip

    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        first = await test.publish(chart("one"))
        old = await test.start("pinned")
        assert (first.version, (await test.publish(chart("one"))).version) == (1, 1)
        second = await test.publish(chart("two"))
        assert (second.version, second.hash != first.hash) == (2, True)
        new, pinned = await test.start("pinned"), await test.start("pinned", version=1)
        await test.run_until_idle()
        await test.definitions.set_status("pinned", 2, "inactive")
        third = await test.start("pinned")
        for handle in (old, new, pinned, third):
            await handle.send("go")
        await test.run_until_idle()
        states = [
            [e.name for e in await h.history() if e.type == "STATE_TRANSITION"][-1] for h in (old, new, pinned, third)
        ]
        assert states == ["one", "two", "one", "one"]
        await test.definitions.set_status("pinned", 1, "archived")
        for version in (None, 1, 2):
            with pytest.raises(DefinitionNotActive, match="is not active"):
                await test.start("pinned", version=version)
        with pytest.raises(WorkflowNotRegistered):
            await test.start("unheard-of")
        with pytest.raises(DefinitionNotFound):
            await test.start("pinned", version=9)
        assert [(d.version, d.status) for d in await test.definitions.list()] == [(2, "inactive"), (1, "archived")]


async def test_a_definition_belongs_to_its_tenant(url: str) -> None:
    chart = {"id": "mine", "initial": "a", "states": {"a": {"type": "final"}}}
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart, tenant="acme")
        with pytest.raises(WorkflowNotRegistered):
            await test.start("mine", tenant="other")
        handle = await test.start("mine", tenant="acme")
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
        with pytest.raises(DefinitionNotFound):
            await test.definitions.show("mine")


async def test_a_bad_chart_is_refused_with_every_fault_and_its_path(url: str) -> None:
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        with pytest.raises(BadChart) as refused:
            await test.publish({"id": "x", "initial": "b", "states": {"a": {"on": {"go": "c"}, "entri": []}}})
        paths = [problem.path for problem in refused.value.problems]
        assert paths == ["/states/a/entri", "/initial", "/states/a/on/go"]
        assert await test.definitions.list() == []


async def test_cancelling_an_instance_cancels_its_tasks_timers_and_children(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")

    @hf.workflow("child")
    async def child(ctx: Any, given: Any) -> Any:
        return await ctx.wait_for_signal("done")

    chart = {
        "id": "parent", "initial": "busy",
        "states": {
            "busy": {
                "entry": [human("look"), LATER],
                "invoke": {"id": "kid", "src": {"workflow": "child"}, "onDone": "over", "onError": "over"},
                "after": {"PT1H": "over"},
            },
            "over": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("parent")
        await test.run_until_idle()
        [kid] = [i for i in await test.instances() if i.workflow == "child"]
        await handle.cancel("enough", actor="ann")
        await test.run_until_idle()
        assert (await handle.status()).status == "cancelled"
        assert {t.status for t in await test.tasks.list(status=None)} == {"cancelled"}
        assert (await test.instance(kid.id).status()).status == "cancelled"
        await test.advance(days=2)
        assert "TIMER_FIRED" not in types(await handle.history())


async def test_a_chart_invokes_code_and_code_a_chart(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")

    @hf.workflow("double")
    async def double(ctx: Any, n: int) -> int:
        return await ctx.step("twice", lambda: n * 2, thread=False)

    @hf.workflow("outer")
    async def outer(ctx: Any, n: int) -> Any:
        return await ctx.child("kid", "doubler", n)

    chart = {
        "id": "doubler", "context": {"n": {"@expr": "event.input"}, "result": 0}, "initial": "on",
        "output": {"@expr": "context.result"},
        "states": {
            "on": {"invoke": {
                "src": {"workflow": "double"}, "input": {"@expr": "context.n"},
                "onDone": {"target": "off", "actions": {
                    "type": "assign", "assign": {"result": {"@expr": "event.output + 1"}}}},
                "onError": "broken",
            }},
            "off": {"type": "final"}, "broken": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("outer", 20)
        await test.run_until_idle()
        assert await handle.result(0) == 41
        assert (await test.verify()).faults == []


async def test_a_guard_that_fails_keeps_the_event_and_asks_a_person(url: str) -> None:
    chart = {
        "id": "guarded", "context": {"limit": 10}, "initial": "a",
        "states": {
            "a": {"on": {"go": {"guard": {"@expr": "event.amount < context.limit"}, "target": "b"}}},
            "b": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart)
        handle = await test.start("guarded")
        await handle.send("go", {}, id="bad")
        await handle.send("go", {"amount": 3}, id="good")
        await test.run_until_idle()
        view = await handle.status()
        assert view.status == "waiting" and 'Key not found in map : "amount"' in str(view.waiting_on)
        assert types(await handle.history())[-1] == "ERROR"
        await handle.resume("look again", actor="ann")
        await test.run_until_idle()
        assert types(await handle.history()).count("ERROR") == 2
        await handle.resume("it was a mistake", actor="ann", drop_event=True)
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
        assert "EVENT_DROPPED" in types(await handle.history())


FAULTY_AT_START: dict[str, dict[str, Any]] = {
    "/context/limit": {"context": {"limit": {"@expr": "event.input.limit"}}},
    "/states/a/entry/1/assign/limit": {
        "entry": {"type": "assign", "assign": {"limit": {"@expr": "event.input.limit"}}},
    },
    "/states/a/always/guard": {"always": {"guard": {"@expr": "event.input.limit > 3"}, "target": "b"}},
    "/states/a/entry/1/params/input": {
        "entry": {"type": "createTask", "params": {
            "type": "HUMAN", "name": "look", "input": {"@expr": "event.input.limit"}}},
    },
}  # fmt: skip


@pytest.mark.parametrize("at", FAULTY_AT_START)
async def test_a_chart_that_fails_at_its_start_ends_with_nothing_begun(url: str, at: str) -> None:
    """Nowhere is there a state in which it could wait for a person."""
    faulty = FAULTY_AT_START[at]
    entry = [human("first"), *([faulty["entry"]] if "entry" in faulty else [])]
    always = {"always": faulty["always"]} if "always" in faulty else {}
    chart = {
        "id": "early", "context": faulty.get("context", {"limit": 1}), "initial": "a",
        "states": {"a": {"entry": entry, "after": {"PT1H": "b"}, **always}, "b": {"type": "final"}},
    }  # fmt: skip
    parent = {
        "id": "parent", "initial": "on",
        "states": {"on": {"invoke": {"src": {"workflow": "early"}, "onDone": "done", "onError": "told"}},
                   "done": {"type": "final"}, "told": {"type": "final"}},
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart)
        await test.publish(parent)
        handle, above = await test.start("early", {}), await test.start("parent")
        await test.run_until_idle()
        view = await handle.status()
        assert (view.status, view.error["type"], view.error["path"]) == ("failed", "StepFault", at)
        assert types(await handle.history()) == ["INSTANCE_STARTED", "INSTANCE_FAILED"]
        assert await test.tasks.list(status=None, instance=handle.id) == []
        assert await test.dead_letters() == []
        assert (await above.snapshot() or {})["value"] == "told"
    assert_sound(url)


async def test_an_endless_loop_is_an_incident_that_shows_the_circle(url: str) -> None:
    chart = {
        "id": "round", "initial": "calm",
        "states": {
            "calm": {"on": {"go": "a"}}, "a": {"always": "b"}, "b": {"always": "a"},
        },
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart)
        handle = await test.start("round")
        await handle.send("go")
        await test.run_until_idle()
        view = await handle.status()
        assert "no rest after 1,000 microsteps" in str(view.waiting_on)
        [incident] = [e for e in await handle.history() if e.type == "ERROR"]
        assert "#round.a --always--> #round.b" in str(incident.payload["cycle"])
        assert (await test.start("round")).id != handle.id


@pytest.mark.parametrize("mode", ["keyed", "manual", "lookup"])
async def test_a_task_of_unknown_outcome_goes_the_way_of_every_effect(url: str, mode: str) -> None:
    provider = FakeProvider()
    provider.plan("timeout_after")
    async with Harness(app(provider, mode), url=url) as test:
        await test.publish(EXPENSE)
        handle = await test.start("expense", {"amount": 5})
        await test.run_until_idle()
        [task] = await test.tasks.list()
        await test.tasks.complete(task.id, {"ok": True}, actor="bob")
        await test.run_until_idle()
        if mode == "manual":
            view = await handle.status()
            assert "a person: the outcome of effect" in str(view.waiting_on)
            [unknown] = await test.effects.list()
            await test.effects.resolve(
                unknown.id, "happened", actor="ann", reason="seen at the bank", result={"id": "prov-1"}
            )
        await test.advance(minutes=10)
        assert (await handle.status()).status == "completed"
        assert len(provider.deeds) == 1
        assert len(provider.calls) == (2 if mode == "keyed" else 1)
        assert (await test.verify()).faults == []


async def test_a_chart_that_ends_waits_for_the_effect_that_is_under_way(url: str) -> None:
    provider = FakeProvider()
    provider.plan("timeout_after")
    chart = {
        "id": "hasty", "initial": "on",
        "states": {
            "on": {"entry": {"type": "createTask", "params": {"type": "SYSTEM", "name": "pay", "input": {"amount": 1}}},
                   "on": {"stop": "off"}},
            "off": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(app(provider), url=url) as test:
        await test.publish(chart)
        handle = await test.start("hasty")
        await test.run_until_idle()
        await handle.send("stop")
        await test.run_until_idle()
        view = await handle.status()
        assert (view.status, "a person" in str(view.waiting_on)) == ("waiting", True)
        [unknown] = await test.effects.list()
        await test.effects.resolve(unknown.id, "happened", actor="ann", reason="seen", result={})
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"


async def test_a_transaction_task_commits_with_its_writes(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    made: list[Any] = []
    if url.startswith("sqlite"):

        @hf.task_handler("SYSTEM", "book", kind="transaction")
        def book(tx: Any, given: Any) -> Any:
            tx.execute("create table if not exists bookings (n integer)")
            tx.execute("insert into bookings values (?)", (given,))
            made.append(given)
            return {"booked": given}
    else:

        @hf.task_handler("SYSTEM", "book", kind="transaction")
        async def book_there(tx: Any, given: Any) -> Any:
            await tx.execute("create table if not exists bookings (n integer)")
            await tx.execute("insert into bookings values ($1)", given)
            made.append(given)
            return {"booked": given}

    chart = {
        "id": "booking", "context": {}, "initial": "on", "output": {"@expr": "context.got"},
        "states": {
            "on": {"invoke": {"src": "book", "input": 7, "onDone": {
                "target": "off", "actions": {"type": "assign", "assign": {"got": {"@expr": "event.output.booked"}}}},
                "onError": "bad"}},
            "off": {"type": "final"}, "bad": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("booking")
        await test.run_until_idle()
        assert await handle.result(0) == 7
        assert made == [7]
        assert (await test.verify()).faults == []


def test_blocking_callers_have_the_same_names(url: str) -> None:
    hf = Holdfast(url)
    with hf.sync as sync:
        view = sync.publish({"id": "s", "initial": "a", "states": {"a": {"on": {"go": "b"}}, "b": {"type": "final"}}})
        assert [d.version for d in sync.definitions.list()] == [view.version] == [1]
        handle = sync.start("s")
        assert sync.send(handle.id, "go", id="g")
        assert sync.tasks.list() == []
        assert handle.snapshot() is None
        assert sync.tenant("default").set_policy(ai_enabled=False).ai_enabled is False


@pytest.mark.parametrize("what", ["a task's input", "the context", "a log"])
async def test_what_is_too_large_is_an_incident_and_the_worker_goes_on(url: str, what: str) -> None:
    grow = {"@expr": "context.text + context.text + context.text + context.text + context.text"}
    action: Any = {
        "a task's input": human("look", input={"text": grow}),
        "the context": {"type": "assign", "assign": {"text": grow}},
        "a log": {"type": "log", "params": grow},
    }[what]
    chart = {
        "id": "large", "context": {"text": "x" * 3000}, "initial": "calm",
        "states": {"calm": {"on": {"go": {"actions": action}, "end": "over"}}, "over": {"type": "final"}},
    }  # fmt: skip
    hf = Holdfast("sqlite:///unused.db", payload_limit=10_000)
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle, other = await test.start("large"), await test.start("large")
        await handle.send("go")
        await other.send("end")
        await test.run_until_idle()
        view = await handle.status()
        assert view.status == "waiting" and "10,000" in str(view.waiting_on)
        assert (await other.status()).status == "completed"


async def test_the_inbox_is_asked_for_by_person_group_type_and_status(url: str) -> None:
    def one(n: int, **more: Any) -> dict[str, Any]:
        return {"type": "createTask", "params": {"type": "HUMAN", "name": f"t{n}", **more}}

    chart = {
        "id": "inbox", "initial": "on",
        "states": {"on": {"entry": [
            one(1, groups=["a", "b_c"]), one(2, groups=["b%c"], priority=5), one(3, assignee="ann"),
            {"type": "createTask", "params": {"type": "TIMER", "name": "t4", "delay": "P1D"}},
        ]}},
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart)
        handle = await test.start("inbox")
        await test.publish(chart, tenant="other")
        await test.start("inbox", tenant="other")
        await test.run_until_idle()

        async def names(**wanted: Any) -> list[str]:
            return [task.name for task in await test.tasks.list(**wanted)]

        assert await names() == ["t2", "t1", "t3", "t4"]
        assert await names(type="HUMAN") == ["t2", "t1", "t3"]
        assert await names(type="TIMER") == ["t4"]
        assert await names(group="a") == ["t1"]
        assert await names(group="b_c") == ["t1"]
        assert await names(group="b%c", type="HUMAN") == ["t2"]
        assert await names(group="b") == []
        assert await names(assignee="ann") == ["t3"]
        assert await names(limit=1) == ["t2"]
        [first] = await test.tasks.list(assignee="ann")
        await test.tasks.complete(first.id, actor="ann")
        assert await names(assignee="ann") == []
        assert await names(status="succeeded") == ["t3"]
        await test.run_until_idle()
        assert await names(instance=handle.id) == ["t1", "t2", "t4"]
        assert sorted(await names(instance=handle.id, status=None)) == ["t1", "t2", "t3", "t4"]


async def test_a_chart_sends_events_to_another_instance_and_to_itself(url: str) -> None:
    to = {"@expr": "event.to"}
    sending = {
        "id": "sending", "context": {"got": 0}, "initial": "on", "output": {"@expr": "context.got"},
        "states": {
            "on": {"on": {
                "tell": {"actions": {"type": "send", "to": to, "event": {"type": "note", "n": {"@expr": "event.n"}}}},
                "note": {"actions": {"type": "assign", "assign": {"got": {"@expr": "context.got + event.n"}}}},
                "stop": "off",
            }},
            "off": {"type": "final"},
        },
    }  # fmt: skip
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(sending)
        one, two = await test.start("sending"), await test.start("sending")
        await one.send("tell", {"to": two.id, "n": 1})
        await one.send("tell", {"to": one.id, "n": 10})
        await one.send("tell", {"to": "nobody", "n": 100})
        await test.run_until_idle()
        for handle in (one, two):
            await handle.send("stop")
        await test.run_until_idle()
        assert (await one.result(0), await two.result(0)) == (10, 1)
        sent = [e.payload for e in await one.history() if e.type == "EVENT_SENT"]
        assert [words["to"] for words in sent] == [two.id, one.id, "nobody"]
        assert "not an id" in sent[2]["error"] and "error" not in sent[1]
        assert (await test.verify()).faults == []
    assert_sound(url)
