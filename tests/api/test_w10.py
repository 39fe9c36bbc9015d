"""Every endpoint of the specification, by HTTP alone, against a real server and a real worker."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.api.served import Served
from tests.api.support import CHART, Api


def test_a_definition_is_published_read_switched_off_and_on(api: Api) -> None:
    spec = {**CHART, "id": f"def-{uuid4().hex[:8]}"}
    made = api("POST /workflow/definitions", {"spec": spec})
    assert made.status_code == 201
    view = made.json()
    assert (view["key"], view["version"], view["status"], view["kind"]) == (spec["id"], 1, "active", "chart")
    assert made.headers["location"] == f"/workflow/definitions/{view['id']}"
    again = api("POST /workflow/definitions", {"spec": spec})
    assert (again.status_code, again.json()["id"]) == (200, view["id"])

    read = api(f"GET /workflow/definitions/{view['id']}")
    assert (read.status_code, read.json()["spec"]) == (200, spec)
    assert [d["version"] for d in api.ok(f"GET /workflow/definitions?key={spec['id']}")["items"]] == [1]

    off = api("POST " + made.headers["location"] + "/deactivate")
    assert (off.status_code, off.json()["status"]) == (200, "inactive")
    api.refused(409, "definition-not-active", "POST /workflow/instances", {"definition_key": spec["id"]})
    on = api("POST " + made.headers["location"] + "/activate")
    assert (on.status_code, on.json()["status"]) == (200, "active")
    assert api("POST /workflow/instances", {"definition_id": view["id"]}).status_code == 201


def test_an_instance_is_started_told_and_read_to_its_end(api: Api) -> None:
    key = uuid4().hex
    given = {"definition_key": "order", "business_key": key, "input": {"id": key}}
    made = api("POST /workflow/instances", given)
    assert made.status_code == 201
    word = made.json()["id"]
    assert made.headers["location"] == f"/workflow/instances/{word}"
    api.until(word, lambda seen: seen["status"] == "waiting")
    again = api("POST /workflow/instances", given)
    assert (again.status_code, again.json()["id"]) == (200, word)
    problem = api.refused(
        409, "business-key-taken", "POST /workflow/instances", {**given, "input": {"id": key, "amount_minor": 7}}
    )
    assert [fault["pointer"] for fault in problem["errors"]] == ["/input/amount_minor"]

    sent = api(f"POST /workflow/instances/{word}/events", {"name": "confirmed", "payload": {"by": "ann"}, "id": "e1"})
    assert (sent.status_code, sent.json()["new"]) == (202, True)
    seen = api.ended(word)
    assert (seen["status"], seen["result"]) == ("completed", {"paid": {"paid": f"hold-{key}"}, "by": "ann"})
    assert [entry["type"] for entry in seen["history"]][-1] == "INSTANCE_COMPLETED"
    assert [e["seq"] for e in seen["history"]] == list(range(1, len(seen["history"]) + 1))
    [told] = [entry["payload"] for entry in seen["history"] if entry["type"] == "SIGNAL_RECEIVED"]
    assert (told["event_id"], told["sent_by"]) == ("e1", "admin-service")
    assert seen["steps"]["reserve"] == {"hold": f"hold-{key}"}
    assert seen["created_by"] == "admin-service"
    found = api.ok(f"GET /workflow/instances?business_key={key}&status=completed&definition_key=order")["items"]
    assert [one["id"] for one in found] == [word]
    late = {"name": "confirmed", "payload": {}}
    api.refused(409, "invalid-transition", f"POST /workflow/instances/{word}/events", late)


def test_a_start_waits_for_the_end_where_that_is_preferred(api: Api) -> None:
    made = api("POST /workflow/instances", {"definition_key": "quick", "context": {"n": 1}}, prefer="wait=30")
    assert (made.status_code, made.json()["status"], made.json()["result"]) == (201, "completed", {"n": 1})
    assert made.headers["preference-applied"] == "wait=30"
    still = api("POST /workflow/instances", {"definition_key": "order", "input": {"id": "x"}}, prefer="wait=1")
    assert (still.status_code, still.json()["completed_at"]) == (202, None)
    api.ok(f"POST /workflow/instances/{still.json()['id']}/cancel", {"reason": "enough"})
    assert api.ended(still.json()["id"])["status"] == "cancelled"


def test_a_task_is_found_completed_and_moves_its_instance(served: Served, api: Api) -> None:
    word = api.start("request", {"amount_minor": 900})
    task = api.open_task(word)
    assert (task["name"], task["status"], task["form"]["required"]) == ("approve", "pending", ["approve"])
    assert [t["id"] for t in api.ok(f"GET /workflow/instances/{word}/tasks")["items"]] == [task["id"]]
    problem = api.refused(
        422, "validation-failed", f"POST /workflow/tasks/{task['id']}/complete", {"output": {"approve": "yes"}}
    )
    assert [fault["pointer"] for fault in problem["errors"]] == ["/output/approve"]
    ann, bob = served.api("approver", kind="human"), served.api("approver", kind="human", group="b")
    assert ann.ok(f"POST /workflow/tasks/{task['id']}/claim")["assignee"] == "approver-human"
    bob.refused(409, "task-already-claimed", f"POST /workflow/tasks/{task['id']}/claim")
    bob.refused(
        409, "task-already-claimed", f"POST /workflow/tasks/{task['id']}/complete", {"output": {"approve": True}}
    )
    assert ann.ok(f"POST /workflow/tasks/{task['id']}/unclaim")["assignee"] is None
    ann.ok(f"POST /workflow/tasks/{task['id']}/comments", {"body": "looks fine"})
    said = ann.ok(f"GET /workflow/tasks/{task['id']}/comments")["items"]
    assert [(c["author"], c["body"]) for c in said] == [("approver-human", "looks fine")]
    done = ann.ok(f"POST /workflow/tasks/{task['id']}/complete", {"output": {"approve": True}})
    assert (done["status"], done["completed_by"]) == ("succeeded", "approver-human")
    ann.refused(409, "invalid-transition", f"POST /workflow/tasks/{task['id']}/fail", {"reason": "no"})
    seen = api.ended(word)
    assert seen["status"] == "completed"
    assert {t["name"]: t["status"] for t in seen["tasks"]} == {"approve": "succeeded", "book": "succeeded"}


def test_a_task_that_cannot_be_done_fails_with_its_reason(api: Api) -> None:
    word = api.start("request")
    task = api.open_task(word)
    api.refused(422, "validation-failed", f"POST /workflow/tasks/{task['id']}/fail", {})
    failed = api.ok(f"POST /workflow/tasks/{task['id']}/fail", {"reason": "the receipt is missing"})
    assert failed["status"] == "failed"
    assert api.ended(word)["status"] == "failed"


def test_a_task_is_given_to_somebody_by_who_may(served: Served, api: Api) -> None:
    word = api.start("request")
    task = api.open_task(word)
    ann = served.api("approver", kind="human")
    problem = ann.refused(403, "forbidden", f"POST /workflow/tasks/{task['id']}/assign", {"assignee": "x"})
    assert "tasks:assign" in problem["detail"]
    given = api.ok(f"POST /workflow/tasks/{task['id']}/assign", {"assignee": "approver-human", "reason": "she knows"})
    assert given["assignee"] == "approver-human"
    assert [t["id"] for t in ann.ok("GET /workflow/tasks?assignee=approver-human")["items"]].count(task["id"]) == 1
    told = api.ok(f"GET /workflow/audit?entity_type=task&entity_id={task['id']}")["items"]
    assert [(e["action"], e["actor"], e["summary"]["after"]) for e in told] == [
        ("task.assigned", "admin-service", "approver-human")
    ]
    ann.ok(f"POST /workflow/tasks/{task['id']}/complete", {"output": {"approve": True}})
    assert api.ended(word)["status"] == "completed"


def test_events_reach_a_chart_strictly_or_in_line(api: Api) -> None:
    word = api.start("request")
    api.open_task(word)
    body: dict[str, Any] = {"name": "nonsense", "strict": True}
    problem = api.refused(409, "invalid-transition", f"POST /workflow/instances/{word}/events", body)
    assert "review" in problem["detail"]
    taken = api(f"POST /workflow/instances/{word}/signal", {"name": "withdrawn", "strict": True})
    assert (taken.status_code, taken.json()["taken"]) == (200, True)
    assert api.ended(word)["status"] == "completed"


def test_lists_come_in_pages_newest_first(served: Served) -> None:
    api = served.api("admin", f"pages-{uuid4().hex[:6]}")
    words = [api.start("quick", {"n": n}) for n in range(7)]
    found: list[str] = []
    cursor = ""
    while True:
        page = api.ok(f"GET /workflow/instances?limit=3{cursor}")
        found += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == words[::-1]
    api.refused(422, "validation-failed", "GET /workflow/instances?limit=0")
    api.refused(422, "validation-failed", "GET /workflow/instances?cursor=nonsense")
    api.refused(422, "validation-failed", "GET /workflow/instances?colour=red")


def test_history_is_read_from_either_end_and_by_type(api: Api) -> None:
    word = api.start("quick", {"n": 1})
    api.ended(word)
    whole = api.ok(f"GET /workflow/instances/{word}/history?after=0")["items"]
    first = api.ok(f"GET /workflow/instances/{word}/history?after=0&limit=1")
    assert first["items"] == whole[:1]
    rest = api.ok(f"GET /workflow/instances/{word}/history?cursor={first['next_cursor']}")["items"]
    assert rest == api.ok(f"GET /workflow/instances/{word}/history?after=1")["items"]
    assert first["items"] + rest == whole
    last = api.ok(f"GET /workflow/instances/{word}/history?limit=1")
    assert last["items"] == whole[-1:]
    before = api.ok(f"GET /workflow/instances/{word}/history?cursor={last['next_cursor']}")["items"]
    assert before + last["items"] == whole
    assert before == api.ok(f"GET /workflow/instances/{word}/history?before={whole[-1]['seq']}")["items"]
    both = f"GET /workflow/instances/{word}/history?cursor={last['next_cursor']}"
    api.refused(422, "validation-failed", f"{both}&after=1")
    api.refused(422, "validation-failed", f"GET /workflow/instances/{word}/history?cursor=1")
    steps = api.ok(f"GET /workflow/instances/{word}/history?type=STEP_COMPLETED,ERROR")["items"]
    assert [entry["name"] for entry in steps] == ["echo"]


def test_what_is_not_there_is_said_alike_everywhere(api: Api) -> None:
    for word in ("ins_" + "0" * 32, "nonsense", "ins_xyz", "%00", "ins_" + "0" * 31):
        for more in ("", "/history", "/tasks", "/children", "/effects", "/why", "/stream"):
            api.refused(404, "not-found", f"GET /workflow/instances/{word}{more}")
        api.refused(404, "not-found", f"POST /workflow/instances/{word}/cancel", {})
    api.refused(404, "not-found", "GET /workflow/tasks/tsk_" + "0" * 32)
    api.refused(404, "not-found", "GET /workflow/definitions/nothing")
    api.refused(404, "not-found", "GET /workflow/effects/eff_" + "0" * 32)
    api.refused(404, "not-found", "POST /workflow/instances", {"definition_key": "no such workflow"})
    api.refused(404, "not-found", "GET /nowhere")
    api.refused(405, "method-not-allowed", "DELETE /workflow/instances")
