"""Who you are, principals, keys, the tenant's settings and the audit, over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.api.endpoints import ANYONE, Answer, Call, Endpoints, Reply
from holdfast.api.models import (
    AuditOut,
    ChangePrincipal,
    ChangeTenant,
    CreateKey,
    CreatePrincipal,
    KeyOut,
    Listing,
    Me,
    NewKeyOut,
    PrincipalOut,
    RoleOut,
    RotateKey,
    TenantOut,
    TrailOut,
)
from holdfast.api.paging import PAGE, Cursor, Limit, PageQuery, cursor_of, paged, read_cursor
from holdfast.api.problems import Fault, Problem
from holdfast.app import api_keys, audit, instances, principals, tenants
from holdfast.app.api_keys import KeyView, NewKey
from holdfast.app.audit import AuditEvent
from holdfast.app.principals import PrincipalView
from holdfast.engine import history as h
from holdfast.engine import ids
from holdfast.engine.access import ROLES, capabilities_of
from holdfast.engine.errors import Forbidden
from holdfast.engine.moments import micros, moment, when

PRN = "prn_0192f0a1b2c37d4e8f90a1b2c3d4e5f6"
WHO: dict[str, Any] = {
    "id": PRN, "kind": "human", "name": "ann", "roles": ["approver"], "groups": ["finance"], "issuer": None,
    "subject": None, "status": "active", "version": 0, "created_at": "2026-11-16T10:00:00Z", "created_by": "root",
    "changed_at": "2026-11-16T10:00:00Z", "changed_by": "root",
}  # fmt: skip
KEY: dict[str, Any] = {
    "id": "key_0192f0a1b2c37d4e8f90a1b2c3d4e5f6", "principal_id": PRN, "name": "ann's laptop", "kind": "live",
    "shown": "hfst_live_Ab3x", "scopes": None, "created_at": "2026-11-16T10:00:00Z", "created_by": "root",
    "expires_at": None, "revoked_at": None, "revoked_by": None, "last_used_at": None,
}  # fmt: skip
SAID: dict[str, Any] = {
    "id": "aud_0192f0a1b2c37d4e8f90a1b2c3d4e5f6", "at": "2026-11-16T10:00:00Z", "actor": "root", "principal_id": PRN,
    "action": "key.created", "entity_type": "key", "entity_id": "key_0192f0a1b2c37d4e8f90a1b2c3d4e5f6",
    "summary": {"name": "ann's laptop"}, "request_id": "9f86d081884c7d65",
}  # fmt: skip
DECIDED: dict[str, Any] = {
    "seq": 9, "at": "2026-11-16T10:00:00Z", "type": "TASK_COMPLETED", "name": "approve", "actor": "ann",
    "hash": "9f86d0…",
}  # fmt: skip


class AuditQuery(msgspec.Struct, frozen=True):
    entity_type: str | None = None
    entity_id: str | None = None
    limit: Limit = PAGE
    cursor: Cursor | None = None


async def read_me(call: Call) -> Reply:
    """Who you are to this server, and what you may do."""
    caller = call.caller
    return Reply(
        200,
        Me(
            tenant_id=caller.tenant_id, principal_id=caller.principal_id, name=caller.name, kind=caller.kind,  # type: ignore[arg-type]
            roles=[role for role in caller.roles if role in ROLES], groups=sorted(caller.groups),  # type: ignore[misc]
            capabilities=sorted(caller.capabilities),
        ),
    )  # fmt: skip


async def list_roles(call: Call) -> Reply:
    """The roles, and what each may do."""
    items = [RoleOut(role=role, capabilities=sorted(words)) for role, words in ROLES.items()]  # type: ignore[arg-type]
    return Reply(200, Listing[RoleOut](items=items, next_cursor=None))


# -- principals


def _principal(view: PrincipalView) -> PrincipalOut:
    return PrincipalOut(
        id=view.id, kind=view.kind, name=view.name, roles=view.roles, groups=view.groups, issuer=view.issuer,  # type: ignore[arg-type]
        subject=view.subject, status=view.status, version=view.version, created_at=when(view.created_at),  # type: ignore[arg-type]
        created_by=view.created_by, changed_at=when(view.changed_at), changed_by=view.changed_by,
    )  # fmt: skip


def _no_more_than_own(call: Call, kind: str, roles: list[Any] | None) -> None:
    """Nobody gives away what they do not have: a key with few scopes must not make one with all."""
    beyond = capabilities_of(kind, roles or []) - call.caller.capabilities
    if beyond:
        raise Forbidden(f"these roles may do what you may not ({', '.join(sorted(beyond))}): ask somebody who may")


async def create_principal(call: Call, body: CreatePrincipal) -> Reply:
    """A person, a service or an agent of your tenant."""
    _no_more_than_own(call, body.kind, list(body.roles))
    view = await principals.create(
        call.service, call.tenant_id, name=body.name, kind=body.kind, roles=body.roles, groups=body.groups,
        issuer=body.issuer, subject=body.subject, by=call.by, id_=call.derived("principal"),
    )  # fmt: skip
    return Reply(201, _principal(view), str(view.version), {"Location": f"/workflow/principals/{view.id}"})


async def list_principals(call: Call, query: PageQuery) -> Reply:
    """Everybody of your tenant, by name."""
    edge = read_cursor(query.cursor, str)
    found = await principals.list_principals(
        call.service, call.tenant_id, after="" if edge is None else edge[0], limit=query.limit + 1
    )
    return paged(found, query.limit, _principal, lambda view: (view.name,))


async def read_principal(call: Call) -> Reply:
    """One of them."""
    view = await principals.read(call.service, call.tenant_id, call.word("prn"))
    return Reply(200, _principal(view), str(view.version))


async def change_principal(call: Call, body: ChangePrincipal) -> Reply:
    """Change roles, groups or status. Say with If-Match which version you decided on."""
    word = call.word("prn")
    there = await principals.read(call.service, call.tenant_id, word)
    _no_more_than_own(call, there.kind, list(there.roles))  # nor takes it from somebody who has more
    _no_more_than_own(call, there.kind, None if body.roles is None else list(body.roles))
    view = await principals.change(
        call.service, call.tenant_id, word, version=call.expected_version(), roles=body.roles, groups=body.groups,
        status=body.status, by=call.by,
    )  # fmt: skip
    return Reply(200, _principal(view), str(view.version))


# -- keys


def _key_fields(view: KeyView) -> dict[str, Any]:
    return {
        "id": view.id, "principal_id": view.principal_id, "name": view.name, "kind": view.kind, "shown": view.shown,
        "scopes": view.scopes, "created_at": when(view.created_at), "created_by": view.created_by,
        "expires_at": moment(view.expires_at), "revoked_at": moment(view.revoked_at), "revoked_by": view.revoked_by,
        "last_used_at": moment(view.last_used_at),
    }  # fmt: skip


async def create_key(call: Call, body: CreateKey) -> Reply:
    """A key of a principal. It is shown in this answer, and never again."""
    owner = await principals.find(call.service, call.tenant_id, body.principal)
    _no_more_than_own(call, owner.kind, list(owner.roles))
    made = await api_keys.create(
        call.service, call.tenant_id, owner.id, name=body.name, kind=body.kind, scopes=body.scopes,
        expires_at=None if body.expires_at is None else micros(body.expires_at), by=call.by,
        id_=call.derived("key"),
    )  # fmt: skip
    return _made(made)


def _made(made: NewKey) -> Reply:
    out = NewKeyOut(**_key_fields(made.view), key=made.key)
    return Reply(201, out, str(made.view.version), {"Location": f"/workflow/keys/{made.view.id}"})


async def list_keys(call: Call, query: PageQuery) -> Reply:
    """All keys of your tenant, without the keys themselves."""
    edge = read_cursor(query.cursor, bytes)
    found = await api_keys.list_keys(
        call.service, call.tenant_id, after=api_keys.FIRST if edge is None else edge[0], limit=query.limit + 1
    )
    return paged(
        found, query.limit, lambda view: KeyOut(**_key_fields(view)), lambda view: (ids.parse("key", view.id),)
    )


async def _key(call: Call) -> KeyView:
    view = await api_keys.read(call.service, call.tenant_id, call.word("key"))
    if view.kind not in ("live", "test"):  # what a browser holds is nobody's to look at
        raise Problem("not-found", f"there is no {call.path['id']!r} here")
    return view


async def read_key(call: Call) -> Reply:
    """One key, without the key itself."""
    view = await _key(call)
    return Reply(200, KeyOut(**_key_fields(view)), str(view.version))


async def revoke_key(call: Call) -> Reply:
    """End it now. Another server may honour it for a second still."""
    view = await _key(call)
    if view.principal_id != call.caller.principal_id:
        owner = await principals.read(call.service, call.tenant_id, view.principal_id)
        _no_more_than_own(call, owner.kind, list(owner.roles))
    view = await api_keys.revoke(call.service, call.tenant_id, view.id, by=call.by, version=call.expected_version())
    return Reply(200, KeyOut(**_key_fields(view)), str(view.version))


async def rotate_key(call: Call, body: RotateKey) -> Reply:
    """A new key in its place, shown this once; the old one goes on for a while."""
    view = await _key(call)
    owner = await principals.read(call.service, call.tenant_id, view.principal_id)
    _no_more_than_own(call, owner.kind, list(owner.roles))
    made = await api_keys.rotate(
        call.service, call.tenant_id, view.id, overlap=body.overlap, by=call.by,
        id_=call.derived("key"), version=call.expected_version(),
    )  # fmt: skip
    return _made(made)


# -- tenant and audit


async def read_tenant(call: Call) -> Reply:
    """What your tenant's tasks may reach."""
    policy = await tenants.read(call.service.store, call.tenant_id)
    return _tenant(call, policy)


def _tenant(call: Call, policy: Any) -> Reply:
    out = TenantOut(
        tenant_id=call.tenant_id, http_hosts=list(policy.http_hosts), ai_enabled=policy.ai_enabled,
        version=policy.version,
    )  # fmt: skip
    return Reply(200, out, str(policy.version))


async def change_tenant(call: Call, body: ChangeTenant) -> Reply:
    """Which hosts your HTTP tasks may call, and whether your AI tasks may call a model."""
    policy = await tenants.change(
        call.service, call.tenant_id, http_hosts=body.http_hosts, ai_enabled=body.ai_enabled, actor=call.actor,
        by=call.by, version=call.expected_version(),
    )  # fmt: skip
    return _tenant(call, policy)


async def list_audit(call: Call, query: AuditQuery) -> Reply:
    """Who changed definitions, principals, keys, your tenant, and who was given a task; newest first. What happened to
    an instance and its tasks is in the audit of that instance."""
    edge = read_cursor(query.cursor, bytes)
    if (query.entity_type is None) != (query.entity_id is None):
        words = "entity_type and entity_id belong together"
        raise Problem("validation-failed", words, errors=[Fault(words, "/query/entity_id")])
    entity = None
    if query.entity_type is not None and query.entity_id is not None:
        entity = (query.entity_type, query.entity_id)
    before = audit.NEWEST if edge is None else edge[0]
    found = await audit.list_audit(call.service, call.tenant_id, entity=entity, before=before, limit=query.limit + 1)
    return paged(found, query.limit, _said, lambda entry: (ids.parse("aud", entry.id),))


async def instance_audit(call: Call, query: PageQuery) -> Reply:
    """Every transition and decision of an instance in order: what, when and by whom, without any payload."""
    id_ = call.id("ins")
    edge = read_cursor(query.cursor, range((1 << 53) + 1))
    born = await instances.read(call.service, call.tenant_id, id_, steps=False)
    page = await instances.history_page(
        call.service, call.tenant_id, id_, after=0 if edge is None else edge[0], limit=query.limit
    )
    items = [
        TrailOut(
            seq=entry.seq, at=entry.at, type=entry.type, name=entry.name, hash=entry.hash,
            actor=born.created_by if entry.type == h.INSTANCE_STARTED else audit.actor_of(entry.payload),
        )
        for entry in page.entries
    ]  # fmt: skip
    following = cursor_of(page.entries[-1].seq) if page.more else None
    return Reply(200, Listing[TrailOut](items=items, next_cursor=following))


def _said(entry: AuditEvent) -> AuditOut:
    return AuditOut(
        id=entry.id, at=when(entry.at), actor=entry.actor, principal_id=entry.principal_id, action=entry.action,
        entity_type=entry.entity_type, entity_id=entry.entity_id, summary=entry.summary, request_id=entry.request_id,
    )  # fmt: skip


def declare(endpoints: Endpoints) -> None:
    endpoints.add(
        "GET /workflow/me", capability=ANYONE, tag="access", summary="Who am I?",
        answers={200: Answer("You.", Me, {
            "tenant_id": "default", "principal_id": PRN, "name": "ann", "kind": "human", "roles": ["approver"],
            "groups": ["finance"], "capabilities": sorted(ROLES["approver"]),
        })},
    )(read_me)  # fmt: skip
    endpoints.add(
        "GET /workflow/roles", capability=ANYONE, tag="access", summary="List roles",
        answers={200: Answer("The roles.", Listing[RoleOut], {
            "items": [{"role": "viewer", "capabilities": sorted(ROLES["viewer"])}], "next_cursor": None,
        })},
    )(list_roles)  # fmt: skip
    who = {200: Answer("The principal.", PrincipalOut, WHO)}
    endpoints.add(
        "POST /workflow/principals", capability="access:manage", tag="access", summary="Create a principal",
        body=CreatePrincipal, body_example={"name": "ann", "kind": "human", "roles": ["approver"]}, keyed="optional",
        answers={201: Answer("Created.", PrincipalOut, WHO, location=True)}, problems=("name-taken",),
    )(create_principal)  # fmt: skip
    endpoints.add(
        "GET /workflow/principals", capability="access:read", tag="access", summary="List principals",
        query=PageQuery,
        answers={200: Answer("A page.", Listing[PrincipalOut], {"items": [WHO], "next_cursor": None})},
    )(list_principals)  # fmt: skip
    endpoints.add(
        "GET /workflow/principals/{id}", capability="access:read", tag="access", summary="Read a principal",
        answers=who, problems=("not-found",),
    )(read_principal)  # fmt: skip
    endpoints.add(
        "PATCH /workflow/principals/{id}", capability="access:manage", tag="access", summary="Change a principal",
        body=ChangePrincipal, body_example={"roles": ["approver", "viewer"]}, keyed="optional", if_match="required",
        answers=who, problems=("not-found", "precondition-failed"), again=read_principal,
    )(change_principal)  # fmt: skip
    key = {200: Answer("The key, without itself.", KeyOut, KEY)}
    made = {201: Answer("Made, and shown this once.", NewKeyOut, {**KEY, "key": "hfst_live_…"}, location=True)}
    endpoints.add(
        "POST /workflow/keys", capability="access:manage", tag="access", summary="Create a key", body=CreateKey,
        body_example={"principal": "ann", "name": "ann's laptop"}, keyed="optional", secret=True, answers=made,
        problems=("not-found",),
    )(create_key)  # fmt: skip
    endpoints.add(
        "GET /workflow/keys", capability="access:read", tag="access", summary="List keys", query=PageQuery,
        answers={200: Answer("A page.", Listing[KeyOut], {"items": [KEY], "next_cursor": None})},
    )(list_keys)  # fmt: skip
    endpoints.add(
        "GET /workflow/keys/{id}", capability="access:read", tag="access", summary="Read a key", answers=key,
        problems=("not-found",),
    )(read_key)  # fmt: skip
    endpoints.add(
        "POST /workflow/keys/{id}/revoke", capability="access:manage", tag="access", summary="Revoke a key",
        keyed="optional", if_match="optional", answers=key, problems=("not-found", "precondition-failed"),
        again=read_key,
    )(revoke_key)  # fmt: skip
    endpoints.add(
        "POST /workflow/keys/{id}/rotate", capability="access:manage", tag="access", summary="Rotate a key",
        body=RotateKey, body_example={"overlap": "P1D"}, body_optional=True, keyed="optional", secret=True,
        if_match="optional", answers=made, problems=("not-found", "precondition-failed"),
    )(rotate_key)  # fmt: skip
    tenant = {200: Answer("What it may reach.", TenantOut, {
        "tenant_id": "default", "http_hosts": ["api.example.org"], "ai_enabled": True, "version": 1,
    })}  # fmt: skip
    endpoints.add(
        "GET /workflow/tenant", capability="tenant:read", tag="access", summary="Read your tenant", answers=tenant,
    )(read_tenant)  # fmt: skip
    endpoints.add(
        "PATCH /workflow/tenant", capability="tenant:write", tag="access", summary="Change your tenant",
        body=ChangeTenant, body_example={"http_hosts": ["api.example.org"]}, keyed="optional", if_match="required",
        answers=tenant, problems=("precondition-failed",), again=read_tenant,
    )(change_tenant)  # fmt: skip
    endpoints.add(
        "GET /workflow/audit", capability="audit:read", tag="access", summary="Read the audit", query=AuditQuery,
        answers={200: Answer("A page.", Listing[AuditOut], {"items": [SAID], "next_cursor": None})},
    )(list_audit)  # fmt: skip
    endpoints.add(
        "GET /workflow/instances/{id}/audit", capability="audit:read", tag="access",
        summary="Read the audit of an instance", query=PageQuery,
        answers={200: Answer("A page.", Listing[TrailOut], {"items": [DECIDED], "next_cursor": None})},
        problems=("not-found",),
    )(instance_audit)  # fmt: skip
