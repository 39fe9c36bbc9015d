"""Dead letters: work out of attempts, kept for an operator to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.app.instances import ANY_SIZE
from holdfast.app.views import View
from holdfast.engine import codec, ids
from holdfast.engine.moments import Moment, when

if TYPE_CHECKING:
    from holdfast.app.service import Service

LAST = ((1 << 62), b"\xff" * 16)


class DeadLetterView(View, frozen=True, kw_only=True):
    """Work that was given up: what it was, why, and whether anybody has dealt with it."""

    id: str
    tenant_id: str
    source: str
    instance_id: str | None
    workflow: str | None
    reason: str
    payload: Any
    created_at: Moment
    resolution: str | None
    left_out: list[str] = msgspec.field(default_factory=list)


def _view(tenant_id: str, row: Sequence[Any]) -> DeadLetterView:
    id_, source, instance, key, reason, payload, created_at, resolution, *left_out = row
    return DeadLetterView(
        id=ids.shown("dlt", id_), tenant_id=tenant_id, source=source, workflow=key, reason=reason,
        instance_id=None if instance is None else ids.instance_word(instance),
        payload=None if payload is None else codec.decode(payload), created_at=when(created_at), resolution=resolution,
        left_out=left_out[0].split() if left_out else [],
    )  # fmt: skip


async def list_dead_letters(service: Service, tenant_id: str, limit: int) -> list[DeadLetterView]:
    """The newest, whole."""
    at, id_ = LAST
    rows = await service.store.fetch("list_dead_letters", tenant_id=tenant_id, before_at=at, before=id_, limit=limit)
    return [_view(tenant_id, row) for row in rows]


async def page(
    service: Service, tenant_id: str, *, before: tuple[int, bytes] | None, limit: int, most: int = ANY_SIZE
) -> list[DeadLetterView]:
    """Newest first, from before this moment and id. `most`: payloads of more bytes are left out."""
    at, id_ = before or LAST
    rows = await service.store.fetch(
        "page_of_dead_letters", tenant_id=tenant_id, before_at=at, before=id_, limit=limit, most=most
    )
    return [_view(tenant_id, row) for row in rows]
