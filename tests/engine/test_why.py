"""One sentence, and of several reasons the one that stands in the way of all others."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engine.why import Attempt, Child, Facts, Person, Retried, Signal, Timer, Unknown, why

T = 1_767_258_000_000_000  # 2026-01-01T09:00:00Z
HELD: dict[str, Any] = {"held_by": "wrk_1", "held_at": T}
WAITS: dict[str, Any] = {"timers": [Timer("nap", T)]}
DUE: dict[str, Any] = {"run_at": T, "now": T}


def said(status: str = "waiting", **known: Any) -> str:
    return why(Facts(**{"status": status, "now": T} | known))


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"status": "completed", **HELD}, "It has completed"),
        (
            {"status": "failed", "error": "late", "undone": True},
            "It failed (late) and was undone: fork it from the first",
        ),
        ({"status": "failed", "error": "no\nmoney."}, "It failed (no money): retry it to go on from there, or fork it"),
        ({"status": "failed", "error": "no", "kind": "chart"}, "It failed (no): start a new one."),
        ({"status": "cancelled", "error": "no", "kind": "chart"}, "It was cancelled (no): start a new one."),
        (
            {"status": "cancelled", "error": "no", "retried": Retried("ins_2", "waiting")},
            "It was cancelled (no) and was tried again as ins_2, which is waiting: look at that one.",
        ),
        ({"status": "cancelled", "error": "enough"}, "It was cancelled (enough)"),
        ({"quarantined_at": T, **HELD}, "The database has been in quarantine since 2026-01-01T09:00:00Z"),
        ({**HELD, "paused": "paused by ann"}, "Worker wrk_1 has held it since 2026-01-01T09:00:00Z and is at work"),
        ({**HELD, "holder_gone": True}, "Worker wrk_1 has held it since 2026-01-01T09:00:00Z and is gone"),
        ({"paused": "paused by ann", "incident": "x", **DUE}, "It is paused by ann."),
        ({"incident": "no such key", **WAITS}, "A step of its chart was refused (no such key)"),
        ({"contradiction": "the code contradicts its journal: x", **WAITS}, "The code contradicts its journal: x: "),
        ({"status": "pending", "run_at": T + 1_000_000}, "It is to start at 2026-01-01T09:00:01Z"),
        ({**DUE, "workers": 0, "missing": ["x"]}, "It has been due since 2026-01-01T09:00:00Z, and no worker is alive"),
        ({**DUE, "missing": ["handler 'a'", "handler 'b'"]}, "no living worker has handler 'a' and handler 'b': start"),
        ({**DUE, "ahead": 7, **WAITS}, "queue 'default' has 7 before it"),
        ({**DUE, "ahead": 1001}, "has more than 1,000 before it"),
        ({**DUE}, "is the next in queue 'default': a worker of that queue claims it at its next look."),
        ({"run_at": T - 9_000_000, "now": T}, "at its next look, which one that runs an instance alone"),
        ({"run_at": T + 1, "status": "running"}, "it is tried again at 2026-01-01T09:00:00Z: the time moves it."),
        (
            {"run_at": T + 1, "waiting_on": "timer 'nap'", **WAITS},
            "It waits for the timer 'nap' at 2026-01-01T09:00:00Z.",
        ),
        ({"status": "compensating", **WAITS}, "It is being undone and waits for the timer 'nap'"),
        ({"people": [Person("Sign", T, None, ["a", "b"])]}, "It waits for somebody of a or b to take the task 'Sign'"),
        ({"people": [Person("Sign", T)]}, "It waits for somebody to take the task 'Sign', open since 2026-01-01T09"),
        ({"people": [Person("Sign", T, "bob")]}, "It waits for bob to finish the task 'Sign'"),
        ({"signals": [Signal("go", None)]}, "It waits for the signal 'go'."),
        ({"attempts": [Attempt("step 'x'", 2, 0, T)]}, "It waits for attempt 2 of step 'x' at 2026-01-01T09:00:00Z."),
        (
            {"attempts": [Attempt("step 'x'", 2, 3, T, by_retry=True)]},
            "It waits for attempt 2 of 3 of step 'x' at 2026-01-01T09:00:00Z (a retry begins it at once).",
        ),
        ({"hole": "its history has a hole: row 3 is missing"}, "bring back what is missing, then resume it."),
        ({"hole": "its history has a hole: row 3 was", "lost_its_end": True}, "Compare with the providers what it did"),
        ({"contradiction": "it died: mend its code, then retry it"}, "It died: mend its code, then retry it."),
        (
            {"status": "failed", "error": "no", "undone_in_part": True},
            "was undone in part: fork it from the first step",
        ),
        ({"children": [Child("kid", "ins_1", "waiting")]}, "It waits for child 'kid' (ins_1, waiting) to end."),
        ({"attempts": [Attempt("a lookup of effect 'x'", 0, 0, T)]}, "It waits for a lookup of effect 'x' at 2026"),
        ({"state": "review", "ending": "failed", **WAITS}, "It is ending (failed) and waits for the timer"),
        (
            {"state": "review", "ending": "failed", "waiting_on": "its end"},
            "It is ending (failed) and waits for its end.",
        ),
        ({"state": "review"}, "It waits for an event that moves it on from 'review'."),
        ({"waiting_on": "nothing: it needs a person"}, "It waits for nothing: it needs a person."),
        ({}, "It waits for its next turn."),
    ],
)
def test_the_sentence_names_what_stands_in_the_way(known: dict[str, Any], words: str) -> None:
    found = said(**known)
    assert words in found
    assert found[0].isupper() and found.endswith(".") and "\n" not in found


def test_people_come_before_times_and_what_is_too_much_is_counted() -> None:
    found = said(
        timers=[Timer("late", T + 5_000_000), Timer("soon", T)], unknown=[Unknown("pay", T)],
        signals=[Signal("go", T)], people=[Person("Sign", T)],
    )  # fmt: skip
    assert found.startswith("It waits for a person to say at the effect desk what became of effect 'pay'")
    assert found.endswith("; and for the signal 'go', at the latest until 2026-01-01T09:00:00Z; and for 2 more.")
