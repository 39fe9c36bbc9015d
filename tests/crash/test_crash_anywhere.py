"""Stopped before and after every write, restarted, and it ends the same: at worst the step in flight ran again."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from tests.crash import scenarios_charts  # noqa: F401  (adds its scenarios)
from tests.crash.machinery import READS, WRITES, Meddler, Stage
from tests.crash.scenarios import SCENARIOS, Scenario, World
from tests.support.size import sample

TENANTS = itertools.count(1)


def points(calm: Meddler, url: str, *what: str) -> list[int]:
    """Which of the calls of a calm play to meddle with: all of them at full size (`make crashes`), else on SQLite one
    of each kind of write and one read, and on PostgreSQL, where a play takes ten times as long, one commit and one
    other call."""
    sqlite = url.startswith("sqlite")
    kinds: dict[str, list[int]] = {}
    for at, name in enumerate(calm.names, 1):
        kind = (name if name in WRITES else "read") if sqlite else ("commit" if name == "commit" else "other")
        kinds.setdefault(kind, []).append(at)
    dialect = "sqlite" if sqlite else "postgres"
    return sorted(at for kind, places in kinds.items() for at in sample(places, 1, dialect, kind, *what))


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
        for at in points(count, url, scenario.name, how):
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
    count = Meddler(WRITES + READS, None, how)
    calm = await fresh(scenario, url).play(count)
    met = 0
    for at in points(count, url, scenario.name, how):
        stage = fresh(scenario, url)
        meddler = Meddler(WRITES + READS, at, how)
        ending = await stage.play(meddler)
        assert ending == calm, f"{how} of call {at} ({meddler.met})"
        met += bool(meddler.met)
    assert met, "no play came as far as any of the calls that it was to meddle with"
    await assert_database_is_sound(url)


async def assert_database_is_sound(url: str) -> None:
    from tests.support.auditor import assert_sound

    found = assert_sound(url)
    if hasattr(found, "__await__"):
        await found
