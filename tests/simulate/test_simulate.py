"""The simulator runs clean, means the same thing twice, and finds what is broken on purpose.

Each simulation runs in a process of its own: it puts its own loop, clock and threads in the place of the engine's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulate.planted import PLANTED
from tests.simulate.seeds import done_before, kept_seeds, line_for, ranges, seeds_from, slices
from tests.simulate.simulation import Result
from tests.support.size import sized
from tests.support.source import source_digest

ROOT = Path(__file__).resolve().parent.parent.parent


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulate", *arguments], cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_seeds_run_clean(tmp_path: Path) -> None:
    count = sized(30, 2000)
    ran = simulate("--seeds", f"0:{count}", "--jobs", "1", "--record", str(tmp_path / "came through"))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_kept_seeds_run_clean(tmp_path: Path) -> None:
    seeds = ",".join(map(str, kept_seeds()))
    ran = simulate("--seeds", seeds, "--jobs", "1", "--record", str(tmp_path / "came through"))
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


def test_a_seed_means_the_same_twice() -> None:
    said = [simulate("--seeds", "3,7,11,19", "--verbose").stdout for _ in range(2)]
    traces = [[line for line in text.splitlines() if ", trace " in line] for text in said]
    assert len(traces[0]) == 4
    assert traces[0] == traces[1]


def test_what_came_through_is_not_run_again(tmp_path: Path) -> None:
    record = tmp_path / "came through"
    said = [simulate("--seeds", "2:5,8", "--jobs", "1", "--record", str(record)).stdout for _ in range(2)]
    assert "came through before" not in said[0] and "4 of 4 seeds came through before" in said[1]
    record.write_text(record.read_text().replace(record.read_text().partition(" ")[0], "another-source"))
    assert done_before(record, source_digest("simulate")) == set()


def test_a_failing_seed_prints_the_line_that_reproduces_it() -> None:
    result = Result(1234, ["called twice: manual effect e1"], (), "", {})
    assert line_for(result, frozenset()).startswith("python -m tests.simulate --seeds 1234 --verbose  # called twice")


def test_ranges_of_seeds_are_cut_into_slices() -> None:
    assert seeds_from("3,10:12") == [3, 10, 11]
    assert [len(part) for part in slices(range(60))] == [25, 25, 10]
    assert ranges([11, 3, 10, 4, 7]) == "3:5,7:8,10:12"
    assert seeds_from(ranges(range(40))) == list(range(40))


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str) -> None:
    """A simulator that cannot fail is worse than none."""
    ran = simulate("--planted", fault)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


def test_a_simulation_that_is_cut_leaves_nothing_behind_in_its_process() -> None:
    cut = """
import holdfast.facade
from holdfast.store import sqlite
from tests.simulate import loop, simulation
loop.STEPS_MAX = 150
was = sqlite.WriterThread, holdfast.facade.uuid7
for seed in range(5):
    assert "stalled" in simulation.Simulation(seed).run().problems[0]
assert was == (sqlite.WriterThread, holdfast.facade.uuid7)
"""
    ran = subprocess.run([sys.executable, "-c", cut], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
