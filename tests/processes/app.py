"""The worker program of the process tests: `python -m tests.processes.app URL LOGS`, to be killed at will.

Every handler writes a line when it begins and one when it ends (`executions.log`), and the provider behind the
effects writes one per call (`provider.log`). Lines are single writes with O_APPEND, so that they survive a
kill -9 and no two processes' lines mix. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, StepInfo, TaskInfo

STEPS = 5


def task(name: str, handler: str, on_done: str, given: Any = None, **more: Any) -> dict[str, Any]:
    """A state that waits for one SYSTEM task."""
    src = {"task": {"type": "SYSTEM", "name": name, "handler": handler, "input": given or {"@expr": "context"}}}
    return {"invoke": {"id": name, "src": src, "onDone": on_done, **more}}


def chart(key: str, initial: Any, **states: Any) -> dict[str, Any]:
    context = {"pause": {"@expr": "has(event.input.pause) ? event.input.pause : 0.0"},
               "thread": {"@expr": "has(event.input.thread) && event.input.thread"}}  # fmt: skip
    return {"id": key, "context": context, "initial": initial, "states": {**states, "over": {"type": "final"}}}


# The same work as below, asked for by charts. A thread or none is chosen on the way in.
def choose(name: str) -> dict[str, Any]:
    return {"always": [{"guard": {"@expr": "context.thread"}, "target": f"{name}InAThread"}, {"target": name}]}


CHARTS = [
    chart("chart-one", "choose", choose=choose("s1"), s1=task("s1", "work", "over"),
          s1InAThread=task("s1", "work in a thread", "over")),
    chart("chart-paid", "choose", choose=choose("pay"), pay=task("pay", "pay", "after"),
          payInAThread=task("pay", "pay in a thread", "after"), after=task("after", "work", "over", {"pause": 0})),
    chart("chart-poison", "s1", s1=task("s1", "work", "bite"), bite=task("bite", "bite", "over")),
    chart("charted", "s1", s1=task("s1", "work", "book"), book=task("book", "book", "pay"),
          pay=task("pay", "pay", "nap", onError="nap"), nap={"after": {"300": "s2"}}, s2=task("s2", "work", "over")),
]  # fmt: skip


class Log:
    """A file that takes whole lines from many processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)

    def write(self, **words: Any) -> None:
        os.write(self._file, json.dumps({"at": time.monotonic_ns(), "pid": os.getpid(), **words}).encode() + b"\n")

    def note(self, event: str, info: StepInfo | TaskInfo) -> None:
        step = info.name if isinstance(info, TaskInfo) else info.step
        self.write(event=event, instance=info.instance_id, step=step, attempt=info.attempt)


def build(url: str, logs: Path) -> Holdfast:
    hf = Holdfast(url)
    executions, provider = Log(logs / "executions.log"), Log(logs / "provider.log")

    async def work(info: StepInfo, number: int, pause: float) -> int:
        executions.note("start", info)
        await asyncio.sleep(pause)
        executions.note("end", info)
        return number * 10

    def work_in_a_thread(info: StepInfo, number: int, pause: float) -> int:
        executions.note("start", info)
        time.sleep(pause)
        executions.note("end", info)
        return number * 10

    def call_provider(info: StepInfo | TaskInfo) -> dict[str, str]:
        provider.write(event="call", key=info.idempotency_key, instance=info.instance_id, attempt=info.attempt)
        return {"id": f"prov-{info.idempotency_key[:8]}"}

    async def pay(info: StepInfo, pause: float) -> dict[str, str]:
        executions.note("start", info)
        receipt = call_provider(info)
        await asyncio.sleep(pause)
        executions.note("end", info)
        return receipt

    def pay_in_a_thread(info: StepInfo, pause: float) -> dict[str, str]:
        executions.note("start", info)
        receipt = call_provider(info)
        time.sleep(pause)
        executions.note("end", info)
        return receipt

    async def bite(info: StepInfo) -> None:
        executions.note("start", info)
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(60)

    async def undo(info: StepInfo, result: int) -> None:
        executions.note("undo", info)

    async def refuse(info: StepInfo) -> None:
        executions.note("start", info)
        raise ValueError("refused")

    async def fork(info: StepInfo) -> None:
        """Leaves a child behind that lives longer than its worker; the second attempt has none."""
        executions.note("start", info)
        if not list(logs.glob("child-*")):
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            child.start()
            (logs / f"child-{child.pid}").touch()
            await asyncio.sleep(600)

    def book_sqlite(tx: Any, info: StepInfo) -> int:
        tx.execute("insert into bookings (instance) values (?)", (info.instance_id,))
        return 1

    async def book_postgres(tx: Any, info: StepInfo) -> int:
        await tx.execute("insert into bookings (instance) values ($1)", info.instance_id)
        return 1

    @hf.workflow("five")
    async def five(ctx: Context, input: dict[str, Any]) -> list[int]:
        handler = work_in_a_thread if input.get("thread") else work
        return [await ctx.step(f"s{n}", handler, n, input.get("pause", 0.0)) for n in range(1, STEPS + 1)]

    @hf.workflow("one")
    async def one(ctx: Context, input: dict[str, Any]) -> int:
        handler = work_in_a_thread if input.get("thread") else work
        return await ctx.step("s1", handler, 1, input.get("pause", 0.0))

    @hf.workflow("paid")
    async def paid(ctx: Context, input: dict[str, Any]) -> dict[str, str]:
        if not input.get("bare"):  # an effect may be the very first thing an instance does
            await ctx.step("before", work, 1, 0.0)
        handler = pay_in_a_thread if input.get("thread") else pay
        receipt = await ctx.effect("pay", handler, input.get("pause", 0.0), mode="manual")
        await ctx.step("after", work, 2, 0.0)
        return receipt

    @hf.workflow("later")
    async def later(ctx: Context, input: dict[str, Any]) -> dict[str, str]:
        await ctx.sleep("nap", input["seconds"])
        return await ctx.effect("pay", pay, 0.0, mode="manual")

    @hf.workflow("keyed")
    async def keyed(ctx: Context, input: dict[str, Any]) -> dict[str, str]:
        return await ctx.effect("pay", pay, input.get("pause", 0.0), mode="keyed")

    @hf.workflow("forks")
    async def forks(ctx: Context, input: dict[str, Any]) -> None:
        await ctx.step("fork", fork)

    @hf.workflow("poison")
    async def poison(ctx: Context, input: dict[str, Any]) -> None:
        await ctx.step("before", work, 1, 0.0)
        await ctx.step("bite", bite)

    @hf.workflow("sleeper")
    async def sleeper(ctx: Context, input: dict[str, Any]) -> int:
        await ctx.sleep("nap", input["seconds"])
        return await ctx.step("up", work, 1, 0.0)

    @hf.workflow("saga")
    async def saga(ctx: Context, input: dict[str, Any]) -> None:
        for n in (1, 2, 3):
            await ctx.step(f"s{n}", work, n, input.get("pause", 0.0), compensate=undo)
        await ctx.step("s4", refuse, max_attempts=1)

    @hf.workflow("family")
    async def family(ctx: Context, input: dict[str, Any]) -> Any:
        await ctx.step("s1", work, 1, input.get("pause", 0.0))
        return await ctx.child("child", "five", input)

    @hf.workflow("called")
    async def called(ctx: Context, input: dict[str, Any]) -> Any:
        first = await ctx.wait_for_signal("go")
        await ctx.step("s1", work, 1, input.get("pause", 0.0))
        return [first, await ctx.wait_for_signal("go")]

    @hf.workflow("booked")
    async def booked(ctx: Context, input: dict[str, Any]) -> int:
        await ctx.step("s1", work, 1, input.get("pause", 0.0))
        handler = book_sqlite if url.startswith("sqlite") else book_postgres
        booking = await ctx.transaction("book", handler)
        await ctx.step("s2", work, 2, input.get("pause", 0.0))
        return booking

    @hf.task_handler("SYSTEM", "work")
    async def work_of(given: dict[str, Any], info: TaskInfo) -> int:
        executions.note("start", info)
        await asyncio.sleep(given["pause"])
        executions.note("end", info)
        return info.attempt

    @hf.task_handler("SYSTEM", "work in a thread")
    def work_of_in_a_thread(given: dict[str, Any], info: TaskInfo) -> int:
        executions.note("start", info)
        time.sleep(given["pause"])
        executions.note("end", info)
        return info.attempt

    @hf.task_handler("SYSTEM", "bite")
    async def bite_of(given: dict[str, Any], info: TaskInfo) -> None:
        executions.note("start", info)
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(60)

    @hf.task_handler("SYSTEM", "pay", kind="effect")
    async def pay_of(given: dict[str, Any], info: TaskInfo) -> dict[str, str]:
        executions.note("start", info)
        receipt = call_provider(info)
        await asyncio.sleep(given["pause"])
        executions.note("end", info)
        return receipt

    @hf.task_handler("SYSTEM", "pay in a thread", kind="effect")
    def pay_of_in_a_thread(given: dict[str, Any], info: TaskInfo) -> dict[str, str]:
        executions.note("start", info)
        receipt = call_provider(info)
        time.sleep(given["pause"])
        executions.note("end", info)
        return receipt

    def book_task_sqlite(tx: Any, given: Any, info: TaskInfo) -> int:
        tx.execute("insert into bookings (instance) values (?)", (info.instance_id,))
        return 1

    async def book_task_postgres(tx: Any, given: Any, info: TaskInfo) -> int:
        await tx.execute("insert into bookings (instance) values ($1)", info.instance_id)
        return 1

    book = book_task_sqlite if url.startswith("sqlite") else book_task_postgres
    hf.task_handler("SYSTEM", "book", kind="transaction")(book)
    return hf


async def main(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, stop.set)
    async with build(options.url, options.logs) as hf:
        async with hf.worker(
            concurrency=options.concurrency, poll_seconds=options.poll, lease=options.lease, verbose=options.verbose
        ) as worker:
            say = Log(options.logs / "workers.log")
            say.write(event="ready", worker=worker.id.hex())
            await asyncio.gather(stop.wait(), report(worker, say, stop))
    print("stopped", flush=True)


async def report(worker: Any, log: Log, stop: asyncio.Event) -> None:
    """What only the worker itself can say: how much memory it takes, and what it holds in it."""
    while not stop.is_set():
        log.write(event="memory", rss=resident(), executions=len(worker.executions), worker=worker.id.hex())
        await asyncio.sleep(0.25)


def resident() -> int:
    """Bytes of memory this process has in use."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("logs", type=Path)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--poll", type=float, default=0.2)
    parser.add_argument("--lease", type=float, default=15.0)
    parser.add_argument("--verbose", action="store_true")
    sys.exit(asyncio.run(main(parser.parse_args())))
