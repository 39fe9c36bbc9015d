"""An open effect, step by step: reserved, called, settled, or left to a key, a lookup or a person.

The rules are in `engine/effects.py`; here they are written into the turn: a history entry and the effect's row.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.calendar import moment_text
from holdfast.engine.effects import (
    AskPerson,
    Found,
    LookUp,
    Repeat,
    after_unknown,
    known_from,
    mode_changed,
    opens_at,
    settles_at,
)
from holdfast.engine.journal import RowWords
from holdfast.engine.replay import Call, Undoing
from holdfast.engine.retry import SECOND, GiveUp, RetryAt, asked_wait, pause
from holdfast.engine.stacks import error_payload, message_of
from holdfast.engine.turns import EffectRow
from holdfast.store.port import PendingEvent
from holdfast.worker.standing import EffectStanding, Phase

if TYPE_CHECKING:
    from holdfast.worker.turns import UnderClaim

LOOKUPS_MAX = 10
THREAD_PAUSE = 30 * SECOND  # until the next lookup, while a thread is in the call
LOST = {"type": "WorkerLost", "message": "the worker that made the call was lost before it reported"}
CHANGED = {"type": "ModeChanged", "message": "the code gives the effect another mode than it was begun with"}
GONE = {"type": "HandlerGone", "message": "the code does not make it as an effect any more"}


def asked_anew(opened: RowWords, opened_type: str, mode: str, gone: str = "") -> str:
    """Why a person is asked about an effect that would go on by itself; empty: nobody is. Begun under one mode, it is
    never repeated under another's rules: what they build on was not promised then. `gone`: why the code makes no effect
    of it any more."""
    unknown = opened.unknown or opened_type == h.EFFECT_STARTED
    goes_on_by_itself = opened_type in (h.EFFECT_STARTED, h.EFFECT_RETRIED) or bool(opened.retry_at)
    if not (unknown and goes_on_by_itself):
        return ""
    return gone or ("" if opened.mode in ("", mode) else mode_changed(opened.mode, mode))


def open_effect(ex: UnderClaim, call: Call, opened: RowWords | None, opened_type: str, gone: str = "") -> None:
    """Take up an effect where its journal left it. The caller counts it as a wait if it is not ready."""
    standing: EffectStanding = call.state
    if opened is None:
        return
    read_standing(standing, opened)
    if opened_type == h.EFFECT_STARTED:
        standing.escaped = standing.unknown = True
    if reason := asked_anew(opened, opened_type, call.spec.mode, gone):
        ask_person(ex, call, reason, LOST if standing.escaped else GONE if gone else CHANGED)
    elif opened_type == h.EFFECT_STARTED:
        unknown(ex, call, LOST, quiet_at=standing.opens_at)
    elif opened_type == h.EFFECT_RETRIED:
        standing.next = "start"
        standing.wait_until(opened.retry_at)
    elif opened_type == h.EFFECT_UNKNOWN:
        standing.unknown = True
        standing.reason = opened.reason
        standing.next = "lookup" if opened.retry_at else "person"
        standing.wait_until(opened.retry_at or None)
    else:  # EFFECT_RESOLVED: it did not happen, start it again
        standing.attempt += 1
        standing.unknown = False


def read_standing(standing: EffectStanding, opened: RowWords) -> None:
    standing.attempt = opened.attempt
    standing.first_started_at = opened.first_started_at
    standing.started_at = opened.started_at
    standing.not_after = opened.not_after
    standing.opens_at = opened.opens_at
    standing.settles_at = opened.settles_at or opened.opens_at
    standing.lookups = opened.lookups
    standing.unknown = opened.unknown
    standing.returned, standing.escaped = opened.returned, opened.escaped


def reserve(ex: UnderClaim, call: Call) -> None:
    """On record before the first byte leaves: intent, key, fence, and until when the call may begin."""
    standing: EffectStanding = call.state
    now = ex.worker.now()
    standing.started_at = now
    standing.returned = False
    if not standing.first_started_at:
        standing.first_started_at = now
    standing.not_after = ex.worker.not_after()
    if standing.unknown:  # a repeat under the same key: it must begin while the provider still knows the key
        standing.not_after = min(standing.not_after, standing.first_started_at + call.spec.window)
    standing.opens_at = opens_at(standing.not_after, call.spec.policy.timeout)
    ex.record_of(call, h.EFFECT_STARTED, b'{"args":' + call.args + b"," + codec.encode(standing_words(call))[1:])
    _row(ex, call, "started")
    if ex.worker.verbose:
        ex.worker.note(ex, "effect_started", step=call.key, attempt=standing.attempt, mode=call.spec.mode)


def arrived(ex: UnderClaim, call: Call, value: Any, error: BaseException | None) -> None:
    standing: EffectStanding = call.state
    if standing.next == "lookup":
        _looked_up(ex, call, value, error)
        return
    standing.returned = not isinstance(error, (TimeoutError, asyncio.CancelledError))
    standing.escaped = standing.escaped or not standing.returned
    if error is not None:
        ex.complain("effect_not_confirmed", error, step=call.key, attempt=standing.attempt)
    elif ex.worker.verbose:
        ex.worker.note(ex, "effect_succeeded", step=call.key, attempt=standing.attempt)
    if error is None:
        _succeeded(ex, call, value, "call")
        return
    match known_from(error):
        case "rejected" if standing.unknown:
            # A refused repeat says nothing certain about the attempt before it, so it is not ours to close.
            ask_person(
                ex, call, "a repeat was rejected, and an earlier attempt may have happened", error_payload(error)
            )
        case "rejected":
            _failed(ex, call, error_payload(error))
        case "not_applied" if standing.unknown:
            # It says that this attempt never left; an earlier one may have been done all the same.
            unknown(ex, call, error_payload(error), quiet_at=ex.worker.now(), asked=asked_wait(error))
        case "not_applied":
            _not_applied(ex, call, error)
        case "unknown":
            # A sync handler that timed out or was cut off cannot be stopped: until `opens_at` it may still act.
            cut_off = isinstance(error, (TimeoutError, asyncio.CancelledError))
            late = cut_off and not call.spec.signature.is_async
            quiet_at = standing.opens_at if late else ex.worker.now()
            unknown(ex, call, error_payload(error), quiet_at=quiet_at, asked=asked_wait(error))


def _succeeded(ex: UnderClaim, call: Call, value: Any, via: str) -> None:
    standing: EffectStanding = call.state
    ex.doubted = ex.doubted or standing.unknown
    try:
        result = codec.encode(value, "the result of", ex.worker.payload_limit, call.key)
        codec.decoder_for(call.type)(result)
    except Exception as refused:
        if not isinstance(call, Undoing):
            # It happened, and its receipt cannot be kept: repeating would double it, so a person says what it was.
            reason = f"it happened, but its result cannot be stored: {message_of(refused)}"
            ask_person(ex, call, reason, error_payload(refused))
            return
        result = b"null"  # nobody waits for what a compensation returns
    words = codec.encode({"attempt": standing.attempt, "via": via})
    payload = words[:-1] + b',"args":' + call.args + b',"result":' + result + b"}"
    ex.record_of(call, h.EFFECT_SUCCEEDED, payload)
    _row(ex, call, "succeeded", receipt=result)
    ex.release(call, h.EFFECT_SUCCEEDED, RowWords(result=msgspec.Raw(result), attempt=standing.attempt))


def _failed(ex: UnderClaim, call: Call, error: dict[str, Any]) -> None:
    """Known not to have happened, and no further attempt."""
    ex.doubted = ex.doubted or call.state.unknown
    _row(ex, call, "failed", last_error=_last(call, error))
    ex.answer(call, h.EFFECT_FAILED, {"attempt": call.state.attempt, "error": error})


def _not_applied(ex: UnderClaim, call: Call, error: BaseException, *, raised: bool = True) -> None:
    """`raised`: by the handler, so that `retry_on` is asked about it."""
    standing: EffectStanding = call.state
    ex.doubted = ex.doubted or standing.unknown
    standing.unknown = False
    match ex.verdict(call, standing.attempt, error if raised else None):
        case RetryAt(at) if not ex.unwanted(call):
            _wait_to_start(ex, call, at, error_payload(error))
        case RetryAt() | GiveUp():
            _failed(ex, call, error_payload(error))


def _wait_to_start(ex: UnderClaim, call: Call, at: int, error: dict[str, Any]) -> None:
    standing: EffectStanding = call.state
    words = {"retry_at": at, "error": error, "max_attempts": call.spec.policy.max_attempts}
    ex.record_of(call, h.EFFECT_RETRIED, codec.encode(standing_words(call) | words))
    _row(ex, call, "outcome_unknown" if standing.unknown else "failed", last_error=_last(call, error))
    standing.next = "start"
    _wait(ex, call, at)


def unknown(ex: UnderClaim, call: Call, error: dict[str, Any], *, quiet_at: int, asked: int = 0) -> None:
    standing: EffectStanding = call.state
    standing.unknown = True
    spec = call.spec
    standing.settles_at = settles_at(quiet_at, standing.opens_at, spec.settle_after)
    verdict = after_unknown(
        spec.mode, standing.attempt, spec.policy, standing.first_started_at, spec.window, ex.worker.now(), quiet_at,
        ex.worker.entropy.random(), asked,
    )  # fmt: skip
    match verdict:
        case Repeat(at, mistake):
            ex.warn_of_backoff(call, mistake)
            _wait_to_start(ex, call, at, error)
        case LookUp(at):
            _wait_to_look_up(ex, call, at, error)
        case AskPerson(reason):
            ask_person(ex, call, reason, error)


def _wait_to_look_up(ex: UnderClaim, call: Call, at: int, error: dict[str, Any]) -> None:
    call.state.next = "lookup"
    ex.record_of(call, h.EFFECT_UNKNOWN, codec.encode(standing_words(call) | {"retry_at": at, "error": error}))
    _row(ex, call, "outcome_unknown", last_error=_last(call, error))
    _wait(ex, call, at)


def ask_person(ex: UnderClaim, call: Call, reason: str, error: dict[str, Any]) -> None:
    """Nobody here can know. Where it does not matter, it has failed."""
    if ex.harmless(call):
        _failed(ex, call, error)
        return
    standing: EffectStanding = call.state
    standing.next, standing.reason, standing.unknown = "person", reason, True
    ex.record_of(call, h.EFFECT_UNKNOWN, codec.encode(standing_words(call) | {"reason": reason, "error": error}))
    _row(ex, call, "outcome_unknown", last_error=_last(call, error, codec.schema_of(call.expects)), reason=reason)
    _wait(ex, call, None)
    ex.worker.note(ex, "effect_outcome_unknown", "error", step=call.key, reason=reason)


def _looked_up(ex: UnderClaim, call: Call, value: Any, error: BaseException | None) -> None:
    standing: EffectStanding = call.state
    if error is not None:
        standing.lookups += 1
        ex.complain("lookup_failed", error, step=call.key, lookup=standing.lookups)
        if standing.lookups >= LOOKUPS_MAX:
            ask_person(ex, call, f"{standing.lookups} lookups failed", error_payload(error))
            return
        delay, mistake = pause(call.spec.policy, standing.lookups, ex.worker.entropy.random())
        ex.warn_of_backoff(call, mistake)
        _wait_to_look_up(ex, call, ex.worker.now() + max(delay, asked_wait(error)), error_payload(error))
    elif value is not None:
        _succeeded(ex, call, value.result if isinstance(value, Found) else value, "lookup")
    elif standing.asked_at < standing.settles_at:
        early = {"type": "LookupError", "message": "the provider does not know the key; it may still book the call"}
        _wait_to_look_up(ex, call, standing.settles_at, early)
    elif standing.asked_in_call:
        # A thread cannot be stopped: for as long as one is in the call, it may still act, whatever its time-out was.
        alive = {"type": "LookupError", "message": "the provider does not know the key; a thread may be in the call"}
        _wait_to_look_up(ex, call, ex.worker.now() + THREAD_PAUSE, alive)
    else:
        standing.next = "start"
        _not_applied(ex, call, LookupError("the provider does not know the key: it did not happen"), raised=False)


def due(ex: UnderClaim, call: Call) -> None:
    """The wait is over: the next attempt, or a lookup. Nobody may have been there to start it when it was planned."""
    standing: EffectStanding = call.state
    if standing.next != "start":
        return
    if standing.unknown and ex.worker.now() >= standing.first_started_at + call.spec.window:
        late = {"type": "WindowOver", "message": "the repeat was planned in time, but could only start too late"}
        standing.phase = Phase.RUNNING
        ask_person(ex, call, "the window in which the provider knows our key is over", late)
        return
    standing.attempt += 1


def resolved(ex: UnderClaim, call: Call, event: PendingEvent) -> bool:
    """A person has spoken. Their word counts only while the effect waits; a call under way is awaited first."""
    standing: EffectStanding = call.state
    if standing.phase is not Phase.WAITING:
        return False
    if not (standing.unknown and is_about(ex, call, event)):
        # Said of what is known by now not to have happened, and waits for its next attempt; of an earlier attempt,
        # before another person's word started this one; or of the effect of that name in an earlier epoch.
        note_late(ex, event)
        return True
    ex.consume(event)
    words = codec.decode(event.payload)
    choice = words["resolution"]
    ex.record_of(call, h.EFFECT_RESOLVED, codec.encode(standing_words(call) | words))
    said = {"resolution": choice, "resolved_by": words["actor"], "reason": words["reason"]}
    if ex.worker.verbose:
        ex.worker.note(ex, "effect_resolved", step=call.key, resolution=choice, actor=words["actor"])
    if choice == "happened":
        result = codec.encode(words.get("result"), limit=codec.UNLIMITED)
        try:
            codec.decoder_for(call.expects)(result)
        except Exception as refused:
            misfit = message_of(refused)
            reason = f"the result that {words['actor']} gave does not fit what the handler returns: {misfit}"
            ask_person(ex, call, reason, error_payload(refused))
            return True
        payload = codec.encode({"attempt": standing.attempt, "via": "person"})
        ex.record_of(call, h.EFFECT_SUCCEEDED, payload[:-1] + b',"args":' + call.args + b',"result":' + result + b"}")
        _row(ex, call, "resolved", receipt=result, **said)
        ex.release(call, h.EFFECT_SUCCEEDED, RowWords(result=msgspec.Raw(result), attempt=standing.attempt))
    elif choice == "abort":
        error = {"type": "Aborted", "message": f"aborted by {words['actor']}: {words['reason']}"}
        _row(ex, call, "resolved", last_error=_last(call, error), **said)
        ex.answer(call, h.EFFECT_FAILED, {"attempt": standing.attempt, "error": error, "aborted": True})
    elif ex.unwanted(call):  # it did not happen, and nobody waits for it: nothing to start, nothing to undo
        _row(ex, call, "resolved", **said)
        error = {"type": "NotApplied", "message": "known not to have happened"}
        ex.answer(call, h.EFFECT_FAILED, {"attempt": standing.attempt, "error": error})
    else:
        _row(ex, call, "resolved", **said)
        if (call.kind, call.key) in ex.open:
            ex.waits -= 1
        standing.ready()
        standing.next, standing.unknown = "start", False
        standing.attempt += 1
    return True


def note_late(ex: UnderClaim, event: PendingEvent) -> None:
    """On record: a person's word about what was settled without it. It decides nothing."""
    ex.consume(event)
    ex.record(h.INSTANCE_RESUMED, f"resolution of {event.name}", event.payload)


def is_about(ex: UnderClaim, call: Call, event: PendingEvent) -> bool:
    """Whether a person's word is about the attempt that stands open. The event's id names the effect, of which there is
    one in each epoch; its name does not say which."""
    if codec.decode(event.payload).get("attempt", call.state.attempt) != call.state.attempt:
        return False
    return event.id.startswith(ids.resolution_word(ids.effect_id(ex.tenant_id, ex.id, call.key, ex.epoch)))


def _wait(ex: UnderClaim, call: Call, at: int | None) -> None:
    counted = (call.kind, call.key) in ex.open and call.state.phase is Phase.RUNNING
    call.state.wait_until(at)
    if counted:  # one that is just being opened is counted by its opener
        ex.waits += 1


def _last(call: Call, error: dict[str, Any], expected: dict[str, Any] | None = None) -> bytes:
    """The error as the desk shows it, and whether every call came back: then none can act any more. `expected`: what
    a person who knows that it happened must say, as a JSON Schema."""
    shape = {} if expected is None else {"expected": expected}
    return codec.encode(error | {"returned": call.state.returned and not call.state.escaped} | shape)


def standing_words(call: Call) -> dict[str, Any]:
    standing: EffectStanding = call.state
    return {
        "attempt": standing.attempt, "mode": call.spec.mode, "first_started_at": standing.first_started_at,
        "started_at": standing.started_at, "not_after": standing.not_after, "opens_at": standing.opens_at,
        "settles_at": standing.settles_at, "lookups": standing.lookups, "unknown": standing.unknown,
        "returned": standing.returned, "escaped": standing.escaped,
    } | ({"compensate": True} if call.spec.compensate is not None else {})  # fmt: skip


def _row(ex: UnderClaim, call: Call, state: str, **fields: Any) -> None:
    standing: EffectStanding = call.state
    id_ = ids.effect_id(ex.tenant_id, ex.id, call.key, ex.epoch)
    settled = state in ("succeeded", "failed", "resolved")
    ex.beyond_history()
    ex.effect_rows[id_] = EffectRow(
        ex.tenant_id, id_, ex.id, call.key, call.spec.mode, state, standing.attempt, ids.idempotency_key(id_),
        bytes.fromhex(codec.digest(call.args)), call.args, ex.fence, ex.worker_id, standing.first_started_at,
        standing.started_at, standing.not_after, standing.opens_at, ex.worker.now() if settled else None,
        fields.get("receipt"), fields.get("last_error"), fields.get("resolution"), fields.get("resolved_by"),
        fields.get("reason"),
    )  # fmt: skip


def describe(call: Call) -> str:
    standing: EffectStanding = call.state
    if standing.next == "person":
        return f"a person: the outcome of effect {call.key!r} is unknown ({standing.reason})"
    until = f" at {moment_text(standing.at)}" if standing.at is not None else ""
    if standing.next == "lookup":
        return f"a lookup of effect {call.key!r}{until}"
    return f"attempt {standing.attempt + 1} of effect {call.key!r}{until}"
