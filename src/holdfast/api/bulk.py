"""Bulk actions over HTTP: count first, then do one thing to everything that matches, and see how far it has come."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

import msgspec
from uuid_utils import uuid7

from holdfast.api.endpoints import Answer, Call, Endpoints, Reply
from holdfast.api.instances import INS
from holdfast.api.models import Bulk, BulkFailure, BulkOut, Listing
from holdfast.api.problems import Fault, Problem
from holdfast.app import bulk
from holdfast.app.bulk import Order
from holdfast.engine import ids
from holdfast.engine.errors import Forbidden, InstanceNotFound
from holdfast.engine.events import OUR_EVENTS
from holdfast.engine.moments import micros

ONE: dict[str, Any] = {
    "id": "blk_0192f0a1b2c37d4e8f90a1b2c3d4e5f6", "action": "cancel", "status": "running", "matched": 1200,
    "done": 400, "failed": 1,
}  # fmt: skip


class FailuresQuery(msgspec.Struct, frozen=True):
    cursor: Annotated[int, msgspec.Meta(ge=0, le=(1 << 53))] = 0


def _order(call: Call, body: Bulk, id_: bytes) -> Order:
    wanted = body.filter
    named = (wanted.status, wanted.definition_key, wanted.business_key, wanted.created_after, wanted.created_before)
    if all(one is None for one in named) and not wanted.all:
        words = "an empty filter matches everything: say all if that is meant"
        raise Problem("validation-failed", f"filter: {words}", errors=[Fault(words, "/filter")])
    if (body.action == "signal") != (body.signal is not None):
        words = "the action signal needs the signal's name, and no other action takes one"
        raise Problem("validation-failed", words, errors=[Fault(words, "/signal")])
    if body.signal is not None and body.signal.startswith(OUR_EVENTS):
        words = f"names that begin with {', '.join(OUR_EVENTS)} are the engine's own"
        raise Problem("validation-failed", words, errors=[Fault(words, "/signal")])
    now = call.service.store.now()
    return Order(
        bulk_id=ids.shown("blk", id_), tenant_id=call.tenant_id, action=body.action, actor=call.actor,
        reason=body.reason, signal=body.signal, payload=body.payload,
        until=now if wanted.created_before is None else min(now, micros(wanted.created_before)),
        since=0 if wanted.created_after is None else micros(wanted.created_after),
        statuses=None if wanted.status is None else list(wanted.status), key=wanted.definition_key,
        business_key=wanted.business_key,
    )  # fmt: skip


async def begin_bulk(call: Call, body: Bulk) -> Reply:
    """Cancel, pause, resume, retry or signal everything that matches. With `dry_run` it is only counted. The work goes
    on when this answer is given, also through a restart; how far it is, and who could not be told, can be read."""
    needed = "instances:send" if body.action == "signal" else "instances:control"
    if not call.caller.may(needed):
        raise Forbidden(f"{call.actor} may not {body.action} one instance, so not many: that takes {needed!r}")
    id_ = call.derived("bulk") or uuid7().bytes
    order = _order(call, body, id_)
    if call.claim is not None and call.claim.taken_over:  # begun before: perhaps it was recorded, and has done its work
        with suppress(InstanceNotFound):
            return _accepted(await bulk.read(call.service, call.tenant_id, id_))
    matched = await bulk.count(call.service, order)
    if body.dry_run:
        return Reply(200, BulkOut(id=None, action=body.action, status="dry_run", matched=matched, done=0, failed=0))
    if body.expected is not None and body.expected != matched:
        raise Problem("precondition-failed", f"{matched:,} match now, not {body.expected:,}: look again, then decide")
    view = await bulk.begin(call.service, msgspec.structs.replace(order, matched=matched), id_)
    return _accepted(view)


def _accepted(view: bulk.BulkView) -> Reply:
    return Reply(202, _out(view), None, {"Location": f"/workflow/bulk/{view.id}"})


def _out(view: bulk.BulkView) -> BulkOut:
    fields: dict[str, Any] = msgspec.structs.asdict(view)
    del fields["moved"]
    return BulkOut(**fields)


async def read_bulk(call: Call) -> Reply:
    """How far it has come."""
    view = await bulk.read(call.service, call.tenant_id, call.id("blk"))
    return Reply(200, _out(view), str(view.moved))


async def bulk_failures(call: Call, query: FailuresQuery) -> Reply:
    """Who could not be told, and why. A page holds what came of up to 4,000 instances."""
    found, following = await bulk.failures(call.service, call.tenant_id, call.id("blk"), after=query.cursor)
    items = [BulkFailure(instance_id=word, detail=why) for word, why in found]
    return Reply(200, Listing[BulkFailure](items=items, next_cursor=None if following is None else str(following)))


def declare(endpoints: Endpoints) -> None:
    endpoints.add(
        "POST /workflow/bulk", capability="instances:bulk", tag="bulk", summary="Act on everything that matches",
        body=Bulk, body_example={
            "action": "cancel", "filter": {"definition_key": "expense", "status": ["waiting"]},
            "reason": "wrong batch", "dry_run": True,
        },
        keyed="required",
        answers={
            200: Answer("Counted, nothing done.", BulkOut, {**ONE, "id": None, "status": "dry_run", "done": 0}),
            202: Answer("Recorded; a worker carries it out.", BulkOut, ONE, location=True),
        },
        problems=("precondition-failed",),
    )(begin_bulk)  # fmt: skip
    endpoints.add(
        "GET /workflow/bulk/{id}", capability="instances:bulk", tag="bulk", summary="Read a bulk action",
        answers={200: Answer("How far it is.", BulkOut, ONE)}, problems=("not-found",),
    )(read_bulk)  # fmt: skip
    endpoints.add(
        "GET /workflow/bulk/{id}/failures", capability="instances:bulk", tag="bulk",
        summary="List who could not be told", query=FailuresQuery,
        answers={200: Answer("A page.", Listing[BulkFailure], {
            "items": [{"instance_id": INS, "detail": "it is completed"}], "next_cursor": None,
        })},
        problems=("not-found",),
    )(bulk_failures)  # fmt: skip
