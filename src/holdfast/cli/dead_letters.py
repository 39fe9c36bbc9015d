"""Dead letters: work out of attempts. An operator replays it as a new instance, or says that nothing is to be done."""

from __future__ import annotations

import sys

import click

from holdfast.app import dead_letters as letters
from holdfast.app.audit import By
from holdfast.cli.app import Place, place_options, tenant_option
from holdfast.cli.instances import again_options, decide
from holdfast.cli.output import (
    Output,
    actor_option,
    confirm,
    hint,
    notice,
    output_option,
    show_one,
    show_rows,
    yes_option,
)

COLUMNS = ("id", "source", "instance_id", "workflow", "created_at", "resolution", "reason")


@click.group("dead-letters")
def dead_letters() -> None:
    """Work that was given up, until somebody deals with it."""


@dead_letters.command("list")
@click.option("--all", "every", is_flag=True, help="Also those that somebody has dealt with.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@place_options
@tenant_option
@output_option
def list_(every: bool, limit: int, place: Place, tenant: str, output: Output) -> None:
    """Dead letters, newest first; by default the open ones."""
    found = place.ask(lambda hf: letters.list_dead_letters(hf.service, tenant, limit, open_only=not every))
    show_rows(found, COLUMNS, output, empty=f"no {'' if every else 'open '}dead letters in tenant {tenant!r}")
    if found and sys.stderr.isatty():
        hint("go on as a new instance: holdfast dead-letters replay LETTER; nothing to be done: … ignore LETTER")


@dead_letters.command()
@click.argument("letter")
@place_options
@tenant_option
@output_option
def show(letter: str, place: Place, tenant: str, output: Output) -> None:
    """What LETTER was about, why it was given up, and who has dealt with it."""
    show_one(place.ask(lambda hf: letters.read(hf.service, tenant, letter)), output)


@dead_letters.command()
@click.argument("letter")
@click.option("--reason", required=True, help="Kept on record.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@actor_option
@again_options
@place_options
@tenant_option
@output_option
def replay(
    letter: str, reason: str, dry_run: bool, actor: str, make_again: tuple[str, ...], yes: bool, place: Place,
    tenant: str, output: Output,
) -> None:  # fmt: skip
    """Have the instance of LETTER go on as a new one, from the step that failed; prints its id.

    As by `holdfast instances retry`: where it would make an effect once more, that is listed first, and wants --actor
    and a yes; off a terminal --yes and --make-again for each."""
    view = place.ask(lambda hf: letters.read(hf.service, tenant, letter))
    if dry_run:
        notice(f"{letters.what_replay_does(view)}; nothing was done")
        return
    instance = letters.replayable(view)
    decide(place, tenant, instance, None, make_again, yes)
    new = place.ask(lambda hf: letters.replay(hf.service, tenant, letter, by=By(actor), reason=reason))
    if output == "table":
        click.echo(new)
        hint(f"see how it stands: holdfast instances show {new}")
    else:
        show_one({"id": letter, "resolution": "replayed", "instance_id": new}, output)


@dead_letters.command()
@click.argument("letter")
@click.option("--reason", required=True, help="Kept on record.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@actor_option
@yes_option
@place_options
@tenant_option
@output_option
def ignore(
    letter: str, reason: str, dry_run: bool, actor: str, yes: bool, place: Place, tenant: str, output: Output
) -> None:
    """Say that nothing is to be done about LETTER."""
    view = place.ask(lambda hf: letters.read(hf.service, tenant, letter))
    letters.check_open(view)
    if dry_run:
        notice(f"{letter} ({view.reason}) would be marked as ignored; nothing was done")
        return
    confirm(f"Ignore {letter} ({view.reason})?", yes)
    show_one(place.ask(lambda hf: letters.ignore(hf.service, tenant, letter, by=By(actor), reason=reason)), output)
