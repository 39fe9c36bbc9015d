"""Commands about instances: start one, send it a fact, read how it stands and what it has been through."""

from __future__ import annotations

import getpass
from typing import Any

import click

from holdfast import Handle, Holdfast, InstanceFailed, ResultNotReady
from holdfast.cli.app import Place, opened, place_options, run, tenant_option
from holdfast.cli.output import (
    Output,
    busy,
    confirm,
    hint,
    notice,
    output_option,
    plain,
    read_json,
    show_one,
    show_rows,
    yes_option,
)
from holdfast.cli.refusals import FAILED

STATUSES = ("pending", "running", "waiting", "compensating", "completed", "failed", "cancelled")


@click.command()
@click.argument("workflow")
@click.option("--input", "input_", metavar="JSON|@FILE|-", help="The workflow's input.")
@click.option("--business-key", help="Your own name for it: the same key again gives the same instance.")
@click.option("--version", type=int, help="A version other than the newest.")
@click.option("--wait", "wait_seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait for the result.")
@place_options
@tenant_option
@output_option
def start(
    workflow: str, input_: str | None, business_key: str | None, version: int | None, wait_seconds: float | None,
    place: Place, tenant: str, output: Output,
) -> None:  # fmt: skip
    """Start an instance of WORKFLOW; prints its id, or with --wait its result."""
    given = read_json(input_, "--input")
    _, hf = place.load()

    async def whole() -> tuple[dict[str, Any], str | None]:
        async with opened(hf, migrate=_is_embedded(hf)):
            handle = await hf.start(workflow, given, tenant=tenant, business_key=business_key, version=version)
            if wait_seconds is not None:
                return await _wait(handle, wait_seconds)
            return {"id": handle.id, "tenant_id": handle.tenant_id, "workflow": workflow}, None

    record, trouble = run(whole())
    if output != "table":
        show_one(record, output)
    elif wait_seconds is None or trouble is not None:
        click.echo(record["id"])
        hint(f"see how it stands: holdfast instances show {record['id']}")
    else:
        show_one({"id": record["id"], "status": record["status"], "result": record["result"]}, output)
    if trouble is not None:
        notice(f"Error: {trouble}")
        raise click.exceptions.Exit(FAILED)


def _is_embedded(hf: Holdfast) -> bool:
    """An embedded database belongs to whoever opens it, so a start may make it; a server's is migrated on purpose."""
    return hf.url.startswith("sqlite:")


async def _wait(handle: Handle, seconds: float) -> tuple[dict[str, Any], str | None]:
    trouble = None
    with busy(f"waiting for {handle.id}"):
        try:
            await handle.result(timeout=seconds)
        except (InstanceFailed, ResultNotReady) as error:
            trouble = str(error)
        return plain(await handle.status()), trouble


@click.command()
@click.argument("instance")
@click.argument("name")
@click.option("--payload", metavar="JSON|@FILE|-", help="What the signal carries.")
@click.option("--id", "id_", help="Names the signal: the same id twice is one signal.")
@place_options
@tenant_option
@output_option
def signal(
    instance: str, name: str, payload: str | None, id_: str | None, place: Place, tenant: str, output: Output
) -> None:
    """Send INSTANCE the signal NAME."""
    given = read_json(payload, "--payload")
    new = place.ask(lambda hf: hf.instance(instance, tenant=tenant).signal(name, given, id=id_))
    if output == "table":
        notice(f"sent {name!r} to {instance}" if new else f"{name!r} with id {id_!r} was there already")
    else:
        show_one({"instance_id": instance, "name": name, "id": id_, "new": new}, output)


@click.command()
@click.argument("instance")
@click.option("--reason", required=True, help="Kept in the history.")
@click.option("--actor", default=getpass.getuser, show_default="the current user")
@yes_option
@place_options
@tenant_option
def cancel(instance: str, reason: str, actor: str, yes: bool, place: Place, tenant: str) -> None:
    """Ask INSTANCE to end: what is under way is settled, then what was done is undone."""
    confirm(f"Cancel {instance}?", yes)
    place.ask(lambda hf: hf.instance(instance, tenant=tenant).cancel(reason, actor=actor))
    notice(f"{instance} was asked to end; its worker settles and undoes what it has begun")


@click.command()
@click.argument("instance")
@click.option("--reason", default="", help="Kept in the history.")
@click.option("--actor", default=getpass.getuser, show_default="the current user")
@place_options
@tenant_option
def resume(instance: str, reason: str, actor: str, place: Place, tenant: str) -> None:
    """Have a parked INSTANCE looked at again, after its code was mended."""
    place.ask(lambda hf: hf.instance(instance, tenant=tenant).resume(reason, actor=actor))
    notice(f"{instance} will be looked at again")


@click.group()
def instances() -> None:
    """Read instances and their history."""


@instances.command("list")
@click.option("--status", type=click.Choice(STATUSES))
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", metavar="INSTANCE", help="The last id of the page before.")
@place_options
@tenant_option
@output_option
def list_(status: str | None, limit: int, before: str | None, place: Place, tenant: str, output: Output) -> None:
    """A page of instances, newest first."""
    found = place.ask(lambda hf: hf.instances(tenant=tenant, status=status, limit=limit, before=before))
    columns = ("id", "workflow", "version", "business_key", "status", "created_at", "waiting_on")
    show_rows(found, columns, output, empty=f"no instances in tenant {tenant!r}")
    if len(found) == limit:
        hint(f"the next page: --before {found[-1].id}")


@instances.command()
@click.argument("instance")
@place_options
@tenant_option
@output_option
def show(instance: str, place: Place, tenant: str, output: Output) -> None:
    """How INSTANCE stands, with the results of its steps."""
    show_one(place.ask(lambda hf: hf.instance(instance, tenant=tenant).status()), output)


@instances.command()
@click.argument("instance")
@click.option("--after", type=int, default=0, help="Only entries after this sequence number.")
@place_options
@tenant_option
@output_option
def history(instance: str, after: int, place: Place, tenant: str, output: Output) -> None:
    """Everything that happened to INSTANCE."""
    found = place.ask(lambda hf: hf.instance(instance, tenant=tenant).history(after=after))
    show_rows(found, ("seq", "at", "type", "name", "payload"), output, empty="nothing has happened yet")
