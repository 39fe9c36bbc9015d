"""A restored database is held back until a person has looked: how it stands, and that person's word."""

from __future__ import annotations

import click

from holdfast import Holdfast
from holdfast.app import quarantine as app
from holdfast.cli.app import Place, place_options
from holdfast.cli.output import Output, actor_option, confirm, hint, notice, output_option, show_one, yes_option


@click.group()
def quarantine() -> None:
    """Hold a restored database back: its workers claim nothing until a person lifts it."""


@quarantine.command()
@place_options
@output_option
def show(place: Place, output: Output) -> None:
    """Whether the database is held back, why, and how much is due."""
    view = place.ask(lambda hf: app.show(hf.service))
    show_one(view, output)
    if view.quarantined:
        hint("after you have looked: holdfast quarantine lift --reason …")


@quarantine.command()
@click.option("--reason", required=True, help="Why. Kept on record.")
@actor_option
@place_options
@output_option
def enter(reason: str, actor: str, place: Place, output: Output) -> None:
    """Hold the database back. Do so after a point-in-time recovery, before workers start: it cannot be noticed."""

    async def hold(hf: Holdfast) -> tuple[bool, app.QuarantineView]:
        return await app.enter(hf.service, reason=reason, actor=actor), await app.show(hf.service)

    done, view = place.ask(hold)
    words = "in quarantine: workers claim nothing from now on; what they hold runs on until it waits"
    _tell(view, words if done else "in quarantine already; the first reason stays", output)


@quarantine.command()
@click.option("--reason", required=True, help="What you have looked at. Kept on record.")
@actor_option
@yes_option
@place_options
@output_option
def lift(reason: str, actor: str, yes: bool, place: Place, output: Output) -> None:
    """This database is the one from now on: its workers go on with all that is due."""
    before = place.ask(lambda hf: app.show(hf.service))
    confirm(f"{before.due:,} instances are due and go on at once. Have you compared with the providers?", yes)

    async def free(hf: Holdfast) -> tuple[bool, app.QuarantineView]:
        return await app.lift(hf.service, reason=reason, actor=actor), await app.show(hf.service)

    done, view = place.ask(free)
    words = "lifted: workers go on within a second or two"
    _tell(view, words if done else "not in quarantine; nothing was changed", output)


def _tell(view: app.QuarantineView, words: str, output: Output) -> None:
    if output == "table":
        notice(words)
    else:
        show_one(view, output)
