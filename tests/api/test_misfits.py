"""A request that does not fit is told each place where, as a JSON pointer, and what was expected there."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from holdfast.client import Client, ValidationFailed
from tests.api.served import Served
from tests.api.support import CHART, Api
from tests.client.support import key_of

BAD_INVOICE = {"amount": "a lot", "lines": [{"sku": "cup", "count": 1}, {"sku": "pot"}]}
PLACES = ["/input/amount", "/input/lines/1/count"]


def test_an_input_that_does_not_fit_the_code_is_told_where(api: Api) -> None:
    problem = api.refused(
        422, "validation-failed", "POST /workflow/instances", {"definition_key": "invoice", "input": BAD_INVOICE}
    )
    assert [fault["pointer"] for fault in problem["errors"]] == PLACES
    assert problem["errors"][1]["detail"] == "Field required"
    assert "a lot" not in str(problem) and "pydantic" not in str(problem)
    renamed = api.refused(
        422, "validation-failed", "POST /workflow/instances", {"definition_key": "invoice", "context": BAD_INVOICE}
    )
    assert [fault["pointer"] for fault in renamed["errors"]] == [p.replace("/input", "/context") for p in PLACES]


def test_an_input_that_does_not_fit_the_chart_is_told_where(api: Api) -> None:
    schema = {"type": "object", "required": ["who"], "properties": {"days": {"type": "integer"}}}
    spec = {**CHART, "id": f"leave-{uuid4().hex[:8]}", "inputSchema": schema}
    api.ok("POST /workflow/definitions", {"spec": spec})
    problem = api.refused(
        422, "validation-failed", "POST /workflow/instances", {"definition_key": spec["id"], "input": {"days": "3"}}
    )
    assert sorted(fault["pointer"] for fault in problem["errors"]) == ["/input/days", "/input/who"]


def test_an_item_of_a_batch_that_does_not_fit_is_told_where(api: Api) -> None:
    body = {"definition_key": "invoice", "items": [{"input": {"amount": "1", "lines": []}}, {"input": BAD_INVOICE}]}
    answer = api.ok("POST /workflow/instances/batch", body, **{"Idempotency-Key": uuid4().hex})
    assert [item["status"] for item in answer["items"]] == [201, 422]
    assert [one["pointer"] for one in answer["items"][1]["errors"]] == ["/items/1" + place for place in PLACES]


async def test_the_client_has_the_same_places(served: Served) -> None:
    async with Client(served.url, key_of(served)) as client:
        with pytest.raises(ValidationFailed) as refused:
            await client.instances.start("invoice", BAD_INVOICE)
    assert [fault.pointer for fault in refused.value.errors] == PLACES


@pytest.mark.parametrize(
    ("route", "body", "pointer", "expected"),
    [
        ("POST /workflow/definitions", {"spec": {}, "chart": {}}, "/chart", ["spec"]),
        ("POST /workflow/instances/{id}/events", {"type": "go"}, "/type", ["name", "payload"]),
        ("POST /workflow/instances", {"definition": "x"}, "/definition", ["definition_key", "business_key"]),
        ("POST /workflow/instances/batch", {"definition_key": "quick", "items": [{"in": 1}]}, "/items/0/in", ["input"]),
    ],
)
def test_an_unknown_field_of_a_body_names_the_expected_ones(
    api: Api, route: str, body: dict[str, Any], pointer: str, expected: list[str]
) -> None:
    path = route.replace("{id}", api.start("quick", 1)) if "{id}" in route else route
    problem = api.refused(422, "validation-failed", path, body, **{"Idempotency-Key": uuid4().hex})
    [fault] = problem["errors"]
    assert fault["pointer"] == pointer
    assert all(name in fault["detail"].partition(": expected ")[2].split(", ") for name in expected)


def test_a_value_that_is_none_of_the_choices_is_told_the_choices(api: Api) -> None:
    problem = api.refused(422, "validation-failed", "GET /workflow/instances?status=stuck")
    [fault] = problem["errors"]
    assert fault["pointer"] == "/query/status/0"
    assert fault["detail"].startswith("expected one of ") and "waiting" in fault["detail"]
