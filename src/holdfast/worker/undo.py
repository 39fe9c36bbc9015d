"""The end of a failed or cancelled instance: settle what is under way, then undo in reverse start order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.arguments import need_reading
from holdfast.engine.journal import UNDO, Recorded, contradiction
from holdfast.engine.replay import Call, Undoing
from holdfast.engine.retry import RetryAt
from holdfast.engine.saga import owed, undo_order, unsettled
from holdfast.engine.stacks import error_payload
from holdfast.engine.steps import EffectSpec, undoing_spec
from holdfast.engine.turns import NewEvent
from holdfast.store.port import PendingEvent
from holdfast.worker import effects
from holdfast.worker.running import undone_result
from holdfast.worker.standing import EffectStanding, Phase, Standing

if TYPE_CHECKING:
    from holdfast.worker.execution import Execution


KILLS = {
    "type": "Poison",
    "message": "it was under way when its instance took its workers down: it is not called again",
}


class Undo:
    """How far the undoing has come."""

    def __init__(self, status: str, error: dict[str, Any], raised: BaseException | None = None) -> None:
        self.status = status  # what the instance will end as: failed or cancelled
        self.error = error
        self.raised = raised  # what the body raised, if it did so under this claim
        self.current: Call | None = None
        self.ready = False
        self.attempt = 1
        self.retry_at: int | None = None
        self.done: dict[str, bool] = {}  # step key -> undone
        self.shown = False  # the instance's row says that it is compensating


def begin_failing(ex: Execution, error: BaseException) -> bool:
    """The body raised. False if there is nothing to settle and nothing to undo."""
    if not any(_owed(ex, c) for c in ex.replay.compensable) and not any(unsettled(c) for c in ex.open.values()):
        return False
    ex.undo = Undo("failed", error_payload(error), error)
    ex.record(h.INSTANCE_FAILING, "", codec.encode({"error": ex.undo.error}))
    _close_body(ex)
    return True


def _owed(ex: Execution, call: Call) -> bool:
    """What a fork has taken over from one that completed is not its own to undo."""
    return owed(call) and ex.replay.journal.owes(call.recorded)


def begin_cancel(ex: Execution, event: PendingEvent) -> None:
    words = codec.decode(event.payload)
    ex.consume(event)
    error = {"type": "Cancelled", "message": words.get("reason") or "cancelled", "actor": words.get("actor")}
    ex.undo = Undo("cancelled", error)
    ex.record(h.INSTANCE_CANCELLING, "", codec.encode({"error": error, "reason": error["message"]}))
    ex.paused = None
    _close_body(ex)
    if ex.worker.verbose:
        ex.worker.note(ex, "cancelling", reason=error["message"])


def resume(ex: Execution) -> None:
    """Take up an undoing that an earlier claim began."""
    journal = ex.replay.journal
    assert journal.ending is not None
    error = journal.ending.error
    words = error.words() if error else {"type": "Error", "message": ""}
    failing = journal.ending_type == h.INSTANCE_FAILING
    raised = ex.replay.outcome()[1] if failing and ex.replay.done else None  # the replay has raised it again
    ex.undo = Undo("failed" if failing else "cancelled", words, raised)
    ex.undo.shown = ex.claimed.status == "compensating"
    for key, recorded in journal.undone.items():
        if recorded.answer_seq:
            ex.undo.done[key] = recorded.answer_type == h.COMPENSATION_COMPLETED
    _close_body(ex)


def _close_body(ex: Execution) -> None:
    """Nothing new may be asked. What was asked and never begun is dropped; children are told to end."""
    ex.replay.close()
    ex.replay.asked.clear()  # asked while it was paused, and never begun
    ex.context.soft.clear()
    for place, call in list(ex.open.items()):
        if call.kind == "child":
            tell_child(ex, call.key)
        elif call.kind in ("sleep", "signal") or not _must_settle(ex, call):
            if call in ex.transactions:  # in line behind the turn, and not begun
                ex.transactions.remove(call)
                ex.running.pop(call.key, None)
            if call.key in ex.running:
                if call.kind == "step" and call.spec.compensate is None:
                    ex.worker.cancel_handler(ex, call)
                continue
            del ex.open[place]
            if call.state.phase is Phase.WAITING:
                ex.waits -= 1


def give_up_what_kills(ex: Execution) -> None:
    """Of an instance that took its workers down, what was under way then is not called again. A step counts as one that
    may have happened, so that it is undone; what became of an effect is for a person to find out."""
    ask_what_kills_did(ex)
    for call in list(ex.open.values()):
        if call.kind == "step" and call.recorded is not None and call.recorded.killed:
            ex.answer(call, h.STEP_FAILED, {"attempt": call.state.attempt, "error": KILLS, "aborted": True})


def ask_what_kills_did(ex: Execution) -> None:
    """Only of what may have happened, and nobody was asked about yet."""
    for call in list(ex.open.values()):
        killed = call.recorded is not None and call.recorded.killed
        if killed and call.kind == "effect" and call.state.unknown and call.state.next != "person":
            if call.state.phase is Phase.READY:  # for its next attempt, which does not begin
                call.state.phase = Phase.RUNNING
            effects.ask_person(ex, call, KILLS["message"], effects.LOST)


def tell_child(ex: Execution, key: str) -> None:
    """That it is to end."""
    ex.beyond_history()
    ex.sends.append(
        NewEvent(
            ex.tenant_id,
            ids.child_id(ex.tenant_id, ex.id, key, ex.epoch),
            f"cancel:{ex.id.hex()}",
            "cancel",
            "",
            codec.encode({"reason": "its parent is ending", "actor": "holdfast"}),
            ex.worker.now(),
            ex.id,
        )
    )


def tell_forgotten_children(ex: Execution) -> None:
    """Of an instance or epoch that ends: children under way that its code does not ask for any more."""
    for (_, name), recorded in ex.replay.journal.calls.items():
        if recorded.kind == "child" and not recorded.answer_seq and not recorded.asked:
            tell_child(ex, name)


def _must_settle(ex: Execution, call: Call) -> bool:
    """Begun, and its outcome matters: an effect nobody knows the outcome of, or a step that would be owed an undo."""
    if call.kind == "effect":
        return bool(call.state.unknown) or call.state.phase is Phase.RUNNING
    # An attempt that raised is settled; the next one counts as begun only if its time had come when the undoing began.
    opened = call.recorded.opened if call.recorded is not None else None
    begun = opened is not None and opened.retry_at <= (ex.replay.journal.ending_at or ex.worker.now())
    return call.kind == "step" and call.spec.compensate is not None and begun


def startable(ex: Execution, ready: list[Call]) -> list[Call]:
    """While undoing only what must be settled still runs, and the compensation whose turn it is."""
    undo = ex.undo
    assert undo is not None
    starts = [c for c in ready if c is undo.current or _must_settle(ex, c)]
    if undo.current is not None and undo.ready:
        undo.ready = False
        starts.append(undo.current)
    return starts


def step(ex: Execution) -> bool:
    """Move the undoing on. True if something changed and deciding should go on."""
    undo = ex.undo
    assert undo is not None
    if isinstance(undo.current, Undoing):
        return _settled(undo, undo.current)
    if undo.current is not None:
        if undo.retry_at is not None and undo.retry_at <= ex.worker.now():
            undo.retry_at, undo.ready = None, True
        return False
    if ex.running:
        return False
    waiting = [c for c in ex.open.values() if unsettled(c)]
    for call in undo_order({id(c): c for c in [*ex.replay.compensable, *waiting]}.values()):
        if call.key in undo.done:
            continue
        if unsettled(call) and (call.kind, call.key) in ex.open:
            return False  # it must be settled before its own undo and those of everything started earlier
        if not _owed(ex, call):
            continue
        return _begin_undo(ex, undo, call)
    if ex.hear_before_the_end():
        return True
    undone = list(undo.done.values())
    compensation = None if not undone else "complete" if all(undone) else "partial"
    ex.end(undo.status, undo.error, compensation, raised=undo.raised)
    return True


def _begin_undo(ex: Execution, undo: Undo, call: Call) -> bool:
    """True if deciding should go on: what an earlier claim left open may be due, settled on the spot, or begun as
    something else than the code now says. Then it is not ours to go on with."""
    recorded = ex.replay.journal.undone.get(call.key)
    spec = undoing_spec(call.kind, call.spec)
    current = None if spec is None else undoing(call, spec, recorded)
    if recorded is not None and recorded.kind == "effect":
        kind, args = ("step", b"") if current is None else ("effect", current.args)
        ex.replay.difference = contradiction(UNDO + call.key, kind, args, "", recorded)
        if ex.replay.difference is not None:
            assert call.recorded is not None
            call.recorded.undoable = False  # not by this code: a person settles it by the journal
            return True
    if current is not None:
        undo.current = current
        if recorded is not None:
            recorded.asked = True
        ex.open[current.kind, current.key] = current
        effects.open_effect(ex, current, *((recorded.opened, recorded.opened_type) if recorded else (None, "")))
        if current.state.phase is not Phase.READY:
            ex.waits += 1
        return True
    call.state = Standing()
    undo.current, undo.attempt, undo.retry_at = call, 1, None
    if recorded is not None and recorded.opened is not None:
        undo.attempt = recorded.opened.attempt + 1
        undo.retry_at = recorded.opened.retry_at if recorded.opened.retry_at > ex.worker.now() else None
    undo.ready = undo.retry_at is None
    if ex.worker.verbose:
        ex.worker.note(ex, "compensating", step=call.key, attempt=undo.attempt)
    return False


def undoing(call: Call, spec: EffectSpec, recorded: Recorded | None) -> Undoing:
    """The effect that undoes a call. It is given what the call had returned, if it takes an argument and has none."""
    own = bool(spec.args)
    if not own and spec.signature.positional != 0:
        spec = msgspec.structs.replace(spec, args=(undone_result(call),))
    args = codec.encode_sorted(spec.args, "the arguments of", codec.UNLIMITED, UNDO + call.key)
    made = Undoing(call, args, spec, None, recorded)
    if own and need_reading(spec.args):
        made.given = args
    made.state = EffectStanding()
    return made


def _settled(undo: Undo, current: Undoing) -> bool:
    if not current.outcome:
        return False
    undo.done[current.undoes.key], undo.current = current.outcome == h.EFFECT_SUCCEEDED, None
    return True


def arrived(ex: Execution, call: Call, error: BaseException | None) -> None:
    undo = ex.undo
    assert undo is not None
    if error is None:
        ex.record(h.COMPENSATION_COMPLETED, call.key, codec.encode({"attempt": undo.attempt}))
        undo.done[call.key], undo.current = True, None
        if ex.worker.verbose:
            ex.worker.note(ex, "compensated", step=call.key, attempt=undo.attempt)
        return
    words: dict[str, Any] = {"attempt": undo.attempt, "error": error_payload(error)}
    verdict = ex.verdict(call, undo.attempt, error) if hasattr(call.spec, "policy") else None
    again = isinstance(verdict, RetryAt)
    ex.complain("compensation_failed", error, final=not again, step=call.key, attempt=undo.attempt)
    if isinstance(verdict, RetryAt):
        ex.record(h.COMPENSATION_RETRIED, call.key, codec.encode(words | {"retry_at": verdict.at}))
        undo.attempt, undo.retry_at = undo.attempt + 1, verdict.at
    else:
        ex.record(h.COMPENSATION_FAILED, call.key, codec.encode(words))
        undo.done[call.key], undo.current = False, None


def describe(ex: Execution) -> str:
    undo = ex.undo
    assert undo is not None
    if isinstance(undo.current, Undoing):
        return effects.describe(undo.current)
    if undo.current is not None:
        return f"attempt {undo.attempt} of the compensation of {undo.current.key!r}"
    return ""
