"""Principals: the people, services and agents of a tenant, and what each may do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from uuid_utils import uuid7

from holdfast.app import audit
from holdfast.app.audit import By
from holdfast.engine import codec, ids
from holdfast.engine.access import KINDS, ROLES
from holdfast.engine.errors import BadInput, NameTaken, PrincipalNotFound, VersionMoved
from holdfast.engine.retry import storable

if TYPE_CHECKING:
    from holdfast.app.service import Service

STATUSES = ("active", "disabled")
GROUPS_MAX = 100
LIKE_AN_ID = re.compile(r"[a-z]{3}_[0-9a-f]{32}\Z")
OUR_NAMES = ("holdfast", "worker", "*")
PAGE_MAX = 1000


class PrincipalView(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who may ask for something: a person, a service or an agent."""

    id: str
    kind: str
    name: str
    roles: list[str]
    groups: list[str]
    issuer: str | None
    subject: str | None
    status: str
    version: int
    created_at: int
    created_by: str
    changed_at: int
    changed_by: str


def _view(row: Any) -> PrincipalView:
    return PrincipalView(
        id=ids.shown("prn", row[0]), kind=row[1], name=row[2], roles=codec.decode(row[3].encode()),
        groups=codec.decode(row[4].encode()), issuer=row[5], subject=row[6], status=row[7], version=row[8],
        created_at=row[9], created_by=row[10], changed_at=row[11], changed_by=row[12],
    )  # fmt: skip


def check_roles(roles: Any) -> list[str]:
    if isinstance(roles, str) or not all(role in ROLES for role in roles):
        raise BadInput(f"roles is {roles!r}: expected a list of {', '.join(ROLES)}")
    return sorted(set(roles))


def check_groups(groups: Any) -> list[str]:
    if isinstance(groups, str) or len(groups) > GROUPS_MAX:
        raise BadInput(f"groups is {str(groups)[:100]!r}: expected a list of at most {GROUPS_MAX} names")
    return sorted({ids.check_name("group", group) for group in groups})


async def create(
    service: Service, tenant_id: str, *, name: str, kind: str, roles: Sequence[str], groups: Sequence[str] = (),
    issuer: str | None = None, subject: str | None = None, by: By, id_: bytes | None = None,
) -> PrincipalView:  # fmt: skip
    """A new principal. The same id again, with the same name, is the same principal."""
    ids.check_tenant(tenant_id)
    ids.check_name("name", name)
    if LIKE_AN_ID.match(name) or name in OUR_NAMES:
        raise BadInput(f"name is {name!r}: expected one that is no id and none of the engine's own names")
    if kind not in KINDS:
        raise BadInput(f"kind is {kind!r}: expected one of {', '.join(KINDS)}")
    if (issuer is None) != (subject is None):
        raise BadInput("issuer and subject belong together: who vouches, and under which name")
    if issuer is not None and (not 1 <= len(issuer) <= 500 or not issuer.isascii() or not issuer.isprintable()):
        raise BadInput(f"issuer is {issuer!r:.600}: expected a URL of 1 to 500 characters")
    if subject is not None and (not 1 <= len(subject) <= 255 or storable(subject) != subject):
        raise BadInput(f"subject is {subject!r:.600}: expected a text of 1 to 255 characters")
    id_ = uuid7().bytes if id_ is None else id_
    now = service.store.now()
    values = {
        "tenant_id": tenant_id, "id": id_, "kind": kind, "name": name,
        "roles": codec.encode(check_roles(roles)).decode(), "groups": codec.encode(check_groups(groups)).decode(),
        "issuer": issuer, "subject": subject, "now": now, "actor": by.actor,
    }  # fmt: skip
    entity = ("principal", ids.shown("prn", id_))
    summary = {"name": name, "kind": kind, "roles": sorted(set(roles)), "groups": sorted(set(groups))}
    note = audit.entry(tenant_id, now, by, "principal.created", entity, summary)
    if await service.change(tenant_id, [("add_principal", values), note]):
        return await read(service, tenant_id, entity[1])
    rows = await service.store.fetch("read_principal", tenant_id=tenant_id, id=id_)
    if rows and _view(rows[0]).name == name:
        return _view(rows[0])
    raise NameTaken(f"another principal of tenant {tenant_id!r} is named {name!r}, or comes with that subject")


async def read(service: Service, tenant_id: str, principal: str) -> PrincipalView:
    rows = await service.store.fetch("read_principal", tenant_id=tenant_id, id=ids.parse("prn", principal))
    if not rows:
        raise PrincipalNotFound(principal)
    return _view(rows[0])


async def find(service: Service, tenant_id: str, name: str) -> PrincipalView:
    """By its name, or by its id: what can be an id is one, whatever anybody is called."""
    if LIKE_AN_ID.match(name):
        return await read(service, tenant_id, name)
    rows = await service.store.fetch("find_principal", tenant_id=tenant_id, name=name)
    if rows:
        return _view(rows[0])
    raise PrincipalNotFound(name)


async def of_subject(service: Service, tenant_id: str, issuer: str, subject: str) -> PrincipalView | None:
    rows = await service.store.fetch("find_subject", tenant_id=tenant_id, issuer=issuer, subject=subject)
    return _view(rows[0]) if rows else None


async def list_principals(service: Service, tenant_id: str, *, after: str = "", limit: int = 50) -> list[PrincipalView]:
    if not 1 <= limit <= PAGE_MAX:
        raise BadInput(f"limit is {limit}: expected 1 to {PAGE_MAX:,}")
    rows = await service.store.fetch("list_principals", tenant_id=tenant_id, after=after, limit=limit)
    return [_view(row) for row in rows]


async def change(
    service: Service, tenant_id: str, principal: str, *, version: int | None = None,
    roles: Sequence[str] | None = None, groups: Sequence[str] | None = None, status: str | None = None, by: By,
) -> PrincipalView:  # fmt: skip
    """Change what is given, keep the rest; of two who change it at once, the second is told."""
    if status is not None and status not in STATUSES:
        raise BadInput(f"status is {status!r}: expected one of {', '.join(STATUSES)}")
    there = await read(service, tenant_id, principal)
    if version is not None and version != there.version:
        raise VersionMoved(f"principal {principal}", str(version), str(there.version))
    now = service.store.now()
    values = {
        "tenant_id": tenant_id, "id": ids.parse("prn", principal), "version": there.version, "now": now,
        "actor": by.actor, "status": status or there.status,
        "roles": codec.encode(there.roles if roles is None else check_roles(roles)).decode(),
        "groups": codec.encode(there.groups if groups is None else check_groups(groups)).decode(),
    }  # fmt: skip
    given = {"roles": roles, "groups": groups, "status": status}
    summary = {name: value for name, value in given.items() if value is not None}
    note = audit.entry(tenant_id, now, by, "principal.changed", ("principal", there.id), summary)
    if not await service.change(tenant_id, [("change_principal", values), note]):
        found = await read(service, tenant_id, principal)
        raise VersionMoved(f"principal {principal}", str(there.version), str(found.version))
    service.callers.forget(tenant_id)
    return await read(service, tenant_id, principal)
