"""How a command ends when it cannot do its work: one clear line on standard error, and an exit code for scripts."""

from __future__ import annotations

import importlib
import os
import re
import textwrap
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click

from holdfast import HoldfastError, InstanceNotFound
from holdfast.engine.hiding import without_passwords

FAILED, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE = 1, 2, 3, 4, 5
EXIT_CODES = {
    "bad_input": USAGE,
    "not_json": USAGE,
    "instance_not_found": NOT_FOUND,
    "effect_not_found": NOT_FOUND,
    "definition_not_found": NOT_FOUND,
    "task_not_found": NOT_FOUND,
    "bad_chart": FAILED,
    "validation_failed": USAGE,
    "workflow_not_registered": NOT_FOUND,
    "business_key_taken": CONFLICT,
    "instance_ended": CONFLICT,
    "effect_not_open": CONFLICT,
    "definition_not_active": CONFLICT,
    "invalid_transition": CONFLICT,
    "task_not_open": CONFLICT,
    "task_already_claimed": CONFLICT,
    "fork_refused": CONFLICT,
    "event_in_line": CONFLICT,
    "precondition_failed": CONFLICT,
    "name_taken": CONFLICT,
    "address_in_use": CONFLICT,
    "definition_archived": USAGE,
    "principal_not_found": NOT_FOUND,
    "key_not_found": NOT_FOUND,
    "dead_letter_not_found": NOT_FOUND,
    "dead_letter_not_open": CONFLICT,
    "store_unavailable": UNREACHABLE,
}


def _exit_code(error: BaseException) -> int:
    if isinstance(error, HoldfastError):
        return EXIT_CODES.get(error.code, FAILED)
    return UNREACHABLE if isinstance(error, OSError) else FAILED


# What to do about it, where the words of the library would not help at a command line.
ADVICE = {
    "instance_not_found": "check the id and --tenant; `holdfast instances list` shows those of a tenant",
    "workflow_not_registered": "correct the name, or name the app that declares it with --app",
}
IN_PYTHON = ("hf.", "import the module")
# The library's arguments, as its sentences name them: `accept_double=True`, `actor=…`.
ARGUMENT = re.compile(r"\b([a-z]+(?:_[a-z]+)*)=(?:True|…)")


def in_flags(text: str) -> str:
    return ARGUMENT.sub(lambda found: "--" + found[1].replace("_", "-"), text)


def _line(error: BaseException) -> str:
    words = str(error)
    if isinstance(error, HoldfastError) and error.code in ADVICE and any(part in words for part in IN_PYTHON):
        words = f"{error.fact}: {ADVICE[error.code]}"
    words = in_flags(words)
    if isinstance(error, InstanceNotFound) and "is not an id" in words:
        words += "; `holdfast instances list --business-key KEY` finds it by its business key"
    if not isinstance(error, HoldfastError):
        words = f"{type(error).__name__}: {words} (HOLDFAST_DEBUG=1 shows where)"
    return without_passwords(" ".join(words.split()))


def _forgotten_flag(error: click.UsageError) -> str:
    """`holdfast start order '{…}'`: what to write instead."""
    if "unexpected extra argument" not in error.message or error.ctx is None:
        return ""
    flags = [option.opts[0] for option in error.ctx.command.params if str(option.metavar).startswith("JSON|")]
    return f"JSON is given with {flags[0]}, quoted for the shell, as in {flags[0]} '{{\"id\": 1}}'" if flags else ""


class Commands(click.Group):
    """A group whose commands may raise anything; what comes out is a line and an exit code.

    `places`: its commands, each with the module and object it is and the first line of its help. One is imported when
    it is asked for."""

    def __init__(self, *args: Any, places: Mapping[str, tuple[str, str]] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.places = places or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.places])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.places[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(f"holdfast.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            # click looks for similar names among those that are imported, which are none.
            if self.places and (similar := get_close_matches(args[0], self.places)) and not args[0].startswith("-"):
                words = f"{error.message} Did you mean {' or '.join(map(repr, similar))}?"
                raise click.UsageError(words, error.ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Without importing a command for the line that is known of it."""
        room = formatter.width - 6 - max(map(len, self.places))
        with formatter.section("Commands"):
            formatter.write_dl([
                (name, textwrap.shorten(self.places[name][1], room, placeholder="..."))
                for name in self.list_commands(ctx) if name in self.places
            ])  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if hint := _forgotten_flag(error):
                raise click.UsageError(f"{error.message}: {hint}", error.ctx) from None
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort, KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("HOLDFAST_DEBUG") == "1":
                raise
            click.echo(f"Error: {_line(error)}", err=True)
            raise click.exceptions.Exit(_exit_code(error)) from error
