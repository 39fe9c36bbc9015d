"""Code, chart and door go through one `Turn` and one `commit`: a hand-made chart shares the worker with code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.app.registry import Definition
from holdfast.engine import codec
from holdfast.engine.history import genesis, payload_seal, seal
from holdfast.engine.turns import Change, Consumed, Outcome, Turn
from holdfast.store.port import Claimed
from holdfast.testing import Harness
from tests.support.auditor import assert_sound

LIGHTS = {"red": "green", "green": "yellow", "yellow": "red"}


class LightExecution:
    """A chart made by hand: every signal moves the light on, three times round and it is done."""

    abandoned = False
    arrived: tuple[Any, ...] = ()
    proved = True

    def __init__(self, worker: Any, claimed: Claimed, definition: Definition) -> None:
        self.worker, self.claimed = worker, claimed
        self.tenant_id, self.id, self.fence, self.woken = claimed.tenant_id, claimed.id, claimed.fence, claimed.woken
        self.running: dict[str, Any] = {}
        self.committing = False
        self.ended = False

    def begin(self) -> None:
        snapshot = codec.decode(self.claimed.snapshot) if self.claimed.snapshot else {"value": "red", "moves": 0}
        past = self.claimed.history
        seq, digest = (past[-1].seq, past[-1].hash) if past else (0, genesis(self.tenant_id, self.id))
        now, rows, consumed, after = self.worker.now(), [], [], digest
        started = codec.encode({"input_hash": codec.digest(self.claimed.input)})
        entries = [] if past else [("INSTANCE_STARTED", "light", started)]
        for event in self.claimed.events:
            consumed.append(Consumed(self.tenant_id, self.id, event.id, seq + len(entries) + 1))
            snapshot = {"value": LIGHTS[snapshot["value"]], "moves": snapshot["moves"] + 1}
            entries.append(("SIGNAL_RECEIVED", event.name, codec.encode({"event_id": event.id, "result": None})))
            entries.append(("STATE_TRANSITION", snapshot["value"], codec.encode(snapshot)))
        self.ended = snapshot["moves"] >= 9
        if self.ended:
            entries.append(("INSTANCE_COMPLETED", "light", codec.encode({"result": snapshot})))
        for type_, name, payload in entries:
            seq, salt = seq + 1, self.worker.salt()
            digest = seal(digest, seq, type_, name, self.fence, now, payload_seal(salt, payload))
            rows.append((self.tenant_id, self.id, seq, type_, name, self.fence, now, payload, salt, digest))
        change = Change(
            self.tenant_id, self.id, self.fence, "completed" if self.ended else "waiting",
            None if self.ended else "an event", None, True, self.woken, seq, digest,
            codec.encode(snapshot) if self.ended else None, None, None, codec.encode(snapshot), snapshot["value"],
            now if self.ended else None,
        )  # fmt: skip
        self.committing = True
        turn = Turn(self.tenant_id, self.id, self.fence, rows, change, consumed=consumed, after=after)
        self.worker.submit(turn, self.committed)

    def committed(self, outcome: Any) -> None:
        self.committing = False
        assert outcome in (Outcome.COMMITTED, Outcome.WOKEN)
        if outcome is Outcome.COMMITTED:
            self.worker.handed_back(self, self.ended)
        else:
            self.worker.lost(self, outcome)

    def asking(self) -> dict[str, Any]:
        return {}

    def new_events(self, woken: int, events: list[Any], asked: dict[str, Any]) -> None: ...

    def abandon(self) -> None:
        self.abandoned = True


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'spine.db'}"


async def test_a_chart_and_a_code_workflow_share_worker_commit_and_history(url: str) -> None:
    hf = Holdfast("sqlite:///unused.db")
    hf.registry.add(Definition("light", "light", 1, "default", LightExecution, None, LightExecution))

    @hf.workflow("code")
    async def code(ctx: Context, n: int) -> int:
        return await ctx.step("double", lambda: n * 2, thread=False)

    async with Harness(hf, url=url) as test:
        light = await test.start("light", {})
        handles = [await test.start("code", n) for n in range(5)]
        await test.run_until_idle()
        assert (await light.status()).waiting_on == "an event"
        for n in range(9):
            await light.signal("next", n, id=f"n{n}")
            await light.signal("next", n, id=f"n{n}")
            if n % 2:
                await test.run_until_idle()
        await test.run_until_idle()
        assert await light.result(0) == {"value": "red", "moves": 9}
        assert [await h.result(0) for h in handles] == [0, 2, 4, 6, 8]
        entries = [(e.type, e.name) for e in await light.history()]
        assert [name for type_, name in entries if type_ == "STATE_TRANSITION"] == ["green", "yellow", "red"] * 3
        assert (await test.verify()).faults == []
    found = assert_sound(url)
    if hasattr(found, "__await__"):
        await found
