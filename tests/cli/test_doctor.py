"""`holdfast doctor`: what is well, what is doubtful and what is broken, told from real servers and real databases."""

from __future__ import annotations

import asyncio
import os
import socket
import zoneinfo
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.smtp import SMTP

from holdfast.app import doctor
from holdfast.app.doctor import Check
from holdfast.cli.output import _progress_console
from holdfast.handlers.probe import mail_server, model_server
from tests.cli.support import Desk
from tests.flows.support import query
from tests.handlers.support import answering, serving

KEY = "sk-0123456789abcdef"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Mails:
    """Counts what is handed in."""

    def __init__(self) -> None:
        self.count = 0

    async def handle_DATA(self, *_: Any) -> str:
        self.count += 1
        return "250 OK"


@asynccontextmanager
async def mailing() -> AsyncIterator[tuple[int, Mails]]:
    mails = Mails()
    listener = await asyncio.get_running_loop().create_server(lambda: SMTP(mails, hostname="mx"), "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1], mails
    finally:
        listener.close()


def looked(desk: Desk, code: int, *words: str) -> dict[str, dict[str, str]]:
    return {row["check"]: row for row in desk.json("doctor", *words, code=code)}


# -- the whole


def test_a_healthy_database_has_nothing_broken(desk: Desk) -> None:
    with desk.worker():
        found = looked(desk, 0)
    common = ["python", "settings", "time zones", "mail", "model", "database", "database version"]
    own = ["disk space", "file system"] if desk.url.startswith("sqlite") else ["pooler", "tenant wall"]
    rest = ["clock", "workers", "quarantine", "dead letters", "unknown effects", "parked"]
    assert list(found) == common + own + rest
    assert {name: row["state"] for name, row in found.items() if row["state"] == "fail"} == {}
    for name in ("python", "database", "database version", "clock", "workers", "quarantine", "unknown effects"):
        assert found[name]["state"] == "ok", found[name]
    assert found["workers"]["found"] == "1 live"


def test_warnings_are_no_failure(desk: Desk) -> None:
    found = looked(desk, 0)
    assert (found["workers"]["state"], found["workers"]["found"]) == ("warn", "0 live")
    result = desk.ok("doctor")
    assert "holdfast worker --app" in result.stdout and "0 broken" in result.stderr


def test_a_database_that_is_not_there_is_told_with_what_to_do(files: Desk) -> None:
    found = looked(files, 1)
    assert found["database"]["state"] == "fail" and "run `holdfast migrate`" in found["database"]["found"]
    assert "workers" not in found


def test_a_database_that_is_not_migrated_is_told(folder: Path) -> None:
    (folder / "empty.db").touch()
    found = looked(Desk(folder, f"sqlite:///{folder / 'empty.db'}"), 1)
    assert "run `holdfast migrate`" in found["database"]["found"]


def test_an_unreachable_server_is_told_without_its_password(folder: Path) -> None:
    desk = Desk(folder, f"postgresql://me:hunter2@127.0.0.1:{unused_port()}/shop")
    result = desk.run("doctor")
    assert result.exit_code == 1 and "cannot open PostgreSQL" in result.stdout
    assert "hunter2" not in result.output


def test_what_waits_for_people_is_counted(desk: Desk) -> None:
    instance, _ = desk.open_request()
    columns = "tenant_id, id, instance_id, step, mode, state, attempt, idempotency_key, request_hash, request, fence, "
    columns += "worker_id, first_started_at, started_at, not_after, opens_at"
    raw = bytes.fromhex(instance.removeprefix("ins_"))
    blob = f"x'{raw.hex()}'" if desk.url.startswith("sqlite") else f"decode('{raw.hex()}', 'hex')"
    query(
        desk.url, f"insert into holdfast.effects ({columns}) values ('default', {blob}, {blob}, 'pay', 'manual', "
        f"'outcome_unknown', 1, 'k', {blob}, {blob}, 1, {blob}, 1, 1, 1, 1)",
    )  # fmt: skip
    found = looked(desk, 0)
    assert (found["unknown effects"]["state"], found["unknown effects"]["found"]) == ("warn", "1 wait for a person")


def test_a_parked_instance_is_a_warning(desk: Desk) -> None:
    desk.ok("migrate")
    assert looked(desk, 0)["parked"]["state"] == "ok"
    chart = desk.folder / "door.json"
    chart.write_text('{"id": "door", "initial": "shut", "states": {"shut": {}}}')
    desk.ok("definitions", "publish", str(chart))
    desk.ok("start", "door")
    query(
        desk.url, "update holdfast.instances set status = 'waiting', run_at = null, waiting_on = 'parked: the code …'"
    )
    found = looked(desk, 0)["parked"]
    assert (found["state"], found["found"]) == ("warn", "1 instance stands still until something is mended")
    assert "instances why" in found["what_to_do"]


def test_a_quarantine_is_a_failure(desk: Desk) -> None:
    desk.ok("quarantine", "enter", "--reason", "restored to Monday")
    found = looked(desk, 1)
    assert found["quarantine"]["found"] == "held back: restored to Monday"
    assert "holdfast quarantine lift" in found["quarantine"]["what_to_do"]


def test_a_copy_is_seen_before_its_first_worker(folder: Path) -> None:
    desk = Desk(folder, f"sqlite:///{folder / 'desk.db'}")
    desk.ok("migrate")
    with desk.worker():
        pass
    (folder / "restored.db").write_bytes((folder / "desk.db").read_bytes())
    found = looked(Desk(folder, f"sqlite:///{folder / 'restored.db'}"), 1)
    assert "the next worker will hold it back" in found["quarantine"]["found"]


def test_a_misspelt_variable_is_a_warning(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATBASE_URL", "x")
    assert looked(desk, 0)["settings"]["state"] == "warn"


def test_progress_goes_to_a_terminal_only(desk: Desk) -> None:
    assert not _progress_console().is_terminal
    assert "looking" not in desk.ok("doctor").output


# -- mail and model


async def test_servers_that_are_there_are_well(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async with mailing() as (port, mails), serving(answering(200, b"{}")) as server:
        monkeypatch.setenv("HOLDFAST_SMTP_URL", f"smtp://127.0.0.1:{port}")
        monkeypatch.setenv("HOLDFAST_LLM_URL", f"{server.url}/v1")
        monkeypatch.setenv("HOLDFAST_LLM_MODEL", "small")
        monkeypatch.setenv("HOLDFAST_SECRET_LLM_KEY", KEY)
        found = await asyncio.to_thread(looked, desk, 0)
        assert (found["mail"]["state"], mails.count) == ("ok", 0)
        assert f"127.0.0.1:{port} greets: 220 mx" in found["mail"]["found"]
        assert found["model"]["found"] == f"{server.url}/v1 answers 200"
        [seen] = server.seen
        assert seen.head.startswith("GET /v1/models ") and seen.header("authorization") == f"Bearer {KEY}"
        assert KEY not in str(found)


def test_servers_that_are_not_there_are_told(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SMTP_URL", f"smtp://me:hunter2@127.0.0.1:{unused_port()}")
    monkeypatch.setenv("HOLDFAST_LLM_URL", f"http://127.0.0.1:{unused_port()}/v1")
    monkeypatch.setenv("HOLDFAST_LLM_MODEL", "small")
    monkeypatch.setenv("HOLDFAST_SECRET_LLM_KEY", KEY)
    found = looked(desk, 1)
    assert (found["mail"]["state"], found["model"]["state"]) == ("fail", "fail")
    assert "hunter2" not in str(found) and KEY not in str(found)


async def test_a_mail_server_without_the_encryption_asked_for_is_a_failure() -> None:
    async with mailing() as (port, _):
        answer = await mail_server(f"smtp://127.0.0.1:{port}?starttls=1")
    assert answer.state == "fail" and "offers no STARTTLS" in answer.found


async def test_something_else_on_the_mail_port_is_a_failure() -> None:
    async with serving(answering(200)) as server:
        answer = await mail_server(f"smtp://127.0.0.1:{server.port}", 0.5)
    assert answer.state == "fail"


@pytest.mark.parametrize(
    ("status", "state"), [(200, "ok"), (404, "ok"), (401, "fail"), (403, "fail"), (302, "fail"), (503, "warn")]
)
async def test_a_models_answer_is_understood(status: int, state: str) -> None:
    async with serving(answering(status)) as server:
        answer = await model_server(f"{server.url}/v1", KEY)
    assert answer.state == state and str(status) in answer.found


def test_a_model_set_up_by_half_is_a_failure(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LLM_URL", "http://127.0.0.1:1/v1")
    assert looked(desk, 1)["model"]["what_to_do"] == "set HOLDFAST_LLM_MODEL"
    monkeypatch.setenv("HOLDFAST_LLM_MODEL", "small")
    assert "llm_key" in looked(desk, 1)["model"]["found"]


# -- single judgements


async def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks() -> Check:
        raise OSError("no such thing")

    async def hangs() -> Check:
        await asyncio.Event().wait()
        raise AssertionError

    broken = await doctor.examine("x", breaks)
    assert (broken.state, broken.found) == ("fail", "OSError: no such thing")
    monkeypatch.setattr(doctor, "CHECK_SECONDS", 0.01)
    assert "no answer in" in (await doctor.examine("x", hangs)).found


async def test_missing_time_zones_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await doctor.time_zones()).state == "ok"

    def none(_: str) -> Any:
        raise zoneinfo.ZoneInfoNotFoundError

    monkeypatch.setattr(zoneinfo, "ZoneInfo", none)
    assert "tzdata" in (await doctor.time_zones()).what_to_do


@pytest.mark.parametrize(("free", "state"), [(10 << 30, "ok"), (500 << 20, "warn"), (1 << 20, "fail")])
async def test_a_full_disk_is_seen(tmp_path: Path, free: int, state: str) -> None:
    assert (await doctor.disk(tmp_path / "shop.db", free)).state == state


MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:35 / /srv/data rw,relatime shared:20 - nfs4 server:/export rw
41 40 0:36 / /srv/data/local\040disk rw - xfs /dev/sdb1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "state"),
    [("/srv/data/shop.db", "nfs4", "warn"), ("/srv/data/local disk/shop.db", "xfs", "ok"),
     ("/srv/database/shop.db", "ext4", "ok")],
)  # fmt: skip
async def test_a_network_file_system_is_a_warning(path: str, kind: str, state: str) -> None:
    assert doctor.file_system_of(Path(path), MOUNTS) == kind
    assert (await doctor.file_system(Path(path), MOUNTS)).state == state


async def test_a_system_that_does_not_tell_its_mounts_is_no_failure(tmp_path: Path) -> None:
    assert "cannot be told" in (await doctor.file_system(tmp_path, "")).found


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (doctor.judge_sqlite("3.54.1", "wal"), "ok"),
        (doctor.judge_sqlite("3.45.0", "wal"), "warn"),
        (doctor.judge_sqlite("3.54.1", "delete"), "fail"),
        (doctor.judge_postgres(170_002, "PostgreSQL 17.2 on x86_64"), "ok"),
        (doctor.judge_postgres(130_010, "PostgreSQL 13.10 on x86_64"), "fail"),
        (doctor.judge_sessions([7, 8], True), "ok"),
        (doctor.judge_sessions([7, 7], True), "fail"),
        (doctor.judge_sessions([7, 7], False), "warn"),
        (doctor.judge_wall(True, True, 2), "ok"),
        (doctor.judge_wall(False, False, 0), "warn"),
        (doctor.judge_wall(True, True, 1), "warn"),
        (doctor.judge_clock(100.0, 99.9, 100.1), "ok"),
        (doctor.judge_clock(100.0, 90.0, 100.1), "ok"),  # a slow answer is no difference
        (doctor.judge_clock(110.0, 99.9, 100.1), "warn"),
        (doctor.judge_clock(90.0, 99.9, 100.1), "warn"),
    ],
)
def test_each_finding_is_judged(check: Check, state: str) -> None:
    assert check.state == state
    assert bool(check.what_to_do) == (state != "ok")
