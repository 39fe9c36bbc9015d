"""Options and limits of an AI task, and what a call may cost: the task's word, the operator's where it has none, and
the operator's caps over both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.engine.ai.answers import ANSWER_LIMIT
from holdfast.engine.ai.policy import AiPolicy
from holdfast.engine.ai.prompts import Prompt
from holdfast.engine.codec import PAYLOAD_LIMIT
from holdfast.engine.errors import BadDefinition
from holdfast.engine.retry import storable

INPUT_MAX = 128 * 1024
ANSWER_TOKENS_MAX = 32_768
SECONDS_MAX = 600
TOKENS_MAX = 10**9
MILLION = 1_000_000


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-units of the currency for a million tokens: 2.50 USD is 2_500_000."""

    price_in: int
    price_out: int
    currency: str = "USD"


class AiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a chart says about an AI task, read. None: the handler's default."""

    prompt: Prompt
    policy: AiPolicy = AiPolicy()
    schema: dict[str, Any] | None = None
    model: str | None = None
    max_tokens: int | None = None
    timeout_seconds: float | None = None
    max_cost: int | None = None
    price: Price | None = None
    currency: str | None = None
    max_input_bytes: int | None = None
    max_output_bytes: int | None = None
    redact: tuple[tuple[str, ...], ...] = ()


class AiDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's word: used where a task says nothing. `max_cost` is also a cap that no task can raise."""

    model: str = ""
    max_tokens: int = 1024
    timeout_seconds: float = 60.0
    max_cost: int | None = None
    prices: Mapping[str, Price] = {}
    """By the model's name, as asked for. With a `max_cost` here, only these prices count."""
    max_input_bytes: int = 64 * 1024
    max_output_bytes: int = ANSWER_LIMIT
    record_limit: int = PAYLOAD_LIMIT


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for one task: its options, the defaults where it has none, the operator's caps over both."""

    model: str
    max_tokens: int
    timeout_seconds: float
    max_cost: int | None
    price: Price | None
    max_input_bytes: int
    max_output_bytes: int


def limits_of(options: AiOptions, defaults: AiDefaults) -> Limits:
    model = options.model or defaults.model
    price = defaults.prices.get(model) or (options.price if defaults.max_cost is None else None)
    caps = [cap for cap in (options.max_cost, defaults.max_cost) if cap is not None]
    if caps and price is None:
        raise BadDefinition(
            f"max_cost is set and no price is known for the model {model!r}: give price_in and price_out"
        )
    if price is not None and options.currency not in (None, price.currency):
        raise BadDefinition(f"currency is {options.currency!r}, and the model's price is in {price.currency}")
    return Limits(
        model=model,
        max_tokens=min(options.max_tokens or defaults.max_tokens, ANSWER_TOKENS_MAX),
        timeout_seconds=min(options.timeout_seconds or defaults.timeout_seconds, SECONDS_MAX),
        max_cost=min(caps) if caps else None,
        price=price,
        max_input_bytes=min(options.max_input_bytes or defaults.max_input_bytes, INPUT_MAX),
        max_output_bytes=min(options.max_output_bytes or defaults.max_output_bytes, ANSWER_LIMIT),
    )


def cost_of(price: Price, input_tokens: int, output_tokens: int) -> int:
    """Micro-units, rounded up."""
    return -(-(input_tokens * price.price_in + output_tokens * price.price_out) // MILLION)


def tokens_at_most(*texts: str) -> int:
    """No tokenizer makes more than one token of one byte; a message adds a few of its own."""
    return sum(len(storable(text).encode()) + 16 for text in texts)


def too_dear(limits: Limits, spent: int, *texts: str) -> str | None:
    """Why the next call must not be made, or None: the worst it can cost, on top of what is spent."""
    if limits.max_cost is None:
        return None
    assert limits.price is not None
    worst = spent + cost_of(limits.price, tokens_at_most(*texts), limits.max_tokens)
    if worst <= limits.max_cost:
        return None
    return (
        f"the call could cost {worst:,} micro-{limits.price.currency} in all, max_cost is {limits.max_cost:,}: "
        "lower max_tokens, shorten the prompt or the input, or raise max_cost"
    )
