"""Tasks as people see them: list, look, claim, complete, fail. A word on a task is a fact; a worker takes the turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from uuid_utils import uuid7

from holdfast.app import audit, instances
from holdfast.app.audit import By
from holdfast.app.foresight import what_takes_away
from holdfast.app.views import View
from holdfast.engine import codec, ids
from holdfast.engine.access import Caller, may_see, may_take, sees_all_tasks
from holdfast.engine.errors import (
    BadInput,
    Forbidden,
    FormRefused,
    TaskAlreadyClaimed,
    TaskNotFound,
    TaskNotOpen,
    VersionMoved,
)
from holdfast.engine.moments import Moment, micros, moment, when
from holdfast.engine.retry import storable
from holdfast.engine.schemas import check_json
from holdfast.engine.tasks import STATUSES, TYPES
from holdfast.engine.turns import NewEvent, Outcome, TaskChange, Turn

if TYPE_CHECKING:
    from holdfast.app.service import Service

OPEN = ("pending", "running")
PAGE_MAX = 1000
LOOKED_AT = 500  # tasks that a page looks at for what no index knows
SEEN_STEP = 50
COMMENT_MAX = 10_000
ANY_SIZE = (1 << 31) - 1
# Without the right one: it is to be taken from what the person was shown, not from a refusal.
WRONG_HASH = "/hash: this is not the proposal that was shown: look at the task again"
IN_LINE_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5)  # between looks at what came first: as a rule a worker is at it
CLAIM_TRIES = 10
SETTLE_TRIES = 3
BUSY = "task {} is being changed by others all the time: try again"


class TaskView(View, frozen=True, kw_only=True):
    """A task as it stands now."""

    id: str
    instance_id: str
    workflow: str
    key: str
    type: str
    name: str
    title: str | None
    status: str
    run_at: Moment | None
    attempts: int
    max_attempts: int
    idempotency_key: str
    input: Any
    options: dict[str, Any]
    output: Any
    error: Any
    trace_id: str | None
    assignee: str | None
    groups: list[str]
    priority: int
    due_at: Moment | None
    follow_up_at: Moment | None
    version: int
    created_at: Moment
    started_at: Moment | None
    completed_at: Moment | None
    completed_by: str | None
    left_out: list[str] = msgspec.field(default_factory=list)
    """In lists: which values are too large to be shown there."""

    @property
    def form(self) -> Any:
        """The JSON Schema that what is handed in must fit; None: anything does."""
        return self.options.get("form") if self.type == "HUMAN" else None


async def read(service: Service, tenant_id: str, task: str) -> TaskView:
    try:
        raw = ids.parse("tsk", task)
    except BadInput as error:
        raise TaskNotFound(task, str(error)) from None
    rows = await service.store.fetch("read_task", tenant_id=tenant_id, id=raw)
    if not rows:
        raise TaskNotFound(task)
    return _view(rows[0])


Edge = tuple[int, int, str, bytes]
"""Where a page ends: priority, time, key and id of its last task."""


async def list_tasks(
    service: Service, tenant_id: str, *, limit: int = 100, after: Edge | None = None, most: int = ANY_SIZE,
    **wanted: Any,
) -> list[TaskView]:  # fmt: skip
    """As many as asked for, if there are so many; see `page` for what may be wanted, and for their order."""
    if not 1 <= limit <= PAGE_MAX:
        raise BadInput(f"limit is {limit}: expected 1 to {PAGE_MAX:,}")
    found, after = await page(service, tenant_id, limit=limit, after=after, most=most, **wanted)
    while after is not None and len(found) < limit:
        more, after = await page(service, tenant_id, limit=limit - len(found), after=after, most=most, **wanted)
        found += more
    return found


async def page_seen(
    service: Service, tenant_id: str, caller: Caller, *, limit: int, after: Edge | None = None, **wanted: Any
) -> tuple[list[TaskView], Edge | None]:
    """A `page` of what this caller may read. Which tasks those are is known to no index: so many are looked at."""
    if sees_all_tasks(caller):
        return await page(service, tenant_id, limit=limit, after=after, **wanted)
    found: list[TaskView] = []
    looked, step = 0, max(limit, SEEN_STEP)
    while True:
        part, after = await page(service, tenant_id, limit=step, after=after, **wanted)
        found += [view for view in part if sees(caller, view)]
        looked += step
        if len(found) > limit:
            return found[:limit], _edge(found[limit - 1])
        if after is None or looked >= LOOKED_AT:
            return found, after


def sees(caller: Caller, view: TaskView) -> bool:
    return may_see(caller, view.groups, view.assignee, view.completed_by)


async def read_seen(service: Service, tenant_id: str, task: str, caller: Caller) -> TaskView:
    """A task that a caller may not read is not there for it."""
    view = await read(service, tenant_id, task)
    if not sees(caller, view):
        raise TaskNotFound(task)
    return view


def _edge(view: TaskView) -> Edge:
    return view.priority, micros(view.created_at), view.key, ids.parse("tsk", view.id)


async def page(
    service: Service, tenant_id: str, *, status: str | None = "open", type: str | None = None,
    assignee: str | None = None, group: str | None = None, instance: str | None = None, limit: int,
    after: Edge | None = None, most: int = ANY_SIZE,
) -> tuple[list[TaskView], Edge | None]:  # fmt: skip
    """Open ones: the most urgent first, then the oldest. Others: the newest first. An instance's: in their order.

    Also where the next page begins, if there may be one: a page may be short, or empty, and not be the last, because
    only so many tasks are looked at for what no index knows."""
    if status not in (None, "open", *STATUSES):
        raise BadInput(f"status is {status!r}: expected open or one of {', '.join(STATUSES)}")
    if type is not None and type not in TYPES:
        raise BadInput(f"type is {type!r}: expected one of {', '.join(TYPES)}")
    if group is not None and type not in (None, "HUMAN"):
        return [], None  # groups are of people
    open_ = status == "open"
    forward = open_ or instance is not None
    at = after or ((1 << 31) - 1, 0 if forward else (1 << 62), "", b"" if forward else b"\xff" * 16)
    name, searched = "list_tasks", type is not None or assignee is not None or group is not None
    if open_ and assignee is not None:
        name, searched = "list_tasks_of_assignee", type is not None or group is not None
    elif open_ and group is not None:
        name, searched = "list_tasks_of_group", False
    elif open_:
        name, searched = ("list_inbox", False) if type == "HUMAN" else ("list_open_tasks", type is not None)
    looked = max(limit + 1, LOOKED_AT) if searched else limit + 1
    values: dict[str, Any] = {
        "tenant_id": tenant_id, "status": None if open_ else status, "statuses": status or " ".join(STATUSES),
        "type": type, "assignee": assignee, "group": None if group is None else _holds(group), "group_name": group,
        "limit": limit + 1, "looked": looked, "after_priority": at[0], "after_at": at[1], "after_key": at[2],
        "after_id": at[3], "most": most,
    }  # fmt: skip
    if instance is not None:
        name, values["instance_id"], values["open"] = "tasks_of_instance", ids.parse("ins", instance), open_
    rows = await service.store.fetch(name, **values)
    found = [row for row in rows if row[-1]]
    last = None
    if len(found) > limit:
        last = found[limit - 1]
    elif rows and rows[-1][-2] == looked:
        last = rows[-1]
    following = None if last is None else (last[22], last[27], last[3], bytes(last[0]))
    return [_view(row) for row in found[:limit]], following


def _holds(group: str) -> str:
    """A pattern for a JSON list that holds this name."""
    word = codec.encode(group).decode()
    for special in "~%_":
        word = word.replace(special, "~" + special)
    return f"%{word}%"


def _check_human(view: TaskView) -> None:
    if view.type != "HUMAN":
        raise TaskNotOpen(f"task {view.id} is of type {view.type}: only HUMAN tasks are completed by people")


async def claim(
    service: Service, tenant_id: str, task: str, who: str, *, groups: frozenset[str] | None = None,
    version: int | None = None, by: By | None = None,
) -> TaskView:  # fmt: skip
    """Take an unclaimed task. Of two people at once, one gets it and the other is told who.

    `groups`: those of whoever asks; None: of somebody who is not asked. `version`: only if that still counts."""
    _check_actor(who)
    for _ in range(CLAIM_TRIES):
        view = await read(service, tenant_id, task)
        _check_groups(view, who, groups)
        _check_version(view, version)
        _check_open(view)
        _check_human(view)
        if view.assignee == who:
            return view
        if view.assignee is not None:
            raise TaskAlreadyClaimed(f"task {task} belongs to {view.assignee!r}: they must unclaim it first")
        if await _give(service, tenant_id, view, who, by or By(who), "task.claimed"):
            return await read(service, tenant_id, task)
    raise TaskNotOpen(BUSY.format(task))


async def unclaim(
    service: Service, tenant_id: str, task: str, who: str, *, groups: frozenset[str] | None = None,
    version: int | None = None, by: By | None = None,
) -> TaskView:  # fmt: skip
    _check_actor(who)
    view = await read(service, tenant_id, task)
    _check_groups(view, who, groups)
    _check_version(view, version)
    _check_open(view)
    _check_human(view)
    if view.assignee != who:
        raise TaskAlreadyClaimed(f"task {task} belongs to {view.assignee or 'nobody'!r}, not to {who!r}")
    if not await _give(service, tenant_id, view, None, by or By(who), "task.unclaimed"):
        raise TaskNotOpen(f"task {task} was changed meanwhile: look again")
    return await read(service, tenant_id, task)


async def assign(
    service: Service, tenant_id: str, task: str, assignee: str | None, *, by: By, reason: str = "",
    version: int | None = None,
) -> TaskView:  # fmt: skip
    """Give a task to somebody, or to nobody, whoever has it now."""
    if assignee is not None:
        _check_actor(assignee)
    view = await read(service, tenant_id, task)
    _check_version(view, version)
    _check_open(view)
    _check_human(view)
    if view.assignee != assignee and not await _give(
        service, tenant_id, view, assignee, by, "task.assigned", reason=reason
    ):
        found = await read(service, tenant_id, task)
        raise VersionMoved(f"task {task}", str(view.version), str(found.version))
    return await read(service, tenant_id, task)


async def _give(
    service: Service, tenant_id: str, view: TaskView, to: str | None, by: By, action: str, **words: str
) -> bool:
    """Change whose task it is, if it is still as it was read; with who did that."""
    values = {"tenant_id": tenant_id, "id": ids.parse("tsk", view.id), "version": view.version, "who": to}
    summary = {"before": view.assignee, "after": to} | {name: word for name, word in words.items() if word}
    note = audit.entry(tenant_id, service.store.now(), by, action, ("task", view.id), summary)
    return await service.change(tenant_id, [("give_task", values), note])


class CommentView(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody said about a task."""

    id: str
    task_id: str
    at: int
    author: str
    body: str


async def comment(
    service: Service, tenant_id: str, task: str, body: str, *, author: str, id_: bytes | None = None,
    version: int | None = None,
) -> CommentView:  # fmt: skip
    """Say something about a task, open or not. It moves nothing."""
    _check_actor(author)
    if not isinstance(body, str) or not 1 <= len(body) <= COMMENT_MAX or storable(body) != body:
        raise BadInput(f"body: expected a text of 1 to {COMMENT_MAX:,} characters")
    view = await read(service, tenant_id, task)
    _check_version(view, version)
    raw, now = id_ or uuid7().bytes, service.store.now()
    await service.store.write(
        "add_comment", tenant_id=tenant_id, task_id=ids.parse("tsk", view.id), id=raw, now=now, author=author, body=body
    )
    return CommentView(id=ids.shown("cmt", raw), task_id=view.id, at=now, author=author, body=body)


async def comments(
    service: Service, tenant_id: str, task: str, *, after: tuple[int, bytes] = (0, b""), limit: int = 100
) -> list[CommentView]:
    """In the order they were made."""
    view = await read(service, tenant_id, task)
    rows = await service.store.fetch(
        "list_comments", tenant_id=tenant_id, task_id=ids.parse("tsk", view.id), after_at=after[0], after=after[1],
        limit=limit,
    )  # fmt: skip
    return [
        CommentView(id=ids.shown("cmt", raw), task_id=view.id, at=at, author=author, body=body)
        for raw, at, author, body in rows
    ]


async def complete(
    service: Service, tenant_id: str, task: str, output: Any, *, actor: str, reason: str = "",
    groups: frozenset[str] | None = None, version: int | None = None,
) -> TaskView:  # fmt: skip
    """Hand in the result of a HUMAN task: checked against its form, recorded with who did it."""
    view = await _to_settle(service, tenant_id, task, actor, groups, version)
    await _check_first(service, tenant_id, view)
    raw = codec.encode(output, f"the output of task {view.name!r}", service.payload_limit)
    if view.form is not None:
        problems = check_json(view.form, codec.decode(raw))
        if problems:
            raise FormRefused([WRONG_HASH if problem.startswith("/hash: ") else problem for problem in problems])
    words = {"outcome": "completed", "output": output, "actor": actor, "reason": reason}
    return await _settle(service, tenant_id, view, "succeeded", words, raw, None, actor, groups, version)


async def fail(
    service: Service, tenant_id: str, task: str, *, actor: str, reason: str, groups: frozenset[str] | None = None,
    version: int | None = None,
) -> TaskView:  # fmt: skip
    """Say that a HUMAN task cannot be done, and why."""
    view = await _to_settle(service, tenant_id, task, actor, groups, version)
    await _check_first(service, tenant_id, view)
    if not isinstance(reason, str) or not reason.strip():
        raise BadInput("reason is empty: say why the task cannot be done; it is kept in the history")
    error = {"type": "FailedByPerson", "message": storable(reason)[:2000], "actor": actor}
    words = {"outcome": "failed", "error": error, "actor": actor, "reason": reason}
    return await _settle(service, tenant_id, view, "failed", words, None, codec.encode(error), actor, groups, version)


async def _to_settle(
    service: Service, tenant_id: str, task: str, actor: str, groups: frozenset[str] | None, version: int | None
) -> TaskView:
    _check_actor(actor)
    view = await read(service, tenant_id, task)
    _check_groups(view, actor, groups)
    _check_open(view)
    _check_human(view)
    _check_version(view, version)
    if view.assignee is not None and view.assignee != actor:
        raise TaskAlreadyClaimed(
            f"task {task} belongs to {view.assignee!r}, not to {actor!r}: they must unclaim it first"
        )
    return view


async def _check_first(service: Service, tenant_id: str, view: TaskView) -> None:
    """What came first is taken first. A word that could only come to nothing then is refused while whoever says it is
    there; it would be acknowledged, and late."""
    instance_id = ids.parse("ins", view.instance_id)
    for seconds in (*IN_LINE_SECONDS, None):
        first = await what_takes_away(service, tenant_id, instance_id, ids.parse("tsk", view.id), view.name)
        if first is None:
            return
        if seconds is not None:
            await asyncio.sleep(seconds)
    instance = await instances.read(service, tenant_id, instance_id, steps=False)
    raise TaskNotOpen(
        f"{first} came before, and takes task {view.id} away: nothing was recorded; its instance stands at: "
        f"{instance.waiting_on or instance.status}"
    )


def _check_groups(view: TaskView, who: str, groups: frozenset[str] | None) -> None:
    """Before anything is said about it: others are not told whose it is."""
    if groups is not None and not may_take(groups, view.groups) and who not in (view.assignee, view.completed_by):
        raise Forbidden(f"task {view.id} is for members of {', '.join(view.groups)}: ask one of them, or an operator")


def _check_version(view: TaskView, version: int | None) -> None:
    if version is not None and view.version != version:
        raise VersionMoved(f"task {view.id}", str(version), str(view.version))


async def _settle(
    service: Service, tenant_id: str, view: TaskView, status: str, words: dict[str, Any], output: bytes | None,
    error: bytes | None, actor: str, groups: frozenset[str] | None, version: int | None,
) -> TaskView:  # fmt: skip
    """The task's row and the event to its instance in one commit: the first word wins.

    Whose task it is stands in the version that was read: if that has moved, we look again whether this person may."""
    payload = codec.encode(words, "the result", service.payload_limit)
    for _ in range(SETTLE_TRIES):
        turn = _word_on(service, tenant_id, view, status, payload, output, error, actor)
        outcome = await service.commit(turn)
        there = await read(service, tenant_id, view.id)
        same = version is None and there.status == status and there.completed_by == actor
        if outcome is not Outcome.MOVED or (same and (output is None or codec.decode(output) == there.output)):
            return there
        _check_open(there)
        if there.version == view.version:
            raise TaskNotOpen(
                f"the instance of task {view.id} has ended, or had an event of the id {turn.events[0].id!r} before: "
                "nothing was recorded"
            )
        view = await _to_settle(service, tenant_id, view.id, actor, groups, version)
    raise TaskNotOpen(BUSY.format(view.id))


def _word_on(
    service: Service, tenant_id: str, view: TaskView, status: str, payload: bytes, output: bytes | None,
    error: bytes | None, actor: str,
) -> Turn:  # fmt: skip
    id_, instance_id, now = ids.parse("tsk", view.id), ids.parse("ins", view.instance_id), service.store.now()
    event = NewEvent(tenant_id, instance_id, f"task:{id_.hex()}", "task", view.id, payload, now, None, id_)
    change = TaskChange(
        tenant_id, id_, instance_id, status, None, view.attempts + 1, None, 0, output, error, None, None, now, now,
        actor, None, None, view.version,
    )  # fmt: skip
    return Turn(tenant_id, instance_id, events=[event], task_changes=[change])


def _check_open(view: TaskView) -> None:
    if view.status not in OPEN:
        by = f" by {view.completed_by}" if view.completed_by else ""
        raise TaskNotOpen(f"task {view.id} is {view.status} already{by}: nothing was changed")


def _check_actor(actor: Any) -> None:
    if not isinstance(actor, str) or not 1 <= len(actor) <= 200 or storable(actor) != actor:
        raise BadInput(f"actor is {actor!r}: expected who says so, a text of 1 to 200 characters")


def _view(row: Any) -> TaskView:
    given = {} if row[16] is None else codec.decode(row[16])
    options = {name: value for name, value in given.items() if not name.startswith("@")}
    return TaskView(
        id=ids.shown("tsk", row[0]), instance_id=ids.instance_word(row[1]), workflow=row[2], key=row[3], type=row[4],
        name=row[5], title=row[6], status=row[7], run_at=moment(row[8]), attempts=row[9], max_attempts=row[10],
        idempotency_key=row[14], input=None if row[15] is None else codec.decode(row[15]), options=options,
        output=None if row[17] is None else codec.decode(row[17]),
        error=None if row[18] is None else codec.decode(row[18]), trace_id=row[19], assignee=row[20],
        groups=[] if row[21] is None else codec.decode(row[21].encode()), priority=row[22], due_at=moment(row[23]),
        follow_up_at=moment(row[24]), version=row[26], created_at=when(row[27]), started_at=moment(row[28]),
        completed_at=moment(row[29]),
        completed_by=row[30], left_out=row[31].split() if len(row) > 31 else [],
    )  # fmt: skip
