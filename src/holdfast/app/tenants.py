"""What each tenant's tasks may reach: the hosts HTTP tasks may call, and whether AI tasks may call a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.app import audit
from holdfast.app.audit import By
from holdfast.engine import codec
from holdfast.engine.egress import entry_of
from holdfast.engine.errors import BadInput, VersionMoved
from holdfast.engine.retry import storable
from holdfast.engine.tenants import TenantPolicy

if TYPE_CHECKING:
    from holdfast.app.service import Service
    from holdfast.store.port import Store

KEPT_SECONDS = 1.0
HOSTS_MAX = 200


class Policies:
    """The settings of tenants as handlers ask for them, read at most once a second each."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, tuple[float, TenantPolicy]] = {}

    async def of(self, tenant_id: str) -> TenantPolicy:
        now = asyncio.get_running_loop().time()
        read_at, found = self._kept.get(tenant_id, (-KEPT_SECONDS, TenantPolicy()))
        if now - read_at >= KEPT_SECONDS:
            found = await read(self._store, tenant_id)
            self._kept[tenant_id] = (now, found)
        return found

    def forget(self, tenant_id: str) -> None:
        self._kept.pop(tenant_id, None)


async def read(store: Store, tenant_id: str) -> TenantPolicy:
    rows = await store.fetch("read_tenant", tenant_id=tenant_id)
    if not rows:
        return TenantPolicy()
    hosts, ai_enabled, version = rows[0]
    return TenantPolicy(http_hosts=tuple(codec.decode(hosts.encode())), ai_enabled=bool(ai_enabled), version=version)


async def change(
    service: Service, tenant_id: str, *, http_hosts: Sequence[str] | None, ai_enabled: bool | None, actor: str,
    by: By | None = None, version: int | None = None,
) -> TenantPolicy:  # fmt: skip
    """Set what is given, keep the rest. `version`: only if that still counts."""
    hosts = None if http_hosts is None else check_hosts(http_hosts)
    if ai_enabled is not None and not isinstance(ai_enabled, bool):
        raise BadInput(f"ai_enabled is {ai_enabled!r}: expected True or False")
    now = service.store.now()
    values = {
        "tenant_id": tenant_id, "http_hosts": None if hosts is None else codec.encode(hosts).decode(),
        "ai_enabled": ai_enabled, "ai_default": True, "now": now, "actor": actor, "version": version,
    }  # fmt: skip
    given = {"http_hosts": hosts, "ai_enabled": ai_enabled}
    summary = {name: value for name, value in given.items() if value is not None}
    note = audit.entry(tenant_id, now, by or By(actor), "tenant.changed", ("tenant", tenant_id), summary)
    if not await service.change(tenant_id, [("set_tenant", values), note]):
        found = await read(service.store, tenant_id)
        raise VersionMoved(f"tenant {tenant_id!r}", str(version), str(found.version))
    service.policies.forget(tenant_id)
    return await read(service.store, tenant_id)


def check_hosts(http_hosts: Sequence[str]) -> list[str]:
    hosts = [] if isinstance(http_hosts, str) else list(http_hosts)
    if isinstance(http_hosts, str) or not _are_hosts(hosts):
        raise BadInput(
            f"http_hosts is {str(http_hosts)[:100]!r}: expected a list of at most {HOSTS_MAX} hosts such as "
            "api.example.org, *.example.org, api.example.org:8443 or http://api.example.org for plain HTTP too"
        )
    return hosts


def _are_hosts(hosts: list[str]) -> bool:
    return len(hosts) <= HOSTS_MAX and all(
        isinstance(host, str) and len(host) <= 270 and entry_of(host) is not None and storable(host) == host
        for host in hosts
    )
