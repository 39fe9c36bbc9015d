"""What effects came back with when no turn could take it any more, on its way to the database.

It is kept in memory until the database takes it, however long that is away: whoever settles the effect wants to see it.
Memory is bounded; what does not fit, or is still here when the process must end, is logged with what it said.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog

from holdfast.engine import codec
from holdfast.engine.retry import storable
from holdfast.store.port import Store, without_values

log = structlog.get_logger("holdfast.worker")
ROWS_MAX = 10_000
BYTES_MAX = 64 * 1024 * 1024
SAID_MAX = 2_000  # bytes of what was said that a log line shows
PAUSE_FIRST, PAUSE_MAX = 0.05, 5.0

Kept = tuple[dict[str, Any], dict[str, Any]]  # the row, and the fields by which log lines about it are found


class Evidence:
    def __init__(self, store: Store, spawn: Callable[[Any], asyncio.Task[Any]]) -> None:
        self.store = store
        self._spawn = spawn
        self._waiting: deque[Kept] = deque()
        self._bytes = 0
        self._writing: asyncio.Task[Any] | None = None
        self._ending = False

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, row: dict[str, Any], about: dict[str, Any]) -> asyncio.Task[Any] | None:
        """Write it, now or later. Answers the task that does, for who wants to wait for it."""
        size = len(row["payload"])
        if len(self._waiting) >= ROWS_MAX or self._bytes + size > BYTES_MAX:
            _lost(row, about, "too much waits for the database already")
            return None
        self._waiting.append((row, about))
        self._bytes += size
        if self._writing is None or self._writing.done():
            self._writing = self._spawn(self._write())
        return self._writing

    async def _write(self) -> None:
        pause = PAUSE_FIRST
        while self._waiting:
            row, about = self._waiting[0]
            try:
                await self.store.write("observe_effect", **row)
            except Exception as error:
                reason = without_values(error)
                log.warning("evidence_waits", **about, error=reason, waiting=len(self._waiting))
                if self._ending:
                    self._lose(reason)
                    return
                if not self.store.blames_the_data(error):
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, PAUSE_MAX)
                    continue
                _lost(row, about, reason)  # waiting mends nothing, and would hold up what came after it
            self._waiting.popleft()
            self._bytes -= len(row["payload"])
            pause = PAUSE_FIRST

    async def close(self, timeout: float) -> None:
        """Write what waits, for so long at most. What comes later is tried once."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait({self._writing}, timeout=timeout)
        self._ending = True
        self._lose("the worker ends, and the database has not taken it")

    def _lose(self, reason: str) -> None:
        for row, about in self._waiting:
            _lost(row, about, reason)
        self._waiting.clear()
        self._bytes = 0


def shown(value: Any) -> str:
    """What a handler returned and JSON cannot say, as an author's own `repr` spells it."""
    try:
        return storable(repr(value)[:SAID_MAX])
    except Exception:
        return f"a {type(value).__name__} whose repr raises"


def _lost(row: dict[str, Any], about: dict[str, Any], reason: str) -> None:
    payload: bytes = row["payload"]
    said = codec.decode(payload) if len(payload) <= SAID_MAX else f"{len(payload):,} bytes"
    log.error("evidence_lost", **about, outcome=row["outcome"], said=said, reason=reason)
