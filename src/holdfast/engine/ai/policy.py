"""What may follow from an answer. Only `judge` says that it may become an event: default deny, default suggest, and no
event outside the author's allowlist. It must not know who the model is, or whether a schema was checked before."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.engine.ai.words import canonical_hash, clip, shown
from holdfast.engine.errors import BadInput
from holdfast.engine.retry import storable

REASON_LIMIT = 1000


class AiPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What the author lets this AI cause. Left out: nothing, and only as a suggestion."""

    allowed_events: tuple[str, ...] = ()
    mode: Literal["suggest", "apply"] = "suggest"
    confidence_min: float = 1.0
    human_only: tuple[str, ...] = ()
    """Events it may propose and never apply by itself."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a proposal comes from, so that its hash fits no other."""

    tenant_id: str = ""
    instance_id: str = ""
    task_id: str = ""
    prompt_hash: str = ""
    input_hash: str = ""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What a person is shown, and what is applied: nothing else."""

    event: str
    data: dict[str, Any]
    confidence: float | None
    reason: str
    tenant_id: str
    instance_id: str
    task_id: str
    prompt_hash: str
    input_hash: str


class Apply(msgspec.Struct, frozen=True):
    event: str
    data: dict[str, Any]
    proposal: Proposal


class Suggest(msgspec.Struct, frozen=True):
    proposal: Proposal
    why: str


class NoEvent(msgspec.Struct, frozen=True):
    output: Any


class Refused(msgspec.Struct, frozen=True):
    reason: str


def judge(policy: AiPolicy, answer: object, origin: Origin = Origin()) -> Apply | Suggest | NoEvent | Refused:  # noqa: B008
    """It trusts no schema: whatever was checked before is checked again here."""
    if not policy.allowed_events:
        return NoEvent(answer)
    if not isinstance(answer, dict):
        return Refused("the answer is not a JSON object")
    asked = answer.get("event")
    # The author's own word goes on from here, never the model's.
    event = next((one for one in policy.allowed_events if isinstance(asked, str) and one == asked), None)
    if event is None:
        return Refused(f"the model asked for the event {shown(asked)}, which the task's policy does not allow")
    data = answer.get("data", {})
    if not isinstance(data, dict):
        return Refused("data is not a JSON object")
    confidence, reason = share(answer.get("confidence")), answer.get("reason")
    proposal = Proposal(
        event=event,
        data=data,
        confidence=confidence,
        reason=clip(storable(reason), REASON_LIMIT) if isinstance(reason, str) else "",
        **msgspec.structs.asdict(origin),
    )
    why = _held_back(policy, event, confidence)
    return Apply(event, data, proposal) if why is None else Suggest(proposal, why)


def _held_back(policy: AiPolicy, event: str, confidence: float | None) -> str | None:
    if policy.mode != "apply":
        return "the task's policy lets the AI suggest only"
    if event in policy.human_only:
        return f"the task's policy leaves {event!r} to a person"
    if confidence is None:
        return "the model gave no confidence from 0 to 1"
    if not confidence >= policy.confidence_min:
        return f"its confidence of {confidence:g} is below {policy.confidence_min:g}"
    return None


def share(value: object) -> float | None:
    """A number from 0 to 1. True is not one, though Python thinks so."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if 0 <= value <= 1 else None  # NaN compares false


def proposal_hash(proposal: Proposal) -> str:
    return canonical_hash(msgspec.to_builtins(proposal))


def read_proposal(stored: object) -> Proposal:
    """A proposal as a record keeps it, its `hash` beside it ignored: it is computed afresh where it matters."""
    try:
        return msgspec.convert(stored, Proposal)
    except msgspec.ValidationError as error:
        raise BadInput(f"this is no proposal of an AI task: {error}") from None


def check_applied(proposal: Proposal, seen: object) -> str | None:
    """Why a person's word "apply" does not count, or None. `seen` is the hash that the person was shown."""
    if not isinstance(seen, str) or not seen:
        return "say which proposal: name the hash that was shown with it"
    found = proposal_hash(proposal)
    if seen != found:
        return f"the proposal is {found[:12]}…, not {shown(seen[:12])}: read it again and decide afresh"
    return None
