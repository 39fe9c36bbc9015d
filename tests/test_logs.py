"""Log lines: found by tenant, instance, task, step, attempt and trace; without secrets; silent in a library."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

import holdfast
from holdfast import Context, logs
from holdfast.testing import FakeProvider, Harness
from tests.charts.support import EXPENSE
from tests.charts.support import app as expenses

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    structlog.reset_defaults()
    root, hooks = logging.getLogger(), (threading.excepthook, sys.unraisablehook)
    before, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:], threading.excepthook, sys.unraisablehook = before, *hooks
    root.setLevel(level)
    logging.captureWarnings(False)


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


# -- on a terminal


def test_a_person_who_watches_gets_one_short_line_for_an_event(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure("info", format="console", short=True)
    log = structlog.get_logger("holdfast.worker")
    about = {
        "tenant_id": "default", "instance_id": f"ins_{'0' * 26}f4112a", "workflow": "fulfil-order", "trace_id": TRACE,
    }  # fmt: skip
    log.info("instance_started", **about, version=1)
    log.info("step_completed", **about, step="reserve-stock", attempt=1)
    log.info("waiting", **about, on="signal 'approved' until 2026-11-19T22:27:24Z")
    log.info("waiting", **about, on="attempt 2 of step 'reserve' until 2026-11-19T22:27:24Z")
    log.warning("step_failed", **about, step="charge", attempt=2, retry_in=60.0, error="E: x", exception="Trace\nE: x")
    log.info("effect_started", **about, task_id=f"tsk_{'0' * 26}abcdef", step="pay/3", attempt=1, mode="keyed")
    started, completed, waits, again, failed, *trace, effect = said(capsys).splitlines()
    assert max(map(len, (started, completed, waits, failed, effect))) <= 100
    assert """on="attempt 2 of step 'reserve' until 11-19 22:27Z\"""" in again
    assert started[8:] == " [info] instance_started   version=1 of=fulfil-order/f4112a"
    assert """on="signal 'approved' until 11-19 22:27Z\"""" in waits
    assert trace == ["Trace", "E: x"] and "error=" not in failed
    assert "abcdef" not in effect and TRACE not in effect


def test_what_is_wrong_is_shown_whole_and_does_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure("info", format="console", short=True)
    log = structlog.get_logger("shop")
    advice = (
        "the workflow returned, and the failure of step 'pay' was never awaited: put `await` before its ctx.step(…)"
    )
    log.error("parked", on=advice)
    log.warning("\x1b[2Jgone", exception="Trace\n\tE: \x1b]0;title\x07 \x9bm\r")
    whole, steered, *trace = said(capsys).splitlines()
    assert advice in whole
    assert "\\x1b[2Jgone" in steered
    assert trace == ["Trace", "\tE: \\x1b]0;title\\x07 \\x9bm\\r"]


# -- authors' own lines

STEPS = """
import asyncio, gc, logging, threading, warnings
import structlog
from holdfast import Holdfast, logs

hf = Holdfast()
log = logging.getLogger("shop")


def deep():
    return {}["amuont"]


def in_a_thread(given):
    log.warning("in a thread", extra={"cups": 3})
    thread = threading.Thread(target=deep)
    thread.start()
    thread.join()
    return 1


class Broken:
    def __del__(self):
        deep()


class Mute:
    def __repr__(self):
        raise RuntimeError("no")


async def price(given):
    log.info("priced %s at %d", "a cup", 5)
    log.debug("too detailed")
    log.info("does not fit %d", "x")
    structlog.get_logger().info("by structlog", value=Mute())
    try:
        deep()
    except KeyError:
        log.exception("postgresql://ann:hunter2@db")
    async def other():
        log.info("in a task")
    await asyncio.create_task(other())
    asyncio.get_running_loop().call_soon(deep)
    warnings.warn("old\\nway", UserWarning)
    Broken()
    logging.getLogger("httpx").info("HTTP Request: GET https://x/?token=hunter2")
    return 1


def in_sqlite(tx, given):
    log.info("in a transaction")
    return 1


async def undo():
    log.info("in a compensation")


@hf.workflow("order")
async def order(ctx, given):
    log.info("in a body")
    ctx.log.info("begun", cups=given)
    await ctx.step("price", price, given, compensate=undo)
    await ctx.step("thread", in_a_thread, given)
    await ctx.step("place", lambda: log.info("in place"), thread=False)
    await ctx.transaction("tx", in_sqlite, given)
    await ctx.sleep("nap", 0.05)
    ctx.log.bind(cups=given).warning("woke after %s", "a nap")
    raise ValueError("over")


async def main():
    async with hf:
        handle = await hf.start("order", 2)
        async with hf.worker():
            try:
                await handle.result(timeout=60)
            except Exception:
                pass
        print(handle.id)
"""


@pytest.fixture(scope="module")
def lines_of_authors(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """What a process of ours writes about an app that logs in every way, parsed: each line is one JSON object."""
    folder = tmp_path_factory.mktemp("authors")
    (folder / "shop.py").write_text(STEPS)
    program = 'import asyncio, shop; shop.logs.configure("info", format="json"); asyncio.run(shop.main())'
    environment = {"PYTHONPATH": f"{Path(holdfast.__file__).parents[1]}:{folder}"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), [json.loads(line) for line in done.stderr.splitlines()]


def test_the_standard_librarys_lines_have_our_format_and_name_the_attempt(
    lines_of_authors: tuple[str, list[dict[str, Any]]],
) -> None:
    id_, lines = lines_of_authors
    places = {
        "priced a cup at 5": "price", "in a thread": "thread", "in a task": "price", "in place": "place",
        "in a transaction": "tx", "in a compensation": "price", "by structlog": "price", "in a body": None,
    }  # fmt: skip
    for event, step in places.items():
        [line, *_] = of(lines, event)
        assert (line["tenant_id"], line["instance_id"], line["workflow"]) == ("default", id_, "order"), line
        assert (line.get("step"), line.get("attempt")) == (step, None if step is None else 1), line
        assert line["at"].endswith("Z") and line["level"] in ("info", "warning")
    [thread] = of(lines, "in a thread")
    assert (thread["level"], thread["logger"], thread["cups"]) == ("warning", "shop", 3)
    assert of(lines, "too detailed") == []
    assert [line for line in lines if line.get("logger") == "httpx"] == []


def test_whatever_goes_wrong_every_line_is_one_json_object(
    lines_of_authors: tuple[str, list[dict[str, Any]]],
) -> None:
    _, lines = lines_of_authors  # the fixture has parsed them all
    text = json.dumps(lines)
    assert "hunter2" not in text
    [logged] = of(lines, "postgresql://ann:***@db")
    assert "in deep" in logged["exception"]
    [lost] = of(lines, "log_line_lost")
    assert (lost["logger"], lost["line"]) == ("shop", "does not fit %d")
    [thread] = of(lines, "thread_failed")
    assert "KeyError: 'amuont'" in thread["exception"]
    [ignored] = of(lines, "exception_ignored")
    assert "__del__" in ignored["where"] and "KeyError" in ignored["exception"]
    [loop] = [line for line in lines if line.get("logger") == "asyncio"]
    assert "KeyError: 'amuont'" in loop["exception"]
    [warned] = [line for line in lines if line.get("logger") == "py.warnings"]
    assert "old\nway" in warned["event"]
    [mute] = of(lines, "by structlog")
    assert mute["value"] == "<Mute>"


def test_the_lines_of_ctx_log_come_once_and_plain_lines_of_a_body_in_each_replay(
    lines_of_authors: tuple[str, list[dict[str, Any]]],
) -> None:
    id_, lines = lines_of_authors
    [begun], [woke] = of(lines, "begun"), of(lines, "woke after a nap")
    assert (begun["cups"], begun["instance_id"], begun["level"]) == (2, id_, "info")
    assert (woke["cups"], woke["level"]) == (2, "warning")
    assert len(of(lines, "in a body")) > 1


def test_what_failed_is_a_warning_or_worse_though_the_worker_is_not_verbose(
    lines_of_authors: tuple[str, list[dict[str, Any]]],
) -> None:
    _, lines = lines_of_authors
    [failed] = of(lines, "instance_failed")
    assert failed["level"] == "error" and "in order" in failed["exception"] and failed["error"] == "ValueError: over"
    assert of(lines, "step_completed") == []


@pytest.mark.parametrize("timeout", [None, 60])
async def test_a_line_about_the_instance_does_not_name_the_step_before_it(
    harness: Harness, capsys: pytest.CaptureFixture[str], timeout: float | None
) -> None:
    async def fine() -> None: ...

    @harness.workflow("over")
    async def over(ctx: Context, _: None) -> None:
        await ctx.step("fine", fine, timeout=timeout)
        raise ValueError("over")

    logs.configure("info", format="json")
    await harness.start("over", None)
    await harness.run_until_idle()
    lines = [json.loads(line) for line in said(capsys).splitlines()]
    [failed] = of(lines, "instance_failed")
    assert "step" not in failed and "attempt" not in failed


def test_a_filter_gives_the_fields_to_an_applications_own_handler(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(logs.InstanceFilter())
    handler.setFormatter(logging.Formatter("%(message)s of [%(instance_id)s/%(step)s]"))
    record = logging.LogRecord("theirs", logging.INFO, "", 0, "line", (), None)
    assert handler.filter(record)
    assert handler.format(record) == "line of [/]"


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
            await (await hf.start("bad")).result(timeout=100)
        except Exception as error:
            print(type(error).__name__)
    structlog.get_logger("holdfast.worker").warning("look_here", error="postgresql://ann:hunter2@db is away")
    structlog.get_logger("theirs").info("their_own_line")

asyncio.run(main())
"""


def ran(configure: str) -> tuple[str, str]:
    environment = {"PYTHONPATH": str(Path(holdfast.__file__).parents[1]), "NO_COLOR": "1"}
    program = PROGRAM.format(configure=configure)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=200)
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
