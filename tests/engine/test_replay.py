"""Replay changes nothing: whatever a workflow does live, every later run of its journal walks the same path.

The programs are random: branches in branches of steps, sleeps, signals, failures, values and races, whose arguments
depend on the order in which answers came. So a replay that released in another order would ask for other things.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine import history as h
from holdfast.engine.context import Context
from holdfast.engine.errors import StepFailed
from tests.engine.support import Play, Row

Begin = Callable[..., Play]
Program = list[Any]
deeds = st.sampled_from(["step", "step", "effect", "sleep", "signal", "value"])
programs = st.recursive(
    st.lists(deeds, min_size=1, max_size=3),
    lambda inner: st.lists(
        deeds | st.tuples(st.sampled_from(["gather", "race", "group"]), st.lists(inner, min_size=2, max_size=3)),
        min_size=1,
        max_size=3,
    ),
    max_leaves=8,
)


def work(*_: Any) -> Any: ...


def workflow_of(program: Program) -> Callable[[Context], Any]:
    async def workflow(ctx: Context) -> list[Any]:
        trace: list[Any] = []

        async def walk(part: Program, at: str) -> None:
            for number, deed in enumerate(part):
                name = f"{at}{number}"
                if isinstance(deed, tuple):
                    await together(deed[0], deed[1], name)
                elif deed == "value":
                    trace.append(ctx.random())
                else:
                    try:
                        trace.append([name, await ask(deed, name)])
                    except StepFailed as error:
                        trace.append([name, str(error)])

        def ask(deed: str, name: str) -> Any:
            if deed == "sleep":
                return ctx.sleep(name, 5)
            if deed == "signal":
                return ctx.wait_for_signal(name)
            if deed == "effect":
                return ctx.effect(name, work, len(trace), trace[-1:])
            return ctx.step(name, work, len(trace), trace[-1:])

        async def together(how: str, parts: list[Program], at: str) -> None:
            branches = [walk(part, f"{at}.{letter}") for letter, part in zip("abc", parts, strict=False)]
            if how == "gather":
                await asyncio.gather(*branches)
            elif how == "group":
                async with asyncio.TaskGroup() as group:
                    for branch in branches:
                        group.create_task(branch)
            else:
                tasks = [asyncio.create_task(branch) for branch in branches]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        await walk(program, "")
        return trace

    return workflow


class Draws(random.Random):
    """Randomness that goes on where the recorded values end, so that a cut-off run draws what the live one drew."""

    def __init__(self, drawn: int) -> None:
        super().__init__(0)
        self.drawn = drawn

    def random(self) -> float:
        self.drawn += 1
        return self.drawn / 1000


def begun(program: Program, rows: list[Row]) -> Play:
    drawn = sum(row[1] == h.VALUE_RECORDED for row in rows)
    return Play(workflow_of(program), rows, entropy=Draws(drawn))


def answer(play: Play, key: str, number: int) -> None:
    """Every third answer is a failure, if it is a step's."""
    if number % 3 == 0 and play.open[key].kind == "step":
        play.fail(key, f"no {number}")
    else:
        play.answer(key, number)


def live(program: Program, chance: random.Random) -> tuple[Play, list[str], list[int], list[int]]:
    """Answer in a random order. Also: the order, and where rows and path stood after each commit."""
    play = begun(program, [])
    order: list[str] = []
    rows, path = [len(play.rows)], [len(play.path)]
    while play.asked:
        order.append(chance.choice(play.asked))
        answer(play, order[-1], len(order))
        rows.append(len(play.rows))
        path.append(len(play.path))
    return play, order, rows, path


@settings(max_examples=150)
@given(programs, st.integers(0, 9999))
def test_a_replay_from_any_commit_walks_the_path_the_live_run_walked(program: Program, seed: int) -> None:
    once, order, rows, path = live(program, random.Random(seed))
    assert once.replay.done and once.replay.difference is None
    for commits, (row, step) in enumerate(zip(rows, path, strict=True)):
        again = begun(program, once.rows[:row])
        assert again.path == once.path[:step]  # the same calls in the same order, released in committed order
        assert again.rows == once.rows[:row]  # and nothing new is written
        for number, key in enumerate(order[commits:], commits + 1):
            answer(again, key, number)
        assert (again.path, again.rows) == (once.path, once.rows)
        assert again.result == once.result
        again.replay.close()
    once.replay.close()


@settings(max_examples=50)
@given(programs, st.integers(0, 9999))
def test_answers_are_released_in_the_order_of_their_commits(program: Program, seed: int) -> None:
    once, order, _, _ = live(program, random.Random(seed))
    again = begun(program, once.rows)
    assert [key for what, key, *_ in again.path if what == "released"] == order
    assert again.result == once.result
    for play in (once, again):
        play.replay.close()


@settings(max_examples=50)
@given(programs, st.integers(0, 9999))
def test_a_run_evicted_after_every_single_commit_ends_like_one_that_never_was(program: Program, seed: int) -> None:
    once, order, _, _ = live(program, random.Random(seed))
    often = begun(program, [])
    for number, key in enumerate(order, 1):
        answer(often, key, number)
        often.replay.close()
        often = begun(program, often.rows)
    assert (often.rows, often.result) == (once.rows, once.result)
    for play in (once, often):
        play.replay.close()


def test_what_follows_from_the_order_of_answers_is_decided_by_the_journal_alone(play: Begin) -> None:
    async def workflow(ctx: Context) -> list[str]:
        order: list[str] = []

        async def branch(name: str) -> None:
            await ctx.step(name, work)
            order.append(name)
            await ctx.step(f"after {len(order)}", work, name)

        await asyncio.gather(*map(branch, "abc"))
        return order

    once = play(workflow)
    for key in ("c", "after 1", "a", "b", "after 3", "after 2"):
        once.answer(key)
    assert once.result == ["c", "a", "b"]
    assert once.again(workflow).result == ["c", "a", "b"]


def test_a_changed_argument_is_a_difference_and_the_author_cannot_swallow_it(play: Begin) -> None:
    swallowed: list[BaseException] = []

    def version(amount: int) -> Callable[[Context], Any]:
        async def workflow(ctx: Context) -> str:
            try:
                await ctx.step("pay", work, amount)
            except BaseException as error:
                swallowed.append(error)
            await ctx.step("after", work)
            return "done"

        return workflow

    first = play(version(1))
    first.answer("pay")
    second = play(version(2), first.rows)
    assert second.replay.difference == "'pay' is recorded with the arguments [1], the code now passes [2]"
    assert not second.replay.done
    assert (second.asked, [e for e in swallowed if not isinstance(e, GeneratorExit)]) == ([], [])


@pytest.mark.parametrize("answered", [False, True])
def test_a_changed_kind_is_a_difference_whether_it_was_answered_or_only_started(play: Begin, answered: bool) -> None:
    async def before(ctx: Context) -> None:
        await ctx.effect("pay", work, 1)

    async def after(ctx: Context) -> None:
        await ctx.step("pay", work, 1)

    first = play(before)
    if answered:
        first.answer("pay")
    second = play(after, first.rows)
    assert second.replay.difference == "'pay' is recorded as an effect, the code now asks for a step"
    assert second.asked == []


def test_nothing_more_is_released_once_a_difference_is_found(play: Begin) -> None:
    def version(amount: int) -> Callable[[Context], Any]:
        async def workflow(ctx: Context) -> None:
            await asyncio.gather(ctx.step("a", work, amount), ctx.step("b", work))

        return workflow

    first = play(version(1))
    first.answer("b")
    first.answer("a")
    second = play(version(2), first.rows)
    assert second.replay.difference is not None
    assert [what for what, *_ in second.path] == ["asked", "asked"]


def test_only_the_first_difference_is_told(play: Begin) -> None:
    def version(amount: int) -> Callable[[Context], Any]:
        async def workflow(ctx: Context) -> None:
            await asyncio.gather(ctx.step("a", work, amount), ctx.step("b", work, amount))

        return workflow

    first = play(version(1))
    first.answer("b")
    first.answer("a")
    difference = play(version(2), first.rows).replay.difference
    assert difference is not None and difference.startswith("'a'")


def test_large_arguments_are_kept_as_a_hash_and_a_change_still_shows(play: Begin) -> None:
    def version(letter: str) -> Callable[[Context], Any]:
        async def workflow(ctx: Context) -> Any:
            return await ctx.step("pay", work, letter * 5000)

        return workflow

    first = play(version("x"))
    assert first.open["pay"].args == b"" and len(first.open["pay"].args_hash) == 64
    first.answer("pay", 5)
    assert play(version("x"), first.rows).result == 5
    difference = play(version("y"), first.rows).replay.difference
    assert difference is not None and "is recorded with arguments of hash" in difference


def test_an_effect_keeps_even_large_arguments_in_words_for_the_desk(play: Begin) -> None:
    async def workflow(ctx: Context) -> None:
        await ctx.effect("pay", work, "x" * 5000)

    assert len(play(workflow).open["pay"].args) > 5000


def test_a_new_step_before_recorded_ones_runs_and_the_recorded_answers_are_still_found(play: Begin) -> None:
    async def before(ctx: Context) -> list[Any]:
        return [await ctx.step("a", work), await ctx.step("b", work), await ctx.sleep("nap", 60)]

    async def after(ctx: Context) -> list[Any]:
        return [
            await ctx.step("new", work),
            await ctx.step("a", work),
            await ctx.step("b", work),
            await ctx.sleep("nap", 60),
        ]

    first = play(before)
    first.answer("a", 1)
    first.answer("b", 2)
    second = play(after, first.rows)
    assert second.asked == ["new"]
    second.answer("new", 0)
    assert second.asked == ["nap"]
    second.answer("nap")
    assert second.result == [0, 1, 2, None]
    assert second.again(after).result == [0, 1, 2, None]


def test_a_step_taken_out_of_the_code_is_overlooked(play: Begin) -> None:
    async def before(ctx: Context) -> list[Any]:
        return [await ctx.step("a", work), await ctx.step("b", work)]

    async def after(ctx: Context) -> list[Any]:
        return [await ctx.step("b", work)]

    first = play(before)
    first.answer("a", 1)
    first.answer("b", 2)
    assert play(after, first.rows).result == [2]


def test_a_failure_is_replayed_as_the_same_failure(play: Begin) -> None:
    async def workflow(ctx: Context) -> str:
        try:
            await ctx.step("shaky", work)
        except StepFailed as error:
            return f"{error.step}/{error.error_type}/{error.message}/{error.attempts}"
        return "fine"

    first = play(workflow)
    first.fail("shaky", "broke", attempt=3)
    assert first.result == first.again(workflow).result == "shaky/ValueError/broke/3"


@pytest.mark.parametrize(
    ("kind", "type_", "words", "raised"),
    [
        ("step", h.STEP_FAILED, {}, "StepFailed"),
        ("transaction", h.TRANSACTION_FAILED, {}, "StepFailed"),
        ("effect", h.EFFECT_FAILED, {}, "EffectFailed"),
        ("effect", h.EFFECT_FAILED, {"aborted": True}, "EffectAborted"),
        ("child", h.CHILD_FAILED, {"status": "cancelled", "child_id": "ins_2"}, "ChildFailed"),
    ],
)
def test_each_failure_is_raised_as_its_own_kind(
    play: Begin, kind: str, type_: str, words: dict[str, Any], raised: str
) -> None:
    async def workflow(ctx: Context) -> None:
        if kind == "child":
            await ctx.child("x", "other", 1)
        else:
            await getattr(ctx, kind)("x", work)

    first = play(workflow)
    first.fail("x", "broke", type_, **words)
    for one in (first, first.again(workflow)):
        assert type(one.error).__name__ == raised
        assert "broke" in str(one.error)


def test_a_wait_that_timed_out_gives_none_also_in_replay(play: Begin) -> None:
    async def workflow(ctx: Context) -> Any:
        return [await ctx.wait_for_signal("go", timeout=5)]

    first = play(workflow)
    first.fail("go", type_=h.WAIT_TIMED_OUT)
    assert first.result == first.again(workflow).result == [None]


def test_a_result_that_no_longer_fits_its_annotation_is_a_difference(play: Begin) -> None:
    def as_text() -> str: ...  # type: ignore[empty-body]
    def as_number() -> int: ...  # type: ignore[empty-body]

    def version(function: Callable[[], Any]) -> Callable[[Context], Any]:
        async def workflow(ctx: Context) -> Any:
            return await ctx.step("s", function)

        return workflow

    first = play(version(as_text))
    first.answer("s", "five")
    second = play(version(as_number), first.rows)
    assert not second.replay.done
    assert second.replay.difference is not None
    assert second.replay.difference.startswith("the recorded result of 's' does not fit its annotation any more")


def test_an_answer_that_came_after_the_body_was_closed_is_known_to_the_saga_and_not_to_the_body(play: Begin) -> None:
    seen: list[str] = []

    async def workflow(ctx: Context) -> None:
        await ctx.step("first", work, compensate=work)
        seen.append("first")
        await ctx.effect("pay", work, compensate=work)
        seen.append("pay")

    rows = [
        (1, h.STEP_COMPLETED, "first", b'{"args":[],"result":null}'),
        (2, h.EFFECT_STARTED, "pay", b'{"args":[]}'),
        (3, h.INSTANCE_CANCELLING, "", b"{}", b"", 99),
        (4, h.EFFECT_SUCCEEDED, "pay", b'{"result":1}'),
    ]
    played = play(workflow, rows)
    assert seen == ["first"]
    assert [(call.key, call.outcome) for call in played.replay.compensable] == [
        ("first", h.STEP_COMPLETED),
        ("pay", h.EFFECT_SUCCEEDED),
    ]
    assert not played.replay.done
