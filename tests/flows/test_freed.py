"""What a worker has handed back is freed at once: left to the garbage collector, it would cost more than its turns."""

import gc
from collections.abc import Iterator

import pytest

from holdfast import Context
from holdfast.testing import Harness
from holdfast.worker.execution import Execution


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", ["completed", "restarted", "waiting"])
async def test_an_instance_that_is_handed_back_leaves_nothing_to_the_garbage_collector(
    harness: Harness, no_collector: None, kind: str
) -> None:
    async def double(n: int) -> int:
        return 2 * n

    @harness.workflow("quick")
    async def workflow(ctx: Context, n: int) -> int:
        found = await ctx.step("double", double, n)
        ctx.log.info("doubled", to=found)
        if kind == "restarted" and n < 3:
            ctx.restart(n + 1)
        if kind == "waiting":
            await ctx.wait_for_signal("go")
        return found

    for n in range(5):
        await harness.start("quick", n)
    await harness.run_until_idle()
    left = [one for one in gc.get_objects() if isinstance(one, Execution)]
    assert left == []
