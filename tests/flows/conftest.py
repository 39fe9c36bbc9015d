"""Every flow runs on a temporary SQLite, then on PostgreSQL, through the public API and a clock that we move."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.testing import FakeProvider, Harness


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'flows.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
async def harness(url: str) -> AsyncIterator[Harness]:
    async with Harness(url=url) as test:
        yield test


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()
