"""Bulk actions: count first, then do one thing to everything that matches, and see how far it has come."""

from __future__ import annotations

from typing import Any, Literal

from holdfast.api.models import Bulk, BulkFailure, Filter, Listing
from holdfast.client.answers import BulkAction
from holdfast.client.calls import Connection, at
from holdfast.client.pages import Pages

Action = Literal["cancel", "pause", "resume", "retry", "signal"]


class BulkActions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def begin(
        self, action: Action, filter: Filter, *, reason: str, signal: str | None = None, payload: Any = None,
        dry_run: bool = False, expected: int | None = None, idempotency_key: str | None = None,
    ) -> BulkAction:  # fmt: skip
        """Do it to everything that matches; a worker carries it out. `dry_run` only counts. `expected` is the count you
        saw: `PreconditionFailed` if it is another now."""
        body = Bulk(
            action=action, filter=filter, reason=reason, signal=signal, payload=payload, dry_run=dry_run,
            expected=expected,
        )  # fmt: skip
        return await self._connection.change(BulkAction, at("bulk"), body, idempotency_key=idempotency_key)

    async def read(self, id: str) -> BulkAction:
        """How far it has come."""
        return await self._connection.read(BulkAction, at("bulk", id))

    def failures(self, id: str) -> Pages[BulkFailure]:
        """Who could not be told, and why."""
        return self._connection.pages(Listing[BulkFailure], at("bulk", id, "failures"))
