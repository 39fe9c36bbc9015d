"""One server and one worker for each database and test process, shared by the tests that need no house of their own.

The fixtures are imported by tests/conftest.py, so that the tests of the API and those of the client share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.api.support import CHART, Api, House
from tests.support.postgres import Server

T = TypeVar("T")


class Served:
    """A running house: `served.api("viewer")` is of tenant "default", `served.api("viewer", "acme")` of another."""

    def __init__(self, house: House, url: str, dialect: str) -> None:
        self.house = house
        self.url = url
        self.dialect = dialect
        self._made: dict[str, Any] = {}

    def once(self, make: Callable[[Served], T]) -> T:
        """What `make` makes of it, which it does the first time."""
        name = f"{make.__module__}.{make.__qualname__}"
        if name not in self._made:
            self._made[name] = make(self)
        found: T = self._made[name]
        return found

    def api(self, role: str = "admin", tenant: str = "default", **more: str) -> Api:
        return Api(self.url, self.house.key(role, tenant, **more))


@pytest.fixture(scope="session")
def served_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with _served(f"sqlite:///{folder / 'api.db'}", folder, "sqlite") as found:
        yield found


@pytest.fixture(scope="session")
def served_postgres(
    tmp_path_factory: pytest.TempPathFactory, postgres: Server, postgres_template: str
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with postgres.database(template=postgres_template) as url, _served(url, folder, "postgres") as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def served(request: pytest.FixtureRequest) -> Served:
    """Both stay up once they are needed: a test of the one does not end the other."""
    found: Served = request.getfixturevalue(f"served_{request.param}")
    return found


@contextmanager
def _served(url: str, folder: Path, dialect: str) -> Iterator[Served]:
    house = House(url, folder)
    try:
        house.work()
        found = Served(house, house.serve(), dialect)
        found.api().ok("POST /workflow/definitions", {"spec": CHART})
        yield found
    finally:
        house.close()
