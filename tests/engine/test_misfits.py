"""What does not fit is said with its place and without its value, whoever found it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from holdfast.engine import codec
from holdfast.engine.errors import Misplaced
from holdfast.engine.misfits import FAULTS_MAX, faults_of, in_words, schema_faults


class Card(pydantic.BaseModel):
    number: int
    tags: list[str] = []

    @pydantic.field_validator("tags")
    @classmethod
    def few(cls, tags: list[str]) -> list[str]:
        if len(tags) > 2:
            raise ValueError("expected at most two tags")
        return tags


@dataclass
class Wallet:
    owner: str
    cards: list[Card]


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    name: str = ""
    inner: list[Strict] | None = None
    by_key: dict[str, Strict] = {}


def refused(kind: Any, value: Any) -> list[Misplaced]:
    with pytest.raises(ValueError) as caught:
        codec.decoder_for(kind)(msgspec.json.encode(value))
    return faults_of(caught.value, "/input")


def test_every_misfit_of_a_pydantic_model_has_its_pointer_and_none_its_value() -> None:
    found = refused(Card, {"number": "hunter2", "tags": [1, "a"]})
    assert [one.pointer for one in found] == ["/input/number", "/input/tags/0"]
    assert "hunter2" not in str(found) and "input_value" not in str(found) and "http" not in str(found)
    assert refused(Card, {})[0] == Misplaced("/input/number", "Field required")
    assert refused(Card, {"number": 1, "tags": list("abc")})[0].detail == "Value error, expected at most two tags"


def test_a_pydantic_model_inside_a_dataclass_keeps_its_place_there() -> None:
    found = refused(Wallet, {"owner": "Ada", "cards": [{"number": 1}, {"number": "x"}, {}]})
    assert [one.pointer for one in found] == ["/input/cards/1/number"]
    assert "errors.pydantic.dev" not in found[0].detail


def test_what_a_dataclass_misses_stands_where_it_would_be() -> None:
    assert refused(Wallet, {"owner": "Ada"}) == [Misplaced("/input/cards", "Object missing required field `cards`")]
    assert refused(Wallet, {"owner": 7, "cards": []}) == [Misplaced("/input/owner", "Expected `str`, got `int`")]
    assert refused(Wallet, 3)[0].pointer == "/input"


@pytest.mark.parametrize(
    ("value", "pointer"),
    [({"nmae": "x"}, "/nmae"), ({"inner": [{}, {"q": 1}]}, "/inner/1/q"), ({"a/b": 1}, "/a~1b")],
)
def test_an_unknown_field_is_told_the_expected_ones(value: Any, pointer: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Strict)
    [found] = faults_of(caught.value, "", Strict)
    assert found.pointer == pointer and found.detail.endswith("expected name, inner, by_key")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Paint(msgspec.Struct):
    colours: list[Colour] = []
    finish: Literal["matt", "gloss"] | None = None


@pytest.mark.parametrize(
    ("value", "pointer", "said"),
    [
        ({"colours": ["red", "green"]}, "/colours/1", "expected one of red, blue"),
        ({"finish": "rough"}, "/finish", "expected one of gloss, matt"),
    ],
)
def test_a_value_that_is_none_of_the_choices_is_told_the_choices(value: Any, pointer: str, said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Paint)
    assert faults_of(caught.value, "", Paint) == [Misplaced(pointer, said)]
    assert faults_of(caught.value) == [Misplaced(pointer, "Invalid enum value")]


def test_a_place_that_msgspec_does_not_name_still_gets_an_answer() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"by_key": {"some": {"q": 1}}}, Strict)
    [found] = faults_of(caught.value, "", Strict)
    assert found.detail.startswith("there is no field `q` here") and found.pointer.endswith("/q")


def test_a_property_that_a_schema_requires_stands_where_it_would_be() -> None:
    schema = {
        "type": "object", "required": ["days"],
        "properties": {"days": {"type": "integer"}, "who": {"type": "object", "required": ["name"]}},
    }  # fmt: skip
    found = schema_faults(schema, {"who": {}}, "/input")
    assert sorted(one.pointer for one in found) == ["/input/days", "/input/who/name"]
    assert schema_faults(schema, {"days": "3"}, "/input") == [Misplaced("/input/days", '"3" is not of type "integer"')]


def test_many_misfits_are_cut_off_and_long_ones_shortened() -> None:
    found = refused(Card, {"number": 1, "tags": [1] * 1000})
    assert len(found) == FAULTS_MAX
    assert in_words(found).endswith("; and 15 more")
    assert len(faults_of(ValueError("x" * 10_000))[0].detail) == 300
