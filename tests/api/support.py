"""A real server and a real worker, in processes of their own, and callers who speak HTTP to them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from holdfast import Holdfast
from holdfast.app import api_keys, principals
from holdfast.app.audit import By
from tests.support.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
FORM = {"type": "object", "required": ["approve"], "properties": {"approve": {"type": "boolean"}}}
ASK = {"task": {"type": "HUMAN", "name": "approve", "title": "Approve it", "form": FORM}}
CHART: dict[str, Any] = {
    "id": "request",
    "initial": "review",
    "states": {
        "review": {"invoke": {"id": "ask", "src": ASK, "onDone": "booking"}, "on": {"withdrawn": "over"}},
        "booking": {"invoke": {"id": "book", "src": {"task": {"type": "SYSTEM", "name": "book"}}, "onDone": "over"}},
        "over": {"type": "final"},
    },
}


class Running:
    """A process of ours that is stopped with its test."""

    def __init__(self, log: Path, *words: str, env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.main", *words],
                stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd,
                env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"} | (env or {}),
            )  # fmt: skip

    def said(self, pattern: str) -> str | None:
        found = re.search(pattern, self.log.read_text())
        return None if found is None else found[1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


def wait_until(condition: Callable[[], Any], what: str | Callable[[], str]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in time: {what if isinstance(what, str) else what()}"
        time.sleep(0.02)
    return found


class Api:
    """A caller with a key. Answers come back as they are: status, headers and JSON."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.key = key
        self.client = httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_SECONDS)

    def __call__(self, operation: str, body: Any = None, **headers: str) -> httpx.Response:
        """`api("POST /workflow/instances", {…}, idempotency_key="k")`."""
        method, path = operation.split(" ", 1)
        words = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, (bytes, str)):
            words.setdefault("Content-Type", "application/json")
            return self.client.request(method, path, content=body, headers=words)
        return self.client.request(method, path, json=body, headers=words) if body is not None else (
            self.client.request(method, path, headers=words)
        )  # fmt: skip

    def ok(self, operation: str, body: Any = None, **headers: str) -> Any:
        """The JSON of an answer that went well."""
        found = self(operation, body, **headers)
        assert found.status_code < 300, f"{operation}: {found.status_code} {found.text}"
        return found.json()

    def refused(self, status: int, code: str, operation: str, body: Any = None, **headers: str) -> dict[str, Any]:
        """The problem of an answer that was refused just so."""
        found = self(operation, body, **headers)
        assert found.status_code == status, f"{operation}: {found.status_code} {found.text}"
        problem: dict[str, Any] = found.json()
        assert found.headers["content-type"] == "application/problem+json"
        assert (problem["code"], problem["status"]) == (code, status), problem
        assert problem["type"] == f"https://holdfast.dev/problems/{code}"
        assert problem["detail"] and problem["title"] and re.fullmatch(r"[0-9a-f]{32}", problem["trace_id"])
        return problem

    def start(self, key: str, given: Any = None, **more: Any) -> str:
        body = {"definition_key": key, "input": {} if given is None else given, **more}
        word: str = self.ok("POST /workflow/instances", body)["id"]
        return word

    def until(self, instance: str, condition: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """The instance, as soon as that holds."""
        last: dict[str, Any] = {}

        def holds() -> bool:
            nonlocal last
            last = self.ok(f"GET /workflow/instances/{instance}")
            return bool(condition(last))

        wait_until(holds, lambda: json.dumps(last, indent=1)[:3000])
        return last

    def ended(self, instance: str) -> dict[str, Any]:
        return self.until(instance, lambda seen: seen["completed_at"] is not None)

    def open_task(self, instance: str) -> dict[str, Any]:
        """Its one open HUMAN task."""

        def found() -> Any:
            return [
                task
                for task in self.ok(f"GET /workflow/tasks?instance_id={instance}")["items"]
                if task["type"] == "HUMAN"
            ]

        [task] = wait_until(found, "a task of a person")
        return task  # type: ignore[no-any-return]


async def _migrate(database: str) -> None:
    """As `holdfast migrate` does it, without starting Python."""
    async with Holdfast(database):
        pass


async def _make_key(database: str, tenant: str, name: str, kind: str, role: str, group: str) -> str:
    """As `holdfast principals create` and `holdfast keys create` do it, without starting Python twice."""
    async with Holdfast(database) as hf:
        by = By("the tests")
        await principals.create(
            hf.service, tenant, name=name, kind=kind, roles=[role], groups=[group] if group else [], by=by
        )
        return (await api_keys.create(hf.service, tenant, name, name="tests", by=by)).key


class House:
    """One database with a server and a worker, and keys for whoever the test needs."""

    def __init__(self, url: str, folder: Path, *, migrated: bool = False) -> None:
        self.database = url
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.processes: list[Running] = []
        self.keys: dict[tuple[str, str], str] = {}
        if not migrated:
            asyncio.run(_migrate(url))

    def cli(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli.main", *words, "--database", self.database],
            capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_SECONDS, check=False,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def run(self, *words: str, env: dict[str, str] | None = None) -> Running:
        log = self.folder / f"process-{len(self.processes)}.log"
        found = Running(log, *words, "--app", "tests.api.app:hf", "--database", self.database, env=env)
        self.processes.append(found)
        return found

    def serve(self, *words: str, env: dict[str, str] | None = None) -> str:
        """Start a server; its URL."""
        return self.url_of(self.run("server", "--port", "0", *words, env=env))

    def url_of(self, server: Running) -> str:
        def listening() -> str | None:
            assert server.process.poll() is None, f"the server died: {server.log.read_text()}"
            return server.said(r"listening on (http\S+)")

        url: str = wait_until(listening, lambda: f"listening: {server.log.read_text()}")
        return url

    def work(self, *words: str) -> Running:
        """Start a worker and wait until it works."""
        worker = self.run("worker", "--log-format", "json", *words)

        def at_work() -> bool:
            assert worker.process.poll() is None, f"the worker died: {worker.log.read_text()}"
            return "worker_started" in worker.log.read_text()

        wait_until(at_work, lambda: f"at work: {worker.log.read_text()}")
        return worker

    def key(self, role: str = "admin", tenant: str = "default", *, kind: str = "service", group: str = "") -> str:
        """A key of somebody with this role."""
        place = (f"{role}{kind}{group}", tenant)
        if place not in self.keys:
            name = f"{role}-{kind}{group and '-' + group}"
            self.keys[place] = asyncio.run(_make_key(self.database, tenant, name, kind, role, group))
        return self.keys[place]

    def close(self) -> None:
        for running in self.processes:
            if running.process.poll() is None:
                running.process.terminate()
        for running in self.processes:
            try:
                running.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()
