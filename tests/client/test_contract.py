"""The client covers the API: every operation of the table has a method that asks for it, and reads its answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest

import holdfast.client
from holdfast.api import requests
from holdfast.api.endpoints import Endpoint
from holdfast.api.models import Listing, Said
from holdfast.api.problems import PROBLEMS
from holdfast.api.server import table
from holdfast.client import ApiError, BatchItem, BlockingClient, Client, Filter, Pages
from holdfast.client.errors import BY_CODE
from tests.client.support import mocked

ID = "ins_0192f0a1b2c37d4e8f90a1b2c3d4e5f6"
SPEC = {"id": "a", "initial": "b", "states": {"b": {}}}
Made = Callable[[Client], Any]

# operation: (the method's name, how it is called)
METHODS: dict[str, tuple[str, Made]] = {
    "publish_definition": ("definitions.publish", lambda c: c.definitions.publish(SPEC, key="k", if_match=1)),
    "list_definitions": ("definitions.list", lambda c: c.definitions.list(key="k", status="active", limit=7)),
    "read_definition": ("definitions.read", lambda c: c.definitions.read("key@1")),
    "activate_definition": ("definitions.activate", lambda c: c.definitions.activate("key", if_match='"1"')),
    "deactivate_definition": ("definitions.deactivate", lambda c: c.definitions.deactivate("key", if_match=1)),
    "archive_definition": ("definitions.archive", lambda c: c.definitions.archive("key", if_match=1)),
    "lint_definition": ("definitions.lint", lambda c: c.definitions.lint(SPEC)),
    "simulate_definition": ("definitions.simulate", lambda c: c.definitions.simulate(SPEC, events=[{"type": "e"}])),
    "diff_definition": ("definitions.diff", lambda c: c.definitions.diff("a@2", "a@1")),
    "graph_definition": ("definitions.graph", lambda c: c.definitions.graph("a", format="mermaid", instance_id=ID)),
    "start_instance": ("instances.start", lambda c: c.instances.start("k", {"a": 1}, business_key="b", wait=1.5)),
    "start_batch": (
        "instances.start_many",
        lambda c: c.instances.start_many("k", items=[BatchItem(input=1, business_key="b")]),
    ),
    "list_instances": ("instances.list", lambda c: c.instances.list(status=["failed", "completed"], limit=3)),
    "read_instance": ("instances.read", lambda c: c.instances.read(ID)),
    "send_event": ("instances.send", lambda c: c.instances.send(ID, "e", {"x": 1}, strict=True, if_match=3)),
    "signal_instance": ("instances.signal", lambda c: c.instances.signal(ID, "e", wait=1, if_match=3)),
    "cancel_instance": ("instances.cancel", lambda c: c.instances.cancel(ID, "why", if_match=3)),
    "pause_instance": ("instances.pause", lambda c: c.instances.pause(ID, "why", if_match=3)),
    "resume_instance": ("instances.resume", lambda c: c.instances.resume(ID, "why", drop_event=True, if_match=3)),
    "retry_instance": ("instances.retry", lambda c: c.instances.retry(ID, "why", if_match=3)),
    "fork_instance": ("instances.fork", lambda c: c.instances.fork(ID, "pay", reason="why", if_match=3)),
    "migrate_instance": ("instances.migrate", lambda c: c.instances.migrate(ID, 2, {"a": "b"}, if_match=3)),
    "instance_history": ("instances.history", lambda c: c.instances.history(ID, types=["ERROR", "X"])),
    "instance_tasks": ("instances.tasks", lambda c: c.instances.tasks(ID, limit=3)),
    "instance_audit": ("instances.audit", lambda c: c.instances.audit(ID, limit=3)),
    "instance_children": ("instances.children", lambda c: c.instances.children(ID, limit=3)),
    "instance_effects": ("instances.effects", lambda c: c.instances.effects(ID)),
    "why_waiting": ("instances.why", lambda c: c.instances.why(ID)),
    "stream_instance": ("instances.stream", lambda c: c.instances.stream(ID, after=3)),
    "list_tasks": ("tasks.list", lambda c: c.tasks.list(status="any", type="HUMAN", group="g", instance_id=ID)),
    "read_task": ("tasks.read", lambda c: c.tasks.read("tsk_1")),
    "claim_task": ("tasks.claim", lambda c: c.tasks.claim("tsk_1", if_match=0)),
    "unclaim_task": ("tasks.unclaim", lambda c: c.tasks.unclaim("tsk_1", if_match=0)),
    "assign_task": ("tasks.assign", lambda c: c.tasks.assign("tsk_1", None, reason="why", if_match=0)),
    "complete_task": ("tasks.complete", lambda c: c.tasks.complete("tsk_1", {"approve": True}, if_match=0)),
    "fail_task": ("tasks.fail", lambda c: c.tasks.fail("tsk_1", "why", if_match=0)),
    "comment_task": ("tasks.comment", lambda c: c.tasks.comment("tsk_1", "words", if_match=0)),
    "list_comments": ("tasks.comments", lambda c: c.tasks.comments("tsk_1", limit=2)),
    "list_effects": ("effects.list", lambda c: c.effects.list(state="outcome_unknown", limit=2)),
    "read_effect": ("effects.read", lambda c: c.effects.read("eff_1")),
    "resolve_effect": (
        "effects.resolve",
        lambda c: c.effects.resolve("eff_1", "happened", reason="seen", result=1, if_match=14),
    ),
    "begin_bulk": (
        "bulk.begin",
        lambda c: c.bulk.begin("signal", Filter(status=["waiting"]), reason="r", signal="go", expected=3),
    ),
    "read_bulk": ("bulk.read", lambda c: c.bulk.read("blk_1")),
    "bulk_failures": ("bulk.failures", lambda c: c.bulk.failures("blk_1")),
    "list_workers": ("workers.list", lambda c: c.workers.list()),
    "list_queues": ("workers.queues", lambda c: c.workers.queues()),
    "list_dead_letters": ("workers.dead_letters", lambda c: c.workers.dead_letters(limit=2)),
    "stream_tenant": ("stream", lambda c: c.stream(after="12")),
    "read_me": ("me", lambda c: c.me()),
    "list_roles": ("roles", lambda c: c.roles()),
    "create_principal": ("principals.create", lambda c: c.principals.create("ann", kind="human", roles=["viewer"])),
    "list_principals": ("principals.list", lambda c: c.principals.list(limit=2)),
    "read_principal": ("principals.read", lambda c: c.principals.read("prn_1")),
    "change_principal": ("principals.change", lambda c: c.principals.change("prn_1", if_match=0, groups=["g"])),
    "create_key": ("keys.create", lambda c: c.keys.create("ann", "laptop", scopes=["instances:read"])),
    "list_keys": ("keys.list", lambda c: c.keys.list(limit=2)),
    "read_key": ("keys.read", lambda c: c.keys.read("key_1")),
    "revoke_key": ("keys.revoke", lambda c: c.keys.revoke("key_1", if_match=0)),
    "rotate_key": ("keys.rotate", lambda c: c.keys.rotate("key_1", overlap=timedelta(minutes=1), if_match=0)),
    "read_tenant": ("tenant.read", lambda c: c.tenant.read()),
    "change_tenant": ("tenant.change", lambda c: c.tenant.change(if_match=0, http_hosts=["a.example"])),
    "list_audit": ("audit.list", lambda c: c.audit.list(entity_type="task", entity_id="tsk_1")),
    "livez": ("server.live", lambda c: c.server.live()),
    "readyz": ("server.ready", lambda c: c.server.ready()),
    "metrics": ("server.metrics", lambda c: c.server.metrics()),
    "openapi": ("server.openapi", lambda c: c.server.openapi()),
    "docs": ("server.docs", lambda c: c.server.docs()),
    "login": ("server.login_page", lambda c: c.server.login_page("k")),
    "log_in": ("server.log_in", lambda c: c.server.log_in("k")),
    "log_out": ("server.log_out", lambda c: c.server.log_out("holdfast_session=x")),
}
# What a body or a query calls otherwise than the method does; "": the same thing has another word there.
OTHER_WORDS = {
    ("start_instance", "context"): "input", ("send_event", "id"): "event_id", ("signal_instance", "id"): "event_id",
    ("instance_history", "type"): "types",
}  # fmt: skip
# Of operations that share one, or are the same by another name.
ALSO = {"ready", "instances.result"}
TABLE = {endpoint.operation_id: endpoint for endpoint in table() if not endpoint.page}


def method(owner: object, path: str) -> Callable[..., Any]:
    found: Any = owner
    for part in path.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def public(owner: object, before: str = "") -> set[str]:
    """The names of its methods, with those of its groups."""
    found: set[str] = set()
    for name in dir(owner):
        if name.startswith("_") or name in ("close", "from_env"):
            continue
        one = getattr(owner, name)
        found |= {before + name} if callable(one) else public(one, f"{before}{name}.")
    return found


async def carried_out(made: Any) -> list[Any]:
    """Whatever a method gives back, to its end."""
    if isinstance(made, Pages):
        assert isinstance(await made.page(), Listing)
        return [one async for one in made]
    if isinstance(made, AsyncGenerator):
        return [one async for one in made]
    assert isinstance(made, Awaitable)
    return [await made]


def test_every_operation_has_a_method_and_every_method_an_operation() -> None:
    assert set(METHODS) == set(TABLE)
    assert {name for name, _ in METHODS.values()} | ALSO == public(mocked(lambda request: httpx.Response(200)))


def test_the_blocking_client_has_the_same_methods_with_the_same_words() -> None:
    plain = mocked(lambda request: httpx.Response(200))
    with BlockingClient("http://holdfast.test", "k") as blocking:
        assert public(blocking) == public(plain)
        for name in public(plain):
            assert inspect.signature(method(blocking, name)) == inspect.signature(method(plain, name)), name


@pytest.mark.parametrize("operation", sorted(TABLE))
def test_a_method_takes_what_its_operation_takes(operation: str) -> None:
    endpoint = TABLE[operation]
    taken = set(inspect.signature(method(mocked(lambda r: httpx.Response(200)), METHODS[operation][0])).parameters)
    for word, offered in (
        ("if_match", endpoint.if_match),
        ("idempotency_key", endpoint.keyed),
        ("wait", endpoint.prefer),
    ):
        assert (word in taken) == bool(offered), word
    for model in (endpoint.body, endpoint.query):
        for field in msgspec.structs.fields(model) if model is not None else ():
            if field.name != "cursor":
                assert OTHER_WORDS.get((operation, field.name), field.name) in taken, field.name


@pytest.mark.parametrize(
    ("operation", "status"), [(name, status) for name, endpoint in sorted(TABLE.items()) for status in endpoint.answers]
)
async def test_a_method_asks_for_its_operation_and_reads_every_answer(operation: str, status: int) -> None:
    endpoint, seen = TABLE[operation], []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if endpoint.stream and len(seen) > 1:
            return httpx.Response(204)
        said = endpoint.answers[status]
        headers = {"content-type": said.media_type, "etag": '"17"'}
        if said.media_type == "application/json":
            return httpx.Response(status, content=msgspec.json.encode(said.example), headers=headers)
        return httpx.Response(status, content=b"" if endpoint.stream else str(said.example).encode(), headers=headers)

    async with mocked(answer) as client:
        [found, *_] = [*await carried_out(METHODS[operation][1](client)), None]
    _fits(endpoint, seen[0])
    if getattr(type(found), "etag", None) is not None:
        assert found.etag == '"17"'
    elif endpoint.answers[status].media_type == "application/json" and not endpoint.path.endswith("z"):
        assert found is None or isinstance(found, (Said, dict))


def _fits(endpoint: Endpoint, request: httpx.Request) -> None:
    """The request is one that the server would take, by the server's own readers."""
    pattern = re.sub(r"\{\w+\}", "[^/]+", endpoint.path)
    assert (request.method, re.fullmatch(pattern, request.url.raw_path.decode().partition("?")[0]) is not None) == (
        endpoint.method, True,
    )  # fmt: skip
    assert ("idempotency-key" in request.headers) == bool(endpoint.keyed)
    assert ("if-match" in request.headers) == bool(endpoint.if_match)
    if endpoint.keyed:
        assert requests.KEY.match(request.headers["idempotency-key"].strip('"'))
    if endpoint.prefer:
        assert requests._wait(endpoint, request.headers) is not None
    if endpoint.body is not None:
        requests._fits(requests._read(endpoint, request.headers, request.content), endpoint.body)
    query = requests._query(request.url.query)
    if endpoint.query is not None or query:
        requests._query_model(endpoint, query)


@pytest.mark.parametrize("slug", sorted(PROBLEMS))
async def test_every_refusal_has_a_class_of_its_own(slug: str) -> None:
    status, title = PROBLEMS[slug]
    body = {
        "type": f"https://holdfast.dev/problems/{slug}", "title": title, "status": status, "detail": "do that",
        "instance": "/x", "code": slug, "trace_id": "ab" * 16, "errors": [{"detail": "not so", "pointer": "/input/a"}],
    }  # fmt: skip

    def answer(request: httpx.Request) -> httpx.Response:
        headers = {"content-type": "application/problem+json", "retry-after": "3"}
        return httpx.Response(status, content=msgspec.json.encode(body), headers=headers)

    async with mocked(answer, retries=0) as client:
        with pytest.raises(ApiError) as refused:
            await client.me()
    error = refused.value
    assert type(error) is BY_CODE[slug] and getattr(holdfast.client, type(error).__name__) is type(error)
    assert (error.code, error.status, error.detail, error.title) == (slug, status, "do that", title)
    assert (error.trace_id, error.retry_after) == ("ab" * 16, 3.0)
    assert [(fault.pointer, fault.detail) for fault in error.errors] == [("/input/a", "not so")]
    assert "do that" in str(error) and "/input/a: not so" in str(error)


def test_every_public_name_is_there_once() -> None:
    names = holdfast.client.__all__
    assert len(names) == len(set(names)) and all(hasattr(holdfast.client, name) for name in names)
