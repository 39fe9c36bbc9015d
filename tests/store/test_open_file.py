"""A SQLite file that is taken away under a running process, or locked by one that stands still, is noticed and said."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
import structlog

from holdfast import Context, Holdfast
from holdfast.app import quarantine
from holdfast.engine.errors import StoreUnavailable
from holdfast.store import open_file, sqlite
from tests.support.patience import PATIENCE_SECONDS


def app(path: Path) -> Holdfast:
    hf = Holdfast(f"sqlite:///{path}")

    @hf.workflow("one")
    async def one(ctx: Context) -> int:
        return await ctx.step("one", step)

    async def step() -> int:
        return 1

    return hf


async def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        await asyncio.sleep(0.02)


def take_away(path: Path, how: str) -> str:
    if how == "deleted":
        path.unlink()
        return "was deleted while this process had it open"
    if how == "replaced":
        other = path.with_name("other.db")
        apsw.Connection(str(other)).execute("create table t (n)")
        other.rename(path)
        return "was replaced by another file"
    if how == "emptied":
        path.write_bytes(b"")
        return "was emptied while this process had it open"
    if how == "index removed":
        Path(f"{path}-shm").unlink()
        return "the -shm of the SQLite file"
    Path(f"{path}-wal").unlink()
    return "the write-ahead log of the SQLite file"


@pytest.mark.parametrize("how", ["deleted", "replaced", "emptied", "log removed", "index removed"])
async def test_a_file_taken_away_under_a_running_worker_is_noticed_and_takes_nothing_more(
    tmp_path: Path, how: str
) -> None:
    path = tmp_path / "shop.db"
    with structlog.testing.capture_logs() as logs:
        async with app(path) as hf, hf.worker(poll_seconds=0.02) as worker:
            await (await hf.start("one")).result(PATIENCE_SECONDS)
            said = take_away(path, how)
            await until(lambda: worker.quarantine.holds, "the worker sees it")
            with pytest.raises(StoreUnavailable, match=said):
                await hf.start("one")
            with pytest.raises(StoreUnavailable, match="stop every process that uses it"):
                await hf.start("one")
    [line] = [line for line in logs if line["event"] == "database_file_gone"]
    assert line["log_level"] == "error" and said in line["error"]


@pytest.mark.parametrize("how", ["deleted", "replaced", "emptied", "log removed", "index removed"])
async def test_whoever_looks_at_once_takes_no_start_into_a_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(open_file, "LOOK_SECONDS", 0.0)
    path = tmp_path / "shop.db"
    async with app(path) as hf:
        await hf.start("one")
        said = take_away(path, how)
        with pytest.raises(StoreUnavailable, match=said):
            await hf.start("one")


async def test_a_process_without_a_worker_notices_too_and_goes_on_when_the_file_is_back(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with app(path) as hf:
        await hf.start("one")
        path.rename(tmp_path / "away.db")

        async def refused() -> bool:
            try:
                await hf.start("one")
            except StoreUnavailable:
                return True
            return False

        end = time.monotonic() + PATIENCE_SECONDS
        while not await refused():
            assert time.monotonic() < end
        (tmp_path / "away.db").rename(path)
        while await refused():
            assert time.monotonic() < end
            await asyncio.sleep(0.05)


OTHER = """
import asyncio, sys
from holdfast import Context, Holdfast
hf = Holdfast(f"sqlite:///{sys.argv[1]}")

@hf.workflow("one")
async def one(ctx: Context) -> None: ...

async def start() -> None:
    async with hf:
        await hf.start("one")

asyncio.run(start())
"""


async def test_who_misses_the_index_leaves_what_others_have_written_since(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with app(path) as hf:
        await hf.start("one")
        take_away(path, "index removed")
        await asyncio.sleep(open_file.LOOK_SECONDS)
        with pytest.raises(StoreUnavailable):
            await hf.start("one")
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", OTHER, str(path)], check=True)
    assert apsw.Connection(str(path)).execute("select count(*) from holdfast_instances").fetchall() == [(2,)]


async def test_an_empty_database_beside_a_witness_of_another_is_held_back(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    async with app(path) as hf, hf.worker(poll_seconds=0.02):
        await (await hf.start("one")).result(PATIENCE_SECONDS)
    for more in ("", "-wal", "-shm"):
        Path(f"{path}{more}").unlink(missing_ok=True)
    async with app(path) as hf, hf.worker(poll_seconds=0.02) as worker:
        assert worker.quarantine.holds
        view = await quarantine.show(hf.service)
        assert "the witness beside it has seen row" in str(view.reason) and view.identity is None
        handle = await hf.start("one")
        await worker.run_once()
        assert (await handle.status()).status == "pending"
        assert await quarantine.lift(hf.service, reason="it was meant to go", actor="ann")
        assert await handle.result(PATIENCE_SECONDS) == 1
    async with app(path) as hf, hf.worker(poll_seconds=0.02) as worker:
        assert not worker.quarantine.holds


async def test_a_log_removed_before_anything_was_moved_out_of_it_is_no_new_database(tmp_path: Path) -> None:
    path, restored = tmp_path / "shop.db", tmp_path / "young" / "shop.db"
    restored.parent.mkdir()
    async with app(path) as hf, hf.worker(poll_seconds=0.02) as worker:
        await (await hf.start("one")).result(PATIENCE_SECONDS)
        await worker.quarantine.look()
        for name in ("shop.db", "shop.db-witness"):  # not the -wal, where everything is
            shutil.copy(tmp_path / name, restored.parent / name)
    async with app(restored) as hf, hf.worker(poll_seconds=0.02) as worker:
        assert worker.quarantine.holds


HOLDER = """
import apsw, sys, time
connection = apsw.Connection(sys.argv[1])
connection.execute("begin immediate; create table held (n)")
print("held", flush=True)
time.sleep(600)
"""


async def test_a_writer_that_stands_still_is_named_to_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    monkeypatch.setattr("holdfast.store.committer.GIVE_UP_SECONDS", 0.1)
    path = tmp_path / "shop.db"
    async with app(path) as hf:
        await hf.start("one")
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
        try:
            assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
            told = ""
            for _ in range(20):  # on a busy machine the system's list of locks does not name it each time
                with pytest.raises(StoreUnavailable, match="has held the write lock") as refused:
                    await hf.start("one")
                told = str(refused.value)
                if f"process {holder.pid} has" in told:
                    break
            assert f"process {holder.pid} has held the write lock" in told
        finally:
            holder.kill()
            holder.wait()
        await hf.start("one")
