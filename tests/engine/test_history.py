"""Tampering shows: whatever is done to a history, the first row that does not follow is named."""

import random
from typing import Any

import pytest

from holdfast.engine.history import first_bad_row, genesis, payload_seal, seal

TENANT, INSTANCE = "acme", bytes(range(16))
COLUMNS = ("seq", "type", "name", "fence", "at", "payload", "salt", "hash", "payload_hash")
Row = tuple[Any, ...]


def a_history(length: int, tenant: str = TENANT, instance: bytes = INSTANCE, seed: int = 1) -> list[Row]:
    """Rows as the store reads them: (seq, type, name, fence, at, payload, salt, hash, payload_hash)."""
    chance = random.Random(seed)
    rows: list[Row] = []
    previous, fence, at = genesis(tenant, instance), 1, 1_000_000
    for seq in range(1, length + 1):
        fence, at = fence + chance.choice((0, 0, 0, 1)), at + chance.randrange(5)
        type_, name = (
            chance.choice(("STEP_COMPLETED", "EFFECT_STARTED", "TIMER_FIRED")),
            chance.choice(("pay", "wait#2")),
        )
        payload, salt = chance.choice((b"{}", b'{"result":1}', b'{"args":[],"result":"x"}')), chance.randbytes(16)
        previous = seal(previous, seq, type_, name, fence, at, payload_seal(salt, payload))
        rows.append((seq, type_, name, fence, at, payload, salt, previous, None))
    return rows


def edited(row: Row, **columns: Any) -> Row:
    return tuple(columns.get(name, value) for name, value in zip(COLUMNS, row, strict=True))


def erased(row: Row) -> Row:
    return edited(row, payload=None, salt=None, payload_hash=payload_seal(row[6], row[5]))


def bad_seq(rows: list[Row], tenant: str = TENANT, instance: bytes = INSTANCE) -> int | None:
    found = first_bad_row(tenant, instance, rows)
    return None if found is None else found[0]


def renumbered(rows: list[Row]) -> list[Row]:
    return [edited(row, seq=seq) for seq, row in enumerate(rows, 1)]


def other(value: Any, chance: random.Random) -> Any:
    """Some other value of the same sort."""
    if isinstance(value, int):
        return value + chance.choice((-1, 1, 1000))
    raw = value if isinstance(value, bytes) else value.encode()
    at = chance.randrange(len(raw))
    way = chance.randrange(3)
    if way == 0:
        changed = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
    elif way == 1:
        changed = raw[:at] + raw[at + 1 :]
    else:
        changed = raw[:at] + b"7" + raw[at:]
    return changed if isinstance(value, bytes) else changed.decode()


def test_an_untouched_history_is_whole() -> None:
    assert first_bad_row(TENANT, INSTANCE, a_history(50)) is None
    assert first_bad_row(TENANT, INSTANCE, []) is None


@pytest.mark.parametrize("column", COLUMNS[1:8])
@pytest.mark.parametrize("at", [1, 4, 8])
def test_a_changed_column_is_found_in_its_row(column: str, at: int) -> None:
    for seed in range(30):
        rows = a_history(8)
        row = rows[at - 1]
        rows[at - 1] = edited(row, **{column: other(row[COLUMNS.index(column)], random.Random(seed))})
        assert bad_seq(rows) == at


def test_ten_thousand_random_edits_are_all_found_and_the_first_bad_row_is_named() -> None:
    whole = a_history(12)
    chance = random.Random(2026)
    for _ in range(10_000):
        rows = list(whole)
        first = 99
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            at, column = chance.randrange(12), chance.randrange(1, 8)
            changed = other(whole[at][column], chance)
            rows[at] = edited(rows[at], **{COLUMNS[column]: changed})
            first = min(first, at + 1)
        assert bad_seq(rows) == first


def test_two_rows_swapped_are_found() -> None:
    for first in range(7):
        for second in range(first + 1, 8):
            rows = a_history(8)
            rows[first], rows[second] = rows[second], rows[first]
            assert bad_seq(rows) == first + 1  # as they lie
            assert bad_seq(renumbered(rows)) == first + 1  # and with their numbers put right


def test_a_deleted_row_is_found_also_when_the_rest_is_numbered_anew() -> None:
    for at in range(7):
        rows = a_history(8)
        del rows[at]
        assert first_bad_row(TENANT, INSTANCE, rows) == (
            at + 1,
            f"row {at + 1} is missing (the next one found is {at + 2})",
        )
        assert bad_seq(renumbered(rows)) == at + 1


def test_an_inserted_row_is_found_even_one_that_is_sealed_itself() -> None:
    for at in range(8):
        rows = a_history(8)
        previous = rows[at - 1][7] if at else genesis(TENANT, INSTANCE)
        fence, moment = rows[at][3], rows[at][4]
        digest = seal(previous, at + 1, "STEP_COMPLETED", "pay", fence, moment, payload_seal(b"s" * 16, b"{}"))
        rows.insert(at, (at + 1, "STEP_COMPLETED", "pay", fence, moment, b"{}", b"s" * 16, digest, None))
        assert bad_seq(rows) == at + 2
        assert bad_seq(renumbered(rows)) == at + 2


def test_a_row_told_twice_is_found() -> None:
    for at in range(8):
        rows = a_history(8)
        rows.insert(at, rows[at])
        assert bad_seq(rows) == at + 2
        assert bad_seq(renumbered(rows)) == at + 2


def test_a_history_that_begins_late_or_counts_from_elsewhere_is_found() -> None:
    rows = a_history(8)
    assert bad_seq(rows[1:]) == 1
    assert bad_seq([edited(row, seq=row[0] + 1) for row in rows]) == 1


def test_a_history_moved_to_another_instance_or_tenant_is_found() -> None:
    rows = a_history(8)
    assert bad_seq(rows, instance=bytes(16)) == 1
    assert bad_seq(rows, tenant="other") == 1


def test_one_row_taken_from_another_instance_is_found() -> None:
    theirs = a_history(8, instance=bytes(16), seed=1)
    for at in range(8):
        rows = a_history(8)
        rows[at] = theirs[at]
        assert bad_seq(rows) == at + 1


def test_letters_moved_from_one_column_to_the_next_are_found() -> None:
    [row] = a_history(1)
    assert bad_seq([edited(row, type=row[1] + row[2][0], name=row[2][1:])]) == 1
    assert bad_seq([edited(row, type=row[1][:-1], name=row[1][-1] + row[2])]) == 1
    assert bad_seq([edited(row, name=row[2] + "\x1f1", fence=0)]) == 1


def test_a_byte_moved_between_the_payload_and_its_salt_is_found() -> None:
    [row] = a_history(1)
    payload, salt = row[5], row[6]
    assert bad_seq([edited(row, salt=salt + payload[:1], payload=payload[1:])]) == 1
    assert bad_seq([edited(row, salt=salt[:-1], payload=salt[-1:] + payload)]) == 1
    assert bad_seq([edited(row, salt=b"", payload=salt + payload)]) == 1


def test_an_erased_payload_with_its_hash_kept_leaves_the_history_whole() -> None:
    rows = a_history(8)
    for at in (0, 3, 7):
        rows[at] = erased(rows[at])
        assert first_bad_row(TENANT, INSTANCE, rows) is None
    assert first_bad_row(TENANT, INSTANCE, [erased(row) for row in a_history(8)]) is None


def test_an_erased_payload_without_a_kept_hash_is_found() -> None:
    rows = a_history(8)
    rows[3] = edited(rows[3], payload=None, salt=None)
    assert first_bad_row(TENANT, INSTANCE, rows) == (4, "its payload is gone and no hash was kept in its place")


def test_any_edit_of_an_erased_row_is_found() -> None:
    for column in ("type", "name", "fence", "at", "hash", "payload_hash"):
        for seed in range(10):
            rows = a_history(8)
            row = erased(rows[3])
            rows[3] = edited(row, **{column: other(row[COLUMNS.index(column)], random.Random(seed))})
            assert bad_seq(rows) == 4


def test_a_payload_invented_for_an_erased_row_is_found() -> None:
    rows = a_history(8)
    rows[3] = edited(erased(rows[3]), payload=b'{"result":2}', salt=b"s" * 16)
    assert bad_seq(rows) == 4


def test_a_salt_left_behind_or_lost_is_found() -> None:
    rows = a_history(8)
    left, lost = list(rows), list(rows)
    left[3] = edited(erased(rows[3]), salt=rows[3][6])
    lost[3] = edited(rows[3], salt=None)
    assert first_bad_row(TENANT, INSTANCE, left) == (
        4,
        "its payload is gone and its salt is not: what was erased could be guessed",
    )
    assert first_bad_row(TENANT, INSTANCE, lost) == (4, "its salt is gone although its payload is there")


def test_a_hash_kept_beside_a_payload_must_be_that_payloads_hash() -> None:
    rows = a_history(8)
    rows[3] = edited(rows[3], payload_hash=payload_seal(rows[3][6], rows[3][5]))
    assert first_bad_row(TENANT, INSTANCE, rows) is None
    rows[3] = edited(rows[3], payload_hash=bytes(32))
    assert bad_seq(rows) == 4


def test_a_row_written_under_a_lower_fence_is_found_though_its_hash_fits() -> None:
    rows: list[Row] = []
    previous = genesis(TENANT, INSTANCE)
    for seq, fence in enumerate((1, 3, 3, 2, 4), 1):
        previous = seal(previous, seq, "STEP_COMPLETED", "pay", fence, 5, payload_seal(b"s" * 16, b"{}"))
        rows.append((seq, "STEP_COMPLETED", "pay", fence, 5, b"{}", b"s" * 16, previous, None))
    assert first_bad_row(TENANT, INSTANCE, rows) == (4, "it was written under fence 2, lower than 3 before it")
    assert first_bad_row(TENANT, INSTANCE, rows[:3]) is None


def test_the_same_words_give_another_hash_under_another_salt() -> None:
    assert payload_seal(b"a" * 16, b"{}") != payload_seal(b"b" * 16, b"{}")
