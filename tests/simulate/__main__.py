"""`python -m tests.simulate --seeds 0:2000`: run seeds in parallel, resumable, and say which ones fail.

A slice of seeds that came through is written to tests/simulate/came_through.txt with a digest of the source that it ran
on: asked again for the same source, in any clone, it is not run again. A seed that fails prints the line that
reproduces it.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections import Counter
from pathlib import Path

from tests.simulate.checks import kinds
from tests.simulate.planted import PLANTED, find
from tests.simulate.processes import long_run
from tests.simulate.seeds import CAME_THROUGH, KEPT, explain, keep, line_for, run_all, seeds_from
from tests.simulate.simulation import ALWAYS, FEATURES, Result, Simulation


def one(seed: int, without: frozenset[str]) -> Result:
    result = Simulation(seed, without=without, say=print).run()
    print(f"{result.counts}, trace {result.trace[:16]}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", help="7, 0:2000, or several with commas between")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--without", default="", help=f"switches to leave out: {', '.join((*FEATURES, *ALWAYS))}")
    parser.add_argument("--verbose", action="store_true", help="tell all that happens, one seed after the other")
    parser.add_argument("--explain", action="store_true", help="find the switches without which a seed comes through")
    parser.add_argument("--keep", action="store_true", help=f"append the seeds that fail to {KEPT.name}")
    parser.add_argument("--fresh", action="store_true", help="run also what came through before")
    parser.add_argument("--record", type=Path, default=CAME_THROUGH, help="where to write down what came through")
    parser.add_argument("--processes", action="store_true", help="real worker processes instead, for --minutes")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--postgres", action="store_true", help="with --processes: on a private PostgreSQL")
    parser.add_argument("--planted", choices=PLANTED, help="plant a fault into the engine, and say what is found of it")
    given = parser.parse_args()
    seeds, without = seeds_from(given.seeds), frozenset(filter(None, given.without.split(",")))
    if unknown := without - set(FEATURES) - set(ALWAYS):
        parser.error(f"unknown switches: {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore", RuntimeWarning)
    if given.planted:
        found_of_it = find(given.planted)
        print(found_of_it or f"of {given.planted!r} nothing is found")
        return 0 if found_of_it else 1
    if given.processes:
        return long_run(given.minutes, without, postgres=given.postgres, first=seeds[0])
    if given.explain:
        for seed in seeds:
            print(explain(seed, without))
        return 0
    if given.verbose:
        failed = [result for result in (one(seed, without) for seed in seeds) if result.problems]
    else:
        failed = run_all(seeds, without, given.jobs, given.record, fresh=given.fresh)
    if given.keep and failed:
        keep(failed)
    for result in failed:
        print(line_for(result, without))
    found: Counter[str] = sum((Counter(kinds(result.problems).keys()) for result in failed), Counter())
    print(
        f"{len(seeds):,} seeds, {len(failed):,} failed" + "".join(f", {kind}: {n}" for kind, n in found.most_common())
    )
    return 1 if failed else 0


if __name__ == "__main__":
    # Sets are walked in the order of hashes: a seed means the same only where the same words have the same hashes.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulate", *sys.argv[1:]],
            os.environ | {"PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
