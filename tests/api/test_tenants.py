"""Everything one tenant does is invisible to another: answers before and after, foreign ids, and words both use."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import httpx
import pytest

from holdfast.api.endpoints import Endpoint
from holdfast.api.server import table
from tests.api.seeds import Seeds, fitting_body, noun_of
from tests.api.served import Served
from tests.api.support import CHART, Api

ENDPOINTS = table()
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
TRACE = re.compile(r'"trace_id":"[0-9a-f]{32}"')
PLACE = re.compile(r"^id: \S+$", re.M)  # where the feed of the whole database stands
AGE = re.compile(r'"oldest_age":"[^"]+"')
ID = re.compile(r"\b[a-z]{3}_[0-9a-f]{32}\b")
UNHEARD = ("date", "x-request-id")
QUIET = {"/metrics"}  # of the whole server, and not of a tenant


def answer_of(api: Api, operation: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
    """An answer without what differs from request to request."""
    path = operation.split(" ", 1)[1]
    if path.partition("?")[0].endswith("/stream"):
        return streamed(api, path)
    found = api(operation, body, **headers)
    return found.status_code, heard(found), plain(found.text)


def streamed(api: Api, path: str) -> tuple[int, dict[str, str], str]:
    """What a stream begins with."""
    with api.client.stream("GET", path) as found:
        if found.status_code != 200:
            found.read()
            return found.status_code, heard(found), plain(found.text)
        for part in found.iter_text():
            return found.status_code, heard(found), PLACE.sub("id: (place)", part)
    return found.status_code, heard(found), ""


def heard(found: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in found.headers.items() if name not in UNHEARD}


def plain(text: str) -> str:
    return AGE.sub('"oldest_age":""', TRACE.sub('"trace_id":""', MOMENT.sub("(moment)", text)))


def reads(seeds: Seeds) -> list[str]:
    """Every GET of the table, on things of the seeds' tenant."""
    found = []
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" or endpoint.path in QUIET:
            continue
        words = seeds.ids[noun_of(endpoint.path)] if "{id}" in endpoint.path else [""]
        against = f"?against={seeds.ids['definitions'][0]}" if endpoint.path.endswith("/diff") else ""
        found += [f"GET {endpoint.path.replace('{id}', word)}{against}" for word in words]
    found += ["GET /workflow/instances?status=waiting,failed", "GET /workflow/instances?business_key=shared"]
    found += ["GET /workflow/instances?definition_key=request", "GET /workflow/definitions?key=request"]
    found += ["GET /workflow/tasks?status=any", "GET /workflow/tasks?group=finance", "GET /workflow/effects"]
    return found


def rich_life(api: Api, seeds: Seeds) -> None:
    """What a busy tenant does in a day."""
    seeds.plant()
    key = uuid4().hex
    api.ok("POST /workflow/instances", {"definition_key": "quick", "business_key": "shared", "input": 1})
    api.ok("POST /workflow/instances", {"definition_key": "request", "input": {}}, idempotency_key=key)
    batch = {"definition_key": "quick", "items": [{"input": n} for n in range(20)]}
    api.ok("POST /workflow/instances/batch", batch, idempotency_key=key)
    task = seeds.ids["tasks"][0]
    api.ok(f"POST /workflow/tasks/{task}/comments", {"body": "of A"})
    api.ok(f"POST /workflow/tasks/{task}/claim")
    api.ok(f"POST /workflow/tasks/{task}/complete", {"output": {"approve": True}})
    effect = seeds.ids["effects"][0]
    api.ok(f"POST /workflow/effects/{effect}/resolve", {"resolution": "happened", "reason": "seen", "result": {}})
    bulk = {"action": "cancel", "filter": {"definition_key": "backing-off"}, "reason": "enough"}
    made = api.ok("POST /workflow/bulk", bulk, idempotency_key=key)
    etag = api("GET /workflow/tenant").headers["etag"]
    api.ok("PATCH /workflow/tenant", {"http_hosts": ["a.example.org"], "ai_enabled": False}, if_match=etag)
    chart = {**CHART, "id": f"of-a-{key[:6]}"}
    api.ok("POST /workflow/definitions", {"spec": chart})
    api.ok(f"POST /workflow/definitions/{chart['id']}/deactivate")
    who = seeds.ids["principals"][0]
    api.ok(f"PATCH /workflow/principals/{who}", {"groups": ["finance"]}, if_match="*")
    api.ok(f"POST /workflow/keys/{seeds.ids['keys'][0]}/rotate")
    api.until("ins_" + made["id"][4:], lambda seen: seen["completed_at"])


def two_tenants(served: Served) -> tuple[Api, Seeds, Api, Seeds]:
    a, b = served.api("admin", "tenant-a"), served.api("admin", "tenant-b")
    of_b = Seeds(b).plant()
    for instance in of_b.ids["instances"]:
        b.until(instance, lambda seen: seen["status"] not in ("pending", "running"))
    return a, Seeds(a), b, of_b


@pytest.fixture
def two(served: Served) -> tuple[Api, Seeds, Api, Seeds]:
    """Tenants A and B, each with something of everything; B stands still."""
    return served.once(two_tenants)


def test_whatever_a_tenant_does_no_answer_to_another_changes(two: tuple[Api, Seeds, Api, Seeds]) -> None:
    a, of_a, b, of_b = two
    asked = reads(of_b)
    assert len(asked) > 60
    before = {operation: answer_of(b, operation) for operation in asked}
    again = {operation: answer_of(b, operation) for operation in asked}
    assert before == again  # B stands still, so that what changes is A's doing
    assert {status for status, _, _ in before.values()} <= {200, 409}
    rich_life(a, of_a)
    for operation in asked:
        assert answer_of(b, operation) == before[operation], operation
    everything = "".join(text for _, _, text in before.values())
    for noun, words in of_a.ids.items():
        for word in words:
            assert not ID.fullmatch(word) or word not in everything, noun


def changes(endpoint: Endpoint, seeds: Seeds) -> list[Any]:
    """A body that fits, and with which it would change something."""
    return fitting_body(endpoint.operation, seeds)[:1] or [None]


def test_a_foreign_id_answers_in_every_route_like_one_that_nobody_has(two: tuple[Api, Seeds, Api, Seeds]) -> None:
    a, of_a, b, of_b = two
    if not of_a.ids["bulk"]:
        of_a.plant()
    before = {operation: answer_of(a, operation) for operation in reads(of_a) if "workers" not in operation}
    tried = 0
    for endpoint in ENDPOINTS:
        if "{id}" not in endpoint.path:
            continue
        noun = noun_of(endpoint.path)
        foreign = next(word for word in of_a.ids[noun] if ID.fullmatch(word))
        unknown = foreign[:4] + uuid4().hex
        more = "?against=request" if endpoint.path.endswith("/diff") else ""
        headers = {"if_match": "*"} if endpoint.if_match == "required" else {}
        for body in changes(endpoint, of_b) if endpoint.method != "GET" else [None]:
            for extra in ({}, {"idempotency_key": uuid4().hex}) if endpoint.keyed else ({},):
                seen = []
                for word in (foreign, unknown):
                    operation = f"{endpoint.method} {endpoint.path.replace('{id}', word)}{more}"
                    status, found, text = answer_of(b, operation, body, **headers, **extra)
                    seen.append((status, found, text.replace(word, "(id)")))
                assert seen[0] == seen[1], endpoint.operation
                assert seen[0][0] == 404, endpoint.operation
                tried += 1
    assert tried > 50
    for operation, was in before.items():
        assert answer_of(a, operation) == was, operation


def test_foreign_ids_in_bodies_and_queries_say_nothing_either(two: tuple[Api, Seeds, Api, Seeds]) -> None:
    a, of_a, b, _ = two
    if not of_a.ids["bulk"]:
        of_a.plant()
    ins, definition, who = of_a.ids["instances"][0], of_a.ids["definitions"][0], of_a.ids["principals"][0]
    name = a.ok(f"GET /workflow/principals/{who}")["name"]
    for foreign, unknown, operation, body in (
        (definition, "def_" + uuid4().hex, "POST /workflow/instances", {"definition_id": "(id)"}),
        (definition, "def_" + uuid4().hex, "POST /workflow/definitions/simulate", {"definition_id": "(id)"}),
        (definition, "def_" + uuid4().hex, "GET /workflow/definitions/request/diff?against=(id)", None),
        (ins, "ins_" + uuid4().hex, "GET /workflow/definitions/request/graph?instance_id=(id)", None),
        (ins, "ins_" + uuid4().hex, "GET /workflow/tasks?instance_id=(id)", None),
        (who, "prn_" + uuid4().hex, "POST /workflow/keys", {"principal": "(id)", "name": "x"}),
        (name, "p-" + uuid4().hex[:8], "POST /workflow/keys", {"principal": "(id)", "name": "x"}),
        (who, "prn_" + uuid4().hex, "GET /workflow/audit?entity_type=principal&entity_id=(id)", None),
        (ins, "ins_" + uuid4().hex, "GET /workflow/instances/(id)/stream", None),
    ):
        seen = []
        for word in (foreign, unknown):
            given = None if body is None else {n: word if v == "(id)" else v for n, v in body.items()}
            status, found, text = answer_of(b, operation.replace("(id)", word), given)
            seen.append((status, {**found, "content-length": ""}, text.replace(word, "(id)")))
        assert seen[0] == seen[1], operation


def test_both_may_use_the_same_words(served: Served) -> None:
    one, two = (served.api("admin", f"same-{n}-{uuid4().hex[:4]}") for n in (1, 2))
    key = uuid4().hex
    chart = {**CHART, "id": f"same-{key[:8]}"}
    other = {**chart, "states": {**chart["states"], "shelf": {"type": "final"}}}
    seen: dict[str, list[Any]] = {}
    for api, spec, given in ((one, chart, {"n": 1}), (two, other, {"n": 2})):
        words = {"idempotency_key": key}
        published = api("POST /workflow/definitions", {"spec": spec}, **words)
        assert (published.status_code, published.json()["version"]) == (201, 1)
        body = {"definition_key": chart["id"], "business_key": key, "input": given}
        made = api("POST /workflow/instances", body, **words)
        assert made.status_code == 201 and "idempotent-replayed" not in made.headers
        sent = {"name": "withdrawn", "id": key, "payload": given}
        api.open_task(made.json()["id"])
        told = api(f"POST /workflow/instances/{made.json()['id']}/events", sent, **words)
        assert (told.status_code, told.json()["new"]) == (202, True)
        who = api("POST /workflow/principals", {"name": "ann", "kind": "human", "roles": []}, **words)
        assert who.status_code == 201
        batch = {"definition_key": "quick", "items": [{"business_key": key, "input": given}]}
        started = api.ok("POST /workflow/instances/batch", batch, **words)
        assert (started["started"], started["existing"]) == (1, 0)
        for name, word in (
            ("definition", published.json()["id"]), ("instance", made.json()["id"]), ("principal", who.json()["id"]),
            ("batch", started["items"][0]["id"]),
        ):  # fmt: skip
            seen.setdefault(name, []).append(word)
    for name, (first, second) in seen.items():
        assert first != second, name
    for api, instance, given in ((one, seen["instance"][0], {"n": 1}), (two, seen["instance"][1], {"n": 2})):
        assert api.ended(instance)["input"] == given
        [found] = api.ok(f"GET /workflow/instances?business_key={key}&definition_key={chart['id']}")["items"]
        assert found["id"] == instance
