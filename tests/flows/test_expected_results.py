"""Who says that an effect happened says what the provider answered, if the workflow goes on with that."""

from __future__ import annotations

from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import BadInput, Context, Holdfast, Outside
from holdfast.testing import Harness
from tests.flows.support import next_worker


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


def charted(handler: Any, type_: str = "SYSTEM") -> tuple[Holdfast, dict[str, Any]]:
    """A chart whose effect is that handler, and which goes on with the id that it returns."""
    hf = Holdfast()
    hf.task_handler(type_, "pay", kind="effect")(handler)
    task = {"type": type_, "name": "pay"} | ({"url": "https://bank.example"} if type_ == "HTTP" else {})
    note = {"type": "assign", "assign": {"id": {"@expr": "event.output.id"}}}
    return hf, {
        "id": "pay", "context": {"id": None}, "initial": "paying", "output": {"@expr": "context.id"},
        "states": {
            "paying": {"invoke": {"src": {"task": task}, "onDone": {"target": "paid", "actions": note}}},
            "paid": {"type": "final"},
        },
    }  # fmt: skip


@pytest.mark.parametrize("type_", ["SYSTEM", "HTTP"])
async def test_a_charts_effect_cannot_have_happened_without_the_result_that_it_needs_either(
    url: str, type_: str
) -> None:
    hf, chart = charted(lost_receipt, type_)
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("pay")
        await test.run_until_idle()
        [effect] = await test.effects.list()
        assert effect.expected["required"] == ["id"]
        with pytest.raises(BadInput, match="cannot have happened without a result"):
            await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen at the bank")
        with pytest.raises(BadInput, match="/result/id"):
            await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen", result={"number": 1})
        await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen", result={"id": "b-1"})
        await test.run_until_idle()
        assert (await handle.status()).result == "b-1"


async def test_a_charts_effect_that_returns_nothing_needs_no_result_and_may_be_given_one(url: str) -> None:
    def pays() -> None:
        raise TimeoutError("no answer")

    hf, chart = charted(pays)
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("pay")
        await test.run_until_idle()
        [effect] = await test.effects.list()
        assert effect.expected is None
        await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen", result={"id": "b-1"})
        await test.run_until_idle()
        assert (await handle.status()).result == "b-1"


async def test_a_chart_goes_on_with_what_its_effect_returned_whatever_the_annotation_says(url: str) -> None:
    """It happened, and nobody decodes it: a loose annotation is no reason to ask a person."""

    def pays() -> Receipt:
        return {"id": 1}  # type: ignore[return-value]

    hf, chart = charted(pays)
    async with Harness(hf, url=url) as test:
        await test.publish(chart)
        handle = await test.start("pay")
        await test.run_until_idle()
        assert (await handle.status()).result == 1


async def test_a_word_on_a_charts_effect_whose_handler_was_deployed_anew_comes_back_to_the_desk(url: str) -> None:
    old, chart = charted(lost)
    new, _ = charted(lost_receipt)
    async with Harness(old, url=url) as test:
        await test.publish(chart)
        handle = await test.start("pay")
        await test.run_until_idle()
        [effect] = await test.effects.list()
        await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen")
        async with next_worker(test, app=new) as other:
            await other.run_until_idle()
            [again] = await other.effects.list()
            assert "ann gave does not fit" in (again.reason or "") and again.expected["required"] == ["id"]
            await other.effects.resolve(again.id, "happened", actor="ann", reason="seen", result={"id": "b-1"})
            await other.run_until_idle()
            assert (await other.instance(handle.id).status()).result == "b-1"


async def test_a_mail_of_a_chart_can_have_happened_without_a_result(url: str) -> None:
    """What Holdfast's own handlers return is not for a person to type."""

    class Silent:
        async def send(self, *_: Any) -> dict[str, Any]:
            raise TimeoutError("no answer")

    mail = {"type": "EMAIL", "name": "tell", "to": "ada@example.org", "subject": "Hello", "text": "Hello"}
    chart = {
        "id": "mailing", "initial": "on",
        "states": {"on": {"invoke": {"src": {"task": mail}, "onDone": "sent"}}, "sent": {"type": "final"}},
    }  # fmt: skip
    async with Harness(Holdfast(), url=url, outside=Outside(mail=Silent(), mail_from="us@example.org")) as test:
        await test.publish(chart)
        handle = await test.start("mailing")
        await test.run_until_idle()
        [effect] = await test.effects.list()
        assert effect.expected is None
        await test.effects.resolve(effect.id, "happened", actor="ann", reason="seen in the log of the mail server")
        await test.run_until_idle()
        assert (await handle.status()).status == "completed"
