"""What callers get: moments they can count with, values that become JSON, and ids that are not there."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from fastapi.encoders import jsonable_encoder
from pydantic import TypeAdapter

from holdfast import Context, EffectNotFound, InstanceNotFound, TaskNotFound
from holdfast.app.views import View
from holdfast.testing import Harness

NINE = datetime(2026, 1, 1, 9, tzinfo=UTC)
NEVER = ("nonsense", "ins_00", "", "ins_" + "g" * 32)


def declare(harness: Harness) -> None:
    @harness.workflow("wait")
    async def wait(ctx: Context, given: Any) -> Any:
        return [given, await ctx.wait_for_signal("go")]


async def test_moments_are_aware_datetimes(harness: Harness) -> None:
    declare(harness)
    handle = await harness.start("wait", 1, start_at=NINE + timedelta(minutes=1))
    view = await handle.status()
    assert (view.created_at, view.run_at, view.started_at) == (NINE, NINE + timedelta(minutes=1), None)
    await harness.advance(timedelta(minutes=2))
    await handle.signal("go", 2)
    await harness.run_until_idle()
    view, entries = await handle.status(), await handle.history()
    assert view.completed_at == entries[-1].at == NINE + timedelta(minutes=2)
    assert {entry.at.tzinfo for entry in entries} == {UTC}
    [worker] = await harness.workers()
    assert worker.started_at == NINE and worker.heartbeat_at >= NINE


async def test_a_view_and_a_list_say_which_step_it_is_at_and_when_it_last_moved(harness: Harness) -> None:
    @harness.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.step("price", int)
        ctx.random()
        await ctx.wait_for_signal("go")
        await ctx.sleep("a while", timedelta(hours=1))

    async def seen() -> tuple[str | None, timedelta]:
        view, [listed] = await handle.status(), await harness.instances()
        assert (listed.current_step, listed.updated_at) == (view.current_step, view.updated_at)
        [of_key], [of_workflow] = await harness.instances(business_key="k"), await harness.instances(key="order")
        assert of_key == of_workflow == listed
        return view.current_step, view.updated_at - NINE

    handle = await harness.start("order", business_key="k", start_at=NINE + timedelta(minutes=1))
    assert await seen() == (None, timedelta(0))
    await harness.advance(minutes=2)
    assert await seen() == ("go", timedelta(minutes=1))
    await harness.advance(minutes=3)
    await handle.signal("go")
    await harness.run_until_idle()
    assert await seen() == ("a while", timedelta(minutes=5))
    await handle.pause(reason="lunch")
    await harness.run_until_idle()
    assert (await seen())[0] == "a while"
    await handle.resume()
    await harness.advance(hours=2)
    assert await seen() == ("a while", timedelta(minutes=65))


async def test_a_view_becomes_json_in_every_way_a_framework_may_choose(harness: Harness) -> None:
    declare(harness)
    handle = await harness.start("wait", {"amount": 1}, business_key="k")
    view = await handle.status()
    found = view.to_dict()
    assert (found["input"], found["business_key"], found["created_at"]) == ({"amount": 1}, "k", "2026-01-01T09:00:00Z")
    assert json.loads(json.dumps(found)) == found == msgspec.to_builtins(view)
    assert dict(view)["created_at"] == NINE and view["status"] == "pending"
    assert datetime.fromisoformat(jsonable_encoder(view)["created_at"]) == NINE
    assert json.loads(TypeAdapter(list[type(view)]).dump_json([view])) == [found]  # type: ignore[misc]
    with pytest.raises(KeyError):
        view["to_dict"]


@pytest.mark.parametrize("kind", View.__subclasses__(), ids=lambda kind: kind.__name__)
def test_every_view_is_described_for_openapi(kind: type[View]) -> None:
    described = TypeAdapter(kind).json_schema()
    assert set(described["properties"]) == set(kind.__struct_fields__)
    assert "$ref" not in json.dumps(described)
    for name, field in described["properties"].items():
        if name == "at" or name.endswith("_at"):
            assert "date-time" in json.dumps(field), name


async def test_an_id_that_cannot_be_one_is_not_found_at_the_call(harness: Harness) -> None:
    for word in NEVER:
        with pytest.raises(InstanceNotFound, match="is not an id: expected ins_ and 32 hexadecimal digits"):
            harness.instance(word)
        with pytest.raises(TaskNotFound):
            await harness.tasks.show(word)
        with pytest.raises(EffectNotFound):
            await harness.effects.show(word)
