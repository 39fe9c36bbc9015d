"""A chart's tasks under claim: born with the turn that asks for them, run after it, settled by the turn that answers.

An automatic task is run by the worker that holds its instance; effects among them go the way of every effect
(`effects.py`): reserved, called, settled, or left to a key, a lookup or a person.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from holdfast.engine import codec, ids
from holdfast.engine import history as h
from holdfast.engine.ai import Redactor, read_options
from holdfast.engine.arguments import copied
from holdfast.engine.charts.snapshots import Waiting
from holdfast.engine.effects import effect_gone
from holdfast.engine.errors import HoldfastError, Rejected
from holdfast.engine.journal import Recorded, RowWords, words_from
from holdfast.engine.replay import Call
from holdfast.engine.retry import Backoff, RetryPolicy, policy_from
from holdfast.engine.signatures import signature_of
from holdfast.engine.spans import span
from holdfast.engine.stacks import without_stack
from holdfast.engine.steps import EFFECT_TIMEOUT, EffectSpec, StepSpec, TransactionSpec, effect_spec
from holdfast.engine.tasks import TaskInfo, TaskPlan
from holdfast.engine.turns import NewTask, TaskChange
from holdfast.store.port import OpenTask
from holdfast.worker import effects
from holdfast.worker.standing import EffectStanding, Phase, Standing

if TYPE_CHECKING:
    from holdfast.app.registry import TaskHandler
    from holdfast.worker.charts import ChartExecution

    Find = Callable[[str, str], TaskHandler | None]  # the handler of a task, by its type and its name

UNLIMITED = codec.UNLIMITED  # checked before, part by part
REVIEW = "@review"  # in a HUMAN task's options: the AI task it decides about
AI_SECONDS = 60.0
EMAIL_SECONDS = 300.0
AUTOMATIC = ("HTTP", "EMAIL", "AI", "SYSTEM")
# Fields of a task that are for the engine and not for its handler.
ENGINE_OPTIONS = frozenset((
    "max_attempts", "backoff", "timeout", "mode", "window", "completion_event", "failure_event", "handler", "tags",
    "description",
))  # fmt: skip


# Of every task opened under a claim its type, by its key: a settled one's row and history do not say it any more.
_types: WeakKeyDictionary[ChartExecution, dict[str, str]] = WeakKeyDictionary()


def type_of(ex: Any, key: str) -> str:
    """The type of the task with that key, for those who count what became of it."""
    return _types.get(ex, {}).get(key, "other")


class Task:
    """What a call of kind human, timer, step, transaction or effect belongs to."""

    __slots__ = (
        "deadline", "id", "input", "invoke_id", "key", "name", "options", "raw_options", "type", "visit", "word",
    )  # fmt: skip

    def __init__(
        self, id_: bytes, key: str, type_: str, name: str, input_: Any, options: dict[str, Any], raw_options: bytes,
        invoke_id: str | None, visit: int,
    ) -> None:  # fmt: skip
        self.id = id_
        self.word = "tsk_" + id_.hex()
        self.key = key
        self.type = type_
        self.name = name
        self.input = input_
        self.options = options
        self.raw_options = raw_options
        self.deadline: int | None = options.get("@deadline")
        self.invoke_id = invoke_id
        self.visit = visit

    def words(self) -> dict[str, Any]:
        """As events to the chart name it: a person who decides about an AI task speaks for that one."""
        about = self.options.get(REVIEW)
        if about is not None:
            return {"id": about["task"], "name": about["name"], "type": "AI", "review": self.word}
        return {"id": self.word, "name": self.name, "type": self.type}


class TaskCall(Call):
    """A call that runs a task."""

    __slots__ = ("begun", "refusal", "returns", "task")

    def __init__(self, kind: str, task: Task, args: bytes, spec: Any, returns: Any = None) -> None:
        self.kind = kind
        self.key = task.key
        self.args = args
        self.given = b""
        self.spec = spec
        self.type = None  # a chart goes on with plain JSON, whatever a handler's annotation says
        self.returns = returns
        self.task = task
        self.begun = 0  # the last attempt whose beginning is on record, by this claim or one that was lost
        self.refusal = ""  # why it cannot be run at all

    @property
    def expects(self) -> Any:
        return self.returns

    @property
    def task_id(self) -> str:
        return self.task.word


def create(ex: ChartExecution, plan: TaskPlan, place: str, invoke_id: str | None, visit: int, now: int) -> None:
    """Into the turn: a row, a history entry, and the call that will run it. `place`: turn and index of its birth."""
    type_ = plan.type
    key = f"{plan.name}/{place}"
    id_ = ex.task_id(key)
    task = Task(id_, key, type_, plan.name, plan.input, plan.options, plan.raw_options, invoke_id, visit)
    at_once = type_ in AUTOMATIC and (plan.run_at is None or plan.run_at <= now) and ex.moving_to is None
    run_at = None if at_once or type_ == "HUMAN" else plan.run_at if plan.run_at is not None else now
    ex.beyond_history()
    ex.tasks[id_] = NewTask(
        ex.tenant_id, id_, ex.id, ex.claimed.definition_key, key, type_, plan.name, plan.title,
        "running" if at_once else "pending", run_at, 1 if at_once else 0, plan.max_attempts,
        ex.worker_id if at_once else None, now if at_once else None, ex.fence, ids.idempotency_key(id_),
        plan.raw_input, plan.raw_options, ex.claimed.trace_id, plan.assignee,
        None if plan.groups is None else codec.encode(plan.groups).decode(), plan.priority, plan.due_at,
        plan.follow_up_at, invoke_id, visit, now, now if at_once else None,
    )  # fmt: skip
    if at_once:
        payload = f'{{"task":"{task.word}","type":"{type_}"}}'.encode()
    else:
        words: dict[str, Any] = {"task": task.word, "type": type_, "run_at": run_at}
        words |= {name: getattr(plan, name) for name in ("assignee", "groups", "due_at")}
        payload = codec.encode({name: value for name, value in words.items() if value is not None})
    ex.record(h.TASK_CREATED, key, payload)
    open_task(ex, task, run_at, None, None)


def take_up(ex: ChartExecution, row: OpenTask) -> None:
    """A task that an earlier claim left open."""
    task = _task_of(row)
    begun = row.attempts if row.status == "running" else 0
    open_task(ex, task, row.run_at, row.standing_type, row.standing, begun)


def _task_of(row: OpenTask) -> Task:
    return Task(
        row.id, row.key, row.type, row.name, codec.decode(row.input), codec.decode(row.options), row.options,
        row.invoke_id, row.visit,
    )  # fmt: skip


def leave_to_person(ex: ChartExecution, row: OpenTask, reason: str) -> bool:
    """Take up an effect that may have happened without ever calling its handler or lookup again. False: the task is
    none, or a model's answer, of which nobody need know."""
    opened = words_from(row.standing) if row.standing else None
    in_doubt = Recorded("effect", opened=opened, opened_type=row.standing_type or "").is_open_effect
    if opened is None or not in_doubt or row.type == "AI":
        return False
    if row.standing_type == h.EFFECT_UNKNOWN and not opened.retry_at:  # a person is asked already
        take_up(ex, row)
        return True
    task = _task_of(row)
    call, _ = _as_begun(ex.worker.task_handler, task, opened, row.standing_type)
    _types.setdefault(ex, {})[task.key] = task.type
    call.state = EffectStanding()
    effects.read_standing(call.state, opened)
    call.state.escaped = call.state.escaped or row.standing_type == h.EFFECT_STARTED
    ex.open[call.kind, call.key] = call
    effects.ask_person(ex, call, reason, effects.LOST)
    ex.waits += 1
    return True


def close(ex: ChartExecution, row: OpenTask, reason: str) -> None:
    """Put an open task aside without looking what it was about to do."""
    task = Task(row.id, row.key, row.type, row.name, None, {}, b"{}", row.invoke_id, row.visit)
    call = TaskCall("human", task, b"null", None)
    call.state = Standing()
    call.state.attempt = row.attempts
    _types.setdefault(ex, {})[task.key] = task.type
    ex.record(h.TASK_CANCELLED, row.key, codec.encode({"reason": reason}))
    change(ex, call, "cancelled")


def open_task(
    ex: ChartExecution, task: Task, run_at: int | None, standing_type: str | None, standing: bytes | None,
    begun: int = 0,
) -> None:  # fmt: skip
    _types.setdefault(ex, {})[task.key] = task.type
    if task.type in ("HUMAN", "TIMER"):
        call = TaskCall(task.type.lower(), task, b"null", None)
        call.state = Standing()
        call.state.wait_until(_earlier(run_at, task.deadline))
    else:
        opened = words_from(standing) if standing else None
        call, gone = _as_begun(ex.worker.task_handler, task, opened, standing_type)
        call.state = EffectStanding() if call.kind == "effect" else Standing()
        if call.kind == "effect" and opened is not None:
            ex.open[call.kind, call.key] = call
            effects.open_effect(ex, call, opened, standing_type or "", gone)
            if (call.kind, call.key) not in ex.open:
                return  # settled on the spot
            if call.state.next == "lookup" and call.spec.lookup is None:
                no_lookup = {"type": "LookupGone", "message": "its handler has no lookup any more"}
                effects.ask_person(ex, call, no_lookup["message"], no_lookup)
        elif opened is not None and standing_type == h.TASK_RETRIED:
            call.state.attempt = opened.attempt + 1
            call.state.wait_until(opened.retry_at)
        elif run_at is not None:
            call.state.wait_until(run_at)
            if call.kind == "effect":
                call.state.attempt = 0  # the first begins when its time has come
    if call.state.phase is Phase.READY and task.deadline is not None and task.deadline <= ex.worker.now():
        call.state.wait_until(task.deadline)  # it was begun and lost, and no further attempt begins now
    call.begun = begun
    ex.open[call.kind, call.key] = call
    if call.state.phase is not Phase.READY:
        ex.waits += 1


def _earlier(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def asked_anew(find: Find, row: OpenTask) -> str:
    """Why a worker with these handlers would leave to a person what would go on by itself, as it takes up the task.
    Empty: it would not; of a model's answer nobody need know."""
    opened, task = words_from(row.standing) if row.standing else None, _task_of(row)
    built_in = task.type != "SYSTEM" and find(task.type, _handler_name(task)) is None  # no deploy changes its mode
    if opened is None or task.type == "AI" or built_in:
        return ""
    call, gone = _as_begun(find, task, opened, row.standing_type)
    if call.kind != "effect":
        return ""
    return effects.asked_anew(opened, row.standing_type or "", call.spec.mode, gone)


def _as_begun(find: Find, task: Task, opened: RowWords | None, standing_type: str | None) -> tuple[TaskCall, str]:
    """The call that goes on with the task; and if it was begun as an effect and the code makes none of it, why."""
    call = _automatic(find, task)
    if opened is None or call.kind == "effect" or standing_type == h.TASK_RETRIED:
        return call, ""
    words = call.refusal or f"its handler {_handler_name(task)!r} is a {call.kind} now"
    return _orphan(task, opened.mode, words), effect_gone(opened.mode, words)


def _handler_name(task: Task) -> str:
    return str(task.options.get("handler", task.name))


def _automatic(find: Find, task: Task) -> TaskCall:
    handler = find(task.type, _handler_name(task))
    try:
        if handler is None:
            return _refusing(task, f"no {task.type} handler {_handler_name(task)!r} is registered in this worker")
        spec = _spec(handler, task)
    except (HoldfastError, ValueError, TypeError, OverflowError) as error:
        return _refusing(task, str(error))
    if isinstance(spec, EffectSpec):
        return TaskCall("effect", task, _args(task), spec, _returns(handler))
    return TaskCall("transaction" if isinstance(spec, TransactionSpec) else "step", task, b"", spec)


def _returns(handler: TaskHandler) -> Any:
    """What the chart is promised. Holdfast's own handlers have no name, and what they return is not for a person to
    type; where the annotation is None, no result is promised."""
    returns = handler.signature.returns if handler.name else None
    return None if returns is type(None) else returns


def _args(task: Task) -> bytes:
    """What an effect's record shows of its request. Input and options were measured one by one when it was born."""
    return codec.encode({"input": kept_input(task), **_for_handler(task)}, limit=UNLIMITED)


def _orphan(task: Task, mode: str, words: str) -> TaskCall:
    """An effect that was begun, and whose handler is not there or no effect any more: only a person can settle it. Its
    mode stays the one that it was begun as."""
    spec = effect_spec(_refusal(words), (), max_attempts=1, thread=False)
    return TaskCall("effect", task, _args(task), msgspec.structs.replace(spec, mode=mode or spec.mode))


def _for_handler(task: Task) -> dict[str, Any]:
    return {k: v for k, v in task.options.items() if k not in ENGINE_OPTIONS and not k.startswith("@")}


def kept_input(task: Task) -> Any:
    """The input as it is kept: without the fields that an AI task marks."""
    if task.type != "AI" or "redact" not in task.options:
        return task.input
    try:
        return Redactor(read_options(task.options).redact, task.input).input(task.input)
    except HoldfastError:  # the handler says what is wrong with it
        return None


def _timeout(handler: TaskHandler, task: Task) -> float | None:
    """A little longer than the handler's own: it knows better what a late answer means."""
    given = _seconds(task.options.get("timeout"), None)
    if handler.name:
        return given if given is not None else handler.timeout
    if task.type == "AI":
        return float(task.options.get("timeout_seconds", AI_SECONDS)) + 15
    if task.type == "EMAIL":
        return given if given is not None else EMAIL_SECONDS
    return (given if given is not None else EFFECT_TIMEOUT) + 5


_policies: dict[tuple[int, bytes], tuple[TaskHandler, RetryPolicy]] = {}
POLICIES_MAX = 1000


def _policy(handler: TaskHandler, task: Task) -> RetryPolicy:
    """Worked out once for each handler and set of options."""
    key = (id(handler), task.raw_options)
    found = _policies.get(key)
    if found is None or found[0] is not handler:
        if len(_policies) >= POLICIES_MAX:
            _policies.clear()
        options = task.options
        policy = policy_from(
            options.get("max_attempts", 3), _backoff(options.get("backoff")), _timeout(handler, task), None
        )
        found = _policies[key] = (handler, policy)
    return found[1]


def _spec(handler: TaskHandler, task: Task) -> StepSpec | EffectSpec | TransactionSpec:
    signature = handler.signature
    args: tuple[Any, ...] = () if signature.positional == 0 else (task.input,)
    if handler.kind == "step":
        return StepSpec(handler.function, args, signature, _policy(handler, task), None, handler.thread)
    if handler.kind == "transaction":
        return TransactionSpec(
            handler.function, () if signature.positional == 1 else args, signature, _policy(handler, task)
        )
    options = task.options
    mode, window = options.get("mode", handler.mode), options.get("window")
    return effect_spec(
        handler.function, args, mode=mode,
        window=(_delta(window) if window is not None else handler.window) if mode == "keyed" else None,
        lookup=handler.lookup if mode == "lookup" else None, max_attempts=options.get("max_attempts", 3),
        backoff=_backoff(options.get("backoff")), timeout=_timeout(handler, task), thread=handler.thread,
        settle_after=handler.settle_after if mode == "lookup" else None,
    )  # fmt: skip


def _backoff(given: Any) -> Backoff | None:
    """`{"first": "PT1S", "factor": 2, "cap": "PT1M", "jitter": 0.2}`, or one span for every pause."""
    if given is None:
        return None
    if not isinstance(given, dict):
        return Backoff(first=_delta(given), factor=1, cap=_delta(given))
    made: dict[str, Any] = {
        name: _delta(value) if name in ("first", "cap") else float(value) for name, value in given.items()
    }
    return Backoff(**made)


def _delta(given: Any) -> timedelta:
    micros = span(given)
    if isinstance(micros, str):
        raise ValueError(micros)
    return timedelta(microseconds=micros)


def _seconds(given: Any, default: float | None) -> float | None:
    return default if given is None else _delta(given).total_seconds()


def _refusing(task: Task, words: str) -> TaskCall:
    refuse = _refusal(words)
    spec = StepSpec(refuse, (), signature_of(refuse), RetryPolicy(max_attempts=1), thread=False)
    call = TaskCall("step", task, b"", spec)
    call.refusal = words
    return call


def _refusal(words: str) -> Callable[[], None]:
    def refuse() -> None:
        raise Rejected(words)

    return refuse


def info(ex: ChartExecution, call: TaskCall) -> TaskInfo:
    task = call.task
    options = _for_handler(task)
    if task.type == "HTTP" and "timeout" in task.options:
        options["timeout"] = _seconds(task.options["timeout"], None)
    return TaskInfo(
        tenant_id=ex.tenant_id, instance_id=ids.instance_word(ex.id), task_id=task.word,
        workflow=ex.claimed.definition_key, version=ex.claimed.definition_version, type=task.type, name=task.name,
        attempt=call.state.attempt, idempotency_key=ids.idempotency_key(task.id),
        not_after=call.state.not_after / 1_000_000 if call.kind == "effect" else None, input=copied(task.input),
        options=copied(options), trace_id=ex.worker.trace_of(ex),
    )  # fmt: skip


def change(
    ex: ChartExecution, call: TaskCall, status: str, *, run_at: int | None = None, output: bytes | None = None,
    error: bytes | None = None, standing_type: str | None = None, standing: bytes | None = None,
    completed_by: str | None = None,
) -> None:  # fmt: skip
    """The task's row after this turn. Several changes in one turn become one: the last."""
    now, id_ = ex.worker.now(), call.task.id
    settled = now if status not in ("pending", "running") else None
    locked_by = ex.worker_id if status == "running" else None
    ex.beyond_history()
    born = ex.tasks.get(id_)
    if born is not None:  # in this very turn: one row, as it stands at the end of it
        ex.tasks[id_] = born._replace(
            status=status, run_at=run_at, attempts=call.state.attempt, locked_by=locked_by,
            locked_at=now if locked_by else None, completed_at=settled, closed_at=settled,
            standing_type=standing_type or born.standing_type, standing=standing or born.standing,
            output=output or born.output, error=error or born.error,
        )  # fmt: skip
        return
    before = ex.task_changes.get(id_)
    made = TaskChange(
        ex.tenant_id, id_, ex.id, status, run_at, call.state.attempt, locked_by, ex.fence, output, error,
        standing_type, standing, now, settled, completed_by, ex.id,
        codec.encode(kept_input(call.task)) if settled and "redact" in call.task.options else None,
    )  # fmt: skip
    if before is not None and made.standing is None:
        made = made._replace(standing_type=before.standing_type, standing=before.standing)
    ex.task_changes[id_] = made


def try_now(ex: ChartExecution, call: TaskCall) -> None:
    """Its wait for the next attempt is over, in its row too: a crash must not restore the wait."""
    now, standing = ex.worker.now(), call.state
    standing.at = now
    if call.kind == "effect":
        words = codec.encode(effects.standing_words(call) | {"retry_at": now})
        change(ex, call, "pending", run_at=now, standing_type=h.EFFECT_RETRIED, standing=words)
        return
    standing.attempt -= 1  # the row counts the attempts that were made
    words = codec.encode({"attempt": standing.attempt, "retry_at": now})
    change(ex, call, "pending", run_at=now, standing_type=h.TASK_RETRIED, standing=words)
    standing.attempt += 1


def answer_of(call: TaskCall, done: bool, result: Any) -> Waiting:
    task = call.task
    result = result if done else without_stack(result)
    if task.invoke_id is not None:
        if done:
            event = {"type": f"xstate.done.actor.{task.invoke_id}", "output": result, "task": task.words()}
        else:
            event = {"type": f"xstate.error.actor.{task.invoke_id}", "error": result, "task": task.words()}
        return Waiting(event, "child", task.invoke_id, task.visit)
    if done:
        type_ = task.options.get("completion_event", f"task.done.{task.words()['name']}")
        return Waiting({"type": type_, "output": result, "task": task.words()})
    type_ = task.options.get("failure_event", f"task.failed.{task.words()['name']}")
    return Waiting({"type": type_, "error": result, "task": task.words()}, failure=True)
