"""What a command prints: a table for people, JSON or JSON lines for programs; questions and progress on a terminal.

Answers go to standard output, everything else to standard error, so that a pipe carries the answer alone.
"""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from holdfast.engine.moments import when
from holdfast.engine.stacks import place_of, recorded_text, summary

F = TypeVar("F", bound=Callable[..., Any])
Output = Literal["table", "json", "jsonl"]
WIDE = 500  # where no terminal sets the width, nothing is wrapped or cut
CELL_MAX = 160
WHOLE_MAX = 4000  # of what is there to be read, not to be scanned
STYLES = {
    "completed": "green", "succeeded": "green", "live": "green", "resolved": "green", "waiting": "yellow",
    "compensating": "yellow", "started": "yellow", "failed": "red", "outcome_unknown": "bold red", "fenced": "red",
}  # fmt: skip


def output_option(function: F) -> F:
    choice = click.Choice(["table", "json", "jsonl"])
    return click.option("-o", "--output", type=choice, default="table", show_default=True)(function)


def yes_option(function: F) -> F:
    return click.option("--yes", is_flag=True, help="Do not ask.")(function)


def actor_option(function: F) -> F:
    words = "Who says so; kept on record."
    return click.option("--actor", default=getpass.getuser, show_default="the current user", help=words)(function)


# -- values


def plain(value: Any) -> Any:
    """A view as JSON knows it, with its moments as RFC 3339 UTC. Payloads stay as they are stored."""
    if isinstance(value, msgspec.Struct):
        return {name: _field(name, getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _field(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return told(value)
    if isinstance(value, int) and (name.endswith("_at") or name in ("at", "not_after")):
        return moment(value)
    return plain(value)


def moment(micros: int) -> str:
    return told(when(micros))


def told(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_json(text: str | None, what: str) -> Any:
    """JSON from the command line, from a file (@path) or from standard input (-)."""
    if text is None:
        return None
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except OSError as error:
        raise click.UsageError(f"{what}: cannot read {text[1:]}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise click.UsageError(
            f"""{what} is not JSON: {error}; quote it for the shell, as in '{{"id": 1}}'"""
        ) from error


def read_object(text: str | None, what: str) -> dict[str, Any]:
    """A JSON object, read as `read_json` reads; an empty one where nothing is given."""
    given = read_json(text, what)
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise click.UsageError(f'{what} is not an object: expected {{"name": …}}')
    return given


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("the same key stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


# -- answers


def show_rows(
    rows: Sequence[Any], columns: Sequence[str], output: Output, *, empty: str, cell_max: int = CELL_MAX
) -> None:
    records = [plain(row) for row in rows]
    if output == "json":
        _json(records)
    elif output == "jsonl":
        for record in records:
            _json_line(record)
    elif not records:
        notice(empty)
    else:
        table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
        for column in columns:
            table.add_column(column, no_wrap=column in ("id", "instance_id", "seq", "status", "state"), overflow="fold")
        for record in records:
            table.add_row(*(_cell(column, record[column], cell_max) for column in columns))
        _print(table)


def show_one(record: Any, output: Output, *, leave_out: Sequence[str] = ()) -> None:
    """One thing with all its fields; the table leaves out what is empty."""
    record = plain(record)
    if output == "json":
        _json(record)
    elif output == "jsonl":
        _json_line(record)
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in record.items():
            if value not in (None, "", [], {}) and name not in leave_out:
                shown = error_text(value) if name == "error" else value
                table.add_row(name, _cell(name, shown, limit=WHOLE_MAX))
        _print(table)


def error_text(error: Any) -> Any:
    """An error for people: its traceback, and below what else is known of it. One without a stack stays as it is."""
    trace = recorded_text(error)
    if not trace:
        return error
    more = {name: value for name, value in error.items() if name not in ("type", "message", "stack", "causes")}
    return trace if not more else f"{trace}\n{json.dumps(more, ensure_ascii=False)}"


def error_line(payload: Any) -> Any:
    """A history entry's payload with its error, if it has one, on one line: what it is and the author's line."""
    if not isinstance(payload, dict) or not place_of(payload.get("error")):
        return payload
    return payload | {"error": f"{summary(payload['error'])} at {place_of(payload['error'])}"}


def _json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def _json_line(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _cell(column: str, value: Any, limit: int = CELL_MAX) -> Text:
    if value is None:
        return Text("")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return Text(text, style=STYLES.get(text, "") if column in ("status", "state") else "")


def notice(text: str) -> None:
    """For the person who looks on, not for the pipe."""
    click.echo(text, err=True)


def listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def hint(text: str) -> None:
    """A next step, told only where somebody sits in front of it."""
    if sys.stderr.isatty():
        click.secho(text, err=True, dim=True)


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal. Without one the flags given are the decision."""
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)


def _print(table: Table) -> None:
    """Colours and width as the terminal has them; rich honours NO_COLOR by itself. Off a terminal no line is wrapped,
    cut, or filled up with blanks to the width of the longest."""
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    console = Console(width=WIDE, highlight=False)
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


# -- progress, on a terminal only


def _progress_console() -> Console:
    return Console(stderr=True)


@contextmanager
def bar(words: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on standard error: `update(done, total)`. None where nobody would see it."""
    console = _progress_console()
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn(words), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(words, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def busy(words: str) -> Iterator[None]:
    console = _progress_console()
    if not console.is_terminal:
        yield
        return
    with console.status(words):
        yield
