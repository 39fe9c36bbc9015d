"""Principals, their keys, the tenant's settings and the audit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

from holdfast.api.models import (
    AuditOut,
    ChangePrincipal,
    ChangeTenant,
    CreateKey,
    CreatePrincipal,
    KeyOut,
    Listing,
    PrincipalKind,
    PrincipalOut,
    Role,
    RotateKey,
)
from holdfast.client.answers import Key, NewKey, Principal, TenantSettings
from holdfast.client.calls import Connection, IfMatch, at
from holdfast.client.pages import Pages


class Principals:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self, name: str, *, kind: PrincipalKind, roles: Sequence[Role], groups: Sequence[str] = (),
        issuer: str | None = None, subject: str | None = None, idempotency_key: str | None = None,
    ) -> Principal:  # fmt: skip
        """A person, a service or an agent of your tenant."""
        body = CreatePrincipal(
            name=name, kind=kind, roles=[*roles], groups=[*groups], issuer=issuer, subject=subject
        )  # fmt: skip
        return await self._connection.change(Principal, at("principals"), body, idempotency_key=idempotency_key)

    def list(self, *, limit: int | None = None) -> Pages[PrincipalOut]:
        """Everybody of your tenant, by name."""
        return self._connection.pages(Listing[PrincipalOut], at("principals"), {"limit": limit})

    async def read(self, id: str) -> Principal:
        return await self._connection.read(Principal, at("principals", id))

    async def change(
        self, id: str, *, if_match: str | int, roles: Sequence[Role] | None = None,
        groups: Sequence[str] | None = None, status: Literal["active", "disabled"] | None = None,
        idempotency_key: str | None = None,
    ) -> Principal:  # fmt: skip
        """Change what is named; `if_match` says which version you decided on."""
        body = ChangePrincipal(
            roles=None if roles is None else [*roles], groups=None if groups is None else [*groups], status=status
        )
        return await self._connection.change(
            Principal, at("principals", id), body, method="PATCH", if_match=if_match, idempotency_key=idempotency_key
        )


class Keys:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self, principal: str, name: str, *, kind: Literal["live", "test"] = "live",
        scopes: Sequence[str] | None = None, expires_at: datetime | None = None, idempotency_key: str | None = None,
    ) -> NewKey:  # fmt: skip
        """A key of a principal (its name or id). `key` is in this answer and never again."""
        body = CreateKey(
            principal=principal, name=name, kind=kind, scopes=None if scopes is None else [*scopes],
            expires_at=expires_at,
        )  # fmt: skip
        return await self._connection.change(NewKey, at("keys"), body, idempotency_key=idempotency_key)

    def list(self, *, limit: int | None = None) -> Pages[KeyOut]:
        """All keys of your tenant, without the keys themselves."""
        return self._connection.pages(Listing[KeyOut], at("keys"), {"limit": limit})

    async def read(self, id: str) -> Key:
        return await self._connection.read(Key, at("keys", id))

    async def revoke(self, id: str, *, if_match: IfMatch = None, idempotency_key: str | None = None) -> Key:
        """End it now."""
        return await self._connection.change(
            Key, at("keys", id, "revoke"), if_match=if_match, idempotency_key=idempotency_key
        )

    async def rotate(
        self,
        id: str,
        *,
        overlap: timedelta = timedelta(days=1),
        if_match: IfMatch = None,
        idempotency_key: str | None = None,
    ) -> NewKey:
        """A new key in its place; the old one goes on for a while."""
        return await self._connection.change(
            NewKey, at("keys", id, "rotate"), RotateKey(overlap=overlap), if_match=if_match,
            idempotency_key=idempotency_key,
        )  # fmt: skip


class Tenant:
    """The tenant of the key."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def read(self) -> TenantSettings:
        """What its tasks may reach."""
        return await self._connection.read(TenantSettings, at("tenant"))

    async def change(
        self, *, if_match: str | int, http_hosts: Sequence[str] | None = None, ai_enabled: bool | None = None,
        idempotency_key: str | None = None,
    ) -> TenantSettings:  # fmt: skip
        """Change what is named; `if_match` says which version you decided on."""
        body = ChangeTenant(http_hosts=None if http_hosts is None else [*http_hosts], ai_enabled=ai_enabled)
        return await self._connection.change(
            TenantSettings, at("tenant"), body, method="PATCH", if_match=if_match, idempotency_key=idempotency_key
        )


class Audit:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self, *, entity_type: str | None = None, entity_id: str | None = None, limit: int | None = None
    ) -> Pages[AuditOut]:
        """Who changed what, newest first."""
        query = {"entity_type": entity_type, "entity_id": entity_id, "limit": limit}
        return self._connection.pages(Listing[AuditOut], at("audit"), query)
