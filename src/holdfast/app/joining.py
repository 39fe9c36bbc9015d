"""Starting inside the caller's own transaction: the instance exists if and only if that transaction commits."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.engine import codec, ids
from holdfast.engine.errors import BusinessKeyTaken, ConnectionRefused
from holdfast.engine.turns import NewInstance
from holdfast.store.statements import statement

if TYPE_CHECKING:
    from holdfast.app.service import Service

TWO_LIBRARIES = (
    "a sqlite3 connection cannot carry a start: Holdfast uses its own SQLite library (apsw), and two SQLite libraries "
    "on one file in one process drop each other's locks, so commits vanish; use `with hf.connection() as connection:`"
)

NO_TRANSACTION = "the connection is not in a transaction: begin one, or leave connection= away"


async def start_on(service: Service, born: NewInstance, connection: Any) -> bytes:
    run = runner(service, connection)
    values = dict(zip(NewInstance._fields, born, strict=True))
    if service.store.dialect == "postgres":
        await run("bind_tenant", values)  # else row-level security refuses a login that is only a door's
    if await run("start_alone", values):
        return born.id
    [(id_, given, _)] = await run("find_business_key", values)
    if codec.decode(bytes(given)) != codec.decode(born.input):
        assert born.business_key is not None
        raise BusinessKeyTaken(born.business_key, ids.instance_word(bytes(id_)))
    return bytes(id_)


def of_driver(connection: Any) -> Any:
    """The driver's own connection where Django's wrapper is given. Django has one for each thread, so this is asked in
    the thread of the caller."""
    if "django" not in {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}:
        return connection
    if not connection.in_atomic_block:
        raise ConnectionRefused(f"{NO_TRANSACTION}; in Django, `with transaction.atomic():`")
    return connection.connection


def runner(service: Service, connection: Any) -> Any:
    """A function that runs one of our statements on the caller's connection, whatever library it is from."""
    connection = of_driver(connection)
    # The classes it is made of, so that an author's own subclass counts as what it is.
    libraries = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    if {"sqlite3", "_sqlite3", "pysqlite3"} & set(libraries):
        raise ConnectionRefused(TWO_LIBRARIES)
    if service.store.dialect == "sqlite":
        if "apsw" not in libraries:
            raise ConnectionRefused(f"on SQLite a start joins only hf.connection() (apsw), not {libraries[0]}")
        return _on_apsw(connection)
    for library, join in (("asyncpg", _on_asyncpg), ("psycopg", _on_psycopg), ("sqlalchemy", _on_sqlalchemy)):
        if library in libraries:
            return join(connection)
    raise ConnectionRefused(
        f"on PostgreSQL a start joins a connection of asyncpg, psycopg or SQLAlchemy, not of {libraries[0]}"
    )


def _on_apsw(connection: Any) -> Any:
    async def run(name: str, values: dict[str, Any]) -> Sequence[Any]:
        if not connection.in_transaction:
            raise ConnectionRefused(NO_TRANSACTION)
        found = statement(name, "sqlite")
        return list(connection.execute(found.sql, found.bind(values)))

    return run


def _on_asyncpg(connection: Any) -> Any:
    async def run(name: str, values: dict[str, Any]) -> Sequence[Any]:
        if not connection.is_in_transaction():
            raise ConnectionRefused(NO_TRANSACTION)
        found = statement(name, "postgres")
        return list(await connection.fetch(found.sql, *found.bind(values)))

    return run


def _placed(name: str, mark: Any) -> tuple[str, tuple[str, ...]]:
    """The statement with another library's parameter marks."""
    found = statement(name, "postgres")
    sql = found.sql.replace("%", "%%") if mark("x").startswith("%") else found.sql
    for number in range(len(found.parameters), 0, -1):
        sql = sql.replace(f"${number}", mark(found.parameters[number - 1]))
    return sql, found.parameters


def _on_psycopg(connection: Any) -> Any:
    async def run(name: str, values: dict[str, Any]) -> Sequence[Any]:
        from psycopg.pq import TransactionStatus
        from psycopg.rows import tuple_row

        if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            raise ConnectionRefused(NO_TRANSACTION)
        sql, names = _placed(name, lambda word: f"%({word})s")
        cursor = connection.cursor(row_factory=tuple_row)  # whatever rows the connection makes for its owner
        done = cursor.execute(sql, {word: values[word] for word in names})
        if inspect.isawaitable(done):
            await done
            return list(await cursor.fetchall())
        return list(cursor.fetchall())

    return run


def _on_sqlalchemy(connection: Any) -> Any:
    async def run(name: str, values: dict[str, Any]) -> Sequence[Any]:
        from sqlalchemy import text

        sql, names = _placed(name, lambda word: f":{word}")
        found = connection.execute(text(sql), {word: values[word] for word in names})
        if inspect.isawaitable(found):
            found = await found
        return [tuple(row) for row in found.fetchall()]

    return run
