"""The `holdfast` command: its nouns and verbs in one place. Each lives in the module of its noun."""

from __future__ import annotations

import click

from holdfast import logs
from holdfast.cli.access import keys, principals_group
from holdfast.cli.app import defaults
from holdfast.cli.bulk import bulk
from holdfast.cli.completion import completion
from holdfast.cli.config import config
from holdfast.cli.dead_letters import dead_letters
from holdfast.cli.definitions import definitions
from holdfast.cli.dev import dev
from holdfast.cli.doctor import doctor
from holdfast.cli.effects import effects
from holdfast.cli.init import init
from holdfast.cli.instances import cancel, instances, resume, signal, start
from holdfast.cli.quarantine import quarantine
from holdfast.cli.refusals import Commands
from holdfast.cli.server import server
from holdfast.cli.tasks import tasks
from holdfast.cli.tenants import tenants
from holdfast.cli.verify import migrate, verify
from holdfast.cli.workers import worker, workers
from holdfast.settings import load
from holdfast.version import __version__


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
@click.pass_context
def cli(context: click.Context) -> None:
    """Durable workflows for processes that touch money and people.

    \b
    Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 database unreachable.
    Settings: flags, then HOLDFAST_APP, HOLDFAST_DATABASE_URL, HOLDFAST_TENANT and others, then holdfast.toml;
    `holdfast config show` lists them. HOLDFAST_DEBUG=1 shows tracebacks.
    """
    logs.configure("warning")  # the library's own words must not land in the middle of an answer
    context.default_map = defaults(context.command, load())


for command in (
    dev, server, worker, migrate, start, signal, cancel, resume, instances, bulk, definitions, tasks, effects,
    dead_letters, workers, verify, tenants, principals_group, keys, quarantine, doctor, config, init,
    completion,
):  # fmt: skip
    cli.add_command(command)


def main() -> None:
    cli(prog_name="holdfast")


if __name__ == "__main__":
    main()
