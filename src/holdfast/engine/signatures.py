"""What an author's function wants and gives: is it async, does it ask for StepInfo, what does it return."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import msgspec

from holdfast.engine.errors import BadDefinition
from holdfast.engine.tasks import TaskInfo


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler may know about the call it serves. Ask for it with a parameter annotated `StepInfo`."""

    tenant_id: str
    instance_id: str
    workflow: str
    step: str
    attempt: int
    idempotency_key: str
    """The same for every attempt: pass it to the provider."""
    not_after: float | None = None
    """Unix time after which the call must not begin any more (effects only)."""
    input: Any = None
    results: dict[str, Any] = {}
    result: Any = None
    """In a compensation: what the step being undone had returned."""


class Signature(msgspec.Struct, frozen=True):
    is_async: bool
    info: str | None  # the parameter annotated StepInfo
    info_at: int | None  # its place among the positional parameters; None: by name only
    only_info: bool  # nothing but StepInfo is taken: a builder's handler
    first_type: Any  # annotation of the first ordinary parameter (a workflow's input after ctx)
    returns: Any
    positional: int  # how many positional arguments it can take; -1: any number
    takes: tuple[Any, ...] = ()  # annotations of the ordinary positional parameters
    takes_more: Any = None  # annotation of `*args`


_known: dict[CodeType, tuple[dict[str, Any], Signature]] = {}


def signature_of(function: Callable[..., Any]) -> Signature:
    # Closures made anew for each call share their code; looking at them once is enough. What only shares its code
    # is looked at each time: a decorated function has its wrapper's code, and a partial or a bound method kept here
    # would keep its arguments alive.
    if not isinstance(function, FunctionType) or "__wrapped__" in function.__dict__:
        return _look(function)
    annotations = function.__annotations__
    known = _known.get(function.__code__)
    if known is not None and (known[0] is annotations or known[0] == annotations):
        return known[1]
    found = _look(function)
    _known[function.__code__] = (annotations, found)
    return found


def _look(function: Callable[..., Any]) -> Signature:
    if not callable(function):
        raise BadDefinition(f"the handler is {function!r}: expected a function")
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    call = inner if inspect.isroutine(inner) else type(inner).__call__
    try:
        hints = typing.get_type_hints(call, include_extras=True)
    except Exception:
        hints = {}
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    info = next((p.name for p in parameters if _is_info(hints.get(p.name, p.annotation))), None)
    taken = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    ordinary = [p for p in parameters if p.name != info]
    positional = [p for p in ordinary if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    many = any(p.kind is p.VAR_POSITIONAL for p in ordinary)
    return Signature(
        is_async=inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call),
        info=info,
        info_at=next((n for n, p in enumerate(taken) if p.name == info), None),
        only_info=info is not None and not ordinary,
        first_type=hints.get(positional[0].name) if positional else None,
        returns=hints.get("return"),
        positional=-1 if many else len(positional),
        takes=tuple(hints.get(p.name) for p in positional),
        takes_more=next((hints.get(p.name) for p in ordinary if p.kind is p.VAR_POSITIONAL), None),
    )


def _is_info(annotation: Any) -> bool:
    return annotation in (StepInfo, TaskInfo, "StepInfo", "TaskInfo")
