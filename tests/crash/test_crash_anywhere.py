"""Stopped before and after every write, restarted, and it ends the same: at worst the step in flight ran again."""

from __future__ import annotations

import itertools
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import scenarios_charts  # noqa: F401  (adds its scenarios)
from tests.crash.machinery import READS, WRITES, Meddler, Stage
from tests.crash.scenarios import SCENARIOS, Scenario, World

TENANTS = itertools.count(1)
# On PostgreSQL a point takes ten times as long, and what is decided there is decided by the same code: every third one
# is tried, a different third for each scenario and kind of fault. `make crashes` tries them all.
EVERY = 1 if os.environ.get("HOLDFAST_TEST_EVERY_FAULT") else 3


def points(url: str, *what: str) -> Iterator[int]:
    """1, 2, 3, … on SQLite; on PostgreSQL a third of them."""
    every = 1 if url.startswith("sqlite") else EVERY
    first = zlib.crc32("/".join(what).encode()) % every + 1
    return itertools.count(first, every)


def fresh(scenario: Scenario, url: str) -> Stage:
    return Stage(scenario, url, f"t{next(TENANTS)}", url)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'crash.db'}"


def runs_again_at_most_once(calm: World, crashed: World) -> None:
    """At worst the one step in flight of each branch ran again."""
    extra = Counter(crashed.runs) - Counter(calm.runs)
    assert sum(extra.values()) <= 3, extra
    missing = Counter(calm.runs) - Counter(crashed.runs)
    assert not missing, missing


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
async def test_a_crash_before_or_after_any_write_changes_nothing(scenario: Scenario, url: str) -> None:
    calm_stage = fresh(scenario, url)
    count = Meddler(WRITES, None, "crash_before")
    calm = await calm_stage.play(count)
    assert calm, "the scenario did nothing"
    for how in ("crash_before", "crash_after"):
        for at in itertools.takewhile(lambda n: n <= count.calls, points(url, scenario.name, how)):
            stage = fresh(scenario, url)
            meddler = Meddler(WRITES, at, how)
            ending = await stage.play(meddler)
            where = f"{how} of write {at} ({meddler.met})"
            assert ending == calm, where
            runs_again_at_most_once(calm_stage.world, stage.world)
            assert len(stage.world.provider.deeds) == len(calm_stage.world.provider.deeds), where
            if "manual" in scenario.name:
                assert_manual_effects_called_once(stage.world, where)
    await assert_database_is_sound(url)


def assert_manual_effects_called_once(world: World, where: str) -> None:
    """Each key was called once; twice only if the first call was known not to have happened, or a person said so."""
    for key, calls in Counter(world.provider.calls).items():
        assert calls <= 2, f"{key} was called {calls} times: {where}"


@pytest.mark.parametrize("how", ["fail", "lost_reply"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
async def test_the_nth_store_call_may_fail_or_lose_its_reply(scenario: Scenario, how: str, url: str) -> None:
    calm_stage = fresh(scenario, url)
    calm = await calm_stage.play(None)
    for at in points(url, scenario.name, how):
        stage = fresh(scenario, url)
        meddler = Meddler(WRITES + READS, at, how)
        ending = await stage.play(meddler)
        assert ending == calm, f"{how} of call {at} ({meddler.met})"
        if not meddler.met:
            break
    await assert_database_is_sound(url)


async def assert_database_is_sound(url: str) -> None:
    from tests.support.auditor import assert_sound

    found = assert_sound(url)
    if hasattr(found, "__await__"):
        await found
