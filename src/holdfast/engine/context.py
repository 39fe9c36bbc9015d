"""The author's view of a workflow: `ctx`. Each call is named, journaled and answered; nothing runs in here."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from threading import get_ident
from typing import Any, NoReturn, TypeVar, cast, overload

from holdfast.engine import codec
from holdfast.engine.body_log import Log, Sink
from holdfast.engine.errors import BadDefinition, ConcurrentName, NotInWorkflow, Restarting, RestartRefused
from holdfast.engine.history import VALUE_RECORDED
from holdfast.engine.ids import check_name
from holdfast.engine.journal import ARGS_INLINE
from holdfast.engine.replay import Replay
from holdfast.engine.retry import DEFAULT, Backoff, microseconds, policy_from
from holdfast.engine.saga import refuses_restart
from holdfast.engine.signatures import signature_of
from holdfast.engine.steps import (
    ChildSpec,
    Effect,
    Mode,
    SignalSpec,
    SleepSpec,
    StepSpec,
    TransactionSpec,
    effect_spec,
)

T = TypeVar("T")
# What a call gives is a future of the workflow's own loop. It is declared as a coroutine, so that type checkers report
# a forgotten `await`: its failure would reach nobody.
Answer = Coroutine[Any, Any, T]
Failure = type[BaseException] | tuple[type[BaseException], ...]
CALLS_LIMIT = 100_000


def _nowhere(level: str, event: str, fields: dict[str, Any]) -> None: ...


class Context:
    """One instance's `ctx`."""

    def __init__(
        self, replay: Replay, *, tenant_id: str, instance_id: str, workflow: str, version: int,
        clock: Callable[[], int], entropy: random.Random, payload_limit: int, log: Sink | None = None, epoch: int = 0,
        input_of: Callable[[Any], bytes] = codec.encode,
    ) -> None:  # fmt: skip
        self.tenant_id = tenant_id
        self.instance_id = instance_id
        self.workflow = workflow
        self.version = version
        self.epoch = epoch
        """How often the instance has restarted."""
        self._input_of = input_of
        self._replay = replay
        self._clock = clock
        self._entropy = entropy
        self._limit = payload_limit
        self._sink = log
        self._values: dict[str, int] = {}
        # Of each name: the call that used it last, the branch it came from, and how often it was used.
        self._last: dict[str, tuple[asyncio.Future[Any], asyncio.Task[Any] | None, int]] = {}
        self.soft: list[tuple[str, str, bytes]] = []  # values to be journaled with the next turn

    def let_go(self) -> None:
        """Forget whoever made this context. Both held each other, so that only the garbage collector could free them,
        which was a quarter of what a workflow of one step cost."""
        self._sink, self._input_of = None, codec.encode
        self._last.clear()  # the body's task, whose end may hold the frames of whoever drained it

    @property
    def log(self) -> Log:
        """A logger that is silent in replay: `ctx.log.info("priced", amount=5)`."""
        return Log(self._sink or _nowhere, self._replay.replaying)

    # -- steps

    @overload
    def step(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, compensate: Callable[..., Any] | None = ..., max_attempts: int = ..., backoff: Backoff | timedelta | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., thread: bool = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    @overload
    def step(self, name: str, function: Callable[..., T], *args: Any, compensate: Callable[..., Any] | None = ..., max_attempts: int = ..., backoff: Backoff | timedelta | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., thread: bool = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        compensate: Callable[..., Any] | None = None,
        max_attempts: int = 3,
        backoff: Backoff | timedelta | None = None,
        timeout: float | timedelta | None = None,
        retry_on: Failure | None = None,
        thread: bool = True,
        key: str | None = None,
    ) -> Answer[Any]:
        """Run `function(*args)`: safe to repeat. Its result is remembered; a crash in the middle runs it again."""
        if type(name) is not str:
            check_named("step", name)
        signature = signature_of(function)
        if backoff is None and timeout is None and retry_on is None and max_attempts == 3:
            policy = DEFAULT
        else:
            policy = policy_from(max_attempts, backoff, timeout, retry_on)
        spec = StepSpec(function, args, signature, policy, compensate, thread)
        return self._call("step", name, key, args, spec, signature.returns)

    @overload
    def effect(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, mode: Mode = ..., window: timedelta | None = ..., lookup: Callable[..., Any] | None = ..., compensate: Callable[..., Any] | None = ..., max_attempts: int = ..., backoff: Backoff | timedelta | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., thread: bool = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    @overload
    def effect(self, name: str, function: Callable[..., T], *args: Any, mode: Mode = ..., window: timedelta | None = ..., lookup: Callable[..., Any] | None = ..., compensate: Callable[..., Any] | None = ..., max_attempts: int = ..., backoff: Backoff | timedelta | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., thread: bool = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    def effect(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        mode: Mode = "manual",
        window: timedelta | None = None,
        lookup: Callable[..., Any] | None = None,
        compensate: Callable[..., Any] | None = None,
        max_attempts: int = 3,
        backoff: Backoff | timedelta | None = None,
        timeout: float | timedelta | None = None,
        retry_on: Failure | None = None,
        thread: bool = True,
        key: str | None = None,
    ) -> Answer[Any]:
        """Touch the outside world: recorded before it starts, repeated only as its `mode` allows."""
        if type(name) is not str:
            check_named("effect", name)
        spec = effect_spec(
            function, args, mode=mode, window=window, lookup=lookup, compensate=compensate, max_attempts=max_attempts,
            backoff=backoff, timeout=timeout, retry_on=retry_on, thread=thread,
        )  # fmt: skip
        return self._call("effect", name, key, args, spec, spec.signature.returns)

    @overload
    def transaction(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, compensate: Callable[..., Any] | None = ..., max_attempts: int = ..., backoff: Backoff | timedelta | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    @overload
    def transaction(self, name: str, function: Callable[..., T], *args: Any, compensate: Callable[..., Any] | None = ..., max_attempts: int = ..., backoff: Backoff | timedelta | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    def transaction(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        compensate: Callable[..., Any] | None = None,
        max_attempts: int = 3,
        backoff: Backoff | timedelta | None = None,
        timeout: float | timedelta | None = None,
        retry_on: Failure | None = None,
        key: str | None = None,
    ) -> Answer[Any]:
        """Run `function(tx, *args)` in the store's database, in the same commit as its journal row."""
        if type(name) is not str:
            check_named("transaction", name)
        signature = signature_of(function)
        policy = policy_from(max_attempts, backoff, 10.0 if timeout is None else timeout, retry_on)
        spec = TransactionSpec(function, args, signature, policy, compensate)
        return self._call("transaction", name, key, args, spec, signature.returns)

    async def parallel(self, name: str, branches: Mapping[str, Any]) -> list[Any]:
        """Run branches at once: `{"crm": (push, order), "mail": effect(send, order)}`. All settle; then the
        results come in the order of the branches, or the first failure is raised."""
        if not branches:
            raise BadDefinition(f"parallel {name!r} has no branches: give at least one")
        check_name("parallel name", name)
        asked = []
        for branch, what in branches.items():
            check_name(f"branch of {name!r}", branch)
            asked.append(self._call_branch(f"{name}.{branch}", what))
        settled = await asyncio.gather(*asked, return_exceptions=True)
        for answer in settled:
            if isinstance(answer, BaseException):
                raise answer
        return settled

    def _call_branch(self, name: str, what: Any) -> Answer[Any]:
        if isinstance(what, Effect):
            spec: Any = effect_spec(what.function, what.args, **what.options)
            return self._call("effect", name, None, what.args, spec, spec.signature.returns)
        function, args = (what[0], tuple(what[1:])) if isinstance(what, tuple) else (what, ())
        signature = signature_of(function)
        spec = StepSpec(function, args, signature, policy_from(3, None, None, None))
        return self._call("step", name, None, args, spec, signature.returns)

    # -- waiting

    def sleep(
        self, name: str, duration: timedelta | float | None = None, *, until: datetime | None = None,
        key: str | None = None,
    ) -> Answer[None]:  # fmt: skip
        """Wait: a row in the database, nothing in memory. Never early."""
        if (duration is None) == (until is None):
            words = "takes either a duration or until=…"
            if isinstance(cast(object, name), timedelta | int | float):
                words = "has no name: expected one before the duration, as in ctx.sleep('a while', …)"
            raise BadDefinition(f"sleep {name!r} {words}")
        if until is not None and until.tzinfo is None:
            raise BadDefinition(f"sleep {name!r}: until=… must carry a time zone")
        spec = SleepSpec(
            None if duration is None else max(0, microseconds(duration)),
            None if until is None else round(until.timestamp() * 1_000_000),
        )
        return self._call("sleep", name, key, None, spec)

    def wait_for_signal(
        self, name: str, *, timeout: timedelta | float | None = None, key: str | None = None
    ) -> Answer[Any]:
        """The payload of the next signal of that name (also one that came early), or None on time-out."""
        spec = SignalSpec(name, None if timeout is None else max(0, microseconds(timeout)))
        return self._call("signal", name, key, None, spec)

    def child(
        self, name: str, workflow: str, input: Any = None, *, version: int | None = None,
        compensate: Callable[..., Any] | None = None, key: str | None = None,
    ) -> Answer[Any]:  # fmt: skip
        """Start another workflow and wait for its result. Its failure raises ChildFailed here."""
        raw = codec.encode(input, "the input of child", self._limit, name)
        spec = ChildSpec(workflow, version, raw, compensate)
        return self._call("child", name, key, [workflow, input], spec)

    # -- beginning again

    def restart(self, input: Any = None) -> NoReturn:
        """Begin again with this input, as the same instance with an empty journal: its id, business key, parent and
        trace stay, and so do signals that nobody has taken. Never returns. For what waits for ever."""
        self._check_place()
        raw = self._input_of(input)
        refusal = refuses_restart(self._replay)
        if refusal is not None:
            raise RestartRefused(refusal)
        self._replay.restart = raw
        raise Restarting

    # -- values

    def now(self) -> datetime:
        """The time, journaled: a replay sees the same."""
        micros = self._value("now", self._clock)
        return datetime.fromtimestamp(micros / 1_000_000, UTC)

    def random(self) -> float:
        return float(self._value("random", self._entropy.random))

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(self._value("uuid", lambda: str(uuid.UUID(int=self._entropy.getrandbits(128), version=4))))

    def _value(self, name: str, make: Callable[[], Any]) -> Any:
        self._check_place()
        number = self._values[name] = self._values.get(name, 0) + 1
        key = name if number == 1 else f"{name}#{number}"
        recorded = self._replay.journal.calls.get(("value", key))
        if recorded is not None and recorded.answer is not None:
            self._replay.met += 1
            return codec.decode(bytes(recorded.answer.result))
        value = make()
        self.soft.append((VALUE_RECORDED, key, b'{"result":' + codec.encode(value) + b"}"))
        return value

    # -- naming

    def _check_place(self) -> None:
        if self._replay.closed:
            raise NotInWorkflow("this workflow is being unwound: a finally block cannot ask for anything any more")
        if self._replay.restart is not None:
            raise Restarting
        if self._replay.loop.drained_by != get_ident():
            raise NotInWorkflow(
                "ctx belongs to the workflow's own code: it cannot be used inside a step, a thread or another task; "
                "return from the step and ask there"
            )

    def _call(self, kind: str, name: str, key: str | None, args: Any, spec: Any, type_: Any = None) -> Answer[Any]:
        """Give the call its key: its name and occurrence. Two concurrent branches must not share a name."""
        replay = self._replay
        if replay.closed or replay.restart is not None or replay.loop.drained_by != get_ident():
            self._check_place()
        if key is not None:
            check_name("key", key)
            name = f"{name}.{key}"
        task = asyncio.current_task(replay.loop)
        last = self._last.get(name)
        if last is None:
            check_name("step name", name)
            number, place = 1, name
        else:
            before, user, number = last
            if not before.done() or (user is not task and user is not replay.main and user and not user.done()):
                raise ConcurrentName(name)
            number += 1
            if number > CALLS_LIMIT:
                raise BadDefinition(f"{name!r} was asked for more than {CALLS_LIMIT:,} times: start a child per part")
            place = f"{name}#{number}"
        raw, hashed = b"", ""
        if args is not None:
            raw = codec.encode_sorted(args, "the arguments of", self._limit, place)
            if len(raw) > ARGS_INLINE and kind != "effect":  # the desk shows what an effect was asked to do
                raw, hashed = b"", codec.digest(raw)
        call = replay.ask(kind, place, raw, hashed, spec, type_)
        if spec.compensate is not None:
            replay.compensable.append(call)
        self._last[name] = (call.future, task, number)
        return call.future  # type: ignore[return-value]


def check_named(call: str, name: object) -> None:
    """The name of a call is easily forgotten: the function stands in its place then."""
    if callable(name):
        function = getattr(name, "__name__", type(name).__name__)
        raise BadDefinition(
            f"the first argument of ctx.{call} is the function {function!r}: expected the {call}'s name before it, as "
            f'in ctx.{call}("{function}", {function}, …); its result is remembered under that name'
        )
