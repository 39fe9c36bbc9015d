"""A history read as a journal, and the readable difference when the code says otherwise."""

import pytest

from holdfast.engine import history as h
from holdfast.engine.codec import digest
from holdfast.engine.journal import (
    ANSWERS,
    ENDINGS,
    OPENINGS,
    UNDOINGS,
    Recorded,
    contradiction,
    read,
    space_of,
    words_from,
)

TYPES = [value for name, value in vars(h).items() if name.isupper() and isinstance(value, str)]


CHARTS = (
    h.EVENT_RECEIVED, h.EVENT_IGNORED, h.EVENT_DROPPED, h.EVENT_SENT, h.EVENT_EMITTED, h.STATE_TRANSITION, h.LOGGED,
    h.TASK_CREATED, h.TASK_STARTED, h.TASK_RETRIED, h.TASK_COMPLETED, h.TASK_FAILED, h.TASK_CANCELLED, h.TASK_LATE,
    h.TASK_LEFT, h.TASK_SKIPPED,
    h.TIMER_CANCELLED, h.DECISION_RECORDED, h.ERROR, h.INCIDENT_RAISED, h.INSTANCE_MIGRATED,
)  # fmt: skip


def test_every_type_of_row_answers_opens_ends_undoes_or_is_none_of_a_calls_business() -> None:
    known = [set(ANSWERS), set(OPENINGS), set(ENDINGS), set(UNDOINGS)]
    assert sum(map(len, known)) == len(set.union(*known))  # none has two meanings
    assert set(TYPES) - set.union(*known) == {
        h.INSTANCE_STARTED, h.INSTANCE_COMPLETED, h.INSTANCE_FAILED, h.INSTANCE_CANCELLED, h.INSTANCE_PARKED,
        h.INSTANCE_PAUSED, h.INSTANCE_RESUMED, h.INSTANCE_RETRIED, h.INSTANCE_WAITING,
        h.INSTANCE_RESTARTED, *CHARTS,
    }  # fmt: skip


@pytest.mark.parametrize(("type_", "kind"), ANSWERS.items())
def test_an_answering_row_answers_a_call_of_its_kind(type_: str, kind: str) -> None:
    journal = read([(7, type_, "x", b'{"result":5}')])
    recorded = journal.calls[space_of(kind), "x"]
    assert (recorded.kind, recorded.answer_seq, recorded.answer_type) == (kind, 7, type_)
    assert recorded.answer is not None and bytes(recorded.answer.result) == b"5"
    assert recorded.opened is None


@pytest.mark.parametrize(("type_", "kind"), OPENINGS.items())
def test_an_opening_row_opens_a_call_and_does_not_answer_it(type_: str, kind: str) -> None:
    recorded = read([(7, type_, "x", b'{"attempt":2}')]).calls[space_of(kind), "x"]
    assert (recorded.kind, recorded.answer_seq, recorded.answer, recorded.opened_type) == (kind, 0, None, type_)
    assert recorded.opened is not None and recorded.opened.attempt == 2


def test_a_call_is_folded_from_all_its_rows_and_the_latest_opening_counts() -> None:
    journal = read(
        [
            (1, h.INSTANCE_STARTED, "order", b'{"definition":"order"}'),
            (2, h.EFFECT_STARTED, "pay", b'{"args":[5],"attempt":1}'),
            (3, h.EFFECT_UNKNOWN, "pay", b'{"attempt":1,"opens_at":99}'),
            (4, h.EFFECT_RETRIED, "pay", b'{"attempt":1,"retry_at":50}'),
            (5, h.STEP_COMPLETED, "other", b'{"args":[],"result":1}'),
            (6, h.EFFECT_SUCCEEDED, "pay", b'{"result":"receipt","attempt":2}'),
        ]
    )
    pay = journal.calls["", "pay"]
    assert (pay.kind, pay.args, pay.answer_seq, pay.opened_type) == ("effect", b"[5]", 6, h.EFFECT_RETRIED)
    assert pay.opened is not None and pay.opened.retry_at == 50
    assert set(journal.calls) == {("", "pay"), ("", "other")}


def test_signals_and_values_have_names_of_their_own() -> None:
    journal = read(
        [
            (1, h.STEP_COMPLETED, "now", b'{"result":1}'),
            (2, h.VALUE_RECORDED, "now", b'{"result":2}'),
            (3, h.SIGNAL_RECEIVED, "now", b'{"result":3}'),
        ]
    )
    assert {space: one.kind for (space, _), one in journal.calls.items()} == {
        "": "step", "value": "value", "signal": "signal",
    }  # fmt: skip


def test_how_an_instance_ends_and_what_was_undone_is_read_too() -> None:
    journal = read(
        [
            (4, h.INSTANCE_FAILING, "", b'{"reason":"broke"}', b"", 99),
            (5, h.COMPENSATION_STARTED, "pay", b'{"attempt":1}'),
            (6, h.COMPENSATION_COMPLETED, "pay", b"{}"),
            (7, h.COMPENSATION_RETRIED, "ship", b'{"attempt":1}'),
        ]
    )
    assert (journal.ending_type, journal.ending_seq, journal.ending_at) == (h.INSTANCE_FAILING, 4, 99)
    assert journal.ending is not None and journal.ending.reason == "broke"
    assert journal.undone["pay"].answer_type == h.COMPENSATION_COMPLETED
    assert journal.undone["ship"].answer_seq == 0
    assert journal.calls == {}


def test_a_compensation_is_an_effect_where_its_rows_say_by_which_mode() -> None:
    """Rows of an earlier version say none: they are those of a step, which is begun again."""
    journal = read(
        [
            (5, h.COMPENSATION_RETRIED, "book", b'{"attempt":1,"retry_at":7}'),
            (6, h.COMPENSATION_STARTED, "pay", b'{"args":["p-1"],"attempt":1,"mode":"manual"}'),
        ]
    )
    assert (journal.undone["book"].kind, journal.undone["book"].is_open_effect) == ("step", False)
    assert (journal.undone["pay"].kind, journal.undone["pay"].is_open_effect) == ("effect", True)
    assert journal.effect("undo:pay") is journal.undone["pay"] and journal.effect("undo:book") is None


def test_two_journals_share_nothing() -> None:
    first = read([(1, h.COMPENSATION_COMPLETED, "pay", b"{}")])
    assert read([]).undone == {} and first.undone != {}


def test_fields_a_later_release_may_add_are_overlooked() -> None:
    assert bytes(words_from(b'{"result":[1],"colour":"red"}').result) == b"[1]"


def test_a_call_that_says_the_same_contradicts_nothing() -> None:
    inline = Recorded("step", args=b"[1]")
    hashed = Recorded("step", args_hash=digest(b"[1]"))
    assert contradiction("pay", "step", b"[1]", "", inline) is None
    assert contradiction("pay", "step", b"", digest(b"[1]"), hashed) is None
    assert contradiction("nap", "sleep", b"", "", Recorded("sleep")) is None
    assert contradiction("pay", "step", b"[1]", "", Recorded("step")) is None  # nothing was recorded to compare with


def test_another_kind_is_told_in_words() -> None:
    said = contradiction("pay", "effect", b"[1]", "", Recorded("step", args=b"[1]"))
    assert said == "'pay' is recorded as a step, the code now asks for an effect"


def test_other_arguments_are_shown_beside_the_recorded_ones() -> None:
    said = contradiction("pay", "step", b"[2]", "", Recorded("step", args=b"[1]"))
    assert said == "'pay' is recorded with the arguments [1], the code now passes [2]"


def test_large_arguments_are_compared_by_their_hash() -> None:
    one, other = digest(b"one"), digest(b"other")
    hashed = Recorded("step", args_hash=one)
    assert contradiction("pay", "step", b"", other, hashed) == (
        f"'pay' is recorded with arguments of hash {one[:16]}…, the code now passes hash {other[:16]}…"
    )
    assert contradiction("pay", "step", b"[2]", "", hashed) == (
        f"'pay' is recorded with arguments of hash {one[:16]}…, the code now passes [2]"
    )
    assert contradiction("pay", "step", b"", other, Recorded("step", args=b"[1]")) == (
        "'pay' is recorded with the arguments [1], the code now passes larger ones"
    )


def test_a_difference_stays_short_enough_to_read() -> None:
    said = contradiction("pay", "effect", b'["%s"]' % (b"b" * 5000), "", Recorded("effect", args=b"[1]"))
    assert said is not None and len(said) < 400 and said.endswith("b…")


def test_a_journal_is_that_of_the_last_epoch() -> None:
    rows = [
        (1, h.INSTANCE_STARTED, "w", b"{}"), (2, h.STEP_COMPLETED, "a", b'{"result":1}'),
        (3, h.WAIT_STARTED, "s", b'{"deadline":null}'),
        (4, h.INSTANCE_RESTARTED, "w", b'{"epoch":1,"input_hash":"x","input":{"n":2}}'),
        (5, h.STEP_COMPLETED, "b", b'{"result":2}'),
    ]  # fmt: skip
    whole, since = read(rows), read(rows[3:])
    for journal in (whole, since):
        assert journal.calls.keys() == {("", "b")}
        assert journal.restart is not None
        assert (journal.restart.epoch, bytes(journal.restart.input)) == (1, b'{"n":2}')
    assert read(rows[:3]).restart is None
