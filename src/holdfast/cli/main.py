"""The `holdfast` command: its nouns and verbs in one place. Each lives in the module of its noun."""

from __future__ import annotations

import click

from holdfast import logs
from holdfast.cli.definitions import definitions
from holdfast.cli.effects import effects
from holdfast.cli.instances import cancel, instances, resume, signal, start
from holdfast.cli.refusals import Commands
from holdfast.cli.tasks import tasks
from holdfast.cli.verify import migrate, verify
from holdfast.cli.workers import dev, worker, workers


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="holdfast")
def cli() -> None:
    """Durable workflows for processes that touch money and people.

    \b
    Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 database unreachable.
    Environment: HOLDFAST_APP, HOLDFAST_DATABASE_URL, HOLDFAST_TENANT; HOLDFAST_DEBUG=1 shows tracebacks.
    """
    logs.configure("warning")  # the library's own words must not land in the middle of an answer


for command in (
    dev, worker, migrate, start, signal, cancel, resume, instances, definitions, tasks, effects, workers, verify,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    cli(prog_name="holdfast")


if __name__ == "__main__":
    main()
