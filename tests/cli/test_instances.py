"""`holdfast instances send` and `migrate`: facts for a living instance, and another version of its chart for many."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Context, EventNotTakenYet, Handle, MigrationView, StoreUnavailable
from holdfast.testing import Harness, ManualClock
from tests.cli.support import NO_INSTANCE, Desk


def watched(id_: str) -> dict[str, Any]:
    return {"id": id_, "src": {"task": {"type": "HUMAN", "name": id_}}}


def version(states: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "moving",
        "context": {"n": 1},
        "initial": next(iter(states)),
        "output": {"@expr": "context"},
        "states": states | {"over": {"type": "final"}},
    }


GO: dict[str, Any] = {"on": {"go": "over"}}
FIRST = version({"asked": GO, "aside": GO})
RENAMED = version({"check": GO})
WATCHED = version({"asked": {**GO, "invoke": watched("watch")}})
AGAIN = version({"asked": {**GO, "invoke": [watched("second"), watched("third")]}})
REGIONS = version(
    {
        "both": {
            **GO,
            "type": "parallel",
            "states": {
                "left": {"initial": "a", "states": {"a": {}}},
                "right": {"initial": "b", "states": {"b": {}, "c": {}}},
                "far": {"initial": "d", "states": {"d": {}}},
            },
        }
    }
)


def moving(desk: Desk, *charts: dict[str, Any], instances: int = 1) -> list[str]:
    """Instances of the first version; the others are published after they began."""
    desk.publish(charts[0])
    started = [desk.start("moving") for _ in range(instances)]
    desk.work()
    for chart in charts[1:]:
        desk.publish(chart)
    return started


def outcomes(desk: Desk, *words: str, code: int = 0) -> dict[str, str]:
    return {one["instance_id"]: one["outcome"] for one in desk.json("instances", "migrate", *words, code=code)}


def versions(desk: Desk, *instances: str) -> list[int]:
    return [desk.json("instances", "show", one)["version"] for one in instances]


# -- send


def test_an_event_with_the_same_id_is_sent_once(desk: Desk) -> None:
    [instance] = moving(desk, FIRST)
    sent = desk.ok("instances", "send", instance, "go", "--payload", '{"by": "ann"}', "--id", "evt-1")
    assert f"sent 'go' to {instance}" in sent.stderr
    again = desk.ok("instances", "send", instance, "go", "--payload", '{"by": "ann"}', "--id", "evt-1")
    assert "'go' with id 'evt-1' was there already" in again.stderr
    desk.refused(2, "ids name one event", "instances", "send", instance, "stay", "--id", "evt-1")
    desk.work()
    assert desk.json("instances", "show", instance)["status"] == "completed"
    desk.refused(4, "is completed", "instances", "send", instance, "go")


def test_a_strict_send_says_whether_a_state_took_it(desk: Desk) -> None:
    [instance] = moving(desk, FIRST)
    with desk.worker():
        desk.refused(4, "takes no 'nonsense'", "instances", "send", instance, "nonsense", "--strict")
        taken = desk.json("instances", "send", instance, "go", "--strict", "--id", "evt-1")
        assert taken == {"instance_id": instance, "event": "go", "id": "evt-1", "new": True}
        desk.refused(4, "is completed", "instances", "send", instance, "go", "--strict")


def test_a_strict_send_that_no_worker_takes_says_that_it_is_recorded(desk: Desk) -> None:
    [instance] = moving(desk, FIRST)
    late = ("instances", "send", instance, "go", "--strict", "--timeout", "0.01", "--id", "evt-1")
    desk.refused(1, "event 'evt-1' is recorded", *late)
    desk.work()
    assert desk.json(*late)["new"] is False


def test_an_event_that_cannot_be_sent_is_refused(desk: Desk) -> None:
    desk.refused(3, "no instance", "instances", "send", NO_INSTANCE, "go")
    desk.refused(3, "is not an id", "instances", "send", "nonsense", "go")
    desk.refused(2, "--payload is not JSON", "instances", "send", NO_INSTANCE, "go", "--payload", "{")
    desk.refused(2, "names that begin with xstate.", "instances", "send", NO_INSTANCE, "xstate.done")
    desk.refused(2, "EVENT", "instances", "send", NO_INSTANCE)


# -- migrate


def test_a_dry_run_says_what_would_happen_and_changes_nothing(desk: Desk) -> None:
    [instance] = moving(desk, FIRST, RENAMED)
    refused = desk.run("instances", "migrate", instance, "--to", "2", "--dry-run")
    assert refused.exit_code == 1
    assert "refused" in refused.stdout and "stands in asked, which version 2 does not have" in refused.stdout
    possible = desk.ok("instances", "migrate", instance, "--to", "2", "--dry-run", "--states", '{"asked": "check"}')
    assert "possible" in possible.stdout and "asked → check" in possible.stdout
    desk.work()
    assert versions(desk, instance) == [1]


def test_a_worker_moves_the_instance_and_its_history_says_who_asked(desk: Desk) -> None:
    [instance] = moving(desk, FIRST)
    with desk.worker():
        desk.publish(RENAMED)  # a worker that runs already hears of it
        [moved] = desk.json(
            "instances", "migrate", instance, "--to", "2", "--states", '{"asked": "check"}', "--context", '{"n": 2}',
            "--actor", "ann", "--reason", "new rules",
        )  # fmt: skip
    assert (moved["outcome"], moved["problems"]) == ("migrated", [])
    assert (moved["summary"]["states"], moved["summary"]["context"]) == ({"asked": "check"}, ["n"])
    assert versions(desk, instance) == [2]
    [entry] = [e for e in desk.json("instances", "history", instance) if e["type"] == "INSTANCE_MIGRATED"]
    assert (entry["payload"]["actor"], entry["payload"]["reason"]) == ("ann", "new rules")
    desk.ok("instances", "send", instance, "go")
    desk.work()
    assert desk.json("instances", "show", instance)["result"] == {"n": 2}


def test_what_a_refusal_asks_for_can_be_said_stop_and_start(desk: Desk) -> None:
    [instance] = moving(desk, WATCHED, AGAIN)
    refused = desk.run("instances", "migrate", instance, "--to", "2")
    assert refused.exit_code == 1
    for words in ("list it in `stop`", "asked invokes 'second'", "asked invokes 'third'", "list it in `start`"):
        assert words in refused.stdout  # every problem whole, however many there are
    said = ("--stop", "watch", "--start", "second", "--start", "third")
    assert outcomes(desk, instance, "--to", "2", "--dry-run", *said) == {instance: "possible"}
    with desk.worker():
        [moved] = desk.json("instances", "migrate", instance, "--to", "2", *said)
    assert (moved["outcome"], moved["summary"]["children_stopped"]) == ("migrated", ["watch"])
    desk.work()
    assert {task["name"] for task in desk.json("tasks", "list")} == {"second", "third"}


def test_what_a_refusal_asks_for_can_be_said_enter(desk: Desk) -> None:
    [instance] = moving(desk, FIRST, REGIONS)
    to = (instance, "--to", "2", "--states", '{"asked": "both.left.a"}')
    refused = desk.run("instances", "migrate", *to)
    assert (refused.exit_code, "name in `enter`" in refused.stdout) == (1, True)
    assert outcomes(desk, *to, "--enter", "both.right.c", code=1) == {instance: "refused"}  # one region of two
    with desk.worker():
        [moved] = desk.json("instances", "migrate", *to, "--enter", "both.right.c", "--enter", "both.far.d")
    assert (moved["outcome"], moved["summary"]["entered"]) == ("migrated", ["both.right.c", "both.far.d"])
    assert moved["summary"]["to"]["value"] == {"both": {"left": "a", "right": "c", "far": "d"}}


def test_one_that_is_refused_does_not_hide_the_others(desk: Desk) -> None:
    first, ended, last = moving(desk, FIRST, RENAMED, instances=3)
    desk.ok("instances", "send", ended, "go")
    desk.work()
    given = ("--to", "2", "--states", '{"asked": "check"}', "--yes")
    with desk.worker():
        found = desk.json("instances", "migrate", first, NO_INSTANCE, ended, last, last, *given, code=1)
    assert [(one["instance_id"], one["outcome"]) for one in found] == [
        (first, "migrated"), (NO_INSTANCE, "refused"), (ended, "refused"), (last, "migrated"),
    ]  # fmt: skip
    assert "no instance" in found[1]["problems"][0] and "completed" in found[2]["problems"][0]
    assert versions(desk, first, ended, last) == [2, 1, 2]
    table = desk.run("instances", "migrate", NO_INSTANCE, ended, *given)
    assert (table.exit_code, table.stderr, len(table.stdout.splitlines())) == (1, "", 3)


def test_one_that_no_worker_comes_to_is_told_in_its_row_and_moves_when_one_comes(desk: Desk) -> None:
    first, second = moving(desk, FIRST, RENAMED, instances=2)
    late = ("--to", "2", "--states", '{"asked": "check"}', "--timeout", "0.01")
    found = desk.json("instances", "migrate", first, second, *late, code=1)
    assert [one["outcome"] for one in found] == ["not_taken_yet", "not_taken_yet"]
    assert "no worker came to it in 0.01 s: the request stands" in found[0]["problems"][0]
    assert versions(desk, first, second) == [1, 1]
    desk.work()
    assert versions(desk, first, second) == [2, 2]


def test_one_that_no_worker_comes_to_does_not_hide_the_others(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = moving(desk, FIRST, RENAMED, instances=2)
    really = Handle.migrate

    async def migrate(self: Handle, *given: Any, **words: Any) -> MigrationView:
        if self.id == first:
            raise EventNotTakenYet("migrate:1", words["timeout"])
        return await really(self, *given, **words)

    monkeypatch.setattr(Handle, "migrate", migrate)
    with desk.worker():
        found = outcomes(desk, first, second, "--to", "2", "--states", '{"asked": "check"}', code=1)
    assert found == {first: "not_taken_yet", second: "migrated"}


def test_every_living_instance_of_a_chart_is_moved_by_its_key(desk: Desk) -> None:
    first, second = moving(desk, FIRST, version({"asked": GO, "new": GO}), instances=2)
    newer = desk.start("moving")
    desk.publish({**FIRST, "id": "bystander"})
    bystander = desk.start("bystander")
    desk.work()
    desk.publish(version({"asked": GO, "newest": GO}))
    with desk.worker():
        assert outcomes(desk, "--key", "moving", "--from", "1", "--to", "3") == {first: "migrated", second: "migrated"}
        assert outcomes(desk, "--key", "moving", "--to", "3") == {newer: "migrated"}
        assert outcomes(desk, "--key", "moving", "--to", "3") == {}
        nothing = desk.ok("instances", "migrate", "--key", "moving", "--to", "3")
        assert (nothing.stdout, "no instance to move" in nothing.stderr) == ("", True)
    assert versions(desk, first, second, newer, bystander) == [3, 3, 3, 1]


def test_a_version_that_is_not_there_moves_nothing(desk: Desk) -> None:
    first, second = moving(desk, FIRST, instances=2)
    for words in ((first, second), ("--key", "moving")):
        found = desk.json("instances", "migrate", *words, "--to", "9", code=1)
        assert {one["instance_id"]: one["outcome"] for one in found} == {first: "refused", second: "refused"}
        assert all("version 9 of 'moving' is not published" in one["problems"][0] for one in found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "2"), "name instances, or all of a chart with --key"),
        ((NO_INSTANCE, "--key", "moving", "--to", "2"), "name instances, or all of a chart with --key"),
        ((NO_INSTANCE, "--from", "1", "--to", "2"), "--from goes with --key"),
        ((NO_INSTANCE,), "--to"),
        ((NO_INSTANCE, "--to", "newest"), "is not a valid integer"),
        ((NO_INSTANCE, "--to", "2", "--states", "{"), "--states is not JSON"),
        ((NO_INSTANCE, "--to", "2", "--states", "[]"), "--states is not an object"),
        ((NO_INSTANCE, "--to", "2", "--states", '{"asked": 1}'), "--states leads from state to state"),
        ((NO_INSTANCE, "--to", "2", "--context", "7"), "--context is not an object"),
    ],
)
def test_a_migration_that_is_not_said_right_is_wrong_usage(files: Desk, words: tuple[str, ...], said: str) -> None:
    files.refused(2, said, "instances", "migrate", *words)


def test_an_id_that_is_none_is_found_before_anything_is_moved(desk: Desk) -> None:
    [instance] = moving(desk, FIRST, RENAMED)
    words = ("instances", "migrate", instance, "nonsense", "--to", "2", "--states", '{"asked": "check"}')
    desk.refused(3, "'nonsense' is not an id", *words)
    desk.work()
    assert versions(desk, instance) == [1]


def test_what_was_moved_is_told_even_if_the_database_goes_away(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = moving(desk, FIRST, RENAMED, instances=2)

    async def migrate(self: Handle, *_: Any, **__: Any) -> MigrationView:
        if self.id == second:
            raise StoreUnavailable("the database went away")
        return MigrationView(instance_id=self.id, outcome="migrated")

    monkeypatch.setattr(Handle, "migrate", migrate)
    result = desk.run("instances", "migrate", first, second, "--to", "2")
    assert (result.exit_code, first in result.stdout, second in result.stdout) == (5, True, False)
    assert "Error: the database went away" in result.stderr


# -- pause, retry, fork, why


def failing(desk: Desk) -> str:
    """A code workflow that failed. The commands need no app: only the worker does."""

    async def whole() -> str:
        async with Harness(url=desk.url, clock=ManualClock(datetime.now(UTC))) as test:

            @test.workflow("order")
            async def order(ctx: Context, given: Any) -> Any:
                await ctx.step("pack", lambda: "packed")
                await ctx.step("ship", lambda: 1 / 0, max_attempts=1)

            handle = await test.start("order", 7)
            await test.run_until_idle()
            return handle.id

    return asyncio.run(whole())


def test_a_paused_instance_says_so_and_goes_on_when_it_is_resumed(desk: Desk) -> None:
    [instance] = moving(desk, FIRST)
    paused = desk.ok("instances", "pause", instance, "--reason", "audit", "--actor", "ann")
    assert f"{instance} was asked to stand still" in paused.stderr
    desk.work()
    assert desk.json("instances", "show", instance)["waiting_on"] == "paused by ann: audit; resume it to go on"
    assert desk.ok("instances", "why", instance).stdout == "It is paused by ann: audit; resume it to go on.\n"
    assert desk.json("instances", "why", instance)["why"].startswith("It is paused by ann")
    desk.refused(4, "is paused by ann: audit", "instances", "send", instance, "go", "--strict", "--timeout", "60")
    desk.ok("resume", instance, "--actor", "ann")
    desk.work()
    assert desk.json("instances", "show", instance)["status"] == "completed"
    desk.refused(4, "cannot be paused any more", "instances", "pause", instance)
    desk.refused(3, "no instance", "instances", "pause", NO_INSTANCE)
    desk.refused(3, "no instance", "instances", "why", NO_INSTANCE)


def test_a_living_instance_is_asked_to_try_again(desk: Desk) -> None:
    [instance] = moving(desk, FIRST)
    said = desk.ok("instances", "retry", instance, "--reason", "now", "--actor", "ann")
    assert said.stdout == "" and "was asked to try again at once" in said.stderr
    desk.work()
    assert "INSTANCE_RETRIED" in [entry["type"] for entry in desk.json("instances", "history", instance)]


def test_a_failed_instance_goes_on_as_a_new_one(desk: Desk) -> None:
    original = failing(desk)
    again = desk.ok("instances", "retry", original, "--actor", "ann").stdout.strip()
    assert again.startswith("ins_") and again != original
    fork = desk.json("instances", "fork", original, "pack", "--id", "req-1", "--actor", "ann", "--yes")["id"]
    named = desk.ok("instances", "fork", original, "pack", "--id", "req-1", "--business-key", "o-7").stdout.strip()
    assert named == fork and fork != again
    shown = desk.json("instances", "show", fork)
    assert (shown["workflow"], shown["input"], shown["status"]) == ("order", 7, "pending")
    refused = desk.run("instances", "fork", original, "nowhere", "--yes")
    assert refused.exit_code != 0 and "name one of 'pack', 'ship'" in refused.stderr
    assert "no worker is alive" in desk.ok("instances", "why", fork).stdout
