"""When a failed attempt is followed by another, how long after, and which policies are refused."""

import math
import signal
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.errors import BadDefinition
from holdfast.engine.retry import (
    DEFAULT,
    SECOND,
    SPAN_MAX,
    Backoff,
    GiveUp,
    RetryAt,
    RetryPolicy,
    after_failure,
    microseconds,
    policy_from,
    storable,
)
from tests.engine.test_interrupts import handled_by

seconds = st.floats(0, 1e6).map(lambda n: timedelta(seconds=n))
backoffs = st.builds(Backoff, first=seconds, factor=st.floats(1, 1000), cap=seconds, jitter=st.floats(0, 1))
chances = st.floats(0, 1, exclude_max=True)
NOW = 1_000 * SECOND


def policy(**given_: Any) -> RetryPolicy:
    return policy_from(**{"max_attempts": 3, "backoff": None, "timeout": None, "retry_on": None} | given_)


def test_the_default_is_three_attempts_two_seconds_doubling_up_to_a_minute() -> None:
    assert policy() is DEFAULT
    delays = [Backoff().delay(attempt, 0.0).total_seconds() for attempt in range(1, 9)]
    assert delays == [min(2**failed, 60) for failed in range(1, 9)] == [2, 4, 8, 16, 32, 60, 60, 60]


@given(backoffs, st.integers(1, 10_000), chances)
def test_a_delay_never_exceeds_its_cap_and_jitter_only_shortens_it(
    backoff: Backoff, attempt: int, chance: float
) -> None:
    delay, cap = backoff.delay(attempt, chance).total_seconds(), backoff.cap.total_seconds()
    grown = min(cap, backoff.first.total_seconds() * backoff.factor ** min(attempt - 1, 64))
    slack = 1e-6 + grown * 1e-9
    assert grown * (1 - backoff.jitter) - slack <= delay <= grown + slack
    assert 0 <= delay <= cap + slack


@given(backoffs, st.integers(1, 100))
def test_delays_never_shrink_from_one_attempt_to_the_next(backoff: Backoff, attempt: int) -> None:
    assert backoff.delay(attempt, 0.5) <= backoff.delay(attempt + 1, 0.5)


def test_jitter_takes_off_up_to_its_share_and_adds_nothing() -> None:
    backoff = Backoff(first=timedelta(seconds=10), jitter=0.2)
    assert [backoff.delay(1, chance).total_seconds() for chance in (0.0, 0.5, 1.0)] == [10, 9, 8]


def test_a_timedelta_means_always_that_long() -> None:
    flat = policy(backoff=timedelta(seconds=7)).backoff
    assert isinstance(flat, Backoff)
    assert {flat.delay(attempt, chance) for attempt in (1, 5, 100) for chance in (0.0, 0.9)} == {timedelta(seconds=7)}


@given(st.integers(1, 20), st.integers(1, 20), chances)
def test_attempts_are_tried_up_to_the_maximum_and_not_once_more(attempt: int, most: int, chance: float) -> None:
    match after_failure(attempt, policy(max_attempts=most), None, NOW, chance):
        case RetryAt(at):
            assert attempt < most and at >= NOW
        case GiveUp(reason):
            assert attempt >= most and reason == f"failed {attempt} time{'s' if attempt > 1 else ''}"


def test_the_next_attempt_comes_after_the_delay() -> None:
    assert after_failure(2, policy(backoff=Backoff(jitter=0)), ValueError(), NOW, 0.5) == RetryAt(NOW + 4 * SECOND)


@pytest.mark.parametrize(
    ("function", "delays"),
    [
        (lambda failed: 10 * failed, [10, 20, 30]),
        (lambda failed: timedelta(minutes=failed), [60, 120, 180]),
        (lambda failed, factor=2.5: failed * factor, [2.5, 5, 7.5]),
        (abs, [1, 2, 3]),
        ((0.0, 7, 600).__getitem__, [7, 600, None]),
    ],
)
def test_a_function_of_the_failed_attempt_says_how_long_to_wait_without_jitter_or_cap(
    function: Any, delays: list[float | None]
) -> None:
    for attempt, delay in enumerate(delays, 1):
        verdict = after_failure(attempt, policy(max_attempts=9, backoff=function), ValueError(), NOW, 0.9)
        if delay is not None:
            assert verdict == RetryAt(NOW + microseconds(delay))


def _raises(error: BaseException) -> Any:
    def backoff(failed: int) -> float:
        raise error

    return backoff


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (_raises(ValueError("no")), "backoff raised ValueError after attempt 2"),
        (_raises(KeyboardInterrupt()), "backoff raised KeyboardInterrupt after attempt 2"),
        (lambda failed: Unspeakable(), "backoff raised RuntimeError after attempt 2"),
        (lambda failed: None, "backoff gave None after attempt 2: expected seconds or a timedelta, from 0 on"),
        (lambda failed: "5", "backoff gave '5'"),
        (lambda failed: True, "backoff gave True"),
        (lambda failed: -1, "backoff gave -1"),
        (lambda failed: math.nan, "backoff gave nan"),
        (lambda failed: timedelta(-1), "backoff gave datetime.timedelta"),
    ],
)
def test_a_backoff_function_that_gives_no_delay_is_named_and_the_default_is_taken(function: Any, said: str) -> None:
    verdict = after_failure(2, policy(backoff=function), ValueError(), NOW, 0.0)
    assert isinstance(verdict, RetryAt) and verdict.at == NOW + 4 * SECOND
    assert verdict.mistake.startswith(said)


def test_a_backoff_function_does_not_shorten_what_an_error_asks_for() -> None:
    assert after_failure(1, policy(backoff=lambda failed: 1), Busy(90), NOW, 0.5) == RetryAt(NOW + 90 * SECOND)


def test_a_delay_for_ever_still_fits_the_clock() -> None:
    verdict = after_failure(1, policy(backoff=lambda failed: math.inf), None, NOW, 0.5)
    assert verdict == RetryAt(NOW + SPAN_MAX)


class Busy(Exception):
    def __init__(self, retry_after: Any) -> None:
        self.retry_after = retry_after


class Broken(Exception):
    @property
    def retry_after(self) -> float:
        raise RuntimeError("no")


@given(st.one_of(st.integers(0, 86_400), st.floats(0, 86_400)), backoffs, chances)
def test_the_next_attempt_never_comes_before_the_time_an_error_asks_for(
    asked: float, backoff: Backoff, chance: float
) -> None:
    plain = after_failure(1, policy(backoff=backoff), ValueError(), NOW, chance)
    verdict = after_failure(1, policy(backoff=backoff), Busy(asked), NOW, chance)
    assert isinstance(plain, RetryAt)
    assert verdict == RetryAt(max(plain.at, NOW + microseconds(asked)))


@pytest.mark.parametrize(
    "error",
    [Busy(wrong) for wrong in (None, "17", True, -1, 86_401, math.inf, math.nan, [], timedelta(seconds=17))]
    + [Broken()],
)
def test_what_is_no_number_of_seconds_within_a_day_asks_for_nothing(error: Exception) -> None:
    assert after_failure(2, policy(backoff=Backoff(jitter=0)), error, NOW, 0.5) == RetryAt(NOW + 4 * SECOND)


def test_asking_to_wait_gives_no_further_attempt() -> None:
    assert isinstance(after_failure(3, policy(), Busy(17), NOW, 0.5), GiveUp)
    assert isinstance(after_failure(1, policy(retry_on=OSError), Busy(17), NOW, 0.5), GiveUp)


@pytest.mark.parametrize(
    ("retry_on", "error", "again"),
    [
        (None, ValueError(), True),
        (OSError, ConnectionResetError(), True),
        ((OSError, KeyError), KeyError(), True),
        (OSError, ValueError(), False),
        ((), ValueError(), False),
        (OSError, None, True),  # nobody saw an error: the worker is gone
    ],
)
def test_only_failures_in_retry_on_are_tried_again(retry_on: Any, error: Exception | None, again: bool) -> None:
    verdict = after_failure(1, policy(retry_on=retry_on), error, NOW, 0.5)
    assert isinstance(verdict, RetryAt) == again
    if isinstance(verdict, GiveUp):
        assert verdict.reason == "ValueError is not in retry_on"


async def _later(failed: int) -> float:
    return 5


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"max_attempts": 0}, "max_attempts is 0: expected a whole number from 1 on"),
        ({"max_attempts": -1}, "max_attempts is -1"),
        ({"max_attempts": 2.5}, "max_attempts is 2.5"),
        ({"max_attempts": "3"}, "max_attempts is '3'"),
        ({"timeout": 0}, "timeout is 0: expected a positive number of seconds or a timedelta"),
        ({"timeout": -1.0}, "timeout is -1.0"),
        ({"timeout": timedelta(0)}, "timeout is datetime.timedelta"),
        ({"timeout": math.nan}, "timeout is nan"),
        ({"timeout": math.inf}, "timeout is inf"),
        ({"timeout": "5"}, "timeout is '5'"),
        ({"backoff": 5}, "backoff is 5: expected a timedelta, a Backoff or a function of the failed attempt"),
        ({"backoff": lambda: 5}, "expected a function of one argument, the failed attempt"),
        ({"backoff": lambda failed, more: 5}, "expected a function of one argument"),
        ({"backoff": _later}, "expected a plain function that returns seconds or a timedelta"),
        ({"backoff": timedelta}, "expected a plain function"),
        ({"backoff": timedelta(seconds=-1)}, "expected delays from 0"),
        ({"backoff": timedelta.max}, "expected delays from 0 to a thousand years"),
        ({"backoff": Backoff(first=timedelta(seconds=-1))}, "expected delays from 0"),
        ({"backoff": Backoff(cap=timedelta(seconds=-1))}, "expected delays from 0"),
        ({"backoff": Backoff(jitter=1.5)}, "a jitter from 0 to 1"),
        ({"backoff": Backoff(jitter=-0.1)}, "a jitter from 0 to 1"),
        ({"backoff": Backoff(factor=0)}, "a factor from 1 to 1,000"),
        ({"backoff": Backoff(factor=1e10)}, "a factor from 1 to 1,000"),
        ({"backoff": Backoff(factor=math.nan)}, "a factor from 1 to 1,000"),
        ({"retry_on": 5}, "retry_on holds 5: expected an exception class"),
        ({"retry_on": "ValueError"}, "retry_on holds 'ValueError'"),
        ({"retry_on": (ValueError, int)}, "retry_on holds <class 'int'>"),
        ({"retry_on": [ValueError]}, "retry_on holds \\[<class"),
    ],
)
def test_a_policy_that_cannot_work_is_refused_where_it_is_declared(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(BadDefinition, match=said):
        policy(**given_)


def test_a_span_is_whole_microseconds_and_for_ever_still_fits_a_bigint() -> None:
    assert microseconds(1.5) == microseconds(timedelta(seconds=1.5)) == 1_500_000
    assert microseconds(timedelta(days=1, microseconds=1)) == 86_400_000_001
    assert microseconds(timedelta.max) == microseconds(1e300) == microseconds(math.inf) == SPAN_MAX
    assert SPAN_MAX + 10 * 366 * 86_400 * SECOND < 2**63


@given(st.text(st.characters()))
def test_storable_text_is_text_both_databases_take(text: str) -> None:
    assert "\x00" not in storable(text)
    storable(text).encode()


def test_ctrl_c_in_a_back_off_function_is_not_its_failure() -> None:
    def pressed(failed: int) -> float:
        signal.raise_signal(signal.SIGINT)
        return 1.0

    with handled_by(signal.SIGINT, signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        after_failure(1, RetryPolicy(backoff=pressed), ValueError("no"), NOW, 0.5)
