"""The programs of docs/client.md run, against a server, and print what the page says.

They are fenced as ```python server; if the next block is fenced as ```text output, its lines must appear in that order.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

import holdfast
from tests.api.served import Served
from tests.client.support import key_of, mocked
from tests.client.test_contract import METHODS, public
from tests.test_docs import FENCE, ROOT

PAGE = ROOT / "docs" / "client.md"
BLOCKS = list(FENCE.finditer(PAGE.read_text()))
PROGRAMS = [
    (block[2], BLOCKS[number + 1][2].splitlines()) for number, block in enumerate(BLOCKS) if block[1] == "python server"
]


def test_the_page_has_programs_and_all_of_its_python_is_run() -> None:
    assert len(PROGRAMS) == sum(block[1].startswith("python") for block in BLOCKS) == 3


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_a_program_runs_and_prints_what_the_page_says(served: Served, number: int, tmp_path: Path) -> None:
    code, output = PROGRAMS[number]
    key = tmp_path / "key"
    key.write_text(key_of(served, tenant=f"docs-{uuid4().hex[:8]}"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {
        "PYTHONPATH": str(Path(holdfast.__file__).parents[1]), "HOLDFAST_URL": served.url,
        "HOLDFAST_KEY_FILE": str(key),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    printed = iter(done.stdout.splitlines())
    for line in output:
        assert line in printed, f"{line!r} was not printed, or not in this order: {done.stdout}"


def test_the_page_names_every_method() -> None:
    text = PAGE.read_text()
    rows = dict(line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `client"))
    named = {
        f"{group.strip('`').partition('.')[2]}.{word.strip('`')}".lstrip(".")
        for group, words in rows.items()
        for word in words.split()
    }
    assert named == public(mocked(lambda request: None)) and METHODS  # type: ignore[arg-type, return-value]
