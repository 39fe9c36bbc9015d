"""For tests of the API: a caller of the shared server, and a house of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.served import Served
from tests.api.support import Api, House


@pytest.fixture
def api(served: Served) -> Api:
    """An admin of tenant "default"."""
    return served.api()


@pytest.fixture(params=["sqlite", "postgres"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    """A database with nothing running on it yet."""
    url = f"sqlite:///{tmp_path / 'api.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    found = House(url, tmp_path)
    try:
        yield found
    finally:
        found.close()
