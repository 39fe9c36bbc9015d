"""Whatever an author's code raises is a failure of that code: its instance does not wait for ever, nor do others."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Workflow, effect
from holdfast.testing import Harness
from tests.flows.support import query, types


class Odd(BaseException):
    """Not an Exception, like what pytest.fail raises."""


class Unreadable(Exception):
    """It answers nothing that it is asked without raising."""

    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__

    @property
    def retry_after(self) -> float:
        raise asyncio.CancelledError


def nameless(self: BaseException) -> Any:
    raise SystemExit("no class")


class Nameless(Exception):
    """Every `isinstance` that is asked of it raises."""

    __class__ = property(nameless)  # type: ignore[assignment]


class NamelessOdd(Odd):
    __class__ = property(nameless)  # type: ignore[assignment]


ODD = [Odd, asyncio.CancelledError, StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit, Unreadable]


def raises(error: type[BaseException]) -> Callable[..., Any]:
    def handler(*_: Any) -> Any:
        raise error("odd")

    return handler


def raises_async(error: type[BaseException]) -> Callable[..., Any]:
    async def handler(*_: Any) -> Any:
        raise error("odd")

    return handler


def raises_late(error: type[BaseException]) -> Callable[..., Any]:
    async def handler(*_: Any) -> Any:
        await asyncio.sleep(0)
        raise error("odd")

    return handler


def ways(ctx: Context, error: type[BaseException]) -> dict[str, Callable[[], Any]]:
    once: Any = {"max_attempts": 1}
    return {
        "in a thread": lambda: ctx.step("s", raises(error), **once),
        "in place": lambda: ctx.step("s", raises(error), thread=False, **once),
        "in line": lambda: ctx.step("s", raises_async(error), **once),
        "in line, and waits": lambda: ctx.step("s", raises_late(error), **once),
        "with a time-out": lambda: ctx.step("s", raises_late(error), timeout=60, **once),
        "transaction": lambda: ctx.transaction("s", raises(error), **once),
        "async transaction": lambda: ctx.transaction("s", raises_late(error), **once),
    }


async def neighbour_ends(harness: Harness) -> bool:
    """The worker goes on claiming and committing, on each of its connections."""

    @harness.workflow("neighbour")
    async def neighbour(ctx: Context) -> int:
        return await ctx.step("one", lambda: 1, thread=False)

    handles = [await harness.start("neighbour") for _ in range(5)]
    await harness.run_until_idle()
    return [await handle.result(0) for handle in handles] == [1] * 5


@pytest.mark.parametrize("error", ODD)
@pytest.mark.parametrize("way", ways(None, Odd))  # type: ignore[arg-type]
async def test_a_handler_that_raises_no_exception_has_failed(
    harness: Harness, way: str, error: type[BaseException]
) -> None:
    if "transaction" in way and way.startswith("async") != harness.url.startswith("postgres"):
        way = "in place"  # each database has its own kind of transaction

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        await ways(ctx, error)[way]()

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
    view = await handle.status()
    assert (view.status, view.error["type"]) == ("failed", "StepFailed")
    # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
    assert error.__name__ in view.error["message"]
    assert await neighbour_ends(harness)


async def holding(error: BaseException) -> None:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    await future


@pytest.mark.parametrize("way", ["in line", "with a time-out", "transaction", "compensation"])
async def test_a_handler_that_awaits_a_generator_exit_has_failed(harness: Harness, way: str) -> None:
    """It is raised by no `raise` there, like that of a coroutine which is closed."""

    async def handler(*_: Any) -> None:
        await holding(GeneratorExit())

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        if way == "compensation":
            await ctx.step("s", lambda: 1, compensate=handler, max_attempts=1)
            raise ValueError("now undo")
        if way == "transaction" and harness.url.startswith("postgres"):
            await ctx.transaction("s", handler, max_attempts=1)
        await ctx.step("s", handler, max_attempts=1, timeout=60 if way == "with a time-out" else None)

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "failed" and (view.compensation == "partial") == (way == "compensation")
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("error", [Nameless, NamelessOdd])
@pytest.mark.parametrize("way", [*ways(None, Odd), "body", "cause", "callback", "lookup"])  # type: ignore[arg-type]
async def test_an_error_whose_class_cannot_be_read_is_that_calls_failure(
    harness: Harness, way: str, error: type[BaseException]
) -> None:
    if "transaction" in way and way.startswith("async") != harness.url.startswith("postgres"):
        way = "in place"

    async def pay() -> None:
        raise TimeoutError

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        if way == "body":
            raise error("odd")
        if way == "cause":
            raise ValueError from error("odd")
        if way == "callback":
            asked: Any = ctx.step("one", lambda: 1)
            asked.add_done_callback(raises(error))
            await asked
            await ctx.wait_for_signal("never")
        if way == "lookup":
            await ctx.effect("pay", pay, mode="lookup", lookup=raises_async(error))
        await ways(ctx, error)[way]()

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
        await harness.advance(hours=2)
    view = await handle.status()
    assert view.status == "failed" or (way == "lookup" and "lookups failed" in str(view.waiting_on)), view.waiting_on
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("error", ODD)
@pytest.mark.parametrize("place", ["until", "choose", "builder's until", "builder's choose"])
async def test_a_function_that_decides_and_raises_no_exception_fails_its_instance(
    harness: Harness, place: str, error: type[BaseException]
) -> None:
    if place == "builder's until":
        harness.register(Workflow("odd").loop("l", lambda: 1, until=raises(error)))
    elif place == "builder's choose":
        harness.register(Workflow("odd").route("r", choose=raises(error), routes={"a": None}))
    else:

        @harness.workflow("odd")
        async def odd(ctx: Context) -> Any:
            if place == "until":
                await ctx.loop("l", lambda: 1, until=raises(error))
            await ctx.route("r", raises(error), {"a": None})

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
        await harness.advance(hours=1)
    assert (await handle.status()).status == "failed"
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("error", ODD)
async def test_a_backoff_that_raises_no_exception_is_the_default_one(
    harness: Harness, error: type[BaseException]
) -> None:
    tried: list[int] = []

    async def flaky() -> str:
        tried.append(1)
        if len(tried) < 3:
            raise ValueError("not yet")
        return "done"

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        return await ctx.step("s", flaky, backoff=raises(error))

    assert await harness.finish(await harness.start("odd")) == "done"


@pytest.mark.parametrize("error", ODD)
@pytest.mark.parametrize("kind", ["thread", "async"])
async def test_an_undo_that_is_an_effect_and_raises_no_exception_may_have_happened(
    harness: Harness, error: type[BaseException], kind: str
) -> None:
    undo = raises(error) if kind == "thread" else raises_async(error)

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        await ctx.effect("pay", lambda: 1, compensate=effect(undo))
        raise ValueError("now undo")

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "compensating" and "effect 'undo:pay'" in str(view.waiting_on)
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("error", [*ODD, Nameless, NamelessOdd])
@pytest.mark.parametrize("kind", ["step", "in place", "async step", "transaction", "effect", "async effect", "lookup"])
async def test_a_charts_handler_that_raises_no_exception_has_failed(
    harness: Harness, error: type[BaseException], kind: str
) -> None:
    is_async = kind.startswith("async") or (kind == "transaction" and harness.url.startswith("postgres"))
    handler = raises_late(error) if is_async else raises(error)
    options: dict[str, Any] = {"kind": kind.split()[-1]} if kind not in ("in place", "lookup") else {}
    if kind == "in place":
        options = {"thread": False}
    elif kind == "lookup":
        options = {"kind": "effect", "mode": "lookup", "lookup": handler}
        handler = raises(TimeoutError)
    harness.task_handler("SYSTEM", "odd", **options)(handler)
    invoke = {"src": {"task": {"type": "SYSTEM", "name": "odd", "input": {}}}, "onDone": "end", "onError": "end"}
    await harness.publish(
        {"id": "odd", "initial": "on", "states": {"on": {"invoke": invoke}, "end": {"type": "final"}}}
    )
    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.advance(hours=2)
    view = await handle.status()
    if "effect" in kind or kind == "lookup":
        assert "a person" in str(view.waiting_on)
    else:
        assert view.status == "completed" and "TASK_FAILED" in await types(handle)
    assert await neighbour_ends(harness)


async def test_an_effect_that_raises_no_exception_may_have_happened(harness: Harness) -> None:
    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        await ctx.effect("pay", raises_async(Odd))

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
    assert "a person" in str((await handle.status()).waiting_on)
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("after", ["at once", "a step", "a wake"])
@pytest.mark.parametrize("error", ODD)
async def test_a_body_that_raises_no_exception_fails_and_takes_no_worker_with_it(
    harness: Harness, after: str, error: type[BaseException]
) -> None:
    undone: list[str] = []

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        if after == "a step":
            await ctx.step("book", lambda: 1, compensate=lambda: undone.append("book"))
        elif after == "a wake":
            await ctx.sleep("rest", 1)
        if error is not asyncio.CancelledError:
            raise error("odd")
        branch = asyncio.create_task(ctx.wait_for_signal("never"))
        branch.cancel()
        await branch  # it raises CancelledError here

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.advance(seconds=2)
    view = await handle.status()
    assert (view.status, view.error["type"]) == ("failed", "RuntimeError" if error is StopIteration else error.__name__)
    assert undone == (["book"] if after == "a step" else [])
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("error", ODD)
@pytest.mark.parametrize("kind", ["thread", "async"])
async def test_a_compensation_that_raises_no_exception_has_failed_and_the_rest_still_run(
    harness: Harness, error: type[BaseException], kind: str
) -> None:
    undone: list[str] = []
    undo = raises(error) if kind == "thread" else raises_async(error)

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        await ctx.step("first", lambda: 1, compensate=lambda: undone.append("first"))
        await ctx.step("second", lambda: 2, compensate=undo, max_attempts=1)
        raise ValueError("now undo")

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
    view = await handle.status()
    assert (view.status, view.compensation, undone) == ("failed", "partial", ["first"])
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("error", ODD)
async def test_a_lookup_that_raises_no_exception_is_asked_again(harness: Harness, error: type[BaseException]) -> None:
    asked: list[str] = []

    async def lookup(key: str) -> str:
        asked.append(key)
        if len(asked) < 3:
            raise error("odd")
        return "found"

    async def pay() -> str:
        raise TimeoutError

    @harness.workflow("odd")
    async def odd(ctx: Context) -> str:
        return await ctx.effect("pay", pay, mode="lookup", lookup=lookup)

    handle = await harness.start("odd")
    assert await harness.finish(handle) == "found"
    assert len(asked) == 3


@pytest.mark.parametrize("error", [error for error in ODD if error is not GeneratorExit])  # Python forbids to go on
async def test_a_branch_of_a_body_that_raises_no_exception_is_told_to_who_awaits_it(
    harness: Harness, error: type[BaseException]
) -> None:
    @harness.workflow("odd")
    async def odd(ctx: Context) -> str:
        async def branch() -> None:
            await ctx.step("one", lambda: 1)
            raise error("odd")

        try:
            await asyncio.create_task(branch())
        except BaseException as caught:
            name = type(caught).__name__
        await ctx.step("two", lambda: 2)
        return name

    assert await harness.finish(await harness.start("odd")) in (error.__name__, "RuntimeError")
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("error", [ValueError, Odd, SystemExit])
async def test_a_callback_in_a_body_that_raises_fails_its_instance(
    harness: Harness, error: type[BaseException]
) -> None:
    @harness.workflow("odd")
    async def odd(ctx: Context) -> None:
        asked: Any = ctx.step("one", lambda: 1)
        asked.add_done_callback(raises(error))
        await asked
        await ctx.wait_for_signal("never")

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
    view = await handle.status()
    assert (view.status, view.error["type"]) == ("failed", error.__name__)
    assert await neighbour_ends(harness)


@pytest.mark.parametrize("error", [Odd, SystemExit, Unreadable])
@pytest.mark.parametrize("place", ["argument", "result", "workflow's result", "read back"])
async def test_a_type_that_raises_no_exception_fails_its_call(
    harness: Harness, place: str, error: type[BaseException]
) -> None:
    class Written:
        def model_dump(self, mode: str) -> Any:
            raise error("odd")

    class Read:
        @staticmethod
        def model_validate_json(raw: bytes) -> Any:
            raise error("odd")

    async def gives() -> Any:
        return Written() if place == "result" else 1

    if place == "read back":
        gives.__annotations__["return"] = Read

    @harness.workflow("odd")
    async def odd(ctx: Context) -> Any:
        if place == "argument":
            await ctx.step("one", lambda it: None, Written())
        await ctx.step("two", gives, max_attempts=1)
        return Written() if place == "workflow's result" else None

    handle = await harness.start("odd")
    async with asyncio.timeout(30):
        await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "failed" or str(view.waiting_on).startswith("parked: ")
    assert await neighbour_ends(harness)


CATCHES_ALL = """
import asyncio, sys
from datetime import timedelta
from holdfast import Holdfast
from holdfast.testing import Harness

hf = Holdfast()

@hf.workflow("waits")
async def waits(ctx):
    while True:
        try:
            ctx.now()
            if sys.argv[2] == "sleeps":
                await ctx.sleep("rest", 1)
            else:
                await ctx.parallel("both", {"one": lambda: 1, "two": lambda: 2})
                await ctx.wait_for_signal("go")
            return "done"
        except:
            pass

@hf.workflow("restarts")
async def restarts(ctx, round):
    while True:
        try:
            await ctx.step("one", lambda: 1)
            if round == 1:
                return "done"
            ctx.restart(round + 1)
        except:
            pass

async def main():
    async with Harness(hf, url=sys.argv[1]) as test:
        handle = await test.start("restarts", 0) if sys.argv[2] == "restarts" else await test.start("waits")
        await test.run_until_idle()
        if sys.argv[2] == "signal":
            await handle.signal("go", 1)
        print(await test.finish(handle, within=timedelta(seconds=9)))

asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["sleeps", "signal", "restarts"])
async def test_a_body_that_catches_everything_is_unwound_all_the_same(harness: Harness, way: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CATCHES_ALL, harness.url, way, stdout=PIPE, stderr=STDOUT
    )  # in a process of its own: it would stop this one for ever
    try:
        async with asyncio.timeout(30):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert b"done" in said.splitlines(), said.decode()


INTERRUPTED = """
import asyncio, signal, sys
from holdfast import Holdfast

hf = Holdfast(sys.argv[1])

@hf.workflow("interrupted")
async def interrupted(ctx):
    await ctx.step("one", press, thread=False)

def press():
    signal.raise_signal(signal.SIGINT)

async def main():
    async with hf, hf.worker():
        await hf.start("interrupted", business_key="it")
        await asyncio.sleep(30)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
loop = asyncio.new_event_loop()
task = loop.create_task(main())
try:
    loop.run_until_complete(task)
except KeyboardInterrupt:
    task.cancel()
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        print("let go")
"""


async def test_a_real_interrupt_is_nobodys_failure(harness: Harness) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", INTERRUPTED, harness.url, stdout=PIPE, stderr=STDOUT
    )
    said, _ = await process.communicate()
    assert b"let go" in said, said.decode()
    [view] = await harness.instances()
    assert view.status in ("pending", "running")
    assert "STEP_RETRIED" not in await types(harness.instance(view.id))
    assert query(harness.url, "select locked_by from holdfast.instances") == [(None,)]


ABANDONED = """
import asyncio, os, sys
from holdfast import Holdfast

hf = Holdfast(sys.argv[1])
begun = asyncio.Event()

async def wait():
    begun.set()
    await asyncio.Event().wait()

@hf.workflow("waits")
async def waits(ctx):
    await asyncio.gather(ctx.step("wait", wait), ctx.step("with a time-out", wait, timeout=60))

async def main():
    await hf.open()
    worker = hf.worker()
    await worker.__aenter__()
    await hf.start("waits")
    await begun.wait()

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
tasks = asyncio.all_tasks(loop)
loop.close()
for task in tasks:
    if task.get_coro().__name__ in ("_run_step", "_bring_back"):
        task.get_coro().close()  # as the garbage collector does
        print("closed")
sys.stdout.flush()
os._exit(0)
"""


async def test_a_handler_whose_loop_is_gone_is_closed_without_a_word(harness: Harness) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ABANDONED, harness.url, stdout=PIPE, stderr=STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == 0 and said.count(b"closed") == 2 and b"Traceback" not in said, said.decode()
