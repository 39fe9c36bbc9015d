"""One claimed instance of a code workflow, from the claim to the turn that hands it back.

An answer arrives (a handler's result, a signal, a timer, a child's end, an operator's word). It is written down
and released to the workflow, the workflow is drained, and everything it now asks for joins the same turn. The turn
is committed; only then do handlers start. This module decides and remembers; `running.py` acts.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.calendar import moment_text
from holdfast.engine.context import Context
from holdfast.engine.errors import HoldfastError
from holdfast.engine.journal import AS_COMPENSATION, PARKED, RowWords, read, words_from
from holdfast.engine.mistakes import mistake_in
from holdfast.engine.replay import Call, Replay, Undoing
from holdfast.engine.retry import GiveUp, RetryAt, storable
from holdfast.engine.scope import SCOPE
from holdfast.engine.signatures import StepInfo
from holdfast.engine.stacks import error_payload, traceback_text, without_machinery
from holdfast.engine.turns import ALWAYS, NewInstance, Turn
from holdfast.store.port import Claimed, PendingEvent
from holdfast.worker import control, effects, forks, unasked, undo
from holdfast.worker.inbox import sent
from holdfast.worker.running import step_info
from holdfast.worker.standing import EffectStanding, Phase, Standing
from holdfast.worker.turns import UnderClaim, sent_by, source_line

if TYPE_CHECKING:
    from holdfast.app.registry import Definition
    from holdfast.worker.worker import Worker

body_log = structlog.get_logger("holdfast.workflow")
RUNNABLE = ("step", "transaction", "effect")
BODY_BYTES = 20_000  # a suspended body with its calls, estimated
ROW_BYTES = 300  # what it may keep of one call that was answered while it lived, beside its result, estimated
NEVER = 1 << 62  # microseconds
ENTRIES_OF_TURN = 100  # once there are as many, no more is answered in the same turn: the loop serves neighbours, too


class Execution(UnderClaim):
    def __init__(self, worker: Worker, claimed: Claimed, definition: Definition) -> None:
        super().__init__(worker, claimed, definition)
        self.restarted = False  # its last turn is decided
        self.more = False  # answers did not fit into the turn
        self.listening: dict[str, dict[str, Call]] = {}  # open waits for a signal: by its name, then by their own key
        self.read_journal(claimed.history)

    # -- between two claims

    def rests(self) -> bool:
        """Whether its body may stay in memory: nothing but timers, signals and children is open, and nothing is odd.
        One that was parked before its body was begun has none: the next word would find nothing asked for."""
        replay = self.replay
        plain = self.undo is None and self.paused is None and replay.difference is None and replay.main is not None
        return (
            plain and not self.restarted and not replay.closed and not replay.done and not replay.asked
            and not (self.running or self.arrived or self.transactions or self.entries or self.context.soft)
            and all(call.kind in ("sleep", "signal", "child") for call in self.open.values())
        )  # fmt: skip

    def weight(self) -> int:
        """What its body may hold in memory, in bytes and roughly: what it was ever told, and a little for each row."""
        seq, bytes_ = self._read
        return BODY_BYTES + bytes_ + self._told_since + ROW_BYTES * (self.seq - seq)

    def is_current(self) -> bool:
        """Whether the code that its body runs is still what is registered under its name and version."""
        key, version = self.claimed.definition_key, self.claimed.definition_version
        return self.worker.registry.knows(key, version) and self.worker.registry.find(key, version) is self.definition

    def go_on(self, claimed: Claimed) -> None:
        """The next claim, with the body as it was left: as if its history had been replayed."""
        assert (claimed.history[-1].seq, claimed.history[-1].hash) == (self.seq, self.hash)
        self.claim_anew(claimed)
        self.decide()

    def read_journal(self, past: Iterable[Sequence[Any]]) -> None:
        claimed, worker = self.claimed, self.worker
        past = list(past)
        read_bytes = sum(len(row[3]) for row in past) if past else 0
        self._read = (self.seq, read_bytes)  # up to which row, and how many bytes of payloads
        self._told_since = 0  # bytes of the results that were released live
        self.replay = Replay(read(past))
        self.paused = self.replay.journal.pause
        restart = self.replay.journal.restart
        assert self.epoch == (restart.epoch if restart is not None else 0), "its row and its history tell of two epochs"
        # Else a part of its past is missing, and what was done there would be done again.
        assert not past or past[0][1] in (h.INSTANCE_STARTED, h.INSTANCE_RESTARTED), "its history begins in the middle"
        self.given = claimed.input if restart is None else bytes(restart.input)
        self.context = Context(
            self.replay, tenant_id=claimed.tenant_id, instance_id=ids.instance_word(claimed.id),
            workflow=claimed.definition_key, version=claimed.definition_version, clock=worker.now,
            entropy=worker.entropy, payload_limit=worker.payload_limit, log=self.say, epoch=self.epoch,
            input_of=lambda given: self.definition.encode_input(given, worker.payload_limit),
        )  # fmt: skip

    def say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        """A line of the body's own."""
        named = {f"{name}_" if name == "event" else name: value for name, value in fields.items()}
        getattr(body_log, level)(event, **self.worker.about(self) | named)

    def close(self) -> None:
        self.replay.close()
        self.context.let_go()

    def info(self, call: Call) -> StepInfo:
        return step_info(self, call)

    def transaction_turn(self, call: Call, entries: list[tuple[str, str, bytes]], result: bytes) -> Turn:
        payload = completed_payload(call, result, call.state.attempt)
        if call.spec.compensate is not None:
            payload = payload[:-1] + b',"compensate":true}'
        return self.seal_turn([*entries, (h.TRANSACTION_COMMITTED, call.key, payload)])

    # -- from the claim on

    def begin(self) -> None:
        claimed = self.claimed
        poison = claimed.attempts > self.worker.attempts_limit
        fork = forks.wanted(self) if self.events.any else None
        if fork is not None and not poison:
            forks.begin(self, fork)
            return
        if not claimed.history:
            self.started({})
        if poison:
            self.bury()
        elif self.replay.journal.poison and all(order.kind == "pause" for order in self.events.orders):
            self._stay_buried()
        else:
            self.go()

    def bury(self) -> None:
        """Its code is not run any more. Where its journal owes something, only its code can settle or undo that: it
        stands still until a person has it cancelled, which undoes, or tried again."""
        journal = self.replay.journal
        if journal.forgotten() is None:
            super().bury()
            return
        while unasked.settle(self):
            pass
        or_cancel = ", or cancel it to have that undone: what was under way is not called again"
        # A cancel that is in line already is taken by the next claim. If that one dies too, it has had its try.
        tries_cancel = self.events.cancels and not (journal.poison or journal.ending_type)
        spent = control.spend(self, ("retry", "resume") if tries_cancel else ("retry", "resume", "cancel"))
        self._stand_buried(
            f"{self.poison()['message']}; it owes what it has begun: mend its code, then retry it"
            + ("" if journal.ending_type else or_cancel)
            + (f". What was in line ({', '.join(spent)}) has had its try: say it again" if spent else ""),
            self.woken - tries_cancel,
        )

    def _stay_buried(self) -> None:
        """What has come is no order to try again: a person's word about an effect is settled by the journal. A pause
        stays in line: it stands still as it is, and to hear it would run the body."""
        while unasked.settle(self):
            pass
        self._stand_buried(self.replay.journal.poison)

    def _stand_buried(self, difference: str, woken: int | None = None) -> None:
        self.parked = True
        unasked.show_at_desk(self)
        self.record(h.INSTANCE_PARKED, "", codec.encode({"difference": difference, "poison": True}))
        status = "compensating" if self.replay.journal.ending_type else "waiting"
        self.submit(status=status, waiting_on=PARKED + difference, woken=woken)
        self.worker.note(self, "parked", "error", on=difference)

    def started(self, more: dict[str, Any]) -> None:
        """The first row of its history."""
        claimed = self.claimed
        words = {
            "definition": claimed.definition_key, "version": claimed.definition_version,
            "input_hash": codec.digest(claimed.input),
        } | ({"created_by": claimed.created_by} if claimed.created_by else {})  # fmt: skip
        self.record(h.INSTANCE_STARTED, claimed.definition_key, codec.encode(words | more), hard=False)
        if self.worker.verbose:
            self.worker.note(self, "instance_started", version=claimed.definition_version)

    def go(self) -> None:
        """Replay what is on record, and go on from there."""
        try:
            given = self.definition.decode_input(self.given)
        except HoldfastError as error:
            if not self.claimed.history and not self.copied:
                self.end("failed", error)
            else:  # it fitted when it was started: the code has changed since
                self.replay.difference = str(error)
                while unasked.settle(self):
                    pass
                self._park()
            return
        token = SCOPE.set((self.whose, None, "", 0))  # the body's task, and whatever tasks it makes, inherit it
        try:
            self.replay.begin(self.definition.function, self.context, given)
        finally:
            SCOPE.reset(token)
        if self.replay.journal.ending_type and self.replay.difference is None:
            while unasked.settle(self):
                pass
            self.replay.difference = self.replay.journal.forgotten()
        if self.replay.journal.ending_type and self.replay.difference is None:
            self._collect()
            undo.resume(self)
        self.decide()

    def decide(self) -> None:
        """Answer whatever can be answered now, then commit what this caused or start what needs no commit."""
        replay = self.replay
        if self.restarted:  # the claim was to end with the epoch, and an event kept it
            self.worker.let_go(self)
            return
        self.more = False
        while True:
            if self.events.any:
                control.hear(self)  # before anything that it asks for is begun
            if (replay.asked or self.context.soft) and self._collect():
                if len(self.entries) >= ENTRIES_OF_TURN:
                    self.more = True
                    break
                continue
            if self.events.any and (unasked.settle(self) or self._said() or self._note_late()):
                continue
            if self.paused is not None:
                break
            if replay.journal.calls:
                self._compare_end()
            if replay.difference is not None:
                self._stop()
                return
            if self.undo is None and replay.restart is not None:
                self._restart(replay.restart)
                return
            if self.undo is None and replay.done:
                value, error = replay.outcome()
                if error is not None or not self._unfinished():
                    if (mistake := replay.mistake(error)) is not None:
                        self._stop(mistake)
                        return
                    if error is not None and undo.begin_failing(self, error):
                        continue
                    if not self.hear_before_the_end():
                        self._finish(value, error)
                    return
            if (self.events.any or self.waits) and self._answer_one():
                if len(self.entries) >= ENTRIES_OF_TURN:
                    self.more = True
                    break
                continue
            if self.undo is not None and undo.step(self):
                if self.committing or self.hears_last:
                    return
                continue
            break
        self._dispatch()

    def _compare_end(self) -> None:
        """A body must not come to its end without what its journal has open or owes."""
        replay = self.replay
        ends = replay.done or replay.restart is not None
        if ends and self.undo is None and replay.difference is None:
            completes = replay.restart is None and replay.outcome()[1] is None
            replay.difference = replay.journal.forgotten(completes=completes)

    def _unfinished(self) -> bool:
        """A workflow that returned without awaiting everything ends when what it started has settled."""
        return bool(self.running) or any(c.kind in RUNNABLE or c.kind == "child" for c in self.open.values())

    def _said(self) -> bool:
        """Take a request to end it, or to try again at once. One that contradicts its journal cannot be ended."""
        for event in self.events.orders:
            if event.kind == "cancel" and self.replay.difference is None:
                if self.undo is None and (forgotten := self._forgotten_by_cancel()) is not None:
                    undo.ask_what_kills_did(self)  # so that a word about it is taken while the cancel waits
                    if self.running or self._awaits_before_cancel():
                        continue  # what is under way is awaited: the body may then come to what it owes
                    self.replay.difference = f"it cannot be cancelled as it stands: {forgotten}"
                    self.paused = None  # the word came after the pause, and is what it now stands still for
                elif self.undo is None:
                    undo.begin_cancel(self, event)
                    undo.give_up_what_kills(self)
                else:  # it is ending already: the request is noted, and lifts a pause like any other
                    self.consume(event)
                    self.record(h.INSTANCE_RESUMED, "cancel", event.payload)
                    self.paused = None
                    undo.give_up_what_kills(self)
                return True
            if event.kind == "retry":
                control.retry(self, event)
                self.replay.journal.poison = ""
                return True
        return False

    @property
    def is_poison(self) -> bool:
        return bool(self.replay.journal.poison)

    def resumed(self) -> None:
        self.replay.journal.poison = ""  # as the journal will say

    def _awaits_before_cancel(self) -> bool:
        return not self.replay.done and any(map(self._is_under_way, self.open.values()))

    def _is_under_way(self, call: Call) -> bool:
        """Whether it was begun and will come to an end, if only by a person's word: a cancel that cannot be taken yet
        waits for it. A further attempt of what has failed is no part of it, nor is what took the workers down."""
        recorded = call.recorded
        if call.kind == "child" or (call.kind == "effect" and call.state.next == "person"):
            return True
        if recorded is not None and recorded.killed:
            return False
        if call.kind == "effect":
            return bool(call.state.unknown)
        begun = recorded is not None and recorded.opened_type == h.STEP_STARTED and call.state.attempt == 1
        return begun and call.kind == "step"

    def _forgotten_by_cancel(self) -> str | None:
        stands = [] if self.replay.done else [*self.replay.asked, *self.open.values()]
        return self.replay.journal.forgotten(waits_for=[call.key for call in stands])

    def _note_late(self) -> bool:
        """Take a person's word about an effect that was settled without it."""
        for event in self.events.resolutions:
            recorded = self.replay.journal.effect(event.name)
            is_open = ("effect", event.name) in self.open or (recorded is not None and recorded.is_open_effect)
            if not is_open:
                effects.note_late(self, event)
                return True
        return False

    def _collect(self) -> bool:
        """Open what the body has asked for. While it is paused, or is about to end, nothing new begins. True if some of
        it was answered on the spot, and the body has asked for more."""
        replay = self.replay
        ends = replay.journal.ending_type or self.events.cancels
        holds = bool(ends) or self.paused is not None or self._will_park()
        if self.context.soft and not holds:
            for entry in self.context.soft:
                self.record(*entry)  # on disk before a handler sees them: it may run again and must get the same
            self.context.soft.clear()
        if replay.asked:
            asked, replay.asked = replay.asked, []
            for call in asked:
                if holds and call.recorded is None:
                    replay.asked.append(call)  # new: it is begun when the pause is lifted, or never
                else:
                    self._open(call)
        return not holds and bool(replay.asked or self.context.soft)

    def _will_park(self) -> bool:
        """Whether what the body has come to is known to park it: then nothing of it begins."""
        replay = self.replay
        if replay.journal.calls:
            for call in replay.asked:
                if call.recorded is None and call.kind in ("effect", "child"):
                    self._compare_names(call)
        return replay.difference is not None or (replay.done and replay.mistake(replay.outcome()[1]) is not None)

    def _open(self, call: Call) -> None:
        """Where a call stands when it is first seen: from its journal, or new."""
        kind = call.kind
        self.open[kind, call.key] = call
        recorded = call.recorded
        if kind == "step" and recorded is None and call.spec.compensate is None:
            call.state = Standing()  # what happens most: nothing to remember, nothing to record
            return
        opened = recorded.opened if recorded is not None else None
        standing = call.state = EffectStanding() if kind == "effect" else Standing()
        if kind == "effect":
            effects.open_effect(self, call, opened, recorded.opened_type if recorded is not None else "")
        elif kind in ("step", "transaction"):
            if opened is None:
                if kind == "step" and call.spec.compensate is not None:
                    # On record before it runs: a crash in the middle must not hide that it is owed an undo.
                    self.record(h.STEP_STARTED, call.key, args_head(call) + b"}")
            elif recorded is not None and recorded.opened_type in (h.STEP_RETRIED, h.TRANSACTION_RETRIED):
                standing.attempt = opened.attempt + 1
                standing.wait_until(opened.retry_at)
        elif kind == "sleep":
            if opened is None:
                spec = call.spec
                due = spec.until if spec.until is not None else self.worker.now() + spec.duration
                self.record(h.TIMER_STARTED, call.key, b'{"due":%d}' % due)
            else:
                due = opened.due
            standing.wait_until(due)
        elif kind == "signal":
            self.listening.setdefault(call.spec.name, {})[call.key] = call
            if opened is None:
                deadline = None if call.spec.timeout is None else self.worker.now() + call.spec.timeout
                self.record(h.WAIT_STARTED, call.key, codec.encode({"deadline": deadline}))
            else:
                deadline = opened.deadline
            standing.wait_until(deadline)
        elif kind == "child" and not self._open_child(call, opened):
            return
        if standing.phase is not Phase.READY:
            self.waits += 1

    def _compare_names(self, call: Call) -> None:
        """A new effect or child does not begin while the body has not asked again for an effect that may have happened:
        it may be the same under another name, or moved into the child, and would be made twice."""
        journal = self.replay.journal
        waiting = journal.unasked_effects()
        if self.replay.difference is not None:
            return
        if call.kind == "child" and (other := journal.unasked_child(call.spec.workflow)) is not None:
            self.replay.difference = (
                f"child {other!r} is under way, and the code asks for child {call.key!r} of the same workflow before "
                "it: if that is its new name, what it does would be done twice; give it back its name"
            )
        elif waiting:
            names = ", ".join(map(repr, list(waiting)[:5]))
            self.replay.difference = (
                f"nobody knows the outcome of effect {names} yet, and the code asks for {call.kind} {call.key!r} "
                "before it: if that is its new name or makes it, give it back its name, or it would be made twice; "
                f"only if it is another one, settle {names} first: {call.key!r} is begun then"
            )

    def _open_child(self, call: Call, opened: RowWords | None) -> bool:
        if opened is not None:
            call.state.wait_until(None)
            return True
        if self.replay.difference is not None:
            return False
        spec = call.spec
        try:
            definition = self.worker.child_definition(self.tenant_id, spec.workflow, spec.version)
        except HoldfastError as error:
            self.answer(call, h.CHILD_FAILED, {"error": error_payload(error), "status": "failed"})
            return False
        call.state.wait_until(None)
        child = ids.child_id(self.tenant_id, self.id, call.key, self.epoch)
        words = {"child_id": ids.instance_word(child), "workflow": definition.key, "version": definition.version}
        if spec.compensate is not None:
            words["compensate"] = True
        self.record(h.CHILD_STARTED, call.key, args_head(call) + b"," + codec.encode(words)[1:])
        now = self.worker.now()
        self.beyond_history()
        self.starts.append(
            NewInstance(
                self.tenant_id,
                child,
                definition.kind,
                definition.key,
                definition.version,
                None,
                definition.queue,
                0,
                now,
                spec.input,
                self.id,
                call.key,
                self.claimed.trace_id,
                now,
                self.id,
            )
        )
        return True

    # -- answers

    def answer(self, call: Call, type_: str, words: dict[str, Any]) -> None:
        """Record an answer and release it."""
        payload = codec.encode(words)
        self.record_of(call, type_, payload)
        self.release(call, type_, words_from(payload))

    def record_of(self, call: Call, type_: str, payload: bytes) -> None:
        if isinstance(call, Undoing):
            self.record(AS_COMPENSATION[type_], call.undoes.key, payload)
        else:
            self.record(type_, call.key, payload)

    @property
    def can_end(self) -> bool:
        return self.replay.difference is None and (self.undo is not None or self._forgotten_by_cancel() is None)

    def unwanted(self, call: Call) -> bool:
        return self.undo is not None and not isinstance(call, Undoing)

    def release(self, call: Call, type_: str, words: RowWords) -> None:
        recorded = call.recorded
        if recorded is not None:
            recorded.answer_seq, recorded.answer = self.seq + len(self.entries), words
            recorded.answer_type = AS_COMPENSATION[type_] if isinstance(call, Undoing) else type_
            if not recorded.asked:  # settled by the journal alone, which answers from now on
                return
        self._told_since += len(words.result)
        self._close_wait(call)
        if self.undo is None:
            self.replay.answer(call, type_, words)
        else:  # the body is closed: the saga only needs to know how it ended
            call.outcome, call.words = type_, words

    def _close_wait(self, call: Call) -> None:
        if self.open.pop((call.kind, call.key), None) is not None and call.state.phase is Phase.WAITING:
            self.waits -= 1
        if call.kind == "signal":
            del self.listening[call.spec.name][call.key]
            if not self.listening[call.spec.name]:
                del self.listening[call.spec.name]

    def _release_result(self, call: Call, type_: str, result: bytes, attempt: int) -> None:
        """`release` for what happens most: a handler's result, of a call that was running and so is no wait."""
        self.open.pop((call.kind, call.key), None)
        if self.undo is not None or call.spec.compensate is not None:
            self.release(call, type_, RowWords(result=msgspec.Raw(result), attempt=attempt))
        else:
            self._told_since += len(result)
            self.replay.answer_result(call, type_, result)

    def _answer_one(self) -> bool:
        """Take one waiting event or due timer. The order in which they are taken is the order they are recorded. What
        happened first is taken first, however late we look: a timer before a signal or a child's end that came after
        it was due, and of these two the one that came first."""
        self._forget_cancelled()
        due = self._first_due()
        due_at = NEVER if due is None else due.state.at
        signal = None if self.undo is not None else self._first_signal(due_at)
        first_at = due_at if signal is None else signal.sent_at
        for event in self.events.facts:
            if event.kind == "child" and (call := self.open.get(("child", event.name))) is not None:
                if event.sent_at > first_at:
                    break
                if event.id == ids.child_event(ids.child_id(self.tenant_id, self.id, call.key, self.epoch)):
                    self._child_ended(call, event)
                    return True
                continue  # a child of an earlier epoch, which the code then did not ask for any more
            call = self.open.get(("effect", event.name)) if event.kind == "resolution" else None
            if call is not None and effects.resolved(self, call, event):
                return True
        if signal is not None:
            self._take_signal(signal)
            return True
        return due is not None and self._due(due)

    def _forget_cancelled(self) -> None:
        """A wait that its author has cancelled takes nothing, wakes nobody, and keeps nothing in memory."""
        if self.undo is not None or not self.waits:
            return
        waits = ("sleep", "signal")
        for call in [call for call in self.open.values() if call.kind in waits and call.future.done()]:
            self._close_wait(call)

    def _first_due(self) -> Call | None:
        now = self.worker.now()
        due: Call | None = None
        for call in self.open.values():
            standing = call.state
            waits = standing.phase is Phase.WAITING and standing.at is not None and standing.at <= now
            if waits and (due is None or standing.at < due.state.at):
                due = call
        return due

    def _first_signal(self, due_at: int) -> PendingEvent | None:
        """The signal that was sent first, and up to `due_at`, of those that somebody waits for."""
        heard = [
            event
            for name in self.events.names
            if self.listening.get(name) and (event := self.events.first(name)) and event.sent_at <= due_at
        ]
        return min(heard, key=sent) if heard else None

    def _take_signal(self, event: PendingEvent) -> None:
        """It goes to whoever waited first for one of its name."""
        call = next(iter(self.listening[event.name].values()))
        self.consume(event)
        self.record(
            h.SIGNAL_RECEIVED, call.key,
            b'{"event_id":' + codec.encode(event.id) + sent_by(event) + b',"result":' + event.payload + b"}",
        )  # fmt: skip
        self.release(call, h.SIGNAL_RECEIVED, RowWords(result=msgspec.Raw(event.payload)))
        if self.worker.verbose:
            self.worker.note(self, "signal_received", signal=event.name)

    def lacking(self) -> list[str]:
        if self.undo is not None or self.paused is not None:
            return []
        return [name for name in self.listening if self.events.lacks(name)]

    def has_more(self) -> bool:
        undoes_later = self.undo is not None and self.undo.retry_at is not None
        return self.more or undoes_later or self.events.any or bool(self.waits)

    def _due(self, call: Call) -> bool:
        if self.undo is not None and call.kind in ("sleep", "signal", "transaction"):
            call.state.at = None  # the body is closed: nobody waits for this any more
            return True
        if call.kind == "sleep":
            # Soft when nothing else could have come first: what follows is decided by the recorded due time alone.
            self.record(h.TIMER_FIRED, call.key, b"{}", hard=len(self.open) > 1)
            self.release(call, h.TIMER_FIRED, RowWords())
            if self.worker.verbose:
                self.worker.note(self, "timer_fired", timer=call.key)
        elif call.kind == "signal":
            self.record(h.WAIT_TIMED_OUT, call.key, b"{}")
            self.release(call, h.WAIT_TIMED_OUT, RowWords())
            if self.worker.verbose:
                self.worker.note(self, "wait_timed_out", signal=call.spec.name)
        else:
            self.waits -= 1
            call.state.ready()
            if call.kind == "effect":
                effects.due(self, call)
        return True

    def _child_ended(self, call: Call, event: PendingEvent) -> None:
        self.consume(event)
        words = codec.decode(event.payload)
        type_ = h.CHILD_COMPLETED if words["status"] == "completed" else h.CHILD_FAILED
        self.answer(call, type_, words)

    # -- handlers' results

    def take_result(self, call: Call, value: Any, error: BaseException | None) -> None:
        if error is not None:
            self.raised[call.key] = without_machinery(error)
        if self.undoing(call):
            undo.arrived(self, call, error)
        elif call.kind == "effect":
            effects.arrived(self, call, value, error)
        else:
            self._step_arrived(call, value, error)

    def _step_arrived(self, call: Call, value: Any, error: BaseException | None) -> None:
        attempt = call.state.attempt
        if error is None:
            try:
                result = codec.encode(value, "the result of", self.worker.payload_limit, call.key)
                if call.type is not None:
                    codec.decoder_for(call.type)(result)
            except Exception as refused:
                error = refused
        if error is None:
            self.entries.append((h.STEP_COMPLETED, call.key, completed_payload(call, result, attempt)))
            self.hard = True
            self._release_result(call, h.STEP_COMPLETED, result, attempt)
            if self.worker.verbose:
                self.worker.note(self, "step_completed", step=call.key, attempt=attempt)
            return
        words: dict[str, Any] = {"attempt": attempt, "error": error_payload(error)}
        verdict = self.verdict(call, attempt, error)
        if isinstance(error, HoldfastError) and error.code in ("not_json", "payload_too_large"):
            verdict = GiveUp("its result cannot be stored")  # trying again would only do the work again
        if self.undo is None or not isinstance(error, CancelledError):  # else it was stopped, because the body is over
            wait: dict[str, Any] = {}
            if isinstance(verdict, RetryAt):
                wait["retry_in"] = round((verdict.at - self.worker.now()) / 1_000_000, 1)
            self.complain(f"{call.kind}_failed", error, step=call.key, attempt=attempt, **wait)
        transaction = call.kind == "transaction"
        if isinstance(verdict, RetryAt) and self.undo is None:
            retried = h.TRANSACTION_RETRIED if transaction else h.STEP_RETRIED
            limit = call.spec.policy.max_attempts
            self.record(retried, call.key, codec.encode(words | {"retry_at": verdict.at, "max_attempts": limit}))
            call.state.attempt += 1
            call.state.wait_until(verdict.at)
            self.waits += 1
        else:
            self.answer(call, h.TRANSACTION_FAILED if transaction else h.STEP_FAILED, words)

    # -- after deciding

    def _dispatch(self) -> None:
        """Start what is ready, after the commit if the turn holds anything that must be on disk first."""
        self._forget_cancelled()
        ready = [c for c in self.open.values() if c.kind in RUNNABLE and c.state.phase is Phase.READY]
        if self.paused is not None:
            ready = []
        elif self.undo is not None:
            ready = undo.startable(self, ready)
        elif self.events.cancels:  # which waits for what is under way
            ready = [call for call in ready if self._is_under_way(call)]
        for call in ready:
            call.state.phase = Phase.RUNNING
            if call.recorded is not None:
                call.recorded.killed = False  # a person had it go on
            # Counted as running from here on: an in-place step that answers at once must not hand the claim back
            # while its neighbours are about to start.
            self.running[call.key] = None
            if call.kind == "effect" and call.state.next == "start" and not self.undoing(call):
                effects.reserve(self, call)
        if not ready and not self.running and not self.more and not self.lacking():
            self._hand_back()
            return
        if self.hard or self.more:
            self._ready = ready
            self.go_on_with()
        else:
            for call in ready:
                self.worker.run(self, call)
        if (self.waits or self.undo is not None) and self.paused is None:
            self._watch_clock()
        if self.listening and not self.committing:
            self._refill()

    def next_at(self) -> int | None:
        if self.paused is not None:
            return None
        times = [c.state.at for c in self.open.values() if c.state.phase is Phase.WAITING and c.state.at is not None]
        if self.undo is not None and self.undo.retry_at is not None:
            times.append(self.undo.retry_at)
        return min(times) if times else None

    def _hand_back(self) -> None:
        waiting_on = "; ".join(filter(None, (describe(c) for c in self.open.values())))
        if self.undo is not None:
            waiting_on = undo.describe(self) or waiting_on
        if self.paused is not None:
            waiting_on = self.paused.text()
        if self.events.cancels:
            waiting_on += "; then it is cancelled"
        if not self.entries:
            self.record(h.INSTANCE_WAITING, "", codec.encode({"on": waiting_on}))
        status = "compensating" if self.undo is not None else "waiting"
        self.submit(status=status, waiting_on=waiting_on or "nothing: it needs a person", run_at=self.next_at())

    def _stop(self, mistake: str = "") -> None:
        """Park it once nothing runs any more: what a handler comes back with belongs into its history."""
        self.hold_transactions()
        if not self.running:
            self._park(mistake)
        elif self.hard:
            self.go_on_with()

    def go_on_with(self) -> None:
        """The turn, under the same claim. The one that begins to undo says so in the instance's row; the first one of a
        history that has lost its end says there where it goes on."""
        if self.undo is not None and not self.undo.shown:
            self.undo.shown = True
            self.submit(status="compensating", release=False)
        elif self.has_lost_its_end:
            self.submit(status="running" if self.undo is None else "compensating", release=False)
        else:
            self.submit()
        self.has_lost_its_end = False

    def _park(self, mistake: str = "") -> None:
        difference = storable(mistake or f"the code contradicts its journal: {self.replay.difference}")
        words: dict[str, Any] = {"difference": difference}
        error = self.replay.outcome()[1] if mistake and self.replay.done else None
        if error is not None:
            words["error"] = error_payload(error)
        unasked.show_at_desk(self)
        self.record(h.INSTANCE_PARKED, "", codec.encode(words))
        ending = self.undo is not None or self.replay.journal.ending_type
        self.submit(status="compensating" if ending else "waiting", waiting_on=PARKED + difference)
        trace = {} if error is None else {"exception": traceback_text(error, source_line)}
        self.worker.note(self, "parked", "error", on=difference, **trace)

    def _restart(self, given: bytes) -> None:
        """The last turn of an epoch. Whoever claims the instance next begins with this turn's last entry."""
        self.restarted = True
        undo.tell_forgotten_children(self)
        self.replay.close()
        words = codec.encode({"epoch": self.epoch + 1, "input_hash": codec.digest(given)})
        self.record(
            h.INSTANCE_RESTARTED, self.claimed.definition_key, words[:-1] + b',"input":' + given + b"}"
        )  # fmt: skip
        self.submit(status="waiting", waiting_on="its next epoch", run_at=self.worker.now(), restart=True)
        if self.worker.verbose:
            self.worker.note(self, "instance_restarted", epoch=self.epoch + 1)

    def end(
        self, status: str, error: BaseException | dict[str, Any], compensation: str | None = None, *,
        raised: BaseException | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        undo.tell_forgotten_children(self)
        super().end(status, error, compensation, raised=raised, **fields)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        if error is None:
            try:
                result = codec.encode(value, "the workflow's result", self.worker.payload_limit)
            except Exception as refused:
                if (mistake := mistake_in(refused)) is not None:
                    self._park(mistake)
                    return
                error = refused
        if error is not None:
            self.end("failed", error)
            return
        if self.replay.journal.calls:
            undo.tell_forgotten_children(self)
        self.record(h.INSTANCE_COMPLETED, self.claimed.definition_key, b'{"result":' + result + b"}")
        self.tell_parent("completed", result, None)
        self.submit(status="completed", result=result, woken=ALWAYS, completed_at=self.worker.now())
        if self.worker.verbose:
            self.worker.note(self, "instance_completed")


def args_head(call: Call) -> bytes:
    if call.args:
        return b'{"args":' + call.args
    return b'{"args_hash":"' + call.args_hash.encode() + b'"'


def completed_payload(call: Call, result: bytes, attempt: int) -> bytes:
    if call.args and attempt == 1:
        return b'{"args":' + call.args + b',"result":' + result + b"}"
    head = args_head(call)
    if attempt > 1:
        head += b',"attempt":%d' % attempt
    return head + b',"result":' + result + b"}"


def describe(call: Call) -> str:
    standing = call.state
    if call.kind == "effect":
        return effects.describe(call)
    until = f" until {moment_text(standing.at)}" if standing.at is not None else ""
    if call.kind == "sleep":
        return f"timer {call.key!r}{until}"
    if call.kind == "signal":
        return f"signal {call.spec.name!r}{until}"
    if call.kind == "child":
        return f"child {call.key!r}"
    return f"attempt {standing.attempt} of {call.kind} {call.key!r}{until}"
