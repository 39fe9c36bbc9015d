"""Who may do what: the table that is checked in, the table of the app, and what the server really answers."""

from __future__ import annotations

import secrets
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest

from holdfast.api.endpoints import ANYONE, PUBLIC, Endpoint
from holdfast.api.server import table
from holdfast.engine.access import CAPABILITIES, NOT_FOR_AGENTS, ROLES
from holdfast.engine.keys import make_key
from tests.api.matrix import CALLERS, FILE, may, render
from tests.api.served import Served
from tests.api.support import ROOT, Api, wait_until
from tests.support.patience import PATIENCE_SECONDS

ENDPOINTS = table()
LOGIN = "POST /login"  # answers 401 to whoever has no login link, which is no key


def ask(api: Api, endpoint: Endpoint) -> int:
    """The status of a request that fits nothing: who may not is told so before anything is read."""
    path = endpoint.path.replace("{id}", f"{endpoint.prefix or 'def'}_{'0' * 32}")
    if endpoint.stream:
        with api.client.stream("GET", path) as answer:
            return answer.status_code
    return api(f"{endpoint.method} {path}").status_code


def wrong(api: Api, allowed: Any, refusal: int) -> list[str]:
    """Operations that are not answered as they should be."""
    found = []
    for endpoint in ENDPOINTS:
        status = ask(api, endpoint)
        expected = allowed(endpoint) or (endpoint.operation == LOGIN and status == 401)
        if (status in (401, 403)) if expected and endpoint.operation != LOGIN else not expected and status != refusal:
            found.append(f"{endpoint.operation}: {status}")
    return found


def test_the_table_that_is_checked_in_is_the_table_of_the_app() -> None:
    assert FILE.read_text() == render(), "if that is meant: python -m tests.api.matrix"


def test_every_capability_is_asked_for_and_every_role_has_some() -> None:
    asked = {endpoint.capability for endpoint in ENDPOINTS} - {PUBLIC, ANYONE}
    assert asked == set(CAPABILITIES)
    assert all(words and words <= set(CAPABILITIES) for words in ROLES.values())
    assert {e.path for e in ENDPOINTS if e.capability == PUBLIC} == {
        "/livez", "/readyz", "/metrics", "/openapi.json", "/", "/docs", "/docs.js", "/login", "/logout",
    }  # fmt: skip
    changing = {e.capability for e in ENDPOINTS if e.method != "GET"}
    assert not changing & {"instances:read", "tasks:read", "effects:read", "audit:read", "access:read", "tenant:read"}
    assert {"tasks:work", "effects:resolve", "access:manage"} <= NOT_FOR_AGENTS


@pytest.mark.parametrize("caller", CALLERS)
def test_the_server_refuses_exactly_what_the_table_says(served: Served, caller: str) -> None:
    api = served.api("admin", "matrix", kind="agent") if caller == "agent" else served.api(caller, "matrix")
    assert wrong(api, lambda endpoint: may(caller, endpoint), 403) == []


def test_a_key_with_scopes_may_do_those_and_nothing_else(served: Served) -> None:
    admin = served.api("admin", "matrix")
    scopes = ["tasks:read", "instances:send"]
    made = admin.ok("POST /workflow/keys", {"principal": "admin-service", "name": "few", "scopes": scopes})
    few = Api(served.url, made["key"])
    assert wrong(few, lambda endpoint: endpoint.capability in (PUBLIC, ANYONE, *scopes), 403) == []
    assert few.ok("GET /workflow/me")["capabilities"] == sorted(scopes)
    none = admin.ok("POST /workflow/keys", {"principal": "admin-service", "name": "none", "scopes": []})
    assert wrong(Api(served.url, none["key"]), lambda e: e.capability in (PUBLIC, ANYONE), 403) == []


def test_nobody_gives_away_what_they_do_not_have(served: Served) -> None:
    admin = served.api("admin", "matrix")
    scopes = ["access:manage", "access:read", "tasks:read"]
    made = admin.ok("POST /workflow/keys", {"principal": "admin-service", "name": "warden", "scopes": scopes})
    warden = Api(served.url, made["key"])
    name = uuid4().hex
    warden.refused(403, "forbidden", "POST /workflow/principals", {"name": name, "kind": "human", "roles": ["admin"]})
    warden.refused(403, "forbidden", "POST /workflow/keys", {"principal": "admin-service", "name": "more"})
    warden.refused(403, "forbidden", f"POST /workflow/keys/{made['id']}/rotate")
    who = warden.ok("POST /workflow/principals", {"name": name, "kind": "human", "roles": []})
    place = f"PATCH /workflow/principals/{who['id']}"
    warden.refused(403, "forbidden", place, {"roles": ["viewer"]}, if_match='"0"')
    root = admin.ok("GET /workflow/me")["principal_id"]
    warden.refused(403, "forbidden", f"PATCH /workflow/principals/{root}", {"status": "disabled"}, if_match="*")
    assert warden.ok(place, {"groups": ["finance"]}, if_match='"0"')["groups"] == ["finance"]


def broken_keys(served: Served) -> dict[str, str | None]:
    """Keys of all kinds that open nothing."""
    admin = served.api("admin", "matrix")
    name = uuid4().hex
    admin.ok("POST /workflow/principals", {"name": name, "kind": "service", "roles": ["admin"]})
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
    expired = admin.ok("POST /workflow/keys", {"principal": name, "name": "short", "expires_at": soon})
    revoked = admin.ok("POST /workflow/keys", {"principal": name, "name": "revoked"})
    admin.ok(f"POST /workflow/keys/{revoked['id']}/revoke")
    gone = admin.ok("POST /workflow/principals", {"name": name + "-gone", "kind": "service", "roles": ["admin"]})
    disabled = admin.ok("POST /workflow/keys", {"principal": gone["id"], "name": "disabled"})
    assert Api(served.url, disabled["key"])("GET /workflow/me").status_code == 200
    admin.ok(f"PATCH /workflow/principals/{gone['id']}", {"status": "disabled"}, if_match='"0"')
    rotated = admin.ok("POST /workflow/keys", {"principal": name, "name": "old"})
    admin.ok(f"POST /workflow/keys/{rotated['id']}/rotate", {"overlap": "PT0S"})
    later = Api(served.url, expired["key"])
    wait_until(lambda: later("GET /workflow/me").status_code == 401, "the end of a key")
    good = admin.key
    assert good is not None
    return {
        "none": None, "unknown": make_key("live", secrets.token_bytes(32)), "mistyped": good[:-1] + "_",
        "other end": good[:-1] + ("a" if good[-1] != "a" else "b"), "expired": expired["key"],
        "revoked": revoked["key"], "disabled": disabled["key"], "rotated away": rotated["key"],
        "no key": "secret", "a token": "e30.e30.e30", "longer": good + "0",
    }  # fmt: skip


def test_a_key_that_is_none_opens_only_what_is_public(served: Served) -> None:
    for name, key in broken_keys(served).items():
        api = Api(served.url, key)
        assert wrong(api, lambda endpoint: endpoint.capability == PUBLIC, 401) == [], name
        problem = api.refused(401, "unauthenticated", "GET /workflow/me")
        assert api("GET /workflow/me").headers["www-authenticate"].startswith("Bearer")
        assert (key or "hfst_") not in str(problem)


def test_a_key_is_taken_from_its_header_alone(served: Served) -> None:
    key = served.house.key("admin", "matrix")
    for headers, path in (
        ({"Authorization": f"Basic {key}"}, "/workflow/me"), ({"Authorization": key}, "/workflow/me"),
        ({"Authorization": "Bearer"}, "/workflow/me"), ({"X-Api-Key": key}, "/workflow/me"),
        ({"Cookie": f"session={key}"}, "/workflow/me"), ({}, f"/workflow/me?key={key}"),
        ({"Authorization": f"Bearer {key} {key}"}, "/workflow/me"), ({"Authorization": "Bearer \xff"}, "/workflow/me"),
    ):  # fmt: skip
        found = httpx.get(
            served.url + path, headers={n: v.encode("latin-1") for n, v in headers.items()}, timeout=PATIENCE_SECONDS
        )
        assert found.status_code == 401, headers
    assert (
        httpx.get(
            served.url + "/workflow/me", headers={"authorization": f"bEaReR {key}"}, timeout=PATIENCE_SECONDS
        ).status_code
        == 200
    )


UNDECLARED = """
import sys
from holdfast.api import health
from holdfast.api.endpoints import Answer, Endpoint
from holdfast.cli.main import main

declare, capability = health.declare, sys.argv.pop(1)

async def leak(call):
    return None

def more(endpoints):
    declare(endpoints)
    words = dict(tag="server", summary="a leak", answers={200: Answer("x")})
    if capability == "unsaid":
        endpoints.add("GET /leak", **words)(leak)
    elif capability == "smuggled":
        endpoints.all.append(Endpoint(method="GET", path="/leak", capability="", function=leak, **words))
    else:
        endpoints.add("GET /leak", capability=capability, **words)(leak)

health.declare = more
main()
"""


@pytest.mark.parametrize("capability", ["", "unsaid", "smuggled", "instances:reed", "admin"])
def test_a_route_without_a_declared_capability_stops_the_server_from_starting(capability: str, tmp_path: Any) -> None:
    database = f"sqlite:///{tmp_path / 'x.db'}"
    subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "migrate", "--database", database], check=True, cwd=ROOT,
        capture_output=True,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", UNDECLARED, capability, "server", "--port", "0", "--database", database],
        capture_output=True, text=True, cwd=ROOT, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "listening" not in done.stdout
    assert "capability" in done.stdout + done.stderr
