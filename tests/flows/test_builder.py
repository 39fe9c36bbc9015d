"""The builder: the same engine, written as a chain of calls."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast import BadDefinition, BuiltBranch, BuiltStep, Context, Holdfast, StepInfo, Workflow, effect, step
from holdfast.testing import FakeProvider, Harness
from tests.flows.support import entries, query, types


async def test_every_part_of_a_built_workflow_runs_in_its_place(harness: Harness, provider: FakeProvider) -> None:
    query(harness.url, "create table books (id text primary key)")
    polls: list[int] = []

    @harness.workflow("make-invoice")
    async def invoice(ctx: Context, given: dict[str, Any]) -> str:
        return f"invoice for {given['id']}"

    def reserve(info: StepInfo) -> dict[str, Any]:
        return {"held": info.input["id"]}

    def pay(info: StepInfo) -> Any:
        return provider.call(info.idempotency_key, info.results["reserve"])

    async def push_crm(info: StepInfo) -> str:
        return "pushed"

    def send_mail(info: StepInfo) -> str:
        return f"mailed {info.results['pay']['id']}"

    def book_sqlite(tx: Any, info: StepInfo) -> str:
        tx.execute("insert into books values (?)", (info.input["id"],))
        return "booked"

    async def book_postgres(tx: Any, info: StepInfo) -> str:
        await tx.execute("insert into books values ($1)", info.input["id"])
        return "booked"

    def poll() -> int:
        polls.append(1)
        return len(polls)

    order = (
        Workflow("order")
        .step("reserve", reserve)
        .effect("pay", pay, mode="lookup", lookup=provider.find)
        .transaction("book", book_sqlite if harness.url.startswith("sqlite") else book_postgres)
        .parallel("notify", {"crm": push_crm, "mail": effect(send_mail, mode="manual")})
        .route(
            "risk",
            choose=lambda info: "high" if info.input["amount_minor"] > 1000 else "low",
            routes={"high": Workflow("review").step("review", lambda info: info.results["book"]), "low": None},
        )
        .loop("poll", poll, until=lambda info: info.result >= 3, every=timedelta(seconds=5), max_rounds=10)
        .sleep("cooldown", timedelta(hours=1))
        .wait_for_signal("approved", timeout=timedelta(days=2))
        .child("invoice", "make-invoice")
    )
    harness.register(order)
    handle = await harness.start("order", {"id": "o-1", "amount_minor": 4200})
    await harness.advance(hours=2)
    await handle.signal("approved", {"by": "ann"})
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == {
        "reserve": {"held": "o-1"},
        "pay": {"id": "prov-1", "request": {"held": "o-1"}},
        "book": "booked",
        "notify": {"crm": "pushed", "mail": "mailed prov-1"},
        "risk": {"route": "high", "results": {"review": "booked"}},
        "poll": 3,
        "cooldown": None,
        "approved": {"by": "ann"},
        "invoice": "invoice for o-1",
    }
    assert query(harness.url, "select id from books") == [("o-1",)]


async def test_a_built_workflow_compensates_like_any_other(harness: Harness) -> None:
    undone: list[Any] = []

    def fails(info: StepInfo) -> None:
        raise RuntimeError("sold out")

    def release(info: StepInfo) -> None:
        undone.append(("release", info.result, info.input))

    async def refund(anything: Any) -> None:
        undone.append(("refund", anything.result))

    harness.register(
        Workflow("order")
        .step("reserve", lambda: 1, compensate=release)
        .effect("pay", lambda info: 2, compensate=refund)
        .step("ship", fails, max_attempts=1)
    )
    handle = await harness.start("order", "o-1")
    await harness.run_until_idle()
    assert undone == [("refund", 2), ("release", 1, "o-1")]
    assert (await handle.status()).compensation == "complete"


async def test_the_way_not_taken_does_nothing(harness: Harness) -> None:
    harness.register(
        Workflow("order").route("risk", choose=lambda info: info.input, routes={"high": Workflow("x"), "low": None})
    )
    low, odd = await harness.start("order", "low"), await harness.start("order", "sideways")
    await harness.run_until_idle()
    assert await low.result(timeout=0) == {"risk": {"route": "low", "results": {}}}
    assert "'sideways' was chosen, expected one of high, low" in str((await odd.status()).waiting_on)


async def test_a_loop_that_is_never_done_fails_after_its_rounds(harness: Harness) -> None:
    rounds: list[int] = []
    harness.register(
        Workflow("poll").loop("poll", lambda: rounds.append(1), until=lambda info: False, every=1, max_rounds=3)
    )
    handle = await harness.start("poll")
    await harness.advance(minutes=1)
    assert len(rounds) == 3
    assert (await handle.status()).error["message"] == "loop 'poll' was not done after 3 rounds"


async def test_a_childs_input_may_be_made_from_the_results_so_far(harness: Harness) -> None:
    @harness.workflow("echo")
    async def echo(ctx: Context, given: Any) -> Any:
        return given

    harness.register(
        Workflow("order").step("a", lambda: 1).child("b", "echo", input=lambda info: [info.input, info.results["a"]])
    )
    handle = await harness.start("order", "x")
    await harness.run_until_idle()
    assert (await handle.result(timeout=0))["b"] == ["x", 1]


async def test_a_transaction_handler_that_only_wants_the_transaction_gets_just_that(harness: Harness) -> None:
    if harness.url.startswith("sqlite"):

        def book(tx: Any) -> list[str]:
            return [kind.__name__ for kind in type(tx).__mro__]
    else:

        async def book(tx: Any) -> list[str]:  # type: ignore[misc]
            return [kind.__name__ for kind in type(tx).__mro__]

    harness.register(Workflow("order").transaction("book", book, max_attempts=1))
    handle = await harness.start("order")
    await harness.run_until_idle()
    assert "Connection" in (await handle.result(timeout=0))["book"]


async def test_the_results_a_handler_sees_are_its_own_copy(harness: Harness) -> None:
    def meddle(info: StepInfo) -> list[str]:
        seen = sorted(info.results)
        info.results.clear()
        return seen

    harness.register(Workflow("order").step("a", lambda: 1).step("b", meddle).step("c", meddle))
    handle = await harness.start("order")
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == {"a": 1, "b": ["a"], "c": ["a", "b"]}


def test_a_built_workflow_registered_twice_or_with_an_odd_version_is_refused() -> None:
    app = Holdfast("sqlite:///not-opened.db")
    app.register(Workflow("order").step("a", lambda: 1))
    with pytest.raises(BadDefinition, match="registered twice"):
        app.register(Workflow("order"))
    for version in (0, -1, "2", True):
        with pytest.raises(BadDefinition, match="expected a whole number from 1 on"):
            app.register(Workflow("other"), version=version)  # type: ignore[arg-type]


async def test_a_route_and_a_loop_have_the_same_history_written_as_a_chain_and_as_a_function(harness: Harness) -> None:
    rounds: list[str] = []

    def by_amount(info: StepInfo) -> str:
        return "high" if info.input > 1000 else "low"

    def poll(instance: StepInfo) -> int:
        rounds.append(instance.workflow)
        return rounds.count(instance.workflow)

    harness.register(
        Workflow("built")
        .route("risk", choose=lambda info: "high", routes={"high": effect(lambda info: "reviewed"), "low": None})
        .loop("poll", poll, until=lambda info: info.result == 3, every=5)
    )

    @harness.workflow("written")
    async def written(ctx: Context, amount: int) -> dict[str, Any]:
        risk = await ctx.route("risk", lambda: "high", {"high": effect(lambda: "reviewed"), "low": None})
        return {"risk": risk, "poll": await ctx.loop("poll", poll, until=lambda result: result == 3, every=5)}

    built, code = await harness.start("built", 4200), await harness.start("written", 4200)
    await harness.advance(minutes=1)
    assert await built.result(timeout=0) == {"risk": {"route": "high", "results": {"high": "reviewed"}}, "poll": 3}
    assert await code.result(timeout=0) == {"risk": "reviewed", "poll": 3}
    names = [[(entry.type, entry.name) for entry in await handle.history()][1:-1] for handle in (built, code)]
    assert names[0] == names[1]
    assert ("EFFECT_SUCCEEDED", "risk.high") in names[0] and ("TIMER_FIRED", "poll.every#2") in names[0]


async def test_a_written_route_does_nothing_on_an_empty_way_and_is_parked_on_one_it_does_not_have(
    harness: Harness,
) -> None:
    @harness.workflow("written")
    async def written(ctx: Context, way: str) -> Any:
        return await ctx.route("risk", (str, way), {"high": (len, way), "low": None})

    high, low = await harness.start("written", "high"), await harness.start("written", "low")
    odd = await harness.start("written", "sideways")
    await harness.run_until_idle()
    assert (await high.result(timeout=0), await low.result(timeout=0)) == (4, None)
    assert "'sideways' was chosen, expected one of high, low" in str((await odd.status()).waiting_on)


async def test_a_written_loop_that_is_never_done_fails_after_its_rounds(harness: Harness) -> None:
    @harness.workflow("written")
    async def written(ctx: Context) -> None:
        await ctx.loop("poll", lambda: 1, until=lambda result: False, every=1, max_rounds=3)

    handle = await harness.start("written")
    await harness.advance(minutes=1)
    assert (await handle.status()).error["message"] == "loop 'poll' was not done after 3 rounds"
    assert (await types(handle)).count("STEP_COMPLETED") == 3


async def test_branches_routes_and_loops_take_retries_time_outs_and_compensations(harness: Harness) -> None:
    undone: list[str] = []
    attempts: list[str] = []

    def undo(info: StepInfo) -> None:
        undone.append(info.step)

    def fails(info: StepInfo) -> None:
        attempts.append(info.step)
        raise RuntimeError("down")

    def once(handler: Any) -> Any:
        return step(handler, max_attempts=1, compensate=undo)

    harness.register(
        Workflow("order")
        .parallel("notify", {"crm": once(lambda info: 1), "mail": effect(lambda info: 2, compensate=undo)})
        .route("risk", choose=once(lambda info: "high"), routes={"high": once(lambda info: 3)})
        .loop("poll", once(lambda info: 4), until=lambda info: True)
        .parallel("last", {"a": step(fails, max_attempts=2, backoff=lambda failed: 0)})
    )

    @harness.workflow("written")
    async def written(ctx: Context) -> None:
        await ctx.parallel("notify", {"crm": step(int, "1", max_attempts=1, compensate=undo)})
        await ctx.parallel("last", {"a": step(fails, max_attempts=2, backoff=lambda failed: 0)})

    handle = await harness.start("order")
    await harness.advance(minutes=1)
    assert undone == ["poll", "risk.high", "risk", "notify.mail", "notify.crm"]
    assert attempts == ["last.a", "last.a"]
    assert (await handle.status()).compensation == "complete"
    other = await harness.start("written")
    await harness.advance(minutes=1)
    assert (undone[5:], attempts[2:]) == (["notify.crm"], ["last.a", "last.a"])
    assert [e.payload["attempt"] for e in await entries(other, "STEP_FAILED")] == [2]


def test_the_options_of_a_branch_are_refused_where_they_are_declared() -> None:
    def work(info: StepInfo) -> None: ...

    for wrong in (step(work, max_attempts=0), effect(work, mode="lookup"), step(work, timeout=-1), step(5)):  # type: ignore[arg-type]
        with pytest.raises(BadDefinition):
            Workflow("order").parallel("notify", {"crm": wrong})
        with pytest.raises(BadDefinition):
            Workflow("order").route("risk", choose=lambda: "a", routes={"a": wrong})
        with pytest.raises(BadDefinition):
            Workflow("order").loop("poll", wrong, until=lambda info: True)
    with pytest.raises(BadDefinition, match="takes a StepInfo and nothing else"):
        Workflow("order").parallel("notify", {"crm": step(work, 5)})


def test_a_built_workflow_says_what_it_is_made_of() -> None:
    order = (
        Workflow("order")
        .step("reserve", lambda: 1)
        .parallel("notify", {"crm": lambda: 1, "mail": effect(lambda: 2)})
        .route("risk", choose=lambda: "high", routes={"high": Workflow("x").transaction("book", print), "low": None})
    )
    assert order.steps == (
        BuiltStep("reserve", "step"),
        BuiltStep(
            "notify", "parallel",
            (BuiltBranch("crm", (BuiltStep("crm", "step"),)), BuiltBranch("mail", (BuiltStep("mail", "effect"),))),
        ),
        BuiltStep("risk", "route", (BuiltBranch("high", (BuiltStep("book", "transaction"),)), BuiltBranch("low"))),
    )  # fmt: skip
