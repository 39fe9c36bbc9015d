"""Whose code is running: what a log line from inside an author's function is about."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

from holdfast.engine import ids
from holdfast.engine.trace import trace_id_of


class Whose(NamedTuple):
    """An instance, in as few words as name it: a context may outlive the claim, in a timer or a task of the author's,
    and must not keep the instance's whole state in memory."""

    tenant_id: str
    instance_id: bytes
    workflow: str
    trace: str | None

    def fields(self) -> dict[str, Any]:
        trace_id = trace_id_of(self.trace)
        return {
            "tenant_id": self.tenant_id, "instance_id": ids.instance_word(self.instance_id), "workflow": self.workflow,
            **({"trace_id": trace_id} if trace_id else {}),
        }  # fmt: skip


Scope = tuple[Whose, str | None, str, int]
"""The instance, the id of the task that runs (None: none), the call's key (empty: the workflow's body), the attempt."""

SCOPE: ContextVar[Scope | None] = ContextVar("holdfast_scope", default=None)
"""A variable per field would be easier to read and costs every step more than a microsecond; this one is looked into
only where a line is written. Tasks and threads that a handler starts inherit it."""


def fields_of(scope: Scope) -> dict[str, Any]:
    whose, task_id, step, attempt = scope
    task = {"task_id": task_id} if task_id else {}
    return whose.fields() | task | ({"step": step, "attempt": attempt} if step else {})


def fields() -> dict[str, Any]:
    """Tenant, instance, workflow, and where a handler runs step and attempt; empty outside of authors' functions."""
    found = SCOPE.get()
    return {} if found is None else fields_of(found)
