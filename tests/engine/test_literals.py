"""Columns written as PostgreSQL array literals read back as the values that went in."""

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.codec import encode
from holdfast.store.literals import SEPARATOR, pack_bytes, pack_json, pack_number, pack_text, packers

AWKWARD = [
    "", " ", '"', '""', "\\", "\\\\", '\\"', '"\\', ",", '","', "{", "}", "{}", '{"a","b"}', "NULL", "null",
    '"NULL"', "\n", "\r\n", "\t", "a b", "'", "''", "é", "支払", "💶", "\u2028", "\x1f", "\x7f", "%s", "$1", "x" * 1000,
    'ends with "', "\\x00",
]  # fmt: skip
texts = st.sampled_from(AWKWARD) | st.text(st.characters(exclude_characters="\x00", codec="utf-8"))
texts |= st.text('"\\,{}NUL \n', max_size=8)


def parsed(literal: str) -> list[str | None]:
    """One-dimensional array literals as the PostgreSQL manual describes them (8.15.6), written without looking."""
    assert literal[0] == "{" and literal[-1] == "}"
    found: list[str | None] = []
    at, end = 1, len(literal) - 1
    while at < end:
        if literal[at] == '"':
            word, at = "", at + 1
            while literal[at] != '"':
                at += literal[at] == "\\"
                word, at = word + literal[at], at + 1
            found.append(word)
            at += 1
        else:
            stop = literal.find(",", at, end)
            word = literal[at : stop if stop >= 0 else end]
            assert word and not set(word) & set('"\\{} \n')
            found.append(None if word.upper() == "NULL" else word)
            at += len(word)
        assert at == end or literal[at] == ","
        at += 1
    assert literal[-2] != "," or literal[-3] == '"'
    return found


def test_the_parser_of_this_test_reads_what_the_manual_says() -> None:
    assert parsed("{}") == []
    assert parsed('{a,"b c",NULL,"NULL","\\"\\\\",""}') == ["a", "b c", None, "NULL", '"\\', ""]


@given(st.lists(texts))
def test_text_reads_back_whatever_it_holds(column: list[str]) -> None:
    assert parsed(pack_text(column)) == column
    assert parsed(pack_text(tuple(column))) == column


@given(st.lists(st.none() | texts))
def test_a_missing_text_is_null_and_the_word_null_is_a_text(column: list[str | None]) -> None:
    assert parsed(pack_text(column)) == column


@given(st.lists(texts, max_size=3), st.lists(texts, max_size=3))
def test_two_columns_of_text_are_never_written_alike(some: list[str], other: list[str]) -> None:
    assert (pack_text(some) == pack_text(other)) == (some == other)


@given(st.lists(st.none() | st.binary()))
def test_bytes_read_back_and_missing_ones_are_null(column: list[bytes | None]) -> None:
    back = parsed(pack_bytes(column))
    assert all(one is None or one.startswith("\\x") for one in back)
    assert [None if one is None else bytes.fromhex(one[2:]) for one in back] == column


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_numbers_read_back_and_missing_ones_are_null(column: list[int | None]) -> None:
    assert [None if one is None else int(one) for one in parsed(pack_number(column))] == column


@given(st.lists(st.none() | st.booleans()))
def test_truth_reads_back_and_a_missing_one_is_null(column: list[bool | None]) -> None:
    assert [
        None if one is None else {"True": True, "False": False}[one] for one in parsed(pack_number(column))
    ] == column


@given(st.lists(texts.map(encode), min_size=1))
def test_payloads_are_joined_by_a_byte_that_json_never_holds(column: list[bytes]) -> None:
    assert pack_json(column).encode().split(SEPARATOR) == column


@pytest.mark.parametrize("pack", [pack_text, pack_bytes, pack_number])
def test_a_column_without_rows_is_an_empty_array(pack: Any) -> None:
    assert pack([]) == "{}"


def test_a_statement_says_by_its_casts_how_each_column_is_packed() -> None:
    sql = (
        "select from unnest(:a_1::text::text[], :a_2::text::bytea[], :a_3::text::bigint[], :a_4::text::integer[],\n"
        " :a_5::text::boolean[], string_to_array(:a_6, e'\\x1f')) where id = :id and at = :now::bigint"
        " and hash = substr(:a_7::bytea, 1, 32)"
    )
    found = packers(sql)
    assert found.pop("a_7")([b"one", b"two"]) == b"onetwo"
    assert found == {
        "a_1": pack_text, "a_2": pack_bytes, "a_3": pack_number, "a_4": pack_number, "a_5": pack_number,
        "a_6": pack_json,
    }  # fmt: skip


def test_postgres_reads_every_literal_as_the_column_it_was(postgres_url: str) -> None:
    columns: list[tuple[str, Any, Sequence[Any]]] = [
        ("text", pack_text, AWKWARD),
        ("text", pack_text, [None, *AWKWARD, None]),
        ("text", pack_text, ["plain", "words"]),
        ("text", pack_text, []),
        ("bytea", pack_bytes, [b"", b"\x00\xff", b'"\\', bytes(range(256))]),
        ("bytea", pack_bytes, [None, b"", None]),
        ("bytea", pack_bytes, []),
        ("bigint", pack_number, [0, -1, 2**63 - 1, -(2**63), None]),
        ("bigint", pack_number, []),
        ("integer", pack_number, [1, None, -5]),
        ("boolean", pack_number, [True, False, None]),
    ]
    with psycopg.connect(postgres_url) as connection:
        for kind, pack, column in columns:
            [back] = connection.execute(f"select cast(%s::text as {kind}[])", [pack(column)]).fetchone() or [None]
            assert back == list(column), kind
            pairs = connection.execute(f"select count(*) from unnest(%s::text::{kind}[])", [pack(column)]).fetchone()
            assert pairs == (len(column),)
        payloads = [encode(text) for text in AWKWARD]
        [back] = connection.execute("select string_to_array(%s, e'\\x1f')", [pack_json(payloads)]).fetchone() or [None]
        assert [text.encode() for text in back] == payloads
