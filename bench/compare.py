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
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DBOS_PACKAGE, PYSQLITE_PACKAGE = "dbos==3.3.0", "pysqlite3-binary==0.5.4.post2"
DBOS_NEEDS_SQLITE = (3, 42)
ENGINES = ("raw", "holdfast", "dbos")
DATABASES = ("sqlite", "postgres")
STEPS = {"five": 5, "one": 1, "timer": 0}
KINDS = {"A": "five", "B": "five", "C": "one", "E": "timer"}
TITLES = {"A": "A: 5 steps", "B": "B: latency of 5 steps", "C": "C: 1 step", "E": "E: timers due at once"}
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


# -- the engines


class Engine:
    """One process that both starts workflows and executes them."""

    def __init__(self, log: Log, url: str) -> None:
        self.log, self.url = log, url

    def open(self) -> None:
        raise NotImplementedError

    def many(self, kind: str, keys: list[str], due: float = 0.0) -> None:
        """Start one workflow per key, and return when all of them are durably complete."""
        raise NotImplementedError

    def one(self, key: str) -> None:
        self.many("five", [key])

    def check(self) -> None:
        """Look at the results, when the clock is no longer running."""


def new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


class Batch:
    """Rows that share a commit, and the future that everybody behind them waits for."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, bytes]] = []
        self.steps: list[tuple[str, int, bytes]] = []
        self.ends: list[tuple[bytes, str]] = []
        self.durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Raw(Engine):
    """The raw limit: no engine, but the same promise: a step's row is on disk before the next step starts.

    Rows of all workflows under way are written together: what arrives during one commit shares the next."""

    async def connect(self) -> list[Callable[[Batch], Any]]:
        """Make the tables, and return what commits a batch, once per writer."""
        raise NotImplementedError

    def open(self) -> None:
        self.loop = new_loop()
        self.loop.run_until_complete(self.start_writers())

    async def start_writers(self) -> None:
        self.batch, self.more = Batch(), asyncio.Event()
        self.writers = [asyncio.create_task(self.write(commit)) for commit in await self.connect()]

    async def write(self, commit: Callable[[Batch], Any]) -> None:
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

    async def workflow(self, room: asyncio.Semaphore, kind: str, key: str, due: float) -> None:
        async with room:
            self.batch.starts.append((key, json.dumps({"kind": kind, "due": due}).encode()))
            await self.durable()
            if kind == "timer":
                self.log.asleep(key)
                self.batch.steps.append((key, 0, b"%f" % due))
                await self.durable()
                while (left := due - time.time()) > 0:
                    await asyncio.sleep(left)
                self.log.woke(key, due)
            for number in range(STEPS[kind]):
                self.batch.steps.append((key, number, b"%d" % self.log.step(key, number)))
                if number < STEPS[kind] - 1:  # the last one may share its commit with the end
                    await self.durable()
            self.batch.ends.append((key.encode(), key))
            await self.durable()

    def many(self, kind: str, keys: list[str], due: float = 0.0) -> None:
        async def all_of_them() -> None:
            room = asyncio.Semaphore(len(keys) if kind == "timer" else IN_FLIGHT)
            await asyncio.gather(*(self.workflow(room, kind, key, due) for key in keys))

        self.loop.run_until_complete(all_of_them())


class RawSqlite(Raw):
    async def connect(self) -> list[Callable[[Batch], Any]]:
        import apsw

        connection = apsw.Connection(self.url.removeprefix("sqlite:///"))
        for sql in (
            "pragma journal_mode = wal",
            "pragma synchronous = full",
            "pragma wal_autocheckpoint = 4000",
            "create table run (id text primary key, input blob, result blob) without rowid",
            "create table journal (run text, step int, result blob, primary key (run, step)) without rowid",
        ):
            connection.execute(sql).fetchall()
        thread = ThreadPoolExecutor(1)

        def commit(batch: Batch) -> None:
            with connection:
                connection.executemany("insert into run values (?, ?, null)", batch.starts)
                connection.executemany("insert into journal values (?, ?, ?)", batch.steps)
                connection.executemany("update run set result = ? where id = ?", batch.ends)

        return [lambda batch: self.loop.run_in_executor(thread, commit, batch)]


class RawPostgres(Raw):
    TABLES = """create table run (id text primary key, input bytea, result bytea);
        create table journal (run text, step int, result bytea, primary key (run, step))"""
    COMMIT = """with starts as (insert into run (id, input) select * from unnest($1::text[], $2::bytea[])), ends as (
            update run set result = done.result from unnest($6::bytea[], $7::text[]) as done (result, id)
            where run.id = done.id)
        insert into journal select * from unnest($3::text[], $4::int[], $5::bytea[])"""

    async def connect(self) -> list[Callable[[Batch], Any]]:
        import asyncpg

        first, second = [await asyncpg.connect(self.url) for _ in range(2)]  # one sends while the other's disk works
        await first.execute(self.TABLES)
        return [await self.committing(first), await self.committing(second)]

    async def committing(self, connection: Any) -> Callable[[Batch], Any]:
        # Planned once, by index: the tables are empty now and will not stay so.
        await connection.execute("set plan_cache_mode = force_generic_plan; set enable_seqscan = off")
        statement = await connection.prepare(self.COMMIT)

        async def commit(batch: Batch) -> None:
            columns: list[list[Any]] = []
            for rows, width in ((batch.starts, 2), (batch.steps, 3), (batch.ends, 2)):
                columns += [[row[at] for row in rows] for at in range(width)]
            await statement.fetch(*columns)

        return commit


class Holdfast(Engine):
    """Holdfast through its public API, with everything on."""

    def open(self) -> None:
        from holdfast import Holdfast, logs

        logs.configure("warning")
        self.loop, self.hf, self.handles = new_loop(), Holdfast(self.url), []
        self.declare()
        self.loop.run_until_complete(self.hf.open())
        self.scope = self.hf.worker(concurrency=IN_FLIGHT)
        self.loop.run_until_complete(self.scope.__aenter__())

    def declare(self) -> None:
        log = self.log

        async def step(key: str, number: int) -> int:
            return log.step(key, number)

        @self.hf.workflow("five")
        async def five(ctx: Any, key: str) -> str:
            for number in range(STEPS["five"]):
                await ctx.step("step", step, key, number)
            return key

        @self.hf.workflow("one")
        async def one(ctx: Any, key: str) -> str:
            await ctx.step("step", step, key, 0)
            return key

        @self.hf.workflow("timer")
        async def timer(ctx: Any, given: dict[str, Any]) -> None:
            log.asleep(given["key"])
            await ctx.sleep("until", until=datetime.fromtimestamp(given["due"], UTC))
            log.woke(given["key"], given["due"])

    def many(self, kind: str, keys: list[str], due: float = 0.0) -> None:
        self.loop.run_until_complete(self.start_and_wait(kind, keys, due))

    async def start_and_wait(self, kind: str, keys: list[str], due: float) -> None:
        inputs = [{"key": key, "due": due} for key in keys] if kind == "timer" else keys
        for at in range(0, len(inputs), 2000):
            self.handles += await self.hf.start_many(kind, inputs[at : at + 2000])
        if kind == "timer":
            await asyncio.sleep(due - time.time())
        # In the order of an instance's life: none waits, then none is pending, then none runs: all have ended.
        for status in ("waiting", "pending", "running"):
            while await self.hf.instances(status=status, limit=1):
                await asyncio.sleep(0.01)

    def one(self, key: str) -> None:
        async def start_and_get() -> None:
            await (await self.hf.start("five", key)).result()

        self.loop.run_until_complete(start_and_get())

    def check(self) -> None:
        for handle in self.handles:
            self.loop.run_until_complete(handle.result())


class Dbos(Engine):
    """DBOS in the fastest set-up we found: direct starts, few threads, no ping before each use, WAL on SQLite."""

    def open(self) -> None:
        if self.url.startswith("sqlite:"):
            self.prepare_sqlite()
        from dbos import DBOS, SetWorkflowID

        self.dbos, self.named = DBOS, SetWorkflowID
        url = self.url.replace("postgresql://", "postgresql+psycopg://")
        tuned = {"max_executor_threads": 8, "sys_db_pool_size": 20, "db_engine_kwargs": {"pool_pre_ping": False}}
        quiet = {"log_level": "ERROR", "console_log_level": "ERROR"}
        DBOS(config={"name": "bench", "system_database_url": url, **tuned, **quiet})
        step = DBOS.step(name="step")(lambda key, number: self.log.step(key, number))

        def declare(kind: str) -> Any:
            def workflow(key: str) -> str:
                for number in range(STEPS[kind]):
                    step(key, number)
                return key

            workflow.__qualname__ = kind
            return DBOS.workflow(name=kind)(workflow)

        self.workflows = {kind: declare(kind) for kind in ("five", "one")}
        DBOS.launch()

    def prepare_sqlite(self) -> None:
        if sqlite3.sqlite_version_info < DBOS_NEEDS_SQLITE:
            import pysqlite3
            import pysqlite3.dbapi2

            sys.modules |= {"sqlite3": pysqlite3, "sqlite3.dbapi2": pysqlite3.dbapi2}
        connection = sys.modules["sqlite3"].connect(self.url.removeprefix("sqlite:///"))
        connection.execute("pragma journal_mode = wal")
        connection.close()

    def start(self, kind: str, key: str) -> Any:
        with self.named(key):
            return self.dbos.start_workflow(self.workflows[kind], key)

    def many(self, kind: str, keys: list[str], due: float = 0.0) -> None:
        for handle in [self.start(kind, key) for key in keys]:
            handle.get_result()


# -- one measurement, in a process of its own


def act(options: argparse.Namespace) -> None:
    try:
        (options.folder / "result.json").write_text(json.dumps(measure(options, options.workloads[0])))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # whatever threads an engine has left


def measure(options: argparse.Namespace, workload: str) -> dict[str, Any]:
    raw = RawSqlite if options.only == "sqlite" else RawPostgres
    log = Log(options.folder / "log")
    engine = {"raw": raw, "holdfast": Holdfast, "dbos": Dbos}[options.role](log, options.url)
    engine.open()
    engine.many("one" if workload == "C" else "five", [f"warm{i}" for i in range(WARM_UP)])
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)  # as `holdfast worker` does it; here for everybody
    keys = [f"key{i:06d}" for i in range(options.n)]
    due, times = time.time() + options.lead, [time.perf_counter()]
    if workload == "B":
        for key in keys:
            engine.one(key)
            times.append(time.perf_counter())
    else:
        engine.many(KINDS[workload], keys, due)
        times.append(time.perf_counter())
    engine.check()
    if workload in "AC":
        return {"figures": {METRICS[workload][0]: len(keys) / (times[1] - times[0])}, "due": due}
    seconds = sorted(log.late_by if workload == "E" else [end - start for start, end in zip(times, times[1:])])  # noqa: B905, RUF007
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
        "steps ran twice": sum(ran.values()) - len(ran),
        "steps missing": n * max(1, STEPS[KINDS[workload]]) - len(ran),
        "not asleep when due": n - len(asleep) if workload == "E" else 0,
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def run_case(case: Case, python: str, options: argparse.Namespace, cluster: Any) -> dict[str, Any]:
    workload, database, engine = case
    n = options.sizes[workload][engine]
    on_server = cluster.database() if database == "postgres" else nullcontext()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, on_server as url:
        command = [python, __file__, "--role", engine, "--only", database, "--workloads", workload, "--n", str(n)]
        command += ["--lead", str(options.lead), "--folder", folder, "--url", url or f"sqlite:///{folder}/bench.db"]
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_SECONDS, check=True)
        except subprocess.TimeoutExpired:
            return {"void": f"no end after {RUN_TIMEOUT_SECONDS} s"}
        except subprocess.CalledProcessError as error:
            print(error.stderr[-3000:], file=sys.stderr)
            return {"void": (error.stderr.strip().splitlines() or [str(error)])[-1][:200]}
        result: dict[str, Any] = json.loads(Path(folder, "result.json").read_text())
        return result | {"void": faults(Path(folder, "log").read_text(), workload, n, result["due"])}


def run_all(options: argparse.Namespace, pythons: dict[str, str], cluster: Any) -> dict[Case, list[dict[str, Any]]]:
    """Interleaved, every other round backwards: what disturbs the machine meanwhile disturbs everybody."""
    places = [(workload, database) for workload in options.workloads for database in options.databases]
    cases = [(*place, engine) for place in places for engine in options.sizes[place[0]] if engine in pythons]
    results: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
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
        done = iter(range(1, total + 1))
        yield lambda text: print(f"[{next(done)}/{total}] {text}", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
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
            said = str(getattr(error, "stderr", "") or error).strip().splitlines()
            return "", f"not installable: {said[-1][:120]}"
    return python, ""


# -- the table


def make_rows(results: dict[Case, list[dict[str, Any]]], missing: dict[str, str]) -> list[dict[str, Any]]:
    """One row per figure, in the order of the table; `missing` says why an engine was not run."""
    rows = []
    for workload, database in dict.fromkeys(case[:2] for case in results):
        for metric in METRICS[workload]:
            base: dict[str, Any] = {"workload": workload, "database": database, "metric": metric}
            block = {
                engine: base | {"engine": engine} | summary(results.get((workload, database, engine), []), metric)
                for engine in ENGINES
                if (workload, database, engine) in results or (engine in missing and engine in FULL_SIZES[workload])
            }
            for engine, row in block.items():
                row["missing"] = missing.get(engine, "")
                row["times_dbos"], row["of_raw"] = (better(row, block.get(other)) for other in ("dbos", "raw"))
            rows += block.values()
    return rows


def summary(runs: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    void = "; ".join(dict.fromkeys(run["void"] for run in runs if run["void"]))
    values = [] if void else [run["figures"][metric] for run in runs]
    return {"void": void, "values": values, "median": median(values) if values else None}


def better(row: dict[str, Any], other: dict[str, Any] | None) -> float | None:
    """How many times as good as the other one: rates should be high, times low."""
    if not row["median"] or other is None or not other["median"]:
        return None
    ratio: float = row["median"] / other["median"]
    return ratio if row["metric"].endswith("/s") else 1 / ratio


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| workload | database | figure | engine | median | min–max | × DBOS | of raw limit |"]
    lines.append("|---|---|---|---|--:|--:|--:|--:|")
    for row in rows:
        values, times, share = row["values"], row["times_dbos"], row["of_raw"]
        cells = [TITLES[row["workload"]], row["database"], row["metric"], row["engine"]]
        if values:
            cells += [number(row["median"]), f"{number(min(values))}–{number(max(values))}"]
            cells += [f"{times:.1f}" if times else "", f"{share:.0%}" if share else ""]
        else:
            cells += [f"void: {row['void']}" if row["void"] else row["missing"], "", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine(cluster: Any) -> dict[str, str]:
    def said(*command: str) -> str:
        try:
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    return {
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "PostgreSQL": said(str(cluster.binaries / "postgres"), "--version") if cluster else "not used",
        "commit": said("git", "describe", "--always", "--dirty", "--exclude=*"),
    }


# -- the command


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare Holdfast with DBOS and with the raw limit of this machine.")
    parser.add_argument("--repeats", type=int, help="how often to measure each (3)")
    parser.add_argument("--only", choices=DATABASES, help="one database only")
    parser.add_argument("--workloads", default="A,B,C,E", help="some of A,B,C,E")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once, without DBOS: does it work at all?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there as well")
    for name, kind in {"--role": str, "--url": str, "--folder": Path, "--n": int, "--lead": float}.items():
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.workloads = list(dict.fromkeys(options.workloads.upper().split(",")))
    if unknown := set(options.workloads) - set(KINDS):
        parser.error(f"no workload {', '.join(sorted(unknown))}: choose from {', '.join(KINDS)}")
    options.databases = [options.only] if options.only else list(DATABASES)
    options.sizes = QUICK_SIZES if options.quick else FULL_SIZES
    options.repeats = max(1, options.repeats or (1 if options.quick else 3))
    options.lead = options.lead or (2.0 if options.quick else 5.0)
    return options


def server(databases: list[str]) -> Any:
    """A PostgreSQL of our own, with fsync on, if anybody needs one."""
    if "postgres" not in databases:
        return nullcontext()
    from tests.support.postgres import Cluster

    try:
        return Cluster(durable=True)
    except RuntimeError as error:
        sys.exit(f"{error}; or leave PostgreSQL out: --only sqlite")


def main() -> None:
    options = parse()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    if options.role:
        act(options)
    pythons, missing = {"raw": sys.executable, "holdfast": sys.executable}, {}
    if any("dbos" in options.sizes[workload] for workload in options.workloads):
        python, why = dbos_python()
        pythons, missing = (pythons, {"dbos": why}) if why else ({**pythons, "dbos": python}, {})
    with server(options.databases) as cluster:
        facts = machine(cluster)
        rows = make_rows(run_all(options, pythons, cluster), missing)
    print("\n".join(f"- {name}: {value}" for name, value in facts.items()), markdown(rows), sep="\n\n")
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "repeats": options.repeats, "rows": rows}, indent=1))
    if any(row["void"] for row in rows):
        sys.exit("some rows are void: a run failed, or its steps did not run exactly once")


if __name__ == "__main__":
    main()
