"""Workers come and go: what they held goes on elsewhere, and one that was fenced begins again."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Context, Holdfast, StepInfo
from holdfast.testing import FakeProvider, Harness
from tests.flows.support import query, tamper, until
from tests.support.patience import PATIENCE_SECONDS


def make(url: str) -> Holdfast:
    app = Holdfast(url)

    @app.workflow("echo")
    async def echo(ctx: Context, given: Any) -> Any:
        return await ctx.step("echo", lambda x: x, given)

    return app


async def test_a_worker_that_was_fenced_begins_again_under_a_new_name(url: str) -> None:
    app = make(url)
    async with app, app.worker(poll_seconds=0.01) as worker:
        first = worker.id
        await app.service.store.release_worker(first, b"x" * 16, stopped=False)
        for _ in range(3):  # whoever finds out, and however often it is said
            worker.fenced(first)
        await until(lambda: worker.id != first)
        handle = await app.start("echo", 1)
        assert await handle.result(timeout=100) == 1
    rows = query(url, "select fenced_at, stopped_at from holdfast.workers order by started_at")
    assert len(rows) == 2
    assert all(fenced for fenced, _ in rows)


async def test_a_fenced_worker_that_cannot_register_at_once_tries_until_it_can(url: str) -> None:
    app = make(url)
    async with app, app.worker(poll_seconds=0.01) as worker:
        store = app.service.store
        first, write, failures = worker.id, store.write, [1, 1]

        async def flaky(name: str, **values: Any) -> int:
            if name == "register_worker" and failures:
                failures.pop()
                raise ConnectionResetError("the database went away")
            return await write(name, **values)

        store.write = flaky  # type: ignore[method-assign]
        with capture_logs():
            await store.release_worker(first, b"x" * 16, stopped=False)
            worker.fenced(worker.id)
            handle = await app.start("echo", 1)
            assert await handle.result(timeout=100) == 1
        assert not failures


async def test_a_worker_that_is_stopped_while_it_begins_again_leaves_nobody_behind(url: str) -> None:
    app = make(url)
    async with app:
        async with app.worker(poll_seconds=0.01) as worker:
            store = app.service.store
            first, write, release = worker.id, store.write, store.release_worker
            registering = asyncio.Event()

            async def slow_write(name: str, **values: Any) -> int:
                if name == "register_worker":
                    registering.set()
                    await asyncio.sleep(0.05)
                return await write(name, **values)

            async def slow_release(worker_id: bytes, by: bytes, *, stopped: bool, gone: bool = True) -> int:
                if stopped and worker_id == first:
                    await until(lambda: worker.id != first)  # the next one has come in between
                return await release(worker_id, by, stopped=stopped, gone=gone)

            store.write, store.release_worker = slow_write, slow_release  # type: ignore[method-assign]
            with capture_logs():
                await release(first, b"x" * 16, stopped=False)
                worker.fenced(first)
                await registering.wait()
        rows = query(url, "select fenced_at, stopped_at from holdfast.workers order by started_at")
        assert [fenced is not None for fenced, _ in rows] == [True] * len(rows)
        assert rows[-1][1] is not None
        left = [task for task in asyncio.all_tasks() if "Committer._run" in repr(task.get_coro())]
        assert len(left) == len(app.service.committer._tasks), "those of the open Holdfast itself"


async def test_a_worker_that_stops_hands_back_what_it_has_not_finished(url: str) -> None:
    app = make(url)
    begun, release = threading.Event(), threading.Event()

    @app.workflow("slow")
    async def slow(ctx: Context) -> str:
        await ctx.step("first", lambda: 1)

        def block() -> None:
            begun.set()
            release.wait(PATIENCE_SECONDS)

        await ctx.step("block", block)
        return "done"

    async with app:
        scope = app.worker(poll_seconds=0.01)
        worker = await scope.__aenter__()
        handle = await app.start("slow")
        await asyncio.to_thread(begun.wait, 20)
        app.service.workers.remove(worker)
        await worker.stop(timeout=0.0)
        release.set()
        assert query(url, "select locked_by from holdfast.instances") == [(None,)]
        async with app.worker(poll_seconds=0.01):
            assert await handle.result(timeout=100) == "done"
        assert [e.type for e in await handle.history()].count("STEP_COMPLETED") == 2


async def test_closing_with_an_effect_under_way_leaves_it_unknown_and_loses_no_evidence(
    url: str, provider: FakeProvider
) -> None:
    began = threading.Event()
    release = threading.Event()
    app = Holdfast(url)

    def pay(info: StepInfo) -> Any:
        began.set()
        release.wait(PATIENCE_SECONDS)
        return provider.call(info.idempotency_key)

    @app.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay)

    async with app:
        scope = app.worker(poll_seconds=0.01)
        worker = await scope.__aenter__()
        handle = await app.start("pay")
        await asyncio.to_thread(began.wait, 20)
        app.service.workers.remove(worker)
        await worker.stop(timeout=0.0)
        release.set()
        async with Harness(app, url=url) as harness:
            harness.clock.micros = app.service.store.now() + 60_000_000
            await harness.run_until_idle()
            assert (await harness.instance(handle.id).status()).status == "waiting"
            assert [view.state for view in await harness.effects.list()] == ["outcome_unknown"]
    assert len(provider.calls) <= 1


async def test_an_instance_claimed_again_before_the_hand_back_was_answered_stays_known(url: str) -> None:
    app, other = make(url), make(url)
    blocked, release = asyncio.Event(), asyncio.Event()

    @app.workflow("waits")
    async def waits(ctx: Context) -> str:
        await ctx.wait_for_signal("go")

        async def block() -> None:
            blocked.set()
            await release.wait()

        await ctx.step("block", block)
        return "done"

    async with other, app, app.worker(poll_seconds=0.02) as worker:
        store = app.service.store
        commit = store.commit

        async def late_reply(worker_id: bytes | None, turns: Any) -> Any:
            found = await commit(worker_id, turns)
            if worker_id is not None:
                store.commit = commit  # type: ignore[method-assign]
                [handed_back] = worker.executions.values()
                await other.instance(handle.id).signal("go")
                await until(lambda: list(worker.executions.values()) != [handed_back])
            return found

        handle = await app.start("waits", start_at=datetime.now(UTC) + timedelta(seconds=0.1))
        store.commit = late_reply  # type: ignore[method-assign]
        await asyncio.wait_for(blocked.wait(), PATIENCE_SECONDS)
        assert len(worker.executions) == 1, "it runs, and its worker does not know of it"
        release.set()
        assert await handle.result(timeout=100) == "done"


async def test_two_workers_share_the_work_and_nothing_runs_twice(url: str) -> None:
    ran: list[int] = []
    one, two = Holdfast(url), Holdfast(url)
    for app in (one, two):

        @app.workflow("count")
        async def count(ctx: Context, n: int) -> int:
            for _ in range(3):
                await ctx.step("count", lambda: ran.append(n), thread=False)
            return n

    async with one, two, one.worker(concurrency=5, poll_seconds=0.01), two.worker(concurrency=5, poll_seconds=0.01):
        handles = await one.start_many("count", range(40))
        assert [await handle.result(timeout=100) for handle in handles] == list(range(40))
    assert sorted(ran) == sorted([*range(40)] * 3)


@pytest.mark.parametrize("failures", [0, 1], ids=["put off", "put off at the second try"])
async def test_a_history_that_cannot_be_read_stops_nobody_else(url: str, failures: int) -> None:
    app = make(url)

    @app.workflow("waits")
    async def waits(ctx: Context, given: Any) -> Any:
        await ctx.step("first", lambda: 1)
        return [given, await ctx.wait_for_signal("go")]

    async with app:
        async with app.worker(poll_seconds=0.02):
            handles = await app.start_many("waits", range(5))
            for handle in handles:
                while (await handle.status()).status != "waiting":
                    await asyncio.sleep(0.01)
        broken = handles[0]
        word = broken.id.removeprefix("ins_").replace("-", "")
        tamper(url, f"update holdfast.history set payload = x'6e6f' where seq = 2 and instance_id = x'{word}'")
        for handle in handles:
            await handle.signal("go", "went")
        store = app.service.store
        write, left = store.write, [1] * failures

        async def flaky(name: str, **values: Any) -> int:
            if name == "release_claim" and left:
                left.pop()
                raise ConnectionResetError("the database went away")
            return await write(name, **values)

        store.write = flaky  # type: ignore[method-assign]
        with capture_logs() as logs:
            async with app.worker(poll_seconds=0.02):
                assert [await h.result(timeout=100) for h in handles[1:]] == [[n, "went"] for n in range(1, 5)]
                later = store.now() + 10_000_000
                await until(lambda: bool(query(url, f"select 1 from holdfast.instances where run_at > {later}")))
        unreadable = [log["instance_id"] for log in logs if log["event"] == "instance_unreadable"]
        assert unreadable == [broken.id] * (1 + failures)
        [(due,)] = query(url, "select run_at from holdfast.instances where completed_at is null")
        assert due > app.service.store.now(), "it is tried again, but not at once"
