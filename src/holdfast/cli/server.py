"""The process that answers HTTP: `holdfast server`, and the part of `holdfast dev` that does."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import structlog

from holdfast import Holdfast, logs
from holdfast.api.settings import ServerSettings
from holdfast.app import api_keys, principals
from holdfast.app.audit import By
from holdfast.cli.app import Place, opened, place_options, run, settled
from holdfast.cli.output import notice
from holdfast.cli.workers import calm_collector, on_stop_signals, standing_options
from holdfast.engine.errors import HoldfastError, PrincipalNotFound
from holdfast.facade import make_doors
from holdfast.settings import Settings

if TYPE_CHECKING:
    from holdfast.api.server import Server

log = structlog.get_logger("holdfast.cli")
DEV_KEY = "dev-key"
DEV_NAME = "dev"
MONTH = 30 * 86_400_000_000


def server_settings(values: Settings) -> ServerSettings:
    """What of the settings the server reads."""
    return ServerSettings(**{name: getattr(values, name) for name in ServerSettings.__struct_fields__})


def address_options(function: click.decorators.FC) -> click.decorators.FC:
    function = click.option("--port", type=click.IntRange(0, 65535), default=8700, show_default=True,
                            envvar="HOLDFAST_PORT", help="0 chooses one.")(function)  # fmt: skip
    return click.option("--host", default="127.0.0.1", show_default=True, envvar="HOLDFAST_HOST",
                        help="Others than loopback need an API key or an OIDC issuer first.")(function)  # fmt: skip


@click.command()
@address_options
@click.option("--drain", type=click.FloatRange(min=0), default=0.0, show_default=True, metavar="SECONDS",
              help="Go on for so long after a stop signal, not ready any more: a balancer notices.")  # fmt: skip
@click.option("--verbose", is_flag=True, help="A log line for every request.")
@standing_options
@place_options
def server(
    host: str, port: int, drain: float, verbose: bool, grace: float, log_level: str, log_format: logs.Format,
    place: Place,
) -> None:  # fmt: skip
    """Serve the REST API until stopped. With --app it also starts the app's code workflows; workers run elsewhere."""
    logs.configure(log_level, format=log_format)
    hf = place.load()[1] if place.app else place.holdfast()
    wanted = msgspec.structs.replace(server_settings(settled().values), host=host, port=port)

    async def whole() -> None:
        stop = on_stop_signals(grace)
        async with opened(hf, door=True), answering(hf, wanted, grace, verbose) as serving_now:
            click.echo(f"listening on {serving_now.url}")
            sys.stdout.flush()
            calm_collector()
            await stop.wait()
            if drain:
                serving_now.doors.draining = True
                await asyncio.sleep(drain)

    run(whole())


@asynccontextmanager
async def answering(hf: Holdfast, settings: ServerSettings, grace: float, verbose: bool) -> AsyncIterator[Server]:
    # The web framework takes as long to import as all the rest: whoever does not serve does not wait for it.
    from holdfast.api.opening import opened_doors
    from holdfast.api.server import serving

    async with (
        opened_doors(hf, settings, make_doors, log_requests=verbose) as doors,
        serving(doors, grace=grace) as running,
    ):
        yield running


# -- what `dev` gives its user


async def way_in(hf: Holdfast, folder: Path, url: str) -> tuple[str, str]:
    """A key that stays the same from run to run, in a file of this folder, and a login link that works once."""
    tenant, by = "default", By(DEV_NAME)
    try:
        owner = await principals.find(hf.service, tenant, DEV_NAME)
    except PrincipalNotFound:
        owner = await principals.create(
            hf.service, tenant, name=DEV_NAME, kind="human", roles=["admin"], groups=[], by=by
        )
    key = await _kept_key(hf, folder / DEV_KEY)
    if key is None:
        made = await api_keys.create(hf.service, tenant, owner.id, name="holdfast dev", kind="test", by=by)
        key = made.key
        _keep(folder / DEV_KEY, key)
    login = await api_keys.create(
        hf.service, tenant, owner.id, name="login link", kind="login", by=by,
        expires_at=hf.service.store.now() + round(api_keys.LOGIN.total_seconds() * 1_000_000),
    )  # fmt: skip
    return key, f"{url}/login?key={login.key}"


async def _kept_key(hf: Holdfast, file: Path) -> str | None:
    try:
        key = file.read_text().strip()
    except OSError:
        return None
    return key if await hf.service.callers.of_key(key) is not None else None


def _keep(file: Path, key: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        out.write(key + "\n")


async def introduce(hf: Holdfast, running: Server, folder: Path) -> None:
    try:
        key, link = await way_in(hf, folder, running.url)
    except HoldfastError as error:
        notice(f"no key was made: {error}")
        return
    click.echo(f"API        {running.url}  (to read: {running.url}/docs)")
    click.echo(f"key        {key}")
    click.echo(f"           also in {folder.name}/{DEV_KEY}; log a browser in, once: {link}")
    sys.stdout.flush()
