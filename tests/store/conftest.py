"""One suite for both databases: `store` is SQLite, then PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.facade import make_store
from holdfast.testing import ManualClock


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[Any]:
    made = make_store(url)
    made.clock = ManualClock()
    await made.open(migrate=True)
    yield made
    await made.close()
