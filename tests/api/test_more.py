"""What users expect beyond the specification: look before you publish, stop and go on, the desk, many at once."""

from __future__ import annotations

import json
import re
from uuid import uuid4

import httpx

from tests.api.served import Served
from tests.api.support import CHART, Api, wait_until


def test_a_chart_is_checked_drawn_tried_out_and_compared_before_it_is_used(api: Api) -> None:
    spec = {**CHART, "id": f"draft-{uuid4().hex[:8]}"}
    assert api.ok("POST /workflow/definitions/lint", {"spec": spec})["sound"] is True
    faulty = api.ok("POST /workflow/definitions/lint", {"spec": {**spec, "initial": "nowhere"}})
    assert faulty["sound"] is False
    assert [p["pointer"] for p in faulty["problems"]] == ["/spec/initial"]
    problem = api.refused(422, "validation-failed", "POST /workflow/definitions", {"spec": {**spec, "initial": "x"}})
    assert [fault["pointer"] for fault in problem["errors"]] == ["/spec/initial"]
    turns = api.ok("POST /workflow/definitions/simulate", {"spec": spec, "events": [{"type": "withdrawn"}]})["turns"]
    assert [turn["state"] for turn in turns] == ["review", "over"]

    first = api.ok("POST /workflow/definitions", {"spec": spec})
    longer = {**spec, "states": {**spec["states"], "archive": {"type": "final"}}}
    second = api.ok("POST /workflow/definitions", {"spec": longer})
    assert (second["key"], second["version"]) == (spec["id"], 2)
    changed = api.ok(f"GET /workflow/definitions/{second['id']}/diff?against={first['id']}")
    assert "archive" in changed["text"] and changed["same"] is False
    svg = api(f"GET /workflow/definitions/{first['id']}/graph")
    assert svg.headers["content-type"].startswith("image/svg+xml") and svg.text.startswith("<svg")
    word = api.start(spec["id"])
    api.open_task(word)
    text = api(f"GET /workflow/definitions/{second['id']}/graph?format=mermaid&instance_id={word}")
    assert text.status_code == 200 and "stateDiagram" in text.text
    api.refused(
        422, "validation-failed", f"GET /workflow/definitions/{first['id']}/graph?instance_id={word}"
    )  # it is of version 2
    listed = api.ok(f"GET /workflow/definitions?key={spec['id']}")["items"]
    assert [(d["version"], d["spec"]) for d in listed] == [(2, None), (1, None)]
    assert "order" in [d["key"] for d in api.ok("GET /workflow/definitions?limit=200")["items"] if d["kind"] == "code"]


def test_an_instance_stands_still_and_goes_on(api: Api) -> None:
    word = api.start("order", {"id": "p"})
    api.until(word, lambda seen: seen["status"] == "waiting")
    api.ok(f"POST /workflow/instances/{word}/pause", {"reason": "the auditors are here"})
    api.until(word, lambda seen: "paused" in (seen["waiting_on"] or ""))
    api.ok(f"POST /workflow/instances/{word}/signal", {"name": "confirmed", "payload": {"by": "bob"}})
    wait_until(lambda: "paused" in api.ok(f"GET /workflow/instances/{word}/why")["why"], "a word of the pause")
    why = api.ok(f"GET /workflow/instances/{word}/why")["why"]
    assert "admin-service" in why and "auditors" in why
    assert api.ok(f"GET /workflow/instances/{word}")["completed_at"] is None
    api.ok(f"POST /workflow/instances/{word}/resume")
    assert api.ended(word)["result"]["by"] == "bob"


def test_why_it_waits_is_one_plain_sentence(api: Api) -> None:
    order, request, later = api.start("order", {"id": "w"}), api.start("request"), api.start("backing-off")
    api.until(order, lambda seen: seen["status"] == "waiting")
    assert "confirmed" in api.ok(f"GET /workflow/instances/{order}/why")["why"]
    api.open_task(request)
    assert "Approve it" in api.ok(f"GET /workflow/instances/{request}/why")["why"]
    api.until(later, lambda seen: seen["status"] == "waiting")
    assert "no such account" in api.ok(f"GET /workflow/instances/{later}/why")["why"]


def test_what_failed_is_tried_again_as_a_new_instance_from_its_failed_step(api: Api) -> None:
    word = api.start("failing", {"id": "f"})
    assert api.ended(word)["status"] == "failed"
    made = api(f"POST /workflow/instances/{word}/retry", {"reason": "the account is there now"})
    assert made.status_code == 201
    again = made.json()["id"]
    assert made.headers["location"] == f"/workflow/instances/{again}" and again != word
    seen = api.ended(again)
    assert [e["name"] for e in seen["history"] if e["type"] == "STEP_COMPLETED"] == ["reserve"]
    forked = api.ok(f"POST /workflow/instances/{word}/fork", {"step": "reserve"})["id"]
    assert api.ended(forked)["status"] == "failed"
    api.refused(409, "fork-refused", f"POST /workflow/instances/{word}/fork", {"step": "no such step"})


def test_a_back_off_is_cut_short(api: Api) -> None:
    word = api.start("backing-off")
    api.until(word, lambda seen: seen["status"] == "waiting")
    assert api(f"POST /workflow/instances/{word}/retry").status_code == 202
    api.until(word, lambda seen: [e["type"] for e in seen["history"]].count("STEP_RETRIED") == 2)
    api.ok(f"POST /workflow/instances/{word}/cancel")
    assert api.ended(word)["status"] == "cancelled"


def test_children_are_listed(api: Api) -> None:
    word = api.start("parent", {"n": 1})
    api.ended(word)
    [child] = api.ok(f"GET /workflow/instances/{word}/children")["items"]
    assert (child["definition_key"], child["parent_id"], child["status"]) == ("quick", word, "completed")


def test_the_desk_shows_what_nobody_knows_and_takes_a_persons_word(api: Api) -> None:
    word = api.start("unknown", {"amount_minor": 5})
    [effect] = wait_until(
        lambda: [
            e
            for e in api.ok("GET /workflow/effects?state=outcome_unknown&limit=200")["items"]
            if e["instance_id"] == word
        ],
        "an effect on the desk",
    )
    assert [e["id"] for e in api.ok(f"GET /workflow/instances/{word}/effects")["items"]] == [effect["id"]]
    shown = api(f"GET /workflow/effects/{effect['id']}")
    assert "bank did not answer" in json.dumps(shown.json()["error"])
    assert "pay" in api.ok(f"GET /workflow/instances/{word}/why")["why"]
    body = {"resolution": "happened", "reason": "seen on the account", "result": {"id": "tr-9"}}
    api.refused(412, "precondition-failed", f"POST /workflow/effects/{effect['id']}/resolve", body, if_match='"99"')
    done = api(f"POST /workflow/effects/{effect['id']}/resolve", body, if_match=shown.headers["etag"])
    assert done.status_code == 202
    assert api.ended(word)["result"] == {"id": "tr-9"}
    last = api.ok(f"GET /workflow/effects/{effect['id']}")
    assert (last["state"], last["resolution"], last["resolved_by"]) == ("resolved", "happened", "admin-service")


def test_many_are_started_at_once_each_with_its_own_answer(api: Api) -> None:
    key = uuid4().hex
    api.start("quick", {"n": 0}, business_key=f"{key}-0")
    items = [{"business_key": f"{key}-{n}", "input": {"n": n}} for n in range(3)]
    items.append({"business_key": f"{key}-1", "input": {"n": 99}})
    body = {"definition_key": "quick", "items": items}
    api.refused(400, "idempotency-key-missing", "POST /workflow/instances/batch", body)
    done = api.ok("POST /workflow/instances/batch", body, idempotency_key=key)
    assert [item["status"] for item in done["items"]] == [200, 201, 201, 409]
    assert (done["started"], done["existing"], done["refused"]) == (2, 1, 1)
    again = api("POST /workflow/instances/batch", body, idempotency_key=key)
    assert (again.json(), again.headers["idempotent-replayed"]) == (done, "true")


def test_everything_that_matches_is_told_and_who_could_not_be_is_named(served: Served) -> None:
    api = served.api("admin", f"bulk-{uuid4().hex[:6]}")
    words = {api.start("order", {"id": str(n)}) for n in range(5)}
    over = api.start("quick", {"n": 1})
    api.ended(over)
    for word in words:
        api.until(word, lambda seen: seen["status"] == "waiting")
    order = {"action": "cancel", "filter": {"all": True}, "reason": "wrong batch"}
    counted = api.ok("POST /workflow/bulk", {**order, "dry_run": True}, idempotency_key="count")
    assert (counted["matched"], counted["status"], counted["id"]) == (6, "dry_run", None)
    api.refused(422, "validation-failed", "POST /workflow/bulk", {**order, "filter": {}}, idempotency_key="x")
    api.refused(412, "precondition-failed", "POST /workflow/bulk", {**order, "expected": 2}, idempotency_key="y")
    begun = api("POST /workflow/bulk", {**order, "expected": 6}, idempotency_key="do")
    assert begun.status_code == 202
    place = begun.headers["location"]
    wait_until(lambda: api.ok(f"GET {place}")["status"] == "completed", lambda: str(api.ok(f"GET {place}")))
    seen = api.ok(f"GET {place}")
    assert (seen["matched"], seen["done"], seen["failed"]) == (6, 5, 1)
    assert [f["instance_id"] for f in api.ok(f"GET {place}/failures")["items"]] == [over]
    for word in words:
        ended = api.ended(word)
        assert ended["status"] == "cancelled"
        assert [e["payload"]["error"]["actor"] for e in ended["history"] if e["type"] == "INSTANCE_CANCELLING"] == [
            "admin-service"
        ]
    api.refused(404, "not-found", f"GET /workflow/bulk/blk_{over.removeprefix('ins_')}")


def _events(api: Api, path: str, until: str, **headers: str) -> list[tuple[str, str, dict[str, object]]]:
    """The events of a stream, up to one of this type."""
    found = []
    words = {name.replace("_", "-"): value for name, value in headers.items()}
    with api.client.stream("GET", path, headers=words) as stream:
        assert stream.status_code == 200, stream.read()
        assert stream.headers["content-type"].startswith("text/event-stream")
        event: dict[str, str] = {}
        for line in stream.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
            elif "event" in event:
                found.append((event["id"], event["event"], json.loads(event["data"])))
                if event["event"] == until:
                    break
                event = {}
    return found


def test_an_instance_is_followed_live_and_from_where_one_left_off(api: Api) -> None:
    word = api.start("order", {"id": "s"})
    api.until(word, lambda seen: seen["status"] == "waiting")
    api.ok(f"POST /workflow/instances/{word}/signal", {"name": "confirmed", "payload": {}})
    path = f"/workflow/instances/{word}/stream"
    events = _events(api, path, "INSTANCE_COMPLETED")
    assert [int(id_) for id_, _, _ in events] == list(range(1, len(events) + 1))
    assert events[0][1] == "INSTANCE_STARTED" and events[0][2]["seq"] == 1
    rest = _events(api, path, "INSTANCE_COMPLETED", last_event_id="2")
    assert rest == events[2:]
    assert api(f"GET {path}", last_event_id=events[-1][0]).status_code == 204
    api.refused(422, "validation-failed", f"GET {path}", last_event_id="x")


def test_a_tenants_feed_shows_everything_once_and_goes_on_where_one_left_off(served: Served) -> None:
    api = served.api("admin", f"feed-{uuid4().hex[:6]}")
    other = served.api("admin", f"feed-{uuid4().hex[:6]}")
    words: list[str] = []

    def start_some() -> None:
        other.start("quick", {"n": 0})
        words.extend(api.start("quick", {"n": n}) for n in range(3))

    import threading

    starter = threading.Timer(0.5, start_some)
    starter.start()
    with api.client.stream("GET", "/workflow/stream") as stream:
        seen = _read_until(stream, lambda events: sum(t == "INSTANCE_COMPLETED" for _, t, _ in events) == 3)
    starter.join()
    assert {event["instance_id"] for _, _, event in seen} == set(words)
    assert len({(event["instance_id"], event["seq"]) for _, _, event in seen}) == len(seen)
    middle = len(seen) // 2
    with api.client.stream("GET", "/workflow/stream", headers={"Last-Event-ID": seen[middle][0]}) as stream:
        rest = _read_until(stream, lambda events: len(events) == len(seen) - middle - 1)
    assert rest == seen[middle + 1 :]
    api.refused(422, "validation-failed", "GET /workflow/stream", last_event_id="nonsense")


def _read_until(stream: httpx.Response, enough: object) -> list[tuple[str, str, dict[str, object]]]:
    assert stream.status_code == 200
    found: list[tuple[str, str, dict[str, object]]] = []
    event: dict[str, str] = {}
    for line in stream.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
            continue
        if "event" in event:
            found.append((event["id"], event["event"], json.loads(event["data"])))
        event = {}
        if enough(found):  # type: ignore[operator]
            return found
    raise AssertionError("the stream ended")


def test_principals_and_keys_are_made_changed_rotated_and_revoked(served: Served) -> None:
    api = served.api("admin", f"keys-{uuid4().hex[:6]}")
    who = api("POST /workflow/principals", {"name": "ann", "kind": "human", "roles": ["viewer"]})
    assert who.status_code == 201
    api.refused(409, "name-taken", "POST /workflow/principals", {"name": "ann", "kind": "human", "roles": []})
    made = api.ok("POST /workflow/keys", {"principal": "ann", "name": "laptop"})
    ann = Api(served.url, made["key"])
    assert ann.ok("GET /workflow/me")["name"] == "ann"
    ann.refused(403, "forbidden", "POST /workflow/instances", {"definition_key": "quick"})
    place = who.headers["location"]
    change = {"roles": ["viewer", "operator"]}
    api.refused(428, "precondition-required", f"PATCH {place}", change)
    api.refused(412, "precondition-failed", f"PATCH {place}", change, if_match='"7"')
    assert api.ok(f"PATCH {place}", change, if_match=who.headers["etag"])["version"] == 1
    wait_until(lambda: ann("POST /workflow/instances", {"definition_key": "quick"}).status_code == 201, "the new role")

    rotated = api.ok(f"POST /workflow/keys/{made['id']}/rotate", {"overlap": "PT1H"})
    assert Api(served.url, rotated["key"]).ok("GET /workflow/me")["name"] == "ann"
    assert ann.ok("GET /workflow/me")["name"] == "ann"
    api.ok(f"POST /workflow/keys/{made['id']}/revoke")
    wait_until(lambda: ann("GET /workflow/me").status_code == 401, "the end of the old key")
    listed = api.ok("GET /workflow/keys")["items"]
    assert "hfst_" in listed[0]["shown"] and all("key" not in key for key in listed)
    told = [(e["action"], e["actor"]) for e in api.ok("GET /workflow/audit")["items"]]
    assert told[:4] == [
        ("key.revoked", "admin-service"), ("key.rotated", "admin-service"), ("key.created", "admin-service"),
        ("principal.changed", "admin-service"),
    ]  # fmt: skip


def test_nobody_gives_away_more_than_they_may(served: Served) -> None:
    tenant = f"few-{uuid4().hex[:6]}"
    api = served.api("admin", tenant)
    key = api.ok(
        "POST /workflow/keys",
        {"principal": "admin-service", "name": "narrow", "scopes": ["access:manage", "access:read"]},
    )["key"]
    narrow = Api(served.url, key)
    narrow.refused(403, "forbidden", "POST /workflow/principals", {"name": "x", "kind": "human", "roles": ["admin"]})
    narrow.refused(403, "forbidden", "POST /workflow/keys", {"principal": "admin-service", "name": "wide"})
    narrow.ok("POST /workflow/principals", {"name": "y", "kind": "human", "roles": []})


def test_a_tenants_hosts_are_set_with_the_version_that_was_seen(served: Served) -> None:
    api = served.api("admin", f"hosts-{uuid4().hex[:6]}")
    first = api("GET /workflow/tenant")
    assert (first.json()["http_hosts"], first.headers["etag"]) == ([], '"0"')
    api.refused(428, "precondition-required", "PATCH /workflow/tenant", {"http_hosts": ["api.example.org"]})
    second = api("PATCH /workflow/tenant", {"http_hosts": ["api.example.org"]}, if_match='"0"')
    assert (second.status_code, second.headers["etag"]) == (200, '"1"')
    assert second.json()["http_hosts"] == ["api.example.org"]
    api.refused(412, "precondition-failed", "PATCH /workflow/tenant", {"ai_enabled": False}, if_match='"0"')
    bad = api.refused(422, "validation-failed", "PATCH /workflow/tenant", {"http_hosts": ["a b"]}, if_match='"1"')
    assert "http_hosts" in bad["detail"]


def test_workers_queues_and_dead_letters_are_read(served: Served) -> None:
    api = served.api()
    [live] = [worker for worker in api.ok("GET /workflow/workers")["items"] if worker["state"] == "live"]
    assert "order v1" in live["definitions"]
    assert isinstance(api.ok("GET /workflow/queues")["items"], list)
    assert isinstance(api.ok("GET /workflow/dead-letters")["items"], list)


def test_the_server_describes_itself_offline(served: Served) -> None:
    nobody = Api(served.url, None)
    document = nobody.ok("GET /openapi.json")
    assert document["openapi"] == "3.1.0"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"] and operation["description"], f"{method} {path}"
            good = [words for status, words in operation["responses"].items() if status < "400"]
            assert good, f"{method} {path}"
            if "requestBody" in operation and path != "/login":
                assert operation["requestBody"]["content"]["application/json"]["examples"], f"{method} {path}"
    page = nobody("GET /docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text.replace(served.url, "") and page.text.count(served.url) > 60
    assert re.findall(r"<script.*?</script>", page.text, re.S) == ['<script src="/docs.js"></script>']
    assert "'unsafe-inline'" not in re.findall(r"script-src[^;]*", page.headers["content-security-policy"])[0]
    assert "https://" not in page.text.replace("https://holdfast.dev/problems", "").replace(
        "https://json-schema.org", ""
    )
    assert nobody("GET /livez").status_code == nobody("GET /readyz").status_code == 200
    text = nobody("GET /metrics").text
    for name in ("holdfast_http_request_duration_seconds", "holdfast_queue_depth", "holdfast_effects_unknown"):
        assert name in text


def test_a_request_is_found_again_by_its_ids(api: Api) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    made = api("POST /workflow/instances", {"definition_key": "quick"}, traceparent=parent, x_request_id="my-request")
    assert made.headers["x-request-id"] == "my-request"
    assert made.json()["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    word = made.json()["id"]
    assert api.ok(f"GET /workflow/instances/{word}")["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    problem = api.refused(404, "not-found", "GET /workflow/tasks/x", traceparent=parent)
    assert problem["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
