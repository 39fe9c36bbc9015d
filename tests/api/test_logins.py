"""A login for the server and one for its workers, each a member of its own role and of nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from holdfast.store.migrate import migrate_postgres
from tests.api.support import CHART, Api, House, wait_until
from tests.support.logins import login, make_roles, owned_database
from tests.support.postgres import Server


class Logins:
    def __init__(self, owner: str, door: str, worker: str) -> None:
        self.owner, self.door, self.worker = owner, door, worker


@pytest.fixture
def logins(postgres: Server) -> Iterator[Logins]:
    make_roles(postgres)
    with (
        login(postgres, "holdfast_door", "holdfast_worker") as owner, owned_database(postgres, owner) as name,
        login(postgres, "holdfast_door") as door, login(postgres, "holdfast_worker") as worker,
    ):  # fmt: skip
        urls = [postgres.dsn(name).replace("postgres@", f"{one}@") for one in (owner, door, worker)]
        asyncio.run(migrate_postgres(urls[0], apply=True))
        yield Logins(*urls)


def test_a_server_needs_only_the_doors_role_and_a_worker_only_its_own(logins: Logins, tmp_path: Path) -> None:
    owners, doors, workers = (House(url, tmp_path / name, migrated=True) for name, url in vars(logins).items())
    try:
        workers.work()
        url = doors.serve("--host", "127.0.0.1")
        api = Api(url, owners.key("admin", "acme"))
        assert api.ended(api.start("quick", {"n": 1}))["status"] == "completed"
        asked = api.open_task(_started(api))
        assert api.ok(f"POST /workflow/tasks/{asked['id']}/complete", {"output": {"approve": True}})
        assert api.ok("GET /workflow/instances")["items"]
        assert api.ok("GET /workflow/workers")["items"]
        assert "holdfast_queue_depth" in api("GET /metrics").text
        other = Api(url, owners.key("admin", "beta"))
        assert other.ok("GET /workflow/instances")["items"] == []
        bulk = {"action": "cancel", "filter": {"all": True}, "reason": "the end"}
        told = api.ok("POST /workflow/bulk", bulk, idempotency_key="b-1")
        wait_until(lambda: api.ok(f"GET /workflow/bulk/{told['id']}")["status"] == "completed", "the bulk action's end")
        with psycopg.connect(logins.door) as connection:
            acting = connection.execute("select usename from pg_stat_activity where datname = current_database()")
            assert {name for (name,) in acting.fetchall()} >= {_name(logins.door), _name(logins.worker)}
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("set role holdfast_worker")
    finally:
        for house in (owners, doors, workers):
            house.close()


def test_a_worker_that_may_only_be_a_door_says_so(logins: Logins, tmp_path: Path) -> None:
    house = House(logins.door, tmp_path, migrated=True)
    try:
        worker = house.run("worker")
        assert worker.process.wait(timeout=200) == 5
        assert "grant holdfast_worker to it" in worker.log.read_text()
    finally:
        house.close()


def _started(api: Api) -> str:
    api.ok("POST /workflow/definitions", {"spec": CHART})
    return api.start(CHART["id"])


def _name(url: str) -> str:
    return url.partition("//")[2].partition("@")[0]
