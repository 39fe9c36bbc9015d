"""One suite: `store` is SQLite, then PostgreSQL, then PostgreSQL without NOTIFY and advisory locks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.facade import make_store
from holdfast.testing import ManualClock


def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a PostgreSQL-compatible database may lack, and a pooler hides: nothing may depend on it."""
    monkeypatch.setenv("HOLDFAST_POSTGRES_HINTS", "off")
    monkeypatch.setenv("HOLDFAST_POSTGRES_SESSION_LOCKS", "off")


@pytest.fixture(params=["sqlite", "postgres", "postgres-plain"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "postgres-plain":
        without_extras(monkeypatch)
    if request.param.startswith("postgres"):
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, url: str) -> str:
    """The same kind of database, not migrated yet."""
    return str(request.getfixturevalue("empty_postgres_url")) if url.startswith("postgres") else url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Any]:
    made = make_store(url)
    made.clock = ManualClock()
    await made.open(migrate=True)
    yield made
    await made.close()
