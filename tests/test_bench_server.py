"""The benchmark of the API works, and says what it measured. No timing is asserted."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_a_short_run_fills_every_row(tmp_path: Path, postgres_url: str) -> None:
    file = tmp_path / "report.json"
    ended = subprocess.run(
        [
            sys.executable, "-m", "bench.server", "--rounds", "1", "--count", "20", "--callers", "4",
            "--database", postgres_url, "--json", str(file),
        ],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    told = json.loads(file.read_text())
    assert [one["statuses"]["200"] for one in told["nothing"]] == [80]
    for database in ("sqlite", "postgresql"):
        figures = told[database]
        assert set(figures) == {
            "http start", "http start, keyed", "http signal", "http signal, keyed", "process start", "process signal",
        }  # fmt: skip
        for name, runs in figures.items():
            [one] = runs
            assert one["rate"] > 0 and 0 < one["seconds"][0] <= one["seconds"][1], name
    lines = [line for line in ended.stdout.splitlines() if re.match(r"\| (start|signal), ", line)]
    assert len(lines) == 12
    assert all(re.search(r"\| \d\.\d\d \(\d\.\d\d–\d\.\d\d\) \|$", line) for line in lines if "HTTP" in line)
