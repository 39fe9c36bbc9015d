"""Shell completion: the script that a shell reads once, and that asks the command itself for what may follow."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_HOLDFAST_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what has SHELL complete commands, options and choices.

    \b
    bash   eval "$(holdfast completion bash)" in ~/.bashrc
    zsh    eval "$(holdfast completion zsh)" in ~/.zshrc, after compinit
    fish   holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    script = found(context.find_root().command, {}, "holdfast", VARIABLE)
    # The template alone: click's own way of asking for it starts a bash to learn its version.
    click.echo(script.source_template % script.source_vars())
