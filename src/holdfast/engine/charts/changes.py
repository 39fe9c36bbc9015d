"""One change of a chart, and all of them, as values and as lines for people."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.engine import codec

LINE_MAX = 200
_MARK = {"added": "+", "removed": "-", "changed": "~", "moved": ">", "reordered": "~"}


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that is not as it was. `path` points into the new document, or into the old one if it was removed."""

    kind: str  # added | removed | changed | moved | reordered
    what: str  # state | transition | context | guard | action | delay | task | entry | exit | invoke | …
    name: str
    path: str
    before: Any = None
    after: Any = None

    def text(self) -> str:
        line = f"{_MARK[self.kind]} {self.what} {self.name}"
        if self.kind == "moved":
            line = f"> {self.what} {self.before} is now {self.after}"
        elif self.kind == "reordered":
            line += f": the order changed from {short(self.before)} to {short(self.after)}"
        elif self.kind == "changed":
            line += f": {short(self.before)} → {short(self.after)}"
        elif self.kind == "added" and self.after is not None:
            line += f": {short(self.after)}"
        elif self.kind == "removed" and self.before is not None:
            line += f": {short(self.before)}"
        return line


class Difference(msgspec.Struct, frozen=True):
    """Every change from one version to the other, states first."""

    changes: tuple[Change, ...]

    def of(self, what: str, kind: str | None = None) -> list[Change]:
        return [change for change in self.changes if change.what == what and kind in (None, change.kind)]

    def text(self) -> str:
        """A line for each change; nothing if there is none."""
        return "\n".join(change.text() for change in self.changes)


def short(value: Any) -> str:
    if value in (None, "", []):
        text = "(nothing)"
    elif isinstance(value, str):
        text = value
    elif isinstance(value, dict) and value.keys() == {"@expr"}:
        text = str(value["@expr"])
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        text = ", ".join(value)
    else:
        text = codec.encode(value).decode()
    return text if len(text) <= LINE_MAX else text[: LINE_MAX - 1] + "…"
