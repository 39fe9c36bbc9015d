"""A limit of time for an author's code that runs in this process and may never return.

A signal interrupts it wherever it stands, which only works in the main thread; elsewhere there is no limit.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
AGAIN_SECONDS = 0.5  # where the code has caught the interruption and goes on


class TookTooLong(BaseException):
    """No Exception: an author's own `except Exception` must not catch it."""


def within(seconds: float, work: Callable[[], T]) -> T | None:
    """What it returns; None: it was interrupted, also where that was taken for a failure of the code itself."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    is_inside, has_rung = True, False

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal has_rung
        if is_inside:
            has_rung = True
            raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
    try:
        found = work()
        is_inside = False
    except TookTooLong:
        return None
    finally:
        is_inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return None if has_rung else found
