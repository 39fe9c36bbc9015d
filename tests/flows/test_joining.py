"""Starting inside the caller's own transaction: the instance exists if and only if that transaction commits."""

import sqlite3
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from holdfast import BusinessKeyTaken, ConnectionRefused, Context, HoldfastError
from holdfast.testing import Harness
from tests.flows.support import query, row_counts


def declare(harness: Harness) -> None:
    @harness.workflow("echo")
    async def echo(ctx: Context, given: Any) -> Any:
        return given


@pytest.fixture
async def lite(tmp_path: Any) -> Any:
    async with Harness(url=f"sqlite:///{tmp_path / 'join.db'}") as harness:
        declare(harness)
        yield harness


@pytest.fixture
async def post(postgres_url: str) -> Any:
    async with Harness(url=postgres_url) as harness:
        declare(harness)
        yield harness


async def test_on_sqlite_the_instance_comes_with_the_commit_and_goes_with_the_rollback(lite: Harness) -> None:
    with lite.connection() as connection:
        connection.execute("create table orders (id text)")
        connection.execute("begin immediate")
        connection.execute("insert into orders values ('o-1')")
        kept = await lite.start("echo", 1, connection=connection)
        assert row_counts(lite.url)["instances"] == 0
        connection.execute("commit")
        connection.execute("begin immediate")
        connection.execute("insert into orders values ('o-2')")
        await lite.start("echo", 2, connection=connection)
        connection.execute("rollback")
    await lite.run_until_idle()
    assert await kept.result(timeout=0) == 1
    assert row_counts(lite.url)["instances"] == 1
    assert query(lite.url, "select id from orders") == [("o-1",)]


async def test_a_connection_outside_a_transaction_is_refused(lite: Harness) -> None:
    with lite.connection() as connection:
        with pytest.raises(ConnectionRefused, match="not in a transaction"):
            await lite.start("echo", 1, connection=connection)
    assert row_counts(lite.url)["instances"] == 0


class OwnConnection(sqlite3.Connection):
    pass


@pytest.mark.parametrize("factory", [sqlite3.Connection, OwnConnection])
async def test_a_sqlite3_connection_is_refused_with_the_reason(lite: Harness, factory: Any) -> None:
    connection = sqlite3.connect(":memory:", factory=factory)
    with pytest.raises(ConnectionRefused, match=r"two SQLite libraries .* commits vanish; use `with hf.connection"):
        await lite.start("echo", 1, connection=connection)
    connection.close()


async def test_anything_else_is_refused_with_what_would_do(lite: Harness, post: Harness) -> None:
    with pytest.raises(ConnectionRefused, match=r"only hf\.connection\(\)"):
        await lite.start("echo", 1, connection=object())
    with pytest.raises(ConnectionRefused, match="asyncpg, psycopg or SQLAlchemy"):
        await post.start("echo", 1, connection=object())
    with pytest.raises(HoldfastError, match="is for SQLite"):
        with post.connection():
            pass


async def test_a_business_key_holds_inside_the_callers_transaction_too(lite: Harness) -> None:
    first = await lite.start("echo", 1, business_key="k")
    with lite.connection() as connection:
        connection.execute("begin immediate")
        assert (await lite.start("echo", 1, business_key="k", connection=connection)).id == first.id
        with pytest.raises(BusinessKeyTaken):
            await lite.start("echo", 2, business_key="k", connection=connection)
        connection.execute("commit")
    assert row_counts(lite.url)["instances"] == 1


async def test_asyncpg_joins(post: Harness) -> None:
    connection = await asyncpg.connect(post.url)
    transaction = connection.transaction()
    await transaction.start()
    kept = await post.start("echo", 1, connection=connection, business_key="k")
    assert row_counts(post.url)["instances"] == 0
    await transaction.commit()
    transaction = connection.transaction()
    await transaction.start()
    await post.start("echo", 2, connection=connection)
    assert (await post.start("echo", 1, connection=connection, business_key="k")).id == kept.id
    with pytest.raises(BusinessKeyTaken):
        await post.start("echo", 3, connection=connection, business_key="k")
    await transaction.rollback()
    with pytest.raises(ConnectionRefused, match="not in a transaction"):
        await post.start("echo", 4, connection=connection)
    await connection.close()
    await post.run_until_idle()
    assert await kept.result(timeout=0) == 1
    assert row_counts(post.url)["instances"] == 1


@pytest.mark.parametrize("rows", [psycopg.rows.tuple_row, dict_row], ids=["tuples", "dicts"])
async def test_psycopg_joins_whatever_rows_it_makes(post: Harness, rows: Any) -> None:
    with psycopg.connect(post.url, row_factory=rows) as connection:
        kept = await post.start("echo", 1, connection=connection, business_key="k")
        assert row_counts(post.url)["instances"] == 0
        connection.commit()
        await post.start("echo", 2, connection=connection)
        assert (await post.start("echo", 1, connection=connection, business_key="k")).id == kept.id
        with pytest.raises(BusinessKeyTaken):
            await post.start("echo", 3, connection=connection, business_key="k")
        connection.rollback()
    await post.run_until_idle()
    assert await kept.result(timeout=0) == 1
    assert row_counts(post.url)["instances"] == 1


async def test_async_psycopg_joins(post: Harness) -> None:
    async with await psycopg.AsyncConnection.connect(post.url) as connection:
        kept = await post.start("echo", {"a": "%s :x $1"}, connection=connection, business_key="k")
        assert row_counts(post.url)["instances"] == 0
        await connection.commit()
        await post.start("echo", 2, connection=connection)
        assert (await post.start("echo", {"a": "%s :x $1"}, connection=connection, business_key="k")).id == kept.id
        await connection.rollback()
    await post.run_until_idle()
    assert await kept.result(timeout=0) == {"a": "%s :x $1"}
    assert row_counts(post.url)["instances"] == 1


async def test_an_autocommitting_psycopg_connection_is_refused_unless_it_is_in_a_transaction(post: Harness) -> None:
    with psycopg.connect(post.url, autocommit=True) as connection:
        with pytest.raises(ConnectionRefused, match="not in a transaction"):
            await post.start("echo", 1, connection=connection)
        with connection.transaction():
            await post.start("echo", 2, connection=connection)
    async with await psycopg.AsyncConnection.connect(post.url, autocommit=True) as waiting:
        with pytest.raises(ConnectionRefused, match="not in a transaction"):
            await post.start("echo", 1, connection=waiting)
    assert row_counts(post.url)["instances"] == 1


@pytest.mark.parametrize("kind", ["connection", "session", "own session"])
async def test_sqlalchemy_joins(post: Harness, kind: str) -> None:
    class OwnSession(Session):
        pass

    engine = sqlalchemy.create_engine(post.url.replace("postgresql://", "postgresql+psycopg://"))
    made = {"connection": engine.connect, "session": lambda: Session(engine), "own session": lambda: OwnSession(engine)}
    with made[kind]() as connection:
        kept = await post.start("echo", 1, connection=connection, business_key="k")
        assert row_counts(post.url)["instances"] == 0
        connection.commit()
        await post.start("echo", 2, connection=connection)
        assert (await post.start("echo", 1, connection=connection, business_key="k")).id == kept.id
        connection.rollback()
    engine.dispose()
    await post.run_until_idle()
    assert await kept.result(timeout=0) == 1
    assert row_counts(post.url)["instances"] == 1


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("kind", ["connection", "session"])
async def test_async_sqlalchemy_joins(post: Harness, driver: str, kind: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine  # needs sqlalchemy[asyncio]

    engine = create_async_engine(post.url.replace("postgresql://", f"postgresql+{driver}://"))
    async with engine.connect() if kind == "connection" else AsyncSession(engine) as connection:
        kept = await post.start("echo", 1, connection=connection, business_key="k")
        assert row_counts(post.url)["instances"] == 0
        await connection.commit()
        await post.start("echo", 2, connection=connection)
        assert (await post.start("echo", 1, connection=connection, business_key="k")).id == kept.id
        with pytest.raises(BusinessKeyTaken):
            await post.start("echo", 3, connection=connection, business_key="k")
        await connection.rollback()
    await engine.dispose()
    await post.run_until_idle()
    assert await kept.result(timeout=0) == 1
    assert row_counts(post.url)["instances"] == 1
