"""`holdfast tasks`: a person finds a task, takes it, hands in its result or says that it cannot be done."""

from __future__ import annotations

from tests.cli.support import NO_TASK, Desk


def state_of(desk: Desk, instance: str) -> str:
    """Where an instance has come to, after everything that can happen has happened."""
    desk.work()
    waiting: str = desk.json("instances", "show", instance)["waiting_on"]
    return waiting


def test_open_tasks_are_listed_by_whom_and_what_they_are_for(desk: Desk) -> None:
    instance, task = desk.open_request()
    desk.ok("tasks", "claim", task, "--actor", "ann")
    for words in (
        (), ("--type", "human"), ("--assignee", "ann"), ("--group", "managers"), ("--instance", instance), ("--all",),
        ("--status", "pending"),
    ):  # fmt: skip
        assert [one["id"] for one in desk.json("tasks", "list", *words)] == [task], words
    for words in (("--type", "TIMER"), ("--assignee", "bob"), ("--group", "manager"), ("--status", "failed")):
        assert desk.json("tasks", "list", *words) == [], words
    table = desk.ok("tasks", "list").stdout
    assert table.split()[:3] == ["id", "type", "name"] and task in table and "approve" in table
    assert "no tasks there in tenant 'acme'" in desk.ok("tasks", "list", "--tenant", "acme").stderr
    desk.refused(2, "is not an id", "tasks", "list", "--instance", "nonsense")
    desk.refused(2, "odd", "tasks", "list", "--status", "odd")


def test_a_task_is_shown_with_its_form(desk: Desk) -> None:
    instance, task = desk.open_request()
    shown = desk.json("tasks", "show", task)
    assert (shown["instance_id"], shown["name"], shown["status"]) == (instance, "approve", "pending")
    assert shown["options"]["form"]["required"] == ["ok"]
    words = desk.ok("tasks", "show", task).stdout
    assert task in words and "managers" in words and '"required": ["ok"]' in words


def test_a_claimed_task_is_its_owners_until_it_is_put_back(desk: Desk) -> None:
    _, task = desk.open_request()
    assert f"{task} belongs to ann" in desk.ok("tasks", "claim", task, "--actor", "ann").stderr
    assert desk.json("tasks", "claim", task, "--actor", "ann")["assignee"] == "ann"  # she has it already
    desk.refused(4, "belongs to 'ann'", "tasks", "claim", task, "--actor", "bob")
    desk.refused(4, "belongs to 'ann', not to 'bob'", "tasks", "unclaim", task, "--actor", "bob")
    desk.refused(4, "belongs to 'ann'", "tasks", "complete", task, "--actor", "bob", "--output", '{"ok": true}')
    desk.refused(4, "belongs to 'ann'", "tasks", "fail", task, "--actor", "bob", "--reason", "no")
    assert f"{task} is free again" in desk.ok("tasks", "unclaim", task, "--actor", "ann").stderr
    desk.refused(4, "belongs to 'nobody'", "tasks", "unclaim", task, "--actor", "ann")
    assert desk.json("tasks", "claim", task, "--actor", "bob")["assignee"] == "bob"
    assert desk.json("tasks", "unclaim", task, "--actor", "bob")["assignee"] is None


def test_a_completed_task_moves_its_instance_and_the_first_word_counts(desk: Desk) -> None:
    instance, task = desk.open_request()
    desk.file("result.json", {"ok": True})
    done = desk.ok("tasks", "complete", task, "--output", "@result.json", "--actor", "ann", "--reason", "it is cheap")
    assert f"{task} is done; its instance goes on" in done.stderr
    shown = desk.json("tasks", "show", task)
    assert (shown["status"], shown["output"], shown["completed_by"]) == ("succeeded", {"ok": True}, "ann")
    assert "in granted" in state_of(desk, instance)
    assert "it is cheap" in str(desk.json("instances", "history", instance))
    for words in (
        ("complete", task, "--output", '{"ok": false}'), ("fail", task, "--reason", "too late"), ("claim", task),
        ("unclaim", task),
    ):  # fmt: skip
        desk.refused(4, "is succeeded already by ann", "tasks", *words, "--actor", "bob")
    assert desk.json("tasks", "list") == []
    for wanted in (["--status", "succeeded"], ["--all"]):
        assert [one["id"] for one in desk.json("tasks", "list", *wanted)] == [task], wanted


def test_what_is_handed_in_may_come_from_a_pipe_and_be_answered_in_json(desk: Desk) -> None:
    _, task = desk.open_request()
    result = desk.ok("tasks", "complete", task, "--output", "-", "--actor", "ann", "-o", "jsonl", input='{"ok": false}')
    assert '"output":{"ok":false}' in result.stdout


def test_what_does_not_fit_is_not_handed_in(desk: Desk) -> None:
    instance, task = desk.open_request()
    for given, said in (
        (("--output", '{"ok": "yes"}'), "the form is refused: /ok"),
        (("--output", "{}"), "the form is refused"),
        ((), "the form is refused"),
        (("--output", "{"), "--output is not JSON"),
        (("--output", '{"ok": NaN}'), "NaN is not a JSON number"),
        (("--output", "@gone.json"), "cannot read gone.json"),
        (("--output", '{"ok": true}', "--actor", ""), "actor is ''"),
    ):
        desk.refused(2, said, "tasks", "complete", task, *given)
    assert desk.json("tasks", "show", task)["status"] == "pending"
    assert "in asked" in state_of(desk, instance)


def test_a_task_that_cannot_be_done_says_why(desk: Desk) -> None:
    instance, task = desk.open_request()
    desk.refused(2, "--reason", "tasks", "fail", task)
    desk.refused(2, "reason is empty", "tasks", "fail", task, "--reason", " ")
    failed = desk.ok("tasks", "fail", task, "--reason", "nobody knows the supplier", "--actor", "ann")
    assert f"{task} is recorded as failed" in failed.stderr
    shown = desk.json("tasks", "show", task)
    assert (shown["status"], shown["completed_by"]) == ("failed", "ann")
    assert shown["error"]["message"] == "nobody knows the supplier"
    assert "in denied" in state_of(desk, instance)


def test_a_task_that_is_not_there_is_not_found(desk: Desk) -> None:
    for command, *rest in (
        ("show",), ("claim",), ("unclaim",), ("complete", "--output", "{}"), ("fail", "--reason", "no"),
    ):  # fmt: skip
        desk.refused(3, "there is no task", "tasks", command, NO_TASK, *rest)
        desk.refused(3, "expected tsk_", "tasks", command, "nonsense", *rest)


def test_tasks_of_another_tenant_are_not_found(desk: Desk) -> None:
    _, task = desk.open_request()
    desk.refused(3, "there is no task", "tasks", "show", task, "--tenant", "acme")
    desk.refused(3, "there is no task", "tasks", "claim", task, "--tenant", "acme", "--actor", "ann")
