"""What a client is told when something does not go well: one class for each kind of refusal, by its public slug.

`ApiError` is the base. What the server refused carries its problem (RFC 9457); what never reached it is `Unreachable`;
what came back and is not Holdfast's is `UnreadableReply`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.engine.errors import HoldfastError

FAULTS_SHOWN = 5


class Fault(msgspec.Struct, frozen=True):
    """One thing that does not fit: what was expected, and where, as a JSON pointer."""

    detail: str = ""
    pointer: str = ""


class ApiError(HoldfastError):
    """A request that did not go well. `code` is the problem's slug, `detail` says what to do, `status` is 0 where no
    answer came."""

    code = "api-error"

    def __init__(
        self, detail: str, *, operation: str = "", code: str | None = None, status: int = 0, title: str = "",
        trace_id: str = "", errors: Sequence[Fault] = (), retry_after: float | None = None,
    ) -> None:  # fmt: skip
        self.detail = detail
        self.operation = operation
        self.code = type(self).code if code is None else code
        self.status = status
        self.title = title
        self.trace_id = trace_id
        self.errors = tuple(errors)
        self.retry_after = retry_after
        words = f"{operation}: " if operation else ""
        words += f"{status} {self.code}: {detail}" if status else detail
        for fault in self.errors[:FAULTS_SHOWN]:
            words += f"\n  {fault.pointer or '/'}: {fault.detail}"
        if len(self.errors) > FAULTS_SHOWN:
            words += f"\n  and {len(self.errors) - FAULTS_SHOWN} more"
        super().__init__(words + (f" (trace {trace_id})" if trace_id else ""))


# -- no answer, or none of ours


class Unreachable(ApiError):
    """No answer came: the server could not be reached, or the connection was lost. `sent`: whether it may have got the
    request all the same."""

    code = "unreachable"

    def __init__(self, detail: str, *, operation: str = "", sent: bool = True) -> None:
        super().__init__(detail, operation=operation)
        self.sent = sent


class TimedOut(Unreachable):
    """No answer came in time."""

    code = "timed-out"


class UnreadableReply(ApiError):
    """What came back is not Holdfast's (a proxy's page, another server), or this client does not understand it."""

    code = "unreadable-reply"


# -- what the server refuses


class BadRequest(ApiError):
    """The request cannot be read."""

    code = "malformed-request"


class IdempotencyKeyMissing(BadRequest):
    code = "idempotency-key-missing"


class Unauthenticated(ApiError):
    """The server does not know this key, or not any more."""

    code = "unauthenticated"


class Forbidden(ApiError):
    """The key's principal may not do this."""

    code = "forbidden"


class NotFound(ApiError):
    """It is not there, or is another tenant's."""

    code = "not-found"


class MethodNotAllowed(ApiError):
    code = "method-not-allowed"


class Conflict(ApiError):
    """It does not stand where this is possible. Its subclasses say what is in the way."""

    code = "conflict"


class IdempotencyKeyInUse(Conflict):
    """The first request with this key was still being carried out when the retries were used up: ask again with the
    same key."""

    code = "idempotency-key-in-use"


class InvalidTransition(Conflict):
    code = "invalid-transition"


class InstanceMoved(Conflict):
    code = "instance-moved"


class TaskAlreadyClaimed(Conflict):
    code = "task-already-claimed"


class OutcomeUnknown(Conflict):
    code = "outcome-unknown"


class DefinitionNotActive(Conflict):
    code = "definition-not-active"


class BusinessKeyTaken(Conflict):
    """Another instance has this business key, with another input; `errors` says where they differ."""

    code = "business-key-taken"


class NameTaken(Conflict):
    code = "name-taken"


class EventInLine(Conflict):
    """The event is recorded, and its instance stands still."""

    code = "event-in-line"


class ForkRefused(Conflict):
    code = "fork-refused"


class IdempotencyKeyExpired(ApiError):
    """It was carried out, so long ago that its answer is not kept any more."""

    code = "idempotency-key-expired"


class PreconditionFailed(ApiError):
    """Somebody else changed it first: `if_match` names a version that is not the newest."""

    code = "precondition-failed"


class PreconditionRequired(ApiError):
    code = "precondition-required"


class PayloadTooLarge(ApiError):
    code = "payload-too-large"


class UnsupportedMediaType(ApiError):
    code = "unsupported-media-type"


class ValidationFailed(ApiError):
    """The request does not fit; `errors` says what and where."""

    code = "validation-failed"


class IdempotencyKeyReused(ValidationFailed):
    """This key was used for another request: a key names one request."""

    code = "idempotency-key-reused"


class ProofMissing(ValidationFailed):
    code = "proof-missing"


class QuotaExceeded(ApiError):
    """More than may wait; `retry_after` says when to ask again."""

    code = "quota-exceeded"


class ServerError(ApiError):
    """Something is wrong on the other side; its log has more under `trace_id`."""

    code = "internal-error"


class Unavailable(ServerError):
    """The database does not answer, or the server cannot take more."""

    code = "unavailable"


class Overloaded(Unavailable):
    code = "overloaded"


def _all(kind: type[ApiError]) -> list[type[ApiError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _all(child))]


BY_CODE: dict[str, type[ApiError]] = {kind.code: kind for kind in _all(ApiError)}
# A slug that is newer than this client is at least known by its status.
BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest, 401: Unauthenticated, 403: Forbidden, 404: NotFound, 409: Conflict, 412: PreconditionFailed,
    413: PayloadTooLarge, 422: ValidationFailed, 429: QuotaExceeded, 503: Unavailable,
}  # fmt: skip


def kind_of(code: str, status: int) -> type[ApiError]:
    """The class of a refusal."""
    return BY_CODE.get(code) or BY_STATUS.get(status) or (ServerError if status >= 500 else ApiError)
