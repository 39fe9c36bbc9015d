"""Opening the doors of a Holdfast: a store for each database that its tenants live in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast.api.server import Doors
from holdfast.api.settings import ServerSettings
from holdfast.app.service import Service
from holdfast.engine.ids import check_tenant
from holdfast.store.doors import DoorStore
from holdfast.tracing import request_tracing_by

if TYPE_CHECKING:
    from holdfast.facade import Holdfast


@asynccontextmanager
async def opened_doors(
    hf: Holdfast, settings: ServerSettings, make_store: Callable[[str], Any], *, log_requests: bool = False
) -> AsyncIterator[Doors]:
    """For the length of a block. `hf` is open already. Where it was opened for a worker, it sees every tenant of its
    database; the doors do not.

    On SQLite both share a store: a file has one writer, and no roles to tell apart."""
    async with AsyncExitStack() as stack:
        service = hf.service
        if service.store.dialect != "sqlite" and not isinstance(service.store, DoorStore):
            service = await stack.enter_async_context(_opened(hf, hf.url, make_store))
        by_url: dict[str, Service] = {hf.url: service}
        routed: dict[str, Service] = {}
        for tenant_id, url in settings.routes.items():
            if url not in by_url:
                by_url[url] = await stack.enter_async_context(_opened(hf, url, make_store))
            routed[check_tenant(tenant_id)] = by_url[url]
        yield Doors(
            service, settings, routed=routed, spanning=hf.service, metrics=hf.metrics,
            tracing=request_tracing_by(hf.tracer_provider), log_requests=log_requests,
        )  # fmt: skip


@asynccontextmanager
async def _opened(hf: Holdfast, url: str, make_store: Callable[[str], Any]) -> AsyncIterator[Service]:
    store = make_store(url)
    await store.open(migrate=False)
    service = Service(store, hf.registry, hf.payload_limit, hf.backlog_limit, hf.metrics)
    service.committer.start()
    store.on_hint(service)
    try:
        yield service
    finally:
        await service.committer.close()
        await store.close()
