"""The PostgreSQL that other tests stand on: it answers, keeps tests apart, and survives a crash."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import psycopg
import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import Cluster, Server


async def test_the_cluster_answers(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetchval("select 6 * 7") == 42
        assert int(await connection.fetchval("show server_version_num")) >= 140000
    finally:
        await connection.close()


@pytest.mark.parametrize("visit", ["first", "second"])
def test_each_test_gets_a_database_of_its_own(postgres_url: str, empty_postgres_url: str, visit: str) -> None:
    for url in (postgres_url, empty_postgres_url):
        with psycopg.connect(url) as connection:
            connection.execute("create table visits (name text)")  # fails if the other visit was here
            connection.execute("insert into visits values (%s)", (visit,))


def test_only_one_of_them_is_migrated(postgres_url: str, empty_postgres_url: str) -> None:
    there = "select to_regclass('holdfast.instances') is not null"
    for url, migrated in ((postgres_url, True), (empty_postgres_url, False)):
        with psycopg.connect(url) as connection:
            assert connection.execute(there).fetchone() == (migrated,)


def test_two_databases_open_at_once_are_different(postgres: Server, postgres_url: str) -> None:
    with postgres.database() as other_url:
        assert other_url != postgres_url


def test_a_database_is_dropped_under_an_open_connection(postgres: Server) -> None:
    with postgres.database() as url:
        left_open = psycopg.connect(url)
    with pytest.raises(psycopg.OperationalError):
        left_open.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_a_template_is_prepared_once_and_copied_with_its_rows(postgres: Server) -> None:
    name = f"template_{os.getpid()}"
    prepared: list[str] = []

    def prepare(dsn: str) -> None:
        prepared.append(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute("create table greetings as select 'hello' as text")

    assert [postgres.template(name, prepare), postgres.template(name, prepare)] == [name, name]
    assert len(prepared) == 1
    with postgres.database(template=name) as url, psycopg.connect(url) as connection:
        assert connection.execute("select text from greetings").fetchone() == ("hello",)


def test_a_template_that_failed_is_prepared_afresh(postgres: Server) -> None:
    name = f"failing_{os.getpid()}"

    def fail(dsn: str) -> None:
        raise RuntimeError("the migration is wrong")

    with pytest.raises(RuntimeError, match="the migration is wrong"):
        postgres.template(name, fail)
    assert postgres.template(name, lambda dsn: None) == name


@pytest.mark.parametrize("way", ["immediate", "kill"])
def test_a_cluster_of_ones_own_keeps_what_was_committed_before_a_crash(way: str) -> None:
    with Cluster() as cluster:
        url = cluster.dsn(cluster.create_database("orders"))
        with psycopg.connect(url) as connection:
            assert connection.execute("show fsync").fetchone() == ("on",)
            connection.execute("create table paid as select 7 as number")
        if way == "kill":
            cluster.kill()
            cluster.start()
        else:
            cluster.restart("immediate")
        with psycopg.connect(url) as connection:
            assert connection.execute("select number from paid").fetchone() == (7,)
    assert not cluster.data.exists()
    assert not cluster.folder.exists()


def test_a_cluster_goes_when_its_owner_is_killed() -> None:
    script = (
        "from tests.support.postgres import Cluster\n"
        "cluster = Cluster(durable=False)\n"
        "cluster.start()\n"
        "print(cluster.data, cluster.folder, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        folders = [Path(folder) for folder in owner.stdout.readline().split()]
        assert [folder.exists() for folder in folders] == [True, True]
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(folder.exists() for folder in folders) and time.monotonic() < deadline:
        time.sleep(0.05)  # the guard is a process of nobody's by now, so there is nothing to wait on
    assert [folder.exists() for folder in folders] == [False, False]
