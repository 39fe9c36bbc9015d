"""What effects come back with is never thrown away because the database is away."""

import asyncio
from typing import Any

import apsw
import pytest
from structlog.testing import capture_logs

from holdfast import Context, Holdfast, StepInfo
from holdfast.testing import FakeProvider
from holdfast.worker import evidence
from holdfast.worker.worker import Worker
from tests.flows.support import query, until
from tests.support.patience import PATIENCE_SECONDS


class Outage:
    """A database that answers nobody while it is away."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away = False
        for name in ("commit", "look_up", "write", "claim", "fetch", "release_worker"):
            monkeypatch.setattr(store, name, self._wrapped(getattr(store, name)))

    def _wrapped(self, method: Any) -> Any:
        async def answered(*args: Any, **options: Any) -> Any:
            if self.away:
                raise ConnectionResetError("away") if "postgres" in method.__module__ else apsw.IOError("away")
            return await method(*args, **options)

        return answered


def declare(app: Holdfast, provider: FakeProvider, may_end: asyncio.Event) -> None:
    async def pay(info: StepInfo) -> Any:
        await may_end.wait()
        return provider.call(info.idempotency_key)

    @app.workflow("pay")
    async def workflow(ctx: Context, n: int) -> Any:
        return await ctx.effect("pay", pay)


async def test_receipts_that_arrive_while_the_database_is_away_are_in_the_turns_when_it_is_back(
    url: str, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.committer.GIVE_UP_SECONDS", 0.05)  # an outage beyond any caller's patience
    app, may_end = Holdfast(url), asyncio.Event()
    declare(app, provider, may_end)
    async with app, app.worker(poll_seconds=0.01):
        handles = await app.start_many("pay", range(5))
        await until(lambda: query(url, "select count(*) from holdfast.effects where state = 'started'") == [(5,)])
        outage = Outage(app.service.store, monkeypatch)
        with capture_logs() as logs:
            outage.away = True
            may_end.set()
            await until(lambda: len([log for log in logs if log["event"] == "commit_failed"]) > 5)
            await asyncio.sleep(0.2)
            outage.away = False
        assert [await handle.result(timeout=PATIENCE_SECONDS) for handle in handles] == list(provider.deeds.values())
    assert len(provider.calls) == 5


async def an_observation(app: Holdfast, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Outage:
    """An effect comes back after its worker was fenced, while the database is away."""
    [execution] = worker.executions.values()
    outage = Outage(app.service.store, monkeypatch)
    [call] = execution.open.values()
    outage.away = True
    await worker.observe(execution, call, 1, {"id": "tr_1", "password": "tr0ub4dor"}, None)
    return outage


async def test_evidence_waits_for_the_database_however_long_it_is_away(
    url: str, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "PAUSE_MAX", 0.01)
    app = Holdfast(url)
    may_end = asyncio.Event()
    declare(app, provider, may_end)
    async with app, app.worker(poll_seconds=0.01) as worker:
        await app.start("pay", 1)
        await until(lambda: query(url, "select 1 from holdfast.effects"))
        with capture_logs() as logs:
            outage = await an_observation(app, worker, monkeypatch)
            await until(lambda: len([log for log in logs if log["event"] == "evidence_waits"]) > 70)
            assert worker.load()[2] == 1
            outage.away = False
            await until(lambda: worker.load()[2] == 0)
        assert query(url, "select outcome from holdfast.effect_observations") == [("returned",)]
        may_end.set()


async def test_evidence_that_must_be_given_up_is_logged_with_what_it_said(
    url: str, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.worker.worker.RECORD_SECONDS", 0.1)
    app = Holdfast(url)
    declare(app, provider, asyncio.Event())
    async with app:
        worker = await app.worker(poll_seconds=0.01).__aenter__()
        await app.start("pay", 1)
        await until(lambda: query(url, "select 1 from holdfast.effects"))
        with capture_logs() as logs:
            outage = await an_observation(app, worker, monkeypatch)
            monkeypatch.setattr(evidence, "ROWS_MAX", 1)
            [execution] = worker.executions.values()
            await worker.observe(execution, *list(execution.open.values()), 1, {"id": "tr_2"}, None)
            app.service.workers.remove(worker)
            await worker.stop(timeout=0)
            outage.away = False
        said = [log for log in logs if log["event"] == "evidence_lost" and "id" in log["said"]]
    lost = {log["said"]["id"]: log["reason"] for log in said}
    assert lost["tr_2"] == "too much waits for the database already"
    assert lost["tr_1"] == "the worker ends, and the database has not taken it"


class Unspeakable:
    def __repr__(self) -> str:
        raise ValueError("no words")


async def test_evidence_that_the_database_refuses_holds_up_no_other(url: str, provider: FakeProvider) -> None:
    app = Holdfast(url)
    may_end = asyncio.Event()
    declare(app, provider, may_end)
    async with app, app.worker(poll_seconds=0.01) as worker:
        await app.start("pay", 1)
        await until(lambda: query(url, "select 1 from holdfast.effects"))
        [execution] = worker.executions.values()
        [call] = execution.open.values()
        with capture_logs() as logs:
            row = {"tenant_id": None, "id": b"", "effect_id": b"", "instance_id": b"", "worker_id": b"", "fence": 1}
            more = {"attempt": 1, "observed_at": 1, "outcome": "returned", "payload": b"{}"}
            worker.evidence.keep(row | more, {"step": "pay"})
            await worker.observe(execution, call, 1, Unspeakable(), None)
            await until(lambda: query(url, "select 1 from holdfast.effect_observations"))
        assert [log["step"] for log in logs if log["event"] == "evidence_lost"] == ["pay"]
        [(said,)] = query(url, "select payload from holdfast.effect_observations")
        assert b"a Unspeakable whose repr raises" in bytes(said)
        may_end.set()
