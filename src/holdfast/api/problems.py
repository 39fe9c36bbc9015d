"""Refusals as HTTP says them: RFC 9457 `application/problem+json`. Only this module knows status codes of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.engine.charts.document import BadChart
from holdfast.engine.errors import BadInput, FormRefused, HoldfastError, Misplaced
from holdfast.engine.misfits import faults_of
from holdfast.engine.strict_json import NotStrict

TYPE = "https://holdfast.dev/problems/"
MEDIA_TYPE = "application/problem+json"

# slug: (status, title)
PROBLEMS: dict[str, tuple[int, str]] = {
    "idempotency-key-missing": (400, "This request needs an Idempotency-Key"),
    "malformed-request": (400, "The request cannot be read"),
    "unauthenticated": (401, "Nobody we know"),
    "forbidden": (403, "Not allowed"),
    "not-found": (404, "Not found"),
    "method-not-allowed": (405, "This method is not offered here"),
    "idempotency-key-in-use": (409, "The first request with this key is still being carried out"),
    "invalid-transition": (409, "It does not stand where that is possible"),
    "instance-moved": (409, "Another event moved it first"),
    "task-already-claimed": (409, "Somebody else has this task"),
    "outcome-unknown": (409, "An effect's outcome is unknown"),
    "definition-not-active": (409, "No new instances start by this definition"),
    "business-key-taken": (409, "Another instance has this business key"),
    "name-taken": (409, "Somebody else has this name"),
    "event-in-line": (409, "The event is recorded, and its instance stands still"),
    "fork-refused": (409, "It cannot be forked there"),
    "idempotency-key-expired": (410, "The answer to this key is not kept any more"),
    "precondition-failed": (412, "Somebody else changed it first"),
    "payload-too-large": (413, "Too large"),
    "unsupported-media-type": (415, "Expected JSON"),
    "validation-failed": (422, "The request does not fit"),
    "idempotency-key-reused": (422, "This key was used for another request"),
    "proof-missing": (422, "Proof is missing"),
    "precondition-required": (428, "Say which version you decided on"),
    "quota-exceeded": (429, "More than may wait"),
    "internal-error": (500, "Something is wrong with us"),
    "overloaded": (503, "Too much at once"),
    "unavailable": (503, "The database does not answer"),
}

# A HoldfastError's code: what HTTP calls it. What is not named here is our own fault.
SLUGS = {
    "bad_input": "validation-failed",
    "not_json": "validation-failed",
    "bad_chart": "validation-failed",
    "validation_failed": "validation-failed",
    "bad_definition": "validation-failed",
    "payload_too_large": "payload-too-large",
    "instance_not_found": "not-found",
    "effect_not_found": "not-found",
    "definition_not_found": "not-found",
    "task_not_found": "not-found",
    "principal_not_found": "not-found",
    "key_not_found": "not-found",
    "workflow_not_registered": "not-found",
    "business_key_taken": "business-key-taken",
    "name_taken": "name-taken",
    "instance_ended": "invalid-transition",
    "effect_not_open": "invalid-transition",
    "task_not_open": "invalid-transition",
    "task_already_claimed": "task-already-claimed",
    "definition_not_active": "definition-not-active",
    "definition_archived": "invalid-transition",
    "bad_simulation": "validation-failed",
    "drawing_too_large": "validation-failed",
    "invalid_transition": "invalid-transition",
    "instance_moved": "instance-moved",
    "event_in_line": "event-in-line",
    "fork_refused": "fork-refused",
    "precondition_failed": "precondition-failed",
    "forbidden": "forbidden",
    "backlogged": "quota-exceeded",
    "store_unavailable": "unavailable",
}
# What to do about it, where the words of the library or the command line would not help who speaks HTTP.
ADVICE = {
    "workflow_not_registered": "correct the name; GET /workflow/definitions lists what may be started",
    "instance_not_found": "GET /workflow/instances lists those of your tenant",
    "effect_not_found": "GET /workflow/effects lists those of your tenant",
    "definition_not_found": "GET /workflow/definitions lists what is",
    "definition_not_active": "POST /workflow/definitions/{id}/activate lets new instances start",
    "task_not_found": "GET /workflow/tasks lists the open ones",
    "principal_not_found": "GET /workflow/principals lists who there is",
    "key_not_found": "GET /workflow/keys lists which there are",
}
RETRY_AFTER = {"quota-exceeded": "2", "overloaded": "1", "unavailable": "2", "idempotency-key-in-use": "1"}


class Fault(msgspec.Struct, frozen=True):
    """One thing that does not fit: what was expected, and where, as a JSON pointer."""

    detail: str
    pointer: str


class ProblemBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refusal: what it is, and how to get on (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    trace_id: str
    errors: list[Fault] = []


class Problem(Exception):
    """A refusal on its way out."""

    def __init__(
        self, slug: str, detail: str, *, errors: Sequence[Fault] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        self.slug = slug
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})
        if slug in RETRY_AFTER:
            self.headers.setdefault("Retry-After", RETRY_AFTER[slug])
        if slug == "unauthenticated":
            self.headers.setdefault("WWW-Authenticate", 'Bearer realm="holdfast"')
        super().__init__(detail)

    @property
    def status(self) -> int:
        return PROBLEMS[self.slug][0]

    def body(self, path: str, trace_id: str) -> ProblemBody:
        status, title = PROBLEMS[self.slug]
        return ProblemBody(TYPE + self.slug, title, status, self.detail, path, self.slug, trace_id, self.errors)


def problem_of(error: HoldfastError) -> Problem | None:
    """What HTTP calls a refusal of ours; None: it is no refusal, something is broken."""
    slug = SLUGS.get(error.code)
    if slug is None:
        return None
    words = f"{error.fact}: {ADVICE[error.code]}" if error.code in ADVICE else str(error)
    return Problem(slug, storable_words(words), errors=_faults(error))


def storable_words(text: str) -> str:
    """A text that JSON can carry, whatever the caller sent us in it."""
    return text.encode("utf-8", "replace").decode()


def _faults(error: HoldfastError) -> list[Fault]:
    if isinstance(error, BadChart):
        return [Fault(storable_words(p.message), "/spec" + storable_words(p.path)) for p in error.problems]
    if isinstance(error, FormRefused):
        found = [problem.partition(": ") for problem in error.problems]
        return [Fault(words or place, "/output" + (place if words else "").rstrip("/")) for place, _, words in found]
    if isinstance(error, BadInput):
        return faults_at(error.errors)
    difference = getattr(error, "difference", None)
    if isinstance(difference, list):
        return [Fault(detail, pointer) for pointer, detail in difference]
    return []


def not_strict(error: NotStrict) -> Problem:
    return Problem(
        "validation-failed", "the body cannot be taken as JSON: errors says where",
        errors=[Fault(p.detail, storable_words(p.pointer)) for p in error.problems],
    )  # fmt: skip


def misfit(error: msgspec.ValidationError, model: Any, before: str = "") -> Problem:
    """A value that does not fit the model; msgspec says the first misfit and where it stands."""
    [found] = faults_of(error, before, model)
    words = f"{found.pointer or 'the body'}: {found.detail}"
    return Problem("validation-failed", words, errors=faults_at([found]))


def faults_at(problems: Sequence[Misplaced]) -> list[Fault]:
    return [Fault(p.detail, p.pointer) for p in problems]


def example(slug: str) -> dict[str, Any]:
    """How a refusal of this kind looks, for the documentation."""
    status, title = PROBLEMS[slug]
    return {
        "type": TYPE + slug, "title": title, "status": status, "detail": "what to do about it",
        "instance": "/workflow/instances", "code": slug, "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }  # fmt: skip
