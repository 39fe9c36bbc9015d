"""Runs authors' functions: async ones on the loop, sync ones in threads, quick ones where they stand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

from holdfast.engine.signatures import Signature, StepInfo
from holdfast.engine.tasks import TaskInfo

# What authors' code may raise that is no failure of its own: whoever calls it lets these pass, and takes any other
# exception for a failure, a BaseException too, or its instance would wait for ever.
ENDS_THE_PROCESS = (KeyboardInterrupt, SystemExit)
ENDS_THE_TASK = (*ENDS_THE_PROCESS, GeneratorExit)  # the last one where the loop itself is gone


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


async def call_async(function: Callable[..., Any], args: tuple[Any, ...], timeout: float | None) -> Any:
    if timeout is None:
        return await function(*args)
    async with asyncio.timeout(timeout):
        return await function(*args)


class HandlerExited(Exception):
    """A handler in a thread called `sys.exit()`, or raised KeyboardInterrupt itself: no signal ever lands there."""


def _contained(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The loop would end the process, and every other instance's work with it, for what is this handler's failure."""
    try:
        return function(*args)
    except ENDS_THE_TASK as error:
        raise HandlerExited(f"the handler raised {type(error).__name__}: raise an Exception instead") from error


async def call_in_thread(
    pool: ThreadPoolExecutor,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout: float | None,
    late: Callable[[asyncio.Future[Any]], None] | None = None,
) -> Any:
    """`late` is told the future of a call that outlives its time-out: the thread cannot be stopped."""
    running = asyncio.get_running_loop().run_in_executor(pool, partial(copy_context().run, _contained, function, args))
    if timeout is None:
        return await running
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.shield(running)
    except (TimeoutError, asyncio.CancelledError):
        if not running.done() and late is not None:
            running.add_done_callback(late)
        raise
