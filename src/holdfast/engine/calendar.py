"""Calendar time: a time of day in a zone as a moment. 02:30 may not exist, or exist twice."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?\Z")


def moment_text(at: int) -> str:
    """A moment as people and charts read it: ISO 8601, whole seconds, UTC."""
    return _second_text(at // SECOND)


@lru_cache(maxsize=1000)
def _second_text(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment_of(text: Any) -> int | str:
    """Microseconds of an RFC 3339 moment with its offset, or what is wrong with it."""
    if not isinstance(text, str):
        return f"{text!r} is not a moment: expected one like 2027-01-31T09:00:00Z"
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return f"{text!r} is not a moment: expected one like 2027-01-31T09:00:00Z"
    if found.tzinfo is None:
        return f"{text!r} has no time zone: write it like 2027-01-31T09:00:00Z or with +02:00"
    return (found - EPOCH) // timedelta(microseconds=1)


def check_calendar(given: Any) -> str | None:
    """What is wrong with `{"time": "09:00", "zone": "Europe/Berlin", "weekday": …, "days": …}`, or None."""
    if not isinstance(given, dict) or not given.keys() <= {"time", "zone", "weekday", "days"}:
        return 'expected {"time": "09:00", "zone": "Europe/Berlin"} and, if wanted, "weekday" or "days"'
    if not isinstance(given.get("time"), str) or not _TIME.match(given["time"]):
        return f"time is {given.get('time')!r}: expected HH:MM"
    zone = given.get("zone", "UTC")
    try:
        ZoneInfo(zone)
    except Exception:
        return f"zone is {zone!r}: expected a name such as Europe/Berlin"
    if "weekday" in given and given["weekday"] not in WEEKDAYS:
        return f"weekday is {given['weekday']!r}: expected one of {', '.join(WEEKDAYS)}"
    days = given.get("days", 0)
    if isinstance(days, bool) or not isinstance(days, int) or not 0 <= days <= 36_500:
        return f"days is {days!r}: expected a whole number from 0 on"
    if "weekday" in given and "days" in given:
        return "give weekday or days, not both"
    return None


def next_moment(given: dict[str, Any], now: int) -> int:
    """The next time of day after `now` in the zone; on the weekday; or that many days from today."""
    zone = ZoneInfo(given.get("zone", "UTC"))
    time = _TIME.match(given["time"])
    assert time is not None, "check_calendar comes first"
    hour, minute, second = (int(part or 0) for part in time.groups())
    here = datetime.fromtimestamp(now / SECOND, UTC).astimezone(zone)
    day = here.date() + timedelta(days=given.get("days", 0))
    for _ in range(9):
        if "weekday" not in given or WEEKDAYS[day.weekday()] == given["weekday"]:
            # fold=0 takes the first of two; a time that does not exist is read with the offset before the gap, which
            # lands right after it.
            found = datetime(day.year, day.month, day.day, hour, minute, second, tzinfo=zone)
            at = round(found.timestamp()) * SECOND
            if at > now:
                return at
        day += timedelta(days=1)
    raise AssertionError("a week has every weekday")
