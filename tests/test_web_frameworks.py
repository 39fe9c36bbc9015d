"""The two examples of web frameworks, each served by real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 90
NOBODY = "ins_" + "0" * 32


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'web.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


def environment(url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "DJANGO_"))}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(ROOT / "examples" / "django_project")])
    return kept | {"PYTHONPATH": paths, "HOLDFAST_DATABASE_URL": url, "PYTHONUNBUFFERED": "1"}


@contextmanager
def running(log: Path, *command: str, url: str, cwd: Path, says: str) -> Iterator[re.Match[str]]:
    """A process from when it says something until it is asked to end, which it must do by itself."""
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=cwd, env=environment(url), stdout=out, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + SECONDS
        while (found := re.search(says, log.read_text())) is None:
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield found
        process.terminate()
        assert process.wait(SECONDS) in (0, -15), log.read_text()
        assert "Traceback" not in log.read_text() and "was destroyed" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.wait()


def until(ask: Any, wanted: Any) -> Any:
    end = time.monotonic() + SECONDS
    while True:
        found = ask()
        if wanted(found):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.05)


# -- FastAPI


def test_a_fastapi_service_starts_waits_answers_with_views_and_ends(url: str, tmp_path: Path) -> None:
    command = ("-m", "uvicorn", "examples.fastapi_service:app", "--port", "0")
    with (
        running(tmp_path / "log", *command, url=url, cwd=tmp_path, says=r"running on (http://\S+)") as said,
        httpx.Client(base_url=said[1], timeout=SECONDS) as client,
    ):
        before = datetime.now(UTC)
        answer = client.post("/refunds", json={"id": "o-1", "amount_minor": 4200})
        assert answer.status_code == 201
        view = answer.json()
        assert (view["workflow"], view["business_key"], view["input"]["amount_minor"]) == ("refund", "o-1", 4200)
        # A moment is RFC 3339 text, and no number that only we can read.
        assert abs((datetime.fromisoformat(view["created_at"]) - before).total_seconds()) < 60
        assert client.post("/refunds", json={"id": "o-1", "amount_minor": 4200}).json()["id"] == view["id"]
        assert client.post("/refunds", json={"id": "o-2", "amount_minor": -1}).status_code == 422

        def now() -> Any:
            return client.get(f"/refunds/{view['id']}").json()

        until(now, lambda found: found["status"] == "waiting")
        assert "approved" in client.get(f"/refunds/{view['id']}/why").json()["why"]
        assert client.post(f"/refunds/{view['id']}/approve", params={"by": "ann"}).json() == {"new": True}
        done = until(now, lambda found: found["status"] == "completed")
        assert done["result"]["approved_by"] == "ann" and done["completed_at"] > done["created_at"]
        entries = client.get(f"/refunds/{view['id']}/history").json()
        assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
        assert datetime.fromisoformat(entries[0]["at"]).tzinfo is not None
        assert [one["id"] for one in client.get("/refunds", params={"status": "completed"}).json()] == [view["id"]]
        late = client.post(f"/refunds/{view['id']}/approve", params={"by": "bob"})
        assert late.status_code == 409
        other = client.post("/refunds", json={"id": "o-1", "amount_minor": 4300})
        assert other.status_code == 409 and "was started with another input" in other.json()["detail"]
        for nobody in (NOBODY, "ins_00", "42", "'; drop table"):
            for path in (f"/refunds/{nobody}", f"/refunds/{nobody}/history", f"/refunds/{nobody}/why"):
                assert client.get(path).status_code == 404, path
        assert client.get("/refunds", params={"status": "asleep"}).status_code == 422
        described = client.get("/openapi.json").json()["paths"]["/refunds/{id}"]["get"]["responses"]["200"]
        fields = described["content"]["application/json"]["schema"]["properties"]
        assert fields["created_at"] == {"type": "string", "format": "date-time"}


# -- Django

DJANGO = ROOT / "examples" / "django_project"
PLACED_ON_SQLITE = """
import django
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"}})
django.setup()
from django.db import connection, transaction
from holdfast import ConnectionRefused, Context, Holdfast
hf = Holdfast("sqlite:///holdfast.db")
@hf.workflow("fulfil")
async def fulfil(ctx: Context, reference: str) -> None: ...
try:
    with transaction.atomic():
        hf.sync.start("fulfil", "o-1", connection=connection)
except ConnectionRefused as error:
    print(error)
try:
    hf.sync.start("fulfil", "o-1", connection=connection)
except ConnectionRefused as error:
    print(error)
with transaction.atomic():
    transaction.on_commit(lambda: hf.sync.start("fulfil", "o-1", business_key="o-1"))
print(len(hf.sync.instances()))
"""


def python(*words: str, url: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, env=environment(url), capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "was destroyed" not in done.stderr
    return done.stdout


def test_a_django_project_starts_in_its_own_transaction(postgres_url: str, tmp_path: Path) -> None:
    manage = str(DJANGO / "manage.py")
    python(manage, "migrate", "--verbosity", "0", url=postgres_url, cwd=tmp_path)
    python("-m", "holdfast.cli.main", "migrate", url=postgres_url, cwd=tmp_path)
    served = (manage, "runserver", "--noreload", "127.0.0.1:0")
    works = (manage, "holdfast_worker", "--log-format", "json")
    with (
        running(tmp_path / "web", *served, url=postgres_url, cwd=tmp_path, says=r"server at (http://\S+)") as said,
        running(tmp_path / "worker", *works, url=postgres_url, cwd=tmp_path, says="worker_started"),
        httpx.Client(base_url=said[1], timeout=SECONDS) as client,
    ):
        order = {"reference": "o-1", "amount_minor": 4200}
        declined = client.post("/orders", json={**order, "card": "declined"})
        assert declined.status_code == 402
        assert client.get("/orders/o-1").status_code == 404
        placed = client.post("/orders", json=order)
        assert placed.status_code == 201
        assert client.post("/orders", json=order).status_code == 409
        assert client.post("/orders/o-1/approve", params={"by": "ann"}).json() == {"new": True}
        shown = until(lambda: client.get("/orders/o-1").json(), lambda found: found["status"] == "paid")
        workflow = until(lambda: client.get("/orders/o-1").json()["workflow"], lambda one: one["status"] == "completed")
        assert workflow["id"] == shown["workflow"]["id"] == placed.json()["instance"]
        assert workflow["result"].startswith("o-1-") and workflow["completed_at"].endswith("Z")
    listed = python("-m", "holdfast.cli.main", "instances", "list", "-o", "json", url=postgres_url, cwd=tmp_path)
    assert [one["business_key"] for one in json.loads(listed)] == ["o-1"]  # of the declined one nothing is left


def test_a_django_project_on_sqlite_is_refused_in_its_transaction_and_may_start_after_it(tmp_path: Path) -> None:
    inside, without, count = python(
        "-c", PLACED_ON_SQLITE, url="sqlite:///unused.db", cwd=tmp_path
    ).splitlines()  # fmt: skip
    assert "two SQLite libraries" in inside
    assert "with transaction.atomic()" in without
    assert count == "1"
