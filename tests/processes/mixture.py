"""A mixture of all kinds of work, and the balance that must hold whatever happened to the workers meanwhile."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from holdfast import EffectNotOpen
from tests.processes.fleet import Fleet
from tests.support.auditor import assert_sound

KINDS = ("saga", "family", "booked", "paid", "called", "sleeper", "charted")


class Mixture:
    """`count` plain instances and a fifth as many of each other kind."""

    def __init__(self, fleet: Fleet, count: int, pause: float) -> None:
        self.fleet = fleet
        self.count = count
        self.each = count // 5
        self.started = fleet.start("five", [{"pause": pause, "thread": n % 10 == 0} for n in range(count)])
        for kind in KINDS:
            self.started += fleet.start(kind, [{"pause": pause, "seconds": 1.0} for _ in range(self.each)])
        fleet.do(self._signal)

    async def _signal(self, hf: Any) -> None:
        """Two signals for each that waits for two; the first one is sent twice, as an impatient sender does."""
        for word in self.started:
            handle = hf.instance(word)
            view = await handle.status()
            if view.workflow == "called":
                for id_ in ("a", "a", "b"):
                    await handle.signal("go", id_, id=id_)

    def ended(self) -> bool:
        return self.fleet.ended() >= len(self.started) and all(
            status in ("completed", "failed") for status in self.fleet.counts()
        )

    def settled(self) -> bool:
        """Whether everything has ended, with a person's help where an outcome is unknown."""
        if any(self.fleet.counts(definition_key=kind).get("waiting") for kind in ("paid", "charted")):
            self.settle_unknown_effects()
        return self.ended()

    def settle_unknown_effects(self) -> None:
        """A person says what the provider's log says."""
        seen = set(self.fleet.provider_calls())

        async def settle(hf: Any) -> None:
            for effect in await hf.effects.list():
                choice = "happened" if effect.idempotency_key in seen else "abort"
                with suppress(EffectNotOpen):  # said already, and not yet taken
                    await hf.effects.resolve(
                        effect.id, choice, actor="ann", reason="read the provider's log", result={"id": "from the log"}
                    )

        self.fleet.do(settle)

    def finish(self) -> dict[str, int]:
        """Wait until everything has ended; then the books must balance."""
        fleet = self.fleet
        fleet.wait_until(self.settled, "everything ended")
        [(fences,)] = fleet.execute("select count(*) from holdfast.workers where fenced_at is not null")
        assert fleet.counts(definition_key="five") == {"completed": self.count + self.each}
        assert fleet.counts(definition_key="saga") == {"failed": self.each}
        for kind in ("family", "booked", "called", "sleeper", "charted"):
            assert fleet.counts(definition_key=kind) == {"completed": self.each}, kind
        assert sorted(fleet.execute("select count(*) from bookings group by instance")) == [(1,)] * self.each * 2
        results = fleet.execute("select result from holdfast.instances where definition_key = 'called'")
        assert {bytes(result) for (result,) in results} == {b'["a","b"]'}
        calls = fleet.provider_calls()
        assert len(calls) == len(set(calls)), "the provider was called twice for one effect"
        fleet.assert_in_order(again=fences)
        assert_sound(fleet.url, provider_calls=calls, acknowledged=self.started)
        runs = fleet.runs()
        return {"fences": fences, "repeats": len(runs) - len({(run.instance, run.step) for run in runs})}
