"""What comes to a chart while a turn, a reading or a handler is under way, or while nobody is there: in its order."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import TaskInfo
from holdfast.store.port import NotBegun
from holdfast.testing import Harness
from tests.flows.support import query, until
from tests.support.auditor import assert_sound

FINAL: dict[str, Any] = {"type": "final"}
BEGUN = "select 1 from holdfast.history where type = 'TASK_STARTED'"


async def looks(harness: Harness, times: int = 20) -> None:
    assert harness.test_worker is not None
    for _ in range(times):
        await harness.test_worker.run_once()
        await asyncio.sleep(0.002)


async def names(handle: Any, *skipped: str) -> list[str]:
    return [entry.type for entry in await handle.history() if entry.type not in skipped]


async def test_a_timer_that_a_chart_cannot_go_on_with_has_what_came_later_wait(harness: Harness) -> None:
    more = {"type": "assign", "assign": {"n": {"@expr": "context.n + 1"}}}
    broken = {"guard": {"@expr": "context.nothing > 1"}, "target": "z"}
    await harness.publish({"id": "c", "context": {"n": 0}, "initial": "a", "states": {
        "a": {"on": {"go": {"actions": more}, "off": "z"}, "after": {"PT5S": broken}}, "z": FINAL,
    }})  # fmt: skip
    handle = await harness.start("c")
    await harness.run_until_idle()
    harness.clock.move(timedelta(seconds=6))  # no worker was there
    for event in ("go", "off"):
        await handle.send(event)
    await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "waiting" and "nothing" in str(view.waiting_on)
    assert (await names(handle)).count("ERROR") == 1 and "EVENT_RECEIVED" not in await names(handle)
    assert_sound(harness.url, finished=False)


@pytest.mark.parametrize("away", [True, False])
async def test_an_event_comes_before_a_deadline_that_was_later_whatever_was_due_before(
    harness: Harness, away: bool
) -> None:
    """A timer was due at 5, the event came at 6, the deadline at 7."""
    look = {"src": {"task": {"type": "HUMAN", "name": "look", "deadline": "PT7S"}}, "onError": "late"}
    await harness.publish({"id": "c", "type": "parallel", "states": {
        "clock": {"initial": "a", "states": {"a": {"after": {"PT5S": "b"}}, "b": {}}},
        "work": {"initial": "a", "states": {"a": {"invoke": look, "on": {"withdraw": "withdrawn"}}, "late": {},
                                            "withdrawn": {}}},
    }})  # fmt: skip
    handle = await harness.start("c")
    await harness.run_until_idle()
    harness.clock.move(timedelta(seconds=5))
    if not away:
        await harness.run_until_idle()
    harness.clock.move(timedelta(seconds=1))
    await handle.send("withdraw")
    harness.clock.move(timedelta(seconds=4))
    await harness.run_until_idle()
    assert (await handle.snapshot())["value"] == {"clock": "b", "work": "withdrawn"}


@pytest.mark.parametrize("away", [True, False])
async def test_a_timer_task_that_fell_due_before_its_deadline_is_done_however_late_one_looks(
    harness: Harness, away: bool
) -> None:
    tick = {"type": "TIMER", "name": "tick", "delay": "PT5S", "deadline": "PT7S"}
    invoke = {"src": {"task": tick}, "onDone": "done", "onError": "late"}
    await harness.publish({"id": "c", "initial": "a", "states": {"a": {"invoke": invoke}, "done": {}, "late": {}}})
    handle = await harness.start("c")
    await harness.run_until_idle()
    if away:
        harness.clock.move(timedelta(seconds=10))
        await harness.run_until_idle()
    else:
        await harness.advance(seconds=10)
    assert (await handle.snapshot())["value"] == "done"


async def test_a_persons_word_before_the_deadline_counts_though_it_was_not_read_yet(harness: Harness) -> None:
    over = asyncio.Event()

    @harness.task_handler("SYSTEM", "long")
    async def long(given: Any) -> None:
        await over.wait()

    look = {"src": {"task": {"type": "HUMAN", "name": "look", "deadline": "PT7S"}}, "onDone": "done", "onError": "late"}
    await harness.publish({"id": "c", "type": "parallel", "states": {
        "work": {"initial": "a", "states": {"a": {"invoke": {"src": "long", "onDone": "z"}}, "z": FINAL}},
        "person": {"initial": "a", "states": {"a": {"invoke": look}, "done": {}, "late": {}}},
    }})  # fmt: skip
    handle = await harness.start("c")
    await until(lambda: query(harness.url, BEGUN), harness)
    await looks(harness)
    [task] = await harness.tasks.list(type="HUMAN")
    harness.clock.move(timedelta(seconds=1))
    worker = harness.test_worker
    assert worker is not None
    worker.look_seconds = 1e9  # it hears of nothing before its timer
    heard, worker.event_for = worker.event_for, lambda instance_id: None  # type: ignore[method-assign]
    await harness.tasks.complete(task.id, {"ok": True}, actor="ann")
    harness.clock.move(timedelta(seconds=6))
    await looks(harness)
    assert (await handle.snapshot())["value"]["person"] == "done"
    assert "TASK_LATE" not in await names(handle)
    worker.event_for = heard  # type: ignore[method-assign]
    over.set()
    await harness.run_until_idle()


@pytest.mark.parametrize("what", ["event", "time-out"])
async def test_what_comes_to_a_chart_whose_transaction_cannot_begin_does_not_wait_for_it(
    harness: Harness, what: str
) -> None:
    @harness.task_handler("SYSTEM", "book", kind="transaction")
    def book(tx: Any, given: Any) -> None: ...

    store = harness.service.store
    alone, full = store.commit_alone, True

    async def no_connection(*given: Any, **more: Any) -> Any:
        if full:
            raise NotBegun("no connection")
        return await alone(*given, **more)

    store.commit_alone = no_connection  # type: ignore[method-assign]
    await harness.publish({"id": "c", "initial": "a", "states": {
        "a": {"invoke": {"src": "book", "onDone": "z"}, "after": {"PT5S": "late"}, "on": {"go": "gone"}},
        "z": FINAL, "late": FINAL, "gone": FINAL,
    }})  # fmt: skip
    handle = await harness.start("c")
    await until(lambda: query(harness.url, BEGUN), harness)
    if what == "event":
        await handle.send("go")
    else:
        harness.clock.move(timedelta(seconds=5))
    done = "select 1 from holdfast.instances where status = 'completed'"
    for _ in range(40):
        if query(harness.url, done):
            break
        await until_or_not(lambda: query(harness.url, done), harness)
    full = False
    assert (await handle.snapshot())["value"] == ("gone" if what == "event" else "late")


async def until_or_not(condition: Any, harness: Harness) -> None:
    for _ in range(100):
        if condition():
            return
        assert harness.test_worker is not None
        await harness.test_worker.run_once()
        await asyncio.sleep(0.005)


async def test_a_migration_that_this_worker_cannot_read_stops_nothing_else(harness: Harness) -> None:
    over = asyncio.Event()

    @harness.task_handler("SYSTEM", "long")
    async def long(given: Any) -> None:
        await over.wait()

    def chart(version: int) -> dict[str, Any]:
        states = {"a": {"invoke": {"id": "w", "src": "long", "onDone": "b"}}, "b": {"on": {"off": "z"}}, "z": FINAL}
        return {"id": "c", "context": {"v": version}, "initial": "a", "states": states}

    await harness.publish(chart(1))
    handle = await harness.start("c")
    await until(lambda: query(harness.url, BEGUN), harness)
    charts = harness.service.charts
    load = charts.load

    async def unreadable(tenant: str, key: str, version: int) -> Any:
        if version == 2:
            raise ValueError("made by a later Holdfast")
        return await load(tenant, key, version)

    charts.load = unreadable  # type: ignore[method-assign, assignment]
    async with Harness(harness, url=harness.url, clock=harness.clock) as door:
        await door.publish(chart(2))
        moving = asyncio.ensure_future(door.instance(handle.id).migrate(2, {}, actor="ann"))
        await until(lambda: query(harness.url, "select 1 from holdfast.events where kind = 'migrate'"), harness)
        await handle.cancel("enough", actor="ann")
        over.set()
        await until(
            lambda: query(harness.url, "select 1 from holdfast.instances where completed_at is not null"), harness
        )
        await asyncio.wait([moving])
        assert (await handle.status()).status == "cancelled"


@pytest.mark.parametrize("case", ["first attempt", "next attempt"])
async def test_an_attempt_that_a_migration_puts_off_is_on_record_once_it_begins(harness: Harness, case: str) -> None:
    runs: list[int] = []

    @harness.task_handler("SYSTEM", "work")
    async def work(given: Any, info: TaskInfo) -> int:
        runs.append(info.attempt)
        if case == "next attempt" and info.attempt == 1:
            raise RuntimeError("no")
        return 1

    def chart(version: int) -> dict[str, Any]:
        invoke = {"id": "w", "src": {"task": {"type": "SYSTEM", "name": "work", "backoff": "PT5S"}}, "onDone": "z"}
        first = "idle" if case == "first attempt" else "a"
        states = {"idle": {"on": {"go": "a"}}, "a": {"on": {"go": {}}, "invoke": invoke}, "z": FINAL}
        return {"id": "c", "context": {"v": version}, "initial": first, "states": states}

    await harness.publish(chart(1))
    handle = await harness.start("c")
    await harness.run_until_idle()
    await harness.publish(chart(2))
    harness.clock.move(timedelta(seconds=6))
    await handle.send("go")
    harness.clock.move(timedelta(seconds=1))
    moving = asyncio.ensure_future(handle.migrate(2, {}, actor="ann", reason="mended"))
    await asyncio.sleep(0.1)
    await harness.run_until_idle()
    assert (await moving).outcome == "migrated"
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"
    assert (await names(handle)).count("TASK_STARTED") == len(runs) == (1 if case == "first attempt" else 2)
    assert_sound(harness.url)
