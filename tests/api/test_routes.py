"""One server for several databases: every tenant is served from its own, and from no other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import asyncpg
import pytest

from tests.api.support import Api, House, Running
from tests.support.postgres import Server


def _count(url: str, tenant: str) -> int:
    """How many instances of a tenant a database holds."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        found = connection.execute("select count(*) from holdfast_instances where tenant_id = ?", (tenant,)).fetchone()
        connection.close()
        return int(found[0])

    async def ask() -> int:
        connection = await asyncpg.connect(url)
        try:
            return int(
                await connection.fetchval("select count(*) from holdfast.instances where tenant_id = $1", tenant)
            )
        finally:
            await connection.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_a_tenant_with_a_database_of_its_own_lives_there_alone(
    dialect: str, tmp_path: Path, postgres: Server, postgres_template: str
) -> None:
    if dialect == "sqlite":
        _two(f"sqlite:///{tmp_path / 'first.db'}", f"sqlite:///{tmp_path / 'second.db'}", tmp_path)
        return
    with (
        postgres.database(template=postgres_template) as first,
        postgres.database(template=postgres_template) as second,
    ):
        _two(first, second, tmp_path)


def _two(first: str, second: str, folder: Path) -> None:
    one, other = House(first, folder), House(second, folder / "other")
    try:
        (folder / "holdfast.toml").write_text(f'[routes]\nacme = "{second}"\n')
        server = Running(
            folder / "server.log", "server", "--port", "0", "--app", "tests.api.app:hf", "--database", first,
            env={"HOLDFAST_CONFIG": str(folder / "holdfast.toml")},
        )  # fmt: skip
        one.processes.append(server)
        url = one.url_of(server)
        mine, theirs = Api(url, one.key("admin", "default")), Api(url, other.key("admin", "acme"))
        assert (mine.ok("GET /workflow/me")["tenant_id"], theirs.ok("GET /workflow/me")["tenant_id"]) == (
            "default", "acme",
        )  # fmt: skip
        other.work()
        word = theirs.start("quick", {"n": 1}, business_key="same")
        mine.start("quick", {"n": 2}, business_key="same")
        assert theirs.ended(word)["result"] == {"n": 1}
        assert [_count(first, "default"), _count(first, "acme")] == [1, 0]
        assert [_count(second, "default"), _count(second, "acme")] == [0, 1]
        # A key of acme in the first database, where acme is not at home, opens nothing.
        Api(url, one.key("admin", "acme")).refused(401, "unauthenticated", "GET /workflow/me")
    finally:
        one.close()
        other.close()
