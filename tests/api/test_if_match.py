"""If-Match: of several who decided on the same version one is heard, and whoever decided on another is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest

from holdfast.api.server import table
from tests.api.served import Served
from tests.api.support import CHART, Api, wait_until

TENANT = "if-match"
DECLARED = {e.operation: e.if_match for e in table() if e.if_match}


class Change(NamedTuple):
    """Something to change: where its ETag is read, and what the nth of several asks for."""

    read: str
    operation: str
    body: Callable[[int], Any] = lambda n: None
    heard: int | None = 1  # of however many at once; None: all, because nothing of what the ETag is about changes


def _waiting(api: Api) -> str:
    word = api.start("order", {"id": uuid4().hex[:6]})
    api.until(word, lambda seen: seen["status"] == "waiting")
    return word


def _failed(api: Api) -> str:
    word = api.start("failing", {"id": "f"})
    assert api.ended(word)["status"] == "failed"
    return word


def _task(api: Api) -> str:
    word: str = api.open_task(api.start("request"))["id"]
    return word


def _effect(api: Api) -> str:
    instance = api.start("unknown", {"id": uuid4().hex[:6]})
    api.until(instance, lambda seen: seen["status"] == "waiting")
    found: list[str] = []

    def unknown(_: Any) -> bool:
        items = api.ok(f"GET /workflow/instances/{instance}/effects")["items"]
        found[:] = [one["id"] for one in items if one["state"] == "outcome_unknown"]
        return bool(found)

    api.until(instance, unknown)
    return found[0]


def _definition(api: Api) -> str:
    word: str = api.ok("POST /workflow/definitions", {"spec": {**CHART, "id": f"r-{uuid4().hex[:8]}"}})["id"]
    return word


def changes(operation: str, api: Api) -> Change:
    """One of each kind, on something that was made for it."""
    path = operation.split(" ")[1]
    word = path.rpartition("/")[2]
    if path == "/workflow/definitions":
        spec = api.ok(f"GET /workflow/definitions/{_definition(api)}")["spec"]
        return Change(
            "", operation,
            lambda n: {"spec": {**spec, "states": {**spec["states"], f"s{n}": {"type": "final"}}}},
        )  # fmt: skip
    if path == "/workflow/tenant":
        return Change(f"GET {path}", operation, lambda n: {"http_hosts": [f"h{n}.example.org"]})
    if path.startswith("/workflow/definitions/"):
        id_ = _definition(api)
        if word == "activate":
            api.ok(f"POST /workflow/definitions/{id_}/deactivate")
        return Change(f"GET /workflow/definitions/{id_}", operation.replace("{id}", id_))
    if path.startswith("/workflow/tasks/"):
        id_ = _task(api)
        if word == "unclaim":
            api.ok(f"POST /workflow/tasks/{id_}/claim")
        bodies: dict[str, Callable[[int], Any]] = {
            "assign": lambda n: {"assignee": f"person-{n}"}, "complete": lambda n: {"output": {"approve": True}},
            "fail": lambda n: {"reason": "the same"}, "comments": lambda n: {"body": f"said {n}"},
        }  # fmt: skip
        heard = None if word == "comments" else 1
        return Change(
            f"GET /workflow/tasks/{id_}", operation.replace("{id}", id_), bodies.get(word, lambda n: None), heard
        )
    if path.startswith("/workflow/effects/"):
        id_ = _effect(api)
        return Change(
            f"GET /workflow/effects/{id_}", operation.replace("{id}", id_),
            lambda n: {"resolution": "happened", "reason": f"seen by {n}", "result": {"n": n}},
        )  # fmt: skip
    if path.startswith("/workflow/principals/"):
        made = api.ok("POST /workflow/principals", {"name": uuid4().hex, "kind": "human", "roles": []})
        return Change(
            f"GET /workflow/principals/{made['id']}", operation.replace("{id}", made["id"]),
            lambda n: {"groups": [f"g{n}"]},
        )  # fmt: skip
    if path.startswith("/workflow/keys/"):
        id_ = api.ok("POST /workflow/keys", {"principal": "admin-service", "name": "raced"})["id"]
        return Change(f"GET /workflow/keys/{id_}", operation.replace("{id}", id_))
    assert path.startswith("/workflow/instances/"), f"{operation} is new: say here what it changes"
    if word == "fork":  # a new instance; the old one stays as it is
        id_ = _failed(api)
        return Change(f"GET /workflow/instances/{id_}", operation.replace("{id}", id_), lambda n: {}, None)
    if word == "migrate":
        key = f"m-{uuid4().hex[:8]}"
        api.ok("POST /workflow/definitions", {"spec": {**CHART, "id": key}})
        id_ = api.start(key)
        api.open_task(id_)
        longer = {**CHART, "id": key, "states": {**CHART["states"], "shelf": {"type": "final"}}}
        assert api.ok("POST /workflow/definitions", {"spec": longer})["version"] == 2
        return Change(
            f"GET /workflow/instances/{id_}", operation.replace("{id}", id_), lambda n: {"version": 2}
        )  # fmt: skip
    id_ = _waiting(api)
    body: Callable[[int], Any] = lambda n: {"reason": f"says {n}"}  # noqa: E731
    if word in ("events", "signal"):
        body = lambda n: {"name": "note", "payload": n}  # noqa: E731
    return Change(f"GET /workflow/instances/{id_}", operation.replace("{id}", id_), body)


def race(served: Served, change: Change, etag: str, count: int) -> list[httpx.Response]:
    """That many at once, each with its own connection, all with the same ETag."""
    start = Barrier(count)

    def one(number: int) -> httpx.Response:
        api = served.api("admin", TENANT)
        api("GET /livez")  # the connection is open before the race begins
        start.wait()
        return api(change.operation, change.body(number), if_match=etag)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def etag_of(api: Api, change: Change) -> str:
    if not change.read:  # publishing is conditional on the newest version of its key
        return '"1"'
    return api(change.read).headers["etag"]


def with_a_chart(served: Served) -> Api:
    api = served.api("admin", TENANT)
    api.ok("POST /workflow/definitions", {"spec": CHART})
    return api


@pytest.fixture
def admin(served: Served) -> Api:
    return served.once(with_a_chart)


@pytest.mark.parametrize("operation", DECLARED)
def test_of_several_with_the_same_etag_one_is_heard(served: Served, admin: Api, operation: str) -> None:
    for count in (2, 8):
        change = changes(operation, admin)
        etag = etag_of(admin, change)
        answers = race(served, change, etag, count)
        statuses = sorted(answer.status_code for answer in answers)
        heard = [answer for answer in answers if answer.status_code < 300]
        assert len(heard) == (count if change.heard is None else 1), statuses
        assert set(statuses) <= {200, 201, 202, 409, 412}, [answer.text for answer in answers]
        if change.heard == 1 and change.read:
            # A word on an effect is an event: its worker takes it, and the effect moves then.
            wait_until(lambda change=change, etag=etag: admin(change.read).headers["etag"] != etag, "another ETag")
        if "comments" in operation:
            said = admin.ok(change.operation.replace("POST", "GET"))["items"]
            assert sorted(one["body"] for one in said) == sorted(f"said {n}" for n in range(count))
        if operation == "PATCH /workflow/tenant":
            assert admin.ok(change.read)["http_hosts"] == heard[0].json()["http_hosts"]
        if operation == "PATCH /workflow/principals/{id}":
            assert admin.ok(change.read)["groups"] == heard[0].json()["groups"]


WRONG = (
    '"99"',
    "99",
    '"x"',
    '"1.0"',
    '"-1"',
    "",
    '""',
    '"',
    "'0'",
    '"0"x',
    '"٣"',
    '"99999999999999999999"',
    "nonsense",
)


@pytest.mark.parametrize("operation", DECLARED)
def test_a_wrong_etag_changes_nothing(admin: Api, operation: str) -> None:
    change = changes(operation, admin)
    before = admin(change.read).text if change.read else ""
    for etag in WRONG:
        found = admin.client.request(
            *change.operation.split(" "), json=change.body(0), headers=[(b"If-Match", etag.encode())]
        )
        assert found.status_code == 412, f"{etag}: {found.text}"
        assert found.json()["code"] == "precondition-failed"
    if DECLARED[operation] == "required":
        admin.refused(428, "precondition-required", change.operation, change.body(0))
    assert (admin(change.read).text if change.read else "") == before
    found = admin(change.operation, change.body(0), if_match=etag_of(admin, change))
    assert found.status_code < 300, found.text


def test_a_star_means_whichever_version_there_is(admin: Api) -> None:
    made = admin.ok("POST /workflow/principals", {"name": uuid4().hex, "kind": "human", "roles": []})
    place = f"PATCH /workflow/principals/{made['id']}"
    for number in range(3):
        assert admin.ok(place, {"groups": [f"g{number}"]}, if_match="*")["version"] == number + 1


def test_what_changes_without_if_match_is_never_lost(served: Served, admin: Api) -> None:
    """Whoever does not ask changes what is there: all count, or are told."""
    change = changes("PATCH /workflow/tenant", admin)
    before = admin.ok(change.read)["version"]
    answers = race(served, change, "*", 8)
    heard = [answer for answer in answers if answer.status_code == 200]
    assert {answer.status_code for answer in answers} <= {200, 409, 412}
    assert admin.ok(change.read)["version"] == before + len(heard)
