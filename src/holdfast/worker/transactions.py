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
from holdfast.engine.errors import BadDefinition
from holdfast.engine.journal import RowWords
from holdfast.engine.replay import Call
from holdfast.engine.scope import SCOPE
from holdfast.engine.turns import Outcome, Turn
from holdfast.handlers.calls import ENDS_THE_TASK, bound
from holdfast.store.port import HandlerRaised

if TYPE_CHECKING:
    from holdfast.worker.turns import UnderClaim
    from holdfast.worker.worker import Worker

log = structlog.get_logger("holdfast.worker")


def start(worker: Worker, ex: UnderClaim, call: Call) -> None:
    if ex.committing:
        ex.transactions.append(call)
        ex.running[call.key] = None
        return
    ex.committing = True
    task = asyncio.get_running_loop().create_task(_run(worker, ex, call))
    task.add_done_callback(lambda _: _leave(ex))
    ex.running[call.key] = task


async def _run(worker: Worker, ex: UnderClaim, call: Call) -> None:
    spec = call.spec
    kept: dict[str, Any] = {}
    scope = ex.scope(call)
    entries = list(ex.entries)
    changes = dict(ex.task_changes)

    def handler(tx: Any) -> Any:
        if spec.signature.info is None:
            return spec.function(tx, *spec.args)
        return bound(spec.function, (tx, *spec.args), spec.signature, ex.info(call))()

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

    error: BaseException | None = None
    outcome: Outcome | None = None
    try:
        if spec.signature.is_async != (worker.store.dialect == "postgres"):
            wanted = "an `async def`" if worker.store.dialect == "postgres" else "a plain `def`"
            raise HandlerRaised(BadDefinition(
                f"the handler of transaction {call.key!r} must be {wanted} on {worker.store.dialect}"
            ))  # fmt: skip
        outcome = await worker.store.commit_alone(
            worker.id, work_async if spec.signature.is_async else work, turn, spec.policy.timeout or 10.0
        )
    except HandlerRaised as raised:
        error = raised.error
        ex.task_changes = changes  # its own turn, if it got that far, has settled its task here
    except ENDS_THE_TASK:
        raise
    except BaseException as lost:
        if ex.abandoned and not isinstance(lost, Exception):
            raise
        if "turn" not in kept and not isinstance(lost, Exception):
            error = lost  # the handler's own: it did not come to an end, so nothing was sent to be committed
        else:
            log.warning("transaction_reply_lost", **worker.about(ex, call), error=repr(lost))
            outcome = await _look(worker, kept.get("turn"))
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
        ex.next_transaction()
    elif outcome in (Outcome.COMMITTED, Outcome.WOKEN):
        committed: Turn = kept["turn"]
        ex.forget_entries(count)
        ex.seq, ex.hash = committed.history[-1][2], committed.history[-1][9]
        worker.committed_alone(committed)
        if worker.verbose:
            worker.note(ex, "transaction_committed", step=call.key, attempt=call.state.attempt)
        ex.release(call, h.TRANSACTION_COMMITTED, RowWords(result=kept["result"], attempt=call.state.attempt))
        ex.take_arrivals()
        ex.next_transaction()
    else:
        worker.lost(ex, outcome or Outcome.MOVED)


async def _look(worker: Worker, turn: Turn | None) -> Outcome | None:
    """After a lost reply: is the turn there? If not, the claim is let go and whoever claims next reads the truth."""
    if turn is None:
        return None
    for _ in range(20):
        try:
            return (await worker.store.look_up(worker.id, [turn]))[0]
        except Exception:
            await asyncio.sleep(0.25)
    return None
