"""What handlers need from outside, as ports: each has a second adapter, in tests or in `dev`."""

from __future__ import annotations

from email.message import EmailMessage
from typing import Any, Protocol

import msgspec

from holdfast.engine.tenants import TenantPolicy

__all__ = ["Llm", "LlmReply", "LlmRequest", "Mail", "Secrets", "TenantPolicies", "TenantPolicy"]


class TenantPolicies(Protocol):
    async def of(self, tenant_id: str) -> TenantPolicy: ...


class Secrets(Protocol):
    def get(self, tenant_id: str, name: str) -> str:
        """The secret's value, or `SecretMissing`."""
        ...


class Mail(Protocol):
    async def send(self, message: EmailMessage, sender: str, recipients: list[str]) -> dict[str, Any]: ...


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
