"""Names that only the engine gives: nobody outside may answer for a task or a child, or take the place of a fact."""

from __future__ import annotations

from typing import Any

from holdfast.engine import codec
from holdfast.engine.calendar import moment_text

OUR_EVENTS = ("xstate.", "task.done.", "task.failed.")
OUR_EVENT_IDS = ("task:", "child:", "cancel:", "resolution:", "migrate:")
OUR_FIELDS = ("task", "decided")  # of an event that only a task's answer has: guards may rely on them


def as_event(name: str, raw: bytes, sent_at: int) -> dict[str, Any]:
    """What was sent from outside, as a chart sees it."""
    payload = codec.decode(raw)
    given = payload if isinstance(payload, dict) else {"data": payload}
    for field in OUR_FIELDS:
        given.pop(field, None)
    return {**given, "type": name, "at": moment_text(sent_at)}
