"""Where an open call stands: ready to run, running, waiting for a time or a fact, or waiting for a person."""

from __future__ import annotations

from enum import Enum

# Effects by id and attempt whose call a thread of this process, or a coroutine that takes no cancel, is in; also those
# of a worker that was fenced or has stopped.
IN_CALLS: set[tuple[bytes, int]] = set()


class Phase(Enum):
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"


class Standing:
    __slots__ = ("at", "attempt", "phase")

    def __init__(self) -> None:
        self.phase = Phase.READY
        self.attempt = 1
        self.at: int | None = None

    def wait_until(self, at: int | None) -> None:
        self.phase = Phase.WAITING
        self.at = at

    def ready(self) -> None:
        self.phase = Phase.READY
        self.at = None


class EffectStanding(Standing):
    """An effect's own: what happens when its wait is over, and the times of its latest attempt."""

    __slots__ = (
        "asked_at", "asked_in_call", "escaped", "first_started_at", "lookups", "next", "not_after", "opens_at",
        "reason", "returned", "settles_at", "started_at", "unknown",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.next = "start"  # start | lookup | person
        self.reason = ""
        self.unknown = False  # nobody knows what became of the last attempt
        self.returned = False  # the last attempt's call came back, with whatever: it cannot act any more
        self.escaped = False  # some attempt's call never came back: it may act still
        self.lookups = 0
        self.first_started_at = 0
        self.started_at = 0
        self.not_after = 0
        self.opens_at = 0
        self.asked_at = 0  # when the lookup under way was begun: what it says is of then, however long it takes
        self.asked_in_call = False  # a thread was, or may have been, in the call then
        self.settles_at = 0  # until then a lookup that finds nothing proves nothing
