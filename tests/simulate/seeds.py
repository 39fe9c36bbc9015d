"""Runs ranges of seeds in processes, remembers what came through on which source, and keeps what failed."""

from __future__ import annotations

import json
import logging
import multiprocessing
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from hashlib import sha256
from pathlib import Path

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulate.simulation import Result, Simulation

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "tests" / ".simulated"
KEPT = Path(__file__).with_name("kept_seeds.txt")
SLICE = 25


def source_digest() -> str:
    """Of everything that decides what a seed does: the engine and the simulator."""
    digest = sha256()
    parts = [*(ROOT / "src").rglob("*"), *Path(__file__).parent.glob("*.py")]
    for path in sorted(p for p in parts if p.suffix in (".py", ".sql") and not p.name.startswith("test_")):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def seeds_from(text: str) -> list[int]:
    """`7`, `0:2000`, or several of these with commas between."""
    found: list[int] = []
    for part in text.split(","):
        first, _, end = part.partition(":")
        found += range(int(first), int(end)) if end else [int(first)]
    return found


def kept_seeds() -> Iterator[int]:
    """Seeds that once failed."""
    for line in KEPT.read_text().splitlines():
        number = line.partition("#")[0].strip()
        if number:
            yield int(number)


def run_slice(seeds: list[int], without: frozenset[str]) -> list[Result]:
    warnings.simplefilter("ignore", RuntimeWarning)  # coroutines of processes that died are never awaited
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # nor at their end
    return [Simulation(seed, without=without).run() for seed in seeds]


def line_for(result: Result, without: frozenset[str]) -> str:
    more = f" --without {','.join(sorted(without))}" if without else ""
    return f"python -m tests.simulate --seeds {result.seed}{more} --verbose  # {result.problems[0][:160]}"


def done_before(digest: str) -> set[int]:
    """Seeds that came through on this very source."""
    done: set[int] = set()
    if RESULTS.exists():
        for line in RESULTS.read_text().splitlines():
            words = json.loads(line)
            if words["source"] == digest:
                done.update(set(words["seeds"]) - {int(seed) for seed in words["failed"]})
    return done


def slices(seeds: Iterable[int]) -> list[list[int]]:
    left = list(seeds)
    return [left[at : at + SLICE] for at in range(0, len(left), SLICE)]


def run_all(seeds: list[int], without: frozenset[str], jobs: int, *, fresh: bool) -> list[Result]:
    """Run what has not come through before, in processes, and write down each slice as it ends."""
    digest = source_digest()
    done = set() if fresh or without else done_before(digest)
    left = [seed for seed in seeds if seed not in done]
    if len(left) < len(seeds):
        print(f"{len(seeds) - len(left):,} of {len(seeds):,} seeds came through before on source {digest}")
    failed: list[Result] = []
    columns = (
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[bad]}"),
    )
    spawn = multiprocessing.get_context("spawn")
    with (
        Progress(*columns, console=Console(stderr=True)) as bar,
        ProcessPoolExecutor(jobs, mp_context=spawn) as pool,
    ):
        task = bar.add_task("", total=len(left), bad="")
        for future in as_completed([pool.submit(run_slice, part, without) for part in slices(left)]):
            results = future.result()
            bad = [result for result in results if result.problems]
            for result in bad:
                bar.console.print(line_for(result, without), highlight=False, soft_wrap=True)
            failed += bad
            if not without:
                words = {
                    "source": digest, "seeds": [result.seed for result in results],
                    "failed": {result.seed: result.problems[:3] for result in bad},
                }  # fmt: skip
                with RESULTS.open("a") as file:
                    file.write(json.dumps(words) + "\n")
            bar.update(task, advance=len(results), bad=f"{len(failed)} failed" if failed else "")
    return sorted(failed, key=lambda result: result.seed)


def explain(seed: int, without: frozenset[str]) -> str:
    """The switches without which the seed comes through."""
    first = Simulation(seed, without=without).run()
    needed = [name for name in first.features if not Simulation(seed, without=without | {name}).run().problems]
    return f"{seed}: {first.problems[:2]}; comes through without any one of: {', '.join(needed) or 'none of them'}"


def keep(failed: list[Result]) -> None:
    known = set(kept_seeds())
    with KEPT.open("a") as file:
        file.writelines(f"{r.seed}  # {r.problems[0][:100]}\n" for r in failed if r.seed not in known)
