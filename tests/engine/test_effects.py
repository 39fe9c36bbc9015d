"""What an error says about the world, and what may follow when nobody knows."""

import asyncio
import socket
import ssl
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.effects import GRACE, AskPerson, LookUp, Repeat, after_unknown, known_from, may_choose, opens_at
from holdfast.engine.errors import BadDefinition, NotApplied, Rejected
from holdfast.engine.retry import SECOND, Backoff, RetryPolicy
from holdfast.engine.steps import EFFECT_TIMEOUT, KEYED_WINDOW, effect, effect_spec

FLAT = RetryPolicy(max_attempts=3, backoff=Backoff(first=timedelta(seconds=10), factor=1.0, jitter=0.0))
START, HOUR = 1_000_000 * SECOND, 3600 * SECOND


def pay(amount: int) -> str:
    return f"paid {amount}"


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (NotApplied("closed"), "not_applied"),
        (Rejected("no funds"), "rejected"),
        (ConnectionRefusedError(), "unknown"),
        (socket.gaierror(-2, "no such name"), "unknown"),
        (ConnectionResetError(), "unknown"),
        (BrokenPipeError(), "unknown"),
        (ConnectionError(), "unknown"),
        (ConnectionAbortedError(), "unknown"),
        (TimeoutError(), "unknown"),
        (asyncio.CancelledError(), "unknown"),
        (ssl.SSLError(), "unknown"),
        (OSError("many things"), "unknown"),
        (ValueError("after sending?"), "unknown"),
        (Exception("ConnectionRefusedError"), "unknown"),
        (KeyboardInterrupt(), "unknown"),
        (SystemExit(), "unknown"),
    ],
    ids=repr,
)
def test_only_what_says_so_is_known_not_to_have_happened(error: BaseException, known: str) -> None:
    assert known_from(error) == known


def test_a_call_may_be_under_way_until_its_last_start_its_time_out_and_a_grace_are_over() -> None:
    assert opens_at(START, 30.0) == START + 30 * SECOND + GRACE
    assert opens_at(START, 0.25) == START + SECOND // 4 + GRACE
    assert opens_at(START, None) == START + GRACE
    assert GRACE > 0


def after(mode: str, attempt: int = 1, now: int = START, quiet_at: int = START, window: int = HOUR) -> Any:
    return after_unknown(mode, attempt, FLAT, START, window, now, quiet_at, 0.5)


def test_a_keyed_effect_repeats_inside_the_window_after_its_backoff() -> None:
    assert after("keyed") == Repeat(START + 10 * SECOND)
    assert after("keyed", attempt=2, now=START + HOUR - 11 * SECOND) == Repeat(START + HOUR - SECOND)


def test_a_keyed_effect_whose_repeat_would_fall_outside_the_window_asks_a_person() -> None:
    over = AskPerson("the window in which the provider knows our key is over")
    assert after("keyed", now=START + HOUR - 10 * SECOND) == over  # exactly at its end
    assert after("keyed", now=START + HOUR) == over
    assert after("keyed", window=0) == over


def test_a_keyed_effect_out_of_attempts_asks_a_person() -> None:
    assert after("keyed", attempt=3) == AskPerson("its outcome stayed unknown: failed 3 times")


@given(st.integers(1, 10), st.integers(0, 2 * HOUR), st.integers(0, 2 * HOUR), st.floats(0, 1, exclude_max=True))
def test_a_keyed_effect_is_never_repeated_outside_its_window_counted_from_the_first_start(
    attempt: int, elapsed: int, window: int, chance: float
) -> None:
    verdict = after_unknown("keyed", attempt, RetryPolicy(), START, window, START + elapsed, START, chance)
    if isinstance(verdict, Repeat):
        assert START + elapsed <= verdict.at < START + window
        assert attempt < 3
    else:
        assert isinstance(verdict, AskPerson)


def test_a_lookup_waits_until_the_call_cannot_be_under_way_any_more() -> None:
    assert after("lookup", now=START, quiet_at=START + 30 * SECOND) == LookUp(START + 30 * SECOND)
    assert after("lookup", now=START + 60 * SECOND, quiet_at=START + 30 * SECOND) == LookUp(START + 60 * SECOND)
    assert after("lookup", attempt=99) == LookUp(START)


@given(st.integers(1, 10), st.integers(0, 2 * HOUR), st.integers(0, 2 * HOUR), st.sampled_from(["manual", "", "KEYED"]))
def test_a_manual_effect_always_asks_a_person_and_so_does_a_mode_nobody_knows(
    attempt: int, elapsed: int, quiet: int, mode: str
) -> None:
    assert isinstance(after(mode, attempt, START + elapsed, START + quiet), AskPerson)


@pytest.mark.parametrize("resolution", ["happened", "abort", "did_not_happen"])
@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("accept_double", [False, True])
@pytest.mark.parametrize("second_person", [False, True])
def test_starting_again_opens_only_when_the_call_cannot_be_under_way_or_somebody_answers_for_it(
    resolution: str, gone: bool, over: bool, accept_double: bool, second_person: bool
) -> None:
    refused = may_choose(resolution, START + over * HOUR, START + HOUR, gone, accept_double, second_person)
    is_open = resolution != "did_not_happen" or accept_double or second_person or (gone and over)
    assert (refused is None) == is_open
    if refused is not None:
        assert "second_person=" in refused and "accept_double=True" in refused
        assert ("may still be running" if not gone else "may still be on its way for 3600 s") in refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "auto"}, "mode is 'auto': expected 'keyed', 'lookup' or 'manual'"),
        ({"mode": None}, "mode is None"),
        ({"mode": "lookup"}, "mode 'lookup' needs lookup="),
        ({"mode": "lookup", "lookup": 5}, "lookup=… is 5: expected a function"),
        ({"mode": "keyed", "lookup": pay}, "lookup=… goes with mode 'lookup', not 'keyed'"),
        ({"lookup": pay}, "lookup=… goes with mode 'lookup', not 'manual'"),
        ({"window": timedelta(hours=1)}, "window=… goes with mode 'keyed', not 'manual'"),
        ({"mode": "lookup", "lookup": pay, "window": timedelta(hours=1)}, "window=… goes with mode 'keyed'"),
        ({"mode": "keyed", "window": timedelta(0)}, "window is datetime.timedelta"),
        ({"mode": "keyed", "window": timedelta(seconds=-1)}, "window is .*a positive timedelta"),
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"timeout": -1}, "timeout is -1"),
    ],
)
def test_an_effect_declared_in_a_way_that_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadDefinition, match=said):
        effect_spec(pay, (5,), **options)


def test_an_effect_without_a_handler_is_refused() -> None:
    with pytest.raises(BadDefinition, match="an effect's handler is 'pay': expected a function"):
        effect_spec("pay", ())  # type: ignore[arg-type]


def test_an_effect_is_manual_and_limited_in_time_unless_it_says_otherwise() -> None:
    spec = effect_spec(pay, (5,))
    assert (spec.mode, spec.policy.timeout, spec.compensate) == ("manual", EFFECT_TIMEOUT, None)
    assert effect_spec(pay, (5,), mode="keyed").window == KEYED_WINDOW // timedelta(microseconds=1)
    assert effect_spec(pay, (5,), mode="keyed", window=timedelta(minutes=1)).window == 60 * SECOND


def test_an_effect_described_for_a_branch_is_the_same_effect() -> None:
    described = effect(pay, 5, mode="keyed", window=timedelta(minutes=1))
    assert effect_spec(described.function, described.args, **described.options) == effect_spec(
        pay, (5,), mode="keyed", window=timedelta(minutes=1)
    )
