"""A bulk action counts what it did, whatever happened meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context
from holdfast.app import bulk
from holdfast.engine import ids
from holdfast.testing import Harness


async def ordered(harness: Harness, count: int, version: int = bulk.VERSION) -> bytes:
    """Cancel everything that waits."""

    @harness.workflow("order")
    async def order(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    for _ in range(count):
        await harness.start("order")
        await harness.advance(seconds=1)
    id_ = (7).to_bytes(16, "big")
    wanted = bulk.Order(
        bulk_id=ids.shown("blk", id_), tenant_id="default", action="cancel", actor="ann", reason="wrong batch",
        until=harness.clock.micros, statuses=["waiting"], matched=count,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "VERSION", version)
        await bulk.begin(harness.service, wanted, id_)
    return id_


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "PAGE", 4)
    monkeypatch.setattr(bulk, "AT_ONCE", 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("version", [1, 2])
async def test_everybody_is_told_whatever_the_number_of_pages(harness: Harness, version: int) -> None:
    id_ = await ordered(harness, 8, version)
    await harness.advance(minutes=1)
    view = await bulk.read(harness.service, "default", id_)
    assert (view.status, view.matched, view.done, view.failed) == ("completed", 8, 8, 0)
    assert len(await harness.instances(status="cancelled")) == 8


@pytest.mark.usefixtures("small")
async def test_a_page_that_is_run_again_counts_those_that_its_first_run_had_told(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, told = bulk._tell, []

    async def fails_in_the_middle(service: Any, order: Any, who: Any) -> str | None:
        told.append(who)
        if len(told) in (3, 9):  # two of the page were told by then, and do not wait any more when it is run again
            raise OSError("the database is away")
        return await tell(service, order, who)

    monkeypatch.setattr(bulk, "_tell", fails_in_the_middle)
    id_ = await ordered(harness, 10)
    await harness.advance(minutes=1)
    view = await bulk.read(harness.service, "default", id_)
    assert (view.status, view.matched, view.done, view.failed) == ("completed", 10, 10, 0)
    assert len(await harness.instances(status="cancelled")) == 10
    assert len(told) > 10


async def test_a_bulk_action_that_matches_nobody_is_over_at_once(harness: Harness) -> None:
    id_ = await ordered(harness, 0)
    await harness.run_until_idle()
    view = await bulk.read(harness.service, "default", id_)
    assert (view.status, view.done, view.failed) == ("completed", 0, 0)
