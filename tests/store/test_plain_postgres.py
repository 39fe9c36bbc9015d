"""Nothing depends on NOTIFY and advisory locks: without them a lease decides, and polling finds everything."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from holdfast import BadInput, Context, Holdfast
from holdfast.facade import make_doors, make_store
from holdfast.store.postgres import BY_LEASE, PostgresStore
from tests.store.conftest import without_extras
from tests.store.support import a_worker

LEASE = 4.0
# A worker that says when its step has begun, and never comes to its end.
STUCK = """
import asyncio, sys
from holdfast import Context, Holdfast

hf = Holdfast(sys.argv[1])

@hf.workflow("count")
async def count(ctx: Context) -> int:
    first = await ctx.step("first", one)
    return first + await ctx.step("second", hang)

async def one() -> int:
    return 1

async def hang() -> int:
    print("hanging", flush=True)
    await asyncio.sleep(600)
    return 0

async def main():
    async with hf, hf.worker(lease=4.0):
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    without_extras(monkeypatch)


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture
def stuck(url: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", STUCK, url], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


async def extras(url: str) -> int:
    """Advisory locks held and sessions that listen, in this database."""
    connection = await asyncpg.connect(url)
    found = await connection.fetchval(
        "select (select count(*) from pg_locks l join pg_database d on d.oid = l.database"
        " where l.locktype = 'advisory' and d.datname = current_database())"
        " + (select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%')"
    )
    await connection.close()
    return int(found)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_worker_that_dies_is_taken_over_when_its_lease_is_over(url: str, stuck: Any, how: Any) -> None:
    hf = Holdfast(url)

    @hf.workflow("count")
    async def count(ctx: Context) -> int:
        first = await ctx.step("first", one)
        return first + await ctx.step("second", one)

    async def one() -> int:
        return 1

    async with hf:
        handle = await hf.start("count")  # no worker here yet: the other process finds it by polling
        assert await asyncio.to_thread(stuck.stdout.readline) == "hanging\n"
        async with hf.worker(lease=LEASE, poll_seconds=0.1):
            assert [(w.state, w.holds) for w in await hf.workers()] == [("live", 0), ("live", 1)]
            assert await extras(url) == 0
            await asyncio.sleep(2.5)  # longer than two heartbeats, which with a lock would be enough
            died = time.monotonic()
            stuck.send_signal(how)
            assert await handle.result(timeout=100) == 2
            assert time.monotonic() - died > LEASE - 1.5  # since its last heartbeat, at most one and a half seconds ago
            assert sorted(w.state for w in await hf.workers()) == ["fenced", "live"]
        assert [e.name for e in await handle.history()].count("first") == 1


async def test_a_start_reaches_its_result_through_another_process_without_a_hint(url: str) -> None:
    here, there = Holdfast(url), Holdfast(url)
    for hf in (here, there):

        @hf.workflow("echo")
        async def echo(ctx: Context, given: Any) -> Any:
            return [given, await ctx.wait_for_signal("go")]

    async with here, there, there.worker(poll_seconds=0.1):
        assert here.service.store._hints is there.service.store._hints is None  # type: ignore[attr-defined]
        handle = await here.start("echo", 1)
        await handle.signal("go", 2)
        assert await handle.result(timeout=100) == [1, 2]
        assert await extras(url) == 0


async def test_whether_a_worker_is_gone_is_told_by_its_lease_and_its_clean_exit(url: str) -> None:
    store = make_store(url)
    assert isinstance(store, PostgresStore)
    await store.open(migrate=True)
    locking = PostgresStore(url)
    await locking.open(migrate=False)
    connection = await asyncpg.connect(url)
    worker_id = await a_worker(store)
    for age, gone in ((0, False), (14, False), (16, True)):
        await connection.execute(
            "update holdfast.workers set liveness = $2, heartbeat_at ="
            " (extract(epoch from clock_timestamp()) * 1000000)::bigint - $1 * 1000000::bigint", age, BY_LEASE
        )  # fmt: skip
        # One that holds no lock is judged by its lease by everybody, also by those who use locks.
        assert (await store.worker_gone(worker_id), await locking.worker_gone(worker_id)) == (gone, gone)
    await connection.execute("update holdfast.workers set heartbeat_at = heartbeat_at + 60000000")
    assert not await store.worker_gone(worker_id)
    await store.release_worker(worker_id, worker_id, stopped=True)
    assert await store.worker_gone(worker_id)
    await connection.close()
    await locking.close()
    await store.close()


async def test_a_worker_that_has_just_begun_is_not_gone_though_it_has_no_lock_yet(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # with locks
    store = PostgresStore(url)
    await store.open(migrate=True)
    worker_id = await a_worker(store)  # its lock is taken by its heartbeat's thread, a moment later
    connection = await asyncpg.connect(url)
    moment = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
    for age, gone in ((0, False), (3600, True), (-3600, True)):
        await connection.execute(
            f"update holdfast.workers set liveness = '42', heartbeat_at = {moment} - $1 * 1000000::bigint", age
        )
        assert await store.worker_gone(worker_id) == gone
    await connection.close()
    await store.close()


def test_the_switches_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://nobody@127.0.0.1:9/none"
    for make in (make_store, make_doors):
        store = make(url)
        assert isinstance(store, PostgresStore)
        assert (store._wants_hints, store.session_locks) == (False, False)
        monkeypatch.setenv("HOLDFAST_POSTGRES_SESSION_LOCKS", "on")
        assert make(url).session_locks  # type: ignore[union-attr]
        monkeypatch.setenv("HOLDFAST_POSTGRES_SESSION_LOCKS", "perhaps")
        with pytest.raises(BadInput, match=r"'perhaps': expected true or false \(from HOLDFAST_POSTGRES_SESSION_LOCKS"):
            make(url)
        monkeypatch.setenv("HOLDFAST_POSTGRES_SESSION_LOCKS", "off")
