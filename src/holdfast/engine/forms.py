"""JSON Schema checks: a task's form, a chart's input. Problems come back as words with the place they are about."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jsonschema_rs

from holdfast.engine import codec

PROBLEMS_MAX = 20
SCHEMA_LIMIT = 64 * 1024


@lru_cache(maxsize=500)
def _validator(text: bytes) -> Any:
    # Patterns run on a regex engine without back-tracking, and no reference leaves the schema.
    return jsonschema_rs.Draft202012Validator(
        codec.decode(text), retriever=_refuse, pattern_options=jsonschema_rs.RegexOptions()
    )


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is outside the schema: write it out inside, under $defs")


def check_schema(schema: Any) -> str | None:
    """What is wrong with a schema, or None."""
    if not isinstance(schema, (dict, bool)):
        return "expected a JSON Schema (an object)"
    text = codec.encode(schema)
    if len(text) > SCHEMA_LIMIT:
        return f"the schema has {len(text):,} bytes, the limit is {SCHEMA_LIMIT:,}"
    try:
        jsonschema_rs.meta.validate(schema)
        _validator(text)
    except Exception as error:
        return f"not a JSON Schema: {str(error).splitlines()[0][:300]}"
    return None


def check_json(schema: Any, value: Any) -> list[str]:
    """Every place where the value does not fit."""
    problems = []
    for error in _validator(codec.encode(schema)).iter_errors(value):
        path = "/" + "/".join(str(part) for part in error.instance_path) if error.instance_path else "/"
        problems.append(f"{path}: {error.message[:300]}")
        if len(problems) >= PROBLEMS_MAX:
            break
    return problems
