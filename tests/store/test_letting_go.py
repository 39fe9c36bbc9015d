"""Claims let go, replies lost, batches with one bad turn in them: nothing is doubled and nobody else pays."""

from __future__ import annotations

import asyncio
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.turns import NewEvent, NewInstance, Outcome, Turn
from holdfast.store.committer import Committer
from holdfast.store.sqlite import SqliteStore
from tests.store.support import (
    a_turn,
    a_worker,
    an_event,
    an_id,
    an_instance,
    claim,
    history_of,
    parking,
    put,
    row_of,
)


async def test_a_claim_let_go_after_a_committed_turn_starts_counting_afresh(store: Any) -> None:
    worker = await a_worker(store)
    one = an_instance(store)
    await put(store, one)
    for _ in range(8):  # a long workflow on a database that comes and goes: each time it gets on a little
        [claimed] = await claim(store, worker)
        assert claimed.attempts == 1
        assert await store.commit(worker, [a_turn(store, claimed)]) == [Outcome.COMMITTED]
        await store.write(
            "release_claim", tenant_id=one.tenant_id, id=one.id, fence=claimed.fence, worker_id=worker,
            run_at=store.now(),
        )  # fmt: skip


async def test_a_claim_let_go_by_a_worker_that_lives_is_not_counted(store: Any) -> None:
    worker = await a_worker(store)
    one = an_instance(store)
    await put(store, one)
    for _ in range(8):
        [claimed] = await claim(store, worker)
        assert claimed.attempts == 1
        await store.write(
            "release_claim", tenant_id=one.tenant_id, id=one.id, fence=claimed.fence, worker_id=worker,
            run_at=store.now(),
        )  # fmt: skip
    assert (await row_of(store, one))["attempts"] == 0


async def test_a_claim_is_let_go_only_by_whoever_holds_it(store: Any) -> None:
    worker, other = await a_worker(store), await a_worker(store)
    one = an_instance(store)
    await put(store, one)
    [claimed] = await claim(store, worker)
    for fence, by in ((claimed.fence, other), (claimed.fence - 1, worker), (claimed.fence + 1, worker)):
        done = await store.write(
            "release_claim", tenant_id=one.tenant_id, id=one.id, fence=fence, worker_id=by, run_at=store.now()
        )  # fmt: skip
        assert done == 0
    assert (await row_of(store, one))["locked_by"] == worker


@pytest.mark.parametrize("executed", [True, False], ids=["executed", "not executed"])
async def test_a_lost_reply_is_looked_up_and_the_turn_is_there_once(store: Any, executed: bool) -> None:
    worker = await a_worker(store)
    instances = [an_instance(store) for _ in range(3)]
    await put(store, *instances)
    claimed = await claim(store, worker)
    real, calls = store.commit, []

    async def commit(worker_id: bytes, turns: list[Turn]) -> Any:
        calls.append(len(turns))
        if len(calls) == 1:
            if executed:
                await real(worker_id, turns)
            raise ConnectionResetError("the reply was lost")
        return await real(worker_id, turns)

    store.commit = commit
    committer = Committer(store, worker)
    committer.start()
    turns = [parking(store, one, a_turn(store, one, count=2)) for one in claimed]
    outcomes = await asyncio.gather(*(committer.commit(turn) for turn in turns))
    await committer.close()
    assert outcomes == [Outcome.COMMITTED] * 3
    assert len(calls) == (1 if executed else 2)
    for one in instances:
        assert await history_of(store, one) == [1, 2]


async def test_a_lost_reply_of_a_door_does_not_send_an_event_twice(store: Any) -> None:
    one = an_instance(store)
    await put(store, one)
    real, calls = store.commit, []

    async def commit(worker_id: bytes | None, turns: list[Turn]) -> Any:
        calls.append(1)
        found = await real(worker_id, turns)
        if len(calls) == 1:
            raise ConnectionResetError("the reply was lost")
        return found

    store.commit = commit
    committer = Committer(store)
    committer.start()
    assert await committer.commit(an_event(store, one.tenant_id, one.id)) is Outcome.COMMITTED
    assert await committer.commit(an_event(store, one.tenant_id, one.id, payload=b"2")) is Outcome.MOVED
    await committer.close()
    woken, events = await store.pending_events(one.tenant_id, one.id)
    assert (woken, len(events)) == (1, 1)


async def test_a_turn_the_database_refuses_fails_alone(store: Any) -> None:
    worker = await a_worker(store)
    await put(store, *(an_instance(store) for _ in range(9)))
    claimed = await claim(store, worker)
    turns = [parking(store, one, a_turn(store, one)) for one in claimed]
    assert turns[4].change is not None
    turns[4].change = turns[4].change._replace(run_at=1 << 70)  # no bigint
    committer = Committer(store, worker)
    committer.start()
    outcomes = await asyncio.gather(*(committer.commit(turn) for turn in turns), return_exceptions=True)
    await committer.close()
    assert [outcome for n, outcome in enumerate(outcomes) if n != 4] == [Outcome.COMMITTED] * 8
    assert isinstance(outcomes[4], Exception)
    assert await history_of(store, claimed[4]) == []


async def test_a_refused_turn_leaves_nothing_of_itself_behind(store: Any) -> None:
    worker = await a_worker(store)
    mother, other = an_instance(store), an_instance(store)
    await put(store, mother, other)
    claimed = next(one for one in await claim(store, worker) if one.id == mother.id)
    assert await store.commit(worker, [a_turn(store, claimed)]) == [Outcome.COMMITTED]
    late = parking(store, claimed, a_turn(store, claimed))  # seq 1 again: somebody else's by now
    child = an_instance(store, by=mother.id)
    late.starts = [child]
    late.events = [NewEvent(other.tenant_id, other.id, "e1", "signal", "go", b"1", store.now(), mother.id)]
    assert await store.commit(worker, [late]) == [Outcome.MOVED]
    assert await store.fetch("read_instance", tenant_id=child.tenant_id, id=child.id) == []
    assert await store.pending_events(other.tenant_id, other.id) == (0, [])
    assert (await row_of(store, mother))["status"] == "running"
    await store.release_worker(worker, an_id(), stopped=False)
    assert await store.commit(worker, [late]) == [Outcome.FENCED]
    assert await store.fetch("read_instance", tenant_id=child.tenant_id, id=child.id) == []


async def test_doors_that_say_the_same_in_one_batch_say_it_once(store: Any) -> None:
    one = an_instance(store, business_key="k")
    twin = an_instance(store, business_key="k")
    assert sorted(o.value for o in await put(store, one, twin)) == ["committed", "moved"]
    found = await store.fetch("find_business_key", tenant_id="acme", definition_key="work", business_key="k")
    there = bytes(found[0][0])
    first, second = (an_event(store, "acme", there, sent_at=n) for n in (1, 2))
    assert sorted(o.value for o in await store.commit(None, [first, second])) == ["committed", "moved"]
    woken, events = await store.pending_events("acme", there)
    assert (woken, len(events)) == (1, 1)


async def test_history_refuses_a_replace_from_a_connection_without_recursive_triggers(tmp_path: Any) -> None:
    from holdfast.facade import make_store
    from holdfast.testing import ManualClock

    store = make_store(f"sqlite:///{tmp_path / 'plain.db'}")
    store.clock = ManualClock()
    await store.open(migrate=True)
    worker = await a_worker(store)
    await put(store, an_instance(store))
    [claimed] = await claim(store, worker)
    await store.commit(worker, [a_turn(store, claimed)])
    plain = apsw.Connection(str(tmp_path / "plain.db"))
    plain.execute("pragma recursive_triggers = off")
    for words in ("insert or replace", "replace", "insert or ignore", "insert"):
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            plain.execute(f"{words} into holdfast_history select * from holdfast_history")
    for statement in ("update or replace holdfast_history set name = 'x'", "delete from holdfast_history"):
        with pytest.raises(apsw.ConstraintError, match="append-only"):
            plain.execute(statement)
    plain.close()
    assert await history_of(store, claimed) == [1]
    await store.close()


NAMES = [bytes([n]) * 16 for n in range(4)]


def a_made_turn(kind: str, who: int, whom: int, number: int) -> Turn:
    me, other = NAMES[who], NAMES[whom]
    row: Any = ("t", me, number, "X", "", 1, 0, b"", b"", b"")
    event = NewEvent("t", other, str(number), "signal", "go", b"1", number)
    born = NewInstance("t", other, "code", "w", 1, None, "q", 0, 0, b"", None, None, None, 0)
    match kind:
        case "step":
            return Turn("t", me, 1, [row])
        case "send":
            return Turn("t", other, events=[event])
        case "step and send":
            return Turn("t", me, 1, [row], events=[event])
        case _:
            return Turn("t", other, starts=[born])


@given(
    st.lists(
        st.tuples(st.sampled_from(["step", "send", "step and send", "start"]), st.integers(0, 3), st.integers(0, 3)),
        max_size=30,
    ),
    st.integers(1, 3),
)
def test_no_batch_moves_and_wakes_one_row_and_each_instance_keeps_its_order(
    asked: list[tuple[str, int, int]], writers: int
) -> None:
    async def run() -> None:
        committer = Committer(SqliteStore("sqlite:///never-opened.db"))
        for number, (kind, who, whom) in enumerate(asked):
            committer.submit(a_made_turn(kind, who, whom, number), lambda outcome: None)
        order: dict[bytes, list[int]] = {}
        under_way: list[Any] = []
        taken_in_all = 0
        while taken_in_all < len(asked):
            taken, *touched = committer._take()
            if not taken or len(under_way) == writers:
                assert under_way, "turns are pending, nothing is under way, and none is taken"
                committer._set_free(*under_way.pop(0))
                if not taken:
                    continue
            moved = [t.instance_id for t, _ in taken if t.history]
            woken = {e.instance_id for t, _ in taken for e in t.events}
            own = {
                t.instance_id for t, _ in taken if t.history and t.events and t.events[0].instance_id == t.instance_id
            }
            assert len(moved) == len(set(moved))
            assert not (set(moved) - own) & woken
            for moved_elsewhere, _ in under_way:
                assert not set(moved) & moved_elsewhere
            for turn, _ in taken:
                number = turn.history[0][2] if turn.history else int(turn.events[0].id) if turn.events else None
                touches = {*([turn.instance_id] if turn.history else []), *(e.instance_id for e in turn.events)}
                for id_ in touches if number is not None else ():
                    order.setdefault(id_, []).append(number)
            assert touched[0] == {*moved, *(s.id for t, _ in taken for s in t.starts)}
            assert touched[1] == woken
            committer._moved |= touched[0]
            committer._woken |= touched[1]
            under_way.append(touched)
            taken_in_all += len(taken)
        for numbers in order.values():
            assert numbers == sorted(numbers)
        assert (committer._lines, committer._waiting) == ({}, 0)

    asyncio.run(run())


class _Counted(bytes):
    """An instance id that counts how often anything asks for it."""

    asked = 0

    def __hash__(self) -> int:
        _Counted.asked += 1
        return super().__hash__()


def _looks_at(signals: int) -> int:
    """How often the ids of turns are looked at while as many signals wait for an instance that moves all the time."""

    async def run() -> int:
        committer = Committer(SqliteStore("sqlite:///never-opened.db"))
        committer.store.batch_limit = 50
        busy, neighbour = _Counted(b"b" * 16), _Counted(b"n" * 16)
        row: Any = ("t", busy, 1, "X", "", 1, 0, b"", b"", b"")
        for number in range(signals):
            event = NewEvent("t", busy, str(number), "signal", "go", b"1", number)
            committer.submit(Turn("t", busy, events=[event]), lambda outcome: None)
        committer.submit(Turn("t", neighbour, 1, [("t", neighbour, *row[2:])]), lambda outcome: None)
        _Counted.asked = 0
        left, passes = signals + 1, 0
        while left:
            # One turn of the instance's own for every batch: what put all its signals off again and again.
            committer.submit(Turn("t", busy, 1, [row]), lambda outcome: None)
            left += 1
            taken, moved, woken = committer._take()
            committer._moved |= moved
            committer._woken |= woken
            again, *touched = committer._take()  # meanwhile: whatever touches neither
            assert not {t.instance_id for t, _ in again} & {busy}
            committer._set_free(moved, woken)
            committer._set_free(*touched)  # type: ignore[arg-type]
            left -= len(taken) + len(again)
            passes += 1
            if passes > signals // 50 + 2:
                break
        return _Counted.asked

    return asyncio.run(run())


def test_signals_that_wait_for_a_busy_instance_are_not_looked_at_again_and_again() -> None:
    few, many = _looks_at(500), _looks_at(2_000)
    assert many < few * 4 * 1.2


def test_a_long_line_for_one_instance_leaves_room_for_its_neighbours() -> None:
    async def run() -> None:
        committer = Committer(SqliteStore("sqlite:///never-opened.db"))
        committer.store.batch_limit = 10
        busy = b"b" * 16
        committer._moved = {busy}
        for number in range(100):
            event = NewEvent("t", busy, str(number), "signal", "go", b"1", number)
            committer.submit(Turn("t", busy, events=[event]), lambda outcome: None)
        assert committer._take()[0] == []
        committer._set_free({busy}, set())
        for number in range(10):
            committer.submit(a_made_turn("step", number % 4, 0, number), lambda outcome: None)
        taken, *_ = committer._take()
        whose = [turn.instance_id for turn, _ in taken]
        assert (len(whose), whose.count(busy)) == (9, 5)  # all four neighbours, though the line was there first

    asyncio.run(run())
