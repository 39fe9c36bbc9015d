"""Rules for effects: what an error says about the world, and what may follow when nobody knows.

The one thing that must never happen is a second call that nobody allowed. So every rule here fails closed:
what is not known not to have happened is unknown.
"""

from __future__ import annotations

import socket
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


class LookUp(msgspec.Struct, frozen=True):
    """Ask the provider by our key at that time, then decide."""

    at: int


class AskPerson(msgspec.Struct, frozen=True):
    reason: str


def known_from(error: BaseException) -> Known:
    if isinstance(error, NotApplied):
        return "not_applied"
    if isinstance(error, Rejected):
        return "rejected"
    if isinstance(error, (ConnectionRefusedError, socket.gaierror)):
        return "not_applied"  # no connection was ever opened, so no byte left
    return "unknown"


def opens_at(not_after: int, timeout: float | None) -> int:
    """When a call that might still begin at `not_after` must be over: its time-out and a grace later."""
    return not_after + round((timeout or 0) * SECOND) + GRACE


def after_unknown(
    mode: str, attempt: int, policy: RetryPolicy, first_started_at: int, window: int, now: int, quiet_at: int,
    chance: float,
) -> Repeat | LookUp | AskPerson:  # fmt: skip
    """`quiet_at`: from then on the attempt cannot be under way any more (now, if its handler has returned)."""
    if mode == "lookup":
        return LookUp(max(now, quiet_at))
    if mode == "keyed":
        match after_failure(attempt, policy, None, now, chance):
            case RetryAt(at):
                if at < first_started_at + window:
                    return Repeat(at)
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
