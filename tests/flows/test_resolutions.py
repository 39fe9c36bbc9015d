"""Every word of a person about an effect, with everything that its handler may say it returns."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import Context, StepInfo
from holdfast.testing import Harness


@dataclass
class Receipt:
    id: str


class Note(msgspec.Struct):
    id: str


class Model(pydantic.BaseModel):
    id: str


SILENT = object()
# The annotation, the result that a person gives, and what it becomes.
RETURNS: dict[str, tuple[Any, Any, Any]] = {
    "nothing said": (SILENT, {"id": "a"}, {"id": "a"}),
    "Any": (Any, "a", "a"),
    "None": (None, None, None),
    "str": (str, "a", "a"),
    "int": (int, 5, 5),
    "optional": (str | None, None, None),
    "list": (list[Receipt], [{"id": "a"}], [Receipt("a")]),
    "dataclass": (Receipt, {"id": "a"}, Receipt("a")),
    "optional dataclass": (Receipt | None, {"id": "a"}, Receipt("a")),
    "Struct": (Note, {"id": "a"}, Note("a")),
    "model": (Model, {"id": "a"}, Model(id="a")),
}


@pytest.mark.parametrize("resolution", ["happened", "did_not_happen", "abort"])
@pytest.mark.parametrize("returns", RETURNS)
async def test_a_person_may_say_anything_of_an_effect_whatever_it_returns(
    harness: Harness, returns: str, resolution: str
) -> None:
    for takes in ("argument", "info", "both", "nothing"):
        await resolve_and_undo(harness, returns, resolution, takes)


async def resolve_and_undo(harness: Harness, returns: str, resolution: str, takes: str) -> None:
    annotation, said, becomes = RETURNS[returns]
    calls: list[str] = []
    undone: list[Any] = []

    async def pay() -> Any:
        calls.append("pay")
        if len(calls) == 1:
            raise TimeoutError("no answer")
        return said

    if annotation is SILENT:
        del pay.__annotations__["return"]
    else:
        pay.__annotations__["return"] = annotation

    def with_argument(result: Any) -> None:
        undone.append(result)

    def with_info(info: StepInfo) -> None:
        undone.append(info.result)

    def with_both(result: Any, info: StepInfo) -> None:
        assert result == info.result
        undone.append(result)

    def with_nothing() -> None:
        undone.append("undone")

    undo = {"argument": with_argument, "info": with_info, "both": with_both, "nothing": with_nothing}[takes]

    @harness.workflow(f"pay {takes}")
    async def workflow(ctx: Context) -> None:
        await ctx.step("reserve", lambda: 1, compensate=lambda: undone.append("reserve"))
        await ctx.effect("pay", pay, compensate=undo)
        raise ValueError("now undo it")

    handle = await harness.start(f"pay {takes}")
    await harness.run_until_idle()
    [effect] = [one for one in await harness.effects.list() if one.instance_id == handle.id]
    result = {"result": said} if resolution == "happened" and said is not None else {}
    await harness.effects.resolve(effect.id, resolution, actor="ann", reason="known", accept_double=True, **result)
    await harness.run_until_idle()
    view = await handle.status()
    assert (view.status, view.compensation) == ("failed", "complete")
    assert view.error["type"] == ("EffectAborted" if resolution == "abort" else "ValueError")
    given = None if resolution == "abort" else becomes
    assert undone == ["undone" if takes == "nothing" else given, "reserve"]
    assert calls == ["pay"] * (2 if resolution == "did_not_happen" else 1)
