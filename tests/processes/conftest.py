"""A fleet of worker processes for each test, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.fleet import Fleet
from tests.support.size import sized


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'test.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    yield from closing(Fleet(url, tmp_path))


@pytest.fixture
def postgres_fleet(postgres_url: str, tmp_path: Path) -> Iterator[Fleet]:
    yield from closing(Fleet(postgres_url, tmp_path))


@pytest.fixture
def sqlite_fleet(tmp_path: Path) -> Iterator[Fleet]:
    yield from closing(Fleet(f"sqlite:///{tmp_path / 'test.db'}", tmp_path))


def closing(fleet: Fleet) -> Iterator[Fleet]:
    try:
        yield fleet
    finally:
        fleet.close()


def scale(name: str, quick: int, full: int) -> int:
    """How much of something: by the size of the run, or by the environment variable HOLDFAST_TEST_<name>."""
    return int(os.environ.get(f"HOLDFAST_TEST_{name}", sized(quick, full)))
