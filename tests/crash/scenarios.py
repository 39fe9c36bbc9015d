"""The scenario set: small stories that touch every kind of step, told so that any part of them can be told again.

A scenario is played against a harness by a driver that may fail at any call. Starts carry business keys and signals
carry ids, as a careful caller's would, so the driver simply plays again from the beginning until it gets through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from holdfast import Context, Holdfast, InstanceEnded, StepInfo, Workflow, effect
from holdfast.testing import FakeProvider, Harness

Play = Callable[[Harness, "World"], Awaitable[None]]


class World:
    """Everything outside the engine: what steps did, and the provider."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.runs: list[str] = []
        self.provider = FakeProvider()
        self.failures: dict[str, int] = {}

    def did(self, what: str) -> None:
        self.runs.append(what)

    def fail_first(self, what: str, times: int) -> None:
        """The outside fails at first. It forgets nothing when our process dies."""
        left = self.failures.setdefault(what, times)
        if left > 0:
            self.failures[what] = left - 1
            raise ConnectionError(f"{what} is not there yet")


class Scenario:
    def __init__(self, name: str, build: Callable[[Holdfast, World, str], None], play: Play) -> None:
        self.name = name
        self.build = build
        self.play = play

    def app(self, world: World, dialect: str) -> Holdfast:
        hf = Holdfast("sqlite:///unused.db")
        self.build(hf, world, dialect)
        return hf


SCENARIOS: list[Scenario] = []


def scenario(name: str, build: Callable[[Holdfast, World, str], None]) -> Callable[[Play], Play]:
    def add(play: Play) -> Play:
        SCENARIOS.append(Scenario(name, build, play))
        return play

    return add


async def start(test: Harness, world: World, workflow: str, given: Any = None, key: str = "one") -> Any:
    return await test.start(workflow, given, business_key=key, tenant=world.tenant)


async def end(test: Harness, span: timedelta = timedelta(days=1)) -> None:
    await test.advance(span)


# -- sequence, retry, parallel, loop, sleep


def build_sequence(hf: Holdfast, world: World, dialect: str) -> None:
    async def work(n: int) -> int:
        world.did(f"work{n}")
        return n + 1

    @hf.workflow("sequence")
    async def sequence(ctx: Context, n: int) -> dict:
        for _ in range(3):
            n = await ctx.step("work", work, n)
        return {"n": n, "lucky": ctx.random(), "id": str(ctx.uuid())} | {"at": ctx.now().year}


@scenario("sequence", build_sequence)
async def play_sequence(test: Harness, world: World) -> None:
    await start(test, world, "sequence", 1)
    await end(test)


@scenario("sequence claimed from birth", build_sequence)
async def play_claimed_from_birth(test: Harness, world: World) -> None:
    """Two starts whose claims come with them, as with a worker in the starter's own process."""
    worker = test.test_worker
    assert worker is not None
    await test.run_until_idle()  # a worker that has just found nothing to claim
    worker.claims_starts = True
    await start(test, world, "sequence", 1)
    await start(test, world, "sequence", 2, key="two")
    await end(test)


def build_retry(hf: Holdfast, world: World, dialect: str) -> None:
    def flaky() -> str:
        world.did("flaky")
        world.fail_first("flaky", 2)
        return "there"

    def never() -> str:
        raise ValueError("never")

    @hf.workflow("retry")
    async def retry(ctx: Context) -> str:
        found = await ctx.step("flaky", flaky, max_attempts=20)
        try:
            await ctx.step("never", never, max_attempts=2, thread=False)
        except Exception as error:
            return f"{found}, then {type(error).__name__}"
        return "wrong"


@scenario("retry", build_retry)
async def play_retry(test: Harness, world: World) -> None:
    await start(test, world, "retry")
    await end(test)


def build_parallel(hf: Holdfast, world: World, dialect: str) -> None:
    import asyncio

    async def branch(name: str) -> str:
        world.did(name)
        return name.upper()

    @hf.workflow("parallel")
    async def parallel(ctx: Context) -> list:
        first = await ctx.parallel("fan", {"a": (branch, "a"), "b": (branch, "b"), "c": (branch, "c")})

        async def chain(name: str) -> str:
            one = await ctx.step("one", branch, name + "1", key=name)
            await ctx.sleep("nap", timedelta(seconds=5), key=name)
            return one + await ctx.step("two", branch, name + "2", key=name)

        return [*first, *await asyncio.gather(chain("x"), chain("y"))]


@scenario("parallel", build_parallel)
async def play_parallel(test: Harness, world: World) -> None:
    await start(test, world, "parallel")
    await end(test)


def build_loop(hf: Holdfast, world: World, dialect: str) -> None:
    def poll(info: StepInfo) -> int:
        world.did("poll")
        return len(info.results) and info.results.get("poll", 0) + 1

    def choose(info: StepInfo) -> str:
        return "high" if info.input["amount"] > 10 else "low"

    def note(info: StepInfo) -> str:
        world.did("note")
        return "noted"

    hf.register(
        Workflow("loop")
        .step("first", note)
        .loop("poll", poll, until=lambda info: info.result >= 3, every=timedelta(seconds=5), max_rounds=10)
        .route("risk", choose=choose, routes={"high": Workflow("review").step("note", note), "low": None})
        .sleep("cooldown", timedelta(hours=1))
    )


@scenario("builder with loop and route", build_loop)
async def play_loop(test: Harness, world: World) -> None:
    await start(test, world, "loop", {"amount": 20})
    await end(test)


def build_sleep(hf: Holdfast, world: World, dialect: str) -> None:
    @hf.workflow("sleep")
    async def sleep(ctx: Context) -> str:
        await ctx.sleep("long", timedelta(hours=2))
        await ctx.sleep("long", timedelta(hours=1))
        return "rested"


@scenario("sleep", build_sleep)
async def play_sleep(test: Harness, world: World) -> None:
    await start(test, world, "sleep")
    await end(test)


# -- signals and children


def build_signal(hf: Holdfast, world: World, dialect: str) -> None:
    def note(words: Any) -> Any:
        world.did("note")
        return words

    @hf.workflow("signal")
    async def signal(ctx: Context) -> list:
        early = await ctx.wait_for_signal("early")
        await ctx.step("note", note, early, thread=False)
        late = await ctx.wait_for_signal("late", timeout=timedelta(hours=10))
        never = await ctx.wait_for_signal("never", timeout=timedelta(minutes=5))
        return [early, late, never]


@scenario("signal before and after the wait", build_signal)
async def play_signal(test: Harness, world: World) -> None:
    handle = await start(test, world, "signal")
    try:
        await handle.signal("early", {"n": 1}, id="e1")
        await test.run_until_idle()
        await handle.signal("late", {"n": 2}, id="e2")
    except InstanceEnded:
        assert (await handle.status()).status == "completed"
    await end(test)


def build_child(hf: Holdfast, world: World, dialect: str) -> None:
    def make(n: int) -> int:
        world.did(f"make{n}")
        return n * 10

    @hf.workflow("grandchild")
    async def grandchild(ctx: Context, n: int) -> int:
        return await ctx.step("make", make, n, thread=False)

    @hf.workflow("child")
    async def child(ctx: Context, n: int) -> int:
        if n == 13:
            raise ValueError("unlucky")
        return await ctx.child("below", "grandchild", n)

    @hf.workflow("parent")
    async def parent(ctx: Context) -> list:
        found = [await ctx.child("one", "child", 1), await ctx.child("two", "child", 2)]
        try:
            await ctx.child("bad", "child", 13)
        except Exception as error:
            found.append(type(error).__name__)
        return found


@scenario("child", build_child)
async def play_child(test: Harness, world: World) -> None:
    await start(test, world, "parent")
    await end(test)


# -- saga and cancel


def build_saga(hf: Holdfast, world: World, dialect: str) -> None:
    async def take(what: str) -> str:
        world.did(f"take {what}")
        return what

    async def give_back(what: str) -> None:
        world.did(f"give back {what}")
        if what == "hotel":
            raise ValueError("the hotel keeps it")

    def fail() -> None:
        raise ValueError("no")

    @hf.workflow("saga")
    async def saga(ctx: Context, how: str) -> None:
        await ctx.step("car", take, "car", compensate=give_back)
        await ctx.step("hotel", take, "hotel", compensate=give_back, max_attempts=2)
        await ctx.effect("flight", pay_for(world), "flight", mode="manual", compensate=give_back_flight(world))
        if how == "fail":
            await ctx.step("fail", fail, max_attempts=1, thread=False)
        await ctx.sleep("travel", timedelta(days=3))


def pay_for(world: World) -> Callable[..., Any]:
    def pay(what: str, info: StepInfo) -> Any:
        return world.provider.call(info.idempotency_key, what)

    return pay


def give_back_flight(world: World) -> Callable[..., Any]:
    def undo(receipt: Any) -> None:
        world.did("give back flight")

    return undo


@scenario("saga", build_saga)
async def play_saga(test: Harness, world: World) -> None:
    await start(test, world, "saga", "fail")
    await settle(test, world)
    await end(test)


@scenario("cancel", build_saga)
async def play_cancel(test: Harness, world: World) -> None:
    handle = await start(test, world, "saga", "wait")
    await settle(test, world)
    try:
        await handle.cancel("customer withdrew", actor="ann")
    except InstanceEnded:
        assert (await handle.status()).status == "cancelled"
    await settle(test, world)
    await end(test)


# -- each effect mode


def build_effect(mode: str) -> Callable[[Holdfast, World, str], None]:
    def build(hf: Holdfast, world: World, dialect: str) -> None:
        options: dict[str, Any] = {"lookup": world.provider.find} if mode == "lookup" else {}

        @hf.workflow("pay")
        async def pay(ctx: Context) -> Any:
            paid = await ctx.effect("pay", pay_for(world), "goods", mode=mode, max_attempts=20, **options)
            both = await ctx.parallel("tell", {"mail": effect(pay_for(world), "mail", mode=mode, **options)})
            return [paid["request"], both[0]["request"]]

    return build


async def settle(test: Harness, world: World) -> None:
    """The operator's part: look at the provider, then say what became of each unknown effect."""
    await test.run_until_idle()
    for _ in range(4):
        desk = test.tenant(world.tenant).effects
        unknown = [e for e in await desk.list() if e.state == "outcome_unknown" and e.mode == "manual"]
        if not unknown:
            return
        for one in unknown:
            await test.advance(minutes=2)  # past not_after, time-out and grace
            found = world.provider.find(one.idempotency_key)
            if found is not None:
                await desk.resolve(one.id, "happened", actor="ann", reason="seen at the provider", result=found)
            else:
                await desk.resolve(one.id, "did_not_happen", actor="ann", reason="not there", accept_double=False)
        await test.run_until_idle()


def add_effect_scenarios() -> None:
    for mode in ("keyed", "lookup", "manual"):
        for plan in ((), ("timeout_after",), ("timeout_before",), ("not_applied",)):

            async def play(test: Harness, world: World, plan: tuple[str, ...] = plan, mode: str = mode) -> None:
                if "planned" not in world.failures:
                    world.failures["planned"] = 0
                    world.provider.plan(*plan)
                await start(test, world, "pay")
                if mode == "manual":
                    await settle(test, world)
                await end(test)

            SCENARIOS.append(Scenario(f"effect {mode} {plan[0] if plan else 'ok'}", build_effect(mode), play))


add_effect_scenarios()


def build_transaction(hf: Holdfast, world: World, dialect: str) -> None:
    table = "ledger_" + world.tenant.replace("-", "_")
    create = f"create table if not exists {table} (n integer)"

    def book_sqlite(tx: Any, n: int) -> int:
        tx.execute(create)
        tx.execute(f"insert into {table} values (?)", (n,))
        return tx.execute(f"select count(*) from {table}").fetchone()[0]

    async def book_postgres(tx: Any, n: int) -> int:
        await tx.execute(create)
        await tx.execute(f"insert into {table} values ($1)", n)
        return await tx.fetchval(f"select count(*) from {table}")

    book = book_postgres if dialect == "postgres" else book_sqlite

    @hf.workflow("transaction")
    async def transaction(ctx: Context) -> list:
        # The count each transaction sees tells whether an earlier one was booked twice or not at all.
        return [await ctx.transaction("book", book, n) for n in range(3)]


@scenario("transaction", build_transaction)
async def play_transaction(test: Harness, world: World) -> None:
    await start(test, world, "transaction")
    await end(test)


# -- pause, retry, fork


async def unless_ended(asked: Awaitable[Any]) -> None:
    """Told again after a crash, it may have ended meanwhile."""
    try:
        await asked
    except InstanceEnded:
        pass


def build_pause(hf: Holdfast, world: World, dialect: str) -> None:
    async def work(name: str) -> str:
        world.did(name)
        return name

    def flaky() -> str:
        world.did("flaky")
        world.fail_first("flaky", 1)
        return "there"

    def pay(info: StepInfo) -> Any:
        return world.provider.call(info.idempotency_key)

    @hf.workflow("paused")
    async def paused(ctx: Context) -> list:
        before = await ctx.step("before", work, "before")
        said = await ctx.wait_for_signal("go")
        await ctx.effect("pay", pay, mode="keyed", thread=False)
        await ctx.sleep("nap", timedelta(hours=1))
        return [before, said, await ctx.step("flaky", flaky, max_attempts=20, backoff=timedelta(days=200))]


@scenario("pause, resume, retry", build_pause)
async def play_pause(test: Harness, world: World) -> None:
    handle = await start(test, world, "paused")
    await test.run_until_idle()
    await unless_ended(handle.pause("audit", actor="ann"))
    await test.run_until_idle()
    await unless_ended(handle.signal("go", "now", id="evt-1"))
    await test.advance(hours=2)
    assert (await handle.status()).completed_at or str((await handle.status()).waiting_on).startswith("paused by ann")
    await unless_ended(handle.resume("done", actor="ann"))
    await test.advance(hours=2)
    for _ in range(3):  # the wait of the flaky step is longer than anybody here has time
        await unless_ended(handle.retry("it is back", actor="ann"))
        await test.run_until_idle()


def build_fork(hf: Holdfast, world: World, dialect: str) -> None:
    async def work(name: str) -> str:
        world.did(name)
        return name

    async def ship(info: StepInfo) -> str:
        world.did("ship")
        if info.instance_id == getattr(world, "original", ""):
            raise ConnectionError("the courier is away")
        return "shipped"

    def pay(info: StepInfo) -> Any:
        return world.provider.call(info.idempotency_key)

    @hf.workflow("kid")
    async def kid(ctx: Context, given: Any) -> str:
        return await ctx.step("inner", work, "inner")

    @hf.workflow("forked")
    async def forked(ctx: Context) -> list:
        before = await ctx.step("before", work, "before")
        await ctx.effect("pay", pay, mode="keyed", thread=False)
        inner = await ctx.child("kid", "kid")
        return [before, inner, await ctx.step("ship", ship, max_attempts=1)]


@scenario("fork of a failed instance", build_fork)
async def play_fork(test: Harness, world: World) -> None:
    handle = await start(test, world, "forked")
    world.original = handle.id  # type: ignore[attr-defined]
    await end(test)
    again = await handle.retry("the courier is back", actor="ann")
    named = await handle.fork("kid", id="req-1", business_key="again", reason="and once more", actor="ann")
    assert again.id != named.id
    await end(test)


# -- restart


def build_restart(hf: Holdfast, world: World, dialect: str) -> None:
    async def work(n: int) -> int:
        world.did(f"work{n}")
        return n

    def pay(info: StepInfo) -> Any:
        return world.provider.call(info.idempotency_key)

    @hf.workflow("part")
    async def part(ctx: Context, n: int) -> int:
        return n * 10

    @hf.workflow("subscription")
    async def subscription(ctx: Context, given: dict) -> list:
        """An effect, a child, a timer and a signal in every epoch; the second signal comes while the first runs."""
        n = await ctx.step("work", work, given["n"])
        await ctx.effect("pay", pay, mode="keyed", thread=False)
        child = await ctx.child("part", "part", n)
        await ctx.sleep("month", timedelta(hours=1))
        said = [*given["said"], child, await ctx.wait_for_signal("go")]
        if n < 2:
            ctx.restart({"n": n + 1, "said": said})
        return [ctx.epoch, *said]


@scenario("restart", build_restart)
async def play_restart(test: Harness, world: World) -> None:
    handle = await start(test, world, "subscription", {"n": 0, "said": []})
    await unless_ended(handle.signal("go", "a", id="evt-a"))
    await unless_ended(handle.signal("go", "b", id="evt-b"))
    await test.advance(hours=2)
    await unless_ended(handle.signal("go", "c", id="evt-c"))
    await test.advance(hours=2)
