"""What Prometheus is told: counts of what was committed, gauges of how the database stands, and labels without ids."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast import Backoff, Context, Holdfast, Workflow, metrics
from holdfast.engine.turns import Outcome, Turn
from holdfast.metrics import Metrics, step_name
from holdfast.store.committer import Committer
from holdfast.store.sqlite import connect
from holdfast.store.statements import statement
from holdfast.testing import FakeProvider, Harness
from tests.charts.support import EXPENSE
from tests.charts.support import app as expenses
from tests.flows.support import query

Series = dict[tuple[str, ...], float]
NAMES = {
    "holdfast_evidence_waiting": (),
    "holdfast_threads_busy": (),
    "holdfast_threads_waiting": (),
    "holdfast_instances_started_total": ("definition",),
    "holdfast_instances_restarted_total": ("definition",),
    "holdfast_instances_completed_total": ("definition", "status"),
    "holdfast_steps_total": ("definition", "outcome", "step"),
    "holdfast_tasks_total": ("outcome", "type"),
    "holdfast_queue_depth": ("queue",),
    "holdfast_queue_oldest_age_seconds": ("queue",),
    "holdfast_timer_lag_seconds": (),
    "holdfast_dead_letters_open": (),
    "holdfast_effects_unknown": (),
    "holdfast_instances_parked": (),
    "holdfast_queue_wait_seconds": ("queue",),
    "holdfast_commit_batch_size": (),
    "holdfast_commit_seconds": (),
    "holdfast_http_request_duration_seconds": ("method", "route", "status"),
}

ASK: dict[str, Any] = {
    "id": "ask",
    "initial": "a",
    "states": {
        "a": {"invoke": {"src": {"task": {"type": "TIMER", "name": "wait", "delay": "PT1S"}}, "onDone": "b"}},
        "b": {"type": "final"},
    },
}


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'metrics.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


def watch(test: Harness) -> Harness:
    """A harness's worker is made by the harness: have it counted like one of `hf.worker()`."""
    assert test.test_worker is not None
    test.test_worker.watch = test.test_worker.committer.watch = test.metrics
    return test


@pytest.fixture
async def harness(url: str) -> AsyncIterator[Harness]:
    async with Harness(url=url) as test:
        yield watch(test)


async def scraped(hf: Holdfast) -> dict[str, Series]:
    """Every sample by name, with its label values in the order of their names; read anew, not from the one before."""
    hf.metrics._read_at = None
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families((await hf.metrics.render(hf.service)).decode()):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


# -- counters


async def test_steps_and_instances_are_counted_by_what_came_of_them(harness: Harness) -> None:
    tries = iter([ValueError("once"), None])

    async def shaky() -> None:
        error = next(tries)
        if error is not None:
            raise error

    async def broken() -> None:
        raise ValueError("always")

    async def fine(*_: Any) -> int:
        return 1

    async def undo() -> None: ...

    @harness.workflow("good")
    async def good(ctx: Context, _: Any) -> None:
        await ctx.step("shaky", shaky)
        for order in ("o-1", "o-2", "o-3"):
            await ctx.step("send", fine, key=order)
        for _number in range(4):
            await ctx.step("loop", fine)

    @harness.workflow("bad")
    async def bad(ctx: Context, _: Any) -> None:
        await ctx.step("book", fine, compensate=undo)
        await ctx.step("broken", broken, max_attempts=2)

    await harness.start("good")
    await harness.start("bad")
    await harness.start("bad")
    await harness.advance(hours=1)
    found = await scraped(harness)
    assert found["holdfast_instances_started_total"] == {("bad",): 2, ("good",): 1}
    assert found["holdfast_instances_completed_total"] == {("bad", "failed"): 2, ("good", "completed"): 1}
    assert found["holdfast_steps_total"] == {
        ("good", "retried", "shaky"): 1,
        ("good", "succeeded", "shaky"): 1,
        ("good", "succeeded", "send"): 3,
        ("good", "succeeded", "loop"): 4,
        ("bad", "succeeded", "book"): 2,
        ("bad", "retried", "broken"): 2,
        ("bad", "failed", "broken"): 2,
        ("bad", "compensated", "book"): 2,
    }
    assert found["holdfast_commit_batch_size_count"][()] == found["holdfast_commit_seconds_count"][()] > 0
    assert found["holdfast_commit_batch_size_sum"][()] >= found["holdfast_commit_batch_size_count"][()]


async def test_effects_are_counted_and_those_nobody_knows_of_stand_in_a_gauge(
    harness: Harness, provider: FakeProvider
) -> None:
    def pay(info: holdfast.StepInfo) -> Any:
        return provider.call(info.idempotency_key, 1)

    harness.register(Workflow("payout").effect("pay", pay, backoff=Backoff(jitter=0)))
    provider.plan("not_applied", "ok", "timeout_after")
    await harness.start("payout")
    await harness.advance(minutes=5)
    await harness.start("payout")
    await harness.advance(minutes=5)
    found = await scraped(harness)
    assert found["holdfast_steps_total"] == {
        ("payout", "retried", "pay"): 1,
        ("payout", "succeeded", "pay"): 1,
        ("payout", "unknown", "pay"): 1,
    }
    assert found["holdfast_effects_unknown"] == {(): 1}
    assert found["holdfast_instances_completed_total"] == {("payout", "completed"): 1}


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider()


async def test_a_transaction_step_is_counted_once_it_is_committed(harness: Harness) -> None:
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

    @harness.workflow("booking")
    async def booking(ctx: Context, _: Any) -> Any:
        return await ctx.transaction("book", book if harness.url.startswith("sqlite") else book_async)

    handle = await harness.start("booking")
    assert await harness.finish(handle) == "booked"
    found = await scraped(harness)
    assert found["holdfast_steps_total"] == {
        ("booking", "retried", "book"): 1,
        ("booking", "succeeded", "book"): 1,
    }


async def test_tasks_of_charts_are_counted_by_type(url: str) -> None:
    provider = FakeProvider()
    provider.plan("not_applied", "ok")
    async with Harness(expenses(provider), url=url) as test:
        watch(test)
        await test.publish(EXPENSE)
        approved = await test.start("expense", {"amount": 5})
        withdrawn = await test.start("expense", {"amount": 6})
        await test.run_until_idle()
        [task] = await test.tasks.list(instance=approved.id)
        await test.tasks.complete(task.id, {"ok": True}, actor="ann")
        await withdrawn.send("withdraw")
        await test.advance(hours=1)
        assert (await approved.status()).state == "paid"
        found = await scraped(test)
    assert found["holdfast_instances_completed_total"] == {("expense", "completed"): 2}
    assert found["holdfast_tasks_total"] == {
        ("succeeded", "HUMAN"): 1,
        ("skipped", "HUMAN"): 1,
        ("succeeded", "SYSTEM"): 2,
        ("retried", "SYSTEM"): 1,
    }
    assert "holdfast_steps_total" not in found


async def test_what_a_worker_of_the_library_does_is_counted(url: str) -> None:
    hf = Holdfast(url)

    async def one() -> int:
        return 1

    @hf.workflow("short")
    async def short(ctx: Context, _: Any) -> int:
        return await ctx.step("one", one)

    async with hf, hf.worker():
        handles = await hf.start_many("short", range(20))
        for handle in handles:
            await handle.result(timeout=100)
        found = await scraped(hf)
    assert found["holdfast_steps_total"] == {("short", "succeeded", "one"): 20}
    assert found["holdfast_instances_completed_total"] == {("short", "completed"): 20}


async def test_what_was_not_committed_is_not_counted() -> None:
    class Refusing:
        writers, batch_limit = 1, 10

        async def commit(self, _worker: Any, turns: list[Turn]) -> list[Outcome]:
            return [Outcome.COMMITTED, Outcome.MOVED, Outcome.FENCED][: len(turns)]

    class Watching:
        seen: list[bytes]

        def committed(self, batch: Any, seconds: float | None) -> None:
            self.seen = [turn.instance_id for turn, _ in batch]
            raise RuntimeError("whoever counts must not cost anybody a turn")

    watching = Watching()
    committer = Committer(Refusing(), b"w", watching)  # type: ignore[arg-type]
    told: list[Any] = []
    for id_ in (b"a", b"b", b"c"):
        committer.submit(Turn("t", id_), told.append)
    committer.start()
    await committer.close()
    assert watching.seen == [b"a"]
    assert told == [Outcome.COMMITTED, Outcome.MOVED, Outcome.FENCED]


# -- labels


@pytest.mark.parametrize(
    ("key", "name"), [("pay", "pay"), ("pay#17", "pay"), ("pay.o-1", "pay"), ("pay.o-1#2", "pay"), (".x", "other")]
)
def test_a_step_is_named_without_its_key_and_occurrence(key: str, name: str) -> None:
    assert step_name(key) == name


async def test_no_metric_grows_beyond_its_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "SERIES_LIMIT", 3)
    counted = Metrics()
    for number in range(10):
        counted.request(f"/things/{number}", "GET", 200, 0.1)
        counted.request(f"/things/{number}", "BREW", 200, 0.1)
        counted._steps.add((f"d{number}", "s", "succeeded"))
        counted._steps.add((f"d{number}", "s", "failed"))
    assert len(counted._requests.series) == 4
    assert sum(counts[-1] for counts, _ in counted._requests.series.values()) == 0
    assert (
        counted._steps.series[("other", "other", "succeeded")] + counted._steps.series[("other", "other", "failed")]
        == 20 - 3
    )
    assert len(counted._steps.series) == 5


async def test_the_names_are_those_that_are_promised(harness: Harness) -> None:
    async def one() -> int:
        return 1

    @harness.workflow("short")
    async def short(ctx: Context, _: Any) -> int:
        return await ctx.step("one", one)

    @harness.workflow("again")
    async def again(ctx: Context, over: bool) -> None:
        if not over:
            ctx.restart(True)

    await harness.publish(ASK)
    await harness.start("short")
    await harness.start("again", False)
    await harness.start("ask")
    await harness.advance(minutes=1)
    await harness.start("short")
    harness.metrics.request("/instances/{id}", "GET", 200, 0.02)
    text = (await harness.metrics.render(harness.service)).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    shown = {}
    for name, family in families.items():
        labels = {label for sample in family.samples for label in sample.labels if label != "le"}
        shown[f"{name}_total" if family.type == "counter" else name] = tuple(sorted(labels))
    assert shown == NAMES
    assert "_created" not in text and "ins_" not in text
    assert harness.metrics.content_type.startswith("text/plain")


async def test_two_holdfasts_in_a_process_do_not_add_up(tmp_path: Path) -> None:
    async with (
        Harness(url=f"sqlite:///{tmp_path / 'a.db'}") as one,
        Harness(url=f"sqlite:///{tmp_path / 'b.db'}") as two,
    ):
        for test in (watch(one), watch(two)):

            @test.workflow("empty")
            async def empty(ctx: Context, _: Any) -> None: ...

        await one.start("empty")
        await one.run_until_idle()
        assert (await scraped(one))["holdfast_instances_started_total"] == {("empty",): 1}
        assert "holdfast_instances_started_total" not in await scraped(two)


# -- gauges


async def test_a_queue_is_as_deep_as_what_is_due_and_as_old_as_the_oldest_of_it(harness: Harness) -> None:
    @harness.workflow("nap", queue="slow")
    async def nap(ctx: Context, _: Any) -> None:
        await ctx.sleep("a-while", 3600.0)

    @harness.workflow("other")
    async def other(ctx: Context, _: Any) -> None: ...

    assert "holdfast_queue_depth" not in await scraped(harness)
    assert harness.test_worker is not None
    harness.test_worker.queue = "slow"
    await harness.start("nap", tenant="acme")
    await harness.run_until_idle()
    sleeping = await scraped(harness)
    assert sleeping["holdfast_queue_depth"] == {("slow",): 0}
    assert sleeping["holdfast_timer_lag_seconds"] == {(): 0}
    for tenant in ("acme", "umbrella"):
        await harness.start("nap", tenant=tenant)
    await harness.start("other")
    harness.clock.micros += 30_000_000
    await harness.start("other")
    harness.clock.micros += 60_000_000
    found = await scraped(harness)
    assert found["holdfast_queue_depth"] == {("default",): 2, ("slow",): 2}
    assert found["holdfast_queue_oldest_age_seconds"] == {("default",): 90, ("slow",): 90}
    assert found["holdfast_timer_lag_seconds"] == {(): 0}
    harness.clock.micros += 3600_000_000
    late = await scraped(harness)
    assert late["holdfast_queue_depth"] == {("default",): 2, ("slow",): 3}
    assert late["holdfast_timer_lag_seconds"] == {(): 90}


async def test_counting_a_long_queue_stops_at_its_share(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    @harness.workflow("empty")
    async def empty(ctx: Context, _: Any) -> None: ...

    await harness.start_many("empty", range(15))
    monkeypatch.setattr(metrics, "COUNT_LIMIT", 1)
    assert (await scraped(harness))["holdfast_queue_depth"] == {("default",): 10}


async def test_open_dead_letters_are_counted(harness: Harness) -> None:
    payload = "x'00'" if harness.url.startswith("sqlite") else "'\\x00'"
    for number, resolution in enumerate(("null", "null", "'ignored'"), 1):
        raw = payload.replace("00", f"0{number}")
        query(
            harness.url,
            "insert into holdfast.dead_letters (tenant_id, id, source, reason, payload, created_at, resolution) "
            f"values ('acme', {raw}, 'instance', 'poison', {payload}, 1, {resolution})",
        )
    assert (await scraped(harness))["holdfast_dead_letters_open"] == {(): 2}


async def test_a_second_scrape_soon_after_does_not_ask_the_database(harness: Harness) -> None:
    asked: list[str] = []
    store = harness.service.store
    fetch = store.fetch

    async def counting(name: str, **values: Any) -> Any:
        asked.append(name)
        return await fetch(name, **values)

    store.fetch = counting  # type: ignore[method-assign]
    await asyncio.gather(*(harness.metrics.render(harness.service) for _ in range(5)))
    ours = [name for name in asked if name.startswith(("queue_", "count_"))]
    assert ours == ["queue_heads", "count_open_dead_letters", "count_unknown_effects", "count_parked"]


async def test_without_the_database_the_counters_are_shown_and_no_stale_gauge(harness: Harness) -> None:
    before = await scraped(harness)
    assert before["holdfast_effects_unknown"] == {(): 0}

    async def away(name: str, **values: Any) -> Any:
        raise ConnectionError("the database is away")

    harness.service.store.fetch = away  # type: ignore[method-assign]
    harness.metrics.request("/livez", "GET", 200, 0.001)
    found = await scraped(harness)
    assert found["holdfast_http_request_duration_seconds_count"] == {("GET", "/livez", "200"): 1}
    assert not {"holdfast_effects_unknown", "holdfast_timer_lag_seconds", "holdfast_dead_letters_open"} & found.keys()


async def test_what_a_fork_takes_over_is_not_counted_as_work(harness: Harness) -> None:
    broken = [True]

    async def fine() -> None: ...

    async def shaky() -> None:
        if broken[0]:
            raise ValueError("not yet")

    @harness.workflow("forked")
    async def forked(ctx: Context, _: None) -> None:
        await ctx.step("one", fine)
        await ctx.effect("two", fine, mode="keyed")
        await ctx.step("shaky", shaky, max_attempts=1)

    handle = await harness.start("forked", None)
    await harness.run_until_idle()
    broken[0] = False
    for _ in range(2):
        await handle.fork(actor="ann")
        await harness.run_until_idle()
    found = (await scraped(harness))["holdfast_steps_total"]
    assert found == {
        ("forked", "succeeded", "one"): 1, ("forked", "succeeded", "two"): 1,
        ("forked", "failed", "shaky"): 1, ("forked", "succeeded", "shaky"): 2,
    }  # fmt: skip


async def test_the_time_from_due_to_claim_is_spread_over_buckets(harness: Harness) -> None:
    @harness.workflow("late")
    async def late(ctx: Context, _: None) -> None:
        await ctx.sleep("nap", 10)

    for _ in range(3):
        await harness.start("late", None)
    harness.clock.move(timedelta(seconds=2))
    await harness.run_until_idle()
    harness.clock.move(timedelta(seconds=70))  # the naps were over a minute ago
    await harness.run_until_idle()
    found = await scraped(harness)
    assert found["holdfast_queue_wait_seconds_count"] == {("default",): 6}
    assert found["holdfast_queue_wait_seconds_sum"] == {("default",): pytest.approx(3 * 2 + 3 * 60)}
    buckets = found["holdfast_queue_wait_seconds_bucket"]
    counts = {dict(zip(("le", "queue"), labels, strict=True))["le"]: count for labels, count in buckets.items()}
    assert (counts["1.0"], counts["2.5"], counts["30.0"], counts["60.0"], counts["+Inf"]) == (0, 3, 3, 6, 6)


async def test_a_start_that_comes_with_its_claim_has_waited_for_nothing(url: str) -> None:
    async with Holdfast(url) as app, app.worker(poll_seconds=0.05):

        @app.workflow("quick")
        async def quick(ctx: Context, _: None) -> None: ...

        for _ in range(5):
            await (await app.start("quick", None)).result(timeout=60)
        for _ in range(200):
            found = await scraped(app)
            if found.get("holdfast_queue_wait_seconds_count") == {("default",): 5}:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(found.get("holdfast_queue_wait_seconds_count"))


async def test_parked_instances_are_counted_until_they_go_on(harness: Harness) -> None:
    given = [1]

    async def keep(number: int) -> int:
        return number

    @harness.workflow("changed")
    async def changed(ctx: Context, _: None) -> None:
        await ctx.step("keep", keep, given[0])
        await ctx.wait_for_signal("go")

    @harness.workflow("mistaken")
    async def mistaken(ctx: Context, _: None) -> None:
        await ctx.effect("pay", keep, 1, mode="keyd")  # type: ignore[arg-type]

    await harness.publish({
        "id": "fault", "initial": "a", "context": {"n": 0},
        "states": {"a": {"on": {"go": {"actions": [{"type": "assign", "assign": {"n": {"@expr": "event.x.y"}}}]}}}},
    })  # fmt: skip
    handle = await harness.start("changed", None)
    await harness.start("mistaken", None)
    chart = await harness.start("fault", {})
    await harness.run_until_idle()
    assert (await scraped(harness))["holdfast_instances_parked"] == {(): 1}
    given[0] = 2
    await handle.signal("go")
    await chart.signal("go", {})
    await harness.run_until_idle()
    assert (await scraped(harness))["holdfast_instances_parked"] == {(): 3}
    given[0] = 1
    await handle.resume(actor="ann")
    await harness.run_until_idle()
    await handle.result(timeout=0)
    assert (await scraped(harness))["holdfast_instances_parked"] == {(): 2}


PLANS = {
    "queue_heads": "instances_due",
    "queue_depths": "instances_due",
    "count_open_dead_letters": "dead_letters_open",
    "count_unknown_effects": "effects_unknown",
    "count_parked": "instances_parked",
}


@pytest.mark.parametrize("name", PLANS)
async def test_a_scrape_is_answered_by_indexes(harness: Harness, name: str) -> None:
    store: Any = harness.service.store
    if store.dialect == "postgres":
        found = statement(name, "postgres")
        connection = await store.connect()
        await connection.execute("set plan_cache_mode = force_generic_plan")
        await connection.execute(f"prepare q as {found.sql}")
        nulls = ",".join(["null"] * len(found.parameters))
        plan = "\n".join(row[0] for row in await connection.fetch(f"explain execute q({nulls})"))
        await connection.close()
        assert "Seq Scan" not in plan, plan
    else:
        found = statement(name, "sqlite")
        connection = connect(store.path)
        rows = connection.execute("explain query plan " + found.sql, (None,) * len(found.parameters)).fetchall()
        connection.close()
        plan = "\n".join(str(row[3]) for row in rows)
        assert not re.search(r"SCAN holdfast_\w+$", plan, re.M), plan
        if name.startswith("queue_"):  # by all its columns: by the queue alone it would walk past everybody who sleeps
            assert (
                "(queue,tenant_id,definition_key,definition_version,run_at)>(?,?,?,?,?)" in plan
                and "(queue>?)" not in plan
            )
    assert PLANS[name] in plan, plan


# -- from a worker's own process

APP = """
from holdfast import Holdfast
hf = Holdfast()

async def one():
    return 1

@hf.workflow("short")
async def short(ctx, _):
    return await ctx.step("one", one)
"""


@pytest.fixture
def serving(url: str, tmp_path: Path) -> Iterator[int]:
    """The port of a `holdfast worker` that has taken one instance."""
    (tmp_path / "watched_app.py").write_text(APP)
    source = str(Path(holdfast.__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": source, "HOLDFAST_DATABASE_URL": url, "HOLDFAST_APP": "watched_app:hf",
    }  # fmt: skip
    command = [sys.executable, "-m", "holdfast.cli.main"]

    def call(*words: str) -> None:
        subprocess.run([*command, *words], cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=200)

    call("migrate")
    process = subprocess.Popen(
        [*command, "worker", "--metrics-port", "0", "--log-format", "json"], cwd=tmp_path, env=environment,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        port = None
        for line in process.stderr:
            said = json.loads(line)
            port = said.get("port", port)
            if said["event"] == "worker_started":
                break
        assert port is not None
        call("start", "short", "--wait", "30")
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=200) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def get(port: int, path: str) -> tuple[int, str, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_a_worker_serves_its_metrics_and_says_whether_it_is_ready(serving: int) -> None:
    assert get(serving, "/livez")[0] == 200
    assert get(serving, "/readyz") == (200, "text/plain; charset=utf-8", "ok\n")
    status, kind, text = get(serving, "/metrics")
    assert (status, kind) == (200, Metrics().content_type)
    [steps] = [family for family in text_string_to_metric_families(text) if family.name == "holdfast_steps"]
    assert [(one.labels["step"], one.value) for one in steps.samples] == [("one", 1)]
    assert get(serving, "/else")[0] == 404


async def test_a_process_is_ready_only_with_a_worker_that_is_not_fenced(url: str) -> None:
    from holdfast.cli.health import watched, why_not_ready

    hf = Holdfast(url)
    async with hf, watched(hf, "127.0.0.1", 0) as port:
        assert (await asyncio.to_thread(get, port, "/readyz"))[::2] == (503, "no worker is running\n")
        assert (await asyncio.to_thread(get, port, "/livez"))[0] == 200
        async with hf.worker() as worker:
            assert (await asyncio.to_thread(get, port, "/readyz"))[0] == 200
            real, worker.id = worker.id, b"another-one-0123"
            assert await why_not_ready(hf) == "a worker was fenced and is not registered anew yet"
            worker.id = real
