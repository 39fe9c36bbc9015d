"""Holdfast against DBOS and against the raw limit of this machine, on SQLite and PostgreSQL: `make bench`.

The parent plans, counts and prints; each measurement is this file again, with `--role`, in a process of its own.
At the top it imports the standard library only, because DBOS runs it from its own virtual environment.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DBOS_PACKAGE, PYSQLITE_PACKAGE = "dbos==3.3.0", "pysqlite3-binary==0.5.4.post2"
DBOS_NEEDS_SQLITE = (3, 42)
ENGINES, DATABASES = ("raw", "holdfast", "dbos"), ("sqlite", "postgres")
TITLES = {"A": "A: 5 steps", "B": "B: latency of 5 steps", "C": "C: 1 step", "E": "E: timers due at once"}
STEPS = {"A": 5, "B": 5, "C": 1, "E": 0}
METRICS = {"A": ["workflows/s"], "B": ["p50 ms", "p99 ms"], "C": ["workflows/s"], "E": ["p50 ms late", "p99 ms late"]}
# The slower the engine, the fewer workflows: a measurement should last a second or two.
FULL_SIZES = {
    "A": {"raw": 6000, "holdfast": 3000, "dbos": 80},
    "B": {"raw": 200, "holdfast": 200, "dbos": 100},
    "C": {"raw": 12000, "holdfast": 6000, "dbos": 200},
    "E": {"raw": 2000, "holdfast": 2000},
}
QUICK_SIZES = {workload: {"raw": 20, "holdfast": 20} for workload in FULL_SIZES}
IN_FLIGHT, WARM_UP, RUN_TIMEOUT_SECONDS = 500, 20, 120
Case = tuple[str, str, str]  # workload, database, engine
Results = dict[Case, list[dict[str, Any]]]


class Log:
    """What really ran, kept outside the engine: one appending write per execution of a step, sleep or wake-up."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.late_by: list[float] = []

    def step(self, key: str, number: int) -> int:
        os.write(self.file, f"ran {key} {number}\n".encode())
        return number

    def asleep(self, key: str) -> None:
        os.write(self.file, f"asleep {key} {time.time()}\n".encode())

    def woke(self, key: str, due: float) -> None:
        self.late_by.append(time.time() - due)
        self.step(key, 0)


# -- the engines. Each starts and executes in one process; `many` returns when all are durably complete


class OnLoop:
    def __init__(self, log: Log, url: str) -> None:
        import uvloop

        self.log, self.url, self.loop = log, url, uvloop.new_event_loop()
        self.loop.run_until_complete(self.open())

    def many(self, keys: list[str], steps: int, due: float = 0.0) -> None:
        self.loop.run_until_complete(self.all_of_them(keys, steps, due))


class Batch:
    """Rows that share a commit, and the future that everybody behind them waits for."""

    def __init__(self) -> None:
        self.starts, self.steps, self.ends = [], [], []
        self.durable = asyncio.get_running_loop().create_future()


class Raw(OnLoop):
    """The raw limit: no engine, but the same promise: a step's row is on disk before the next step starts.

    Rows of all workflows under way are written together: what arrives during one commit shares the next."""

    async def open(self) -> None:
        self.batch, self.more = Batch(), asyncio.Event()
        self.writers = [asyncio.create_task(self.write(commit)) for commit in await self.connect()]

    async def write(self, commit: Callable[[Batch], Awaitable[None]]) -> None:
        while True:
            while not (self.batch.starts or self.batch.steps or self.batch.ends):
                self.more.clear()
                await self.more.wait()
            batch, self.batch = self.batch, Batch()
            try:
                await commit(batch)
                batch.durable.set_result(None)
            except Exception as error:
                batch.durable.set_exception(error)

    async def durable(self) -> None:
        self.more.set()
        await self.batch.durable

    async def work(self, room: asyncio.Semaphore, key: str, steps: int, due: float) -> None:
        async with room:
            self.batch.starts.append((key, json.dumps([steps, due]).encode()))
            await self.durable()
            if due:
                self.log.asleep(key)
                self.batch.steps.append((key, 0, b"%f" % due))
                await self.durable()
                while (left := due - time.time()) > 0:
                    await asyncio.sleep(left)
                self.log.woke(key, due)
            for number in range(steps):
                self.batch.steps.append((key, number, b"%d" % self.log.step(key, number)))
                if number < steps - 1:  # the last one may share its commit with the end
                    await self.durable()
            self.batch.ends.append((key, key.encode()))
            await self.durable()

    async def all_of_them(self, keys: list[str], steps: int, due: float) -> None:
        room = asyncio.Semaphore(len(keys) if due else IN_FLIGHT)
        await asyncio.gather(*(self.work(room, key, steps, due) for key in keys))


class RawSqlite(Raw):
    async def connect(self) -> list[Callable[[Batch], Awaitable[None]]]:
        import apsw

        connection = apsw.Connection(self.url.removeprefix("sqlite:///"))
        connection.execute(
            """pragma journal_mode = wal; pragma synchronous = full; pragma wal_autocheckpoint = 4000;
            create table run (id text primary key, input blob, result blob) without rowid;
            create table journal (run text, step int, result blob, primary key (run, step)) without rowid"""
        ).fetchall()
        thread = ThreadPoolExecutor(1)

        def commit(batch: Batch) -> None:
            with connection:
                connection.executemany("insert into run values (?, ?, null)", batch.starts)
                connection.executemany("insert into journal values (?, ?, ?)", batch.steps)
                connection.executemany("update run set result = ?2 where id = ?1", batch.ends)

        return [lambda batch: self.loop.run_in_executor(thread, commit, batch)]


class RawPostgres(Raw):
    # Planned once, by index: the tables are empty at first and do not stay so.
    SET_UP = """set plan_cache_mode = force_generic_plan; set enable_seqscan = off;
        create table if not exists run (id text primary key, input bytea, result bytea);
        create table if not exists journal (run text, step int, result bytea, primary key (run, step))"""
    COMMIT = """with starts as (insert into run (id, input) select * from unnest($1::text[], $2::bytea[])), ends as (
            update run set result = done.result from unnest($6::text[], $7::bytea[]) as done (id, result)
            where run.id = done.id)
        insert into journal select * from unnest($3::text[], $4::int[], $5::bytea[])"""

    async def connect(self) -> list[Callable[[Batch], Awaitable[None]]]:
        import asyncpg

        statements = []
        for _ in range(2):  # one sends while the other's disk works
            connection = await asyncpg.connect(self.url)
            await connection.execute(self.SET_UP)
            statements.append(await connection.prepare(self.COMMIT))

        async def commit(statement: Any, batch: Batch) -> None:
            parts = ((batch.starts, 2), (batch.steps, 3), (batch.ends, 2))
            await statement.fetch(*([row[at] for row in rows] for rows, width in parts for at in range(width)))

        return [partial(commit, statement) for statement in statements]


class Holdfast(OnLoop):
    """Holdfast through its public API, with everything on."""

    async def open(self) -> None:
        from holdfast import Holdfast, logs

        logs.configure("warning")
        self.hf, log = Holdfast(self.url), self.log

        async def step(key: str, number: int) -> int:
            return log.step(key, number)

        @self.hf.workflow("work")
        async def work(ctx: Any, given: dict[str, Any]) -> str:
            key, due = given["key"], given["due"]
            if due:
                log.asleep(key)
                await ctx.sleep("until", until=datetime.fromtimestamp(due, UTC))
                log.woke(key, due)
            for number in range(given["steps"]):
                await ctx.step("step", step, key, number)
            return key

        await self.hf.open()
        self.scope = self.hf.worker(concurrency=IN_FLIGHT)
        await self.scope.__aenter__()

    async def all_of_them(self, keys: list[str], steps: int, due: float) -> None:
        inputs = [{"key": key, "steps": steps, "due": due} for key in keys]
        if len(inputs) == 1:
            await (await self.hf.start("work", inputs[0])).result()
            return
        for at in range(0, len(inputs), 2000):
            await self.hf.start_many("work", inputs[at : at + 2000])
        await asyncio.sleep(max(0.0, due - time.time()))
        # In the order of an instance's life: none waits, then none is pending, then none runs: all have ended.
        for status in ("waiting", "pending", "running"):
            while await self.hf.instances(status=status, limit=1):
                await asyncio.sleep(0.01)


class Dbos:
    """DBOS in the fastest set-up we found: direct starts, few threads, no ping before each use, WAL on SQLite."""

    def __init__(self, log: Log, url: str) -> None:
        if url.startswith("sqlite:"):
            self.prepare_sqlite(url.removeprefix("sqlite:///"))
        from dbos import DBOS

        tuned = {"max_executor_threads": 8, "sys_db_pool_size": 20, "db_engine_kwargs": {"pool_pre_ping": False}}
        url = url.replace("postgresql://", "postgresql+psycopg://")
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", **tuned})

        @DBOS.step(name="step")
        def step(key: str, number: int) -> int:
            return log.step(key, number)

        @DBOS.workflow(name="work")
        def work(key: str, steps: int) -> str:
            for number in range(steps):
                step(key, number)
            return key

        self.dbos, self.work = DBOS, work
        DBOS.launch()

    def prepare_sqlite(self, path: str) -> None:
        if sqlite3.sqlite_version_info < DBOS_NEEDS_SQLITE:
            import pysqlite3.dbapi2

            sys.modules |= {"sqlite3": pysqlite3, "sqlite3.dbapi2": pysqlite3.dbapi2}
        connection = sys.modules["sqlite3"].connect(path)
        connection.execute("pragma journal_mode = wal")
        connection.close()

    def many(self, keys: list[str], steps: int, due: float = 0.0) -> None:
        for handle in [self.dbos.start_workflow(self.work, key, steps) for key in keys]:
            handle.get_result()


# -- one measurement, in a process of its own


def act(workload: str, database: str, engine: str, n: int, lead: float, folder: str, url: str) -> None:
    raw = RawSqlite if database == "sqlite" else RawPostgres
    log = Log(Path(folder, "log"))
    subject: Any = {"raw": raw, "holdfast": Holdfast, "dbos": Dbos}[engine](log, url)
    subject.many([f"warm{i}" for i in range(WARM_UP)], 5)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)  # as `holdfast worker` does it; here for everybody
    result = measure(subject, log, workload, [f"key{i:06d}" for i in range(n)], lead)
    Path(folder, "result.json").write_text(json.dumps(result))
    os._exit(0)  # whatever threads an engine has left


def measure(engine: Any, log: Log, workload: str, keys: list[str], lead: float) -> dict[str, Any]:
    due, times = time.time() + lead, [time.perf_counter()]
    for part in [[key] for key in keys] if workload == "B" else [keys]:
        engine.many(part, STEPS[workload], due if workload == "E" else 0.0)
        times.append(time.perf_counter())
    if workload in "AC":
        return {"figures": {METRICS[workload][0]: len(keys) / (times[1] - times[0])}, "due": due}
    seconds = sorted(log.late_by if workload == "E" else (end - start for start, end in pairwise(times)))
    found = [1000 * seconds[math.ceil(len(seconds) * share) - 1] for share in (0.5, 0.99)]
    return {"figures": dict(zip(METRICS[workload], found, strict=True)), "due": due}


# -- the parent: all measurements in turn, each judged by its log


def faults(log: str, workload: str, n: int, due: float) -> str:
    """What is wrong with the executions in this log; empty if everything ran exactly once."""
    ran: Counter[tuple[str, str]] = Counter()
    asleep: set[str] = set()
    for what, key, value in (line.split() for line in log.splitlines() if " key" in line):
        if what == "ran":
            ran[key, value] += 1
        elif float(value) < due:
            asleep.add(key)
    counts = {
        "steps ran twice": ran.total() - len(ran),
        "steps missing": n * max(1, STEPS[workload]) - len(ran),
        "not asleep when due": n - len(asleep) if workload == "E" else 0,
    }
    return ", ".join(f"{many} {what}" for what, many in counts.items() if many)


def run_case(case: Case, python: str, options: argparse.Namespace, cluster: Any) -> dict[str, Any]:
    workload, database, engine = case
    n = options.sizes[workload][engine]
    on_server = cluster.database() if database == "postgres" else nullcontext()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, on_server as url:
        role = [*case, n, options.lead, folder, url or f"sqlite:///{folder}/bench.db"]
        command = [python, __file__, "--role", json.dumps(role)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=RUN_TIMEOUT_SECONDS)
        except subprocess.SubprocessError as error:
            words = str((isinstance(error, subprocess.CalledProcessError) and error.stderr) or error).strip()
            print(words[-3000:], file=sys.stderr)
            return {"void": words.splitlines()[-1][-200:]}
        result = json.loads(Path(folder, "result.json").read_text())
        return result | {"void": faults(Path(folder, "log").read_text(), workload, n, result["due"])}


def run_all(options: argparse.Namespace, pythons: dict[str, str], cluster: Any) -> Results:
    """Interleaved, every other round backwards: what disturbs the machine meanwhile disturbs everybody."""
    places = [(workload, database) for workload in options.workloads for database in options.databases]
    cases = [(*place, engine) for place in places for engine in options.sizes[place[0]] if engine in pythons]
    results: Results = {case: [] for case in cases}
    with progress(len(cases) * options.repeats) as tell:
        for repeat in range(options.repeats):
            for case in cases[:: -1 if repeat % 2 else 1]:
                result = run_case(case, pythons[case[2]], options, cluster)
                results[case].append(result)
                figures = [f"{number(value)} {name}" for name, value in result.get("figures", {}).items()]
                tell(f"{' '.join(case)}: {'void, ' + result['void'] if result['void'] else ', '.join(figures)}")
    return results


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar on a terminal, else a line per measurement; both on standard error."""
    if not sys.stderr.isatty():
        done = count(1)
        yield lambda text: print(f"[{next(done)}/{total}] {text}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


def dbos_python() -> tuple[str, str]:
    """The interpreter that has DBOS, set up on first use, or why there is none."""
    cache = Path(os.environ.get("HOLDFAST_BENCH_CACHE") or Path(tempfile.gettempdir(), "holdfast-bench-own"))
    wanted = [DBOS_PACKAGE] + [PYSQLITE_PACKAGE] * (sqlite3.sqlite_version_info < DBOS_NEEDS_SQLITE)
    venv = cache / "-".join([*wanted, platform.python_version()]).replace("==", "-")
    python = str(venv / "bin" / "python")
    if not (venv / "ready").exists():
        print(f"installing {' and '.join(wanted)} into {venv}", file=sys.stderr, flush=True)
        shutil.rmtree(venv, ignore_errors=True)
        try:
            for command in ([sys.executable, "-m", "venv", str(venv)], [python, "-m", "pip", "install", "-q", *wanted]):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
            (venv / "ready").touch()
        except (OSError, subprocess.SubprocessError) as error:
            return "", f"not installable: {str(getattr(error, 'stderr', '') or error).strip().splitlines()[-1][:120]}"
    return python, ""


def make_rows(results: Results, missing: dict[str, str]) -> list[dict[str, Any]]:
    """One row per figure, with a cell per engine; `missing` says why an engine was not run."""
    rows = []
    for workload, database in dict.fromkeys(case[:2] for case in results):
        for metric in METRICS[workload]:
            row: dict[str, Any] = {"workload": workload, "database": database, "metric": metric}
            for engine in ENGINES:
                why = missing.get(engine, "") if engine in FULL_SIZES[workload] else ""
                row[engine] = summary(results.get((workload, database, engine), []), metric, why)
            for name, other in (("times_dbos", "dbos"), ("of_raw", "raw")):
                ours, theirs = row["holdfast"]["median"], row[other]["median"]
                better = (ours, theirs) if metric.endswith("/s") else (theirs, ours)  # rates up, times down
                row[name] = better[0] / better[1] if ours and theirs else None
            rows.append(row)
    return rows


def summary(runs: list[dict[str, Any]], metric: str, why: str) -> dict[str, Any]:
    void = "; ".join(dict.fromkeys(run["void"] for run in runs if run["void"]))
    values = [] if void else [run["figures"][metric] for run in runs]
    return {"values": values, "median": median(values) if values else None, "void": void, "missing": why}


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def cell(found: dict[str, Any]) -> str:
    values = found["values"]
    if values:
        return f"{number(found['median'])} ({number(min(values))}–{number(max(values))})"
    return f"**void**: {found['void']}" if found["void"] else found["missing"]


def markdown(rows: list[dict[str, Any]]) -> str:
    """Medians with their spread, and Holdfast's place between DBOS and the raw limit: higher is better in both."""
    lines = ["| workload | database | figure | raw limit | Holdfast | DBOS | Holdfast × DBOS | Holdfast of raw limit |"]
    lines.append("|---|---|---|--:|--:|--:|--:|--:|")
    for row in rows:
        times, share = row["times_dbos"], row["of_raw"]
        cells = [TITLES[row["workload"]], row["database"], row["metric"], *(cell(row[engine]) for engine in ENGINES)]
        cells += [f"{times:.1f}" if times else "", f"{number(100 * share)} %" if share else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine(cluster: Any) -> dict[str, str]:
    def said(*command: str | Path) -> str:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"

    git = shutil.which("git")
    return {
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "PostgreSQL": said(cluster.binaries / "postgres", "--version") if cluster else "not used",
        "commit": said(git, "describe", "--always", "--dirty", "--exclude=*") if git else "unknown",
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Holdfast with DBOS and with the raw limit of this machine.")
    parser.add_argument("--repeats", type=int, help="how often to measure each (3)")
    parser.add_argument("--only", choices=DATABASES, help="one database only")
    parser.add_argument("--workloads", default="A,B,C,E", help="some of A,B,C,E")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once, without DBOS: does it work at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there as well")
    parser.add_argument("--role", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.workloads = list(dict.fromkeys(options.workloads.upper().split(",")))
    if unknown := set(options.workloads) - set(STEPS):
        parser.error(f"no workload {', '.join(sorted(unknown))}: choose from {', '.join(STEPS)}")
    options.databases = [options.only] if options.only else DATABASES
    options.sizes = QUICK_SIZES if options.quick else FULL_SIZES
    options.repeats = max(1, options.repeats or (1 if options.quick else 3))
    options.lead = 2.0 if options.quick else 5.0
    return options


def main() -> None:
    options = parse()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    if options.role:
        act(*options.role)
    pythons, missing = {"raw": sys.executable, "holdfast": sys.executable}, {}
    if any("dbos" in options.sizes[workload] for workload in options.workloads):
        python, why = dbos_python()
        (missing if why else pythons)["dbos"] = why or python
    from tests.support.postgres import Cluster

    with Cluster(durable=True) if "postgres" in options.databases else nullcontext() as cluster:
        facts = machine(cluster)
        rows = make_rows(run_all(options, pythons, cluster), missing)
    print("\n".join(f"- {name}: {value}" for name, value in facts.items()), markdown(rows), sep="\n\n")
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "repeats": options.repeats, "rows": rows}, indent=1))
    if any(row[engine]["void"] for row in rows for engine in ENGINES):
        sys.exit("some figures are void: a run failed, or its steps did not run exactly once")


if __name__ == "__main__":
    main()
