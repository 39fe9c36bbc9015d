"""What `holdfast dev` gives an app that has set up nothing: a mailbox to look into, and a model that says what is
written down. What is set up wins, and `holdfast worker` has neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.engine.errors import Rejected, ResultNotReady
from holdfast.handlers.mailbox import FileMailbox
from holdfast.handlers.ports import LlmRequest
from holdfast.handlers.script import ScriptedLlm, answers_in
from tests.support.auditor import assert_sound
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
BARE = """
from holdfast import Holdfast
hf = Holdfast("sqlite:///app.db")
"""
SET_UP = """
from holdfast import Holdfast, Outside
from holdfast.handlers.mailbox import FileMailbox
from holdfast.handlers.script import ScriptedLlm
own = ScriptedLlm(lambda request: '{"event": "approve", "confidence": 1, "reason": "the app says so"}')
hf = Holdfast("sqlite:///app.db", outside=Outside(llm=own, mail=FileMailbox("own")))
"""
OWN_HANDLERS = """
from holdfast import Holdfast
hf = Holdfast("sqlite:///app.db")

@hf.task_handler("EMAIL", "")
def mail(given):
    return "by the app"

@hf.task_handler("AI", "")
def ask(given):
    return {"verdict": "apply", "event": "approve", "confidence": 1, "proposal": {"event": "approve"}}
"""
CHART = {
    "id": "claims", "context": {"text": {"@expr": "event.input"}, "chose": "nothing"}, "initial": "ask",
    "output": {"@expr": "context.chose"},
    "states": {
        "ask": {
            "invoke": {
                "src": {"task": {
                    "type": "AI", "name": "advise", "input": {"text": {"@expr": "context.text"}},
                    "prompt": {"id": "advice", "version": 1, "user": "Is this claim fine?"},
                    "policy": {"allowed_events": ["approve", "refuse"], "mode": "apply", "confidence_min": 0.5},
                }},
                "onDone": "tell", "onError": "tell",
            },
            "on": {
                "approve": {"target": "tell", "actions": {"type": "assign", "assign": {"chose": "approve"}}},
                "refuse": {"target": "tell", "actions": {"type": "assign", "assign": {"chose": "refuse"}}},
            },
        },
        "tell": {
            "invoke": {
                "src": {"task": {"type": "EMAIL", "name": "tell", "to": "ada@example.org", "subject": "Your claim",
                                 "text": "It was looked at."}},
                "onDone": "told", "onError": "told",
            },
        },
        "told": {"type": "final"},
    },
}  # fmt: skip


class Place:
    """A folder with an app, and at most one `holdfast` process in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'app.db'}"
        self.out = folder / "out"
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self, *words: str, app: str = BARE, **more: str) -> None:
        (self.folder / "shop.py").write_text(app)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment = kept | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"} | more
        command = [sys.executable, "-m", "holdfast.cli.main", *words, "--app", "shop", "--log-format", "json"]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=out, stderr=out)
        end = time.monotonic() + PATIENCE_SECONDS
        while "worker_started" not in self.said():
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.05)

    def dev(self, *words: str, **more: str) -> None:
        """On a free port: the usual one is taken while another test, or another person, runs `dev`."""
        self.begin("dev", "--port", "0", *words, **more)

    def said(self) -> str:
        return self.out.read_text()

    def write(self, *lines: dict[str, Any], file: str = ".holdfast/answers.jsonl") -> None:
        path = self.folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def mails(self, folder: str = ".holdfast/mailbox") -> list[str]:
        return [mail.subject for mail in FileMailbox(self.folder / folder).list()]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Callable[[str], Any]]:
        """Something to claim with: what the AI chose, and what the two tasks were refused with."""
        async with Holdfast(self.url) as hf:
            await hf.publish(CHART)

            async def claim(text: str) -> tuple[str, dict[str, str]]:
                handle = await hf.start("claims", text)
                try:
                    chose = await handle.result(PATIENCE_SECONDS)
                except ResultNotReady:
                    raise AssertionError(f"{await handle.why()}\n{self.said()}") from None
                tasks = await hf.tasks.list(instance=handle.id, status=None)
                assert sorted(task.type for task in tasks) == ["AI", "EMAIL"]
                return chose, {task.type: task.error["message"] for task in tasks if task.error}

            yield claim
        assert_sound(self.url)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    if place.process is not None:
        place.process.kill()
        place.process.wait()


def says(event: str, **more: str) -> dict[str, Any]:
    return {"answer": {"event": event, "confidence": 0.9, "reason": "as written"}, **more}


async def test_in_dev_mails_land_in_a_folder_and_the_model_says_what_is_written_down(place: Place) -> None:
    place.write(says("refuse", when="flowers"), says("approve", when="train"))
    place.dev()
    async with place.opened() as claim:
        assert await claim("a train to the customer") == ("approve", {})
        assert await claim("flowers for the office") == ("refuse", {})
    assert place.mails() == ["Your claim"] * 2
    assert f"mails      {place.folder / '.holdfast/mailbox'}  (no mail server is set up: " in place.said()
    assert f"answers    {place.folder / '.holdfast/answers.jsonl'}  (no model is set up: " in place.said()


async def test_an_answer_that_is_missing_is_asked_for_and_may_be_added_while_dev_runs(place: Place) -> None:
    place.dev()
    async with place.opened() as claim:
        chose, refused = await claim("a train")
        assert (chose, list(refused)) == ("nothing", ["AI"])
        assert f"no line in {place.folder / '.holdfast/answers.jsonl'} answers this request" in refused["AI"]
        assert '{"answer":{"event":"…","confidence":"…","reason":"…"}}' in refused["AI"]
        place.write(says("approve"))
        assert await claim("a train") == ("approve", {})


@pytest.mark.parametrize("named", ["option", "environment"])
async def test_the_file_of_answers_may_be_named(place: Place, named: str) -> None:
    place.write(says("refuse"), file="mine.jsonl")
    place.write(says("approve"))
    if named == "option":
        place.dev("--answers", "mine.jsonl")
    else:
        place.dev(HOLDFAST_DEV_ANSWERS="mine.jsonl")
    async with place.opened() as claim:
        assert await claim("a train") == ("refuse", {})


async def test_what_the_app_sets_up_wins(place: Place) -> None:
    place.write(says("refuse"))
    place.dev("--answers", ".holdfast/answers.jsonl", app=SET_UP)
    async with place.opened() as claim:
        assert await claim("a train") == ("approve", {})
    assert (place.mails("own"), place.mails()) == (["Your claim"], [])
    assert "answers.jsonl is not used" in place.said()
    assert "\nmails " not in place.said() and "\nanswers " not in place.said()


async def test_the_apps_own_handlers_win(place: Place) -> None:
    place.write(says("refuse"))
    place.dev(app=OWN_HANDLERS)
    async with place.opened() as claim:
        assert await claim("a train") == ("approve", {})
    assert place.mails() == []
    assert "\nmails " not in place.said() and "\nanswers " not in place.said()


async def test_what_the_environment_sets_up_wins_even_by_half(place: Place) -> None:
    place.write(says("refuse"))
    place.dev(HOLDFAST_MAILBOX="post", HOLDFAST_LLM_URL="http://127.0.0.1:1/v1")
    async with place.opened() as claim:
        chose, refused = await claim("a train")
    assert (chose, list(refused)) == ("nothing", ["AI"])
    assert "no model is set up: set HOLDFAST_LLM_URL, HOLDFAST_LLM_MODEL" in refused["AI"]
    assert (place.mails("post"), place.mails()) == (["Your claim"], [])


async def test_a_worker_falls_back_to_neither(place: Place) -> None:
    place.write(says("approve"))
    async with place.opened() as claim:
        place.begin("worker", HOLDFAST_DEV_ANSWERS=".holdfast/answers.jsonl")
        chose, refused = await claim("a train")
    assert (chose, sorted(refused)) == ("nothing", ["AI", "EMAIL"])
    assert "no mail server is set up" in refused["EMAIL"] and "no model is set up" in refused["AI"]
    assert place.mails() == []


# -- the file of answers


def asked(*texts: str) -> LlmRequest:
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return LlmRequest(
        model="", system="approve or refuse", messages=messages, schema={"type": "object"}, max_tokens=10,
        timeout_seconds=1, idempotency_key="k",
    )  # fmt: skip


async def test_the_first_line_that_fits_answers_and_its_place_is_not_remembered(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(
        '{"when": "approve", "answer": "never: only what the user says is looked at"}\n'
        '{"when": "cannot be used", "answer": {"ok": true}}\r\n\n'
        '{"answer": "not JSON"}\n{"answer": "too late"}'
    )
    llm = ScriptedLlm(answers_in(file))
    for _ in range(2):
        assert (await llm.complete(asked("Is it fine?"))).text == "not JSON"
        again = asked("Is it fine?", "I approve", "That cannot be used")
        assert (await llm.complete(again)).text == '{"ok":true}'


@pytest.mark.parametrize(
    ("line", "words"),
    [("{", "line 2 of .*truncated"), ('{"anwser": {}}', "line 2 of .*anwser"), ('{"answer": 3}', "line 2 of .*answer"),
     ('{"when": "x"}', "line 2 of .*answer"), ("\udcff", "line 2 of .*")],
    ids=["broken", "misspelt", "a number", "no answer", "no UTF-8"],
)  # fmt: skip
async def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text('{"answer": {}}\n' + line, errors="surrogateescape")
    with pytest.raises(Rejected, match=words):
        await ScriptedLlm(answers_in(file)).complete(asked("Is it fine?"))
    with pytest.raises(Rejected, match="cannot be read"):
        await ScriptedLlm(answers_in(tmp_path)).complete(asked("Is it fine?"))
