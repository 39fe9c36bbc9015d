"""`holdfast effects`: what a person at the desk is told, and in the words of the command line."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from holdfast import Context
from holdfast.cli.refusals import in_flags
from holdfast.engine.effects import may_choose
from holdfast.testing import Harness, ManualClock
from tests.cli.support import Desk


def lost() -> dict[str, str]:
    raise TimeoutError("no answer")


def unknown(desk: Desk) -> str:
    async def whole() -> str:
        async with Harness(url=desk.url, clock=ManualClock(datetime.now(UTC))) as test:

            @test.workflow("pay")
            async def pay(ctx: Context) -> Any:
                return await ctx.effect("pay", lost, timeout=1)

            await test.start("pay")
            await test.run_until_idle()
            [effect] = await test.effects.list()
            return effect.id

    return asyncio.run(whole())


def test_happened_without_its_result_is_refused_with_the_flag_to_give_it_by(desk: Desk) -> None:
    effect = unknown(desk)
    assert desk.json("effects", "show", effect)["expected"]["type"] == "object"
    assert '"type": "object"' in desk.ok("effects", "show", effect).stdout
    words = ("effects", "resolve", effect, "happened", "--actor", "ann", "--reason", "seen", "--yes")
    desk.refused(2, "give what the provider answered with --result, in the form", *words)
    said = desk.ok(*words, "--result", '{"id": "b-1"}')
    assert "the workflow goes on with the result you give" in said.stderr


def test_a_choice_that_is_not_open_names_flags() -> None:
    for gone in (False, True):
        refused = may_choose("did_not_happen", 0, 10_000_000, gone, False, False)
        assert refused is not None
        said = in_flags(refused)
        assert "(--second-person)" in said and "(--accept-double)" in said and "=" not in said
