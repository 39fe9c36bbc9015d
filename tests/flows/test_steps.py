"""Steps: what runs, how often, with which arguments, and what is remembered of it."""

import asyncio
import functools
import threading
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec
import pydantic
import pytest
from structlog.testing import capture_logs

from holdfast import Backoff, Context, InstanceFailed, NotApplied, StepFailed, StepInfo
from holdfast.testing import Harness
from tests.flows.support import entries, next_worker, types, until


@dataclass
class Order:
    id: str
    amount_minor: int


class Hold(msgspec.Struct):
    order: str
    units: int


class Receipt(pydantic.BaseModel):
    number: int
    lines: list[str]


async def test_sync_async_and_in_place_steps_run_in_turn_and_their_results_come_back(harness: Harness) -> None:
    where: dict[str, str] = {}

    def in_a_thread(x: int) -> int:
        where["sync"] = threading.current_thread().name
        return x + 1

    async def on_the_loop(x: int) -> int:
        where["async"] = threading.current_thread().name
        return x * 10

    def in_place(x: int) -> int:
        where["in place"] = threading.current_thread().name
        return -x

    @harness.workflow("sum")
    async def workflow(ctx: Context, given: int) -> list[int]:
        a = await ctx.step("a", in_a_thread, given)
        b = await ctx.step("b", on_the_loop, a)
        c = await ctx.step("c", in_place, b, thread=False)
        return [a, b, c]

    handle = await harness.start("sum", 4)
    assert await harness.finish(handle) == [5, 50, -50]
    assert where["sync"].startswith("holdfast-step")
    assert where["async"] == where["in place"] == threading.current_thread().name
    assert await types(handle) == [
        "INSTANCE_STARTED", "STEP_COMPLETED", "STEP_COMPLETED", "STEP_COMPLETED", "INSTANCE_COMPLETED",
    ]  # fmt: skip
    assert (await handle.status()).steps == {"a": 5, "b": 50, "c": -50}


async def test_in_place_steps_side_by_side_all_answer(harness: Harness) -> None:
    @harness.workflow("both")
    async def workflow(ctx: Context) -> list[int]:
        return list(
            await asyncio.gather(
                ctx.step("a", lambda: 1, thread=False),
                ctx.step("b", lambda: 2, thread=False),
                ctx.step("c", lambda: 3, thread=False),
            )
        )

    handle = await harness.start("both")
    assert await harness.finish(handle) == [1, 2, 3]


async def test_in_place_steps_side_by_side_after_a_commit_all_answer(harness: Harness) -> None:
    @harness.workflow("both")
    async def workflow(ctx: Context) -> list[int]:
        await ctx.step("first", lambda: 0)
        return list(
            await asyncio.gather(
                ctx.step("a", lambda: 1, thread=False, compensate=lambda: None),
                ctx.step("b", lambda: 2, thread=False, compensate=lambda: None),
            )
        )

    handle = await harness.start("both")
    assert await harness.finish(handle) == [1, 2]


async def test_a_handler_that_asks_for_step_info_gets_it_beside_its_arguments(harness: Harness) -> None:
    seen: list[StepInfo] = []

    def handler(order: dict[str, Any], info: StepInfo) -> str:
        seen.append(info)
        if len(seen) == 1:
            raise OSError("again")
        return str(order["id"])

    @harness.workflow("informed")
    async def workflow(ctx: Context, order: dict[str, Any]) -> str:
        return await ctx.step("look", handler, order, backoff=timedelta(seconds=1))

    handle = await harness.start("informed", {"id": "o-1"}, tenant="acme")
    assert await harness.finish(handle) == "o-1"
    first, second = seen
    assert (first.tenant_id, first.instance_id, first.workflow, first.step) == ("acme", handle.id, "informed", "look")
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.idempotency_key == second.idempotency_key
    assert first.not_after is None


async def test_decorated_handlers_keep_their_own_signatures(harness: Harness) -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **options: Any) -> Any:
            return function(*args, **options)

        return wrapper

    @logged
    def plain(order: dict[str, Any]) -> dict[str, Any]:
        return order

    @logged
    def informed(order: dict[str, Any], info: StepInfo) -> str:
        return f"{order['id']} {info.step}"

    @logged
    def typed() -> Hold:
        return Hold("o-1", 2)

    @harness.workflow("decorated")
    async def workflow(ctx: Context) -> Any:
        order = await ctx.step("plain", plain, {"id": "o-1"}, max_attempts=1)
        words = await ctx.step("informed", informed, order, max_attempts=1)
        hold = await ctx.step("typed", typed, max_attempts=1)
        return [words, hold.units]

    handle = await harness.start("decorated")
    assert await harness.finish(handle) == ["o-1 informed", 2]


async def test_handlers_made_by_one_factory_keep_their_own_return_types(harness: Harness) -> None:
    def loader(kind: type, value: Any) -> Any:
        def load() -> kind:  # type: ignore[valid-type]
            return value

        return load

    @harness.workflow("factory")
    async def workflow(ctx: Context) -> Any:
        number = await ctx.step("number", loader(int, 7), max_attempts=1)
        text = await ctx.step("text", loader(str, "seven"), max_attempts=1)
        return [number, text]

    handle = await harness.start("factory")
    assert await harness.finish(handle) == [7, "seven"]


async def test_methods_partials_and_callable_objects_are_handlers_too(harness: Harness) -> None:
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        def greet(self, who: str) -> str:
            return f"{self.name} greets {who}"

        async def __call__(self, who: str) -> str:
            return f"{self.name} calls {who}"

    @harness.workflow("objects")
    async def workflow(ctx: Context) -> list[str]:
        return [
            await ctx.step("method", Shop("A").greet, "ann"),
            await ctx.step("partial", functools.partial(Shop("B").greet, "bob")),
            await ctx.step("object", Shop("C"), "cid"),
        ]

    handle = await harness.start("objects")
    assert await harness.finish(handle) == ["A greets ann", "B greets bob", "C calls cid"]


async def test_dataclasses_structs_and_models_go_in_and_come_out_as_themselves(harness: Harness) -> None:
    seen: list[Any] = []

    def reserve(order: Order) -> Hold:
        seen.append(order)
        return Hold(order.id, 2)

    def bill(hold: Hold) -> Receipt:
        return Receipt(number=7, lines=[hold.order])

    def maybe(receipt: Receipt) -> Receipt | None:
        return receipt

    def listed(receipt: Receipt) -> list[Receipt]:
        return [receipt, receipt]

    @harness.workflow("typed")
    async def workflow(ctx: Context, order: Order) -> Receipt:
        seen.append(order)
        hold = await ctx.step("reserve", reserve, order)
        assert isinstance(hold, Hold), hold
        receipt = await ctx.step("bill", bill, hold)
        assert isinstance(receipt, Receipt), receipt
        again = await ctx.step("maybe", maybe, receipt, max_attempts=1)
        assert isinstance(again, Receipt), again
        both = await ctx.step("listed", listed, receipt, max_attempts=1)
        assert all(isinstance(one, Receipt) for one in both), both
        await ctx.sleep("wait", 1)  # and from the journal all the same
        return receipt

    handle = await harness.start("typed", Order("o-1", 4200))
    assert await harness.finish(handle) == {"number": 7, "lines": ["o-1"]}
    assert seen[0] == Order("o-1", 4200)


async def test_a_failing_step_is_tried_again_with_growing_pauses_and_then_succeeds(harness: Harness) -> None:
    moments: list[int] = []

    def flaky() -> str:
        moments.append(harness.clock.micros)
        if len(moments) < 4:
            raise ConnectionError("not yet")
        return "there"

    @harness.workflow("flaky")
    async def workflow(ctx: Context) -> str:
        return await ctx.step("flaky", flaky, max_attempts=5, backoff=Backoff(jitter=0.0))

    handle = await harness.start("flaky")
    await harness.run_until_idle()
    assert (await handle.status()).waiting_on == "attempt 2 of step 'flaky' until 2026-01-01T09:00:02Z"
    assert await harness.finish(handle) == "there"
    pauses = [(b - a) / 1_000_000 for a, b in pairwise(moments)]
    assert pauses == [2, 4, 8]
    assert [e.payload["attempt"] for e in await entries(handle, "STEP_RETRIED")] == [1, 2, 3]


async def test_a_function_of_the_failed_attempt_decides_the_pauses_of_steps_effects_transactions_and_undos(
    harness: Harness,
) -> None:
    moments: dict[str, list[int]] = {}

    def fails_twice(name: str, error: Exception) -> None:
        seen = moments.setdefault(name, [])
        seen.append(harness.clock.micros)
        if len(seen) < 3:
            raise error

    def step() -> None:
        fails_twice("step", OSError("not yet"))

    def effect() -> None:
        fails_twice("effect", NotApplied("not yet"))

    def transaction(tx: Any) -> None:
        fails_twice("transaction", OSError("not yet"))

    async def on_postgres(tx: Any) -> None:
        transaction(tx)

    def undo() -> None:
        fails_twice("undo", OSError("not yet"))

    def backoff(failed: int) -> timedelta:
        return timedelta(minutes=2 * failed)

    @harness.workflow("paced")
    async def workflow(ctx: Context) -> None:
        await ctx.step("step", step, backoff=backoff, compensate=undo)
        await ctx.effect("effect", effect, backoff=backoff)
        await ctx.transaction("transaction", transaction if "sqlite" in harness.url else on_postgres, backoff=backoff)
        raise ValueError("enough")

    handle = await harness.start("paced")
    await harness.advance(hours=1)
    assert (await handle.status()).compensation == "complete"
    pauses = {name: [(b - a) / 60_000_000 for a, b in pairwise(seen)] for name, seen in moments.items()}
    assert pauses == {"step": [2, 4], "effect": [2, 4], "transaction": [2, 4], "undo": [2, 4]}


async def test_a_backoff_function_that_raises_breaks_nothing_and_is_in_the_log(harness: Harness) -> None:
    moments: list[int] = []

    def flaky() -> str:
        moments.append(harness.clock.micros)
        if len(moments) < 2:
            raise OSError("not yet")
        return "there"

    def backoff(failed: int) -> float:
        raise SystemExit("no")

    @harness.workflow("flaky")
    async def workflow(ctx: Context) -> str:
        return await ctx.step("flaky", flaky, backoff=backoff)

    with capture_logs() as lines:
        handle = await harness.start("flaky")
        assert await harness.finish(handle) == "there"
    assert 1_600_000 <= moments[1] - moments[0] <= 2_000_000
    [line] = [line for line in lines if line["event"] == "backoff_failed"]
    assert (line["step"], line["reason"]) == ("flaky", "backoff raised SystemExit after attempt 1")


async def test_a_step_out_of_attempts_raises_in_the_workflow_and_may_be_handled_there(harness: Harness) -> None:
    def broken() -> None:
        raise ZeroDivisionError("no")

    @harness.workflow("handled")
    async def handled(ctx: Context) -> list[Any]:
        try:
            await ctx.step("broken", broken, max_attempts=2)
        except StepFailed as error:
            return [error.step, error.error_type, error.message, error.attempts]
        return []

    @harness.workflow("not handled")
    async def not_handled(ctx: Context) -> None:
        await ctx.step("broken", broken)

    good, bad = await harness.start("handled"), await harness.start("not handled")
    assert await harness.finish(good) == ["broken", "ZeroDivisionError", "no", 2]
    with pytest.raises(InstanceFailed, match="step 'broken' failed after 3 attempt") as caught:
        await bad.result(timeout=0)
    assert caught.value.status == "failed"
    assert (await bad.status()).error["type"] == "StepFailed"


async def test_only_the_errors_in_retry_on_are_tried_again(harness: Harness) -> None:
    calls: list[str] = []

    def fails(kind: str) -> None:
        calls.append(kind)
        raise ConnectionError() if kind == "network" else ValueError()

    @harness.workflow("picky")
    async def workflow(ctx: Context, kind: str) -> None:
        await ctx.step("fails", fails, kind, retry_on=ConnectionError)

    await harness.start("picky", "network")
    await harness.start("picky", "logic")
    await harness.advance(hours=1)
    assert (calls.count("network"), calls.count("logic")) == (3, 1)


async def test_attempts_survive_a_restart(harness: Harness) -> None:
    attempts: list[int] = []

    def failing(info: StepInfo) -> None:
        attempts.append(info.attempt)
        raise OSError("down")

    @harness.workflow("stubborn")
    async def workflow(ctx: Context) -> None:
        await ctx.step("failing", failing, max_attempts=4, backoff=timedelta(minutes=1))

    handle = await harness.start("stubborn")
    await harness.advance(minutes=1)
    assert attempts == [1, 2]
    async with next_worker(harness) as other:
        await other.advance(hours=1)
        assert attempts == [1, 2, 3, 4]
        assert (await other.instance(handle.id).status()).status == "failed"


async def test_a_step_cut_short_by_a_lost_worker_runs_again_and_finished_ones_do_not(harness: Harness) -> None:
    calls: list[str] = []
    never = asyncio.Event()

    async def first() -> int:
        calls.append("first")
        return 1

    async def second() -> int:
        calls.append("second")
        if calls.count("second") == 1:
            await never.wait()
        return 2

    @harness.workflow("cut")
    async def workflow(ctx: Context) -> int:
        return await ctx.step("first", first) + await ctx.step("second", second)

    handle = await harness.start("cut")
    await until(lambda: "second" in calls, harness)
    async with next_worker(harness) as other:
        assert await other.finish(other.instance(handle.id)) == 3
    assert calls == ["first", "second", "second"]


async def test_a_step_that_takes_too_long_counts_as_failed(harness: Harness) -> None:
    async def sleeper() -> None:
        await asyncio.Event().wait()

    @harness.workflow("slow")
    async def workflow(ctx: Context) -> str:
        try:
            await ctx.step("sleeper", sleeper, timeout=0.01, max_attempts=2)
        except StepFailed as error:
            return error.error_type
        return ""

    handle = await harness.start("slow")
    assert await harness.finish(handle) == "TimeoutError"


async def test_a_sync_step_that_takes_too_long_counts_as_failed_though_its_thread_goes_on(harness: Harness) -> None:
    release = threading.Event()

    @harness.workflow("slow")
    async def workflow(ctx: Context) -> str:
        try:
            await ctx.step("sleeper", release.wait, 30, timeout=timedelta(milliseconds=10), max_attempts=1)
        except StepFailed as error:
            return error.error_type
        return ""

    handle = await harness.start("slow")
    assert await harness.finish(handle) == "TimeoutError"
    release.set()


async def test_a_repeated_name_gets_an_occurrence_number(harness: Harness) -> None:
    @harness.workflow("loop")
    async def workflow(ctx: Context) -> list[int]:
        return [await ctx.step("round", lambda n: n * n, n) for n in range(3)]

    handle = await harness.start("loop")
    assert await harness.finish(handle) == [0, 1, 4]
    assert (await handle.status()).steps == {"round": 0, "round#2": 1, "round#3": 4}


@pytest.mark.parametrize("message", ["caf\udce9.txt", "nul \x00 inside"], ids=["lone surrogate", "nul"])
async def test_an_error_whose_words_are_no_text_still_ends_the_step(harness: Harness, message: str) -> None:
    def broken() -> None:
        raise ValueError(message)

    @harness.workflow("odd words")
    async def workflow(ctx: Context) -> None:
        await ctx.step("broken", broken, max_attempts=1)

    handle = await harness.start("odd words")
    await harness.run_until_idle()
    assert (await handle.status()).status == "failed"


async def test_an_error_that_cannot_say_what_it_is_still_ends_the_step(harness: Harness) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("I have no words")

    def broken() -> None:
        raise Mute

    @harness.workflow("mute")
    async def workflow(ctx: Context) -> None:
        await ctx.step("broken", broken, max_attempts=1)

    handle = await harness.start("mute")
    await harness.run_until_idle()
    assert (await handle.status()).status == "failed"


async def test_a_step_named_like_a_value_or_a_parallel_block_is_an_ordinary_step(harness: Harness) -> None:
    @harness.workflow("names")
    async def workflow(ctx: Context) -> list[Any]:
        ctx.now()
        ctx.random()
        ctx.uuid()
        found = [await ctx.step(name, lambda: 1) for name in ("now", "random", "uuid")]
        await ctx.parallel("both", {"a": lambda: 2})
        return [*found, await ctx.step("both", lambda: 3)]

    handle = await harness.start("names")
    assert await harness.finish(handle) == [1, 1, 1, 3]


async def test_the_result_of_a_parallel_branch_is_not_taken_for_that_of_a_step_of_the_same_name(
    harness: Harness,
) -> None:
    @harness.workflow("names")
    async def workflow(ctx: Context) -> list[Any]:
        [branch] = await ctx.parallel("notify", {"crm": lambda: "branch"})
        own = await ctx.step("notify.crm", lambda: "own")
        keyed = await ctx.step("notify", lambda: "keyed", key="crm")
        await ctx.sleep("pause", 1)
        return [branch, own, keyed]

    handle = await harness.start("names")
    assert await harness.finish(handle) == ["branch", "own", "keyed"]


async def test_ctx_cannot_be_used_inside_a_step(harness: Harness) -> None:
    @harness.workflow("nested")
    async def workflow(ctx: Context) -> None:
        async def inner() -> None:
            await ctx.step("inner", lambda: 1)

        await ctx.step("outer", inner, max_attempts=1)

    handle = await harness.start("nested")
    await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "failed"
    assert "cannot be used inside a step" in view.error["message"]


@pytest.mark.parametrize("first", [False, True], ids=["at once", "after a step"])
async def test_a_workflow_that_loops_for_ever_is_parked_with_the_reason(harness: Harness, first: bool) -> None:
    @harness.workflow("runaway")
    async def workflow(ctx: Context) -> None:
        if first:
            await ctx.step("first", lambda: 1)
        while True:
            await asyncio.sleep(0)

    handle = await harness.start("runaway")
    await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "waiting"
    assert "loop for ever" in str(view.waiting_on)


@pytest.mark.parametrize("place", ["sleep", "wait_for", "to_thread", "open_connection"])
async def test_the_clock_and_the_world_are_refused_in_a_workflow_with_the_call_to_use(
    harness: Harness, place: str
) -> None:
    @harness.workflow("worldly")
    async def workflow(ctx: Context) -> None:
        if place == "sleep":
            await asyncio.sleep(1)
        elif place == "wait_for":
            await asyncio.wait_for(ctx.step("a", lambda: 1), 5)
        elif place == "to_thread":
            await asyncio.to_thread(print)
        else:
            await asyncio.open_connection("127.0.0.1", 9)

    handle = await harness.start("worldly")
    await harness.run_until_idle()
    view = await handle.status()
    assert view.status == "waiting"
    assert "NotInWorkflow: a workflow" in str(view.waiting_on) and "ctx." in str(view.waiting_on)
