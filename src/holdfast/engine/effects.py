"""Rules for effects: what an error says about the world, and what may follow when nobody knows.

The one thing that must never happen is a second call that nobody allowed. So every rule here fails closed:
what is not known not to have happened is unknown.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.engine.errors import NotApplied, Rejected
from holdfast.engine.retry import SECOND, GiveUp, RetryAt, RetryPolicy, after_failure

GRACE = 5 * SECOND
LEASE = 15 * SECOND
LEASE_MARGIN = 2 * SECOND
Known = Literal["not_applied", "rejected", "unknown"]


class Found(msgspec.Struct, frozen=True):
    """A lookup's answer: the provider knows our key; this is the effect's result."""

    result: object = None


class Repeat(msgspec.Struct, frozen=True):
    """Start it again with the same key at that time."""

    at: int
    mistake: str = ""  # as in RetryAt


class LookUp(msgspec.Struct, frozen=True):
    """Ask the provider by our key at that time, then decide."""

    at: int


class AskPerson(msgspec.Struct, frozen=True):
    reason: str


def known_from(error: BaseException) -> Known:
    """By what the handler says, never by the kind of its error: a refused connection may be its second one, after the
    first had done the deed. A handler that sees its own bytes says `NotApplied`."""
    if isinstance(error, NotApplied):
        return "not_applied"
    if isinstance(error, Rejected):
        return "rejected"
    return "unknown"


def mode_changed(before: str, now: str) -> str:
    """Why a person is asked about an effect that may have happened."""
    return f"it was begun as {before!r} and the code now says {now!r}: only a person may say what became of it"


def effect_gone(before: str, words: str) -> str:
    """Why a person is asked about an effect of which the code makes none any more. `words`: what it makes instead."""
    return f"it was begun as {before!r}, and {words}: only a person may say what became of it"


def opens_at(not_after: int, timeout: float | None) -> int:
    """When a call that might still begin at `not_after` must be over: its time-out and a grace later."""
    return not_after + round((timeout or 0) * SECOND) + GRACE


def settles_at(over_at: int, opens: int, settle_after: int | None) -> int:
    """From when on "not found" means that it did not happen. A provider may book a call that we have given up, so as a
    rule not before any call of this attempt must be over. `over_at`: from then on ours cannot be under way any more;
    `settle_after`: what the author knows of the provider, in microseconds from there."""
    return max(over_at, opens) if settle_after is None else over_at + settle_after


def after_unknown(
    mode: str, attempt: int, policy: RetryPolicy, first_started_at: int, window: int, now: int, quiet_at: int,
    chance: float, asked: int = 0,
) -> Repeat | LookUp | AskPerson:  # fmt: skip
    """`quiet_at`: from then on the attempt cannot be under way any more (now, if its handler has returned). `asked`:
    microseconds for which the provider asked to be left alone; a lookup is a call to it like any other."""
    if mode == "lookup":
        return LookUp(max(now + asked, quiet_at))
    if mode == "keyed":
        match after_failure(attempt, policy, None, now, chance):
            case RetryAt(at, mistake):
                if at < first_started_at + window <= now + asked:
                    return AskPerson("the provider asks to be left alone for longer than it knows our key")
                at = max(at, now + asked)
                if at < first_started_at + window:
                    return Repeat(at, mistake)
                return AskPerson("the window in which the provider knows our key is over")
            case GiveUp(reason):
                return AskPerson(f"its outcome stayed unknown: {reason}")
    return AskPerson("its outcome is unknown and only a person may repeat it")


def may_choose(
    resolution: str, now: int, opens: int, worker_gone: bool, accept_double: bool, second_person: bool
) -> str | None:
    """Why the operator's choice is not open yet, or None. Only "did not happen: start it again" can double."""
    if resolution != "did_not_happen" or accept_double or second_person:
        return None
    if not worker_gone:
        return (
            "the worker that started it may still be running: wait until it is known gone, have a second person "
            "confirm (second_person=…), or accept a possible double (accept_double=True)"
        )
    if now < opens:
        return (
            f"the call may still be on its way for {(opens - now) / SECOND:.0f} s: wait, have a second person confirm "
            "(second_person=…), or accept a possible double (accept_double=True)"
        )
    return None
