"""What does not fit, and where: the errors of msgspec, pydantic and JSON Schema as JSON pointers and plain sentences.

A fault never holds the value that did not fit: it may be a secret, and whoever sent it has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.engine.charts.document import escaped
from holdfast.engine.errors import Misplaced
from holdfast.engine.retry import storable

FAULTS_MAX = 20
DETAIL_MAX = 300
FAULTS_IN_TEXT = 5
_PLACE = re.compile(r" - at `(?:key in )?\$(?P<path>.*?)`$", re.DOTALL)
_PART = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_FIELD = re.compile(r"(?:missing required|contains unknown) field `([^`]+)`")
_NO_CHOICE = "Invalid enum value"
_UNKNOWN = re.compile(r"contains unknown field `([^`]+)`")


def faults_of(error: Exception, before: str = "", model: Any = None) -> list[Misplaced]:
    """The faults of a value that msgspec, pydantic or an author's check refused, below the pointer `before`.

    With `model`, an unknown field is told the fields that are expected in its place, and a value that is none of
    the choices the choices."""
    listed = getattr(error, "errors", None)
    if callable(listed):  # pydantic, without depending on it
        return [_misplaced(one["msg"], pointer(before, one["loc"])) for one in _plain(listed)[:FAULTS_MAX]]
    text = str(error) if isinstance(error, ValueError) else repr(error)  # "KeyError('cur')": its text says too little
    path: list[str | int] = []
    if isinstance(error, msgspec.ValidationError):
        if (place := _PLACE.search(text)) is not None:
            text = text[: place.start()]
            path = [int(index) if index.isdecimal() else index or name for name, index in _PART.findall(place["path"])]
        inner = error.__cause__
        if inner is not None and callable(getattr(inner, "errors", None)):  # a pydantic model inside another type
            return faults_of(inner, pointer(before, path))  # type: ignore[arg-type]
        if (unknown := _UNKNOWN.search(text)) is not None and model is not None:
            expected = _fields_at(model, path)
            text = f"there is no field `{unknown[1]}` here" + (f": expected {', '.join(expected)}" if expected else "")
            path.append(unknown[1])
        elif (field := _FIELD.search(text)) is not None:
            path.append(field[1])
        elif text.startswith(_NO_CHOICE):  # and the value, which may be a secret
            expected = [] if model is None else _values_at(model, path)
            text = f"expected one of {', '.join(expected)}" if expected else _NO_CHOICE
    return [_misplaced(text, pointer(before, path))]


def schema_faults(schema: Any, value: Any, before: str = "") -> list[Misplaced]:
    """Where a value does not fit a JSON Schema; a property that is missing has the place it would have."""
    from holdfast.engine.schemas import misfits_of  # its library is large, and only those who check pay for it

    return [
        _misplaced(one.words, pointer(before, (*(one.place or ()), *((one.missing,) if one.missing else ()))))
        for one in misfits_of(schema, value)
    ]


def in_words(faults: list[Misplaced]) -> str:
    """The first few, for a text that stands alone."""
    words = "; ".join(f"{fault.pointer or '/'}: {fault.detail}" for fault in faults[:FAULTS_IN_TEXT])
    return words + (f"; and {len(faults) - FAULTS_IN_TEXT} more" if len(faults) > FAULTS_IN_TEXT else "")


def pointer(before: str, path: Iterable[str | int]) -> str:
    return before + "".join("/" + escaped(storable(str(part))) for part in path)


def _misplaced(text: str, place: str) -> Misplaced:
    return Misplaced(place, storable(text[:DETAIL_MAX]))


def _plain(listed: Any) -> list[Any]:
    """pydantic's own list, without the values and without links to its documentation."""
    try:
        return list(listed(include_url=False, include_context=False, include_input=False))
    except TypeError:  # pydantic 1 has no such options, and its list holds no values
        return list(listed())


def _fields_at(model: Any, path: list[str | int]) -> list[str]:
    """The fields of the struct that stands at a path of a model; none: nobody can say which."""
    return [
        field.encode_name
        for choice in _types_at(model, path)
        if isinstance(choice, msgspec.inspect.StructType | msgspec.inspect.DataclassType)
        for field in choice.fields
    ]


def _values_at(model: Any, path: list[str | int]) -> list[str]:
    """The values of the Literal or enum that stands at a path of a model."""
    found: list[str] = []
    for choice in _types_at(model, path):
        if isinstance(choice, msgspec.inspect.LiteralType):
            found += map(str, choice.values)
        elif isinstance(choice, msgspec.inspect.EnumType):
            found += [str(one.value) for one in choice.cls]
    return found


def _types_at(model: Any, path: list[str | int]) -> list[msgspec.inspect.Type]:
    try:
        found = _choices(msgspec.inspect.type_info(model))
    except TypeError:
        return []
    for part in path:
        found = [choice for one in found for inner in _inside(one, part) for choice in _choices(inner)]
    return found


def _choices(info: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    if isinstance(info, msgspec.inspect.Metadata):
        return _choices(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        return [choice for one in info.types for choice in _choices(one)]
    return [info]


def _inside(info: msgspec.inspect.Type, part: str | int) -> list[msgspec.inspect.Type]:
    if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
        return [field.type for field in info.fields if field.encode_name == part]
    if isinstance(info, msgspec.inspect.DictType):
        return [info.value_type]
    if isinstance(info, msgspec.inspect.CollectionType):
        return [info.item_type]
    return []
