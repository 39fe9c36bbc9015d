"""Every row of the table of safe deploys: what a replay foretells, and that a worker then does just that."""

from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.app import history_file, rehearsal
from holdfast.engine import ids
from holdfast.testing import Harness, replay
from tests.flows.safe_deploys import CASES, PAGE, Case, World, app_of, page_with, render
from tests.flows.support import next_worker
from tests.support.auditor import assert_sound


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.change.replace(" ", "_"))
async def test_a_replay_foretells_what_a_deploy_does(url: str, case: Case, tmp_path: Path) -> None:
    before, after = World(), World()
    async with Harness(app_of(case.old, before), url=url) as harness:
        handle = await harness.start("order", {"cups": 1})
        await harness.run_until_idle()
        await handle.signal("go")
        harness.clock.move(timedelta(hours=1))
        stood = await handle.status()
        stored = await rehearsal.read(harness.service, "default", ids.parse("ins", handle.id), whole=True)
        file = tmp_path / "taken_home.jsonl"
        file.write_bytes(b"\n".join(history_file.lines_of(stored)))

        new = app_of(case.new, after)
        foretold = replay(file, new)
        assert foretold.verdict == case.verdict, foretold
        assert case.why in foretold.why and bool(case.why) == bool(foretold.why)
        assert case.next in foretold.next and bool(case.next) == bool(foretold.next)
        assert after.seen == []

        async with next_worker(harness, app=new) as other:
            await other.run_until_idle()
            view = await other.instance(handle.id).status()
            assert (view.status, after.seen) == (case.status, case.seen)
        if foretold.verdict == "parked":
            assert view.waiting_on == foretold.why
        elif foretold.verdict == "waits_for_person":
            assert view.waiting_on == foretold.next
        elif foretold.verdict == "unknown":
            assert view == stood
        else:
            assert not (view.waiting_on or "").startswith("parked")
            assert_sound(url, finished=False)


def test_the_page_shows_the_cases() -> None:
    assert PAGE.read_text() == page_with(render()), "if that is meant: python -m tests.flows.safe_deploys"
