"""OpenTelemetry: a span for each stretch of work, linked over waits; a child for each attempt; what is passed on."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import holdfast
from holdfast import Backoff, Context, Holdfast, NotApplied, Outside, StepInfo
from holdfast.engine.trace import TraceParent, format_traceparent, parse_traceparent, trace_id_of
from holdfast.handlers.llm import OpenAiCompatible
from holdfast.handlers.script import ScriptedLlm
from holdfast.testing import Harness
from holdfast.tracing import Tracing, tracing_by
from tests.flows.support import lose_worker
from tests.handlers.support import answering_json, serving

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'traced.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


class Spans:
    """What was exported, in the order of ending."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def traced(test: Harness, spans: Spans) -> Harness:
    assert test.test_worker is not None
    test.test_worker.tracing = tracing_by(spans.provider)
    return test


@pytest.fixture
async def harness(url: str, spans: Spans) -> AsyncIterator[Harness]:
    async with Harness(url=url) as test:
        yield traced(test, spans)


def words(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def place(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


# -- traceparent


def test_a_traceparent_is_read_and_written() -> None:
    assert parse_traceparent(PARENT) == TraceParent(TRACE, "00f067aa0ba902b7", 1)
    assert format_traceparent(TraceParent(TRACE, "00f067aa0ba902b7", 1)) == PARENT
    assert parse_traceparent("cc" + PARENT[2:] + "-what-comes-later") == TraceParent(TRACE, "00f067aa0ba902b7", 1)
    assert trace_id_of(PARENT) == TRACE
    assert trace_id_of("order-7") == "order-7"
    assert trace_id_of(None) is None


@pytest.mark.parametrize(
    "text",
    [
        None, "", "order-7", PARENT[:-1], PARENT + "-00", PARENT + "\n", "ff" + PARENT[2:], PARENT.upper(),
        f"00-{'0' * 32}-00f067aa0ba902b7-01", f"00-{TRACE}-{'0' * 16}-01",
    ],
)  # fmt: skip
def test_what_is_no_traceparent_is_not_taken_for_one(text: str | None) -> None:
    assert parse_traceparent(text) is None


# -- stretches and attempts


async def test_a_span_ends_at_a_wait_and_the_next_is_linked_to_it(harness: Harness, spans: Spans) -> None:
    async def one() -> int:
        return 1

    @harness.workflow("nap")
    async def nap(ctx: Context, _: Any) -> None:
        await ctx.step("before", one)
        await ctx.sleep("a-day", timedelta(days=1))
        await ctx.step("after", one)

    handle = await harness.start("nap", trace_id=PARENT)
    await harness.run_until_idle()
    first = spans.one("instance nap")  # it has ended, though the instance has not
    assert words(first)["holdfast.outcome"] == "waiting"
    await harness.advance(days=2)
    _, second = spans.named("instance nap")
    assert words(second) == {
        "holdfast.tenant_id": "default", "holdfast.instance_id": handle.id, "holdfast.definition": "nap",
        "holdfast.definition_version": 1, "holdfast.outcome": "completed",
    }  # fmt: skip
    assert first.links == ()
    assert [link.context for link in second.links] == [place(first)]
    for stretch in (first, second):
        assert f"{place(stretch).trace_id:032x}" == TRACE
        assert stretch.parent is not None and f"{stretch.parent.span_id:016x}" == "00f067aa0ba902b7"
    for name, stretch in (("step before", first), ("step after", second)):
        assert spans.one(name).parent == place(stretch)


async def test_after_a_crash_the_link_goes_to_what_the_instance_was_started_with(url: str, spans: Spans) -> None:
    async with Harness(url=url) as one, Harness(one, url=url, clock=one.clock) as two:

        @one.workflow("nap")
        async def nap(ctx: Context, _: Any) -> None:
            await ctx.sleep("a-day", timedelta(days=1))

        traced(one, Spans())
        await one.start("nap", trace_id=PARENT)
        await one.run_until_idle()
        await lose_worker(one)
        traced(two, spans)
        await two.advance(days=2)
    stretch = spans.one("instance nap")
    assert [f"{link.context.trace_id:032x}-{link.context.span_id:016x}" for link in stretch.links] == [PARENT[3:-3]]


async def test_every_attempt_is_a_child_of_its_stretch(harness: Harness, spans: Spans) -> None:
    tries = iter([ValueError("postgresql://ann:hunter2@db is away"), None])
    within: list[trace.SpanContext] = []

    async def shaky() -> None:
        within.append(trace.get_current_span().get_span_context())
        error = next(tries)
        if error is not None:
            raise error

    def quick() -> int:
        within.append(trace.get_current_span().get_span_context())
        return 1

    def threaded(info: StepInfo) -> int:
        within.append(trace.get_current_span().get_span_context())
        return 2

    @harness.workflow("work")
    async def work(ctx: Context, _: Any) -> None:
        await ctx.step("shaky", shaky, backoff=Backoff(jitter=0))
        await ctx.step("quick", quick, thread=False)
        await ctx.effect("threaded", threaded, mode="keyed")

    await harness.start("work")
    await harness.advance(hours=1)
    failed, again = spans.named("step shaky")
    quickly, outside = spans.one("step quick"), spans.one("effect threaded")
    assert (words(failed)["holdfast.attempt"], words(failed)["holdfast.outcome"]) == (1, "failed")
    assert words(failed)["error.type"] == "ValueError"
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert "hunter2" not in str(failed.status.description)
    assert (words(again)["holdfast.attempt"], words(again)["holdfast.outcome"]) == (2, "succeeded")
    assert words(outside)["holdfast.step"] == "threaded"
    assert words(outside)["holdfast.kind"] == "effect"
    stretches = [place(one) for one in spans.named("instance work")]
    assert [one.parent in stretches for one in (failed, again, quickly, outside)] == [True] * 4
    assert within == [place(one) for one in (failed, again, quickly, outside)]


async def test_what_an_effect_says_about_the_world_stands_in_its_span(harness: Harness, spans: Spans) -> None:
    errors = iter([NotApplied("not sent"), RuntimeError("who knows")])

    async def pay() -> None:
        raise next(errors)

    @harness.workflow("payout")
    async def payout(ctx: Context, _: Any) -> None:
        await ctx.effect("pay", pay)

    await harness.start("payout")
    await harness.advance(hours=1)
    assert [words(one)["holdfast.outcome"] for one in spans.named("effect pay")] == ["not_applied", "unknown"]


async def test_transactions_and_compensations_have_spans_of_their_own(harness: Harness, spans: Spans) -> None:
    tries = iter([ValueError("once"), None])

    def outcome() -> str:
        error = next(tries)
        if error is not None:
            raise error
        return "booked"

    def book(tx: Any) -> str:
        return outcome()

    async def book_async(tx: Any) -> str:
        return outcome()

    async def undo() -> None: ...

    async def broken() -> None:
        raise ValueError("always")

    @harness.workflow("saga")
    async def saga(ctx: Context, _: Any) -> None:
        handler = book if harness.url.startswith("sqlite") else book_async
        await ctx.transaction("book", handler, compensate=undo)
        await ctx.step("broken", broken, max_attempts=1)

    await harness.start("saga")
    await harness.advance(hours=1)
    booked = [
        (words(one)["holdfast.attempt"], words(one)["holdfast.outcome"]) for one in spans.named("transaction book")
    ]
    assert booked == [(1, "failed"), (2, "succeeded")]
    assert words(spans.one("compensation book"))["holdfast.outcome"] == "succeeded"
    assert words(spans.named("instance saga")[-1])["holdfast.outcome"] == "failed"
    assert spans.named("instance saga")[-1].status.status_code is trace.StatusCode.ERROR


async def test_a_handler_that_is_cut_off_leaves_no_span_open(harness: Harness, spans: Spans) -> None:
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    @harness.workflow("stuck")
    async def stuck(ctx: Context, _: Any) -> None:
        await asyncio.gather(ctx.step("one", endless), ctx.step("two", endless))

    await harness.start("stuck")
    worker = harness.test_worker
    assert worker is not None
    await worker.run_once()
    await begun.wait()
    worker._abandon_all()
    while worker.busy():
        await asyncio.sleep(0)
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == "holdfast-step"]
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
    assert words(spans.one("instance stuck"))["holdfast.outcome"] == "let_go"
    assert len(spans.named("step one") + spans.named("step two")) == 2
    assert isinstance(worker.tracing, Tracing) and not worker.tracing._attempts


async def test_a_child_works_in_its_parents_trace(harness: Harness, spans: Spans) -> None:
    @harness.workflow("small")
    async def small(ctx: Context, _: Any) -> None: ...

    @harness.workflow("large")
    async def large(ctx: Context, _: Any) -> None:
        await ctx.child("part", "small")

    await harness.start("large", trace_id=PARENT)
    await harness.run_until_idle()
    traces = {f"{place(one).trace_id:032x}" for one in (*spans.named("instance small"), *spans.named("instance large"))}
    assert traces == {TRACE}


async def test_a_start_inside_a_span_is_part_of_its_trace(harness: Harness, spans: Spans) -> None:
    @harness.workflow("small")
    async def small(ctx: Context, _: Any) -> None: ...

    with spans.provider.get_tracer("test").start_as_current_span("request") as request:
        handle = await harness.start("small")
        [other] = await harness.start_many("small", [None])
        given = await harness.start("small", trace_id="order-7")
    context = request.get_span_context()
    expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert [(await one.status()).trace_id for one in (handle, other, given)] == [expected, expected, "order-7"]
    await harness.run_until_idle()
    parents = [one.parent.span_id for one in spans.named("instance small") if one.parent is not None]
    assert parents == [context.span_id] * 2


# -- without a provider


async def test_without_a_provider_there_is_nothing_to_pay_for(url: str) -> None:
    assert tracing_by(None) is None  # the API is imported here, and nobody has set a provider
    hf = Holdfast(url)
    async with hf, hf.worker() as worker:
        assert worker.tracing is None


async def test_a_worker_of_the_library_takes_the_provider_it_is_given(url: str, spans: Spans) -> None:
    hf = Holdfast(url)
    hf.tracer_provider = spans.provider

    @hf.workflow("small")
    async def small(ctx: Context, _: Any) -> None: ...

    async with hf, hf.worker():
        await (await hf.start("small")).result(timeout=100)
    assert words(spans.one("instance small"))["holdfast.outcome"] == "completed"


def test_opentelemetry_is_not_imported_unless_the_application_does() -> None:
    program = (
        "import asyncio, sys, tempfile\n"
        "from holdfast import Holdfast\n"
        "hf = Holdfast('sqlite:///' + tempfile.mkdtemp() + '/a.db')\n"
        "@hf.workflow('small')\n"
        "async def small(ctx, _): return 1\n"
        "async def main():\n"
        "    async with hf, hf.worker():\n"
        "        print(await (await hf.start('small')).result(timeout=100))\n"
        "asyncio.run(main())\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    environment = {"PYTHONPATH": str(Path(holdfast.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


# -- what is passed on


def calling(**headers: str) -> dict[str, Any]:
    task = {"type": "HTTP", "name": "notify", "url": {"@expr": "context.url"}, "headers": headers}
    return {
        "id": "caller",
        "context": {"url": {"@expr": "event.input.url"}},
        "initial": "calling",
        "states": {"calling": {"invoke": {"src": {"task": task}, "onDone": "done"}}, "done": {"type": "final"}},
    }


async def called(url: str, spans: Spans | None, trace_id: str | None, **headers: str) -> tuple[str | None, Any]:
    """The traceparent that a server on loopback saw."""
    async with serving(answering_json(b"{}")) as server:
        host = f"127.0.0.1:{server.port}"
        async with Harness(url=url, outside=Outside(private_hosts=(host,))) as test:
            if spans is not None:
                traced(test, spans)
            await test.tenant("default").set_policy(http_hosts=[f"http://{host}"])
            await test.publish(calling(**headers))
            handle = await test.start("caller", {"url": f"http://{host}/"}, trace_id=trace_id)
            await test.run_until_idle()
            assert (await handle.status()).state == "done", [e.payload for e in await handle.history()]
        [seen] = server.seen
        return seen.header("traceparent"), seen


async def test_an_http_task_passes_on_what_its_instance_was_started_with(url: str) -> None:
    assert (await called(url, None, PARENT))[0] == PARENT


async def test_an_http_task_passes_on_the_place_of_its_own_span(url: str, spans: Spans) -> None:
    passed = parse_traceparent((await called(url, spans, PARENT))[0])
    span = spans.one("HTTP notify")
    assert passed == TraceParent(TRACE, f"{place(span).span_id:016x}", place(span).trace_flags)
    assert span.kind is trace.SpanKind.CLIENT
    assert words(span)["holdfast.task_type"] == "HTTP"
    assert words(span)["holdfast.task_id"].startswith("tsk_")
    assert span.parent in [place(one) for one in spans.named("instance caller")]


async def test_a_bare_id_is_no_traceparent_and_is_not_passed_on(url: str) -> None:
    assert (await called(url, None, "order-7"))[0] is None


async def test_a_header_that_the_author_set_stays(url: str, spans: Spans) -> None:
    theirs = "00-" + "a" * 32 + "-" + "b" * 16 + "-00"
    seen, exchange = await called(url, spans, PARENT, Traceparent=theirs)
    assert seen == theirs
    assert exchange.head.lower().count("traceparent:") == 1


# -- models

ASK: dict[str, Any] = {
    "id": "asker",
    "initial": "asking",
    "states": {
        "asking": {
            "invoke": {
                "src": {
                    "task": {
                        "type": "AI",
                        "name": "judge",
                        "model": "small-1",
                        "prompt": {"id": "judge", "version": 1, "user": "Is it fine?"},
                        "policy": {"allowed_events": ["approve"]},
                    }
                },
                "onDone": "done",
                "onError": "done",
            },
            "on": {"approve": "done"},
        },
        "done": {"type": "final"},
    },
}


async def test_an_ai_task_says_which_model_was_asked_and_what_it_used(url: str, spans: Spans) -> None:
    answer = {"event": "approve", "confidence": 0.9, "reason": "fine"}
    outside = Outside(llm=ScriptedLlm([json.dumps(answer)]))
    async with Harness(url=url, outside=outside) as test:
        traced(test, spans)
        await test.publish(ASK)
        await test.start("asker")
        await test.run_until_idle()
    found = words(spans.one("AI judge"))
    assert found["holdfast.outcome"] == "succeeded"
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.model"] == "small-1"
    assert found["gen_ai.provider.name"] == found["gen_ai.system"] == "ScriptedLlm"
    assert found["gen_ai.usage.input_tokens"] > 0 and found["gen_ai.usage.output_tokens"] > 0


def test_an_openai_compatible_server_is_named_as_the_conventions_do() -> None:
    from holdfast.handlers.ai import AiHandler

    handler = AiHandler(OpenAiCompatible("http://127.0.0.1:1/v1", lambda: "", "m"), None)  # type: ignore[arg-type]
    assert handler.provider == "openai"
