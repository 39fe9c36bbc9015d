"""The effect desk: effects, the evidence about them, and a person's word on one."""

from __future__ import annotations

from typing import Any

from holdfast.api.models import EffectOut, EffectState, Listing, Resolution, Resolve
from holdfast.client.answers import Effect
from holdfast.client.calls import Connection, IfMatch, at
from holdfast.client.pages import Pages


class Effects:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self, *, state: EffectState | None = None, limit: int | None = None) -> Pages[EffectOut]:
        """Newest first. `state="outcome_unknown"` is the desk: what waits for a person's word."""
        return self._connection.pages(Listing[EffectOut], at("effects"), {"state": state, "limit": limit})

    async def read(self, id: str) -> Effect:
        """What was asked, under which key, what is known, and results that came too late."""
        return await self._connection.read(Effect, at("effects", id))

    async def resolve(
        self, id: str, resolution: Resolution, *, reason: str, result: Any = None, accept_double: bool = False,
        if_match: IfMatch = None, idempotency_key: str | None = None,
    ) -> Effect:  # fmt: skip
        """Say what became of an effect whose outcome is unknown; its instance goes on from there."""
        body = Resolve(
            resolution=resolution, reason=reason, result=result, accept_double=accept_double,
        )  # fmt: skip
        return await self._connection.change(
            Effect, at("effects", id, "resolve"), body, if_match=if_match, idempotency_key=idempotency_key
        )
