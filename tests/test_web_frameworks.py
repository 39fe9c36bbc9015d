"""The two examples of web frameworks, each served by real processes."""

from __future__ import annotations

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
        for nobody in (NOBODY, "ins_00", "42", "'; drop table"):
            for path in (f"/refunds/{nobody}", f"/refunds/{nobody}/history", f"/refunds/{nobody}/why"):
                assert client.get(path).status_code == 404, path
        assert client.get("/refunds", params={"status": "asleep"}).status_code == 422
        described = client.get("/openapi.json").json()["paths"]["/refunds/{id}"]["get"]["responses"]["200"]
        fields = described["content"]["application/json"]["schema"]["properties"]
        assert fields["created_at"] == {"type": "string", "format": "date-time"}
