"""Instances over HTTP: how they stand, their past, and why they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any

import msgspec

from holdfast.api import shown
from holdfast.api.endpoints import Answer, Call, Endpoints, Reply
from holdfast.api.models import (
    EffectOut,
    HistoryOut,
    InstanceDetail,
    InstanceOut,
    InstanceStatus,
    Listing,
    TaskOut,
    WhyOut,
)
from holdfast.api.paging import PAGE, Cursor, Limit, PageQuery, cursor_of, paged, read_cursor
from holdfast.api.problems import Fault, Problem
from holdfast.app import effects, instances, tasks
from holdfast.app.instances import InstanceView
from holdfast.app.why import why
from holdfast.engine import ids
from holdfast.engine.moments import Moment, micros

HISTORY_SHOWN = 100
TASKS_SHOWN = 200
LISTED_BYTES = 16 * 1024  # larger values are left out of lists: read the one to see them
INS = "ins_0192f0a1b2c37d4e8f90a1b2c3d4e5f6"
ONE: dict[str, Any] = {
    "id": INS, "definition_key": "expense", "definition_version": 1, "kind": "chart", "status": "waiting",
    "waiting_on": "approval", "current_state": "review", "business_key": "claim-1", "queue": "default",
    "input": {"amount_minor": 12500, "currency": "EUR"}, "result": None, "last_error": None, "compensation": None,
    "parent_id": None, "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "created_by": "ann", "epoch": 0,
    "created_at": "2026-11-16T10:00:00Z", "started_at": "2026-11-16T10:00:00.1Z", "completed_at": None, "run_at": None,
    "left_out": [],
}  # fmt: skip
ENTRY = {
    "seq": 1, "type": "INSTANCE_STARTED", "name": "expense", "at": "2026-11-16T10:00:00.1Z", "payload": {},
    "hash": "9f86d0…",
}  # fmt: skip
DETAIL = {
    **ONE, "version": 7, "context": {"amount_minor": 12500}, "steps": {}, "tasks": [], "history": [ENTRY],
    "history_before": None,
}  # fmt: skip


class InstancesQuery(msgspec.Struct, frozen=True):
    status: list[InstanceStatus] | None = None
    definition_key: str | None = None
    business_key: str | None = None
    created_after: Moment | None = None
    created_before: Moment | None = None
    limit: Limit = PAGE
    cursor: Cursor | None = None


InstancesQuery.LISTS = ("status",)  # type: ignore[attr-defined]


Sequence = Annotated[int, msgspec.Meta(ge=0, le=(1 << 53))]


class HistoryQuery(msgspec.Struct, frozen=True):
    after: Sequence | None = None
    before: Sequence | None = None
    type: list[str] | None = None
    limit: Limit = PAGE
    cursor: Cursor | None = None


HistoryQuery.LISTS = ("type",)  # type: ignore[attr-defined]


async def list_instances(call: Call, query: InstancesQuery) -> Reply:
    """A page, newest first, of those that match every filter. `status` may name several, as a,b."""
    edge = read_cursor(query.cursor, int, bytes)
    before = instances.FAR_AHEAD if edge is None else (edge[0], edge[1])
    if query.created_before is not None:
        before = min(before, (micros(query.created_before), b""))
    since = 0 if query.created_after is None else micros(query.created_after)
    found = await instances.list_instances(
        call.service, call.tenant_id, status=query.status, key=query.definition_key, business_key=query.business_key,
        limit=query.limit + 1, before=before, since=since, most=LISTED_BYTES,
    )  # fmt: skip
    return paged(found, query.limit, shown.instance, _place)


def _place(view: InstanceView) -> tuple[int, bytes]:
    return micros(view.created_at), ids.parse("ins", view.id)


async def read_instance(call: Call) -> Reply:
    """How it stands, with its tasks and the newest part of its history."""
    id_ = call.id("ins")
    view = await instances.read(call.service, call.tenant_id, id_, steps=False)
    snapshot = await instances.snapshot(call.service, call.tenant_id, id_) if view.kind == "chart" else None
    its_tasks, left_out = [], [*view.left_out, "tasks"]
    if call.caller.may("tasks:read"):
        all_tasks = await tasks.list_tasks(
            call.service, call.tenant_id, status=None, instance=view.id, limit=TASKS_SHOWN, most=LISTED_BYTES
        )
        its_tasks = [task for task in all_tasks if tasks.sees(call.caller, task)]
        left_out = view.left_out if len(its_tasks) == len(all_tasks) else left_out
    results = {} if view.kind == "chart" else await instances.step_results(
        call.service, call.tenant_id, id_, HISTORY_SHOWN
    )  # fmt: skip
    past = await instances.history_page(call.service, call.tenant_id, id_, limit=HISTORY_SHOWN)
    detail = InstanceDetail(
        **{**shown.instance_fields(view), "left_out": left_out}, version=view.moved,
        context=None if snapshot is None else snapshot["context"], steps=results,
        tasks=[shown.task(task) for task in its_tasks],
        history=[shown.history(entry) for entry in past.entries],
        history_before=past.entries[0].seq if past.more else None,
    )  # fmt: skip
    return Reply(200, detail, str(view.moved))


async def instance_history(call: Call, query: HistoryQuery) -> Reply:
    """Its past, in order. From the end, or back from `before`; with `after` forward from there. `cursor` goes on in
    the direction of the page it came with. `type` may name several, as a,b."""
    after, before = query.after, query.before
    if sum(way is not None for way in (after, before, query.cursor)) > 1:
        words = "after goes forward, before goes back, and cursor goes on: send one of them"
        raise Problem("validation-failed", words, errors=[Fault(words, "/query/before")])
    if (edge := read_cursor(query.cursor, range(2), range((1 << 53) + 1))) is not None:
        after, before = (edge[1], None) if edge[0] else (None, edge[1])
    page = await instances.history_page(
        call.service, call.tenant_id, call.id("ins"), after=after, before=before, types=query.type or (),
        limit=query.limit,
    )  # fmt: skip
    forward = after is not None
    following = cursor_of(int(forward), page.entries[-1 if forward else 0].seq) if page.more else None
    items = [shown.history(entry) for entry in page.entries]
    return Reply(200, Listing[HistoryOut](items=items, next_cursor=following))


async def instance_tasks(call: Call, query: PageQuery) -> Reply:
    """Its tasks that you may read, open or not, in the order they were made."""
    id_ = call.id("ins")
    await instances.exists(call.service, call.tenant_id, id_)
    edge = read_cursor(query.cursor, int, str, bytes)
    found, last = await tasks.page_seen(
        call.service, call.tenant_id, call.caller, status=None, instance=ids.instance_word(id_), limit=query.limit,
        after=None if edge is None else (0, edge[0], edge[1], edge[2]), most=LISTED_BYTES,
    )  # fmt: skip
    items = [shown.task(view) for view in found]
    return Reply(200, Listing[TaskOut](items=items, next_cursor=None if last is None else cursor_of(*last[1:])))


async def instance_children(call: Call, query: PageQuery) -> Reply:
    """The instances that this one started, newest first."""
    id_ = call.id("ins")
    await instances.exists(call.service, call.tenant_id, id_)
    edge = read_cursor(query.cursor, int, bytes)
    found = await instances.list_children(
        call.service, call.tenant_id, id_, limit=query.limit + 1, most=LISTED_BYTES,
        before=instances.FAR_AHEAD if edge is None else (edge[0], edge[1]),
    )  # fmt: skip
    return paged(found, query.limit, shown.instance, _place)


async def instance_effects(call: Call, query: PageQuery) -> Reply:
    """Its effects, in the order they were started."""
    id_ = call.id("ins")
    await instances.exists(call.service, call.tenant_id, id_)
    edge = read_cursor(query.cursor, int, bytes)
    found = await effects.effects_of(
        call.service, call.tenant_id, id_, after=(0, b"") if edge is None else (edge[0], edge[1]),
        limit=query.limit + 1, most=LISTED_BYTES,
    )  # fmt: skip
    return paged(found, query.limit, shown.effect, shown.effect_place)


async def why_waiting(call: Call) -> Reply:
    """One plain sentence: why it does not move, and what would move it."""
    id_ = call.id("ins")
    view = await instances.read(call.service, call.tenant_id, id_, steps=False)
    words = await why(call.service, call.tenant_id, id_)
    return Reply(200, WhyOut(instance_id=view.id, status=view.status, why=words), str(view.moved))  # type: ignore[arg-type]


async def as_it_stands(call: Call, id_: bytes) -> tuple[InstanceOut, str]:
    """With its version."""
    view = await instances.read(call.service, call.tenant_id, id_, steps=False)
    return shown.instance(view), str(view.moved)


async def waited(call: Call, wait: Coroutine[Any, Any, Any]) -> bool:
    """Whether what somebody waits for has come. A server that stops lets nobody wait: they are told how it stands."""
    waiting = asyncio.ensure_future(wait)
    stopping = asyncio.ensure_future(call.doors.stopping.wait())
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            return False
        await waiting
        return True
    finally:
        for one in (waiting, stopping):
            one.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)


def declare(endpoints: Endpoints) -> None:
    endpoints.add(
        "GET /workflow/instances", capability="instances:read", tag="instances", summary="List instances",
        query=InstancesQuery,
        answers={200: Answer("A page.", Listing[InstanceOut], {"items": [ONE], "next_cursor": None})},
    )(list_instances)  # fmt: skip
    endpoints.add(
        "GET /workflow/instances/{id}", capability="instances:read", tag="instances", summary="Read an instance",
        answers={200: Answer("How it stands.", InstanceDetail, DETAIL)}, problems=("not-found",),
    )(read_instance)  # fmt: skip
    endpoints.add(
        "GET /workflow/instances/{id}/history", capability="instances:read", tag="instances",
        summary="Read its history", query=HistoryQuery,
        answers={200: Answer("A page.", Listing[HistoryOut], {"items": [ENTRY], "next_cursor": None})},
        problems=("not-found",),
    )(instance_history)  # fmt: skip
    lists: tuple[tuple[str, Any, Any, Any, str], ...] = (
        ("tasks", instance_tasks, PageQuery, TaskOut, "List its tasks"),
        ("children", instance_children, PageQuery, InstanceOut, "List its children"),
        ("effects", instance_effects, PageQuery, EffectOut, "List its effects"),
    )  # fmt: skip
    for word, function, query, item, words in lists:
        endpoints.add(
            f"GET /workflow/instances/{{id}}/{word}", capability="effects:read" if word == "effects" else
            "tasks:read" if word == "tasks" else "instances:read", tag="instances", summary=words, query=query,
            answers={200: Answer("A page.", Listing[item], {"items": [], "next_cursor": None})},  # type: ignore[valid-type]
            problems=("not-found",),
        )(function)  # fmt: skip
    endpoints.add(
        "GET /workflow/instances/{id}/why", capability="instances:read", tag="instances",
        summary="Why is it waiting?",
        answers={200: Answer("One sentence.", WhyOut, {
            "instance_id": INS, "status": "waiting", "why": "It waits for ann to decide 'Approve the claim'.",
        })},
        problems=("not-found",),
    )(why_waiting)  # fmt: skip
