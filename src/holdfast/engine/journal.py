"""The journal: an instance's history as replay reads it, by name and occurrence.

Decides what a recorded row answers, and whether a call contradicts what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.engine import history as h
from holdfast.engine.codec import decode

# Rows that answer a call, rows that open one, and the kind of call each belongs to.
ANSWERS = {
    h.STEP_COMPLETED: "step", h.STEP_FAILED: "step", h.TRANSACTION_COMMITTED: "transaction",
    h.TRANSACTION_FAILED: "transaction",
    h.EFFECT_SUCCEEDED: "effect", h.EFFECT_FAILED: "effect",
    h.TIMER_FIRED: "sleep", h.SIGNAL_RECEIVED: "signal", h.WAIT_TIMED_OUT: "signal",
    h.CHILD_COMPLETED: "child", h.CHILD_FAILED: "child", h.VALUE_RECORDED: "value",
}  # fmt: skip
OPENINGS = {
    h.STEP_STARTED: "step",
    h.STEP_RETRIED: "step",
    h.TRANSACTION_RETRIED: "transaction",
    h.EFFECT_STARTED: "effect",
    h.EFFECT_RETRIED: "effect",
    h.EFFECT_UNKNOWN: "effect",
    h.EFFECT_RESOLVED: "effect",
    h.TIMER_STARTED: "sleep",
    h.WAIT_STARTED: "signal",
    h.CHILD_STARTED: "child",
}
BEGINNINGS = (h.STEP_STARTED, h.EFFECT_STARTED, h.CHILD_STARTED)
HAPPENED = (h.STEP_COMPLETED, h.TRANSACTION_COMMITTED, h.EFFECT_SUCCEEDED, h.CHILD_COMPLETED)
ENDINGS = (h.INSTANCE_FAILING, h.INSTANCE_CANCELLING)
# A compensation that is an effect has the life of one: each row of it says what the effect's own row would say.
AS_COMPENSATION = {
    h.EFFECT_STARTED: h.COMPENSATION_STARTED, h.EFFECT_RETRIED: h.COMPENSATION_RETRIED,
    h.EFFECT_UNKNOWN: h.COMPENSATION_UNKNOWN, h.EFFECT_RESOLVED: h.COMPENSATION_RESOLVED,
    h.EFFECT_SUCCEEDED: h.COMPENSATION_COMPLETED, h.EFFECT_FAILED: h.COMPENSATION_FAILED,
}  # fmt: skip
AS_EFFECT = {type_: effect for effect, type_ in AS_COMPENSATION.items()}
UNDOINGS = tuple(AS_EFFECT)
UNDO = "undo:"
"""Before the name of a step: the name of the effect that undoes it, from which its key is derived."""
CONTROLS = (h.INSTANCE_PAUSED, h.INSTANCE_RESUMED, h.INSTANCE_RETRIED, h.INSTANCE_STARTED, h.INSTANCE_PARKED)
GOES_ON = ("", "cancel")  # names of words to go on; those of other names note what moved nothing
ARGS_INLINE = 2048


class ErrorWords(msgspec.Struct):
    type: str = "Error"
    message: str = ""
    stack: msgspec.Raw = msgspec.Raw(b"[]")  # read only when somebody asks: a chart's own error may hold anything there
    causes: msgspec.Raw = msgspec.Raw(b"[]")

    def words(self) -> dict[str, Any]:
        """As `error_payload` made them."""
        more = {"stack": decode(bytes(self.stack)), "causes": decode(bytes(self.causes))}
        return {"type": self.type, "message": self.message} | {key: value for key, value in more.items() if value}


class RowWords(msgspec.Struct):
    """Every field any row of the journal may carry."""

    args: msgspec.Raw = msgspec.Raw(b"")
    args_hash: str = ""
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorWords | None = None
    attempt: int = 1
    retry_at: int = 0
    due: int = 0
    deadline: int | None = None
    event_id: str = ""
    child_id: str = ""
    workflow: str = ""
    status: str = ""
    mode: str = ""
    first_started_at: int = 0
    started_at: int = 0
    not_after: int = 0
    opens_at: int = 0
    settles_at: int = 0
    resolution: str = ""
    aborted: bool = False
    reason: str = ""
    compensate: bool = False  # it was begun with a compensation
    lookups: int = 0
    unknown: bool = False
    returned: bool = False
    escaped: bool = False
    max_attempts: int = 0  # of a retry: as of how many attempts it was one


class Pause(msgspec.Struct, frozen=True):
    """Who paused an instance, and why."""

    reason: str = ""
    actor: str = ""

    def text(self) -> str:
        """As `waiting_on` shows it, and as doors recognise it."""
        why = f": {self.reason}" if self.reason else ""
        return f"{PAUSED}{self.actor or 'somebody'}{why}"[:800] + "; resume it to go on"


class RetryWords(msgspec.Struct, frozen=True):
    """Whose wait for the next attempt was cut short: steps and effects, and the step whose compensation is tried."""

    due: list[str] = []
    undo: str | None = None


class ParkedWords(msgspec.Struct, frozen=True):
    difference: str = ""
    poison: bool = False


class ForkWords(msgspec.Struct, frozen=True):
    """What the first row says of an instance that goes on from another's past."""

    forked_from: str = ""
    copied: int = 0  # rows taken over, right after the first
    settled: int = 0  # how many of them, from the first on, owe no compensation here


class RestartWords(msgspec.Struct, frozen=True):
    """With what an epoch begins."""

    epoch: int = 0
    input: msgspec.Raw = msgspec.Raw(b"null")


PAUSED = "paused by "
PARKED = "parked: "
"""What `waiting_on` of a parked instance begins with. The index by which they are counted says the same."""
HOLE = f"{PARKED}its history has a hole: "
LOST = "was committed and is gone"
"""Of the last row that a worker was told is on disk, where the database went back to before it."""
"""What `waiting_on` of an instance begins with whose history is not written on, not even to say that it is parked."""
_pause = msgspec.json.Decoder(Pause).decode
_retry = msgspec.json.Decoder(RetryWords).decode
_fork = msgspec.json.Decoder(ForkWords).decode
_parked = msgspec.json.Decoder(ParkedWords).decode
restart_from = msgspec.json.Decoder(RestartWords).decode
_words = msgspec.json.Decoder(RowWords)


def words_from(payload: bytes) -> RowWords:
    return _words.decode(payload)


class Recorded(msgspec.Struct):
    """What the history says about one call."""

    kind: str
    answer_seq: int = 0
    answer_type: str = ""
    answer: RowWords | None = None
    opened: RowWords | None = None  # the latest row that opened or retried it
    opened_type: str = ""
    args: bytes = b""
    args_hash: str = ""
    asked: bool = False  # the body has asked for it again
    undoable: bool = False  # and has said how it is undone
    compensated: bool = False  # it was begun with a compensation
    killed: bool = False  # it was under way when its instance took its workers down, and no row of it came since
    began_seq: int = 0  # the row that says when it began; 0: none does, as of a transaction

    @property
    def is_open_effect(self) -> bool:
        """Whether it is an effect that may have happened, and nobody knows yet."""
        if self.kind != "effect" or self.answer_seq or self.opened is None or self.opened_type == h.EFFECT_RESOLVED:
            return False  # where a person's word is the last one, it did not happen
        return self.opened.unknown or self.opened_type in (h.EFFECT_STARTED, h.EFFECT_UNKNOWN)

    @property
    def may_have_happened(self) -> bool:
        """Whether it did, or nobody can say that it did not."""
        if not self.answer_seq:
            return self.is_open_effect or self.kind != "effect"
        return self.answer_type in HAPPENED or (self.answer is not None and self.answer.aborted)


class Journal(msgspec.Struct):
    calls: dict[tuple[str, str], Recorded]
    ending_type: str = ""
    ending: RowWords | None = None
    ending_seq: int = 0
    ending_at: int = 0
    undone: dict[str, Recorded] = {}  # compensations that were begun, by the name of the step
    pause: Pause | None = None
    settled_seq: int = 0  # answers up to here were copied from one that completed: theirs to undo, not ours
    poison: str = ""  # why its code is not run any more: it took its workers down, and owes what it had begun
    restart: RestartWords | None = None  # None: in its first epoch, whose input is the instance's own

    def owes(self, recorded: Recorded | None) -> bool:
        """Whether a call with this record may owe a compensation here."""
        return recorded is None or not 0 < recorded.answer_seq <= self.settled_seq

    def effect(self, name: str) -> Recorded | None:
        """An effect, or the compensation that is one, by the name that the desk knows it by."""
        undone = self.undone.get(name.removeprefix(UNDO)) if name.startswith(UNDO) else None
        return undone if undone is not None and undone.kind == "effect" else self.calls.get(("", name))

    def unasked_effects(self) -> dict[str, Recorded]:
        """By name: effects that may have happened, and that the body, as far as it has come, did not ask for again.
        What undoes a call belongs to it."""
        unasked = {name: call for (_, name), call in self.calls.items() if not call.asked}
        undoable = {name for (_, name), call in self.calls.items() if call.undoable}
        undoing = {UNDO + name: call for name, call in self.undone.items() if name not in undoable}
        return {name: call for name, call in (unasked | undoing).items() if call.is_open_effect}

    def unasked_child(self, workflow: str) -> str | None:
        """The name of a child of this workflow that is under way, and that the body did not ask for again yet."""
        for (_, name), call in self.calls.items():
            under_way = call.kind == "child" and not call.asked and not call.answer_seq
            if under_way and call.opened is not None and call.opened.workflow == workflow:
                return name
        return None

    def forgotten(self, *, completes: bool = False, waits_for: Sequence[str] = ()) -> str | None:
        """What an instance that ends, restarts or is undone now would leave behind: what is on record as under way, or
        as owing an undo, and the body did not ask for again. Only the body knows how to settle or undo it. `completes`:
        it ends with a result, so what the body did ask for again needs no undo. `waits_for`: where the body stands, if
        it is to be cancelled there."""
        not_asked = "the code does not ask for it any more; put it back"
        if waits_for:
            not_asked = (
                f"the code has not come to it: it waits for {_named(waits_for)} first, and nothing goes on there once "
                "it is to be cancelled; take that out of the code, and put back what asks for it"
            )
        unasked = [(name, call) for (_, name), call in self.calls.items() if not call.asked]
        effects = [name for name, call in unasked if call.is_open_effect]
        if effects:
            return f"nobody knows the outcome of effect {_named(effects)} yet, and {not_asked} until that is settled"
        owed = [name for name, call in unasked if self._owes_undo(name, call)]
        if owed:
            return f"{_named(owed)} may have to be undone, and {not_asked}" + (
                " until that is done" if waits_for else ", with its compensation"
            )
        if completes:
            return None
        owed = [name for (_, name), call in self.calls.items() if not call.undoable and self._owes_undo(name, call)]
        if owed:
            return f"{_named(owed)} has to be undone, and the code does not say how any more; put its compensation back"
        return None

    def _owes_undo(self, name: str, call: Recorded) -> bool:
        undone = self.undone.get(name)
        if undone is not None:
            return not undone.answer_seq
        return call.compensated and call.may_have_happened and self.owes(call)


def is_paused(waiting_on: str | None) -> bool:
    return waiting_on is not None and waiting_on.startswith(PAUSED)


def space_of(kind: str) -> str:
    """Signals and values have names of their own; everything else shares one space, so a changed kind shows."""
    return kind if kind in ("signal", "value") else ""


def read(rows: Iterable[Sequence[Any]]) -> Journal:
    """Fold (seq, type, name, payload, …) rows into a journal of the last epoch among them."""
    calls: dict[tuple[str, str], Recorded] = {}
    journal = Journal(calls, undone={})
    for row in rows:
        seq, type_, name, payload = row[0], row[1], row[2], row[3]
        kind = ANSWERS.get(type_) or OPENINGS.get(type_)
        if kind is None:
            if type_ in ENDINGS:
                journal.ending_type, journal.ending = type_, _words.decode(payload)
                journal.ending_seq, journal.ending_at = seq, row[5]
                journal.pause, journal.poison = None, ""  # lifted by what ends the instance
                for call in calls.values():
                    call.killed = False
            elif type_ in UNDOINGS:
                _undoing(journal.undone.setdefault(name, Recorded("step")), seq, type_, _words.decode(payload))
            elif type_ in CONTROLS:
                _control(journal, row)
            elif type_ == h.INSTANCE_RESTARTED:
                calls = {}
                journal = Journal(calls, undone={}, restart=restart_from(payload))
            continue
        words = _words.decode(payload)
        key = (space_of(kind), name)
        found = calls.get(key)
        if found is None:
            found = calls[key] = Recorded(kind)
        args = bytes(words.args)
        if args:
            found.args, found.args_hash = args, ""
        elif words.args_hash:
            found.args, found.args_hash = b"", words.args_hash
        found.killed = False
        if words.compensate or type_ == h.STEP_STARTED:
            found.compensated = True
        if not found.began_seq and type_ in BEGINNINGS:
            found.began_seq = seq
        if type_ in ANSWERS:
            found.answer_seq, found.answer_type, found.answer = seq, type_, words
        else:
            found.opened, found.opened_type = words, type_
    return journal


def _undoing(found: Recorded, seq: int, type_: str, words: RowWords) -> None:
    if type_ in (h.COMPENSATION_COMPLETED, h.COMPENSATION_FAILED):
        found.answer_seq, found.answer_type, found.answer = seq, type_, words
        return
    if words.mode:
        found.kind = "effect"
    if args := bytes(words.args):
        found.args = args
    found.opened, found.opened_type = words, AS_EFFECT[type_]


def _control(journal: Journal, row: Sequence[Any]) -> None:
    """What people said about the instance as a whole, and where it came from."""
    type_, name, payload = row[1], row[2], row[3]
    if type_ == h.INSTANCE_PARKED:
        parked = _parked(payload)
        journal.poison = parked.difference if parked.poison else ""
        for found in journal.calls.values() if parked.poison else ():
            found.killed = not found.answer_seq
        return
    if type_ in (h.INSTANCE_RESUMED, h.INSTANCE_RETRIED) and name in GOES_ON:
        journal.poison = ""
    if type_ == h.INSTANCE_PAUSED:
        journal.pause = journal.pause or _pause(payload)  # paused again while paused: the first word stands
    elif type_ == h.INSTANCE_RESUMED and name in GOES_ON:
        journal.pause = None
    elif type_ == h.INSTANCE_RETRIED:
        words, at = _retry(payload), row[5]
        cut = [journal.effect(key) or journal.calls.get(("", key)) for key in words.due]
        for cut_short in [*cut, journal.undone.get(words.undo or "")]:
            if cut_short is not None and cut_short.opened is not None:
                cut_short.opened.retry_at = min(cut_short.opened.retry_at, at)
    elif type_ == h.INSTANCE_STARTED:
        fork = _fork(payload)
        journal.settled_seq = 1 + fork.settled if fork.settled else 0


def contradiction(name: str, kind: str, args: bytes, args_hash: str, recorded: Recorded) -> str | None:
    """The readable difference between a call and what its journal says, or None."""
    if recorded.kind != kind:
        return f"{name!r} is recorded as {_a(recorded.kind)}, the code now asks for {_a(kind)}"
    if recorded.args and args and recorded.args != args:
        return f"{name!r} is recorded with the arguments {_short(recorded.args)}, the code now passes {_short(args)}"
    if recorded.args_hash and (args_hash or args) and recorded.args_hash != args_hash:
        return (
            f"{name!r} is recorded with arguments of hash {recorded.args_hash[:16]}…, the code now passes "
            f"{_short(args) if args else 'hash ' + args_hash[:16] + '…'}"
        )
    if recorded.args and not args and args_hash:
        return f"{name!r} is recorded with the arguments {_short(recorded.args)}, the code now passes larger ones"
    return None


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(repr(name) for name in names[:5]) + more


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _short(raw: bytes) -> str:
    text = raw.decode(errors="replace")
    return text if len(text) <= 300 else text[:300] + "…"


FINISHED = {type_: "call" for type_, kind in ANSWERS.items() if kind in ("step", "transaction", "effect")} | {
    h.TASK_COMPLETED: "task", h.TASK_FAILED: "task",
    h.COMPENSATION_COMPLETED: "undo", h.COMPENSATION_FAILED: "undo",
}  # fmt: skip


def answered_twice(rows: Iterable[Sequence[Any]]) -> tuple[int, str] | None:
    """The first row that finishes a step, transaction, effect, task or undo that is finished already in the same epoch.
    No index forbids such a row (decision 17): an epoch is no column, and the names of calls begin anew with each."""
    seen: dict[tuple[str, str], int] = {}
    for seq, type_, name, *_ in rows:
        if type_ == h.INSTANCE_RESTARTED:
            seen.clear()
        elif (what := FINISHED.get(type_)) is not None and seen.setdefault((what, name), seq) != seq:
            return seq, f"{name!r} is answered twice: row {seen[what, name]} has its first answer"
    return None
