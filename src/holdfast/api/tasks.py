"""Tasks over HTTP: the inbox, and what people do with a task."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Literal

import msgspec

from holdfast.api import shown
from holdfast.api.endpoints import Answer, Call, Endpoints, Reply
from holdfast.api.instances import INS, LISTED_BYTES
from holdfast.api.models import (
    Assign,
    Comment,
    CommentOut,
    Complete,
    Fail,
    Listing,
    TaskOut,
    TaskType,
)
from holdfast.api.paging import PAGE, Cursor, Limit, PageQuery, cursor_of, paged, read_cursor
from holdfast.api.problems import Fault, Problem
from holdfast.app import tasks
from holdfast.app.tasks import CommentView, TaskView
from holdfast.engine import ids
from holdfast.engine.errors import BadInput
from holdfast.engine.moments import when

TSK = "tsk_7d4e8f90a1b2c3d4e5f60192f0a1b2c3"
ONE: dict[str, Any] = {
    "id": TSK, "instance_id": INS, "definition_key": "expense", "key": "approve/2.0", "type": "HUMAN",
    "name": "approve", "title": "Approve the claim of Ada", "status": "pending", "run_at": None, "attempts": 0,
    "max_attempts": 1, "idempotency_key": "0192f0a1-b2c3-7d4e-8f90-a1b2c3d4e5f6", "input": {"amount_minor": 12500},
    "form": {"type": "object", "required": ["approve"], "properties": {"approve": {"type": "boolean"}}},
    "output": None, "error": None, "trace_id": None, "assignee": None, "groups": ["finance"], "priority": 0,
    "due_at": None, "follow_up_at": None, "version": 0, "created_at": "2026-11-16T10:00:01Z", "started_at": None,
    "completed_at": None, "completed_by": None, "left_out": [],
}  # fmt: skip
SAID = {
    "id": "cmt_0192f0a1b2c37d4e8f90a1b2c3d4e5f6", "task_id": TSK, "at": "2026-11-16T10:05:00Z", "author": "ann",
    "body": "asked Ada for the receipt",
}  # fmt: skip


class TasksQuery(msgspec.Struct, frozen=True):
    status: Literal["open", "any", "pending", "running", "succeeded", "failed", "cancelled", "skipped"] = "open"
    type: TaskType | None = None
    assignee: str | None = None
    group: str | None = None
    instance_id: str | None = None
    limit: Limit = PAGE
    cursor: Cursor | None = None


async def list_tasks(call: Call, query: TasksQuery) -> Reply:
    """Tasks that you may take or had; operators and auditors see all. By default the open ones, the most urgent first,
    then the oldest. Others: the newest first. A page with a `next_cursor` may be short, or empty: what you look for is
    rare, and there is more to look at."""
    limit = query.limit
    edge = read_cursor(query.cursor, range(1 << 32), int, str, bytes)
    if query.instance_id is not None:
        try:
            ids.parse("ins", query.instance_id)
        except BadInput as error:
            raise Problem("validation-failed", str(error), errors=[Fault(str(error), "/query/instance_id")]) from None
    found, last = await tasks.page_seen(
        call.service, call.tenant_id, call.caller, status=None if query.status == "any" else query.status,
        type=query.type, assignee=query.assignee, group=query.group, instance=query.instance_id, limit=limit,
        most=LISTED_BYTES, after=None if edge is None else (edge[0] - (1 << 31), edge[1], edge[2], edge[3]),
    )  # fmt: skip
    # Priorities may be negative, and a cursor's numbers are not.
    following = None if last is None else cursor_of(last[0] + (1 << 31), *last[1:])
    return Reply(200, Listing[TaskOut](items=[shown.task(view) for view in found], next_cursor=following))


def _groups(call: Call) -> frozenset[str] | None:
    """Whose tasks the caller may take; None: anybody's, because they may give tasks to whom they like."""
    return None if call.caller.may("tasks:assign") else call.caller.groups


def _one(view: TaskView) -> Reply:
    return Reply(200, shown.task(view), str(view.version))


def _seen(call: Call) -> Awaitable[TaskView]:
    return tasks.read_seen(call.service, call.tenant_id, call.word("tsk"), call.caller)


async def read_task(call: Call) -> Reply:
    """How it stands, with its form."""
    return _one(await _seen(call))


async def claim_task(call: Call) -> Reply:
    """Take it. Of two at once, one gets it; the other is told who has it."""
    return _one(
        await tasks.claim(
            call.service, call.tenant_id, call.word("tsk"), call.actor, groups=_groups(call),
            version=call.expected_version(), by=call.by,
        )
    )  # fmt: skip


async def unclaim_task(call: Call) -> Reply:
    """Put it back for others."""
    return _one(
        await tasks.unclaim(
            call.service, call.tenant_id, call.word("tsk"), call.actor, groups=_groups(call),
            version=call.expected_version(), by=call.by,
        )
    )  # fmt: skip


async def assign_task(call: Call, body: Assign) -> Reply:
    """Give it to somebody, or to nobody, whoever has it now."""
    return _one(
        await tasks.assign(
            call.service, call.tenant_id, call.word("tsk"), body.assignee, by=call.by, reason=body.reason,
            version=call.expected_version(),
        )
    )  # fmt: skip


async def _said_before(call: Call, status: str) -> TaskView | None:
    """The task, if this caller settled it so and this request was begun before: then it was this request."""
    if call.claim is None or not call.claim.taken_over:
        return None
    view = await tasks.read(call.service, call.tenant_id, call.word("tsk"))
    return view if (view.status, view.completed_by) == (status, call.actor) else None


async def complete_task(call: Call, body: Complete) -> Reply:
    """Hand in its result. It is checked against the form; the first word counts."""
    there = await _said_before(call, "succeeded")
    if there is not None and there.output == body.output:
        return _one(there)
    return _one(
        await tasks.complete(
            call.service, call.tenant_id, call.word("tsk"), body.output, actor=call.actor, reason=body.reason,
            groups=_groups(call), version=call.expected_version(),
        )
    )  # fmt: skip


async def fail_task(call: Call, body: Fail) -> Reply:
    """Say that it cannot be done, and why."""
    there = await _said_before(call, "failed")
    if there is not None:
        return _one(there)
    return _one(
        await tasks.fail(
            call.service, call.tenant_id, call.word("tsk"), actor=call.actor, reason=body.reason,
            groups=_groups(call), version=call.expected_version(),
        )
    )  # fmt: skip


def _comment(view: CommentView) -> CommentOut:
    return CommentOut(id=view.id, task_id=view.task_id, at=when(view.at), author=view.author, body=view.body)


async def comment_task(call: Call, body: Comment) -> Reply:
    """Say something about it. It moves nothing."""
    await _seen(call)
    said = await tasks.comment(
        call.service, call.tenant_id, call.word("tsk"), body.body, author=call.actor, id_=call.derived("comment"),
        version=call.expected_version(),
    )  # fmt: skip
    return Reply(201, _comment(said))


async def list_comments(call: Call, query: PageQuery) -> Reply:
    """What was said about it, in order."""
    await _seen(call)
    edge = read_cursor(query.cursor, int, bytes)
    found = await tasks.comments(
        call.service, call.tenant_id, call.word("tsk"), after=(0, b"") if edge is None else (edge[0], edge[1]),
        limit=query.limit + 1,
    )  # fmt: skip
    return paged(found, query.limit, _comment, lambda view: (view.at, ids.parse("cmt", view.id)))


def declare(endpoints: Endpoints) -> None:
    one = {200: Answer("The task.", TaskOut, ONE)}
    changes = ("not-found", "invalid-transition", "task-already-claimed", "precondition-failed")
    endpoints.add(
        "GET /workflow/tasks", capability="tasks:read", tag="tasks", summary="List tasks", query=TasksQuery,
        answers={200: Answer("A page.", Listing[TaskOut], {"items": [ONE], "next_cursor": None})},
    )(list_tasks)  # fmt: skip
    endpoints.add(
        "GET /workflow/tasks/{id}", capability="tasks:read", tag="tasks", summary="Read a task", answers=one,
        problems=("not-found",),
    )(read_task)  # fmt: skip
    for word, function, capability, body, example, words in (
        ("claim", claim_task, "tasks:work", None, None, "Take a task"),
        ("unclaim", unclaim_task, "tasks:work", None, None, "Put a task back"),
        ("assign", assign_task, "tasks:assign", Assign, {"assignee": "bob"}, "Give a task to somebody"),
        ("complete", complete_task, "tasks:work", Complete, {"output": {"approve": True}}, "Complete a task"),
        ("fail", fail_task, "tasks:work", Fail, {"reason": "the receipt is missing"}, "Fail a task"),
    ):  # fmt: skip
        endpoints.add(
            f"POST /workflow/tasks/{{id}}/{word}", capability=capability, tag="tasks", summary=words, body=body,
            body_example=example, keyed="optional", if_match="optional", answers=one, problems=changes, again=read_task,
        )(function)  # fmt: skip
    endpoints.add(
        "POST /workflow/tasks/{id}/comments", capability="tasks:work", tag="tasks", summary="Comment on a task",
        body=Comment, body_example={"body": "asked Ada for the receipt"}, keyed="optional", if_match="optional",
        answers={201: Answer("The comment.", CommentOut, SAID)}, problems=("not-found", "precondition-failed"),
    )(comment_task)  # fmt: skip
    endpoints.add(
        "GET /workflow/tasks/{id}/comments", capability="tasks:read", tag="tasks", summary="List a task's comments",
        query=PageQuery,
        answers={200: Answer("A page.", Listing[CommentOut], {"items": [SAID], "next_cursor": None})},
        problems=("not-found",),
    )(list_comments)  # fmt: skip
