"""What handlers need from outside, as ports: each has a second adapter, in tests or in `dev`."""

from __future__ import annotations

from collections.abc import Callable
from email.message import EmailMessage
from typing import Any, Protocol

import msgspec

from holdfast.engine.errors import NotApplied
from holdfast.engine.tenants import TenantPolicy

__all__ = ["Llm", "LlmReply", "LlmRequest", "Mail", "Secrets", "TenantPolicies", "TenantPolicy", "refuse_if_late"]


class TenantPolicies(Protocol):
    async def of(self, tenant_id: str) -> TenantPolicy: ...


class Secrets(Protocol):
    def get(self, tenant_id: str, name: str) -> str:
        """The secret's value, or `SecretMissing`."""
        ...


class Mail(Protocol):
    async def send(
        self, message: EmailMessage, sender: str, recipients: list[str], not_after: float | None = None
    ) -> dict[str, Any]:
        """Who was accepted and refused, and the server's words. `not_after` is the Unix time from which on the message
        must not be begun: a `Mail` that takes a while before it sends looks at the clock again then."""
        ...


def refuse_if_late(not_after: float | None, clock: Callable[[], float]) -> None:
    if not_after is not None and clock() >= not_after:
        raise NotApplied("found late before it began, so the message was not sent")


class LlmRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    system: str
    messages: list[dict[str, str]]
    """`{"role": "user" | "assistant", "content": …}`, oldest first."""
    schema: dict[str, Any]
    max_tokens: int
    timeout_seconds: float
    idempotency_key: str


class LlmReply(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    model: str
    input_tokens: int = 0
    output_tokens: int = 0


class Llm(Protocol):
    async def complete(self, request: LlmRequest) -> LlmReply: ...
