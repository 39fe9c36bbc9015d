"""Real worker processes for a test, and what they left behind: logs, rows, memory.

A `Fleet` starts workers on one database and ends every one of them with the test, whatever happened to it. Waiting
is polling a condition with a deadline, which is there to end a test that hangs, not to hurry one that is right.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg

from tests.processes.app import CHARTS, build
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
ENDED = ("completed", "failed", "cancelled")


class Run(NamedTuple):
    """One call of a handler, from the execution log. `end` is 0 if it never said that it ended."""

    pid: int
    instance: str
    step: str
    attempt: int
    start: int
    end: int


def wait_until(condition: Callable[[], Any], what: str | Callable[[], str], seconds: float = PATIENCE_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.03)


class Process:
    """One worker process."""

    def __init__(self, fleet: Fleet, options: dict[str, Any]) -> None:
        self.fleet = fleet
        self.output = fleet.logs / f"output-{len(fleet.processes)}.log"
        arguments = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.app", fleet.worker_url, str(fleet.logs), *arguments],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            )
        self.pid = self.process.pid

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.fleet.lines("workers") if line["pid"] == self.pid and line["event"] == event]

    def ready(self) -> Process:
        def there() -> bool:
            assert self.process.poll() is None, f"the worker died: {self.tail()}"
            return bool(self.said("ready"))

        wait_until(there, lambda: f"worker {self.pid} ready: {self.tail()}")
        return self

    def tail(self) -> str:
        return self.output.read_text(errors="replace")[-3000:]

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.fleet.killed[self.pid] = time.monotonic_ns()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def stop_between_writes(self) -> None:
        """Stop it while it does not hold SQLite's one write lock. A stopped process keeps it, and nobody could write;
        that is not what the test is about."""
        for _ in range(1000):
            self.stop()
            connection = apsw.Connection(self.fleet.url.removeprefix("sqlite:///"))
            try:
                connection.execute("begin immediate; rollback")
                return
            except apsw.BusyError:
                self.wake()
                time.sleep(0.01)
            finally:
                connection.close()
        raise AssertionError("it writes all the time")

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> int:
        """The clean way: SIGTERM, hand back, exit."""
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)


class Fleet:
    """Workers on one database, and a view of it from outside."""

    def __init__(self, url: str, logs: Path, *, worker_url: str | None = None) -> None:
        self.url = url
        self.worker_url = worker_url or url
        self.logs = logs
        self.processes: list[Process] = []
        self.killed: dict[int, int] = {}
        self.supervisors: list[Supervisor] = []
        self.migrate()

    @property
    def sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def migrate(self) -> None:
        import asyncio

        async def run() -> None:
            async with build(self.url, self.logs) as hf:
                for chart in CHARTS:
                    await hf.publish(chart)

        asyncio.run(run())
        self.execute("create table bookings (instance text not null)")

    # -- processes

    def worker(self, **options: Any) -> Process:
        process = Process(self, options)
        self.processes.append(process)
        return process.ready()

    def workers(self, count: int, **options: Any) -> list[Process]:
        started = [Process(self, options) for _ in range(count)]
        self.processes += started
        return [process.ready() for process in started]

    def supervise(self, **options: Any) -> Supervisor:
        supervisor = Supervisor(self, options)
        self.supervisors.append(supervisor)
        return supervisor

    def close(self) -> None:
        for supervisor in self.supervisors:
            supervisor.stop()
        for process in self.processes:  # whatever was to be seen has been seen: no need to ask nicely
            if process.alive:
                process.process.kill()
        for process in self.processes:
            process.process.wait()

    # -- using the database from outside

    def start(self, workflow: str, inputs: Iterable[Any], *, tenant: str = "default") -> list[str]:
        import asyncio

        async def run() -> list[str]:
            async with build(self.url, self.logs) as hf:
                return [handle.id for handle in await hf.start_many(workflow, inputs, tenant=tenant)]

        return asyncio.run(run())

    def do(self, work: Callable[[Any], Any]) -> Any:
        """Run a coroutine function with an open Holdfast, without a worker."""
        import asyncio

        async def run() -> Any:
            async with build(self.url, self.logs) as hf:
                return await work(hf)

        return asyncio.run(run())

    def execute(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Plain SQL in the common tongue: tables as holdfast.instances, parameters as %s."""
        if self.sqlite:
            connection = apsw.Connection(self.url.removeprefix("sqlite:///"))
            connection.set_busy_timeout(60_000)
            try:
                return list(connection.execute(sql.replace("holdfast.", "holdfast_").replace("%s", "?"), values))
            finally:
                connection.close()
        with psycopg.connect(self.url, autocommit=True) as found:
            cursor = found.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def counts(self, **where: str) -> dict[str, int]:
        clause = " and ".join(["1 = 1", *(f"{column} = %s" for column in where)])
        sql = f"select status, count(*) from holdfast.instances where {clause} group by status"
        return dict(self.execute(sql, *where.values()))

    def ended(self, **where: str) -> int:
        return sum(count for status, count in self.counts(**where).items() if status in ENDED)

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        wait_until(condition, lambda: f"{what}: {self.situation()}")

    def wait_all_ended(self) -> None:
        self.wait_until(lambda: all(status in ENDED for status in self.counts()), "everything ended")

    def situation(self) -> str:
        """What one wants to know when a wait was in vain: whether work stood still, or there was none left."""
        counts = self.counts()
        ended = sum(count for status, count in counts.items() if status in ENDED)
        alive = [process.pid for process in self.processes if process.alive]
        return (
            f"{len(self.runs())} runs of handlers, {ended} of {sum(counts.values())} instances ended ({counts}), "
            f"workers {alive} alive, not ended: {self.stuck()}"
        )

    def stuck(self) -> list[tuple[Any, ...]]:
        return self.execute(
            "select definition_key, status, waiting_on, run_at, locked_by, fence, attempts from holdfast.instances "
            "where completed_at is null limit 5"
        )

    # -- what the workers wrote

    def lines(self, log: str) -> list[dict[str, Any]]:
        path = self.logs / f"{log}.log"
        written = path.read_text() if path.exists() else ""
        whole, _, _ = written.rpartition("\n")  # the last line may just be being written
        return [json.loads(line) for line in whole.splitlines()]

    def provider_calls(self) -> list[str]:
        return [line["key"] for line in self.lines("provider")]

    def runs(self) -> list[Run]:
        """Every call of a handler, in order of its start."""
        open_: dict[tuple[int, str, str, int], list[int]] = defaultdict(list)
        found = []
        for line in sorted(self.lines("executions"), key=lambda one: one["at"]):
            key = (line["pid"], line["instance"], line["step"], line["attempt"])
            if line["event"] == "start":
                open_[key].append(line["at"])
            elif line["event"] == "end":
                found.append(Run(*key, open_[key].pop(0), line["at"]))
        found += [Run(*key, at, 0) for key, starts in open_.items() for at in starts]
        return sorted(found, key=lambda run: run.start)

    def runs_by_instance(self) -> dict[str, list[Run]]:
        grouped: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs():
            grouped[run.instance].append(run)
        return grouped

    def assert_never_two_at_once(self) -> None:
        """No two steps of one instance at the same time: a killed process's step ends with the process."""
        for instance, runs in self.runs_by_instance().items():
            for before, after in pairwise(runs):
                end = before.end or self.killed.get(before.pid, before.start)
                assert end <= after.start, f"{instance}: {before} and {after} ran at the same time"

    def assert_in_order(self, *, again: int = 0) -> None:
        """A step never runs after a later one has begun, and only the one in flight runs again."""
        for instance, runs in self.runs_by_instance().items():
            steps: list[str] = []
            for run in runs:
                if run.step in steps:
                    assert run.step == steps[-1], f"{instance}: {run.step} ran again after {steps[-1]} had begun"
                else:
                    steps.append(run.step)
            extra = len(runs) - len(steps)
            assert extra <= again, f"{instance}: {extra} repeats with {again} interruptions: {runs}"

    def assert_each_once(self) -> None:
        self.assert_in_order(again=0)


class Supervisor:
    """Starts its worker again whenever it dies, like any process manager would."""

    def __init__(self, fleet: Fleet, options: dict[str, Any]) -> None:
        self.fleet = fleet
        self.options = options
        self.deaths = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        process = self._start()
        while not self._stopping.wait(0.05):
            if not process.alive:
                self.fleet.killed[process.pid] = time.monotonic_ns()
                self.deaths += 1
                process = self._start()

    def _start(self) -> Process:
        process = Process(self.fleet, self.options)
        self.fleet.processes.append(process)
        return process

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
