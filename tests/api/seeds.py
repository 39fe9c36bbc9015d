"""Something living of everything there is, in one tenant: what the tests of the whole table point their requests at."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import uuid4

from tests.api.support import CHART, Api, wait_until


class Seeds:
    """Ids by the noun before them in a path (`instances`, `tasks`, …), of things that live in the tenant of `api`."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.ids: dict[str, list[str]] = {
            noun: [] for noun in ("definitions", "instances", "tasks", "effects", "bulk", "principals", "keys")
        }
        self.chart = {**CHART, "id": "request"}

    def plant(self) -> Seeds:
        """One of each, and wait until all of it is there."""
        api = self.api
        first = api.ok("POST /workflow/definitions", {"spec": self.chart})
        longer = {**self.chart, "states": {**self.chart["states"], "shelf": {"type": "final"}}}
        second = api.ok("POST /workflow/definitions", {"spec": longer})
        self.ids["definitions"] += [first["id"], second["id"], "request@1", "request", "order@1"]
        self.grow()
        done = api.start("quick", {"n": 1})
        failed = api.start("failing", {"id": "f"})
        self.ids["instances"] += [done, failed, api.start("parent", {"n": 2})]
        bulk = api.ok(
            "POST /workflow/bulk", {"action": "cancel", "filter": {"business_key": "nobody"}, "reason": "a seed"},
            idempotency_key=uuid4().hex,
        )  # fmt: skip
        self.ids["bulk"].append(bulk["id"])
        api.ended(done), api.ended(failed)
        wait_until(lambda: self.look() and self.ids["tasks"] and self.ids["effects"], "seeds")
        return self

    def grow(self) -> None:
        """A few more that live, without waiting for them."""
        api = self.api
        for key in ("order", "request", "unknown", "backing-off"):
            with contextlib.suppress(AssertionError):  # somebody may have switched the definition off
                self.ids["instances"].append(api.start(key, {"id": uuid4().hex[:6]}))
        made = api.ok("POST /workflow/principals", {"name": f"p-{uuid4().hex[:8]}", "kind": "human", "roles": []})
        self.ids["principals"].append(made["id"])
        key = api.ok("POST /workflow/keys", {"principal": made["name"], "name": "seed"})
        self.ids["keys"].append(key["id"])
        self.look()

    def look(self) -> bool:
        """Take in what those that were started have made by now."""
        for noun, where in (("tasks", "tasks?type=HUMAN"), ("effects", "effects?state=outcome_unknown")):
            for one in self.api.ok(f"GET /workflow/{where}")["items"]:
                if one["id"] not in self.ids[noun]:
                    self.ids[noun].append(one["id"])
        return True

    def newest(self, noun: str, count: int = 8) -> list[str]:
        return self.ids[noun][-count:]


def noun_of(path: str) -> str:
    """`/workflow/tasks/{id}/claim` is about tasks."""
    return path.partition("/{id}")[0].rpartition("/")[2]


def fitting_body(operation: str, seeds: Seeds) -> list[Any]:
    """Bodies that fit an operation, and mean something there."""
    method, path = operation.split(" ")
    word = uuid4().hex[:8]
    fits: dict[str, list[Any]] = {
        "POST /workflow/definitions": [{"spec": {**seeds.chart, "id": f"c-{word}"}}, {"spec": seeds.chart}],
        "POST /workflow/definitions/lint": [{"spec": seeds.chart}],
        "POST /workflow/definitions/simulate": [
            {"spec": seeds.chart, "events": [{"type": "withdrawn"}]},
            {"definition_key": "request", "events": [{"type": "withdrawn"}]},
        ],
        "POST /workflow/instances": [
            {"definition_key": "quick", "input": {"n": word}},
            {"definition_key": "request", "business_key": word, "context": {"n": 1}},
            {"definition_id": seeds.ids["definitions"][0], "input": {}},
        ],
        "POST /workflow/instances/batch": [
            {"definition_key": "quick", "items": [{"input": 1}, {"business_key": word, "input": {}}]}
        ],
        "POST /workflow/bulk": [
            {"action": "signal", "signal": "confirmed", "filter": {"definition_key": "order"}, "reason": "a fuzz"},
            {"action": "pause", "filter": {"all": True}, "reason": "a fuzz", "dry_run": True},
        ],
        "POST /workflow/principals": [{"name": f"p-{word}", "kind": "agent", "roles": ["viewer"]}],
        "POST /workflow/keys": [{"principal": seeds.ids["principals"][0], "name": "k", "scopes": ["tasks:read"]}],
        "PATCH /workflow/tenant": [{"http_hosts": ["api.example.org"]}, {"ai_enabled": False}],
        "PATCH /workflow/principals/{id}": [{"roles": ["viewer"]}, {"groups": ["finance"]}],
        "POST /workflow/keys/{id}/rotate": [{"overlap": "PT1H"}],
        "POST /workflow/effects/{id}/resolve": [
            {"resolution": "happened", "reason": "seen", "result": {"id": 1}},
            {"resolution": "did_not_happen", "reason": "not there", "accept_double": True},
            {"resolution": "abort", "reason": "enough"},
        ],
        "POST /workflow/tasks/{id}/assign": [{"assignee": "bob"}, {"assignee": None, "reason": "back"}],
        "POST /workflow/tasks/{id}/complete": [{"output": {"approve": True}}],
        "POST /workflow/tasks/{id}/fail": [{"reason": "no"}],
        "POST /workflow/tasks/{id}/comments": [{"body": "hello"}],
        "POST /workflow/instances/{id}/fork": [{"step": "reserve"}, {}],
        "POST /workflow/instances/{id}/migrate": [{"version": 2, "dry_run": True}, {"version": 1}],
    }  # fmt: skip
    for send in ("events", "signal"):
        fits[f"POST /workflow/instances/{{id}}/{send}"] = [
            {"name": "confirmed", "payload": {"by": "ann"}}, {"name": "withdrawn", "id": word, "strict": True},
        ]  # fmt: skip
    for word in ("cancel", "pause", "resume", "retry"):
        fits[f"POST /workflow/instances/{{id}}/{word}"] = [{"reason": "a fuzz"}, {}]
    return fits.get(operation, [] if method == "GET" or "{id}" in path else [{}])
