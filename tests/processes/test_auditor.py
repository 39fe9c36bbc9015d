"""The auditor itself: a sound database passes, and every violation planted by hand is named.

A checker that cannot fail is worse than none. Each test takes a real database, drops the triggers that guard it,
does one piece of damage, seals the histories afresh so that only the damage shows, and asks the auditor.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Context, Holdfast, StepInfo
from holdfast.engine.history import genesis, payload_seal, seal
from holdfast.testing import Harness
from tests.support.auditor import assert_sound, audit

SECOND = 1_000_000


def workflows() -> Holdfast:
    hf = Holdfast("sqlite:///unused.db")

    async def work(number: int) -> int:
        return number

    async def undo(result: int) -> None: ...

    async def refuse() -> None:
        raise ValueError("no")

    async def pay(info: StepInfo) -> str:
        return info.idempotency_key

    async def pay_and_fall_silent() -> str:
        raise TimeoutError("no answer")

    @hf.workflow("plain")
    async def plain(ctx: Context, input: Any) -> Any:
        first = await ctx.step("one", work, 1)
        await ctx.sleep("nap", timedelta(minutes=5))
        said = await ctx.wait_for_signal("go")
        return [first, said, await ctx.effect("pay", pay)]

    @hf.workflow("saga")
    async def saga(ctx: Context, input: Any) -> None:
        await ctx.step("a", work, 1, compensate=undo)
        await ctx.step("b", work, 2, compensate=undo)
        await ctx.step("c", work, 3, compensate=undo)
        await ctx.step("d", refuse, max_attempts=1)

    @hf.workflow("parent")
    async def parent(ctx: Context, input: Any) -> Any:
        return await ctx.child("child", "little", input)

    @hf.workflow("little")
    async def little(ctx: Context, input: Any) -> Any:
        return await ctx.step("one", work, 1)

    @hf.workflow("unknown")
    async def unknown(ctx: Context, input: Any) -> Any:
        return await ctx.effect("pay", pay_and_fall_silent)

    @hf.workflow("waiting")
    async def waiting(ctx: Context, input: Any) -> Any:
        return await ctx.wait_for_signal("go")

    @hf.workflow("asleep")
    async def asleep(ctx: Context, input: Any) -> Any:
        await ctx.sleep("nap", timedelta(days=5))

    return hf


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which everything happened once, as it should."""
    import asyncio

    path = tmp_path_factory.mktemp("auditor") / "sound.db"

    async def live() -> None:
        async with Harness(workflows(), url=f"sqlite:///{path}") as test:
            plain = await test.start("plain", {"n": 1}, tenant="acme")
            for name in ("saga", "parent", "unknown", "waiting", "asleep"):
                await test.start(name, {"n": 2})
            settled = await test.start("unknown", {"n": 3})
            await test.run_until_idle()
            await test.advance(minutes=6)
            await plain.signal("go", "now", id="evt-1")
            [effect] = await test.effects.list(instance=settled.id)
            await test.effects.resolve(effect.id, "happened", actor="ann", reason="in the list", result="yes")
            await test.run_until_idle()

    asyncio.run(live())
    return path


class Damaged:
    """A copy of the sound database to be damaged."""

    def __init__(self, sound: Path, path: Path) -> None:
        shutil.copy(sound, path)
        self.url = f"sqlite:///{path}"
        self.connection = apsw.Connection(str(path))
        for (name,) in list(self.connection.execute("select name from sqlite_schema where type = 'trigger'")):
            self.connection.execute(f"drop trigger {name}")

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(self.connection.execute(sql.replace("holdfast.", "holdfast_"), values))

    def id(self, workflow: str, status: str | None = None) -> bytes:
        return bytes(
            self.run(
                "select id from holdfast.instances where definition_key = ? and (? is null or status = ?) order by id",
                workflow,
                status,
                status,
            )[0][0]
        )

    def insert(self, instance: bytes, seq: int, type_: str, name: str, payload: bytes = b"{}") -> None:
        """Put a row into a history at that place; those behind it move on, and events that they took follow."""
        [(tenant, fence, at)] = self.run(
            "select tenant_id, fence, at from holdfast.history where instance_id = ? order by seq desc limit 1",
            instance,
        )
        for table, column in (("history", "seq"), ("events", "consumed_seq")):
            for step in ("- 1000000", "+ 1000001"):  # in two moves, so that no two rows share a number on the way
                self.run(
                    f"update holdfast.{table} set {column} = {column} {step} where instance_id = ? "
                    f"and ({column} >= ? or {column} < 0)",
                    instance,
                    seq,
                )
        self.run(
            "insert into holdfast.history (tenant_id, instance_id, seq, type, name, fence, at, payload, salt, hash) "
            "values (?, ?, ?, ?, ?, ?, ?, ?, x'00', x'00')",
            tenant, instance, seq, type_, name, fence, at, payload,
        )  # fmt: skip

    def end(self, instance: bytes) -> int:
        return int(self.run("select max(seq) from holdfast.history where instance_id = ?", instance)[0][0])

    def reseal(self) -> None:
        """What a forger with all the time in the world would do."""
        for tenant, id_ in self.run("select tenant_id, id from holdfast.instances"):
            digest, last = genesis(tenant, id_), 0
            for seq, type_, name, fence, at, payload, salt in self.run(
                "select seq, type, name, fence, at, payload, salt from holdfast.history "
                "where tenant_id = ? and instance_id = ? order by seq", tenant, id_,
            ):  # fmt: skip
                digest, last = seal(digest, seq, type_, name, fence, at, payload_seal(salt, payload)), seq
                self.run("update holdfast.history set hash = ? where instance_id = ? and seq = ?", digest, id_, seq)
            self.run(
                "update holdfast.instances set seq = ?, hash = ? where id = ?", last, digest if last else None, id_
            )

    def found(self, *, reseal: bool = True, **given: Any) -> set[str]:
        if reseal:
            self.reseal()
        return {violation.invariant for violation in audit(self.url, **given)}


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Damaged:
    return Damaged(sound, tmp_path / "damaged.db")


def test_a_sound_database_passes(sound: Path, damaged: Damaged) -> None:
    assert_sound(f"sqlite:///{sound}")
    assert damaged.found() == set()


Plant = Callable[[Damaged], None]
PLANTS: list[tuple[str, str, Plant]] = []


def plant(invariant: str) -> Callable[[Plant], Plant]:
    def keep(function: Plant) -> Plant:
        PLANTS.append((invariant, function.__name__, function))
        return function

    return keep


@plant("I2")
def a_manual_effect_started_again_after_an_unknown_outcome(d: Damaged) -> None:
    id_ = d.id("plain")
    [(seq,)] = d.run("select seq from holdfast.history where instance_id = ? and type = 'EFFECT_STARTED'", id_)
    d.insert(id_, seq + 1, "EFFECT_STARTED", "pay", b'{"mode":"manual","attempt":2}')


@plant("I2")
def a_manual_effect_about_to_be_repeated(d: Damaged) -> None:
    id_ = d.id("unknown", "waiting")
    d.run("update holdfast.history set type = 'EFFECT_RETRIED', payload = ? where instance_id = ? and seq = ?",
          b'{"mode":"manual","attempt":1,"unknown":true,"retry_at":1}', id_, d.end(id_))  # fmt: skip


@plant("I2")
def another_key_for_the_same_effect(d: Damaged) -> None:
    d.run("update holdfast.effects set idempotency_key = 'another' where instance_id = ?", d.id("plain"))


@plant("I3")
def an_effect_that_never_ended(d: Damaged) -> None:
    d.run("update holdfast.effects set state = 'started' where instance_id = ?", d.id("plain"))


@plant("I3")
def an_effect_without_a_row(d: Damaged) -> None:
    d.run("delete from holdfast.effects where instance_id = ?", d.id("plain"))


@plant("I3")
def an_effect_that_history_does_not_know(d: Damaged) -> None:
    d.run(
        "update holdfast.effects set instance_id = ? where instance_id = ?", d.id("little"), d.id("unknown", "waiting")
    )


@plant("I4")
def claimed_by_a_fenced_worker(d: Damaged) -> None:
    d.run("update holdfast.instances set status = 'running', locked_by = (select id from holdfast.workers) "
          "where id = ?", d.id("waiting"))  # fmt: skip


@plant("I4")
def claimed_by_a_process_that_is_gone(d: Damaged) -> None:
    d.run("update holdfast.workers set fenced_at = null, pid = 4999999")
    d.run("update holdfast.instances set status = 'running', locked_by = (select id from holdfast.workers) "
          "where id = ?", d.id("waiting"))  # fmt: skip


@plant("I4")
def a_sleeper_that_nobody_will_wake(d: Damaged) -> None:
    d.run("update holdfast.instances set run_at = null where id = ?", d.id("asleep"))


@plant("I4")
def a_sleeper_that_is_woken_too_late(d: Damaged) -> None:
    d.run("update holdfast.instances set run_at = run_at + 1 where id = ?", d.id("asleep"))


@plant("I4")
def a_pending_instance_without_a_time(d: Damaged) -> None:
    id_ = d.id("waiting")
    d.run("delete from holdfast.history where instance_id = ?", id_)
    d.run("update holdfast.instances set status = 'pending', waiting_on = null, seq = 0 where id = ?", id_)


@plant("I4")
def a_signal_that_nobody_looks_at(d: Damaged) -> None:
    id_ = d.id("waiting")
    d.run("insert into holdfast.events (tenant_id, instance_id, id, kind, name, payload, sent_at) "
          "values ('default', ?, 'evt-9', 'signal', 'go', '1', 1)".replace("'1', 1", "x'31', 1"), id_)  # fmt: skip
    d.run("update holdfast.instances set woken = 1 where id = ?", id_)


@plant("I4")
def an_unknown_effect_that_is_not_on_the_desk(d: Damaged) -> None:
    d.run("update holdfast.effects set state = 'failed' where instance_id = ?", d.id("unknown", "waiting"))


@plant("I6")
def a_status_that_history_does_not_say(d: Damaged) -> None:
    d.run("update holdfast.instances set status = 'completed' where id = ?", d.id("saga"))


@plant("I6")
def a_result_that_history_does_not_say(d: Damaged) -> None:
    d.run("update holdfast.instances set result = x'31' where id = ?", d.id("plain"))


@plant("I6")
def an_end_that_history_does_not_know(d: Damaged) -> None:
    d.run("update holdfast.instances set status = 'completed', completed_at = 1, result = x'31', waiting_on = null "
          "where id = ?", d.id("waiting"))  # fmt: skip


@plant("I6")
def an_input_that_was_changed(d: Damaged) -> None:
    d.run("update holdfast.instances set input = x'7b7d' where id = ?", d.id("plain"))


@plant("I6")
def a_step_answered_twice(d: Damaged) -> None:
    d.insert(d.id("plain"), 3, "STEP_COMPLETED", "one", b'{"result":1}')


@plant("I7")
def a_fence_that_falls(d: Damaged) -> None:
    d.run("update holdfast.history set fence = 0 where instance_id = ? and seq = 3", d.id("plain"))


@plant("I14")
def a_fence_that_was_never_given(d: Damaged) -> None:
    id_ = d.id("plain")
    d.run("update holdfast.history set fence = 99 where instance_id = ? and seq = ?", id_, d.end(id_))


@plant("I8")
def a_timer_that_fired_early(d: Damaged) -> None:
    d.run("update holdfast.history set at = at - ? where instance_id = ? and type = 'TIMER_FIRED'",
          120 * SECOND, d.id("plain"))  # fmt: skip


@plant("I8")
def a_timer_that_fired_twice(d: Damaged) -> None:
    id_ = d.id("plain")
    [(seq,)] = d.run("select seq from holdfast.history where instance_id = ? and type = 'TIMER_FIRED'", id_)
    d.insert(id_, seq + 1, "TIMER_FIRED", "nap")


@plant("I9")
def a_signal_received_that_was_never_sent(d: Damaged) -> None:
    d.run("delete from holdfast.events where instance_id = ?", d.id("plain"))


@plant("I9")
def a_signal_taken_by_the_wrong_entry(d: Damaged) -> None:
    d.run("update holdfast.events set consumed_seq = 1 where instance_id = ?", d.id("plain"))


@plant("I9")
def a_signal_received_twice(d: Damaged) -> None:
    id_ = d.id("plain")
    [(seq,)] = d.run("select seq from holdfast.history where instance_id = ? and type = 'SIGNAL_RECEIVED'", id_)
    d.insert(id_, seq + 1, "SIGNAL_RECEIVED", "go#2", b'{"event_id":"evt-1","result":"now"}')


@plant("I9")
def a_signal_that_was_not_counted(d: Damaged) -> None:
    d.run("update holdfast.instances set woken = 0 where id = ?", d.id("plain"))


@plant("I11")
def a_child_that_is_not_there(d: Damaged) -> None:
    d.run("update holdfast.instances set parent_id = null, parent_step = null where definition_key = 'little'")


@plant("I11")
def a_parent_that_is_not_there(d: Damaged) -> None:
    d.run("update holdfast.instances set parent_id = x'00' where definition_key = 'little'")


@plant("I11")
def a_parent_that_waits_for_an_ended_child(d: Damaged) -> None:
    id_ = d.id("parent")
    d.run(
        "delete from holdfast.history where instance_id = ? and type in ('CHILD_COMPLETED', 'INSTANCE_COMPLETED')", id_
    )
    d.run("delete from holdfast.events where instance_id = ?", id_)
    d.run("update holdfast.instances set status = 'waiting', completed_at = null, result = null, woken = 0 "
          "where id = ?", id_)  # fmt: skip


@plant("I11")
def a_child_that_outlives_its_parent(d: Damaged) -> None:
    id_ = d.id("little")
    d.run("delete from holdfast.history where instance_id = ? and type = 'INSTANCE_COMPLETED'", id_)
    d.run("update holdfast.instances set status = 'running', completed_at = null, run_at = 1 where id = ?", id_)


@plant("I12")
def compensations_in_forward_order(d: Damaged) -> None:
    swap = "update holdfast.history set name = ? where instance_id = ? and type = 'COMPENSATION_COMPLETED' and name = ?"
    for new, old in (("x", "a"), ("a", "c"), ("c", "x")):
        d.run(swap, new, d.id("saga"), old)


@plant("I12")
def a_step_undone_twice(d: Damaged) -> None:
    id_ = d.id("saga")
    d.insert(id_, d.end(id_), "COMPENSATION_COMPLETED", "a")


@plant("I12")
def a_step_that_was_never_undone(d: Damaged) -> None:
    id_ = d.id("saga")
    end = d.end(id_)
    d.run("delete from holdfast.history where instance_id = ? and name = 'a' and type = 'COMPENSATION_COMPLETED'", id_)
    d.run("update holdfast.history set seq = ? where instance_id = ? and seq = ?", end - 1, id_, end)


@plant("I12")
def a_compensation_of_a_step_that_never_happened(d: Damaged) -> None:
    id_ = d.id("saga")
    d.insert(id_, d.end(id_), "COMPENSATION_COMPLETED", "d")


@plant("I13")
def something_after_the_end(d: Damaged) -> None:
    id_ = d.id("plain")
    d.insert(id_, d.end(id_) + 1, "VALUE_RECORDED", "now", b'{"result":1}')


@plant("I13")
def an_ended_instance_that_is_scheduled(d: Damaged) -> None:
    d.run("update holdfast.instances set run_at = 1 where id = ?", d.id("plain"))


@plant("I13")
def an_unknown_effect_settled_by_nobody(d: Damaged) -> None:
    id_ = d.id("unknown", "completed")
    [(seq,)] = d.run("select seq from holdfast.history where instance_id = ? and type = 'EFFECT_RESOLVED'", id_)
    d.run("update holdfast.history set type = 'INSTANCE_RESUMED' where instance_id = ? and seq = ?", id_, seq)


@plant("I15")
def an_event_of_another_tenant(d: Damaged) -> None:
    d.run("update holdfast.events set tenant_id = 'other' where instance_id = ?", d.id("plain"))


@plant("I15")
def an_effect_of_another_tenant(d: Damaged) -> None:
    d.run("update holdfast.effects set tenant_id = 'other' where instance_id = ?", d.id("plain"))


@plant("I15")
def a_history_of_nobody(d: Damaged) -> None:
    d.run("delete from holdfast.instances where id = ?", d.id("plain"))


@plant("I15")
def a_parent_in_another_tenant(d: Damaged) -> None:
    for table, column in (("instances", "id"), ("history", "instance_id"), ("events", "instance_id")):
        d.run(f"update holdfast.{table} set tenant_id = 'other' where {column} = ?", d.id("parent"))


@pytest.mark.parametrize(("invariant", "name", "damage"), PLANTS, ids=[f"{i} {n}" for i, n, _ in PLANTS])
def test_a_planted_violation_is_named(damaged: Damaged, invariant: str, name: str, damage: Plant) -> None:
    damage(damaged)
    found = damaged.found()
    assert invariant in found, f"{name.replace('_', ' ')} went unnoticed; found {found or 'nothing'}"
    # Damage in one place may break a second rule, but a checker that cries everything says nothing.
    assert len(found) <= 4, found


@pytest.mark.parametrize(
    "damage",
    [
        "update holdfast.history set payload = x'7b7d' where instance_id = ? and seq = 2",
        "update holdfast.history set at = at + 1 where instance_id = ? and seq = 2",
        "delete from holdfast.history where instance_id = ? and seq = 2",
        "delete from holdfast.history where instance_id = ? and seq >= 2",
        "update holdfast.instances set hash = x'00' where id = ?",
    ],
)
def test_a_broken_chain_is_named(damaged: Damaged, damage: str) -> None:
    damaged.run(damage, damaged.id("plain"))
    assert "I5" in damaged.found(reseal=False)


def test_what_the_provider_saw_is_compared(damaged: Damaged) -> None:
    [(key,)] = damaged.run("select idempotency_key from holdfast.effects where instance_id = ?", damaged.id("plain"))
    assert damaged.found(provider_calls=[key]) == set()
    assert damaged.found(provider_calls=[key, key]) == {"I2"}  # called twice, started once
    assert damaged.found(provider_calls=[]) == {"I2"}  # succeeded without a call
    assert damaged.found(provider_calls=[key, "somebody-else"]) == {"I2"}  # called without being on record


def test_an_acknowledged_start_that_vanished_is_named(damaged: Damaged) -> None:
    assert damaged.found(acknowledged=["ins_" + damaged.id("plain").hex()]) == set()
    assert damaged.found(acknowledged=["ins_" + "00" * 16]) == {"I1"}
