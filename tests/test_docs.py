"""The README and the docs are true: their programs run, their links lead somewhere, their commands exist.

A block fenced as ```python run is a whole program; it is run in an empty folder. If the next block is fenced as
```text output, its lines are what the program prints; … stands for any lines. One fenced as ```python sample is run
in its page's ```python frame, in the place of the line that begins with "# the sample".
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import holdfast
from holdfast.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SAMPLE = re.compile(r"^# the sample.*\n", re.M)
COMMAND = re.compile(r"(?:^|`|\$ )holdfast((?: [A-Za-z][A-Za-z-]*)+)", re.M)


class Program(NamedTuple):
    page: Path
    line: int
    code: str
    output: list[str]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def programs() -> list[Program]:
    found = []
    for page in PAGES:
        text = page.read_text()
        blocks = list(FENCE.finditer(text))
        frame = next((block[2] for block in blocks if block[1] == "python frame"), "")
        for number, block in enumerate(blocks):
            if block[1] in ("python run", "python sample"):
                after = blocks[number + 1] if number + 1 < len(blocks) else None
                output = after[2].splitlines() if after is not None and after[1] == "text output" else []
                code = block[2] if block[1] == "python run" else SAMPLE.sub(lambda _: block[2], frame)  # noqa: B023
                found.append(Program(page, text.count("\n", 0, block.start()) + 1, code, output))
    return found


def readme_program() -> Program:
    [program] = [one for one in programs() if one.page.name == "README.md" and one.page.parent == ROOT]
    return program


def run(program: Program, folder: Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parents[1]), "NO_COLOR": "1"}
    environment.pop("HOLDFAST_DATABASE_URL", None)
    (folder / "program.py").write_text(program.code)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, f"{program}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The names GitHub gives to headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("program", programs(), ids=str)
def test_every_program_runs_and_prints_what_the_page_says(program: Program, tmp_path: Path) -> None:
    printed = run(program, tmp_path)
    shown = "".join(r"(?:.*\n)*?" if line == "…" else re.escape(line) + r"\n" for line in program.output)
    assert not shown or re.fullmatch(shown, printed), f"{program} prints other lines than the page shows:\n{printed}"


def test_the_readme_shows_twenty_lines_and_they_may_run_twice(tmp_path: Path) -> None:
    program = readme_program()
    assert len([line for line in program.code.splitlines() if line.strip()]) <= 20
    first, again = run(program, tmp_path), run(program, tmp_path)
    assert program.output[0] in first.splitlines()
    assert program.output[0] in again.splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_named_exists(page: Path) -> None:
    for words in COMMAND.findall(page.read_text()):
        command: click.Command = cli
        for word in words.split():
            if not isinstance(command, click.Group) or word.isupper():
                break  # from here on these are arguments
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"{page.name} names `holdfast{words}`: no command {word!r}"
            command = found


def each(group: click.Group) -> list[tuple[str, click.Command]]:
    context = click.Context(group)
    found = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    return [(name, command) for name, command in found if command is not None]


def test_the_command_line_page_names_every_command() -> None:
    def leaves(group: click.Group, path: str) -> list[str]:
        return [
            leaf
            for name, command in each(group)
            for leaf in (leaves(command, f"{path} {name}") if isinstance(command, click.Group) else [f"{path} {name}"])
        ]

    text = (ROOT / "docs" / "cli.md").read_text()
    for leaf in leaves(cli, "holdfast"):
        assert f"`{leaf}" in text, f"docs/cli.md does not mention `{leaf}`"


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        for name in re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)`", page.read_text(), re.M):
            assert (name[0] or name[1]) in targets, f"{page.name} names `make {name[0] or name[1]}`"
