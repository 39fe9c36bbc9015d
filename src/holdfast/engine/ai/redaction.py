"""What is not kept: the fields that a task marks, and their values wherever a text repeats them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.engine.ai.answers import Answer, Problem
from holdfast.engine.ai.policy import AiPolicy
from holdfast.engine.ai.prompts import escaped_json
from holdfast.engine.errors import BadInput

REDACTED = "[redacted]"
ECHOES_LIMIT = 1000
ECHO_MIN = 4  # a shorter value would be found in every word


class Redactor:
    """Takes the marked fields out of what is stored, and their values out of every text that repeats them."""

    def __init__(self, paths: tuple[tuple[str, ...], ...], value: Any) -> None:
        self._paths = paths
        found: set[str] = set()
        for path in paths:
            if path[0] == "input":
                for marked in _at(value, path[1:]):
                    found.update(_worth(marked))
        if len(found) > ECHOES_LIMIT:
            raise BadInput(f"redact marks {len(found):,} values of the input, the limit is {ECHOES_LIMIT:,}")
        self._echoes = sorted(found, key=len, reverse=True)

    def __bool__(self) -> bool:
        return bool(self._paths)

    def text(self, text: str) -> str:
        for one in self._echoes:
            text = text.replace(one, REDACTED)
        return text

    def input(self, value: Any) -> Any:
        return self._scrubbed(self._without("input", value))

    def output(self, answer: Any, policy: AiPolicy) -> Any:
        """Before it is judged, so that a proposal holds, shows, hashes and applies the same."""
        answer = self._without("output", answer)
        if not policy.allowed_events or not isinstance(answer, dict):
            return self._scrubbed(answer)
        return {name: item if name == "event" else self._scrubbed(item) for name, item in answer.items()}

    def raw(self, raw: str, answer: Answer | Problem, policy: AiPolicy) -> str:
        """What the model wrote. Where fields are marked, text that cannot be read may hold any of them."""
        if not self._paths:
            return raw
        if isinstance(answer, Answer):
            return json.dumps(self.output(answer.value, policy), ensure_ascii=False)
        return f"{REDACTED} ({len(raw):,} characters that are not one JSON value)"

    def _without(self, root: str, value: Any) -> Any:
        for path in self._paths:
            if path[0] == root:
                value = _replaced(value, path[1:])
        return value

    def _scrubbed(self, value: Any) -> Any:
        if not self._echoes:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {name: self._scrubbed(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._scrubbed(item) for item in value]
        return value


def _at(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    if not path:
        yield value
    for _, item in _steps(value, path):
        yield from _at(item, path[1:])


def _replaced(value: Any, path: tuple[str, ...]) -> Any:
    if not path:
        return REDACTED
    changed = {name: _replaced(item, path[1:]) for name, item in _steps(value, path)}
    if isinstance(value, dict):
        return {name: changed.get(name, item) for name, item in value.items()}
    if isinstance(value, list):
        return [changed.get(index, item) for index, item in enumerate(value)]
    return value


def _steps(value: Any, path: tuple[str, ...]) -> list[tuple[Any, Any]]:
    if not path or not isinstance(value, (dict, list)):
        return []
    named = list(value.items() if isinstance(value, dict) else enumerate(value))
    return [(name, item) for name, item in named if path[0] == "*" or str(name) == path[0]]


def _worth(value: Any) -> Iterator[str]:
    """The texts by which a marked value could be recognised elsewhere."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _worth(item)
    elif isinstance(value, list):
        for item in value:
            yield from _worth(item)
    elif isinstance(value, (str, int, float)) and not isinstance(value, bool) and len(text := str(value)) >= ECHO_MIN:
        yield from {text, escaped_json(text)[1:-1], ascii(text)[1:-1]}  # as it is, as prompts and as problems write it
