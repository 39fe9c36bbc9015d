"""Which steps are owed an undo, in which order, and what stands in the way."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine import history as h
from holdfast.engine.journal import ANSWERS, RowWords
from holdfast.engine.replay import Call
from holdfast.engine.saga import owed, undo_order, unsettled
from holdfast.engine.steps import effect_spec


def pay() -> None: ...
def refund() -> None: ...


def a_call(kind: str = "effect", order: int = 1, undo: Any = refund, outcome: str = "", **words: Any) -> Call:
    call = Call(kind, f"{kind} {order}", b"[]", "", effect_spec(pay, (), compensate=undo), None, order, None, None)  # type: ignore[arg-type]
    call.outcome = outcome
    call.words = RowWords(**words) if outcome else None
    return call


HAPPENED = {h.STEP_COMPLETED, h.TRANSACTION_COMMITTED, h.EFFECT_SUCCEEDED, h.CHILD_COMPLETED}


@pytest.mark.parametrize("outcome", ["", *ANSWERS])
def test_what_happened_is_owed_an_undo_and_what_failed_is_not(outcome: str) -> None:
    assert owed(a_call(outcome=outcome)) == (outcome in HAPPENED)


@pytest.mark.parametrize("outcome", ["", *ANSWERS])
def test_what_names_no_compensation_is_owed_nothing(outcome: str) -> None:
    assert not owed(a_call(undo=None, outcome=outcome))
    assert not owed(a_call(undo=None, outcome=outcome, aborted=True) if outcome else a_call(undo=None))


@pytest.mark.parametrize(("kind", "outcome"), [("effect", h.EFFECT_FAILED), ("step", h.STEP_FAILED)])
def test_what_was_given_up_on_is_owed_an_undo_because_it_may_have_happened(kind: str, outcome: str) -> None:
    """An effect is aborted by a person, a step when its poison instance is cancelled."""
    assert owed(a_call(kind, outcome=outcome, aborted=True))
    assert not owed(a_call(kind, outcome=outcome, aborted=False))


@pytest.mark.parametrize("kind", ["effect", "child", "step", "transaction", "sleep", "signal"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("outcome", ["", h.EFFECT_SUCCEEDED, h.EFFECT_FAILED])
def test_what_was_begun_and_has_no_end_yet_stands_in_the_way(kind: str, begun: bool, outcome: str) -> None:
    call = a_call(kind, outcome=outcome)
    call.state = object() if begun else None
    assert unsettled(call) == (begun and not outcome and kind not in ("sleep", "signal"))


@given(st.permutations(range(1, 9)))
def test_the_last_started_is_the_first_undone(orders: list[int]) -> None:
    assert [call.order for call in undo_order(a_call(order=order) for order in orders)] == [8, 7, 6, 5, 4, 3, 2, 1]
