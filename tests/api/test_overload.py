"""More than the server can do: told at once to come back, nothing acknowledged is lost, and memory stays bounded."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx

from tests.api.support import Api, House, wait_until

FLOOD = 2000
LARGE = 500_000
GROWTH_MAX = 150 << 20


def resident(process: int) -> int:
    """Bytes of memory that a process has now."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def stall(url: str, key: str) -> socket.socket:
    """A request whose body never comes."""
    place = urlsplit(url)
    connection = socket.create_connection((place.hostname or "", place.port or 0), timeout=60)
    head = f"Host: {place.netloc}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json"
    connection.sendall(f"POST /workflow/instances HTTP/1.1\r\n{head}\r\nContent-Length: 100\r\n\r\n{{".encode())
    return connection


def test_more_at_once_than_can_be_served_is_told_so_at_once(house: House) -> None:
    url = house.serve(env={"HOLDFAST_MAX_IN_FLIGHT": "4"})
    api = Api(url, house.key())
    acknowledged = []

    def slow(number: int) -> None:
        """Nobody works here, so that a wait is as long as it was asked for. Whoever looks whether the server is full
        may have the last place for a moment."""
        body = {"definition_key": "quick", "business_key": f"slow-{number}", "input": number}
        while (found := Api(url, api.key)("POST /workflow/instances", body, prefer="wait=60")).status_code == 503:
            pass
        acknowledged.append((found.status_code, found.json().get("id")))

    def refused() -> httpx.Response | None:
        found = api("GET /workflow/me")
        return found if found.status_code == 503 else None

    stalled = [stall(url, str(api.key)) for _ in range(2)]
    pool = ThreadPoolExecutor(2)
    waiting = [pool.submit(slow, number) for number in range(2)]  # of all places, half may be waited in
    answer = wait_until(refused, "a full server")
    assert answer.json()["code"] == "overloaded"
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["content-type"] == "application/problem+json"
    for path in ("/livez", "/readyz", "/metrics"):  # who looks after it still gets in
        assert api(f"GET {path}").status_code == 200
    with ThreadPoolExecutor(8) as crowd:
        bodies: list[Any] = [{"definition_key": "quick", "input": n} for n in range(40)]
        turned = list(crowd.map(lambda body: Api(url, api.key)("POST /workflow/instances", body).status_code, bodies))
    assert set(turned) == {503}
    house.work()  # now somebody does, and those who waited are answered
    for one in waiting:
        one.result()
    pool.shutdown()
    for connection in stalled:
        connection.close()
    wait_until(lambda: api("GET /workflow/me").status_code == 200, "room for others")
    assert {status for status, _ in acknowledged} <= {201, 202} and len(acknowledged) == 2
    found = api.ok("GET /workflow/instances?limit=200")["items"]
    assert sorted(one["id"] for one in found) == sorted(
        word for _, word in acknowledged
    )  # and nothing that was refused


def test_starts_beyond_the_backlog_are_refused_and_none_is_lost(house: House) -> None:
    url = house.serve(env={"HOLDFAST_BACKLOG_LIMIT": "20"})
    api = Api(url, house.key())
    key, made, refused = uuid4().hex, [], 0

    def start(number: int) -> httpx.Response:
        mine = Api(url, api.key)
        return mine(
            "POST /workflow/instances", {"definition_key": "quick", "input": number}, idempotency_key=f"{key}.{number}"
        )

    def over() -> bool:
        nonlocal refused
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(start, range(len(made) + refused, len(made) + refused + 20)):
                if found.status_code == 201:
                    made.append(found.json()["id"])
                    continue
                refused += 1
                assert (found.status_code, found.json()["code"]) == (429, "quota-exceeded"), found.text
                assert int(found.headers["retry-after"]) >= 1
        return refused > 0

    wait_until(over, "a full backlog")
    batch = {"definition_key": "quick", "items": [{"input": n} for n in range(5)]}
    api.refused(429, "quota-exceeded", "POST /workflow/instances/batch", batch, idempotency_key=key)
    assert api("GET /workflow/instances").status_code == 200  # only starts wait
    house.work()
    wait_until(lambda: len(api.ok("GET /workflow/instances?status=completed&limit=200")["items"]) >= len(made), "work")
    # 429 burnt no key: the same request goes well now
    again = wait_until(lambda: (lambda a: a.status_code == 200 and a)(
        api("POST /workflow/instances/batch", batch, idempotency_key=key)
    ), "room")  # fmt: skip
    assert again.json()["started"] == 5
    listed: set[str] = set()
    cursor = ""
    while True:
        page = api.ok(f"GET /workflow/instances?limit=200{cursor}")
        listed |= {one["id"] for one in page["items"]}
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert set(made) <= listed
    assert len(listed) == len(made) + 5


def test_no_more_streams_than_may_be_open(house: House) -> None:
    url = house.serve(env={"HOLDFAST_MAX_STREAMS": "3"})
    api = Api(url, house.key())
    open_now = []
    try:
        for _ in range(3):
            client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {api.key}"}, timeout=60)
            stream = client.stream("GET", "/workflow/stream")
            answer = stream.__enter__()
            assert answer.status_code == 200
            parts = answer.iter_raw()
            next(parts)
            open_now.append((client, stream, parts))  # an iterator that nobody holds hangs up
        problem = api("GET /workflow/stream")
        assert (problem.status_code, problem.json()["code"]) == (503, "overloaded")
        assert int(problem.headers["retry-after"]) >= 1
        assert api("GET /workflow/me").status_code == 200
        client, stream, _ = open_now.pop()
        stream.__exit__(None, None, None)
        client.close()

        def free() -> bool:
            with api.client.stream("GET", "/workflow/stream") as answer:
                return answer.status_code == 200

        wait_until(free, "a free place")
    finally:
        for client, stream, _ in open_now:
            stream.__exit__(None, None, None)
            client.close()


def test_a_flood_of_large_bodies_leaves_no_memory_behind(tmp_path: Path) -> None:
    """Half are refused for their words, the others never come to their end."""
    house = House(f"sqlite:///{tmp_path / 'x.db'}", tmp_path)
    try:
        server = house.run("server", "--port", "0")
        url = house.url_of(server)
        key = house.key()
        body = b'{"definition_key": "quick", "nonsense": "' + b"x" * LARGE + b'"}'
        large = b"x" * ((1 << 20) + 1)

        def send(number: int) -> set[int]:
            seen = set()
            with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
                for _ in range(FLOOD // 8):
                    kind = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
                    try:
                        content = body if number % 2 else large
                        seen.add(client.post("/workflow/instances", content=content, headers=kind).status_code)
                    except httpx.TransportError:
                        pass  # hung up on while it was still sending
            return seen

        send(1), send(0)
        before = resident(server.process.pid)
        with ThreadPoolExecutor(8) as pool:
            statuses = set().union(*pool.map(send, range(8)))
        assert statuses <= {413, 422, 503} and 422 in statuses
        grown = resident(server.process.pid) - before
        assert grown < GROWTH_MAX, f"{grown:,} bytes more"
        assert Api(url, key)("GET /livez").status_code == 200
        assert Api(url, key).ok("GET /workflow/instances")["items"] == []
    finally:
        house.close()
