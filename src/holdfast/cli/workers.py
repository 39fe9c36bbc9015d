"""The processes that take turns: `holdfast worker`, what `holdfast dev` shares with it, and who else is at work.

Such a command owns its process, so they may set its signals, its loop and its garbage collector.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import structlog

from holdfast import Holdfast, logs, settings
from holdfast.cli.app import F, Place, opened, place_options, run
from holdfast.cli.health import watched
from holdfast.cli.output import Output, notice, output_option, show_rows
from holdfast.engine.hiding import without_passwords
from holdfast.outside import with_stand_ins

log = structlog.get_logger("holdfast.cli")
LEAVE_SECONDS = 0.2  # for calls that were handed back already


def process_options(function: F) -> F:
    """Of a process that takes turns."""
    for option in (
        click.option("--concurrency", type=click.IntRange(min=1), default=200, show_default=True),
        click.option("--kept", type=click.IntRange(min=0), default=100, show_default=True,
                     help="Busy instances whose code stays in memory while they wait."),
    ):  # fmt: skip
        function = option(function)
    return standing_options(function)


def standing_options(function: F) -> F:
    """Of every process that stays until it is stopped."""
    for option in (
        click.option("--grace", type=click.FloatRange(min=0), default=10.0, show_default=True, metavar="SECONDS",
                     help="How long a stop may wait for what is running."),
        click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True,
                     envvar="HOLDFAST_LOG_LEVEL"),
        click.option("--log-format", type=click.Choice(["auto", "console", "json"]), default="auto",
                     show_default=True, envvar="HOLDFAST_LOG_FORMAT"),
    ):  # fmt: skip
        function = option(function)
    return function


@click.command()
@click.option("--queue", "queues", multiple=True, default=["default"], show_default=True, help="May be given again.")
@click.option("--verbose", is_flag=True, help="A log line for everything that happens.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    envvar="HOLDFAST_METRICS_PORT",
    metavar="PORT",
    help="Serve /metrics, /livez and /readyz there; 0 chooses one  [env: HOLDFAST_METRICS_PORT]",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    envvar="HOLDFAST_METRICS_HOST",
    help="Where they are served: they show no payloads, and ask for no key.",
)
@process_options
@place_options
def worker(
    queues: Sequence[str], verbose: bool, metrics_port: int | None, metrics_host: str, concurrency: int, kept: int,
    grace: float, log_level: str, log_format: logs.Format, place: Place,
) -> None:  # fmt: skip
    """Run the app's workflows until stopped."""
    logs.configure(log_level, format=log_format)
    _, hf = place.load()

    async def whole() -> None:
        async with opened(hf, migrate=False), AsyncExitStack() as stack:
            if metrics_port is not None:
                port = await stack.enter_async_context(watched(hf, metrics_host, metrics_port))
                log.info("metrics_served", host=metrics_host, port=port)
            await serve(hf, queues, concurrency=concurrency, kept=kept, grace=grace, verbose=verbose)
        await leave_calls()

    run(whole())
    leave()


@click.group()
def workers() -> None:
    """Who is at work."""


@workers.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@place_options
@output_option
def list_(limit: int, place: Place, output: Output) -> None:
    """Workers, the newest first: live, stopped cleanly, or fenced by another."""
    columns = ("id", "state", "host", "pid", "holds", "started_at", "heartbeat_at", "definitions")
    show_rows(place.ask(lambda hf: hf.workers(limit)), columns, output, empty="no worker has run here yet")


# -- running


def stand_in(hf: Holdfast, answers: Path | None) -> dict[str, Path]:
    """Give the app what it has not set up itself, and say where that is to be found."""
    given, folder = hf.outside, Path.cwd() / ".holdfast"
    places = {"mails": folder / "mailbox", "answers": answers or folder / "answers.jsonl"}
    hf.outside = with_stand_ins(given, settings.for_the_library(), mailbox=places["mails"], answers=places["answers"])
    if hf.outside.mail is given.mail or hf.registry.handler("EMAIL", ""):
        del places["mails"]
    if hf.outside.llm is given.llm or hf.registry.handler("AI", ""):
        del places["answers"]
        if answers:
            notice(f"{answers} is not used: the app or the settings name a model")
    return places


STAND_INS = {
    "mails": "no mail server is set up: mails land there",
    "answers": "no model is set up: AI tasks are answered from there",
}


def introduce(hf: Holdfast, places: Mapping[str, Path]) -> None:
    click.echo(f"database   {without_passwords(hf.url)}")
    named = ", ".join(f"{key} v{version}" for key, version in hf.registry.places())
    handlers = ", ".join(sorted(hf.registry.handler_names()))
    click.echo(f"workflows  {named or 'none in code; charts run as they are published'}")
    if handlers:
        click.echo(f"handlers   {handlers}")
    for what, path in places.items():
        click.echo(f"{what:<10} {path}  ({STAND_INS[what]})")
    click.echo("Ctrl-C stops; run again, also after a kill -9, and it goes on where it was.")
    sys.stdout.flush()


def queues_of(hf: Holdfast) -> list[str]:
    """Every queue that some workflow of the app uses."""
    return sorted({hf.registry.find(*place).queue for place in hf.registry.places()} or {"default"})


async def serve(
    hf: Holdfast, queues: Sequence[str], *, concurrency: int, kept: int, grace: float, verbose: bool,
    module: ModuleType | None = None, beside: AbstractAsyncContextManager[Any] | None = None,
) -> None:  # fmt: skip
    """Run one worker per queue until a signal comes; then hand back what cannot be finished in time.

    `beside`: what runs while they do, from after their start until before their end."""
    stop = on_stop_signals(grace)
    async with AsyncExitStack() as stack:
        for queue in dict.fromkeys(queues):
            options = {"concurrency": concurrency, "kept": kept, "verbose": verbose}
            await stack.enter_async_context(_working(hf, queue, grace, options))
        if beside is not None:
            await stack.enter_async_context(beside)
        calm_collector()
        hook = asyncio.create_task(_call_hook(module, hf))
        await stop.wait()
        hook.cancel()
        await asyncio.gather(hook, return_exceptions=True)


def on_stop_signals(grace: float) -> asyncio.Event:
    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            os._exit(130)  # asked twice: as after a kill -9, the next worker goes on from the rows
        if sys.stderr.isatty():
            notice(f"stopping: claiming nothing more, {grace:g} s for what runs; once more to stop at once")
        else:  # among lines of JSON
            log.info("stopping", grace_seconds=grace)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    return stop


@asynccontextmanager
async def _working(hf: Holdfast, queue: str, grace: float, options: dict[str, Any]) -> AsyncIterator[None]:
    running = await hf.worker(queue=queue, **options).__aenter__()
    try:
        yield
    finally:
        # Not the scope's own exit: that one waits as long as the library thinks right, not as long as asked for.
        hf.service.workers.remove(running)
        await running.stop(timeout=grace)


async def leave_calls() -> None:
    """End the process even if an author's coroutine takes no cancel: the loop would wait for it for ever."""
    calls = {task for task in asyncio.all_tasks() if task.get_name() in ("holdfast-step", "holdfast-hook")}
    for call in calls:
        call.cancel()
    if calls and (await asyncio.wait(calls, timeout=LEAVE_SECONDS))[1]:
        exit_hard()


async def _call_hook(module: ModuleType | None, hf: Holdfast) -> None:
    hook: Any = getattr(module, "dev", None)
    if not inspect.iscoroutinefunction(hook):
        return
    try:
        await hook(hf)
        sys.stdout.flush()
    except Exception as error:
        log.error("dev_hook_failed", error=repr(error), exc_info=error)


def calm_collector() -> None:
    """Fewer garbage collections. Instances in flight are many small objects that live for seconds, so the usual
    thresholds walk through all of them again and again: about 10 % of the CPU under load. What was imported stays
    for good and need not be looked at any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def leave() -> None:
    """End the process even if a step's thread does not: Python would wait for it, and it was handed back already."""
    for thread in threading.enumerate():
        if thread.name.startswith("holdfast-step"):
            thread.join(timeout=LEAVE_SECONDS)
            if thread.is_alive():
                exit_hard()


def exit_hard() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
