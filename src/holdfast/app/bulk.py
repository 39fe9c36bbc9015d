"""One thing done to everything that matches a filter: a workflow of our own, so that it survives what others survive.

Pages are steps: each tells the instances that the step before it has found, and finds those of the next page. Who is to
be told is on record before anybody is: a page which is run again after a crash counts the same ones, though they do not
match any more. What an instance is told has an id that follows from the bulk action's own: nobody is told twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from holdfast.app import control, instances
from holdfast.app.instances import ENDED, LIVE
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
VERSION = 2
FIRST_BEFORE: dict[str, Any] = {  # the state that version 1 begins with
    "at": None, "id": None, "over": False, "done": 0, "failed": 0, "failures": [],
}  # fmt: skip
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
    """How far it has come: who is told next, where the page after begins, and what became of the pages before."""

    ids: list[str] = []
    at: int | None = None
    id: str | None = None
    last: bool = False
    """There is no page after."""
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

    async def found_and_told(order: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        given, before = msgspec.convert(order, Order), msgspec.convert(state, State)
        found = await find(service(), given, before)
        told = await tell(service(), given, found)
        return {
            "at": found.at, "id": found.id, "over": found.last, "done": told.done, "failed": told.failed,
            "failures": told.failures,
        }  # fmt: skip

    async def run(ctx: Context, order: dict[str, Any], state: dict[str, Any], page: Callable[..., Any]) -> Any:
        order = {**order, "tenant_id": ctx.tenant_id}  # whatever stands there: nobody acts on another tenant
        while not state["over"]:
            state = await ctx.step("page", page, order, {**state, "failures": []})
        return {"done": state["done"], "failed": state["failed"]}

    async def bulk(ctx: Context, order: dict[str, Any]) -> Any:
        return await run(ctx, order, msgspec.to_builtins(State()), page)

    async def bulk_before(ctx: Context, order: dict[str, Any]) -> Any:
        return await run(ctx, order, FIRST_BEFORE, found_and_told)

    registry.add_own(Definition("code", KEY, 1, "default", bulk_before))  # for those begun before version 2
    registry.add_own(Definition("code", KEY, VERSION, "default", bulk))


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
        service.registry.find(KEY, VERSION), raw, tenant_id=order.tenant_id, now=service.store.now(), business_key=None,
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
    """Tell those found before, then find those of the next page."""
    told = await tell(service, order, state)
    return replace(told, ids=[], over=True) if told.last else await find(service, order, told)


async def find(service: Service, order: Order, state: State) -> State:
    """Whom the next page tells, and where the one after begins."""
    before = (order.until, b"") if state.at is None else (state.at, bytes.fromhex(state.id or ""))
    page = await instances.list_instances(
        service, order.tenant_id, status=order.statuses, key=order.key, business_key=order.business_key,
        limit=PAGE, before=before, since=order.since,
    )  # fmt: skip
    wanted = [view.id for view in page if not view.workflow.startswith("holdfast.")]
    if len(page) < PAGE:
        return replace(state, ids=wanted, at=None, id=None, last=True, over=not wanted)
    edge = page[-1]
    return replace(state, ids=wanted, at=micros(edge.created_at), id=ids.parse("ins", edge.id).hex())


async def tell(service: Service, order: Order, state: State) -> State:
    """Tell those that were found, and count them: also those that were told in a run before this one."""
    refused: list[tuple[str, str]] = []
    for at in range(0, len(state.ids), AT_ONCE):
        some = state.ids[at : at + AT_ONCE]
        for word, refusal in zip(some, await asyncio.gather(*(_tell(service, order, w) for w in some)), strict=True):
            if refusal is not None:
                refused.append((word, refusal))
    done, failed = state.done + len(state.ids) - len(refused), state.failed + len(refused)
    return replace(state, done=done, failed=failed, failures=refused)


async def _tell(service: Service, order: Order, word: str) -> str | None:
    """Why this one could not be told; None: it was."""
    try:
        await _carry_out(service, order, ids.parse("ins", word))
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
