"""`holdfast dev`: everything in one process, for the first five minutes and for every day at the desk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import msgspec

from holdfast import Holdfast, logs
from holdfast.api.settings import ServerSettings, is_loopback
from holdfast.cli.app import Place, opened, place_options, run, settled
from holdfast.cli.server import address_options, answering, server_settings
from holdfast.cli.server import introduce as introduce_server
from holdfast.cli.workers import introduce, leave, leave_calls, process_options, queues_of, serve, stand_in


@click.command()
@click.option(
    "--answers",
    envvar="HOLDFAST_DEV_ANSWERS",
    metavar="FILE",
    type=click.Path(dir_okay=False, resolve_path=True, path_type=Path),
    help="What AI tasks are answered where no model is set up, one JSON object per line; without it "
    ".holdfast/answers.jsonl  [env: HOLDFAST_DEV_ANSWERS]",
)
@click.option("--no-server", is_flag=True, help="Only a worker.")
@address_options
@process_options
@place_options
def dev(
    answers: Path | None, no_server: bool, host: str, port: int, concurrency: int, kept: int, grace: float,
    log_level: str, log_format: logs.Format, place: Place,
) -> None:  # fmt: skip
    """All in one: migrate, run a worker and the API, and log everything that happens.

    Where no mail server is set up, mails land in .holdfast/mailbox; where no model is, AI tasks get written answers.
    A key for the API and a login link for a browser are printed.

    If the app's module has an `async def dev(hf)`, it is called once the worker runs.
    """
    logs.configure(log_level, format=log_format, short=True)
    module, hf = place.load()
    places = stand_in(hf, answers)
    wanted = msgspec.structs.replace(server_settings(settled().values), host=host, port=port)
    if not is_loopback(host):
        raise click.UsageError(f"dev prints its key and shows all, so it listens on loopback only, not on {host}")
    if not no_server:
        _check_free(wanted)

    async def whole() -> None:
        async with opened(hf, migrate=True):
            introduce(hf, places)
            await serve(
                hf, queues_of(hf), concurrency=concurrency, kept=kept, grace=grace, verbose=True, module=module,
                beside=None if no_server else _answering(hf, wanted, grace),
            )  # fmt: skip
        await leave_calls()

    run(whole())
    leave()


def _check_free(wanted: ServerSettings) -> None:
    """Where the port is taken, say so before a database is made and a worker claims anything."""
    from holdfast.api.server import bound  # the web framework comes with it, which `--no-server` does not need

    for one in bound(wanted.host, wanted.port):
        one.close()


@asynccontextmanager
async def _answering(hf: Holdfast, wanted: ServerSettings, grace: float) -> AsyncIterator[None]:
    async with answering(hf, wanted, grace, verbose=False) as running:
        await introduce_server(hf, running, Path.cwd() / ".holdfast")
        yield
