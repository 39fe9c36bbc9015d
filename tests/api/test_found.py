"""Faults that hostile readers found, each with the request that showed it."""

from __future__ import annotations

import json
import re
import socket
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.api.conftest import Served
from tests.api.support import CHART, Api, House, wait_until
from tests.api.test_idempotency import sql


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
    """Nobody needs a key to send a form drop by drop."""
    url = house.serve(env={"HOLDFAST_MAX_IN_FLIGHT": "2", "HOLDFAST_TEST_BODY_SECONDS": "1"})
    host, port = url.removeprefix("http://").split(":")
    lazy = []
    for _ in range(2):
        connection = socket.create_connection((host, int(port)))
        connection.sendall(
            b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: 100\r\n\r\nk"
        )
        lazy.append(connection)
    answers = [connection.recv(65536).split(b"\r\n", 1)[0] for connection in lazy]
    assert answers == [b"HTTP/1.1 400 Bad Request"] * 2
    assert Api(url, house.key()).ok("GET /workflow/me")["name"] == "admin-service"


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
