"""A model that answers from a script, for tests and `dev`: a list, a function, or a file that people write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.engine.errors import Rejected
from holdfast.handlers.ports import LlmReply, LlmRequest

Reply = str | LlmReply | BaseException


class ScriptedLlm:
    """Answers from a script: a list, taken from its beginning, or a function of the request. It remembers what it
    was asked. A text stands for a reply, an exception is raised."""

    def __init__(self, replies: Sequence[Reply] | Callable[[LlmRequest], Reply], model: str = "scripted") -> None:
        self._replies = replies
        self._model = model
        self.requests: list[LlmRequest] = []

    async def complete(self, request: LlmRequest) -> LlmReply:
        self.requests.append(request)
        if callable(self._replies):
            reply = self._replies(request)
        elif len(self.requests) <= len(self._replies):
            reply = self._replies[len(self.requests) - 1]
        else:
            raise Rejected(f"the script holds {len(self._replies)} replies, and this is request {len(self.requests)}")
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, LlmReply):
            return reply
        asked = request.system + "".join(message["content"] for message in request.messages)
        return LlmReply(
            text=reply, model=self._model, input_tokens=len(asked) // 4 + 1, output_tokens=len(reply) // 4 + 1
        )


class WrittenAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a file of answers: what is said to a request whose user messages hold the text of `when`."""

    answer: dict[str, Any] | str
    """A text is said as it stands: also one that is no answer, to see what follows."""
    when: str = ""


def answers_in(file: Path) -> Callable[[LlmRequest], str]:
    """A script that people write down, one JSON object per line; the first line that fits a request answers it.

    It is read anew for every request, so it may be edited meanwhile. No place in it is remembered: after a restart the
    same request gets the same answer.
    """

    def answer(request: LlmRequest) -> str:
        asked = "\n".join(message["content"] for message in request.messages if message["role"] == "user")
        for line in _written(file):
            if line.when in asked:
                return line.answer if isinstance(line.answer, str) else msgspec.json.encode(line.answer).decode()
        shape = msgspec.json.encode({"answer": dict.fromkeys(request.schema.get("properties", {}), "…")}).decode()
        raise Rejected(
            f'no line in {file} answers this request: add one (with "when": "some words", only for requests that hold '
            f"them), or set HOLDFAST_LLM_URL and HOLDFAST_LLM_MODEL to ask a real model. A line looks like {shape}"
        )

    return answer


def _written(file: Path) -> list[WrittenAnswer]:
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Rejected(f"the answers of the scripted model cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found += [msgspec.json.decode(line, type=WrittenAnswer)] if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise Rejected(
                f'line {number} of {file} is not {{"when": "some words", "answer": {{…}}}} on one line: {error}'
            ) from None
    return found
