"""The benchmark works, and does not believe a run whose steps were lost or ran twice. No timing is asserted."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "bench" / "compare.py"
FIGURES = {"A": ["workflows/s"], "B": ["p50 ms", "p99 ms"], "C": ["workflows/s"], "E": ["p50 ms late", "p99 ms late"]}


@pytest.fixture
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_compare", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def test_a_quick_run_fills_every_row(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    ended = run("--quick", "--json", str(report))
    assert ended.returncode == 0, ended.stderr
    told = json.loads(report.read_text())
    assert all(told["machine"][fact] for fact in ("machine", "python", "PostgreSQL", "commit"))
    places = [(row["workload"], row["database"], row["metric"]) for row in told["rows"]]
    assert places == [
        (workload, database, metric)
        for workload, metrics in FIGURES.items()
        for database in ("sqlite", "postgres")
        for metric in metrics
    ]
    for row in told["rows"]:
        for engine in ("raw", "holdfast"):
            assert not row[engine]["void"]
            assert len(row[engine]["values"]) == 1
            assert row[engine]["median"] > 0
        assert row["of_raw"] > 0
        assert row["dbos"]["values"] == []
    lines = [line for line in ended.stdout.splitlines() if re.match(r"\| [A-E]: ", line)]
    assert len(lines) == len(told["rows"])
    for line, row in zip(lines, told["rows"], strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for text, engine in zip(cells[3:5], ("raw", "holdfast"), strict=True):
            figures = re.fullmatch(r"(\S+) \(([^\s–]+)–(\S+)\)", text)
            assert figures, text
            shown = [float(figure.replace(",", "")) for figure in figures.groups()]
            assert shown == pytest.approx([row[engine]["median"]] * 3, rel=0.01)
    assert len(re.findall(r"^\[\d+/16\] ", ended.stderr, re.M)) == 16, "one line of progress per measurement"


def test_an_unknown_workload_is_refused() -> None:
    ended = run("--workloads", "A,Z")
    assert ended.returncode == 2
    assert "no workload Z: choose from A, B, C, E" in ended.stderr


def log_of(n: int, steps: int) -> list[str]:
    return ["ran warm0 0", *(f"ran key{i:06d} {step}" for i in range(n) for step in range(steps))]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda lines: lines, ""),
        (lambda lines: [*lines, lines[-1], lines[-1]], "2 steps ran twice"),
        (lambda lines: lines[:-3], "3 steps missing"),
        (lambda lines: [*lines[:-1], lines[1]], "1 steps ran twice, 1 steps missing"),
    ],
)
def test_the_log_tells_what_ran_twice_or_not_at_all(compare: ModuleType, change: object, fault: str) -> None:
    assert callable(change)
    assert compare.faults("\n".join(change(log_of(4, 5))), "A", 4, 0.0) == fault


def test_a_timer_must_have_been_asleep_before_it_was_due(compare: ModuleType) -> None:
    lines = [*log_of(2, 1), "asleep key000000 99.5", "asleep key000000 100.5", "asleep key000001 100.5"]
    assert compare.faults("\n".join(lines), "E", 2, 100.0) == "1 not asleep when due"


def test_one_void_run_voids_the_figure(compare: ModuleType) -> None:
    good, bad = (
        {"figures": {"workflows/s": 300.0}, "void": ""},
        {"figures": {"workflows/s": 900.0}, "void": "1 steps missing"},
    )
    ours, raw, dbos = ("A", "sqlite", "holdfast"), ("A", "sqlite", "raw"), ("A", "sqlite", "dbos")
    [row] = compare.make_rows({raw: [good], ours: [good, bad], dbos: [good]}, {})
    assert (row["holdfast"]["median"], row["times_dbos"], row["of_raw"]) == (None, None, None)
    assert "| **void**: 1 steps missing |" in compare.markdown([row])


def test_ratios_say_how_many_times_as_good(compare: ModuleType) -> None:
    def runs(**figures: float) -> list[dict[str, object]]:
        return [{"figures": {name.replace("_", " "): value for name, value in figures.items()}, "void": ""}]

    raw, ours, dbos = (("B", "postgres", engine) for engine in compare.ENGINES)
    latencies = {
        raw: runs(p50_ms=2.0, p99_ms=4.0),
        ours: runs(p50_ms=4.0, p99_ms=4.0),
        dbos: runs(p50_ms=40.0, p99_ms=50.0),
    }
    rows = compare.make_rows(latencies, {})
    assert [(row["times_dbos"], row["of_raw"]) for row in rows] == [(10.0, 0.5), (12.5, 1.0)]


def test_a_peer_that_cannot_be_installed_is_named_in_the_table(
    compare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(compare.sys, "executable", str(tmp_path / "no-python"))
    python, why = compare.dbos_python()
    assert python == "" and why.startswith("not installable: ")
    good = [{"figures": {"workflows/s": 300.0}, "void": ""}]
    rows = compare.make_rows({("C", "sqlite", "raw"): good, ("C", "sqlite", "holdfast"): good}, {"dbos": why})
    assert why in compare.markdown(rows)


@pytest.mark.timeout(300)
def test_growth_is_measured_beside_a_filled_database(tmp_path: Path) -> None:
    arguments = ["--database", "sqlite", "--history", "30", "--rounds", "1", "--n", "10"]
    ended = subprocess.run(
        [sys.executable, "-m", "bench.growth", *arguments],
        cwd=SCRIPT.parent.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    rows = [line.split("|")[1].strip() for line in ended.stdout.splitlines()[2:]]
    assert rows == ["empty", "30 finished, never analyzed", "30 finished, analyzed"]
