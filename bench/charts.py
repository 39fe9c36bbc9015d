"""What charts cost: one advance beside XState's in node, and SYSTEM tasks per second beside steps of code.

    .venv/bin/python -m bench.charts [--rounds 7] [--database postgresql://…]

Everything is measured in turns in one run; medians and spread are printed, and the ratio is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

from holdfast import Context, Holdfast
from holdfast.cli.app import run
from holdfast.engine.charts import document
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.interpreter import advance, start
from holdfast.engine.charts.snapshots import snapshot_from, snapshot_text
from tests.charts.differential import node, xstate_folder

HERE = Path(__file__).resolve().parent
SHAPES = {5: 600, 20: 300}  # tasks of one instance: instances. Five is the workload that docs/benchmarks.md calls A.


def twenty_nodes() -> dict[str, Any]:
    """Three regions of five states: 19 nodes with the root."""
    states: dict[str, Any] = {}
    for region in range(3):
        inner: dict[str, Any] = {}
        for n in range(5):
            following: dict[str, Any] = {"target": f"s{(n + 1) % 5}"}
            if region == 0:
                following["guard"] = {"@expr": "context.n < context.limit"}
                following["actions"] = {"type": "assign", "assign": {"n": {"@expr": "context.n + 1"}}}
            inner[f"s{n}"] = {"on": {"next": following}}
        states[f"r{region}"] = {"initial": "s0", "states": inner}
    return {"id": "b", "type": "parallel", "context": {"n": 0, "limit": 1_000_000}, "states": states}


def ours(count: int) -> float:
    chart = compile_chart(document.reread(twenty_nodes()), version=1)
    text = snapshot_text(start(chart, None, 0).snapshot)
    for warm in (True, False):
        before = time.process_time()
        for n in range(500 if warm else count):
            text = snapshot_text(advance(chart, snapshot_from(chart, text), {"type": "next"}, n).snapshot)
    return (time.process_time() - before) / count * 1e6


def theirs(count: int, folder: Path) -> float:
    done = subprocess.run(
        [node(), str(HERE / "advance.mjs"), str(count)], capture_output=True, text=True, check=True,
        env={**os.environ, "HOLDFAST_XSTATE": str(folder)},
    )  # fmt: skip
    return float(done.stdout)


def app(url: str, log: BinaryIO) -> Holdfast:
    hf = Holdfast(url)

    async def work(given: Any) -> Any:
        log.write(b"x\n")
        return given

    def declare(count: int) -> None:
        @hf.workflow(f"steps-of-{count}")
        async def steps(ctx: Context, n: int) -> int:
            for _ in range(count):
                n = await ctx.step("work", work, n)
            return n

    for count in SHAPES:
        declare(count)
    hf.task_handler("SYSTEM", "work")(work)
    return hf


def chain(count: int) -> dict[str, Any]:
    """As many SYSTEM tasks, one after the other."""
    states: dict[str, Any] = {
        f"s{n}": {"invoke": {"src": "work", "input": n, "onDone": f"s{n + 1}", "onError": "broken"}}
        for n in range(count)
    }
    final = {"type": "final"}
    return {"id": f"tasks-of-{count}", "initial": "s0", "states": {**states, f"s{count}": final, "broken": final}}


async def rates(url: str, rounds: int) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryFile(buffering=0) as log:
        hf = app(url, log)
        async with hf, hf.worker(concurrency=500):
            for count in SHAPES:
                await hf.publish(chain(count))
            for turn in range(rounds + 1):
                for count, instances in SHAPES.items():
                    for kind in ("steps", "tasks"):
                        before = time.perf_counter()
                        handles = await hf.start_many(f"{kind}-of-{count}", [turn] * instances)
                        await asyncio.gather(*(handle.result(300) for handle in handles))
                        if turn:  # the first warms up
                            rate = instances * count / (time.perf_counter() - before)
                            found.setdefault((kind, count), []).append(rate)
    return found


def said(values: list[float]) -> str:
    return f"{median(values):8.1f}  ({min(values):.1f} to {max(values):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="what charts cost")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=5000, help="advances in a round")
    parser.add_argument("--database", help="a PostgreSQL to measure on as well")
    given = parser.parse_args()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)  # as `holdfast worker` does it, and its loop below
    folder = xstate_folder()
    pairs = [(ours(given.count), theirs(given.count, folder)) for _ in range(given.rounds)]
    print("one advance of 19 nodes, µs of CPU (rehydrate, transition, snapshot)")
    print(f"  Holdfast      {said([one for one, _ in pairs])}")
    print(f"  XState        {said([two for _, two in pairs])}")
    print(f"  ratio         {median(one / two for one, two in pairs):8.2f}")
    with tempfile.TemporaryDirectory() as place:
        for url in (f"sqlite:///{place}/bench.db", given.database):
            if url:
                found = run(rates(url, given.rounds))
                for count, instances in SHAPES.items():
                    steps, tasks = found["steps", count], found["tasks", count]
                    ratios = [one / two for one, two in zip(steps, tasks, strict=True)]
                    print(f"per second, {instances} instances of {count}, on {url.partition(':')[0]}")
                    print(f"  steps of code {said(steps)}")
                    print(f"  SYSTEM tasks  {said(tasks)}")
                    print(f"  ratio         {median(ratios):8.2f}  ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
