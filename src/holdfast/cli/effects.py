"""The effect desk: which effects nobody knows the outcome of, what is known about one, and a person's word on it."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.app import Place, place_options, tenant_option
from holdfast.cli.output import (
    Output,
    confirm,
    hint,
    notice,
    output_option,
    read_json,
    show_one,
    show_rows,
    yes_option,
)

STATES = ("started", "succeeded", "failed", "outcome_unknown", "resolved")
RESOLUTIONS = ("happened", "did-not-happen", "abort")
CONSEQUENCES = {
    "happened": "the workflow goes on with the result you give",
    "did-not-happen": "it is started again with the same key",
    "abort": "the workflow fails there and undoes what it has done",
}


@click.group()
def effects() -> None:
    """The effect desk: effects whose outcome is unknown."""


@effects.command("list")
@click.option("--state", type=click.Choice(STATES), default="outcome_unknown", show_default=True)
@click.option("--all", "every", is_flag=True, help="Effects in any state.")
@click.option("--instance", help="Only those of one instance.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@place_options
@tenant_option
@output_option
def list_(state: str, every: bool, instance: str | None, limit: int, place: Place, tenant: str, output: Output) -> None:
    """Effects, by default those that wait for a person."""
    wanted = None if every else state
    found = place.ask(lambda hf: hf.tenant(tenant).effects.list(state=wanted, instance=instance, limit=limit))
    columns = ("id", "instance_id", "step", "mode", "state", "attempt", "started_at", "reason")
    described = "" if every else f" {state}"
    show_rows(found, columns, output, empty=f"no effects{described} in tenant {tenant!r}")
    if found and wanted == "outcome_unknown":
        hint("what is known about one: holdfast effects show EFFECT; settle it: holdfast effects resolve EFFECT …")


@effects.command()
@click.argument("effect")
@place_options
@tenant_option
@output_option
def show(effect: str, place: Place, tenant: str, output: Output) -> None:
    """What was asked for, under which key, and what is known of it."""
    show_one(place.ask(lambda hf: hf.tenant(tenant).effects.show(effect)), output)


@effects.command()
@click.argument("effect")
@click.argument("resolution", type=click.Choice(RESOLUTIONS))
@click.option("--actor", required=True, help="Who decides. Kept in the history.")
@click.option("--reason", required=True, help="Why. Kept in the history.")
@click.option("--result", metavar="JSON|@FILE|-", help="With happened: what the provider answered.")
@click.option("--accept-double", is_flag=True, help="Start it again though the first call may still act.")
@click.option("--second-person", help="Who else confirms that it may be started again.")
@yes_option
@place_options
@tenant_option
@output_option
def resolve(
    effect: str, resolution: str, actor: str, reason: str, result: str | None, accept_double: bool,
    second_person: str | None, yes: bool, place: Place, tenant: str, output: Output,
) -> None:  # fmt: skip
    """Say what became of EFFECT.

    \b
    happened          the workflow goes on with --result
    did-not-happen    it is started again with the same key
    abort             the workflow fails there and undoes what it has done
    """
    if result is not None and resolution != "happened":
        raise click.UsageError("--result goes with 'happened' only")
    then = "the workflow goes on without a result" if resolution == "happened" and not result else None
    then = then or CONSEQUENCES[resolution]
    confirm(f"Record that {effect} {resolution.replace('-', ' ')}: {then}?", yes)
    words: dict[str, Any] = {"actor": actor, "reason": reason, "result": read_json(result, "--result")}
    words |= {"accept_double": accept_double, "second_person": second_person}
    choice = resolution.replace("-", "_")
    place.ask(lambda hf: hf.tenant(tenant).effects.resolve(effect, choice, **words))
    if output == "table":
        notice(f"recorded: {effect} {resolution.replace('-', ' ')}; {then}")
    else:
        show_one({"effect_id": effect, "resolution": choice, "actor": actor}, output)
