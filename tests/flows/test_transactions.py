"""Transaction steps: the author's writes and the journal row are one commit, or neither is there."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, StepInfo
from holdfast.testing import Harness
from tests.flows.support import entries, next_worker, query, types, until

Run = Callable[..., Any]


@pytest.fixture
def table(harness: Harness) -> str:
    """A table of the author's own in the same database."""
    query(harness.url, "create table books (id text primary key, amount integer)")
    return "books"


def handler(harness: Harness, body: Callable[[Run], Any]) -> Callable[..., Any]:
    """A handler as each database wants it: sync on SQLite, async on PostgreSQL. `body` gets `run(sql)`."""
    if harness.url.startswith("sqlite"):

        def on_sqlite(tx: Any, *args: Any) -> Any:
            return body(lambda sql: tx.execute(sql))

        return on_sqlite

    async def on_postgres(tx: Any, *args: Any) -> Any:
        waiting: list[str] = []
        try:
            return body(waiting.append)
        finally:
            for sql in waiting:
                await tx.execute(sql)

    return on_postgres


async def test_the_authors_writes_are_committed_once_with_the_journal_row(harness: Harness, table: str) -> None:
    def book(run: Run) -> str:
        run("insert into books values ('o-1', 4200)")
        return "booked"

    @harness.workflow("book")
    async def workflow(ctx: Context) -> list[str]:
        first = await ctx.transaction("book", handler(harness, book))
        await ctx.sleep("nap", 60)
        return [first]

    handle = await harness.start("book")
    assert await harness.finish(handle) == ["booked"]
    assert query(harness.url, "select id, amount from books") == [("o-1", 4200)]
    assert (await types(handle)).count("TRANSACTION_COMMITTED") == 1


async def test_what_a_handler_wrote_before_it_raised_is_rolled_back_and_it_is_tried_again(
    harness: Harness, table: str
) -> None:
    attempts: list[int] = []

    def book(run: Run) -> int:
        attempts.append(1)
        run(f"insert into books values ('try {len(attempts)}', 1)")
        if len(attempts) < 3:
            raise ValueError("no")
        return len(attempts)

    @harness.workflow("book")
    async def workflow(ctx: Context) -> int:
        return int(await ctx.transaction("book", handler(harness, book)))

    handle = await harness.start("book")
    assert await harness.finish(handle) == 3
    assert query(harness.url, "select id from books") == [("try 3",)]
    assert [e.payload["attempt"] for e in await entries(handle, "TRANSACTION_RETRIED")] == [1, 2]


async def test_a_transaction_out_of_attempts_leaves_nothing_of_it(harness: Harness, table: str) -> None:
    def book(run: Run) -> None:
        run("insert into books values ('o-1', 1)")
        raise ValueError("never")

    @harness.workflow("book")
    async def workflow(ctx: Context) -> None:
        await ctx.transaction("book", handler(harness, book), max_attempts=2)

    handle = await harness.start("book")
    await harness.advance(hours=1)
    view = await handle.status()
    assert (view.status, view.error["type"]) == ("failed", "StepFailed")
    assert query(harness.url, "select * from books") == []
    assert (await types(handle))[-2:] == ["TRANSACTION_FAILED", "INSTANCE_FAILED"]


async def test_a_result_that_cannot_be_stored_rolls_the_writes_back(harness: Harness, table: str) -> None:
    def book(run: Run) -> Any:
        run("insert into books values ('o-1', 1)")
        return object()

    @harness.workflow("book")
    async def workflow(ctx: Context) -> Any:
        return await ctx.transaction("book", handler(harness, book))

    handle = await harness.start("book")
    await harness.advance(hours=1)
    assert (await handle.status()).status == "failed"
    assert query(harness.url, "select * from books") == []


@pytest.mark.parametrize("word", ["commit", "rollback"])
async def test_a_handler_that_ends_the_transaction_itself_is_refused(harness: Harness, table: str, word: str) -> None:
    def book(run: Run) -> str:
        run("insert into books values ('o-1', 1)")
        run(word)
        return "booked"

    @harness.workflow("book")
    async def workflow(ctx: Context) -> Any:
        return await ctx.transaction("book", handler(harness, book), max_attempts=1)

    handle = await harness.start("book")
    await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "failed"
    assert "leave commit and rollback to Holdfast" in view.error["message"]
    assert "TRANSACTION_COMMITTED" not in await types(handle)
    if harness.url.startswith("sqlite"):
        assert query(harness.url, "select * from books") == [], "a commit can be refused there"


@pytest.mark.parametrize("word", ["commit", "rollback"])
async def test_a_handler_that_ends_and_begins_again_leaves_nothing(tmp_path: Path, word: str) -> None:
    """Else its writes stand without the step's row, and are made again, or its row without its writes. On SQLite, where
    a commit can be refused."""

    def book(tx: Any) -> None:
        tx.execute("create table books (id)")
        tx.execute(word)
        tx.execute("begin immediate")
        tx.execute("savepoint holdfast_step")  # a name that ours once had: it cannot be guessed

    async with Harness(url=f"sqlite:///{tmp_path / 'own.db'}") as harness:

        @harness.workflow("book")
        async def workflow(ctx: Context) -> Any:
            return await ctx.transaction("book", book, max_attempts=1)

        handle = await harness.start("book")
        await harness.run_until_idle()
        assert "leave commit and rollback to Holdfast" in (await handle.status()).error["message"]
        assert "TRANSACTION_COMMITTED" not in await types(handle)
        assert query(harness.url, "select * from sqlite_schema where name = 'books'") == []


async def test_a_handler_that_commits_without_our_hook_fails_its_step(tmp_path: Path) -> None:
    """On SQLite: what it has committed stays, but the step is not taken for done, and its author is told."""

    def book(tx: Any) -> None:
        tx.set_commit_hook(None)
        tx.execute("commit")
        tx.execute("begin immediate")

    async with Harness(url=f"sqlite:///{tmp_path / 'own.db'}") as harness:

        @harness.workflow("book")
        async def workflow(ctx: Context) -> Any:
            return await ctx.transaction("book", book, max_attempts=1)

        handle = await harness.start("book")
        await harness.run_until_idle()
        assert "leave commit and rollback to Holdfast" in (await handle.status()).error["message"]
        assert "TRANSACTION_COMMITTED" not in await types(handle)


@pytest.mark.parametrize("word", ["commit", "rollback"])
async def test_a_handler_that_ends_and_begins_again_fails_its_step(postgres_url: str, word: str) -> None:
    """PostgreSQL cannot refuse a commit, but the step is not taken for done, and its author is told."""

    async def book(tx: Any) -> None:
        await tx.execute(word)
        await tx.execute("begin")

    async with Harness(url=postgres_url) as harness:

        @harness.workflow("book")
        async def workflow(ctx: Context) -> Any:
            return await ctx.transaction("book", book, max_attempts=1)

        handle = await harness.start("book")
        await harness.run_until_idle()
        assert "leave commit and rollback to Holdfast" in (await handle.status()).error["message"]
        assert "TRANSACTION_COMMITTED" not in await types(handle)


@pytest.mark.parametrize("leaves", ["a statement under way", "a limit"])
async def test_a_handler_that_leaves_its_connection_unusable_fails_its_step(postgres_url: str, leaves: str) -> None:
    begun: list[Any] = []

    async def book(tx: Any) -> None:
        if leaves == "a limit":
            await tx.execute("set statement_timeout = 1")
            await tx.execute("select 1")
        else:
            begun.append(asyncio.ensure_future(tx.execute("select pg_sleep(60)")))
            await asyncio.sleep(0)
            begun[-1].add_done_callback(lambda done: done.exception())
        begun.append(None)

    async with Harness(url=postgres_url) as harness:

        @harness.workflow("book")
        async def workflow(ctx: Context) -> Any:
            return await ctx.transaction("book", book, max_attempts=1)

        handle = await harness.start("book")
        await harness.run_until_idle()
        view = await handle.status()
        if leaves == "a limit":  # of a handler's own, which is none of our turn's
            assert view.status == "completed" or "statement timeout" in view.error["message"]
        else:
            assert "await everything that it begins there" in view.error["message"]
        assert begun.count(None) == 1


async def test_a_handler_of_the_wrong_colour_is_refused_with_the_right_one(harness: Harness, table: str) -> None:
    async def coroutine(tx: Any) -> None: ...

    def plain(tx: Any) -> None: ...

    wrong = coroutine if harness.url.startswith("sqlite") else plain

    @harness.workflow("book")
    async def workflow(ctx: Context) -> None:
        await ctx.transaction("book", wrong, max_attempts=1)

    handle = await harness.start("book")
    await harness.run_until_idle()
    words = (await handle.status()).error["message"]
    assert ("a plain `def` on sqlite" if harness.url.startswith("sqlite") else "an `async def` on postgres") in words


async def test_a_transaction_handler_gets_its_arguments_and_step_info(harness: Harness, table: str) -> None:
    seen: list[Any] = []

    if harness.url.startswith("sqlite"):

        def book(tx: Any, order: dict[str, Any], info: StepInfo) -> None:
            seen.append((order, info.step, info.attempt))
    else:

        async def book(tx: Any, order: dict[str, Any], info: StepInfo) -> None:  # type: ignore[misc]
            seen.append((order, info.step, info.attempt))

    @harness.workflow("book")
    async def workflow(ctx: Context) -> None:
        await ctx.transaction("book", book, {"id": 1})

    await harness.finish(await harness.start("book"))
    assert seen == [({"id": 1}, "book", 1)]


async def test_transactions_and_steps_side_by_side_are_all_kept(harness: Harness, table: str) -> None:
    def book(run: Run, n: int) -> int:
        run(f"insert into books values ('o-{n}', {n})")
        return n

    @harness.workflow("book")
    async def workflow(ctx: Context) -> list[int]:
        books = [handler(harness, lambda run, n=n: book(run, n)) for n in range(5)]
        return list(
            await asyncio.gather(
                *(ctx.transaction("book", books[n], key=str(n)) for n in range(5)),
                *(ctx.step("step", lambda n: n, n, key=str(n)) for n in range(5)),
                *(ctx.step("quick", lambda n: n, n, key=str(n), thread=False) for n in range(5)),
            )
        )  # fmt: skip

    handle = await harness.start("book")
    assert await harness.finish(handle) == [*range(5)] * 3
    assert query(harness.url, "select count(*) from books") == [(5,)]


async def test_a_result_that_comes_while_a_transaction_fails_is_taken_with_its_failure(
    harness: Harness, table: str
) -> None:
    def refuse(run: Run) -> None:
        raise ValueError("no")

    @harness.workflow("book")
    async def workflow(ctx: Context) -> list[str]:
        booked: Any = ctx.transaction("book", handler(harness, refuse), max_attempts=1)
        beside: Any = ctx.step("beside", lambda: "there", thread=False)
        return [str(answer) for answer in await asyncio.gather(booked, beside, return_exceptions=True)]

    handle = await harness.start("book")
    async with asyncio.timeout(30):  # else it would be at work for ever
        await harness.run_until_idle()
    assert await handle.result(0) == ["step 'book' failed after 1 attempt(s): ValueError: no", "there"]


async def test_a_transaction_is_not_repeated_after_a_lost_worker(harness: Harness, table: str) -> None:
    never = asyncio.Event()
    started: list[int] = []

    async def hang() -> None:
        started.append(1)
        if len(started) == 1:
            await never.wait()

    @harness.workflow("book")
    async def workflow(ctx: Context) -> str:
        await ctx.transaction("book", handler(harness, lambda run: run("insert into books values ('o-1', 1)") and None))
        await ctx.step("hang", hang)
        return "done"

    handle = await harness.start("book")
    await until(lambda: started, harness)
    async with next_worker(harness) as other:
        assert await other.finish(other.instance(handle.id)) == "done"
    assert query(harness.url, "select count(*) from books") == [(1,)]


async def test_a_fenced_workers_transaction_writes_nothing(harness: Harness, table: str) -> None:
    worker = harness.test_worker
    assert worker is not None

    def book(run: Run) -> None:
        run("insert into books values ('o-1', 1)")

    @harness.workflow("book")
    async def workflow(ctx: Context) -> None:
        await ctx.step("first", lambda: 1)
        await ctx.transaction("book", handler(harness, book))

    store = harness.service.store
    alone = store.commit_alone

    async def fenced_first(*args: Any) -> Any:
        await store.release_worker(worker.id, b"x" * 16, stopped=False)
        return await alone(*args)

    store.commit_alone = fenced_first  # type: ignore[method-assign]
    handle = await harness.start("book")
    await until(lambda: query(harness.url, "select 1 from holdfast.workers where fenced_at is not null"), harness)
    await until(lambda: not worker.executions)
    assert query(harness.url, "select * from books") == []
    assert "TRANSACTION_COMMITTED" not in await types(handle)
    store.commit_alone = alone  # type: ignore[method-assign]


async def test_a_transaction_handler_on_sqlite_cannot_call_holdfast(tmp_path: Any) -> None:
    async with Harness(url=f"sqlite:///{tmp_path / 'own.db'}") as harness:

        def book(tx: Any) -> None:
            harness.sync.start("book")

        @harness.workflow("book")
        async def workflow(ctx: Context) -> None:
            await ctx.transaction("book", book, max_attempts=1)

        handle = await harness.start("book")
        await harness.run_until_idle()
        assert "cannot call Holdfast" in (await handle.status()).error["message"]


async def test_a_transaction_that_takes_too_long_is_rolled_back(harness: Harness, table: str) -> None:
    slow = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 500000000) select max(i) from n"
    if harness.url.startswith("sqlite"):

        def book(tx: Any) -> None:
            tx.execute("insert into books values ('o-1', 1)")
            tx.execute(slow).fetchall()
    else:

        async def book(tx: Any) -> None:  # type: ignore[misc]
            await tx.execute("insert into books values ('o-1', 1)")
            await tx.execute("select pg_sleep(30)")

    @harness.workflow("book")
    async def workflow(ctx: Context) -> None:
        await ctx.transaction("book", book, timeout=0.05, max_attempts=1)

    handle = await harness.start("book")
    await harness.run_until_idle()
    assert (await handle.status()).status == "failed"
    assert query(harness.url, "select * from books") == []
