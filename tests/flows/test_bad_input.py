"""Bad input is refused in words that say what to do, and leaves nothing half-written behind."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from structlog.testing import capture_logs

from holdfast import (
    BadDefinition,
    BadInput,
    Context,
    Holdfast,
    HoldfastError,
    InstanceNotFound,
    NotJson,
    PayloadTooLarge,
    StoreUnavailable,
    WorkflowNotRegistered,
)
from holdfast.testing import Harness
from tests.flows.support import query, row_counts, types
from tests.support.patience import PATIENCE_SECONDS


@dataclass
class Order:
    id: str
    amount_minor: int


class Struct(msgspec.Struct):
    id: str


class Model(pydantic.BaseModel):
    id: str


@pytest.fixture
def app(harness: Harness) -> Harness:
    @harness.workflow("order")
    async def order(ctx: Context, given: Order) -> str:
        return given.id

    @harness.workflow("struct")
    async def struct(ctx: Context, given: Struct) -> str:
        return given.id

    @harness.workflow("model")
    async def model(ctx: Context, given: Model) -> str:
        return given.id

    @harness.workflow("any")
    async def anything(ctx: Context, given: Any) -> Any:
        return await ctx.wait_for_signal("go")

    return harness


def cyclic() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


@dataclass
class Price:
    amount: float


NOT_JSON = {
    "an object": object(), "nan": float("nan"), "inside": {"a": [1, float("inf")]}, "a lone surrogate": "\ud800",
    "a lone surrogate as a key": {"\ud800": 1}, "a cycle": cyclic(), "a function": print,
    "nan in a dataclass": Price(float("nan")), "nested too deep": deep(1000), "nested deep": deep(300),
}  # fmt: skip


async def test_what_is_not_json_is_refused_as_input_and_as_signal(app: Harness) -> None:
    handle = await app.start("any")
    for value in NOT_JSON.values():
        with pytest.raises(NotJson, match="the input of 'any'"):
            await app.start("any", value)
        with pytest.raises(NotJson, match="the payload of signal 'go'"):
            await handle.signal("go", value)
    counts = row_counts(app.url)
    assert (counts["instances"], counts["events"]) == (1, 0)


async def test_a_step_result_that_is_not_json_fails_the_step_at_once(app: Harness) -> None:
    calls: list[str] = []

    def handler(what: str) -> Any:
        calls.append(what)
        return NOT_JSON[what]

    @app.workflow("bad result")
    async def workflow(ctx: Context, what: str) -> None:
        await ctx.step("bad", handler, what, thread=False)

    handles = {what: await app.start("bad result", what) for what in NOT_JSON}
    await app.advance(hours=1)
    assert sorted(calls) == sorted(NOT_JSON)
    for what, handle in handles.items():
        view = await handle.status()
        assert view.status == "failed", what
        assert "the result of 'bad'" in view.error["message"]
        assert "STEP_COMPLETED" not in await types(handle)


async def test_brackets_in_a_text_are_not_depth(app: Harness) -> None:
    for text in ("[" * 5000, "]" * 5000, "{[" * 5000, '"[' * 500):
        handle = await app.start("any", [text, [{"a": [[]]}] * 300])
        assert (await handle.status()).input[0] == text


@pytest.mark.parametrize("what", ["arguments", "workflow result", "child input"])
async def test_whatever_else_is_not_json_fails_the_instance_and_names_the_place(app: Harness, what: str) -> None:
    @app.workflow("bad")
    async def workflow(ctx: Context) -> Any:
        if what == "arguments":
            await ctx.step("step", lambda x: x, object())
        if what == "child input":
            await ctx.child("child", "any", object())
        return object()

    handle = await app.start("bad")
    await app.run_until_idle()
    view = await handle.status()
    assert (view.status, view.error["type"]) == ("failed", "NotJson")
    words = {
        "arguments": "the arguments of 'step'",
        "workflow result": "the workflow's result",
        "child input": "the input of child 'child'",
    }
    assert words[what] in view.error["message"]
    assert row_counts(app.url)["instances"] == 1


async def test_an_oversized_payload_is_refused_wherever_it_comes_in(url: str) -> None:
    big = "x" * 200
    hf = Holdfast(url, payload_limit=100)

    @hf.workflow("big")
    async def workflow(ctx: Context, where: str) -> Any:
        if where == "step":
            await ctx.step("step", lambda: big)
        if where == "arguments":
            await ctx.step("step", lambda x: 1, big)
        if where == "child":
            await ctx.child("child", "big", big)
        return big

    async with hf, hf.worker(poll_seconds=0.01):
        with pytest.raises(PayloadTooLarge, match="the input of 'big' takes 202 bytes as JSON, the limit is 100"):
            await hf.start("big", big)
        assert row_counts(url)["instances"] == 0
        places = {
            "step": "the result of 'step'",
            "arguments": "the arguments of 'step'",
            "child": "the input of child 'child'",
            "result": "the workflow's result",
        }
        for where, words in places.items():
            handle = await hf.start("big", where)
            with pytest.raises(HoldfastError, match=words):
                await handle.result(timeout=100)
        with pytest.raises(PayloadTooLarge, match="signal 'go'"):
            await handle.signal("go", big)


async def test_a_harness_keeps_the_limits_of_the_app_it_tests(url: str) -> None:
    hf = Holdfast("sqlite:///not-opened.db", payload_limit=100)

    @hf.workflow("any")
    async def workflow(ctx: Context, given: Any) -> Any:
        return given

    async with Harness(hf, url=url) as harness:
        with pytest.raises(PayloadTooLarge):
            await harness.start("any", "x" * 200)


async def test_an_input_that_does_not_fit_the_annotation_is_refused(app: Harness) -> None:
    for workflow in ("order", "struct", "model"):
        for given in ({}, {"id": 7, "amount_minor": "x"}, None, "text", [1]):
            with pytest.raises(BadInput, match=f"does not fit what workflow '{workflow}' version 1 expects"):
                await app.start(workflow, given)
        with pytest.raises(BadInput) as refused:
            await app.start(workflow, {"id": ["hunter2"], "amount_minor": 1})
        assert [one.pointer for one in refused.value.errors] == ["/input/id"]
        assert "hunter2" not in str(refused.value) and "https://" not in str(refused.value)
    assert row_counts(app.url)["instances"] == 0


async def test_an_unknown_workflow_is_refused_with_those_that_are_known(app: Harness) -> None:
    with pytest.raises(WorkflowNotRegistered, match=r"no workflow 'nobody' .*any, model, order, struct"):
        await app.start("nobody")
    with pytest.raises(WorkflowNotRegistered, match="'any' version 9"):
        await app.start("any", version=9)
    assert row_counts(app.url)["instances"] == 0


async def test_a_business_key_or_trace_id_that_cannot_be_stored_is_refused(app: Harness) -> None:
    for word in ("", "x" * 501, "a\x00b", "lone \ud800", 7, b"k"):
        for field in ("business_key", "trace_id"):
            with pytest.raises(BadInput, match=field):
                await asyncio.wait_for(app.start("any", **{field: word}), PATIENCE_SECONDS)
    assert row_counts(app.url)["instances"] == 0


async def test_a_start_time_without_a_time_zone_is_refused(app: Harness) -> None:
    with pytest.raises(BadInput, match="time zone"):
        await app.start("any", start_at=datetime(2026, 1, 1))
    assert row_counts(app.url)["instances"] == 0


async def test_a_signal_name_or_id_that_is_none_is_refused(app: Harness) -> None:
    handle = await app.start("any")
    for word in ("", "x" * 201, "a\x00b", "lone \ud800", 7):
        with pytest.raises(BadInput, match="signal name"):
            await asyncio.wait_for(handle.signal(word), PATIENCE_SECONDS)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="event id"):
            await asyncio.wait_for(handle.signal("go", id=word), PATIENCE_SECONDS)  # type: ignore[arg-type]
    assert row_counts(app.url)["events"] == 0


@pytest.mark.parametrize("where", ["step", "key", "sleep", "signal", "child", "effect", "parallel", "branch"])
async def test_a_name_that_is_none_parks_the_instance_and_says_so(app: Harness, where: str) -> None:
    names: list[Any] = ["", "a#b", "x" * 201, "a\x00b", "lone \ud800", 7]

    @app.workflow("named")
    async def workflow(ctx: Context, which: int) -> None:
        name = names[which]
        match where:
            case "step":
                await ctx.step(name, lambda: 1)
            case "key":
                await ctx.step("a", lambda: 1, key=name)
            case "sleep":
                await ctx.sleep(name, 1)
            case "signal":
                await ctx.wait_for_signal(name, timeout=1)
            case "child":
                await ctx.child(name, "any")
            case "effect":
                await ctx.effect(name, lambda: 1)
            case "parallel":
                await ctx.parallel(name, {"a": lambda: 1})
            case "branch":
                await ctx.parallel("p", {name: lambda: 1})

    handles = [await app.start("named", which) for which in range(len(names))]
    await app.run_until_idle()
    for handle in handles:
        view = await handle.status()
        assert view.status == "waiting"
        assert "is not a name: expected 1 to 200 characters" in str(view.waiting_on)
    assert row_counts(app.url)["effects"] == 0


async def test_a_name_grown_too_long_by_its_key_is_refused(app: Harness) -> None:
    @app.workflow("named")
    async def workflow(ctx: Context) -> None:
        await ctx.step("x" * 150, lambda: 1, key="y" * 150)

    handle = await app.start("named")
    await app.run_until_idle()
    assert "is not a name" in str((await handle.status()).waiting_on)


ODD_CALLS: list[tuple[Any, str]] = [
    (lambda ctx: ctx.step("a", None), "expected a function"),
    (lambda ctx: ctx.step(print, 1), 'expected the step\'s name before it, as in ctx.step("print", print, …)'),
    (lambda ctx: ctx.effect(print, 1), "expected the effect's name before it"),
    (lambda ctx: ctx.transaction(print, 1), "expected the transaction's name before it"),
    (lambda ctx: ctx.effect("a", print, moed="keyed"), "unexpected keyword argument 'moed'"),
    (lambda ctx: ctx.efect("a", print), "no attribute 'efect'"),
    (lambda ctx: ctx.child("a"), "missing 1 required positional argument: 'workflow'"),
    (lambda ctx: ctx.sleep("a", "tomorrow"), "TypeError"),
    (lambda ctx: ctx.step("a", print, max_attempts=0), "max_attempts is 0"),
    (lambda ctx: ctx.step("a", print, timeout=0), "expected a positive"),
    (lambda ctx: ctx.effect("a", print, mode="twice"), "expected 'keyed', 'lookup' or 'manual'"),
    (lambda ctx: ctx.effect("a", print, mode="lookup"), "needs lookup="),
    (lambda ctx: ctx.effect("a", print, lookup=print), "goes with mode 'lookup'"),
    (lambda ctx: ctx.effect("a", print, settle_after=timedelta(1)), "settle_after=… goes with mode 'lookup'"),
    (lambda ctx: ctx.effect("a", print, mode="lookup", lookup=print, settle_after=3), "a timedelta"),
    (lambda ctx: ctx.effect("a", print, window=timedelta(1)), "goes with mode 'keyed'"),
    (lambda ctx: ctx.sleep("a"), "either a duration or until"),
    (lambda ctx: ctx.sleep("a", 1, until=datetime.now()), "either a duration or until"),
    (lambda ctx: ctx.sleep("a", until=datetime(2026, 1, 1)), "must carry a time zone"),
    (lambda ctx: ctx.parallel("a", {}), "has no branches"),
]


async def test_a_call_that_makes_no_sense_parks_the_instance_and_says_what_was_expected(app: Harness) -> None:
    @app.workflow("odd")
    async def workflow(ctx: Context, which: int) -> None:
        await ODD_CALLS[which][0](ctx)

    handles = [await app.start("odd", which) for which in range(len(ODD_CALLS))]
    await app.run_until_idle()
    for handle, (_, words) in zip(handles, ODD_CALLS, strict=True):
        view = await handle.status()
        assert view.status == "waiting", words
        assert words in str(view.waiting_on)
        assert (await types(handle))[-1] == "INSTANCE_PARKED"


async def test_one_turn_that_cannot_be_stored_does_not_harm_its_neighbours(
    app: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of our own, made up: a name the database refuses slips through."""
    monkeypatch.setattr("holdfast.engine.context.check_name", lambda what, name: name)

    @app.workflow("poison")
    async def poison(ctx: Context) -> None:
        await ctx.sleep("nap", 1)
        await ctx.step("bad \x00 name" if app.url.startswith("postgres") else "bad \ud800 name", lambda: 1)

    @app.workflow("fine")
    async def fine(ctx: Context, n: int) -> int:
        await ctx.sleep("nap", 1)
        return await ctx.step("ok", lambda: n)

    handles = [await app.start("fine", n) for n in range(5)]
    bad = await app.start("poison")
    handles += [await app.start("fine", n) for n in range(5, 10)]
    with capture_logs():
        await app.advance(seconds=60)  # claimed again and again, with longer and longer pauses, and then parked
    view = await bad.status()
    assert (view.status, str(view.waiting_on)[:7]) == ("waiting", "parked:")
    assert (await types(bad))[-1] == "INSTANCE_PARKED"
    assert await app.dead_letters() == []
    assert [await handle.result(timeout=0) for handle in handles] == list(range(10))


def test_a_declaration_that_makes_no_sense_is_refused_where_it_stands() -> None:
    app = Holdfast("sqlite:///not-opened.db")

    async def good(ctx: Context) -> None: ...

    async def none() -> None: ...

    async def three(ctx: Context, a: int, b: int) -> None: ...

    with pytest.raises(BadDefinition, match=r'write @hf.workflow\("good"\)'):
        app.workflow(good)  # type: ignore[type-var]

    def plain(ctx: Context) -> None: ...

    for name in ("", "a#b", "x" * 201, "a\x00", 7, None):
        with pytest.raises(BadDefinition, match="workflow name"):
            app.workflow(name)(good)  # type: ignore[arg-type]
    for version in (0, -1, 1.5, "1", True, None):
        with pytest.raises(BadDefinition, match="expected a whole number from 1 on"):
            app.workflow("good", version=version)(good)  # type: ignore[arg-type]
    for function, words in ((none, "takes 0 parameters"), (three, "takes 3 parameters"), (plain, "not an `async def`")):
        with pytest.raises(BadDefinition, match=words):
            app.workflow("bad")(function)
    app.workflow("good")(good)
    with pytest.raises(BadDefinition, match="registered twice"):
        app.workflow("good")(good)
    app.workflow("good", version=2)(good)


@pytest.mark.parametrize("url", ["mysql://x", "sqlite://x", "nonsense", "postgres:x"])
async def test_a_database_url_of_no_known_kind_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="expected sqlite:///path/to/file"):
        await Holdfast(url).open()


async def test_a_database_that_is_not_there_is_refused_with_what_to_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    text = tmp_path / "text.db"
    text.write_text("this is no database, however long it may be " * 100)
    for url, words in {
        "postgresql://nobody:secret@127.0.0.1:1/none": "check that the server runs",
        f"sqlite:///{tmp_path / 'file' / 'x.db'}": "correct the URL",
        f"sqlite:///{tmp_path}": "check the path",
        f"sqlite:///{text}": "is not a (SQLite )?database",
    }.items():
        with pytest.raises(StoreUnavailable, match=words) as caught:
            await Holdfast(url).open()
        assert "secret" not in str(caught.value)
    with pytest.raises(StoreUnavailable, match="run `holdfast migrate`"):
        await Holdfast(f"sqlite:///{tmp_path / 'missing.db'}").open(migrate=False)
    assert not (tmp_path / "missing.db").exists()


async def test_an_id_that_is_none_is_refused(app: Harness) -> None:
    for word in ("", "ins_", "ins_xyz", "eff_" + "0" * 32, "ins_" + "0" * 31, "ins_" + "0" * 33):
        with pytest.raises(InstanceNotFound, match="expected ins_ and 32 hexadecimal digits"):
            app.instance(word)
    for value in (None, 7):  # no text that a user typed, but a mistake in the code
        with pytest.raises(BadInput, match="expected ins_ and 32 hexadecimal digits"):
            app.instance(value)  # type: ignore[arg-type]


async def test_nothing_is_left_claimed_by_a_broken_instance(app: Harness) -> None:
    handle = await app.start("any")
    await app.run_until_idle()
    assert (await handle.status()).status == "waiting"
    assert query(app.url, "select count(*) from holdfast.instances where locked_by is not null") == [(0,)]
