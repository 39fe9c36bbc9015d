"""A rehearsal decides as a worker would, calls nothing and writes nothing: the answer is compared with the worker's."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import BadInput, Context, Handle, Holdfast, Rehearsed, StepInfo, Workflow, effect
from holdfast.app import history_file, rehearsal
from holdfast.engine import ids
from holdfast.engine.journal import HOLE
from holdfast.testing import Harness, replay
from holdfast.worker.rehearsal import rehearse_here
from tests.flows.support import lose_worker, next_worker, query, tamper, until


async def foretold(harness: Harness, handle: Handle, app: Holdfast | None = None) -> Rehearsed:
    """By the code of `app`, else of the harness itself; from a file, which says the same as the database."""
    raw = ids.parse("ins", handle.id)
    await harness.service.charts.refresh()
    found = rehearse_here(harness.service, await rehearsal.read(harness.service, handle.tenant_id, raw))
    return found if app is None else replay(await taken_home(harness, handle), app)


async def taken_home(harness: Harness, handle: Handle) -> Path:
    stored = await rehearsal.read(harness.service, handle.tenant_id, ids.parse("ins", handle.id), whole=True)
    file = Path(harness._folder.name) / f"{handle.id}.jsonl"
    file.write_bytes(b"\n".join(history_file.lines_of(stored)))
    return file


def app_of(body: Any, **options: Any) -> Holdfast:
    app = Holdfast()
    app.workflow("order", **options)(body)
    return app


def never(*_: Any) -> Any:
    raise AssertionError("a rehearsal calls no handler")


# -- the same code


async def test_the_same_code_always_goes_on_and_waits_for_the_same(harness: Harness) -> None:
    calls: list[str] = []

    async def note(word: str) -> str:
        calls.append(word)
        if word == "flaky" and calls.count("flaky") == 1:
            raise ValueError("not yet")
        return word

    @harness.workflow("part")
    async def part(ctx: Context) -> str:
        await ctx.sleep("nap", timedelta(hours=1))
        return "part"

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> str:
        for _ in range(2):
            await ctx.step("note", note, "step")
        await ctx.step("flaky", note, "flaky")
        ctx.now(), ctx.random()
        await asyncio.gather(ctx.effect("left", note, "l", mode="keyed"), ctx.effect("right", note, "r", mode="keyed"))
        await ctx.child("part", "part")
        await ctx.wait_for_signal("go", timeout=timedelta(days=1))
        await ctx.sleep("rest", timedelta(hours=2))
        if ctx.epoch == 0:
            ctx.restart({"again": True})
        return "done"

    handle = await harness.start("order", {})
    seen = [await foretold(harness, handle)]
    assert (seen[0].verdict, seen[0].next) == ("goes_on", "step 'note'")
    while (view := await handle.status()).status != "completed":
        await harness.run_until_idle()
        view, before = await handle.status(), list(calls)
        one = await foretold(harness, handle)
        assert one == replay(await taken_home(harness, handle), harness)
        assert (one.verdict, calls, one.why) == (("ends" if view.status == "completed" else "goes_on"), before, "")
        assert one.next == (view.waiting_on or "completed")
        seen.append(one)
        await harness.advance(minutes=31)
    assert len({one.next for one in seen}) > 4


async def test_what_would_run_is_said_and_not_run(harness: Harness) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.wait_for_signal("go")
        await ctx.parallel("all", {"a": never, "b": effect(never)})

    handle = await harness.start("order")
    await harness.run_until_idle()
    await handle.signal("go")
    assert (await foretold(harness, handle)).next == "step 'all.a'; effect 'all.b'"


async def test_a_transaction_is_not_begun(harness: Harness) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.transaction("book", never)

    handle = await harness.start("order")
    assert (await foretold(harness, handle)).next == "transaction 'book'"


async def test_a_lookup_is_not_made(harness: Harness) -> None:
    async def pay(info: StepInfo) -> None:
        raise TimeoutError

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.effect("pay", pay, mode="lookup", lookup=never)

    handle = await harness.start("order")
    assert harness.test_worker is not None
    await until(lambda: query(harness.url, "select 1 from holdfast.history where type = 'EFFECT_STARTED'"), harness)
    await lose_worker(harness)
    harness.clock.move(timedelta(days=1))
    assert (await foretold(harness, handle)).next == "a lookup of effect 'pay'"


@pytest.mark.parametrize("undo", [never, effect(never)])
async def test_a_cancel_in_line_is_heard_and_nothing_is_undone(harness: Harness, undo: Any) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", lambda: 1, compensate=undo)
        await ctx.wait_for_signal("go")

    handle = await harness.start("order")
    await harness.run_until_idle()
    await handle.cancel("not wanted", actor="ann")
    one = await foretold(harness, handle)
    assert (one.verdict, one.next) == ("goes_on", "the compensation of 'reserve'")
    assert "cannot be cancelled as it stands" in (await foretold(harness, handle, app_of(waits))).why


async def waits(ctx: Context, given: Any) -> None:
    await ctx.wait_for_signal("go")


async def test_a_pending_fork_takes_its_past_along(harness: Harness) -> None:
    down = [True]

    def ship() -> str:
        if down:
            raise ConnectionError("the courier is away")
        return "shipped"

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> str:
        await ctx.step("pack", lambda: "parcel")
        return str(await ctx.step("ship", ship, max_attempts=1))

    handle = await harness.start("order")
    await harness.run_until_idle()
    again = await handle.retry("the courier is back", actor="ann")
    assert (await foretold(harness, again)).next == "step 'ship'"
    down.clear()
    await harness.run_until_idle()
    assert await again.result(0) == "shipped"


async def test_a_hundred_signals_of_thirty_names_are_all_heard(harness: Harness) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> int:
        for number in range(130):
            await ctx.wait_for_signal(f"name {number % 30}")
        return 130

    handle = await harness.start("order")
    await harness.run_until_idle()
    for number in range(130):
        await handle.signal(f"name {number % 30}", number)
    one = await foretold(harness, handle)
    assert (one.verdict, one.next) == ("ends", "completed")


async def test_a_built_workflow_is_replayed_like_any_other(harness: Harness) -> None:
    def built(*names: str) -> Holdfast:
        app, order = Holdfast(), Workflow("order")
        for name in names:
            order = order.step(name, lambda info: 1)
        app.register(order.wait_for_signal("go"))
        return app

    harness.register(Workflow("order").step("price", lambda info: 1).wait_for_signal("go"))
    handle = await harness.start("order")
    await harness.run_until_idle()
    assert (await foretold(harness, handle, built("price"))).next == "signal 'go'"
    assert (await foretold(harness, handle, built("weigh", "price"))).next == "step 'weigh'"


# -- standing still


async def test_of_a_parked_instance_it_says_what_a_resume_would_bring(harness: Harness) -> None:
    def priced(amount: int) -> Any:
        async def order(ctx: Context, given: Any) -> Any:
            found = await ctx.step("price", lambda amount: amount, amount)
            await ctx.wait_for_signal("go")
            return found

        return order

    harness.workflow("order")(priced(10))
    handle = await harness.start("order")
    await harness.run_until_idle()
    await handle.signal("go")
    async with next_worker(harness, app=app_of(priced(12))) as other:
        await other.run_until_idle()
        still = await foretold(other, handle)
        assert (still.verdict, still.why) == ("parked", (await handle.status()).waiting_on)
        mended = await foretold(other, handle, app_of(priced(10)))
        assert (mended.verdict, mended.next, mended.after_resume) == ("ends", "completed", True)


async def test_of_a_paused_instance_it_says_what_a_resume_would_bring(harness: Harness) -> None:
    harness.workflow("order")(waits)
    handle = await harness.start("order")
    await harness.run_until_idle()
    await handle.pause("stocktaking", actor="ann")
    assert (await foretold(harness, handle)).after_resume
    await harness.run_until_idle()

    async def changed(ctx: Context, given: Any) -> None:
        await ctx.step("go", never)
        await ctx.sleep("go", timedelta(hours=1))

    one = await foretold(harness, handle, app_of(changed))
    assert (one.verdict, one.next, one.after_resume) == ("goes_on", "step 'go'", True)
    await handle.resume("counted", actor="ann")
    assert not (await foretold(harness, handle)).after_resume


async def test_a_history_with_a_hole_is_not_replayed(harness: Harness) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.step("price", lambda: 1)
        await ctx.wait_for_signal("go")

    handle = await harness.start("order")
    await harness.run_until_idle()
    tamper(harness.url, "delete from holdfast.history where seq = 2")
    one = await foretold(harness, handle)
    assert (one.verdict, one.why) == ("parked", f"{HOLE}row 2 is missing")
    await handle.signal("go")
    await harness.run_until_idle()
    assert (await handle.status()).waiting_on == one.why


async def test_what_poisoned_its_workers_is_said(harness: Harness) -> None:
    harness.workflow("order")(waits)
    handle = await harness.start("order")
    await harness.run_until_idle()
    query(harness.url, "update holdfast.instances set attempts = 9")
    one = await foretold(harness, handle)
    assert one.verdict == "ends" and one.next.startswith("failed: claimed 9 times in a row")


async def test_what_it_owes_and_has_not_asked_for_yet_is_said(harness: Harness) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", lambda: 1, compensate=never)
        await ctx.wait_for_signal("go")

    handle = await harness.start("order")
    await harness.run_until_idle()
    one = await foretold(harness, handle, app_of(waits))
    assert (one.verdict, one.next) == ("goes_on", "signal 'go'")
    assert one.why.startswith("parked later, unless it asks before it ends: 'reserve' may have to be undone")


async def test_a_person_who_is_asked_is_said_also_where_something_else_goes_on(harness: Harness) -> None:
    async def unheard() -> None:
        raise TimeoutError

    def both(mode: Any) -> Any:
        async def order(ctx: Context, given: Any) -> None:
            await asyncio.gather(
                ctx.effect("pay", unheard, mode=mode, backoff=timedelta(hours=2)), ctx.wait_for_signal("go")
            )

        return order

    async def changed(ctx: Context, given: Any) -> None:
        await asyncio.gather(both("manual")(ctx, given), ctx.step("price", never))

    harness.workflow("order")(both("keyed"))
    handle = await harness.start("order")
    await harness.run_until_idle()
    assert (await foretold(harness, handle)).verdict == "goes_on"
    one = await foretold(harness, handle, app_of(changed))
    assert (one.verdict, one.next) == ("waits_for_person", "step 'price'")
    assert one.why.startswith("it was begun as 'keyed' and the code now says 'manual'")


# -- bodies that misbehave


def exits() -> None:
    raise SystemExit(3)


def interrupts() -> None:
    raise KeyboardInterrupt


def asserts() -> None:
    raise AssertionError("never")


@pytest.mark.parametrize("misbehave", [exits, interrupts, asserts])
async def test_whatever_a_body_raises_is_its_own_failure(harness: Harness, misbehave: Callable[[], None]) -> None:
    harness.workflow("order")(waits)
    handle = await harness.start("order")
    await harness.run_until_idle()

    async def order(ctx: Context, given: Any) -> None:
        misbehave()

    one = await foretold(harness, handle, app_of(order))
    assert one.verdict == "ends" and one.next.startswith("failed: ") and one.why.startswith("it fails: ")


async def test_a_failure_that_the_code_brings_is_said_also_where_undoing_goes_on(harness: Harness) -> None:
    """By `why`, which the command's table shows: whoever deploys must not read only that they all go on."""

    async def order(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", list, compensate=list)
        await ctx.wait_for_signal("go")

    harness.workflow("order")(order)
    handle, cancelled = await harness.start("order"), await harness.start("order")
    await harness.run_until_idle()

    async def raising(ctx: Context, given: Any) -> None:
        await ctx.step("reserve", list, compensate=list)
        raise KeyError("amount")

    found = await foretold(harness, handle, app_of(raising))
    assert (found.verdict, found.next) == ("goes_on", "the compensation of 'reserve'")
    assert found.why == "it fails, and is undone: KeyError: 'amount'"
    await cancelled.cancel("no need")
    assert (await foretold(harness, cancelled, app_of(order))).why == ""


async def test_a_body_that_opens_the_world_would_be_parked(harness: Harness) -> None:
    import socket

    harness.workflow("order")(waits)
    handle = await harness.start("order")
    await harness.run_until_idle()

    async def order(ctx: Context, given: Any) -> None:
        socket.create_connection(("127.0.0.1", 9))

    one = await foretold(harness, handle, app_of(order))
    assert one.verdict == "parked" and "a workflow's body cannot" in one.why


async def test_lines_of_the_body_are_not_logged(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        ctx.log.error("here I am")
        await ctx.step("price", never)

    handle = await harness.start("order")
    caplog.clear()
    assert (await foretold(harness, handle)).next == "step 'price'"
    assert "here I am" not in caplog.text


async def test_one_that_a_worker_holds_is_decided_as_if_the_worker_were_lost(harness: Harness) -> None:
    hangs = asyncio.Event()

    @harness.workflow("order")
    async def order(ctx: Context, given: Any) -> None:
        await asyncio.gather(ctx.step("price", hangs.wait), ctx.effect("pay", hangs.wait))

    handle = await harness.start("order")
    await until(lambda: query(harness.url, "select 1 from holdfast.history where type = 'EFFECT_STARTED'"), harness)
    assert (await foretold(harness, handle)).next == "step 'price'"
    hangs.set()
    await harness.run_until_idle()
    assert (await foretold(harness, handle)).next == "completed"


async def test_one_that_moves_while_it_is_read_is_read_again(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.workflow("order")(waits)
    handle = await harness.start("order")
    await harness.run_until_idle()
    await handle.signal("go")
    store = harness.service.store
    read = store.pending_events

    async def after_a_turn(*args: Any, **options: Any) -> Any:
        await harness.run_until_idle()  # the signal is taken, as the rows read before do not tell
        return await read(*args, **options)

    monkeypatch.setattr(store, "pending_events", after_a_turn)
    one = await foretold(harness, handle)
    assert (one.verdict, one.status) == ("ends", "completed")


# -- charts


async def test_a_chart_goes_on_where_its_handlers_are(harness: Harness) -> None:
    task = {"type": "createTask", "params": {"type": "SYSTEM", "name": "weigh", "completion_event": "weighed"}}
    chart = {"id": "scale", "initial": "on", "states": {"on": {"entry": task, "on": {"weighed": "off"}}, "off": {}}}
    await harness.publish(chart)
    handle = await harness.start("scale")
    one = await foretold(harness, handle)
    assert (one.verdict, one.why) == (
        "unknown", "the app has no handler 'weigh': no worker with this code would claim it",
    )  # fmt: skip

    @harness.task_handler("SYSTEM", "weigh")
    async def weigh(given: Any) -> int:
        return 1

    assert (await foretold(harness, handle)).verdict == "goes_on"


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"kind": "effect", "mode": "keyed"}, ""),
        (
            {"kind": "effect", "mode": "manual"},
            "it was begun as 'keyed' and the code now says 'manual': only a person may say what became of it",
        ),
        (
            {"kind": "step"},
            "it was begun as 'keyed', and its handler 'pay' is a step now: only a person may say what became of it",
        ),
    ],
)
async def test_a_chart_waits_for_a_person_where_its_effect_was_changed_as_the_worker_says(
    harness: Harness, now: dict[str, Any], why: str
) -> None:
    @harness.task_handler("SYSTEM", "pay", kind="effect", mode="keyed")
    async def begun(given: Any) -> None:
        raise ConnectionResetError("no answer")

    app = Holdfast()

    @app.task_handler("SYSTEM", "pay", **now)
    async def pay(given: Any) -> None: ...

    await harness.publish({"id": "paying", "initial": "on", "states": {
        "on": {"invoke": {"src": "pay", "onDone": "off"}}, "off": {"type": "final"}}})  # fmt: skip
    handle = await harness.start("paying")
    await harness.run_until_idle()
    await handle.pause("audit", actor="ann")
    await harness.run_until_idle()
    async with next_worker(harness, app=app) as other:
        one = await foretold(other, handle)
        assert (one.verdict, one.why, one.after_resume) == ("waits_for_person" if why else "goes_on", why, True)
        await other.instance(handle.id).resume("done", actor="ann")
        await other.advance(hours=1)
        assert [effect.reason for effect in await other.effects.list()] == ([why] if why else [])
        found = await other.instance(handle.id).status()
        assert one.next in str(found.waiting_on) if why else found.status == "completed"


async def test_a_built_in_handler_goes_on_with_a_charts_effect(harness: Harness) -> None:
    harness.task_handler("HTTP", "ask", kind="effect")(never)
    await harness.publish({"id": "asking", "initial": "on", "states": {"on": {"invoke": {
        "src": {"task": {"type": "HTTP", "name": "ask", "url": "https://example.org", "mode": "keyed"}},
        "onDone": "off"}}, "off": {"type": "final"}}})  # fmt: skip
    handle = await harness.start("asking")
    await harness.run_until_idle()
    async with next_worker(harness, app=Holdfast()) as other:
        assert (await foretold(other, handle)).verdict == "goes_on"


# -- history files


async def test_a_file_keeps_the_bytes_that_a_replay_compares(harness: Harness) -> None:
    given = {"b": 1.0, "a": "ünïcode \u2028 \n", "n": [1e300, 9007199254740993, -0.0], "e": {}}

    def body(amount: Any) -> Any:
        async def order(ctx: Context, given: Any) -> None:
            await ctx.step("price", lambda given: given, amount)
            await ctx.wait_for_signal("go")

        return order

    harness.workflow("order")(body(given))
    handle = await harness.start("order", given)
    await harness.run_until_idle()
    file = await taken_home(harness, handle)
    assert replay(file, app_of(body(given))).verdict == "goes_on"
    assert replay(file, app_of(body(given | {"b": 2}))).verdict == "parked"


async def test_a_child_that_the_app_does_not_have_is_taken_for_a_chart(harness: Harness) -> None:
    harness.workflow("order")(waits)
    handle = await harness.start("order")
    await harness.run_until_idle()

    async def order(ctx: Context, given: Any) -> None:
        await ctx.child("sign", "signature")

    assert replay(await taken_home(harness, handle), app_of(order)).next == "child 'sign'"


def test_a_replay_needs_no_loop_and_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    async def made() -> bytes:
        async with Harness(app_of(waits)) as harness:
            handle = await harness.start("order")
            await harness.run_until_idle()
            return (await taken_home(harness, handle)).read_bytes()

    good = asyncio.run(made())
    file = tmp_path / "order.jsonl"
    file.write_bytes(good + b"\n\n")
    assert replay(str(file), app_of(waits)).next == "signal 'go'"
    first, second = good.splitlines()
    for content, said in (
        (b"", "order.jsonl is empty: expected what `holdfast instances history INSTANCE -o jsonl` prints"),
        (b"seq,type\n", "order.jsonl, line 1 is no history row"),
        (second, "order.jsonl, line 1 says nothing of its instance"),
        (first + b"\n" + b"{}", "order.jsonl, line 2 is no history row"),
        (first.replace(b'"format":1', b'"format":2'), "order.jsonl, line 1 was written by a later Holdfast"),
        (first.replace(b'"id":"ins_', b'"id":"no_'), "is not an id"),
    ):
        file.write_bytes(content)
        with pytest.raises(BadInput) as refused:
            replay(file, app_of(waits))
        assert said in str(refused.value)
    with pytest.raises(BadInput, match="app is 'shop:hf': expected the Holdfast"):
        replay(file, "shop:hf")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="cannot read"):
        replay(tmp_path / "nowhere.jsonl", app_of(waits))


def test_without_an_app_it_is_that_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def made() -> bytes:
        async with Harness(app_of(waits)) as harness:
            handle = await harness.start("order")
            await harness.run_until_idle()
            return (await taken_home(harness, handle)).read_bytes()

    file = tmp_path / "order.jsonl"
    file.write_bytes(asyncio.run(made()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_APP", raising=False)
    with pytest.raises(BadInput, match="name the app"):
        replay(file)
    monkeypatch.setenv("HOLDFAST_APP", "no_such_module_here:hf")
    with pytest.raises(BadInput, match="no_such_module_here"):
        replay(file)
    (tmp_path / "replayed_app.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n")
    monkeypatch.setenv("HOLDFAST_APP", "replayed_app:hf")
    assert replay(file).verdict == "unknown"
