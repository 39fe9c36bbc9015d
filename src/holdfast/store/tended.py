"""A task that must run for as long as its owner does: one that ends is said as an error, and begun again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any

import structlog

from holdfast.engine.scope import SCOPE, Scope, fields_of
from holdfast.engine.stacks import spelled

log = structlog.get_logger("holdfast.worker")
AGAIN_SECONDS = 1.0


class OwnTask(asyncio.Task[Any]):
    """A task of Holdfast's own. An author's code that cancels every task it can find does not reach it: it would end
    what all instances of the worker need."""

    __slots__ = ()

    def cancel(self, msg: Any = None) -> bool:
        scope = SCOPE.get()
        if scope is not None and not self.belongs_to(scope):
            log.error("cancel_refused", task=self.get_name(), **fields_of(scope))
            return False
        return super().cancel(msg)

    def belongs_to(self, scope: Scope) -> bool:
        return False

    def end(self) -> None:
        """Holdfast itself cancels it, wherever it was called from."""
        super().cancel()


def own_task(work: Coroutine[Any, Any, Any], name: str) -> OwnTask:
    """Nobody's code runs in it, whoever's caused it."""
    context = copy_context()
    context.run(SCOPE.set, None)
    return OwnTask(work, name=name, context=context)


class Tended:
    def __init__(self, name: str, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.task: OwnTask | None = None
        self.is_down = False
        """It has ended, and was not begun again yet."""
        self._run = run
        self._stopped = False

    def start(self) -> None:
        if self._stopped:
            return
        self.is_down = False
        self.task = own_task(self._run(), f"holdfast-{self.name}")
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whatever ended it: our own mistake, or an author's code that cancels what is not its own. One that returns
        has done what it was to do."""
        if self._stopped or (not task.cancelled() and task.exception() is None):
            return
        error = task.exception() if not task.cancelled() else None
        self.is_down = True
        log.error("worker_task_ended", task=self.name, error="cancelled" if error is None else spelled(error))
        # Later: a loop that cancels everything because it is ending has ended by then.
        task.get_loop().call_later(AGAIN_SECONDS, self.start)

    def cancel(self) -> None:
        """Not to be begun again."""
        self._stopped = True
        if self.task is not None:
            self.task.end()

    async def stop(self) -> None:
        self.cancel()
        if self.task is not None:
            await asyncio.gather(self.task, return_exceptions=True)
