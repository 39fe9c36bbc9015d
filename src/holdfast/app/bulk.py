"""One thing done to everything that matches a filter: a workflow of our own, so that it survives what others survive.

Pages are steps: each is journaled when all its instances have been told, with where the next begins. What an instance
is told has an id that follows from the bulk action's own, so that a page which is run again tells nobody twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.app import control, instances
from holdfast.app.instances import ENDED, LIVE, InstanceView
from holdfast.app.registry import Definition
from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.context import Context
from holdfast.engine.errors import BadInput, HoldfastError, InstanceEnded, InstanceNotFound
from holdfast.engine.moments import micros

if TYPE_CHECKING:
    from holdfast.app.registry import Registry
    from holdfast.app.service import Service

KEY = "holdfast.bulk"
PAGE = 200
AT_ONCE = 50
COUNT_MAX = 1_000_000
ACTIONS = ("cancel", "pause", "resume", "retry", "signal")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done to whom, and who says so."""

    bulk_id: str
    tenant_id: str
    action: str
    actor: str
    reason: str
    until: int  # only those created before it was ordered
    since: int = 0
    statuses: list[str] | None = None
    key: str | None = None
    business_key: str | None = None
    signal: str | None = None
    payload: Any = None
    matched: int = 0


class State(msgspec.Struct, frozen=True, kw_only=True):
    """How far it has come: where the next page begins, and what became of the pages before."""

    at: int | None = None
    id: str | None = None
    over: bool = False
    done: int = 0
    failed: int = 0
    failures: list[tuple[str, str]] = []
    """Of the last page: which instance, and why not."""


class BulkView(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk action as it stands."""

    id: str
    action: str
    status: str
    matched: int
    done: int
    failed: int
    moved: int


def register(registry: Registry, service: Callable[[], Service]) -> None:
    """Every worker can carry bulk actions out."""

    async def page(order: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        found = await act(service(), msgspec.convert(order, Order), msgspec.convert(state, State))
        return msgspec.to_builtins(found)  # type: ignore[no-any-return]

    async def bulk(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = msgspec.to_builtins(State())
        order = {**order, "tenant_id": ctx.tenant_id}  # whatever stands there: nobody acts on another tenant
        while not state["over"]:
            state = await ctx.step("page", page, order, {**state, "failures": []})
        return {"done": state["done"], "failed": state["failed"]}

    registry.add_own(Definition("code", KEY, 1, "default", bulk))


async def count(service: Service, order: Order) -> int:
    """How many match now, counted no further than a million."""
    values = {
        "tenant_id": order.tenant_id, "statuses": " ".join(order.statuses or LIVE + ENDED), "until": order.until,
        "since": order.since, "definition_key": order.key, "business_key": order.business_key, "limit": COUNT_MAX,
    }  # fmt: skip
    name = "count_matching" if order.key is None else "count_matching_of_definition"
    if order.business_key is not None:
        name = "count_matching_of_business_key"
    [(found,)] = await service.store.fetch(name, **values)
    return int(found)


async def begin(service: Service, order: Order, id_: bytes) -> BulkView:
    """Record it; a worker carries it out. Recorded already under this id, it is the same one."""
    if order.action not in ACTIONS:
        raise BadInput(f"action is {order.action!r}: expected one of {', '.join(ACTIONS)}")
    raw = codec.encode(order, "the bulk action", service.payload_limit)
    born = instances.new_instance(
        service.registry.find(KEY, 1), raw, tenant_id=order.tenant_id, now=service.store.now(), business_key=None,
        run_at=None, trace_id=None, id_=id_, created_by=order.actor,
    )  # fmt: skip
    await instances.start(service, [born])
    return await read(service, order.tenant_id, id_)


async def read(service: Service, tenant_id: str, id_: bytes) -> BulkView:
    missing = InstanceNotFound(ids.shown("blk", id_), tenant_id)
    try:
        view = await instances.read(service, tenant_id, id_, steps=False)
    except InstanceNotFound:
        raise missing from None
    if view.workflow != KEY:
        raise missing
    pages = await instances.history_page(service, tenant_id, id_, types=(h.STEP_COMPLETED,), limit=1)
    state = pages.entries[0].payload["result"] if pages.entries else {"done": 0, "failed": 0}
    return BulkView(
        id=ids.shown("blk", id_), action=view.input["action"], status=view.status, matched=view.input["matched"],
        done=state["done"], failed=state["failed"], moved=view.moved,
    )  # fmt: skip


async def failures(
    service: Service, tenant_id: str, id_: bytes, *, after: int = 0, pages: int = 20
) -> tuple[list[tuple[str, str]], int | None]:
    """Who was not told, and why, from the pages after this entry of its history; and where the next ones begin."""
    await read(service, tenant_id, id_)
    found = await instances.history_page(service, tenant_id, id_, after=after, types=(h.STEP_COMPLETED,), limit=pages)
    those = [(word, why) for entry in found.entries for word, why in entry.payload["result"]["failures"]]
    return those, found.entries[-1].seq if found.more else None


async def act(service: Service, order: Order, state: State) -> State:
    """Tell the instances of the next page; say how it went and where the one after begins."""
    before = (order.until, b"") if state.at is None else (state.at, bytes.fromhex(state.id or ""))
    page = await instances.list_instances(
        service, order.tenant_id, status=order.statuses, key=order.key, business_key=order.business_key,
        limit=PAGE, before=before, since=order.since,
    )  # fmt: skip
    wanted = [view for view in page if not view.workflow.startswith("holdfast.")]
    refused: list[tuple[str, str]] = []
    for at in range(0, len(wanted), AT_ONCE):
        some = wanted[at : at + AT_ONCE]
        for view, refusal in zip(some, await asyncio.gather(*(_tell(service, order, v) for v in some)), strict=True):
            if refusal is not None:
                refused.append((view.id, refusal))
    last = page[-1] if len(page) == PAGE else None
    return State(
        at=None if last is None else micros(last.created_at),
        id=None if last is None else ids.parse("ins", last.id).hex(),
        over=last is None, done=state.done + len(wanted) - len(refused), failed=state.failed + len(refused),
        failures=refused,
    )  # fmt: skip


async def _tell(service: Service, order: Order, view: InstanceView) -> str | None:
    """Why this one could not be told; None: it was."""
    try:
        await _carry_out(service, order, ids.parse("ins", view.id))
    except HoldfastError as error:
        return str(error)
    return None


def _carry_out(service: Service, order: Order, id_: bytes) -> Awaitable[Any]:
    words = {"reason": order.reason, "actor": order.actor}
    event_id = f"{order.bulk_id}:{order.action}"
    if order.action == "retry":
        return _retry(service, order, id_, event_id)
    if order.action == "signal":
        name = order.signal or ""
        raw = codec.encode(order.payload, "the payload", service.payload_limit)
        return instances.send(
            service, order.tenant_id, id_, "signal", name, raw, event_id, f"take {name!r}", sent_by=order.actor
        )
    asked = {"cancel": "be cancelled", "pause": "be paused", "resume": "be resumed"}[order.action]
    return instances.send(service, order.tenant_id, id_, order.action, "", codec.encode(words), event_id, asked)


async def _retry(service: Service, order: Order, id_: bytes, event_id: str) -> None:
    words = codec.encode({"reason": order.reason, "actor": order.actor})
    try:
        await instances.send(service, order.tenant_id, id_, "retry", "", words, event_id, "be tried again")
    except InstanceEnded:
        # One that would make an effect once more is left to whoever looks at it alone.
        await control.retry(service, order.tenant_id, id_, reason=order.reason, actor=order.actor, again=False)
