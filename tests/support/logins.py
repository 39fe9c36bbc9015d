"""Logins of a PostgreSQL that are members of some roles and of nothing else, and databases that belong to one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests.support.postgres import Server


@contextmanager
def login(server: Server, *roles: str, options: str = "") -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"create role {name} login {options}")  # type: ignore[arg-type]
        for role in roles:
            admin.execute(f"grant {role} to {name}")  # type: ignore[arg-type]
        try:
            yield name
        finally:
            admin.execute(f"drop owned by {name}; drop role {name}")  # type: ignore[arg-type]


def make_roles(server: Server) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        for role in ("holdfast_door", "holdfast_worker"):
            try:
                admin.execute(f"create role {role} nologin")  # type: ignore[arg-type]
            except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                pass


@contextmanager
def owned_database(server: Server, owner: str) -> Iterator[str]:
    name = server.create_database()
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"alter database {name} owner to {owner}")  # type: ignore[arg-type]
    try:
        yield name
    finally:
        server.drop_database(name)
