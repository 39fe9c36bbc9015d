"""Workers, queues and dead letters over HTTP: what of them concerns the caller's tenant."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.api.endpoints import Answer, Call, Endpoints, Reply
from holdfast.api.instances import INS, LISTED_BYTES
from holdfast.api.models import DeadLetterOut, Listing, QueueOut, WorkerOut
from holdfast.api.paging import PageQuery, paged, read_cursor
from holdfast.app import dead_letters, workers
from holdfast.app.dead_letters import DeadLetterView
from holdfast.engine import ids
from holdfast.engine.moments import micros

WORKERS_SHOWN = 200
COUNTED_MAX = 100_000
HEADS_MAX = 1000  # queues, and definitions in one
ONE: dict[str, Any] = {
    "id": "wrk_0192f0a1b2c37d4e8f90a1b2c3d4e5f6", "host": "worker-1", "pid": 7, "state": "live", "holds": 12,
    "started_at": "2026-11-16T09:00:00Z", "heartbeat_at": "2026-11-16T10:00:00Z", "definitions": "refund v1",
}  # fmt: skip
LETTER: dict[str, Any] = {
    "id": "dlt_0192f0a1b2c37d4e8f90a1b2c3d4e5f6", "source": "instance", "instance_id": INS, "definition_key": "refund",
    "reason": "its worker died five times", "payload": {}, "created_at": "2026-11-16T10:00:00Z", "resolution": None,
    "left_out": [],
}  # fmt: skip


async def list_workers(call: Call) -> Reply:
    """Who is at work, the newest first; `holds` counts the instances of your tenant that one has claimed."""
    found = await workers.workers_of_tenant(call.service, call.tenant_id, WORKERS_SHOWN)
    items = [
        WorkerOut(
            id=view.id, host=view.host, pid=view.pid, state=view.state, holds=view.holds,  # type: ignore[arg-type]
            started_at=view.started_at, heartbeat_at=view.heartbeat_at, definitions=view.definitions,
        )
        for view in found
    ]  # fmt: skip
    return Reply(200, Listing[WorkerOut](items=items, next_cursor=None))


async def list_queues(call: Call) -> Reply:
    """Queues in which instances of your tenant are due and not claimed: how many, and how long the oldest waits. They
    are counted up to 100,000."""
    now = call.service.store.now()
    rows = await call.service.store.fetch(
        "queues_of_tenant", tenant_id=call.tenant_id, now=now, counted=COUNTED_MAX, heads=HEADS_MAX
    )
    items = [
        QueueOut(queue=queue, due=due, oldest_age=timedelta(seconds=max(0, now - oldest) // 1_000_000))
        for queue, due, oldest in rows
    ]
    return Reply(200, Listing[QueueOut](items=items, next_cursor=None))


async def list_dead_letters(call: Call, query: PageQuery) -> Reply:
    """Work out of attempts, newest first."""
    edge = read_cursor(query.cursor, int, bytes)
    found = await dead_letters.page(
        call.service, call.tenant_id, before=None if edge is None else (edge[0], edge[1]), limit=query.limit + 1,
        most=LISTED_BYTES,
    )  # fmt: skip
    return paged(found, query.limit, _letter, lambda view: (micros(view.created_at), ids.parse("dlt", view.id)))


def _letter(view: DeadLetterView) -> DeadLetterOut:
    return DeadLetterOut(
        id=view.id, source=view.source, instance_id=view.instance_id, definition_key=view.workflow,
        reason=view.reason, payload=view.payload, created_at=view.created_at, resolution=view.resolution,
        left_out=view.left_out,
    )  # fmt: skip


def declare(endpoints: Endpoints) -> None:
    endpoints.add(
        "GET /workflow/workers", capability="workers:read", tag="workers", summary="List workers",
        answers={200: Answer("The workers.", Listing[WorkerOut], {"items": [ONE], "next_cursor": None})},
    )(list_workers)  # fmt: skip
    endpoints.add(
        "GET /workflow/queues", capability="workers:read", tag="workers", summary="List queues",
        answers={200: Answer("The queues.", Listing[QueueOut], {
            "items": [{"queue": "default", "due": 3, "oldest_age": "PT4S"}], "next_cursor": None,
        })},
    )(list_queues)  # fmt: skip
    endpoints.add(
        "GET /workflow/dead-letters", capability="workers:read", tag="workers", summary="List dead letters",
        query=PageQuery,
        answers={200: Answer("A page.", Listing[DeadLetterOut], {"items": [LETTER], "next_cursor": None})},
    )(list_dead_letters)  # fmt: skip
