"""Where an open call stands: ready to run, running, waiting for a time or a fact, or waiting for a person."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"


class Standing:
    __slots__ = (
        "at", "attempt", "first_started_at", "lookups", "next", "not_after", "opens_at", "phase", "reason",
        "started_at", "unknown",
    )  # fmt: skip

    def __init__(self) -> None:
        self.phase = Phase.READY
        self.attempt = 1
        self.at: int | None = None
        # An effect's own: what happens when the wait is over ("start", "lookup" or "person"), and its attempt's times.
        self.next = "start"
        self.reason = ""
        self.unknown = False  # nobody knows what became of the last attempt
        self.lookups = 0
        self.first_started_at = 0
        self.started_at = 0
        self.not_after = 0
        self.opens_at = 0

    def wait_until(self, at: int | None) -> None:
        self.phase = Phase.WAITING
        self.at = at

    def ready(self) -> None:
        self.phase = Phase.READY
        self.at = None
