"""When to try again: the retry policy of a step, and what follows from a failed attempt."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta

import msgspec

from holdfast.engine.errors import BadDefinition
from holdfast.engine.interrupts import is_interrupt

SECOND = 1_000_000
ASKED_MAX = 86_400  # seconds that an error may ask us to wait
SPAN_MAX = 1000 * 366 * 86_400 * SECOND  # a thousand years: for ever, and still a bigint when added to now


class Backoff(msgspec.Struct, frozen=True):
    """Exponential by default: first, first × factor, … up to the cap, each shortened by the jitter."""

    first: timedelta = timedelta(seconds=2)
    factor: float = 2.0
    cap: timedelta = timedelta(seconds=60)
    jitter: float = 0.2  # up to this share of the delay is taken off at random: the cap is never exceeded

    def delay(self, attempt: int, chance: float) -> timedelta:
        grown = min(self.first.total_seconds() * self.factor ** min(attempt - 1, 64), self.cap.total_seconds())
        return timedelta(seconds=grown * (1 - self.jitter * chance))


BackoffFunction = Callable[[int], float | timedelta]  # of the failed attempt, from 1 on
BackoffOption = Backoff | timedelta | BackoffFunction


class RetryPolicy(msgspec.Struct, frozen=True):
    max_attempts: int = 3
    backoff: Backoff | BackoffFunction = Backoff()
    timeout: float | None = None  # seconds one attempt may take
    retry_on: tuple[type[BaseException], ...] | None = None


class RetryAt(msgspec.Struct, frozen=True):
    at: int
    """Microseconds of the store's clock."""
    mistake: str = ""
    """What is wrong with the author's back-off function, if it gave no delay and the default one was taken."""


class GiveUp(msgspec.Struct, frozen=True):
    reason: str


DEFAULT = RetryPolicy()


def policy_from(
    max_attempts: int, backoff: BackoffOption | None, timeout: float | timedelta | None,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] | None,
) -> RetryPolicy:  # fmt: skip
    if max_attempts == 3 and backoff is None and timeout is None and retry_on is None:
        return DEFAULT
    if not isinstance(max_attempts, int) or max_attempts < 1:
        raise BadDefinition(f"max_attempts is {max_attempts!r}: expected a whole number from 1 on")
    if backoff is None:
        backoff = Backoff()
    elif isinstance(backoff, timedelta):
        backoff = _checked(Backoff(first=backoff, factor=1.0, cap=backoff, jitter=0.0))
    else:
        backoff = _checked(backoff)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and not (isinstance(seconds, (int, float)) and 0 < seconds <= SPAN_MAX / SECOND):
        raise BadDefinition(f"timeout is {timeout!r}: expected a positive number of seconds or a timedelta")
    if retry_on is not None and not isinstance(retry_on, tuple):
        retry_on = (retry_on,)
    for kind in retry_on or ():
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise BadDefinition(f"retry_on holds {kind!r}: expected an exception class or a tuple of them")
    return RetryPolicy(max_attempts, backoff, seconds, retry_on)


def _checked(backoff: object) -> Backoff | BackoffFunction:
    """Refused where it is declared: a delay that cannot be computed would surface only after the first failure."""
    if callable(backoff):
        return _checked_function(backoff)
    if not isinstance(backoff, Backoff):
        raise BadDefinition(
            f"backoff is {backoff!r}: expected a timedelta, a Backoff or a function of the failed attempt"
        )
    if backoff.first < timedelta(0) or not timedelta(0) <= backoff.cap <= timedelta(microseconds=SPAN_MAX):
        raise BadDefinition(f"backoff is {backoff!r}: expected delays from 0 to a thousand years")
    if not 1 <= backoff.factor <= 1000 or not 0 <= backoff.jitter <= 1:
        raise BadDefinition(f"backoff is {backoff!r}: expected a factor from 1 to 1,000 and a jitter from 0 to 1")
    return backoff


def _checked_function(function: Callable[..., object]) -> BackoffFunction:
    try:
        inspect.signature(function).bind(1)
    except TypeError:
        raise BadDefinition(
            f"backoff is {function!r}: expected a function of one argument, the failed attempt"
        ) from None
    except ValueError:  # some built-in functions do not tell their parameters
        pass
    if inspect.iscoroutinefunction(function) or isinstance(function, type):
        raise BadDefinition(f"backoff is {function!r}: expected a plain function that returns seconds or a timedelta")
    return function  # type: ignore[return-value]


def after_failure(
    attempt: int, policy: RetryPolicy, error: BaseException | None, now: int, chance: float
) -> RetryAt | GiveUp:
    if error is not None and policy.retry_on is not None and not isinstance(error, policy.retry_on):
        return GiveUp(f"{type(error).__name__} is not in retry_on")
    if attempt >= policy.max_attempts:
        return GiveUp(f"failed {attempt} time{'s' if attempt > 1 else ''}")
    delay, mistake = pause(policy, attempt, chance)
    return RetryAt(now + max(delay, asked_wait(error)), mistake)


def pause(policy: RetryPolicy, attempt: int, chance: float) -> tuple[int, str]:
    """Microseconds between this failed attempt and the next. An author's function that raises, or answers with anything
    but a delay, is named beside the default delay: a call must not fail because of how long to wait."""
    if isinstance(policy.backoff, Backoff):
        return microseconds(policy.backoff.delay(attempt, chance)), ""
    default = microseconds(Backoff().delay(attempt, chance))
    try:
        given: object = policy.backoff(attempt)
        if isinstance(given, timedelta) and given >= timedelta(0):
            return microseconds(given), ""
        if isinstance(given, (int, float)) and not isinstance(given, bool) and given >= 0:  # NaN compares false
            return microseconds(given), ""
        return default, f"backoff gave {given!r} after attempt {attempt}: expected seconds or a timedelta, from 0 on"
    except BaseException as error:  # an author's code, which may raise anything, also as it is described
        if is_interrupt(error):
            raise
        return default, f"backoff raised {type(error).__name__} after attempt {attempt}"


def asked_wait(error: BaseException | None) -> int:
    """An error may carry `retry_after`, the seconds that a server asks us to wait; anything else in it says nothing."""
    try:
        seconds: object = getattr(error, "retry_after", None)
    except BaseException as odd:  # an author's property: its failure is not ours to report
        if is_interrupt(odd):
            raise
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= ASKED_MAX:
        return 0  # NaN compares false
    return microseconds(seconds)


def microseconds(span: timedelta | float | int) -> int:
    if isinstance(span, timedelta):
        return min((span.days * 86_400 + span.seconds) * SECOND + span.microseconds, SPAN_MAX)
    return round(span * SECOND) if span * SECOND < SPAN_MAX else SPAN_MAX


def storable(text: str) -> str:
    """Text as both databases can keep it: no NUL, no lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


Chance = Callable[[], float]
