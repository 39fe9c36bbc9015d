"""How a process of ours logs: lines for people on a terminal, JSON elsewhere, and no secrets in either.

Only processes that Holdfast owns (the commands) call `configure`; a library leaves logging to its application, handlers
and levels alike. Where that has configured nothing, `as_library` keeps our lines off standard output, and drops those
below a warning. `about_instance` and `InstanceFilter` are for applications too.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog

from holdfast.engine import scope
from holdfast.engine.hiding import HIDDEN, without_secrets

log = structlog.get_logger("holdfast.logs")
Format = Literal["auto", "console", "json"]
LEVELS = ("debug", "info", "warning", "error")
QUIET = ("httpx", "httpcore", "hpack", "uvicorn", "uvicorn.error", "uvicorn.access", "asyncio")
ID = re.compile(r"[a-z]{2,4}_[0-9a-f]{32}")
MOMENT = re.compile(r"\b\d{4}-(\d\d-\d\d)T(\d\d:\d\d)[\d:.]*Z")
SHORT_MAX = 54  # characters of a value, on a terminal that a person watches
UNUSUAL_MAX = 600  # the same, of a warning or an error: it ends with what to do
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed
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


def configure(level: str = "info", *, format: Format = "auto", short: bool = False) -> None:
    """For a process of ours: structlog and the standard library's `logging`, authors' lines too, in one format.

    `short`: for a person who watches: short ids, no trace ids, long values cut."""
    console = sys.stderr.isatty() if format == "auto" else format == "console"
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        about_instance,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at") if not console else _time_of_day(),
        structlog.processors.format_exc_info,  # before secrets are looked for: a traceback ends with an error's words
        redact,
    ]
    last = [*([in_short] if short and console else []), *_renderers(console)]
    structlog.configure(
        processors=[*common, *last],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: StandardErrorLogger(),
        cache_logger_on_first_use=False,
    )
    _configure_standard(level, common, last)


def _renderers(console: bool) -> list[Any]:
    if not console:
        return [structlog.processors.JSONRenderer(default=_as_text)]
    renderer = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty() and "NO_COLOR" not in os.environ,
        pad_event_to=18,
        pad_level=False,
        sort_keys=False,
        timestamp_key="at",
        exception_formatter=structlog.dev.plain_traceback,
    )
    return [what_first, renderer]


def _as_text(value: Any) -> str:
    """A value that is not JSON. A line must come out whatever its `repr` does."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _time_of_day() -> Any:
    return structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False, key="at")


# -- the standard library's


class StandardErrorHandler(logging.Handler):
    """Writes to whatever standard error is at that moment, one line for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception as error:  # arguments that do not fit the message, as a rule: say so in our own format
            log.error("log_line_lost", logger=record.name, line=str(record.msg), error=_as_text(error))


def _configure_standard(level: str, common: list[Any], last: list[Any]) -> None:
    before = [structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder(), *common[:-2]]
    after = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *common[-2:], *last]
    handler = StandardErrorHandler()
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=after))
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, StandardErrorHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in QUIET:  # libraries of ours that have a line for each request
        if logging.getLogger(name).level in (logging.NOTSET, logging.WARNING):
            logging.getLogger(name).setLevel(logging.NOTSET if level == "debug" else logging.WARNING)
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is not None and not isinstance(failed.exc_value, SystemExit):
        name = failed.thread.name if failed.thread is not None else ""
        log.error("thread_failed", thread=name, exc_info=failed.exc_value)


def _unraisable(raised: Any) -> None:
    """Raised where nobody could catch it: in a destructor, a callback of C code, at the end of a generator."""
    log.error("exception_ignored", where=_as_text(raised.object)[:200], exc_info=raised.exc_value)


# -- fields


def about_instance(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: whose author's function a line was written in. What the line itself says stays."""
    for name, value in scope.fields().items():
        event.setdefault(name, value)
    return event


class InstanceFilter(logging.Filter):
    """The same for the standard library: a filter for your handler. Every record has all of `FIELDS` after it, "" where
    there is none, so that a format may name them."""

    FIELDS = ("tenant_id", "instance_id", "workflow", "task_id", "step", "attempt", "trace_id")

    def filter(self, record: logging.LogRecord) -> bool:
        found = scope.fields()
        for name in self.FIELDS:
            if not hasattr(record, name):
                setattr(record, name, found.get(name, ""))
        return True


def what_first(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """For people: what happened stands before whom it happened to, and the usual tenant goes without saying."""
    if event.get("tenant_id") == "default":
        del event["tenant_id"]
    for name in ("event", "exception", "stack"):  # shown as they are: they must not steer the terminal
        if isinstance(text := event.get(name), str):
            event[name] = CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
    for name in ("logger", "workflow", "instance_id", "of", "tenant_id", "task_id", "trace_id"):
        if name in event:
            event[name] = event.pop(name)
    return event


def in_short(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """One line of a terminal for each event: of ids the end, which differs, and of long values the beginning."""
    for name in ("trace_id", *(["task_id"] if "step" in event else [])):  # a step is named by its task
        event.pop(name, None)
    if "exception" in event:
        event.pop("error", None)  # the traceback below ends with it
    if "instance_id" in event:
        event["of"] = f"{event.pop('workflow', '')}/{str(event.pop('instance_id'))[-6:]}"
    most = SHORT_MAX if event.get("level") in ("debug", "info") else UNUSUAL_MAX
    for name, value in event.items():
        if name in ("event", "exception", "stack", "at", "level") or not isinstance(value, str):
            continue
        if ID.fullmatch(value):
            event[name] = value[-6:]
            continue
        value = MOMENT.sub(r"\1 \2Z", value)
        event[name] = value if len(value) <= most else f"{value[: most - 1]}…"
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
