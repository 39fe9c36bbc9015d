"""`ctx.log`: lines from a workflow's body, written once although the body runs again in every replay.

Whether a line is new is for the replay to say, and where it goes for the worker.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from holdfast.engine.stacks import traceback_text

Sink = Callable[[str, str, dict[str, Any]], None]
"""(level, event, fields)"""


class Log:
    """A logger for the body of a workflow: `ctx.log.info("priced", amount=5)`, or with `%s` as `logging` has it.

    Lines that were written before a replay came to them again are left out. After a crash a line may come twice."""

    def __init__(self, sink: Sink, replaying: Callable[[], bool], bound: dict[str, Any] | None = None) -> None:
        self._sink = sink
        self._replaying = replaying
        self._bound = bound or {}

    def bind(self, **fields: Any) -> Log:
        """A logger whose lines carry these fields too."""
        return Log(self._sink, self._replaying, self._bound | fields)

    def debug(self, event: str, /, *args: Any, **fields: Any) -> None:
        self._say("debug", event, args, fields)

    def info(self, event: str, /, *args: Any, **fields: Any) -> None:
        self._say("info", event, args, fields)

    def warning(self, event: str, /, *args: Any, **fields: Any) -> None:
        self._say("warning", event, args, fields)

    def error(self, event: str, /, *args: Any, **fields: Any) -> None:
        self._say("error", event, args, fields)

    def exception(self, event: str, /, *args: Any, **fields: Any) -> None:
        """As `error`, with the stack of the exception that is being handled."""
        error = sys.exception()
        self._say("error", event, args, fields if error is None else {"exception": traceback_text(error)} | fields)

    def _say(self, level: str, event: str, args: tuple[Any, ...], fields: dict[str, Any]) -> None:
        if self._replaying():
            return
        self._sink(level, _filled(event, args), self._bound | fields)


def _filled(event: str, args: tuple[Any, ...]) -> str:
    if not args:
        return event
    try:
        return event % args
    except (TypeError, ValueError):  # a line must not end a workflow
        return f"{event} {args!r}"
