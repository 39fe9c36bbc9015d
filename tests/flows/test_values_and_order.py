"""Journaled values, concurrency in committed order, and journals that the code contradicts."""

import asyncio
from datetime import timedelta
from typing import Any

from holdfast import Context, Holdfast
from holdfast.testing import Harness
from tests.flows.support import entries, next_worker, types, until


async def test_now_random_and_uuid_are_the_same_in_every_replay(harness: Harness) -> None:
    seen: list[list[Any]] = []

    @harness.workflow("values")
    async def workflow(ctx: Context) -> list[Any]:
        values = [ctx.now().isoformat(), ctx.random(), str(ctx.uuid()), ctx.random()]
        seen.append(values)
        await ctx.sleep("one", 60)
        values.append(ctx.now().isoformat())
        await ctx.sleep("two", 60)
        return values

    handle = await harness.start("values")
    result = await harness.finish(handle)
    assert len(seen) == 3
    assert [values[:4] for values in seen] == [result[:4]] * 3
    assert result[1] != result[3]
    assert result[4] == "2026-01-01T09:01:00+00:00"
    assert (await types(handle)).count("VALUE_RECORDED") == 5


async def test_a_value_handed_to_a_step_is_the_same_when_the_step_runs_again_after_a_crash(harness: Harness) -> None:
    seen: list[str] = []
    never = asyncio.Event()

    async def use(key: str) -> None:
        seen.append(key)
        if len(seen) == 1:
            await never.wait()

    @harness.workflow("keyed")
    async def workflow(ctx: Context) -> None:
        await ctx.step("use", use, str(ctx.uuid()))

    handle = await harness.start("keyed")
    await until(lambda: seen, harness)
    async with next_worker(harness, seed=99) as other:
        await other.finish(other.instance(handle.id))
    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_gathered_steps_run_together_and_answer_in_their_places(harness: Harness) -> None:
    together = asyncio.Barrier(3)

    async def meet(n: int) -> int:
        await together.wait()
        return n

    @harness.workflow("gather")
    async def workflow(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step("meet", meet, n, key=str(n)) for n in range(3))))

    handle = await harness.start("gather")
    assert await harness.finish(handle) == [0, 1, 2]
    assert set((await handle.status()).steps) == {"meet.0", "meet.1", "meet.2"}


async def test_what_follows_from_the_order_of_results_is_the_same_live_and_in_replay(harness: Harness) -> None:
    gates = {name: asyncio.Event() for name in "abc"}
    orders: list[list[str]] = []

    async def wait(name: str) -> str:
        await gates[name].wait()
        return name

    @harness.workflow("order")
    async def workflow(ctx: Context) -> list[str]:
        order: list[str] = []
        orders.append(order)

        async def branch(name: str) -> None:
            order.append(await ctx.step("wait", wait, name, key=name))
            await ctx.step(f"after {len(order)}", lambda: len(order))

        await asyncio.gather(*(branch(name) for name in "abc"))
        await ctx.sleep("nap", 60)
        return order

    handle = await harness.start("order")
    worker = harness.test_worker
    assert worker is not None
    for position, name in enumerate("cab", 1):
        await until(lambda: orders and worker.executions, harness)
        gates[name].set()
        await until(lambda position=position: len(orders[0]) == position, harness)
    await harness.run_until_idle()
    await harness.advance(minutes=1)
    assert await handle.result(timeout=0) == ["c", "a", "b"]
    assert orders[0] == orders[-1]
    assert len(orders) == 2


async def test_one_name_in_two_concurrent_branches_is_refused(harness: Harness) -> None:
    @harness.workflow("ambiguous")
    async def workflow(ctx: Context) -> None:
        await asyncio.gather(ctx.step("same", lambda: 1), ctx.step("same", lambda: 2))

    @harness.workflow("ambiguous branches")
    async def branches(ctx: Context) -> None:
        async def branch() -> None:
            await ctx.sleep("same", 1)
            await ctx.sleep("same", 1)

        await asyncio.gather(branch(), branch())

    @harness.workflow("ambiguous parallels")
    async def parallels(ctx: Context) -> None:
        await asyncio.gather(ctx.parallel("p", {"a": lambda: 1}), ctx.parallel("p", {"a": lambda: 2}))

    for name in ("ambiguous", "ambiguous branches", "ambiguous parallels"):
        handle = await harness.start(name)
        await harness.run_until_idle()
        view = await handle.status()
        assert view.status == "waiting" and "ConcurrentName" in str(view.waiting_on), name
        assert "give each branch its own key=" in str(view.waiting_on)


async def test_one_name_used_one_after_the_other_in_a_branch_is_fine(harness: Harness) -> None:
    @harness.workflow("clear")
    async def workflow(ctx: Context) -> list[int]:
        async def branch(name: str) -> int:
            return sum([await ctx.step("work", lambda n: n, n, key=name) for n in range(3)])

        return list(await asyncio.gather(branch("left"), branch("right")))

    handle = await harness.start("clear")
    assert await harness.finish(handle) == [3, 3]


async def test_parallel_settles_every_branch_before_the_first_failure_is_raised(harness: Harness) -> None:
    done: list[str] = []

    def fails() -> None:
        raise ValueError("no")

    @harness.workflow("parallel")
    async def workflow(ctx: Context) -> str:
        try:
            await ctx.parallel("all", {"bad": fails, "good": (done.append, "good")})
        except Exception as error:
            return f"{type(error).__name__} {len(done)}"
        return ""

    handle = await harness.start("parallel")
    assert await harness.finish(handle) == "StepFailed 1"


async def test_parallel_gives_the_results_in_the_order_of_its_branches(harness: Harness) -> None:
    @harness.workflow("parallel")
    async def workflow(ctx: Context) -> list[Any]:
        first = await ctx.parallel("all", {"b": (lambda x: x, "b"), "a": lambda: "a"})
        second = await ctx.parallel("all", {"b": (lambda x: x, "B"), "a": lambda: "A"})
        return [*first, *second]

    handle = await harness.start("parallel")
    assert await harness.finish(handle) == ["b", "a", "B", "A"]
    assert set((await handle.status()).steps) == {"all.b", "all.a", "all.b#2", "all.a#2"}


def flow(step: Any) -> Holdfast:
    """An app whose workflow asks for `step`, then waits; the next deploy asks for something else."""
    app = Holdfast("sqlite:///not-opened.db")

    @app.workflow("deploy")
    async def workflow(ctx: Context, given: Any) -> Any:
        found = await (step[given] if isinstance(step, dict) else step)(ctx)
        await ctx.wait_for_signal("go")
        return found

    return app


def typed(x: Any) -> int:
    return 1


def price(ctx: Context) -> Any:
    return ctx.step("price", lambda x: x, {"amount": 1})


CHANGED = {
    "arguments": lambda ctx: ctx.step("price", lambda x: x, {"amount": 2}),
    "kind": lambda ctx: ctx.sleep("price", 60),
    "step to effect": lambda ctx: ctx.effect("price", lambda x: x, {"amount": 1}),
    "annotation": lambda ctx: ctx.step("price", typed, {"amount": 1}),
    "size": lambda ctx: ctx.step("price", lambda x: x, "x" * 3000),
}
DIFFERENCES = {
    "arguments": """'price' is recorded with the arguments [{"amount":1}], the code now passes [{"amount":2}]""",
    "kind": "'price' is recorded as a step, the code now asks for a sleep",
    "step to effect": "'price' is recorded as a step, the code now asks for",
    "annotation": "the recorded result of 'price' does not fit its annotation any more",
    "size": """'price' is recorded with the arguments [{"amount":1}], the code now passes larger ones""",
}


async def test_code_that_contradicts_its_journal_parks_the_instance_until_it_is_mended(url: str) -> None:
    async with Harness(flow(price), url=url) as harness:
        started = {what: await harness.start("deploy", what) for what in CHANGED}
        await harness.run_until_idle()
        async with next_worker(harness, app=flow(CHANGED)) as broken:
            for handle in started.values():
                await broken.instance(handle.id).signal("go")
            await broken.run_until_idle()
            for what, handle in started.items():
                parked = broken.instance(handle.id)
                view = await parked.status()
                assert view.status == "waiting"
                parked_by = "parked: the code contradicts its journal: "
                assert (view.waiting_on or "").startswith(parked_by + DIFFERENCES[what])
                [entry] = await entries(parked, "INSTANCE_PARKED")
                assert f"parked: {entry.payload['difference']}" == view.waiting_on
                await parked.resume("nothing was mended", actor="ann")
                await broken.run_until_idle()
                assert (await parked.status()).waiting_on == view.waiting_on
            async with next_worker(broken, app=flow(price)) as mended:
                for handle in started.values():
                    again = mended.instance(handle.id)
                    await again.resume("rolled back", actor="ann")
                    await mended.run_until_idle()
                    assert await again.result(timeout=0) == {"amount": 1}
                    assert {e.payload["actor"] for e in await entries(again, "INSTANCE_RESUMED")} == {"ann"}


async def test_an_author_who_catches_everything_does_not_swallow_a_contradiction(url: str) -> None:
    async def stubborn(ctx: Context) -> str:
        try:
            await ctx.step("price", lambda x: x, 2)
        except BaseException:
            return "swallowed"
        return "fine"

    async with Harness(flow(lambda ctx: ctx.step("price", lambda x: x, 1)), url=url) as harness:
        handle = await harness.start("deploy")
        await harness.run_until_idle()
        async with next_worker(harness, app=flow(stubborn)) as other:
            await other.instance(handle.id).signal("go")
            await other.run_until_idle()
            assert "contradicts" in ((await other.instance(handle.id).status()).waiting_on or "")


async def test_steps_added_or_moved_by_a_deploy_do_not_strand_a_waiting_instance(url: str) -> None:
    async def more(ctx: Context) -> list[Any]:
        added = await ctx.step("added", lambda: "new")
        return [added, await ctx.step("price", lambda x: x, 1)]

    async with Harness(flow(lambda ctx: ctx.step("price", lambda x: x, 1)), url=url) as harness:
        handle = await harness.start("deploy")
        await harness.run_until_idle()
        async with next_worker(harness, app=flow(more)) as other:
            await other.instance(handle.id).signal("go")
            await other.run_until_idle()
            assert await other.instance(handle.id).result(timeout=0) == ["new", 1]


async def test_the_cancel_of_a_parked_instance_is_kept_and_carried_out_once_the_code_is_mended(url: str) -> None:
    old = flow(lambda ctx: ctx.step("price", lambda x: x, 1))
    async with Harness(old, url=url) as harness:
        handle = await harness.start("deploy")
        await harness.run_until_idle()
        async with next_worker(harness, app=flow(lambda ctx: ctx.step("price", lambda x: x, 2))) as other:
            parked = other.instance(handle.id)
            await parked.signal("go")
            await other.run_until_idle()
            await parked.cancel("beyond repair", actor="ann")
            await other.run_until_idle()
            assert "contradicts" in ((await parked.status()).waiting_on or "")
            async with next_worker(other, app=old) as mended:
                await mended.instance(handle.id).resume("rolled back", actor="ann")
                await mended.run_until_idle()
                assert (await mended.instance(handle.id).status()).status == "cancelled"


async def test_an_instance_pins_its_version_and_only_workers_that_know_it_claim_it(url: str) -> None:
    first, both = Holdfast("sqlite:///x.db"), Holdfast("sqlite:///x.db")

    async def v1(ctx: Context) -> str:
        await ctx.sleep("nap", timedelta(hours=1))
        return "one"

    async def v2(ctx: Context) -> str:
        return "two"

    first.workflow("job", version=1)(v1)
    both.workflow("job", version=1)(v1)
    both.workflow("job", version=2)(v2)
    only_two = Holdfast("sqlite:///x.db")
    only_two.workflow("job", version=2)(v2)
    async with Harness(first, url=url) as harness:
        old = await harness.start("job")
        await harness.run_until_idle()
        async with next_worker(harness, app=only_two) as second:
            await second.advance(hours=2)
            assert (await second.instance(old.id).status()).status == "waiting"
            async with next_worker(second, app=both) as third:
                new = await third.start("job")
                pinned = await third.start("job", version=1)
                await third.advance(hours=2)
                assert await third.instance(old.id).result(timeout=0) == "one"
                assert await new.result(timeout=0) == "two"
                assert await pinned.result(timeout=0) == "one"
                assert [(await h.status()).version for h in (new, pinned)] == [2, 1]
