"""The effect desk: a named person says what became of an effect, with a reason, and it is kept."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    BadInput,
    Context,
    EffectAborted,
    EffectNotFound,
    EffectNotOpen,
    EffectView,
    Handle,
    InstanceFailed,
    StepInfo,
)
from holdfast.engine.moments import micros
from holdfast.testing import FakeProvider, Harness
from tests.flows.support import entries, next_worker, query, row_counts, until
from tests.support.auditor import assert_sound

ANN = {"actor": "ann", "reason": "the bank confirmed it by phone"}


def declare(harness: Harness, provider: FakeProvider, **options: Any) -> None:
    def pay(info: StepInfo) -> dict[str, Any]:
        found: dict[str, Any] = provider.call(info.idempotency_key)
        return found

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        try:
            return await ctx.effect("pay", pay, **options)
        except EffectAborted as error:
            return f"aborted: {error.message}"


async def unknown(harness: Harness, provider: FakeProvider, *plan: str) -> tuple[Handle, EffectView]:
    """An instance that waits for a person; the handler came back with an error, so nothing is under way."""

    def reset(key: str) -> Any:
        behaviour = plan[len(provider.calls)] if len(provider.calls) < len(plan) else "ok"
        provider.plan("ok" if behaviour == "reset_after" else behaviour)
        receipt = provider.call(key)
        if behaviour == "reset_after":
            raise ConnectionResetError("no answer")
        return receipt

    def pay(info: StepInfo) -> dict[str, Any]:
        found: dict[str, Any] = reset(info.idempotency_key)
        return found

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        try:
            return await ctx.effect("pay", pay)
        except EffectAborted as error:
            return f"aborted: {error.message}"

    handle = await harness.start("pay")
    await harness.run_until_idle()
    [view] = await harness.effects.list()
    return handle, view


async def test_it_happened_continues_with_the_result_the_person_gave(harness: Harness, provider: FakeProvider) -> None:
    handle, view = await unknown(harness, provider, "reset_after")
    await harness.effects.resolve(view.id, "happened", result={"id": "prov-1"}, **ANN)
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == {"id": "prov-1"}
    assert len(provider.calls) == 1
    found = await harness.effects.show(view.id)
    assert (found.state, found.resolution, found.resolved_by, found.reason, found.receipt) == (
        "resolved", "happened", "ann", "the bank confirmed it by phone", {"id": "prov-1"},
    )  # fmt: skip
    [entry] = await entries(handle, "EFFECT_RESOLVED")
    assert (entry.payload["actor"], entry.payload["reason"]) == ("ann", "the bank confirmed it by phone")
    assert await harness.effects.list() == []


async def test_it_did_not_happen_starts_it_again_with_the_same_key_as_the_next_attempt(
    harness: Harness, provider: FakeProvider
) -> None:
    handle, view = await unknown(harness, provider, "reset_after")
    await harness.effects.resolve(view.id, "did_not_happen", **ANN)
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == {"id": "prov-1", "request": None}
    assert len(provider.calls) == 2
    assert len(set(provider.calls)) == 1
    found = await harness.effects.show(view.id)
    assert (found.state, found.attempt) == ("succeeded", 2)


async def test_abort_fails_the_effect_in_the_workflow_and_names_who_said_so(
    harness: Harness, provider: FakeProvider
) -> None:
    handle, view = await unknown(harness, provider, "reset_after")
    await harness.effects.resolve(view.id, "abort", **ANN)
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == "aborted: aborted by ann: the bank confirmed it by phone"
    assert (await harness.effects.show(view.id)).resolution == "abort"


async def test_a_resolution_names_who_decides_and_why(harness: Harness, provider: FakeProvider) -> None:
    _, view = await unknown(harness, provider, "reset_after")
    before = row_counts(harness.url)
    for field in ("actor", "reason"):
        for value in ("", "   ", None):
            with pytest.raises(BadInput, match=f"{field} is empty"):
                await harness.effects.resolve(view.id, "happened", **(ANN | {field: value}))
    assert row_counts(harness.url) == before


async def test_a_resolution_in_words_that_cannot_be_stored_is_refused(harness: Harness, provider: FakeProvider) -> None:
    handle, view = await unknown(harness, provider, "reset_after")
    for field in ("actor", "reason"):
        for word in ("nul \x00", "lone \ud800"):
            with pytest.raises(BadInput, match=f"{field} holds a NUL or half a character"):
                await harness.effects.resolve(view.id, "happened", result={}, **(ANN | {field: word}))
    await harness.effects.resolve(view.id, "happened", result={}, **ANN)
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"


async def test_a_choice_that_does_not_exist_is_refused(harness: Harness, provider: FakeProvider) -> None:
    _, view = await unknown(harness, provider, "reset_after")
    with pytest.raises(BadInput, match="expected one of happened, did_not_happen, abort"):
        await harness.effects.resolve(view.id, "maybe", **ANN)
    with pytest.raises(EffectNotFound):
        await harness.effects.resolve("eff_" + "0" * 32, "happened", **ANN)
    with pytest.raises(EffectNotFound):
        await harness.tenant("acme").effects.resolve(view.id, "happened", **ANN)
    with pytest.raises(EffectNotFound, match="expected eff_ and 32"):
        await harness.effects.show("nonsense")


async def test_a_settled_effect_cannot_be_resolved(harness: Harness, provider: FakeProvider) -> None:
    declare(harness, provider)
    await harness.start("pay")
    await harness.run_until_idle()
    [view] = await harness.effects.list(state="succeeded")
    with pytest.raises(EffectNotOpen, match="is succeeded"):
        await harness.effects.resolve(view.id, "did_not_happen", **ANN)


async def timed_out(harness: Harness, provider: FakeProvider) -> tuple[Handle, EffectView]:
    """An instance whose effect timed out: the call may be under way still, and its worker lives."""
    declare(harness, provider)
    provider.plan("timeout_after")
    handle = await harness.start("pay")
    await harness.run_until_idle()
    [view] = await harness.effects.list()
    return handle, view


async def test_starting_again_is_not_open_while_the_worker_may_live(harness: Harness, provider: FakeProvider) -> None:
    handle, view = await timed_out(harness, provider)
    await harness.advance(days=1)
    with pytest.raises(EffectNotOpen, match="the worker that started it may still be running"):
        await harness.effects.resolve(view.id, "did_not_happen", **ANN)
    assert len(provider.calls) == 1
    await harness.effects.resolve(view.id, "happened", result={"id": "prov-1"}, **ANN)  # cannot double anything
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == {"id": "prov-1"}


async def test_starting_again_opens_once_the_worker_is_gone_and_the_call_must_be_over(
    harness: Harness, provider: FakeProvider
) -> None:
    handle, view = await timed_out(harness, provider)
    async with next_worker(harness) as other:
        with pytest.raises(EffectNotOpen, match="the call may still be on its way"):
            await other.effects.resolve(view.id, "did_not_happen", **ANN)
        while other.clock.micros < micros(view.opens_at):
            await other.advance(seconds=1)
        await other.effects.resolve(view.id, "did_not_happen", **ANN)
        await other.run_until_idle()
        assert (await other.instance(handle.id).status()).status == "completed"
    assert len(provider.calls) == 2


@pytest.mark.parametrize("waiver", [{"accept_double": True}, {"second_person": "bob"}], ids=["double", "second"])
async def test_starting_again_earlier_needs_a_waiver_that_is_audited(
    harness: Harness, provider: FakeProvider, waiver: dict[str, Any]
) -> None:
    handle, view = await timed_out(harness, provider)
    await harness.effects.resolve(view.id, "did_not_happen", **ANN, **waiver)
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"
    [entry] = await entries(handle, "EFFECT_RESOLVED")
    for name, value in waiver.items():
        assert entry.payload[name] == value
    assert entry.payload["actor"] == "ann"


async def test_the_second_person_is_somebody_else(harness: Harness, provider: FakeProvider) -> None:
    _, view = await timed_out(harness, provider)
    for second in ("ann", " ann ", "", "  "):
        with pytest.raises(BadInput, match="somebody else"):
            await harness.effects.resolve(view.id, "did_not_happen", **ANN, second_person=second)


async def test_two_people_who_decide_at_once_start_it_again_only_once(harness: Harness, provider: FakeProvider) -> None:
    handle, view = await unknown(harness, provider, "reset_after", "reset_after", "ok")
    await harness.effects.resolve(view.id, "did_not_happen", **ANN)
    with pytest.raises(EffectNotOpen, match="ann was first and said 'did_not_happen'"):
        await harness.effects.resolve(view.id, "did_not_happen", actor="bob", reason="me too")
    await harness.run_until_idle()
    assert len(provider.calls) == 2  # the second attempt is unknown too, and nobody has decided about that one
    assert (await handle.status()).status == "waiting"
    [again] = await harness.effects.list()
    assert again.attempt == 2
    await harness.effects.resolve(again.id, "did_not_happen", **ANN)
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"
    assert len(provider.calls) == 3


async def test_a_word_that_came_too_late_is_refused_not_dropped(harness: Harness, provider: FakeProvider) -> None:
    handle, view = await unknown(harness, provider, "reset_after")
    raced = await asyncio.gather(
        harness.effects.resolve(view.id, "happened", result={"id": "prov-1"}, **ANN),
        harness.effects.resolve(view.id.removeprefix("eff_").upper(), "abort", actor="bob", reason="no"),
        return_exceptions=True,
    )
    [refused] = [error for error in raced if error is not None]
    assert isinstance(refused, EffectNotOpen) and "your word is not recorded" in str(refused)
    await harness.run_until_idle()
    [entry] = await entries(handle, "EFFECT_RESOLVED")
    winner = ["ann", "bob"][raced.index(None)]
    assert entry.payload["actor"] == winner and f"{winner} was first" in str(refused)
    assert (await harness.effects.show(view.id)).resolved_by == winner
    assert query(harness.url, "select count(*) from holdfast.events where consumed_seq is null") == [(0,)]


async def test_the_same_word_twice_is_one_word(harness: Harness, provider: FakeProvider) -> None:
    handle, view = await unknown(harness, provider, "reset_after")
    for _ in range(2):
        await harness.effects.resolve(view.id, "did_not_happen", **ANN)
    await harness.run_until_idle()
    assert len(provider.calls) == 2 and len(await entries(handle, "EFFECT_RESOLVED")) == 1


def after_the_look(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Let something happen between the desk's look at the effect and the commit of the word about it."""
    store = harness.service.store
    fetch = store.fetch

    async def looked(name: str, **values: Any) -> Any:
        rows = await fetch(name, **values)
        if name == "read_effect":
            monkeypatch.setattr(store, "fetch", fetch)
            await happens()
        return rows

    monkeypatch.setattr(store, "fetch", looked)


async def test_a_word_about_an_attempt_that_is_over_is_refused_however_late_it_is_found(
    harness: Harness, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, view = await unknown(harness, provider, "reset_after", "reset_after")

    async def ann_is_quicker() -> None:
        await harness.effects.resolve(view.id, "did_not_happen", **ANN)
        await harness.run_until_idle()

    after_the_look(harness, monkeypatch, ann_is_quicker)
    with pytest.raises(EffectNotOpen, match="ann was first"):
        await harness.effects.resolve(view.id, "did_not_happen", actor="bob", reason="me too")
    [again] = await harness.effects.list()
    assert (again.attempt, len(provider.calls)) == (2, 2)
    await harness.effects.resolve(view.id, "did_not_happen", actor="bob", reason="now for the second")
    await harness.run_until_idle()
    assert (await handle.status()).status == "completed"


@pytest.mark.parametrize("word", ["happened", "did_not_happen", "abort"])
async def test_a_word_about_an_attempt_that_a_lookup_has_settled_decides_nothing_about_the_next(
    harness: Harness, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    declare(harness, provider, mode="lookup", lookup=lambda key: None, settle_after=timedelta(minutes=1))
    provider.plan("timeout_before", "timeout_before")
    handle = await harness.start("pay")
    await harness.run_until_idle()
    [view] = await harness.effects.list()

    async def the_next_attempt_begins() -> None:
        while len(provider.calls) < 2 or (await harness.effects.show(view.id)).state != "outcome_unknown":
            await harness.advance(seconds=10)

    after_the_look(harness, monkeypatch, the_next_attempt_begins)
    with pytest.raises(EffectNotOpen, match="settled while you decided: it is outcome_unknown, in attempt 2"):
        await harness.effects.resolve(view.id, word, result={"id": "prov-1"}, accept_double=True, **ANN)
    await harness.run_until_idle()
    assert (len(provider.calls), await entries(handle, "EFFECT_RESOLVED")) == (2, [])
    assert [entry.payload["actor"] for entry in await entries(handle, "INSTANCE_RESUMED")] == ["ann"]
    assert (await harness.effects.show(view.id)).attempt == 2


@pytest.mark.parametrize("word", ["happened", "did_not_happen", "abort"])
async def test_a_word_that_was_refused_as_too_late_decides_nothing(
    harness: Harness, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """The lookup has said that it did not happen, and the next attempt waits: its number is the old one still."""
    declare(harness, provider, mode="lookup", lookup=lambda key: None, settle_after=timedelta(minutes=1))
    provider.plan("timeout_before", "ok")
    handle = await harness.start("pay")
    await harness.run_until_idle()
    [view] = await harness.effects.list()

    async def the_lookup_says_that_it_did_not_happen() -> None:
        while (await harness.effects.show(view.id)).state == "outcome_unknown":
            await harness.advance(seconds=0.5)

    after_the_look(harness, monkeypatch, the_lookup_says_that_it_did_not_happen)
    with pytest.raises(EffectNotOpen, match="too late"):
        await harness.effects.resolve(view.id, word, result={"id": "ann-said"}, accept_double=True, **ANN)
    await harness.advance(seconds=20)
    assert await entries(handle, "EFFECT_RESOLVED") == []
    assert await handle.result(timeout=0) == provider.find(provider.calls[0])


@pytest.mark.parametrize("look", ["is late", "fails"])
async def test_a_late_word_that_the_worker_has_noted_already_is_refused_too(
    harness: Harness, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """Unless the desk cannot look: then the word is stored, and nothing says that it does not count."""
    declare(harness, provider, mode="lookup", lookup=lambda key: None, settle_after=timedelta(minutes=1))
    provider.plan("timeout_before", "timeout_before")
    handle = await harness.start("pay")
    await harness.run_until_idle()
    [view] = await harness.effects.list()

    async def the_next_attempt_begins() -> None:
        while len(provider.calls) < 2 or (await harness.effects.show(view.id)).state != "outcome_unknown":
            await harness.advance(seconds=10)

    after_the_look(harness, monkeypatch, the_next_attempt_begins)
    commit = harness.service.commit

    async def and_the_worker_is_quick(turn: Any) -> Any:
        found = await commit(turn)
        await harness.run_until_idle()
        if look == "fails":
            monkeypatch.setattr(harness.service.store, "fetch", gone)
        return found

    async def gone(*_: Any, **__: Any) -> Any:
        raise ConnectionResetError("the database is away")

    monkeypatch.setattr(harness.service, "commit", and_the_worker_is_quick)
    said = harness.effects.resolve(view.id, "happened", result={"id": "prov-1"}, accept_double=True, **ANN)
    if look == "fails":
        await said
    else:
        with pytest.raises(EffectNotOpen, match="too late"):
            await said
    monkeypatch.undo()
    assert await entries(handle, "EFFECT_RESOLVED") == []


@pytest.mark.parametrize("after", ["completes", "fails", "waits", "is cancelled"])
@pytest.mark.parametrize("heard", [True, False])
async def test_a_word_that_a_lookup_has_overtaken_is_in_the_history(
    harness: Harness, provider: FakeProvider, after: str, heard: bool
) -> None:
    """Whether the worker was told of it (`heard`), or finds it only when it looks before the end."""
    asked, answers = asyncio.Event(), asyncio.Event()

    def pay(info: StepInfo) -> dict[str, Any]:
        found: dict[str, Any] = provider.call(info.idempotency_key)
        return found

    async def find(key: str) -> Any:
        asked.set()
        await answers.wait()
        return provider.find(key)

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> None:
        await ctx.effect("pay", pay, mode="lookup", lookup=find, compensate=lambda receipt: None)
        if after == "fails":
            raise ValueError("sold out")
        if after == "waits":
            await ctx.wait_for_signal("go")

    provider.plan("timeout_after")
    handle = await harness.start("pay")
    if after == "is cancelled":
        await harness.run_until_idle()
        await handle.cancel("enough", actor="bob")
    moves = asyncio.create_task(harness.advance(minutes=5))
    await until(asked.is_set, harness)
    [view] = await harness.effects.list()
    async with Harness(url=harness.url, clock=harness.clock) as desk:
        await (harness if heard else desk).effects.resolve(view.id, "happened", result={"id": "prov-1"}, **ANN)
    if heard:
        await asyncio.sleep(0.05)
    answers.set()
    await moves
    ends = {"completes": "completed", "fails": "failed", "waits": "waiting", "is cancelled": "cancelled"}
    assert (await handle.status()).status == ends[after]
    [entry] = await entries(handle, "EFFECT_SUCCEEDED")
    assert entry.payload["via"] == "lookup"
    assert await entries(handle, "EFFECT_RESOLVED") == []
    [noted] = [entry for entry in await handle.history() if entry.name == "resolution of pay"]
    assert (noted.payload["actor"], noted.payload["reason"]) == (ANN["actor"], ANN["reason"])
    assert query(harness.url, "select id from holdfast.events where consumed_seq is null") == []
    assert_sound(harness.url, finished=after != "waits")


@pytest.mark.parametrize("word", ["happened", "did_not_happen", "abort"])
async def test_a_word_about_an_effect_that_repeats_itself_is_refused_and_not_dropped_later(
    harness: Harness, provider: FakeProvider, word: str
) -> None:
    declare(harness, provider, mode="keyed", window=timedelta(hours=1))
    provider.plan("timeout_before", "timeout_before")
    handle = await harness.start("pay")
    await harness.run_until_idle()
    [view] = await harness.effects.list()
    with pytest.raises(EffectNotOpen, match="repeats itself with the same key"):
        await harness.effects.resolve(view.id, word, result={"id": "p"}, accept_double=True, **ANN)
    while (await handle.status()).status == "waiting":
        await harness.advance(seconds=1)
    assert await handle.result(timeout=0) == provider.find(provider.calls[0])


async def test_a_result_that_does_not_fit_what_the_step_returns_leaves_the_choice_open(
    harness: Harness, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The desk refuses it, unless the code has changed since the effect came there."""
    handle, view = await unknown(harness, provider, "reset_after")
    with pytest.raises(BadInput, match="does not fit"):
        await harness.effects.resolve(view.id, "happened", result="prov-1", **ANN)  # the step returns a dict
    monkeypatch.setattr("holdfast.app.effects._check_result", lambda *_: None)
    await harness.effects.resolve(view.id, "happened", result="prov-1", **ANN)
    await harness.run_until_idle()
    assert (await handle.status()).status == "waiting"
    [again] = await harness.effects.list()
    await harness.effects.resolve(again.id, "happened", result={"id": "prov-1"}, **ANN)
    await harness.run_until_idle()
    assert await handle.result(timeout=0) == {"id": "prov-1"}


async def test_a_resolution_survives_a_lost_worker(harness: Harness, provider: FakeProvider) -> None:
    handle, view = await unknown(harness, provider, "reset_after")
    await harness.effects.resolve(view.id, "did_not_happen", **ANN)
    async with next_worker(harness) as other:
        await other.run_until_idle()
        assert (await other.instance(handle.id).status()).status == "completed"
    assert len(provider.calls) == 2


async def test_a_worker_lost_right_after_starting_it_again_leaves_it_unknown_again(
    harness: Harness, provider: FakeProvider
) -> None:
    never = asyncio.Event()

    async def pay(info: StepInfo) -> Any:
        provider.call(info.idempotency_key)
        if len(provider.calls) == 1:
            raise ConnectionResetError
        await never.wait()

    @harness.workflow("pay")
    async def workflow(ctx: Context) -> Any:
        return await ctx.effect("pay", pay)

    handle = await harness.start("pay")
    await harness.run_until_idle()
    [view] = await harness.effects.list()
    await harness.effects.resolve(view.id, "did_not_happen", **ANN)
    await until(lambda: len(provider.calls) == 2, harness)
    async with next_worker(harness) as other:
        await other.advance(days=1)
        [again] = await other.effects.list()
        assert (again.attempt, again.error["type"]) == (2, "WorkerLost")
        assert (await other.instance(handle.id).status()).status == "waiting"
    assert len(provider.calls) == 2


async def test_an_unknown_effect_is_settled_before_anything_started_earlier_is_undone(
    harness: Harness, provider: FakeProvider
) -> None:
    undone: list[str] = []

    def pay(info: StepInfo) -> Any:
        provider.call(info.idempotency_key)
        raise ConnectionResetError

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> None:
        await ctx.step("reserve", lambda: "r", compensate=lambda r: undone.append("reserve"))
        await ctx.effect("pay", pay, compensate=lambda p: undone.append(f"pay {p}"))

    handle = await harness.start("saga")
    await harness.run_until_idle()
    await handle.cancel("customer withdrew")
    await harness.advance(days=1)
    view = await handle.status()
    assert (view.status, undone) == ("compensating", [])
    assert "the outcome of effect 'pay' is unknown" in (view.waiting_on or "")
    [found] = await harness.effects.list()
    await harness.effects.resolve(found.id, "happened", result="p-1", **ANN)
    await harness.run_until_idle()
    assert undone == ["pay p-1", "reserve"]
    view = await handle.status()
    assert (view.status, view.compensation) == ("cancelled", "complete")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("happened", ["pay", "reserve"]), ("abort", ["pay", "reserve"]), ("did_not_happen", ["reserve"])],
)
async def test_what_a_person_says_while_it_is_being_undone_decides_what_is_owed(
    harness: Harness, choice: str, expected: list[str]
) -> None:
    undone: list[str] = []
    calls: list[int] = []

    def pay() -> Any:
        calls.append(1)
        raise ConnectionResetError

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> None:
        await ctx.step("reserve", lambda: 1, compensate=lambda r: undone.append("reserve"))
        await ctx.effect("pay", pay, compensate=lambda: undone.append("pay"))

    handle = await harness.start("saga")
    await harness.run_until_idle()
    await handle.cancel()
    await harness.run_until_idle()
    [found] = await harness.effects.list()
    await harness.effects.resolve(found.id, choice, **ANN)
    await harness.run_until_idle()
    assert undone == expected
    assert calls == [1]
    assert (await handle.status()).status == "cancelled"


async def test_abort_compensates_the_effect_itself_and_what_came_before(harness: Harness) -> None:
    undone: list[str] = []

    def pay() -> Any:
        raise ConnectionResetError

    @harness.workflow("saga")
    async def workflow(ctx: Context) -> None:
        await ctx.step("reserve", lambda: 1, compensate=lambda r: undone.append("reserve"))
        await ctx.effect("pay", pay, compensate=lambda p: undone.append(f"pay {p}"))

    handle = await harness.start("saga")
    await harness.run_until_idle()
    [found] = await harness.effects.list()
    await harness.effects.resolve(found.id, "abort", **ANN)
    await harness.run_until_idle()
    assert undone == ["pay None", "reserve"]
    with pytest.raises(InstanceFailed, match="aborted by ann"):
        await handle.result(timeout=0)


async def test_nothing_is_written_when_a_resolution_is_refused(harness: Harness, provider: FakeProvider) -> None:
    _, view = await timed_out(harness, provider)
    before = row_counts(harness.url)
    with pytest.raises(EffectNotOpen):
        await harness.effects.resolve(view.id, "did_not_happen", **ANN)
    with pytest.raises(Exception, match="not JSON"):
        await harness.effects.resolve(view.id, "happened", result=object(), **ANN)
    assert row_counts(harness.url) == before
    assert query(harness.url, "select state from holdfast.effects") == [("outcome_unknown",)]
