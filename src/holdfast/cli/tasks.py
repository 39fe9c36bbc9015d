"""The inbox: tasks that wait for people, and every other task of an instance."""

from __future__ import annotations

import click

from holdfast.cli.app import F, Place, place_options, tenant_option
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
from holdfast.engine.tasks import STATUSES, TYPES


@click.group()
def tasks() -> None:
    """Tasks of charts: list, look, claim, complete, fail."""


@tasks.command("list")
@click.option("--status", type=click.Choice(["open", *STATUSES]), default="open", show_default=True)
@click.option("--all", "every", is_flag=True, help="Tasks in any status.")
@click.option("--type", "type_", type=click.Choice(TYPES, case_sensitive=False), help="Only tasks of one type.")
@click.option("--assignee", help="Only tasks of one person.")
@click.option("--group", help="Only tasks offered to one group.")
@click.option("--instance", help="Only those of one instance.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@place_options
@tenant_option
@output_option
def list_(
    status: str, every: bool, type_: str | None, assignee: str | None, group: str | None, instance: str | None,
    limit: int, place: Place, tenant: str, output: Output,
) -> None:  # fmt: skip
    """Tasks, by default the open ones."""
    found = place.ask(lambda hf: hf.tenant(tenant).tasks.list(
        status=None if every else status, type=type_, assignee=assignee, group=group, instance=instance, limit=limit
    ))  # fmt: skip
    columns = ("id", "type", "name", "status", "assignee", "groups", "due_at", "instance_id", "workflow")
    show_rows(found, columns, output, empty=f"no tasks there in tenant {tenant!r}")
    if any(task.type == "HUMAN" for task in found):
        hint("look at one: holdfast tasks show TASK; hand in its result: holdfast tasks complete TASK --output JSON")


@tasks.command()
@click.argument("task")
@place_options
@tenant_option
@output_option
def show(task: str, place: Place, tenant: str, output: Output) -> None:
    """One task: what it is about, its form, and how it stands."""
    show_one(plain(place.ask(lambda hf: hf.tenant(tenant).tasks.show(task))), output)


def a_persons_word(function: F) -> F:
    """What somebody says about one task: TASK, --actor, and where it is."""
    for option in (output_option, tenant_option, place_options, actor_option, click.argument("task")):
        function = option(function)
    return function


@tasks.command()
@a_persons_word
def claim(task: str, actor: str, place: Place, tenant: str, output: Output) -> None:
    """Take TASK: from here on only you complete it."""
    view = place.ask(lambda hf: hf.tenant(tenant).tasks.claim(task, actor=actor))
    _said(f"{task} belongs to {view.assignee}", view, output)


@tasks.command()
@a_persons_word
def unclaim(task: str, actor: str, place: Place, tenant: str, output: Output) -> None:
    """Put TASK back for others."""
    view = place.ask(lambda hf: hf.tenant(tenant).tasks.unclaim(task, actor=actor))
    _said(f"{task} is free again", view, output)


@tasks.command()
@click.argument("task")
@click.option("--output", "result", metavar="JSON|@FILE|-", help="What you hand in; checked against the task's form.")
@click.option("--reason", default="", help="Kept in the history.")
@actor_option
@place_options
@tenant_option
@click.option("-o", "printed", type=click.Choice(["table", "json", "jsonl"]), default="table", show_default=True)
def complete(
    task: str, result: str | None, reason: str, actor: str, place: Place, tenant: str, printed: Output
) -> None:
    """Hand in the result of TASK. The first word counts."""
    given = read_json(result, "--output")
    view = place.ask(lambda hf: hf.tenant(tenant).tasks.complete(task, given, actor=actor, reason=reason))
    _said(f"{task} is done; its instance goes on", view, printed)


@tasks.command()
@click.option("--reason", required=True, help="Why it cannot be done. Kept in the history.")
@a_persons_word
def fail(task: str, reason: str, actor: str, place: Place, tenant: str, output: Output) -> None:
    """Say that TASK cannot be done: its instance goes the way of its failure."""
    view = place.ask(lambda hf: hf.tenant(tenant).tasks.fail(task, actor=actor, reason=reason))
    _said(f"{task} is recorded as failed", view, output)


def _said(words: str, view: object, output: Output) -> None:
    if output == "table":
        notice(words)
    else:
        show_one(plain(view), output)
