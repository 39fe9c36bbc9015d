"""What a worker would do with an instance if it ran this code: its own decision, with the commit left out.

`Execution` decides, as under a claim. A stand-in takes the place of its worker: turns count as committed and are not
written, a handler that would run is noted and not called, and what would be logged is dropped. The body itself runs, as
in every replay. The answer is the first of: the handlers that would run, or the turn that hands the instance back.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.app.rehearsal import Foretold, Rehearsed, Stored
from holdfast.engine import codec, ids
from holdfast.engine.effects import LEASE, LEASE_MARGIN, mode_changed
from holdfast.engine.interrupts import is_interrupt
from holdfast.engine.journal import HOLE, PARKED, Recorded, is_paused
from holdfast.engine.replay import Call, Undoing
from holdfast.engine.stacks import message_of, spelled, summary, type_of
from holdfast.engine.turnloop import hold_generators
from holdfast.engine.turns import Change, Outcome, Turn
from holdfast.store.port import PendingEvent, missing
from holdfast.worker import world
from holdfast.worker.execution import Execution
from holdfast.worker.tasks import asked_anew
from holdfast.worker.troubles import PARKED_AFTER
from holdfast.worker.turns import UnderClaim
from holdfast.worker.worker import ATTEMPTS_LIMIT, salts

if TYPE_CHECKING:
    from holdfast.app.registry import Definition, Registry
    from holdfast.app.service import Service
    from holdfast.worker.tasks import Find
    from holdfast.worker.worker import Worker

Child = Callable[[str, str, int | None], "Definition"]
RESUME = PendingEvent("rehearsal", "resume", "", b'{"reason":"","actor":"holdfast"}', 0)


class Begun(NamedTuple):
    """A handler that would run now."""

    words: str
    new_effect: str  # the name of an effect that is not on record; empty: it is none


class Rehearsing(Execution):
    def say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        """A line of the body's own belongs to the worker that really goes on."""


class _Quiet:
    def note(self, *_: Any, **__: Any) -> None: ...

    def time(self) -> float:
        return 0.0


class _Original:
    """The one thing that an execution reads by itself: the past that a fork takes over."""

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self._rows = rows

    async def fetch(self, name: str, **_: Any) -> list[tuple[Any, ...]]:
        assert name == "read_history"
        return self._rows


class StandIn:
    """All that an execution asks of its worker."""

    verbose = False
    id = bytes(16)
    attempts_limit = ATTEMPTS_LIMIT

    def __init__(self, stored: Stored, payload_limit: int, child: Child) -> None:
        self.payload_limit = payload_limit
        self.child_definition = child
        self.entropy = random.Random(1)
        self.salt = salts()
        self.committer = self
        self.acknowledged = self.loop = _Quiet()
        self.store = _Original(stored.original)
        self.begun: list[Begun] = []
        self.given_back: Change | None = None
        self.trouble: BaseException | None = None
        self._events = [event for event in stored.events if event.kind != "signal"]
        self._now = stored.taken_at
        self._submitted: deque[tuple[Turn, Callable[[Outcome | BaseException], None]]] = deque()

    def now(self) -> int:
        return self._now

    def not_after(self) -> int:
        return self._now + LEASE - LEASE_MARGIN

    # -- what would touch the world or the database

    def run(self, execution: UnderClaim, call: Call) -> None:
        """A handler would be called here."""
        if isinstance(call, Undoing) or execution.undoing(call):
            undone = call.undoes.key if isinstance(call, Undoing) else call.key
            self.begun.append(Begun(f"the compensation of {undone!r}", ""))
            return
        if call.kind == "effect" and call.state.next == "lookup":
            self.begun.append(Begun(f"a lookup of effect {call.key!r}", ""))
            return
        attempt = f"attempt {call.state.attempt} of " if call.state.attempt > 1 else ""
        new = call.key if call.kind == "effect" and call.recorded is None else ""
        self.begun.append(Begun(f"{attempt}{call.kind} {call.key!r}", new))

    def submit(self, turn: Turn, done: Callable[[Outcome | BaseException], None]) -> None:
        """A turn would be committed here."""
        self._submitted.append((turn, done))

    def go_on(self) -> None:
        """As if each turn were committed, until a handler would run or the instance is given back."""
        while self._submitted and not self.begun and self.trouble is None:
            turn, done = self._submitted.popleft()
            if turn.change is not None and turn.change.release:
                self.given_back = turn.change
                return
            done(Outcome.COMMITTED)

    def fetch_events(self, execution: UnderClaim) -> None:
        """Signals of every name came with the claim, the first hundred of each: nothing is read beyond."""
        execution.new_events(execution.woken, list(self._events), execution.asking())

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Nothing here waits for anything."""
        try:
            coroutine.send(None)
        except StopIteration:
            return
        coroutine.close()
        raise AssertionError("something waits in a rehearsal")

    # -- what goes wrong

    def guard(self, execution: UnderClaim, work: Callable[..., None], *args: Any) -> None:
        try:
            work(*args)
        except BaseException as error:
            if is_interrupt(error):
                raise
            self.broken(execution, error)

    def broken(self, execution: UnderClaim, error: BaseException) -> None:
        self.trouble = error

    def raised_by(self, instance_id: bytes) -> dict[str, BaseException]:
        return {}

    # -- what a worker notes and plans, and nobody needs here

    def note(self, *_: Any, **__: Any) -> None: ...

    def wake_at(self, *_: Any) -> None: ...

    def let_go(self, *_: Any) -> None: ...

    def cancel_handler(self, *_: Any) -> None: ...

    def keep_evidence(self, *_: Any) -> None: ...


def rehearse_here(service: Service, stored: Stored) -> Rehearsed:
    """By the code of this process, and the charts that it has heard of."""
    if stored.kind == "code":
        charts = service.charts
        return rehearse(stored, service.registry, payload_limit=service.payload_limit, child=charts.child)
    place = (stored.tenant_id, stored.workflow, stored.version)
    charts, find = service.charts, service.registry.handler
    return rehearse_chart(stored, charts.can_run(*place), charts.lacking(*place), find)


def rehearse(stored: Stored, registry: Registry, *, payload_limit: int, child: Child) -> Rehearsed:
    """Of an instance of code. `child`: what a child's name stands for, or a refusal."""
    if not registry.knows(stored.workflow, stored.version):
        return told(stored, "unknown", f"{_not_known(stored, registry)}: no worker with this code would claim it")
    claimed, resumed = stored.claimed(), _is_stopped(stored)
    words = missing(claimed)
    if words is not None:
        return told(stored, "parked", HOLE + words)
    if resumed:
        claimed = claimed._replace(events=[*claimed.events, RESUME._replace(sent_at=stored.taken_at)])
    stand_in = StandIn(stored, payload_limit, child)
    try:
        definition = registry.find(stored.workflow, stored.version)
        execution = Rehearsing(cast("Worker", stand_in), claimed, definition)
    except Exception as error:
        return told(stored, "not_replayed", f"its history cannot be read: {spelled(error)}")
    world.watch()
    hooks = sys.get_asyncgen_hooks()
    hold_generators()
    try:
        stand_in.guard(execution, execution.begin)
        stand_in.go_on()
        return _verdict(stored, execution, stand_in, resumed)
    finally:
        stand_in.guard(execution, execution.close)
        sys.set_asyncgen_hooks(*hooks)


def rehearse_chart(stored: Stored, can_run: bool, lacking: list[str], find: Find) -> Rehearsed:
    """A chart's document is pinned and no code is replayed: what counts is whether a worker would claim it, and go on
    with the effects that may have happened. `find`: the app's handler of a task."""
    if not can_run:
        what = f"the app has no {', no '.join(lacking)}" if lacking else "its chart is not published here"
        return told(stored, "unknown", f"{what}: no worker with this code would claim it")
    resumed = _is_stopped(stored)
    for task in stored.tasks:
        if why := asked_anew(find, task):
            words = f"a person: the outcome of effect {task.key!r} is unknown ({why})"
            return told(stored, "waits_for_person", why, next=words, after_resume=resumed)
    return told(stored, "goes_on", next="as its chart says, which is not replayed", after_resume=resumed)


def told(
    stored: Stored, verdict: Foretold, why: str = "", *, next: str = "", after_resume: bool = False
) -> Rehearsed:  # fmt: skip
    return Rehearsed(
        id=ids.instance_word(stored.id), tenant_id=stored.tenant_id, workflow=stored.workflow, version=stored.version,
        status=stored.status, verdict=verdict, why=why, next=next, after_resume=after_resume,
    )  # fmt: skip


def _not_known(stored: Stored, registry: Registry) -> str:
    versions = sorted(version for key, version in registry.places() if key == stored.workflow)
    if not versions:
        return f"the app has no workflow {stored.workflow!r}"
    has = ", ".join(map(str, versions))
    return f"the app has no version {stored.version} of workflow {stored.workflow!r} (it has {has})"


def _is_stopped(stored: Stored) -> bool:
    """Whether only a resume that has not come yet moves it on: it is parked or paused, or a pause is in line."""
    orders = [event.kind for event in stored.events if event.kind in ("pause", "resume")]
    if orders:
        return orders[-1] == "pause"
    return is_paused(stored.waiting_on) or (stored.waiting_on or "").startswith(PARKED)


def _verdict(stored: Stored, execution: Execution, stand_in: StandIn, resumed: bool) -> Rehearsed:
    if stand_in.trouble is not None:
        error = f"{type_of(stand_in.trouble)}: {message_of(stand_in.trouble)}"
        words = f"{PARKED}Holdfast failed {PARKED_AFTER} times in a row to move it ({error[:500]})"
        return told(stored, "parked", words, after_resume=resumed)
    change = stand_in.given_back
    if change is None and not stand_in.begun:
        return told(stored, "not_replayed", "the replay came to no end", after_resume=resumed)
    next_ = "; ".join(begun.words for begun in stand_in.begun)
    if change is not None:
        next_ = change.waiting_on or ""
        if next_.startswith(PARKED):
            return told(stored, "parked", next_, after_resume=resumed)
        if change.completed_at is not None:
            error = "" if change.last_error is None else f": {summary(codec.decode(change.last_error))}"
            words = f"{change.status}{error}"
            why = _fails(execution, change) or _look_at(execution, stand_in)
            return told(stored, "ends", why, next=words, after_resume=resumed)
    if asked := [call for call in execution.open.values() if _asks_anew(call)]:
        return told(stored, "waits_for_person", asked[0].state.reason, next=next_, after_resume=resumed)
    why = _fails(execution, change) or _look_at(execution, stand_in)
    return told(stored, "goes_on", why, next=next_, after_resume=resumed)


def _fails(execution: Execution, change: Change | None) -> str:
    """That this very replay makes it fail. One that was failing before, or that somebody cancels, is not told of."""
    undo = execution.undo
    if execution.replay.journal.ending_type:
        return ""
    if undo is not None:
        return f"it fails, and is undone: {summary(undo.error)}" if undo.status == "failed" else ""
    if change is None or change.status != "failed" or change.last_error is None:
        return ""
    return f"it fails: {summary(codec.decode(change.last_error))}"


def _asks_anew(call: Call) -> bool:
    """Whether a person is asked about this effect because of the code: its mode is not the one it was begun with."""
    opened = call.recorded.opened if call.recorded is not None else None
    if call.kind != "effect" or opened is None or call.state.next != "person":
        return False
    return bool(call.state.reason == mode_changed(opened.mode, call.spec.mode))


def _look_at(execution: Execution, stand_in: StandIn) -> str:
    """What is on record and the body, as far as it has come, has not asked for again: it may still do so, or a name or
    a branch was changed."""
    journal = execution.replay.journal
    if (forgotten := journal.forgotten()) is not None:
        return f"parked later, unless it asks before it ends: {forgotten}"
    done = [name for (_, name), call in journal.calls.items() if _is_done_effect(call)]
    if not done:
        return ""
    new = [begun.new_effect for begun in stand_in.begun if begun.new_effect]
    what = f"effect {', '.join(map(repr, done[:5]))} is done, and the code has not asked for it again"
    twice = f"; if {new[0]!r} is its new name, it is made twice" if new else ""
    return what + twice


def _is_done_effect(call: Recorded) -> bool:
    return call.kind == "effect" and bool(call.answer_seq) and not call.asked
