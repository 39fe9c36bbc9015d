"""The one commit: whole turns, own outcomes, and guards that hold."""

from __future__ import annotations

from typing import Any

from holdfast.engine.turns import Consumed, DeadLetter, EffectRow, NewEvent, Outcome, Turn
from holdfast.store.port import claimed_at_birth
from tests.store.support import (
    a_turn,
    a_worker,
    an_event,
    an_id,
    an_instance,
    claim,
    ending,
    history_of,
    parking,
    put,
    row_of,
    rows,
)


async def claimed_one(store: Any) -> tuple[bytes, Any]:
    worker_id = await a_worker(store)
    await put(store, an_instance(store))
    [one] = await claim(store, worker_id)
    return worker_id, one


async def test_a_turn_of_several_rows_is_committed_whole(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    assert await store.commit(worker_id, [a_turn(store, one, count=3)]) == [Outcome.COMMITTED]
    assert await history_of(store, one) == [1, 2, 3]


async def test_a_seq_that_is_taken_moves_nothing(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    await store.commit(worker_id, [a_turn(store, one)])
    late = a_turn(store, one, count=2)  # rows 1 and 2: row 1 is taken, so row 2 must not slip in
    late.starts = [an_instance(store, by=one.id)]
    assert await store.commit(worker_id, [late]) == [Outcome.MOVED]
    assert await history_of(store, one) == [1]
    assert await store.fetch("read_instance", tenant_id="acme", id=late.starts[0].id) == []


async def test_the_same_turn_twice_is_one_turn(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    turn = a_turn(store, one, count=2)
    assert await store.commit(worker_id, [turn]) == [Outcome.COMMITTED]
    assert await store.commit(worker_id, [turn]) == [Outcome.COMMITTED]  # a lost reply, tried again
    assert await store.look_up(worker_id, [turn]) == [Outcome.COMMITTED]
    assert await history_of(store, one) == [1, 2]


async def test_a_turn_that_was_never_committed_is_not_found(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    assert await store.look_up(worker_id, [a_turn(store, one)]) == [None]


async def test_one_bad_turn_does_not_fail_its_neighbours(store: Any) -> None:
    worker_id = await a_worker(store)
    await put(store, *[an_instance(store) for _ in range(40)])
    claims = await claim(store, worker_id)
    await store.commit(worker_id, [a_turn(store, claims[7]), a_turn(store, claims[23])])
    outcomes = await store.commit(worker_id, [a_turn(store, one) for one in claims])
    lost = [at for at, outcome in enumerate(outcomes) if outcome is Outcome.MOVED]
    assert lost == [7, 23]
    assert outcomes.count(Outcome.COMMITTED) == 38
    assert [await history_of(store, one) for one in claims] == [[1]] * 40


async def test_a_fenced_worker_writes_nothing(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    other = await a_worker(store)
    assert await store.release_worker(worker_id, other, stopped=False) == 1
    turn = ending(store, one, a_turn(store, one, count=2))
    turn.events = [NewEvent("acme", one.id, "e1", "signal", "go", b"1", store.now(), one.id)]
    assert await store.commit(worker_id, [turn]) == [Outcome.FENCED]
    assert await history_of(store, one) == []
    assert (await row_of(store, one))["status"] == "running"
    assert await store.fetch("read_event", tenant_id="acme", instance_id=one.id, id="e1") == []


async def test_a_claim_that_went_to_another_worker_cannot_be_used(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    other = await a_worker(store)
    await store.write(
        "release_claim", tenant_id="acme", id=one.id, fence=one.fence, worker_id=worker_id, run_at=store.now()
    )
    [again] = await claim(store, other)
    assert again.fence == one.fence + 1
    assert await store.commit(worker_id, [a_turn(store, one)]) == [Outcome.MOVED]
    assert await store.commit(worker_id, [ending(store, one, a_turn(store, one))]) == [Outcome.MOVED]
    assert await history_of(store, one) == []
    assert await store.commit(other, [a_turn(store, again)]) == [Outcome.COMMITTED]


async def test_an_old_fence_of_the_same_worker_cannot_be_used(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    await store.write(
        "release_claim", tenant_id="acme", id=one.id, fence=one.fence, worker_id=worker_id, run_at=store.now()
    )
    [again] = await claim(store, worker_id)
    assert await store.commit(worker_id, [a_turn(store, one)]) == [Outcome.MOVED]
    assert await store.commit(worker_id, [ending(store, one, a_turn(store, one))]) == [Outcome.MOVED]
    assert (await row_of(store, one))["status"] == "running"
    assert await store.commit(worker_id, [ending(store, again, a_turn(store, again))]) == [Outcome.COMMITTED]


async def test_an_event_that_arrives_before_parking_keeps_the_claim(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    assert await store.commit(None, [an_event(store, "acme", one.id)]) == [Outcome.COMMITTED]
    turn = parking(store, one, a_turn(store, one))
    assert await store.commit(worker_id, [turn]) == [Outcome.WOKEN]
    assert await store.look_up(worker_id, [turn]) == [Outcome.WOKEN]
    row = await row_of(store, one)
    assert (row["locked_by"], row["status"]) == (worker_id, "running")
    woken, events = await store.pending_events("acme", one.id)
    assert (woken, [e.id for e in events]) == (1, ["e1"])


async def test_an_event_that_arrives_after_parking_wakes_the_instance(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    assert await store.commit(worker_id, [parking(store, one, a_turn(store, one))]) == [Outcome.COMMITTED]
    assert await claim(store, worker_id) == []
    await store.commit(None, [an_event(store, "acme", one.id)])
    [again] = await claim(store, worker_id)
    assert [e.id for e in again.events] == ["e1"]
    assert [r.seq for r in again.history] == [1]


async def test_the_same_event_twice_is_one_event(store: Any) -> None:
    _, one = await claimed_one(store)
    assert await store.commit(None, [an_event(store, "acme", one.id)]) == [Outcome.COMMITTED]
    store.clock.micros += 5
    assert await store.commit(None, [an_event(store, "acme", one.id)]) == [Outcome.MOVED]
    woken, events = await store.pending_events("acme", one.id)
    assert (woken, len(events)) == (1, 1)


async def test_the_same_event_id_in_another_tenant_is_another_event(store: Any) -> None:
    ours, theirs = an_instance(store, tenant="acme"), an_instance(store, tenant="other")
    await put(store, ours, theirs)
    assert await store.commit(None, [an_event(store, "acme", ours.id)]) == [Outcome.COMMITTED]
    assert await store.commit(None, [an_event(store, "other", theirs.id)]) == [Outcome.COMMITTED]
    assert await store.commit(None, [an_event(store, "other", ours.id)]) == [Outcome.MOVED]  # no such instance there


async def test_an_ended_instance_takes_no_event(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    await store.commit(worker_id, [ending(store, one, a_turn(store, one))])
    assert await store.commit(None, [an_event(store, "acme", one.id)]) == [Outcome.MOVED]
    assert (await row_of(store, one))["run_at"] is None
    assert await claim(store, worker_id) == []


async def test_an_ending_hands_the_claim_back_whatever_arrived(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    await store.commit(None, [an_event(store, "acme", one.id)])
    assert await store.commit(worker_id, [ending(store, one, a_turn(store, one))]) == [Outcome.COMMITTED]
    row = await row_of(store, one)
    assert (row["status"], row["locked_by"], row["run_at"]) == ("completed", None, None)


async def test_everything_a_turn_holds_is_written_with_it(store: Any) -> None:
    worker_id = await a_worker(store)
    parent = an_instance(store)
    await put(store, parent)
    [one] = await claim(store, worker_id)
    await store.commit(None, [an_event(store, "acme", one.id)])
    child, effect_id = an_instance(store, by=one.id, parent_id=one.id, parent_step="sub"), an_id()
    other = an_instance(store)
    await put(store, other)
    turn = a_turn(store, one, count=2)
    turn.starts = [child]
    turn.events = [NewEvent("acme", other.id, "x1", "signal", "go", b"2", store.now(), one.id)]
    turn.consumed = [Consumed("acme", one.id, "e1", 1)]
    turn.effects = [
        EffectRow("acme", effect_id, one.id, "pay", "manual", "started", 1, "key", b"h", b"[]", one.fence, worker_id,
                  1, 1, 2, 3, None, None, None, None, None, None)
    ]  # fmt: skip
    turn.dead_letters = [DeadLetter("acme", an_id(), "instance", one.id, "work", "why", b"{}", 1)]
    assert await store.commit(worker_id, [turn]) == [Outcome.COMMITTED]
    assert len(await store.fetch("read_instance", tenant_id="acme", id=child.id)) == 1
    assert len(await store.fetch("read_effect", tenant_id="acme", id=effect_id)) == 1
    assert (
        len(await store.fetch("list_dead_letters", tenant_id="acme", before_at=1 << 62, before=b"\xff" * 16, limit=10))
        == 1
    )
    assert [e.id for e in (await store.pending_events("acme", other.id))[1]] == ["x1"]
    assert (await store.pending_events("acme", one.id))[1] == []


async def test_an_effect_keeps_the_name_of_the_worker_that_made_the_call(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    effect_id = an_id()
    row = EffectRow("acme", effect_id, one.id, "pay", "manual", "started", 1, "key", b"h", b"[]", one.fence, worker_id,
                    1, 1, 2, 3, None, None, None, None, None, None)  # fmt: skip
    first = a_turn(store, one)
    first.effects = [row]
    await store.commit(worker_id, [first])
    second = Turn("acme", one.id, one.fence, rows(store, one, after=1), after=first.history[-1][9])
    second.effects = [row._replace(state="outcome_unknown", worker_id=an_id(), fence=99)]
    assert await store.commit(worker_id, [second]) == [Outcome.COMMITTED]
    [found] = await store.fetch("read_effect", tenant_id="acme", id=effect_id)
    assert (found[4], found[8], bytes(found[9])) == ("outcome_unknown", one.fence, worker_id)


async def test_awkward_text_is_kept_to_the_letter(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    names = ['quo"te', "back\\slash", "com,ma", "bra{ce}", "NULL", "", "new\nline", "ünïcødé 🦀", "sin'gle", "tab\t"]
    turn = a_turn(store, one, count=len(names))
    turn.history = [(*row[:4], name, *row[5:]) for row, name in zip(turn.history, names, strict=True)]
    assert await store.commit(worker_id, [turn]) == [Outcome.COMMITTED]
    found = await store.fetch("read_history", tenant_id="acme", instance_id=one.id, after=0, limit=100)
    assert [row[2] for row in found] == names


async def test_a_start_with_a_taken_business_key_moves_nothing(store: Any) -> None:
    first, second = an_instance(store, business_key="k"), an_instance(store, business_key="k")
    elsewhere = an_instance(store, tenant="other", business_key="k")
    assert await put(store, first, second, elsewhere) == [Outcome.COMMITTED, Outcome.MOVED, Outcome.COMMITTED]
    [found] = await store.fetch("find_business_key", tenant_id="acme", definition_key="work", business_key="k")
    assert bytes(found[0]) == first.id


async def test_a_worker_that_is_fenced_but_still_named_in_the_claim_writes_nothing(store: Any) -> None:
    """Between the fence and the release of its claims a batch may slip in: the fence alone must stop it."""
    worker_id, one = await claimed_one(store)
    await store.write("fence_worker", now=store.now(), by=an_id(), worker_id=worker_id)
    assert (await row_of(store, one))["locked_by"] == worker_id
    assert await store.commit(worker_id, [a_turn(store, one)]) == [Outcome.FENCED]
    assert await store.commit(worker_id, [ending(store, one, a_turn(store, one))]) == [Outcome.FENCED]
    assert await history_of(store, one) == []


async def test_a_child_that_is_told_something_in_the_turn_that_starts_it_hears_of_it(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    child, cancel = an_instance(store, by=one.id, parent_id=one.id, run_at=store.now() + 60_000_000), "cancel:1"
    turn = a_turn(store, one)
    turn.starts = [child]
    turn.events = [NewEvent("acme", child.id, cancel, "cancel", "", b"{}", store.now(), one.id)]
    assert await store.commit(worker_id, [turn]) == [Outcome.COMMITTED]
    assert await store.commit(worker_id, [turn]) == [Outcome.COMMITTED]  # a lost reply, tried again
    [found] = await claim(store, worker_id)
    assert (found.id, found.fence, found.woken, [e.id for e in found.events]) == (child.id, 1, 1, [cancel])


async def test_a_turn_that_lost_tells_nothing_to_the_child_it_did_not_start(store: Any) -> None:
    worker_id, one = await claimed_one(store)
    await store.commit(worker_id, [a_turn(store, one)])
    child, late = an_instance(store, by=one.id), a_turn(store, one)
    late.starts = [child]
    late.events = [NewEvent("acme", child.id, "cancel:1", "cancel", "", b"{}", store.now(), one.id)]
    assert await store.commit(worker_id, [late]) == [Outcome.MOVED]
    assert await store.fetch("read_event", tenant_id="acme", instance_id=child.id, id="cancel:1") == []


async def test_an_event_committed_with_a_start_that_is_claimed_from_birth_keeps_the_claim(store: Any) -> None:
    worker_id = await a_worker(store)
    born = an_instance(store, claimed_by=worker_id)
    start = Turn("acme", born.id, starts=[born])
    outcomes = await store.commit(None, [an_event(store, "acme", born.id), start])
    assert outcomes[1] is Outcome.CLAIMED
    one = claimed_at_birth(born)  # which knows of no event
    assert await store.commit(worker_id, [parking(store, one, a_turn(store, one))]) == [Outcome.WOKEN]
    woken, events = await store.pending_events("acme", born.id)
    assert (woken, [e.id for e in events]) == (1, ["e1"])
