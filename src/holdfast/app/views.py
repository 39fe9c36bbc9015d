"""What every view has: a way to become JSON, also for the frameworks that do it by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec


class View(msgspec.Struct, frozen=True, kw_only=True):
    """How something stands, as values. Moments are aware datetimes in UTC; inputs, results and payloads plain JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, moments as RFC 3339 text: for `json.dumps`, `JsonResponse` and the like."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    def keys(self) -> Iterable[str]:
        """With `view[name]`: `dict(view)` has the fields as they are."""
        return self.__struct_fields__

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    # pydantic calls these two by name. FastAPI then answers with a view, and describes it in its OpenAPI document.

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.is_instance_schema(
            cls, serialization=core_schema.plain_serializer_function_ser_schema(cls.to_dict, when_used="json")
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        (found,), parts = msgspec.json.schema_components([cls], ref_template="#/$defs/{name}")
        inlined: dict[str, Any] = _inlined(found, parts)
        return inlined


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """Without references: where the schema ends up, nobody collects its parts."""
    if isinstance(schema, list):
        return [_inlined(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {key: _inlined(value, parts) for key, value in schema.items()}
