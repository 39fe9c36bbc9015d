"""The effect desk over HTTP: effects, the evidence about them, and a person's word on one."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.api import shown
from holdfast.api.endpoints import Answer, Call, Endpoints, Reply
from holdfast.api.instances import INS, LISTED_BYTES
from holdfast.api.models import EffectOut, EffectState, Listing, Resolve
from holdfast.api.paging import PAGE, Cursor, Limit, paged, read_cursor
from holdfast.app import effects
from holdfast.app.effects import STATES, EffectView
from holdfast.engine.errors import VersionMoved

EFF = "eff_8f90a1b2c3d4e5f60192f0a1b2c37d4e"
ONE: dict[str, Any] = {
    "id": EFF, "instance_id": INS, "step": "pay", "mode": "manual", "state": "outcome_unknown", "attempt": 1,
    "idempotency_key": "8f90a1b2-c3d4-e5f6-0192-f0a1b2c37d4e", "request": {"amount_minor": 12500},
    "worker": "wrk_0192f0a1b2c37d4e8f90a1b2c3d4e5f6", "first_started_at": "2026-11-16T10:00:02Z",
    "started_at": "2026-11-16T10:00:02Z", "not_after": "2026-11-16T10:00:17Z", "opens_at": "2026-11-16T10:00:47Z",
    "settled_at": None, "receipt": None, "error": {"type": "TimeoutError"}, "resolution": None, "resolved_by": None,
    "reason": None, "expected": {"type": "object", "required": ["id"]}, "observations": [], "left_out": [],
}  # fmt: skip


class EffectsQuery(msgspec.Struct, frozen=True):
    state: EffectState | None = None
    limit: Limit = PAGE
    cursor: Cursor | None = None


def version_of(view: EffectView) -> int:
    """Rises with every attempt, and changes with every state of one."""
    return view.attempt * 10 + STATES.index(view.state)


async def list_effects(call: Call, query: EffectsQuery) -> Reply:
    """Effects, newest first. `state=outcome_unknown` is the desk: what waits for a person's word."""
    edge = read_cursor(query.cursor, int, bytes)
    found = await effects.list_effects(
        call.service, call.tenant_id, state=query.state, instance=None, limit=query.limit + 1,
        before=effects.LAST if edge is None else (edge[0], edge[1]), most=LISTED_BYTES,
    )  # fmt: skip
    return paged(found, query.limit, shown.effect, shown.effect_place)


async def read_effect(call: Call) -> Reply:
    """What was asked, under which key, what is known, and results that came too late."""
    view = await effects.read_effect(call.service, call.tenant_id, call.word("eff"))
    return Reply(200, shown.effect(view), str(version_of(view)))


async def resolve_effect(call: Call, body: Resolve) -> Reply:
    """Say what became of an effect whose outcome is unknown. It is kept with your name and reason, and its instance
    goes on from there. "Start it again" is open only when the old call cannot act any more."""
    word = call.word("eff")
    if call.claim is not None and call.claim.taken_over:  # begun before: perhaps its word was recorded, and taken
        view = await effects.read_effect(call.service, call.tenant_id, word)
        if (view.resolution, view.resolved_by, view.reason) == (body.resolution, call.actor, body.reason):
            return Reply(202, shown.effect(view), str(version_of(view)))
    expected = call.expected_version()

    def check(view: EffectView) -> None:
        if expected is not None and version_of(view) != expected:
            raise VersionMoved(f"effect {word}", str(expected), str(version_of(view)))

    await effects.resolve(
        call.service, call.tenant_id, word, body.resolution, actor=call.actor, reason=body.reason, result=body.result,
        accept_double=body.accept_double, check=check,
    )  # fmt: skip
    view = await effects.read_effect(call.service, call.tenant_id, word)
    return Reply(202, shown.effect(view), str(version_of(view)))


def declare(endpoints: Endpoints) -> None:
    endpoints.add(
        "GET /workflow/effects", capability="effects:read", tag="effects", summary="List effects", query=EffectsQuery,
        answers={200: Answer("A page.", Listing[EffectOut], {"items": [ONE], "next_cursor": None})},
    )(list_effects)  # fmt: skip
    endpoints.add(
        "GET /workflow/effects/{id}", capability="effects:read", tag="effects", summary="Read an effect",
        answers={200: Answer("What is known.", EffectOut, ONE)}, problems=("not-found",),
    )(read_effect)  # fmt: skip
    endpoints.add(
        "POST /workflow/effects/{id}/resolve", capability="effects:resolve", tag="effects",
        summary="Say what became of an effect", body=Resolve,
        body_example={"resolution": "happened", "reason": "seen on the account", "result": {"id": "tr-1"}},
        keyed="optional", if_match="optional",
        answers={202: Answer("Recorded; its instance goes on.", EffectOut, ONE)},
        problems=("not-found", "invalid-transition", "precondition-failed"),
    )(resolve_effect)  # fmt: skip
