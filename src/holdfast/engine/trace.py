"""Traces as W3C's Trace Context writes them: what an instance's `trace_id` says, and what is passed on to others.

An instance keeps one text, given when it is started: a bare id of the caller's own, or a whole `traceparent`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_WRITTEN = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z", re.S)


class TraceParent(NamedTuple):
    """A place in a trace: hexadecimal ids, and whether it is recorded (bit 0 of the flags)."""

    trace_id: str
    span_id: str
    flags: int = 1


def parse_traceparent(text: str | None) -> TraceParent | None:
    """`00-<32 hex>-<16 hex>-<2 hex>`, or None for anything else. A later version may have more behind it."""
    found = _WRITTEN.match(text) if text is not None else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):  # all zero: the standard's way of saying "none"
        return None
    return TraceParent(trace_id, span_id, int(flags, 16))


def format_traceparent(place: TraceParent) -> str:
    return f"00-{place.trace_id}-{place.span_id}-{place.flags & 0xFF:02x}"


def trace_id_of(text: str | None) -> str | None:
    """What log lines and other readers look for: the id inside a traceparent, or the bare id as it was given."""
    found = parse_traceparent(text)
    return text if found is None else found.trace_id
