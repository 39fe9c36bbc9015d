"""Starts the handlers that a committed turn asked for, and brings their results back to the execution."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog

from holdfast.engine import history as h
from holdfast.engine import ids
from holdfast.engine.arguments import call_arguments, copied, read_again
from holdfast.engine.codec import check_awaited, decode, decoder_for
from holdfast.engine.errors import NotApplied, Rejected
from holdfast.engine.interrupts import is_interrupt
from holdfast.engine.journal import HAPPENED, UNDO, read
from holdfast.engine.replay import Call, Undoing
from holdfast.engine.scope import SCOPE, Scope
from holdfast.engine.signatures import Signature, StepInfo, signature_of
from holdfast.engine.stacks import message_of, readable
from holdfast.handlers.calls import bound, call_async, call_in_thread
from holdfast.worker import transactions
from holdfast.worker.standing import IN_CALLS
from holdfast.worker.step_tasks import launch

if TYPE_CHECKING:
    from holdfast.worker.execution import Execution
    from holdfast.worker.turns import UnderClaim
    from holdfast.worker.worker import Worker


log = structlog.get_logger("holdfast.worker")
AGAIN_SECONDS = 0.25  # after a database that could not be read


class Tracing(Protocol):
    """Who draws spans around what happens here."""

    def began(self, ex: UnderClaim) -> None:
        """A stretch of work: an instance was claimed and will run until it waits or ends."""
        ...

    def ended(self, ex: UnderClaim, outcome: str) -> None: ...

    def attempt(self, ex: UnderClaim, call: Call) -> AbstractContextManager[None]:
        """Around the start of a handler: its span is the current one there, and in the task or thread made there."""
        ...

    def returned(self, ex: UnderClaim, call: Call, value: Any, error: BaseException | None) -> None: ...

    def traceparent(self) -> str | None:
        """Of the current span."""
        ...


def start(worker: Worker, ex: UnderClaim, call: Call) -> None:
    spec = call.spec
    if call.kind == "step" and ex.undo is None:
        signature = spec.signature
        if signature.is_async and signature.info is None and spec.policy.timeout is None and worker.tracing is None:
            launch(ex, call, _run_step(ex, call, spec))
        else:
            _start_recorded(worker, ex, call)
    elif ex.undoing(call):
        function = spec.compensate
        signature = signature_of(function)
        args = () if signature.positional == 0 else (undone_result(call),)
        timeout = spec.policy.timeout if hasattr(spec, "policy") else None
        _start_call(worker, ex, call, function, args, signature, timeout)
    elif call.kind == "step":
        _start_recorded(worker, ex, call)
    elif call.kind == "transaction":
        transactions.start(worker, ex, call)
    elif call.state.next == "lookup":
        effect_id = ids.effect_id(ex.tenant_id, ex.id, call.key, ex.epoch)
        if (effect_id, call.state.attempt) in IN_CALLS:
            _start_lookup(worker, ex, call, in_call=True)
        elif call.state.escaped:
            launch(ex, call, _find_thread(worker, ex, call))
        else:
            _start_lookup(worker, ex, call)
    elif worker.now() >= call.state.not_after:
        _refuse(worker, ex, call, NotApplied("found late before it began, so it was not sent"))
    else:
        _start_recorded(worker, ex, call, call.state.attempt)


def _start_recorded(worker: Worker, ex: UnderClaim, call: Call, attempt: int = 0) -> None:
    """Call the handler with the arguments on record. `attempt`: of an effect."""
    spec = call.spec
    try:
        args = call_arguments(spec.args, call.given, spec.signature)
    except Exception as error:
        _refuse(worker, ex, call, Rejected(message_of(error)) if attempt else error)
    else:
        _start_call(worker, ex, call, spec.function, args, spec.signature, spec.policy.timeout, attempt)


async def _find_thread(worker: Worker, ex: UnderClaim, call: Call) -> None:
    """Before a lookup: whether another worker may be in the call, in a thread or on a loop that stands still, and act
    after the provider has answered."""
    effect_id = ids.effect_id(ex.tenant_id, ex.id, call.key, ex.epoch)
    in_call: bool | None = None
    while in_call is None:
        try:
            in_call = await _in_call_elsewhere(worker, ex.tenant_id, effect_id, call.state.attempt)
        except Exception as error:
            log.warning("call_not_read", **worker.about(ex, call), error=repr(error))
            await asyncio.sleep(AGAIN_SECONDS)
    if not ex.abandoned:
        worker.guard(ex, _start_lookup, worker, ex, call, in_call)


async def _in_call_elsewhere(worker: Worker, tenant_id: str, effect_id: bytes, attempt: int) -> bool:
    """Another worker's thread is out once its answer is on record as evidence, or the worker is known to be gone."""
    rows = await worker.store.fetch("call_of_effect", tenant_id=tenant_id, id=effect_id, attempt=attempt)
    if not rows:
        return False
    worker_id, came_back = rows[0]
    return not came_back and worker_id != worker.id and not await worker.store.worker_gone(worker_id)


def _start_lookup(worker: Worker, ex: UnderClaim, call: Call, in_call: bool = False) -> None:
    lookup = call.spec.lookup
    signature = signature_of(lookup)
    key = ids.idempotency_key(ids.effect_id(ex.tenant_id, ex.id, call.key, ex.epoch))
    call.state.asked_at, call.state.asked_in_call = worker.now(), in_call
    _start_call(worker, ex, call, lookup, () if signature.info else (key,), signature, call.spec.policy.timeout)


def _refuse(worker: Worker, ex: UnderClaim, call: Call, error: Exception) -> None:
    """It ends before it began."""
    asyncio.get_running_loop().call_soon(worker.guard, ex, ex.arrive, call, None, error)
    ex.running[call.key] = None


def _start_call(
    worker: Worker, ex: UnderClaim, call: Call, function: Any, args: tuple[Any, ...], signature: Signature,
    timeout: float | None, attempt: int = 0,
) -> None:  # fmt: skip
    """`attempt`: of the effect whose call this is; what it comes back with is evidence however late. 0: no effect."""
    if signature.info is not None:
        if ex.undo is not None and (isinstance(call, Undoing) or ex.undoing(call)):
            launch(
                ex, call, _bring_back(ex, call, attempt, _undo, (worker, ex, call, function, args, signature, attempt))
            )
            return
        function, args = bound(function, args, signature, ex.info(call)), ()
    if signature.is_async:
        work = (
            _bring_back(ex, call, attempt, function, args)
            if timeout is None
            else _bring_back(
                ex, call, attempt, call_async, (function, args, timeout, partial(_give_up, ex, call, attempt))
            )
        )
        launch(ex, call, work)
    elif getattr(call.spec, "thread", True):
        in_thread = _in_thread(worker, ex, call, function, args, timeout, attempt)
        launch(ex, call, _bring_back(ex, call, attempt, call_in_thread, in_thread))
    else:
        try:  # in a context of its own: the one here is the committer's, whose variables every later step would see
            value, error = copy_context().run(_in_place, ex.scope(call), function, args), None
        except BaseException as raised:
            value, error = None, readable(raised)
            if is_interrupt(error):
                worker.let_go(ex)  # else the stop that follows would wait for it
                raise
        if worker.tracing is not None:
            worker.tracing.returned(ex, call, value, error)
        ex.arrive(call, value, error)


def _in_thread(
    worker: Worker,
    ex: UnderClaim,
    call: Call,
    function: Any,
    args: tuple[Any, ...],
    timeout: float | None,
    attempt: int,
) -> tuple[Any, ...]:
    """The arguments of `call_in_thread`. An effect must not begin late there, and its late result is evidence."""
    ex.threads.add(call.key)
    if not attempt:
        return worker.pool, function, args, timeout, None
    late = partial(worker.came_late, ex, call, attempt)
    which = (ids.effect_id(ex.tenant_id, ex.id, call.key, ex.epoch), attempt)
    return worker.pool, _unless_late, (worker, which, call.state.not_after, function, args), timeout, late


def _give_up(ex: UnderClaim, call: Call, attempt: int) -> None:
    """An author's coroutine that takes no cancel cannot be stopped, like a thread: its time is over all the same, and
    what it comes back with is evidence."""
    task = ex.running.get(call.key)
    if ex.abandoned or task is None:
        return
    if attempt:
        outlasts(ex, call, task, attempt)
    ex.worker.guard(ex, ex.arrive, call, None, TimeoutError("it took no cancel when its time was over"))


def outlasts(ex: UnderClaim, call: Call, task: asyncio.Task[Any], attempt: int) -> None:
    """An effect's call goes on though it was cancelled, or may: no lookup is believed, here or elsewhere, before it is
    over."""
    which = (ids.effect_id(ex.tenant_id, ex.id, call.key, ex.epoch), attempt)
    IN_CALLS.add(which)
    task.add_done_callback(lambda _: IN_CALLS.discard(which))
    ex.worker.outlasts(task)


async def _undo(
    worker: Worker, ex: UnderClaim, call: Call, function: Any, args: tuple[Any, ...], signature: Signature, attempt: int
) -> Any:
    """A compensation that asks for `StepInfo` sees all results of its instance, which are read for it."""
    results = None
    while results is None:
        try:
            results = await undone_results(ex, call)
        except Exception as error:
            log.warning("results_not_read", **worker.about(ex, call), error=repr(error))
            await asyncio.sleep(AGAIN_SECONDS)
        if attempt and worker.now() >= call.state.not_after:
            raise NotApplied("found late before it began, so it was not sent")
    info = msgspec.structs.replace(ex.info(call), results=results)
    timeout = call.spec.policy.timeout if hasattr(call.spec, "policy") else None
    if signature.is_async:
        given_up = partial(_give_up, ex, call, attempt)
        return await call_async(bound(function, args, signature, info), (), timeout, given_up)
    function = bound(function, args, signature, info)
    return await call_in_thread(*_in_thread(worker, ex, call, function, (), timeout, attempt))


async def undone_results(ex: UnderClaim, call: Call) -> dict[str, Any]:
    """By step: what is on record as done, in this epoch; up to where a compensation that is an effect began, so that
    each of its attempts sends the same."""
    rows = await ex.worker.store.fetch(
        "read_history", tenant_id=ex.tenant_id, instance_id=ex.id, after=max(ex.claimed.epoch_seq - 1, 0),
        limit=1_000_000_000,
    )  # fmt: skip
    name_of_undone = call.undoes.key if isinstance(call, Undoing) else None
    began = (row[0] for row in rows if row[1] == h.COMPENSATION_STARTED and row[2] == name_of_undone)
    end = next(began, rows[-1][0] + 1)
    past = [
        (seq, type_, name, bytes(payload), b"", at)
        for seq, type_, name, _, at, payload, *_ in rows
        if payload and seq < end
    ]
    return {
        name: decode(bytes(call.answer.result))
        for (space, name), call in read(past).calls.items()
        if not space and call.answer is not None and call.answer_type in HAPPENED
    }


def _unless_late(worker: Worker, which: tuple[bytes, int], not_after: int, function: Any, args: tuple[Any, ...]) -> Any:
    """In the thread, which an effect may have waited for: it must not begin when its time is over."""
    if worker.now() >= not_after:
        raise NotApplied("found late when a thread was free for it, so it was not sent")
    IN_CALLS.add(which)
    try:
        return function(*args)
    finally:
        IN_CALLS.discard(which)


def _in_place(scope: Scope, function: Any, args: tuple[Any, ...]) -> Any:
    SCOPE.set(scope)
    value = function(*args)
    check_awaited(value)
    return value


async def _run_step(ex: UnderClaim, call: Call, spec: Any) -> None:
    """`_bring_back` for what happens most: a plain async step that nobody traces."""
    value, error = None, None
    SCOPE.set((ex.whose, None, call.key, call.state.attempt))
    try:
        if call.given:
            value = await spec.function(*read_again(call.given, spec.args, spec.signature))
        else:
            value = await spec.function(*spec.args)
    except BaseException as raised:
        error = readable(raised)
        if not isinstance(error, Exception) and _came_from_outside(ex, call, error):
            raise
    SCOPE.set(None)
    try:
        ex.arrive(call, value, error)
    except BaseException as broken:
        if is_interrupt(broken):
            raise
        ex.worker.broken(ex, broken)


def _came_from_outside(ex: UnderClaim, call: Call, error: BaseException) -> bool:
    """Whether the handler did not raise it itself: its instance is let go, and nothing is recorded of the attempt. A
    cancellation is the handler's own, unless we have stopped it, or the loop is ending and cancels us, too. So is a
    GeneratorExit, unless the coroutine is closed: then its task is not the one that runs."""
    if isinstance(error, GeneratorExit):
        return not ex.runs_now(call)
    if not isinstance(error, asyncio.CancelledError):
        return is_interrupt(error)
    if ex.abandoned or not ex.worker.is_cancelled():
        return False
    ex.worker.let_go(ex)
    return True


async def _bring_back(ex: UnderClaim, call: Call, attempt: int, function: Any, args: tuple[Any, ...]) -> None:
    error: BaseException | None = None
    value = None
    SCOPE.set(ex.scope(call))  # in the context of this task, which ends with it
    try:
        value = await function(*args)
        check_awaited(value)
    except BaseException as raised:
        value, error = None, readable(raised)
        if not isinstance(error, Exception) and _came_from_outside(ex, call, error):
            raise
    SCOPE.set(None)  # what follows from the result is not the handler's any more
    if ex.worker.tracing is not None:
        ex.worker.tracing.returned(ex, call, value, error)
    given_up = ex.running.get(call.key) is not asyncio.current_task()
    if not given_up:
        ex.threads.discard(call.key)
    if ex.abandoned or given_up:
        if attempt:
            await ex.worker.observe(ex, call, attempt, value, error)
        return
    try:
        ex.arrive(call, value, error)
    except BaseException as broken:
        if is_interrupt(broken):
            raise
        ex.worker.broken(ex, broken)


def step_info(ex: Execution, call: Call) -> StepInfo:
    undone = call.undoes if isinstance(call, Undoing) else call if ex.undoing(call) else None
    spec = call.spec if undone is None else undone.spec
    key = call.key if undone is None else UNDO + undone.key
    return StepInfo(
        tenant_id=ex.tenant_id,
        instance_id=ids.instance_word(ex.id),
        workflow=ex.claimed.definition_key,
        step=call.key if undone is None else undone.key,
        attempt=ex.worker.attempt_of(ex, call),
        idempotency_key=ids.idempotency_key(ids.effect_id(ex.tenant_id, ex.id, key, ex.epoch)),
        not_after=call.state.not_after / 1_000_000 if call.kind == "effect" and not ex.undoing(call) else None,
        input=copied(getattr(spec, "input", None)) if undone is None else ex.definition.decode_input(ex.given),
        results=copied(getattr(spec, "results", None) or {}),
        result=None if undone is None else undone_result(undone),
    )


def undone_result(call: Call) -> Any:
    """What the call that is being undone had returned; None where a person gave up finding out whether it had."""
    if call.words is None or call.outcome not in HAPPENED:
        return None
    return decoder_for(call.type)(bytes(call.words.result))
