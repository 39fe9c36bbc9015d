"""A request's span is the parent of what it starts, in whichever process that runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Holdfast
from holdfast.api.opening import opened_doors
from holdfast.api.server import serving
from holdfast.api.settings import ServerSettings
from holdfast.app import api_keys, principals
from holdfast.app.audit import By
from holdfast.facade import make_doors
from tests.support.patience import PATIENCE_SECONDS

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'traced.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
async def traced(url: str) -> AsyncIterator[tuple[httpx.AsyncClient, InMemorySpanExporter]]:
    """A server and a worker in this process, and the spans they make."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    hf = Holdfast(url)
    hf.tracer_provider = provider

    @hf.workflow("quick")
    async def quick(ctx, given):  # type: ignore[no-untyped-def]
        return await ctx.step("echo", _echo, given)

    async with hf, hf.worker():
        by = By("tests")
        await principals.create(hf.service, "default", name="ann", kind="human", roles=["admin"], by=by)
        key = (await api_keys.create(hf.service, "default", "ann", name="k", by=by)).key
        async with (
            opened_doors(hf, ServerSettings(port=0), make_doors) as doors,
            serving(doors) as server,
            httpx.AsyncClient(
                base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_SECONDS
            ) as client,
        ):
            yield client, spans


def _echo(given: object) -> object:
    return given


async def test_a_trace_goes_through_the_request_the_instance_and_its_steps(
    traced: tuple[httpx.AsyncClient, InMemorySpanExporter],
) -> None:
    client, spans = traced
    answer = await client.post(
        "/workflow/instances", json={"definition_key": "quick", "input": {"n": 1}},
        headers={"traceparent": PARENT, "Prefer": "wait=30"},
    )  # fmt: skip
    assert (answer.status_code, answer.json()["result"]) == (201, {"n": 1})
    found = {span.name: span for span in spans.get_finished_spans()}
    request, stretch, step = found["POST /workflow/instances"], found["instance quick"], found["step echo"]
    assert {f"{span.context.trace_id:032x}" for span in (request, stretch, step)} == {PARENT[3:35]}
    assert request.parent is not None and f"{request.parent.span_id:016x}" == PARENT[36:52]
    assert stretch.parent is not None and stretch.parent.span_id == request.context.span_id
    assert step.parent is not None and step.parent.span_id == stretch.context.span_id
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 201
    assert request.attributes["holdfast.tenant_id"] == "default"


async def test_a_refusal_names_the_trace_it_stands_in(
    traced: tuple[httpx.AsyncClient, InMemorySpanExporter],
) -> None:
    client, spans = traced
    answer = await client.get("/workflow/instances/nothing")
    [span] = [span for span in spans.get_finished_spans() if span.name == "GET /workflow/instances/{id}"]
    assert answer.json()["trace_id"] == f"{span.context.trace_id:032x}"
