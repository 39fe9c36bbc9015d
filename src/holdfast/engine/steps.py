"""What a call asks for, as values: the kinds of step and how each is to be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast

import msgspec

from holdfast.engine.codec import check_awaited
from holdfast.engine.errors import BadDefinition, NotAwaited
from holdfast.engine.ids import check_name
from holdfast.engine.retry import DEFAULT, BackoffOption, RetryPolicy, microseconds, policy_from
from holdfast.engine.signatures import Signature, signature_of

Mode = Literal["keyed", "lookup", "manual"]
EFFECT_TIMEOUT = 30.0
KEYED_WINDOW = timedelta(hours=24)
WINDOW = microseconds(KEYED_WINDOW)
T = TypeVar("T")


class StepSpec(msgspec.Struct, frozen=True):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    signature: Signature
    policy: RetryPolicy
    compensate: Callable[..., Any] | Effect | None = None
    thread: bool = True
    input: Any = None  # a builder's handler sees these through StepInfo
    results: dict[str, Any] | None = None


class EffectSpec(msgspec.Struct, frozen=True):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    signature: Signature
    policy: RetryPolicy
    mode: Mode
    compensate: Callable[..., Any] | Effect | None = None
    thread: bool = True
    input: Any = None
    results: dict[str, Any] | None = None
    window: int = 0  # microseconds within which the provider knows our key
    lookup: Callable[..., Any] | None = None
    settle_after: int | None = None  # microseconds after which the lookup's None means that it did not happen


class TransactionSpec(msgspec.Struct, frozen=True):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    signature: Signature
    policy: RetryPolicy
    compensate: Callable[..., Any] | Effect | None = None
    input: Any = None
    results: dict[str, Any] | None = None


class SleepSpec(msgspec.Struct, frozen=True):
    duration: int | None  # microseconds
    until: int | None = None
    compensate: None = None


class SignalSpec(msgspec.Struct, frozen=True):
    name: str
    timeout: int | None
    compensate: None = None


class ChildSpec(msgspec.Struct, frozen=True):
    workflow: str
    version: int | None
    input: bytes
    compensate: Callable[..., Any] | Effect | None = None


class Step(msgspec.Struct, frozen=True):
    """A step described but not yet asked for: a branch of `parallel` or `route`, a `loop`. Made by `step(…)`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


class Effect(msgspec.Struct, frozen=True):
    """An effect described but not yet asked for, as `Step` is, or a compensation. Made by `effect(…)`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


Compensate = Callable[..., Any] | Effect


def step(
    function: Callable[..., Any],
    *args: Any,
    compensate: Compensate | None = None,
    max_attempts: int = 3,
    backoff: BackoffOption | None = None,
    timeout: float | timedelta | None = None,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None,
    thread: bool = True,
) -> Step:
    """Describe a step with options for a branch of `parallel` or `route`, or for a `loop`."""
    return Step(
        function, args,
        {"compensate": compensate, "max_attempts": max_attempts, "backoff": backoff, "timeout": timeout,
         "retry_on": retry_on, "thread": thread},
    )  # fmt: skip


def described(what: Any) -> Step | Effect:
    """What a branch asks for: `step(…)`, `effect(…)`, a function, or a tuple of function and arguments."""
    if isinstance(what, (Step, Effect)):
        return what
    return step(*what) if isinstance(what, tuple) and what else step(what)


def spec_of(what: Step | Effect, **seen: Any) -> StepSpec | EffectSpec:
    """How it is to be run. `seen`: what a builder's handler is shown through StepInfo."""
    if isinstance(what, Effect):
        return effect_spec(what.function, what.args, **what.options, **seen)
    options = dict(what.options)
    compensate, thread = options.pop("compensate"), options.pop("thread")
    if compensate is not None:
        check_compensation(compensate)
    signature = signature_of(check_callable("a branch", what.function))
    return StepSpec(what.function, what.args, signature, policy_from(**options), compensate, thread, **seen)


def effect(
    function: Callable[..., Any],
    *args: Any,
    mode: Mode = "manual",
    window: timedelta | None = None,
    lookup: Callable[..., Any] | None = None,
    settle_after: timedelta | None = None,
    compensate: Compensate | None = None,
    max_attempts: int = 3,
    backoff: BackoffOption | None = None,
    timeout: float | timedelta | None = None,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None,
    thread: bool = True,
) -> Effect:
    """Describe an effect for a branch of `parallel` or `route`, for a `loop`, or for `compensate=`."""
    return Effect(
        function, args,
        {"mode": mode, "window": window, "lookup": lookup, "settle_after": settle_after, "compensate": compensate,
         "max_attempts": max_attempts, "backoff": backoff, "timeout": timeout, "retry_on": retry_on, "thread": thread},
    )  # fmt: skip


def effect_spec(
    function: Callable[..., Any], args: tuple[Any, ...], *, mode: Mode = "manual", window: timedelta | None = None,
    lookup: Callable[..., Any] | None = None, compensate: Compensate | None = None, max_attempts: int = 3,
    backoff: BackoffOption | None = None, timeout: float | timedelta | None = None,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None, thread: bool = True,
    input: Any = None, results: dict[str, Any] | None = None, settle_after: timedelta | None = None,
) -> EffectSpec:  # fmt: skip
    if mode not in ("keyed", "lookup", "manual"):
        raise BadDefinition(f"mode is {mode!r}: expected 'keyed', 'lookup' or 'manual'")
    if mode == "lookup" and lookup is None:
        raise BadDefinition("mode 'lookup' needs lookup=…: a function that asks the provider by the idempotency key")
    if mode != "lookup" and lookup is not None:
        raise BadDefinition(f"lookup=… goes with mode 'lookup', not {mode!r}")
    if mode != "keyed" and window is not None:
        raise BadDefinition(f"window=… goes with mode 'keyed', not {mode!r}")
    if window is not None and window <= timedelta(0):
        raise BadDefinition(f"window is {window!r}: expected how long the provider knows our key, a positive timedelta")
    if lookup is not None:
        check_callable("lookup=…", lookup)
    if compensate is not None:
        check_compensation(compensate)
    if settle_after is not None:
        if mode != "lookup":
            raise BadDefinition(f"settle_after=… goes with mode 'lookup', not {mode!r}")
        if not isinstance(settle_after, timedelta) or settle_after < timedelta(0):
            raise BadDefinition(
                f"settle_after is {settle_after!r}: expected how long the provider may still book a call, a timedelta"
            )
    return EffectSpec(
        check_callable("an effect's handler", function), args, signature_of(function),
        policy_from(max_attempts, backoff, EFFECT_TIMEOUT if timeout is None else timeout, retry_on),
        mode, compensate, thread, input, results, microseconds(window or KEYED_WINDOW), lookup,
        None if settle_after is None else microseconds(settle_after),
    )  # fmt: skip


def check_compensation(compensate: Any) -> None:
    """Refused where it is declared: when it is needed, it is too late."""
    if isinstance(compensate, Effect):
        if compensate.options.get("compensate") is not None:
            raise BadDefinition("compensate=effect(…) has a compensation of its own: what undoes is not undone")
        effect_spec(compensate.function, compensate.args, **compensate.options)
    elif not callable(compensate):
        raise BadDefinition(f"compensate=… is {compensate!r}: expected a function or an effect(…)")


def undoing_spec(kind: str, spec: Any) -> EffectSpec | None:
    """The compensation of such a call as an effect: where it is spelled as one, and where it undoes one. A bare
    function that undoes an effect touches the same world, so it is never repeated without a person. None: a step."""
    if isinstance(spec.compensate, Effect):
        return effect_spec(spec.compensate.function, spec.compensate.args, **spec.compensate.options)
    if kind != "effect":
        return None
    function = spec.compensate
    return EffectSpec(function, (), signature_of(function), spec.policy, "manual", thread=spec.thread, window=WINDOW)


def recorded_effect(mode: str) -> EffectSpec:
    """An effect of which only the journal knows: it can be settled, and never started."""
    return EffectSpec(_nobody, (), signature_of(_nobody), DEFAULT, cast(Mode, mode or "manual"), window=WINDOW)


def _nobody() -> None:
    raise AssertionError("an effect that only the journal knows was started")


def check_callable(what: str, function: Any) -> Any:
    if not callable(function):
        raise BadDefinition(f"{what} is {function!r}: expected a function")
    return function


def check_routes(name: str, routes: Mapping[str, Any]) -> None:
    if not routes:
        raise BadDefinition(f"route {name!r} has no routes: give at least one")
    for route in routes:
        check_name(f"route of {name!r}", route)


def check_chosen(name: str, chosen: Any, routes: Mapping[str, Any]) -> str:
    if not isinstance(chosen, str) or chosen not in routes:
        raise BadDefinition(f"route {name!r}: {chosen!r} was chosen, expected one of {', '.join(routes)}")
    return chosen


def check_rounds(name: str, max_rounds: int) -> None:
    if not isinstance(max_rounds, int) or max_rounds < 1:
        raise BadDefinition(f"max_rounds of loop {name!r} is {max_rounds!r}: expected a whole number from 1 on")


def is_enough(name: str, said: Any) -> bool:
    """What `until` of a loop says of a round. It runs in the workflow itself, where nothing may be awaited."""
    try:
        check_awaited(said)
    except NotAwaited as error:
        raise NotAwaited(f"until=… of loop {name!r} is not a plain function: {error}") from None
    return bool(said)
