"""Replay: an author's `async def`, run against its journal, one released answer at a time.

It decides what the workflow asks for next and touches nothing. Answers are released in the order of their
history rows; between two of them the private loop is drained, so a replay walks exactly the path it walked live.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Any

from holdfast.engine import history as h
from holdfast.engine.codec import decode, decoder_for
from holdfast.engine.errors import ChildFailed, EffectAborted, EffectFailed, StepFailed
from holdfast.engine.interrupts import is_interrupt
from holdfast.engine.journal import UNDO, ErrorWords, Journal, Recorded, RowWords, contradiction, space_of
from holdfast.engine.mistakes import mistake_in, unheard
from holdfast.engine.stacks import message_of, readable, recorded_text, spelled
from holdfast.engine.turnloop import TurnLoop


class Call:
    """Something the workflow asked for. `spec` holds what is needed to run it; the engine never looks inside."""

    __slots__ = (
        "args", "args_hash", "future", "given", "key", "kind", "order", "outcome", "recorded", "spec", "state", "type",
        "words",
    )  # fmt: skip

    def __init__(
        self, kind: str, key: str, args: bytes, args_hash: str, spec: Any, type_: Any, order: int,
        future: asyncio.Future[Any], recorded: Recorded | None,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.key = key
        self.args = args
        self.args_hash = args_hash
        self.given = b""  # all arguments as they were recorded, if a handler must read them again
        self.spec = spec
        self.type = type_
        self.order = order  # of being asked: compensations run in the reverse of it
        self.future = future
        self.recorded = recorded
        self.outcome = ""  # the type of the row that answered it
        self.words: RowWords | None = None
        self.state: Any = None  # the worker's note on where this call stands

    @property
    def expects(self) -> Any:
        """The type of the result that whoever says that it happened has to give."""
        return self.type


class Undoing(Call):
    """A compensation that is an effect, as a call of its own. Its name is derived from that of the call it undoes."""

    __slots__ = ("undoes",)

    def __init__(self, undoes: Call, args: bytes, spec: Any, type_: Any, recorded: Recorded | None) -> None:
        super().__init__("effect", UNDO + undoes.key, args, "", spec, type_, undoes.order, undoes.future, recorded)
        self.undoes = undoes


class Replay:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.loop = TurnLoop()  # type: ignore[abstract]  # what it does not offer raises NotImplementedError
        self.asked: list[Call] = []  # new calls without an answer; whoever reads them empties the list
        self.compensable: list[Call] = []  # in the order of being asked
        self.unsettled: set[Call] = set()  # asked, and the workflow was not told yet how it ended
        self.restart: bytes | None = None  # the input of the next epoch, once the workflow has asked for it
        self.difference: str | None = None
        self.runaway: BaseException | None = None  # why the body cannot go on, though none of its tasks has failed
        self.failed: list[Call] = []  # calls whose failure was handed to the body
        self.closed = False
        self._released: list[tuple[int, int, Call]] = []  # asked and answered in the journal, not yet released
        self._order = 0
        self.met = 0  # calls and values of the journal that the body has asked for again
        self._ahead = False  # whether the body asked for something that is not in the journal, or walked all through it
        self.main: asyncio.Task[Any] | None = None

    # -- running

    def begin(self, workflow: Callable[..., Any], *args: Any) -> None:
        self.main = self.loop.create_task(workflow(*args), name="holdfast-workflow")
        self.run()
        self._ahead = True

    def run(self) -> None:
        """Drain, release the earliest recorded answer, and again, until the journal has no more to say."""
        self._drain()
        if not self._released:
            return
        while self._released and self.difference is None and self.runaway is None:
            seq, _, call = heapq.heappop(self._released)
            assert call.recorded is not None and call.recorded.answer is not None
            if 0 < self.journal.ending_seq < seq:
                # The body was closed before this answer came: only the saga has to know how it ended.
                call.outcome, call.words = call.recorded.answer_type, call.recorded.answer
                continue
            self._settle(call, call.recorded.answer_type, call.recorded.answer)
            self._drain()

    def _drain(self) -> None:
        try:
            self.loop.drain()
            if self.loop.generators and self.main is not None and self.main.done() and self.restart is None:
                self.loop.close_generators()
                self.loop.drain()
        except BaseException as raised:
            error = readable(raised)
            if is_interrupt(error):
                raise
            self.runaway = error

    def answer(self, call: Call, type_: str, words: RowWords) -> None:
        """Release a live answer: the same function that replays it, so both walk the same path."""
        self._settle(call, type_, words)
        self.run()

    def answer_result(self, call: Call, type_: str, result: bytes) -> None:
        """`answer` for a plain result that no compensation will ask for again."""
        call.outcome = type_
        self.unsettled.discard(call)
        future = call.future
        if not future.done():
            future.set_result(decode(result) if call.type is None else decoder_for(call.type)(result))
        self.run()

    def _settle(self, call: Call, type_: str, words: RowWords) -> None:
        call.outcome, call.words = type_, words
        self.unsettled.discard(call)
        try:
            settle(call, type_, words)
            if words.error is not None:
                self.failed.append(call)
        except Exception as error:  # of any kind: an author's type may check more than msgspec and pydantic do
            said = message_of(error) if isinstance(error, ValueError) else spelled(error)
            self.difference = f"the recorded result of {call.key!r} does not fit its annotation any more: {said}"

    @property
    def done(self) -> bool:
        if self.runaway is not None or self.main is None or not self.main.done():
            return self.runaway is not None
        return not self.loop.closing or all(task.done() for task in self.loop.closing)

    def outcome(self) -> tuple[Any, BaseException | None]:
        if self.runaway is not None:
            return None, self.runaway
        assert self.main is not None
        try:
            error = self.main.exception()
        except asyncio.CancelledError as cancelled:  # it awaited a task that it had cancelled: its own failure
            error = cancelled
        return (None, readable(error)) if error is not None else (self.main.result(), None)

    def mistake(self, error: BaseException | None) -> str | None:
        """Of a body that is done: what is wrong with its code, if that is why it ended, or if it ended unawares."""
        if error is not None:
            return mistake_in(error)
        return unheard(self.failed, self.loop.children) if self.failed or self.loop.children else None

    def replaying(self) -> bool:
        """Whether the journal shows that the body was here before."""
        journal = self.journal
        known = self.met < len(journal.calls) and not self._ahead
        return known or bool(self._released or self.closed or journal.ending_type)

    def close(self) -> None:
        self.closed = True
        self.loop.dispose()
        if self.restart is not None:
            self.main = None  # what it ended with holds the frames of whoever drained it: a ring

    # -- what the context asks

    def ask(self, kind: str, key: str, args: bytes, args_hash: str, spec: Any, type_: Any = None) -> Call:
        recorded = self.journal.calls.get((space_of(kind), key))
        self._order += 1
        call = Call(kind, key, args, args_hash, spec, type_, self._order, self.loop.create_future(), recorded)
        self.unsettled.add(call)
        if recorded is None:
            self._ahead = True
        else:
            self.met += 1
            difference = contradiction(key, kind, args, args_hash, recorded)
            recorded.asked = difference is None  # asked for otherwise, it can be settled by the journal alone
            if difference is not None:
                # Never an exception: an author's `except Exception` must not swallow it. The call stays open.
                self.difference = self.difference or difference
                return call
            if recorded.answer_seq:
                heapq.heappush(self._released, (recorded.answer_seq, call.order, call))
                return call
        self.asked.append(call)
        return call


def settle(call: Call, type_: str, words: RowWords) -> None:
    """Hand a recorded answer to the workflow."""
    future = call.future
    if future.done():  # the branch that asked was cancelled by its author
        return
    if type_ in (h.STEP_COMPLETED, h.TRANSACTION_COMMITTED, h.EFFECT_SUCCEEDED, h.CHILD_COMPLETED, h.SIGNAL_RECEIVED):
        future.set_result(decoder_for(call.type)(words.result))
    elif type_ in (h.TIMER_FIRED, h.WAIT_TIMED_OUT):
        future.set_result(None)
    elif type_ == h.CHILD_FAILED:
        failed: StepFailed | ChildFailed
        failed = ChildFailed(call.key, words.child_id, words.status, words.error.message if words.error else "")
        future.set_exception(told(failed, words.error))
    else:
        assert words.error is not None
        kind = (
            StepFailed
            if type_ in (h.STEP_FAILED, h.TRANSACTION_FAILED)
            else EffectAborted
            if words.aborted
            else EffectFailed
        )
        failed = kind(call.key, words.error.type, words.error.message, words.attempt)
        future.set_exception(told(failed, words.error))


def told(failed: StepFailed | ChildFailed, words: ErrorWords | None) -> StepFailed | ChildFailed:
    """With the stack of what it died of, from the journal: the body sees the same in every replay. The exception itself
    is at hand only where the handler just ran, so the body never gets it."""
    failed.recorded = None if words is None else words.words()
    text = recorded_text(failed.recorded)
    if text:
        failed.add_note(text)
    return failed
