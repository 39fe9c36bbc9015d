"""JSON Schema: which schemas we take, and whether a value fits one; for forms, for a chart's input, for AI answers.

Both sides may be hostile, and whoever checks waits for it on the event loop, so the work is bounded before it begins:
a schema by its size and its weight (how many schemas one value may be held against, references followed), a check by
weight times the parts of the value. It must not know who wrote the schema, or what follows from a misfit.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine import codec
from holdfast.engine.errors import NotJson, PayloadTooLarge
from holdfast.engine.retry import storable

if TYPE_CHECKING:
    import jsonschema_rs

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_LIMIT = 64 * 1024
PROBLEMS_MAX = 20
WEIGHT_LIMIT = 2000
LEVELS_LIMIT = 250  # references followed; a document alone has at most 200
WORK_LIMIT = 1 << 26  # weight × parts: about a second of saying yes or no
FIRST_LIMIT = 20_000  # weight × parts up to which the first misfit is named
EVERY_LIMIT = 10_000  # … and up to which all of them are: the library builds every error before it hands out one
TEXT_PART = 256  # so many characters count as one more part
FRACTION_PARTS = 100  # a number with a fraction is compared exactly, at a hundred times the price
FRACTION_WEIGHT = 20
SLOW = 20  # how much longer a step takes where values are compared whole or texts are searched
PATTERNS_BYTES = 40 << 20  # for all compiled patterns of a schema together
PATTERN_BYTES = 10 << 20


class BadSchema(ValueError):
    """Nothing we check values by. `at` is a JSON Pointer into the schema, the text follows it in a sentence."""

    def __init__(self, words: str, at: str = "") -> None:
        super().__init__(words)
        self.at = at


class Misfit(msgspec.Struct, frozen=True):
    place: tuple[str | int, ...] | None
    """None: it is said of the value as a whole, and where it does not fit is not said."""
    words: str
    missing: str = ""
    """The property that is required there and is not."""


def check_schema(schema: Any) -> str | None:
    """What is wrong with a schema, or None."""
    if not isinstance(schema, (dict, bool)):
        return "expected a JSON Schema (an object)"
    try:
        text = codec.encode(schema, "the schema")
    except (NotJson, PayloadTooLarge) as error:
        return str(error)
    if len(text) > SCHEMA_LIMIT:
        return f"the schema has {len(text):,} bytes, the limit is {SCHEMA_LIMIT:,}"
    found = _checker(text)
    return found if isinstance(found, str) else None


def check_json(schema: Any, value: Any) -> list[str]:
    """Where the value does not fit: each place of a small value, the first of a larger one, no more than a no of a
    large one. A schema that we do not take fits nothing, and the one problem says why."""
    return [f"/{'/'.join(map(str, one.place or ()))}: {one.words[:300]}" for one in misfits_of(schema, value)]


def misfits_of(schema: Any, value: Any) -> list[Misfit]:
    """`check_json` with the places apart from the words."""
    if (refusal := check_schema(schema)) is not None:
        return [Misfit(None, f"cannot be checked: {refusal}")]
    checker = _checker(codec.encode(schema))
    assert isinstance(checker, Checker)
    return checker.misfits(value, PROBLEMS_MAX)


@lru_cache(maxsize=200)
def _checker(text: bytes) -> Checker | str:
    try:
        return Checker(codec.decode(text))
    except BadSchema as error:
        return f"the schema{f' at {error.at}' if error.at else ''} {error}"


class Checker:
    """A compiled schema. It fetches nothing, and its patterns run in linear time. With `mask`, its words say that
    instead of a value."""

    def __init__(self, schema: dict[str, Any] | bool, mask: str | None = None) -> None:
        if isinstance(schema, dict) and schema.get("$schema", DIALECT) != DIALECT:
            raise BadSchema(f"holds another $schema than {DIALECT}: leave it out")
        import jsonschema_rs  # a large library: only those who check wait for it

        size = min(PATTERNS_BYTES // max(_patterns(schema), 1), PATTERN_BYTES)
        try:
            self._validator = jsonschema_rs.Draft202012Validator(
                schema, retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions(size_limit=size), mask=mask
            )
        except Exception as error:
            said = getattr(error, "message", None) or str(error) or type(error).__name__
            at = "".join(f"/{step}" for step in getattr(error, "instance_path", ()))
            raise BadSchema(f"is nothing we can check by: {storable(said.splitlines()[0][:300])}", at) from None
        scales = _Scales(schema)
        self.weight = scales.weight
        self._step = SLOW if scales.slow else 1

    def misfits(self, value: object, most: int = 1) -> list[Misfit]:
        """None of them: it fits. Saying where costs far more than saying no, so it is said of small values."""
        if self.weight * self._step * _parts(value, FRACTION_PARTS) > WORK_LIMIT:
            return [Misfit(None, "is too large to be checked against this JSON Schema: hand in less")]
        try:
            if self._validator.is_valid(value):
                return []
            named = self._named(value, self.weight * _parts(value), most)
        except Exception as error:  # it stands between us and hostile values: what it cannot check does not fit
            return [Misfit(None, f"cannot be checked ({type(error).__name__})")]
        return named or [Misfit(None, "does not fit the JSON Schema")]

    def _named(self, value: object, work: int, most: int) -> list[Misfit]:
        if most > 1 and work <= EVERY_LIMIT:
            return [_misfit(error) for error in islice(self._validator.iter_errors(value), most)]
        import jsonschema_rs

        try:
            if work <= FIRST_LIMIT:
                self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [_misfit(error)]
        return []


def _misfit(error: jsonschema_rs.ValidationError) -> Misfit:
    missing = getattr(error.kind, "property", "") if error.kind.name == "required" else ""
    return Misfit(tuple(error.instance_path), error.message, missing)


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is outside the schema: write it out inside, under $defs")


def _parts(value: object, fraction: int = 1) -> int:
    if isinstance(value, dict):
        return 1 + sum(len(name) // TEXT_PART + _parts(item, fraction) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return 1 + sum(_parts(item, fraction) for item in value)
    if isinstance(value, str):
        return 1 + len(value) // TEXT_PART
    return fraction if isinstance(value, float) else 1


def _patterns(part: Any) -> int:
    if isinstance(part, list):
        return sum(map(_patterns, part))
    if not isinstance(part, dict):
        return 0
    named = part.get("patternProperties")
    own = len(named) if isinstance(named, dict) else 0
    return own + isinstance(part.get("pattern"), str) + sum(map(_patterns, part.values()))


class _Scales:
    """Weighs a schema. References can double the weight at each level, and one to itself has no bound but the depth
    of the value. Every part is weighed once, so that weighing is quick whatever the references do."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._known: dict[int, int] = {}
        self._inside: set[int] = set()
        self.slow = False
        self.weight = max(self._weigh(schema, 0), 1)

    def _weigh(self, part: Any, level: int) -> int:
        if not isinstance(part, (dict, list)):
            return FRACTION_WEIGHT if isinstance(part, float) else 0
        if level > LEVELS_LIMIT:
            raise BadSchema(f"is nested deeper than {LEVELS_LIMIT} levels, its references followed: simplify it")
        found = self._known.get(id(part))
        if found is None:
            self._inside.add(id(part))
            found = self._known[id(part)] = self._weigh_parts(part, level)
            self._inside.discard(id(part))
        return found

    def _weigh_parts(self, part: dict[str, Any] | list[Any], level: int) -> int:
        weight = 0
        for item in part if isinstance(part, list) else part.values():
            weight += self._weigh(item, level + 1)
        if isinstance(part, dict):
            weight += 1 + self._compared(part) + self._referred(part, level)
            if "unevaluatedProperties" in part or "unevaluatedItems" in part:
                weight *= 3  # looks again at all that stands beside it
        if weight > WEIGHT_LIMIT:
            raise BadSchema(
                f"takes more than {WEIGHT_LIMIT:,} steps for one value, its references followed: simplify it"
            )
        return weight

    def _compared(self, part: dict[str, Any]) -> int:
        """Plain choices are looked up at once; lists and objects among them are compared one by one, to the end."""
        choices = part.get("enum")
        whole = [*(choices if isinstance(choices, list) else ()), part.get("const")]
        compared = sum(_parts(one) for one in whole if isinstance(one, (dict, list)))
        fractions = any(isinstance(one, float) for one in (*whole, *part.values()))
        if compared or fractions or not part.keys().isdisjoint(("uniqueItems", "pattern", "patternProperties")):
            self.slow = True
        return compared

    def _referred(self, part: dict[str, Any], level: int) -> int:
        for word in ("$dynamicRef", "$recursiveRef"):
            if isinstance(part.get(word), str):
                raise BadSchema(f"holds {word}: write references as #/$defs/…")
        for word in ("$id", "$schema"):  # below the head, they would give references another meaning
            if part is not self._root and isinstance(part.get(word), str):
                raise BadSchema(f"holds {word} inside: references stay inside it, write them as #/$defs/…")
        target = part.get("$ref")
        if not isinstance(target, str):
            return 0
        pointed = _pointed(self._root, target)
        if id(pointed) in self._inside:
            raise BadSchema(f"refers to itself at {target[:60]!a}: spell the levels out, with an end")
        return self._weigh(pointed, level + 1)


def _pointed(root: Any, target: str) -> Any:
    found, steps = root, target.split("/")
    for step in steps[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and name.isdecimal() and name.isascii() and len(name) < 6:
            found = dict(enumerate(found)).get(int(name))
        else:
            found = found.get(name) if isinstance(found, dict) else None
    if steps[0] != "#" or not isinstance(found, (dict, bool)):
        raise BadSchema(f"refers to {target[:60]!a}: references stay inside it, write them as #/$defs/…")
    return found
