"""Runs ranges of seeds in processes, remembers what came through on which source, and keeps what failed."""

from __future__ import annotations

import logging
import multiprocessing
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import structlog
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulate.simulation import Result, Simulation
from tests.support.source import source_digest

CAME_THROUGH = Path(__file__).with_name("came_through.txt")  # a digest of the source, and the seeds in ranges
KEPT = Path(__file__).with_name("kept_seeds.txt")
SLICE = 25
SLICES_OF_PROCESS = 40  # simulated processes that were killed close no file: a real one does that for them when it ends


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


def done_before(record: Path, digest: str) -> set[int]:
    """Seeds that came through on this very source."""
    source, _, seeds = record.read_text().partition(" ") if record.exists() else ("", "", "")
    return set(seeds_from(seeds.strip())) if source == digest and seeds.strip() else set()


def ranges(seeds: Iterable[int]) -> str:
    """As `seeds_from` reads them."""
    found: list[list[int]] = []
    for seed in sorted(seeds):
        if found and found[-1][1] == seed:
            found[-1][1] += 1
        else:
            found.append([seed, seed + 1])
    return ",".join(f"{first}:{end}" for first, end in found)


def write_down(record: Path, digest: str, seeds: set[int]) -> None:
    """What came through on an older source goes: it says nothing of this one."""
    record.write_text(f"{digest} {ranges(seeds | done_before(record, digest))}\n")


def slices(seeds: Iterable[int]) -> list[list[int]]:
    left = list(seeds)
    return [left[at : at + SLICE] for at in range(0, len(left), SLICE)]


def run_all(seeds: list[int], without: frozenset[str], jobs: int, record: Path, *, fresh: bool) -> list[Result]:
    """Run what has not come through before, in processes, and write down each slice as it ends."""
    digest = source_digest("simulate")
    done = set() if fresh or without else done_before(record, digest)
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
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(left), bad="")
        for results in _results(slices(left), without, jobs):
            bad = [result for result in results if result.problems]
            for result in bad:
                bar.console.print(line_for(result, without), highlight=False, soft_wrap=True)
            failed += bad
            if not without:
                write_down(record, digest, {result.seed for result in results if not result.problems})
            bar.update(task, advance=len(results), bad=f"{len(failed)} failed" if failed else "")
    return sorted(failed, key=lambda result: result.seed)


def _results(parts: list[list[int]], without: frozenset[str], jobs: int) -> Iterator[list[Result]]:
    """New processes after so many slices. (An executor's own `max_tasks_per_child` may wait for ever on 3.11.)"""
    spawn = multiprocessing.get_context("spawn")
    many = jobs * SLICES_OF_PROCESS
    for at in range(0, len(parts), many):
        with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
            for future in as_completed([pool.submit(run_slice, part, without) for part in parts[at : at + many]]):
                yield future.result()


def explain(seed: int, without: frozenset[str]) -> str:
    """The switches without which the seed comes through."""
    first = Simulation(seed, without=without).run()
    needed = [name for name in first.features if not Simulation(seed, without=without | {name}).run().problems]
    return f"{seed}: {first.problems[:2]}; comes through without any one of: {', '.join(needed) or 'none of them'}"


def keep(failed: list[Result]) -> None:
    known = set(kept_seeds())
    with KEPT.open("a") as file:
        file.writelines(f"{r.seed}  # {r.problems[0][:100]}\n" for r in failed if r.seed not in known)
