"""Starts the handlers that a committed turn asked for, and brings their results back to the execution."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.engine import ids
from holdfast.engine.codec import decoder_for
from holdfast.engine.errors import NotApplied
from holdfast.engine.replay import Call
from holdfast.engine.scope import SCOPE, Scope
from holdfast.engine.signatures import Signature, StepInfo, signature_of
from holdfast.handlers.calls import ENDS_THE_PROCESS, ENDS_THE_TASK, bound, call_async, call_in_thread
from holdfast.worker import transactions

if TYPE_CHECKING:
    from holdfast.worker.turns import UnderClaim
    from holdfast.worker.worker import Worker


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
            ex.running[call.key] = worker.loop.create_task(_run_step(ex, call, spec), name="holdfast-step")
        else:
            _start_call(worker, ex, call, spec.function, spec.args, signature, spec.policy.timeout)
    elif ex.undo is not None and ex.undo.current is call:
        function, args = _compensation(ex, call)
        timeout = spec.policy.timeout if hasattr(spec, "policy") else None
        _start_call(worker, ex, call, function, args, signature_of(function), timeout)
    elif call.kind == "step":
        _start_call(worker, ex, call, spec.function, spec.args, spec.signature, spec.policy.timeout)
    elif call.kind == "transaction":
        transactions.start(worker, ex, call)
    elif call.state.next == "lookup":
        signature = signature_of(spec.lookup)
        args = () if signature.info else (ids.idempotency_key(ids.effect_id(ex.tenant_id, ex.id, call.key, ex.epoch)),)
        _start_call(worker, ex, call, spec.lookup, args, signature, spec.policy.timeout)
    elif worker.now() >= call.state.not_after:
        late = NotApplied("found late before it began, so it was not sent")
        asyncio.get_running_loop().call_soon(worker.guard, ex, ex.arrive, call, None, late)
        ex.running[call.key] = None
    else:
        attempt = call.state.attempt
        _start_call(worker, ex, call, spec.function, spec.args, spec.signature, spec.policy.timeout, attempt)


def _start_call(
    worker: Worker, ex: UnderClaim, call: Call, function: Any, args: tuple[Any, ...], signature: Signature,
    timeout: float | None, attempt: int = 0,
) -> None:  # fmt: skip
    """`attempt`: of the effect whose call this is; what it comes back with is evidence however late. 0: no effect."""
    if signature.info is not None:
        function, args = bound(function, args, signature, ex.info(call)), ()
    if signature.is_async:
        work = (
            _bring_back(ex, call, attempt, function, args)
            if timeout is None
            else _bring_back(ex, call, attempt, call_async, (function, args, timeout))
        )
        _launch(ex, call, work)
    elif getattr(call.spec, "thread", True):
        ex.threads.add(call.key)
        late = partial(worker.came_late, ex, call, attempt) if attempt else None
        _launch(ex, call, _bring_back(ex, call, attempt, call_in_thread, (worker.pool, function, args, timeout, late)))
    else:
        try:  # in a context of its own: the one here is the committer's, whose variables every later step would see
            value, error = copy_context().run(_in_place, ex.scope(call), function, args), None
        except ENDS_THE_PROCESS:
            raise
        except BaseException as raised:
            value, error = None, raised
        if worker.tracing is not None:
            worker.tracing.returned(ex, call, value, error)
        ex.arrive(call, value, error)


def _in_place(scope: Scope, function: Any, args: tuple[Any, ...]) -> Any:
    SCOPE.set(scope)
    return function(*args)


async def _run_step(ex: UnderClaim, call: Call, spec: Any) -> None:
    """`_bring_back` for what happens most: a plain async step that nobody traces."""
    value, error = None, None
    SCOPE.set((ex.whose, None, call.key, call.state.attempt))
    try:
        value = await spec.function(*spec.args)
    except ENDS_THE_TASK:
        raise
    except BaseException as raised:
        error = raised
    SCOPE.set(None)
    try:
        ex.arrive(call, value, error)
    except ENDS_THE_PROCESS:
        raise
    except BaseException as broken:
        ex.worker.broken(ex, broken)


def _launch(ex: UnderClaim, call: Call, work: Any) -> None:
    ex.running[call.key] = ex.worker.loop.create_task(work, name="holdfast-step")


async def _bring_back(ex: UnderClaim, call: Call, attempt: int, function: Any, args: tuple[Any, ...]) -> None:
    error: BaseException | None = None
    value = None
    SCOPE.set(ex.scope(call))  # in the context of this task, which ends with it
    try:
        value = await function(*args)
    except ENDS_THE_TASK:
        raise
    except BaseException as raised:
        error = raised
    SCOPE.set(None)  # what follows from the result is not the handler's any more
    if ex.worker.tracing is not None:
        ex.worker.tracing.returned(ex, call, value, error)
    ex.threads.discard(call.key)
    if ex.abandoned:
        if attempt:
            await ex.worker.observe(ex, call, attempt, value, error)
        return
    try:
        ex.arrive(call, value, error)
    except ENDS_THE_PROCESS:
        raise
    except BaseException as broken:
        ex.worker.broken(ex, broken)


def step_info(ex: UnderClaim, call: Call) -> StepInfo:
    spec = call.spec
    undoing = ex.undoing(call)
    result = None
    if undoing and call.words is not None:
        result = decoder_for(call.type)(bytes(call.words.result))
    return StepInfo(
        tenant_id=ex.tenant_id,
        instance_id=ids.instance_word(ex.id),
        workflow=ex.claimed.definition_key,
        step=call.key,
        attempt=ex.undo.attempt if undoing and ex.undo is not None else call.state.attempt,
        idempotency_key=ids.idempotency_key(
            ids.effect_id(ex.tenant_id, ex.id, ("undo:" if undoing else "") + call.key, ex.epoch)
        ),
        not_after=call.state.not_after / 1_000_000 if call.kind == "effect" and not undoing else None,
        input=getattr(spec, "input", None),
        results=getattr(spec, "results", None) or {},
        result=result,
    )


def _compensation(ex: UnderClaim, call: Call) -> tuple[Any, tuple[Any, ...]]:
    """A compensation gets what the step it undoes returned, if it takes an argument at all."""
    function = call.spec.compensate
    signature = signature_of(function)
    if signature.positional == 0:
        return function, ()
    info = step_info(ex, call)
    return function, (info.result,)
