"""Ids follow from where a thing was born; names and tenants are checked where they come in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine import ids
from holdfast.engine.errors import BadInput

parts = st.lists(st.text() | st.binary(), max_size=5)


def flat(some: list[str | bytes]) -> list[bytes]:
    return [one.encode() if isinstance(one, str) else one for one in some]


def test_moving_a_letter_from_one_part_to_the_next_makes_another_id() -> None:
    assert ids.derived("a", "bc") != ids.derived("ab", "c") != ids.derived("abc") != ids.derived("abc", "")


@given(parts, parts)
def test_derived_ids_are_equal_exactly_when_their_parts_are(some: list[str | bytes], other: list[str | bytes]) -> None:
    assert (ids.derived(*some) == ids.derived(*other)) == (flat(some) == flat(other))


@given(parts, st.data())
def test_the_same_bytes_cut_elsewhere_give_another_id(some: list[str | bytes], data: st.DataObject) -> None:
    whole = b"".join(flat(some))
    cut = data.draw(st.integers(0, len(whole)))
    again = [whole[:cut], whole[cut:]]
    assert (ids.derived(*again) == ids.derived(*some)) == (again == flat(some))


def test_a_derived_id_is_the_same_in_every_process_and_release() -> None:
    assert ids.derived("effect", "acme", b"\x01" * 16, "pay").hex() == "251439f87bce8494193ad259a326a275"


def test_every_attempt_of_one_effect_shows_the_provider_one_key() -> None:
    keys = {ids.idempotency_key(ids.effect_id("acme", b"\x01" * 16, "pay")) for _attempt in range(5)}
    [key] = keys
    assert [len(part) for part in key.split("-")] == [8, 4, 4, 4, 12]


def test_tenant_instance_step_and_occurrence_each_make_another_key() -> None:
    born = [
        ("acme", b"\x01" * 16, "pay"),
        ("other", b"\x01" * 16, "pay"),
        ("acme", b"\x02" * 16, "pay"),
        ("acme", b"\x01" * 16, "pay#2"),
        ("acme", b"\x01" * 16, "undo:pay"),
    ]
    assert len({ids.idempotency_key(ids.effect_id(*one)) for one in born}) == len(born)
    assert ids.child_id("acme", b"\x01" * 16, "pay") != ids.effect_id("acme", b"\x01" * 16, "pay")


@given(st.binary(min_size=16, max_size=16))
def test_a_shown_id_reads_back(raw: bytes) -> None:
    words = {"ins": ids.instance_word, "eff": ids.effect_word, "wrk": ids.worker_word}
    for prefix, word in words.items():
        assert word(raw) == ids.shown(prefix, raw)
        assert ids.parse(prefix, word(raw)) == raw


@pytest.mark.parametrize(
    "word", ["", "ins_", "ins_" + "0" * 31, "ins_" + "0" * 33, "ins_" + "g" * 32, "eff_" + "0" * 32, None, 5, "ins_é"]
)
def test_what_is_not_an_id_is_refused_and_shown_the_expected_form(word: str) -> None:
    with pytest.raises(BadInput, match="is not an id: expected ins_ and 32 hexadecimal digits"):
        ids.parse("ins", word)


@pytest.mark.parametrize("tenant", ["a", "acme", "Acme-1.eu_x", "0", "a" * 63])
def test_a_tenant_is_letters_digits_and_three_marks(tenant: str) -> None:
    assert ids.check_tenant(tenant) == tenant


@pytest.mark.parametrize(
    "tenant", ["", "*", "-a", ".a", "_a", "a b", "a/b", "é", "a" * 64, "a\n", "a\x1f", None, 5, b"a"]
)
def test_what_is_not_a_tenant_is_refused(tenant: str) -> None:
    with pytest.raises(BadInput, match="is not a tenant id"):
        ids.check_tenant(tenant)


@pytest.mark.parametrize("name", ["a", "charge card", "überweisen", "支払", "a.b/c:d", "💶", "x" * 200])
def test_a_name_is_any_text_a_person_can_read(name: str) -> None:
    assert ids.check_name("step name", name) == name


@pytest.mark.parametrize("name", ["", "a#2", "a\x1fb", "a\x00", "a\n", "\x7f", "\ud800", "x" * 201, None, 5, b"a"])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=r"^step name .* is not a name: expected 1 to 200 characters"):
        ids.check_name("step name", name)


@given(st.text())
def test_every_accepted_name_can_be_hashed_and_stored(name: str) -> None:
    try:
        ids.check_name("step name", name)
    except BadInput:
        return
    assert ids.effect_id("acme", b"\x01" * 16, name)
