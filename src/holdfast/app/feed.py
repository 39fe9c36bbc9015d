"""Everything that happens in a tenant, as it happens, and again from any point of it: for screens and other listeners.

Where one left off is a word that this module alone reads. On SQLite it is the row's number, which rises with every
commit. On PostgreSQL commits overlap, so rows are handed out by transaction: those between two horizons, before which
nothing is under way any more. Nothing is left out and nothing comes twice, also to somebody who comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import ids
from holdfast.engine.errors import BadInput

if TYPE_CHECKING:
    from holdfast.app.service import Service

PAGE = 500
SLACK = 300_000_000  # microseconds between a row's moment and the end of its transaction, at most


class FeedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of some instance's history."""

    word: str
    instance_id: str
    definition_key: str
    seq: int
    type: str
    name: str
    at: int


class Feed:
    """A place in a tenant's feed. `read` goes on from it."""

    def __init__(self, service: Service, tenant_id: str, word: str | None = None) -> None:
        self.service = service
        self.tenant_id = tenant_id
        self._place = None if word is None else _place(word, service.store.dialect)

    @property
    def word(self) -> str | None:
        """Where to go on from; None before the first look."""
        if self._place is None:
            return None
        if self.service.store.dialect == "sqlite":
            return f"{self._place[0]}"
        return ".".join(f"{number:x}" for number in self._place)

    async def read(self) -> list[FeedEntry]:
        """What has happened since; at first, nothing: the feed begins now, or where the word says."""
        if self.service.store.dialect == "sqlite":
            return await self._read_sqlite()
        return await self._read_postgres()

    async def _read_sqlite(self) -> list[FeedEntry]:
        [(end,)] = await self.service.store.fetch("feed_end")
        if self._place is None:
            self._place = [end or 0]
        rows = await self.service.store.fetch(
            "feed_between", tenant_id=self.tenant_id, low=self._place[0], high=end or 0, limit=PAGE
        )
        # One writer at a time: up to the end that was read first, every row is there.
        self._place = [rows[-1][0] if len(rows) == PAGE else max(self._place[0], end or 0)]
        return [_entry(f"{row[0]}", row[1:]) for row in rows]

    async def _read_postgres(self) -> list[FeedEntry]:
        [(horizon,)] = await self.service.store.fetch("feed_horizon", tenant_id=self.tenant_id)
        now = self.service.store.now()
        if self._place is None:
            self._place = [horizon, horizon, 0, now]
        low, high, skipped, at = self._place
        if low == high:  # all of it is handed out: the next stretch ends at today's horizon
            if horizon <= low:
                return []
            high, skipped = horizon, 0
        rows = await self.service.store.fetch(
            "feed_between", tenant_id=self.tenant_id, low=low, high=high, since=at - SLACK, skip=skipped, limit=PAGE
        )
        found = [_entry(f"{low:x}.{high:x}.{skipped + number:x}.{at:x}", row) for number, row in enumerate(rows, 1)]
        if len(rows) < PAGE:
            self._place = [high, high, 0, now]
        else:
            self._place = [low, high, skipped + len(rows), at]
        return found


def _entry(word: str, row: Any) -> FeedEntry:
    instance_id, key, seq, type_, name, at = row
    return FeedEntry(
        word=word, instance_id=ids.instance_word(instance_id), definition_key=key, seq=seq, type=type_, name=name, at=at
    )


def _place(word: str, dialect: str) -> list[int]:
    try:
        if len(word) > 100:
            raise ValueError
        found = [int(word)] if dialect == "sqlite" else [int(part, 16) for part in word.split(".")]
        if len(found) != (1 if dialect == "sqlite" else 4) or not all(0 <= one < 1 << 63 for one in found):
            raise ValueError
    except ValueError:
        raise BadInput("Last-Event-ID is none of ours: send the id of the last event you got, as it was") from None
    return found
