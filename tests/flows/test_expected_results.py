"""Who says that an effect happened says what the provider answered, if the workflow goes on with that."""

from __future__ import annotations

from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import BadInput, Context, Holdfast
from holdfast.testing import Harness


class Receipt(pydantic.BaseModel):
    id: str


class Note(msgspec.Struct):
    id: str
    inner: list[Receipt] = []


def lost_receipt() -> Receipt:
    raise TimeoutError("no answer")


def lost_note() -> Note | None:
    raise TimeoutError("no answer")


def lost() -> Any:
    raise TimeoutError("no answer")


def app(handler: Any) -> Holdfast:
    hf = Holdfast()

    @hf.workflow("pay")
    async def pay(ctx: Context) -> Any:
        return await ctx.effect("pay", handler)

    return hf


async def test_happened_without_the_result_it_needs_is_refused_and_the_shape_is_shown(url: str) -> None:
    async with Harness(app(lost_receipt), url=url) as test:
        handle = await test.start("pay")
        await test.run_until_idle()
        [effect] = await test.effects.list()
        assert effect.expected["required"] == ["id"] and "expected" not in effect.error
        with pytest.raises(BadInput, match="cannot have happened without a result") as refused:
            await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen at the bank")
        assert [one.pointer for one in refused.value.errors] == ["/result"]
        await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen at the bank", result={"id": "b-1"})
        await test.run_until_idle()
        assert (await handle.status()).result == {"id": "b-1"}
        assert (await test.effects.show(effect.id)).expected is None


async def test_a_result_that_the_workflow_could_not_go_on_with_is_refused_at_the_desk(url: str) -> None:
    async with Harness(app(lost_receipt), url=url) as test:
        handle = await test.start("pay")
        await test.run_until_idle()
        [effect] = await test.effects.list()
        with pytest.raises(BadInput, match=r"what the handler of effect .* returns: /result/id") as refused:
            await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen", result={"number": 1})
        assert [one.pointer for one in refused.value.errors] == ["/result/id"]
        await test.run_until_idle()
        assert (await test.effects.show(effect.id)).state == "outcome_unknown"
        await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen", result=Receipt(id="b-1"))
        await test.run_until_idle()
        assert (await handle.status()).result == {"id": "b-1"}


@pytest.mark.parametrize("handler", [lost_note, lost])
async def test_where_nothing_is_a_result_too_none_is_needed(url: str, handler: Any) -> None:
    async with Harness(app(handler), url=url) as test:
        handle = await test.start("pay")
        await test.run_until_idle()
        [effect] = await test.effects.list()
        if handler is lost_note:
            assert "Note" in str(effect.expected)
        await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen at the bank")
        await test.run_until_idle()
        assert (await handle.status()).result is None
