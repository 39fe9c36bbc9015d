"""A waiting instance costs a row and no memory."""

from __future__ import annotations

import pytest

from tests.processes.conftest import scale
from tests.processes.fleet import PATIENCE_SECONDS, Fleet, wait_until
from tests.support.auditor import assert_sound

MEGABYTE = 1 << 20
BATCH = 5_000
ALLOWED_BYTES = 800  # for each: less than a history entry in memory, far less than a coroutine


@pytest.mark.timeout(1200)  # HOLDFAST_TEST_SLEEPERS=100000 takes its time
def test_sleeping_instances_take_no_memory(fleet: Fleet) -> None:
    worker = fleet.worker(concurrency=500)
    count = scale("SLEEPERS", 12_000, 20_000)
    before = asleep(fleet, worker, BATCH)  # the first ones warm up caches, statements and the allocator
    after = asleep(fleet, worker, count)
    grown = after - before
    print(f"{count:,} asleep: {before / MEGABYTE:.1f} MB before, {grown / MEGABYTE:+.1f} MB")
    assert grown < count * ALLOWED_BYTES, f"{grown / MEGABYTE:.1f} MB for {count:,} sleepers"
    fleet.start("sleeper", [{"seconds": 0.5} for _ in range(100)])
    fleet.wait_until(lambda: fleet.ended() == 100, "those that are due wake up among the others")
    assert_sound(fleet.url)


def asleep(fleet: Fleet, worker: object, count: int) -> int:
    """Put so many to sleep, and say how much memory the worker has then."""
    before = fleet.counts().get("waiting", 0)
    for at in range(0, count, BATCH):
        fleet.start("sleeper", [{"seconds": 36_000} for _ in range(min(BATCH, count - at))])
    wait_until(
        lambda: fleet.counts().get("waiting", 0) == before + count,
        lambda: f"all asleep: {fleet.situation()}",
        max(PATIENCE_SECONDS, count / 100),
    )
    said = len(worker.said("memory"))  # type: ignore[attr-defined]
    fleet.wait_until(lambda: len(worker.said("memory")) > said + 2, "it has settled")  # type: ignore[attr-defined]
    last = worker.said("memory")[-1]  # type: ignore[attr-defined]
    assert last["executions"] == 0, "sleeping instances are held in memory"
    return int(last["rss"])
