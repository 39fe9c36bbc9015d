"""Mistakes in an author's workflow that a deploy mends: its instance stands still instead of failing and compensating.

Decides which error, or which silence, at the end of a body is such a mistake. It must not know what follows from it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.engine.errors import BadDefinition, BadInput, ConcurrentName, NotAwaited, NotInWorkflow, RestartRefused
from holdfast.engine.stacks import behind, message_of, spelled, type_of

if TYPE_CHECKING:
    from holdfast.engine.replay import Call

OURS = (BadDefinition, BadInput, ConcurrentName, NotAwaited, NotInWorkflow, RestartRefused)
CHAIN_MAX = 20


def mistake_in(error: BaseException) -> str | None:
    """The sentence of the mistake, if a call of ours was refused; its author may have wrapped that error."""
    link: BaseException | None = error
    for _ in range(CHAIN_MAX):
        if link is None:
            return None
        if isinstance(link, OURS) or (isinstance(link, (TypeError, AttributeError)) and _raised_by_us(link)):
            return f"the workflow's code has a mistake: {type_of(link)}: {message_of(link)}"
        if isinstance(link, (TypeError, AttributeError)) and "'_asyncio.Future'" in message_of(link):
            return (
                f"the workflow's code has a mistake: {type_of(link)}: {message_of(link)}; the answer of a call on ctx "
                "is used before it is there: put `await` before that call"
            )
        cause, context = behind(link)
        link = cause or context
    return None


def _raised_by_us(error: BaseException) -> bool:
    """Whether a call on `ctx` does not exist, does not fit its signature, or got something it cannot work with."""
    text = message_of(error)
    if text.startswith(("Context.", "'Context' object")):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__", "")).startswith("holdfast.engine.")


def unheard(failed: list[Call], tasks: list[asyncio.Task[Any]]) -> str | None:
    """The sentence of a failure that the body never looked at, and so went on as if all was well."""
    for call in failed:
        if unread(call.future):
            return (
                f"the workflow returned, and the failure of {call.kind} {call.key!r} was never awaited "
                f"({call.future.exception()}): put `await` before its ctx.{call.kind}(…), or catch what it raises"
            )
    for task in tasks:
        if task.done() and unread(task) and (error := task.exception()) is not None:
            return (
                f"the workflow returned, and the failure of a task that it made was never awaited "
                f"({spelled(error)}): await the task, or catch what it raises"
            )
    return None


def unread(future: asyncio.Future[Any]) -> bool:
    """asyncio's own note for its line "exception was never retrieved"; reading the error of the future clears it."""
    return bool(getattr(future, "_log_traceback", False))
