"""Fixtures for every test: one private PostgreSQL for the whole run, one database per test, one server per process.

A run on one process starts the cluster when the first test asks for it. Under xdist the controller
starts it and hands the port to its workers, so that it outlives each of them.
"""

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from holdfast.store.migrate import migrate_postgres
from tests.api.served import served, served_postgres, served_sqlite  # noqa: F401, fixtures
from tests.support import size
from tests.support.browser import browser, context, faults, page  # noqa: F401, fixtures
from tests.support.once import find_out_once
from tests.support.postgres import Cluster, Server, memory_root

# A busy machine is no failure, and a property leaves nothing behind in the tree.
settings.register_profile("ours", deadline=None, database=None, max_examples=size.sized(60, 200))
settings.load_profile("ours")

# SQLite waits for the disk at each commit, and so would the tests: most of their wait was this one. What they kill is
# processes, and their files outlive those in memory, too. Where pytest keeps `tmp_path`, unless somebody said so.
if memory := memory_root():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

find_out_once()

cluster_key = pytest.StashKey[Cluster]()


def shared_cluster(config: pytest.Config) -> Cluster:
    if cluster_key not in config.stash:
        config.stash[cluster_key] = cluster = Cluster(durable=False)
        cluster.start()
    return config.stash[cluster_key]


def pytest_report_header() -> str:
    return size.HEADER


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(size.HEADER)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres_port"] = shared_cluster(node.config).port


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_to_the_full_size(config, items)
    spread(items)


CASES_MAX = 2


def leave_to_the_full_size(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test with many cases runs all of them on SQLite, and on PostgreSQL a few, drawn anew for each run; all at full
    size, and whenever tests are asked for by name."""
    if size.FULL or config.option.keyword or any("::" in argument for argument in config.args):
        return
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    rooms = ("flows", "charts", "api", "cli")
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if len(params) > 1 and "postgres" in params.values() and item.path.parent.name in rooms:
            cases.setdefault((item.path.name, item.name.partition("[")[0]), []).append(item)
    run = {id(item) for about, found in cases.items() for item in size.sample(found, CASES_MAX, *about)}
    left = [item for found in cases.values() for item in found if id(item) not in run]
    config.hook.pytest_deselected(items=left)
    gone = {id(item) for item in left}
    items[:] = [item for item in items if id(item) not in gone]


def spread(items: list[pytest.Item]) -> None:
    """Spread the tests of real processes, which mostly wait, evenly among the others, which mostly compute, over the
    first three quarters of what each process of the run gets: at the end, none waits alone for a long one."""
    waiting = [item for item in items if mostly_waits(item)]
    apart = set(waiting)
    others = [item for item in items if item not in apart]
    if not waiting or not others:
        return
    shares = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = len(others) / shares
    every = 0.75 * share / -(-len(waiting) // shares)
    places = {id(item): (n % shares * share + n // shares * every, 0) for n, item in enumerate(waiting)}
    places |= {id(item): (float(n), 1) for n, item in enumerate(others)}
    items.sort(key=lambda item: places[id(item)])


def mostly_waits(item: pytest.Item) -> bool:
    folder, file = item.path.parts[-2:]
    if folder == "processes":
        return file != "test_auditor.py"
    return (folder, file) in (("api", "test_restart.py"), ("store", "test_plain_postgres.py"))


def pytest_unconfigure(config: pytest.Config) -> None:
    if cluster := config.stash.get(cluster_key, None):
        cluster.remove()


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The PostgreSQL server of this run. Tests that stop or crash one start their own `Cluster`."""
    workerinput = getattr(request.config, "workerinput", None)
    server = Server(workerinput["postgres_port"]) if workerinput else shared_cluster(request.config)
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_template(postgres: Server) -> str:
    """A migrated database: a copy of it costs half of a migration."""
    return postgres.template("holdfast", lambda dsn: asyncio.run(migrate_postgres(dsn, apply=True)))


@pytest.fixture
def postgres_url(postgres: Server, postgres_template: str) -> Iterator[str]:
    """The DSN of a migrated database for this test alone, dropped afterwards whoever is still connected."""
    with postgres.database(template=postgres_template) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres: Server) -> Iterator[str]:
    """The DSN of a database with nothing in it, for tests that migrate it themselves."""
    with postgres.database() as url:
        yield url
