"""Log lines: found by tenant, instance, task, step, attempt and trace; without secrets; silent in a library."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

import holdfast
from holdfast import Context, logs
from holdfast.store.migrate import migrate_postgres
from holdfast.testing import FakeProvider, Harness
from tests.charts.support import EXPENSE
from tests.charts.support import app as expenses
from tests.support.postgres import Server

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def postgres_template(postgres: Server) -> str:
    return postgres.template("holdfast_flows", lambda dsn: asyncio.run(migrate_postgres(dsn, apply=True)))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'logged.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
async def harness(url: str) -> AsyncIterator[Harness]:
    async with Harness(url=url, verbose=True) as test:
        yield test


def of(lines: Any, event: str) -> list[dict[str, Any]]:
    return [dict(line) for line in lines if line["event"] == event]


# -- whom a line is about


async def test_every_line_about_an_instance_names_it(harness: Harness) -> None:
    tries = iter([ValueError("once"), None])

    async def shaky() -> None:
        error = next(tries)
        if error is not None:
            raise error

    async def pay() -> None:
        raise RuntimeError("who knows")

    async def undo() -> None: ...

    async def broken() -> None:
        raise ValueError("always")

    @harness.workflow("work")
    async def work(ctx: Context, given: str) -> None:
        await ctx.step("shaky", shaky, compensate=undo)
        await ctx.sleep("a-while", 60.0)
        if given == "pay":
            await ctx.effect("pay", pay)
        await ctx.step("broken", broken, max_attempts=1)

    with capture_logs() as lines:
        handle = await harness.start("work", "fail", tenant="acme", trace_id=PARENT)
        await harness.advance(hours=1)
        tries = iter([None])
        other = await harness.start("work", "pay", trace_id="order-7")
        await harness.advance(hours=1)
    about = [line for line in lines if line["event"] not in ("worker_started", "worker_stopped")]
    assert {"step_failed", "step_completed", "waiting", "timer_fired", "compensated", "instance_failed"} <= {
        line["event"] for line in about
    }
    for line in about:
        mine = line["instance_id"] == handle.id
        assert (line["tenant_id"], line["trace_id"]) == (("acme", TRACE) if mine else ("default", "order-7")), line
        assert line["workflow"] == "work"
        if line["event"].startswith(("step_", "effect_", "compensat")):
            assert line["step"] in ("shaky", "pay", "broken") and line["attempt"] >= 1, line
    [unknown] = of(lines, "effect_outcome_unknown")
    assert (unknown["instance_id"], unknown["step"], unknown["attempt"]) == (other.id, "pay", 1)


async def test_a_line_about_a_task_names_it(url: str) -> None:
    provider = FakeProvider()
    provider.plan("timeout_after")
    async with Harness(expenses(provider), url=url, verbose=True) as test:
        await test.publish(EXPENSE)
        with capture_logs() as lines:
            handle = await test.start("expense", {"amount": 5})
            await test.run_until_idle()
            [task] = await test.tasks.list(instance=handle.id)
            await test.tasks.complete(task.id, {"ok": True}, actor="ann")
            await test.run_until_idle()
        [paying] = await test.tasks.list(instance=handle.id)
    [started], [unknown] = of(lines, "effect_started"), of(lines, "effect_outcome_unknown")
    for line in (started, unknown):
        assert (line["tenant_id"], line["instance_id"], line["task_id"]) == ("default", handle.id, paying.id)
        assert (line["attempt"], line["step"].partition("/")[0]) == (1, "pay")


async def test_a_line_about_a_broken_execution_names_its_tenant(harness: Harness) -> None:
    @harness.workflow("small")
    async def small(ctx: Context, _: Any) -> None: ...

    worker = harness.test_worker
    assert worker is not None
    take, broken = worker.take, iter([True])

    def breaking(claimed: Any) -> None:
        if next(broken, False):
            claimed = claimed._replace(kind="code", definition_version=99)
        take(claimed)

    worker.take = breaking  # type: ignore[method-assign]
    with capture_logs() as lines:
        handle = await harness.start("small", tenant="acme", trace_id=PARENT)
        await harness.run_until_idle()
    [line] = of(lines, "instance_unreadable")
    assert (line["tenant_id"], line["instance_id"], line["trace_id"]) == ("acme", handle.id, TRACE)


async def test_a_transactions_own_lines_name_its_instance(harness: Harness) -> None:
    def book(tx: Any) -> str:
        return "booked"

    async def book_async(tx: Any) -> str:
        return "booked"

    @harness.workflow("booking")
    async def booking(ctx: Context, _: Any) -> Any:
        return await ctx.transaction("book", book if harness.url.startswith("sqlite") else book_async)

    worker = harness.test_worker
    assert worker is not None
    commit_alone = worker.store.commit_alone

    async def losing_the_reply(*given: Any) -> Any:
        await commit_alone(*given)
        raise ConnectionError("the reply was lost")

    worker.store.commit_alone = losing_the_reply  # type: ignore[method-assign]
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        handle = await harness.start("booking", trace_id="order-7")
        await harness.run_until_idle()
    assert await handle.result(timeout=0) == "booked"
    [line] = of(lines, "transaction_reply_lost")
    assert line.items() >= {
        "tenant_id": "default", "instance_id": handle.id, "trace_id": "order-7", "step": "book", "attempt": 1,
    }.items()  # fmt: skip
    assert structlog.contextvars.get_contextvars() == {}


# -- what no line says


def said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("format", ["json", "console"])
def test_no_secret_stands_in_a_line_nor_in_its_traceback(
    capsys: pytest.CaptureFixture[str], format: logs.Format
) -> None:
    logs.configure("info", format=format)
    log = structlog.get_logger("holdfast.test")
    try:
        raise ConnectionError("postgresql://ann:hunter2@db/shop is away")
    except ConnectionError:
        log.exception("broken")
    log.info("tried", error="401 for Authorization: Bearer hunter2hunter2", keys=["hfst_live_hunter2", "whsec_hunter2"])
    log.info("tried", more={"password": "hunter2", "inner": [{"url": "https://ann:hunter2@host/"}]})
    text = said(capsys)
    assert "hunter2" not in text
    assert "ConnectionError" in text and "hfst_live_***" in text


def test_json_holds_the_fields_and_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info")
    structlog.get_logger("holdfast.worker").info("waiting", tenant_id="default", instance_id="ins_1", on="signal 'x'")
    line = json.loads(said(capsys))
    assert line.pop("at").endswith("Z")
    assert line == {
        "event": "waiting", "level": "info", "tenant_id": "default", "instance_id": "ins_1", "on": "signal 'x'",
    }  # fmt: skip


def test_for_people_what_happened_comes_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure("info", format="console")
    log = structlog.get_logger("holdfast.worker")
    log.info("step_completed", tenant_id="default", instance_id="ins_1", workflow="order", step="pay", attempt=1)
    log.info("step_completed", tenant_id="acme", instance_id="ins_1", workflow="order", step="pay", attempt=1)
    usual, other = said(capsys).splitlines()
    assert usual.split()[-4:] == ["step=pay", "attempt=1", "workflow=order", "instance_id=ins_1"]
    assert other.endswith("instance_id=ins_1 tenant_id=acme")


# -- in somebody's application

PROGRAM = """
import asyncio, structlog, sys, tempfile
from holdfast import Holdfast

{configure}
hf = Holdfast("sqlite:///" + tempfile.mkdtemp() + "/a.db")

async def broken():
    raise ValueError("postgresql://ann:hunter2@db is away")

@hf.workflow("bad")
async def bad(ctx, _):
    await ctx.step("broken", broken, max_attempts=1)

async def main():
    async with hf, hf.worker():
        try:
            await (await hf.start("bad")).result(timeout=30)
        except Exception as error:
            print(type(error).__name__)
    structlog.get_logger("holdfast.worker").warning("look_here", error="postgresql://ann:hunter2@db is away")
    structlog.get_logger("theirs").info("their_own_line")

asyncio.run(main())
"""


def ran(configure: str) -> tuple[str, str]:
    environment = {"PYTHONPATH": str(Path(holdfast.__file__).parents[1]), "NO_COLOR": "1"}
    program = PROGRAM.format(configure=configure)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_library_says_nothing_below_a_warning_and_nothing_on_standard_output() -> None:
    out, err = ran("")
    assert out.startswith("InstanceFailed\n")
    assert "worker_started" not in out + err
    assert "instance_failed" not in out and "step_failed" not in out
    assert "[error    ] instance_failed" in err and "[warning  ] step_failed" in err
    assert "look_here" in err and "hunter2" not in err
    assert "their_own_line" in out  # what others say is not ours to hide


def test_an_application_that_configures_structlog_gets_every_line_its_own_way() -> None:
    out, err = ran("structlog.configure(processors=[structlog.processors.JSONRenderer()])")
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert {"worker_started", "instance_failed", "look_here"} <= {line["event"] for line in lines}
    assert err == ""
