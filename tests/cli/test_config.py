"""`holdfast config show`, and that every command takes its options from holdfast.toml where nothing else is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import cli
from holdfast.settings import TABLE
from tests.cli.support import Desk
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
APP = """
from holdfast import Context, Holdfast
hf = Holdfast()

@hf.workflow("ask", queue="side")
async def ask(ctx: Context) -> None:
    await ctx.wait_for_signal("answer")
"""


@pytest.fixture(autouse=True)
def nothing_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(cli, words, env=environ)


def show(*words: str, **environ: str) -> dict[str, dict[str, Any]]:
    result = run("config", "show", *words, "-o", "json", **environ)
    assert result.exit_code == 0, result.output
    return {row["name"]: row for row in json.loads(result.stdout)}


def test_every_setting_is_shown_with_its_origin(folder: Path) -> None:
    (folder / "holdfast.toml").write_text('host = "0.0.0.0"\nmetrics_key = "hunter2"')
    (folder / "url").write_text("postgresql://me:hunter2@db/shop")
    shown = show("--port", "9", HOLDFAST_TENANT="acme", HOLDFAST_DATABASE_URL_FILE="url")
    assert list(shown) == list(TABLE)
    told = {name: (shown[name]["value"], shown[name]["origin"]) for name in shown}
    assert told["host"] == ("0.0.0.0", "holdfast.toml")
    assert told["port"] == (9, "flag")
    assert told["tenant"] == ("acme", "HOLDFAST_TENANT")
    assert told["database_url"] == ("postgresql://me:***@db/shop", "HOLDFAST_DATABASE_URL_FILE")
    assert told["metrics_key"] == ("***", "holdfast.toml")
    assert told["grace"] == (10.0, "default")


def test_a_table_and_lines_say_the_same(folder: Path) -> None:
    lines = run("config", "show", "-o", "jsonl", HOLDFAST_PORT="9").stdout.splitlines()
    assert [json.loads(line)["name"] for line in lines] == list(TABLE)
    table = run("config", "show", HOLDFAST_PORT="9").stdout
    assert ["port", "9", "HOLDFAST_PORT"] in [line.split() for line in table.splitlines()]


def test_a_misspelt_variable_is_named(folder: Path) -> None:
    result = run("config", "show", HOLDFAST_PROT="9")
    assert result.exit_code == 0 and "HOLDFAST_PROT is set, but no setting is called so" in result.stderr


@pytest.mark.parametrize("words", [("config", "show"), ("instances", "list"), ("migrate",)])
def test_a_fault_in_the_file_ends_every_command(folder: Path, words: tuple[str, ...]) -> None:
    (folder / "holdfast.toml").write_text("prot = 1")
    result = run(*words)
    assert result.exit_code == 2 and "no setting is called 'prot'; is 'port' meant?" in result.stderr
    assert "Traceback" not in result.output


def test_commands_take_database_app_and_tenant_from_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "asking.py").write_text(APP)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    (folder / "holdfast.toml").write_text('app = "asking"\ndatabase_url = "sqlite:///of-the-file.db"\ntenant = "acme"')
    assert run("migrate").exit_code == 0 and (folder / "of-the-file.db").exists()
    instance = run("start", "ask").stdout.strip()
    assert instance.startswith("ins_")
    [row] = json.loads(run("instances", "list", "-o", "json").stdout)
    assert row["id"] == instance
    assert json.loads(run("instances", "list", "--tenant", "other", "-o", "json").stdout) == []
    assert json.loads(run("instances", "list", "-o", "json", HOLDFAST_TENANT="other").stdout) == []
    assert run("instances", "list", "--database", "sqlite:///gone.db").exit_code == 5
    assert run("instances", "list", HOLDFAST_DATABASE_URL="sqlite:///gone.db").exit_code == 5


def test_a_worker_takes_its_options_from_the_file(folder: Path) -> None:
    (folder / "asking.py").write_text(APP)
    desk = Desk(folder, f"sqlite:///{folder / 'desk.db'}")
    desk.ok("migrate")
    (folder / "holdfast.toml").write_text(
        f'app = "asking"\ndatabase_url = "{desk.url}"\nqueues = ["side", "default"]\nlog_format = "json"\n'
        'log_level = "info"\ngrace = 0.5\nconcurrency = 3'
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli.main", "worker"], cwd=folder, stderr=subprocess.PIPE, text=True,
        env=kept | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(2)]
        assert [json.loads(line)["event"] for line in said] == ["worker_started"] * 2  # one for each queue
        process.terminate()
        assert json.loads(process.stderr.readline())["grace_seconds"] == 0.5
        process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def test_a_command_takes_its_database_from_a_file_that_a_variable_names(folder: Path) -> None:
    (folder / "url").write_text("sqlite:///of-the-secret.db\n")
    assert run("migrate", HOLDFAST_DATABASE_URL_FILE="url").exit_code == 0
    assert (folder / "of-the-secret.db").exists()
    assert run("instances", "list", HOLDFAST_DATABASE_URL_FILE="url").exit_code == 0


def test_the_file_that_was_read_is_named(folder: Path) -> None:
    assert f"no holdfast.toml in {folder}" in run("config", "show").stderr
    (folder / "holdfast.toml").write_text('database_url = "sqlite:///here.db"')
    assert f"settings from {folder}/holdfast.toml\n" in run("config", "show").stderr
    run("migrate")
    [settings] = [one for one in json.loads(run("doctor", "-o", "json").stdout) if one["check"] == "settings"]
    assert settings["found"] == f"settings from {folder}/holdfast.toml; database_url: holdfast.toml"
    (folder / "other.toml").write_text("port = 1")
    named = run("config", "show", HOLDFAST_CONFIG="other.toml").stderr
    assert f"settings from {folder}/other.toml (named by HOLDFAST_CONFIG)" in named
    one = run("doctor", "-o", "json", HOLDFAST_DATABASE_URL="sqlite:///here.db").stdout
    assert "database_url: HOLDFAST_DATABASE_URL" in one
