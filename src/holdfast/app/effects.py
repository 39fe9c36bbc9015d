"""The effect desk: read effects, and say what became of one whose outcome nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from holdfast.app import instances
from holdfast.app.instances import ANY_SIZE
from holdfast.app.views import View
from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.effects import may_choose
from holdfast.engine.errors import BadInput, EffectNotFound, EffectNotOpen, Misplaced
from holdfast.engine.journal import PARKED
from holdfast.engine.misfits import in_words, schema_faults
from holdfast.engine.moments import Moment, micros, moment, when
from holdfast.engine.retry import storable
from holdfast.engine.schemas import check_schema
from holdfast.engine.turns import NewEvent

if TYPE_CHECKING:
    from holdfast.app.service import Service

log = structlog.get_logger("holdfast.effects")
RESOLUTIONS = ("happened", "did_not_happen", "abort")
PAGE_MAX = 100_000
LAST = ((1 << 62), b"\xff" * 16)
STATES = ("started", "succeeded", "failed", "outcome_unknown", "resolved")


class Observation(View, frozen=True, kw_only=True):
    """A result that came after its worker had lost the claim: evidence, it moved nothing."""

    observed_at: Moment
    worker: str
    fence: int
    attempt: int
    outcome: str
    payload: Any


class EffectView(View, frozen=True, kw_only=True):
    """An effect as the desk shows it: intent, state, receipt, and who decided what."""

    id: str
    tenant_id: str
    instance_id: str
    step: str
    mode: str
    state: str
    attempt: int
    idempotency_key: str
    request: Any
    fence: int
    worker: str
    first_started_at: Moment
    started_at: Moment
    not_after: Moment
    opens_at: Moment
    settled_at: Moment | None
    receipt: Any
    error: Any
    resolution: str | None
    resolved_by: str | None
    reason: str | None
    expected: Any = None
    """While its outcome is unknown: the JSON Schema of the result that "happened" needs; None: any, or none."""
    observations: list[Observation] = msgspec.field(default_factory=list)
    left_out: list[str] = msgspec.field(default_factory=list)


def _view(tenant_id: str, row: Sequence[Any], seen: list[Observation]) -> EffectView:
    (id_, instance, step, mode, state, attempt, key, request, fence, worker, first, started, not_after, opens, settled,
     receipt, error, resolution, by, reason, *left_out) = row  # fmt: skip
    failure = None if error is None else codec.decode(error)
    expected = failure.pop("expected", None) if isinstance(failure, dict) else None
    return EffectView(
        id=ids.effect_word(id_), tenant_id=tenant_id, instance_id=ids.instance_word(instance), step=step, mode=mode,
        state=state, attempt=attempt, idempotency_key=key,
        request=None if request is None else codec.decode(request), fence=fence, worker=ids.worker_word(worker),
        first_started_at=when(first), started_at=when(started), not_after=when(not_after), opens_at=when(opens),
        settled_at=moment(settled),
        receipt=None if receipt is None else codec.decode(receipt),
        error=failure, expected=expected if state == "outcome_unknown" else None, resolution=resolution,
        resolved_by=by, reason=reason,
        observations=seen, left_out=left_out[0].split() if left_out else [],
    )  # fmt: skip


async def list_effects(
    service: Service, tenant_id: str, *, state: str | None, instance: str | None, limit: int,
    before: tuple[int, bytes] | None = None, most: int = ANY_SIZE,
) -> list[EffectView]:  # fmt: skip
    """Those whose outcome nobody knows: the oldest first, unless a page `before` is asked for. Others: newest first.

    `most`: values of more bytes are left out."""
    if state is not None and state not in STATES:
        raise BadInput(f"state is {state!r}: expected one of {', '.join(STATES)}")
    if instance is not None:
        raw = ids.parse("ins", instance)
        rows = await service.store.fetch(
            "effects_of_instance", tenant_id=tenant_id, instance_id=raw, limit=PAGE_MAX, most=most
        )
        rows = [row for row in rows if state in (None, row[4])][:limit]
    elif state == "outcome_unknown" and before is None:
        rows = await service.store.fetch("unknown_effects", tenant_id=tenant_id, limit=limit, most=most)
    else:
        at, edge = before or LAST
        rows = await service.store.fetch(
            "list_effects",
            tenant_id=tenant_id,
            states=state or " ".join(STATES),
            before_at=at,
            before=edge,
            limit=limit,
            most=most,
        )
    return [_view(tenant_id, row, []) for row in rows]


async def effects_of(
    service: Service, tenant_id: str, id_: bytes, *, after: tuple[int, bytes], limit: int, most: int = ANY_SIZE
) -> list[EffectView]:
    """A page of an instance's effects, in the order they were started. `most`: values of more bytes are left out."""
    rows = await service.store.fetch(
        "page_of_instances_effects",
        tenant_id=tenant_id,
        instance_id=id_,
        after_at=after[0],
        after=after[1],
        limit=limit,
        most=most,
    )
    return [_view(tenant_id, row, []) for row in rows]


def _raw(tenant_id: str, effect: str) -> bytes:
    try:
        return ids.parse("eff", effect)
    except BadInput as error:
        raise EffectNotFound(effect, tenant_id, str(error)) from None


async def read_effect(service: Service, tenant_id: str, effect: str) -> EffectView:
    raw = _raw(tenant_id, effect)
    rows = await service.store.fetch("read_effect", tenant_id=tenant_id, id=raw)
    if not rows:
        raise EffectNotFound(effect, tenant_id)
    seen = [
        Observation(
            observed_at=when(at),
            worker=ids.worker_word(worker),
            fence=fence,
            attempt=attempt,
            outcome=outcome,
            payload=codec.decode(payload),
        )
        for at, worker, fence, attempt, outcome, payload in await service.store.fetch(
            "read_observations", tenant_id=tenant_id, effect_id=raw
        )
    ]
    return _view(tenant_id, rows[0], seen)


async def _is_parked(service: Service, tenant_id: str, view: EffectView) -> bool:
    """Whether its instance stands still: then nothing repeats itself, and a cancel cannot be taken either. Of a
    chart whose step was refused the tasks go on, and it is looked at again when the next one is due."""
    instance = await instances.read(service, tenant_id, ids.parse("ins", view.instance_id), steps=False)
    goes_on = instance.kind == "chart" and instance.run_at is not None
    return (instance.waiting_on or "").startswith(PARKED) and not goes_on


async def resolve(
    service: Service, tenant_id: str, effect: str, resolution: str, *, actor: str, reason: str, result: Any = None,
    accept_double: bool = False, second_person: str | None = None, check: Callable[[EffectView], None] | None = None,
) -> None:  # fmt: skip
    """Commit the operator's word as a fact; the worker that claims the instance takes the turn. `check` may refuse the
    effect as it was read: the word is about that attempt, and no other takes it."""
    if resolution not in RESOLUTIONS:
        raise BadInput(f"resolution is {resolution!r}: expected one of {', '.join(RESOLUTIONS)}")
    for field, value in (("actor", actor), ("reason", reason)):
        if not isinstance(value, str) or not value.strip():
            raise BadInput(f"{field} is empty: say who decides, and why; both are kept in the history")
        if storable(value) != value:
            raise BadInput(f"{field} holds a NUL or half a character: the database cannot keep it")
    if second_person is not None and second_person.strip() in ("", actor.strip()):
        raise BadInput("second_person must be somebody else than the actor")
    # Each time the effect stands open is one question with one answer, numbered by the answers taken before. Counted
    # before the effect is read: whoever decides meanwhile has the same number, and the event's id lets one of them in.
    raw = _raw(tenant_id, effect)
    question = ids.resolution_word(raw)
    [(taken,)] = await service.store.fetch("count_resolutions_taken", tenant_id=tenant_id, id=raw, ids=f"{question}%")
    view = await read_effect(service, tenant_id, effect)
    if check is not None:
        check(view)
    if view.state != "outcome_unknown":
        raise EffectNotOpen(f"effect {effect} is {view.state}: only an effect of unknown outcome can be resolved")
    # A reason is given only where a person is asked.
    if view.mode == "keyed" and view.reason is None and not await _is_parked(service, tenant_id, view):
        raise EffectNotOpen(
            f"effect {effect} repeats itself with the same key: your word could come too late to count; you are asked "
            "if its attempts run out or its window is over"
        )
    if resolution == "happened" and view.expected is not None:
        _check_result(effect, view.expected, codec.decode(codec.encode(result, "the result", service.payload_limit)))
    over = _call_is_over(view)
    gone = over or await service.store.worker_gone(ids.parse("wrk", view.worker))
    opens = service.store.now() if over else micros(view.opens_at)
    refused = may_choose(resolution, service.store.now(), opens, gone, accept_double, second_person is not None)
    if refused is not None:
        raise EffectNotOpen(f"effect {effect}: {refused}")
    words = {
        "resolution": resolution, "actor": actor, "reason": reason, "result": result,
        "accept_double": accept_double, "second_person": second_person, "attempt": view.attempt,
    }  # fmt: skip
    payload = codec.encode(words, "the resolution", service.payload_limit)
    event = NewEvent(
        tenant_id, ids.parse("ins", view.instance_id), f"{question}{taken + 1}", "resolution", view.step,
        payload, service.store.now(),
    )  # fmt: skip
    there = await instances.put(service, event, "be resolved")
    if there is not None and there[2] != codec.decode(payload):
        said = there[2]
        raise EffectNotOpen(
            f"effect {effect}: {said['actor']} was first and said {said['resolution']!r} ({said['reason']}); "
            "your word is not recorded: look at the effect again once that one has been taken"
        )
    await _check_in_time(service, tenant_id, event, view)


async def _check_in_time(service: Service, tenant_id: str, event: NewEvent, before: EffectView) -> None:
    """Tell a person whose word was stored after a lookup or a repeat had settled the effect. The effect is read first:
    the commit that takes a word both settles the effect and marks the event."""
    try:
        after = await read_effect(service, tenant_id, before.id)
        settled = (after.state, after.attempt) != (before.state, before.attempt)
        late = settled and not await _has_counted(service, event)
    except Exception as error:  # the word is stored, and most likely counts: a look that fails takes nothing back
        log.warning("resolution_not_looked_at", effect=before.id, error=repr(error))
        return
    if late:
        raise EffectNotOpen(
            f"effect {before.id} was settled while you decided: it is {after.state}, in attempt {after.attempt}; your "
            "word came too late and decides nothing: look at the effect again"
        )


async def _has_counted(service: Service, event: NewEvent) -> bool:
    """Whether a turn has taken the word, and not only noted it."""
    place = {"tenant_id": event.tenant_id, "instance_id": event.instance_id}
    found = await service.store.fetch("read_event", **place, id=event.id)
    if not found or found[0][4] is None:
        return False
    rows = await service.store.fetch("read_history", **place, after=found[0][4] - 1, limit=1)
    return not rows or rows[0][1] != h.INSTANCE_RESUMED


def _check_result(effect: str, expected: Any, result: Any) -> None:
    """Refuse a result that the workflow could not go on with. What the handler returned when it was asked decides; code
    that was deployed since is asked by the worker, and the effect may come back to the desk."""
    if check_schema(expected) is not None:
        return  # a type whose schema is too large to be checked
    faults = schema_faults(expected, result, "/result")
    if result is None and faults:
        raise BadInput(
            f"effect {effect} cannot have happened without a result: the workflow goes on with what its handler "
            "returns; give what the provider answered with result=…, in the form that the effect shows as `expected`",
            [Misplaced("/result", "expected what the handler returns")],
        )
    if faults:
        raise BadInput(
            f"the result does not fit what the handler of effect {effect} returns: {in_words(faults)}; the workflow "
            "could not go on with it, and the effect shows as `expected` what is needed",
            faults,
        )


def _call_is_over(view: EffectView) -> bool:
    """Whether the handler itself came back with an error: then no call is under way, though its worker lives."""
    return isinstance(view.error, dict) and view.error.get("returned") is True
