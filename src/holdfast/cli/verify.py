"""Commands about the database itself: bring it up to date, and check that nobody has edited the past."""

from __future__ import annotations

import click

from holdfast import Holdfast, StoreNotMigrated, StoreUnavailable, Verdict
from holdfast.cli.app import Place, opened, place_options, run
from holdfast.cli.output import Output, bar, busy, notice, output_option, show_one, show_rows
from holdfast.cli.refusals import FAILED
from holdfast.engine.hiding import without_passwords


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say whether it is up to date; exit 1 if it is not.")
@place_options
def migrate(dry_run: bool, place: Place) -> None:
    """Bring the database up to date. Forward only; safe to run twice, also at once."""
    hf = place.holdfast()
    shown = without_passwords(hf.url)
    try:
        run(_open_once(hf, migrate=False))
        notice(f"{shown} is up to date")
        return
    except (StoreNotMigrated, StoreUnavailable):  # a SQLite file that is not there yet is unavailable until made
        if dry_run:
            raise
    with busy(f"migrating {shown}"):
        run(_open_once(hf, migrate=True))
    notice(f"{shown} was brought up to date")


async def _open_once(hf: Holdfast, *, migrate: bool) -> None:
    async with opened(hf, migrate=migrate):
        pass


@click.command()
@place_options
@output_option
def verify(place: Place, output: Output) -> None:
    """Check every history's hash chain; names the first bad row of each instance that has one. Exit 1 if any has."""

    async def check(hf: Holdfast) -> Verdict:
        with bar("verifying") as update:
            return await hf.verify(progress=update)

    verdict = place.ask(check)
    if output == "json":
        show_one(verdict, output)
    elif verdict.faults:
        show_rows(verdict.faults, ("tenant_id", "instance_id", "seq", "fault"), output, empty="")
    found = f"{len(verdict.faults)} tampered with" if verdict.faults else "every chain is whole"
    notice(f"{verdict.instances:,} instances, {verdict.rows:,} history rows: {found}")
    if verdict.faults:
        raise click.exceptions.Exit(FAILED)
