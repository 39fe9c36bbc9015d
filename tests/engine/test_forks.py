"""Where a fork may begin, and what it takes over: rules on rows, nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine import codec
from holdfast.engine import history as h
from holdfast.engine.forks import Copy, Point, Row, copied, fork_point


def past(*entries: tuple[str, str] | tuple[str, str, dict[str, Any]]) -> list[Row]:
    first: list[Any] = [(h.INSTANCE_STARTED, "w"), *entries]
    return [Row(n, e[0], e[1], codec.encode(e[2] if len(e) > 2 else {})) for n, e in enumerate(first, 1)]


FAILED = (h.INSTANCE_FAILED, "w", {"error": {"type": "StepFailed", "message": "step 'b' failed after 1 attempt(s): x"}})
DONE = (h.INSTANCE_COMPLETED, "w")
A = (h.STEP_COMPLETED, "a")
B_FAILED = (h.STEP_FAILED, "b", {"error": {}})


def point(rows: list[Row], step: str | None = None) -> Point:
    found = fork_point(rows, step)
    assert isinstance(found, Point), found
    return found


def taken_over(rows: list[Row], before: int) -> list[tuple[str, str]]:
    found = copied(rows, before)
    assert isinstance(found, Copy)
    return [(type_, name) for type_, name, _ in found.entries]


def test_the_default_is_where_the_step_that_ended_it_was_first_opened() -> None:
    rows = past(A, (h.STEP_RETRIED, "b", {"retry_at": 1}), (h.STEP_COMPLETED, "c"), B_FAILED, FAILED)
    assert point(rows) == Point(3, "b", [])
    assert taken_over(rows, 3) == [A]


def test_a_failure_that_the_author_caught_is_not_the_one_that_ended_it() -> None:
    other = (h.INSTANCE_FAILED, "w", {"error": {"type": "ValueError", "message": "of its own"}})
    assert point(past(B_FAILED, A, other)) == Point(4, None, [])
    assert point(past(A, B_FAILED, other)) == Point(3, "b", [])  # nothing came between: its error was wrapped


@pytest.mark.parametrize("end", [h.INSTANCE_CANCELLING, h.INSTANCE_FAILING])
def test_without_a_step_to_blame_it_goes_on_from_where_it_began_to_end(end: str) -> None:
    rows = past(A, (end, "", {"error": {"message": "enough"}}), (h.STEP_COMPLETED, "late"), (h.INSTANCE_FAILED, "w"))
    assert point(rows) == Point(3, None, [])
    assert taken_over(rows, 3) == [A]


def test_what_was_only_opened_is_asked_for_afresh() -> None:
    rows = past(
        (h.STEP_STARTED, "slow"), (h.TIMER_STARTED, "nap", {"due": 1}), (h.WAIT_STARTED, "go"), A,
        (h.CHILD_STARTED, "kid"), (h.SIGNAL_RECEIVED, "go"), (h.VALUE_RECORDED, "now"), (h.STEP_COMPLETED, "b"),
        (h.STEP_COMPLETED, "slow"), DONE,
    )  # fmt: skip
    assert taken_over(rows, point(rows, "b").before_seq) == [
        (h.WAIT_STARTED, "go"), A, (h.SIGNAL_RECEIVED, "go"), (h.VALUE_RECORDED, "now")
    ]  # fmt: skip


def test_an_effect_under_way_that_was_done_later_stands_in_the_way() -> None:
    begun = (h.EFFECT_STARTED, "pay")
    rows = past(begun, A, (h.EFFECT_SUCCEEDED, "pay"), DONE)
    assert "effect 'pay' was under way there, and it was done" in str(fork_point(rows, "a"))
    assert point(rows, "pay") == Point(2, "pay", ["pay"])
    rows = past(begun, A, (h.EFFECT_FAILED, "pay", {"error": {}}), DONE)
    assert point(rows, "a") == Point(3, "a", [])  # known not to have happened: it may be done
    aborted = (h.EFFECT_FAILED, "pay", {"error": {}, "aborted": True})
    assert point(past(begun, aborted, A, DONE), "pay").again == ["pay"]
    assert point(past(begun, aborted, A, DONE), "a").again == []
    assert "nobody knows the outcome of effect 'pay'" in str(fork_point(past(begun, A, DONE), "a"))


def test_an_effect_that_was_undone_may_be_done_again_by_anybody() -> None:
    rows = past(A, (h.EFFECT_STARTED, "pay"), (h.EFFECT_SUCCEEDED, "pay"), (h.INSTANCE_CANCELLING, ""),
                (h.COMPENSATION_COMPLETED, "pay"), (h.INSTANCE_CANCELLED, "w"))  # fmt: skip
    assert point(rows, "pay") == Point(3, "pay", [])
    assert "'pay', which would be taken over as done, was undone" in str(fork_point(rows, None))


def test_what_a_compensation_failed_to_undo_is_still_done_and_is_taken_over() -> None:
    ending = (h.INSTANCE_FAILING, "", {"error": {"message": "step 'b' failed"}})
    rows = past(A, (h.EFFECT_STARTED, "pay"), (h.EFFECT_SUCCEEDED, "pay"), B_FAILED, ending,
                (h.COMPENSATION_RETRIED, "pay"), (h.COMPENSATION_FAILED, "pay"), FAILED)  # fmt: skip
    assert point(rows) == Point(5, "b", [])
    assert (h.EFFECT_SUCCEEDED, "pay") in taken_over(rows, 5)
    assert point(rows, "pay").again == ["pay"], "it was not undone, so that it would be done twice"
    undone = [*rows[:-1], Row(9, h.COMPENSATION_COMPLETED, "a", b"{}"), rows[-1]]
    assert "'a', which would be taken over as done, was undone" in str(fork_point(undone, None))


def test_what_was_being_undone_when_it_ended_is_not_taken_over() -> None:
    rows = past(A, B_FAILED, (h.INSTANCE_FAILING, ""), (h.COMPENSATION_RETRIED, "a"), FAILED)
    assert "'a', which would be taken over as done, may have been undone" in str(fork_point(rows, "b"))
    assert point(rows, "a") == Point(2, "a", [])


def test_a_past_that_was_erased_cannot_be_taken_over() -> None:
    rows = past(A, B_FAILED, FAILED)
    gone = [*rows[:1], Row(2, h.STEP_COMPLETED, "a", None), *rows[2:]]
    assert "erased" in str(fork_point(gone, "b"))
    assert isinstance(copied(gone, 3), str)
    assert isinstance(copied(rows[:1], 3), str)


def test_what_another_completed_owes_nothing_in_any_fork_of_it() -> None:
    rows = past(A, (h.STEP_COMPLETED, "b"), DONE)
    found = copied(rows, 3)
    assert isinstance(found, Copy) and (len(found.entries), found.settled) == (1, 1)
    first = Row(1, h.INSTANCE_STARTED, "w", codec.encode({"copied": 1, "settled": 1}))
    fork = [first, *past(A, (h.STEP_COMPLETED, "b"), FAILED)[1:]]
    found = copied(fork, 4)
    assert isinstance(found, Copy) and (len(found.entries), found.settled) == (2, 1)
