"""Trouble of our own, or of the database: waited out or parked, never taken for a death that the instance caused."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest
from structlog.testing import capture_logs

from holdfast import Context, Holdfast
from holdfast.store.port import NotBegun
from holdfast.testing import Harness
from tests.flows.support import entries, query, types, until
from tests.support.patience import PATIENCE_SECONDS

CHART: dict[str, Any] = {
    "id": "plain",
    "initial": "on",
    "states": {"on": {"on": {"go": "off"}}, "off": {"type": "final"}},
}


def in_tx(harness: Harness, body: Any) -> Any:
    """A handler as each database wants it. `body(tx)` may return an awaitable on PostgreSQL."""
    if harness.url.startswith("sqlite"):
        return lambda tx: body(tx)

    async def on_postgres(tx: Any) -> Any:
        found = body(tx)
        return await found if asyncio.iscoroutine(found) else found

    return on_postgres


async def test_clean_deploys_neither_bury_an_instance_nor_make_it_a_suspect(url: str) -> None:
    app = Holdfast(url)
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        began.set()
        await may_end.wait()
        return "done"

    @app.workflow("slow")
    async def workflow(ctx: Context) -> str:
        return await ctx.step("slow", slow)

    async with app:
        handle = await app.start("slow")
        for _ in range(7):  # each one comes in the middle of the step
            scope = app.worker(poll_seconds=0.01)
            worker = await scope.__aenter__()
            await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
            began.clear()
            app.service.workers.remove(worker)
            await worker.stop(timeout=0.0)
            assert query(url, "select attempts from holdfast.instances") == [(0,)]
        may_end.set()
        async with app.worker(poll_seconds=0.01):
            assert await handle.result(timeout=PATIENCE_SECONDS) == "done"
        assert await app.dead_letters() == []


async def test_a_suspect_in_a_long_step_does_not_keep_its_worker_from_everything_else(url: str) -> None:
    app = Holdfast(url)
    began, may_end = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        await may_end.wait()

    @app.workflow("slow")
    async def workflow(ctx: Context) -> None:
        await ctx.step("slow", slow)

    @app.workflow("echo")
    async def echo(ctx: Context) -> int:
        return await ctx.step("one", lambda: 1)

    async with app:
        suspect = await app.start("slow")
        query(url, "update holdfast.instances set attempts = 2")
        async with app.worker(poll_seconds=0.01) as worker:
            worker.alone_seconds = 0.2
            await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
            assert await (await app.start("echo")).result(timeout=PATIENCE_SECONDS) == 1
            may_end.set()
            await suspect.result(timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("kind", ["code", "chart"])
async def test_what_the_engine_itself_cannot_do_is_parked_and_goes_on_when_it_is_mended(
    harness: Harness, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @harness.workflow("coded")
    async def workflow(ctx: Context) -> str:
        await ctx.step("one", lambda: 1)
        return "done"

    await harness.publish(CHART)
    place = "holdfast.worker.execution.Execution" if kind == "code" else "holdfast.worker.charts.ChartExecution"
    with monkeypatch.context() as broken:
        broken.setattr(f"{place}._dispatch", lambda ex: 1 / 0)
        handle = await harness.start("coded" if kind == "code" else "plain")
        with capture_logs() as logs:
            await harness.run_until_idle()
            assert (await handle.status()).run_at == harness.clock.now + timedelta(seconds=1)
            said = (
                "A worker could not move it, as that worker's log says; it is tried again at 2026-01-01T09:00:01Z: the"
            )
            assert (await handle.why()).startswith(said)
            await harness.advance(minutes=1)
    times = [log["event"] for log in logs].count("execution_broken")
    assert times == 5, "tried again a few times, and not in a hot loop"
    view = await handle.status()
    assert view.status == "waiting" and str(view.waiting_on).startswith("parked: ")
    assert "Holdfast failed 5 times in a row to move it (ZeroDivisionError" in await handle.why()
    assert (await types(handle))[-1] == "INSTANCE_PARKED"
    assert await harness.dead_letters() == []
    await handle.retry()
    await harness.run_until_idle()
    if kind == "chart":
        await handle.send("go")
        await harness.run_until_idle()
    assert (await handle.status()).status == "completed"


async def test_turns_that_the_database_refuses_for_a_while_bury_nobody_and_the_log_holds_no_row(
    harness: Harness,
) -> None:
    @harness.workflow("order")
    async def workflow(ctx: Context) -> str:
        await ctx.wait_for_signal("go")
        return await ctx.step("one", lambda: "tr0ub4dor&3")

    handle = await harness.start("order")
    await harness.run_until_idle()
    if harness.url.startswith("sqlite"):
        query(
            harness.url, "create trigger refuses before insert on holdfast_history begin select raise(abort, 'no'); end"
        )
    else:
        query(harness.url, "alter table holdfast.history add constraint refuses check (seq < 0) not valid")
    await handle.signal("go")
    with capture_logs() as logs:
        await harness.advance(minutes=10)
    assert len([log for log in logs if log["event"] == "turn_refused"]) > 5
    assert "tr0ub4dor" not in repr(logs) and "DETAIL" not in repr(logs)
    if harness.url.startswith("sqlite"):
        query(harness.url, "drop trigger refuses")
    else:
        query(harness.url, "alter table holdfast.history drop constraint refuses")
    await harness.advance(minutes=2)
    if (await handle.status()).status == "waiting":  # parked, if its next turn was that one
        await handle.retry()
        await harness.run_until_idle()
    assert await handle.result(timeout=0) == "tr0ub4dor&3"
    assert await harness.dead_letters() == []


async def test_a_transaction_without_a_connection_waits_below_the_authors_attempts(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    if harness.url.startswith("sqlite"):
        alone = harness.service.store.commit_alone

        async def commit_alone(*args: Any) -> Any:
            if len(refused) < 6:
                refused.append(1)
                raise NotBegun("the file is locked")
            return await alone(*args)

        harness.service.store.commit_alone = commit_alone  # type: ignore[method-assign]
    else:
        connect = asyncpg.connect

        async def full(*args: Any, server_settings: Any, **options: Any) -> Any:
            if server_settings["application_name"] == "holdfast transaction" and len(refused) < 6:
                refused.append(1)
                raise asyncpg.TooManyConnectionsError("sorry, too many clients already")
            return await connect(*args, server_settings=server_settings, **options)

        monkeypatch.setattr(asyncpg, "connect", full)

    @harness.workflow("book")
    async def workflow(ctx: Context) -> str:
        return str(await ctx.transaction("book", in_tx(harness, lambda tx: "booked"), max_attempts=1))

    handles = [await harness.start("book") for _ in range(3)]
    with capture_logs() as logs:
        await harness.run_until_idle()
    assert [await handle.result(timeout=0) for handle in handles] == ["booked"] * 3
    assert len(refused) == 6
    assert "transaction_waits" in [log["event"] for log in logs]
    assert await entries(handles[0], "TRANSACTION_RETRIED") == []


async def test_a_charts_attempt_that_waits_for_a_connection_is_on_record_once(harness: Harness) -> None:
    beside, waited, alone = asyncio.Event(), list[int](), harness.service.store.commit_alone

    async def commit_alone(*args: Any) -> Any:
        waited.append(1)
        beside.set()
        if len(waited) < 6:
            raise NotBegun("too many connections")
        return await alone(*args)

    harness.service.store.commit_alone = commit_alone  # type: ignore[method-assign]
    harness.task_handler("SYSTEM", "book", kind="transaction")(in_tx(harness, lambda tx: "booked"))
    harness.task_handler("SYSTEM", "beside")(beside.wait)
    invoked = [{"src": name, "onDone": {"actions": {"type": "log", "params": name}}} for name in ("book", "beside")]
    await harness.publish({"id": "both", "initial": "on", "states": {"on": {"invoke": invoked}}})
    handle = await harness.start("both")
    await harness.run_until_idle()
    rows = [(entry.type, entry.name.partition("/")[0]) for entry in await handle.history()]
    assert rows.index(("TASK_COMPLETED", "beside")) < rows.index(("TASK_COMPLETED", "book")), (
        "it stood in line meanwhile"
    )
    assert rows.count(("TASK_STARTED", "book")) == 1


async def test_a_transaction_that_waits_for_a_connection_is_cancelled_at_once(harness: Harness) -> None:
    ran: list[int] = []

    async def commit_alone(*args: Any) -> Any:
        raise NotBegun("too many connections")

    harness.service.store.commit_alone = commit_alone  # type: ignore[method-assign]

    @harness.workflow("book")
    async def workflow(ctx: Context) -> Any:
        return await ctx.transaction("book", in_tx(harness, lambda tx: ran.append(1)))

    handle = await harness.start("book")
    worker = harness.test_worker
    assert worker is not None
    with capture_logs():
        await until(lambda: worker.executions, harness)
        await handle.cancel()
        await until(lambda: not worker.executions, harness)
    assert (await handle.status()).status == "cancelled"
    assert ran == []


async def test_a_transaction_that_had_not_begun_does_not_run_after_the_cancel(harness: Harness) -> None:
    ran: list[str] = []
    worker, store = harness.test_worker, harness.service.store
    assert worker is not None
    alone = store.commit_alone

    async def cancelled_meanwhile(*args: Any) -> Any:
        await handle.cancel()
        [execution] = worker.executions.values()
        await until(lambda: execution.events.orders)
        return await alone(*args)

    store.commit_alone = cancelled_meanwhile  # type: ignore[method-assign]

    @harness.workflow("book")
    async def workflow(ctx: Context) -> Any:
        both = [in_tx(harness, lambda tx, name=name: ran.append(name)) for name in ("first", "second")]
        return await asyncio.gather(*(ctx.transaction("book", one, key=str(n)) for n, one in enumerate(both)))

    handle = await harness.start("book")
    await harness.run_until_idle()
    assert (await handle.status()).status == "cancelled"
    assert ran == ["first"]
    assert (await types(handle)).count("TRANSACTION_COMMITTED") == 1


@pytest.mark.parametrize("word", ["close", "break"])
async def test_a_handler_that_closes_or_breaks_its_connection_fails_its_own_step_and_nothing_else(
    harness: Harness, word: str
) -> None:
    sqlite = harness.url.startswith("sqlite")

    def close(tx: Any) -> Any:
        if word == "close":
            return tx.close()
        if sqlite:
            tx.close()
            raise ValueError("broken")
        tx.terminate()
        return None

    @harness.workflow("bad")
    async def bad(ctx: Context) -> Any:
        return await ctx.transaction("close", in_tx(harness, close), max_attempts=1)

    @harness.workflow("good")
    async def good(ctx: Context) -> Any:
        return await ctx.transaction("book", in_tx(harness, lambda tx: "booked"), max_attempts=1)

    handles = [await harness.start(name) for name in ("bad", "good", "bad", "good")]
    await harness.run_until_idle()
    assert [(await handle.status()).status for handle in handles] == ["failed", "completed"] * 2
    error = (await handles[0].status()).error
    assert error["type"] == "StepFailed"
    assert sqlite or "the handler closed its connection: leave that to Holdfast" in error["message"]


KEPT: list[Any] = []
LEFT_ON_IT: dict[str, tuple[Callable[[apsw.Connection], Any], str]] = {
    "a row trace": (lambda tx: setattr(tx, "row_trace", lambda cursor, row: {"row": row}), "completed"),
    "a statement trace": (lambda tx: setattr(tx, "exec_trace", lambda *_: False), "completed"),
    "an authorizer": (lambda tx: setattr(tx, "authorizer", lambda *_: apsw.SQLITE_DENY), "completed"),
    "a commit hook": (lambda tx: tx.set_commit_hook(lambda: True), "completed"),
    "a progress handler": (lambda tx: tx.set_progress_handler(lambda: True, 1), "completed"),
    "a pragma": (lambda tx: tx.pragma("query_only", True), "failed"),
    "a statement that is not read to its end": (
        lambda tx: KEPT.append(tx.execute("create table t(x); insert into t values (1), (2) returning x")),
        "failed",
    ),
    "a table of our name": (lambda tx: tx.execute("create temp table holdfast_history (x)").fetchall(), "failed"),
}


@pytest.mark.parametrize("what", LEFT_ON_IT)
async def test_what_a_handler_leaves_on_its_connection_meets_nobody_else(tmp_path: Path, what: str) -> None:
    """On PostgreSQL the connection ends with its transaction."""
    leave, ending = LEFT_ON_IT[what]
    async with Harness(url=f"sqlite:///{tmp_path / 'left.db'}") as harness:

        @harness.workflow("bad")
        async def bad(ctx: Context) -> Any:
            return await ctx.transaction("leave", leave, max_attempts=1)

        @harness.workflow("good")
        async def good(ctx: Context) -> Any:
            await ctx.step("look", lambda: None)
            return await ctx.transaction("book", lambda tx: "booked", max_attempts=1)

        handles = [await harness.start(name) for name in ("bad", "good", "bad", "good")]
        await harness.run_until_idle()
        assert [(await handle.status()).status for handle in handles] == [ending, "completed"] * 2


async def test_turns_are_sealed_in_two_threads_at_once(harness: Harness) -> None:
    """On SQLite a transaction step's turn is sealed in the writer's thread while the loop seals others."""
    assert harness.test_worker is not None
    salt = harness.test_worker.salt
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            drawn = [threads.submit(lambda: [salt() for _ in range(20_000)]) for _ in range(2)]
            found = [one for each in drawn for one in each.result()]
    finally:
        sys.setswitchinterval(before)
    assert len(set(found)) == 40_000
    assert {len(one) for one in found} == {16}


@pytest.mark.parametrize("failures", [3, 11], ids=["a few times", "again and again"])
async def test_a_transaction_that_met_another_one_is_tried_again_below_the_authors_attempts(
    harness: Harness, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.transactions.PAUSE_MAX", 0.05)
    tried: list[int] = []

    def meet(tx: Any) -> Any:
        tried.append(1)
        if len(tried) > failures:
            return "booked"
        if harness.url.startswith("sqlite"):
            raise apsw.BusyError("database is locked")
        return tx.execute("do $$ begin raise exception using errcode = '40001'; end $$")

    @harness.workflow("book")
    async def workflow(ctx: Context) -> Any:
        return await ctx.transaction("book", in_tx(harness, meet), max_attempts=1)

    handle = await harness.start("book")
    await harness.run_until_idle()
    assert (await handle.status()).status == ("completed" if failures == 3 else "failed")
    assert len(tried) == (4 if failures == 3 else 11)
    assert "TRANSACTION_RETRIED" not in await types(handle)


@pytest.mark.parametrize(
    "when",
    ["before a statement", "behind the last one", "and the handler makes more of it", "and nobody has seen it yet"],
)
@pytest.mark.parametrize("losses", [3, 11], ids=["a few times", "again and again"])
async def test_a_connection_that_the_server_closed_is_not_charged_to_the_author(
    postgres_url: str, when: str, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.transactions.PAUSE_MAX", 0.05)
    tried: list[int] = []

    async def book(tx: Any) -> str:
        tried.append(1)
        await tx.execute("insert into books values ('o-1')")
        if len(tried) <= losses:
            query(postgres_url, f"select pg_terminate_backend({tx.get_server_pid()})")
            if when != "and nobody has seen it yet":
                await until(tx.is_closed)
        if when == "before a statement":
            await tx.execute("select 1")
        elif when == "and the handler makes more of it" and tx.is_closed():
            await tx.close()
            raise ValueError("the books are closed")
        return "booked"

    async with Harness(url=postgres_url) as harness:
        query(postgres_url, "create table books (id text)")

        @harness.workflow("book")
        async def workflow(ctx: Context) -> Any:
            return await ctx.transaction("book", book, max_attempts=1)

        handle = await harness.start("book")
        await harness.run_until_idle()
        view = await handle.status()
        assert len(tried) == (4 if losses == 3 else 11)
        assert query(postgres_url, "select id from books") == ([("o-1",)] if losses == 3 else [])
        if losses == 3:
            assert (view.status, view.result) == ("completed", "booked")
        else:
            assert view.status == "failed"
            assert "the connection to PostgreSQL was lost while the handler ran" in view.error["message"]
        assert "TRANSACTION_RETRIED" not in await types(handle)


@pytest.mark.parametrize(("timeout", "limit"), [(None, "12s"), (30, "32s"), (10_000_000, "2147483647ms")])
async def test_a_handler_is_not_cut_off_within_its_time_out(
    postgres_url: str, timeout: float | None, limit: str
) -> None:
    """Our own turn behind it locks the worker's row, and must let go of it before the lease of a worker that stands
    still is over."""

    async def book(tx: Any) -> str:
        await tx.execute("insert into books values ('o-1')")
        return str(await tx.fetchval("show idle_in_transaction_session_timeout"))

    async with Harness(url=postgres_url) as harness:
        query(
            postgres_url,
            """
            create table books (id text);
            create table seen (of_our_turn text);
            create function look() returns trigger language plpgsql as $$
                begin insert into seen values (current_setting('idle_in_transaction_session_timeout')); return null; end
            $$;
            create constraint trigger looks after insert on books initially deferred
                for each row execute function look()
            """,
        )

        @harness.workflow("book")
        async def workflow(ctx: Context) -> Any:
            return await ctx.transaction("book", book, timeout=timeout)

        handle = await harness.start("book")
        assert await harness.finish(handle) == limit
        assert query(postgres_url, "select of_our_turn from seen") == [("10s",)]
