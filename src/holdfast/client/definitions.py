"""Definitions: publish, read, switch on and off; look at one before it is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from holdfast.api.models import (
    DefinitionOut,
    DefinitionStatus,
    DiffOut,
    Lint,
    LintOut,
    Listing,
    Publish,
    Simulate,
    TurnsOut,
)
from holdfast.client.answers import Definition
from holdfast.client.calls import Connection, IfMatch, at
from holdfast.client.pages import Pages


class Definitions:
    """`id` may also be KEY (its newest version) or KEY@VERSION."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def publish(
        self, spec: Mapping[str, Any], *, key: str | None = None, if_match: IfMatch = None,
        idempotency_key: str | None = None,
    ) -> Definition:  # fmt: skip
        """Publish a chart as the next version of its key; the same content again is no new version. `if_match`: the
        newest version you know of."""
        return await self._connection.change(
            Definition, at("definitions"), Publish(spec=dict(spec), key=key), if_match=if_match,
            idempotency_key=idempotency_key,
        )  # fmt: skip

    def list(
        self, *, key: str | None = None, status: DefinitionStatus | None = None, limit: int | None = None
    ) -> Pages[DefinitionOut]:
        """Published definitions and the code workflows of the server's app, by key, the newest version first."""
        query = {"key": key, "status": status, "limit": limit}
        return self._connection.pages(Listing[DefinitionOut], at("definitions"), query)

    async def read(self, id: str) -> Definition:
        return await self._connection.read(Definition, at("definitions", id))

    async def activate(
        self, id: str, *, if_match: IfMatch = None, idempotency_key: str | None = None
    ) -> Definition:  # fmt: skip
        """New instances may start by this version."""
        return await self._set(id, "activate", if_match, idempotency_key)

    async def deactivate(
        self, id: str, *, if_match: IfMatch = None, idempotency_key: str | None = None
    ) -> Definition:  # fmt: skip
        """No new instances start by this version; those that run go on."""
        return await self._set(id, "deactivate", if_match, idempotency_key)

    async def archive(
        self, id: str, *, if_match: IfMatch = None, idempotency_key: str | None = None
    ) -> Definition:  # fmt: skip
        """Put this version aside for good; instances that run go on."""
        return await self._set(id, "archive", if_match, idempotency_key)

    async def _set(self, id: str, word: str, if_match: IfMatch, idempotency_key: str | None) -> Definition:
        return await self._connection.change(
            Definition, at("definitions", id, word), if_match=if_match, idempotency_key=idempotency_key
        )

    async def lint(self, spec: Mapping[str, Any]) -> LintOut:
        """Check a chart without publishing it."""
        return await self._connection.try_out(LintOut, at("definitions", "lint"), Lint(spec=dict(spec)))

    async def simulate(
        self, spec: Mapping[str, Any] | None = None, *, definition_id: str | None = None,
        definition_key: str | None = None, version: int | None = None, input: Any = None,
        events: Sequence[Mapping[str, Any]] = (),
    ) -> TurnsOut:  # fmt: skip
        """Run a chart through events: turns come out, nothing is stored."""
        body = Simulate(
            spec=None if spec is None else dict(spec), definition_id=definition_id, definition_key=definition_key,
            version=version, input=input, events=[dict(event) for event in events],
        )  # fmt: skip
        return await self._connection.try_out(TurnsOut, at("definitions", "simulate"), body)

    async def diff(self, id: str, against: str) -> DiffOut:
        """What changed from the definition `against` to this one, in words."""
        return await self._connection.read(DiffOut, at("definitions", id, "diff"), query={"against": against})

    async def graph(
        self, id: str, *, format: Literal["svg", "mermaid"] = "svg", instance_id: str | None = None
    ) -> str:  # fmt: skip
        """A picture of the chart; `instance_id`: mark where this one stands."""
        query = {"format": format, "instance_id": instance_id}
        return await self._connection.text(at("definitions", id, "graph"), query=query)
