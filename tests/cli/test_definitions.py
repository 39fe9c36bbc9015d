"""`holdfast definitions`: a chart is checked, published, drawn, compared and tried out, and refused in words."""

from __future__ import annotations

import json

import pytest

from tests.cli.support import NO_INSTANCE, REQUEST, Desk, with_state

BROKEN = {"id": "broken", "initial": "nowhere", "states": {"a": {"on": {"go": "b"}}}}


# -- before anything is published: no database is asked


def test_a_sound_chart_is_called_sound(files: Desk) -> None:
    file = files.file("request.json", REQUEST)
    assert "request.json is sound: 5 states, 3 expressions" in files.ok("definitions", "validate", file).stderr
    found = files.json("definitions", "validate", file)
    assert (found["id"], found["states"], found["tasks"], found["handlers"]) == ("request", 5, 1, [])
    assert len(found["hash"]) == 64
    assert "- is sound" in files.ok("definitions", "validate", "-", input=json.dumps(REQUEST)).stderr


@pytest.mark.parametrize("command", ["validate", "lint"])
def test_every_fault_of_a_chart_is_told_with_its_path(files: Desk, command: str) -> None:
    file = files.file("broken.json", BROKEN)
    result = files.run("definitions", command, file)
    assert result.exit_code == 1
    first, second = result.stdout.splitlines()
    assert first.startswith("error: /initial: ") and "'nowhere'" in first
    assert second.startswith("error: /states/a/on/go: ") and "'b'" in second
    faults = files.json("definitions", command, file, code=1)
    assert [(one["level"], one["path"]) for one in faults] == [("error", "/initial"), ("error", "/states/a/on/go")]


@pytest.mark.parametrize("command", ["validate", "lint"])
def test_a_file_that_is_no_json_is_a_faulty_chart_and_one_that_is_not_there_is_wrong_usage(
    files: Desk, command: str
) -> None:
    result = files.run("definitions", command, "-", input="{")
    assert (result.exit_code, result.stdout.startswith("error: /: not JSON")) == (1, True)
    result = files.run("definitions", command, "-", input='{"id": "x", "id": "y"}')
    assert (result.exit_code, "'id' stands twice" in result.stdout) == (1, True)
    files.refused(2, "cannot read gone.json", "definitions", command, "gone.json")


def test_lint_says_what_looks_wrong_though_it_is_allowed(files: Desk) -> None:
    file = files.file("odd.json", with_state(REQUEST, "lost"))
    assert files.ok("definitions", "lint", file).stdout.startswith("warning: /states/lost: nothing leads to")
    [found] = files.json("definitions", "lint", file)
    assert (found["level"], found["path"]) == ("warning", "/states/lost")
    sound = files.ok("definitions", "lint", files.file("request.json", REQUEST))
    assert (sound.stdout, "nothing to say against it" in sound.stderr) == ("", True)
    assert files.json("definitions", "lint", "request.json") == []


def test_a_built_workflow_of_the_app_is_drawn_and_a_function_is_not(files: Desk) -> None:
    app = files.folder / "drawn_app.py"
    app.write_text(
        "from holdfast import Holdfast, Workflow\n"
        "hf = Holdfast()\n"
        "hf.register(Workflow('order').step('reserve', lambda: 1).effect('pay', lambda: 2))\n"
        "@hf.workflow('written')\n"
        "async def written(ctx): ...\n"
    )
    where = ("--app", "drawn_app:hf")
    drawn = files.ok("definitions", "graph", "order", *where).stdout
    assert drawn.startswith("stateDiagram-v2") and "pay (effect)" in drawn
    assert files.ok("definitions", "graph", "order@1", "--format", "svg", *where).stdout.startswith("<svg")
    files.refused(2, "is a function, whose steps are known only as it runs", "definitions", "graph", "written", *where)
    files.refused(2, "marks a place in a chart", "definitions", "graph", "order", "--instance", NO_INSTANCE, *where)


def test_files_are_drawn_compared_and_tried_out_without_a_database(files: Desk) -> None:
    old, new = files.file("old.json", REQUEST), files.file("new.json", with_state(REQUEST, "lost"))
    assert files.ok("definitions", "graph", old).stdout.startswith("stateDiagram-v2")
    assert files.ok("definitions", "diff", old, new).stdout == "+ state lost: final\n"
    assert files.ok("definitions", "diff", old, old).stdout == "no difference\n"
    assert len(files.json("definitions", "simulate", old, "--input", '{"item": 1}')) == 1
    assert json.loads(files.ok("definitions", "schema").stdout)["type"] == "object"


# -- publishing


def test_publishing_makes_the_next_version_unless_it_is_there_already(desk: Desk) -> None:
    file = desk.file("request.json", REQUEST)
    assert "request version 1 is active" in desk.ok("definitions", "publish", file, "--actor", "ann").stderr
    assert "request version 1 is active" in desk.ok("definitions", "publish", file, "--actor", "bob").stderr
    newer = desk.file("newer.json", with_state(REQUEST, "lost"))
    published = desk.json("definitions", "publish", newer, "--actor", "bob")
    assert (published["version"], published["created_by"], "spec" in published) == (2, "bob", False)
    assert desk.json("definitions", "publish", file, "--key", "other")["key"] == "other"
    listed = [
        (one["key"], one["version"], one["created_by"]) for one in desk.json("definitions", "list", "--key", "request")
    ]
    assert listed == [("request", 2, "bob"), ("request", 1, "ann")]
    table = desk.ok("definitions", "list").stdout
    assert table.split()[:3] == ["key", "version", "status"]
    assert len(table.splitlines()) == 4
    assert len(desk.json("definitions", "list", "--limit", "1")) == 1
    assert desk.json("definitions", "list", "--tenant", "acme") == []
    assert "nothing is published in tenant 'acme'" in desk.ok("definitions", "list", "--tenant", "acme").stderr


def test_a_chart_that_cannot_run_is_not_published(desk: Desk) -> None:
    broken = desk.file("broken.json", BROKEN)
    desk.refused(1, "the chart is refused: /initial", "definitions", "publish", broken)
    desk.refused(1, "not JSON", "definitions", "publish", "-", input="{")
    desk.refused(2, "cannot read gone.json", "definitions", "publish", "gone.json")
    desk.refused(1, "/id", "definitions", "publish", desk.file("request.json", REQUEST), "--key", "")
    assert desk.json("definitions", "list") == []


def test_a_definition_is_shown_as_it_was_published(desk: Desk) -> None:
    newer = with_state(REQUEST, "lost")
    assert [desk.publish(REQUEST), desk.publish(newer)] == [1, 2]
    assert json.loads(desk.ok("definitions", "show", "request").stdout) == newer
    assert json.loads(desk.ok("definitions", "show", "request", "--version", "1").stdout) == REQUEST
    shown = desk.json("definitions", "show", "request", "--version", "1")
    assert (shown["version"], shown["spec"]) == (1, REQUEST)
    desk.refused(3, "a definition 'nothing' is not published here", "definitions", "show", "nothing")
    desk.refused(3, "version 9 of 'request' is not published", "definitions", "show", "request", "--version", "9")
    desk.refused(3, "is not published here", "definitions", "show", "request", "--tenant", "acme")


def test_a_deactivated_version_starts_nothing_until_it_is_activated_again(desk: Desk) -> None:
    desk.publish(REQUEST)
    assert "request version 1 is inactive" in desk.ok("definitions", "deactivate", "request", "1").stderr
    desk.refused(4, "holdfast definitions activate request 1", "start", "request", "--input", '{"item": 1}')
    active = desk.json("definitions", "activate", "request", "1", "--actor", "ann")
    assert (active["status"], active["changed_by"], "spec" in active) == ("active", "ann", False)
    assert desk.start("request", "--input", '{"item": 1}').startswith("ins_")
    assert desk.json("definitions", "archive", "request", "1")["status"] == "archived"
    for command in ("activate", "deactivate"):
        desk.refused(3, "version 9 of 'request' is not published", "definitions", command, "request", "9")
        desk.refused(3, "is not published", "definitions", command, "nothing", "1")
        desk.refused(2, "is not a valid integer", "definitions", command, "request", "newest")


# -- drawing, comparing, trying out


def test_a_drawing_marks_where_an_instance_stands(desk: Desk) -> None:
    instance, _ = desk.open_request()
    plain = desk.ok("definitions", "graph", "request").stdout
    marked = desk.ok("definitions", "graph", "request@1", "--instance", instance).stdout
    assert plain.startswith("stateDiagram-v2") and 'state "asked" as s1' in plain
    assert ("class s1 active" in plain, "class s1 active" in marked) == (False, True)
    drawn = desk.ok("definitions", "graph", "request", "--format", "svg").stdout
    pointed = desk.ok("definitions", "graph", "request", "--format", "svg", "--instance", instance).stdout
    assert drawn.startswith("<svg") and pointed.startswith("<svg") and drawn != pointed
    desk.refused(3, "no instance", "definitions", "graph", "request", "--instance", NO_INSTANCE)
    stranger = desk.file("stranger.json", {"id": "stranger", "initial": "q", "states": {"q": {}}})
    desk.refused(1, "does not have", "definitions", "graph", stranger, "--instance", instance)


def test_a_difference_is_told_between_files_and_versions(desk: Desk) -> None:
    newer = with_state(REQUEST, "lost")
    desk.publish(REQUEST)
    desk.publish(newer)
    assert desk.ok("definitions", "diff", "request@1", "request").stdout == "+ state lost: final\n"
    assert desk.ok("definitions", "diff", desk.file("newer.json", newer), "request@1").stdout.startswith("- state lost")
    assert desk.ok("definitions", "diff", "request@2", "newer.json").stdout == "no difference\n"


def test_a_folder_named_like_a_key_is_no_chart_in_the_way(desk: Desk) -> None:
    desk.publish(REQUEST)
    (desk.folder / "request").mkdir()
    assert desk.ok("definitions", "diff", "request", "request@1").stdout == "no difference\n"


def test_a_chart_that_is_neither_file_nor_published_is_not_found(desk: Desk) -> None:
    desk.publish(REQUEST)
    broken = desk.file("broken.json", BROKEN)
    for command, *second in (("graph",), ("diff", desk.file("request.json", REQUEST)), ("simulate",)):
        desk.refused(3, "a definition 'nothing' is not published", "definitions", command, "nothing", *second)
        desk.refused(3, "version 9 of 'request' is not published", "definitions", command, "request@9", *second)
        desk.refused(2, "expected a file, KEY or KEY@VERSION", "definitions", command, "request@newest", *second)
        desk.refused(1, "the chart is refused: /initial", "definitions", command, broken, *second)


def test_a_simulation_runs_through_events_and_stores_nothing(desk: Desk) -> None:
    desk.publish(REQUEST)
    item = ("--input", '{"item": "a chair"}')
    given = '[{"type": "nonsense"}, {"$task": "approve", "output": {"ok": true}}, "close"]'
    turns = desk.json("definitions", "simulate", "request", *item, "--events", given)
    assert [(one["state"], one["handled"]) for one in turns] == [
        ("asked", True), ("asked", False), ("granted", True), ("closed", True),
    ]  # fmt: skip
    assert (turns[-1]["status"], turns[-1]["output"]) == ("done", {"item": "a chair"})
    desk.file("events.json", [{"$advance": "P3D"}])
    table = desk.ok("definitions", "simulate", "request@1", *item, "--events", "@events.json").stdout
    assert table.split()[:2] == ["event", "at"]
    assert "1970-01-04T00:00:00.000Z" in table and "denied" in table
    lines = desk.ok("definitions", "simulate", "request", *item, "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["asked"]
    assert desk.json("instances", "list") == []


def test_a_step_that_fails_in_a_simulation_says_where_and_why(desk: Desk) -> None:
    desk.publish(REQUEST)
    [turn] = desk.json("definitions", "simulate", "request")
    assert (turn["status"], turn["fault"]["path"]) == ("error", "/context/item")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--events", "{"), 2, "--events is not JSON"),
        (("--events", "{}"), 2, "--events is not a list"),
        (("--events", "null"), 2, "--events is not a list"),
        (("--events", "@gone.json"), 2, "cannot read gone.json"),
        (("--input", "{"), 2, "--input is not JSON"),
        (("--events", "[7]"), 1, "/events/0: expected an event"),
        (("--events", '["close", {"$done": "x"}]'), 1, "/events/1: no invoke 'x' is running"),
        (("--events", '[{"$advance": "soon"}]'), 1, "/events/0: "),
    ],
)
def test_a_simulation_that_cannot_be_played_is_refused(
    files: Desk, words: tuple[str, ...], code: int, said: str
) -> None:
    chart = files.file("request.json", REQUEST)
    files.refused(code, said, "definitions", "simulate", chart, "--input", '{"item": 1}', *words)
