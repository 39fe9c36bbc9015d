"""Large values: read one by one, left out of lists, and never more of them in one answer than fit."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import ForkRefused, Holdfast
from holdfast.app import control
from holdfast.engine import ids
from tests.api.served import Served
from tests.api.support import Api

LARGE = "x" * 600_000


def test_lists_leave_large_values_out_and_say_so(served: Served) -> None:
    api = served.api("admin", f"large-{uuid4().hex[:6]}")
    small, large = api.start("quick", {"n": 1}), api.start("quick", {"text": LARGE})
    assert api.ended(large)["result"] == {"text": LARGE}
    api.ended(small)
    listed = {one["id"]: one for one in api.ok("GET /workflow/instances")["items"]}
    assert (listed[small]["input"], listed[small]["result"], listed[small]["left_out"]) == ({"n": 1}, {"n": 1}, [])
    assert (listed[large]["input"], listed[large]["result"]) == (None, None)
    assert listed[large]["left_out"] == ["input", "result"]


def test_a_page_of_history_ends_where_it_grows_too_large_and_the_next_goes_on(served: Served) -> None:
    api = served.api("admin", f"large-{uuid4().hex[:6]}")
    word = api.start("many", {"text": LARGE, "steps": 12})
    seen = api.ended(word)
    assert seen["history_before"] is not None and len(seen["history"]) < 12, "not the whole of it at once"
    found, path = [], f"GET /workflow/instances/{word}/history?limit=200&"
    way: str | None = "after=0"
    pages = 0
    while way is not None:
        page = api.ok(path + way)
        found += [entry["seq"] for entry in page["items"]]
        way, pages = page["next_cursor"] and f"cursor={page['next_cursor']}", pages + 1
    assert found == list(range(1, len(found) + 1)) and pages > 1
    back: list[int] = []
    way = f"before={len(found) + 1}"
    while way is not None:
        page = api.ok(path + way)
        back = [entry["seq"] for entry in page["items"]] + back
        way = page["next_cursor"] and f"cursor={page['next_cursor']}"
    assert back == found


def sql(served: Served, text: str, *values: Any) -> None:
    """A statement past the server, with tables as `holdfast.effects`."""
    database = served.house.database
    if served.dialect == "sqlite":
        with sqlite3.connect(database.removeprefix("sqlite:///"), timeout=30) as connection:
            connection.execute(text.replace("holdfast.", "holdfast_"), values)
        return
    with psycopg.connect(database) as connection:
        connection.execute(text.replace("?", "%s"), values)


def paid(api: Api, id_: str) -> dict[str, Any]:
    """The effect of an order that was paid, as it is listed with its instance's."""
    word = api.start("order", {"id": id_})
    api.until(word, lambda seen: seen["status"] == "waiting")
    [found] = api.ok(f"GET /workflow/instances/{word}/effects")["items"]
    return dict(found)


def test_lists_of_effects_leave_large_values_out_and_say_so(served: Served) -> None:
    tenant = f"large-{uuid4().hex[:6]}"
    api = served.api("admin", tenant)
    small, large, accents = paid(api, "7"), paid(api, LARGE), paid(api, "é" * 9000)  # bytes are counted, not letters
    assert (small["request"], small["receipt"], small["left_out"]) == ([{"hold": "hold-7"}], {"paid": "hold-7"}, [])
    for left in (large, accents):
        assert (left["request"], left["receipt"], left["left_out"]) == (None, None, ["request", "receipt"])
    unknown = api.start("unknown", {"text": LARGE})
    api.until(unknown, lambda seen: seen["status"] == "waiting")
    [desk] = api.ok("GET /workflow/effects?state=outcome_unknown")["items"]
    assert (desk["request"], desk["left_out"], desk["error"]["type"]) == (None, ["request"], "TimeoutError")
    error = b'{"message":"%s"}' % LARGE.encode()
    sql(served, "update holdfast.effects set last_error = ? where tenant_id = ? and step = 'pay'", error, tenant)

    answer = api("GET /workflow/effects?limit=200")
    assert answer.status_code == 200 and len(answer.content) < 10_000
    listed = {one["id"]: one for one in answer.json()["items"]}
    assert {one["error"] for one in listed.values()} == {None}
    assert listed[small["id"]]["left_out"] == ["error"] and listed[desk["id"]]["left_out"] == ["request", "error"]
    assert listed[large["id"]]["left_out"] == listed[accents["id"]]["left_out"] == ["request", "receipt", "error"]

    whole = api.ok(f"GET /workflow/effects/{large['id']}")
    assert (whole["request"], whole["receipt"]) == ([{"hold": f"hold-{LARGE}"}], {"paid": f"hold-{LARGE}"})
    assert (whole["error"], whole["left_out"]) == ({"message": LARGE}, [])

    async def in_process() -> None:
        async with Holdfast(served.house.database) as hf:
            desk = hf.tenant(tenant).effects
            for found in (
                await desk.list(state=None),
                await desk.list(state="succeeded", instance=large["instance_id"]),
                await desk.list(),
            ):
                assert all(one.request and one.error == {"message": LARGE} and not one.left_out for one in found)
                assert found

    asyncio.run(in_process())


def test_lists_of_dead_letters_leave_large_payloads_out_and_say_so(served: Served) -> None:
    tenant = f"large-{uuid4().hex[:6]}"
    api = served.api("admin", tenant)
    letters = {b"\x01" * 16: b'{"n":1}', b"\x02" * 16: b'{"text":"%s"}' % LARGE.encode()}
    for id_, payload in letters.items():
        sql(
            served,
            "insert into holdfast.dead_letters (tenant_id, id, source, reason, payload, created_at)"
            " values (?, ?, 'task', 'r', ?, 1)",
            tenant, id_, payload,
        )  # fmt: skip
    answer = api("GET /workflow/dead-letters?limit=200")
    assert answer.status_code == 200 and len(answer.content) < 10_000
    shown = {one["id"]: (one["payload"], one["left_out"]) for one in answer.json()["items"]}
    small, large = (ids.shown("dlt", id_) for id_ in letters)
    assert shown == {small: ({"n": 1}, []), large: (None, ["payload"])}

    async def in_process() -> None:
        async with Holdfast(served.house.database) as hf:
            found = {one.id: (one.payload, one.left_out) for one in await hf.dead_letters(tenant=tenant)}
            assert found == {small: ({"n": 1}, []), large: ({"text": LARGE}, [])}

    asyncio.run(in_process())


def test_why_and_forks_do_not_fetch_the_results_of_a_past_and_too_large_a_past_is_not_forked(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = f"large-{uuid4().hex[:6]}"
    api = served.api("admin", tenant)
    waiting, failed = paid(api, LARGE)["instance_id"], api.start("failing", {"id": LARGE})
    assert api.ended(failed)["status"] == "failed"

    async def in_process() -> str:
        async with Holdfast(served.house.database) as hf:
            fetch, read = hf.service.store.fetch, []

            async def weighed(name: str, /, **values: Any) -> Any:
                rows = await fetch(name, **values)
                read.extend(row for row in rows if name == "history_in_short")
                return rows

            monkeypatch.setattr(hf.service.store, "fetch", weighed)
            assert "It waits for the signal 'confirmed'" in await hf.tenant(tenant).instance(waiting).why()
            monkeypatch.setattr(control, "BYTES_MAX", 1 << 19)
            with pytest.raises(ForkRefused, match="its history has more than 0 MiB: start a new one"):
                await hf.tenant(tenant).instance(failed).retry()
            monkeypatch.setattr(control, "BYTES_MAX", 8 << 20)
            again = await hf.tenant(tenant).instance(failed).retry()
            assert sum(row[5] for row in read) > 3_000_000 and sum(len(row[6]) for row in read) < 10_000
            return again.id

    again = asyncio.run(in_process())
    assert api.ended(again)["status"] == "failed"
    reserved = api.ok(f"GET /workflow/instances/{again}/history?type=STEP_COMPLETED")["items"]
    assert [entry["payload"]["result"] for entry in reserved] == [{"hold": f"hold-{LARGE}"}], (
        "what is taken over is whole"
    )
