"""Everything that happens in a tenant, as it happens, and again from any point of it: for screens and other listeners.

Where one left off is a word that this module alone reads. On SQLite it is the row's number, which rises with every
commit. On PostgreSQL commits overlap, so rows are handed out by transaction: those between two horizons, before which
nothing is under way any more. Nothing is left out and nothing comes twice, also to somebody who comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.engine import ids
from holdfast.engine.errors import BadInput

if TYPE_CHECKING:
    from holdfast.app.service import Service

PAGE = 500
SLACK = 120_000_000  # microseconds between a row's moment and the end of its transaction, at most
BACK_MAX = 86_400_000_000  # how old a place may be from which somebody goes on
SUMMARIZED_EVERY = SLACK // 2  # what is read in any case is longer than what no summary knows yet
ROWS_MAX = 20_000  # of all tenants, that one look passes
TOO_FAR = "Last-Event-ID is too old to go on from, or from another database: read the lists, then follow from now on"


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
        return None if self._place is None else self._place.word()

    async def check(self) -> None:
        """Refuse a place that is too far back, or ahead: going on from there would read through everybody's past."""
        place = self._place
        if isinstance(place, Stretch):
            [(horizon,)] = await self.service.store.fetch("feed_horizon", tenant_id=self.tenant_id)
            now = self.service.store.now()
            if not place.low <= place.high <= horizon or not now - BACK_MAX <= place.taken_at <= now + SLACK:
                raise BadInput(TOO_FAR)
        elif place is not None:
            [(end,)] = await self.service.store.fetch("feed_end")
            if place.row > (end or 0):
                raise BadInput(TOO_FAR)

    async def read(self) -> list[FeedEntry]:
        """What has happened since; at first, nothing: the feed begins now, or where the word says."""
        if self.service.store.dialect == "sqlite":
            return await self._read_sqlite()
        return await self._read_postgres()

    async def _read_sqlite(self) -> list[FeedEntry]:
        [(end,)] = await self.service.store.fetch("feed_end")
        if self._place is None:
            self._place = Row(end or 0)
        assert isinstance(self._place, Row)
        low = self._place.row
        high = min(end or 0, low + ROWS_MAX)  # others wait for the same reader
        rows = await self.service.store.fetch("feed_between", tenant_id=self.tenant_id, low=low, high=high, limit=PAGE)
        # One writer at a time: up to the end that was read first, every row is there.
        self._place = Row(rows[-1][0] if len(rows) == PAGE else max(low, high))
        return [_entry(Row(row[0]), row[1:]) for row in rows]

    async def _read_postgres(self) -> list[FeedEntry]:
        [(horizon,)] = await self.service.store.fetch("feed_horizon", tenant_id=self.tenant_id)
        now = self.service.store.now()
        if self._place is None:
            self._place = Stretch(horizon, horizon, now)
        assert isinstance(self._place, Stretch)
        place = self._place
        if place.low == place.high:  # all of it is handed out: the next stretch ends at today's horizon
            if horizon <= place.low:
                return []
            place = Stretch(place.low, horizon, place.taken_at)
        if not 0 <= now - self.service.summarized_at < SUMMARIZED_EVERY:
            # PostgreSQL's own vacuum does it, too, where nobody has switched it off and when it comes round to it.
            self.service.summarized_at = now
            await self.service.store.fetch("summarize_history", tenant_id=self.tenant_id)
        rows = await self.service.store.fetch(
            "feed_between", tenant_id=self.tenant_id, low=place.low, high=place.high, limit=PAGE,
            since=max(place.taken_at - SLACK, place.at), after_at=place.at, after_id=place.id, after_seq=place.seq,
        )  # fmt: skip
        found = [_entry(place.past(row), row) for row in rows]
        self._place = Stretch(place.high, place.high, now) if len(rows) < PAGE else place.past(rows[-1])
        return found


class Row(NamedTuple):
    """A place on SQLite: behind this row."""

    row: int

    def word(self) -> str:
        return str(self.row)


class Stretch(NamedTuple):
    """A place on PostgreSQL: between two horizons, behind the entry with this moment, instance and sequence."""

    low: int
    high: int
    taken_at: int  # when the lower horizon was the newest
    at: int = 0
    id: bytes = b""
    seq: int = 0

    def past(self, row: Any) -> Stretch:
        return self._replace(at=row[5], id=bytes(row[0]), seq=row[2])

    def word(self) -> str:
        numbers = ".".join(f"{number:x}" for number in (self.low, self.high, self.taken_at, self.at, self.seq))
        return f"{numbers}.{self.id.hex()}"


def _entry(place: Row | Stretch, row: Any) -> FeedEntry:
    instance_id, key, seq, type_, name, at = row
    return FeedEntry(
        word=place.word(), instance_id=ids.instance_word(instance_id), definition_key=key, seq=seq, type=type_,
        name=name, at=at,
    )  # fmt: skip


def _place(word: str, dialect: str) -> Row | Stretch:
    try:
        if len(word) > 200:
            raise ValueError
        if dialect == "sqlite":
            return Row(_number(word, 10))
        *numbers, raw = word.split(".")
        low, high, taken_at, at, seq = (_number(part, 16) for part in numbers)
        return Stretch(low, high, taken_at, at, bytes.fromhex(raw), seq)
    except ValueError:
        raise BadInput("Last-Event-ID is none of ours: send the id of the last event you got, as it was") from None


def _number(text: str, base: int) -> int:
    found = int(text, base)
    if not 0 <= found < 1 << 62:
        raise ValueError
    return found
