"""A command that serves nothing and runs nothing does not wait for the libraries of those that do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from holdfast.cli.main import COMMANDS, cli

HEAVY = (
    "asyncpg", "cel_expr_python", "email.message", "httpx", "jsonschema_rs", "jwt", "litestar", "opentelemetry",
    "prometheus_client", "smtplib", "uvicorn", "holdfast.api", "holdfast.engine.charts.compiler", "holdfast.handlers",
    "holdfast.worker.worker",
)  # fmt: skip
PROGRAM = """
import json, sys
sys.argv = ["holdfast", *sys.argv[1:]]
from holdfast.cli.main import cli
try:
    cli(standalone_mode=False)
finally:
    print("\\n" + json.dumps(sorted(sys.modules)))
"""


def imported(folder: Path, *words: str) -> set[str]:
    """The heavy ones among the modules that a command has imported when it is done."""
    env = {"HOLDFAST_DATABASE_URL": f"sqlite:///{folder}/a.db"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout.splitlines()[-1])
    return {heavy for heavy in HEAVY if any(one == heavy or one.startswith(f"{heavy}.") for one in modules)}


@pytest.mark.parametrize(
    "words",
    ["--help", "config show", "completion bash", "instances list", "instances list --parked", "dead-letters list",
     "effects list", "tasks list", "workers list", "tenants show default",
     "bulk start pause --all --dry-run --reason x"],
)  # fmt: skip
def test_a_command_on_sqlite_imports_no_library_that_it_does_not_use(tmp_path: Path, words: str) -> None:
    assert imported(tmp_path, "migrate") == set()
    assert imported(tmp_path, *words.split()) == set()


def test_the_list_of_commands_says_of_each_what_it_says_of_itself() -> None:
    context = click.Context(cli)
    for name, (_, line) in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None and command.name == name
        assert command.get_short_help_str(1000) == line, name
