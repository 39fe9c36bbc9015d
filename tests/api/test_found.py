"""Faults that hostile readers found, each with the request that showed it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from holdfast import Holdfast
from holdfast.app import api_keys
from holdfast.app.audit import By
from tests.api.served import Served
from tests.api.support import CHART, Api, House, wait_until
from tests.api.test_idempotency import sql
from tests.support.patience import PATIENCE_SECONDS


def _died_before_the_answer(served: Served, key: str) -> None:
    """What a crash leaves between the change and its answer: the row says STARTED, and its lease is over."""
    sql(
        served.house,
        "update requests set status = 'STARTED', response = null, response_status = null, response_headers = null, "
        f"locked_by = 'dead', locked_at = 0 where key = '{key}'",
    )


def test_nobody_publishes_or_starts_holdfasts_own_workflows(served: Served) -> None:
    api = served.api("admin", f"own-{uuid4().hex[:6]}")
    problem = api.refused(
        422, "validation-failed", "POST /workflow/definitions", {"spec": CHART, "key": "holdfast.bulk"}
    )
    assert "Holdfast's own" in problem["detail"]
    for body in ({"definition_key": "holdfast.bulk"}, {"definition_key": "holdfast.bulk", "version": 1}):
        api.refused(404, "not-found", "POST /workflow/instances", body)
    child = {
        "id": "thief", "initial": "on",
        "states": {"on": {"invoke": {"id": "c", "src": {"workflow": "holdfast.bulk", "version": 1}, "onError": "off"}},
                   "off": {"type": "final"}},
    }  # fmt: skip
    made = api("POST /workflow/definitions", {"spec": child})
    if made.status_code == 201:
        word = api.start("thief", {"tenant_id": "default", "action": "cancel"})
        seen = api.until(word, lambda one: one["completed_at"] or one["status"] == "pending")
        assert not [e for e in seen["history"] if e["type"] == "CHILD_STARTED"]


@pytest.mark.parametrize("change", ["principal", "tenant", "definition", "key", "assign", "complete"])
def test_a_change_that_was_made_is_not_refused_to_who_asks_again(served: Served, change: str) -> None:
    """With If-Match: the version has moved, by this very request."""
    api = served.api("admin", f"again-{uuid4().hex[:6]}")
    operation, body, path = _changes(api)[change]
    etag = api(f"GET {path}").headers["etag"]
    key = uuid4().hex
    first = api(operation, body, if_match=etag, idempotency_key=key)
    assert first.status_code == 200, first.text
    _died_before_the_answer(served, key)
    again = api(operation, body, if_match=etag, idempotency_key=key)
    assert (again.status_code, again.json()) == (200, first.json()), again.text
    other = api(operation, body, if_match=etag, idempotency_key=uuid4().hex)
    assert other.status_code in (409, 412), "another request with that version comes too late"


def _changes(api: Api) -> dict[str, tuple[str, Any, str]]:
    who = "/workflow/principals/" + api.ok(
        "POST /workflow/principals", {"name": "ann", "kind": "human", "roles": ["viewer"]}
    )["id"]  # fmt: skip
    made = api.ok("POST /workflow/definitions", {"spec": {**CHART, "id": "again"}})
    definition = f"/workflow/definitions/{made['id']}"
    key = "/workflow/keys/" + api.ok("POST /workflow/keys", {"principal": "ann", "name": "k"})["id"]
    task = "/workflow/tasks/" + api.open_task(api.start("again"))["id"]
    return {
        "principal": (f"PATCH {who}", {"roles": ["approver"]}, who),
        "tenant": ("PATCH /workflow/tenant", {"http_hosts": ["api.example.org"]}, "/workflow/tenant"),
        "definition": (f"POST {definition}/deactivate", None, definition),
        "key": (f"POST {key}/revoke", None, key),
        "assign": (f"POST {task}/assign", {"assignee": "ann"}, task),
        "complete": (f"POST {task}/complete", {"output": {"approve": True}}, task),
    }


def test_a_body_that_never_comes_gives_its_place_back(house: House) -> None:
    """Nobody needs a key to send a form drop by drop: forms have room of their own, and little time."""
    url = house.serve(env={"HOLDFAST_MAX_IN_FLIGHT": "2"})
    api = Api(url, house.key())
    lazy = [connected(url) for _ in range(4)]
    for connection in lazy:
        connection.sendall(
            b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: 100\r\n\r\nk"
        )
    assert api.ok("GET /workflow/me")["name"] == "admin-service"
    answers = sorted(connection.recv(65536).split(b"\r\n", 1)[0] for connection in lazy)
    assert answers == [b"HTTP/1.1 400 Bad Request"] + [b"HTTP/1.1 503 Service Unavailable"] * 3
    assert api.ok("GET /workflow/me")["name"] == "admin-service"


def connected(url: str, receive_bytes: int | None = None) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(60)
    connection.connect((host, int(port)))
    return connection


def cut_off(connection: socket.socket) -> bool:
    """Whether the other side ends the connection, whatever comes before."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def test_who_takes_nothing_of_an_answer_holds_up_nobody(house: House) -> None:
    url = house.serve(env={"HOLDFAST_MAX_IN_FLIGHT": "2", "HOLDFAST_TEST_STUCK_SECONDS": "2"})
    api = Api(url, house.key())
    deaf = [connected(url, 4096) for _ in range(6)]
    for connection in deaf:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 30)
    for _ in range(20):
        assert api.ok("GET /workflow/me")["name"] == "admin-service"
    time.sleep(3)  # longer than anybody waits for them
    assert all(cut_off(connection) for connection in deaf)


def test_who_never_ends_the_head_of_a_request_is_cut_off(house: House) -> None:
    url = house.serve(env={"HOLDFAST_TEST_STUCK_SECONDS": "1", "HOLDFAST_MAX_CONNECTIONS": "4"})
    silent, half, again = (connected(url) for _ in range(3))
    half.sendall(b"GET /livez HTTP/1.1\r\nHost:")
    again.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert again.recv(65536).startswith(b"HTTP/1.1 200")
    again.sendall(b"GET /livez HT")
    assert all(cut_off(connection) for connection in (silent, half, again))
    held = [connected(url) for _ in range(4)]
    assert cut_off(connected(url)), "there are as many as there may be"
    for connection in held:
        connection.close()


def test_a_large_chart_is_checked_beside_everything_else(served: Served) -> None:
    """Its expressions take seconds to compile: nobody else waits for them."""
    guard = "event.x == 1 && event.y in [1,2,3] || event.z.a.b.c > 5 && !(event.q == 'a' || event.w < 7)"
    many = [{"target": "a", "guard": f"{guard} || event.k == {n}"} for n in range(3000)]
    spec = {"id": "large", "initial": "a", "states": {"a": {"on": {"go": many}}}}
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(lambda: served.api()("POST /workflow/definitions/lint", {"spec": spec}).json())
        answered, probe = 0, Api(served.url, None)
        while not checked.done():
            assert probe("GET /livez").status_code == 200
            answered += 1
        assert "sound" in checked.result()
    assert answered > 1


def test_a_key_that_ends_in_the_last_year_is_rotated(served: Served) -> None:
    api = served.api("admin", f"last-{uuid4().hex[:6]}")
    owner = {"principal": "admin-service", "name": "k", "expires_at": "9999-12-31T23:59:59Z"}
    made = api.ok("POST /workflow/keys", owner)
    rotated = api.ok(f"POST /workflow/keys/{made['id']}/rotate")
    assert rotated["expires_at"].startswith("9999-12-31")
    assert len(api.ok("GET /workflow/keys")["items"]) >= 2


def test_publishing_and_bulk_that_were_carried_out_are_not_refused_to_who_asks_again(served: Served) -> None:
    api = served.api("admin", f"again-{uuid4().hex[:6]}")
    assert api.ok("POST /workflow/definitions", {"spec": CHART})["version"] == 1
    longer = {**CHART, "states": {**CHART["states"], "shelf": {"type": "final"}}}
    key = uuid4().hex
    first = api("POST /workflow/definitions", {"spec": longer}, idempotency_key=key, if_match='"1"')
    _died_before_the_answer(served, key)
    second = api("POST /workflow/definitions", {"spec": longer}, idempotency_key=key, if_match='"1"')
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    words = [api.start(CHART["id"]) for _ in range(3)]
    key, order = uuid4().hex, {"action": "cancel", "filter": {"all": True}, "reason": "r", "expected": 3}
    first = api("POST /workflow/bulk", order, idempotency_key=key)
    for word in words:
        api.ended(word)
    _died_before_the_answer(served, key)
    second = api("POST /workflow/bulk", order, idempotency_key=key)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["id"] == second.json()["id"]


def test_nothing_a_caller_sends_is_our_fault(served: Served) -> None:
    api = served.api("admin", f"fault-{uuid4().hex[:6]}")
    for host in ("a:b:c", "x:99999999"):
        assert api("GET /nowhere", host=host).status_code in (400, 404), host
    for path in ("/login", "/logout"):
        answer = api.client.post(path, data={"key": "x"}, headers={"Origin": "http://[x"})
        assert answer.status_code == 403, path
    states = {f"s{n}": {"on": {"go": f"s{n + 1}"}} for n in range(400)} | {"s400": {"type": "final"}}
    api.ok("POST /workflow/definitions", {"spec": {"id": "wide", "initial": "s0", "states": states}})
    problem = api.refused(422, "validation-failed", "GET /workflow/definitions/wide/graph")
    assert "Mermaid" in problem["detail"]
    wide = "".join(chr(0x1F000 + (n * 7919) % 0xF00) for n in range(500))  # hardly to be compressed
    api.ok("POST /workflow/definitions", {"spec": CHART, "key": wide[:150]})
    body = {"definition_key": wide[:150], "business_key": wide}
    problem = api.refused(422, "validation-failed", "POST /workflow/instances", body)
    assert "2,600 bytes together" in problem["detail"]
    body["business_key"] = wide[:450]
    assert api("POST /workflow/instances", body).status_code == 201


def test_many_who_publish_one_key_at_once_each_get_a_version(served: Served) -> None:
    api = served.api("admin", f"crowd-{uuid4().hex[:6]}")

    def publish(number: int) -> int:
        spec = {**CHART, "id": "crowd", "description": f"number {number}"}
        return Api(served.url, api.key)("POST /workflow/definitions", {"spec": spec}).status_code

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(publish, range(32))) == {201}


def test_a_scope_shows_nothing_of_what_another_opens(served: Served) -> None:
    api = served.api("admin", f"scope-{uuid4().hex[:6]}")
    api.ok("POST /workflow/definitions", {"spec": CHART})

    def only(*scopes: str) -> Api:
        body = {"principal": "admin-service", "name": "s", "scopes": list(scopes)}
        return Api(served.url, api.ok("POST /workflow/keys", body)["key"])

    body = {"definition_key": CHART["id"], "business_key": uuid4().hex}
    word = api.ok("POST /workflow/instances", body)["id"]
    api.open_task(word)
    seen = only("instances:read").ok(f"GET /workflow/instances/{word}")
    assert seen["tasks"] == [] and "tasks" in seen["left_out"]
    assert only("instances:read", "tasks:read").ok(f"GET /workflow/instances/{word}")["tasks"]
    graph = f"GET /workflow/definitions/{CHART['id']}/graph"
    assert only("definitions:read")(graph).status_code == 200
    only("definitions:read").refused(403, "forbidden", f"{graph}?instance_id={word}")
    assert only("definitions:read", "instances:read")(f"{graph}?instance_id={word}").status_code == 200
    quick = {"definition_key": "quick", "business_key": uuid4().hex, "input": {"n": 7}}
    api.ended(api.ok("POST /workflow/instances", quick)["id"])
    there = only("instances:start")("POST /workflow/instances", quick)
    assert there.status_code == 200
    assert (there.json()["result"], there.json()["created_by"]) == (None, None)
    assert "result" in there.json()["left_out"]
    mine = [key["id"] for key in api.ok("GET /workflow/keys")["items"]]
    other = api.ok("POST /workflow/principals", {"name": "boss", "kind": "human", "roles": ["admin"]})
    theirs = api.ok("POST /workflow/keys", {"principal": other["id"], "name": "k"})["id"]
    few = only("access:manage")
    few.refused(403, "forbidden", f"POST /workflow/keys/{theirs}/revoke")
    assert few(f"POST /workflow/keys/{mine[-1]}/revoke").status_code == 200, "one's own key is one's own to end"


def test_the_audit_of_an_instance_names_who_decided_and_shows_no_payload(served: Served) -> None:
    tenant = f"trail-{uuid4().hex[:6]}"
    api, auditor = served.api("admin", tenant), served.api("auditor", tenant)
    api.ok("POST /workflow/definitions", {"spec": CHART})
    secret = f"secret-{uuid4().hex}"
    word = api.ok("POST /workflow/instances", {"definition_key": CHART["id"], "context": {"iban": secret}})["id"]
    task = api.open_task(word)["id"]
    done = {"output": {"approve": True}, "reason": secret}
    Api(served.url, served.house.key("approver", tenant, kind="human")).ok(
        f"POST /workflow/tasks/{task}/complete", done
    )
    api.ended(word)
    history = api.ok(f"GET /workflow/instances/{word}/history?after=0&limit=200")["items"]
    items, cursor = [], ""
    while cursor is not None:
        answer = auditor(f"GET /workflow/instances/{word}/audit?limit=3{cursor and '&cursor=' + cursor}")
        assert answer.status_code == 200 and secret not in answer.text
        items += answer.json()["items"]
        cursor = answer.json()["next_cursor"]
    assert [(one["seq"], one["type"], one["hash"]) for one in items] == [
        (one["seq"], one["type"], one["hash"]) for one in history
    ]
    by = {one["type"]: one["actor"] for one in items if one["actor"]}
    assert by["INSTANCE_STARTED"] == "admin-service" and by["TASK_COMPLETED"] == "approver-human"
    stopped = api.start("order", {"id": "x"})
    api.until(stopped, lambda seen: seen["status"] == "waiting")
    api.ok(f"POST /workflow/instances/{stopped}/cancel", {"reason": secret})
    api.ended(stopped)
    answer = auditor(f"GET /workflow/instances/{stopped}/audit")
    assert "admin-service" in {one["actor"] for one in answer.json()["items"][1:]} and secret not in answer.text
    served.api("viewer", tenant).refused(403, "forbidden", f"GET /workflow/instances/{word}/audit")


def test_a_start_in_the_past_is_one_of_now(served: Served) -> None:
    api, body = served.api("admin", f"past-{uuid4().hex[:6]}"), {"definition_key": "order", "input": {"id": "x"}}
    started = api.ok("POST /workflow/instances", {**body, "start_at": "0001-01-01T00:00:00Z"})
    assert started["run_at"] is None or started["run_at"] >= started["created_at"]


@pytest.mark.parametrize("house", ["postgres"], indirect=True)
def test_a_database_that_lets_nobody_in_is_away_and_the_server_lives(house: House) -> None:
    url = house.serve()
    api = Api(url, house.key())
    name = house.database.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(house.database.replace(f"/{name}", "/postgres"), autocommit=True) as admin:
        admin.execute(f"alter database {name} allow_connections false")
        admin.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'")
        try:
            wait_until(lambda: api("GET /workflow/me").status_code == 503, "503")
            assert api("GET /livez").status_code == 200, "a probe that shows a key does not restart a healthy server"
        finally:
            admin.execute(f"alter database {name} allow_connections true")
    wait_until(lambda: api("GET /workflow/me").status_code == 200, "back")


def test_a_large_body_of_long_names_is_read_in_passing(served: Served) -> None:
    api = served.api()
    body = b'{"spec": {"' + b"k" * 300_000 + b'": [' + b"0," * 150_000 + b"0]}}"
    assert api("POST /workflow/definitions/lint", body).status_code == 200


def test_a_bulk_key_alone_cancels_nobody(served: Served) -> None:
    api = served.api()
    made = api.ok("POST /workflow/keys", {"principal": "admin-service", "name": "b", "scopes": ["instances:bulk"]})
    order = {"action": "cancel", "filter": {"business_key": "x"}, "reason": "r", "dry_run": True}
    problem = Api(served.url, made["key"]).refused(
        403, "forbidden", "POST /workflow/bulk", order, idempotency_key=uuid4().hex
    )
    assert "instances:control" in problem["detail"]


def test_a_rotated_key_still_has_an_end_and_one_that_is_over_is_not_rotated(served: Served) -> None:
    api = served.api()
    body = {"principal": "admin-service", "name": "short", "expires_at": "2999-01-01T00:00:00Z"}
    made = api.ok("POST /workflow/keys", body)
    assert api.ok(f"POST /workflow/keys/{made['id']}/rotate")["expires_at"] is not None
    soon = api.ok("POST /workflow/keys", {**body, "expires_at": (datetime.now(UTC) + timedelta(seconds=1)).isoformat()})
    wait_until(lambda: api(f"POST /workflow/keys/{soon['id']}/rotate").status_code == 404, "the end of a key")


def test_who_may_not_read_any_more_does_not_go_on_listening(served: Served) -> None:
    api = served.api("admin", f"listen-{uuid4().hex[:6]}")
    made = api.ok("POST /workflow/keys", {"principal": "admin-service", "name": "ear"})
    word = api.start("order", {"id": "l"})
    with Api(served.url, made["key"]).client.stream("GET", f"/workflow/instances/{word}/stream") as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("retry:")
        api.ok(f"POST /workflow/keys/{made['id']}/revoke")
        for _ in lines:
            pass  # it ends by itself


def test_a_name_that_looks_like_an_id_is_nobodys(served: Served) -> None:
    api = served.api()
    body = {"name": "prn_" + "0" * 32, "kind": "human", "roles": []}
    api.refused(422, "validation-failed", "POST /workflow/principals", body)


def test_a_feed_is_not_read_from_the_beginning_of_the_world(served: Served) -> None:
    api = served.api()
    word = "ffffffffffffff" if served.dialect == "sqlite" else "0.ffffffff.0.0.0."
    api.refused(422, "validation-failed", "GET /workflow/stream", last_event_id=word)
    deep = "W1tb" * 400
    api.refused(422, "validation-failed", f"GET /workflow/instances?cursor={deep}")


def test_whoever_is_refused_finds_the_trace_id_in_the_log(house: House) -> None:
    """With the server's default flags: a route that is not there, a method, a key, an id, a body."""
    url = house.serve("--log-format", "json")
    api = Api(url, house.key())
    nobody = "ins_" + "0" * 32
    refused = [
        api.refused(404, "not-found", "GET /nowhere"),
        api.refused(405, "method-not-allowed", "DELETE /workflow/instances"),
        Api(url, "wrong").refused(401, "unauthenticated", "GET /workflow/me"),
        api.refused(404, "not-found", f"GET /workflow/instances/{nobody}"),
        api.refused(422, "validation-failed", "POST /workflow/instances", {"colour": "red"}),
    ]
    [server] = house.processes
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    logged = {line["trace_id"]: line for line in lines if line.get("event") == "request"}
    for problem in refused:
        line = logged[problem["trace_id"]]
        assert (line["level"], line["status"]) == ("info", problem["status"])
    assert logged[refused[3]["trace_id"]]["instance_id"] == nobody
    counted = api("GET /metrics").text
    assert re.search(r'_count\{method="GET",route="\(none\)",status="404"\} 1', counted), counted[-3000:]


def test_options_says_what_is_offered(served: Served) -> None:
    answer = served.api()("OPTIONS /workflow/instances")
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, OPTIONS, POST")
    assert answer.headers["x-request-id"] and not answer.content


def test_the_metrics_of_all_tenants_are_not_behind_a_public_address(house: House) -> None:
    url = house.serve(env={"HOLDFAST_PUBLIC_URL": "https://flow.example.org"})
    for who in (None, house.key("admin")):
        Api(url, who).refused(401, "unauthenticated", "GET /metrics")


def test_one_that_was_there_answers_200_also_to_who_waits(served: Served) -> None:
    api = served.api()
    body = {"definition_key": "order", "business_key": uuid4().hex, "input": {"id": "x"}}
    assert api("POST /workflow/instances", body).status_code == 201
    assert api("POST /workflow/instances", body, prefer="wait=0").status_code == 200


def test_a_key_is_of_one_content_type_too(served: Served) -> None:
    api, key = served.api(), uuid4().hex
    body = {"definition_key": "quick", "input": 1}
    assert api("POST /workflow/instances", body, idempotency_key=key).status_code == 201
    answer = api("POST /workflow/instances", body, idempotency_key=key, content_type="application/vnd.acme+json")
    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency-key-reused")


def test_a_weak_etag_is_no_version(served: Served) -> None:
    api = served.api()
    word = api.start("order", {"id": "weak"})
    api.until(word, lambda seen: seen["status"] == "waiting")
    etag = api(f"GET /workflow/instances/{word}").headers["etag"]
    pause = f"POST /workflow/instances/{word}/pause"
    api.refused(412, "precondition-failed", pause, {"reason": "r"}, if_match=f"W/{etag}")
    assert api(pause, {"reason": "r"}, if_match=etag).status_code == 202


def test_a_request_that_is_cut_off_at_the_end_of_the_grace_is_told_so(house: House) -> None:
    url = house.serve("--grace", "1")
    slow = connected(url)
    slow.sendall(
        f"POST /workflow/instances HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {house.key()}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
    )
    assert Api(url, house.key()).ok("GET /workflow/me")  # the slow one came before
    [server] = house.processes
    server.process.terminate()
    answer = slow.recv(65536)
    assert answer.startswith(b"HTTP/1.1 503") and b"application/problem+json" in answer, answer
    assert server.process.wait(timeout=200) == 0


async def _login_links(house: House, tenant: str, count: int) -> list[str]:
    async with Holdfast(house.database) as hf:
        service, by = hf.service, By("the tests")
        ends = service.store.now() + 600_000_000
        return [
            (
                await api_keys.create(
                    service, tenant, "admin-service", name="link", kind="login", expires_at=ends, by=by
                )
            ).key
            for _ in range(count)
        ]


def test_a_login_link_is_no_key_and_of_many_who_press_its_button_one_gets_in(served: Served) -> None:
    tenant = f"login-{uuid4().hex[:6]}"
    served.api("admin", tenant)
    for link in asyncio.run(_login_links(served.house, tenant, 6)):
        Api(served.url, link).refused(401, "unauthenticated", "GET /workflow/me")
        start = Barrier(8)

        def press(link: str = link, start: Barrier = start) -> int:
            with httpx.Client(base_url=served.url, timeout=PATIENCE_SECONDS) as browser:
                start.wait()
                return browser.post("/login", data={"key": link}).status_code

        with ThreadPoolExecutor(8) as pool:
            assert sorted(one.result() for one in [pool.submit(press) for _ in range(8)]) == [303] + [401] * 7


def test_a_task_is_for_its_groups(served: Served) -> None:
    tenant = f"group-{uuid4().hex[:6]}"
    api = served.api("admin", tenant)
    ask = {"task": {"type": "HUMAN", "name": "approve", "groups": ["finance"]}}
    states = {"review": {"invoke": {"id": "ask", "src": ask, "onDone": "over"}}, "over": {"type": "final"}}
    api.ok("POST /workflow/definitions", {"spec": {"id": "grouped", "initial": "review", "states": states}})
    task = f"/workflow/tasks/{api.open_task(api.start('grouped'))['id']}"
    other = served.api("approver", tenant, kind="human", group="people")
    mine = served.api("approver", tenant, kind="human", group="finance")

    def others_are_told_nothing() -> None:
        for word, body in (
            ("claim", None),
            ("unclaim", None),
            ("complete", {"output": {}}),
            ("fail", {"reason": "no"}),
        ):
            said = other.refused(403, "forbidden", f"POST {task}/{word}", body)
            assert "is for members of finance" in said["detail"] and "approver-human" not in said["detail"]

    others_are_told_nothing()
    assert mine.ok(f"POST {task}/claim")["assignee"] == "approver-human-finance"
    others_are_told_nothing()
    assert mine.ok(f"POST {task}/complete", {"output": {}})["status"] == "succeeded"
    others_are_told_nothing()


def test_a_task_is_read_by_those_who_may_take_it(served: Served) -> None:
    tenant = f"seen-{uuid4().hex[:6]}"
    api = served.api("admin", tenant)
    for key, groups in (("closed", {"groups": ["finance"]}), ("open", {})):
        ask = {"task": {"type": "HUMAN", "name": key, "input": {"salary": 5}, **groups}}
        states = {"review": {"invoke": {"id": "ask", "src": ask, "onDone": "over"}}, "over": {"type": "final"}}
        api.ok("POST /workflow/definitions", {"spec": {"id": key, "initial": "review", "states": states}})
    closed, open_ = api.start("closed"), api.start("open")
    task, other_task = api.open_task(closed)["id"], api.open_task(open_)["id"]
    place = f"/workflow/tasks/{task}"

    def seen(who: Api) -> list[set[str]]:
        lists = ("/workflow/tasks", "/workflow/tasks?status=any&limit=1", f"/workflow/instances/{closed}/tasks")
        found = []
        for path in lists:
            items, cursor = [], ""
            while cursor is not None:
                page = who.ok(f"GET {path}{'&' if '?' in path else '?'}{f'cursor={cursor}' if cursor else ''}")
                items, cursor = items + page["items"], page["next_cursor"]
            found.append({one["name"] for one in items})
        return [*found, {one["name"] for one in who.ok(f"GET /workflow/instances/{closed}")["tasks"]}]

    everything = [{"closed", "open"}, {"closed", "open"}, {"closed"}, {"closed"}]
    nothing: list[set[str]] = [{"open"}, {"open"}, set(), set()]
    member = served.api("approver", tenant, kind="human", group="finance")
    outsider = served.api("approver", tenant, kind="human", group="people")
    assert seen(member) == seen(served.api("operator", tenant)) == seen(served.api("auditor", tenant)) == everything
    assert member.ok(f"GET {place}")["input"] == {"salary": 5}
    for stranger in (outsider, served.api("viewer", tenant), served.api("builder", tenant)):
        assert seen(stranger) == nothing
        stranger.refused(404, "not-found", f"GET {place}")
        stranger.refused(404, "not-found", f"GET {place}/comments")
        assert stranger.ok(f"GET /workflow/instances/{closed}")["left_out"] == ["tasks"]
        assert stranger.ok(f"GET /workflow/tasks/{other_task}")["name"] == "open"
    outsider.refused(404, "not-found", f"POST {place}/comments", {"body": "what is this?"})
    api.ok(f"POST {place}/assign", {"assignee": "approver-human-people"})
    assert seen(outsider) == everything, "it is theirs now"
    outsider.ok(f"POST {place}/complete", {"output": {}})
    assert outsider.ok(f"GET {place}")["status"] == "succeeded"
    assert seen(outsider)[1] == {"closed", "open"}


def test_a_body_without_a_length_is_bounded_too(served: Served) -> None:
    """In chunks, nobody says beforehand how long it will be."""
    api = served.api()

    def chunks(count: int) -> Iterator[bytes]:
        yield b'{"definition_key": "quick", "input": "'
        for _ in range(count):
            yield b"x" * 65_536
        yield b'"}'

    kind = {"Content-Type": "application/json"}
    answer = api.client.post("/workflow/instances", content=chunks(2), headers=kind)
    assert answer.status_code == 201
    answer = api.client.post("/workflow/instances", content=chunks(17), headers=kind)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload-too-large")
    assert "the body has more than" in answer.json()["detail"]  # not only what is made of it
