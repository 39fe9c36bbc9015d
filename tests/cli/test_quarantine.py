"""A restored database sends nothing until a person has looked; what is only restarted goes on by itself."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import structlog

from holdfast import Context, Holdfast, StepInfo
from holdfast.app import quarantine
from holdfast.app.quarantine import PostgresIdentity, Quarantine, Seen, Witness
from holdfast.testing import FakeProvider
from holdfast.worker.worker import Worker
from tests.cli.support import Desk
from tests.flows.support import query
from tests.support.auditor import assert_sound
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import Server

ROOT = Path(__file__).resolve().parents[2]
APP = """
from holdfast import Context, Holdfast
hf = Holdfast()

@hf.workflow("count")
async def count(ctx: Context) -> None:
    for n in range(1000):
        await ctx.step(f"step-{n}", one)
        await ctx.sleep(f"sleep-{n}", 0.01)

async def one() -> int:
    return 1
"""


def app(url: str, provider: FakeProvider) -> Holdfast:
    hf = Holdfast(url)

    @hf.workflow("pay")
    async def pay(ctx: Context, name: str) -> Any:
        await ctx.wait_for_signal("go")
        return await ctx.effect("pay", call, name, mode="keyed")

    @hf.workflow("quick")
    async def quick(ctx: Context, name: str) -> Any:
        return await ctx.effect("pay", call, name, mode="keyed")

    def call(name: str, info: StepInfo) -> str:
        provider.call(info.idempotency_key, name)
        return name

    return hf


def paid(provider: FakeProvider) -> list[str]:
    assert len(provider.calls) == len(provider.deeds)
    return sorted(deed["request"] for deed in provider.deeds.values())


@asynccontextmanager
async def working(url: str, provider: FakeProvider) -> AsyncIterator[tuple[Holdfast, Worker]]:
    async with app(url, provider) as hf, hf.worker(poll_seconds=0.02) as worker:
        yield hf, worker


async def until(condition: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        await asyncio.sleep(0.02)


async def look_twice(worker: Worker) -> None:
    """Two whole passes: what could be claimed would be."""
    for _ in range(2):
        assert await worker.run_once() == (0, None)


@contextmanager
def copy_of(url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The database a second time, as a restored backup would be."""
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        shutil.copy(path, path.with_name("restored.db"))
        yield f"sqlite:///{path.with_name('restored.db')}"
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database(template=urlsplit(url).path[1:]) as copy:
        yield copy


async def given_two_that_wait(url: str, provider: FakeProvider) -> list[str]:
    async with working(url, provider) as (hf, _):
        handles = [await hf.start("pay", name) for name in ("first", "second")]
        for handle in handles:
            while (await handle.status()).status != "waiting":
                await asyncio.sleep(0.02)
        return [handle.id for handle in handles]


async def lift(url: str, actor: str = "ann") -> bool:
    async with Holdfast(url) as hf:
        return await quarantine.lift(hf.service, reason="compared with the bank", actor=actor)


async def test_a_restart_is_not_held_back(url: str) -> None:
    provider = FakeProvider()
    first, second = await given_two_that_wait(url, provider)
    async with working(url, provider) as (hf, worker):
        assert not worker.quarantine.holds
        for id_ in (first, second):
            await hf.send(id_, "go")
            await hf.instance(id_).result(PATIENCE_SECONDS)
    async with working(url, provider) as (hf, worker):
        assert not worker.quarantine.holds
    assert paid(provider) == ["first", "second"]


def test_a_killed_worker_starts_again_and_is_not_held_back(desk: Desk) -> None:
    (desk.folder / "count.py").write_text(APP)
    out = desk.folder / "out"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment = kept | {"PYTHONPATH": str(ROOT / "src"), "HOLDFAST_DATABASE_URL": desk.url}
    command = [sys.executable, "-m", "holdfast.cli.main", "worker", "--app", "count", "--log-format", "json"]
    desk.ok("start", "count", "--app", "count")
    steps = "select count(*) from holdfast.history where type = 'STEP_COMPLETED'"
    for _ in range(2):
        before = query(desk.url, steps)[0][0]
        with out.open("ab") as file:
            process = subprocess.Popen(command, cwd=desk.folder, env=environment, stdout=file, stderr=file)
        try:
            end = time.monotonic() + PATIENCE_SECONDS
            while query(desk.url, steps)[0][0] < before + 20:
                assert process.poll() is None and time.monotonic() < end, out.read_text()
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
    assert desk.json("quarantine", "show")["quarantined"] is False
    assert "quarantined" not in out.read_text()


async def test_a_copy_does_nothing_until_it_is_lifted_and_then_what_is_due(
    url: str, request: pytest.FixtureRequest
) -> None:
    provider, elsewhere = FakeProvider(), FakeProvider()
    first, second = await given_two_that_wait(url, provider)
    with copy_of(url, request) as copy:
        async with working(copy, elsewhere) as (hf, worker):
            assert worker.quarantine.holds
            await hf.send(first, "go")  # doors go on taking facts
            newborn = await hf.start("quick", "third")
            await look_twice(worker)
            assert (await newborn.status()).status == "pending"
            assert query(copy, "select id from holdfast.instances where locked_by is not null") == []
            assert elsewhere.calls == []
            [about] = [one for one in await hf.workers() if one.id == f"wrk_{worker.id.hex()}"]
            assert about.state == "live"

        async with working(copy, elsewhere) as (hf, worker):  # a restart is no way out
            assert worker.quarantine.holds
            await look_twice(worker)
            assert await lift(copy)
            assert await hf.instance(first).result(PATIENCE_SECONDS) == "first"
            assert await hf.instance(newborn.id).result(PATIENCE_SECONDS) == "third"
            assert (await hf.instance(second).status()).status == "waiting"
        assert paid(elsewhere) == ["first", "third"]
        async with working(copy, elsewhere) as (_, worker):
            assert not worker.quarantine.holds
        assert_sound(copy)
    async with working(url, provider) as (_, worker):  # the one it was copied from never noticed
        assert not worker.quarantine.holds
    assert provider.calls == []


async def test_an_older_state_put_over_the_same_file_is_noticed(tmp_path: Path) -> None:
    path, provider = tmp_path / "shop.db", FakeProvider()
    url = f"sqlite:///{path}"
    first, _ = await given_two_that_wait(url, provider)
    backup, inode = path.read_bytes(), path.stat().st_ino
    async with working(url, provider) as (hf, _):
        await hf.send(first, "go")
        await hf.instance(first).result(PATIENCE_SECONDS)
    for more in ("-wal", "-shm"):
        Path(f"{path}{more}").unlink(missing_ok=True)
    path.write_bytes(backup)
    assert path.stat().st_ino == inode
    async with working(url, provider) as (hf, worker):
        assert worker.quarantine.holds
        await hf.send(first, "go")
        await look_twice(worker)
        view = await quarantine.show(hf.service)
        assert view.reason is not None and "an older state was put in its place" in view.reason
        assert (view.quarantined, view.changed_by, view.due) == (True, "worker", 1)
        assert provider.calls == [*provider.deeds]
        assert await lift(url)
        await hf.instance(first).result(PATIENCE_SECONDS)
    assert len(provider.calls) == 2 and len(provider.deeds) == 1  # the same key: the provider knows it


async def test_a_backup_that_misses_nothing_is_no_zombie(tmp_path: Path) -> None:
    path, provider = tmp_path / "shop.db", FakeProvider()
    url = f"sqlite:///{path}"
    await given_two_that_wait(url, provider)
    path.write_bytes(path.read_bytes())
    async with working(url, provider) as (_, worker):
        assert not worker.quarantine.holds


@pytest.mark.parametrize(
    ("harm", "said"),
    [("lost", "there is no witness"), ("broken", "there is no witness"), ("foreign", "belongs to another database"),
     ("moved", "is another file than the one on record")],
)  # fmt: skip
async def test_a_witness_that_does_not_speak_for_this_file_holds_it_back(tmp_path: Path, harm: str, said: str) -> None:
    path, provider = tmp_path / "shop.db", FakeProvider()
    url = f"sqlite:///{path}"
    await given_two_that_wait(url, provider)
    witness = Witness(Path(f"{path}-witness"))
    if harm == "lost":
        witness.path.unlink()
    elif harm == "broken":
        witness.path.write_bytes(b"\xff\x00")
    elif harm == "foreign":
        witness.write(Seen("0" * 32, 0))
    else:
        shutil.copy(path, tmp_path / "draft")
        (tmp_path / "draft").rename(path)
    async with working(url, provider) as (hf, worker):
        assert worker.quarantine.holds
        assert said in str((await quarantine.show(hf.service)).reason)
    assert await lift(url)
    async with working(url, provider) as (_, worker):
        assert not worker.quarantine.holds


async def test_a_witness_that_is_removed_under_a_running_worker_is_written_anew(tmp_path: Path) -> None:
    path, provider = tmp_path / "shop.db", FakeProvider()
    url = f"sqlite:///{path}"
    async with working(url, provider) as (hf, worker):
        await (await hf.start("quick", "first")).result(PATIENCE_SECONDS)
        Path(f"{path}-witness").unlink()
        await worker.quarantine.look()
        assert not worker.quarantine.holds
    async with working(url, provider) as (_, worker):
        assert not worker.quarantine.holds


async def test_workers_that_start_at_once_agree_on_one_identity(url: str) -> None:
    provider = FakeProvider()
    async with app(url, provider) as one, app(url, provider) as other:
        scopes = [hf.worker(poll_seconds=0.02) for hf in (one, other, one, other)]
        workers = await asyncio.gather(*(scope.__aenter__() for scope in scopes))
        assert not any(worker.quarantine.holds for worker in workers)
        for scope in scopes:
            await scope.__aexit__(None, None, None)
    async with working(url, provider) as (_, worker):
        assert not worker.quarantine.holds


async def test_what_is_put_back_under_a_running_worker_is_noticed(url: str) -> None:
    provider = FakeProvider()
    async with working(url, provider) as (hf, worker):
        query(url, "delete from holdfast.workers where tenant_id = '*'")  # as a state from before it registered
        await until(lambda: worker.quarantine.holds, "the worker sees that nobody knows it")
        handle = await hf.start("quick", "first")
        await look_twice(worker)
        assert (await handle.status()).status == "pending"
        assert "was registered here" in str((await quarantine.show(hf.service)).reason)
        assert await lift(url)
        await handle.result(PATIENCE_SECONDS)
    assert paid(provider) == ["first"]


async def test_a_person_holds_a_running_worker_back(url: str) -> None:
    provider = FakeProvider()
    with structlog.testing.capture_logs() as logs:
        async with working(url, provider) as (hf, worker):
            await (await hf.start("quick", "first")).result(PATIENCE_SECONDS)
            await until(lambda: not worker._more_likely, "it has nothing to do, and would be handed a birth")
            assert await quarantine.enter(hf.service, reason="we restored a snapshot", actor="ann")
            assert not await quarantine.enter(hf.service, reason="again", actor="bob")
            await until(lambda: worker.quarantine.holds, "the worker hears of it")
            handle = await hf.start("quick", "second")
            await look_twice(worker)
            assert query(url, "select id from holdfast.instances where locked_by is not null") == []
            assert paid(provider) == ["first"]
            assert await lift(url)
            assert not await lift(url)
            await handle.result(PATIENCE_SECONDS)
    assert paid(provider) == ["first", "second"]
    [said] = [line for line in logs if line["event"] == "quarantined"]
    assert said["reason"] == "we restored a snapshot" and "holdfast quarantine lift" in said["what_to_do"]
    [lifted] = [line for line in logs if line["event"] == "quarantine_lifted"]
    assert lifted["by"] == "ann"


# -- where a server does not say who it is


class Closed:
    """A managed PostgreSQL that keeps its system identifier to itself."""

    url, dialect = "postgresql://somewhere", "postgres"

    async def fetch(self, name: str, **_: Any) -> list[tuple[Any, ...]]:
        if name == "database_identity":
            raise asyncpg.InsufficientPrivilegeError("permission denied for function pg_control_system")
        return [(16384,)]


async def test_a_server_that_does_not_say_who_it_is_is_known_by_its_database() -> None:
    identity: Any = PostgresIdentity(Closed())  # type: ignore[arg-type]
    assert await identity.make() == "postgres:?:16384"
    assert await identity.difference("postgres:?:16384") is None
    assert await identity.difference("postgres:7000000000000000000:16384") is None
    assert "is not the one on record (5)" in await identity.difference("postgres:?:5")


class SomeServer:
    """A PostgreSQL server on some timeline, reached by a new connection each time."""

    url, dialect = "postgresql://somewhere", "postgres"

    def __init__(self) -> None:
        self.timeline: int | None = 2
        self.sessions = 0
        self.entered: list[str] = []

    def now(self) -> int:
        return 0

    async def fetch(self, name: str, **_: Any) -> list[tuple[Any, ...]]:
        if name == "read_installation":
            held = (1, self.entered[0]) if self.entered else (None, None)
            return [("postgres:1:2", *held, None, None)]
        return [(self.timeline,)]

    async def write(self, name: str, **values: Any) -> int:
        assert name == "enter_quarantine"
        self.entered.append(values["reason"])
        return 1

    async def asked_on(self, quarantine_: Quarantine, timeline: int | None) -> bool:
        self.timeline, self.sessions = timeline, self.sessions + 1
        return await quarantine_.doubtful()


async def test_a_promotion_is_waited_out_and_a_server_from_before_it_is_held_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SomeServer()
    worker = Quarantine(server)  # type: ignore[arg-type]
    assert not await server.asked_on(worker, 2)
    assert not await server.asked_on(worker, None)  # it does not say
    assert await server.asked_on(worker, 3), "nothing is claimed until those who lost rows can have said so"
    assert not server.entered
    monkeypatch.setattr(worker, "_claims_at", 0.0)
    worker._take(await quarantine.read(server))  # type: ignore[arg-type]
    assert not await server.asked_on(worker, 3)
    assert await server.asked_on(worker, 2)
    assert "is on timeline 2, and the one before it was on 3" in server.entered[0]


# -- on the command line


def test_the_command_shows_enters_and_lifts(desk: Desk) -> None:
    fresh = desk.json("quarantine", "show")
    assert (fresh["quarantined"], fresh["identity"], fresh["due"]) == (False, None, 0)
    entered = desk.json("quarantine", "enter", "--reason", "restored to Monday", "--actor", "ann")
    assert (entered["quarantined"], entered["reason"], entered["changed_by"]) == (True, "restored to Monday", "ann")
    assert "already" in desk.ok("quarantine", "enter", "--reason", "again").stderr
    assert "restored to Monday" in desk.ok("quarantine", "show").stdout
    lifted = desk.json("quarantine", "lift", "--reason", "compared", "--actor", "bob", "--yes")
    assert (lifted["quarantined"], lifted["quarantined_at"], lifted["reason"]) == (False, None, "compared")
    assert lifted["identity"] == lifted["found"] and lifted["differs"] is None
    assert "nothing was changed" in desk.ok("quarantine", "lift", "--reason", "again").stderr
    desk.refused(2, "reason", "quarantine", "lift")
    desk.refused(2, "give both", "quarantine", "enter", "--reason", " ")
    rows = query(desk.url, "select actor, action, summary from holdfast.audit_events where tenant_id = '*' order by id")
    assert [(actor, action, json.loads(summary)["reason"]) for actor, action, summary in rows] == [
        ("ann", "quarantine.enter", "restored to Monday"),
        ("bob", "quarantine.lift", "compared"),
    ]
