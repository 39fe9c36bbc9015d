"""What lint says about charts that compile: something about each mistake, nothing about charts that are fine."""

import copy
from typing import Any

import pytest

from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.document import Problem
from holdfast.engine.charts.lint import WARNINGS_MAX, lint
from holdfast.engine.charts.lint_survey import matches

# -- charts as people write them; the other tests of this folder use them too

ORDER: dict[str, Any] = {
    "id": "order",
    "context": {"items": {"@expr": "event.input.items"}, "payment": None},
    "initial": "placed",
    "states": {
        "placed": {
            "on": {"PAY": "paying", "CANCEL": "cancelled"},
            "after": {"P1D": {"target": "cancelled", "description": "nobody paid"}},
        },
        "paying": {
            "invoke": {
                "id": "payment",
                "src": {"task": {"type": "HTTP", "name": "charge", "url": "https://pay.example/charges"}},
                "input": {"items": {"@expr": "context.items"}},
                "onDone": {
                    "target": "packing",
                    "actions": {"type": "assign", "assign": {"payment": {"@expr": "event.output.body"}}},
                },
                "onError": "placed",
            }
        },
        "packing": {
            "entry": {
                "type": "createTask",
                "params": {"type": "HUMAN", "name": "pack", "groups": ["warehouse"], "completion_event": "PACKED"},
            },
            "on": {"PACKED": {"target": "shipped", "guard": {"@expr": "context.payment != null"}}},
        },
        "shipped": {"type": "final", "output": {"payment": {"@expr": "context.payment"}}},
        "cancelled": {"type": "final"},
    },
}

EXPENSE: dict[str, Any] = {
    "id": "expense",
    "description": "An expense claim: an AI suggests, a person decides, the clock escalates.",
    "context": {
        "claim": {"@expr": "event.input"},
        "amount_minor": {"@expr": "event.input.amount_minor"},
        "decided_by": None,
        "reminders": 0,
    },
    "guards": {
        "small": {"@expr": "context.amount_minor < params.limit"},
        "tooManyReminders": {"@expr": "context.reminders >= 2"},
    },
    "actions": {
        "remember": {"type": "assign", "assign": {"decided_by": {"@expr": "event.output.by"}}},
        "countReminder": {"type": "assign", "assign": {"reminders": {"@expr": "context.reminders + 1"}}},
        "mailClaimant": {
            "type": "createTask",
            "params": {
                "type": "EMAIL", "name": "tell the claimant", "to": {"@expr": "context.claim.email"},
                "subject": "Your claim", "text": {"@expr": "params.text"}, "failure_event": "mail.failed",
            },
        },
    },
    "delays": {"patience": "P3D"},
    "initial": "submitted",
    "states": {
        "submitted": {
            "always": [
                {"target": "payout", "guard": {"type": "small", "params": {"limit": 5000}}},
                {"target": "review"},
            ]
        },
        "review": {
            "initial": "triage",
            "on": {
                "WITHDRAW": "withdrawn",
                "HOLD": "on hold",
                "mail.failed": {"actions": {"type": "log", "params": {"what": "the mail did not go out"}}},
            },
            "states": {
                "triage": {
                    "entry": {
                        "type": "createTask",
                        "params": {
                            "type": "AI", "name": "suggest", "input": {"@expr": "context.claim"},
                            "prompt": {"id": "expense-triage", "version": 3, "user": "Judge {{input.purpose}}"},
                            "policy": {"allowed_events": ["APPROVE", "REJECT"], "mode": "suggest"},
                            "completion_event": "SUGGESTED", "failure_event": "NO_SUGGESTION",
                        },
                    },
                    "on": {"SUGGESTED": "waiting", "NO_SUGGESTION": "waiting"},
                    "after": {"PT10M": "waiting"},
                },
                "waiting": {
                    "tags": ["waiting for a person"],
                    "entry": {
                        "type": "createTask",
                        "params": {
                            "type": "HUMAN", "name": "decide", "groups": ["managers"], "due_in": "P2D",
                            "form": {"type": "object"},
                        },
                    },
                    "exit": {"type": "cancelTask", "params": {"name": "decide"}},
                    "after": {
                        "patience": [
                            {"target": "escalated", "guard": "tooManyReminders"},
                            {
                                "target": "waiting", "reenter": True,
                                "actions": "countReminder",
                            },
                        ]
                    },
                },
                "escalated": {
                    "entry": {
                        "type": "createTask",
                        "params": {"type": "HUMAN", "name": "decide", "assignee": "cfo@example.org"},
                    },
                },
                "memory": {"type": "history", "history": "deep"},
            },
        },
        "on hold": {"on": {"RESUME": "review.memory", "WITHDRAW": "withdrawn"}},
        "payout": {
            "invoke": {
                "id": "payout",
                "src": {"task": {"type": "HTTP", "name": "pay out", "url": "https://bank.example", "mode": "keyed"}},
                "onDone": {
                    "target": "paid", "actions": {"type": "mailClaimant", "params": {"text": "Your money is coming."}}
                },
                "onError": {"target": "payout failed", "actions": {"type": "log", "params": {"@expr": "event.error"}}},
            },
            "on": {"mail.failed": {}},
        },
        "payout failed": {
            "entry": {"type": "createTask", "params": {"type": "HUMAN", "name": "look into it", "groups": ["finance"]}},
            "on": {"task.done.look into it": "payout"},
        },
        "paid": {"type": "final"},
        "rejected": {"type": "final"},
        "withdrawn": {"type": "final"},
    },
    "on": {
        "task.done.decide": [
            {"guard": {"@expr": "event.output.approved == true"}, "target": ".payout", "actions": "remember"},
            {"target": ".rejected", "actions": ["remember", {"type": "mailClaimant", "params": {"text": "Sorry."}}]},
        ],
        "APPROVE": ".payout",
        "REJECT": ".rejected",
    },
}  # fmt: skip

BOOKING: dict[str, Any] = {
    "id": "booking",
    "context": {"trip": {"@expr": "event.input"}},
    "initial": "booking",
    "states": {
        "booking": {
            "type": "parallel",
            "states": {
                "flight": {
                    "initial": "asking",
                    "states": {
                        "asking": {
                            "invoke": {"id": "flight", "src": "book.flight", "onDone": "booked", "onError": "#undoing"}
                        },
                        "booked": {"type": "final"},
                    },
                },
                "hotel": {
                    "initial": "asking",
                    "states": {
                        "asking": {
                            "invoke": {
                                "id": "hotel", "src": {"workflow": "book-hotel"}, "input": {"@expr": "context.trip"},
                                "onDone": "booked", "onError": [{"target": "asking by phone"}],
                            }
                        },
                        "asking by phone": {
                            "entry": {
                                "type": "createTask",
                                "params": {"type": "HUMAN", "name": "call the hotel", "groups": ["travel desk"]},
                            },
                            "on": {
                                "task.done.call the hotel": [
                                    {"target": "booked", "guard": {"@expr": "event.output.booked"}},
                                    {"target": "#undoing"},
                                ]
                            },
                        },
                        "booked": {"type": "final"},
                    },
                },
                "clock": {
                    "initial": "running",
                    "states": {
                        "running": {"after": {"PT2H": "late", "P1D": "#undoing"}},
                        "late": {
                            "entry": {"type": "raise", "event": "LATE"},
                            "on": {"LATE": {"actions": {"type": "emit", "event": {"type": "booking.late"}}}},
                        },
                    },
                },
            },
            "always": {"guard": {"and": [
                {"stateIn": "booking.flight.booked"}, {"stateIn": "booking.hotel.booked"}]}, "target": "confirmed"},
            "on": {"CANCEL": "undoing"},
        },
        "undoing": {
            "id": "undoing",
            "invoke": {"src": "undo.booking", "onDone": "given up", "onError": "needs help"},
        },
        "needs help": {"on": {"SETTLED": "given up"}},
        "confirmed": {"type": "final", "output": {"@expr": "context.trip"}},
        "given up": {"type": "final"},
    },
}  # fmt: skip

TRAFFIC_LIGHT: dict[str, Any] = {
    "id": "light",
    "initial": "green",
    "states": {
        "green": {"after": {"30000": "yellow"}},
        "yellow": {"after": {"3000": "red"}},
        "red": {
            "initial": "walk",
            "states": {
                "walk": {"after": {"20000": "wait"}},
                "wait": {"after": {"5000": "stop"}},
                "stop": {"type": "final"},
            },
            "onDone": "green",
        },
    },
    "on": {"POWER_OUT": {"target": ".red", "actions": {"type": "log", "params": "power is out"}}},
}

RETRY: dict[str, Any] = {
    "id": "import",
    "context": {"tries": 0, "rows": 0},
    "initial": "idle",
    "guards": {"again": {"@expr": "context.tries < 3"}},
    "actions": {"count": {"type": "assign", "assign": {"tries": {"@expr": "context.tries + 1"}}}},
    "states": {
        "idle": {"on": {"GO": "fetching"}},
        "fetching": {
            "entry": "count",
            "invoke": {
                "src": {"task": {"type": "SYSTEM", "name": "fetch rows", "handler": "rows.fetch"}},
                "onDone": {"target": "done", "actions": {
                    "type": "choose",
                    "conds": [
                        {
                            "guard": {"@expr": "has(event.output) && event.output.rows > 0"},
                            "actions": {"type": "assign", "assign": {"rows": {"@expr": "event.output.rows"}}},
                        },
                        {"actions": {"type": "log", "params": "nothing there"}},
                    ],
                }},
                "onError": "failed",
            },
        },
        "failed": {"always": [{"guard": {"not": "again"}, "target": "given up"}], "after": {"1000": "fetching"}},
        "given up": {"type": "final"},
        "done": {"type": "final"},
    },
    "output": {"rows": {"@expr": "context.rows"}},
}  # fmt: skip

EDITOR: dict[str, Any] = {
    "id": "editor",
    "type": "parallel",
    "states": {
        "text": {
            "initial": "clean",
            "states": {
                "clean": {"on": {"TYPE": "dirty"}},
                "dirty": {
                    "on": {"SAVE": "clean"},
                    "entry": {"type": "raise", "event": "AUTOSAVE", "delay": "PT5M", "id": "autosave"},
                    "exit": {"type": "cancel", "id": "autosave"},
                },
            },
            "on": {"AUTOSAVE": ".clean"},
        },
        "window": {
            "initial": "open",
            "states": {
                "open": {
                    "initial": "page",
                    "states": {
                        "page": {"on": {"OUTLINE": "outline"}},
                        "outline": {"on": {"PAGE": "page"}},
                        "again": {"type": "history", "target": "page"},
                    },
                    "on": {"MINIMIZE": "icon"},
                },
                "icon": {"on": {"RESTORE": "open.again"}},
            },
        },
    },
    "on": {"menu.*": {"actions": {"type": "log", "params": {"@expr": "event.type"}}}},
}

REALISTIC = {
    chart["id"]: chart for chart in (ORDER, EXPENSE, BOOKING, TRAFFIC_LIGHT, RETRY, EDITOR)
}  # fmt: skip


def found(document: dict[str, Any]) -> list[Problem]:
    read = doc.reread(document)
    return lint(compile_chart(read), read)


def with_states(**states: Any) -> dict[str, Any]:
    """A chart that is fine, but for these states. Its first is `first`."""
    return {
        "id": "c",
        "initial": "first",
        "states": {"first": {"on": {"GO": "end"}}, "end": {"type": "final"}} | states,
    }


@pytest.mark.parametrize("name", REALISTIC)
def test_a_chart_that_is_fine_gets_no_warning(name: str) -> None:
    assert found(REALISTIC[name]) == []


def only(document: dict[str, Any]) -> Problem:
    """The one warning that there is."""
    [problem] = found(document)
    assert problem.level == "warning"
    return problem


# -- states


def test_a_state_that_nothing_leads_to() -> None:
    problem = only(with_states(lost={"initial": "in", "states": {"in": {"on": {"X": "in"}}}}))
    assert problem.path == "/states/lost"  # and nothing about the state inside
    assert "nothing leads to the state lost" in problem.message


def test_targets_initial_history_always_after_and_regions_all_lead_somewhere() -> None:
    document = with_states(
        first={"on": {"A": "#deep"}, "always": {"target": "b", "guard": {"@expr": "event.type == 'x'"}}},
        b={"after": {"5": "c.past"}},
        c={
            "initial": "c1",
            "states": {
                "c1": {"on": {"GO": "#c.d"}},
                "c2": {"on": {"GO": "c1"}},
                "past": {"type": "history", "target": "c2"},
            },
        },
        d={"type": "parallel", "states": {"l": {}, "r": {"initial": "r1", "states": {"r1": {"id": "deep"}}}},
           "on": {"GO": "end"}},
    )  # fmt: skip
    assert found(document) == []


def test_a_history_state_nobody_returns_to() -> None:
    document = with_states(first={
        "initial": "a", "states": {"a": {}, "h": {"type": "history"}}, "on": {"GO": "end"},
    })  # fmt: skip
    assert only(document).path == "/states/first/states/h"


def test_a_dead_end() -> None:
    problem = only(with_states(first={"on": {"GO": "end", "STOP": "stopped"}}, stopped={}))
    assert problem.path == "/states/stopped"
    assert "type final" in problem.message


def test_a_region_that_rests_is_no_dead_end_when_its_neighbour_moves_on() -> None:
    document = with_states(first={
        "type": "parallel",
        "states": {"rests": {}, "works": {"initial": "a", "states": {"a": {"on": {"GO": "#c.end"}}}}},
    })  # fmt: skip
    assert found(document) == []
    document["states"]["first"]["states"]["works"]["states"]["a"] = {"on": {"GO": {"actions": {"type": "log"}}}}
    document["states"]["end"] = {"type": "final"}
    assert [p.path for p in found(document)] == ["/states/end", "/states/first/states/rests"]


def test_a_final_state_that_ends_its_parent_unheard() -> None:
    document = with_states(first={
        "initial": "a", "states": {"a": {"on": {"GO": "z"}}, "z": {"type": "final"}},
    })  # fmt: skip
    problems = found(document)
    assert [p.path for p in problems] == ["/states/end", "/states/first/states/z"]
    assert "onDone" in problems[1].message
    document["states"]["first"]["onDone"] = "end"
    assert found(document) == []


def test_a_parallel_chart_is_done_by_its_regions() -> None:
    region = {"initial": "a", "states": {"a": {"on": {"GO": "z"}}, "z": {"type": "final"}}}
    assert found({"id": "c", "type": "parallel", "states": {"l": region, "r": region}}) == []


# -- transitions and guards


def test_a_transition_behind_an_unguarded_one_is_never_taken() -> None:
    problem = only(with_states(first={"on": {"GO": ["end", {"target": "end", "guard": {"@expr": "event.x == 1"}}]}}))
    assert problem.path == "/states/first/on/GO/1"
    assert "/states/first/on/GO/0" in problem.message


def test_a_transition_behind_one_with_the_same_guard_is_never_taken() -> None:
    guard = {"@expr": "event.x == 1"}
    twice = [{"target": "end", "guard": guard}, {"guard": guard, "actions": {"type": "log"}}]
    assert only(with_states(first={"on": {"GO": twice}})).path == "/states/first/on/GO/1"


@pytest.mark.parametrize(
    ("text", "word"), [("true", "always holds"), ("1 > 2", "never holds"), ("'context.a' == ''", "never")]
)
def test_a_guard_that_looks_at_nothing(text: str, word: str) -> None:
    problem = only(with_states(first={"on": {"GO": {"target": "end", "guard": {"@expr": text}}}}))
    assert problem.path == "/states/first/on/GO/guard"
    assert word in problem.message


def test_a_named_guard_that_looks_at_nothing_is_reported_once_where_it_stands() -> None:
    document = with_states(first={"on": {"GO": {"target": "end", "guard": "yes"}, "TOO": {"guard": "yes"}}})
    assert only(document | {"guards": {"yes": {"@expr": "true"}}}).path == "/guards/yes"


def test_an_always_that_stays_and_assigns_never_rests() -> None:
    assign = {"type": "assign", "assign": {"n": 1}}
    document = with_states(first={"always": {"actions": assign}, "on": {"GO": "end"}})
    problem = only(document)
    assert problem.path == "/states/first/always"
    assert "1,000 microsteps" in problem.message
    document["states"]["first"]["always"]["guard"] = {"@expr": "context.n != 1"}
    assert found(document | {"context": {"n": 0}}) == []


def test_an_always_that_stays_is_taken_at_every_event() -> None:
    document = with_states(first={"always": {"actions": {"type": "log"}}, "on": {"GO": "end"}})
    assert "taken at every event" in only(document).message


def test_always_in_a_circle() -> None:
    document = with_states(
        first={"always": [{"target": "second"}], "on": {"GO": "end"}},
        second={"initial": "in", "states": {"in": {"always": "#c.first"}}},
    )
    problem = only(document)
    assert problem.path == "/states/first/always/0"
    assert "first → second.in → first" in problem.message


def test_a_chart_that_goes_round_by_always_with_guards_is_fine() -> None:
    document = with_states(
        first={"always": {"target": "second", "guard": {"@expr": "context.n > 1"}}, "on": {"GO": "end"}},
        second={"always": "first"},
    )
    assert found(document | {"context": {"n": 0}}) == []


@pytest.mark.parametrize("key", ["0", "PT0S", "none"])
def test_after_no_time(key: str) -> None:
    document = with_states(first={"after": {key: "end"}}) | {"delays": {"none": 0} if key == "none" else {}}
    assert only(document).path == f"/states/first/after/{key}"


# -- events


def test_a_raised_event_that_no_state_handles() -> None:
    raise_ = {"type": "raise", "event": {"type": "NOBODY", "n": {"@expr": "event.n"}}}
    problem = only(with_states(first={"entry": [raise_], "on": {"GO": "end"}}))
    assert problem.path == "/states/first/entry/0/event"
    assert "'NOBODY'" in problem.message


def test_a_raised_event_that_a_wildcard_takes_is_handled() -> None:
    entry = {"type": "raise", "event": "order.paid"}
    assert found(with_states(first={"entry": entry, "on": {"GO": "end", "order.*": "end"}})) == []


def test_a_cancel_that_finds_nothing() -> None:
    entry = [{"type": "cancel", "id": "x"}, {"type": "cancelTask", "params": {"name": "y"}}]
    problems = found(with_states(first={"entry": entry, "on": {"GO": "end"}}))
    assert [p.path for p in problems] == ["/states/first/entry/0/id", "/states/first/entry/1/params/name"]


def swallowing(first: dict[str, Any]) -> list[str]:
    return [p.message for p in found(with_states(first=first)) if p.path.endswith("/on/*")]


def test_a_star_takes_the_timer_of_the_state_around_it() -> None:
    inner = {"initial": "a", "states": {"a": {"on": {"*": {"actions": {"type": "log"}}}}}}
    [message] = swallowing(inner | {"after": {"P1D": "end"}, "on": {"GO": "end"}})
    assert "after P1D" in message
    assert swallowing(inner | {"on": {"GO": "end"}}) == []


def test_a_star_takes_what_the_states_inside_let_pass() -> None:
    inner = {"initial": "a", "states": {"a": {"on": {"X": "z"}}, "z": {"type": "final"}}}
    [message] = swallowing(inner | {"on": {"*": "end"}})
    assert "done" in message
    assert swallowing(inner | {"on": {"*": "end"}, "onDone": "end"}) == []
    asked = {"invoke": {"src": "f", "onDone": "end"}, "on": {"*": {}}}
    [message] = swallowing(asked)
    assert "error invoke" in message
    assert swallowing(asked | {"on": {"*": {}, "xstate.error.actor.*": {}}}) == []


def test_a_star_takes_what_its_neighbour_region_waits_for() -> None:
    first = {
        "type": "parallel",
        "states": {"l": {"after": {"5": {"actions": {"type": "log"}}}}, "r": {"on": {"*": {}}}},
        "on": {"GO": "end"},
    }
    [message] = swallowing(first)
    assert "after 5 ms" in message


def test_a_star_is_fine_where_nothing_internal_happens() -> None:
    assert swallowing({"on": {"*": "end"}, "after": {"5": "end"}}) == []


@pytest.mark.parametrize(
    ("event", "word", "taken"),
    [
        ("a", "*", True),
        ("a.b", "a.*", True),
        ("a", "a.*", True),
        ("ab", "a.*", False),
        ("a", "a", True),
        ("a", "b", False),
    ],
)
def test_wildcards_match_as_the_interpreter_matches_them(event: str, word: str, taken: bool) -> None:
    from holdfast.engine.charts.selection import _matches

    assert matches(event, word) is taken
    assert _matches(event, word) or word == event or not taken


# -- invokes and tasks


def test_an_invoke_without_on_error() -> None:
    problem = only(with_states(first={"invoke": {"src": "ledger.post", "onDone": "end"}}))
    assert (problem.path, "'ledger.post'" in problem.message) == ("/states/first/invoke", True)
    problem = only(with_states(first={"invoke": [{"src": {"workflow": "w"}, "onDone": "end"}]}))
    assert (problem.path, "workflow 'w'" in problem.message) == ("/states/first/invoke/0", True)


def test_an_error_that_a_state_around_handles_is_handled() -> None:
    document = with_states(first={"invoke": {"id": "i", "src": "f", "onDone": "end"}})
    assert found(document | {"on": {"xstate.error.actor.i": ".end"}}) == []


def test_a_person_and_a_clock_do_not_fail_by_themselves() -> None:
    human = {"task": {"type": "HUMAN", "name": "h", "assignee": "a"}}
    timer = {"task": {"type": "TIMER", "name": "t", "delay": "PT1H"}}
    for src in (human, timer):
        assert found(with_states(first={"invoke": {"src": src, "onDone": "end"}})) == []


def creating(**params: Any) -> dict[str, Any]:
    return with_states(first={"entry": {"type": "createTask", "params": {"name": "t"} | params}, "on": {"GO": "end"}})


PROMPT = {"id": "p", "version": 1, "user": "What now?"}
AUTOMATIC: dict[str, dict[str, Any]] = {
    "HTTP": {"url": "https://x.example"},
    "EMAIL": {"to": "a@x.example", "subject": "s", "text": "t"},
    "AI": {"prompt": PROMPT},
    "SYSTEM": {},
}


@pytest.mark.parametrize("type_", AUTOMATIC)
def test_an_automatic_task_whose_failure_nobody_handles(type_: str) -> None:
    problem = only(creating(type=type_, **AUTOMATIC[type_]))
    assert problem.path == "/states/first/entry/params"
    assert "task.failed.t" in problem.message
    handled = creating(type=type_, **AUTOMATIC[type_]) | {"on": {"task.failed.*": ".end"}}
    assert found(handled) == []


@pytest.mark.parametrize("key", ["completion_event", "failure_event"])
def test_an_answer_that_nobody_handles(key: str) -> None:
    problem = only(creating(type="TIMER", delay="PT1S", **{key: "ANSWER"}))
    assert problem.path == f"/states/first/entry/params/{key}"
    assert found(creating(type="TIMER", delay="PT1S", **{key: "GO"})) == []


def test_a_policy_that_allows_an_event_no_state_handles() -> None:
    policy = {"allowed_events": ["GO", "APPROVE"]}
    problem = only(creating(type="AI", prompt=PROMPT, failure_event="GO", policy=policy))
    assert problem.path == "/states/first/entry/params/policy/allowed_events/1"
    assert "'APPROVE'" in problem.message


def test_a_human_task_for_nobody() -> None:
    assert only(creating(type="HUMAN")).path == "/states/first/entry/params"
    assert found(creating(type="HUMAN", groups=["all"])) == []
    assert found(creating(type="HUMAN", assignee={"@expr": "event.input.boss"})) == []


# -- names


def test_entries_that_nobody_uses() -> None:
    document = with_states(first={"on": {"GO": {"target": "end", "guard": {"and": ["a", {"type": "b"}]}}}}) | {
        "guards": {
            "a": {"@expr": "event.a"}, "b": "c", "c": {"@expr": "event.c"}, "lonely": "a",
        },
        "actions": {"x": {"type": "log"}, "y": "x"},
        "delays": {"long": "P1D"},
    }  # fmt: skip
    assert [p.path for p in found(document)] == ["/guards/lonely", "/actions/x", "/actions/y", "/delays/long"]


def test_a_context_field_that_nobody_sets() -> None:
    document = with_states(first={"on": {"GO": {"target": "end", "guard": {"@expr": "context.amuont > 1"}}}})
    problem = only(document | {"context": {"amount": 1}})
    assert problem.path == "/states/first/on/GO/guard"
    assert "context.amuont" in problem.message


@pytest.mark.parametrize(
    "text",
    ["has(context.later) && context.later > 1", "event.context.x == 1", "'context.x' == event.y", "context.amount > 1"],
)
def test_fields_that_are_asked_for_first_or_are_no_fields(text: str) -> None:
    document = with_states(first={"on": {"GO": {"target": "end", "guard": {"@expr": text}}}})
    assert found(document | {"context": {"amount": 1}}) == []


def test_nothing_is_known_about_a_context_that_is_computed_whole() -> None:
    document = with_states(first={"on": {"GO": {"target": "end", "guard": {"@expr": "context.x == 1"}}}})
    assert found(document | {"context": {"@expr": "event.input"}}) == []


def test_the_initial_context_cannot_read_itself() -> None:
    assert only(with_states() | {"context": {"a": 1, "b": {"@expr": "context.a"}}}).path == "/context/b"


def test_names_that_differ_only_in_case() -> None:
    document = with_states(
        first={"on": {"GO": "end", "go": "First"}, "entry": {"type": "assign", "assign": {"Total": 1}}},
        First={"on": {"GO": "end"}},
    ) | {"context": {"total": 0}}
    paths = [p.path for p in found(document)]
    assert paths == ["/states/first/on/go", "/states/first/entry/assign/Total", "/states/First"]


# -- all together


def test_every_warning_points_into_the_document() -> None:
    broken = copy.deepcopy(EXPENSE)
    broken["states"]["lost~and found"] = {
        "entry": {"type": "raise", "event": "X"},
        "on": {"*": {}, "A": ["paid", "paid"]},
    }
    broken["guards"]["a/b"] = {"@expr": "true"}
    document = doc.reread(broken)
    problems = found(document)
    assert len(problems) >= 3
    for problem in problems:
        at: Any = document
        for piece in problem.path.split("/")[1:]:
            key = piece.replace("~1", "/").replace("~0", "~")
            at = at[int(key)] if isinstance(at, list) else at[key]


def test_a_chart_full_of_mistakes_is_answered_with_a_list_that_ends() -> None:
    problems = found(with_states(**{f"lost{n}": {} for n in range(500)}))
    assert len(problems) == WARNINGS_MAX + 1
    assert "300 more" in problems[-1].message


@pytest.mark.parametrize("type_", ["compound", "parallel"])
def test_the_largest_chart_is_looked_at_in_no_time(type_: str) -> None:
    """What is compared with everything else would take minutes here."""
    states = {
        f"s{n}": {"on": {"*": {}}, "after": {"5": {}}, "invoke": {"id": f"i{n}", "src": "f", "onDone": {}}}
        for n in range(900)
    }
    document = {"id": "c", "type": type_, "states": states} | ({"initial": "s0"} if type_ == "compound" else {})
    assert len(found(document)) == WARNINGS_MAX + 1
