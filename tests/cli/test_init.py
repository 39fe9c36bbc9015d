"""`holdfast init`: what it writes runs, and it overwrites nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from holdfast.cli.main import cli
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
FILES = [".gitignore", "README.md", "app.py", "holdfast.toml", "pytest.ini", "test_app.py"]
# Of a folder above, as in a clone of Holdfast.
STRICT = '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib --strict-config"\nnobody_knows_this = 1\n'


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PYTEST_"))}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}


def command(folder: Path, *words: str, **more: Any) -> Any:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        **more,
    )


def test_the_starter_passes_its_own_test(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(STRICT)
    assert run("init", "shop").exit_code == 0
    assert sorted(path.name for path in (folder / "shop").iterdir()) == FILES
    assert len((folder / "shop" / "app.py").read_text().splitlines()) <= 45
    done = command(folder / "shop", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_starters_test_shows_the_line_of_a_mistake_and_does_not_hang(folder: Path) -> None:
    assert run("init").exit_code == 0
    app = folder / "app.py"
    app.write_text(app.read_text().replace('order["amount_minor"]', 'order["amuont_minor"]'))
    done = command(folder, "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "approved_refund")
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout + done.stderr
    assert "E       KeyError: 'amuont_minor'" in done.stdout and "app.py:21: KeyError" in done.stdout


def test_the_starter_runs(folder: Path) -> None:
    assert run("init").exit_code == 0
    out = folder / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", "dev", "--port", "0"],
            cwd=folder,
            env=environment(),
            stdout=file,
            stderr=file,
        )
    try:
        waiting = said(process, out, r"holdfast signal (ins_\w+) approved --payload '(.+)'")
        told = command(folder, "holdfast.cli.main", "signal", waiting[1], "approved", "--payload", waiting[2])
        assert told.returncode == 0, told.stderr
        assert "'approved_by': 'ann'" in said(process, out, r"result: (.+)")[1]
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def said(process: subprocess.Popen[bytes], out: Path, pattern: str) -> re.Match[str]:
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := re.search(pattern, out.read_text())):
        assert process.poll() is None and time.monotonic() < end, out.read_text()
        time.sleep(0.05)
    return found


def test_nothing_is_overwritten(folder: Path) -> None:
    (folder / "app.py").write_text("mine")
    result = run("init")
    assert result.exit_code == 4 and "app.py already: nothing was written" in result.stderr
    assert (folder / "app.py").read_text() == "mine"
    assert [path.name for path in folder.iterdir()] == ["app.py"]
    assert run("init", "app.py").exit_code == 2


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    result = run("init", "shop", "--dry-run")
    assert result.exit_code == 0 and not (folder / "shop").exists()
    assert sorted(Path(line).name for line in result.stdout.splitlines()) == FILES


def test_an_ignore_file_gets_one_line_more(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.log")
    assert run("init").exit_code == 0
    assert (folder / ".gitignore").read_text() == "*.log\n.holdfast/\n"


def test_an_ignore_file_that_knows_is_left_alone(folder: Path) -> None:
    (folder / ".gitignore").write_text(".holdfast/\n*.log")
    assert ".gitignore" not in run("init").stdout
    assert (folder / ".gitignore").read_text() == ".holdfast/\n*.log"
