"""Who changed what: a row beside every change that no instance's history tells, in the same commit.

What happens to instances, tasks and effects stands in their histories, with who said so. This is for the rest:
definitions, principals, keys, tenants, who was given a task. Never a payload, never a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from uuid_utils import uuid7

from holdfast.engine import codec, ids
from holdfast.engine.errors import BadInput

if TYPE_CHECKING:
    from holdfast.app.service import Service

PAGE_MAX = 1000
# Where an entry of a history names who it is from; a cancellation names them in its error.
ACTORS = ("actor", "sent_by", "resolved_by", "by", "completed_by")
NEWEST = b"\xff" * 16


class By(msgspec.Struct, frozen=True):
    """Who makes a change, and on which request."""

    actor: str
    principal_id: str | None = None
    request_id: str | None = None


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change: who, what, when."""

    id: str
    at: int
    actor: str
    principal_id: str | None
    action: str
    entity_type: str
    entity_id: str
    summary: dict[str, Any]
    request_id: str | None


def entry(
    tenant_id: str, now: int, by: By, action: str, entity: tuple[str, str], summary: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The statement that goes with a change, for `store.change`."""
    return "add_audit", {
        "tenant_id": tenant_id, "audit_id": uuid7().bytes, "now": now, "actor": by.actor, "actor_id": by.principal_id,
        "action": action, "entity_type": entity[0], "entity_id": entity[1], "summary": codec.encode(summary).decode(),
        "request_id": by.request_id,
    }  # fmt: skip


async def list_audit(
    service: Service, tenant_id: str, *, entity: tuple[str, str] | None = None, before: bytes = NEWEST, limit: int = 50
) -> list[AuditEvent]:
    """A page, newest first."""
    if not 1 <= limit <= PAGE_MAX:
        raise BadInput(f"limit is {limit}: expected 1 to {PAGE_MAX:,}")
    values: dict[str, Any] = {"tenant_id": tenant_id, "before": before, "limit": limit}
    if entity is None:
        rows = await service.store.fetch("list_audit", **values)
    else:
        values |= {"entity_type": entity[0], "entity_id": entity[1]}
        rows = await service.store.fetch("list_audit_of_entity", **values)
    return [
        AuditEvent(
            id=ids.shown("aud", row[0]), at=row[1], actor=row[2], principal_id=row[3], action=row[4],
            entity_type=row[5], entity_id=row[6], summary=codec.decode(row[7].encode()), request_id=row[8],
        )
        for row in rows
    ]  # fmt: skip


def actor_of(payload: Any) -> str | None:
    """Who decided what this entry of a history records; None: nobody did, it followed."""
    if not isinstance(payload, dict):
        return None
    for part in (payload, payload.get("error"), payload.get("said")):
        if isinstance(part, dict):
            for name in ACTORS:
                if isinstance(part.get(name), str):
                    return str(part[name])
    return None
