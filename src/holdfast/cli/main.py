"""The `holdfast` command: its nouns and verbs in one place. Each lives in the module of its noun, and only the module
of the command that is asked for is imported."""

from __future__ import annotations

import click

from holdfast import logs
from holdfast.cli.refusals import Commands
from holdfast.version import __version__

# name: (module:object, first line of its help)
COMMANDS = {
    "dev": ("dev:dev", "All in one: migrate, run a worker and the API, and log everything that happens."),
    "server": ("server:server", "Serve the REST API until stopped."),
    "worker": ("workers:worker", "Run the app's workflows until stopped."),
    "migrate": ("verify:migrate", "Bring the database up to date."),
    "start": ("instances:start", "Start an instance of WORKFLOW; prints its id, or with --wait its result."),
    "signal": ("instances:signal", "Send INSTANCE the signal NAME."),
    "cancel": (
        "instances:cancel", "Ask INSTANCE to end: what is under way is settled, then what was done is undone.",
    ),
    "resume": (
        "instances:resume",
        "Lift the pause of INSTANCE; or have a parked one looked at again, after what stopped it was mended.",
    ),
    "instances": ("instances:instances", "Read instances and their history, and have them go on."),
    "bulk": ("bulk:bulk", "Do one thing to every instance that matches."),
    "definitions": ("definitions:definitions", "Charts: check, publish, draw, compare, try out."),
    "tasks": ("tasks:tasks", "Tasks of charts: list, look, claim, complete, fail."),
    "effects": ("effects:effects", "The effect desk: effects whose outcome is unknown."),
    "dead-letters": ("dead_letters:dead_letters", "Work that was given up, until somebody deals with it."),
    "workers": ("workers:workers", "Who is at work."),
    "verify": (
        "verify:verify", "Check every history's hash chain; names the first bad row of each instance that has one.",
    ),
    "replay": (
        "replay:replay",
        "Say who would go on and who would be parked if the app's code were deployed; changes nothing.",
    ),
    "tenants": ("tenants:tenants", "What the tasks of a tenant may reach."),
    "principals": ("access:principals_group", "People, services and agents that may use the server."),
    "keys": ("access:keys", "API keys: made once, shown once."),
    "quarantine": (
        "quarantine:quarantine", "Hold a restored database back: its workers claim nothing until a person lifts it.",
    ),
    "doctor": ("doctor:doctor", "Look at Python, database, clocks, mail, model, workers and open questions."),
    "config": (
        "config:config",
        "Settings: flags, HOLDFAST_* in the environment, holdfast.toml, defaults; the first that is given counts.",
    ),
    "init": ("init:init", "Write a small app to begin with, its test and its settings into FOLDER."),
    "completion": ("completion:completion", "Print what has SHELL complete commands, options and choices."),
}  # fmt: skip


@click.group(
    cls=Commands, places=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__)
@click.pass_context
def cli(context: click.Context) -> None:
    """Durable workflows for processes that touch money and people.

    \b
    Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 database unreachable.
    Settings: flags, then HOLDFAST_APP, HOLDFAST_DATABASE_URL, HOLDFAST_TENANT and others, then holdfast.toml;
    `holdfast config show` lists them. HOLDFAST_DEBUG=1 shows tracebacks.
    """
    from holdfast.cli.app import defaults
    from holdfast.settings import load

    logs.configure("warning")  # the library's own words must not land in the middle of an answer
    asked = context.invoked_subcommand
    command = None if asked is None else cli.get_command(context, asked)
    if asked is not None and command is not None:
        context.default_map = {asked: defaults(command, load())}


def main() -> None:
    cli(prog_name="holdfast")


if __name__ == "__main__":
    main()
