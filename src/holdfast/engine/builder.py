"""`Workflow("order").step(…).parallel(…)`: a small program over the same context. It adds no engine.

Every handler takes one `StepInfo`: the workflow's input, the results so far, and the call's own facts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.engine.context import Context
from holdfast.engine.errors import BadDefinition, HoldfastError, LoopExhausted, StepFailed
from holdfast.engine.ids import check_name
from holdfast.engine.retry import BackoffOption, policy_from
from holdfast.engine.signatures import Signature, StepInfo, signature_of
from holdfast.engine.steps import (
    Effect,
    Mode,
    Step,
    TransactionSpec,
    check_chosen,
    check_compensation,
    check_rounds,
    check_routes,
    described,
    is_enough,
    spec_of,
    step,
)

Handler = Callable[..., Any]
Call = Handler | Step | Effect  # a handler, or one with options: step(…), effect(…)
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


class BuiltStep(msgspec.Struct, frozen=True):
    """One step of a built workflow: `workflow.steps`."""

    name: str
    kind: str
    """`step`, `effect`, `transaction`, `parallel`, `route`, `loop`, `sleep`, `signal` or `child`."""
    branches: tuple[BuiltBranch, ...] = ()
    """Of a parallel and of a route."""


class BuiltBranch(msgspec.Struct, frozen=True):
    """One branch of a parallel or a route, with its steps. None of them: there is nothing to do."""

    name: str
    steps: tuple[BuiltStep, ...] = ()


class Workflow:
    """A workflow written as a chain of calls. Register it with `hf.register(workflow)`."""

    def __init__(self, name: str) -> None:
        self.name = _checked("workflow name", name)
        self._parts: list[Part] = []
        self._steps: dict[str, BuiltStep] = {}

    @property
    def steps(self) -> tuple[BuiltStep, ...]:
        """What it is made of, in order."""
        return tuple(self._steps.values())

    def step(
        self, name: str, handler: Handler, *, compensate: Handler | Effect | None = None, max_attempts: int = 3,
        backoff: BackoffOption | None = None, timeout: float | timedelta | None = None,
        retry_on: Failure | None = None, thread: bool = True,
    ) -> Workflow:  # fmt: skip
        """Safe to repeat: reads and pure work."""
        return self._call(name, step(
            handler, compensate=compensate, max_attempts=max_attempts, backoff=backoff, timeout=timeout,
            retry_on=retry_on, thread=thread,
        ))  # fmt: skip

    def effect(
        self, name: str, handler: Handler, *, mode: Mode = "manual", window: timedelta | None = None,
        lookup: Handler | None = None, settle_after: timedelta | None = None,
        compensate: Handler | Effect | None = None, max_attempts: int = 3,
        backoff: BackoffOption | None = None, timeout: float | timedelta | None = None,
        retry_on: Failure | None = None, thread: bool = True,
    ) -> Workflow:  # fmt: skip
        """Touches the outside world: recorded before it starts, repeated only as its mode allows."""
        return self._call(name, Effect(handler, (), {
            "mode": mode, "window": window, "lookup": lookup, "settle_after": settle_after, "compensate": compensate,
            "max_attempts": max_attempts, "backoff": backoff, "timeout": timeout, "retry_on": retry_on,
            "thread": thread,
        }))  # fmt: skip

    def _call(self, name: str, what: Step | Effect) -> Workflow:
        call = _Call(name, what)

        async def run(ctx: Context, at: Progress) -> None:
            at.results[name] = await call.ask(ctx, at, at.prefix + name)

        return self._add(name, call.kind, run)

    def transaction(
        self, name: str, handler: Handler, *, compensate: Handler | Effect | None = None, max_attempts: int = 3,
        backoff: BackoffOption | None = None, timeout: float | timedelta | None = None,
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

        return self._add(name, "transaction", run)

    def parallel(self, name: str, branches: Mapping[str, Call]) -> Workflow:
        """Branches at once; all settle, then the results come as a dict, or the first failure is raised."""
        if not branches:
            raise BadDefinition(f"parallel {name!r} has no branches: give at least one")
        calls = {_checked(f"branch of {name!r}", branch): _Call(branch, what) for branch, what in branches.items()}

        async def run(ctx: Context, at: Progress) -> None:
            settled = await _all([call.ask(ctx, at, f"{at.prefix}{name}.{key}") for key, call in calls.items()])
            at.results[name] = dict(zip(calls, settled, strict=True))

        return self._add(name, "parallel", run, {branch: call.steps for branch, call in calls.items()})

    def route(self, name: str, *, choose: Call, routes: Mapping[str, Workflow | Call | None]) -> Workflow:
        """One of several ways: `choose(info)` names it; its answer is journaled. None means nothing to do."""
        try:
            check_routes(name, routes)
        except HoldfastError as error:
            raise BadDefinition(str(error)) from None
        chooser = _Call(name, choose)
        ways = {
            key: way if isinstance(way, Workflow | None) else _Call(key, way) for key, way in routes.items()
        }  # fmt: skip

        async def run(ctx: Context, at: Progress) -> None:
            chosen = check_chosen(name, await chooser.ask(ctx, at, at.prefix + name, typed=False), routes)
            way, key, own = ways[chosen], f"{at.prefix}{name}.{chosen}", {}
            if isinstance(way, Workflow):
                inner = Progress(at.input, dict(at.results), key + ".")
                await way._run(ctx, inner)
                own = {step.name: inner.results[step.name] for step in way.steps}
            elif way is not None:
                own = {chosen: await way.ask(ctx, at, key)}
            at.results[name] = {"route": chosen, "results": own}

        return self._add(name, "route", run, {key: () if way is None else way.steps for key, way in ways.items()})

    def loop(
        self, name: str, handler: Call, *, until: Handler, every: timedelta | float = 0, max_rounds: int = 100
    ) -> Workflow:
        """Repeat `handler` until `until(info)` is true of its latest result (`info.result`)."""
        check_rounds(name, max_rounds)
        call = _Call(name, handler)

        async def run(ctx: Context, at: Progress) -> None:
            key = at.prefix + name
            for number in range(1, max_rounds + 1):
                result = at.results[name] = await call.ask(ctx, at, key)
                if is_enough(name, until(at.info(ctx, name, result))):
                    return
                if number < max_rounds:
                    await ctx.sleep(f"{key}.every", every)
            raise LoopExhausted(name, max_rounds)

        return self._add(name, "loop", run)

    def sleep(self, name: str, duration: timedelta | float) -> Workflow:
        async def run(ctx: Context, at: Progress) -> None:
            await ctx.sleep(at.prefix + name, duration)
            at.results[name] = None

        return self._add(name, "sleep", run)

    def wait_for_signal(self, name: str, *, timeout: timedelta | float | None = None) -> Workflow:
        async def run(ctx: Context, at: Progress) -> None:
            at.results[name] = await ctx.wait_for_signal(name, timeout=timeout)

        return self._add(name, "signal", run)

    def child(self, name: str, workflow: str, *, input: Handler | None = None, version: int | None = None) -> Workflow:
        """Start another workflow and wait for it. `input(info)` makes its input; by default it gets this one's."""

        async def run(ctx: Context, at: Progress) -> None:
            given = at.input if input is None else input(at.info(ctx, name))
            at.results[name] = await ctx.child(at.prefix + name, workflow, given, version=version)

        return self._add(name, "child", run)

    # -- used by hf.register

    async def __call__(self, ctx: Context, given: Any) -> dict[str, Any]:
        results: dict[str, Any] = {}
        await self._run(ctx, Progress(given, results))
        return results

    async def _run(self, ctx: Context, at: Progress) -> None:
        for part in self._parts:
            await part(ctx, at)

    def _add(
        self, name: str, kind: str, part: Part, branches: Mapping[str, tuple[BuiltStep, ...]] | None = None
    ) -> Workflow:
        _checked("step name", name)
        if name in self._steps:
            raise BadDefinition(f"workflow {self.name!r} has two steps named {name!r}: names tell steps apart")
        self._steps[name] = BuiltStep(name, kind, tuple(BuiltBranch(*branch) for branch in (branches or {}).items()))
        self._parts.append(part)
        return self


class _Call:
    """A handler with its options, checked where it is declared: a step of its own, a branch, what a loop repeats."""

    def __init__(self, name: str, what: Call) -> None:
        made = described(what)
        if made.args:
            raise BadDefinition(f"{name!r} is given arguments: a builder's handler takes a StepInfo and nothing else")
        self.signature = _info_signature(made.function)
        self.what = msgspec.structs.replace(
            made, options=made.options | {"compensate": _undo(made.options["compensate"])}
        )
        spec_of(self.what)
        self.kind = "effect" if isinstance(made, Effect) else "step"
        self.steps = (BuiltStep(name, self.kind),)

    def ask(self, ctx: Context, at: Progress, key: str, *, typed: bool = True) -> Awaitable[Any]:
        spec = spec_of(self.what, input=at.input, results=dict(at.results))
        spec = msgspec.structs.replace(spec, signature=self.signature)
        return ctx._call(self.kind, key, None, (), spec, self.signature.returns if typed else None)


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


def _undo(compensate: Handler | Effect | None) -> Handler | Effect | None:
    if compensate is None:
        return None
    check_compensation(compensate)
    if isinstance(compensate, Effect):
        return msgspec.structs.replace(compensate, function=_undo(compensate.function))
    signature = _look(compensate)
    if signature.info is not None or signature.positional == 0:
        return compensate

    async def undo_async(info: StepInfo) -> Any:
        return await compensate(info)

    def undo(info: StepInfo) -> Any:
        return compensate(info)

    return undo_async if signature.is_async else undo


__all__ = ["BuiltBranch", "BuiltStep", "LoopExhausted", "StepFailed", "Workflow"]
