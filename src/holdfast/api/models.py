"""What goes over the wire: requests as they are taken and answers as they are given, for the server and its client."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from holdfast.engine.errors import Misplaced
from holdfast.engine.moments import Moment

T = TypeVar("T")

InstanceStatus = Literal["pending", "running", "waiting", "compensating", "completed", "failed", "cancelled"]
TaskStatus = Literal["pending", "running", "succeeded", "failed", "cancelled", "skipped"]
TaskType = Literal["HUMAN", "TIMER", "HTTP", "EMAIL", "AI", "SYSTEM"]
DefinitionStatus = Literal["active", "inactive", "archived"]
EffectState = Literal["started", "succeeded", "failed", "outcome_unknown", "resolved"]
Resolution = Literal["happened", "did_not_happen", "abort"]
PrincipalKind = Literal["human", "service", "agent"]
Role = Literal["viewer", "operator", "approver", "builder", "admin", "auditor"]

NAME = r"^[^\x00-\x1f\x7f#]+$(?!\n)"  # `$` alone lets a line end slip through behind it
Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=NAME)]
Key = Annotated[str, Meta(min_length=1, max_length=500)]
Reason = Annotated[str, Meta(max_length=2000)]
Reasoned = Annotated[str, Meta(min_length=1, max_length=2000)]
Issuer = Annotated[str, Meta(min_length=1, max_length=500, pattern=r"^[\x21-\x7e]+$(?!\n)")]
Subject = Annotated[str, Meta(min_length=1, max_length=255)]
EventId = Annotated[str, Meta(min_length=1, max_length=200)]
Version = Annotated[int, Meta(ge=1, le=2_147_483_647)]
FRAMES: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "file": {"type": "string"}, "line": {"type": "integer"}, "function": {"type": "string"},
            "library": {"type": "boolean"}, "left_out": {"type": "integer"},
        },
    },
}  # fmt: skip
Failure = Annotated[
    Any,
    Meta(
        description="Null, or an error: its type, its message, the stack of an exception (outermost frame first; "
        "`library`: not the author's code; `left_out`: frames left out before this one), and the errors that led to it "
        "(`how`: cause, context, member, step, task or child). There may be more fields.",
        extra_json_schema={
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "stack": FRAMES,
                "causes": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "how": {"type": "string"},
                            "type": {"type": "string"},
                            "message": {"type": "string"},
                            "stack": FRAMES,
                        },
                    },
                },
            },
        },
    ),
]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a request may say."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer says."""


class Listing(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page. `next_cursor` asks for the next one; null: this was the last."""

    items: list[T]
    next_cursor: str | None


# -- definitions


class Publish(Body, frozen=True, kw_only=True):
    """A chart to publish as the next version of its key."""

    spec: dict[str, Any]
    key: Name | None = None


class Lint(Body, frozen=True, kw_only=True):
    spec: dict[str, Any]


class Simulate(Body, frozen=True, kw_only=True):
    """A chart (`spec`, or a published one by `definition_id` or `definition_key`), its input, and events to try."""

    spec: dict[str, Any] | None = None
    definition_id: str | None = None
    definition_key: Name | None = None
    version: Version | None = None
    input: Any = None
    events: Annotated[list[dict[str, Any]], Meta(max_length=1000)] = []


class DefinitionOut(Said, frozen=True, kw_only=True):
    """A published definition, or a code workflow that this server's app has."""

    id: str
    key: str
    version: int
    kind: Literal["chart", "code", "template"]
    status: DefinitionStatus
    hash: str | None
    handlers: list[str]
    created_at: Moment | None
    created_by: str | None
    changed_at: Moment | None
    changed_by: str | None
    revision: int
    spec: dict[str, Any] | None = None


class ProblemOut(Said, frozen=True, kw_only=True):
    """One thing that is or looks wrong in a chart."""

    level: Literal["error", "warning"]
    pointer: str
    detail: str


class LintOut(Said, frozen=True, kw_only=True):
    sound: bool
    problems: list[ProblemOut]


class DiffOut(Said, frozen=True, kw_only=True):
    text: str
    same: bool


class TurnsOut(Said, frozen=True, kw_only=True):
    turns: list[dict[str, Any]]


# -- instances


class Start(Body, frozen=True, kw_only=True):
    """Start an instance of `definition_key` (its newest active version, or `version`) or of `definition_id`."""

    definition_key: Name | None = None
    definition_id: str | None = None
    version: Version | None = None
    business_key: Key | None = None
    input: Any = msgspec.UNSET
    context: Any = msgspec.UNSET
    start_at: Moment | None = None


class BatchItem(Body, frozen=True, kw_only=True):
    input: Any = None
    business_key: Key | None = None


class StartBatch(Body, frozen=True, kw_only=True):
    definition_key: Name | None = None
    definition_id: str | None = None
    version: Version | None = None
    items: Annotated[list[BatchItem], Meta(min_length=1, max_length=1000)]


class SendEvent(Body, frozen=True, kw_only=True):
    """An event. The same `id` twice is one event. `strict`: wait for its turn, and fail if no state takes it."""

    name: Name
    payload: Any = None
    id: EventId | None = None
    strict: bool = False


class Reasoning(Body, frozen=True, kw_only=True):
    reason: Reason = ""


class Resume(Body, frozen=True, kw_only=True):
    """`drop_event`: of a chart, put the event aside that it could not work off; of one that is ending, wait no
    longer for children that were told to end."""

    reason: Reason = ""
    drop_event: bool = False


class Fork(Body, frozen=True, kw_only=True):
    """`step`: from which it runs afresh; without one, from the step that failed."""

    step: Name | None = None
    business_key: Key | None = None
    reason: Reason = ""


class Migrate(Body, frozen=True, kw_only=True):
    """Move it to another version of its chart, by a map of old states to new ones."""

    version: Version
    states: dict[str, str] = {}
    context: dict[str, Any] | None = None
    stop: list[str] | None = None
    start: list[str] | None = None
    enter: list[str] | None = None
    reason: Reason = ""
    dry_run: bool = False


class InstanceOut(Said, frozen=True, kw_only=True):
    """An instance as it stands."""

    id: str
    definition_key: str
    definition_version: int
    kind: Literal["code", "chart", "template"]
    status: InstanceStatus
    waiting_on: str | None
    current_state: str | None
    current_step: str | None = None
    """Of a code workflow: the call that its newest history entries tell of, open or done last."""
    business_key: str | None
    queue: str
    input: Any
    result: Any
    last_error: Failure
    compensation: Literal["complete", "partial"] | None
    parent_id: str | None
    trace_id: str | None
    created_by: str | None
    epoch: int = 0
    created_at: Moment
    updated_at: Moment | None = None
    """When the newest entry of its history was written; before the first, when it was created."""
    started_at: Moment | None
    completed_at: Moment | None
    run_at: Moment | None
    left_out: list[str] = []
    """In lists: values of more than 16 KiB, which are null there."""


class HistoryOut(Said, frozen=True, kw_only=True):
    """One entry of an instance's past."""

    seq: int
    type: str
    name: str
    at: Moment
    payload: Any
    hash: str


class TaskOut(Said, frozen=True, kw_only=True):
    """A task as it stands. `form` is the JSON Schema that what is handed in must fit."""

    id: str
    instance_id: str
    definition_key: str
    key: str
    type: TaskType
    name: str
    title: str | None
    status: TaskStatus
    run_at: Moment | None
    attempts: int
    max_attempts: int
    idempotency_key: str
    input: Any
    form: Any
    output: Any
    error: Failure
    trace_id: str | None
    assignee: str | None
    groups: list[str]
    priority: int
    due_at: Moment | None
    follow_up_at: Moment | None
    version: int
    created_at: Moment
    started_at: Moment | None
    completed_at: Moment | None
    completed_by: str | None
    left_out: list[str] = []
    """In lists: values of more than 16 KiB, which are null there."""


class InstanceDetail(InstanceOut, frozen=True, kw_only=True):
    """An instance with its tasks and the newest part of its history; `context` is a chart's own."""

    version: int
    context: Any
    steps: dict[str, Any]
    tasks: list[TaskOut]
    history: list[HistoryOut]
    history_before: int | None
    """The sequence to ask older history with (`before`); null: this is all of it."""


class Started(Said, frozen=True, kw_only=True):
    """An item of a batch: started (201), there already (200), or refused with the reason."""

    status: int
    id: str | None = None
    code: str | None = None
    detail: str | None = None
    errors: list[Misplaced] = []


class BatchOut(Said, frozen=True, kw_only=True):
    started: int
    existing: int
    refused: int
    items: list[Started]


class EventOut(Said, frozen=True, kw_only=True):
    """The event is recorded. `new` is false if this very event was there before. `taken`: its turn has come."""

    id: str
    instance_id: str
    new: bool
    taken: bool


class Accepted(Said, frozen=True, kw_only=True):
    """The word is recorded; the instance's worker takes it in its next turn."""

    instance_id: str
    accepted: str


class MigrationOut(Said, frozen=True, kw_only=True):
    instance_id: str
    outcome: Literal["migrated", "possible", "refused"]
    problems: list[str]
    summary: dict[str, Any]


class WhyOut(Said, frozen=True, kw_only=True):
    instance_id: str
    status: InstanceStatus
    why: str


# -- tasks


class Complete(Body, frozen=True, kw_only=True):
    """What is handed in; it must fit the task's form."""

    output: Any = None
    reason: Reason = ""


class Fail(Body, frozen=True, kw_only=True):
    reason: Reasoned


class Assign(Body, frozen=True, kw_only=True):
    """`assignee`: who has it from now on; null: nobody."""

    assignee: Name | None
    reason: Reason = ""


class Comment(Body, frozen=True, kw_only=True):
    body: Annotated[str, Meta(min_length=1, max_length=10_000)]


class CommentOut(Said, frozen=True, kw_only=True):
    id: str
    task_id: str
    at: Moment
    author: str
    body: str


# -- effects


class Resolve(Body, frozen=True, kw_only=True):
    """What became of it: `happened` (with its result), `did_not_happen` (it is started again with the same key), or
    `abort` (the workflow fails there and undoes what it has done)."""

    resolution: Resolution
    reason: Reasoned
    result: Any = None
    accept_double: bool = False


class ObservationOut(Said, frozen=True, kw_only=True):
    """A result that came too late: evidence, it moved nothing."""

    at: Moment
    worker: str
    attempt: int
    outcome: str
    payload: Any


class EffectOut(Said, frozen=True, kw_only=True):
    id: str
    instance_id: str
    step: str
    mode: Literal["keyed", "lookup", "manual"]
    state: EffectState
    attempt: int
    idempotency_key: str
    request: Any
    worker: str
    first_started_at: Moment
    started_at: Moment
    not_after: Moment
    opens_at: Moment
    settled_at: Moment | None
    receipt: Any
    error: Failure
    resolution: Resolution | None
    resolved_by: str | None
    reason: str | None
    expected: Any = None
    """While its outcome is unknown: the JSON Schema of the result that "happened" needs; null: any, or none."""
    observations: list[ObservationOut] = []
    left_out: list[str] = []
    """In lists: values of more than 16 KiB, which are null there."""


# -- workers


class WorkerOut(Said, frozen=True, kw_only=True):
    id: str
    host: str
    pid: int
    state: Literal["live", "gone", "fenced", "stopped"]
    holds: int
    started_at: Moment
    heartbeat_at: Moment
    definitions: str


class QueueOut(Said, frozen=True, kw_only=True):
    """A queue: how many instances are due in it and for how long the oldest of them has been."""

    queue: str
    due: int
    oldest_age: timedelta


class DeadLetterOut(Said, frozen=True, kw_only=True):
    id: str
    source: str
    instance_id: str | None
    definition_key: str | None
    reason: str
    payload: Any
    created_at: Moment
    resolution: str | None
    left_out: list[str] = []
    """A payload of more than 16 KiB, which is null here."""


# -- bulk


class Filter(Body, frozen=True, kw_only=True):
    """Which instances. Everything given must hold. An empty filter needs `all`."""

    status: list[InstanceStatus] | None = None
    definition_key: Name | None = None
    business_key: Key | None = None
    created_after: Moment | None = None
    created_before: Moment | None = None
    all: bool = False


class Bulk(Body, frozen=True, kw_only=True):
    """Do one thing to everything that matches. `dry_run` counts and does nothing; `expected` is the count you saw, and
    nothing is done if it is another now."""

    action: Literal["cancel", "pause", "resume", "retry", "signal"]
    filter: Filter
    reason: Reasoned
    signal: Name | None = None
    payload: Any = None
    dry_run: bool = False
    expected: Annotated[int, Meta(ge=0)] | None = None


class BulkFailure(Said, frozen=True, kw_only=True):
    instance_id: str
    detail: str


class BulkOut(Said, frozen=True, kw_only=True):
    """A bulk action: how many matched when it was asked for, how many are dealt with, how many refused."""

    id: str | None
    action: str
    status: Literal["dry_run", "pending", "running", "waiting", "compensating", "completed", "failed", "cancelled"]
    matched: int
    done: int
    failed: int


# -- tenants, principals, keys


class TenantOut(Said, frozen=True, kw_only=True):
    """What this tenant's tasks may reach."""

    tenant_id: str
    http_hosts: list[str]
    ai_enabled: bool
    version: int


class ChangeTenant(Body, frozen=True, kw_only=True):
    """What is left away stays as it is."""

    http_hosts: Annotated[list[str], Meta(max_length=200)] | None = None
    ai_enabled: bool | None = None


class Me(Said, frozen=True, kw_only=True):
    """Who you are to this server."""

    tenant_id: str
    principal_id: str
    name: str
    kind: PrincipalKind
    roles: list[Role]
    groups: list[str]
    capabilities: list[str]


class CreatePrincipal(Body, frozen=True, kw_only=True):
    name: Name
    kind: PrincipalKind
    roles: list[Role]
    groups: Annotated[list[Name], Meta(max_length=100)] = []
    issuer: Issuer | None = None
    subject: Subject | None = None


class ChangePrincipal(Body, frozen=True, kw_only=True):
    """What is left away stays as it is."""

    roles: list[Role] | None = None
    groups: Annotated[list[Name], Meta(max_length=100)] | None = None
    status: Literal["active", "disabled"] | None = None


class PrincipalOut(Said, frozen=True, kw_only=True):
    id: str
    kind: PrincipalKind
    name: str
    roles: list[Role]
    groups: list[str]
    issuer: str | None
    subject: str | None
    status: Literal["active", "disabled"]
    version: int
    created_at: Moment
    created_by: str
    changed_at: Moment
    changed_by: str


class CreateKey(Body, frozen=True, kw_only=True):
    """A key of `principal` (its name or id). `scopes`: what it may do of what its principal may; without, all."""

    principal: Name
    name: Name
    kind: Literal["live", "test"] = "live"
    scopes: Annotated[list[str], Meta(max_length=100)] | None = None
    expires_at: Moment | None = None


class RotateKey(Body, frozen=True, kw_only=True):
    """For how long the old key goes on beside the new one."""

    overlap: timedelta = timedelta(days=1)


class KeyOut(Said, frozen=True, kw_only=True):
    id: str
    principal_id: str
    name: str
    kind: Literal["live", "test"]
    shown: str
    scopes: list[str] | None
    created_at: Moment
    created_by: str
    expires_at: Moment | None
    revoked_at: Moment | None
    revoked_by: str | None
    last_used_at: Moment | None


class NewKeyOut(KeyOut, frozen=True, kw_only=True):
    """`key` is shown this once, and null when the same request is answered again."""

    key: str | None


class RoleOut(Said, frozen=True, kw_only=True):
    role: Role
    capabilities: list[str]


class TrailOut(Said, frozen=True, kw_only=True):
    """What happened to an instance, and who decided so, without what was said or sent. `hash` seals the whole entry."""

    seq: int
    at: Moment
    type: str
    name: str
    actor: str | None
    hash: str


class AuditOut(Said, frozen=True, kw_only=True):
    id: str
    at: Moment
    actor: str
    principal_id: str | None
    action: str
    entity_type: str
    entity_id: str
    summary: dict[str, Any]
    request_id: str | None
