"""Idempotency-Key: a request is carried out once, whoever asks again and whatever dies in between."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from holdfast.api.server import table
from tests.api.seeds import Seeds
from tests.api.served import Served
from tests.api.support import CHART, Api, House, wait_until

TENANT = "once"
KEYED = {e.operation: e.keyed for e in table() if e.keyed}
FAR = 4_000_000_000_000_000  # microseconds: a moment that no clock has reached
SAME = ("location", "etag", "content-type", "content-length", "preference-applied")


def fresh() -> str:
    return uuid4().hex


def sql(house: House, text: str, *values: Any) -> list[tuple[Any, ...]]:
    """A statement on the table of requests, past the server."""
    if house.database.startswith("sqlite"):
        with sqlite3.connect(house.database.removeprefix("sqlite:///"), timeout=30) as connection:
            return connection.execute(text.replace("requests", "holdfast_idempotency_keys"), values).fetchall()
    with psycopg.connect(house.database) as connection:
        text = text.replace("requests", "holdfast.idempotency_keys").replace("?", "%s")
        done = connection.execute(text, values)
        return list(done.fetchall()) if done.description else []


def planted(served: Served) -> Seeds:
    return Seeds(served.api("admin", TENANT)).plant()


@pytest.fixture
def once(served: Served) -> Seeds:
    return served.once(planted)


def examples(api: Api, seeds: Seeds) -> dict[str, tuple[str, Any, dict[str, str]]]:
    """For every operation that takes a key: a request that goes well."""

    def order() -> str:
        word = api.start("order", {"id": fresh()})
        api.until(word, lambda seen: seen["status"] == "waiting")
        return word

    def task() -> str:
        word: str = api.open_task(api.start("request"))["id"]
        return word

    def key() -> str:
        word: str = api.ok("POST /workflow/keys", {"principal": "admin-service", "name": "k"})["id"]
        return word

    def chart() -> str:
        word: str = api.ok("POST /workflow/definitions", {"spec": {**CHART, "id": f"i-{fresh()[:8]}"}})["id"]
        return word

    def failed() -> str:
        word = api.start("failing", {"id": "f"})
        api.ended(word)
        return word

    claimed = task()
    api.ok(f"POST /workflow/tasks/{claimed}/claim")
    who = api.ok("POST /workflow/principals", {"name": fresh(), "kind": "human", "roles": []})["id"]
    moving, version = chart(), {"version": 1, "dry_run": True}
    moved = api.ok("POST /workflow/instances", {"definition_id": moving})["id"]
    api.open_task(moved)
    effect = next(
        e["id"] for e in api.ok("GET /workflow/effects?state=outcome_unknown")["items"]
    )  # fmt: skip
    one = "*"
    found: dict[str, tuple[str, Any, dict[str, str]]] = {
        "POST /workflow/definitions": ("", {"spec": {**CHART, "id": f"i-{fresh()[:8]}"}}, {}),
        "POST /workflow/definitions/{id}/activate": (chart(), None, {}),
        "POST /workflow/definitions/{id}/deactivate": (chart(), None, {}),
        "POST /workflow/definitions/{id}/archive": (chart(), None, {}),
        "POST /workflow/instances": ("", {"definition_key": "quick", "input": 1}, {"prefer": "wait=20"}),
        "POST /workflow/instances/batch": ("", {"definition_key": "quick", "items": [{"input": 1}]}, {}),
        "POST /workflow/instances/{id}/events": (order(), {"name": "note", "payload": 1}, {}),
        "POST /workflow/instances/{id}/signal": (order(), {"name": "note", "payload": 1}, {}),
        "POST /workflow/instances/{id}/fork": (failed(), {}, {}),
        "POST /workflow/instances/{id}/migrate": (moved, version, {}),
        "POST /workflow/tasks/{id}/claim": (task(), None, {}),
        "POST /workflow/tasks/{id}/unclaim": (claimed, None, {}),
        "POST /workflow/tasks/{id}/assign": (task(), {"assignee": "bob"}, {}),
        "POST /workflow/tasks/{id}/complete": (task(), {"output": {"approve": True}}, {}),
        "POST /workflow/tasks/{id}/fail": (task(), {"reason": "no"}, {}),
        "POST /workflow/tasks/{id}/comments": (task(), {"body": "hello"}, {}),
        "POST /workflow/effects/{id}/resolve": (effect, {"resolution": "abort", "reason": "enough"}, {}),
        "POST /workflow/bulk": ("", {"action": "pause", "filter": {"business_key": "no"}, "reason": "r"}, {}),
        "POST /workflow/principals": ("", {"name": fresh(), "kind": "agent", "roles": []}, {}),
        "PATCH /workflow/principals/{id}": (who, {"groups": ["x"]}, {"if_match": one}),
        "POST /workflow/keys": ("", {"principal": "admin-service", "name": "once"}, {}),
        "POST /workflow/keys/{id}/revoke": (key(), None, {}),
        "POST /workflow/keys/{id}/rotate": (key(), {"overlap": "PT1M"}, {}),
        "PATCH /workflow/tenant": ("", {"ai_enabled": True}, {"if_match": one}),
    }
    for word in ("cancel", "pause", "resume", "retry"):
        found[f"POST /workflow/instances/{{id}}/{word}"] = (order(), {"reason": "r"}, {})
    return found


def test_every_change_is_answered_again_as_the_first_time(served: Served, once: Seeds) -> None:
    api = served.api("admin", TENANT)
    asked = examples(api, once)
    assert set(asked) == set(KEYED), "an operation that takes a key is new: say here what to ask it"
    for operation, (word, body, headers) in asked.items():
        place, key = operation.replace("{id}", word), fresh()
        first = api(place, body, idempotency_key=key, **headers)
        assert first.status_code < 300, f"{operation}: {first.text}"
        assert "idempotent-replayed" not in first.headers
        for quoted in (key, f'"{key}"'):
            again = api(place, body, idempotency_key=quoted, **headers)
            assert again.headers["idempotent-replayed"] == "true", operation
            assert again.status_code == first.status_code
            if "keys" in operation and "key" in first.json() and operation != "POST /workflow/keys/{id}/revoke":
                assert first.json()["key"].startswith("hfst_live_")
                assert again.json() == {**first.json(), "key": None}
                continue
            assert again.content == first.content, operation
            assert [again.headers.get(n) for n in SAME] == [first.headers.get(n) for n in SAME], operation
        other = dict(body or {}, reason="another") if body is not None else None
        if other is not None and "reason" in (body or {}):
            api.refused(422, "idempotency-key-reused", place, other, idempotency_key=key, **headers)


def everything_kept(house: House) -> Iterator[tuple[str, bytes]]:
    """Every value of every table as bytes, and every line the processes have logged."""
    if house.database.startswith("sqlite"):
        connection: Any = sqlite3.connect(house.database.removeprefix("sqlite:///"), timeout=30)
        names = "select name from sqlite_master where type = 'table'"
    else:
        connection = psycopg.connect(house.database)
        names = "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'holdfast'"
    with connection:
        for (name,) in connection.execute(names).fetchall():
            for row in connection.execute(f"select * from {name}").fetchall():
                for value in row:
                    yield name, bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode()
    connection.close()
    for running in house.processes:
        yield running.log.name, running.log.read_bytes()


def test_no_secret_is_kept_in_any_table_or_log(served: Served, once: Seeds) -> None:
    api = served.api("admin", TENANT)
    made = api.ok("POST /workflow/keys", {"principal": "admin-service", "name": "s"}, idempotency_key=fresh())
    rotated = api.ok(f"POST /workflow/keys/{made['id']}/rotate", idempotency_key=fresh())
    Api(served.url, rotated["key"] + "x").refused(401, "unauthenticated", "GET /workflow/me")
    Api(served.url, rotated["key"]).ok("GET /workflow/me")
    seen: dict[str, int] = {}
    for place, value in everything_kept(served.house):
        seen[place] = seen.get(place, 0) + 1
        for secret in (made["key"], rotated["key"], *served.house.keys.values()):
            assert secret.encode() not in value, place
        assert not re.search(rb"hfst_(live|test)_\w{20}", value), place
    for table_name in ("api_keys", "idempotency_keys", "audit_events", "history"):
        assert any(table_name in place for place in seen), (table_name, sorted(seen))


def test_a_key_is_asked_for_where_twice_would_hurt(served: Served) -> None:
    api = served.api("admin", TENANT)
    required = [operation for operation, keyed in KEYED.items() if keyed == "required"]
    assert set(required) == {"POST /workflow/instances/batch", "POST /workflow/bulk"}
    batch = {"definition_key": "quick", "items": [{"input": 1}]}
    bulk = {"action": "pause", "filter": {"business_key": "no"}, "reason": "r"}
    for operation, body in ((required[0], batch), (required[1], bulk)):
        api.refused(400, "idempotency-key-missing", operation, body)


def test_canonical_json_is_one_request(served: Served) -> None:
    api = served.api("admin", TENANT)
    key = fresh()
    texts = (
        '{"definition_key":"quick","input":{"a":1,"b":[1.5,"ä",100]}}',
        '{ "input" : {"b":[1.50, "\\u00e4", 1e2], "a": 1.0}, "definition_key": "quick" }',
        '{"definition_key":"\\u0071uick","input":{"a":1e0,"b":[15e-1,"\\u00E4",100.0]}}\n',
    )
    seen = [api("POST /workflow/instances", text, idempotency_key=key) for text in texts]
    assert [one.status_code for one in seen] == [201] * 3
    assert len({one.json()["id"] for one in seen}) == 1
    assert [one.headers.get("idempotent-replayed") for one in seen] == [None, "true", "true"]
    for other in ('{"definition_key":"quick","input":{"a":1,"b":[1.5,"ä",101]}}', '{"definition_key":"quick"}'):
        api.refused(422, "idempotency-key-reused", "POST /workflow/instances", other.encode(), idempotency_key=key)
    # Unicode is compared as it is: what looks the same and is not, is another request.
    api.refused(
        422, "idempotency-key-reused", "POST /workflow/instances",
        '{"definition_key":"quick","input":{"a":1,"b":[1.5,"a\\u0308",100]}}', idempotency_key=key,
    )  # fmt: skip


def test_a_key_counts_for_who_used_it_for_what_on_whom(served: Served, once: Seeds) -> None:
    """Tenant, principal, method and route, and whom it is about."""
    key, body = fresh(), {"definition_key": "quick", "input": 1}
    callers = [served.api("admin", TENANT), served.api("operator", TENANT), served.api("admin", f"{TENANT}-2")]
    words = [api.ok("POST /workflow/instances", body, idempotency_key=key)["id"] for api in callers]
    assert len(set(words)) == 3
    api = callers[0]
    other = Api(served.url, api.ok("POST /workflow/keys", {"principal": "admin-service", "name": "second"})["key"])
    assert other.ok("POST /workflow/instances", body, idempotency_key=key)["id"] == words[0]  # another key of the same
    orders = [api.start("order", {"id": n}) for n in ("1", "2")]
    sent = {"name": "note", "payload": 1}
    for word in orders:
        for route in ("events", "signal"):
            found = api(f"POST /workflow/instances/{word}/{route}", sent, idempotency_key=key)
            assert (found.status_code, found.json()["new"]) == (202, True)
            assert "idempotent-replayed" not in found.headers


def test_what_is_refused_before_anything_happens_burns_no_key(served: Served, once: Seeds) -> None:
    admin, viewer = served.api("admin", TENANT), served.api("viewer", TENANT)
    key, good = fresh(), {"definition_key": "quick", "input": 1}
    viewer.refused(403, "forbidden", "POST /workflow/instances", good, idempotency_key=key)
    Api(served.url, None).refused(401, "unauthenticated", "POST /workflow/instances", good, idempotency_key=key)
    admin.refused(422, "validation-failed", "POST /workflow/instances", {"version": 1}, idempotency_key=key)
    admin.refused(422, "validation-failed", "POST /workflow/instances", b'{"a": NaN}', idempotency_key=key)
    large = {"definition_key": "quick", "input": "x" * (1 << 20)}
    admin.refused(413, "payload-too-large", "POST /workflow/instances", large, idempotency_key=key)
    assert admin("POST /workflow/instances", b"{}", idempotency_key=key, content_type="text/x").status_code == 415
    made = admin("POST /workflow/instances", good, idempotency_key=key)
    assert (made.status_code, made.headers.get("idempotent-replayed")) == (201, None)
    # What was looked at and decided is kept, also if it is a no.
    missing = {"definition_key": "not there yet", "input": 1}
    key = fresh()
    first = admin("POST /workflow/instances", missing, idempotency_key=key)
    again = admin("POST /workflow/instances", missing, idempotency_key=key)
    assert (first.status_code, again.status_code, again.content) == (404, 404, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-type"] == "application/problem+json"
    assert again.json()["instance"] == "/workflow/instances"


def test_of_two_at_once_one_is_carried_out(served: Served, once: Seeds) -> None:
    api = served.api("admin", TENANT)
    for _ in range(5):
        key, start = fresh(), Barrier(6)
        body = {"definition_key": "slow", "input": {"seconds": 0.2}}

        def one(number: int, key: str = key, start: Barrier = start, body: Any = body) -> httpx.Response:
            mine = served.api("admin", TENANT)
            mine("GET /livez")
            start.wait()
            return mine("POST /workflow/instances", body, idempotency_key=key, prefer="wait=20")

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(one, range(6)))
        carried = [a for a in answers if a.status_code == 201 and "idempotent-replayed" not in a.headers]
        assert len(carried) == 1
        for answer in answers:
            assert answer.status_code in (201, 409), answer.text
            if answer.status_code == 409:
                assert answer.json()["code"] == "idempotency-key-in-use"
                assert int(answer.headers["retry-after"]) >= 1
            else:
                assert answer.json()["id"] == carried[0].json()["id"]
        replay = api("POST /workflow/instances", body, idempotency_key=key, prefer="wait=20")
        assert replay.content == carried[0].content


def test_an_answer_is_not_kept_for_ever_and_the_key_stays_used(served: Served, once: Seeds) -> None:
    api = served.api("admin", TENANT)
    key, body = fresh(), {"definition_key": "quick", "input": 1}
    made = api.ok("POST /workflow/instances", body, idempotency_key=key)
    sql(served.house, "update requests set expires_at = 1 where key = ?", key)
    problem = api.refused(410, "idempotency-key-expired", "POST /workflow/instances", body, idempotency_key=key)
    assert made["id"] not in json.dumps(problem)
    sql(served.house, "update requests set response = null, response_headers = null where key = ?", key)
    api.refused(410, "idempotency-key-expired", "POST /workflow/instances", body, idempotency_key=key)
    api.refused(422, "idempotency-key-reused", "POST /workflow/instances", {**body, "input": 2}, idempotency_key=key)
    assert len(api.ok("GET /workflow/instances?definition_key=quick&limit=200")["items"]) >= 1


def test_a_server_that_dies_between_the_deed_and_the_answer_makes_no_second_deed(house: House) -> None:
    """What a crash leaves: the deed is done and the request's row says STARTED. After its lease it is taken over."""
    house.work()
    server = house.run("server", "--port", "0")
    url = house.url_of(server)
    api = Api(url, house.key())
    api.ok("POST /workflow/definitions", {"spec": CHART})
    order, task = api.start("order", {"id": "x"}), api.open_task(api.start("request"))["id"]
    failed = api.start("failing", {"id": "f"})
    api.until(order, lambda seen: seen["status"] == "waiting")
    api.ended(failed)
    key = api.ok("POST /workflow/keys", {"principal": "admin-service", "name": "old"})["id"]
    spec = {**CHART, "id": "crashed"}
    deeds: list[tuple[str, Any, str]] = [
        ("POST /workflow/instances", {"definition_key": "quick", "input": 1},
         "GET /workflow/instances?definition_key=quick"),
        ("POST /workflow/instances/batch", {"definition_key": "parent", "items": [{"input": 1}, {"input": 2}]},
         "GET /workflow/instances?definition_key=parent"),
        (f"POST /workflow/instances/{order}/events", {"name": "note", "payload": 1},
         f"GET /workflow/instances/{order}/history"),
        (f"POST /workflow/instances/{failed}/fork", {}, "GET /workflow/instances?definition_key=failing"),
        (f"POST /workflow/tasks/{task}/comments", {"body": "once"}, f"GET /workflow/tasks/{task}/comments"),
        ("POST /workflow/principals", {"name": "ann", "kind": "human", "roles": []}, "GET /workflow/principals"),
        ("POST /workflow/keys", {"principal": "admin-service", "name": "new"}, "GET /workflow/keys"),
        (f"POST /workflow/keys/{key}/rotate", {"overlap": "PT1M"}, "GET /workflow/keys"),
        ("POST /workflow/bulk", {"action": "pause", "filter": {"business_key": "no"}, "reason": "r"},
         "GET /workflow/instances?definition_key=holdfast.bulk"),
        ("POST /workflow/definitions", {"spec": spec}, "GET /workflow/definitions?key=crashed"),
        (f"POST /workflow/tasks/{task}/complete", {"output": {"approve": True}}, f"GET /workflow/tasks/{task}"),
    ]  # fmt: skip
    words, firsts = {}, {}
    for operation, body, _ in deeds:
        words[operation] = fresh()
        firsts[operation] = api(operation, body, idempotency_key=words[operation])
        assert firsts[operation].status_code < 300, firsts[operation].text
    wait_until(
        lambda: len(api.ok("GET /workflow/instances?definition_key=failing&status=failed")["items"]) == 2, "fork"
    )
    wait_until(lambda: all(
        one["completed_at"] for one in api.ok("GET /workflow/instances?limit=200")["items"]
        if one["definition_key"] in ("quick", "parent", "holdfast.bulk", "request")
    ), "the end of what was started")  # fmt: skip
    before = {read: counted(api, read) for _, _, read in deeds}
    server.stop(signal.SIGKILL)
    sql(house, "update requests set status = 'STARTED', response = null, response_status = null, "
        "response_headers = null, completed_at = null, locked_by = 'the dead', locked_at = ?", FAR)  # fmt: skip
    api = Api(house.serve(), api.key)
    operation, body, _ = deeds[0]
    problem = api(operation, body, idempotency_key=words[operation])
    assert (problem.status_code, problem.json()["code"]) == (409, "idempotency-key-in-use")
    assert int(problem.headers["retry-after"]) >= 1
    sql(house, "update requests set locked_at = 0")
    for operation, body, _ in deeds:
        again = api(operation, body, idempotency_key=words[operation])
        first = firsts[operation]
        if "/keys" in operation:  # the key was shown to nobody, perhaps, and is kept nowhere
            assert (again.status_code, "was made before" in again.text) == (422, True), again.text
        elif operation.endswith("/complete"):
            assert again.status_code in (200, 409), again.text
        else:
            assert again.status_code in (200, 201, 202), f"{operation}: {again.text}"
            assert again.json().get("id") == first.json().get("id"), operation
            assert again.headers.get("location") == first.headers.get("location"), operation
    for read, count in before.items():
        assert counted(api, read) == count, read
    ends = {one["id"]: one["expires_at"] for one in api.ok("GET /workflow/keys")["items"]}
    assert ends[key] is not None  # the old one ends, though its rotation was asked for twice


def counted(api: Api, read: str) -> int:
    found = api.ok(read)
    return len(found["items"]) if "items" in found else found["version"]


def test_a_key_that_died_half_way_is_taken_over_by_one_of_many(served: Served, once: Seeds) -> None:
    api = served.api("admin", TENANT)
    key, body = fresh(), {"definition_key": "quick", "input": 1}
    first = api.ok("POST /workflow/instances", body, idempotency_key=key)
    sql(served.house, "update requests set status = 'STARTED', response = null, locked_by = 'x', locked_at = 0 "
        "where key = ?", key)  # fmt: skip
    start = Barrier(6)

    def one(_: int) -> httpx.Response:
        mine = served.api("admin", TENANT)
        start.wait()
        return mine("POST /workflow/instances", body, idempotency_key=key)

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(one, range(6)))
    assert {answer.status_code for answer in answers} <= {200, 201, 409}
    done = [answer for answer in answers if answer.status_code != 409]
    assert done and all(answer.json()["id"] == first["id"] for answer in done)
    assert sum("idempotent-replayed" not in answer.headers for answer in done) == 1
