"""Living instances moved to another version of their chart: by an explicit map, whole or not at all."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast, TaskInfo
from holdfast.testing import Harness
from tests.charts.support import human
from tests.support.auditor import assert_sound


def chart(first: str, second: str | None = None, **more: Any) -> dict[str, Any]:
    states: dict[str, Any] = {
        first: {"entry": human("look", completion_event="seen"), "on": {"seen": second or "over", "go": "over"},
                "after": {"P3D": "over"}},
        "over": {"type": "final"},
    }  # fmt: skip
    if second:
        states[second] = {"on": {"go": "over"}}
    return {
        "id": "moving",
        "context": {"n": 1},
        "initial": first,
        "output": {"@expr": "context"},
        "states": states,
        **more,
    }


async def test_an_instance_moves_with_its_task_and_its_timer(url: str) -> None:
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart("review"))
        handle = await test.start("moving")
        await test.run_until_idle()
        await test.publish(chart("check", "second"))
        refused = await handle.migrate(2, actor="ann", dry_run=True)
        assert refused.outcome == "refused" and "review" in refused.problems[0]
        possible = await handle.migrate(2, {"review": "check"}, actor="ann", dry_run=True)
        assert possible.outcome == "possible"
        assert (await handle.status()).version == 1
        async with test.worker():
            moved = await handle.migrate(2, {"review": "check"}, actor="ann", reason="new rules", context={"n": 2})
        assert moved.outcome == "migrated"
        await test.run_until_idle()
        view = await handle.status()
        assert (view.version, view.status) == (2, "waiting")
        [entry] = [e for e in await handle.history() if e.type == "INSTANCE_MIGRATED"]
        assert entry.payload["actor"] == "ann" and entry.payload["reason"] == "new rules"
        [task] = await test.tasks.list()
        await test.tasks.complete(task.id, {}, actor="bob")
        await test.run_until_idle()
        assert (await handle.snapshot() or {})["value"] == "second"
        await handle.send("go")
        await test.run_until_idle()
        assert await handle.result(0) == {"n": 2}
        assert (await test.verify()).faults == []


async def test_a_timer_keeps_its_moment_in_the_new_version(url: str) -> None:
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart("review"))
        handle = await test.start("moving")
        await test.advance(days=2)
        await test.publish(chart("check"))
        async with test.worker():
            assert (await handle.migrate(2, {"review": "check"}, actor="ann")).outcome == "migrated"
        await test.advance(hours=23)
        assert (await handle.status()).status == "waiting"
        await test.advance(hours=1)
        assert (await handle.status()).status == "completed"


async def test_a_chart_that_could_not_go_on_goes_on_by_a_mended_version(url: str) -> None:
    def broken(expression: str) -> dict[str, Any]:
        return {
            "id": "mended", "context": {"limit": 5}, "initial": "a",
            "states": {"a": {"on": {"go": {"guard": {"@expr": expression}, "target": "b"}}}, "b": {"type": "final"}},
        }  # fmt: skip

    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(broken("event.amount < context.limits"))
        handle = await test.start("mended")
        await handle.send("go", {"amount": 3})
        await test.run_until_idle()
        assert "limits" in str((await handle.status()).waiting_on)
        await test.publish(broken("event.amount < context.limit"))
        async with test.worker():
            assert (await handle.migrate(2, actor="ann")).outcome == "migrated"
            await handle.result(10)
        assert (await handle.status()).status == "completed"


async def test_a_migration_whose_task_cannot_be_made_changes_nothing_and_says_why(url: str) -> None:
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish(chart("review"))
        handle = await test.start("moving")
        await test.run_until_idle()
        invoked = {"id": "w", "src": {"task": {"type": "HUMAN", "name": "w", "priority": {"@expr": "context.n"}}}}
        newer = chart("check")
        newer["states"]["check"]["invoke"] = invoked
        await test.publish(newer)
        async with test.worker():
            moved = await handle.migrate(2, {"review": "check"}, actor="ann", start=["w"], context={"n": 5_000})
            assert moved.outcome == "refused" and "priority" in moved.problems[0]
            assert (await handle.status()).version == 1
            assert not [e for e in await handle.history() if e.type == "INSTANCE_MIGRATED"]
            moved = await handle.migrate(2, {"review": "check"}, actor="ann", start=["w"], context={"n": 5})
            assert moved.outcome == "migrated"
        await test.run_until_idle()
        assert {task.name for task in await test.tasks.list()} == {"look", "w"}
        assert (await test.verify()).faults == []


async def test_the_first_attempt_at_a_task_that_a_migration_asks_for_is_on_record(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    tried: list[int] = []

    @hf.task_handler("SYSTEM", "book", thread=False)
    def book(given: Any, info: TaskInfo) -> None:
        tried.append(info.attempt)

    async with Harness(hf, url=url) as test:
        await test.publish(chart("review"))
        handle = await test.start("moving")
        await test.run_until_idle()
        newer = chart("check")
        newer["states"]["check"]["invoke"] = {"id": "w", "src": {"task": {"type": "SYSTEM", "name": "book"}}}
        await test.publish(newer)
        async with test.worker():
            moved = await handle.migrate(2, {"review": "check"}, actor="ann", start=["w"])
            assert moved.outcome == "migrated"
        await test.run_until_idle()
        said = [
            (entry.type, entry.payload.get("attempt"))
            for entry in await handle.history()
            if entry.name.startswith("book/")
        ]
        assert said == [("TASK_CREATED", None), ("TASK_STARTED", 1), ("TASK_COMPLETED", 1)] and tried == [1]
    assert_sound(url, finished=False)


async def test_an_effect_whose_handler_went_with_the_old_version_says_so_at_the_desk(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")

    @hf.task_handler("SYSTEM", "pay", kind="effect", mode="keyed", thread=False)
    def pay(given: Any) -> None:
        raise ConnectionResetError("no answer")

    paying = {"invoke": {"id": "paying", "src": "pay", "onDone": "over"}}
    waiting, over = {"on": {"go": "over"}}, {"type": "final"}
    async with Harness(hf, url=url) as test:
        await test.publish({"id": "moving", "initial": "pay", "states": {"pay": paying, "over": over}})
        handle = await test.start("moving")
        await test.run_until_idle()
        await test.publish({"id": "moving", "initial": "wait", "states": {"wait": waiting, "over": over}})
        async with test.worker():
            assert (await handle.migrate(2, {"pay": "wait"}, actor="ann", stop=["paying"])).outcome == "migrated"
        await test.run_until_idle()
    async with Harness(Holdfast("sqlite:///unused.db"), url=url, clock=test.clock) as other:
        await other.advance(hours=1)
        [effect] = await other.effects.list()
        [entry] = [one for one in await other.instance(handle.id).history() if one.type == "EFFECT_UNKNOWN"]
        assert entry.payload["mode"] == "keyed"
        assert (effect.mode, effect.reason) == (
            "keyed", "it was begun as 'keyed', and no SYSTEM handler 'pay' is registered in this worker: only a person "
            "may say what became of it",
        )  # fmt: skip
        await other.effects.resolve(
            effect.id, "did_not_happen", actor="ann", reason="not in the list", accept_double=True
        )
        await other.instance(handle.id).send("go")
        await other.run_until_idle()
        assert (await other.instance(handle.id).status()).status == "completed"
        assert_sound(url)
