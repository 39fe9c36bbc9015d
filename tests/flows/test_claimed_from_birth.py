"""A start in a worker's own process comes with its claim, if that worker has nothing better to do."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Context, Holdfast, InstanceNotFound, ResultNotReady
from holdfast.worker.worker import Worker
from tests.flows.support import query, types, until
from tests.support.auditor import assert_sound
from tests.support.patience import PATIENCE_SECONDS

Happening = Callable[[], Coroutine[Any, Any, Any]]


async def nothing() -> None:
    pass


class App(Holdfast):
    """Workflows that say when they run and wait until they may go on."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.go = asyncio.Event()
        self.runs: list[Any] = []

        async def note(given: Any) -> Any:
            self.runs.append(given)
            await self.go.wait()
            return given

        @self.workflow("note")
        async def noted(ctx: Context, given: Any) -> Any:
            return await ctx.step("note", note, given)

        @self.workflow("other-queue", queue="slow")
        async def slow(ctx: Context, given: Any) -> Any:
            return given

    def count_claims(self) -> list[int]:
        """How many instances each claim from here on brings."""
        counts: list[int] = []
        claim = self.service.store.claim

        async def counted(*args: Any, **options: Any) -> Any:
            found = await claim(*args, **options)
            counts.append(len(found[0]))
            return found

        self.service.store.claim = counted  # type: ignore[method-assign]
        return counts

    def lose_replies(self, count: int) -> list[int]:
        """To the next starts. What is returned empties as they are lost."""
        left = [1] * count

        async def lost() -> None:
            if left:
                left.pop()
                raise ConnectionResetError("the reply was lost")

        self.around_starts(after=lost)
        return left

    def around_starts(self, *, before: Happening = nothing, after: Happening = nothing) -> None:
        """Let something happen before a door's turns are committed, or between their commit and its reply."""
        commit = self.service.store.commit

        async def around(worker_id: bytes | None, turns: Any) -> Any:
            if worker_id is not None:
                return await commit(worker_id, turns)
            await before()
            found = await commit(worker_id, turns)
            await after()
            return found

        self.service.store.commit = around  # type: ignore[method-assign]


async def idle(worker: Worker) -> None:
    """The worker has looked for work and found none."""
    await until(lambda: not worker._more_likely)


async def test_a_start_beside_an_idle_worker_needs_no_claim(url: str) -> None:
    app = App(url)
    app.go.set()
    async with app, app.worker() as worker:
        await idle(worker)
        worker._pause, worker.poll_seconds = 300.0, 600.0
        worker.wakeup.set()  # out of a wait that is short yet, into one that outlasts the test
        await until(lambda: worker._pause == worker.poll_seconds)
        claims = app.count_claims()
        handles = [await app.start("note", n) for n in range(5)]
        assert [await handle.result(timeout=100) for handle in handles] == [0, 1, 2, 3, 4]
        assert sum(claims) == 0
        assert await types(handles[0]) == ["INSTANCE_STARTED", "STEP_COMPLETED", "INSTANCE_COMPLETED"]
    assert app.runs == [0, 1, 2, 3, 4]
    await sound(url)


async def test_what_a_full_worker_cannot_take_waits_and_is_claimed_as_room_is_made(url: str) -> None:
    app = App(url)
    async with app, app.worker(concurrency=3, poll_seconds=30) as worker:
        await idle(worker)
        handles = await app.start_many("note", range(10))
        await until(lambda: len(app.runs) == 3)
        assert len(worker.executions) == 3
        app.go.set()
        assert sorted([await handle.result(timeout=100) for handle in handles]) == list(range(10))
    assert sorted(app.runs) == list(range(10))
    await sound(url)


async def test_nothing_overtakes_what_waits_already(url: str) -> None:
    """While there is a backlog a start takes its place in it."""
    app = App(url)
    async with app:
        waiting = await app.start_many("note", range(4))
        async with app.worker(concurrency=2) as worker:
            await until(lambda: len(app.runs) == 2)
            late = await app.start("note", 99)
            app.go.set()
            for handle in [*waiting, late]:
                await handle.result(timeout=100)
            assert app.runs[-1] == 99
            assert not worker.executions
    await sound(url)


async def test_other_queues_and_later_starts_are_left_alone(url: str) -> None:
    from datetime import UTC, datetime, timedelta

    app = App(url)
    async with app, app.worker() as worker:
        await idle(worker)
        other = await app.start("other-queue", 1)
        later = await app.start("note", 2, start_at=datetime.now(UTC) + timedelta(hours=1))
        assert [(await h.status()).status for h in (other, later)] == ["pending", "pending"]
        assert not worker.executions


async def test_a_caller_that_gives_up_leaves_the_instance_running(url: str) -> None:
    app = App(url)
    async with app, app.worker() as worker:
        await idle(worker)
        starting = asyncio.create_task(app.start("note", 1))
        await asyncio.sleep(0)  # it has asked, the commit is on its way
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await until(lambda: app.runs == [1])
        app.go.set()
        await until(lambda: not worker.executions)
        [view] = await app.instances()
        assert view.status == "completed"
    await sound(url)


async def test_a_start_whose_reply_is_lost_runs_all_the_same_and_once(url: str) -> None:
    app = App(url)
    app.go.set()
    async with app, app.worker(poll_seconds=0.05) as worker:
        await idle(worker)
        lose = app.lose_replies(1)
        with capture_logs():
            handle = await app.start("note", 1)
            assert await handle.result(timeout=100) == 1
        assert not lose
    assert app.runs == [1]
    await sound(url)


async def test_a_worker_fenced_while_a_start_is_on_its_way_does_not_run_it_under_the_old_name(url: str) -> None:
    app = App(url)
    app.go.set()
    async with app, app.worker(poll_seconds=0.05) as worker:
        await idle(worker)
        first, store = worker.id, app.service.store

        async def fenced_meanwhile() -> None:
            if worker.id == first:
                await store.release_worker(first, b"x" * 16, stopped=False)
                worker.fenced(first)
                await until(lambda: worker.id != first)

        app.around_starts(after=fenced_meanwhile)
        with capture_logs():
            handle = await app.start("note", 1)
            assert await handle.result(timeout=100) == 1
    assert app.runs == [1]
    assert query(url, "select max(fence) from holdfast.history") == [(2,)]
    await sound(url)


async def test_a_claim_on_its_way_is_not_taken_for_one_that_was_lost(url: str) -> None:
    app = App(url)
    # An idle worker does not poll in this test: a start that meets a claim under way comes without one of its own.
    async with app, app.worker(poll_seconds=30) as worker:
        await idle(worker)
        hold = asyncio.Event()
        app.around_starts(after=hold.wait)
        starting = asyncio.create_task(app.start("note", 1))
        try:
            await until(lambda: bool(query(url, "select 1 from holdfast.instances")))
            assert worker._expected
            worker._claims_in_doubt = True
            await worker._look_at_claims()
            assert query(url, "select locked_by is not null from holdfast.instances") == [(True,)]
        finally:
            hold.set()
        handle = await starting
        app.go.set()
        assert await handle.result(timeout=100) == 1
    assert app.runs == [1]
    assert query(url, "select max(fence) from holdfast.history") == [(1,)]


async def test_an_instance_that_runs_here_answers_its_own_tenant_only(url: str) -> None:
    app = App(url)
    async with app, app.worker() as worker:
        await idle(worker)
        handle = await app.start("note", "secret", tenant="acme")
        await until(lambda: bool(app.runs))
        foreign = app.tenant("other").instance(handle.id)
        with pytest.raises(InstanceNotFound):
            await foreign.result(timeout=5)
        with pytest.raises(ResultNotReady, match="running"):
            await handle.result(timeout=0)
        waiting = asyncio.create_task(handle.result())
        await asyncio.sleep(0.1)
        app.go.set()
        assert await waiting == "secret"


async def sound(url: str) -> None:
    found = assert_sound(url)
    if hasattr(found, "__await__"):
        await found


# -- interleavings


async def test_a_doubt_raised_while_claims_are_looked_at_is_looked_at_again(url: str) -> None:
    """Two starts lose their replies; the second is looked up while the claim of the first is let go."""
    app = App(url)
    app.go.set()
    async with app, app.worker(poll_seconds=0.05) as worker:
        await idle(worker)
        store = app.service.store
        look_up, write = store.look_up, store.write
        lose, expected, letting_go = app.lose_replies(2), [], asyncio.Event()

        async def first_is_slow(worker_id: bytes | None, turns: Any) -> Any:
            found = await look_up(worker_id, turns)
            if turns[0].instance_id == expected[0]:
                with suppress(TimeoutError):  # the second may have come without a claim: then nothing is let go
                    await asyncio.wait_for(letting_go.wait(), PATIENCE_SECONDS)
            return found

        async def slow_release(name: str, **values: Any) -> int:
            if name == "release_claim":
                letting_go.set()
                await asyncio.sleep(0.05)
            return await write(name, **values)

        expect = worker.expect
        worker.expect = lambda born: (expected.append(born.id), expect(born))[1]  # type: ignore[method-assign]
        store.look_up, store.write = first_is_slow, slow_release  # type: ignore[method-assign]
        with capture_logs():
            first = asyncio.create_task(app.start("note", 1))
            await until(lambda: len(expected) == 1 and len(lose) < 2)
            second = await app.start("note", 2)
            assert await second.result(timeout=100) == 2
            assert await (await first).result(timeout=100) == 1
    assert sorted(app.runs) == [1, 2]
    await sound(url)


async def test_a_worker_kept_full_by_its_own_process_lets_others_in(url: str) -> None:
    app, other = App(url), App(url)
    app.go.set()
    async with other, app, app.worker(concurrency=1, poll_seconds=0.3) as worker:
        await idle(worker)
        foreign = None
        for number in range(60):
            app.go.clear()
            handle = await app.start("note", number)
            foreign = foreign or await other.start("note", "foreign")
            await asyncio.sleep(0.05)  # so it is full whenever it polls
            app.go.set()
            await handle.result(timeout=100)
            if "foreign" in app.runs:
                break
        assert app.runs.index("foreign") < 20
    await sound(url)


async def test_the_concurrency_holds_for_claims_and_births_together(url: str) -> None:
    app, other = App(url), App(url)
    app.go.set()
    peak, over = 0, asyncio.Event()
    async with other, app, app.worker(concurrency=2) as worker:
        await idle(worker)

        async def watch() -> None:
            nonlocal peak
            while not over.is_set():
                peak = max(peak, len(worker.executions))
                worker.wakeup.set()
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        handles = []
        for number in range(60):
            handles.append(await other.start("note", -number))
            handles += [await app.start("note", number), await app.start("note", number)]
            await asyncio.sleep(0.002)
        for handle in handles:
            await handle.result(timeout=100)
        over.set()
        await watching
    assert peak == 2
    await sound(url)


async def test_a_start_on_its_way_takes_room_from_the_next_claim(url: str) -> None:
    app, other = App(url), App(url)
    async with other, app, app.worker(concurrency=1, poll_seconds=30) as worker:
        await idle(worker)
        hold = asyncio.Event()
        app.around_starts(before=hold.wait)
        starting = asyncio.create_task(app.start("note", "mine"))
        await until(lambda: bool(worker._expected))
        await other.start("note", "foreign")
        assert await worker.run_once() == (0, None)
        hold.set()
        handle = await starting
        await until(lambda: app.runs == ["mine"])
        assert len(worker.executions) == 1
        app.go.set()
        assert await handle.result(timeout=100) == "mine"


async def test_a_claim_on_its_way_takes_room_from_the_next_start(url: str) -> None:
    app, other = App(url), App(url)
    async with other, app, app.worker(concurrency=1, poll_seconds=30) as worker:
        await idle(worker)
        foreign = await other.start("note", "foreign")
        store = app.service.store
        claim, claimed, hold = store.claim, asyncio.Event(), asyncio.Event()

        async def slow_reply(*args: Any, **options: Any) -> Any:
            found = await claim(*args, **options)
            claimed.set()
            await hold.wait()
            return found

        store.claim = slow_reply  # type: ignore[method-assign]
        claiming = asyncio.create_task(worker.run_once())
        await claimed.wait()
        mine = await app.start("note", "mine")
        hold.set()
        await claiming
        await until(lambda: app.runs == ["foreign"])
        assert len(worker.executions) == 1
        assert (await mine.status()).status == "pending"
        app.go.set()
        assert await foreign.result(timeout=100) == "foreign"
        assert await mine.result(timeout=100) == "mine"


async def test_a_suspect_waits_for_a_start_that_is_on_its_way(url: str) -> None:
    app = App(url)
    async with app, app.worker(poll_seconds=0.02) as worker:
        await idle(worker)
        store, seen = app.service.store, asyncio.Event()
        app.around_starts(before=seen.wait)
        starting = asyncio.create_task(app.start("note", "mine"))
        await until(lambda: bool(worker._expected))
        worker._suspects = True

        async def suspects_wait() -> bool:
            seen.set()
            return not app.go.is_set()

        worker._suspects_wait = suspects_wait  # type: ignore[method-assign]
        claims: list[bool] = []
        claim = store.claim

        async def noted(*args: Any, alone: bool, **options: Any) -> Any:
            claims.append(alone)
            return await claim(*args, alone=alone, **options)

        store.claim = noted  # type: ignore[method-assign]
        worker.wakeup.set()
        handle = await starting
        await until(lambda: app.runs == ["mine"])
        assert True not in claims, "a suspect was asked for beside a start that had not proved itself"
        app.go.set()
        assert await handle.result(timeout=100) == "mine"


async def test_a_start_that_meets_a_stopping_worker_goes_to_another_at_once(url: str) -> None:
    app = App(url)
    async with app, app.worker(poll_seconds=30) as stays:
        async with app.worker(poll_seconds=30) as stops:
            await idle(stays)
            await idle(stops)
            app.service.workers.reverse()  # the one that stops is asked first
            busy = await app.start("note", "keeps it from ending")
            await until(lambda: len(stops.executions) == 1)

            async def stopping_meanwhile() -> None:
                stops.stopping = True

            app.around_starts(after=stopping_meanwhile)
            handle = await app.start("note", "late")
            await until(lambda: "late" in app.runs)
            assert len(stays.executions) == 1
            app.go.set()
            assert await handle.result(timeout=100) == "late"
            assert await busy.result(timeout=100) == "keeps it from ending"


async def test_nothing_sticks_while_a_fenced_worker_registers_anew(url: str) -> None:
    app = App(url)
    app.go.set()
    async with app, app.worker(poll_seconds=0.02) as worker:
        await idle(worker)
        first, store = worker.id, app.service.store
        write = store.write

        async def slow(name: str, **values: Any) -> int:
            done = await write(name, **values)
            if name == "register_worker":
                await asyncio.sleep(0.2)  # it is on disk, and its reply takes its time
            return done

        store.write = slow  # type: ignore[method-assign]
        with capture_logs():
            await store.release_worker(first, b"x" * 16, stopped=False)
            worker.fenced(first)
            handles = []
            while worker.id == first:
                handles.append(await app.start("note", len(handles)))
                await asyncio.sleep(0.005)
            assert [await handle.result(timeout=100) for handle in handles] == list(range(len(handles)))
        assert handles
    await sound(url)


async def test_a_worker_that_cannot_warm_up_works_all_the_same(url: str) -> None:
    app = App(url)
    app.go.set()
    async with app:

        async def full() -> None:
            raise OSError("the disk is full")

        app.service.store.warm_up = full  # type: ignore[method-assign]
        with capture_logs() as logs:
            async with app.worker():
                assert await (await app.start("note", 1)).result(timeout=100) == 1
        assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["not_warmed_up"]


async def test_every_step_sees_the_variables_of_its_worker(url: str) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    app = Holdfast(url)

    async def look() -> str:
        return variable.get()

    @app.workflow("look")
    async def looks(ctx: Context) -> list[str]:
        return [await ctx.step("a", look), await ctx.step("b", look)]

    async with app:
        variable.set("the worker's")
        async with app.worker() as worker:
            await idle(worker)
            variable.set("the starter's")
            assert await (await app.start("look")).result(timeout=100) == ["the worker's"] * 2


def test_a_service_on_another_loop_leaves_the_worker_alone(tmp_path: Path) -> None:
    """`hf.sync` has a loop of its own; a worker may run on another one in the same process."""
    app = Holdfast(f"sqlite:///{tmp_path / 'loops.db'}")

    async def echo(given: Any) -> Any:
        return given

    @app.workflow("echo")
    async def echoes(ctx: Context, given: Any) -> Any:
        return [await ctx.step("a", echo, given), await ctx.step("b", echo, given)]

    async def work() -> None:
        async with app.worker(poll_seconds=0.05) as worker:
            await idle(worker)
            for number in range(5):
                handle = await asyncio.to_thread(app.sync.start, "echo", number)
                assert await asyncio.to_thread(handle.result, 20) == [number, number]

    app.sync.open()
    try:
        asyncio.run(work())
    finally:
        app.sync.close()
