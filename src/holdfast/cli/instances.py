"""Commands about instances: start one, send it a fact, read how it stands and what it has been through."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from holdfast import (
    EventNotTakenYet,
    Handle,
    Holdfast,
    HoldfastError,
    InstanceFailed,
    InstanceNotFound,
    InstanceView,
    MigrationView,
    ResultNotReady,
    StoreUnavailable,
    WorkflowNotRegistered,
)
from holdfast.app import control, history_file, rehearsal
from holdfast.cli import finding
from holdfast.cli.app import SETTLED, Place, opened, place_options, run, tenant_option
from holdfast.cli.finding import MOMENT, Matching, matching_options
from holdfast.cli.output import (
    WHOLE_MAX,
    Output,
    actor_option,
    busy,
    confirm,
    error_line,
    hint,
    listed,
    notice,
    output_option,
    plain,
    read_json,
    read_object,
    show_one,
    show_rows,
    yes_option,
)
from holdfast.cli.refusals import FAILED
from holdfast.engine import ids

CAN_GO_ON = ("failed", "cancelled")
F = TypeVar("F", bound=Callable[..., Any])


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
    hf = place.load()[1] if place.app else place.holdfast()  # a published chart needs no app
    if not place.app and _is_embedded(hf) and not Path(hf.url.removeprefix("sqlite:///")).exists():
        raise _not_here(workflow)  # and no file is left in what is the wrong folder, as a rule

    async def whole() -> tuple[dict[str, Any], str | None]:
        async with opened(hf, migrate=_is_embedded(hf)):
            there = (await hf.instances(tenant=tenant, business_key=business_key)) if business_key else []
            try:
                handle = await hf.start(workflow, given, tenant=tenant, business_key=business_key, version=version)
            except WorkflowNotRegistered:
                if place.app:
                    raise
                raise _not_here(workflow) from None
            for one in (view for view in there if view.id == handle.id):
                notice(f"business key {business_key!r} is of {one.id}, which is {one.status}: nothing was started")
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


async def _if_there(handle: Handle) -> InstanceView | None:
    try:
        return await handle.status()
    except InstanceNotFound:
        return None


def _not_here(workflow: str) -> click.UsageError:
    return click.UsageError(
        f"no chart {workflow!r} is published here; a code workflow needs its app: --app module:object, "
        f"HOLDFAST_APP, or {SETTLED}"
    )


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
@actor_option
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
@actor_option
@click.option(
    "--drop-event",
    is_flag=True,
    help="Of a chart: put the event aside that it could not work off, or wait for no more children.",
)
@place_options
@tenant_option
def resume(instance: str, reason: str, actor: str, drop_event: bool, place: Place, tenant: str) -> None:
    """Lift the pause of INSTANCE; or have a parked one looked at again, after what stopped it was mended."""
    place.ask(lambda hf: hf.instance(instance, tenant=tenant).resume(reason, actor=actor, drop_event=drop_event))
    notice(f"{instance} will be looked at again")


@click.group()
def instances() -> None:
    """Read instances and their history, and have them go on."""


@instances.command("list")
@matching_options
@click.option("--parked", is_flag=True, help="Only those that stand still until their code or chart is mended.")
@click.option(
    "--since", type=MOMENT, metavar="MOMENT|SPAN", help="Only those that ended since: --status failed --since 1d"
)
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--before", metavar="INSTANCE", help="The last id of the page before.")
@place_options
@tenant_option
@output_option
def list_(
    wanted: Matching, parked: bool, since: int | None, limit: int, before: str | None, place: Place, tenant: str,
    output: Output,
) -> None:  # fmt: skip
    """A page of instances, newest first."""
    page = place.ask(
        lambda hf: finding.page(hf, tenant, wanted, parked=parked, ended=since, limit=limit, before=before)
    )
    columns = ("id", "workflow", "version", "business_key", "status", "created_at", "waiting_on")
    show_rows(page.found, columns, output, empty=f"no such instances in tenant {tenant!r}")
    if page.more is not None:
        hint(f"the next page: --before {page.more}")


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
@place_options
@tenant_option
@output_option
def why(instance: str, place: Place, tenant: str, output: Output) -> None:
    """One sentence: why INSTANCE is not moving, and what would move it."""
    said = place.ask(lambda hf: hf.instance(instance, tenant=tenant).why())
    if output == "table":
        click.echo(said)
    else:
        show_one({"instance_id": instance, "why": said}, output)


@instances.command()
@click.argument("instance")
@click.option("--reason", default="", help="Kept in the history.")
@actor_option
@place_options
@tenant_option
def pause(instance: str, reason: str, actor: str, place: Place, tenant: str) -> None:
    """Have INSTANCE stand still: what is under way is settled, nothing new begins until `holdfast resume`."""
    place.ask(lambda hf: hf.instance(instance, tenant=tenant).pause(reason, actor=actor))
    notice(f"{instance} was asked to stand still; what it has begun is settled first")
    hint(f"let it go on: holdfast resume {instance}")


def again_options(function: F) -> F:
    """Adds --make-again and --yes to what may make an effect once more."""
    words = "An effect that happened, or may have, and is to be made once more. Repeatable."
    return click.option("--make-again", metavar="EFFECT", multiple=True, help=words)(yes_option(function))


def decide(place: Place, tenant: str, instance: str, step: str | None, again: tuple[str, ...], yes: bool) -> None:
    """Say which effects a fork would make once more, and want a named person's word for each of them."""
    raw = ids.parse("ins", instance)
    point = place.ask(lambda hf: control.plan_fork(hf.service, tenant, raw, step))
    if strange := [name for name in again if name not in point.again]:
        raise click.UsageError(
            f"--make-again {strange[0]}: no such effect would be made once more (expected {listed(point.again)})"
        )
    if not point.again:
        confirm(f"Start a new instance from {point.step or 'where it ended'} of {instance}?", yes)
        return
    notice("Made once more, under new keys, though they happened or may have:")
    for name in point.again:
        notice(f"  {name}")
    source = click.get_current_context().get_parameter_source("actor")
    if source not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
        raise click.UsageError("an effect would be made once more: say who decides so with --actor NAME")
    if not yes and sys.stdin.isatty():
        click.confirm(f"Make {'it' if len(point.again) == 1 else 'them'} once more?", abort=True, err=True)
    elif missing := [name for name in point.again if name not in again]:
        flags = " ".join(f"--make-again {shlex.quote(name)}" for name in missing)
        raise click.UsageError(f"an effect would be made once more: if that is meant, say so with --yes {flags}")
    elif not yes:
        raise click.UsageError("an effect would be made once more: if that is meant, add --yes")


@instances.command()
@click.argument("instance")
@click.option("--reason", default="", help="Kept in the history.")
@actor_option
@again_options
@place_options
@tenant_option
@output_option
def retry(
    instance: str, reason: str, actor: str, make_again: tuple[str, ...], yes: bool, place: Place, tenant: str,
    output: Output,
) -> None:  # fmt: skip
    """Have INSTANCE try again now; one that failed or was cancelled goes on as a new instance.

    What waits for its next attempt begins it at once; never an effect of unknown outcome. The new instance begins with
    the step that failed, and its id is printed. Where it would make an effect once more, that is listed first, and
    wants --actor and a yes; off a terminal --yes and --make-again for each."""
    raw = ids.parse("ins", instance)
    ended = place.ask(lambda hf: hf.instance(instance, tenant=tenant).status()).status in CAN_GO_ON
    if ended:
        decide(place, tenant, instance, None, make_again, yes)

    async def ask(hf: Holdfast) -> tuple[Handle, InstanceView | None]:
        again = hf.instance(ids.instance_word(control.retry_id(tenant, raw)), tenant=tenant)
        before = await _if_there(again) if ended else None
        # One that ends only now was not decided on: it makes no effect once more.
        new = await control.retry(hf.service, tenant, raw, reason=reason, actor=actor, again=ended)
        return hf.instance(ids.instance_word(new), tenant=tenant), before

    handle, before = place.ask(ask)
    if before is not None:
        notice(f"{instance} was tried again before, as {handle.id}, which is {before.status}: nothing was started")
        if before.status in CAN_GO_ON:
            notice(f"to go on from that one: holdfast instances retry {handle.id}")
    if output == "table" and handle.id == instance:
        notice(f"{instance} was asked to try again at once")
    else:
        _show_new(handle, instance, output)


@instances.command()
@click.argument("instance")
@click.argument("step", required=False)
@click.option("--reason", default="", help="Kept in the history.")
@actor_option
@click.option("--business-key", help="Your own name for the new instance.")
@click.option("--id", "id_", help="Names the fork: the same id again gives the same instance.")
@again_options
@place_options
@tenant_option
@output_option
def fork(
    instance: str, step: str | None, reason: str, actor: str, business_key: str | None, id_: str | None,
    make_again: tuple[str, ...], yes: bool, place: Place, tenant: str, output: Output,
) -> None:  # fmt: skip
    """Start a new instance that goes on from before STEP of INSTANCE, which has ended; prints its id.

    What was done before STEP is taken over and not done again. Everything from STEP on runs afresh, effects under new
    keys: those that happened, or may have, are listed first, and want --actor and a yes; off a terminal --yes and
    --make-again for each. Without STEP: from the step that failed, else from where it ended."""
    decide(place, tenant, instance, step, make_again, yes)
    handle = place.ask(
        lambda hf: hf.instance(instance, tenant=tenant).fork(
            step, reason=reason, actor=actor, business_key=business_key, id=id_
        )
    )
    _show_new(handle, instance, output)


def _show_new(handle: Handle, original: str, output: Output) -> None:
    if output == "table":
        click.echo(handle.id)
        hint(f"see how it stands: holdfast instances show {handle.id}")
    else:
        show_one({"id": handle.id, "tenant_id": handle.tenant_id, "instance_id": original}, output)


@instances.command()
@click.argument("instance")
@click.argument("event")
@click.option("--payload", metavar="JSON|@FILE|-", help="What the event carries.")
@click.option("--id", "id_", help="Names the event: the same id twice is one event.")
@click.option("--strict", is_flag=True, help="Wait for its turn; fail with exit code 4 if no state takes it.")
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=10.0, show_default=True, help="With --strict, seconds."
)
@place_options
@tenant_option
@output_option
def send(
    instance: str, event: str, payload: str | None, id_: str | None, strict: bool, timeout: float, place: Place,
    tenant: str, output: Output,
) -> None:  # fmt: skip
    """Send INSTANCE the event EVENT."""
    given = read_json(payload, "--payload")
    new = place.ask(lambda hf: hf.tenant(tenant).send(instance, event, given, id=id_, strict=strict, timeout=timeout))
    if output == "table":
        notice(f"sent {event!r} to {instance}" if new else f"{event!r} with id {id_!r} was there already")
    else:
        show_one({"instance_id": instance, "event": event, "id": id_, "new": new}, output)


@instances.command()
@click.argument("instance", nargs=-1)
@click.option("--to", "version", type=int, required=True, help="The version to move to.")
@click.option("--key", help="Every living instance of this chart, instead of those named.")
@click.option("--from", "old", type=int, help="With --key: only those of this version.")
@click.option("--states", metavar="JSON|@FILE|-", help='Old states to new ones: {"review": "check.first"}.')
@click.option("--context", metavar="JSON|@FILE|-", help="Context fields to set.")
@click.option("--stop", metavar="INVOKE", multiple=True, help="A running invoke to stop. Repeatable.")
@click.option("--start", metavar="INVOKE", multiple=True, help="An invoke of the new states to start. Repeatable.")
@click.option("--enter", metavar="STATE", multiple=True, help="A state of a new region to stand in. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
@click.option("--reason", default="", help="Kept in the history.")
@actor_option
@click.option(
    "--timeout", type=click.FloatRange(min=0), default=10.0, show_default=True, help="Seconds to wait for each."
)
@yes_option
@place_options
@tenant_option
@output_option
def migrate(
    instance: tuple[str, ...], version: int, key: str | None, old: int | None, states: str | None,
    context: str | None, stop: tuple[str, ...], start: tuple[str, ...], enter: tuple[str, ...], dry_run: bool,
    reason: str, actor: str, timeout: float, yes: bool, place: Place, tenant: str, output: Output,
) -> None:  # fmt: skip
    """Move living instances of a chart to another version, each in a turn of its own.

    Each has its row. One that cannot be moved stays as it is, with the reasons; one that no worker came to in time may
    still be moved when its turn comes. Exit code 1 if there is either. Try --dry-run first."""
    if bool(instance) == bool(key):
        raise click.UsageError("name instances, or all of a chart with --key")
    if old is not None and not key:
        raise click.UsageError("--from goes with --key: instances that are named are moved whatever their version")
    given = _state_map(states)
    words: dict[str, Any] = {
        "context": read_object(context, "--context"), "stop": stop, "start": start, "enter": enter, "actor": actor,
        "reason": reason, "dry_run": dry_run, "timeout": timeout,
    }  # fmt: skip
    if not dry_run:
        what = f"every living instance of {key}" if key else f"{len(instance)} instance(s)"
        confirm(f"Move {what} to version {version}?", yes)
    found: list[MigrationView] = []

    async def whole(hf: Holdfast) -> None:
        bound = hf.tenant(tenant)
        named = list(instance) or [
            one.id async for one in _living(bound, key or "") if old is None or one.version == old
            if one.version != version
        ]  # fmt: skip
        # One that was read in two states is moved once; an id that is none is found before anything is moved.
        handles = [bound.instance(one) for one in dict.fromkeys(named)]
        with busy(f"moving {len(handles)} instances"):
            for handle in handles:
                found.append(await _moved(handle, version, given, words))

    try:
        place.ask(whole)
    except BaseException:  # the database went away, or Ctrl-C: what was moved before is moved, so say it
        if found:
            _show_moved(found, output)
        raise
    _show_moved(found, output)
    if any(one.outcome not in ("migrated", "possible") for one in found):
        raise click.exceptions.Exit(FAILED)


async def _moved(handle: Handle, version: int, states: dict[str, str], words: dict[str, Any]) -> MigrationView:
    """What became of one; a refusal of it is its row's, not the others'."""
    try:
        return await handle.migrate(version, states, **words)
    except StoreUnavailable:
        raise  # nobody's row: the others could not be moved either
    except EventNotTakenYet:
        # Its own words say to ask again with the same id, and here nobody was given one.
        why = (
            f"no worker came to it in {words['timeout']:g} s: the request stands, its history will say what came of it"
        )
        return MigrationView(instance_id=handle.id, outcome="not_taken_yet", problems=[why])
    except HoldfastError as refused:
        return MigrationView(instance_id=handle.id, outcome="refused", problems=[str(refused)])


def _show_moved(found: list[MigrationView], output: Output) -> None:
    rows: list[Any] = list(found)
    if output == "table":  # every problem whole, on a line of its own; of the summary only where it stands now
        rows = [
            {"instance_id": one.instance_id, "outcome": one.outcome, "problems": "\n".join(one.problems),
             "states": ", ".join(f"{was} → {is_}" for was, is_ in one.summary.get("states", {}).items())}
            for one in found
        ]  # fmt: skip
    columns = ("instance_id", "outcome", "states", "problems")
    show_rows(rows, columns, output, empty="no instance to move", cell_max=WHOLE_MAX)


def _state_map(text: str | None) -> dict[str, str]:
    given = read_object(text, "--states")
    if not all(isinstance(word, str) for word in given.values()):
        raise click.UsageError('--states leads from state to state: expected {"review": "check.first"}')
    return given


async def _living(tenant: Any, key: str) -> AsyncIterator[Any]:
    for status in ("pending", "running", "waiting", "compensating"):
        before = None
        while True:
            page = await tenant.instances(status=status, limit=500, before=before)
            for one in page:
                if one.workflow == key:
                    yield one
            if len(page) < 500:
                break
            before = page[-1].id


@instances.command()
@click.argument("instance")
@click.option("--after", type=int, default=0, help="Only entries after this sequence number.")
@place_options
@tenant_option
@output_option
def history(instance: str, after: int, place: Place, tenant: str, output: Output) -> None:
    """Everything that happened to INSTANCE.

    With -o jsonl the first row also holds what a replay needs beside the rows: save it, and
    `holdfast.testing.replay(FILE)` says what your code makes of it."""
    if output == "jsonl":
        raw = ids.parse("ins", instance)
        stored = place.ask(lambda hf: rehearsal.read(hf.service, tenant, raw, whole=True))
        for line in history_file.lines_of(stored, after=after):
            click.echo(line)
        return
    found = place.ask(lambda hf: hf.instance(instance, tenant=tenant).history(after=after))
    if output == "table":
        found = [msgspec.structs.replace(entry, payload=error_line(entry.payload)) for entry in found]
    show_rows(found, ("seq", "at", "type", "name", "payload"), output, empty="nothing has happened yet")
