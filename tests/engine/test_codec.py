"""What goes in comes back the same, or is refused with the reason and the name of the value."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engine.codec import DEPTH_LIMIT, decode, decoder_for, digest, encode, encode_sorted
from holdfast.engine.errors import NotJson, PayloadTooLarge
from holdfast.store.literals import SEPARATOR

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
WRITERS = pytest.mark.parametrize("write", [encode, encode_sorted])
NOT_FINITE = pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])


@dataclass
class Amount:
    value: float
    note: str | None = None


class Money(msgspec.Struct):
    value: float
    parts: list[Amount] = []


class Colour(Enum):
    RED = "red"


@given(values)
def test_json_values_come_back_as_they_went_in(value: Any) -> None:
    for write in (encode, encode_sorted):
        back = decode(write(value))
        assert back == value
        assert repr(back) == repr(value) or isinstance(value, (dict, list))  # 1 stays 1, 1.0 stays 1.0


@given(values)
def test_no_value_is_written_with_the_byte_that_parts_columns(value: Any) -> None:
    assert SEPARATOR not in encode(value)


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=3), values, min_size=2, max_size=4), st.integers(0, 999))
def test_the_order_of_keys_does_not_change_the_sorted_bytes(value: dict[str, Any], seed: int) -> None:
    chance = random.Random(seed)

    def shuffled(one: Any) -> Any:
        if isinstance(one, dict):
            items = [(key, shuffled(item)) for key, item in one.items()]
            chance.shuffle(items)
            return dict(items)
        return [shuffled(item) for item in one] if isinstance(one, list) else one

    assert encode_sorted(shuffled(value)) == encode_sorted(value)
    assert digest(encode_sorted(shuffled(value))) == digest(encode_sorted(value))


@given(st.lists(st.text()))
def test_a_set_is_written_in_one_order_when_sorted(items: list[str]) -> None:
    assert encode_sorted(set(items)) == encode_sorted(sorted(set(items)))


def test_dates_decimals_identifiers_and_enums_are_written_as_text() -> None:
    given_ = [datetime(2026, 1, 5, tzinfo=UTC), Decimal("1.10"), UUID(int=5), Colour.RED]
    assert decode(encode(given_)) == ["2026-01-05T00:00:00Z", "1.10", str(UUID(int=5)), "red"]
    for one, kind in zip(given_, [datetime, Decimal, UUID, Colour], strict=True):
        assert decoder_for(kind)(encode(one)) == one


def test_a_named_type_comes_back_as_that_type() -> None:
    assert decoder_for(Amount)(encode(Amount(1.5))) == Amount(1.5)
    assert decoder_for(list[Money])(encode([Money(1.5, [Amount(2)])])) == [Money(1.5, [Amount(2)])]
    assert decoder_for(Any)(b"[1]") == decoder_for(None)(b"[1]") == [1]
    with pytest.raises(msgspec.ValidationError):
        decoder_for(Amount)(b'{"value":"much"}')


def test_an_annotation_that_json_does_not_know_gives_plain_json() -> None:
    assert decoder_for(Amount | Money)(b"[1]") == [1]  # nobody could tell which of the two
    assert decoder_for({"unhashable": int})(b"[1]") == [1]


def test_pydantic_models_go_in_and_come_back_without_depending_on_pydantic() -> None:
    Order = pydantic.create_model("Order", id=(int, ...), at=(datetime, ...))
    order = Order(id=5, at=datetime(2026, 1, 5, tzinfo=UTC))
    assert decode(encode(order)) == {"id": 5, "at": "2026-01-05T00:00:00Z"}
    assert decoder_for(Order)(encode(order)) == order
    assert decoder_for(list[Order])(encode([order])) == [order]


@WRITERS
@NOT_FINITE
@pytest.mark.parametrize(
    "hide",
    [
        lambda n: n,
        lambda n: [1, None, {"a": [n]}],
        lambda n: {"a": (n,)},
        lambda n: {n},
        lambda n: Amount(n),
        lambda n: Money(n),
        lambda n: [{"deep": [Money(1.0, [Amount(n)])]}],
    ],
    ids=["bare", "in a list", "in a tuple", "in a set", "in a dataclass", "in a Struct", "deep inside"],
)
def test_a_number_json_cannot_carry_is_refused_wherever_it_hides(
    write: Callable[..., bytes], number: float, hide: Callable[[float], Any]
) -> None:
    with pytest.raises(NotJson, match=rf"^the result of 'price' holds {number}, which JSON cannot carry"):
        write(hide(number), "the result of", name="price")


def test_a_number_json_cannot_carry_is_refused_in_a_pydantic_model() -> None:
    with pytest.raises(NotJson, match="holds nan"):
        encode(pydantic.create_model("Price", value=(float, ...))(value=float("nan")))


def test_none_inside_a_dataclass_or_a_struct_is_fine() -> None:
    assert encode([Amount(1.0), Money(1.0, [Amount(2.0, "x")]), datetime(2026, 1, 5, tzinfo=UTC), None]).count(b"null")


@WRITERS
def test_an_object_json_does_not_know_is_refused_by_its_name(write: Callable[..., bytes]) -> None:
    class Basket: ...

    for value in (Basket(), [Basket()], {"a": {"b": Basket()}}, Money(1.0, [Basket()])):  # type: ignore[list-item]
        with pytest.raises(NotJson, match=r"^the input of child 'x': .*Basket is not JSON: return plain values"):
            write(value, "the input of child", name="x")
    for value in ({(1, 2): 3}, {None: 1}, lambda: 1, iter([1])):
        with pytest.raises(NotJson, match=r"^the value"):
            write(value)


@WRITERS
@pytest.mark.parametrize("value", ["\ud800", ["a\udfff"], {"\ud800": 1}, Amount(1.0, "\ud800")])
def test_a_lone_surrogate_is_refused(write: Callable[..., bytes], value: Any) -> None:
    with pytest.raises(NotJson, match=r"^the result of 's' is not JSON: .*surrogates"):
        write(value, "the result of", name="s")


@WRITERS
def test_a_value_above_the_limit_is_refused_with_both_sizes(write: Callable[..., bytes]) -> None:
    assert len(write("x" * 98, "the result of", 100, "s")) == 100
    with pytest.raises(
        PayloadTooLarge, match=r"^the result of 's' takes 1,202 bytes as JSON, the limit is 100: .*refer"
    ):
        write("x" * 1200, "the result of", 100, "s")


@WRITERS
@pytest.mark.parametrize("levels", [5_000, 100_000])
def test_a_value_nested_beyond_reach_is_refused(write: Callable[..., bytes], levels: int) -> None:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    # How deep the encoder gets before the interpreter stops it differs from one Python to the next: beyond that the
    # recursion is refused, below it the depth.
    with pytest.raises(NotJson, match=r"^the result of 's' is (not JSON: .*recursion|nested deeper than 200 levels$)"):
        write(value, "the result of", name="s")
    endless: dict[str, Any] = {}
    endless["self"] = endless
    with pytest.raises(NotJson, match=r"^the result of 's' is not JSON: .*recursion"):
        write(endless, "the result of", name="s")


def test_a_value_looked_at_closely_may_be_nested_as_deep_as_the_limit_and_no_deeper() -> None:
    def nested(levels: int) -> Any:
        value: Any = None
        for level in range(levels):
            value = [value] if level % 2 else {"in": value}
        return value

    assert decode(encode(nested(DEPTH_LIMIT))) == nested(DEPTH_LIMIT)
    with pytest.raises(NotJson, match=r"^the result of 's' is nested deeper than 200 levels"):
        encode(nested(DEPTH_LIMIT + 1), "the result of", name="s")


def test_an_error_of_the_authors_own_model_is_not_dressed_up_as_a_refusal() -> None:
    class Model:
        def model_dump(self, mode: str) -> Any:
            raise KeyError("its own trouble")

    with pytest.raises(KeyError, match="its own trouble"):
        encode(Model())
