"""A mistake in a workflow's code stands still and says what is wrong; the mended code goes on from there."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import mypy.api
import pydantic
import pytest
import structlog

from holdfast import BadInput, Context, Holdfast, NotApplied, Rejected
from holdfast.testing import Harness, ManualClock
from tests.flows.support import types
from tests.support.auditor import assert_sound

Body = Callable[[Context], Any]


class Site(HTTPServer):
    calls = 0


@pytest.fixture
def site() -> Iterator[Site]:
    """A server on loopback that counts who asks it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert isinstance(self.server, Site)
            self.server.calls += 1
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"42")

        def log_message(self, *_: Any) -> None: ...

    server = Site(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def deploy(body: Body) -> Holdfast:
    hf = Holdfast()

    @hf.workflow("order")
    async def order(ctx: Context) -> Any:
        return await body(ctx)

    return hf


def rejected() -> None:
    raise Rejected("card declined")


undone: list[str] = []


async def booked_then_typo(ctx: Context) -> Any:
    await ctx.step("book", lambda: 1, compensate=lambda: undone.append("book"))
    await ctx.effect("pay", lambda: "paid", mode="kyed")  # type: ignore[arg-type]


async def booked_then_wrapped_typo(ctx: Context) -> Any:
    try:
        await booked_then_typo(ctx)
    except Exception:
        raise RuntimeError("the order cannot be paid") from None


async def booked_then_right(ctx: Context) -> Any:
    await ctx.step("book", lambda: 1, compensate=lambda: undone.append("book"))
    return await ctx.effect("pay", lambda: "paid", mode="keyed")


@pytest.mark.parametrize("mistaken", [booked_then_typo, booked_then_wrapped_typo])
async def test_a_typo_parks_the_instance_and_the_mended_code_goes_on(url: str, mistaken: Body) -> None:
    undone.clear()
    clock = ManualClock()
    async with Harness(deploy(mistaken), url=url, clock=clock) as test:
        handle = await test.start("order")
        await test.run_until_idle()
        view = await handle.status()
        assert view.status == "waiting"
        assert "mode is 'kyed': expected 'keyed', 'lookup' or 'manual'" in str(view.waiting_on)
        assert "mend the code, deploy it and resume it" in await handle.why()
        assert (await types(handle))[-1] == "INSTANCE_PARKED"
        await handle.resume("too early", actor="ann")
        await test.run_until_idle()
        assert (await handle.status()).status == "waiting"
    async with Harness(deploy(booked_then_right), url=url, clock=clock) as test:
        await test.instance(handle.id).resume("the typo is mended", actor="ann")
        await test.run_until_idle()
        assert await test.instance(handle.id).result(timeout=0) == "paid"
        assert (await test.verify()).faults == []
    assert undone == []


async def test_a_parked_mistake_can_be_cancelled_and_what_was_done_is_undone(url: str) -> None:
    undone.clear()
    async with Harness(deploy(booked_then_typo), url=url) as test:
        handle = await test.start("order")
        await test.run_until_idle()
        await handle.cancel("not worth a deploy", actor="ann")
        await test.run_until_idle()
        view = await handle.status()
        assert (view.status, view.compensation, undone) == ("cancelled", "complete", ["book"])


async def test_an_authors_own_error_fails_as_before(url: str) -> None:
    async def body(ctx: Context) -> Any:
        await ctx.step("a", lambda: 1)
        return len(3)  # type: ignore[arg-type]

    async with Harness(deploy(body), url=url) as test:
        handle = await test.start("order")
        await test.run_until_idle()
        view = await handle.status()
        assert (view.status, view.error["type"]) == ("failed", "TypeError")


async def test_what_runs_when_the_mistake_is_found_is_recorded_before_the_instance_stands_still(url: str) -> None:
    go = asyncio.Event()

    async def slow() -> str:
        await go.wait()
        return "paid"

    async def body(ctx: Context) -> Any:
        paying = ctx.effect("pay", slow)
        await ctx.step("check", lambda: 1)
        await ctx.step("ship", None)  # type: ignore[arg-type]
        return await paying

    async with Harness(deploy(body), url=url) as test:
        handle = await test.start("order")
        running = asyncio.create_task(test.run_until_idle())
        while "STEP_COMPLETED" not in await types(handle):
            await asyncio.sleep(0.01)
        assert "INSTANCE_PARKED" not in await types(handle)
        go.set()
        await running
        assert (await types(handle))[-2:] == ["EFFECT_SUCCEEDED", "INSTANCE_PARKED"]


@pytest.mark.parametrize("shape", ["effect", "child", "task"])
async def test_a_failure_that_nobody_awaited_does_not_complete_in_silence(url: str, shape: str) -> None:
    """The body goes on as if it were paid; it must not end so."""

    async def branch(ctx: Context) -> None:
        await ctx.effect("pay", rejected)

    async def forgetful(ctx: Context) -> str:
        if shape == "effect":
            ctx.effect("pay", rejected)  # type: ignore[unused-coroutine]
        elif shape == "child":
            ctx.child("pay", "nobody-has-this")  # type: ignore[unused-coroutine]
        else:
            asyncio.create_task(branch(ctx))  # noqa: RUF006
        await ctx.step("ship", lambda: "on its way")
        return "shipped"

    async def mended(ctx: Context) -> str:
        if shape == "child":
            await ctx.child("pay", "nobody-has-this")
        else:
            await ctx.effect("pay", rejected)
        await ctx.step("ship", lambda: "on its way")
        return "shipped"

    clock = ManualClock()
    async with Harness(deploy(forgetful), url=url, clock=clock) as test:
        handle = await test.start("order")
        await test.run_until_idle()
        view = await handle.status()
        assert view.status == "waiting" and "was never awaited" in str(view.waiting_on)
        assert shape == "child" or "card declined" in str(view.waiting_on)
    async with Harness(deploy(mended), url=url, clock=clock) as test:
        await test.instance(handle.id).resume("awaited now", actor="ann")
        await test.run_until_idle()
        assert (await test.instance(handle.id).status()).status == "failed"


@pytest.mark.parametrize("how", ["caught", "gathered", "cancelled", "read later"])
async def test_a_failure_that_was_looked_at_completes(url: str, how: str) -> None:
    async def body(ctx: Context) -> str:
        paying = ctx.effect("pay", rejected)
        if how == "gathered":
            await asyncio.gather(paying, return_exceptions=True)
        elif how == "cancelled":
            paying.cancel()  # type: ignore[attr-defined]
        else:
            if how == "read later":
                await ctx.sleep("a while", 1)
            try:
                await paying
            except Exception:
                pass
        return "looked at"

    async with Harness(deploy(body), url=url) as test:
        handle = await test.start("order")
        await test.advance(minutes=1)
        assert await handle.result(timeout=0) == "looked at"


async def test_a_call_may_be_made_a_task_of(url: str) -> None:
    async def body(ctx: Context) -> list[int]:
        async with asyncio.TaskGroup() as group:
            one, two = (group.create_task(ctx.step(name, lambda: 1)) for name in ("a", "b"))
        return [one.result(), two.result(), await asyncio.create_task(ctx.step("c", lambda: 2))]

    async with Harness(deploy(body), url=url) as test:
        handle = await test.start("order")
        await test.run_until_idle()
        assert await handle.result(timeout=0) == [1, 1, 2]


WORLDLY: dict[str, Callable[[int], Any]] = {
    "httpx": lambda port: httpx.get(f"http://127.0.0.1:{port}/", timeout=5, trust_env=False).text,
    "urllib": lambda port: urllib.request.urlopen(f"http://127.0.0.1:{port}/").read(),
    "socket": lambda port: socket.create_connection(("127.0.0.1", port)).close(),
    "name": lambda port: socket.getaddrinfo("localhost", port),
    "process": lambda port: subprocess.run([sys.executable, "-c", ""], check=True),
}


@pytest.mark.parametrize("how", WORLDLY)
async def test_the_world_is_refused_in_a_body_also_where_it_blocks(url: str, site: Site, how: str) -> None:
    async def body(ctx: Context) -> Any:
        await ctx.sleep("a while", 1)
        return WORLDLY[how](site.server_port)

    async with Harness(deploy(body), url=url) as test:
        handle = await test.start("order")
        await test.advance(minutes=1)
        view = await handle.status()
        assert view.status == "waiting" and "NotInWorkflow: a workflow's body cannot" in str(view.waiting_on)
        assert "ctx.step(…)" in str(view.waiting_on)
    assert site.calls == 0


FORGOTTEN: dict[str, Callable[[Context, Any], Any]] = {
    "returned": lambda ctx, answer: answer,
    "handed on": lambda ctx, answer: ctx.step("thank", str, answer),
    "looked into": lambda ctx, answer: answer["by"],
    "counted with": lambda ctx, answer: answer + 1,
    "asked": lambda ctx, answer: answer.by,
}


@pytest.mark.parametrize("how", FORGOTTEN)
async def test_an_answer_that_is_used_without_await_stands_still_and_says_so(url: str, how: str) -> None:
    async def body(ctx: Context) -> Any:
        await ctx.step("book", lambda: 1, compensate=lambda: undone.append("book"))
        return FORGOTTEN[how](ctx, ctx.wait_for_signal("approved", timeout=1))

    undone.clear()
    async with Harness(deploy(body), url=url) as test:
        handle = await test.start("order")
        await test.advance(minutes=1)
        view = await handle.status()
        assert view.status == "waiting" and str(view.waiting_on).startswith("parked: "), view
        assert "put `await` before" in str(view.waiting_on) and undone == []


async def test_a_body_that_catches_the_refusal_is_told_on(url: str, site: Site) -> None:
    async def body(ctx: Context) -> Any:
        try:
            return WORLDLY["httpx"](site.server_port)
        except Exception:
            return "by default"

    with structlog.testing.capture_logs() as lines:
        async with Harness(deploy(body), url=url) as test:
            assert await test.finish(await test.start("order")) == "by default"
    told = [line["log_level"] for line in lines if line["event"] == "refused_in_body"]
    assert set(told) == {"warning"} and site.calls == 0


@pytest.mark.parametrize("how", WORLDLY)
@pytest.mark.parametrize("where", ["thread", "in place", "async", "effect", "compensation"])
async def test_the_world_is_open_to_whatever_a_body_asks_for(url: str, site: Site, how: str, where: str) -> None:
    def act() -> str:
        WORLDLY[how](site.server_port)
        return "done"

    async def act_async() -> str:
        return act()

    async def body(ctx: Context) -> Any:
        if where == "effect":
            return await ctx.effect("act", act)
        if where == "compensation":
            await ctx.step("a", lambda: 1, compensate=act)
            await ctx.step("b", rejected, max_attempts=1)
        return await ctx.step("act", act_async if where == "async" else act, thread=where != "in place")

    async with Harness(deploy(body), url=url) as test:
        handle = await test.start("order")
        await test.run_until_idle()
        view = await handle.status()
        if where == "compensation":
            assert (view.status, view.compensation) == ("failed", "complete")
        else:
            assert view.result == "done"


def no_answer() -> str:
    raise ConnectionResetError("no answer")


async def pays(ctx: Context) -> Any:
    await ctx.step("book", lambda: 1)
    return await ctx.effect("pay", no_answer)


@pytest.mark.parametrize("end", ["returns", "restarts", "raises", "sleeps, then returns"])
async def test_a_body_does_not_end_without_an_effect_of_unknown_outcome(url: str, end: str) -> None:
    """Its call was taken out of the code while nobody knew whether it was paid."""

    async def without(ctx: Context) -> Any:
        if end.startswith("sleeps"):
            await ctx.sleep("a while", 1)
        if end == "restarts" and not ctx.epoch:
            ctx.restart()
        if end == "raises":
            raise ValueError("no money")
        return "nothing to pay"

    clock = ManualClock()
    async with Harness(deploy(pays), url=url, clock=clock) as test:
        handle = await test.start("order")
        await test.run_until_idle()
        [effect] = await test.effects.list(state="outcome_unknown")
    async with Harness(deploy(without), url=url, clock=clock) as test:
        again = test.instance(handle.id)
        await again.resume("deployed", actor="ann")
        await test.advance(minutes=1)
        view = await again.status()
        assert (view.status, view.epoch) == ("waiting", 0)
        assert "nobody knows the outcome of effect 'pay' yet" in str(view.waiting_on)
        await again.cancel("enough", actor="ann")
        await test.run_until_idle()
        assert (await again.status()).status == "waiting"
    async with Harness(deploy(pays), url=url, clock=clock) as test:
        await test.effects.resolve(effect.id, "happened", result="paid", actor="ann", reason="the bank has it")
        await test.run_until_idle()
        assert (await test.instance(handle.id).status()).status == "cancelled"
        assert [one.id for one in await test.effects.list(state="resolved")] == [effect.id]
    assert_sound(url)


async def test_a_step_may_be_added_before_an_effect_of_unknown_outcome(url: str) -> None:
    async def more(ctx: Context) -> Any:
        await ctx.step("check", lambda: 1)
        await ctx.sleep("a while", 1)
        return await pays(ctx)

    clock = ManualClock()
    async with Harness(deploy(pays), url=url, clock=clock) as test:
        handle = await test.start("order")
        await test.run_until_idle()
        [effect] = await test.effects.list(state="outcome_unknown")
    async with Harness(deploy(more), url=url, clock=clock) as test:
        await test.instance(handle.id).resume("deployed", actor="ann")
        await test.advance(minutes=1)
        assert "a person: the outcome of effect 'pay'" in str((await test.instance(handle.id).status()).waiting_on)
        await test.effects.resolve(effect.id, "happened", result="paid", actor="ann", reason="the bank has it")
        await test.run_until_idle()
        assert await test.instance(handle.id).result(timeout=0) == "paid"


async def test_an_effect_that_is_known_not_to_have_happened_may_be_taken_out(url: str) -> None:
    def busy() -> None:
        raise NotApplied("busy")

    async def later(ctx: Context) -> Any:
        await ctx.effect("pay", busy, backoff=timedelta(hours=1))

    async def without(ctx: Context) -> str:
        return "nothing to pay"

    clock = ManualClock()
    async with Harness(deploy(later), url=url, clock=clock) as test:
        handle = await test.start("order")
        await test.run_until_idle()
    async with Harness(deploy(without), url=url, clock=clock) as test:
        await test.advance(hours=2)
        assert await test.instance(handle.id).result(timeout=0) == "nothing to pay"


async def test_an_input_that_fitted_once_and_does_not_any_more_stands_still(url: str) -> None:
    async def wait(ctx: Context, given: Any) -> Any:
        await ctx.sleep("a while", 60)
        return given

    def version(kind: Any) -> Holdfast:
        hf = Holdfast()

        async def order(ctx: Context, given: Any) -> Any:
            return await wait(ctx, given)

        order.__annotations__["given"] = kind
        hf.workflow("order")(order)
        return hf

    clock = ManualClock()
    async with Harness(version(str), url=url, clock=clock) as test:
        handle = await test.start("order", "seven")
        await test.run_until_idle()
    async with Harness(version(int), url=url, clock=clock) as test:
        await test.advance(minutes=2)
        view = await test.instance(handle.id).status()
        assert view.status == "waiting" and "the input does not fit" in str(view.waiting_on)
    async with Harness(version(str), url=url, clock=clock) as test:
        await test.instance(handle.id).resume("the old type is back", actor="ann")
        await test.run_until_idle()
        assert await test.instance(handle.id).result(timeout=0) == "seven"


class Money(pydantic.BaseModel):
    currency: str


class LaterMoney(Money):
    @pydantic.model_validator(mode="before")
    @classmethod
    def upgraded(cls, data: Any) -> Any:
        return {"currency": data["cur"]}


class StricterMoney(msgspec.Struct):
    currency: str

    def __post_init__(self) -> None:
        assert self.currency == "chf"


@pytest.mark.parametrize("kind", [LaterMoney, StricterMoney])
@pytest.mark.parametrize("what", ["input", "result"])
async def test_a_type_that_breaks_over_what_was_recorded_stands_still(url: str, what: str, kind: Any) -> None:
    """Its own code raises, and nothing that pydantic or msgspec would take for a refusal."""

    def version(given_type: Any, loaded_type: Any) -> Holdfast:
        hf = Holdfast()

        def load() -> Any:
            return {"currency": "eur"}

        async def order(ctx: Context, given: Any) -> str:
            await ctx.step("load", load, compensate=lambda: undone.append("load"))
            await ctx.sleep("a while", 60)
            return "done"

        load.__annotations__["return"], order.__annotations__["given"] = loaded_type, given_type
        hf.workflow("order")(order)
        return hf

    undone.clear()
    clock = ManualClock()
    async with Harness(version(Money, Money), url=url, clock=clock) as test:
        handle = await test.start("order", {"currency": "eur"})
        await test.run_until_idle()
    newer = version(kind, Money) if what == "input" else version(Money, kind)
    async with Harness(newer, url=url, clock=clock) as test:
        await test.advance(minutes=2)
        view = await test.instance(handle.id).status()
        assert view.status == "waiting" and str(view.waiting_on).startswith("parked: "), view
        assert ("KeyError('cur')" if kind is LaterMoney else "AssertionError") in str(view.waiting_on)
        if what == "input":
            with pytest.raises(BadInput, match="does not fit"):
                await test.start("order", {"currency": "eur"})
    async with Harness(version(Money, Money), url=url, clock=clock) as test:
        await test.instance(handle.id).resume("the old type is back", actor="ann")
        await test.run_until_idle()
        assert (await test.instance(handle.id).result(timeout=0), undone) == ("done", [])


class Nobody(Exception):
    """Says what no column for text takes."""

    def __repr__(self) -> str:
        return str(self)


class Unprintable(msgspec.Struct):
    currency: str

    def __post_init__(self) -> None:
        if self.currency in no_longer_known:
            raise Nobody("no\x00body \ud800")


no_longer_known: set[str] = set()


@pytest.mark.parametrize("what", ["parked", "unknown"])
async def test_a_message_that_no_database_can_hold_does_not_bury_its_instance(url: str, what: str) -> None:
    hf = Holdfast()

    def load() -> Unprintable:
        found = Unprintable("eur")
        if what == "unknown":
            no_longer_known.add("eur")
        return found

    load.__annotations__["return"] = Unprintable

    @hf.workflow("order")
    async def order(ctx: Context, given: Any) -> str:
        if what == "unknown":
            await ctx.effect("pay", load)
        else:
            await ctx.step("load", load)
        await ctx.sleep("a while", 60)
        return "done"

    no_longer_known.clear()
    async with Harness(hf, url=url) as test:
        handle = await test.start("order", None)
        await test.run_until_idle()
        no_longer_known.add("eur")  # a deploy, as far as what was recorded is concerned
        await test.advance(minutes=2)
        view = await handle.status()
        assert view.status == "waiting", view
        assert str(view.waiting_on).startswith("parked: " if what == "parked" else "a person: ")
        assert "no\ufffdbody" in str(view.waiting_on)


def test_outside_a_body_the_process_is_as_it_was(site: Site) -> None:
    assert httpx.get(f"http://127.0.0.1:{site.server_port}/", trust_env=False).text == "42"
    assert site.calls == 1


def test_a_type_checker_reports_a_forgotten_await_and_knows_the_result(tmp_path: Path) -> None:
    sample = tmp_path / "sample.py"
    sample.write_text(
        "from holdfast import Context\n"
        "def pay(amount: int) -> str:\n"
        "    return str(amount)\n"
        "async def body(ctx: Context) -> None:\n"
        "    ctx.effect('pay', pay, 1)\n"
        "    ctx.step('a', pay, 1)\n"
        "    ctx.child('b', 'other')\n"
        "    reveal_type(await ctx.effect('c', pay, 1))\n"
    )
    found, _, code = mypy.api.run(["--no-error-summary", str(sample)])
    assert code == 1 and all(f"sample.py:{line}: error: Value of type" in found for line in (5, 6, 7)), found
    assert found.count("unused-coroutine") == found.count("error") == 3
    assert 'sample.py:8: note: Revealed type is "str"' in found.replace("builtins.", "")
