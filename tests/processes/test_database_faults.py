"""PostgreSQL goes away under load: connections cut, replies lost, the server crashed and restarted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.conftest import closing, scale
from tests.processes.fleet import Fleet
from tests.processes.mixture import Mixture
from tests.processes.proxy import Proxy
from tests.support.postgres import Cluster

TERMINATE = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where datname = current_database() and application_name like 'holdfast%' and pid <> pg_backend_pid()"
)


def wait_for_progress(mixture: Mixture, steps: int = 5) -> None:
    seen = len(mixture.fleet.runs())
    mixture.fleet.wait_until(lambda: len(mixture.fleet.runs()) > seen + steps or mixture.settled(), "work goes on")


def test_terminated_backends_cost_nothing(postgres_fleet: Fleet) -> None:
    postgres_fleet.workers(2, concurrency=100)
    mixture = Mixture(postgres_fleet, scale("TERMINATED", 30, 60), 0.1)
    for _ in range(scale("TERMINATIONS", 5, 8)):
        postgres_fleet.execute(TERMINATE)
        wait_for_progress(mixture)
    assert mixture.finish()["fences"] == 0, "a healthy worker was fenced because its connection was cut"


@pytest.fixture
def lossy(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Proxy, Fleet]]:
    with Proxy(postgres_url) as proxy:
        for fleet in closing(Fleet(postgres_url, tmp_path, worker_url=proxy.url)):
            yield proxy, fleet


def test_lost_replies_are_looked_for_never_guessed(lossy: tuple[Proxy, Fleet]) -> None:
    proxy, fleet = lossy
    fleet.workers(2, concurrency=20)  # few at a time: many claims, whose replies are lost as well
    proxy.loss = 0.05
    mixture = Mixture(fleet, scale("LOST_REPLIES", 60, 100), 0.02)
    fleet.wait_until(lambda: fleet.ended() >= len(mixture.started) * 2 // 3, "most are done")
    proxy.loss = 0.0
    mixture.finish()
    assert proxy.lost >= 10, f"only {proxy.lost} replies were lost: the test tested nothing"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Cluster, Fleet]]:
    with Cluster() as cluster:
        for fleet in closing(Fleet(cluster.dsn(cluster.create_database()), tmp_path)):
            yield cluster, fleet


def test_a_crashed_and_restarted_server_loses_nothing(own: tuple[Cluster, Fleet]) -> None:
    cluster, fleet = own
    fleet.workers(2, concurrency=100)
    mixture = Mixture(fleet, scale("RESTARTED", 30, 60), 0.1)
    for number in range(scale("RESTARTS", 2, 3)):
        cluster.stop("immediate")
        time.sleep(0.5 * number)  # for a moment, or for long enough that heartbeats are missed
        cluster.start()
        wait_for_progress(mixture)
    assert mixture.finish()["fences"] == 0, "a healthy worker was fenced because the database was away"
