"""Where the walls come from: roles that belong to a whole cluster, made by whoever may, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from holdfast import Context, Holdfast
from holdfast.facade import make_doors
from holdfast.store.doors import DoorStore
from holdfast.store.migrate import migrate_postgres
from holdfast.store.postgres import PostgresStore
from holdfast.store.statements import migrations
from tests.store.support import an_instance, put, row_of
from tests.support.postgres import Cluster

ALL = [f"{number:04d}_{name}" for number, name, _ in migrations("postgres")]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(durable=False) as made:
        yield made


async def wall_of(url: str) -> bool:
    store = PostgresStore(url)
    await store.open(migrate=False)
    try:
        return await store.wall_is_up()
    finally:
        await store.close()


def owned_by(cluster: Cluster, owner: str) -> str:
    name = cluster.create_database()
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(f"alter database {name} owner to {owner}")  # type: ignore[arg-type]
    return cluster.dsn(name).replace("postgres@", f"{owner}@")


def say(cluster: Cluster, words: str) -> None:
    with psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        admin.execute(words)  # type: ignore[arg-type]


async def test_a_simple_set_up_goes_on_without_walls_and_gets_them_later(cluster: Cluster) -> None:
    """An owner that may make no roles, on a cluster that has none."""
    say(cluster, "create role shop login")
    url = owned_by(cluster, "shop")
    assert await migrate_postgres(url, apply=True) == ALL
    assert not await wall_of(url)
    for store in (PostgresStore(url), DoorStore(url)):
        await store.open(migrate=True)
        one = an_instance(store)
        await put(store, one)
        assert (await row_of(store, one))["status"] == "pending"
        assert await store.fetch("count_backlog", queue="default", limit=10)
        await store.close()
    # The roles alone are not enough: behind a wall without a way in, the owner would see nothing of its own.
    say(cluster, "create role holdfast_door nologin; create role holdfast_worker nologin")
    connection = await asyncpg.connect(url)
    assert await connection.fetchval("select holdfast.put_up_walls()") is False
    say(cluster, "grant holdfast_door, holdfast_worker to shop")
    assert await connection.fetchval("select holdfast.put_up_walls()") is True
    assert await connection.fetchval("select count(*) from holdfast.instances") == 2
    await connection.close()
    assert await wall_of(url)
    store = DoorStore(url)
    await store.open(migrate=False)
    assert len(await store.fetch("read_instance", tenant_id="acme", id=one.id)) == 1
    await store.close()


async def test_an_owner_that_may_make_roles_makes_them(cluster: Cluster) -> None:
    say(cluster, "create role shop login createrole")
    url = owned_by(cluster, "shop")
    assert await migrate_postgres(url, apply=True) == ALL
    assert await wall_of(url)
    hf = Holdfast(url)

    @hf.workflow("echo")
    async def echo(ctx: Context, given: Any) -> Any:
        return given

    async with hf, hf.worker():
        assert await (await hf.start("echo", 1)).result(timeout=100) == 1
    door = make_doors(url)
    await door.open(migrate=False)  # its own login may take the door's role
    assert await door.fetch("list_workers", limit=1)
    await door.close()


async def test_many_databases_of_a_new_cluster_are_migrated_at_once(cluster: Cluster) -> None:
    urls = [cluster.dsn(cluster.create_database()) for _ in range(6)]
    done = await asyncio.gather(*(migrate_postgres(url, apply=True) for url in urls for _ in range(3)))
    assert sorted(done) == [[]] * 12 + [ALL] * 6  # three asked for each; one did it, and the others waited for that one
    assert await asyncio.gather(*map(wall_of, urls)) == [True] * 6


async def test_several_who_bring_a_database_up_to_date_take_turns(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema is there already, so it is the migration's own row that they wait for."""
    known = migrations("postgres")
    with monkeypatch.context() as before:
        before.setattr("holdfast.store.migrate.migrations", lambda _: known[:1])
        before.setattr("holdfast.store.migrate.WALLS", "select 1")
        await migrate_postgres(empty_postgres_url, apply=True)
    done = await asyncio.gather(*(migrate_postgres(empty_postgres_url, apply=True) for _ in range(4)))
    assert sorted(done) == [[], [], [], ALL[1:]]


async def test_a_migration_that_fails_leaves_the_next_one_its_turn(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrations("postgres")
    broken = [*known[:-1], (known[-1][0], known[-1][1], "select pg_sleep(0.3); select 1 / 0")]
    monkeypatch.setattr("holdfast.store.migrate.migrations", lambda _: broken)
    failing = asyncio.create_task(migrate_postgres(empty_postgres_url, apply=True))
    await asyncio.sleep(0.1)
    monkeypatch.setattr("holdfast.store.migrate.migrations", lambda _: known)
    assert await migrate_postgres(empty_postgres_url, apply=True) == ALL
    with pytest.raises(asyncpg.DivisionByZeroError):
        await failing
