"""How a process of ours logs: lines for people on a terminal, JSON elsewhere, and no secrets in either.

Only processes that Holdfast owns (the commands) call `configure`; a library leaves logging to its application. Where
that has configured nothing, `as_library` keeps our lines off standard output, and keeps those below a warning.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

Format = Literal["auto", "console", "json"]
LEVELS = ("debug", "info", "warning", "error")
HIDDEN = "***"
# A URL's password, wherever it stands in a text. It ends at the last @ before a space or a slash.
URL_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/]+(?=@)", re.IGNORECASE)
# Keys and tokens by the words before them, and our own by how they begin.
KEYS = re.compile(
    r"(?P<before>\b(?:bearer|basic) +)[\w.~+/=-]{8,}|\b(?P<begin>hfst_(?:live|test)_|whsec_)[\w+/=]+", re.IGNORECASE
)
SECRET_NAME = re.compile(r"password|passwd|secret|token|authorization|api_?key|private_?key|cookie", re.IGNORECASE)


class StandardErrorLogger:
    """Writes to whatever standard error is at that moment, so a stream replaced meanwhile is never written to."""

    def msg(self, message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    debug = info = warning = error = critical = exception = log = msg


class LibraryLogger(StandardErrorLogger):
    """For an application that has set up nothing: warnings and worse, and no secrets."""

    def msg(self, message: str) -> None:
        super().msg(without_secrets(str(message)))

    def drop(self, message: str) -> None: ...

    debug = info = log = drop
    warning = error = critical = exception = msg


def as_library() -> None:
    """Unless the application has said how to log: our own lines only, everybody else's stay as they were."""
    if structlog.is_configured():
        return
    others = structlog.PrintLoggerFactory()

    def factory(*names: Any) -> Any:
        ours = bool(names) and isinstance(names[0], str) and f"{names[0]}.".startswith("holdfast.")
        return LibraryLogger() if ours else others(*names)

    structlog.configure(logger_factory=factory)


def configure(level: str = "info", *, format: Format = "auto") -> None:
    console = sys.stderr.isatty() if format == "auto" else format == "console"
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at") if not console else _time_of_day(),
        structlog.processors.format_exc_info,  # before secrets are looked for: a traceback ends with an error's words
        redact,
    ]
    if console:
        colors = sys.stderr.isatty() and "NO_COLOR" not in os.environ
        last: list[Any] = [
            what_first,
            structlog.dev.ConsoleRenderer(
                colors=colors,
                pad_event_to=22,
                sort_keys=False,
                timestamp_key="at",
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    else:
        last = [structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*common, *last],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: StandardErrorLogger(),
        cache_logger_on_first_use=False,
    )


def _time_of_day() -> Any:
    return structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False, key="at")


def what_first(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For people: what happened stands before whom it happened to, and the usual tenant goes without saying."""
    if event.get("tenant_id") == "default":
        del event["tenant_id"]
    for name in ("workflow", "instance_id", "tenant_id", "task_id", "trace_id"):
        if name in event:
            event[name] = event.pop(name)
    return event


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide what is named like a secret, passwords inside URLs, and keys."""
    for name, value in event.items():
        event[name] = _redacted(name, value)
    return event


def _redacted(name: str, value: Any) -> Any:
    if value is not None and SECRET_NAME.search(name):
        return HIDDEN
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {key: _redacted(str(key), inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted("", inner) for inner in value]
    return value


def without_passwords(text: str) -> str:
    return URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", text)


def without_secrets(text: str) -> str:
    return KEYS.sub(lambda found: f"{found['before'] or found['begin']}{HIDDEN}", without_passwords(text))
