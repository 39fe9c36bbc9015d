"""A failed attempt shows the author's line: in the history, in `why`, in the log, and in his own test."""

import asyncio
import gc
import json
import sys
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from holdfast import Context, EffectFailed, Handle, Holdfast, InstanceFailed, NotApplied, StepFailed
from holdfast.engine.stacks import ERROR_BYTES, shown_path
from holdfast.testing import Harness
from tests.flows.support import entries, next_worker, until

HERE = shown_path(__file__)
SOON = timedelta(milliseconds=10)


def amount(row: dict[str, Any]) -> int:
    found: int = row["amuont"]
    return found


def total(rows: list[dict[str, Any]]) -> int:
    return sum([amount(row) for row in rows])


async def price(rows: list[dict[str, Any]]) -> int:
    return total(rows)


def price_in_a_thread(rows: list[dict[str, Any]]) -> int:
    return total(rows)


async def price_on_postgres(tx: Any, rows: list[dict[str, Any]]) -> int:
    return total(rows)


def price_on_sqlite(tx: Any, rows: list[dict[str, Any]]) -> int:
    return total(rows)


async def pay(rows: list[dict[str, Any]]) -> int:
    raise NotApplied("not sent")


async def look_up(key: str) -> int:
    return total([{}])


async def undo() -> None:
    total([{}])


async def lost() -> int:
    raise TimeoutError("no answer")


def register(hf: Holdfast) -> None:
    transaction = price_on_sqlite if hf.url.startswith("sqlite") else price_on_postgres

    @hf.workflow("broken")
    async def broken(ctx: Context, where: str) -> Any:
        rows = [{"amount": 1}]
        match where:
            case "step":
                return await ctx.step("price", price, rows, max_attempts=2, backoff=SOON)
            case "step with a time-out":
                return await ctx.step("price", price, rows, max_attempts=2, backoff=SOON, timeout=5)
            case "thread":
                return await ctx.step("price", price_in_a_thread, rows, max_attempts=2, backoff=SOON)
            case "in place":
                return await ctx.step("price", price_in_a_thread, rows, max_attempts=2, backoff=SOON, thread=False)
            case "effect":
                return await ctx.effect("price", price, rows, max_attempts=2, backoff=SOON, mode="keyed")
            case "transaction":
                return await ctx.transaction("price", transaction, rows, max_attempts=2, backoff=SOON)
            case "compensation":
                await ctx.step("reserve", len, [], compensate=undo, max_attempts=2, backoff=SOON)
                raise ValueError("never mind")
            case "look-up":
                return await ctx.effect("price", lost, mode="lookup", lookup=look_up, backoff=SOON)
            case "body":
                return total(rows)


def functions(error: dict[str, Any]) -> list[str]:
    return [frame["function"] for frame in error["stack"] if frame["file"] == HERE]


ROWS = {
    "step": ("STEP_RETRIED", "price"),
    "step with a time-out": ("STEP_RETRIED", "price"),
    "thread": ("STEP_RETRIED", "price_in_a_thread"),
    "in place": ("STEP_RETRIED", "price_in_a_thread"),
    "effect": ("EFFECT_RETRIED", "price"),
    "transaction": ("TRANSACTION_RETRIED", ""),
    "compensation": ("COMPENSATION_RETRIED", "undo"),
    "look-up": ("EFFECT_UNKNOWN", "look_up"),
    "body": ("INSTANCE_FAILED", "register.<locals>.broken"),
}


@pytest.mark.parametrize("where", ROWS)
async def test_the_history_and_the_log_have_the_authors_frames(harness: Harness, where: str) -> None:
    register(harness)
    type_, function = ROWS[where]
    if where == "transaction":
        function = "price_on_sqlite" if harness.url.startswith("sqlite") else "price_on_postgres"
    with capture_logs() as lines:
        handle = await harness.start("broken", where)
        await harness.advance(hours=1)
    found = [entry.payload["error"] for entry in await entries(handle, type_)]
    error = next(error for error in found if error["type"] == "KeyError")
    assert error["message"] == "'amuont'"
    comprehension = ["total.<locals>.<listcomp>"] if len(functions(error)) == 4 else []  # before Python 3.12
    assert functions(error) == [function, "total", *comprehension, "amount"]
    assert {frame["file"] for frame in error["stack"]} == {HERE} and "/home" not in HERE
    said = [line for line in lines if "KeyError: 'amuont'" in line.get("exception", "")]
    assert 'found: int = row["amuont"]' in said[0]["exception"]
    assert {line["log_level"] for line in said} <= {"warning", "error"}


async def test_a_system_handlers_stack_is_in_the_task_the_history_and_the_end(url: str) -> None:
    app = Holdfast(url)

    @app.task_handler("SYSTEM", "price")
    async def system(given: dict[str, Any]) -> int:
        return total([given])

    task = {"type": "SYSTEM", "name": "price", "input": {}, "max_attempts": 1}
    pricing = {"entry": [{"type": "createTask", "params": task}]}
    chart = {"id": "priced", "initial": "pricing", "states": {"pricing": pricing}}
    async with Harness(app, url=url) as test:
        await test.publish(chart)
        handle = await test.start("priced", {})
        await test.advance(hours=1)
        [failed] = await entries(handle, "TASK_FAILED")
        assert functions(failed.payload["error"])[-1] == "amount"
        view = await handle.status()
        assert (view.status, view.error["type"], view.error["causes"][0]["how"]) == ("failed", "TaskFailed", "task")
        assert functions(view.error["causes"][0])[-1] == "amount"
        assert f"at {HERE}:" in await handle.why()
        with pytest.raises(InstanceFailed) as caught:
            await handle.result(timeout=0)
        assert "in amount" in "".join(caught.value.__notes__)


async def test_a_chart_is_told_of_a_failure_without_its_stack(harness: Harness) -> None:
    @harness.task_handler("SYSTEM", "price")
    async def system(given: dict[str, Any]) -> int:
        return total([given])

    task = {"type": "SYSTEM", "name": "price", "input": {}, "max_attempts": 1}
    keep = [{"type": "assign", "assign": {"error": {"@expr": "event.error"}}}]
    pricing = {
        "entry": [{"type": "createTask", "params": task}],
        "on": {"task.failed.price": {"target": "broken", "actions": keep}},
    }
    chart = {
        "id": "kept", "initial": "pricing", "context": {"error": None}, "states": {"pricing": pricing, "broken": {}}
    }  # fmt: skip
    await harness.publish(chart)
    handle = await harness.start("kept", {})
    await harness.advance(hours=1)
    snapshot = await handle.snapshot()
    assert snapshot is not None
    assert snapshot["context"]["error"] == {"type": "KeyError", "message": "'amuont'"}


# -- in a test of the author's


async def test_the_harness_raises_with_the_exception_of_the_body_as_cause(harness: Harness) -> None:
    register(harness)
    with pytest.raises(InstanceFailed, match="failed: KeyError: 'amuont'") as caught:
        await harness.finish(await harness.start("broken", "body"))
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError) and cause.__traceback__ is not None


@pytest.mark.parametrize("where", ["step", "thread", "in place", "effect", "transaction"])
async def test_the_harness_raises_with_the_exception_of_the_step_as_cause(harness: Harness, where: str) -> None:
    register(harness)
    handle = await harness.start("broken", where)
    await harness.advance(hours=1)
    if where == "effect":  # of a keyed effect nobody knows: a person aborts it
        [view] = await harness.effects.list()
        await harness.advance(days=1)
        await harness.effects.resolve(view.id, "abort", actor="ann", reason="enough")
    with pytest.raises(InstanceFailed) as caught:
        await harness.finish(handle)
    failed = caught.value.__cause__
    assert isinstance(failed, StepFailed)
    original = failed.__cause__
    assert isinstance(original, KeyError)
    frames = []
    traceback = original.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    assert frames[-1] == "amount" and "_bring_back" not in frames


async def test_who_waits_in_the_same_process_gets_the_cause_too(url: str) -> None:
    async with Holdfast(url) as app, app.worker():
        register(app)
        for where, kind in (("body", KeyError), ("step", StepFailed)):
            with pytest.raises(InstanceFailed) as caught:
                await (await app.start("broken", where)).result(timeout=60)
            assert isinstance(caught.value.__cause__, kind)


class Heavy:
    """A value that must not outlive the step that had it."""


async def test_a_kept_exception_keeps_no_values(url: str) -> None:
    held: list[weakref.ref[Heavy]] = []

    def hold() -> None:
        heavy = Heavy()
        held.append(weakref.ref(heavy))
        raise ValueError("too heavy")

    async with Holdfast(url) as app, app.worker():

        @app.workflow("heavy")
        async def heavy(ctx: Context, where: str) -> None:
            if where == "body":
                hold()
            await ctx.step("hold", hold, max_attempts=1)

        for where in ("body", "step"):
            with pytest.raises(InstanceFailed):
                await (await app.start("heavy", where)).result(timeout=60)
        await until(lambda: gc.collect() is not None and [one() for one in held] == [None, None])


async def test_elsewhere_the_recorded_stack_is_a_note(harness: Harness) -> None:
    register(harness)
    handle = await harness.start("broken", "step")
    await harness.advance(hours=1)
    async with Holdfast(harness.url) as other:
        with pytest.raises(InstanceFailed) as caught:
            await other.instance(handle.id).result(timeout=0)
    assert caught.value.__cause__ is None
    assert "in amount" in caught.value.__notes__[0] and "in price" in caught.value.__notes__[0]


# -- the same in every replay


async def test_a_body_sees_the_same_failure_live_and_in_replay(harness: Harness) -> None:
    seen: list[tuple[Any, ...]] = []

    @harness.workflow("catches")
    async def catches(ctx: Context, _: None) -> None:
        try:
            await ctx.step("price", price, [{}], max_attempts=1)
        except StepFailed as error:
            seen.append((str(error), error.__cause__, error.recorded, list(error.__notes__)))
        await ctx.sleep("nap", 60)
        await ctx.sleep("nap", 60)

    await harness.finish(await harness.start("catches", None))
    assert len(seen) == 3 and seen[0] == seen[1] == seen[2]
    assert seen[0][1] is None, "the exception itself is not there in a replay, so it is not there live"
    assert functions(seen[0][2])[-1] == "amount"


async def test_an_undoing_that_another_worker_ends_keeps_the_stack(harness: Harness) -> None:
    register(harness)
    handle = await harness.start("broken", "compensation")
    await harness.run_until_idle()
    assert (await handle.status()).status == "compensating"
    async with next_worker(harness, app=harness) as other:
        await other.advance(hours=1)
        view = await other.instance(handle.id).status()
    [failing] = [entry for entry in await entries_of(handle.id, harness.url) if entry.type == "INSTANCE_FAILING"]
    assert (view.status, view.compensation) == ("failed", "partial")
    assert view.error == failing.payload["error"] and functions(view.error) == ["register.<locals>.broken"]


async def entries_of(id_: str, url: str) -> list[Any]:
    async with Holdfast(url) as reader:
        return await reader.instance(id_).history()


async def test_a_parent_knows_what_its_child_died_of(harness: Harness) -> None:
    register(harness)

    @harness.workflow("parent")
    async def parent(ctx: Context, _: None) -> None:
        await ctx.child("part", "broken", "step")

    handle = await harness.start("parent", None)
    await harness.advance(hours=1)
    error = (await handle.status()).error
    assert [(cause["how"], cause["type"]) for cause in error["causes"]] == [
        ("child", "StepFailed"),
        ("step", "KeyError"),
    ]
    assert functions(error["causes"][1])[-1] == "amount"


async def test_why_names_the_authors_line(harness: Harness) -> None:
    register(harness)

    @harness.workflow("waits")
    async def waits(ctx: Context, _: None) -> None:
        await ctx.step("price", price, [{}], backoff=timedelta(days=1))

    retrying, failed = await harness.start("waits", None), await harness.start("broken", "step")
    await harness.advance(hours=1)
    line = amount.__code__.co_firstlineno + 1
    for handle in (retrying, failed):
        assert f"KeyError: 'amuont', at {HERE}:{line} in amount" in await handle.why()


# -- hostile exceptions


def repr_of_type(error: Exception) -> str:
    return type(error).__name__


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


def mute() -> None:
    raise Mute


def endless() -> None:
    endless()


def huge() -> None:
    raise ValueError("\x01" * 5_000_000)


def group() -> None:
    raise ExceptionGroup("many", [ValueError("x" * 100_000) for _ in range(1000)])


def leaves() -> None:
    sys.exit("no such option: --amuont")


async def test_a_handler_in_a_thread_that_exits_fails_alone(harness: Harness) -> None:
    @harness.workflow("leaves")
    async def leaves_the_house(ctx: Context, _: None) -> str:
        try:
            await ctx.step("leave", leaves, max_attempts=1)
        except StepFailed as error:
            return str(error)
        return "nothing was raised"

    handle = await harness.start("leaves", None)
    said = await harness.finish(handle)
    assert "HandlerExited: the handler raised SystemExit: raise an Exception instead" in said
    [failed] = await entries(handle, "STEP_FAILED")
    [cause] = failed.payload["error"]["causes"]
    assert (cause["type"], cause["message"]) == ("SystemExit", "no such option: --amuont")
    assert cause["stack"][-1]["function"] == "leaves"


async def test_a_source_line_with_a_secret_stands_in_no_log_line_and_no_record(url: str, tmp_path: Path) -> None:
    script = tmp_path / "spelt.py"
    script.write_text(SPELT)
    done = await asyncio.create_subprocess_exec(
        sys.executable, str(script), url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await done.communicate()
    assert done.returncode == 0, said
    assert b"step_failed" in said and b"in connect" in said and b"password = ***" in said
    assert b"hunter2" not in said


SPELT = """
import asyncio, sys
from holdfast import Holdfast, InstanceFailed, logs

hf = Holdfast(sys.argv[1])

def connect():
    password = "hunter2"; raise ValueError("refused")

@hf.workflow("spelt")
async def spelt(ctx, given):
    await ctx.step("connect", connect, max_attempts=1)

async def main():
    logs.configure("info", format="json")
    async with hf, hf.worker():
        handle = await hf.start("spelt", None)
        try:
            await handle.result(timeout=60)
        except InstanceFailed:
            print((await handle.status()).to_dict(), [entry.to_dict() for entry in await handle.history()])

asyncio.run(main())
"""


class MuteTypeError(Mute, TypeError):
    pass


class Liar(Exception):
    @property
    def __cause__(self) -> Any:
        raise RuntimeError("not even this")

    __context__ = __cause__


class LyingGroup(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("in_body", [False, True])
@pytest.mark.parametrize("type_", [MuteTypeError, Liar, LyingGroup])
async def test_an_exception_that_answers_with_another_one_fails_its_instance_like_any_other(
    harness: Harness, type_: type[Exception], in_body: bool
) -> None:
    def bad() -> None:
        raise type_("x", [ValueError("y")])  # made here: one that outlives the test would keep the instance in memory

    @harness.workflow("hostile")
    async def hostile(ctx: Context, _: None) -> None:
        if in_body:
            bad()
        await ctx.step("bad", bad, max_attempts=1)

    handle = await harness.start("hostile", None)
    with pytest.raises(InstanceFailed, match=type_.__name__):
        await harness.finish(handle)


@pytest.mark.parametrize("bad", [mute, endless, huge, group])
async def test_whatever_is_raised_the_record_is_bounded_and_the_instance_goes_on(harness: Harness, bad: Any) -> None:
    @harness.workflow("hostile")
    async def hostile(ctx: Context, _: None) -> str:
        try:
            await ctx.step("bad", bad, max_attempts=1)
        except StepFailed as error:
            return error.error_type
        return "nothing was raised"

    with capture_logs() as lines:
        handle = await harness.start("hostile", None)
        kind: str = await harness.finish(handle)
    assert kind in ("Mute", "RecursionError", "ValueError", "ExceptionGroup")
    [failed] = await entries(handle, "STEP_FAILED")
    assert len(json.dumps(failed.payload["error"], ensure_ascii=False)) <= ERROR_BYTES + 2000
    assert failed.payload["error"]["stack"][-1]["function"] == bad.__name__
    assert all(len(line.get("exception", "")) < 10_000 for line in lines)


async def test_an_effects_evidence_and_its_row_hold_the_stack(harness: Harness) -> None:
    register(harness)
    handle: Handle = await harness.start("broken", "effect")
    await harness.advance(hours=1)
    [view] = await harness.effects.list(instance=handle.id)
    assert functions(view.error)[-1] == "amount"
    with pytest.raises(InstanceFailed) as caught:
        await harness.advance(days=1)
        await harness.effects.resolve(view.id, "abort", actor="ann", reason="enough")
        await harness.finish(handle)
    assert isinstance(caught.value.__cause__, EffectFailed | StepFailed)


async def test_one_that_is_parked_by_a_mistake_shows_the_authors_line(harness: Harness) -> None:
    @harness.workflow("typo")
    async def typo(ctx: Context, _: None) -> None:
        await ctx.effect("pay", pay, [], mode="keyd")  # type: ignore[arg-type]

    with capture_logs() as lines:
        handle = await harness.start("typo", None)
        await harness.run_until_idle()
    [parked] = await entries(handle, "INSTANCE_PARKED")
    assert functions(parked.payload["error"]) == [typo.__qualname__]
    assert f"at {HERE}:{typo.__code__.co_firstlineno + 2} in " in await handle.why()
    [line] = [line for line in lines if line["event"] == "parked"]
    assert line["log_level"] == "error" and 'mode="keyd"' in line["exception"]
