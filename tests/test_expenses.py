"""The expense example as its users run it: on both databases, with the person's part played from the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import Outside
from holdfast.handlers.mailbox import FileMailbox
from holdfast.handlers.script import ScriptedLlm
from holdfast.testing import Harness
from tests.support.auditor import assert_sound
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parent.parent
CLAIM = {
    "claimant": "Ada", "email": "ada@example.org", "amount_minor": 12_500, "currency": "EUR",
    "reason": "train to the customer",
}  # fmt: skip


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'expenses.db'}"


async def opened(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Harness, Any]:
    from examples import expenses

    monkeypatch.setattr(expenses, "FOLDER", folder)
    outside = Outside(
        llm=ScriptedLlm(expenses.advise), mail=FileMailbox(folder / "mail"), mail_from="expenses@example.org"
    )
    test = Harness(expenses.hf, url=url, outside=outside)
    await test.open()
    await test.publish((ROOT / "examples" / "expense.json").read_text())
    return test, expenses


async def states(handle: Any) -> list[str]:
    return [e.name for e in await handle.history() if e.type == "STATE_TRANSITION"]


async def test_a_person_applies_the_advice_and_one_payout_follows(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, _ = await opened(url, tmp_path, monkeypatch)
    handle = await test.start("expense", CLAIM)
    await test.run_until_idle()
    [review] = await test.tasks.list(type="HUMAN", group="managers")
    assert review.input["proposal"]["event"] == "approve"
    await test.tasks.complete(
        review.id, {"decision": "apply", "hash": review.input["proposal"]["hash"]}, actor="ann"
    )  # fmt: skip
    await test.run_until_idle()
    assert await states(handle) == ["advice", "paying", "telling", "paid"]
    assert (await handle.result(0))["decided_by"] == "ann"
    assert len(list((tmp_path / "bank").glob("*.json"))) == 1
    await test.close()
    assert_sound(url)


async def test_nobody_acts_for_four_days_and_a_deputy_decides(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, _ = await opened(url, tmp_path, monkeypatch)
    handle = await test.start("expense", CLAIM)
    await test.advance(days=2)
    [task] = await test.tasks.list(type="HUMAN")
    assert (task.name, task.groups) == ("decide", ["managers"])
    await test.advance(days=2)
    assert sorted(t.name for t in await test.tasks.list(type="HUMAN")) == ["decide", "decide instead"]
    [task] = await test.tasks.list(type="HUMAN", group="deputies")
    await test.tasks.complete(task.id, {"approve": False, "why": "too late"}, actor="dan")
    await test.run_until_idle()
    assert await handle.result(0) == {"receipt": None, "decided_by": "reviewer", "why": "too late"}
    assert await test.tasks.list() == []
    await test.close()
    assert_sound(url)


def test_make_run_shows_a_claim_that_waits_and_the_command_line_completes_it(tmp_path: Path) -> None:
    holdfast = [sys.executable, "-m", "holdfast.cli.main"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "NO_COLOR": "1"}
    environment.pop("HOLDFAST_DATABASE_URL", None)
    running = subprocess.Popen(
        [*holdfast, "dev", "--port", "0", "--app", "examples.expenses:hf"], cwd=tmp_path, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert running.stdout is not None
        said = ""
        while "tasks complete" not in said:
            line = running.stdout.readline()
            assert line, said
            said = line
        found = re.search(r"tasks complete (tsk_\w+) --actor you --output '(.*)'", said)
        assert found is not None, said

        def run(*words: str) -> str:
            done = subprocess.run([*holdfast, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert json.loads(run("tasks", "show", found[1], "-o", "json"))["status"] == "pending"
        run("tasks", "complete", found[1], "--actor", "ann", "--output", found[2])
        for _ in range(100):
            [instance] = json.loads(run("instances", "list", "-o", "json"))
            if instance["status"] == "completed":
                break
        assert instance["status"] == "completed"
        history = json.loads(run("instances", "history", instance["id"], "-o", "json"))
        assert [e["payload"]["by"] for e in history if e["type"] == "DECISION_RECORDED"] == ["ann"]
        assert len(list((tmp_path / ".holdfast/expenses/bank").glob("*.json"))) == 1
        assert len(list((tmp_path / ".holdfast/expenses/mail").glob("*.eml"))) == 1
        drawn = run("definitions", "graph", "expense", "--instance", instance["id"], "--format", "svg")
        assert drawn.startswith("<svg")
    finally:
        running.terminate()
        running.wait(PATIENCE_SECONDS)


async def test_hello_greets_or_goes(url: str) -> None:
    from holdfast import Holdfast

    async with Harness(Holdfast("sqlite:///unused.db"), url=url) as test:
        await test.publish((ROOT / "examples" / "hello.json").read_text())
        greeted, gone = await test.start("hello", {"name": "Ada"}), await test.start("hello", {"name": "Bob"})
        await test.run_until_idle()
        await greeted.send("greet", {"word": "Good morning"})
        await test.advance(days=1)
        assert await greeted.result(0) == {"greeting": "Good morning, Ada!"}
        assert await gone.result(0) == {"greeting": ""}
