"""Notices that the event loop stands still: a body that never awaits, an async handler that blocks.

Neither can be interrupted. It is said as an error, with the stack of the loop's thread and whose code it runs; whoever
looks gives up what the worker holds.
"""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from threading import get_ident
from types import FrameType
from typing import Any

import structlog

from holdfast.engine.stacks import OURS
from holdfast.worker.turns import UnderClaim

log = structlog.get_logger("holdfast.worker")
TICK_SECONDS = 1.0
STACK_MAX = 8_000  # characters


class LoopWatch:
    def __init__(self, patience: float) -> None:
        self.is_silent = False
        """The loop has not turned for as long as the lease."""
        self._patience = patience
        self._silent_for = 0.0
        self._looked_at = time.monotonic()
        self._ticked = True
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """On the loop's own thread."""
        self._thread = get_ident()
        self._tick(asyncio.get_running_loop())

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ticked = True
        self._timer = loop.call_later(TICK_SECONDS, self._tick, loop)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """On another thread, about once a second."""
        now = time.monotonic()
        # A process that was stopped has not looked either: that time is nobody's silence.
        passed, self._looked_at = min(now - self._looked_at, 2 * TICK_SECONDS), now
        if not self._ticked:
            self._silent_for += passed
            if self._silent_for >= self._patience and not self.is_silent:
                self.is_silent = True
                self._say()
            return
        self._ticked, self._silent_for, self.is_silent = False, 0.0, False

    def _say(self) -> None:
        frame = sys._current_frames().get(self._thread)
        stack = "" if frame is None else "".join(traceback.format_stack(frame))[-STACK_MAX:]
        log.error("loop_stands_still", **whose_code(frame), seconds=round(self._silent_for), stack=stack)


def whose_code(frame: FrameType | None) -> dict[str, Any]:
    """Which instance, and which call of it, this stack belongs to. Only frames of Holdfast are looked into."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS):
            held = frame.f_locals
            execution = held.get("ex", held.get("self"))
            if isinstance(execution, UnderClaim):
                call = held.get("call")
                if execution.running and getattr(call, "key", None) in execution.running:
                    return execution.worker.about(execution, call)
                return execution.worker.about(execution)
        frame = frame.f_back
    return {}
