"""Refusals: what Holdfast says no to, with a public code and a text that says what to do next."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Misplaced(msgspec.Struct, frozen=True):
    """One thing that does not fit: where it stands, as a JSON pointer, and what was expected."""

    pointer: str
    detail: str


class HoldfastError(Exception):
    """The base of every refusal. `code` is public API; the text is for people."""

    code = "holdfast_error"
    fact = ""  # what is so, where the text goes on to say what to do about it


class WorkflowNotRegistered(HoldfastError):
    """No workflow of that name (and version) is registered in this process."""

    code = "workflow_not_registered"

    def __init__(self, key: str, version: int | None, known: list[str]) -> None:
        named = f"{key!r}" if version is None else f"{key!r} version {version}"
        listed = ", ".join(sorted(known)) or "none"
        self.fact = f"no workflow {named} is registered here (registered: {listed})"
        super().__init__(f"{self.fact}: import the module that declares it, or correct the name")


class InstanceNotFound(HoldfastError):
    """There is no such instance in this tenant."""

    code = "instance_not_found"

    def __init__(self, instance_id: str, tenant_id: str, why: str = "") -> None:
        self.fact = f"no instance {instance_id} in tenant {tenant_id!r}"
        why = why or 'check the id and the tenant (hf.tenant("…") binds one; unbound means "default")'
        super().__init__(f"{self.fact}: {why}")


class InstanceEnded(HoldfastError):
    """The instance has ended; it takes no more events."""

    code = "instance_ended"

    def __init__(self, instance_id: str, status: str, asked: str) -> None:
        self.status = status
        super().__init__(f"instance {instance_id} is {status}: it cannot {asked} any more")


class InstanceFailed(HoldfastError):
    """Raised by `handle.result()` when the instance ended as failed or cancelled.

    `error` is its error as the history has it: `type`, `message`, and where there are any `stack` and `causes`. Where
    the exception itself is at hand, in the process that ran it, it is the `__cause__`."""

    code = "instance_failed"

    def __init__(self, instance_id: str, status: str, error: object, words: str = "") -> None:
        self.status = status
        self.error = error
        super().__init__(f"instance {instance_id} {status}: {words or error}")


class ResultNotReady(HoldfastError):
    """The instance had not ended when the wait was over."""

    code = "result_not_ready"

    def __init__(
        self, instance_id: str, status: str, waiting_on: str | None,
        advice: str = "wait longer, or read its history to see why",
    ) -> None:  # fmt: skip
        on = f" on {waiting_on}" if waiting_on else ""
        super().__init__(f"instance {instance_id} is still {status}{on}: {advice}")


class ForkRefused(HoldfastError):
    """A new instance cannot go on from there; the text says why, and what to do instead."""

    code = "fork_refused"

    def __init__(self, instance_id: str, why: str) -> None:
        super().__init__(f"instance {instance_id} cannot be forked: {why}")


class RestartRefused(HoldfastError):
    """A workflow cannot restart now; the text says what stands in the way."""

    code = "restart_refused"

    def __init__(self, why: str) -> None:
        super().__init__(f"the workflow cannot restart: {why}")


class Restarting(BaseException):
    """Ends a workflow's body at `ctx.restart(…)`. Not an `Exception`, so that no handler of errors takes it for one;
    whoever catches it all the same changes nothing: from that call on the body can ask for nothing more."""


class BusinessKeyTaken(HoldfastError):
    """Another instance, started with another input, has this business key."""

    code = "business_key_taken"

    def __init__(
        self, business_key: str, instance_id: str, difference: list[tuple[str, str, str]] | None = None
    ) -> None:
        self.instance_id = instance_id
        self.places = difference or []
        """(where the inputs differ, what that one has, what this one has)"""
        super().__init__(
            f"business key {business_key!r} already belongs to {instance_id}, which was started with another "
            "input: use a new business key, or read that instance"
        )


class BadDefinition(HoldfastError):
    """A workflow is declared in a way that cannot work."""

    code = "bad_definition"


class BadInput(HoldfastError):
    """An argument or an input does not fit what is expected. `errors` says where, if it is about an input."""

    code = "bad_input"

    def __init__(self, text: str, errors: Sequence[Misplaced] = ()) -> None:
        self.errors = tuple(errors)
        super().__init__(text)


class NotJson(HoldfastError):
    """A value cannot be kept as JSON."""

    code = "not_json"


class NotAwaited(NotJson):
    """A value is a future or a coroutine: the call that made it was not awaited."""


class PayloadTooLarge(HoldfastError):
    """A value is larger than the configured limit."""

    code = "payload_too_large"

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(
            f"{what} takes {size:,} bytes as JSON, the limit is {limit:,}: "
            "store it elsewhere and pass a reference, or raise the payload_limit of Holdfast"
        )


class JournalContradiction(HoldfastError):
    """The code asks for something its journal says otherwise; the instance is parked, nothing is lost."""

    code = "journal_contradiction"


class ConcurrentName(HoldfastError):
    """Two concurrent branches use one name."""

    code = "concurrent_name"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the name {name!r} is used by two concurrent branches, so a replay could not tell them apart: "
            "give each branch its own key=…"
        )


class LoopExhausted(HoldfastError):
    """A loop was not done after its last round."""

    code = "loop_exhausted"

    def __init__(self, name: str, rounds: int) -> None:
        super().__init__(f"loop {name!r} was not done after {rounds} rounds")


class NotInWorkflow(HoldfastError):
    """A workflow did something only the outside may do, or `ctx` was used outside its workflow."""

    code = "not_in_workflow"


class StoreUnavailable(HoldfastError):
    """The database cannot be reached or opened."""

    code = "store_unavailable"


class StoreTooNew(HoldfastError):
    """The database was migrated by a newer Holdfast."""

    code = "store_too_new"


class StoreNotMigrated(HoldfastError):
    """The database is older than this Holdfast; run `holdfast migrate`."""

    code = "store_not_migrated"


class Backlogged(HoldfastError):
    """More instances wait than the configured backlog allows: start again later."""

    code = "backlogged"


class ConnectionRefused(HoldfastError):
    """The connection handed to `hf.start(connection=…)` cannot carry the start."""

    code = "connection_refused"


class EffectNotFound(HoldfastError):
    """There is no such effect in this tenant."""

    code = "effect_not_found"

    def __init__(self, effect_id: str, tenant_id: str, why: str = "") -> None:
        self.fact = f"no effect {effect_id} in tenant {tenant_id!r}"
        super().__init__(f"{self.fact}: {why or 'list them with `holdfast effects list`'}")


class EffectNotOpen(HoldfastError):
    """The operator's choice is not open: the effect is settled, or its worker may still act."""

    code = "effect_not_open"


class DeadLetterNotFound(HoldfastError):
    """There is no such dead letter in this tenant."""

    code = "dead_letter_not_found"

    def __init__(self, letter: str, tenant_id: str) -> None:
        self.fact = f"no dead letter {letter} in tenant {tenant_id!r}"
        super().__init__(f"{self.fact}: list them with `holdfast dead-letters list --all`")


class DeadLetterNotOpen(HoldfastError):
    """Somebody has dealt with the dead letter, or it is not of a kind that can be replayed."""

    code = "dead_letter_not_open"


class StepFailed(HoldfastError):
    """Raised inside a workflow when a step is out of attempts."""

    code = "step_failed"
    recorded: object = None  # the error as the history has it

    def __init__(self, step: str, error_type: str, message: str, attempts: int) -> None:
        self.step = step
        self.error_type = error_type
        self.message = message
        self.attempts = attempts
        super().__init__(f"step {step!r} failed after {attempts} attempt(s): {error_type}: {message}")


class EffectFailed(StepFailed):
    """Raised inside a workflow when an effect is known not to have happened and is out of attempts."""

    code = "effect_failed"


class EffectAborted(StepFailed):
    """Raised inside a workflow when a person decided to abort an effect of unknown outcome."""

    code = "effect_aborted"


class ChildFailed(HoldfastError):
    """Raised inside a workflow when a child failed or was cancelled."""

    code = "child_failed"
    recorded: object = None  # the error as the history has it

    def __init__(self, step: str, child_id: str, status: str, error: object) -> None:
        self.step = step
        self.child_id = child_id
        self.status = status
        self.error = error
        super().__init__(f"child {step!r} ({child_id}) {status}: {error}")


class NotApplied(Exception):
    """Raised by an effect handler: I know that nothing happened, so it may be tried again."""


class Rejected(Exception):
    """Raised by an effect handler: the provider refused for good; nothing happened and no retry helps."""


class DefinitionNotFound(HoldfastError):
    """No such definition is published for this tenant."""

    code = "definition_not_found"

    def __init__(self, key: str, version: int | None = None) -> None:
        which = f"version {version} of {key!r}" if version else f"a definition {key!r}"
        self.fact = f"{which} is not published here"
        super().__init__(f"{self.fact}: `holdfast definitions list` shows what is")


class DefinitionNotActive(HoldfastError):
    """The definition is there, but no version of it may start new instances."""

    code = "definition_not_active"

    def __init__(self, key: str, version: int) -> None:
        self.fact = f"version {version} of {key!r} is not active"
        super().__init__(f"{self.fact}: `holdfast definitions activate {key} {version}` lets new instances start")


class EventNotTaken(HoldfastError):
    """A strict send whose event no state of the instance takes now."""

    code = "invalid_transition"

    def __init__(self, event: str, state: str) -> None:
        super().__init__(f"the instance is in {state!r} and takes no {event!r} there: nothing was changed")


class EventNotTakenYet(HoldfastError):
    """A strict send whose event is on record, but no worker has come to it in time."""

    code = "event_not_taken_yet"

    def __init__(self, event_id: str, seconds: float) -> None:
        super().__init__(
            f"event {event_id!r} is recorded, and no worker has taken it in {seconds:g} s: its turn will come; "
            "ask again with the same id"
        )


class EventInLine(HoldfastError):
    """A strict send whose event is on record, to an instance that stands still until a person resumes it."""

    code = "event_in_line"

    def __init__(self, event_id: str, why: str, *, paused: bool = False) -> None:
        if paused:
            super().__init__(f"event {event_id!r} is recorded, and its instance is {why}: it is taken then, in order")
            return
        super().__init__(
            f"event {event_id!r} is recorded, and its instance waits for a person: {why}: mend it and resume it, or "
            "resume it with drop_event to put aside what it cannot work off"
        )


class TaskNotFound(HoldfastError):
    """No such task for this tenant."""

    code = "task_not_found"

    def __init__(self, task: str, why: str = "") -> None:
        self.fact = f"there is no task {task!r} here"
        super().__init__(f"{self.fact}: {why or '`holdfast tasks list` shows the open ones'}")


class TaskNotOpen(HoldfastError):
    """The task is settled, or somebody else has it."""

    code = "task_not_open"


class FormRefused(HoldfastError):
    """What was handed in does not fit the task's form; `problems` says where."""

    code = "validation_failed"

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("the form is refused: " + "; ".join(problems[:5]))


class TaskAlreadyClaimed(TaskNotOpen):
    """The task is open, and somebody else has it."""

    code = "task_already_claimed"


class Forbidden(HoldfastError):
    """Whoever asks may not do this; the text says what would be needed."""

    code = "forbidden"


class VersionMoved(HoldfastError):
    """The caller decided on a version that is not the newest any more: nothing was changed."""

    code = "precondition_failed"

    def __init__(self, what: str, expected: str, found: str) -> None:
        self.expected, self.found = expected, found
        super().__init__(
            f"{what} is at version {found}, not {expected}: somebody else changed it first; read it again and decide "
            "afresh"
        )


class PrincipalNotFound(HoldfastError):
    """No such principal in this tenant."""

    code = "principal_not_found"

    def __init__(self, word: str) -> None:
        self.fact = f"there is no principal {word!r} here"
        super().__init__(f"{self.fact}: `holdfast principals list` shows who there is")


class KeyNotFound(HoldfastError):
    """No such API key in this tenant."""

    code = "key_not_found"

    def __init__(self, word: str) -> None:
        self.fact = f"there is no API key {word!r} here"
        super().__init__(f"{self.fact}: `holdfast keys list` shows which there are")


class NameTaken(HoldfastError):
    """Another principal of this tenant has that name."""

    code = "name_taken"
