"""Reading what a chart says about an AI task: refused where it is wrong, with the field's name. It must not know the
operator's defaults, which come in `limits`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from holdfast.engine.ai.answers import ANSWER_LIMIT
from holdfast.engine.ai.limits import ANSWER_TOKENS_MAX, INPUT_MAX, SECONDS_MAX, AiOptions, Price
from holdfast.engine.ai.policy import AiPolicy, share
from holdfast.engine.ai.prompts import Prompt
from holdfast.engine.ai.shape import read_schema
from holdfast.engine.ai.words import WHOLE_MAX, shown
from holdfast.engine.errors import BadDefinition
from holdfast.engine.retry import storable
from holdfast.engine.templates import check

PROMPT_LIMIT = 64 * 1024
EVENTS_LIMIT = 100
PATHS_LIMIT = 100
PRICE_MAX = 10**12

OPTIONS = frozenset({
    "prompt", "policy", "schema", "model", "max_tokens", "timeout_seconds", "max_cost", "price_in", "price_out",
    "currency", "max_input_bytes", "max_output_bytes", "redact",
})  # fmt: skip
COMMON = frozenset({
    "type", "name", "input", "delay", "run_at", "due_in", "due_at", "deadline", "max_attempts", "backoff", "timeout",
    "retry", "mode", "delivery", "window", "completion_event", "failure_event", "assignee", "groups", "priority",
    "queue", "concurrency_key", "form", "description", "meta", "title", "tags", "handler", "follow_up_in",
    "follow_up_at",
})  # fmt: skip
"""What a chart may say about any task; not ours to read."""


def read_options(options: Mapping[str, Any]) -> AiOptions:
    """Refused where it is wrong, with the field's name; for the handler, and for publishing a chart."""
    for name in options:
        if name not in OPTIONS and name not in COMMON:
            raise BadDefinition(f"an AI task has no option {shown(name)}: expected {', '.join(sorted(OPTIONS))}")
    prompt, policy = read_prompt(options.get("prompt")), read_policy(options.get("policy"))
    currency = _text(options, "currency", None, 3)
    if currency is not None and not re.fullmatch("[A-Z]{3}", currency):
        raise BadDefinition(f"currency is {shown(currency)}: expected an ISO 4217 code such as USD")
    return AiOptions(
        prompt=prompt,
        policy=policy,
        schema=read_schema(options.get("schema"), policy),
        model=_text(options, "model", None, 200),
        max_tokens=_count(options, "max_tokens", 1, ANSWER_TOKENS_MAX),
        timeout_seconds=_seconds(options.get("timeout_seconds")),
        max_cost=_count(options, "max_cost", 0, PRICE_MAX),
        price=_price(options, currency),
        currency=currency,
        max_input_bytes=_count(options, "max_input_bytes", 1, INPUT_MAX),
        max_output_bytes=_count(options, "max_output_bytes", 1, ANSWER_LIMIT),
        redact=_paths(options.get("redact"), policy),
    )


def read_policy(value: object) -> AiPolicy:
    if value is None:
        return AiPolicy()
    known = _object(value, "policy", AiPolicy.__struct_fields__)
    allowed = _events(known.get("allowed_events", []), "policy.allowed_events")
    mode = known.get("mode", "suggest")
    if mode not in ("suggest", "apply"):
        raise BadDefinition(f"policy.mode is {shown(mode)}: expected 'suggest' or 'apply'")
    least = share(known.get("confidence_min", 1.0))
    if least is None:
        raise BadDefinition(f"policy.confidence_min is {shown(known['confidence_min'])}: expected a number from 0 to 1")
    left = known.get("human_only", [])
    human_only = (allowed if left else ()) if isinstance(left, bool) else _events(left, "policy.human_only")
    for event in human_only:
        if event not in allowed:
            raise BadDefinition(f"policy.human_only names {event!r}, which policy.allowed_events does not")
    return AiPolicy(allowed_events=allowed, mode=mode, confidence_min=least, human_only=human_only)


def _events(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > EVENTS_LIMIT:
        raise BadDefinition(f"{where} is {shown(value)}: expected a list of at most {EVENTS_LIMIT} event names")
    for event in value:
        if (
            not isinstance(event, str)
            or not 1 <= len(event) <= 200
            or not event.isprintable()
            or event.strip() != event
        ):
            raise BadDefinition(f"{where} holds {shown(event)}: expected the name of an event")
        if "*" in event:
            raise BadDefinition(f"{where} holds {event!r}: it names events one by one, a wildcard would allow any")
        if event.startswith(("xstate.", "error.", "done.", "holdfast.")):
            raise BadDefinition(f"{where} holds {event!r}: only the engine itself sends such an event")
    if len(set(value)) != len(value):
        raise BadDefinition(f"{where} names an event twice")
    return tuple(value)


def read_prompt(value: object) -> Prompt:
    known = _object(value, "prompt", Prompt.__struct_fields__)
    version = known.get("version")
    if isinstance(version, bool) or not isinstance(version, (str, int)) or not 1 <= len(str(version)) <= 40:
        raise BadDefinition(f"prompt.version is {shown(version)}: expected a number or a short text")
    if isinstance(version, int) and abs(version) > WHOLE_MAX:
        raise BadDefinition("prompt.version is beyond 2^53: expected a smaller number or a short text")
    name, user = _text(known, "id", "prompt", 200), _text(known, "user", "prompt", PROMPT_LIMIT)
    system = _text(known, "system", "prompt", PROMPT_LIMIT) if known.get("system") else ""
    if name is None or user is None:
        raise BadDefinition(f"prompt.{'id' if name is None else 'user'} is missing")
    _text({"version": str(version)}, "version", "prompt", 40)
    if wrong := check(user):
        raise BadDefinition(f"prompt.user is not a template we can fill: {'; '.join(wrong[:5])}")
    return Prompt(id=name, version=version, system=system or "", user=user)


def _price(options: Mapping[str, Any], currency: str | None) -> Price | None:
    price_in, price_out = (_count(options, name, 0, PRICE_MAX) for name in ("price_in", "price_out"))
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        raise BadDefinition("price_in and price_out belong together: give both, in micro-units per million tokens")
    return Price(price_in=price_in, price_out=price_out, currency=currency or "USD")


def _paths(value: object, policy: AiPolicy) -> tuple[tuple[str, ...], ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)) or len(value) > PATHS_LIMIT:
        raise BadDefinition(f"redact is {shown(value)}: expected a list of at most {PATHS_LIMIT} paths")
    paths = []
    for text in value:
        path = tuple(text.split(".")) if isinstance(text, str) and len(text) <= 500 else ()
        if not all(path) or path[:1] not in (("input",), ("output",)):
            raise BadDefinition(f"redact holds {shown(text)}: expected input.… or output.…, `*` for every item")
        if (
            policy.allowed_events
            and path[0] == "output"
            and (len(path) == 1 or path[1] in ("event", "confidence", "*"))
        ):
            raise BadDefinition(f"redact holds {shown(text)}: the event and its confidence are always kept")
        if policy.allowed_events and path == ("output", "data"):
            raise BadDefinition(
                f"redact holds {shown(text)}: mark fields of data, as in output.data.name or output.data.*"
            )
        paths.append(path)
    return tuple(paths)


def _object(value: object, where: str, fields: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadDefinition(f"{where} is {shown(value)}: expected an object with {', '.join(fields)}")
    for name in value:
        if name not in fields:
            raise BadDefinition(f"{where} has no field {shown(name)}: expected {', '.join(fields)}")
    return value


def _text(known: Mapping[str, Any], name: str, where: str | None, limit: int) -> str | None:
    value = known.get(name)
    if value is None:
        return None
    named = f"{where}.{name}" if where else name
    if not isinstance(value, str) or not value.strip():
        raise BadDefinition(f"{named} is {shown(value)}: expected a text")
    if len(value) > limit:
        raise BadDefinition(f"{named} has {len(value):,} characters, the limit is {limit:,}")
    if storable(value) != value or _CONTROL.search(value):
        raise BadDefinition(f"{named} holds characters that cannot be kept")
    return value


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def _count(known: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value = known.get(name)
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch("[0-9]{1,15}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadDefinition(f"{name} is {shown(value)}: expected a whole number from {least:,} to {most:,}")
    return value


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= SECONDS_MAX:
        raise BadDefinition(f"timeout_seconds is {shown(value)}: expected a number above 0, at most {SECONDS_MAX}")
    return float(value)
