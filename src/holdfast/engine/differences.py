"""Where two JSON values differ, for somebody who has to find out: places, and in short what stands there."""

from __future__ import annotations

from typing import Any

from holdfast.engine.charts.document import escaped, found

SHOWN_MAX = 20


def differences(old: Any, new: Any, at: str = "") -> list[tuple[str, str, str]]:
    """(pointer, what the old one has, what the new one has), the first twenty."""
    places: list[tuple[str, str, str]] = []
    _compare(old, new, at, places)
    return places


def _compare(old: Any, new: Any, at: str, places: list[tuple[str, str, str]]) -> None:
    if len(places) >= SHOWN_MAX or (type(old) is type(new) and old == new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            place = f"{at}/{escaped(key)}"
            if key not in new:
                _note(places, place, found(old[key]), "nothing")
            elif key not in old:
                _note(places, place, "nothing", found(new[key]))
            else:
                _compare(old[key], new[key], place, places)
    elif isinstance(old, list) and isinstance(new, list):
        for number in range(max(len(old), len(new))):
            place = f"{at}/{number}"
            if number >= len(new):
                _note(places, place, found(old[number]), "nothing")
            elif number >= len(old):
                _note(places, place, "nothing", found(new[number]))
            else:
                _compare(old[number], new[number], place, places)
    elif old != new or type(old) is not type(new):
        if isinstance(old, (int, float)) and isinstance(new, (int, float)) and not isinstance(old, bool) and old == new:
            return  # 1 and 1.0 are one number in JSON
        _note(places, at, found(old), found(new))


def _note(places: list[tuple[str, str, str]], at: str, old: str, new: str) -> None:
    if len(places) < SHOWN_MAX:
        places.append((at, old, new))
