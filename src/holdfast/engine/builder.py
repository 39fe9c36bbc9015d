"""`Workflow("order").step(…).parallel(…)`: a small program over the same context. It adds no engine.

Every handler takes one `StepInfo`: the workflow's input, the results so far, and the call's own facts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.engine.context import Context
from holdfast.engine.errors import BadDefinition, HoldfastError, StepFailed
from holdfast.engine.ids import check_name
from holdfast.engine.retry import Backoff, policy_from
from holdfast.engine.signatures import Signature, StepInfo, signature_of
from holdfast.engine.steps import Effect, Mode, StepSpec, TransactionSpec, effect_spec

Handler = Callable[..., Any]
Failure = type[BaseException] | tuple[type[BaseException], ...]
Part = Callable[[Context, "Progress"], Awaitable[None]]


class Progress:
    """Where one instance of a built workflow stands."""

    __slots__ = ("input", "prefix", "results")

    def __init__(self, given: Any, results: dict[str, Any], prefix: str = "") -> None:
        self.input = given
        self.results = results
        self.prefix = prefix

    def info(self, ctx: Context, name: str, result: Any = None) -> StepInfo:
        return StepInfo(
            tenant_id=ctx.tenant_id, instance_id=ctx.instance_id, workflow=ctx.workflow, step=self.prefix + name,
            attempt=1, idempotency_key="", input=self.input, results=self.results, result=result,
        )  # fmt: skip


class LoopExhausted(HoldfastError):
    """A builder's loop was not done after its last round."""

    code = "loop_exhausted"


class Workflow:
    """A workflow written as a chain of calls. Register it with `hf.register(workflow)`."""

    def __init__(self, name: str) -> None:
        self.name = _checked("workflow name", name)
        self._parts: list[Part] = []
        self._names: set[str] = set()

    def step(
        self, name: str, handler: Handler, *, compensate: Handler | None = None, max_attempts: int = 3,
        backoff: Backoff | timedelta | None = None, timeout: float | timedelta | None = None,
        retry_on: Failure | None = None, thread: bool = True,
    ) -> Workflow:  # fmt: skip
        """Safe to repeat: reads and pure work."""
        signature = _info_signature(handler)
        undo = _undo(compensate)
        policy = policy_from(max_attempts, backoff, timeout, retry_on)

        async def run(ctx: Context, at: Progress) -> None:
            spec = StepSpec(handler, (), signature, policy, undo, thread, at.input, dict(at.results))
            at.results[name] = await ctx._call("step", at.prefix + name, None, (), spec, signature.returns)

        return self._add(name, run)

    def effect(
        self, name: str, handler: Handler, *, mode: Mode = "manual", window: timedelta | None = None,
        lookup: Handler | None = None, compensate: Handler | None = None, max_attempts: int = 3,
        backoff: Backoff | timedelta | None = None, timeout: float | timedelta | None = None,
        retry_on: Failure | None = None, thread: bool = True,
    ) -> Workflow:  # fmt: skip
        """Touches the outside world: recorded before it starts, repeated only as its mode allows."""
        described = Effect(handler, (), {
            "mode": mode, "window": window, "lookup": lookup, "compensate": _undo(compensate),
            "max_attempts": max_attempts, "backoff": backoff, "timeout": timeout, "retry_on": retry_on,
            "thread": thread,
        })  # fmt: skip
        signature = _info_signature(handler)
        effect_spec(handler, (), **described.options)  # refuse what is wrong where it is declared

        async def run(ctx: Context, at: Progress) -> None:
            at.results[name] = await _effect(ctx, at, at.prefix + name, described, signature)

        return self._add(name, run)

    def transaction(
        self, name: str, handler: Handler, *, compensate: Handler | None = None, max_attempts: int = 3,
        backoff: Backoff | timedelta | None = None, timeout: float | timedelta | None = None,
    ) -> Workflow:  # fmt: skip
        """Writes in the store's database, in the same commit as its journal row: handler(tx, info)."""
        signature = _look(handler)
        if signature.info is None and signature.positional > 1:  # one that takes only the transaction gets just that
            signature = msgspec.structs.replace(signature, info=_last_parameter(handler))
        undo = _undo(compensate)
        policy = policy_from(max_attempts, backoff, 10.0 if timeout is None else timeout, None)

        async def run(ctx: Context, at: Progress) -> None:
            spec = TransactionSpec(handler, (), signature, policy, undo, at.input, dict(at.results))
            at.results[name] = await ctx._call("transaction", at.prefix + name, None, (), spec, signature.returns)

        return self._add(name, run)

    def parallel(self, name: str, branches: Mapping[str, Handler | Effect]) -> Workflow:
        """Branches at once; all settle, then the results come as a dict, or the first failure is raised."""
        if not branches:
            raise BadDefinition(f"parallel {name!r} has no branches: give at least one")
        made: dict[str, tuple[Any, Signature]] = {}
        for branch, what in branches.items():
            _checked(f"branch of {name!r}", branch)
            function = what.function if isinstance(what, Effect) else what
            made[branch] = (what, _info_signature(function))
            if isinstance(what, Effect):
                effect_spec(function, (), **what.options)

        async def run(ctx: Context, at: Progress) -> None:
            asked = []
            for branch, (what, signature) in made.items():
                key = f"{at.prefix}{name}.{branch}"
                if isinstance(what, Effect):
                    asked.append(_effect(ctx, at, key, what, signature))
                else:
                    policy = policy_from(3, None, None, None)
                    spec = StepSpec(what, (), signature, policy, None, True, at.input, dict(at.results))
                    asked.append(ctx._call("step", key, None, (), spec, signature.returns))
            settled = await _all(asked)
            at.results[name] = dict(zip(made, settled, strict=True))

        return self._add(name, run)

    def route(self, name: str, *, choose: Handler, routes: Mapping[str, Workflow | None]) -> Workflow:
        """One of several ways: `choose(info)` names it; its answer is journaled. None means nothing to do."""
        if not routes:
            raise BadDefinition(f"route {name!r} has no routes: give at least one")
        signature = _info_signature(choose)
        policy = policy_from(3, None, None, None)

        async def run(ctx: Context, at: Progress) -> None:
            spec = StepSpec(choose, (), signature, policy, None, True, at.input, dict(at.results))
            chosen = await ctx._call("step", at.prefix + name, None, (), spec, None)
            if chosen not in routes:
                raise BadDefinition(f"route {name!r}: {chosen!r} was chosen, expected one of {', '.join(routes)}")
            way = routes[chosen]
            inner = Progress(at.input, dict(at.results), f"{at.prefix}{name}.{chosen}.")
            if way is not None:
                await way._run(ctx, inner)
            own = {key: inner.results[key] for key in way._names} if way is not None else {}
            at.results[name] = {"route": chosen, "results": own}

        return self._add(name, run)

    def loop(
        self, name: str, handler: Handler, *, until: Handler, every: timedelta | float = 0, max_rounds: int = 100
    ) -> Workflow:
        """Repeat `handler` until `until(info)` is true of its latest result (`info.result`)."""
        if not isinstance(max_rounds, int) or max_rounds < 1:
            raise BadDefinition(f"max_rounds of loop {name!r} is {max_rounds!r}: expected a whole number from 1 on")
        signature = _info_signature(handler)
        policy = policy_from(3, None, None, None)

        async def run(ctx: Context, at: Progress) -> None:
            key = at.prefix + name
            for number in range(1, max_rounds + 1):
                spec = StepSpec(handler, (), signature, policy, None, True, at.input, dict(at.results))
                result = at.results[name] = await ctx._call("step", key, None, (), spec, signature.returns)
                if until(at.info(ctx, name, result)):
                    return
                if number < max_rounds:
                    await ctx.sleep(f"{key}.every", every)
            raise LoopExhausted(f"loop {name!r} was not done after {max_rounds} rounds")

        return self._add(name, run)

    def sleep(self, name: str, duration: timedelta | float) -> Workflow:
        async def run(ctx: Context, at: Progress) -> None:
            await ctx.sleep(at.prefix + name, duration)
            at.results[name] = None

        return self._add(name, run)

    def wait_for_signal(self, name: str, *, timeout: timedelta | float | None = None) -> Workflow:
        async def run(ctx: Context, at: Progress) -> None:
            at.results[name] = await ctx.wait_for_signal(name, timeout=timeout)

        return self._add(name, run)

    def child(self, name: str, workflow: str, *, input: Handler | None = None, version: int | None = None) -> Workflow:
        """Start another workflow and wait for it. `input(info)` makes its input; by default it gets this one's."""

        async def run(ctx: Context, at: Progress) -> None:
            given = at.input if input is None else input(at.info(ctx, name))
            at.results[name] = await ctx.child(at.prefix + name, workflow, given, version=version)

        return self._add(name, run)

    # -- used by hf.register

    async def __call__(self, ctx: Context, given: Any) -> dict[str, Any]:
        results: dict[str, Any] = {}
        await self._run(ctx, Progress(given, results))
        return results

    async def _run(self, ctx: Context, at: Progress) -> None:
        for part in self._parts:
            await part(ctx, at)

    def _add(self, name: str, part: Part) -> Workflow:
        _checked("step name", name)
        if name in self._names:
            raise BadDefinition(f"workflow {self.name!r} has two steps named {name!r}: names tell steps apart")
        self._names.add(name)
        self._parts.append(part)
        return self


def _effect(ctx: Context, at: Progress, key: str, what: Effect, signature: Signature) -> Awaitable[Any]:
    spec = effect_spec(what.function, (), **what.options, input=at.input, results=dict(at.results))
    spec = msgspec.structs.replace(spec, signature=signature)
    return ctx._call("effect", key, None, (), spec, signature.returns)


async def _all(asked: list[Any]) -> list[Any]:
    import asyncio

    settled = await asyncio.gather(*asked, return_exceptions=True)
    for answer in settled:
        if isinstance(answer, BaseException):
            raise answer
    return settled


def _checked(what: str, name: str) -> str:
    try:
        return check_name(what, name)
    except HoldfastError as error:
        raise BadDefinition(str(error)) from None


def _look(handler: Handler) -> Signature:
    if not callable(handler):
        raise BadDefinition(f"the handler is {handler!r}: expected a function that takes a StepInfo")
    return signature_of(handler)


def _info_signature(handler: Handler) -> Signature:
    """A builder's handler gets its StepInfo whether it is annotated or not; one without parameters gets none."""
    found = _look(handler)
    if found.info is not None or found.positional == 0:
        return found
    return msgspec.structs.replace(found, info=_last_parameter(handler), only_info=True)


def _last_parameter(handler: Handler) -> str | None:
    import inspect

    names = list(inspect.signature(handler).parameters)
    return names[-1] if names else None


def _undo(compensate: Handler | None) -> Handler | None:
    if compensate is None:
        return None
    signature = _look(compensate)
    if signature.info is not None or signature.positional == 0:
        return compensate

    async def undo_async(info: StepInfo) -> Any:
        return await compensate(info)

    def undo(info: StepInfo) -> Any:
        return compensate(info)

    return undo_async if signature.is_async else undo


__all__ = ["LoopExhausted", "StepFailed", "Workflow"]
