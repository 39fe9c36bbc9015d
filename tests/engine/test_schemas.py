"""JSON Schema: what is refused before it can cost anything, and what is said of a value that does not fit."""

from typing import Any

import pytest

from holdfast.engine import schemas
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.document import BadChart
from holdfast.engine.schemas import BadSchema, Checker, check_json, check_schema

EITHER = {"anyOf": [{"type": "integer", "minimum": n} for n in range(20)]}


class Counting:
    """Stands before the library, and knows what was asked of it."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.asked = inner, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self.inner, name)


def counted(schema: Any) -> tuple[Checker, list[str]]:
    checker = Checker(schema)
    counting = Counting(checker._validator)
    checker._validator = counting
    return checker, counting.asked


def doubling(levels: int) -> dict[str, Any]:
    defs: dict[str, Any] = {
        f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)
    }
    return {"properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": defs | {f"a{levels}": {"type": "string"}}}


def nested(word: str, levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {word: [schema, schema, schema]}
    return schema


def chain(length: int) -> dict[str, Any]:
    return {"$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(length)} | {f"a{length}": {}}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("object", "expected a JSON Schema"),
        (None, "expected a JSON Schema"),
        ({"type": "text"}, "the schema at /type is nothing we can check by"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "/properties/a/pattern"),
        ({"description": "x" * 70_000}, "the limit is 65,536"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "another $schema"),
        ({"$ref": "https://example.org/x"}, "https://example.org/x is outside the schema"),
        ({"$ref": "file:///etc/hostname"}, "outside the schema"),
        ({"properties": {"a": {"$id": "https://example.org/x", "$ref": "#"}}}, "the schema holds $id inside"),
        ({"properties": {"a": {"$ref": "#"}}}, "the schema refers to itself at '#': spell the levels out"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, "refers to itself"),
        ({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}}}, "refers to itself"),
        ({"items": {"$dynamicRef": "#n"}, "$dynamicAnchor": "n"}, "holds $dynamicRef"),
        (doubling(60), "takes more than 2,000 steps"),
        (nested("anyOf", 7), "takes more than 2,000 steps"),
        (chain(1500), "nested deeper than 250 levels"),
        ({"enum": [n + 0.5 for n in range(1000)]}, "takes more than 2,000 steps"),
        ({"enum": [{"a": n} for n in range(2000)]}, "takes more than 2,000 steps"),
        ({"items": {"const": [1] * 20_000}}, "takes more than 2,000 steps"),
        ({"allOf": [{"pattern": r"\p{L}{0,99}" + str(n)} for n in range(100)]}, "pattern"),
    ],
)
def test_a_schema_that_could_not_be_checked_by_is_refused(schema: Any, words: str) -> None:
    refusal = check_schema(schema)
    assert refusal is not None and words in refusal
    assert len(refusal) < 600
    [problem] = check_json(schema, {"x": 1})  # one that was kept before it would be refused: nothing passes unchecked
    assert problem == f"/: cannot be checked: {refusal}"


@pytest.mark.parametrize(
    "schema",
    [
        True, {}, {"$schema": schemas.DIALECT, "$id": "https://example.org/form"},
        {"properties": {"$id": {}, "$ref": {}}},
        {"$defs": {"m": {"minimum": 0.01}}, "properties": {n: {"$ref": "#/$defs/m"} for n in ("a", "b", "c")}},
        {"properties": {"name": {"pattern": r"^\p{L}[\p{L}\p{N} .,'-]{0,99}$"}}},
        {"enum": [f"text {n}" for n in range(3000)]}, doubling(6), nested("anyOf", 5), chain(50),
    ],
)  # fmt: skip
def test_an_ordinary_schema_is_taken(schema: Any) -> None:
    assert check_schema(schema) is None


def test_a_schema_that_is_no_json_is_refused_with_words() -> None:
    assert "not JSON" in (check_schema({"const": object()}) or "")


def test_every_place_of_a_small_value_is_named() -> None:
    form = {"properties": {"ok": {"type": "boolean"}, "list": {"items": {"type": "integer"}}}, "required": ["why"]}
    assert check_json(form, {"ok": True, "list": [1], "why": ""}) == []
    assert sorted(check_json(form, {"ok": 1, "list": [1, "2"]})) == [
        '/: "why" is a required property',
        '/list/1: "2" is not of type "integer"',
        '/ok: 1 is not of type "boolean"',
    ]
    assert len(check_json({"items": {"type": "integer"}}, ["a"] * 50)) == schemas.PROBLEMS_MAX


def test_of_a_large_value_only_yes_or_no_is_asked() -> None:
    checker, asked = counted({"items": EITHER})
    [misfit] = checker.misfits(["a"] * 20_000, 20)
    assert (misfit.place, misfit.words) == (None, "does not fit the JSON Schema")
    assert asked == ["is_valid"]

    checker, asked = counted({"items": nested("anyOf", 5)})
    assert len(checker.misfits(["a"] * 10_000, 20)) == 1
    assert asked == ["is_valid"]


def test_of_a_middling_value_the_first_misfit_is_named() -> None:
    checker, asked = counted({"items": EITHER})
    [misfit] = checker.misfits(["a"] * 600, 20)
    assert misfit.place == (0,)
    assert asked == ["is_valid", "validate"]


def test_a_long_text_is_not_repeated_in_many_problems() -> None:
    checker, asked = counted({"allOf": [{"maxLength": n} for n in range(100)]})
    assert len(checker.misfits("x" * 1_000_000, 20)) == 1
    assert asked == ["is_valid"]


@pytest.mark.parametrize("value", [[1] * 400_000, [0.5] * 10_000])
def test_a_value_that_would_take_long_to_check_at_all_is_not_checked(value: Any) -> None:
    checker, asked = counted({"items": {"allOf": [{"minimum": n} for n in range(400)]}})
    [misfit] = checker.misfits(value, 20)
    assert "too large to be checked" in misfit.words
    assert asked == []


@pytest.mark.parametrize(
    "slow", [{"uniqueItems": True}, {"multipleOf": 0.1}, {"enum": [[1], [2]]}, {"const": {"a": 1}}, {"pattern": "a+b"}]
)
def test_what_takes_longer_for_each_step_is_given_fewer(slow: dict[str, Any]) -> None:
    value = [1] * 100_000
    checker, asked = counted({"items": {"allOf": [{"type": "integer"}] * 60}})
    assert checker.misfits(value) == []
    checker, asked = counted({"items": {"allOf": [{"type": "integer"}] * 60}, **slow})
    assert "too large" in checker.misfits(value)[0].words
    assert asked == []


def test_a_schema_is_weighed_once_however_often_it_is_referred_to() -> None:
    assert Checker({"$defs": {"a": {"type": "null"}}, "anyOf": [{"$ref": "#/$defs/a"}] * 3}).weight == 9
    with pytest.raises(BadSchema, match="simplify"):
        Checker(doubling(1000))


def test_words_under_a_mask_repeat_no_value() -> None:
    [misfit] = Checker({"type": "integer"}, mask="the value").misfits("SECRET")
    assert misfit.words == 'the value is not of type "integer"'


@pytest.mark.parametrize("schema", [{"properties": {"a": {"$ref": "#"}}}, doubling(60), {"type": "text"}])
def test_a_chart_is_refused_for_an_input_schema_or_a_form_that_could_not_be_checked_by(schema: Any) -> None:
    human = {"type": "HUMAN", "name": "t", "form": schema}
    asking = {"id": "c", "initial": "a", "states": {"a": {"entry": {"type": "createTask", "params": human}}}}
    plain = {"id": "c", "inputSchema": schema, "initial": "a", "states": {"a": {}}}
    for chart, path in ((plain, "/inputSchema"), (asking, "/form")):
        with pytest.raises(BadChart) as refusal:
            compile_chart(chart)
        assert path in str(refusal.value) and (check_schema(schema) or "nothing") in str(refusal.value)
