"""The scenario set, charts: people, timers, retries, each kind of task, children both ways, cancel."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast import Context, Holdfast, InstanceEnded, TaskInfo, TaskNotOpen
from holdfast.testing import Harness
from tests.crash.scenarios import SCENARIOS, Scenario, World, end, scenario, settle, start, unless_ended

PAY: dict[str, Any] = {
    "id": "pay-chart",
    "context": {"amount": {"@expr": "event.input.amount"}, "asked": 0},
    "initial": "review",
    "output": {"amount": {"@expr": "context.amount"}, "asked": {"@expr": "context.asked"}},
    "states": {
        "review": {
            "entry": {
                "type": "createTask",
                "params": {"type": "HUMAN", "name": "approve", "groups": ["staff"], "completion_event": "decided"},
            },
            "on": {
                "ask": {"actions": {"type": "assign", "assign": {"asked": {"@expr": "context.asked + 1"}}}},
                "decided": [{"guard": {"@expr": "event.output.ok"}, "target": "paying"}, {"target": "refused"}],
            },
            "after": {"P9D": "refused"},
        },
        "paying": {
            "invoke": {
                "src": {"task": {"type": "SYSTEM", "name": "pay", "max_attempts": 20}},
                "input": {"@expr": "context.amount"},
                "onDone": "paid",
                "onError": "refused",
            }
        },
        "paid": {"type": "final"},
        "refused": {"type": "final"},
    },
}


def build_pay(mode: str) -> Callable[[Holdfast, World, str], None]:
    def build(hf: Holdfast, world: World, dialect: str) -> None:
        options: dict[str, Any] = {"lookup": world.provider.find} if mode == "lookup" else {}

        @hf.task_handler("SYSTEM", "pay", kind="effect", mode=mode, **options)  # type: ignore[arg-type]
        def pay(amount: int, info: TaskInfo) -> Any:
            return world.provider.call(info.idempotency_key, amount)

    return build


async def approve(test: Harness, world: World, output: Any) -> None:
    """The person's part, told again as often as it takes."""
    await test.run_until_idle()
    tasks = test.tenant(world.tenant).tasks
    for task in await tasks.list(type="HUMAN"):
        try:
            await tasks.complete(task.id, output, actor="ann")
        except TaskNotOpen:
            assert (await tasks.show(task.id)).completed_by == "ann"


def add_pay_scenarios() -> None:
    for mode, plan in (("keyed", ("timeout_after",)), ("manual", ("timeout_after",))):

        async def play(test: Harness, world: World, plan: tuple[str, ...] = plan, mode: str = mode) -> None:
            if "planned" not in world.failures:
                world.failures["planned"] = 0
                world.provider.plan(*plan)
            await test.publish(PAY, tenant=world.tenant)
            handle = await start(test, world, "pay-chart", {"amount": 5})
            try:
                await handle.send("ask", {"n": 1}, id="a1")
                await handle.send("ask", {"n": 2}, id="a2")
            except InstanceEnded:
                pass
            await approve(test, world, {"ok": True})
            if mode == "manual":
                await settle(test, world)
            await end(test)

        SCENARIOS.append(Scenario(f"chart effect {mode} {plan[0]}", build_pay(mode), play))


add_pay_scenarios()


def build_busy(hf: Holdfast, world: World, dialect: str) -> None:
    table = "busy_" + world.tenant.replace("-", "_")
    create = f"create table if not exists {table} (n integer)"

    if dialect == "postgres":

        @hf.task_handler("SYSTEM", "book", kind="transaction")
        async def book(tx: Any, n: int) -> int:
            await tx.execute(create)
            await tx.execute(f"insert into {table} values ($1)", n)
            return int(await tx.fetchval(f"select count(*) from {table}"))
    else:

        @hf.task_handler("SYSTEM", "book", kind="transaction")
        def book_here(tx: Any, n: int) -> int:
            tx.execute(create)
            tx.execute(f"insert into {table} values (?)", (n,))
            return int(tx.execute(f"select count(*) from {table}").fetchone()[0])

    @hf.task_handler("SYSTEM", "flaky", thread=False)
    def flaky(given: Any) -> str:
        world.did("flaky")
        world.fail_first("flaky", 1)
        return "there"

    @hf.workflow("twice")
    async def twice(ctx: Context, n: int) -> int:
        return await ctx.step("twice", lambda: n * 2, thread=False)

    @hf.workflow("outer")
    async def outer(ctx: Context) -> Any:
        return await ctx.child("kid", "busy-chart", 4)


BUSY: dict[str, Any] = {
    "id": "busy-chart",
    "type": "parallel",
    "context": {"n": {"@expr": "event.input"}, "rows": 0, "twice": 0, "late": False, "word": ""},
    "output": {"@expr": "context"},
    "states": {
        "work": {
            "initial": "book",
            "states": {
                "book": {
                    "invoke": {
                        "src": "book",
                        "input": {"@expr": "context.n"},
                        "onDone": {
                            "target": "double",
                            "actions": {"type": "assign", "assign": {"rows": {"@expr": "event.output"}}},
                        },
                        "onError": "bad",
                    }
                },
                "double": {
                    "invoke": {
                        "src": {"workflow": "twice"},
                        "input": {"@expr": "context.n"},
                        "onDone": {
                            "target": "try",
                            "actions": {"type": "assign", "assign": {"twice": {"@expr": "event.output"}}},
                        },
                        "onError": "bad",
                    }
                },
                "try": {
                    "entry": {
                        "type": "createTask",
                        "params": {"type": "SYSTEM", "name": "flaky", "max_attempts": 20, "completion_event": "got"},
                    },
                    "on": {
                        "got": {
                            "target": "good",
                            "actions": {"type": "assign", "assign": {"word": {"@expr": "event.output"}}},
                        }
                    },
                },
                "good": {"type": "final"},
                "bad": {"type": "final"},
            },
        },
        "clock": {
            "initial": "early",
            "states": {
                "early": {
                    "entry": {
                        "type": "createTask",
                        "params": {"type": "TIMER", "name": "bell", "delay": "PT2H", "completion_event": "rang"},
                    },
                    "on": {"rang": "late"},
                },
                "late": {
                    "entry": {"type": "raise", "event": "ding", "delay": "PT30M"},
                    "after": {"PT1H": {"target": "over", "guard": {"@expr": "context.late"}}},
                    "on": {"ding": {"actions": {"type": "assign", "assign": {"late": True}}}},
                },
                "over": {"type": "final"},
            },
        },
    },
}


@scenario("chart of all kinds, as a child of code", build_busy)
async def play_busy(test: Harness, world: World) -> None:
    await test.publish(BUSY, tenant=world.tenant)
    await start(test, world, "outer")
    await end(test, timedelta(hours=9))


@scenario("chart cancel", build_pay("manual"))
async def play_cancel(test: Harness, world: World) -> None:
    await test.publish(PAY, tenant=world.tenant)
    handle = await start(test, world, "pay-chart", {"amount": 5})
    await test.run_until_idle()
    try:
        await handle.cancel("customer withdrew", actor="ann")
    except InstanceEnded:
        assert (await handle.status()).status == "cancelled"
    await end(test)


@scenario("chart pause, answered meanwhile", build_pay("keyed"))
async def play_chart_pause(test: Harness, world: World) -> None:
    await test.publish(PAY, tenant=world.tenant)
    handle = await start(test, world, "pay-chart", {"amount": 5})
    await unless_ended(handle.pause("audit", actor="ann"))  # before it has begun
    await test.run_until_idle()
    await unless_ended(handle.resume("go", actor="ann"))
    await test.run_until_idle()
    await unless_ended(handle.pause("audit", actor="ann"))
    await test.run_until_idle()
    await unless_ended(handle.send("ask", id="evt-1"))
    await approve(test, world, {"ok": True})
    await test.advance(hours=2)
    found = await handle.status()
    assert found.completed_at or str(found.waiting_on).startswith("paused by ann")
    await unless_ended(handle.resume("done", actor="ann"))
    await end(test)
