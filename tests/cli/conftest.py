"""A folder with charts in it and a migrated database, on SQLite and on PostgreSQL, for tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.cli.support import Desk


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'desk.db'}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with nothing of the caller's environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("HOLDFAST_APP", "HOLDFAST_DATABASE_URL", "HOLDFAST_TENANT", "HOLDFAST_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    structlog.reset_defaults()


@pytest.fixture
def desk(folder: Path, url: str) -> Desk:
    found = Desk(folder, url)
    if url.startswith("sqlite:"):  # the other is a copy of one that is migrated already
        found.ok("migrate")
    return found


@pytest.fixture
def files(folder: Path) -> Desk:
    """For commands that need no database: there is none."""
    return Desk(folder, "sqlite:///nowhere/at/all.db")
