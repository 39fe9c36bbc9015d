"""Dead letters: work out of attempts, kept for an operator to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.app import audit, control
from holdfast.app.audit import By
from holdfast.app.instances import ANY_SIZE
from holdfast.app.views import View
from holdfast.engine import codec, ids
from holdfast.engine.errors import DeadLetterNotFound, DeadLetterNotOpen
from holdfast.engine.moments import Moment, moment, when
from holdfast.engine.turns import DeadLetter

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
    resolved_at: Moment | None = None
    resolved_by: str | None = None
    left_out: list[str] = msgspec.field(default_factory=list)


def _view(tenant_id: str, row: Sequence[Any]) -> DeadLetterView:
    id_, source, instance, key, reason, payload, created_at, resolution, resolved_at, resolved_by, *left_out = row
    return DeadLetterView(
        id=ids.shown("dlt", id_), tenant_id=tenant_id, source=source, workflow=key, reason=reason,
        instance_id=None if instance is None else ids.instance_word(instance),
        payload=None if payload is None else codec.decode(payload), created_at=when(created_at), resolution=resolution,
        resolved_at=moment(resolved_at), resolved_by=resolved_by,
        left_out=left_out[0].split() if left_out else [],
    )  # fmt: skip


def just_written(letter: DeadLetter) -> DeadLetterView:
    """A letter as it stands when its turn is committed: nobody has dealt with it, so it need not be read."""
    return _view(letter.tenant_id, (*letter[1:], None, None, None))


async def list_dead_letters(
    service: Service, tenant_id: str, limit: int, *, open_only: bool = False
) -> list[DeadLetterView]:
    """The newest, whole. `open_only`: so many of those that nobody has dealt with, the newest first."""
    if open_only:
        rows = await service.store.fetch("list_open_dead_letters", tenant_id=tenant_id, limit=limit)
        return sorted((_view(tenant_id, row) for row in rows), key=lambda one: one.created_at, reverse=True)
    at, id_ = LAST
    rows = await service.store.fetch("list_dead_letters", tenant_id=tenant_id, before_at=at, before=id_, limit=limit)
    return [_view(tenant_id, row) for row in rows]


async def read(service: Service, tenant_id: str, letter: str) -> DeadLetterView:
    rows = await service.store.fetch("read_dead_letter", tenant_id=tenant_id, id=ids.parse("dlt", letter))
    if not rows:
        raise DeadLetterNotFound(letter, tenant_id)
    return _view(tenant_id, rows[0])


def check_open(view: DeadLetterView) -> None:
    if view.resolution is not None:
        raise DeadLetterNotOpen(
            f"dead letter {view.id} was {view.resolution} by {view.resolved_by}: nothing is left to do"
        )


def replayable(view: DeadLetterView) -> str:
    """The instance that would go on. A task's letter ended a chart's instance, which cannot be taken up."""
    check_open(view)
    if view.instance_id is None or view.source != "instance":
        raise DeadLetterNotOpen(
            f"dead letter {view.id} is of a {view.source}: its chart's instance has failed and cannot be taken up "
            "again; start a new one, then ignore the letter"
        )
    return view.instance_id


def what_replay_does(view: DeadLetterView) -> str:
    return f"instance {replayable(view)} would go on as a new one, from the step that failed"


async def replay(service: Service, tenant_id: str, letter: str, *, by: By, reason: str) -> str:
    """The new instance. It is made first: a letter marked by nobody can be replayed again, and gives the same one."""
    view = await read(service, tenant_id, letter)
    raw = ids.parse("ins", replayable(view))
    new = await control.retry(service, tenant_id, raw, reason=reason, actor=by.actor)
    await _resolve(service, view, "replayed", by, reason)
    return ids.instance_word(new)


async def ignore(service: Service, tenant_id: str, letter: str, *, by: By, reason: str) -> DeadLetterView:
    view = await read(service, tenant_id, letter)
    check_open(view)
    await _resolve(service, view, "ignored", by, reason)
    return await read(service, tenant_id, letter)


async def _resolve(service: Service, view: DeadLetterView, resolution: str, by: By, reason: str) -> None:
    now = service.store.now()
    values = {
        "tenant_id": view.tenant_id, "id": ids.parse("dlt", view.id), "resolution": resolution, "now": now,
        "by": by.actor,
    }  # fmt: skip
    summary = {"resolution": resolution, "reason": control.checked_words(reason, by.actor)["reason"]}
    note = audit.entry(view.tenant_id, now, by, "dead_letter.resolved", ("dead_letter", view.id), summary)
    if not await service.change(view.tenant_id, [("resolve_dead_letter", values), note]):
        check_open(await read(service, view.tenant_id, view.id))  # somebody was first


async def page(
    service: Service, tenant_id: str, *, before: tuple[int, bytes] | None, limit: int, most: int = ANY_SIZE
) -> list[DeadLetterView]:
    """Newest first, from before this moment and id. `most`: payloads of more bytes are left out."""
    at, id_ = before or LAST
    rows = await service.store.fetch(
        "page_of_dead_letters", tenant_id=tenant_id, before_at=at, before=id_, limit=limit, most=most
    )
    return [_view(tenant_id, row) for row in rows]
