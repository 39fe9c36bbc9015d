"""Workers as an operator sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.app.views import View
from holdfast.engine import ids
from holdfast.engine.moments import Moment, when

if TYPE_CHECKING:
    from holdfast.app.service import Service


class WorkerView(View, frozen=True, kw_only=True):
    """A worker as an operator sees it."""

    id: str
    host: str
    pid: int
    state: str  # live | gone (dead, not yet taken over) | fenced | stopped
    holds: int  # instances it has claimed
    started_at: Moment
    heartbeat_at: Moment
    definitions: str


async def list_workers(service: Service, limit: int) -> list[WorkerView]:
    return await _views(service, await service.store.fetch("list_workers", limit=limit))


async def workers_of_tenant(service: Service, tenant_id: str, limit: int) -> list[WorkerView]:
    """As one tenant may see them: `holds` counts its own instances."""
    rows = await service.store.fetch("list_workers_of_tenant", tenant_id=tenant_id, limit=limit)
    return await _views(service, rows)


async def _views(service: Service, rows: list[tuple[Any, ...]]) -> list[WorkerView]:
    gone = {row[0] for row in rows if row[5] is None and row[6] is None and await service.store.worker_gone(row[0])}
    return [
        WorkerView(
            id=ids.worker_word(id_),
            host=host,
            pid=pid,
            holds=holds,
            started_at=when(started),
            heartbeat_at=when(beat),
            state="stopped" if stopped else "fenced" if fenced else "gone" if id_ in gone else "live",
            definitions=definitions,
        )
        for id_, host, pid, started, beat, stopped, fenced, _, _, definitions, holds in rows
    ]
