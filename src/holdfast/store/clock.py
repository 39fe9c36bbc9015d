"""The time of a machine's clock that may be set: it follows the clock forwards, and comes back to it slowly.

Durations are measured by the monotonic clock. A clock that is set back would have everything wait until it has caught
up with itself, so time goes on from where it was, a tenth slower, until both agree again: nothing falls due early, and
nothing stands still.
"""

from __future__ import annotations

import time

from structlog import get_logger

log = get_logger("holdfast.clock")
SLOWER = 10  # by one part in so many, while time is ahead of the clock
APART = 10_000  # microseconds, within which the last digits of the machine's clock tell processes apart
AHEAD_MAX = 24 * 3600 * 1_000_000  # further ahead is not a clock that was set back, but a date that was wrong


class Clock:
    def __init__(self) -> None:
        self._told = 0  # the newest moment that was told
        self._ahead: tuple[int, int] = (0, 0)  # from when on it goes slower: our time, and the monotonic clock's

    def now(self) -> int:
        """Microseconds since 1970."""
        now = time.time_ns() // 1000
        if now < self._told:
            return self._ahead_of_the_clock()
        self._told = now
        return now

    def _ahead_of_the_clock(self) -> int:
        monotonic = time.monotonic_ns() // 1000
        told, at = self._ahead
        now = told + (monotonic - at) * (SLOWER - 1) // SLOWER
        if now < self._told:  # it was set back just now
            now = self._told
            self._ahead = (now, monotonic)
        self._told = now
        return now

    def not_before(self, moment: int) -> None:
        """Another process has written this: where its clock was ahead of ours, its time is ours. Processes that begin
        from one such moment must not all tell the same microsecond: a repeated commit knows its event by when it was
        sent."""
        now = self.now()
        ahead = moment - now
        if 0 < ahead <= AHEAD_MAX:
            self._told = moment + now % APART
        if ahead > 1_000_000:
            log.warning("clock_is_behind_the_database", seconds=ahead // 1_000_000, followed=ahead <= AHEAD_MAX)
