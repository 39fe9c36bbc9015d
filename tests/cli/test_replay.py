"""`holdfast replay` and the way to take a history home, on both databases."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Rehearsed
from holdfast.cli import replay as command
from holdfast.testing import Harness, replay
from tests.cli.support import REQUEST, Desk
from tests.flows.support import query

APP = '''
"""A shop before or after a deploy."""
from pathlib import Path
from holdfast import Context, Holdfast

hf = Holdfast()

def price(amount: int) -> int:
    Path("called").touch()
    return amount

def book(tx) -> None:
    Path("called").touch()

@hf.workflow("order")
async def order(ctx: Context, given: dict) -> int:
    print("the body runs")
    found = await ctx.step("price", price, given["amount"] + {more})
    await ctx.wait_for_signal("go")
    await ctx.transaction("book", book)
    return found

@hf.workflow("ask")
async def ask(ctx: Context) -> None:
    {first}
    await ctx.wait_for_signal("answer")
'''


class Shop:
    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.app = self.deploy()

    def deploy(self, *, more: int = 0, first: str = "pass") -> str:
        """An app's name: of a module of its own, as two of one name cannot be imported."""
        module = f"shop_{uuid.uuid4().hex}"
        text = APP.replace("{more}", str(more)).replace("{first}", first)
        (self.desk.folder / f"{module}.py").write_text(text)
        return f"{module}:hf"

    def start(self, *workflows: str, tenant: str = "default") -> list[str]:
        """Each waits for its signal, under the code before the deploy."""
        from holdfast.cli.app import find_app

        async def whole() -> list[str]:
            async with Harness(find_app(self.app)[1], url=self.desk.url) as test:
                found = [
                    (await test.start(name, {"amount": number} if name == "order" else None, tenant=tenant)).id
                    for number, name in enumerate(workflows)
                ]
                await test.run_until_idle()
                return found

        found = asyncio.run(whole())
        (self.desk.folder / "called").unlink(missing_ok=True)
        return found


@pytest.fixture
def shop(desk: Desk) -> Iterator[Shop]:
    shop = Shop(desk)
    yield shop
    assert not (desk.folder / "called").exists(), "a handler was called"


def everything(url: str, folder: Path) -> dict[str, Any]:
    """Every row of every table, and what workers leave beside a file."""
    tables = [
        name
        for (name,) in query(
            url,
            "select substr(name, 10) from sqlite_schema where type = 'table' and name like 'holdfast%'"
            if url.startswith("sqlite")
            else "select table_name::text from information_schema.tables where table_schema = 'holdfast'",
        )
    ]
    assert {"workers", "history", "instances", "effects"} <= set(tables)
    rows: dict[str, Any] = {name: sorted(map(repr, query(url, f"select * from holdfast.{name}"))) for name in tables}
    beside = [path for path in folder.rglob("*") if "-witness" in path.name or "-workers" in str(path)]
    return rows | {str(path): path.read_bytes() if path.is_file() else None for path in beside}


def test_the_same_code_goes_on_and_nothing_is_written(shop: Shop) -> None:
    desk = shop.desk
    ids = shop.start("order", "order", "ask")
    desk.ok("signal", ids[0], "go")
    desk.ok("cancel", ids[2], "--reason", "so")
    before = everything(desk.url, desk.folder)
    result = desk.run("replay", "--app", shop.app)
    assert result.exit_code == 0, result.output
    assert "3 instances: 2 go on, 1 end" in result.stderr
    found = {one["id"]: one for one in desk.json("replay", "--app", shop.app)}
    assert [found[id_]["next"] for id_ in ids] == ["transaction 'book'", "signal 'go'", "cancelled: so"]
    assert everything(desk.url, desk.folder) == before


def test_a_deploy_that_contradicts_is_told_before_it_is_made(shop: Shop) -> None:
    desk = shop.desk
    ids = shop.start("order", "order", "order", "order", "order", "ask")
    changed = shop.deploy(more=1)
    before = everything(desk.url, desk.folder)
    result = desk.run("replay", "--app", changed)
    assert result.exit_code == 1
    head, parked, fine = result.stdout.splitlines()
    assert head.split() == ["verdict", "instances", "workflow", "version", "why", "such_as"]
    assert parked.split()[:4] == ["parked", "5", "order", "1"] and fine.split() == ["goes_on", "1", "ask", "1", ids[5]]
    assert sum(id_ in parked for id_ in ids[:5]) == 3
    assert "'price' is recorded with the arguments [4], the code now passes [5]" in parked
    assert "6 instances: 1 go on, 5 would be parked" in result.stderr
    lines = [json.loads(line) for line in desk.run("replay", "--app", changed, "-o", "jsonl").stdout.splitlines()]
    assert [(one["verdict"], one["id"]) for one in lines[1:]] == [("parked", id_) for id_ in ids[4::-1]]
    assert everything(desk.url, desk.folder) == before
    desk.ok("replay", "--app", changed, "--workflow", "ask")


def test_reasons_that_differ_only_in_an_instances_own_words_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(why: str) -> list[tuple[int, str]]:
        one = Rehearsed(
            id="ins_1", tenant_id="default", workflow="order", version=1, status="waiting", verdict="parked", why=why
        )
        findings.add(one)
        return [(row["instances"], row["why"]) for row in findings.rows()]

    findings = command.Findings()
    found("parked: 'poll#7' is recorded as a step, the code now asks for an effect")
    assert len(found("parked: 'poll#31' is recorded as a step, the code now asks for an effect")) == 1
    found("parked: the recorded result of 'load.cup' does not fit its annotation any more")
    assert len(found("parked: the recorded result of 'load.tea pot' does not fit its annotation any more")) == 2
    found("parked: 'price' is recorded with arguments of hash 12ab…, the code now passes [1]")
    assert len(found("parked: 'price' is recorded with arguments of hash 34cd…, the code now passes [2]")) == 3
    assert len(found("parked: 'weigh' is recorded with arguments of hash 34cd…, the code now passes [2]")) == 4
    monkeypatch.setattr(command, "GROUPS_MAX", 4)
    found("parked: another reason")
    assert (2, command.OTHERS) in found("parked: one more reason")


def test_a_workflow_that_the_app_does_not_have_is_left_alone(shop: Shop) -> None:
    desk = shop.desk
    shop.start("ask")
    desk.publish(REQUEST)
    desk.start("request", "--input", '{"item": "a chair"}')
    (desk.folder / "empty_app.py").write_text("from holdfast import Holdfast\nhf = Holdfast()\n")
    chart, code = desk.json("replay", "--app", "empty_app", code=1)
    assert (chart["verdict"], chart["workflow"]) == ("goes_on", "request")
    assert (code["verdict"], code["why"]) == (
        "unknown", "the app has no workflow 'ask': no worker with this code would claim it",
    )  # fmt: skip


def test_those_of_one_status_or_tenant_only(shop: Shop) -> None:
    desk = shop.desk
    [id_] = shop.start("ask")
    assert desk.json("replay", "--app", shop.app, "--status", "completed") == []
    assert desk.json("replay", "--app", shop.app, "--tenant", "acme") == []
    assert "there is nothing to replay" in desk.ok("replay", "--app", shop.app, "--status", "pending").stderr
    desk.refused(2, "--workflow is 'oder'", "replay", "--app", shop.app, "--workflow", "oder")
    [found] = desk.json("replay", "--app", shop.app, "--status", "waiting")
    assert (found["id"], found["status"]) == (id_, "waiting")


def test_a_chart_that_is_published_and_has_no_instance_yet_is_no_mistake(shop: Shop) -> None:
    chart = shop.desk.folder / "quiet.json"
    chart.write_text(json.dumps({"id": "quiet", "initial": "a", "states": {"a": {"type": "final"}}}))
    shop.desk.ok("definitions", "publish", str(chart), "--app", shop.app)
    assert "there is nothing to replay" in shop.desk.ok("replay", "--app", shop.app, "--workflow", "quiet").stderr


def test_those_of_every_tenant_unless_one_is_named(shop: Shop) -> None:
    """A deploy reaches them all: what would stop the instances of one tenant must not look like good news."""
    desk = shop.desk
    [ours] = shop.start("order")
    [theirs] = shop.start("order", tenant="acme")
    new = shop.deploy(more=1)
    found = desk.run("replay", "--app", new, "-o", "json")
    assert found.exit_code == 1
    assert {(one["tenant_id"], one["id"], one["verdict"]) for one in json.loads(found.stdout)} == {
        ("default", ours, "parked"), ("acme", theirs, "parked"),
    }  # fmt: skip
    table = desk.run("replay", "--app", new).stdout
    assert f"{ours} (default)" in table and f"{theirs} (acme)" in table
    sampled = [json.loads(desk.run("replay", "--app", new, "-o", "json", "--sample", "1", "--seed", seed).stdout)
               for seed in "12345678"]  # fmt: skip
    assert {one["tenant_id"] for [one] in sampled} == {"default", "acme"}, "a sample is drawn from all of them"
    [only] = json.loads(desk.run("replay", "--app", new, "-o", "json", "--tenant", "acme").stdout)
    assert only["id"] == theirs
    assert theirs in desk.run("replay", "--app", new, "--tenant", "acme").stdout
    assert "(acme)" not in desk.run("replay", "--app", new, "--tenant", "acme").stdout


def test_a_sample_says_that_it_is_one(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PAGE", 2)
    desk = shop.desk
    ids = shop.start(*["ask"] * 7)
    assert {one["id"] for one in desk.json("replay", "--app", shop.app)} == set(ids)
    drawn = [
        [one["id"] for one in desk.json("replay", "--app", shop.app, "--sample", "3", "--seed", seed)] for seed in "115"
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(one)) == 3 and set(one) < set(ids) for one in drawn)
    assert "a sample of 3 of 7 instances: 3 go on" in desk.ok("replay", "--app", shop.app, "--sample", "3").stderr
    assert "7 instances: 7 go on" in desk.ok("replay", "--app", shop.app, "--sample", "30").stderr
    desk.refused(2, "--seed goes with --sample", "replay", "--app", shop.app, "--seed", "1")


@pytest.mark.parametrize(
    "first", ["while True: pass", "try:\n        while True: pass\n    except BaseException: pass"]
)
def test_a_body_that_never_ends_does_not_stop_the_others(shop: Shop, first: str) -> None:
    shop.start("order", "ask", "order")
    found = shop.desk.json("replay", "--app", shop.deploy(first=first), "--timeout", "0.3", code=1)
    assert [one["verdict"] for one in found] == ["goes_on", "not_replayed", "goes_on"]
    assert "its body ran for 0.3 s and asked for nothing" in found[1]["why"]


@pytest.mark.parametrize(
    "first", ["raise SystemExit(7)", "raise KeyboardInterrupt", "import os; raise OSError('away')"]
)
def test_what_a_body_raises_does_not_end_the_command(shop: Shop, first: str) -> None:
    shop.start("ask", "order")
    found = shop.desk.json("replay", "--app", shop.deploy(first=first))
    assert [(one["verdict"], one["next"][:7]) for one in found] == [("goes_on", "signal "), ("ends", "failed:")]


def test_ctrl_c_while_a_body_is_replayed_ends_the_command(shop: Shop) -> None:
    """Pressed once, and not taken for the body's own doing."""
    shop.start("ask", "order")
    pressed = "import os, signal; os.kill(os.getpid(), signal.SIGINT); sum(range(100_000))"
    result = shop.desk.run("replay", "--app", shop.deploy(first=pressed))
    assert "Aborted!" in result.output and "go on" not in result.output
    assert "cancel_refused" not in result.output


def test_what_a_body_prints_is_no_part_of_the_answer(shop: Shop) -> None:
    shop.start("order")
    result = shop.desk.run("replay", "--app", shop.app, "-o", "jsonl")
    assert [json.loads(line)["verdict"] for line in result.stdout.splitlines()] == ["goes_on"]
    assert "the body runs" in result.stderr


def test_it_needs_the_app(shop: Shop) -> None:
    shop.desk.refused(2, "name the app", "replay")


def test_a_history_is_taken_home_and_replayed_in_a_test(shop: Shop) -> None:
    from holdfast.cli.app import find_app

    desk = shop.desk
    [id_] = shop.start("order")
    rows = desk.json("instances", "history", id_)
    text = desk.ok("instances", "history", id_, "-o", "jsonl").stdout
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0].pop("instance")["id"] == id_
    assert lines == rows
    file = desk.folder / "order.jsonl"
    file.write_text(text)
    assert replay(file, find_app(shop.app)[1]).verdict == "goes_on"
    foretold = replay(file, find_app(shop.deploy(more=1))[1])
    assert (foretold.id, foretold.verdict) == (id_, "parked")
    part = desk.ok("instances", "history", id_, "-o", "jsonl", "--after", "1").stdout.splitlines()
    assert [json.loads(line) for line in part] == rows[1:]
    desk.refused(3, "no instance", "instances", "history", "ins_" + "0" * 32, "-o", "jsonl")
