"""Own numbered migrations, forward only. A database from a newer Holdfast is refused, not guessed at."""

from __future__ import annotations

from typing import Any

from holdfast.engine.errors import StoreNotMigrated, StoreTooNew
from holdfast.store.statements import migrations

DATABASE = "the PostgreSQL database"
WALLS = (
    "select holdfast.put_up_walls()"  # after every migration, so that they stand around the tables that are new, too
)


class _AnotherWasFirst(Exception):
    """Another process is migrating the same database, or just has."""


def pending(found: int, known: list[tuple[int, str, str]], *, apply: bool, where: str) -> list[tuple[int, str, str]]:
    newest = known[-1][0]
    if found > newest:
        raise StoreTooNew(
            f"{where} was migrated to version {found} by a newer Holdfast; this one knows version {newest}: "
            "upgrade the package, or open another database"
        )
    todo = [m for m in known if m[0] > found]
    if todo and not apply:
        raise StoreNotMigrated(
            f"{where} is at version {found}, this Holdfast needs version {newest}: run `holdfast migrate`"
        )
    return todo


async def migrate_postgres(url: str, *, apply: bool) -> list[str]:
    import asyncpg  # only where it is in use: whoever works on SQLite does not wait for it

    connection = await asyncpg.connect(url)
    try:
        while pending(await _version(connection), migrations("postgres"), apply=apply, where=DATABASE):
            try:
                async with connection.transaction():
                    return await _migrate_postgres(connection)
            except _AnotherWasFirst:
                continue  # and has committed, or given up: look again
        return []
    finally:
        await connection.close()


async def _version(connection: Any) -> int:
    there = await connection.fetchval("select to_regclass('holdfast.migrations') is not null")
    return (await connection.fetchval("select max(number) from holdfast.migrations") or 0) if there else 0


async def _migrate_postgres(connection: Any) -> list[str]:
    """Two who migrate at once take turns: whoever comes second waits for the first one's row, which is not committed
    before everything is. That needs no lock but the row's own."""
    from asyncpg import exceptions

    try:
        if await connection.fetchval("select to_regnamespace('holdfast') is null"):
            await connection.execute("create schema holdfast")
        await connection.execute(
            "create table if not exists holdfast.migrations"
            " (number integer primary key, name text not null, applied_at timestamptz not null default now())"
        )
    except (exceptions.UniqueViolationError, exceptions.DuplicateSchemaError, exceptions.DuplicateTableError) as error:
        raise _AnotherWasFirst from error
    todo = pending(await _version(connection), migrations("postgres"), apply=True, where=DATABASE)
    for number, name, sql in todo:
        row = "insert into holdfast.migrations values ($1, $2) on conflict do nothing"
        if await connection.execute(row, number, name) != "INSERT 0 1":
            raise _AnotherWasFirst
        await connection.execute(sql)
    await connection.execute(WALLS)
    return [f"{number:04d}_{name}" for number, name, _ in todo]


def migrate_sqlite(connection: Any, *, apply: bool, where: str) -> list[str]:
    def version() -> int:
        there = connection.execute("select 1 from sqlite_schema where name = 'holdfast_migrations'").fetchone()
        found = connection.execute("select max(number) from holdfast_migrations").fetchone()[0] if there else 0
        return int(found or 0)

    known = migrations("sqlite")
    if not pending(version(), known, apply=apply, where=where):
        return []
    connection.execute("begin immediate")
    try:
        todo = pending(version(), known, apply=True, where=where)  # again: another process may have been quicker
        connection.execute(
            "create table if not exists holdfast_migrations (number integer primary key, name text not null) strict"
        )
        for number, name, sql in todo:
            connection.execute(sql)
            connection.execute("insert into holdfast_migrations values (?, ?)", (number, name))
        connection.execute("commit")
    except BaseException:
        connection.execute("rollback")
        raise
    return [f"{number:04d}_{name}" for number, name, _ in todo]
