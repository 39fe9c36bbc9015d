"""Definitions over HTTP: publish, read, switch on and off; look at one before it is published."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import msgspec

from holdfast.api.endpoints import Answer, Call, Endpoints, Reply, not_found
from holdfast.api.models import (
    DefinitionOut,
    DefinitionStatus,
    DiffOut,
    Lint,
    LintOut,
    Listing,
    ProblemOut,
    Publish,
    Simulate,
    TurnsOut,
)
from holdfast.api.paging import PAGE, Cursor, Limit, paged, read_cursor
from holdfast.api.problems import Fault, Problem, storable_words
from holdfast.app import definitions
from holdfast.app import instances as app_instances
from holdfast.app.definitions import DefinitionView
from holdfast.engine import ids
from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import chart_from, compile_chart
from holdfast.engine.charts.difference import difference
from holdfast.engine.charts.document import BadChart
from holdfast.engine.charts.lint import lint as find_smells
from holdfast.engine.charts.mermaid import mermaid
from holdfast.engine.charts.simulation import simulate as run_through
from holdfast.engine.charts.svg import svg
from holdfast.engine.errors import BadInput, DefinitionNotFound, Forbidden, HoldfastError

CHART = {"id": "hello", "initial": "greet", "states": {"greet": {"on": {"done": "over"}}, "over": {"type": "final"}}}
SHOWN = {
    "id": "def_0192f0a1b2c37d4e8f90a1b2c3d4e5f6", "key": "hello", "version": 1, "kind": "chart", "status": "active",
    "hash": "5f0c…", "handlers": [], "created_at": "2026-11-16T10:00:00Z", "created_by": "ann",
    "changed_at": "2026-11-16T10:00:00Z", "changed_by": "ann", "revision": 0, "spec": CHART,
}  # fmt: skip
SPARE = ("invalid-transition", "precondition-failed")


class DefinitionsQuery(msgspec.Struct, frozen=True):
    key: str | None = None
    status: DefinitionStatus | None = None
    limit: Limit = PAGE
    cursor: Cursor | None = None


class GraphQuery(msgspec.Struct, frozen=True):
    format: Literal["svg", "mermaid"] = "svg"
    instance_id: str | None = None


class DiffQuery(msgspec.Struct, frozen=True):
    against: str


def shown(view: DefinitionView) -> DefinitionOut:
    return DefinitionOut(
        id=view.id, key=view.key, version=view.version, kind=view.kind, status=view.status, hash=view.hash,  # type: ignore[arg-type]
        handlers=view.handlers, created_at=view.created_at, created_by=view.created_by,
        changed_at=view.changed_at, changed_by=view.changed_by, revision=view.revision, spec=view.spec,
    )  # fmt: skip


def code_definitions(call: Call) -> Iterator[DefinitionOut]:
    """What the app of this server has as code: there for as long as the app is, in every tenant."""
    for key, version in call.service.registry.places():
        if not key.startswith("holdfast."):
            id_ = ids.derived("definition", call.tenant_id, key, str(version))
            yield DefinitionOut(
                id=ids.shown("def", id_), key=key, version=version, kind="code", status="active", hash=None,
                handlers=[], created_at=None, created_by=None, changed_at=None, changed_by=None, revision=0,
            )  # fmt: skip


async def find(call: Call, word: str) -> DefinitionOut:
    """By id (`def_…`), or as KEY or KEY@VERSION."""
    for one in code_definitions(call):
        if word in (one.id, f"{one.key}@{one.version}"):
            return one
    try:
        if word.startswith("def_") and len(word) == 36:
            return shown(await definitions.read_by_id(call.service, call.tenant_id, ids.parse("def", word)))
        key, _, version = word.partition("@")
        if version and (not version.isascii() or not version.isdigit() or len(version) > 9):
            raise DefinitionNotFound(word)
        if not doc_storable(key):
            raise DefinitionNotFound(word)
        return shown(await definitions.read(call.service, call.tenant_id, key, int(version) if version else None))
    except (DefinitionNotFound, BadInput):
        raise not_found(word) from None


def doc_storable(word: str) -> bool:
    return storable_words(word) == word and "\x00" not in word


async def publish_definition(call: Call, body: Publish) -> Reply:
    """Publish a chart as the next version of its key. The same content again is no new version: 200 and the one that
    has it. Its faults are all listed, with their places."""
    before = call.expected_version()
    view = await definitions.publish(
        call.service, call.tenant_id, body.spec, key=body.key, actor=call.actor, by=call.by, newest=before
    )
    status = 201 if view.is_new else 200
    return Reply(
        status, shown(view.view), str(view.view.revision), {"Location": f"/workflow/definitions/{view.view.id}"}
    )


async def list_definitions(call: Call, query: DefinitionsQuery) -> Reply:
    """Published definitions and the code workflows of this server's app, by key, the newest version first."""
    limit = query.limit
    edge = read_cursor(query.cursor, str, range(1 << 31))
    after = ("", 0) if edge is None else (edge[0], -edge[1])
    if query.key is not None and not doc_storable(query.key):
        return Reply(200, Listing[DefinitionOut](items=[], next_cursor=None))
    rows = await definitions.page(
        call.service, call.tenant_id, key=query.key, status=query.status,
        after=None if edge is None else (edge[0], edge[1]), limit=limit + 1,
    )  # fmt: skip
    code = [
        one
        for one in code_definitions(call)
        if (one.key, -one.version) > after and query.key in (None, one.key) and query.status in (None, "active")
    ]
    merged = heapq.merge([shown(row) for row in rows], sorted(code, key=_order), key=_order)
    found = [one for one, _ in zip(merged, range(limit + 1), strict=False)]
    return paged(found, limit, lambda one: one, lambda one: (one.key, one.version))


def _order(one: DefinitionOut) -> tuple[str, int]:
    return one.key, -one.version


async def read_definition(call: Call) -> Reply:
    """One definition with its document. The id may also be KEY (its newest version) or KEY@VERSION."""
    found = await find(call, call.path["id"])
    return Reply(200, found, str(found.revision))


async def _set_status(call: Call, status: str) -> Reply:
    there = await find(call, call.path["id"])
    if there.kind == "code":
        raise Problem("invalid-transition", "a code workflow comes and goes with the app that has it")
    expected = call.expected_version()
    view = await definitions.set_status(
        call.service, call.tenant_id, there.key, there.version, status, actor=call.actor, by=call.by,
        revision=expected,
    )  # fmt: skip
    return Reply(200, shown(view), str(view.revision))


async def activate_definition(call: Call) -> Reply:
    """New instances may start by this version."""
    return await _set_status(call, "active")


async def deactivate_definition(call: Call) -> Reply:
    """No new instances start by this version; those that run go on."""
    return await _set_status(call, "inactive")


async def archive_definition(call: Call) -> Reply:
    """Put this version aside for good; instances that run go on."""
    return await _set_status(call, "archived")


async def lint_definition(call: Call, body: Lint) -> Reply:
    """Check a chart without publishing it: every fault, and what looks wrong though it is allowed."""
    async with call.doors.thinking:
        return Reply(200, await asyncio.to_thread(_linted, body.spec))


def _linted(spec: Any) -> LintOut:
    try:
        document = doc.reread(spec)
        chart = compile_chart(document)
    except BadChart as refused:
        return LintOut(sound=False, problems=[_problem("error", p) for p in refused.problems])
    return LintOut(sound=True, problems=[_problem("warning", p) for p in find_smells(chart, document)])


def _problem(level: Literal["error", "warning"], problem: doc.Problem) -> ProblemOut:
    return ProblemOut(
        level=level, pointer="/spec" + storable_words(problem.path), detail=storable_words(problem.message)
    )


async def simulate_definition(call: Call, body: Simulate) -> Reply:
    """Run a chart through events: turns come out, nothing is stored."""
    given = [body.spec, body.definition_id, body.definition_key]
    if sum(one is not None for one in given) != 1:
        words = "expected exactly one of spec, definition_id and definition_key"
        raise Problem("validation-failed", words, errors=[Fault(words, "")])
    make: Callable[[], Any] = partial(_compiled, body.spec)
    if body.spec is None:
        word = body.definition_id or body.definition_key or ""
        if body.version is not None and body.definition_key is not None:
            word += f"@{body.version}"
        make = partial(_chart, await find(call, word))
    async with call.doors.thinking:
        turns = await asyncio.to_thread(lambda: run_through(make(), body.input, body.events))
    return Reply(200, TurnsOut(turns=[msgspec.to_builtins(turn) for turn in turns]))


def _compiled(spec: Any) -> Any:
    return compile_chart(doc.reread(spec))


def _chart(found: DefinitionOut) -> Any:
    return chart_from(doc.written(_spec(found)), version=found.version)


async def diff_definition(call: Call, query: DiffQuery) -> Reply:
    """What changed from the definition `against` to this one, in words."""
    new, old = await find(call, call.path["id"]), await find(call, query.against)
    async with call.doors.thinking:
        text = await asyncio.to_thread(_difference, old, new)
    return Reply(200, DiffOut(text=text, same=not text))


def _difference(old: DefinitionOut, new: DefinitionOut) -> str:
    return difference(_spec(old), _spec(new)).text()


def _spec(found: DefinitionOut) -> Any:
    if found.spec is None:
        raise Problem("invalid-transition", f"{found.key!r} is code: only charts can be drawn, compared and tried out")
    return found.spec


async def graph_definition(call: Call, query: GraphQuery) -> Reply:
    """A picture of the chart: SVG, or Mermaid's text. `instance_id`: mark where this one stands."""
    found = await find(call, call.path["id"])
    _spec(found)
    active = None
    if query.instance_id is not None:
        if not call.caller.may("instances:read"):
            raise Forbidden(f"{call.actor} may not see where an instance stands: that takes 'instances:read'")
        try:
            id_ = ids.parse("ins", query.instance_id)
            view = await app_instances.read(call.service, call.tenant_id, id_, steps=False)
            snapshot = await app_instances.snapshot(call.service, call.tenant_id, id_)
        except HoldfastError:
            raise not_found(query.instance_id) from None
        if (view.workflow, view.version) != (found.key, found.version):
            words = f"it is an instance of {view.workflow}@{view.version}"
            raise Problem("validation-failed", words, errors=[Fault(words, "/query/instance_id")])
        active = msgspec.json.encode(snapshot["value"]) if snapshot else None
    draw, kind = (svg, "image/svg+xml") if query.format == "svg" else (mermaid, "text/plain; charset=utf-8")
    async with call.doors.thinking:
        text = await asyncio.to_thread(lambda: draw(_chart(found), active))
    # A picture is shown, never run: what a chart's author wrote into it stays text.
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Reply(200, text.encode(), None, headers, kind)


def declare(endpoints: Endpoints) -> None:
    one = {200: Answer("The definition.", DefinitionOut, SHOWN)}
    endpoints.add(
        "POST /workflow/definitions", capability="definitions:write", tag="definitions", summary="Publish a chart",
        body=Publish, body_example={"spec": CHART}, keyed="optional", if_match="optional",
        answers={
            201: Answer("Published as a new version.", DefinitionOut, SHOWN, location=True),
            200: Answer("This very content was published before.", DefinitionOut, SHOWN, location=True),
        },
        problems=("precondition-failed", "invalid-transition"),
    )(publish_definition)  # fmt: skip
    endpoints.add(
        "GET /workflow/definitions", capability="definitions:read", tag="definitions", summary="List definitions",
        query=DefinitionsQuery,
        answers={200: Answer("A page.", Listing[DefinitionOut], {"items": [SHOWN], "next_cursor": None})},
    )(list_definitions)  # fmt: skip
    endpoints.add(
        "GET /workflow/definitions/{id}", capability="definitions:read", tag="definitions",
        summary="Read a definition", answers=one, problems=("not-found",),
    )(read_definition)  # fmt: skip
    for word, function in (
        ("activate", activate_definition), ("deactivate", deactivate_definition), ("archive", archive_definition),
    ):  # fmt: skip
        endpoints.add(
            f"POST /workflow/definitions/{{id}}/{word}", capability="definitions:write", tag="definitions",
            summary=f"{word.capitalize()} a definition", answers=one, keyed="optional", if_match="optional",
            again=read_definition,
            problems=("not-found", *SPARE),
        )(function)  # fmt: skip
    endpoints.add(
        "POST /workflow/definitions/lint", capability="definitions:read", tag="definitions", summary="Check a chart",
        body=Lint, body_example={"spec": CHART},
        answers={200: Answer("What is wrong with it.", LintOut, {"sound": True, "problems": []})},
    )(lint_definition)  # fmt: skip
    endpoints.add(
        "POST /workflow/definitions/simulate", capability="definitions:read", tag="definitions",
        summary="Try a chart out", body=Simulate, body_example={"spec": CHART, "events": [{"type": "done"}]},
        answers={200: Answer("The turns.", TurnsOut, {"turns": [{"state": "over"}]})},
        problems=("not-found", "invalid-transition"),
    )(simulate_definition)  # fmt: skip
    endpoints.add(
        "GET /workflow/definitions/{id}/diff", capability="definitions:read", tag="definitions",
        summary="Compare two definitions", query=DiffQuery,
        answers={200: Answer("What changed.", DiffOut, {"text": "state check: added", "same": False})},
        problems=("not-found", "invalid-transition"),
    )(diff_definition)  # fmt: skip
    endpoints.add(
        "GET /workflow/definitions/{id}/graph", capability="definitions:read", tag="definitions",
        summary="Draw a definition", query=GraphQuery,
        answers={200: Answer("The picture.", None, "<svg…", "image/svg+xml", or_type="text/plain")},
        problems=("not-found", "invalid-transition"),
    )(graph_definition)  # fmt: skip
