from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.testing import Harness


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'charts.db'}"


@pytest.fixture
async def harness(url: str) -> AsyncIterator[Harness]:
    async with Harness(url=url) as test:
        yield test
