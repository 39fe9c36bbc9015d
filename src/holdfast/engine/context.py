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
from holdfast.engine.arguments import need_reading
from holdfast.engine.body_log import Log, Sink
from holdfast.engine.errors import (
    BadDefinition,
    ConcurrentName,
    LoopExhausted,
    NotInWorkflow,
    Restarting,
    RestartRefused,
)
from holdfast.engine.history import VALUE_RECORDED
from holdfast.engine.ids import check_name
from holdfast.engine.journal import ARGS_INLINE, UNDO
from holdfast.engine.replay import Replay
from holdfast.engine.retry import DEFAULT, BackoffOption, microseconds, policy_from
from holdfast.engine.saga import refuses_restart
from holdfast.engine.signatures import signature_of
from holdfast.engine.steps import (
    ChildSpec,
    Compensate,
    Effect,
    Mode,
    SignalSpec,
    SleepSpec,
    StepSpec,
    TransactionSpec,
    check_chosen,
    check_compensation,
    check_rounds,
    check_routes,
    described,
    effect_spec,
    is_enough,
    spec_of,
)

T = TypeVar("T")
# What a call gives is a future of the workflow's own loop. It is declared as a coroutine, so that type checkers report
# a forgotten `await`: its failure would reach nobody.
Answer = Coroutine[Any, Any, T]
Failure = type[BaseException] | tuple[type[BaseException], ...]
CALLS_LIMIT = 100_000
REFUSALS_MAX = 1_000  # calls of a body that is over; see `_check_place`


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
        self._refused = 0
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
    def step(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, compensate: Compensate | None = ..., max_attempts: int = ..., backoff: BackoffOption | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., thread: bool = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    @overload
    def step(self, name: str, function: Callable[..., T], *args: Any, compensate: Compensate | None = ..., max_attempts: int = ..., backoff: BackoffOption | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., thread: bool = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        compensate: Compensate | None = None,
        max_attempts: int = 3,
        backoff: BackoffOption | None = None,
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
    def effect(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, mode: Mode = ..., window: timedelta | None = ..., lookup: Callable[..., Any] | None = ..., settle_after: timedelta | None = ..., compensate: Compensate | None = ..., max_attempts: int = ..., backoff: BackoffOption | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., thread: bool = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    @overload
    def effect(self, name: str, function: Callable[..., T], *args: Any, mode: Mode = ..., window: timedelta | None = ..., lookup: Callable[..., Any] | None = ..., settle_after: timedelta | None = ..., compensate: Compensate | None = ..., max_attempts: int = ..., backoff: BackoffOption | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., thread: bool = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    def effect(
        self,
        name: str,
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
        retry_on: Failure | None = None,
        thread: bool = True,
        key: str | None = None,
    ) -> Answer[Any]:
        """Touch the outside world: recorded before it starts, repeated only as its `mode` allows."""
        if type(name) is not str:
            check_named("effect", name)
        spec = effect_spec(
            function, args, mode=mode, window=window, lookup=lookup, compensate=compensate, max_attempts=max_attempts,
            backoff=backoff, timeout=timeout, retry_on=retry_on, thread=thread, settle_after=settle_after,
        )  # fmt: skip
        return self._call("effect", name, key, args, spec, spec.signature.returns)

    @overload
    def transaction(self, name: str, function: Callable[..., Awaitable[T]], *args: Any, compensate: Compensate | None = ..., max_attempts: int = ..., backoff: BackoffOption | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    @overload
    def transaction(self, name: str, function: Callable[..., T], *args: Any, compensate: Compensate | None = ..., max_attempts: int = ..., backoff: BackoffOption | None = ..., timeout: float | timedelta | None = ..., retry_on: Failure | None = ..., key: str | None = ...) -> Answer[T]: ...  # noqa: E501  # fmt: skip
    def transaction(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        compensate: Compensate | None = None,
        max_attempts: int = 3,
        backoff: BackoffOption | None = None,
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

    async def route(self, name: str, choose: Any, branches: Mapping[str, Any]) -> Any:
        """One of several ways: `await ctx.route("risk", (assess, order), {"high": (review, order), "low": None})`.
        `choose` names the branch, and its answer is remembered. Branches are as in `parallel`; None: nothing to do.
        Gives the branch's result."""
        check_name("route name", name)
        check_routes(name, branches)
        chosen = check_chosen(name, await self._call_branch(name, choose, typed=False), branches)
        what = branches[chosen]
        return None if what is None else await self._call_branch(f"{name}.{chosen}", what)

    async def loop(
        self, name: str, what: Any, *, until: Callable[[Any], Any], every: timedelta | float = 0, max_rounds: int = 100
    ) -> Any:
        """Repeat `what` (as a branch of `parallel`) until `until(result)` is true, and give that result. `until` runs
        in the workflow itself and must be pure."""
        check_rounds(name, max_rounds)
        for number in range(1, max_rounds + 1):
            result = await self._call_branch(name, what)
            if is_enough(name, until(result)):
                return result
            if number < max_rounds:
                await self.sleep(f"{name}.every", every)
        raise LoopExhausted(name, max_rounds)

    def _call_branch(self, name: str, what: Any, *, typed: bool = True) -> Answer[Any]:
        made = described(what)
        spec = spec_of(made)
        kind = "effect" if isinstance(made, Effect) else "step"
        return self._call(kind, name, None, made.args, spec, spec.signature.returns if typed else None)

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
        compensate: Compensate | None = None, key: str | None = None,
    ) -> Answer[Any]:  # fmt: skip
        """Start another workflow and wait for its result. Its failure raises ChildFailed here."""
        raw = codec.encode(input, "the input of child", self._limit, name)
        spec = ChildSpec(workflow, version, raw, compensate)
        return self._call("child", name, key, [workflow, input], spec)

    # -- beginning again

    def restart(self, input: Any = None) -> NoReturn:
        """Begin again with this input, as the same instance with an empty journal: its id, business key, parent and
        trace stay, and so do signals that nobody has taken. Never returns. For what waits for ever."""
        if not self._check_place():
            raise Restarting
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
        if not self._check_place():
            return make()
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

    def _check_place(self) -> bool:
        """False if the body is over and was told so again and again: it catches everything (`except:` in a `while
        True`), so the next call gets an answer that never comes, else the body would loop for ever and its worker with
        it."""
        if self._replay.closed or self._replay.restart is not None:
            self._refused += 1
            if self._refused > REFUSALS_MAX:
                return False
        if self._replay.closed:
            raise NotInWorkflow("this workflow is being unwound: a finally block cannot ask for anything any more")
        if self._replay.restart is not None:
            raise Restarting
        if self._replay.loop.drained_by != get_ident():
            raise NotInWorkflow(
                "ctx belongs to the workflow's own code: it cannot be used inside a step, a thread or another task; "
                "return from the step and ask there"
            )
        return True

    def _call(self, kind: str, name: str, key: str | None, args: Any, spec: Any, type_: Any = None) -> Answer[Any]:
        """Give the call its key: its name and occurrence. Two concurrent branches must not share a name."""
        replay = self._replay
        elsewhere = replay.closed or replay.restart is not None or replay.loop.drained_by != get_ident()
        if elsewhere and not self._check_place():
            return replay.loop.create_future()  # type: ignore[return-value]
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
        raw, hashed, given = b"", "", b""
        if args is not None:
            raw = codec.encode_sorted(args, "the arguments of", self._limit, place)
            if args and need_reading(args) and kind != "child":
                given = raw
            if len(raw) > ARGS_INLINE and kind != "effect":  # the desk shows what an effect was asked to do
                raw, hashed = b"", codec.digest(raw)
        if kind == "effect" and place.startswith(UNDO):
            raise BadDefinition(f"effect {place!r}: names that begin with {UNDO!r} are those of compensations")
        call = replay.ask(kind, place, raw, hashed, spec, type_)
        if given:
            call.given = given
        if spec.compensate is not None:
            check_compensation(spec.compensate)
            replay.compensable.append(call)
            if call.recorded is not None:
                call.recorded.undoable = True
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
