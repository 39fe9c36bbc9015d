"""Where several things meet: many answers at once, a state left while a payment is under way, a crash while ending."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from holdfast import BadInput, Context, EffectNotOpen, EventInLine, Holdfast, NotApplied, Outside, TaskInfo, TaskNotOpen
from holdfast.testing import Harness, ScriptedLlm
from holdfast.worker.charts import EVENTS_OF_TURN
from tests.charts.support import human
from tests.flows.support import next_worker, until
from tests.flows.test_odd_failures import ODD
from tests.support.auditor import assert_sound

FINAL = {"type": "final"}


def empty() -> Holdfast:
    return Holdfast("sqlite:///unused.db")


def system(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "createTask", "params": {"type": "SYSTEM", "name": name, **more}}


def add(field: str = "n") -> dict[str, Any]:
    return {"actions": {"type": "assign", "assign": {field: {"@expr": f"context.{field} + 1"}}}}


@pytest.mark.parametrize("count", [60, 300])
async def test_more_answers_than_fit_into_one_turn_are_all_worked_off(url: str, count: int) -> None:
    hf = Holdfast(url)

    @hf.task_handler("SYSTEM", "work")
    async def work(given: Any) -> int:
        return 1

    chart = {
        "id": "many", "context": {"n": 0}, "initial": "on", "output": {"@expr": "context.n"},
        "states": {
            "on": {
                "entry": [system("work") for _ in range(count)],
                "on": {"task.done.work": add()},
                "always": {"guard": {"@expr": f"context.n == {count}"}, "target": "off"},
            },
            "off": FINAL,
        },
    }  # fmt: skip
    async with hf, hf.worker():
        await hf.publish(chart)
        handle = await hf.start("many")
        assert await handle.result(60) == count
    assert_sound(url)


@pytest.mark.parametrize("times", [EVENTS_OF_TURN - 3, EVENTS_OF_TURN - 2, EVENTS_OF_TURN - 1])
async def test_a_chart_that_comes_to_its_end_as_its_turn_is_full_ends(url: str, times: int) -> None:
    tell = {"type": "send", "to": {"@expr": "context.me"}, "event": {"type": "next"}}
    again = {"guard": {"@expr": f"context.n < {times}"}, "actions": [add()["actions"], tell]}
    begin = [{"type": "assign", "assign": {"me": {"@expr": "event.me"}}}, tell]
    chart = {
        "id": "teller", "context": {"n": 0, "me": ""}, "initial": "on", "output": {"@expr": "context.n"},
        "states": {"on": {"on": {"begin": {"actions": begin}, "next": [again, {"target": "off"}]}}, "off": FINAL},
    }  # fmt: skip
    hf = Holdfast(url)
    async with hf, hf.worker():
        await hf.publish(chart)
        handle = await hf.start("teller")
        await handle.send("begin", {"me": handle.id})
        assert await handle.result(60) == times


async def test_a_chart_that_tells_itself_a_hundred_times_goes_on(url: str) -> None:
    tell = {"type": "send", "to": {"@expr": "context.me"}, "event": {"type": "next"}}
    chart = {
        "id": "teller", "context": {"n": 0, "me": ""}, "initial": "on", "output": {"@expr": "context.n"},
        "states": {
            "on": {
                "on": {
                    "begin": {"actions": [{"type": "assign", "assign": {"me": {"@expr": "event.me"}}}, tell]},
                    "next": {"actions": [add()["actions"], tell]},
                },
                "always": {"guard": {"@expr": "context.n >= 120"}, "target": "off"},
            },
            "off": FINAL,
        },
    }  # fmt: skip
    hf = Holdfast(url)
    async with hf, hf.worker():
        await hf.publish(chart)
        handle = await hf.start("teller")
        await handle.send("begin", {"me": handle.id})
        assert await handle.result(60) == 120


async def test_words_during_an_incident_are_kept_and_resume_is_heard_however_many_they_are(url: str) -> None:
    chart = {
        "id": "parked", "context": {"n": 0}, "initial": "on",
        "states": {"on": {
            "entry": [human("look", completion_event="seen") for _ in range(60)],
            "on": {"bad": {"guard": {"@expr": "context.nothing > 1"}, "target": "on"}, "seen": add()},
        }},
    }  # fmt: skip
    async with Harness(empty(), url=url) as test:
        await test.publish(chart)
        handle = await test.start("parked")
        await handle.send("bad")
        await test.run_until_idle()
        for task in await test.tasks.list():
            await test.tasks.complete(task.id, {}, actor="ann")
        await handle.resume(actor="ann", drop_event=True)
        await test.run_until_idle()
        snapshot = await handle.snapshot() or {}
        assert snapshot["context"]["n"] == 60 and "incident" not in snapshot
        assert Counter(e.type for e in await handle.history())["EVENT_DROPPED"] == 1
    assert_sound(url)


async def test_drop_event_drops_what_faulted_and_nothing_that_came_since(url: str) -> None:
    hf = empty()

    @hf.task_handler("SYSTEM", "pay", kind="effect")
    async def pay(given: Any) -> int:
        return 7

    chart = {
        "id": "dropping", "context": {}, "initial": "wait",
        "states": {
            "wait": {"on": {"go": "paying"}, "entry": human("look", completion_event="seen")},
            "paying": {
                "invoke": {"src": {"task": {"type": "SYSTEM", "name": "pay", "delay": "PT1M"}}, "onDone": "paid"},
                "on": {"bad": {"guard": {"@expr": "context.nothing > 1"}, "target": "wait"}},
            },
            "paid": FINAL,
        },
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("dropping")
        await handle.send("go")
        await test.run_until_idle()
        await handle.send("bad")
        await test.run_until_idle()
        async with test.worker():
            with pytest.raises(EventInLine, match="resume"):
                await handle.send("late", strict=True)
        await test.advance(minutes=2)  # the payment is made and answers, during the incident
        await handle.resume(actor="ann", drop_event=True)
        await test.run_until_idle()
        assert [e.name for e in await handle.history() if e.type == "EVENT_DROPPED"] == ["bad"]
        assert (await handle.snapshot() or {})["value"] == "paid"


async def test_what_falls_due_during_an_incident_is_taken_once_and_waits_quietly(url: str) -> None:
    chart = {
        "id": "quiet", "initial": "a",
        "states": {
            "a": {
                "entry": {"type": "createTask", "params": {"type": "TIMER", "name": "t", "delay": "PT10S"}},
                "on": {"bad": {"guard": {"@expr": "context.nothing > 1"}, "target": "b"}, "task.done.t": "b"},
            },
            "b": FINAL,
        },
    }  # fmt: skip
    async with Harness(empty(), url=url) as test:
        await test.publish(chart)
        handle = await test.start("quiet")
        await test.run_until_idle()
        await handle.send("bad")
        await test.run_until_idle()
        test.clock.move(timedelta(seconds=20))
        worker = test.test_worker
        assert worker is not None
        for _ in range(20):
            await worker.run_once()
            await until(lambda: not worker.busy(), test)
        assert len(await handle.history()) < 15
        await handle.resume(actor="ann", drop_event=True)
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"


@pytest.mark.parametrize("name", ["xstate.done.actor.0.x.a", "task.done.look", "task.failed.look"])
async def test_nobody_answers_for_a_task(url: str, name: str) -> None:
    async with Holdfast(url) as hf:
        await hf.publish({"id": "x", "initial": "a", "states": {"a": {"entry": human("look")}}})
        handle = await hf.start("x")
        with pytest.raises(BadInput, match="engine's own"):
            await handle.signal(name, {"output": 1})
        with pytest.raises(BadInput, match="engine's own"):
            await handle.send("fine", id="task:0")


async def test_event_task_and_at_are_the_engines_own(url: str) -> None:
    chart = {
        "id": "trusted", "context": {"at": "", "task": True}, "initial": "a", "output": {"@expr": "context"},
        "states": {
            "a": {"on": {"go": {"target": "b", "actions": {"type": "assign", "assign": {
                "at": {"@expr": "event.at"}, "task": {"@expr": "has(event.task)"}}}}}},
            "b": {"after": {"PT1H": {"target": "c", "actions": {"type": "assign", "assign": {
                "at": {"@expr": "context.at + ' ' + event.at"}}}}}},
            "c": FINAL,
        },
    }  # fmt: skip
    async with Harness(empty(), url=url) as test:
        await test.publish(chart)
        handle = await test.start("trusted")
        await handle.send("go", {"task": {"id": "forged"}, "decided": {"by": "me"}, "at": "1999", "type": "other"})
        await test.advance(hours=2)
        assert await handle.result(0) == {"at": "2026-01-01T09:00:00Z 2026-01-01T10:00:00Z", "task": False}


async def test_what_came_first_is_taken_first_whoever_was_asleep(url: str) -> None:
    chart = {
        "id": "asleep", "initial": "a",
        "states": {
            "a": {
                "entry": human("look", completion_event="seen"),
                "on": {"approved": "granted", "withdraw": "withdrawn", "seen": "looked"},
                "after": {"PT1H": "denied"},
            },
            "granted": FINAL, "denied": FINAL, "withdrawn": FINAL, "looked": FINAL,
        },
    }  # fmt: skip
    async with Harness(empty(), url=url) as test:
        await test.publish(chart)
        one, two, three, four = [await test.start("asleep") for _ in range(4)]
        await test.run_until_idle()
        test.clock.move(timedelta(minutes=10))
        await one.send("approved")
        await two.send("withdraw")
        test.clock.move(timedelta(seconds=1))
        tasks = {task.instance_id: task.id for task in await test.tasks.list()}
        with pytest.raises(TaskNotOpen, match="event 'withdraw' came before"):
            await test.tasks.complete(tasks[two.id], {}, actor="ann")
        await test.tasks.complete(tasks[four.id], {}, actor="ann")
        test.clock.move(timedelta(seconds=1))
        await four.send("withdraw")
        test.clock.move(timedelta(hours=2))
        await test.run_until_idle()
        found = [(await handle.snapshot() or {})["value"] for handle in (one, two, three, four)]
        assert found == ["granted", "withdrawn", "denied", "looked"]


@pytest.mark.parametrize("by", ["an event", "itself", "code"])
@pytest.mark.parametrize("second", [59, 60, 61])
async def test_what_is_sent_at_the_very_moment_at_which_the_time_is_up_is_in_time(
    url: str, by: str, second: int
) -> None:
    waits = {
        "id": "waits", "initial": "on",
        "states": {"on": {"on": {"go": "in_time"}, "after": {"PT1M": "late"}}, "in_time": {}, "late": {}},
    }  # fmt: skip
    tells_itself = {
        "id": "tells", "initial": "on", "context": {"me": None},
        "states": {
            "on": {
                "on": {
                    "met": {"actions": {"type": "assign", "assign": {"me": {"@expr": "event.id"}}}},
                    "tell": {"actions": {"type": "send", "to": {"@expr": "context.me"}, "event": "go"}},
                    "go": "in_time",
                },
                "after": {"PT1M": "late"},
            },
            "in_time": {}, "late": {},
        },
    }  # fmt: skip
    hf = empty()

    @hf.workflow("coded")
    async def coded(ctx: Context) -> str:
        return await ctx.wait_for_signal("go", timeout=60) or "late"

    async with Harness(hf, url=url) as test:
        for chart in (waits, tells_itself):
            await test.publish(chart)
        handle = await test.start({"an event": "waits", "itself": "tells", "code": "coded"}[by])
        if by == "itself":
            await handle.send("met", {"id": handle.id})
        await test.run_until_idle()
        test.clock.move(timedelta(seconds=second))  # and no worker looks
        await handle.signal("tell" if by == "itself" else "go", "in_time")
        if by != "itself":
            test.clock.move(timedelta(hours=1))
        await test.run_until_idle()
        stands = await handle.snapshot()
        found = (await handle.status()).result if stands is None else stands["value"]
        assert found == ("late" if second > 60 else "in_time")


@pytest.mark.parametrize("what", ["child", "deep"])
async def test_what_cannot_be_written_is_an_incident_before_anything_is_begun(url: str, what: str) -> None:
    hf = Holdfast("sqlite:///unused.db", payload_limit=20_000)

    @hf.workflow("kid")
    async def kid(ctx: Any, given: Any) -> Any:
        return None

    grow = {"type": "assign", "assign": {"deep": {"in": {"@expr": "context.deep"}}}}
    big = {"invoke": {"src": {"workflow": "kid"}, "input": [{"@expr": "context.text"}] * 30}}
    chart = {
        "id": "big", "context": {"text": "x" * 1000, "deep": 1}, "initial": "on",
        "states": {"on": {"on": {"go": "big" if what == "child" else {"actions": [grow] * 90}}}, "big": big},
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("big")
        for n in range(1 if what == "child" else 4):
            await handle.send("go", id=str(n))
        await test.run_until_idle()
        view = await handle.status()
        assert view.status == "waiting" and view.waiting_on and view.waiting_on.startswith("parked: ")
        assert ("the input of child" if what == "child" else "nested") in view.waiting_on
    assert_sound(url)


async def test_a_backoff_that_turns_out_to_be_none_fails_the_task_and_not_the_worker(url: str) -> None:
    hf = empty()

    @hf.task_handler("SYSTEM", "work")
    async def work(given: Any) -> Any:
        return given

    src = {"task": {"type": "SYSTEM", "name": "work", "backoff": {"factor": {"@expr": "context.f"}}}}
    chart = {
        "id": "backoff", "context": {"f": [2]}, "initial": "a",
        "states": {"a": {"invoke": {"src": src, "onDone": "b", "onError": "c"}}, "b": FINAL, "c": FINAL},
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("backoff")
        await test.run_until_idle()
        assert (await handle.snapshot() or {})["value"] == "c"


async def test_a_state_left_while_its_effect_is_under_way_hears_no_more_of_it(url: str) -> None:
    hf, calls, back = empty(), [], asyncio.Event()

    @hf.task_handler("SYSTEM", "pay", kind="effect", mode="keyed")
    async def pay(given: Any, info: TaskInfo) -> None:
        calls.append(info.attempt)
        await back.wait()
        raise NotApplied("the line was busy")

    chart = {
        "id": "leaving", "initial": "a",
        "states": {
            "a": {"entry": system("pay", backoff=1000), "on": {
                "leave": {"target": "b", "actions": {"type": "cancelTask", "params": {"name": "pay"}}}}},
            "b": {"on": {"task.done.pay": "c", "task.failed.pay": "c", "stop": "c"}},
            "c": FINAL,
        },
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("leaving")
        worker = test.test_worker
        assert worker is not None
        await until(lambda: bool(calls), test)
        await handle.send("leave")
        await until(lambda: any("pay/1.0" in getattr(e, "left", ()) for e in worker.executions.values()), test)
        back.set()
        await test.run_until_idle()
        await test.advance(hours=1)
        assert calls == [1] and (await handle.snapshot() or {})["value"] == "b"
        types = [e.type for e in await handle.history()]
        assert types.count("TASK_LEFT") == 1 and types.count("EFFECT_STARTED") == 1
        [task] = await test.tasks.list(status="failed")
        assert task.name == "pay"
    assert_sound(url)


async def test_a_person_who_says_it_did_not_happen_starts_nothing_that_nobody_wants(url: str) -> None:
    hf, calls = empty(), []

    @hf.task_handler("SYSTEM", "pay", kind="effect")
    async def pay(given: Any) -> None:
        calls.append(1)
        raise ConnectionResetError("no answer")

    chart = {
        "id": "unwanted", "initial": "a",
        "states": {"a": {"invoke": {"src": "pay", "onDone": "b"}, "on": {"leave": "b"}}, "b": {"on": {"stop": "c"}},
                   "c": FINAL},
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("unwanted")
        await test.run_until_idle()
        await handle.send("leave")
        await test.run_until_idle()
        [effect] = await test.effects.list()
        await test.effects.resolve(effect.id, "did_not_happen", actor="ann", reason="not in the bank's list")
        await test.advance(hours=1)
        assert calls == [1] and (await handle.snapshot() or {})["value"] == "b"
        await handle.send("stop")
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
    assert_sound(url)


async def test_a_migration_that_starts_a_payment_makes_it_once(url: str) -> None:
    hf, calls = empty(), []

    @hf.task_handler("SYSTEM", "pay", kind="effect")
    async def pay(given: Any) -> int:
        calls.append(1)
        return 5

    def chart(**more: Any) -> dict[str, Any]:
        return {"id": "moved", "initial": "a", "states": {"a": {"on": {"go": "b"}, **more}, "b": FINAL}}

    async with Harness(hf, url=url) as test:
        await test.publish(chart())
        handle = await test.start("moved")
        await test.run_until_idle()
        await test.publish(chart(invoke={"id": "pay", "src": "pay", "onDone": "b"}))
        async with test.worker():
            moved = await handle.migrate(2, actor="ann", start=["pay"])
            assert moved.outcome == "migrated"
        await test.run_until_idle()
        assert calls == [1] and (await handle.status()).status == "completed"
    assert_sound(url)


async def test_a_child_of_a_version_that_cannot_start_is_an_error_and_no_orphan(url: str) -> None:
    def parent(version: int) -> dict[str, Any]:
        src = {"workflow": "kid", "version": version}
        return {"id": f"parent{version}", "initial": "a", "states": {
            "a": {"invoke": {"src": src, "onDone": "b", "onError": "c"}}, "b": FINAL, "c": FINAL}}  # fmt: skip

    kid = {"id": "kid", "initial": "a", "states": {"a": FINAL}}
    async with Harness(empty(), url=url) as test:
        await test.publish(kid)
        await test.publish(kid | {"description": "newer"})
        await test.definitions.set_status("kid", 1, "archived", actor="ann")
        with pytest.raises(BadInput, match="for good"):
            await test.definitions.set_status("kid", 1, "active", actor="ann")
        for version, value in ((1, "c"), (2, "b"), (7, "c")):
            await test.publish(parent(version))
            handle = await test.start(f"parent{version}")
            await test.run_until_idle()
            assert (await handle.snapshot() or {})["value"] == value, version


async def test_no_attempt_begins_after_the_deadline(url: str) -> None:
    hf, tries = empty(), []

    @hf.task_handler("SYSTEM", "flaky")
    async def flaky(given: Any) -> None:
        tries.append(given)
        raise ConnectionError("not now")

    @hf.task_handler("SYSTEM", "busy", kind="effect")
    async def busy(given: Any) -> None:
        tries.append(given)
        raise NotApplied("not now")

    params = {"backoff": "PT30M", "max_attempts": 9, "deadline": "PT10M"}
    chart = {
        "id": "late", "type": "parallel",
        "states": {name: {"initial": "a", "states": {
            "a": {"invoke": {"src": {"task": {"type": "SYSTEM", "name": name, "input": name, **params, **more}},
                             "onDone": "b", "onError": "c"}},
            "b": FINAL, "c": FINAL}} for name, more in (
                ("flaky", {}), ("busy", {}), ("later", {"handler": "flaky", "delay": "PT1H"}))},
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("late")
        await test.run_until_idle()
        await test.advance(minutes=11)
        view = await handle.status()
        assert view.status == "completed" and sorted(tries) == ["busy", "flaky"]
        value = (await handle.snapshot() or {})["value"]
        assert value == {"flaky": "c", "busy": "c", "later": "c"}


async def test_a_model_that_is_out_is_an_error_of_the_chart_and_no_question_to_a_person(url: str) -> None:
    hf = empty()

    @hf.task_handler("AI", "triage", kind="effect", mode="keyed")
    async def triage(given: Any) -> None:
        raise TimeoutError("the model does not answer")

    src = {"task": {"type": "AI", "name": "triage", "prompt": {"id": "p", "version": 1, "user": "Hm?"},
                    "backoff": "PT1S"}}  # fmt: skip
    chart = {
        "id": "outage", "initial": "a",
        "states": {"a": {"invoke": {"src": src, "onDone": "b", "onError": "c"}}, "b": FINAL, "c": FINAL},
    }  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("outage")
        await test.advance(hours=1)
        assert (await handle.snapshot() or {})["value"] == "c"
        assert await test.effects.list() == []
    assert_sound(url)


def transactions(url: str, ran: list[str], begun: asyncio.Event, wait: bool) -> Holdfast:
    hf = empty()
    loop = asyncio.get_running_loop()

    async def of_postgres(tx: Any, given: Any) -> None:
        ran.append(given)
        if given == "B" and wait:
            begun.set()
            await asyncio.Event().wait()

    def of_sqlite(tx: Any, given: Any) -> None:
        ran.append(given)
        if given == "B" and wait:
            loop.call_soon_threadsafe(begun.set)
            raise RuntimeError("the process dies here")

    hf.task_handler("SYSTEM", "book", kind="transaction")(of_sqlite if url.startswith("sqlite") else of_postgres)
    return hf


async def test_a_transaction_in_line_is_not_begun_once_the_instance_ends(url: str) -> None:
    chart = {
        "id": "ending", "initial": "a",
        "states": {
            "a": {"entry": [system("A", handler="book", input="A"), system("B", handler="book", input="B")],
                  "on": {"task.done.A": "z"}},
            "z": FINAL,
        },
    }  # fmt: skip
    ran: list[str] = []
    async with Harness(transactions(url, ran, asyncio.Event(), wait=False), url=url) as test:
        await test.publish(chart)
        handle = await test.start("ending")
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
        statuses = {task.name: task.status for task in await test.tasks.list(status=None, instance=handle.id)}
        assert statuses["A"] == "succeeded" and statuses["B"] == ("succeeded" if "B" in ran else "cancelled")
    assert_sound(url)


async def test_a_handler_that_is_no_effect_any_more_does_not_repeat_what_was_begun(url: str) -> None:
    calls: list[str] = []

    def app(kind: Any) -> Holdfast:
        hf = empty()

        @hf.task_handler("SYSTEM", "pay", kind=kind, **({"mode": "keyed"} if kind == "effect" else {}))
        async def pay(given: Any) -> None:
            calls.append(kind)
            await asyncio.Event().wait()

        return hf

    chart = {"id": "kinds", "initial": "a", "states": {
        "a": {"invoke": {"src": "pay", "onDone": "b", "onError": "c"}}, "b": FINAL, "c": FINAL}}  # fmt: skip
    async with Harness(app("effect"), url=url) as first:
        await first.publish(chart)
        handle = await first.start("kinds")
        await until(lambda: bool(calls), first)
        async with next_worker(first, app=app("step")) as other:
            await other.run_until_idle()
            assert calls == ["effect"]
            [effect] = await other.effects.list()
            assert (effect.mode, effect.reason) == (
                "keyed", "it was begun as 'keyed', and its handler 'pay' is a step now: only a person may say what "
                "became of it",
            )  # fmt: skip
            with pytest.raises(EffectNotOpen):
                await other.effects.resolve(effect.id, "did_not_happen", actor="ann", reason="not in the list")
            await other.effects.resolve(effect.id, "happened", actor="ann", reason="in the list", result={"id": 1})
            await other.run_until_idle()
            assert (await other.instance(handle.id).snapshot() or {})["value"] == "b"


async def test_failed_lookups_do_not_say_that_the_call_is_over(url: str) -> None:
    calls: list[str] = []

    def app() -> Holdfast:
        hf = empty()

        async def lookup(key: str) -> None:
            raise ConnectionResetError("the provider's lookup is down")

        @hf.task_handler("SYSTEM", "pay", kind="effect", mode="lookup", lookup=lookup)
        async def pay(given: Any) -> None:
            calls.append("called")
            await asyncio.Event().wait()

        return hf

    chart = {"id": "over", "initial": "a", "states": {"a": {"invoke": {"src": "pay", "onDone": "b"}}, "b": FINAL}}
    async with Harness(app(), url=url) as first:
        await first.publish(chart)
        await first.start("over")
        await until(lambda: bool(calls), first)
        async with next_worker(first, app=app()) as other:
            await other.advance(minutes=30)
            [effect] = await other.effects.list()
            assert "lookups failed" in (effect.reason or "")
            assert isinstance(effect.error, dict) and effect.error["returned"] is False


async def test_a_rejected_call_is_over_and_a_person_may_decide_at_once(url: str) -> None:
    hf = empty()

    @hf.task_handler("SYSTEM", "pay", kind="effect")
    async def pay(given: Any) -> None:
        raise ConnectionResetError("after the last byte")

    async with Harness(hf, url=url) as test:
        await test.publish({"id": "r", "initial": "a", "states": {"a": {"invoke": {"src": "pay", "onDone": "b"}},
                                                                  "b": FINAL}})  # fmt: skip
        handle = await test.start("r")
        await test.run_until_idle()
        [effect] = await test.effects.list()
        await test.effects.resolve(effect.id, "did_not_happen", actor="ann", reason="the bank says so")
        await test.run_until_idle()
        assert Counter(e.type for e in await handle.history())["EFFECT_STARTED"] == 2


async def test_a_worker_without_the_childs_code_leaves_the_chart_to_one_that_has_it(url: str) -> None:
    invoke = {"src": {"workflow": "kid"}, "onDone": "b", "onError": "c"}
    chart = {"id": "needs-kid", "initial": "a", "states": {"a": {"invoke": invoke}, "b": FINAL, "c": FINAL}}
    async with Harness(empty(), url=url) as without:
        view = await without.publish(chart)
        assert view.handlers == ["workflow:kid"]
        handle = await without.start("needs-kid")
        await without.run_until_idle()
        assert (await handle.status()).status == "pending"
        hf = empty()

        @hf.workflow("kid")
        async def kid(ctx: Any, given: Any) -> str:
            return "done"

        async with Harness(hf, url=url, clock=without.clock) as other:
            await other.run_until_idle()
            await without.run_until_idle()
            await other.run_until_idle()
            view_ = await other.instance(handle.id).status()
            assert (view_.status, view_.state) == ("completed", "b")


async def test_a_created_ai_task_answers_by_its_own_name_also_after_a_review(url: str) -> None:
    task = {"type": "AI", "name": "triage", "prompt": {"id": "p", "version": 1, "user": "Hm?"},
            "policy": {"allowed_events": ["approve"]}}  # fmt: skip
    chart = {
        "id": "reviewed", "context": {"task": {}}, "initial": "a", "output": {"@expr": "context.task"},
        "states": {
            "a": {"entry": {"type": "createTask", "params": task}, "on": {"task.done.triage": {
                "guard": {"@expr": "event.task.name == 'triage'"}, "target": "b",
                "actions": {"type": "assign", "assign": {"task": {"@expr": "event.task"}}}}}},
            "b": FINAL,
        },
    }  # fmt: skip
    answers = ScriptedLlm(['{"event": "approve", "confidence": 0.9, "reason": "fine"}'])
    async with Harness(empty(), url=url, outside=Outside(llm=answers)) as test:
        await test.publish(chart)
        handle = await test.start("reviewed")
        await test.run_until_idle()
        [review] = await test.tasks.list(type="HUMAN")
        await test.tasks.complete(review.id, {"decision": "reject"}, actor="ann")
        await test.run_until_idle()
        found = await handle.result(0)
        assert (found["type"], found["name"], found["review"]) == ("AI", "triage", review.id)


async def test_a_step_that_was_lost_is_not_begun_again_after_its_deadline(url: str) -> None:
    runs: list[int] = []

    def app() -> Holdfast:
        hf = empty()

        @hf.task_handler("SYSTEM", "work")
        async def work(given: Any) -> None:
            runs.append(1)
            await asyncio.Event().wait()

        return hf

    src = {"task": {"type": "SYSTEM", "name": "work", "deadline": "PT10M"}}
    invoke = {"src": src, "onDone": "b", "onError": "c"}
    chart = {"id": "lost", "initial": "a", "states": {"a": {"invoke": invoke}, "b": FINAL, "c": FINAL}}
    async with Harness(app(), url=url) as first:
        await first.publish(chart)
        handle = await first.start("lost")
        await until(lambda: bool(runs), first)
        first.clock.move(timedelta(minutes=11))
        async with next_worker(first, app=app()) as other:
            await other.run_until_idle()
            assert (await other.instance(handle.id).status()).state == "c" and len(runs) == 1


async def test_a_lost_call_of_a_model_fails_once_and_is_not_made_again(url: str) -> None:
    calls: list[int] = []

    def app() -> Holdfast:
        hf = empty()

        @hf.task_handler("AI", "ask", kind="effect")
        async def ask(given: Any) -> None:
            calls.append(1)
            await asyncio.Event().wait()

        return hf

    task = {"type": "AI", "name": "ask", "prompt": {"id": "p", "version": 1, "user": "Hm?"}}
    chart = {"id": "asked", "initial": "a", "states": {
        "a": {"entry": {"type": "createTask", "params": task}, "on": {"task.failed.ask": "f", "task.done.ask": "d"}},
        "f": {}, "d": {}}}  # fmt: skip
    async with Harness(app(), url=url) as first:
        await first.publish(chart)
        handle = await first.start("asked")
        await until(lambda: bool(calls), first)
        async with next_worker(first, app=app()) as other:
            await other.advance(hours=1)
            found = other.instance(handle.id)
            assert (await found.status()).state == "f" and len(calls) == 1
            counted = Counter(e.type for e in await found.history())
            assert (counted["EFFECT_STARTED"], counted["TASK_FAILED"], counted["TASK_COMPLETED"]) == (1, 1, 0)


async def test_a_chart_that_talks_to_itself_for_ever_still_hears_the_others(url: str) -> None:
    tell = {"type": "send", "to": {"@expr": "context.me"}, "event": {"type": "next"}}
    chart = {
        "id": "talker", "context": {"n": 0, "me": ""}, "initial": "on", "output": {"@expr": "event.type"},
        "states": {
            "on": {
                "entry": human("look", completion_event="seen"),
                "on": {
                    "begin": {"actions": [{"type": "assign", "assign": {"me": {"@expr": "event.me"}}}, tell]},
                    "next": {"actions": [add()["actions"], tell]},
                    "seen": add("n"), "stop": "off",
                },
            },
            "off": FINAL,
        },
    }  # fmt: skip
    hf = Holdfast(url)
    async with hf, hf.worker():
        await hf.publish(chart)
        handle = await hf.start("talker")
        await handle.send("begin", {"me": handle.id}, strict=True)
        await handle.send("other", strict=False)
        [task] = await hf.tasks.list()
        await hf.tasks.complete(task.id, {}, actor="ann")
        await handle.send("stop", strict=True, timeout=60)
        await handle.result(60)
        types = {e.name: e.type for e in await handle.history() if e.type.startswith("EVENT_")}
        assert types["other"] == "EVENT_IGNORED" and types["stop"] == "EVENT_RECEIVED"
        assert any(e.type == "TASK_COMPLETED" for e in await handle.history())


async def test_a_moment_is_not_written_into_the_chart_itself(url: str) -> None:
    tell = {"type": "send", "to": {"@expr": "event.to"}, "event": {"type": "note"}}
    chart = {"id": "constant", "initial": "a", "states": {"a": {"on": {"tell": {"actions": tell}, "note": {}}}}}
    async with Harness(empty(), url=url) as test:
        await test.publish(chart)
        one, two = await test.start("constant"), await test.start("constant")
        await one.send("tell", {"to": one.id})
        await test.run_until_idle()
        await one.send("tell", {"to": two.id})
        await test.run_until_idle()
        [got] = [e.payload for e in await two.history() if e.name == "note"]
        assert got["payload"] == {}


async def test_an_output_that_cannot_be_written_is_an_incident(url: str) -> None:
    grow = {"type": "assign", "assign": {"deep": [{"@expr": "context.deep"}]}}
    chart = {
        "id": "deep-output", "context": {"deep": None}, "initial": "on",
        "output": {"a": [[[[[[[[[[{"@expr": "context.deep"}]]]]]]]]]]},
        "states": {"on": {"on": {"grow": {"actions": [grow] * 95}, "end": "off"}}, "off": FINAL},
    }  # fmt: skip
    async with Harness(empty(), url=url) as test:
        await test.publish(chart)
        handle = await test.start("deep-output")
        for event in ("grow", "grow", "end"):
            await handle.send(event)
            await test.run_until_idle()
        view = await handle.status()
        assert view.status == "waiting" and "nested" in str(view.waiting_on)


async def test_a_handler_gets_its_input_afresh_at_each_attempt(url: str) -> None:
    hf = empty()
    seen: list[int] = []

    @hf.task_handler("SYSTEM", "work", thread=False)
    def work(given: Any, info: TaskInfo) -> int:
        for order in (given, info.input):
            order["amount"] *= 100
            seen.append(order["amount"])
        if info.attempt < 3:
            raise ValueError("again")
        return 1

    entry = system("work", input={"amount": 42})
    chart = {"id": "afresh", "initial": "on", "states": {"on": {"entry": entry, "on": {"task.done.work": "off"}}, "off": FINAL}}  # noqa: E501  # fmt: skip
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        await test.finish(await test.start("afresh"))
    assert seen == [4200] * 6


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("error", ODD)
async def test_a_handler_that_raises_no_exception_fails_its_task(
    url: str, error: type[BaseException], thread: bool
) -> None:
    hf = empty()

    @hf.task_handler("SYSTEM", "work", thread=thread)
    def work() -> None:
        raise error("odd")

    states = {"on": {"entry": system("work", max_attempts=1), "on": {"task.failed.work": "off"}}, "off": FINAL}
    async with Harness(hf, url=url) as test:
        await test.publish({"id": "odd", "initial": "on", "states": states})
        handle = await test.start("odd")
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
    assert_sound(url)
