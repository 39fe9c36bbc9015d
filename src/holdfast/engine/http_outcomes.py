"""What an HTTP status says about the world: succeeded, not applied, rejected or unknown.

Pure rules on numbers and texts; nothing here knows how a response arrived.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

from holdfast.engine.errors import BadInput

Outcome = Literal["succeeded", "not_applied", "rejected", "unknown"]
OUTCOMES: dict[str, Outcome] = {
    "succeeded": "succeeded",
    "not_applied": "not_applied",
    "rejected": "rejected",
    "unknown": "unknown",
}
# 408: the server gave up waiting for a request whose bytes we had sent; nobody knows how far it read.
# 425 and 429: refused before any work was done. A 5xx may have failed half-way, whatever it says.
DEFAULTS: dict[str, Outcome] = {
    "2xx": "succeeded",
    "3xx": "rejected",
    "4xx": "rejected",
    "408": "unknown",
    "425": "not_applied",
    "429": "not_applied",
    "5xx": "unknown",
}
RETRY_AFTER_MAX = 86_400.0
_KEY = re.compile(r"[1-5](?:[0-9][0-9]|xx)\Z")


def checked_outcomes(table: object) -> dict[str, Outcome]:
    """An author's table as given, or `BadInput` that says which entry is wrong."""
    if not isinstance(table, Mapping):
        raise BadInput(f'outcomes is {table!r}: expected a table such as {{"409": "succeeded", "5xx": "not_applied"}}')
    checked: dict[str, Outcome] = {}
    for key, word in table.items():
        if not isinstance(key, str) or not _KEY.match(key):
            raise BadInput(f'outcomes names {key!r}: expected a status such as "409" or a class such as "5xx"')
        if not isinstance(word, str) or word not in OUTCOMES:
            raise BadInput(f"outcomes says {word!r} for {key}: expected one of {', '.join(OUTCOMES)}")
        checked[key] = OUTCOMES[word]
    return checked


def outcome_of(status: int, table: Mapping[str, Outcome]) -> Outcome:
    """The exact status before its class; the author's word before ours.

    So an author's "4xx" does not move 408, 425 and 429: whoever means them names them.
    """
    words = {**DEFAULTS, **table}
    return words.get(str(status)) or words.get(f"{status // 100}xx", "unknown")


def retry_after_seconds(value: str | None, now: float) -> float | None:
    """A Retry-After header, in seconds from now: a number or a date, at most a day. None: it says nothing."""
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return min(float(text), RETRY_AFTER_MAX)
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:  # "-0000": a date without a zone; HTTP dates are always GMT
            moment = moment.replace(tzinfo=UTC)
        return min(max(moment.timestamp() - now, 0.0), RETRY_AFTER_MAX)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
