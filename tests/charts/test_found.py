"""What a hostile review found in how charts meet the store: each of these failed once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import apsw
import asyncpg
import pytest

from holdfast import Context, Holdfast, TaskNotOpen
from holdfast.engine import ids
from holdfast.engine.turns import Outcome, Turn
from holdfast.testing import Harness
from tests.charts.support import human
from tests.flows.support import query, until
from tests.support.auditor import assert_sound

CHILD = {"id": "kid", "initial": "w", "states": {"w": {"entry": {
    "type": "createTask", "params": {"type": "SYSTEM", "name": "pay"}}}}}  # fmt: skip
ASKING = {
    "id": "asking", "initial": "on",
    "states": {"on": {"entry": human("look"), "on": {"task.done.look": "done", "task.failed.look": "not"}},
               "done": {"type": "final"}, "not": {"type": "final"}},
}  # fmt: skip


def parent(id_: str, **on_the_way: Any) -> dict[str, Any]:
    return {
        "id": id_, "initial": "idle" if id_ == "told-twice" else "run",
        "states": {
            "idle": {"on": {"go": "run"}},
            "run": {"invoke": {"id": "k", "src": {"workflow": "kid"}}, "on": {"leave": "left"}, **on_the_way},
            "left": {},
        },
    }  # fmt: skip


# -- children


@pytest.mark.parametrize("how", ["left-at-once", "told-twice", "cancelled"])
async def test_a_child_that_nobody_wants_any_more_in_the_turn_that_starts_it_is_cancelled(url: str, how: str) -> None:
    hf, calls = Holdfast("sqlite:///unused.db"), []

    @hf.task_handler("SYSTEM", "pay", kind="effect")
    async def pay(given: Any) -> None:
        calls.append(given)

    async with Harness(hf, url=url) as test:
        await test.publish(CHILD)
        await test.publish(parent(how, **({"always": "left"} if how == "left-at-once" else {})))
        handle = await test.start(how)
        if how == "told-twice":
            await test.run_until_idle()
            await handle.send("go")
            test.clock.micros += 1
            await handle.send("leave")
        elif how == "cancelled":
            await handle.cancel("changed my mind", actor="ann")
        await test.run_until_idle()
        [child] = [one for one in await test.instances() if one.workflow == "kid"]
        assert child.status == "cancelled"
        assert calls == []
    assert_sound(url)


# -- transactions


def at_commit(url: str, sql: Callable[[int], str], *, swallow: bool = False) -> tuple[Any, list[int]]:
    """A handler that runs one statement, as each database wants it, and the attempts it was given."""
    runs: list[int] = []
    if url.startswith("sqlite"):

        def on_sqlite(tx: Any, *given: Any) -> int:
            runs.append(len(runs) + 1)
            try:
                tx.execute(sql(len(runs)))
            except apsw.ConstraintError:
                if not swallow:
                    raise
            return len(runs)

        return on_sqlite, runs

    async def on_postgres(tx: Any, *given: Any) -> int:
        runs.append(len(runs) + 1)
        try:
            await tx.execute(sql(len(runs)))
        except asyncpg.UniqueViolationError:
            if not swallow:
                raise
        return len(runs)

    return on_postgres, runs


def tables(url: str) -> None:
    query(url, "create table shelves (id integer primary key)")
    query(url, "insert into shelves values (1)")
    query(url, "create table books (id integer references shelves (id) deferrable initially deferred)")


BOOKING = {
    "id": "booking", "initial": "book",
    "states": {
        "book": {"invoke": {"src": "book", "onDone": "booked", "onError": "refused"}},
        "booked": {}, "refused": {},
    },
}  # fmt: skip


async def test_a_constraint_that_fails_at_commit_is_a_failed_attempt(url: str) -> None:
    handler, runs = at_commit(url, lambda run: f"insert into books values ({1 if run == 2 else 99})")
    hf = Holdfast("sqlite:///unused.db")
    hf.task_handler("SYSTEM", "book", kind="transaction")(handler)
    async with Harness(hf, url=url) as test:
        tables(url)
        await test.publish(BOOKING)
        handle = await test.start("booking")
        await test.run_until_idle()
        [task] = await test.tasks.list(status=None, instance=handle.id)
        assert (task.status, task.attempts, task.output) == ("pending", 1, None)
        await test.advance(hours=1)
        assert (await handle.snapshot() or {})["value"] == "booked"
        [task] = await test.tasks.list(status=None, instance=handle.id)
        assert (task.status, task.attempts, task.output) == ("succeeded", 2, 2)
        assert "foreign key" in str([e.payload for e in await handle.history()]).lower()
        assert runs == [1, 2]
        assert query(url, "select id from books") == [(1,)]
    assert_sound(url)


async def test_a_constraint_that_fails_at_every_commit_fails_the_task_with_its_error(url: str) -> None:
    handler, runs = at_commit(url, lambda run: "insert into books values (99)")
    hf = Holdfast("sqlite:///unused.db")
    hf.task_handler("SYSTEM", "book", kind="transaction")(handler)
    async with Harness(hf, url=url) as test:
        tables(url)
        await test.publish(BOOKING)
        handle = await test.start("booking")
        await test.advance(hours=1)
        assert (await handle.snapshot() or {})["value"] == "refused"
        [task] = await test.tasks.list(status=None, instance=handle.id)
        assert (task.status, task.output, len(runs)) == ("failed", None, task.max_attempts)
        assert "foreign key" in str(task.error).lower()
        assert await test.dead_letters() == []
    assert_sound(url)


async def test_a_handler_that_swallows_the_error_of_its_statement_is_told_what_follows(url: str) -> None:
    """On SQLite the statement alone is undone and the rest stands; on PostgreSQL the transaction is over."""
    handler, _ = at_commit(url, lambda run: "insert into shelves values (1)", swallow=True)
    hf = Holdfast("sqlite:///unused.db")
    hf.task_handler("SYSTEM", "book", kind="transaction")(handler)
    async with Harness(hf, url=url) as test:
        tables(url)
        await test.publish(BOOKING)
        handle = await test.start("booking")
        await test.advance(hours=1)
        if url.startswith("sqlite"):
            assert (await handle.snapshot() or {})["value"] == "booked"
        else:
            assert (await handle.snapshot() or {})["value"] == "refused"
            [task] = await test.tasks.list(status=None, instance=handle.id)
            assert "savepoint" in str(task.error)
        assert await test.dead_letters() == []
    assert_sound(url)


@pytest.mark.parametrize("swallow", [False, True], ids=["deferred", "swallowed"])
async def test_so_it_is_for_a_transaction_step_of_code(url: str, swallow: bool) -> None:
    bad = "insert into shelves values (1)" if swallow else "insert into books values (99)"
    handler, _ = at_commit(url, lambda run: bad if run == 1 else "insert into books values (1)", swallow=swallow)
    async with Harness(url=url) as test:
        tables(url)

        @test.workflow("book")
        async def workflow(ctx: Context) -> int:
            return int(await ctx.transaction("book", handler))

        handle = await test.start("book")
        went_through = swallow and url.startswith("sqlite")
        assert await test.finish(handle) == (1 if went_through else 2)
        assert [e.payload["attempt"] for e in await handle.history() if e.type == "TRANSACTION_RETRIED"] == (
            [] if went_through else [1]
        )
    assert_sound(url)


async def test_what_an_effect_brought_while_a_transaction_ran_is_evidence_when_the_worker_is_fenced(url: str) -> None:
    came_back, begun, hold = asyncio.Event(), [], True
    hf = Holdfast("sqlite:///unused.db")
    if url.startswith("sqlite"):

        @hf.task_handler("SYSTEM", "book", kind="transaction")
        def book(tx: Any, given: Any) -> None:
            begun.append(1)
            while hold:
                time.sleep(0.005)
    else:

        @hf.task_handler("SYSTEM", "book", kind="transaction")
        async def book(tx: Any, given: Any) -> None:
            begun.append(1)
            while hold:
                await asyncio.sleep(0.005)

    @hf.task_handler("SYSTEM", "pay", kind="effect")
    async def pay(given: Any) -> Any:
        while not begun:
            await asyncio.sleep(0.005)
        came_back.set()
        return {"receipt": "R-1"}

    tasks = [{"type": "createTask", "params": {"type": "SYSTEM", "name": name}} for name in ("book", "pay")]
    async with Harness(hf, url=url) as test:
        await test.publish({"id": "both", "initial": "on", "states": {"on": {"entry": tasks}}})
        handle = await test.start("both")
        worker = test.test_worker
        assert worker is not None
        worker.spawn(worker.run_once())
        await came_back.wait()
        await until(lambda: all(ex.arrived for ex in worker.executions.values()))
        worker.fenced(worker.id)
        hold = False
        await until(lambda: query(url, "select 1 from holdfast.effect_observations"))
        [effect] = await test.effects.list(state=None, instance=handle.id)
        [seen] = (await test.effects.show(effect.id)).observations
        assert (seen.outcome, seen.payload) == ("returned", {"receipt": "R-1"})


# -- people


async def with_a_task(test: Harness) -> tuple[Any, str]:
    await test.publish(ASKING)
    handle = await test.start("asking")
    await test.run_until_idle()
    [task] = await test.tasks.list()
    return handle, task.id


def before_the_word(test: Harness, *happens: Callable[[], Awaitable[Any]]) -> None:
    """What others do between a person's look at a task and the commit of their word, once per try."""
    store, left = test.service.store, list(happens)
    commit = store.commit

    async def late(worker_id: bytes | None, turns: Sequence[Turn]) -> list[Outcome]:
        if left and any(change.by is None for turn in turns for change in turn.task_changes):
            await left.pop(0)()
        return await commit(worker_id, turns)

    store.commit = late  # type: ignore[method-assign]


@pytest.mark.parametrize("word", ["complete", "fail"])
async def test_a_task_that_another_claims_at_the_last_moment_is_theirs(url: str, word: str) -> None:
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        handle, task = await with_a_task(test)
        before_the_word(test, lambda: test.tasks.claim(task, actor="ann"))
        with pytest.raises(TaskNotOpen, match="belongs to 'ann', not to 'bob'"):
            if word == "complete":
                await test.tasks.complete(task, 1, actor="bob")
            else:
                await test.tasks.fail(task, actor="bob", reason="no time")
        view = await test.tasks.show(task)
        assert (view.assignee, view.status, view.completed_by) == ("ann", "pending", None)
        assert query(url, "select 1 from holdfast.events") == []
        await test.tasks.complete(task, 1, actor="ann")
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
    assert_sound(url)


async def test_a_task_that_changed_hands_and_came_back_may_be_completed(url: str) -> None:
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        handle, task = await with_a_task(test)

        async def there_and_back() -> None:
            await test.tasks.claim(task, actor="ann")
            await test.tasks.unclaim(task, actor="ann")

        before_the_word(test, there_and_back, lambda: test.tasks.claim(task, actor="bob"))
        assert (await test.tasks.complete(task, 1, actor="bob")).completed_by == "bob"
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
    assert_sound(url)


async def test_a_word_on_a_task_that_never_stands_still_is_refused_and_not_recorded(url: str) -> None:
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        _, task = await with_a_task(test)

        async def claim() -> None:
            await test.tasks.claim(task, actor="bob")

        async def unclaim() -> None:
            await test.tasks.unclaim(task, actor="bob")

        before_the_word(test, *[claim, unclaim] * 5)
        with pytest.raises(TaskNotOpen, match="all the time: try again"):
            await test.tasks.complete(task, 1, actor="bob")
        assert (await test.tasks.show(task)).status == "pending"


async def test_a_word_and_its_event_are_written_together_or_not_at_all(url: str) -> None:
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        handle, task = await with_a_task(test)
        # The doors take no event by such an id; somebody with a database prompt may.
        event = f"task:{ids.parse('tsk', task).hex()}"
        query(
            url,
            "insert into holdfast.events (tenant_id, instance_id, id, kind, name, payload, sent_at, consumed_seq) "
            f"select tenant_id, id, '{event}', 'signal', 'x', input, 1, 1 from holdfast.instances",
        )
        with pytest.raises(TaskNotOpen, match="nothing was recorded"):
            await test.tasks.complete(task, 1, actor="ann")
        view = await test.tasks.show(task)
        assert (view.status, view.completed_by, view.output) == ("pending", None, None)
        query(url, "delete from holdfast.events")
        await test.tasks.complete(task, 1, actor="ann")
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"


async def test_the_open_tasks_of_an_instance_are_found_behind_any_number_of_settled_ones(url: str) -> None:
    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        handle, task = await with_a_task(test)
        new_id = "randomblob(16)" if url.startswith("sqlite") else "decode(lpad(to_hex(n), 32, '0'), 'hex')"
        columns = "tenant_id, instance_id, definition_key, key, type, name, idempotency_key, input, options"
        query(
            url,
            "with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < 1001) "
            f"insert into holdfast.tasks ({columns}, id, status, created_at, completed_at, closed_at) "
            f"select {columns}, {new_id}, 'succeeded', created_at - 1, 1, 1 from holdfast.tasks cross join numbers",
        )
        assert [view.id for view in await test.tasks.list(instance=handle.id, limit=5)] == [task]
        assert len(await test.tasks.list(instance=handle.id, status="succeeded", limit=5)) == 5
        assert len(await test.tasks.list(instance=handle.id, status=None, limit=1000)) == 1000
