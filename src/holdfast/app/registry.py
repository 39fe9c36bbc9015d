"""Which workflows this process knows, by key and version."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec
from holdfast.engine.errors import BadDefinition, BadInput, HoldfastError, WorkflowNotRegistered
from holdfast.engine.ids import check_name
from holdfast.engine.misfits import faults_of, in_words, schema_faults
from holdfast.engine.signatures import Signature
from holdfast.engine.steps import effect_spec
from holdfast.engine.tasks import TYPES

if TYPE_CHECKING:
    from holdfast.engine.builder import Workflow
    from holdfast.engine.charts.nodes import Chart

OURS = "holdfast."


class Definition(msgspec.Struct, frozen=True):
    kind: str
    key: str
    version: int
    queue: str
    function: Callable[..., Any]
    input_type: Any = None
    execution: Callable[..., Any] | None = None
    """What moves a claimed instance of this kind; None: the worker's own."""
    chart: Chart | None = None
    built: Workflow | None = None

    def decode_input(self, raw: bytes, place: str = "/input") -> Any:
        """`place`: where the input stands in what was sent, as a JSON pointer."""
        if self.chart is not None:
            return self._chart_input(raw, place)
        try:
            return codec.decoder_for(self.input_type)(raw)
        except Exception as error:  # of any kind: an author's type may check more than msgspec and pydantic do
            faults = faults_of(error, place, self.input_type)
            raise BadInput(
                f"the input does not fit what workflow {self.key!r} version {self.version} expects: {in_words(faults)}",
                faults,
            ) from error

    def _chart_input(self, raw: bytes, place: str) -> Any:
        value = codec.decode(raw)
        faults = schema_faults(self.chart.input_schema, value, place) if self.chart and self.chart.input_schema else []
        if faults:
            raise BadInput(
                f"the input does not fit the inputSchema of chart {self.key!r} version {self.version}: "
                f"{in_words(faults)}",
                faults,
            )
        return value

    def encode_input(self, given: Any, limit: int, place: str = "/input") -> bytes:
        raw = codec.encode(given, f"the input of {self.key!r}", limit)
        self.decode_input(raw, place)
        return raw


def no_function(*_: Any) -> None:
    raise AssertionError("a chart has no function")


class TaskHandler(msgspec.Struct, frozen=True):
    """What runs a task: a function, and what may be done again after a crash in the middle of it."""

    type: str
    name: str  # "": every task of the type that has no handler of its own
    function: Callable[..., Any]
    signature: Signature
    kind: str = "step"  # step | transaction | effect
    mode: str = "manual"
    window: timedelta | None = None
    lookup: Callable[..., Any] | None = None
    timeout: float | None = None
    thread: bool = True
    settle_after: timedelta | None = None


class Registry:
    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], TaskHandler] = {}
        self._definitions: dict[tuple[str, int], Definition] = {}
        self._newest: dict[str, int] = {}
        self._own: dict[tuple[str, int], Definition] = {}
        self.dead_letter_hooks: list[Callable[..., Any]] = []

    def add_own(self, definition: Definition) -> None:
        """A workflow of Holdfast's own: workers run it, nobody starts it by its name."""
        self._own[definition.key, definition.version] = definition

    def add_code(self, key: str, version: int, queue: str, function: Callable[..., Any]) -> Definition:
        try:
            check_name("workflow name", key)
        except HoldfastError as error:
            raise BadDefinition(str(error)) from None
        if not inspect.iscoroutinefunction(function):
            raise BadDefinition(f"workflow {key!r} is not an `async def`: its body awaits ctx calls, so it must be one")
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or len(parameters) > 2:
            raise BadDefinition(f"workflow {key!r} takes {len(parameters)} parameters: expected (ctx) or (ctx, input)")
        try:
            hints = inspect.get_annotations(function, eval_str=True)
        except NameError:  # an annotation under TYPE_CHECKING: the input stays plain JSON
            hints = {}
        input_type = hints.get(parameters[1].name) if len(parameters) == 2 else None
        wrapped = function if len(parameters) == 2 else _without_input(function)
        return self.add(Definition("code", key, version, queue, wrapped, input_type))

    def add(self, definition: Definition) -> Definition:
        key, version = place = (definition.key, definition.version)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise BadDefinition(f"version of workflow {key!r} is {version!r}: expected a whole number from 1 on")
        if key.startswith(OURS):
            raise BadDefinition(f"workflow {key!r}: names that begin with {OURS!r} are Holdfast's own")
        if place in self._definitions:
            raise BadDefinition(
                f"workflow {definition.key!r} version {definition.version} is registered twice: "
                "give the changed one a new version, or the other one another name"
            )
        self._definitions[place] = definition
        self._newest[definition.key] = max(definition.version, self._newest.get(definition.key, 0))
        return definition

    def find(self, key: str, version: int | None = None) -> Definition:
        place = (key, version if version is not None else self._newest.get(key, 0))
        found = self._definitions.get(place) or self._own.get(place)
        if found is None:
            raise WorkflowNotRegistered(key, version, list(self._newest))
        return found

    def names(self) -> Iterable[str]:
        """The workflows this process has, whatever their versions."""
        return self._newest

    def places(self, *, own: bool = False) -> list[tuple[str, int]]:
        """Keys and versions; `own`: Holdfast's as well."""
        return [*self._definitions, *self._own] if own else list(self._definitions)

    def knows(self, key: str, version: int) -> bool:
        return (key, version) in self._definitions or (key, version) in self._own

    def has(self, key: str) -> bool:
        return key in self._newest

    def add_handler(self, handler: TaskHandler, *, replace: bool = False) -> None:
        place = (handler.type, handler.name)
        if handler.type not in TYPES or handler.type in ("HUMAN", "TIMER"):
            raise BadDefinition(f"task type {handler.type!r} has no handlers: expected HTTP, EMAIL, AI or SYSTEM")
        if handler.kind not in ("step", "transaction", "effect"):
            raise BadDefinition(f"kind is {handler.kind!r}: expected 'step', 'transaction' or 'effect'")
        if handler.kind == "effect":
            effect_spec(
                handler.function, (), mode=handler.mode, window=handler.window, lookup=handler.lookup,  # type: ignore[arg-type]
                settle_after=handler.settle_after,
            )  # fmt: skip
        if place in self._handlers and not replace:
            raise BadDefinition(f"the {handler.type} handler {handler.name!r} is registered twice")
        self._handlers[place] = handler

    def handler(self, type_: str, name: str) -> TaskHandler | None:
        return self._handlers.get((type_, name)) or self._handlers.get((type_, ""))

    def handler_names(self) -> frozenset[str]:
        """The SYSTEM handlers this process has."""
        return frozenset(name for type_, name in self._handlers if type_ == "SYSTEM")


def _without_input(function: Callable[..., Any]) -> Callable[..., Any]:
    async def run(context: Any, _: Any) -> Any:
        return await function(context)

    return run
