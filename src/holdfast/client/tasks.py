"""Tasks: the inbox, and what people do with a task."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.api.models import Assign, Comment, CommentOut, Complete, Fail, Listing, TaskOut, TaskType
from holdfast.client.answers import Task
from holdfast.client.calls import Connection, IfMatch, at
from holdfast.client.pages import Pages

Wanted = Literal["open", "any", "pending", "running", "succeeded", "failed", "cancelled", "skipped"]


class Tasks:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self, *, status: Wanted | None = None, type: TaskType | None = None, assignee: str | None = None,
        group: str | None = None, instance_id: str | None = None, limit: int | None = None,
    ) -> Pages[TaskOut]:  # fmt: skip
        """The open ones unless `status` says otherwise, the most urgent first, then the oldest."""
        query = {
            "status": status, "type": type, "assignee": assignee, "group": group, "instance_id": instance_id,
            "limit": limit,
        }  # fmt: skip
        return self._connection.pages(Listing[TaskOut], at("tasks"), query)

    async def read(self, id: str) -> Task:
        """How it stands, with its form."""
        return await self._connection.read(Task, at("tasks", id))

    async def claim(self, id: str, *, if_match: IfMatch = None, idempotency_key: str | None = None) -> Task:
        """Take it. Of two at once, one gets it; the other is told who has it (`TaskAlreadyClaimed`)."""
        return await self._connection.change(
            Task, at("tasks", id, "claim"), if_match=if_match, idempotency_key=idempotency_key
        )

    async def unclaim(self, id: str, *, if_match: IfMatch = None, idempotency_key: str | None = None) -> Task:
        """Put it back for others."""
        return await self._connection.change(
            Task, at("tasks", id, "unclaim"), if_match=if_match, idempotency_key=idempotency_key
        )

    async def assign(
        self, id: str, assignee: str | None, *, reason: str = "", if_match: IfMatch = None,
        idempotency_key: str | None = None,
    ) -> Task:  # fmt: skip
        """Give it to somebody, or to nobody, whoever has it now."""
        return await self._connection.change(
            Task, at("tasks", id, "assign"), Assign(assignee=assignee, reason=reason), if_match=if_match,
            idempotency_key=idempotency_key,
        )  # fmt: skip

    async def complete(
        self, id: str, output: Any = None, *, reason: str = "", if_match: IfMatch = None,
        idempotency_key: str | None = None,
    ) -> Task:  # fmt: skip
        """Hand in its result. It is checked against the form (`ValidationFailed`); the first word counts."""
        return await self._connection.change(
            Task, at("tasks", id, "complete"), Complete(output=output, reason=reason), if_match=if_match,
            idempotency_key=idempotency_key,
        )  # fmt: skip

    async def fail(
        self, id: str, reason: str, *, if_match: IfMatch = None, idempotency_key: str | None = None
    ) -> Task:  # fmt: skip
        """Say that it cannot be done, and why."""
        return await self._connection.change(
            Task, at("tasks", id, "fail"), Fail(reason=reason), if_match=if_match, idempotency_key=idempotency_key
        )

    async def comment(
        self, id: str, body: str, *, if_match: IfMatch = None, idempotency_key: str | None = None
    ) -> CommentOut:
        """Say something about it. It moves nothing."""
        return await self._connection.change(
            CommentOut, at("tasks", id, "comments"), Comment(body=body), if_match=if_match,
            idempotency_key=idempotency_key,
        )  # fmt: skip

    def comments(self, id: str, *, limit: int | None = None) -> Pages[CommentOut]:
        """What was said about it, in order."""
        return self._connection.pages(Listing[CommentOut], at("tasks", id, "comments"), {"limit": limit})
