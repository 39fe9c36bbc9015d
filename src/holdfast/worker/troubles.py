"""Instances that this worker could not move though nobody died of it: how long each waits, and which one is parked.

A worker's death is counted in the instance's row, because a dead worker remembers nothing. Whatever else goes wrong is
remembered here, in the worker's memory: another worker, or the same one after a restart, tries afresh.
"""

from __future__ import annotations

from holdfast.engine.retry import SECOND

PARKED_AFTER = 5  # times in a row that the engine itself was at fault, or the database refused what the turn holds
PAUSE_FIRST = 1 * SECOND  # before the third try; the second one is made at once
PAUSE_MAX = 60 * SECOND
FORGOTTEN_AFTER = 600.0  # seconds without trouble
REMEMBERED = 10_000  # instances


class Trouble:
    __slots__ = ("at", "error", "own", "times")

    def __init__(self) -> None:
        self.times = 0
        self.own = 0  # those of them that waiting alone does not mend
        self.error = ""
        self.at = 0.0


class Troubles:
    def __init__(self) -> None:
        self._found: dict[bytes, Trouble] = {}  # by instance

    def met(self, instance_id: bytes, error: str, at: float, *, own: bool) -> int:
        """How many microseconds the instance waits before it is claimed again. `at`: the monotonic clock's seconds."""
        trouble = self._found.pop(instance_id, None)
        if trouble is None or at > trouble.at + FORGOTTEN_AFTER:
            trouble = Trouble()
        self._found[instance_id] = trouble  # as the last one
        if len(self._found) > REMEMBERED:
            del self._found[next(iter(self._found))]
        trouble.times += 1
        trouble.own += own
        trouble.error, trouble.at = error, at
        return 0 if trouble.times == 1 else min(PAUSE_FIRST << min(trouble.times - 2, 10), PAUSE_MAX)

    def to_park(self, instance_id: bytes) -> Trouble | None:
        """What to park it with, instead of trying once more. If that turn is refused, too, it is tried again a few
        times before the next: what the database refuses today, it may take tomorrow."""
        trouble = self._found.get(instance_id)
        return trouble if trouble is not None and trouble.own and trouble.own % PARKED_AFTER == 0 else None

    def over(self, instance_id: bytes) -> None:
        if self._found:
            self._found.pop(instance_id, None)
