"""A client of Holdfast's HTTP API: `Client` for asyncio, `BlockingClient` for everybody else.

Answers are the models of the wire (`holdfast.api.models`); those that have a version carry their `etag`. Refusals are
`ApiError`, with a class for each kind.
"""

from holdfast.api.models import (
    Accepted,
    AuditOut,
    BatchItem,
    BatchOut,
    BulkFailure,
    CommentOut,
    DeadLetterOut,
    DefinitionOut,
    DiffOut,
    EffectOut,
    EventOut,
    Filter,
    HistoryOut,
    InstanceDetail,
    InstanceOut,
    KeyOut,
    LintOut,
    Listing,
    Me,
    MigrationOut,
    PrincipalOut,
    QueueOut,
    RoleOut,
    Started,
    TaskOut,
    TrailOut,
    TurnsOut,
    WorkerOut,
)
from holdfast.client.answers import (
    BulkAction,
    Definition,
    Effect,
    FullInstance,
    Instance,
    Key,
    NewKey,
    Principal,
    Task,
    TenantEvent,
    TenantSettings,
    Why,
)
from holdfast.client.blocking import BlockingClient, BlockingPages
from holdfast.client.client import Client
from holdfast.client.errors import (
    ApiError,
    BadRequest,
    BusinessKeyTaken,
    Conflict,
    DefinitionNotActive,
    EventInLine,
    Fault,
    Forbidden,
    ForkRefused,
    IdempotencyKeyExpired,
    IdempotencyKeyInUse,
    IdempotencyKeyMissing,
    IdempotencyKeyReused,
    InstanceMoved,
    InvalidTransition,
    MethodNotAllowed,
    NameTaken,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PayloadTooLarge,
    PreconditionFailed,
    PreconditionRequired,
    ProofMissing,
    QuotaExceeded,
    ServerError,
    TaskAlreadyClaimed,
    TimedOut,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UnreadableReply,
    UnsupportedMediaType,
    ValidationFailed,
)
from holdfast.client.pages import Pages
from holdfast.engine.errors import InstanceFailed, ResultNotReady

__all__ = [
    "Client", "BlockingClient", "Pages", "BlockingPages", "Listing",
    # what goes in
    "BatchItem", "Filter",
    # what comes out; these carry an etag
    "Definition", "Instance", "FullInstance", "Why", "Task", "Effect", "BulkAction", "Principal", "Key", "NewKey",
    "TenantSettings",
    # and these do not
    "Accepted", "AuditOut", "BatchOut", "BulkFailure", "CommentOut", "DeadLetterOut", "DefinitionOut", "DiffOut",
    "EffectOut", "EventOut", "HistoryOut", "InstanceDetail", "InstanceOut", "KeyOut", "LintOut", "Me", "MigrationOut",
    "PrincipalOut", "QueueOut", "RoleOut", "Started", "TaskOut", "TenantEvent", "TrailOut", "TurnsOut", "WorkerOut",
    # what goes wrong
    "ApiError", "Fault", "Unreachable", "TimedOut", "UnreadableReply", "BadRequest", "IdempotencyKeyMissing",
    "Unauthenticated", "Forbidden", "NotFound", "MethodNotAllowed", "Conflict", "IdempotencyKeyInUse",
    "InvalidTransition", "InstanceMoved", "TaskAlreadyClaimed", "OutcomeUnknown", "DefinitionNotActive",
    "BusinessKeyTaken", "NameTaken", "EventInLine", "ForkRefused", "IdempotencyKeyExpired", "PreconditionFailed",
    "PreconditionRequired", "PayloadTooLarge", "UnsupportedMediaType", "ValidationFailed", "IdempotencyKeyReused",
    "ProofMissing", "QuotaExceeded", "ServerError", "Unavailable", "Overloaded", "InstanceFailed", "ResultNotReady",
]  # fmt: skip
