"""What a chart may say about a task: the fields every task has, and those of its type."""

from __future__ import annotations

from typing import Any

from holdfast.engine.ai import read_options
from holdfast.engine.calendar import check_calendar, moment_of
from holdfast.engine.errors import HoldfastError
from holdfast.engine.http_outcomes import checked_outcomes
from holdfast.engine.schemas import check_schema
from holdfast.engine.spans import span
from holdfast.engine.tasks import TYPES
from holdfast.engine.templates import check

COMMON = frozenset((
    "type", "name", "title", "description", "input", "max_attempts", "backoff", "timeout", "completion_event",
    "failure_event", "tags", "deadline",
))  # fmt: skip
LATER = frozenset(("delay", "run_at"))
EFFECT = LATER | frozenset(("mode", "window"))
OF_TYPE = {
    "HUMAN": frozenset(("assignee", "groups", "priority", "due_in", "due_at", "follow_up_in", "follow_up_at", "form")),
    "TIMER": LATER | frozenset(("calendar",)),
    "HTTP": EFFECT | frozenset((
        "method", "url", "headers", "query", "json", "form", "body", "max_response_bytes", "follow_redirects",
        "outcomes", "output", "idempotency_header",
    )),
    "EMAIL": EFFECT | frozenset(("to", "cc", "bcc", "reply_to", "from", "subject", "text", "html", "headers", "data")),
    "AI": EFFECT | frozenset((
        "prompt", "model", "schema", "redact", "policy", "max_tokens", "max_cost", "price_in", "price_out", "currency",
        "assignee", "groups", "priority", "due_in", "max_input_bytes", "max_output_bytes", "timeout_seconds",
    )),
    "SYSTEM": LATER | frozenset(("handler",)),
}  # fmt: skip


def check_task(given: dict[str, Any], *, invoked: bool) -> list[tuple[str, str]]:
    """(path within the task, what was expected) for everything that is wrong."""
    problems: list[tuple[str, str]] = []
    type_ = given.get("type")
    if type_ not in TYPES:
        return [("/type", f"expected one of {', '.join(TYPES)}")]
    name = given.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 100 or "#" in name:
        problems.append(
            ("/name", "expected a name of 1 to 100 characters without #: it stands in the inbox and history")
        )
    known = COMMON | OF_TYPE[type_]
    for key in given:
        if key not in known:
            problems.append((f"/{key}", f"{key!r} is not known for a task of type {type_}"))
    for key in ("completion_event", "failure_event"):
        if key in given and (not isinstance(given[key], str) or not given[key] or given[key].startswith("xstate.")):
            problems.append((f"/{key}", "expected the name of an event, written out (no expression, no xstate.…)"))
        if key in given and invoked:
            problems.append((f"/{key}", "an invoked task answers with onDone and onError"))
    attempts = given.get("max_attempts", 1)
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 1 <= attempts <= 1000:
        problems.append(("/max_attempts", "expected a whole number from 1 to 1,000"))
    problems += _of_backoff(given.get("backoff"))
    if "handler" in given and (not isinstance(given["handler"], str) or not given["handler"]):
        problems.append(("/handler", "expected the name of a handler, written out (no expression)"))
    if "mode" in given and given["mode"] not in ("keyed", "manual"):
        problems.append(("/mode", 'expected "keyed" or "manual"'))
    if sum(key in given for key in ("delay", "run_at", "calendar")) > 1:
        problems.append(("/run_at", "give one of `delay`, `run_at` and `calendar`"))
    for key in ("delay", "due_in", "follow_up_in", "deadline", "timeout", "window"):
        if key in given and _literal(given[key]) and isinstance(problem := span(given[key]), str):
            problems.append((f"/{key}", problem))
    for key in ("run_at", "due_at", "follow_up_at"):
        if key in given and _literal(given[key]) and isinstance(problem := moment_of(given[key]), str):
            problems.append((f"/{key}", problem))
    priority = given.get("priority", 0)
    if _literal(priority) and (isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > 1000):
        problems.append(("/priority", "expected a whole number from -1,000 to 1,000"))
    if not problems:
        problems += _OF_ITS_OWN.get(type_, _nothing)(given)
    return problems


def _of_backoff(given: Any) -> list[tuple[str, str]]:
    if given is None or not _literal(given):
        return []
    parts = given if isinstance(given, dict) else {"first": given}
    problems = []
    for name, value in parts.items():
        where = f"/backoff/{name}" if isinstance(given, dict) else "/backoff"
        if name not in ("first", "factor", "cap", "jitter"):
            problems.append((where, "expected first, factor, cap or jitter"))
        elif not _literal(value):
            continue
        elif name in ("first", "cap"):
            if isinstance(problem := span(value), str):
                problems.append((where, problem))
        elif isinstance(value, bool) or not isinstance(value, (int, float)):
            problems.append((where, "expected a number"))
    return problems


def _nothing(given: dict[str, Any]) -> list[tuple[str, str]]:
    return []


def _literal(value: Any) -> bool:
    """Whether nothing in it is worked out later."""
    if isinstance(value, dict):
        return "@expr" not in value and all(map(_literal, value.values()))
    return all(map(_literal, value)) if isinstance(value, list) else True


def _human(given: dict[str, Any]) -> list[tuple[str, str]]:
    if "form" in given and (problem := check_schema(given["form"])) is not None:
        return [("/form", problem)]
    return []


def _timer(given: dict[str, Any]) -> list[tuple[str, str]]:
    if not given.keys() & {"delay", "run_at", "calendar"}:
        return [("", "a TIMER needs `delay`, `run_at` or `calendar`: when does it fire?")]
    if "calendar" in given and _literal(given["calendar"]):
        problem = check_calendar(given["calendar"])
        return [("/calendar", problem)] if problem is not None else []
    return []


def _http(given: dict[str, Any]) -> list[tuple[str, str]]:
    if "url" not in given:
        return [("/url", "an HTTP task needs a url")]
    problems = []
    if sum(key in given for key in ("json", "form", "body")) > 1:
        problems.append(("/body", "give one of `json`, `form` and `body`"))
    if "outcomes" in given:
        try:
            checked_outcomes(given["outcomes"])
        except Exception as error:
            problems.append(("/outcomes", str(error)))
    return problems


def _email(given: dict[str, Any]) -> list[tuple[str, str]]:
    problems = [(f"/{key}", f"an EMAIL task needs `{key}`") for key in ("to", "subject") if key not in given]
    if not given.keys() & {"text", "html"}:
        problems.append(("/text", "an EMAIL task needs `text`, `html` or both"))
    for key in ("subject", "text", "html"):
        if isinstance(given.get(key), str):
            problems += [(f"/{key}", problem) for problem in check(given[key])]
    return problems


def _ai(given: dict[str, Any]) -> list[tuple[str, str]]:
    for key in ("prompt", "policy", "schema", "redact"):
        if not _literal(given.get(key)):
            return [(f"/{key}", "is written out in the chart: what data says must not change it")]
    try:
        read_options({k: v for k, v in given.items() if _literal(v)})
    except HoldfastError as error:
        return [("", str(error))]
    return []


_OF_ITS_OWN = {"HUMAN": _human, "TIMER": _timer, "HTTP": _http, "EMAIL": _email, "AI": _ai}
