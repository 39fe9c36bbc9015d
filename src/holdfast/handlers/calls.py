"""Runs authors' functions: async ones on the loop, sync ones in threads, quick ones where they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from holdfast.engine.errors import NotApplied
from holdfast.engine.signatures import Signature, StepInfo
from holdfast.engine.tasks import TaskInfo

CANCEL_SECONDS = 1.0  # for what a handler does when it is cancelled


def bound(
    function: Callable[..., Any], args: tuple[Any, ...], signature: Signature, info: StepInfo | TaskInfo
) -> Callable[[], Any]:
    """The call with its StepInfo in the place where it asks for it."""
    assert signature.info is not None
    if signature.only_info:
        return partial(function, info)
    at = signature.info_at
    if at is None or at > len(args):
        return partial(function, *args, **{signature.info: info})
    return partial(function, *args[:at], info, *args[at:])


async def call_async(
    function: Callable[..., Any], args: tuple[Any, ...], timeout: float | None, outlasts: Callable[[], None]
) -> Any:
    """`outlasts` is told once if the function goes on though it was cancelled at its time-out."""
    if timeout is None:
        return await function(*args)
    async with asyncio.timeout(timeout):
        watch = asyncio.get_running_loop().call_later(timeout + CANCEL_SECONDS, outlasts)
        try:
            return await function(*args)
        finally:
            watch.cancel()


class HandlerExited(Exception):
    """A handler in a thread raised what no future takes: it called `sys.exit()`, or a `next(…)` found nothing."""


def _contained(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The loop would end the process, and every other instance's work with it, for what is this handler's failure; or
    nobody would hear of it. No signal ever lands in a thread."""
    try:
        return function(*args)
    except StopIteration as error:
        raise HandlerExited("the handler raised StopIteration: as a rule a next(…) that found nothing") from error
    except (KeyboardInterrupt, SystemExit, GeneratorExit) as error:
        raise HandlerExited(f"the handler raised {type(error).__name__}: raise an Exception instead") from error


class Threads:
    """Where sync handlers run, and which of their calls are in line or under way."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="holdfast-step")
        self._jobs: set[Future[Any]] = set()  # threads take out what is done
        self._effects: set[Future[Any]] = set()

    def begin(self, work: Callable[[], Any], *, effect: bool) -> Future[Any]:
        job = self._pool.submit(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        if effect:
            self._effects.add(job)
            job.add_done_callback(self._effects.discard)
        return job

    def busy(self) -> int:
        return sum(job.running() for job in list(self._jobs))

    def waiting(self) -> int:
        """Calls that no thread has begun."""
        return len(self._jobs) - self.busy()

    def effects(self) -> list[Future[Any]]:
        """Calls of effects that a thread has begun and that have not come back."""
        return [job for job in list(self._effects) if job.running()]

    def shutdown(self, *, wait: bool) -> None:
        """What no thread has begun never begins. What one has begun cannot be stopped."""
        self._pool.shutdown(wait=wait, cancel_futures=True)


async def call_in_thread(
    threads: Threads,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout: float | None,
    late: Callable[[asyncio.Future[Any]], None] | None = None,
) -> Any:
    """`late`, of an effect, is told the future of a call that outlives its time-out: the thread cannot be stopped."""
    effect = late is not None
    job = threads.begin(partial(copy_context().run, _contained, function, args), effect=effect)
    running = asyncio.wrap_future(job)
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.shield(running)
    except (TimeoutError, asyncio.CancelledError) as error:
        if job.cancel() and effect:  # out of the line, so no thread will ever begin it
            raise NotApplied("no thread was free for it in time, so it was not begun") from error
        if running.done() and isinstance(error, TimeoutError):  # the handler's own, or it came back at the last moment
            return running.result()
        if late is not None:
            running.add_done_callback(late)
        raise
