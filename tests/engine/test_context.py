"""The author's view: names and occurrences, concurrent names, values, and where `ctx` may be used."""

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.engine.context import Context
from holdfast.engine.errors import BadDefinition, BadInput, ConcurrentName, HoldfastError, NotInWorkflow, NotJson
from holdfast.engine.steps import effect
from tests.engine.support import MONDAY, Play

Begin = Callable[..., Play]


def work(*_: Any) -> Any: ...


def test_a_name_used_again_is_told_apart_by_its_occurrence(play: Begin) -> None:
    async def workflow(ctx: Context) -> list[Any]:
        return [await ctx.step("poll", work, n) for n in range(3)]

    played = play(workflow)
    for key in ("poll", "poll#2", "poll#3"):
        assert played.asked == [key]
        played.answer(key, key)
    assert played.result == played.again(workflow).result == ["poll", "poll#2", "poll#3"]


def test_each_name_counts_for_itself(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        for name in ("a", "b", "a", "b"):
            await ctx.step(name, work)

    played = play(workflow)
    for key in ("a", "b", "a#2", "b#2"):
        played.answer(key)
    assert played.replay.done


def test_a_key_makes_a_name_of_its_own(play: Begin) -> None:
    async def workflow(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(*(ctx.step("ship", work, n, key=f"parcel {n}") for n in range(3))))

    played = play(workflow)
    assert played.asked == ["ship.parcel 0", "ship.parcel 1", "ship.parcel 2"]
    for key in reversed(played.asked):
        played.answer(key, key[-1])
    assert played.result == ["0", "1", "2"]


def test_one_name_asked_twice_at_once_is_refused(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        await asyncio.gather(ctx.step("pay", work), ctx.step("pay", work))

    with pytest.raises(ConcurrentName, match=r"the name 'pay' is used by two concurrent branches.*own key="):
        _ = play(workflow).result


def test_one_name_in_two_living_branches_is_refused_even_when_they_do_not_overlap_right_now(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        async def first() -> None:
            await ctx.step("pay", work)
            await ctx.step("long", work)

        async def second() -> None:
            await ctx.step("other", work)
            await ctx.step("pay", work)

        await asyncio.gather(first(), second())

    played = play(workflow)
    played.answer("pay")
    played.answer("other")
    with pytest.raises(ConcurrentName):
        _ = played.result


def test_one_name_in_branches_that_follow_each_other_is_fine(play: Begin) -> None:
    async def workflow(ctx: Context) -> str:
        async def branch() -> None:
            await ctx.step("pay", work)

        await asyncio.create_task(branch())
        await asyncio.create_task(branch())
        await ctx.step("pay", work)
        return "done"

    played = play(workflow)
    for key in ("pay", "pay#2", "pay#3"):
        played.answer(key)
    assert played.result == "done"


def test_a_name_whose_first_arguments_were_refused_can_be_used_again(play: Begin) -> None:
    async def workflow(ctx: Context) -> Any:
        try:
            await ctx.step("pay", work, object())
        except NotJson as error:
            assert str(error).startswith("the arguments of 'pay': builtins.object is not JSON")
        return await ctx.step("pay", work, 5)

    played = play(workflow)
    [key] = played.asked
    played.answer(key, "paid")
    assert played.result == played.again(workflow).result == "paid"


@pytest.mark.parametrize("name", ["", "a#2", "a\nb", "x" * 201, "\ud800", None, 5])
def test_a_name_that_cannot_be_kept_is_refused_before_anything_is_asked(play: Begin, name: Any) -> None:
    asks: list[Callable[[Context], Any]] = [
        lambda ctx: ctx.step(name, work),
        lambda ctx: ctx.effect(name, work),
        lambda ctx: ctx.transaction(name, work),
        lambda ctx: ctx.sleep(name, 1),
        lambda ctx: ctx.wait_for_signal(name),
        lambda ctx: ctx.child(name, "other"),
        lambda ctx: ctx.parallel(name, {"a": work}),
        lambda ctx: ctx.parallel("p", {name: work}),
    ]
    if name is not None:
        asks.append(lambda ctx: ctx.step("s", work, key=name))
    for ask in asks:

        async def workflow(ctx: Context, ask: Callable[[Context], Any] = ask) -> None:
            await ask(ctx)

        played = play(workflow)
        assert (type(played.error), played.path) == (BadInput, [])


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda ctx: ctx.sleep(timedelta(hours=1)), "has no name: expected one before the duration"),
        (lambda ctx: ctx.sleep("nap"), "takes either a duration or until="),
        (lambda ctx: ctx.sleep("nap", 5, until=datetime(2026, 1, 5, tzinfo=UTC)), "takes either a duration or until="),
        (lambda ctx: ctx.sleep("nap", until=datetime(2026, 1, 5)), "must carry a time zone"),
        (lambda ctx: ctx.parallel("p", {}), "parallel 'p' has no branches"),
        (lambda ctx: ctx.step("s", "work"), "the handler is 'work': expected a function"),
        (lambda ctx: ctx.step("s", work, max_attempts=0), "max_attempts is 0"),
        (lambda ctx: ctx.effect("s", work, mode="maybe"), "mode is 'maybe'"),
    ],
)
def test_a_call_that_cannot_work_is_refused_where_it_is_written(
    play: Begin, ask: Callable[[Context], Any], said: str
) -> None:
    async def workflow(ctx: Context) -> None:
        await ask(ctx)

    with pytest.raises(BadDefinition, match=said):
        _ = play(workflow).result


def test_a_sleep_is_asked_as_a_span_or_a_moment_and_never_backwards(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        await asyncio.gather(
            ctx.sleep("span", timedelta(minutes=1)),
            ctx.sleep("moment", until=datetime(2026, 1, 5, tzinfo=UTC)),
            ctx.sleep("past", -5),
            ctx.sleep("for ever", float("inf")),
        )

    played = play(workflow)
    specs = {key: (call.spec.duration, call.spec.until) for key, call in played.open.items()}
    assert specs["span"] == (60_000_000, None)
    assert specs["moment"] == (None, 1_767_571_200_000_000)
    assert specs["past"] == (0, None)
    assert specs["for ever"][0] > 365 * 86_400_000_000


def test_parallel_branches_are_named_after_it_and_answer_in_their_own_order(play: Begin) -> None:
    async def workflow(ctx: Context) -> list[Any]:
        return await ctx.parallel("notify", {"crm": (work, 1), "mail": effect(work, 2), "log": work})

    played = play(workflow)
    assert [(call.key, call.kind, call.args) for call in played.open.values()] == [
        ("notify.crm", "step", b"[1]"),
        ("notify.mail", "effect", b"[2]"),
        ("notify.log", "step", b"[]"),
    ]
    for key in ("notify.log", "notify.crm", "notify.mail"):
        played.answer(key, key)
    assert played.result == ["notify.crm", "notify.mail", "notify.log"]


def test_parallel_settles_every_branch_before_the_first_failure_is_raised(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        await ctx.parallel("p", {"a": work, "b": work, "c": work})

    played = play(workflow)
    played.fail("p.b", "b broke")
    played.fail("p.a", "a broke")
    assert not played.replay.done
    played.answer("p.c")
    assert "a broke" in str(played.error)


def test_values_are_journaled_with_the_next_turn_and_the_same_in_every_replay(play: Begin) -> None:
    async def workflow(ctx: Context) -> list[str]:
        values: list[Any] = [ctx.now(), ctx.random(), ctx.uuid(), ctx.random(), ctx.uuid()]
        await ctx.step("s", work)
        return [str(value) for value in [*values, ctx.now()]]

    played = play(workflow)
    assert [(type_, name) for _, type_, name, _ in played.rows] == [
        ("VALUE_RECORDED", name) for name in ("now", "random", "uuid", "random#2", "uuid#2")
    ]
    played.answer("s")
    result = played.result
    assert result[0] == str(datetime.fromtimestamp(MONDAY / 1_000_000, UTC))
    assert len(set(result[1:5])) == 4
    assert played.again(workflow).result == result


def test_a_value_does_not_collide_with_a_step_of_its_name(play: Begin) -> None:
    async def workflow(ctx: Context) -> list[Any]:
        return [await ctx.step("random", work), ctx.random()]

    played = play(workflow)
    played.answer("random", "step")
    result = played.result
    assert result[0] == "step" and 0 <= result[1] < 1
    assert played.again(workflow).result == result


def test_arguments_above_the_limit_are_refused_by_the_name_of_their_step(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        await ctx.step("s", work, "x" * 200)

    with pytest.raises(HoldfastError, match=r"^the arguments of 's' takes .* bytes"):
        _ = play(workflow, limit=100).result


def test_ctx_is_refused_outside_its_workflow(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        await ctx.step("s", work)

    played = play(workflow)
    ctx = played.ctx

    async def elsewhere() -> None:
        ctx.now()

    for outside in (lambda: ctx.step("x", work), ctx.now, lambda: asyncio.run(elsewhere())):
        with pytest.raises(NotInWorkflow, match="ctx belongs to the workflow's own code"):
            outside()
    caught: list[BaseException] = []

    def in_a_thread() -> None:
        try:
            ctx.random()
        except NotInWorkflow as error:
            caught.append(error)

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert len(caught) == 1
    assert played.asked == ["s"]


def test_the_ctx_of_one_workflow_is_refused_in_another(play: Begin) -> None:
    async def first(ctx: Context) -> None:
        await ctx.step("s", work)

    borrowed = play(first).ctx

    async def second(ctx: Context) -> None:
        await borrowed.step("x", work)

    with pytest.raises(NotInWorkflow):
        _ = play(second).result


def test_what_names_a_compensation_is_remembered_in_the_order_of_being_asked(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step("a", work, compensate=work),
            ctx.effect("b", work),
            ctx.effect("c", work, compensate=work),
            ctx.child("d", "other", compensate=work),
            ctx.transaction("e", work, compensate=work),
        )

    played = play(workflow)
    assert [(call.key, call.order) for call in played.replay.compensable] == [("a", 1), ("c", 3), ("d", 4), ("e", 5)]
