"""Moments: microseconds since 1970 inside and in the database, aware datetimes in UTC for everybody outside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta

Moment = Annotated[datetime, Meta(tz=True)]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def when(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=min(micros, LAST))


def moment(micros: int | None) -> datetime | None:
    return None if micros is None else when(micros)


def micros(at: datetime) -> int:
    """Microseconds since 1970; a moment before that counts as its beginning, one after the year 9999 as its end."""
    return min(LAST, max(0, (at - EPOCH) // timedelta(microseconds=1)))
