"""Transaction steps: the author's writes and their journal row in one commit, outside the group.

While one runs, the instance's turn is taken: other branches' results queue up behind it.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import structlog

from holdfast.app.service import IN_TRANSACTION
from holdfast.engine import codec
from holdfast.engine import history as h
from holdfast.engine.arguments import call_arguments
from holdfast.engine.errors import BadDefinition
from holdfast.engine.interrupts import is_interrupt
from holdfast.engine.journal import RowWords
from holdfast.engine.replay import Call
from holdfast.engine.scope import SCOPE
from holdfast.engine.stacks import readable
from holdfast.engine.turns import Outcome, Turn
from holdfast.handlers.calls import bound
from holdfast.store.port import HandlerRaised, NotBegun, without_values
from holdfast.worker.standing import Phase
from holdfast.worker.step_tasks import launch

if TYPE_CHECKING:
    from holdfast.worker.turns import UnderClaim
    from holdfast.worker.worker import Worker

log = structlog.get_logger("holdfast.worker")
# Seconds before a transaction is tried again that could not begin or was rolled back, within one attempt of its step.
PAUSE_FIRST, PAUSE_MAX = 0.05, 5.0
ROLLED_BACK_MAX = 10  # times; one more is the handler's failure


def start(worker: Worker, ex: UnderClaim, call: Call) -> None:
    if ex.committing:
        ex.transactions.append(call)
        ex.running[call.key] = None
        return
    ex.committing = True
    launch(ex, call, _run(worker, ex, call)).add_done_callback(lambda _: _leave(ex))


async def _run(worker: Worker, ex: UnderClaim, call: Call) -> None:
    spec = call.spec
    kept: dict[str, Any] = {}
    scope = ex.scope(call)
    entries = list(ex.entries)
    changes = dict(ex.task_changes)

    def handler(tx: Any) -> Any:
        args = call_arguments(spec.args, call.given, spec.signature, skip=1)
        if spec.signature.info is None:
            return spec.function(tx, *args)
        return bound(spec.function, (tx, *args), spec.signature, ex.info(call))()

    variables = copy_context()

    def work(tx: Any) -> Any:
        return variables.run(in_thread, tx)  # the writer's thread serves all: what a handler sets must not stay there

    def in_thread(tx: Any) -> Any:
        IN_TRANSACTION.set(True)
        SCOPE.set(scope)
        return handler(tx)

    async def work_async(tx: Any) -> Any:
        token, scoped = IN_TRANSACTION.set(True), SCOPE.set(scope)
        try:
            return await handler(tx)
        finally:
            IN_TRANSACTION.reset(token)
            SCOPE.reset(scoped)

    def turn(value: Any) -> Turn:
        result = codec.encode(value, "the result of", worker.payload_limit, call.key)
        codec.decoder_for(call.type)(result)
        kept["result"] = result
        kept["turn"] = ex.transaction_turn(call, entries, result)
        turn: Turn = kept["turn"]
        return turn

    async def once() -> tuple[BaseException | None, Outcome | None]:
        """What its handler raised, or what became of its turn; neither, where nobody can say."""
        try:
            if spec.signature.is_async != (worker.store.dialect == "postgres"):
                wanted = "an `async def`" if worker.store.dialect == "postgres" else "a plain `def`"
                raise HandlerRaised(BadDefinition(
                    f"the handler of transaction {call.key!r} must be {wanted} on {worker.store.dialect}"
                ))  # fmt: skip
            return None, await worker.store.commit_alone(
                worker.id, work_async if spec.signature.is_async else work, turn, spec.policy.timeout or 10.0
            )
        except HandlerRaised as raised:
            ex.task_changes = dict(changes)  # its own turn, if it got that far, has settled its task here
            return readable(raised.error), None
        except NotBegun:
            raise
        except BaseException as raised:
            lost = readable(raised)
            # A coroutine that is closed is not run by its task; else a GeneratorExit is the handler's own.
            runs = isinstance(lost, GeneratorExit) and ex.runs_now(call)
            if (is_interrupt(lost) and not runs) or (ex.abandoned and not isinstance(lost, Exception)):
                raise
            if "turn" not in kept and (lost is not raised or not isinstance(lost, Exception)):
                return lost, None  # the handler's own: it did not come to an end, so nothing was sent to be committed
            log.warning("transaction_reply_lost", **worker.about(ex, call), error=without_values(lost))
            return None, await _look(worker, ex, kept.get("turn"))

    rolled_back, pause, woken = 0, PAUSE_FIRST, ex.woken
    while True:
        kept.clear()
        try:
            error, outcome = await once()
            if error is None or rolled_back == ROLLED_BACK_MAX or not worker.store.passes(error):
                break
            rolled_back += 1
            log.info("transaction_rolled_back", **worker.about(ex, call), error=without_values(error))
        except NotBegun as refused:
            if pause == PAUSE_FIRST:
                log.warning("transaction_waits", **worker.about(ex, call), error=str(refused))
        await asyncio.sleep(pause)
        pause = min(pause * 2, PAUSE_MAX)
        due = (at := ex.next_at()) is not None and at <= worker.now()
        if ex.events.orders or ex.arrived or ex.woken != woken or due:  # what must not wait for a connection
            ex.running.pop(call.key, None)
            ex.committing = False
            call.state.phase = Phase.READY
            if not ex.abandoned:
                worker.guard(ex, ex.take_arrivals)
                worker.guard(ex, ex.next_transaction)  # behind it, where nothing came of what has come
            return
    ex.running.pop(call.key, None)
    ex.committing = False
    if not ex.abandoned:
        worker.guard(ex, _go_on, worker, ex, call, error, outcome, kept, len(entries))


def _leave(ex: UnderClaim) -> None:
    """However it ended, cancelled before its first line too: of an execution that was abandoned meanwhile, what effects
    brought behind it was left for us to keep."""
    if ex.abandoned:
        ex.committing = False
        ex._keep_evidence()


def _go_on(
    worker: Worker, ex: UnderClaim, call: Call, error: BaseException | None, outcome: Outcome | None,
    kept: dict[str, Any], count: int,
) -> None:  # fmt: skip
    if error is not None:
        ex.arrive(call, None, error)
        if ex.arrived:  # its neighbours' results came first, and it stands in line behind them
            ex.take_arrivals()
        ex.next_transaction()
    elif outcome in (Outcome.COMMITTED, Outcome.WOKEN):
        ex.proved = True
        committed: Turn = kept["turn"]
        ex.forget_entries(count)
        ex.seq, ex.hash = committed.history[-1][2], committed.history[-1][9]
        worker.acknowledged.note(ex)
        worker.committed_alone(committed)
        if worker.verbose:
            worker.note(ex, "transaction_committed", step=call.key, attempt=call.state.attempt)
        ex.release(call, h.TRANSACTION_COMMITTED, RowWords(result=kept["result"], attempt=call.state.attempt))
        ex.take_arrivals()
        ex.next_transaction()
    else:
        worker.lost(ex, outcome or Outcome.MOVED)


async def _look(worker: Worker, ex: UnderClaim, turn: Turn | None) -> Outcome | None:
    """After a lost reply: is the turn there? If not, the claim is let go and whoever claims next reads the truth."""
    pause = PAUSE_FIRST
    while turn is not None and not (ex.abandoned or worker.stopping):
        try:
            return (await worker.store.look_up(worker.id, [turn]))[0]
        except Exception:
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX)
    return None
