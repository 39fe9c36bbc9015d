"""`holdfast instances send` and `migrate`: facts for a living instance, and another version of its chart for many."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Context, EventNotTakenYet, Handle, MigrationView, StepFailed, StoreUnavailable
from holdfast.cli.main import cli
from holdfast.testing import Harness, ManualClock
from tests.cli.support import NO_INSTANCE, REQUEST, Desk, with_state


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
    desk.refused(3, "instances list --business-key", *words)
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


def failing(desk: Desk, start: bool = True) -> str:
    """A code workflow that failed, or else only a worker for those that are there. The commands need no app."""

    async def whole() -> str:
        async with Harness(url=desk.url, clock=ManualClock(datetime.now(UTC))) as test:

            @test.workflow("order")
            async def order(ctx: Context, given: Any) -> Any:
                await ctx.step("pack", lambda: "packed")
                await ctx.step("ship", lambda: 1 / 0, max_attempts=1)

            id_ = (await test.start("order", 7)).id if start else ""
            await test.run_until_idle()
            return id_

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


def test_one_that_was_tried_again_already_says_as_what_and_what_became_of_it(desk: Desk) -> None:
    original = failing(desk)
    assert "or fork it to go on from an earlier step" in desk.ok("instances", "why", original).stdout
    first = desk.ok("instances", "retry", original)
    again = first.stdout.strip()
    assert "was tried again before" not in first.stderr
    same = desk.ok("instances", "retry", original)
    assert same.stdout.strip() == again
    assert f"was tried again before, as {again}, which is pending: nothing was started" in same.stderr
    assert f"and was tried again as {again}, which is pending" in desk.ok("instances", "why", original).stdout
    failing(desk, start=False)
    over = desk.ok("instances", "retry", original)
    assert f"to go on from that one: holdfast instances retry {again}" in over.stderr


def test_a_business_key_that_is_taken_says_that_nothing_was_started(desk: Desk) -> None:
    desk.publish(REQUEST)
    given = ("request", "--input", '{"item": "a chair"}', "--business-key", "r-1")
    first = desk.ok("start", *given)
    assert "nothing was started" not in first.stderr
    desk.publish(with_state(REQUEST | {"id": "other"}, "more"))
    assert "nothing was started" not in desk.ok("start", "other", *given[1:]).stderr
    again = desk.ok("start", *given)
    assert again.stdout == first.stdout
    assert f"business key 'r-1' is of {first.stdout.strip()}, which is pending: nothing was started" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("start", "order", '{"id": 1}'), """given with --input, quoted for the shell, as in --input '{"id": 1}'"""),
        (("start", "order", "{id:", "1}"), "JSON is given with --input"),
        (("signal", "ins_1", "approved", '{"by": "ann"}'), "JSON is given with --payload"),
        (("instances", "send", "ins_1", "approved", "{}"), "JSON is given with --payload"),
        (("tasks", "complete", "tsk_1", "{}"), "JSON is given with --output"),
        (("instnaces", "list"), "No such command 'instnaces'. Did you mean 'instances'?"),
        (("instances", "lst"), "No such command 'lst'."),
    ],
)
def test_a_forgotten_flag_or_a_slip_of_the_fingers_is_answered_with_what_was_meant(
    files: Desk, words: tuple[str, ...], said: str
) -> None:
    files.refused(2, said, *words)


def test_an_extra_argument_that_no_flag_takes_has_no_such_hint(files: Desk) -> None:
    result = files.run("instances", "why", "ins_1", "{}")
    assert result.exit_code == 2 and "JSON is given" not in result.stderr


def test_in_the_wrong_folder_a_command_says_that_nothing_names_a_database_or_an_app(folder: Path) -> None:
    def said(*words: str) -> str:
        return CliRunner().invoke(cli, words).stderr

    assert "no --database, app or holdfast.toml here names another" in said("instances", "list")
    assert "names another" not in said("instances", "list", "--database", "sqlite:///none.db")
    for words in (("dev",), ("worker",), ("start", "order")):
        assert "go to a folder whose holdfast.toml names it (`holdfast init` writes one)" in said(*words)
    assert list(folder.iterdir()) == []


def paid(desk: Desk, *, fails: bool = False) -> str:
    """An instance that made a payment, and has ended."""

    async def whole() -> str:
        async with Harness(url=desk.url, clock=ManualClock(datetime.now(UTC))) as test:

            @test.workflow("order")
            async def order(ctx: Context, given: Any) -> Any:
                await ctx.step("pack", lambda: "packed")
                failure = None
                try:
                    await ctx.step("ship", lambda: 1 / (not fails), max_attempts=1)
                except StepFailed as error:
                    failure = error
                await ctx.effect("pay", lambda: "paid")
                if failure is not None:
                    raise failure

            handle = await test.start("order", 7)
            await test.run_until_idle()
            return handle.id

    return asyncio.run(whole())


AGAIN_WORDS: dict[str, tuple[list[str], str]] = {
    "nobody named": (["--yes", "--make-again", "pay"], "say who decides so with --actor NAME"),
    "no effect named": (["--actor", "ann", "--yes"], "if that is meant, say so with --yes --make-again pay"),
    "no yes": (["--actor", "ann", "--make-again", "pay"], "if that is meant, add --yes"),
    "nothing": ([], "say who decides so with --actor NAME"),
    "another effect": (["--actor", "ann", "--yes", "--make-again", "refund"], "no such effect would be made once more"),
}


@pytest.mark.parametrize("how", AGAIN_WORDS)
@pytest.mark.parametrize("verb", ["fork", "retry"])
def test_a_payment_is_not_made_again_without_a_named_person_and_an_explicit_yes(
    desk: Desk, verb: str, how: str
) -> None:
    original = paid(desk, fails=verb == "retry")
    words = ["instances", verb, original, *(["pack"] if verb == "fork" else [])]
    flags, said = AGAIN_WORDS[how]
    desk.refused(2, said, *words, *flags)
    assert len(desk.json("instances", "list")) == 1
    done = desk.ok(*words, "--actor", "ann", "--yes", "--make-again", "pay")
    assert "Made once more, under new keys, though they happened or may have:\n  pay\n" in done.stderr
    assert len(desk.json("instances", "list")) == 2


def test_a_retry_in_bulk_makes_no_effect_once_more(desk: Desk) -> None:
    original, harmless = paid(desk, fails=True), failing(desk)
    began = desk.json("bulk", "start", "retry", "--status", "failed", "--reason", "again", "--actor", "ann", "--yes")
    desk.work()
    shown = desk.json("bulk", "show", began["id"], code=1)
    assert (shown["matched"], shown["done"], shown["failed"]) == (2, 1, 1)
    assert shown["failures"][0]["instance_id"] == original and "'pay'" in shown["failures"][0]["detail"]
    assert harmless not in str(shown["failures"])


# -- which instances


def several(desk: Desk) -> dict[str, str]:
    """One that failed, one that is parked, one that waits, each of a workflow of its own; started an hour apart."""
    clock = ManualClock(datetime.now(UTC) - timedelta(hours=4))

    async def whole() -> dict[str, str]:
        async with Harness(url=desk.url, clock=clock) as test:

            @test.workflow("failing")
            async def fails(ctx: Context) -> None:
                raise ValueError("no such account")

            @test.workflow("mistaken")
            async def mistaken(ctx: Context) -> None:
                await ctx.step("a", None)  # type: ignore[arg-type]

            @test.workflow("patient")
            async def patient(ctx: Context) -> None:
                await ctx.wait_for_signal("go")

            found = {}
            for name in ("failing", "mistaken", "patient"):
                found[name] = (await test.start(name, business_key=f"key of {name}")).id
                await test.advance(hours=1)
            return found

    return asyncio.run(whole())


def test_instances_are_listed_by_workflow_key_status_age_and_what_stopped_them(desk: Desk) -> None:
    found = several(desk)

    def named(*words: str) -> list[str]:
        ids = {id_: name for name, id_ in found.items()}
        return [ids[one["id"]] for one in desk.json("instances", "list", *words)]

    assert named() == ["patient", "mistaken", "failing"]
    assert named("--workflow", "mistaken") == ["mistaken"]
    assert named("--business-key", "key of patient") == ["patient"]
    assert named("--status", "failed", "--status", "waiting") == ["patient", "mistaken", "failing"]
    assert named("--older-than", "150m") == ["mistaken", "failing"]
    assert named("--newer-than", "PT3H30M") == ["patient", "mistaken"]
    assert named("--newer-than", "210m", "--older-than", "150m") == ["mistaken"]
    assert named("--parked") == ["mistaken"]
    assert named("--status", "failed", "--since", "5h") == ["failing"]
    assert named("--status", "failed", "--since", "2h") == []
    moment = (datetime.now(UTC) - timedelta(hours=5)).isoformat()
    assert named("--since", moment, "--limit", "1") == ["failing"]
    assert named("--limit", "1") == ["patient"] and named("--limit", "1", "--before", found["patient"]) == ["mistaken"]
    assert desk.json("instances", "list", "--tenant", "acme") == []
    desk.refused(2, "expected a span such as 90s", "instances", "list", "--older-than", "yesterday")
    desk.refused(2, "a time with its zone", "instances", "list", "--since", "2026-11-17T08:00:00")
    desk.refused(2, "--parked goes with --status waiting", "instances", "list", "--parked", "--status", "failed")


def test_a_chart_that_was_refused_a_step_is_among_the_parked(desk: Desk) -> None:
    spec = version({"asked": {"on": {"go": {"target": "over", "guard": {"@expr": "event.missing > 1"}}}}})
    [instance] = moving(desk, spec)
    desk.ok("instances", "send", instance, "go")
    desk.work()
    assert [one["id"] for one in desk.json("instances", "list", "--parked")] == [instance]


def test_off_a_terminal_no_line_is_filled_up_with_blanks(desk: Desk) -> None:
    several(desk)
    for words in (("instances", "list"), ("instances", "show", desk.json("instances", "list")[0]["id"])):
        lines = desk.ok(*words).stdout.splitlines()
        assert lines and all(line == line.rstrip() for line in lines)


def test_what_a_refusal_says_to_do_can_be_done_at_the_command_line(desk: Desk) -> None:
    found = desk.run("instances", "show", NO_INSTANCE)
    assert "check the id and --tenant" in found.stderr and "hf." not in found.stderr


# -- many at once


def test_everything_that_matches_is_counted_then_done(desk: Desk) -> None:
    found = several(desk)
    start = ("bulk", "start", "cancel", "--reason", "wrong batch", "--actor", "ann")
    desk.refused(2, "say which", *start)
    desk.refused(2, "say which", *start, "--all", "--workflow", "patient")
    desk.refused(2, "needs --signal NAME", "bulk", "start", "signal", "--all", "--reason", "x")
    counted = desk.json(*start, "--status", "waiting", "--dry-run")
    assert (counted["matched"], counted["status"]) == (2, "dry_run")
    desk.refused(4, "2 match now, not 3", *start, "--status", "waiting", "--expected", "3", "--yes")
    began = desk.json(*start, "--workflow", "patient", "--expected", "1", "--yes")
    assert began["matched"] == 1 and began["id"].startswith("blk_")
    desk.work()
    assert desk.json("bulk", "show", began["id"])["status"] == "completed"
    assert found["patient"].startswith("ins_")
    desk.refused(3, "blk_", "bulk", "show", "blk_" + "0" * 32)
