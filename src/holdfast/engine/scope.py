"""Whose code is running: what a log line from inside an author's function is about."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol


class Speaker(Protocol):
    """Who can say which instance, and which attempt of which call, a line is about."""

    def scope(self, call: Any, attempt: int) -> dict[str, Any]: ...


SCOPE: ContextVar[tuple[Speaker, Any, int] | None] = ContextVar("holdfast_scope", default=None)
"""An instance under claim, the call whose handler runs (None: the workflow's body), and the attempt.

A variable per field would be easier to read and costs every step more than a microsecond; this one is looked into only
where a line is written. Tasks and threads that a handler starts inherit it."""


def fields() -> dict[str, Any]:
    """Tenant, instance, workflow, and where a handler runs step and attempt; empty outside of authors' functions."""
    found = SCOPE.get()
    return {} if found is None else found[0].scope(found[1], found[2])
