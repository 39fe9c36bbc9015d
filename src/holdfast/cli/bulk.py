"""Bulk actions: count first, then do one thing to every instance that matches, and see how far it has come."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from uuid_utils import uuid7

from holdfast import Holdfast
from holdfast.app import bulk as actions
from holdfast.cli.app import Place, place_options, tenant_option
from holdfast.cli.finding import Matching, matching_options
from holdfast.cli.output import (
    Output,
    actor_option,
    confirm,
    hint,
    notice,
    output_option,
    read_json,
    show_one,
    show_rows,
    yes_option,
)
from holdfast.cli.refusals import CONFLICT, FAILED
from holdfast.engine import ids
from holdfast.engine.events import OUR_EVENTS


@click.group()
def bulk() -> None:
    """Do one thing to every instance that matches."""


@bulk.command("start")
@click.argument("action", type=click.Choice(actions.ACTIONS))
@matching_options
@click.option("--all", "everything", is_flag=True, help="Every instance of the tenant, instead of a filter.")
@click.option("--signal", "signal_", metavar="NAME", help="With the action signal: its name.")
@click.option("--payload", metavar="JSON|@FILE|-", help="With the action signal: what it carries.")
@click.option("--expected", type=click.IntRange(0), help="Refuse unless exactly so many match.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--reason", required=True, help="Kept in the history of each.")
@actor_option
@yes_option
@place_options
@tenant_option
@output_option
def start(
    action: str, wanted: Matching, everything: bool, signal_: str | None, payload: str | None, expected: int | None,
    dry_run: bool, reason: str, actor: str, yes: bool, place: Place, tenant: str, output: Output,
) -> None:  # fmt: skip
    """Record that ACTION is to be done to every instance that matches; a worker carries it out, also after a restart.

    A retry of one that ended goes on as a new instance; one that would make an effect once more is left alone, and is
    among the failures."""
    if wanted.is_everything != everything:
        raise click.UsageError("say which: --workflow, --status, --business-key, --older-than, --newer-than, or --all")
    if (action == "signal") != (signal_ is not None) or (payload is not None and signal_ is None):
        raise click.UsageError("the action signal needs --signal NAME, and no other takes --signal or --payload")
    if signal_ is not None and signal_.startswith(OUR_EVENTS):
        raise click.UsageError(f"--signal: names that begin with {', '.join(OUR_EVENTS)} are the engine's own")
    given = read_json(payload, "--payload")
    raw = uuid7().bytes

    def order(hf: Holdfast) -> actions.Order:
        now = hf.service.store.now()
        return actions.Order(
            bulk_id=ids.shown("blk", raw), tenant_id=tenant, action=action, actor=actor, reason=reason, signal=signal_,
            payload=given, until=now if wanted.until is None else min(now, wanted.until), since=wanted.since,
            statuses=wanted.statuses, key=wanted.key, business_key=wanted.business_key,
        )  # fmt: skip

    matched = place.ask(lambda hf: actions.count(hf.service, order(hf)))
    if dry_run:
        if output == "table":
            notice(f"{matched:,} match; nothing was done")
        else:
            show_one({"id": None, "action": action, "status": "dry_run", "matched": matched}, output)
        return
    if expected is not None and expected != matched:
        notice(f"Error: {matched:,} match now, not {expected:,}: look again, then decide")
        raise click.exceptions.Exit(CONFLICT)
    confirm(f"{action.capitalize()} {matched:,} instances of tenant {tenant!r}?", yes)

    async def begin(hf: Holdfast) -> actions.BulkView:
        """Counted again: what was asked about and what is recorded must not differ."""
        wanted_now = order(hf)
        found = await actions.count(hf.service, wanted_now)
        if found != matched and not yes:
            notice(f"{found:,} match by now")
        return await actions.begin(hf.service, msgspec.structs.replace(wanted_now, matched=found), raw)

    _show(place.ask(begin), output)
    hint(f"how far it is: holdfast bulk show {ids.shown('blk', raw)}")


@bulk.command()
@click.argument("bulk_id", metavar="BULK")
@place_options
@tenant_option
@output_option
def show(bulk_id: str, place: Place, tenant: str, output: Output) -> None:
    """How far BULK is, and who could not be told, and why. Exit code 1 if somebody could not."""
    raw = ids.parse("blk", bulk_id)

    async def look(hf: Holdfast) -> tuple[actions.BulkView, list[dict[str, Any]]]:
        view = await actions.read(hf.service, tenant, raw)
        failures: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None and len(failures) < 1000:
            some, after = await actions.failures(hf.service, tenant, raw, after=after)
            failures += [{"instance_id": word, "detail": why} for word, why in some]
        return view, failures

    view, failures = place.ask(look)
    if output == "table":
        _show(view, output)
        if failures:
            show_rows(failures, ("instance_id", "detail"), output, empty="")
    else:
        show_one({**_fields(view), "failures": failures}, output)
    if view.failed:
        raise click.exceptions.Exit(FAILED)


def _fields(view: actions.BulkView) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(view).items() if name != "moved"}


def _show(view: actions.BulkView, output: Output) -> None:
    show_one(_fields(view), output)
