"""A workflow written as a chain of calls: refused where it is declared, run part by part in its order."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.builder import LoopExhausted, Workflow
from holdfast.engine.context import Context
from holdfast.engine.errors import BadDefinition
from holdfast.engine.signatures import StepInfo
from holdfast.engine.steps import effect
from tests.engine.support import Play

Begin = Callable[..., Play]
GIVEN = {"id": 7}


def work(info: StepInfo) -> Any: ...


def book(tx: Any, info: StepInfo) -> Any: ...


def run(workflow: Workflow) -> Callable[[Context], Any]:
    return lambda ctx: workflow(ctx, GIVEN)


ADDS: list[tuple[str, Callable[[Workflow, str], Workflow]]] = [
    ("step", lambda w, name: w.step(name, work)),
    ("effect", lambda w, name: w.effect(name, work)),
    ("transaction", lambda w, name: w.transaction(name, book)),
    ("parallel", lambda w, name: w.parallel(name, {"a": work})),
    ("route", lambda w, name: w.route(name, choose=work, routes={"a": None})),
    ("loop", lambda w, name: w.loop(name, work, until=work)),
    ("sleep", lambda w, name: w.sleep(name, 5)),
    ("signal", lambda w, name: w.wait_for_signal(name)),
    ("child", lambda w, name: w.child(name, "other")),
]
EVERY_PART = pytest.mark.parametrize("add", [add for _, add in ADDS], ids=[name for name, _ in ADDS])


@EVERY_PART
@pytest.mark.parametrize("name", ["", "a#2", "a\nb", "x" * 201, None])
def test_a_part_without_a_proper_name_is_refused(add: Callable[[Workflow, str], Workflow], name: str) -> None:
    with pytest.raises(BadDefinition, match="is not a name"):
        add(Workflow("order"), name)


@EVERY_PART
def test_two_parts_of_one_name_are_refused(add: Callable[[Workflow, str], Workflow]) -> None:
    with pytest.raises(BadDefinition, match="workflow 'order' has two steps named 'pay': names tell steps apart"):
        add(Workflow("order").step("pay", work), "pay")


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda w: Workflow(""), "workflow name '' is not a name"),
        (lambda w: w.parallel("p", {}), "parallel 'p' has no branches"),
        (lambda w: w.parallel("p", {"": work}), "branch of 'p' '' is not a name"),
        (lambda w: w.parallel("p", {"a": "work"}), "the handler is 'work'"),
        (lambda w: w.parallel("p", {"a": effect(work, mode="lookup")}), "mode 'lookup' needs lookup="),
        (lambda w: w.route("r", choose=work, routes={}), "route 'r' has no routes"),
        (lambda w: w.route("r", choose="a", routes={"a": None}), "the handler is 'a'"),
        (lambda w: w.effect("e", work, mode="maybe"), "mode is 'maybe'"),
        (lambda w: w.effect("e", work, mode="lookup"), "mode 'lookup' needs lookup="),
        (lambda w: w.effect("e", work, lookup=work), "lookup=… goes with mode 'lookup'"),
        (lambda w: w.effect("e", work, window=timedelta(1)), "window=… goes with mode 'keyed'"),
        (lambda w: w.effect("e", None), "the handler is None"),
        (lambda w: w.step("s", 5), "the handler is 5: expected a function that takes a StepInfo"),
        (lambda w: w.step("s", work, compensate=5), "compensate=… is 5"),
        (lambda w: w.step("s", work, max_attempts=0), "max_attempts is 0"),
        (lambda w: w.step("s", work, timeout=0), "timeout is 0"),
        (lambda w: w.step("s", work, backoff=1.5), "backoff is 1.5"),
        (lambda w: w.step("s", work, retry_on="x"), "retry_on holds 'x'"),
        (lambda w: w.transaction("t", None), "the handler is None"),
        (lambda w: w.transaction("t", book, timeout=-1), "timeout is -1"),
        (lambda w: w.loop("l", work, until=work, max_rounds=0), "max_rounds of loop 'l' is 0"),
        (lambda w: w.loop("l", work, until=work, max_rounds=2.5), "max_rounds of loop 'l' is 2.5"),
        (lambda w: w.loop("l", None, until=work), "the handler is None"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_declared(declare: Callable[[Workflow], Any], said: str) -> None:
    with pytest.raises(BadDefinition, match=said):
        declare(Workflow("order"))


def test_a_refused_part_leaves_the_workflow_as_it_was(play: Begin) -> None:
    order = Workflow("order").step("a", work)
    with pytest.raises(BadDefinition):
        order.step("a", work)
    played = play(run(order.step("b", work)))
    played.answer("a", 1)
    played.answer("b", 2)
    assert played.result == {"a": 1, "b": 2}


def test_parts_run_one_after_the_other_in_the_order_they_were_added(play: Begin) -> None:
    order = (
        Workflow("order")
        .step("reserve", work)
        .effect("pay", work)
        .transaction("book", book)
        .parallel("notify", {"crm": work, "mail": effect(work)})
        .sleep("cooldown", 5)
        .wait_for_signal("approved")
        .child("invoice", "make-invoice")
    )
    played = play(run(order))
    walked = [
        ["reserve"], ["pay"], ["book"], ["notify.crm", "notify.mail"], ["cooldown"], ["approved"], ["invoice"],
    ]  # fmt: skip
    for keys in walked:
        assert played.asked == keys
        for key in reversed(keys):
            played.answer(key, None if key == "cooldown" else f"did {key}")
    assert played.result == {
        "reserve": "did reserve",
        "pay": "did pay",
        "book": "did book",
        "notify": {"crm": "did notify.crm", "mail": "did notify.mail"},
        "cooldown": None,
        "approved": "did approved",
        "invoice": "did invoice",
    }
    assert list(played.result) == [keys[0].split(".")[0] for keys in walked]
    assert played.again(run(order)).result == played.result


def test_a_handler_sees_the_input_and_the_results_before_it_and_not_those_after(play: Begin) -> None:
    played = play(run(Workflow("order").step("a", work).effect("b", work).parallel("c", {"x": work, "y": work})))
    first = played.open["a"].spec
    played.answer("a", 1)
    second = played.open["b"].spec
    played.answer("b", 2)
    third = played.open["c.x"].spec
    for spec in (first, second, third):
        assert spec.input == GIVEN and spec.signature.only_info
    assert (first.results, second.results, third.results) == ({}, {"a": 1}, {"a": 1, "b": 2})


def test_a_route_walks_the_chosen_way_under_its_own_names(play: Begin) -> None:
    order = (
        Workflow("order")
        .step("score", work)
        .route(
            "risk", choose=work, routes={"high": Workflow("review").step("score", work).step("b", work), "low": None}
        )
        .step("end", work)
    )
    played = play(run(order))
    for key, answer in (("score", 1), ("risk", "high"), ("risk.high.score", 2), ("risk.high.b", 3), ("end", 4)):
        assert played.asked == [key]
        played.answer(key, answer)
    assert played.result == {"score": 1, "risk": {"route": "high", "results": {"score": 2, "b": 3}}, "end": 4}


def test_a_route_to_nothing_goes_on_and_an_unknown_one_fails(play: Begin) -> None:
    order = Workflow("order").route("risk", choose=work, routes={"low": None, "high": None})
    low, none = play(run(order)), play(run(order))
    low.answer("risk", "low")
    assert low.result == {"risk": {"route": "low", "results": {}}}
    none.answer("risk", "medium")
    with pytest.raises(BadDefinition, match="route 'risk': 'medium' was chosen, expected one of low, high"):
        _ = none.result


def test_a_loop_repeats_until_it_is_done_and_sleeps_between(play: Begin) -> None:
    order = Workflow("order").loop("poll", work, until=lambda info: info.result >= 2, every=5)
    played = play(run(order))
    for key, answer in (("poll", 0), ("poll.every", None), ("poll#2", 1), ("poll.every#2", None), ("poll#3", 2)):
        assert played.asked == [key]
        played.answer(key, answer)
    assert played.result == {"poll": 2}


def test_a_loop_that_is_not_done_after_its_last_round_fails(play: Begin) -> None:
    played = play(run(Workflow("order").loop("poll", work, until=lambda info: False, max_rounds=2)))
    for key in ("poll", "poll.every", "poll#2"):
        played.answer(key)
    with pytest.raises(LoopExhausted, match="loop 'poll' was not done after 2 rounds"):
        _ = played.result


def test_a_child_gets_this_workflows_input_or_what_its_function_makes(play: Begin) -> None:
    order = (
        Workflow("order")
        .child("same", "other")
        .child("made", "other", input=lambda info: [info.input["id"], info.results["same"]], version=2)
    )
    played = play(run(order))
    assert (played.open["same"].spec.input, played.open["same"].spec.version) == (b'{"id":7}', None)
    played.answer("same", "x")
    assert (played.open["made"].spec.input, played.open["made"].spec.version) == (b'[7,"x"]', 2)


def test_a_compensation_goes_with_its_part(play: Begin) -> None:
    undone: list[Any] = []
    order = (
        Workflow("order")
        .step("a", work, compensate=lambda info: undone.append(info.step))
        .effect("b", work, compensate=work)
        .step("c", work)
    )
    played = play(run(order))
    for key in "abc":
        played.answer(key)
    assert [call.key for call in played.replay.compensable] == ["a", "b"]
    assert played.replay.compensable[1].spec.compensate is work
