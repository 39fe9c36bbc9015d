"""What a workflow of five steps costs in CPU, beside a million finished ones, or beside the same of another commit.

    python -m bench.growth --database sqlite                        # F: empty, filled, filled and analyzed
    python -m bench.growth --database postgres --history 200000
    python -m bench.growth --database postgres --against HEAD~5     # this tree and another commit, on empty databases

On a machine that others use, rates differ by half between two runs of the same thing; CPU time differs by some
hundredths. Every round measures each case once, every other round backwards, each in a process of its own; the last
column is the median of the rounds' ratios to the first case. A filled database is filled once and kept for all rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SEEDS = {"sqlite": "holdfast_history_sqlite.sql", "postgres": "holdfast_history.sql"}
WARM_UP, IN_FLIGHT = 200, 500


class Case(NamedTuple):
    label: str
    source: str  # the folder that holds the package
    url: str | None  # None: a new database for each round


# -- one measurement, in a process of its own


async def measure(url: str, n: int, postmaster: int | None) -> dict[str, float]:
    from holdfast import Holdfast, logs

    logs.configure("error")
    hf = Holdfast(url)
    nowhere = os.open(os.devnull, os.O_WRONLY)

    async def step(key: str, number: int) -> int:
        os.write(nowhere, f"{key} {number}\n".encode())
        return number

    @hf.workflow("wf5")
    async def wf5(ctx: Any, key: str) -> str:
        for number in range(5):
            await ctx.step("step", step, key, number)
        return key

    async def run(count: int) -> None:
        keys = [f"{os.getpid()}-{time.time_ns()}-{i}" for i in range(count)]
        for at in range(0, count, 2000):
            await hf.start_many("wf5", keys[at : at + 2000], business_keys=keys[at : at + 2000])
        for status in ("waiting", "pending", "running"):
            while await hf.instances(status=status, limit=1):
                await asyncio.sleep(0.01)

    async with hf, hf.worker(concurrency=IN_FLIGHT):
        await run(WARM_UP)
        before = time.process_time(), time.perf_counter(), server_cpu(postmaster)
        await run(n)
        cpu, seconds = time.process_time() - before[0], time.perf_counter() - before[1]
        found = {"worker µs": cpu / n * 1e6, "per s": n / seconds}
        if postmaster is not None:
            found["server µs"] = (server_cpu(postmaster) - before[2]) / n * 1e6
    return found


def measured(case: Case, url: str, n: int, postmaster: int | None) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, "--role", json.dumps([url, n, postmaster])],
        env={**os.environ, "PYTHONPATH": case.source}, check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{case.label}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def server_cpu(postmaster: int | None) -> float:
    """Seconds that PostgreSQL has used: the postmaster, what lives below it, and what has ended below it."""
    if postmaster is None:
        return 0.0
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # ended meanwhile
            if int(entry.name) == postmaster:
                ticks += sum(map(int, fields[11:15]))
            elif int(fields[1]) == postmaster:
                ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


# -- databases


def fill(url: str, n: int, *, analyzed: bool) -> None:
    """`n` finished instances, by plain SQL. PostgreSQL's own analyzing is switched off, so that both states stay."""
    from holdfast import Holdfast

    async def migrate() -> None:
        async with Holdfast(url):
            pass

    asyncio.run(migrate())
    sqlite = url.startswith("sqlite")
    text = (ROOT / "bench" / "seed" / SEEDS["sqlite" if sqlite else "postgres"]).read_text().replace(":n", str(n))
    if sqlite:
        import apsw

        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute("begin;" + text + ";commit;" + ("analyze;" if analyzed else ""))
        connection.execute("pragma wal_checkpoint(truncate)")
        connection.close()
        return
    import psycopg

    with psycopg.connect(url, autocommit=True) as server:
        for table in ("instances", "history"):
            server.execute(f"alter table holdfast.{table} set (autovacuum_enabled = off)".encode())
        server.execute(text.encode())
        if analyzed:
            server.execute("vacuum analyze")
        server.execute("checkpoint")


def plan(options: argparse.Namespace, folder: Path, cluster: Any, kept: ExitStack) -> list[Case]:
    here = str(ROOT / "src")
    if options.against:
        other = folder / "other"
        other.mkdir()
        archive = subprocess.run(
            ["git", "archive", options.against, "src"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", str(other)], input=archive, check=True)
        return [Case(options.against, str(other / "src"), None), Case("this tree", here, None)]
    cases = [Case("empty", here, None)]
    for analyzed in (False, True):
        url = kept.enter_context(cluster.database()) if cluster else f"sqlite:///{folder}/filled-{analyzed}.db"
        label = f"{options.history:,} finished, {'' if analyzed else 'never '}analyzed"
        print(f"filling: {label}", file=sys.stderr, flush=True)
        fill(url, options.history, analyzed=analyzed)
        cases.append(Case(label, here, url))
    return cases


def compare(options: argparse.Namespace, folder: Path, cluster: Any) -> None:
    with ExitStack() as kept:
        cases = plan(options, folder, cluster, kept)
        found: dict[Case, list[dict[str, float]]] = {case: [] for case in cases}
        for number in range(options.rounds):
            for case in cases[:: -1 if number % 2 else 1]:
                with ExitStack() as once:
                    url = case.url
                    if url is None:
                        new = f"sqlite:///{folder}/empty-{number}-{cases.index(case)}.db"
                        url = once.enter_context(cluster.database()) if cluster else new
                    found[case].append(measured(case, url, options.n, cluster.pid if cluster else None))
                print(f"round {number + 1} of {options.rounds}: {case.label}: {found[case][-1]}", file=sys.stderr)
    names = list(found[cases[0]][0])
    print("| | " + " | ".join(f"{name}, median (min–max) | ratio" for name in names) + " |")
    print("|---" * (1 + 2 * len(names)) + "|")
    for case in cases:
        cells = []
        for name in names:
            values = [run[name] for run in found[case]]
            ratio = median(run[name] / base[name] for run, base in zip(found[case], found[cases[0]], strict=True))
            cells.append(f"{median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f}) | {ratio:.2f}")
        print(f"| {case.label} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--database", choices=list(SEEDS), default="sqlite")
    parser.add_argument("--history", type=int, default=1_000_000, help="finished instances to fill with")
    parser.add_argument("--against", help="a commit to compare this tree with, instead of filling anything")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--n", type=int, default=5000, help="workflows per measurement")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        import uvloop

        print(json.dumps(uvloop.run(measure(*json.loads(options.role)))))
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-growth-") as folder, ExitStack() as stack:
        cluster = None
        if options.database == "postgres":
            from tests.support.postgres import Cluster

            cluster = stack.enter_context(Cluster())
        compare(options, Path(folder), cluster)


if __name__ == "__main__":
    main()
