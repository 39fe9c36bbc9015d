"""Tasks as values: what a handler is told about the one it serves, and the words for where a task stands."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from holdfast.engine import codec
from holdfast.engine.calendar import check_calendar, moment_of, next_moment
from holdfast.engine.errors import HoldfastError
from holdfast.engine.spans import span

TaskType = Literal["HUMAN", "TIMER", "HTTP", "EMAIL", "AI", "SYSTEM"]
TYPES = ("HUMAN", "TIMER", "HTTP", "EMAIL", "AI", "SYSTEM")
STATUSES = ("pending", "running", "succeeded", "failed", "cancelled", "skipped")


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler may know about the task it serves. Ask for it with a parameter annotated `TaskInfo`."""

    tenant_id: str
    instance_id: str
    task_id: str
    workflow: str
    version: int
    type: str
    name: str
    attempt: int
    idempotency_key: str
    """The same for every attempt: pass it to the provider."""
    not_after: float | None = None
    """Unix time after which the call must not begin any more (effects only)."""
    input: Any = None
    options: dict[str, Any] = {}
    """Everything else the chart says about this task: for HTTP its url, for EMAIL its recipients, and so on."""
    trace_id: str | None = None


class TaskFault(Exception):
    """A task that cannot be made as its parameters turned out; `field` names the one at fault."""

    def __init__(self, field: str, message: str) -> None:
        self.field = field
        super().__init__(message)


class TaskPlan(NamedTuple):
    """A task as it will be born: its parameters resolved, its moments worked out, everything encoded."""

    type: str
    name: str
    title: str | None
    run_at: int | None  # None: at once, or never by itself (HUMAN)
    deadline: int | None
    max_attempts: int
    assignee: str | None
    groups: list[str] | None
    priority: int
    due_at: int | None
    follow_up_at: int | None
    input: Any
    options: dict[str, Any]
    raw_input: bytes
    raw_options: bytes


PLANNED = frozenset((
    "type", "name", "title", "input", "delay", "run_at", "calendar", "assignee", "groups", "priority", "due_in",
    "due_at", "follow_up_in", "follow_up_at", "deadline",
))  # fmt: skip
FOR_PEOPLE = frozenset(("assignee", "groups", "priority", "due_in"))
ATTEMPTS = {"HTTP": 3, "EMAIL": 3, "AI": 3, "SYSTEM": 3}


PLAIN = frozenset(("type", "name", "max_attempts", "handler", "backoff", "timeout"))


def plan_task(params: dict[str, Any], input_: Any, now: int, limit: int = codec.PAYLOAD_LIMIT) -> TaskPlan:
    """`params` as a chart resolved them. What only shows when the values are there is refused here."""
    type_, name = params["type"], params["name"]
    if type_ == "SYSTEM" and params.keys() <= PLAIN:  # what happens most: nothing to work out
        options = {key: value for key, value in params.items() if key != "type" and key != "name"}
        attempts = params.get("max_attempts", 3)
        return TaskPlan(
            type_, name, None, None, None, attempts, None, None, 0, None, None, input_, options,
            _encoded(input_, "input", name, limit), _encoded(options, "options", name, limit) if options else b"{}",
        )  # fmt: skip
    groups = params.get("groups")
    if isinstance(groups, str):
        groups = [groups]
    if groups is not None and (not isinstance(groups, list) or not all(isinstance(g, str) and g for g in groups)):
        raise TaskFault("groups", f"groups is {groups!r}: expected names of groups")
    priority = params.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or not -1000 <= priority <= 1000:
        raise TaskFault("priority", f"priority is {priority!r}: expected a whole number from -1,000 to 1,000")
    # Of an AI task, these are for the person who may have to decide about its answer.
    kept = FOR_PEOPLE if type_ == "AI" else frozenset[str]()
    options = {key: value for key, value in params.items() if key not in PLANNED or key in kept}
    if type_ == "AI":
        params, groups, priority = {k: v for k, v in params.items() if k not in kept}, None, 0
    deadline = _from_now(params, "deadline", now)
    if deadline is not None:
        options["@deadline"] = deadline
    return task_plan(
        type_, name, _text(params, "title"), _run_at(params, now),
        params.get("max_attempts", ATTEMPTS.get(type_, 1)), _text(params, "assignee"), groups, priority,
        _moment(params, "due", now), _moment(params, "follow_up", now), input_, options, limit,
    )  # fmt: skip


def task_plan(
    type_: str, name: str, title: str | None, run_at: int | None, max_attempts: int, assignee: str | None,
    groups: list[str] | None, priority: int, due_at: int | None, follow_up_at: int | None, input_: Any,
    options: dict[str, Any], limit: int,
) -> TaskPlan:  # fmt: skip
    return TaskPlan(
        type_, name, title, run_at, options.get("@deadline"), max_attempts, assignee, groups, priority, due_at,
        follow_up_at, input_, options, _encoded(input_, "input", name, limit),
        _encoded(options, "parameters", name, limit),
    )  # fmt: skip


def _encoded(value: Any, what: str, name: str, limit: int) -> bytes:
    try:
        return codec.encode(value, f"the {what} of task", limit, name)
    except HoldfastError as error:
        raise TaskFault(what, str(error)) from None


def _run_at(params: dict[str, Any], now: int) -> int | None:
    if "calendar" in params:
        problem = check_calendar(params["calendar"])
        if problem is not None:
            raise TaskFault("calendar", problem)
        return next_moment(params["calendar"], now)
    if "run_at" in params:
        found = moment_of(params["run_at"])
        if isinstance(found, str):
            raise TaskFault("run_at", found)
        return found
    return _from_now(params, "delay", now)


def _moment(params: dict[str, Any], name: str, now: int) -> int | None:
    if params.get(f"{name}_at") is not None:
        found = moment_of(params[f"{name}_at"])
        if isinstance(found, str):
            raise TaskFault(f"{name}_at", found)
        return found
    return _from_now(params, f"{name}_in", now)


def _from_now(params: dict[str, Any], name: str, now: int) -> int | None:
    if params.get(name) is None:
        return None
    found = span(params[name])
    if isinstance(found, str):
        raise TaskFault(name, found)
    return now + found


def _text(params: dict[str, Any], name: str) -> str | None:
    value = params.get(name)
    if value is not None and (not isinstance(value, str) or not 1 <= len(value) <= 500):
        raise TaskFault(name, f"{name} is {value!r}: expected a text of 1 to 500 characters")
    return value
