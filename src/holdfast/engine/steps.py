"""What a call asks for, as values: the kinds of step and how each is to be run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.engine.errors import BadDefinition
from holdfast.engine.retry import Backoff, RetryPolicy, microseconds, policy_from
from holdfast.engine.signatures import Signature, signature_of

Mode = Literal["keyed", "lookup", "manual"]
EFFECT_TIMEOUT = 30.0
KEYED_WINDOW = timedelta(hours=24)
T = TypeVar("T")


class StepSpec(msgspec.Struct, frozen=True):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    signature: Signature
    policy: RetryPolicy
    compensate: Callable[..., Any] | None = None
    thread: bool = True
    input: Any = None  # a builder's handler sees these through StepInfo
    results: dict[str, Any] | None = None


class EffectSpec(msgspec.Struct, frozen=True):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    signature: Signature
    policy: RetryPolicy
    mode: Mode
    compensate: Callable[..., Any] | None = None
    thread: bool = True
    input: Any = None
    results: dict[str, Any] | None = None
    window: int = 0  # microseconds within which the provider knows our key
    lookup: Callable[..., Any] | None = None


class TransactionSpec(msgspec.Struct, frozen=True):
    function: Callable[..., Any]
    args: tuple[Any, ...]
    signature: Signature
    policy: RetryPolicy
    compensate: Callable[..., Any] | None = None
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
    compensate: Callable[..., Any] | None = None


class Effect(msgspec.Struct, frozen=True):
    """An effect described but not yet asked for: a branch of `parallel`. Made by `effect(…)`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


def effect(
    function: Callable[..., Any],
    *args: Any,
    mode: Mode = "manual",
    window: timedelta | None = None,
    lookup: Callable[..., Any] | None = None,
    compensate: Callable[..., Any] | None = None,
    max_attempts: int = 3,
    backoff: Backoff | timedelta | None = None,
    timeout: float | timedelta | None = None,
) -> Effect:
    """Describe an effect for a branch of `parallel`."""
    return Effect(
        function, args,
        {"mode": mode, "window": window, "lookup": lookup, "compensate": compensate, "max_attempts": max_attempts,
         "backoff": backoff, "timeout": timeout},
    )  # fmt: skip


def effect_spec(
    function: Callable[..., Any], args: tuple[Any, ...], *, mode: Mode = "manual", window: timedelta | None = None,
    lookup: Callable[..., Any] | None = None, compensate: Callable[..., Any] | None = None, max_attempts: int = 3,
    backoff: Backoff | timedelta | None = None, timeout: float | timedelta | None = None,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None, thread: bool = True,
    input: Any = None, results: dict[str, Any] | None = None,
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
    return EffectSpec(
        check_callable("an effect's handler", function), args, signature_of(function),
        policy_from(max_attempts, backoff, EFFECT_TIMEOUT if timeout is None else timeout, retry_on),
        mode, compensate, thread, input, results, microseconds(window or KEYED_WINDOW), lookup,
    )  # fmt: skip


def check_callable(what: str, function: Any) -> Any:
    if not callable(function):
        raise BadDefinition(f"{what} is {function!r}: expected a function")
    return function
