"""Spans of time as charts write them: milliseconds, or an ISO 8601 duration that is the same length on every day."""

from __future__ import annotations

import re

MILLISECOND = 1000
SPAN_MAX = 1000 * 365 * 86_400 * 1_000_000  # a thousand years, in microseconds
_ISO = re.compile(
    r"P(?:(?P<w>\d{1,6})W)?(?:(?P<d>\d{1,6})D)?(?:T(?:(?P<h>\d{1,7})H)?(?:(?P<m>\d{1,9})M)?"
    r"(?:(?P<s>\d{1,10})(?:\.(?P<f>\d{1,6}))?S)?)?\Z"
)


def iso_span(text: str) -> int | str:
    """Microseconds, or what is wrong with it."""
    if re.match(r"P\d+[YM]", text) or re.match(r"P\d+W\d*[YM]", text):
        return f"{text!r} counts years or months, which differ in length: use days (P30D) or a moment (run_at)"
    found = _ISO.match(text)
    if found is None or text in ("P",) or text.endswith("T"):
        return f"{text!r} is not an ISO 8601 duration: expected one like PT30S, PT2H, P3D or P1W"
    part = {name: int(value) for name, value in found.groupdict().items() if value is not None and name != "f"}
    seconds = (
        (part.get("w", 0) * 7 + part.get("d", 0)) * 86_400
        + part.get("h", 0) * 3600
        + part.get("m", 0) * 60
        + part.get("s", 0)
    )
    micros = seconds * 1_000_000 + int((found["f"] or "").ljust(6, "0"))
    return micros if micros <= SPAN_MAX else f"{text!r} is longer than a thousand years"


def span(value: object) -> int | str:
    """Microseconds of a number of milliseconds or an ISO 8601 duration, or what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return f"{value!r} is not a span of time: expected milliseconds or an ISO 8601 duration such as PT30S"
    if isinstance(value, str):
        return iso_span(value)
    if not 0 <= value * MILLISECOND <= SPAN_MAX:
        return f"{value!r} milliseconds is not a span of time: expected 0 to a thousand years"
    return round(value * MILLISECOND)
