"""An instance under claim: the turn being gathered for it, its way to disk, and what follows.

What moves an instance differs by kind (`execution.py` for code, `charts.py` for charts); how a turn is sealed, sent,
answered and let go does not.
"""

from __future__ import annotations

import asyncio
import linecache
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.errors import StepFailed
from holdfast.engine.history import genesis, seal_rows
from holdfast.engine.interrupts import is_interrupt
from holdfast.engine.journal import PARKED, Pause
from holdfast.engine.replay import Call, Undoing
from holdfast.engine.retry import GiveUp, RetryAt, after_failure, storable
from holdfast.engine.scope import Scope, Whose
from holdfast.engine.stacks import error_payload, linked, message_of, recorded_text, summary, traceback_text, type_of
from holdfast.engine.turns import (
    ALWAYS,
    Change,
    Consumed,
    DeadLetter,
    EffectRow,
    NewEvent,
    NewInstance,
    NewTask,
    Outcome,
    TaskChange,
    Turn,
)
from holdfast.store.port import Claimed, PendingEvent, lost_since
from holdfast.worker.inbox import Inbox
from holdfast.worker.standing import Phase

if TYPE_CHECKING:
    from holdfast.app.registry import Definition
    from holdfast.worker.undo import Undo
    from holdfast.worker.worker import Worker

NONE: list[Any] = []  # shared by all turns that write nothing of a kind; never changed
NO_ROWS: Mapping[bytes, Any] = MappingProxyType({})  # likewise
Told = tuple[Call, int, Any, BaseException | None]  # an effect's call, its attempt, and what it came back with


class UnderClaim:
    def __init__(self, worker: Worker, claimed: Claimed, definition: Definition) -> None:
        self.worker = worker
        self.definition = definition
        self.tenant_id = claimed.tenant_id
        self.id = claimed.id
        self.epoch = claimed.epoch
        self.whose = Whose(claimed.tenant_id, claimed.id, claimed.definition_key, claimed.trace_id)
        self.claim_anew(claimed)
        past = claimed.history
        self.seq = past[-1].seq if past else 0
        self.hash = past[-1].hash if past else genesis(claimed.tenant_id, claimed.id)
        self.open: dict[tuple[str, str], Call] = {}  # asked and not answered
        self.running: dict[str, Any] = {}  # handlers under way, by key
        self.threads: set[str] = set()  # those of them that cannot be stopped
        self.arrived: deque[tuple[Call, Any, BaseException | None]] = deque()
        self.undo: Undo | None = None
        self.has_lost_its_end = lost_since(claimed) is not None  # and a person has it go on all the same
        self.copied = 0  # rows of another instance's past that its first turn takes over, right behind its first row
        self.paused: Pause | None = None  # while it is, results are recorded and nothing new begins
        self.parked = False  # without its code, so that nothing was begun under this claim
        self.committing = False
        self.abandoned = False
        self.waits = 0  # open calls that wait for something other than a handler
        self.transactions: list[Call] = []  # waiting for the turn to be free
        self._ready: list[Call] = []  # to be started once the turn is committed
        self._told: list[Told] = []  # what effects came back with, not yet in a turn
        self._sent: list[Told] = []  # the same, in the turn that is on its way to disk
        self.died_of: BaseException | None = None  # for callers in this process who wait for its end
        self.plain = False
        self._begin_turn()

    def claim_anew(self, claimed: Claimed) -> None:
        """Everything that belongs to one claim and not to the instance."""
        self.claimed = claimed
        self.fence = claimed.fence
        self.worker_id = self.worker.id  # the incarnation that claimed it; the worker itself may be a later one by now
        self.woken = claimed.woken
        self.events = Inbox(claimed.events, by_name=claimed.kind == "code")
        self.proved = False  # whether a turn was committed under this claim: a crash from here on is forgiven
        self.claimed_at = self.worker.loop.time()
        self.raised = self.worker.raised_by(claimed.id)  # what handlers raised, by key
        self._change: Change | None = None
        self.doubted = False  # an effect of unknown outcome was settled, and not by a person's word
        self.hears_last = False  # its events are read once more before it ends
        self._reads_last = False  # by the reading that is under way: it was begun when the turn before was on disk
        self.watched: int | None = None  # the moment the worker was last asked to wake it at

    # -- what each kind does its own way

    def begin(self) -> None:
        raise NotImplementedError

    def decide(self) -> None:
        """Answer whatever can be answered now, then commit what this caused or start what needs no commit."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing more will be asked here."""

    def release(self, call: Call, type_: str, words: Any) -> None:
        """Hand a recorded answer on."""
        raise NotImplementedError

    def answer(self, call: Call, type_: str, words: dict[str, Any]) -> None:
        """Record an answer and hand it on."""
        raise NotImplementedError

    def info(self, call: Call) -> Any:
        """What a handler that asks for it is told about its call."""
        raise NotImplementedError

    def transaction_turn(self, call: Call, entries: list[tuple[str, str, bytes]], result: bytes) -> Turn:
        """The turn that commits together with a transaction step's own writes."""
        raise NotImplementedError

    def take_result(self, call: Call, value: Any, error: BaseException | None) -> None:
        raise NotImplementedError

    @property
    def is_poison(self) -> bool:
        """Whether its history says that it stands still because it took its workers down."""
        return False

    def resumed(self) -> None:
        """A person has it go on."""

    def go_on_with(self) -> None:
        """Send the turn on its way, under the same claim."""
        raise NotImplementedError

    def next_at(self) -> int | None:
        raise NotImplementedError

    def has_more(self) -> bool:
        """Whether something here waits to be decided, now that the turn is on disk."""
        return self.events.any or bool(self.waits)

    @property
    def can_end(self) -> bool:
        """Whether a request to end it can be taken as it stands."""
        return True

    def unwanted(self, call: Call) -> bool:
        """Whether nobody waits for its answer: it is settled if it may have happened, and never begun anew."""
        return self.undo is not None

    def harmless(self, call: Call) -> bool:
        """Whether it does not matter if it happened: no person need find out."""
        return False

    def scope(self, call: Call) -> Scope:
        """What a line is about that this call's handler writes."""
        return self.whose, getattr(call, "task_id", None), call.key, self.worker.attempt_of(self, call)

    # -- the turn being gathered

    def _begin_turn(self) -> None:
        self.entries: list[tuple[str, str, bytes]] = []
        self.hard = False  # something here must be on disk before any handler starts
        if self.plain:
            return
        self.plain = True  # nothing but history so far
        self.starts: list[NewInstance] = NONE
        self.sends: list[NewEvent] = NONE
        self.consumed: list[Consumed] = NONE
        self.effect_rows: dict[bytes, EffectRow] = NO_ROWS  # type: ignore[assignment]
        self.dead_letters: list[DeadLetter] = NONE
        self.tasks: dict[bytes, NewTask] = NO_ROWS  # type: ignore[assignment]
        self.task_changes: dict[bytes, TaskChange] = NO_ROWS  # type: ignore[assignment]

    def beyond_history(self) -> None:
        """This turn writes more than history: give it lists of its own."""
        if self.plain:
            self.plain = False
            self.starts, self.sends, self.consumed, self.dead_letters = [], [], [], []
            self.effect_rows = {}
            self.tasks = {}
            self.task_changes = {}

    def record(self, type_: str, name: str, payload: bytes, *, hard: bool = True) -> None:
        self.entries.append((type_, name, payload))
        if hard:
            self.hard = True

    def record_of(self, call: Call, type_: str, payload: bytes) -> None:
        """An entry about an effect."""
        self.record(type_, call.key, payload)

    def consume(self, event: PendingEvent) -> None:
        """The event is taken by the entry that is recorded next."""
        self.beyond_history()
        self.events.take(event)
        self.consumed.append(Consumed(self.tenant_id, self.id, event.id, self.seq + len(self.entries) + 1))

    def seal_turn(self, entries: list[tuple[str, str, bytes]]) -> Turn:
        """The entries as rows that follow from the head of this history. The head itself is not moved."""
        worker, fence, tenant_id, id_ = self.worker, self.fence, self.tenant_id, self.id
        rows = seal_rows(self.hash, self.seq, tenant_id, id_, fence, worker.now(), entries, worker.salt)
        if self.plain:
            return Turn(tenant_id, id_, fence, rows, None, NONE, NONE, NONE, NONE, NONE, NONE, NONE, self.hash)
        return Turn(
            tenant_id, id_, fence, rows, None, self.starts, self.sends, self.consumed,
            list(self.effect_rows.values()), self.dead_letters, list(self.tasks.values()),
            list(self.task_changes.values()), self.hash,
        )  # fmt: skip

    def submit(
        self, status: str = "", *, waiting_on: str | None = None, run_at: int | None = None, release: bool = True,
        woken: int | None = None, result: bytes | None = None, last_error: bytes | None = None,
        compensation: str | None = None, snapshot: bytes | None = None, current_state: str | None = None,
        completed_at: int | None = None, definition_version: int | None = None, restart: bool = False,
    ) -> None:  # fmt: skip
        """Send the turn on its way. Without a status the instance's own row stays as it is. `restart`: the last entry
        begins the next epoch."""
        turn = self.seal_turn(self.entries)
        last = turn.history[-1]
        self.seq, self.hash = last[2], last[9]
        if status:
            turn.change = Change(
                self.tenant_id, self.id, self.fence, status, waiting_on, run_at, release,
                self.woken if woken is None else woken, self.seq, self.hash, result, last_error, compensation,
                snapshot, current_state, completed_at, definition_version, self.seq if restart else None,
            )  # fmt: skip
        self._begin_turn()
        self.committing = True
        self._change = turn.change
        if self._told:
            self._sent, self._told = self._told, []
        self.worker.committer.submit(turn, self._committed)

    def hear_before_the_end(self) -> bool:
        """True if a last look at what people said comes first: of an effect that this turn settles somebody may have
        spoken since the events were read. Once the turn is on disk, the desk refuses what comes too late."""
        if self.doubted:
            self.doubted, self.hears_last = False, True
            if self.entries:
                self.go_on_with()
            else:
                self.worker.fetch_events(self)
        return self.hears_last

    def forget_entries(self, count: int) -> None:
        """Entries that a transaction step took along into its own commit. None are added while one runs."""
        assert len(self.entries) == count
        self._begin_turn()

    def arrive(self, call: Call, value: Any, error: BaseException | None) -> None:
        """A handler is done. While a turn is on its way to disk, results queue up and share the next one."""
        if self.abandoned:
            return
        self.running.pop(call.key, None)
        if call.kind == "effect" and call.state.next != "lookup" and not self.undoing(call):
            self._told.append((call, call.state.attempt, value, error))
        if self.committing or self.arrived:
            self.arrived.append((call, value, error))
        else:
            self.take_result(call, value, error)
            self.decide()

    def take_arrivals(self) -> None:
        while self.arrived:
            self.take_result(*self.arrived.popleft())
        self.decide()

    def runs_now(self, call: Call) -> bool:
        """Whether the call's own task is running, not whoever closes its coroutine, perhaps after its loop's end."""
        try:
            return self.running.get(call.key) is asyncio.current_task()
        except RuntimeError:
            return False

    def undoing(self, call: Call) -> bool:
        """Whether what runs for this call now is the step that undoes it."""
        return self.undo is not None and self.undo.current is call and not isinstance(call, Undoing)

    def _watch_clock(self) -> None:
        """Something runs, so the claim stays; timers meanwhile are kept in memory."""
        at = self.next_at()
        if at is not None and at != self.watched:
            self.watched = at
            self.worker.wake_at(self, at)

    def end(
        self, status: str, error: BaseException | dict[str, Any], compensation: str | None = None, *,
        raised: BaseException | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """`raised`: the exception that `error` was written from, if it is at hand."""
        words = error if isinstance(error, dict) else error_payload(error)
        type_ = h.INSTANCE_CANCELLED if status == "cancelled" else h.INSTANCE_FAILED
        payload = {"error": words} | ({"compensation": compensation} if compensation else {})
        self.record(type_, self.claimed.definition_key, codec.encode(payload))
        self.tell_parent(status, None, words)
        self.submit(
            status=status, last_error=codec.encode(words), woken=ALWAYS, completed_at=self.worker.now(),
            compensation=compensation, **fields,
        )  # fmt: skip
        self.died_of = raised if isinstance(error, dict) else error
        trace = recorded_text(words) if self.died_of is None else traceback_text(self.died_of, source_line)
        self.worker.note(
            self, f"instance_{status}", "error" if status == "failed" else "info", error=summary(words),
            **({"exception": trace} if trace and status == "failed" else {}),
        )  # fmt: skip
        if self.died_of is not None:
            chain(self.died_of, self.raised)

    def complain(self, event: str, error: BaseException, *, final: bool = False, **fields: Any) -> None:
        """A failed attempt, with its stack. Every worker says so, not only a verbose one."""
        words = {"type": type_of(error), "message": message_of(error)}
        level = "error" if final else "warning"
        trace = traceback_text(error, source_line)
        self.worker.note(self, event, level, **fields, error=summary(words), exception=trace)

    def verdict(self, call: Call, attempt: int, error: BaseException | None) -> RetryAt | GiveUp:
        """What follows from a failed attempt, by the call's policy."""
        found = after_failure(attempt, call.spec.policy, error, self.worker.now(), self.worker.entropy.random())
        if isinstance(found, RetryAt):
            self.warn_of_backoff(call, found.mistake)
        return found

    def warn_of_backoff(self, call: Call, mistake: str) -> None:
        """An author's back-off function that gave no delay: the default one was taken, and somebody should know."""
        if mistake:
            self.worker.note(self, "backoff_failed", "error", step=call.key, reason=mistake)

    def tell_parent(self, status: str, result: bytes | None, error: dict[str, Any] | None) -> None:
        parent = self.claimed.parent_id
        if parent is None:
            return
        words = codec.encode({"status": status, "child_id": ids.instance_word(self.id), "error": error})
        payload = words[:-1] + b',"result":' + (result or b"null") + b"}"
        self.beyond_history()
        self.sends.append(
            NewEvent(
                self.tenant_id,
                parent,
                ids.child_event(self.id),
                "child",
                self.claimed.parent_step or "",
                payload,
                self.worker.now(),
                self.id,
            )
        )

    def park(self, times: int, error: str) -> None:
        """Instead of trying again what this worker could not do for reasons of its own. Nobody died of it, so it is no
        poison: nothing is undone or given up, and a retry goes on where it stands."""
        self.parked = True
        difference = f"Holdfast failed {times} times in a row to move it ({storable(error)[:500]})"
        if not self.claimed.history:
            self.started({})
        words = {"difference": difference} | ({"poison": True} if self.is_poison else {})
        self.record(h.INSTANCE_PARKED, "", codec.encode(words))
        status = "compensating" if self.claimed.status == "compensating" else "waiting"
        self.submit(status=status, waiting_on=PARKED + difference)
        self.worker.note(self, "parked", "error", on=difference)

    def started(self, more: dict[str, Any]) -> None:
        """The first row of its history."""
        raise NotImplementedError

    def bury(self) -> None:
        """A poison instance: it took its worker down again and again, lately while running alone."""
        self.end("failed", self.poison())

    def poison(self) -> dict[str, Any]:
        """The words for it, and its dead letter."""
        claims = self.claimed.attempts - 1
        words = {
            "type": "Poison",
            "message": f"claimed {claims} times in a row, and each time its worker died or was lost "
            "before it had committed a turn",
        }
        self.beyond_history()
        self.dead_letters.append(
            DeadLetter(
                self.tenant_id,
                ids.derived("dead", self.tenant_id, self.id, str(self.fence)),
                "instance",
                self.id,
                self.claimed.definition_key,
                words["message"],
                codec.encode(words),
                self.worker.now(),
            )
        )
        return words

    # -- after the commit

    def _committed(self, outcome: Outcome | BaseException) -> None:
        try:
            self._go_on(outcome)
        except BaseException as error:
            if is_interrupt(error):
                raise
            self.worker.broken(self, error)

    def _go_on(self, outcome: Outcome | BaseException) -> None:
        self.committing = False
        if outcome in (Outcome.COMMITTED, Outcome.WOKEN):
            self._sent = []
            self.proved = True
            self.worker.acknowledged.note(self)
        if self.abandoned:
            self._keep_evidence()
            return
        if outcome is Outcome.WOKEN:
            if self.parked:  # whoever claims it next hears what has come
                self.worker.let_go(self)
            else:
                self.worker.fetch_events(self)
            return
        if outcome is not Outcome.COMMITTED:
            self.worker.lost(self, outcome)
            return
        if self.hears_last:
            self.worker.fetch_events(self)
            return
        if self._change is not None and self._change.release:
            if self.worker.verbose and self._change.completed_at is None:
                self.worker.note(self, "waiting", on=self._change.waiting_on)
            if self._change.completed_at is not None or not self.worker.keep(self):
                self.close()
            self.worker.handed_back(self, self._change if self._change.completed_at is not None else None)
            if self._change.run_at is not None and self._change.run_at <= self.worker.now():
                self.worker.more_work()
            return
        ready, self._ready = self._ready, []
        for call in ready:
            self.worker.run(self, call)
        self.next_transaction()
        if self.arrived and not self.committing:
            self.take_arrivals()
        elif self.has_more() and not self.committing:
            self.decide()  # an event, or a timer that fell due while the turn was on its way

    def next_transaction(self) -> None:
        if self.transactions and not self.committing:
            self.worker.run(self, self.transactions.pop(0))

    def hold_transactions(self) -> None:
        """Those that stand in line behind a turn have not begun, and do not while it stands still."""
        for call in self.transactions:
            self.running.pop(call.key, None)
            call.state.phase = Phase.READY
        self.transactions.clear()

    def lacking(self) -> list[str]:
        """The lines of signals that something here waits for and that were not read to where it stands."""
        return []

    def asking(self) -> dict[str, Any]:
        """What to read of its events: what is lacking, else whatever is new."""
        lacking = self.lacking()
        self._reads_last = self.hears_last and not self.committing
        return self.events.asking(lacking or None)

    def new_events(self, woken: int, events: list[PendingEvent], asked: dict[str, Any]) -> None:
        last = self.hears_last and self._reads_last
        if woken >= self.woken or last:
            self.events.fill(events, asked, moved=woken > self.woken)
            self.woken = max(self.woken, woken)
        if self.hears_last and not last:
            return  # begun too early to be the last look, which is still to come
        self.hears_last = False
        if not self.committing and not self.abandoned:
            self.decide()

    def _refill(self) -> None:
        """Read on where something waits for a signal of which only others were read. What this claim has taken must be
        on disk by then, or it would be read again."""
        if not self.committing and not self.abandoned and self.lacking():
            self.worker.fetch_events(self)

    def abandon(self) -> None:
        self.abandoned = True
        self.close()
        if not self.committing:
            self._keep_evidence()

    def _keep_evidence(self) -> None:
        """Results that came back here and will not be in the history: whoever settles the effect wants to see them."""
        told, self._sent, self._told = [*self._sent, *self._told], [], []
        for call, attempt, value, error in told:
            self.worker.keep_evidence(self, call, attempt, value, error)


def source_line(path: str, number: int) -> str:
    linecache.checkcache(path)
    return linecache.getline(path, number)


def chain(error: BaseException, raised: dict[str, BaseException]) -> None:
    """Give each failure of a step in this error what its handler raised, so that a traceback leads to the author's
    line. Only once the body is over: a replay has none of them, and a body must not see what a replay would not
    show it."""
    for one in linked(error):
        if isinstance(one, StepFailed) and one.__cause__ is None and one.step in raised:
            one.__cause__ = raised[one.step]
            one.__notes__ = []  # the recorded stack: the exception itself says more


def sent_by(event: PendingEvent) -> bytes:
    """Who sent it, as a part of the entry that tells of it."""
    return b"" if event.sent_by is None else b',"sent_by":' + codec.encode(event.sent_by)
