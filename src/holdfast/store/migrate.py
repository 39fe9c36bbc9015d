"""Own numbered migrations, forward only. A database from a newer Holdfast is refused, not guessed at."""

from __future__ import annotations

from typing import Any

import asyncpg

from holdfast.engine.errors import StoreNotMigrated, StoreTooNew
from holdfast.store.statements import migrations

LOCK = 0x686F6C64  # any constant: two processes migrating at once take turns


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
    connection = await asyncpg.connect(url)
    try:
        if not apply:
            there = await connection.fetchval("select to_regclass('holdfast.migrations') is not null")
            version = await connection.fetchval("select max(number) from holdfast.migrations") if there else 0
            pending(version or 0, migrations("postgres"), apply=False, where="the PostgreSQL database")
            return []
        async with connection.transaction():
            await connection.execute(f"select pg_advisory_xact_lock({LOCK})")
            await connection.execute(
                "create schema if not exists holdfast;"
                "create table if not exists holdfast.migrations"
                " (number integer primary key, name text not null, applied_at timestamptz not null default now())"
            )
            version = await connection.fetchval("select max(number) from holdfast.migrations") or 0
            todo = pending(version, migrations("postgres"), apply=True, where="the PostgreSQL database")
            for number, name, sql in todo:
                await connection.execute(sql)
                await connection.execute("insert into holdfast.migrations values ($1, $2)", number, name)
        return [f"{number:04d}_{name}" for number, name, _ in todo]
    finally:
        await connection.close()


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
