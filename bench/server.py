"""What HTTP costs: starts and signals per second over the API beside the same in process, on SQLite and PostgreSQL.

    .venv/bin/python -m bench.server [--rounds 5] [--database postgresql://…]

The server is a real `holdfast server`, the load comes from a process of its own: keep-alive connections, requests built
beforehand, answers read by their length alone. It is measured against a server that does nothing, too: far below that
it is not what is measured. Beside it the same number of starts and signals with as many callers at once in one process,
through `hf.start` and `handle.signal`. All in turns, every other round backwards; medians and spread are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.load import PATIENCE_SECONDS, quantile
from holdfast import Context, Holdfast
from holdfast.app import api_keys, principals
from holdfast.app.audit import By
from holdfast.cli.app import run
from holdfast.cli.workers import calm_collector

ROOT = Path(__file__).resolve().parent.parent
CALLERS = 32
POOL = 200  # instances that signals go to
WORKLOADS = ("start", "signal", "start, keyed", "signal, keyed")  # keyed: with an Idempotency-Key
Figures = dict[str, list[dict[str, Any]]]

GIVEN = {"order": "o-1", "amount_minor": 12500, "currency": "EUR", "note": "the usual one"}


async def parked(ctx: Context, given: Any) -> Any:
    """Nobody works here: what is measured is the door."""
    return await ctx.wait_for_signal("go")


def app(url: str | None = None) -> Holdfast:
    made = Holdfast(url)
    made.workflow("parked")(parked)
    return made


hf = app()  # what `holdfast server --app bench.server:hf` serves


# -- the processes


@contextmanager
def process(*words: str, env: dict[str, str] | None = None) -> Iterator[int]:
    """A server for the length of a block; its port."""
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=complaints, cwd=ROOT, text=True,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"} | (env or {}),
        )  # fmt: skip
        try:
            assert child.stdout is not None
            found = re.search(r"listening on http://[^:]+:(\d+)", child.stdout.readline())
            if found is None:
                complaints.seek(0)
                raise SystemExit(complaints.read().decode()[-3000:])
            yield int(found[1])
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(PATIENCE_SECONDS)


def send(port: int, requests: list[str], callers: int, folder: Path) -> dict[str, Any]:
    """From a process of its own."""
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"port": port, "requests": requests, "callers": callers}))
    subprocess.run(
        [sys.executable, "-m", "bench.load", str(plan)], check=True, cwd=ROOT,
        timeout=PATIENCE_SECONDS * 6, env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(plan.with_suffix(".done").read_text())
    return found


class Requests:
    """Requests as they go over the wire. No two have the same key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.number = 0

    def build(self, workload: str, count: int, instances: list[str]) -> list[str]:
        return [self._one(workload, instances[n % len(instances)]) for n in range(count)]

    def _one(self, workload: str, instance: str) -> str:
        self.number += 1
        keyed = f"Idempotency-Key: k-{self.number}\r\n" if workload.endswith("keyed") else ""
        if workload.startswith("start"):
            return self._words("/workflow/instances", {"definition_key": "parked", "input": GIVEN}, keyed)
        body = {"name": "go", "payload": GIVEN, "id": f"e-{self.number}"}
        return self._words(f"/workflow/instances/{instance}/signal", body, keyed)

    def _words(self, path: str, body: Any, more: str) -> str:
        raw = json.dumps(body)
        return (
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n{more}\r\n{raw}"
        )


# -- the same in process


async def in_process(url: str, workload: str, count: int, instances: list[str], callers: int) -> dict[str, Any]:
    """With as many callers at once, through the library."""
    local, seconds, numbers = app(url), [], iter(range(count))

    async def work(number: int) -> None:
        if workload.startswith("start"):
            await local.start("parked", GIVEN)
        else:
            await local.instance(instances[number % len(instances)]).signal("go", GIVEN)

    async def call() -> None:
        for number in numbers:
            began = time.perf_counter()
            await work(number)
            seconds.append(time.perf_counter() - began)

    async with local:
        for number in range(min(callers, count)):
            await work(number)  # warm
        calm_collector()
        before = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(callers)))
        took = time.perf_counter() - before
    return {"rate": count / took, "seconds": [quantile(sorted(seconds), share) for share in (0.5, 0.99)]}


async def prepare(url: str) -> tuple[str, list[str]]:
    """A key, and instances that wait for signals."""
    async with app(url) as local:  # migrates it
        by = By("the benchmark")
        await principals.create(
            local.service, "default", name="bench", kind="service", roles=["admin"], groups=[], by=by
        )
        key = (await api_keys.create(local.service, "default", "bench", name="bench", by=by)).key
        return key, [handle.id for handle in await local.start_many("parked", [GIVEN] * POOL)]


# -- the parent


def measure(url: str, options: argparse.Namespace, folder: Path) -> Figures:
    """Interleaved: over HTTP and in process in turns, every other round in the other order."""
    key, instances = run(prepare(url))
    requests, found = Requests(key), Figures()
    server = ("-m", "holdfast.cli.main", "server", "--port", "0", "--log-level", "warning", "--app", "bench.server:hf")
    with process(*server, "--database", url) as port:
        for turn in range(options.rounds + 1):
            ways = [("http", workload) for workload in WORKLOADS] + [("process", w) for w in ("start", "signal")]
            for way, workload in ways if turn % 2 else ways[::-1]:
                if way == "http":
                    words = requests.build(workload, options.count, instances)
                    figures = send(port, words, options.callers, folder)
                    wrong = {
                        status: n for status, n in figures["statuses"].items() if n and status not in ("201", "202")
                    }
                    if wrong:
                        raise SystemExit(f"{workload} over HTTP: not all went well: {wrong}")
                else:
                    figures = run(in_process(url, workload, options.count, instances, options.callers))
                if turn:  # the first warms up
                    found.setdefault(f"{way} {workload}", []).append(figures)
    return found


def idle_server(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """What the load itself is able to do."""
    words = Requests("hf_test_" + "x" * 40).build("start", options.count * 4, ["ins_" + "0" * 32])
    with process("-m", "bench.load") as port:
        return [send(port, words, options.callers, folder) for _ in range(options.rounds)]


def said(values: list[float], form: str = ",.0f") -> str:
    return f"{median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def row(name: str, runs: list[dict[str, Any]], beside: list[dict[str, Any]] | None) -> str:
    cells = [said([one["rate"] for one in runs])]
    cells += [said([one["seconds"][at] * 1000 for one in runs], ".1f") for at in (0, 1)]
    share = ""
    if beside is not None:
        kept = [one["rate"] / two["rate"] for one, two in zip(runs, beside, strict=True)]
        share = f"{median(kept):.2f} ({min(kept):.2f}–{max(kept):.2f})"
    return f"| {name} | {' | '.join(cells)} | {share} |"


def report(database: str, found: Figures) -> list[str]:
    lines = [f"| {database} | per second | p50 ms | p99 ms | of in process |", "|---|---|---|---|---|"]
    for kind in ("start", "signal"):
        beside = found[f"process {kind}"]
        lines.append(row(f"{kind}, in process", beside, None))
        lines.append(row(f"{kind}, HTTP", found[f"http {kind}"], beside))
        lines.append(row(f"{kind}, HTTP, Idempotency-Key", found[f"http {kind}, keyed"], beside))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="what HTTP costs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=3000, help="requests in a round")
    parser.add_argument("--callers", type=int, default=CALLERS, help="connections, or callers in process, at once")
    parser.add_argument("--database", help="a PostgreSQL to measure on as well")
    parser.add_argument("--json", type=Path, help="write every figure there")
    compare(parser.parse_args())


def compare(options: argparse.Namespace) -> None:
    told: dict[str, Any] = {"load_average": os.getloadavg()[0], "callers": options.callers, "count": options.count}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as place:
        folder = Path(place)
        nothing = told["nothing"] = idle_server(options, folder)
        print(f"machine load before: {told['load_average']:.1f}; {options.callers} at once, {options.rounds} rounds of")
        print(f"{options.count} requests; the load alone against a server that does nothing, per second:")
        print(f"{said([one['rate'] for one in nothing])}\n")
        for url in (f"sqlite:///{place}/bench.db", options.database):
            if url:
                database = url.partition(":")[0]
                told[database] = measure(url, options, folder)
                print("\n".join(report(database, told[database])) + "\n")
    print(f"machine load after: {os.getloadavg()[0]:.1f}")
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
