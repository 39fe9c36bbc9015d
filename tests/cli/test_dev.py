"""What `holdfast dev` and `holdfast server` say when they start, and when they cannot."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.support import Running, wait_until

ROOT = Path(__file__).resolve().parents[2]
CHARTS_ONLY = """
from holdfast import Holdfast

hf = Holdfast()
CHART = {"id": "hello", "initial": "a", "states": {"a": {"always": "b"}, "b": {"type": "final"}}}

async def dev(hf):
    await hf.definitions.publish(CHART)
    handle = await hf.start("hello")
    await handle.result()
    print("the chart has ended", flush=True)
"""


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


@pytest.mark.parametrize("command", ["dev", "server"])
def test_a_port_in_use_is_said_in_one_line_with_what_helps(command: str, taken: int, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(CHARTS_ONLY)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HOLDFAST_LOG_FORMAT": "json"}
    holdfast = [sys.executable, "-m", "holdfast.cli.main"]
    if command == "server":
        subprocess.run([*holdfast, "migrate"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    done = subprocess.run(
        [*holdfast, command, "--app", "app:hf", "--port", str(taken)], cwd=tmp_path, env=environment, timeout=60,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4, done.stdout + done.stderr
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith(f"Error: port {taken} on 127.0.0.1 is in use") and "--port" in line
    for entry in (json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")):
        assert entry["level"] in ("debug", "info"), entry
    assert (tmp_path / ".holdfast").exists() == (command == "server")  # dev has made nothing, and claimed nothing


def test_an_app_of_charts_alone_is_nothing_to_wonder_at(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(CHARTS_ONLY)
    running = Running(tmp_path / "dev.log", "dev", "--app", "app:hf", "--port", "0", cwd=tmp_path)
    try:
        wait_until(lambda: "the chart has ended" in running.log.read_text(), running.log.read_text)
    finally:
        running.stop()
    assert "workflows  none in code; charts run as they are published\n" in running.log.read_text()
