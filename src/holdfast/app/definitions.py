"""Definitions: published once, never edited, each version alive as long as an instance pins it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from uuid_utils import uuid7

from holdfast.app import audit
from holdfast.app.audit import By
from holdfast.app.instances import send, taken_by
from holdfast.app.registry import OURS, Definition, no_function
from holdfast.app.views import View
from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.charts import document as doc
from holdfast.engine.charts.document import BadChart, Problem
from holdfast.engine.errors import (
    BadInput,
    DefinitionNotActive,
    DefinitionNotFound,
    HoldfastError,
    InstanceNotFound,
    StoreUnavailable,
    VersionMoved,
    WorkflowNotRegistered,
)
from holdfast.engine.moments import Moment, when
from holdfast.engine.retry import storable

if TYPE_CHECKING:
    from holdfast.app.registry import Registry
    from holdfast.app.service import Service
    from holdfast.engine.charts.nodes import Chart
    from holdfast.store.port import Place, Store

STATUSES = ("active", "inactive", "archived")
LOOK_BACK = 60_000_000  # microseconds that two processes' clocks may be apart, and a publish may take
PUBLISH_TRIES = 20
CHILD = "workflow:"  # before the name of a child, among what a chart needs a worker to have
Loaded = tuple[str, str, int]


class DefinitionView(View, frozen=True, kw_only=True):
    """A published definition."""

    id: str
    key: str
    version: int
    kind: str
    status: str
    hash: str
    handlers: list[str]
    created_at: Moment
    created_by: str
    changed_at: Moment
    changed_by: str
    revision: int = 0
    """Counts the changes of its status."""
    spec: Any = None
    """The document; filled when one definition is read, not in lists."""


class Archived(BadInput):
    """An archived definition stays archived."""

    code = "definition_archived"


class Charts:
    """The charts this process has read, and which of them its handlers can run."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self._needs: dict[Loaded, frozenset[str]] = {}
        self._loaded: dict[Loaded, Definition] = {}
        self._active: dict[tuple[str, str], set[int]] = {}
        self._since = 0

    async def refresh(self) -> None:
        """Hear of what was published or changed since the last look, here or elsewhere."""
        for tenant_id, key, version, status, handlers, changed_at in await self._store.fetch(
            "changed_definitions", since=self._since
        ):
            self._heard(tenant_id, key, version, status, codec.decode(handlers.encode()))
            self._since = max(self._since, changed_at - LOOK_BACK)

    def _heard(self, tenant_id: str, key: str, version: int, status: str, handlers: list[str]) -> None:
        self._needs[tenant_id, key, version] = frozenset(handlers)
        active = self._active.setdefault((tenant_id, key), set())
        (active.add if status == "active" else active.discard)(version)

    def changed(self, tenant_id: str, view: DefinitionView) -> None:
        """Said by this process itself, which need not wait for its next look."""
        self._heard(tenant_id, view.key, view.version, view.status, view.handlers)

    def newest_known(self, tenant_id: str, key: str) -> int | None:
        """The newest active version as of the last look."""
        return max(self._active.get((tenant_id, key), ()), default=None)

    def is_known_to_anybody(self, key: str) -> bool:
        """To any tenant, as of the last look."""
        return any(name == key and versions for (_, name), versions in self._active.items())

    def check_startable(self, tenant_id: str, key: str, version: int) -> None:
        """Refuse a version that is not published or not active, as of the last look."""
        if (tenant_id, key, version) not in self._needs:
            raise DefinitionNotFound(key, version)
        if version not in self._active.get((tenant_id, key), ()):
            raise DefinitionNotActive(key, version)

    def places(self) -> list[Place]:
        """What a worker with these handlers may claim."""
        known = self._known()
        return [place for place, needs in self._needs.items() if needs <= known or self._fits(place[0], needs - known)]

    def can_run(self, tenant_id: str, key: str, version: int) -> bool:
        """Whether this process has what that chart asks for."""
        needs = self._needs.get((tenant_id, key, version))
        return needs is not None and self._fits(tenant_id, needs - self._known())

    def lacking(self, tenant_id: str, key: str, version: int) -> list[str]:
        """What that chart asks for and this process does not have, in words."""
        missing = sorted(self._needs.get((tenant_id, key, version), frozenset()) - self._known())
        return [
            f"workflow {need.removeprefix(CHILD)!r}" if need.startswith(CHILD) else f"handler {need!r}"
            for need in missing
            if not self._fits(tenant_id, [need])
        ]

    def child(self, tenant_id: str, key: str, version: int | None) -> Definition:
        """What a parent names: code registered here, or a published chart; never Holdfast's own."""
        if key.startswith(OURS):
            raise WorkflowNotRegistered(key, version, [])
        if self._registry.has(key):
            return self._registry.find(key, version)
        if version is None:
            version = self.newest_known(tenant_id, key)
            if version is None:
                raise WorkflowNotRegistered(key, version, [])
        else:
            self.check_startable(tenant_id, key, version)
        return Definition("chart", key, version, "default", no_function)

    def _known(self) -> frozenset[str]:
        return self._registry.handler_names() | {CHILD + key for key in self._registry.names()}

    def _fits(self, tenant_id: str, missing: Iterable[str]) -> bool:
        """Whether all that this process lacks are children that are charts, which any worker may start."""
        return all(need.startswith(CHILD) and (tenant_id, need.removeprefix(CHILD)) in self._active for need in missing)

    async def load(self, tenant_id: str, key: str, version: int) -> Definition:
        place = (tenant_id, key, version)
        found = self._loaded.get(place)
        if found is None:
            rows = await self._store.fetch("read_definition", tenant_id=tenant_id, key=key, version=version)
            if not rows:
                raise DefinitionNotFound(key, version)
            from holdfast.engine.charts.compiler import (
                chart_from,
            )  # CEL is large: only those who use charts wait for it

            found = self._loaded[place] = _definition(key, version, chart_from(rows[0][12], version=version))
        return found

    async def startable(self, tenant_id: str, key: str, version: int) -> Definition:
        """A version that somebody names: it must be active like any other."""
        rows = await self._store.fetch("read_definition", tenant_id=tenant_id, key=key, version=version)
        if rows and rows[0][4] != "active":
            raise DefinitionNotActive(key, version)
        return await self.load(tenant_id, key, version)

    def loaded(self, tenant_id: str, key: str, version: int) -> Definition | None:
        return self._loaded.get((tenant_id, key, version))

    async def newest(self, tenant_id: str, key: str) -> Definition | None:
        """The newest active version; None if no chart has that key."""
        [(version,)] = await self._store.fetch("newest_active_version", tenant_id=tenant_id, key=key)
        if version is not None:
            return await self.load(tenant_id, key, version)
        [(any_version,)] = await self._store.fetch("newest_version", tenant_id=tenant_id, key=key)
        if any_version:
            raise DefinitionNotActive(key, any_version)
        return None


def _definition(key: str, version: int, chart: Chart) -> Definition:
    return Definition("chart", key, version, "default", no_function, None, None, chart)


class Published(msgspec.Struct, frozen=True):
    """A definition, and whether it was published just now."""

    view: DefinitionView
    is_new: bool


async def publish(
    service: Service, tenant_id: str, spec: Any, *, key: str | None, actor: str, by: By | None = None,
    newest: int | None = None,
) -> Published:  # fmt: skip
    """A new version, or the one that already has this very content. `newest`: only if that is the newest so far."""
    document, chart = await asyncio.to_thread(_compiled, spec)  # thousands of expressions take seconds
    key = check_key(chart.id if key is None else key)
    if not isinstance(actor, str) or not actor or storable(actor) != actor:
        raise BadInput(f"actor is {actor!r}: expected the name of whoever publishes this")
    if service.registry.has(key):
        raise BadInput(f"{key!r} is the name of a code workflow in this process: give the chart another key")
    text = doc.written(document)
    handlers = sorted(chart.handlers() | {CHILD + child for _, child in chart.workflows})
    for attempt in range(PUBLISH_TRIES):
        rows = await service.store.fetch("find_definition_content", tenant_id=tenant_id, key=key, hash=chart.hash)
        if rows:  # whatever is the newest: nothing is changed, or it was changed by whoever asks again
            return Published(await read(service, tenant_id, key, rows[0][0]), False)
        [(found,)] = await service.store.fetch("newest_version", tenant_id=tenant_id, key=key)
        if newest is not None and newest != found:
            raise VersionMoved(f"{key!r}", str(newest), str(found))
        version, now = found + 1, service.store.now()
        id_ = ids.derived("definition", tenant_id, key, str(version))
        values = {
            "tenant_id": tenant_id, "key": key, "version": version, "id": id_, "kind": "chart", "hash": chart.hash,
            "spec": text, "handlers": codec.encode(handlers).decode(), "now": now, "actor": actor,
        }  # fmt: skip
        entity = ("definition", ids.shown("def", id_))
        summary = {"key": key, "version": version, "hash": chart.hash}
        note = audit.entry(tenant_id, now, by or By(actor), "definition.published", entity, summary)
        if await service.change(tenant_id, [("publish_definition", values), note]):
            view = await read(service, tenant_id, key, version)
            service.charts.changed(tenant_id, view)
            return Published(view, True)
        # Somebody else published a version of this key at the same moment: look again.
        await asyncio.sleep(random.random() * 0.01 * attempt)
    raise StoreUnavailable(f"{key!r} could not be published: others publish versions of it all the time; try again")


def _compiled(spec: Any) -> tuple[dict[str, Any], Chart]:
    from holdfast.engine.charts.compiler import compile_chart

    document = doc.reread(spec)
    return document, compile_chart(document)


def check_key(key: Any) -> str:
    try:
        ids.check_name("key", key)
        if key.startswith(OURS):
            raise BadInput(f"key {key!r}: names that begin with {OURS!r} are Holdfast's own")
    except HoldfastError as error:
        raise BadChart([Problem("/id", str(error))]) from None
    return str(key)


async def read(service: Service, tenant_id: str, key: str, version: int | None = None) -> DefinitionView:
    if version is None:
        [(version,)] = await service.store.fetch("newest_version", tenant_id=tenant_id, key=key)
    rows = await service.store.fetch("read_definition", tenant_id=tenant_id, key=key, version=version)
    if not rows:
        raise DefinitionNotFound(key, version or None)
    return _view(rows[0])


async def resolve(service: Service, tenant_id: str, key: str, version: int | None) -> Definition:
    """By what a new instance starts: code registered here, or a published chart; the newest active version unless one
    is named. Never Holdfast's own."""
    if key.startswith(OURS):
        raise WorkflowNotRegistered(key, version, [])
    if service.registry.has(key):
        return service.registry.find(key, version)
    found = await (
        service.charts.newest(tenant_id, key) if version is None else service.charts.startable(tenant_id, key, version)
    )
    return found if found is not None else service.registry.find(key, version)


async def read_by_id(service: Service, tenant_id: str, id_: bytes) -> DefinitionView:
    rows = await service.store.fetch("read_definition_by_id", tenant_id=tenant_id, id=id_)
    if not rows:
        raise DefinitionNotFound(ids.shown("def", id_))
    return _view(rows[0])


async def list_definitions(service: Service, tenant_id: str, *, key: str | None, limit: int) -> list[DefinitionView]:
    if not 1 <= limit <= 1000:
        raise BadInput(f"limit is {limit}: expected 1 to 1,000")
    return await page(service, tenant_id, key=key, limit=limit)


async def page(
    service: Service, tenant_id: str, *, key: str | None = None, status: str | None = None,
    after: tuple[str, int] | None = None, limit: int,
) -> list[DefinitionView]:  # fmt: skip
    """By key, the newest version first; `after`: behind this key and version."""
    at = ("", 1 << 30) if after is None else after
    if key is not None and after is not None and after[0] != key:
        at = (key, 0 if after[0] > key else 1 << 30)
    name = "list_definitions" + ("" if key is None else "_of_key")
    if status is not None:
        name += "_of_status" if key is None else "_and_status"
    rows = await service.store.fetch(
        name, tenant_id=tenant_id, key=key, status=status, after_key=at[0], after_version=at[1], limit=limit
    )
    return [_view(row) for row in rows]


async def set_status(
    service: Service, tenant_id: str, key: str, version: int, status: str, *, actor: str, by: By | None = None,
    revision: int | None = None,
) -> DefinitionView:  # fmt: skip
    """Active: new instances may start. Inactive or archived: those that run go on, no new ones start.

    `revision`: only if that is still the one that counts."""
    if status not in STATUSES:
        raise BadInput(f"status is {status!r}: expected one of {', '.join(STATUSES)}")
    there = await read(service, tenant_id, key, version)
    if revision is not None and there.revision != revision:
        raise VersionMoved(f"version {version} of {key!r}", str(revision), str(there.revision))
    if there.status == "archived" and status != "archived":
        raise Archived(f"version {version} of {key!r} is archived, which is for good: publish a new version")
    if there.status != status:
        now = service.store.now()
        values = {
            "tenant_id": tenant_id, "key": key, "version": version, "status": status, "actor": actor, "now": now,
            "revision": there.revision,
        }  # fmt: skip
        summary = {"key": key, "version": version, "before": there.status, "after": status}
        note = audit.entry(tenant_id, now, by or By(actor), "definition.status", ("definition", there.id), summary)
        if not await service.change(tenant_id, [("set_definition_status", values), note]):
            found = await read(service, tenant_id, key, version)
            raise VersionMoved(f"version {version} of {key!r}", str(there.revision), str(found.revision))
    view = await read(service, tenant_id, key, version)
    service.charts.changed(tenant_id, view)
    return view


def _view(row: Any) -> DefinitionView:
    return DefinitionView(
        id=ids.shown("def", row[0]), key=row[1], version=row[2], kind=row[3], status=row[4], hash=row[5],
        handlers=codec.decode(row[6].encode()), created_at=when(row[7]), created_by=row[8],
        changed_at=when(row[9]),
        changed_by=row[10], revision=row[11], spec=doc.read(row[12]) if len(row) > 12 else None,
    )  # fmt: skip


class MigrationView(View, frozen=True, kw_only=True):
    """What became, or would become, of one instance."""

    instance_id: str
    outcome: str  # migrated | possible | refused
    problems: list[str] = msgspec.field(default_factory=list)
    summary: dict[str, Any] = msgspec.field(default_factory=dict)


def _check_migration(states: Any, options: dict[str, Any]) -> None:
    if not isinstance(states, dict) or not all(isinstance(to, str) for to in states.values()):
        raise BadInput(f'states is {states!r}: expected a map of old states to new ones such as {{"review": "check"}}')
    for name, value in options.items():
        if name == "context":
            if not isinstance(value, dict):
                raise BadInput(f"context is {value!r}: expected an object of fields to set")
        elif name not in ("stop", "start", "enter"):
            raise BadInput(f"{name} is not known here: a migration takes context, stop, start and enter")
        elif isinstance(value, str) or not all(isinstance(word, str) for word in value):
            raise BadInput(f"{name} is {value!r}: expected a list of names")


async def try_migration(
    service: Service, tenant_id: str, id_: bytes, version: int, states: dict[str, str], options: dict[str, Any]
) -> MigrationView:
    """A dry run: on the snapshot as it is now, changing nothing."""
    from holdfast.engine.charts.migration import plan_migration
    from holdfast.engine.charts.snapshots import snapshot_from

    _check_migration(states, options)
    rows = await service.store.fetch("read_snapshot", tenant_id=tenant_id, id=id_)
    word = ids.instance_word(id_)
    if not rows:
        raise InstanceNotFound(word, tenant_id)
    raw, key, old_version, status = rows[0]
    if raw is None or status in ("completed", "failed", "cancelled"):
        return MigrationView(
            instance_id=word, outcome="refused", problems=[f"it is {status} and has no snapshot to move"]
        )
    old = await service.charts.load(tenant_id, key, old_version)
    new = await service.charts.load(tenant_id, key, version)
    assert old.chart is not None and new.chart is not None
    snapshot = msgspec.structs.replace(snapshot_from(old.chart, raw), incident=None, inbox=[])
    moved = plan_migration(old.chart, new.chart, snapshot, states, now=service.store.now(), **options)
    if isinstance(moved, list):
        return MigrationView(instance_id=word, outcome="refused", problems=[str(p) for p in moved])
    return MigrationView(instance_id=word, outcome="possible", summary=moved.summary)


async def migrate(
    service: Service, tenant_id: str, id_: bytes, version: int, states: dict[str, str], options: dict[str, Any], *,
    actor: str, reason: str, timeout: float, name: str | None = None, moved: int | None = None,
) -> MigrationView:  # fmt: skip
    """Ask one instance to move; its own worker does it, in one turn. Refused, it stays as it is.

    The same `name` twice is one move. `moved`: only if nothing has happened to it since it was read."""
    tried = await try_migration(service, tenant_id, id_, version, states, options)
    if tried.outcome == "refused":
        return tried
    words = {"version": version, "states": states, "actor": actor, "reason": reason} | {
        name: list(value) if not isinstance(value, dict) else value for name, value in options.items()
    }
    event_id = f"migrate:{name or uuid7().hex}"
    payload = codec.encode(words, "the migration", service.payload_limit)
    await send(service, tenant_id, id_, "migrate", "", payload, event_id, "be migrated", moved=moved)
    row = await taken_by(service, tenant_id, id_, "migrate", event_id, timeout)
    said = codec.decode(row[5])
    if row[1] == h.INSTANCE_MIGRATED:
        return MigrationView(instance_id=tried.instance_id, outcome="migrated", summary=said)
    return MigrationView(instance_id=tried.instance_id, outcome="refused", problems=said.get("problems", []))
