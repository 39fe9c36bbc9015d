"""Watches the house: imports point inward, the engine is pure, SQL stays in the store, nothing names a machine."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "holdfast"
# What each room may import from the others; the front door (facade, sync, testing, __init__) may import all.
MAY_IMPORT = {
    "engine": {"engine"},
    "store": {"engine", "store"},
    "handlers": {"engine", "handlers"},
    "app": {"engine", "store", "app"},
    "worker": {"engine", "store", "handlers", "app", "worker"},
    "client": {"engine", "api", "client"},  # of the API only what goes over the wire, see below
    "api": {"engine", "store", "handlers", "app", "api", "facade", "metrics", "settings", "tracing", "version"},
}
IMPURE = {
    "time",
    "os",
    "threading",
    "subprocess",
    "sqlite3",
    "apsw",
    "asyncpg",
    "structlog",
    "http",
    "urllib",
    "select",
}
MODULES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_inward(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0]
    if room not in MAY_IMPORT:
        return
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "holdfast":
            assert parts[1] in MAY_IMPORT[room], f"{path.name} in {room}/ imports {name}"


def test_the_client_knows_of_the_server_only_what_goes_over_the_wire() -> None:
    for path in sorted((SOURCE / "client").rglob("*.py")):
        for name in imports(path):
            assert not name.startswith("holdfast.api") or name.startswith("holdfast.api.models."), (path.name, name)


@pytest.mark.parametrize("path", sorted((SOURCE / "engine").rglob("*.py")), ids=lambda p: p.name)
def test_the_engine_touches_nothing(path: Path) -> None:
    # Which thread this is may be asked: the workflow's own loop tells its body from a step's thread by it.
    touched = {name.split(".")[0] for name in imports(path) - {"threading.get_ident"}} & IMPURE
    assert not touched, f"engine/{path.name} imports {touched}"


def test_sql_is_written_only_in_the_store() -> None:
    sql = re.compile(r"\b(insert\s+into|delete\s+from|update\s+\w+\.?\w*\s+set|select\s+.+\s+from)\b", re.I)
    for path in MODULES:
        if path.relative_to(SOURCE).parts[0] == "store":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and sql.search(node.value):
                raise AssertionError(f"{path.relative_to(SOURCE)}:{node.lineno} speaks SQL: {node.value[:60]!r}")


def test_every_module_says_what_it_is_for() -> None:
    for path in MODULES:
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(SOURCE)} has no docstring"


def test_public_names_are_documented_and_exported() -> None:
    import holdfast

    for name in holdfast.__all__:
        thing = getattr(holdfast, name)
        assert thing.__doc__, f"holdfast.{name} has no docstring"


def test_nothing_names_a_machine_or_a_registry() -> None:
    pattern = "|".join(["/wo[r]k/", "/ro[o]t/", "python[h]osted", "npm[j]s", r"pypi[.]o[r]g", "deb[.]deb[i]an"])
    found = subprocess.run(["git", "grep", "-nIE", pattern, "--", "."], cwd=ROOT, capture_output=True, text=True)
    assert found.stdout == ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_finds_what_it_changes(mutant: Mutant) -> None:
    """`make mutants` is too long for every change; that its list follows the source is seen here."""
    text = (SOURCE / mutant.file).read_text()
    assert text.count(mutant.old) == 1
