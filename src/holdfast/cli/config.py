"""What is set, and where each value came from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from holdfast.cli.app import F, settled
from holdfast.cli.output import Output, notice, output_option, show_rows
from holdfast.settings import FILE, TABLE, Found, unknown_variables, variable


def setting_options(*names: str) -> Callable[[F], F]:
    """Options for these settings. The command asks `settled()` for their values, and for all the others."""

    def add(function: F) -> F:
        for name in reversed(names):
            entry = TABLE[name]
            flag = "--" + (entry.option or name).replace("_", "-")
            words = f"{entry.help[:1].upper()}{entry.help[1:]}  [env: {variable(name)}]"
            function = click.option(flag, entry.option or name, metavar=entry.kind.upper(), help=words)(function)
        return function

    return add


def whence(found: Found) -> str:
    """Which settings file was read."""
    if not found.file:
        return f"no {FILE} in {Path.cwd()}"
    named = " (named by HOLDFAST_CONFIG)" if os.environ.get("HOLDFAST_CONFIG") else ""
    return f"settings from {found.file}{named}"


@click.group()
def config() -> None:
    """Settings: flags, HOLDFAST_* in the environment, holdfast.toml, defaults; the first that is given counts."""


@config.command()
@setting_options(*TABLE)
@output_option
def show(output: Output, **_flags: Any) -> None:
    """Every setting with its value and where that came from. Secrets are hidden."""
    found = settled()
    rows = [
        {"name": name, "value": found.shown(name), "origin": found.origins[name], "help": entry.help}
        for name, entry in TABLE.items()
    ]
    show_rows(rows, ("name", "value", "origin"), output, empty="")
    notice(whence(found))
    for name in unknown_variables():
        notice(f"{name} is set, but no setting is called so: is it misspelt?")
