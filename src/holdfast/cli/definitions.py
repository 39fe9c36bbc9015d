"""Definitions of charts: look at one before it is published, publish it, and see which versions there are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.app import Place, place_options, tenant_option
from holdfast.cli.output import (
    Output,
    actor_option,
    hint,
    notice,
    output_option,
    plain,
    read_json,
    show_one,
    show_rows,
)
from holdfast.cli.refusals import FAILED
from holdfast.engine.built_chart import chart_of
from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import chart_from, compile_chart
from holdfast.engine.charts.difference import difference
from holdfast.engine.charts.document import BadChart, Problem
from holdfast.engine.charts.lint import lint as find_smells
from holdfast.engine.charts.mermaid import mermaid
from holdfast.engine.charts.nodes import Chart
from holdfast.engine.charts.schema import CHART_SCHEMA
from holdfast.engine.charts.simulated_turns import SimulatedTurn
from holdfast.engine.charts.simulation import simulate as run_through
from holdfast.engine.charts.svg import svg


@click.group()
def definitions() -> None:
    """Charts: check, publish, draw, compare, try out."""


def _read(file: str) -> tuple[dict[str, Any], Chart]:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read {file}: {error}") from error
    document = doc.read(text)
    return document, compile_chart(document)


def _checked(file: str, output: Output) -> tuple[dict[str, Any], Chart]:
    """The chart, or every fault of it as the answer, and exit code 1."""
    try:
        return _read(file)
    except BadChart as refused:
        _problems(refused.problems, output)
        raise click.exceptions.Exit(FAILED) from None


def _problems(problems: list[Problem], output: Output) -> None:
    rows = [{"level": p.level, "path": p.path or "/", "message": p.message} for p in problems]
    if output == "table":
        for row in rows:
            click.echo(f"{row['level']}: {row['path']}: {row['message']}")
    else:
        show_rows(rows, ("level", "path", "message"), output, empty="nothing to say")


@definitions.command()
@click.argument("file")
@output_option
def validate(file: str, output: Output) -> None:
    """Check the chart in FILE (- for standard input): every fault with its path. Exit code 1 if there are any."""
    _, chart = _checked(file, output)
    record = {
        "id": chart.id, "states": len(chart.nodes), "expressions": chart.expressions, "tasks": len(chart.tasks),
        "handlers": sorted(chart.handlers()), "hash": chart.hash,
    }  # fmt: skip
    if output == "table":
        notice(f"{file} is sound: {record['states']} states, {record['expressions']} expressions")
    else:
        show_one(record, output)


@definitions.command()
@click.argument("file")
@output_option
def lint(file: str, output: Output) -> None:
    """Say what looks wrong in the chart in FILE though it is allowed. Exit code 1 if it cannot be published at all."""
    document, chart = _checked(file, output)
    found = find_smells(chart, document)
    _problems(found, output)
    if not found and output == "table":
        notice(f"{file}: nothing to say against it")


@definitions.command()
def schema() -> None:
    """Print the JSON Schema of the format, for editors."""
    click.echo(json.dumps(CHART_SCHEMA, indent=2))


@definitions.command()
@click.argument("file")
@click.option("--key", help="Another key than the chart's own id.")
@actor_option
@place_options
@tenant_option
@output_option
def publish(file: str, key: str | None, actor: str, place: Place, tenant: str, output: Output) -> None:
    """Publish the chart in FILE as the next version of its key. The same content again is no new version."""
    document, chart = _read(file)
    view = place.ask(lambda hf: hf.tenant(tenant).definitions.publish(document, key=key, actor=actor))
    if output == "table":
        notice(f"{view.key} version {view.version} is {view.status} ({view.hash[:12]}…)")
        for problem in find_smells(chart, document)[:5]:
            hint(str(problem))
    else:
        show_one(_without_spec(view), output)


def _without_spec(view: Any) -> dict[str, Any]:
    record: dict[str, Any] = plain(view)
    record.pop("spec", None)
    return record


@definitions.command("list")
@click.option("--key", help="Only versions of this key.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@place_options
@tenant_option
@output_option
def list_(key: str | None, limit: int, place: Place, tenant: str, output: Output) -> None:
    """Published definitions, the newest version of each key first."""
    found = place.ask(lambda hf: hf.tenant(tenant).definitions.list(key=key, limit=limit))
    columns = ("key", "version", "status", "hash", "created_at", "created_by", "handlers")
    show_rows([_without_spec(v) for v in found], columns, output, empty=f"nothing is published in tenant {tenant!r}")


@definitions.command()
@click.argument("key")
@click.option("--version", type=int, help="A version other than the newest.")
@place_options
@tenant_option
@output_option
def show(key: str, version: int | None, place: Place, tenant: str, output: Output) -> None:
    """One definition with its document."""
    view = place.ask(lambda hf: hf.tenant(tenant).definitions.show(key, version))
    if output == "table":
        click.echo(json.dumps(view.spec, indent=2))
    else:
        show_one(plain(view), output)


def _chart(place: Place, tenant: str, word: str) -> tuple[dict[str, Any], Chart]:
    """A file, or KEY or KEY@VERSION of what is published."""
    if word == "-" or (Path(word).exists() and not Path(word).is_dir()):
        return _read(word)
    key, _, version = word.partition("@")
    if version and not version.isdigit():
        raise click.UsageError(f"{word}: expected a file, KEY or KEY@VERSION")
    view = place.ask(lambda hf: hf.tenant(tenant).definitions.show(key, int(version) if version else None))
    return view.spec, chart_from(doc.written(view.spec), version=view.version)


def _built(place: Place, word: str) -> Chart | None:
    """The picture of a built workflow of the app. None: the word is none of the app's, or there is no app."""
    key, _, version = word.partition("@")
    if not place.app or Path(word).exists() or (version and not version.isdigit()):
        return None
    try:
        registry = place.load()[1].registry
    except click.UsageError:  # what is published can be drawn though the app is broken or elsewhere
        return None
    if not registry.has(key) or (version and not registry.knows(key, int(version))):
        return None
    found = registry.find(key, int(version) if version else None)
    if found.built is None:
        raise click.UsageError(
            f"workflow {key!r} is a function, whose steps are known only as it runs: charts and what is built are drawn"
        )
    return chart_of(found.built)


@definitions.command()
@click.argument("chart")
@click.option("--format", "kind", type=click.Choice(["mermaid", "svg"]), default="mermaid", show_default=True)
@click.option("--instance", help="Mark where this instance stands.")
@place_options
@tenant_option
def graph(chart: str, kind: str, instance: str | None, place: Place, tenant: str) -> None:
    """Draw CHART: a file, KEY or KEY@VERSION of what is published, or a built workflow of the app."""
    built = _built(place, chart)
    if built is not None:
        if instance is not None:
            raise click.UsageError("--instance marks a place in a chart: see `holdfast instances show` for this one")
        click.echo((mermaid if kind == "mermaid" else svg)(built, None))
        return
    active = None
    if instance is not None:
        view = place.ask(lambda hf: hf.instance(instance, tenant=tenant).status())
        key, _, version = chart.partition("@")
        if key == view.workflow and not version:
            chart = f"{key}@{view.version}"  # as the instance has it, whatever was published since
        elif not Path(chart).exists() and (key, version) != (view.workflow, str(view.version)):
            raise click.UsageError(f"{instance} is an instance of {view.workflow}@{view.version}, not of {chart}")
        snapshot = place.ask(lambda hf: hf.instance(instance, tenant=tenant).snapshot())
        active = msgspec.json.encode(snapshot["value"]) if snapshot else None
    _, found = _chart(place, tenant, chart)
    click.echo((mermaid if kind == "mermaid" else svg)(found, active))


@definitions.command()
@click.argument("old")
@click.argument("new")
@place_options
@tenant_option
def diff(old: str, new: str, place: Place, tenant: str) -> None:
    """What changed from OLD to NEW, each a file, KEY or KEY@VERSION."""
    lines = difference(_chart(place, tenant, old)[0], _chart(place, tenant, new)[0]).text()
    click.echo(lines or "no difference")


@definitions.command()
@click.argument("chart")
@click.option("--input", "input_", metavar="JSON|@FILE|-", help="The input it is started with.")
@click.option(
    "--events", metavar="JSON|@FILE|-", help='A list of events: {"type": …}, or {"$advance": "PT3H"} and such.'
)
@place_options
@tenant_option
@output_option
def simulate(chart: str, input_: str | None, events: str | None, place: Place, tenant: str, output: Output) -> None:
    """Run CHART (a file, KEY or KEY@VERSION) through events: turns come out, nothing is stored."""
    _, found = _chart(place, tenant, chart)
    given = [] if events is None else read_json(events, "--events")
    if not isinstance(given, list):
        raise click.UsageError('--events is not a list: expected [{"type": …}, …]')
    turns = run_through(found, read_json(input_, "--input"), given)
    show_rows(turns, SimulatedTurn.__struct_fields__, output, empty="nothing happened")


def _set_status(name: str, status: str, words: str) -> None:
    @definitions.command(name, help=words)
    @click.argument("key")
    @click.argument("version", type=int)
    @actor_option
    @place_options
    @tenant_option
    @output_option
    def change(key: str, version: int, actor: str, place: Place, tenant: str, output: Output) -> None:
        view = place.ask(lambda hf: hf.tenant(tenant).definitions.set_status(key, version, status, actor=actor))
        if output == "table":
            notice(f"{view.key} version {view.version} is {view.status}")
        else:
            show_one(_without_spec(view), output)


_set_status("activate", "active", "Let new instances start by VERSION of KEY.")
_set_status("deactivate", "inactive", "Start no new instances by VERSION of KEY; running ones go on.")
_set_status("archive", "archived", "Put VERSION of KEY aside for good; running instances go on.")
