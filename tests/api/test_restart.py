"""Servers and workers that stop: what is under way is finished or handed back, and nothing acknowledged is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.support import CHART, PATIENCE_SECONDS, Api, House, Running, wait_until
from tests.support.auditor import assert_sound
from tests.support.size import sized

GRACE = "20"
CALLERS = sized(3, 6)
ROUNDS_MAX = 40  # of each caller: what bounds the load
PAUSE_SECONDS = sized(0.2, 0.0)  # of each caller between rounds
IN_USE = "idempotency-key-in-use"


class Fleet(House):
    """Several servers and workers on one database, each in its place."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, folder)
        self.env = {"HOLDFAST_TEST_FOLDER": str(folder), "HOLDFAST_APP": ""}
        self.urls: list[str] = []
        self.servers: list[Running] = []
        self.workers: list[Running] = []

    def run(self, *words: str, env: dict[str, str] | None = None) -> Running:
        log = self.folder / f"process-{len(self.processes)}.log"
        place = ("--app", "tests.api.rolling:hf", "--database", self.database)
        found = Running(log, *words, *place, env=self.env | (env or {}))
        self.processes.append(found)
        return found

    def add_server(self, *words: str) -> Running:
        server = self.run("server", "--port", "0", "--grace", GRACE, *words)
        self.servers.append(server)
        self.urls.append(self.url_of(server))
        return server

    def add_worker(self, *words: str, env: dict[str, str] | None = None) -> Running:
        worker = self.run("worker", "--log-format", "json", "--grace", GRACE, *words, env=env)
        self.workers.append(worker)
        wait_until(lambda: worker.said("(worker_started)"), lambda: f"at work: {worker.log.read_text()}")
        return worker

    def restart_server(self, at: int, number: int = signal.SIGTERM) -> int:
        code = self.servers[at].stop(number)
        self.servers[at] = self.run("server", "--port", "0", "--grace", GRACE)
        self.urls[at] = self.url_of(self.servers[at])
        return code

    def restart_worker(self, at: int) -> int:
        code = self.workers[at].stop()
        self.add_worker()
        self.workers[at] = self.workers.pop()
        return code

    def api(self, at: int = 0) -> Api:
        return Api(self.urls[at], self.key())

    def ran(self) -> Counter[str]:
        log = self.folder / "ran.log"
        return Counter(log.read_text().splitlines()) if log.exists() else Counter()


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    """On PostgreSQL; a test that asks for both databases says so by its parameters."""
    sqlite = getattr(request, "param", "postgres") == "sqlite"
    url = f"sqlite:///{tmp_path / 'api.db'}" if sqlite else request.getfixturevalue("postgres_url")
    found = Fleet(url, tmp_path)
    try:
        yield found
    finally:
        found.close()


on_both = pytest.mark.parametrize("fleet", ["sqlite", "postgres"], indirect=True)


class Unsettled(Exception):
    """The server that had this request is gone, and nobody may say yet what came of it."""


class Balancer:
    """A caller behind a load balancer: what one upstream refuses or drops goes to the next, with the same words."""

    def __init__(self, fleet: Fleet, at: int) -> None:
        self.fleet = fleet
        self.at = at
        self.clients: dict[str, httpx.Client] = {}
        self.headers = {"Authorization": f"Bearer {fleet.key()}"}
        self.dropped = 0

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        words = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        deadline = time.monotonic() + 2 * PATIENCE_SECONDS
        while time.monotonic() < deadline:
            url = self.fleet.urls[self.at % len(self.fleet.urls)]
            client = self.clients.setdefault(url, httpx.Client(base_url=url, timeout=PATIENCE_SECONDS))
            try:
                found = client.request(method, path, json=body, headers=words)
            except httpx.TransportError:
                found = None
            if found is not None and found.status_code not in (429, 503):
                if found.status_code == 409 and found.json()["code"] == IN_USE:
                    raise Unsettled
                assert found.status_code < 400, f"{method} {path}: {found.status_code} {found.text}"
                return found
            self.dropped += 1
            self.at += 1
            time.sleep(0.02)
        raise AssertionError(f"not in time: {method} {path}")


class Load:
    """Callers who go on until they are told to stop. They note what was acknowledged, and nothing else."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.over = threading.Event()
        self.rounds = 0
        self.acknowledged: dict[str, list[str]] = {"quick": [], "order": [], "request": [], "signal": [], "task": []}
        self.keys: dict[str, str] = {}  # instance → the word it was started with
        self.unsettled = 0
        self.dropped = 0
        self.pool = ThreadPoolExecutor(CALLERS)
        self.callers = [self.pool.submit(self._call, number) for number in range(CALLERS)]

    def _call(self, number: int) -> None:
        balancer = Balancer(self.fleet, number)
        for turn in range(ROUNDS_MAX):
            if self.over.is_set():
                break
            for kind in (self._quick, self._order, self._request):
                try:
                    kind(balancer, f"{kind.__name__[1:]}-{number}-{turn}")
                except Unsettled:
                    self.unsettled += 1
            self.rounds += 1
            self.over.wait(PAUSE_SECONDS)
        self.dropped += balancer.dropped

    def _start(self, balancer: Balancer, key: str, word: str, **more: Any) -> str:
        headers = more.pop("headers", {})
        found = balancer.ask(
            "POST", "/workflow/instances", {"definition_key": key, "input": {"key": word}, **more}, **headers
        )
        instance: str = found.json()["id"]
        self.acknowledged[key].append(instance)
        self.keys[instance] = word
        return instance

    def _quick(self, balancer: Balancer, word: str) -> None:
        """Its Idempotency-Key is all that keeps it from being started twice."""
        self._start(balancer, "quick", word, headers={"Idempotency_Key": word})

    def _order(self, balancer: Balancer, word: str) -> None:
        """A business key and no Idempotency-Key; then a signal whose id is its own guard."""
        instance = self._start(balancer, "order", word, business_key=word)
        balancer.ask(
            "POST", f"/workflow/instances/{instance}/signal",
            {"name": "confirmed", "payload": {"by": word}, "id": f"signal-{word}"},
        )  # fmt: skip
        self.acknowledged["signal"].append(instance)

    def _request(self, balancer: Balancer, word: str) -> None:
        """A chart that waits for a person, who answers."""
        headers = {"Idempotency_Key": word}
        instance = self._start(balancer, "request", word, business_key=word, headers=headers)
        task = wait_until(lambda: self._open_task(balancer, instance), "a task of a person")
        output = {"output": {"approve": True}}
        balancer.ask("POST", f"/workflow/tasks/{task}/complete", output, Idempotency_Key=f"done-{word}")
        self.acknowledged["task"].append(task)

    @staticmethod
    def _open_task(balancer: Balancer, instance: str) -> str | None:
        found = balancer.ask("GET", f"/workflow/tasks?instance_id={instance}").json()["items"]
        return next((task["id"] for task in found if task["type"] == "HUMAN"), None)

    def goes_on(self) -> None:
        """Until every caller has come through some more rounds, so that what was restarted was in use."""
        before = self.rounds
        wait_until(
            lambda: self.rounds >= before + CALLERS or all(caller.done() for caller in self.callers), "the load goes on"
        )

    def stop(self) -> None:
        self.over.set()
        for caller in self.callers:
            caller.result(timeout=2 * PATIENCE_SECONDS)
        self.pool.shutdown()

    def started(self) -> list[str]:
        return [word for kind in ("quick", "order", "request") for word in self.acknowledged[kind]]


def all_instances(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = api.ok(f"GET /workflow/instances?limit=200{cursor}")
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


def check(fleet: Fleet, load: Load) -> None:
    """Everything acknowledged is there once and came to its right end."""
    api = fleet.api()
    load_started = load.started()
    assert len(load_started) == len(set(load_started)) >= 3 * CALLERS
    wait_until(
        lambda: all(one["completed_at"] for one in all_instances(api) if load.keys.get(one["id"])), "all has ended"
    )
    there = {one["id"]: one for one in all_instances(api)}
    words = Counter((one["definition_key"], one["input"]["key"]) for one in there.values())
    assert set(words.values()) == {1}, "a request was carried out twice"
    assert set(load_started) <= set(there), "an acknowledged start is not there"
    for instance, word in load.keys.items():
        one = there[instance]
        told = word if one["definition_key"] == "quick" else {"key": word, "by": word}
        if one["definition_key"] == "request":
            told = one["result"]
        assert (one["status"], one["input"], one["result"]) == ("completed", {"key": word}, told)
    for instance in load.acknowledged["signal"]:
        history = api.ok(f"GET /workflow/instances/{instance}/history?limit=200")["items"]
        assert sum(entry["name"] == "confirmed" and entry["type"] == "SIGNAL_RECEIVED" for entry in history) == 1
    for task in load.acknowledged["task"]:
        found = api.ok(f"GET /workflow/tasks/{task}")
        assert (found["status"], found["output"], found["attempts"]) == ("succeeded", {"approve": True}, 1)
    ran = fleet.ran()
    for instance, word in load.keys.items():
        is_chart = there[instance]["definition_key"] == "request"
        for step in [f"book {instance}"] if is_chart else [f"one {word}", f"two {word}"]:
            assert ran[step] == 1, f"{step} ran {ran[step]} times"
    assert_sound(fleet.database, acknowledged=load_started, finished=not load.unsettled)


# -- one after the other, under load


def test_a_rolling_restart_of_two_servers_and_two_workers_loses_nothing(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.add_server()
        fleet.add_worker()
    fleet.api().ok("POST /workflow/definitions", {"spec": CHART})
    load = Load(fleet)
    codes = []
    for at in range(2):
        load.goes_on()
        codes.append(fleet.restart_server(at))
        load.goes_on()
        codes.append(fleet.restart_worker(at))
    load.goes_on()
    load.stop()
    assert codes == [0, 0, 0, 0]
    assert load.dropped, "nobody noticed: the servers were not in use"
    assert not load.unsettled, "a server that stops leaves no request half-way"
    check(fleet, load)


def test_a_single_server_and_a_worker_on_sqlite_are_restarted_and_lose_nothing(tmp_path: Path) -> None:
    fleet = Fleet(f"sqlite:///{tmp_path / 'api.db'}", tmp_path)
    try:
        fleet.add_server()
        fleet.add_worker()
        fleet.api().ok("POST /workflow/definitions", {"spec": CHART})
        load = Load(fleet)
        load.goes_on()
        codes = [fleet.restart_server(0)]
        load.goes_on()
        codes.append(fleet.restart_worker(0))
        load.goes_on()
        load.stop()
        assert codes == [0, 0]
        assert load.dropped and not load.unsettled
        check(fleet, load)
    finally:
        fleet.close()


def test_a_server_that_is_killed_loses_nothing_it_acknowledged(fleet: Fleet) -> None:
    fleet.add_server()
    fleet.add_server()
    fleet.add_worker()
    fleet.api().ok("POST /workflow/definitions", {"spec": CHART})
    load = Load(fleet)
    for at in range(2):
        load.goes_on()
        assert fleet.restart_server(at, signal.SIGKILL) == -signal.SIGKILL
    load.goes_on()
    load.stop()
    check(fleet, load)


# -- what a stop does


def in_background(work: Callable[[], Any]) -> Any:
    return ThreadPoolExecutor(1).submit(work)


@on_both
def test_a_stopping_server_answers_those_who_wait(fleet: Fleet) -> None:
    """Nobody works here, so that the wait alone would last far longer than the stop may."""
    server = fleet.add_server("--grace", "5")
    api = fleet.api()
    body = {"definition_key": "quick", "input": {"key": "k"}, "business_key": "waited-for"}
    waiting = in_background(lambda: api("POST /workflow/instances", body, Prefer="wait=60", Idempotency_Key="k1"))
    wait_until(lambda: fleet.api().ok("GET /workflow/instances?business_key=waited-for")["items"], "it is started")
    assert server.stop() == 0
    found = waiting.result(timeout=PATIENCE_SECONDS)
    assert (found.status_code, found.json()["status"]) == (202, "pending")
    fleet.add_server()
    again = fleet.api(1)("POST /workflow/instances", body, Prefer="wait=60", Idempotency_Key="k1")
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert again.json() == found.json()


@on_both
def test_a_stopping_server_says_of_a_strict_signal_that_it_is_not_taken_yet(fleet: Fleet) -> None:
    server = fleet.add_server("--grace", "5")
    api = fleet.api()
    instance = api.start("order", {"key": "k"})
    words = {"name": "confirmed", "payload": {"by": "k"}, "id": "s1", "strict": True}
    waiting = in_background(lambda: api(f"POST /workflow/instances/{instance}/signal", words, Prefer="wait=60"))
    reader = fleet.api()
    wait_until(lambda: reader.ok(f"GET /workflow/instances/{instance}")["version"] > 0, "it is sent")
    assert server.stop() == 0
    found = waiting.result(timeout=PATIENCE_SECONDS)
    assert (found.status_code, found.json()["taken"]) == (202, False)


@on_both
def test_a_stopping_server_ends_its_streams(fleet: Fleet) -> None:
    server = fleet.add_server()
    api = fleet.api()
    instance = api.start("quick", {"key": "k"})
    opened = threading.Event()

    def follow(path: str) -> bytes:
        with api.client.stream("GET", path) as stream:
            assert stream.status_code == 200
            found = b""
            for part in stream.iter_raw():
                found += part
                opened.set()
            return found

    following = in_background(lambda: follow(f"/workflow/instances/{instance}/stream"))
    feed = in_background(lambda: follow("/workflow/stream"))
    assert opened.wait(PATIENCE_SECONDS)
    assert server.stop() == 0
    for stream in (following, feed):
        assert stream.result(timeout=PATIENCE_SECONDS).startswith(b"retry:")


@on_both
def test_a_draining_server_is_not_ready_and_goes_on_until_told_twice(fleet: Fleet) -> None:
    server = fleet.add_server("--drain", "3600")
    api = fleet.api()
    assert api("GET /readyz").status_code == 200
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: api("GET /readyz").status_code == 503, "not ready any more")
    assert api("GET /livez").status_code == 200
    assert api("POST /workflow/instances", {"definition_key": "quick", "input": {"key": "k"}}).status_code == 201
    assert server.process.poll() is None
    assert server.stop() == 130


@on_both
def test_a_drained_server_stops_by_itself(fleet: Fleet) -> None:
    server = fleet.add_server("--drain", "0.5")
    assert server.stop() == 0


@on_both
def test_a_stopping_worker_hands_back_what_it_cannot_finish(fleet: Fleet) -> None:
    fleet.add_server()
    first = fleet.add_worker("--grace", "1", env={"HOLDFAST_TEST_ENDLESS": "1"})
    api = fleet.api()
    instance = api.start("endless", {"key": "k"})
    wait_until(lambda: fleet.ran()["endless k"] == 1, "it is under way")
    assert first.stop() == 0
    assert api.ok(f"GET /workflow/instances/{instance}")["completed_at"] is None
    fleet.add_worker()
    assert (api.ended(instance)["status"], fleet.ran()["endless k"]) == ("completed", 2)
    assert_sound(fleet.database, acknowledged=[instance])


@on_both
def test_a_worker_told_twice_stops_at_once_and_another_goes_on(fleet: Fleet) -> None:
    fleet.add_server()
    first = fleet.add_worker("--grace", "3600", env={"HOLDFAST_TEST_ENDLESS": "1"})
    api = fleet.api()
    instance = api.start("endless", {"key": "k"})
    wait_until(lambda: fleet.ran()["endless k"] == 1, "it is under way")
    first.process.send_signal(signal.SIGTERM)
    wait_until(lambda: first.said("(stopping)"), "it has heard")
    assert first.stop() == 130
    fleet.add_worker()
    assert api.ended(instance)["status"] == "completed"
