"""What is said of an expression that is refused when a chart is published, or fails when it runs."""

from __future__ import annotations

import re
from typing import Any


class BadExpression(Exception):
    """An expression that cannot be compiled; its text says where and why."""


class ExpressionFailed(Exception):
    """An expression that could not be evaluated on the values it met."""


def explained(text: str) -> str:
    text = re.sub(r"\s+", " ", text.replace("INVALID_ARGUMENT: ", "").replace("[INVALID_ARGUMENT]", "")).strip()
    text = re.sub(r"^(?:UNKNOWN|NOT_FOUND|INTERNAL|CANCELLED|OUT_OF_RANGE): ", "", text)
    if "overload" in text and ("double" in text and "int" in text):
        text += " (CEL does not mix int and double: write 1.0 for a double, or double(…))"
    elif "overload" in text and "null" in text:
        text += " (CEL does not compare null with < or >: ask `x != null` first)"
    elif "Key not found" in text:
        text += " (has(…) tells beforehand)"
    return text[:500]


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "a bool", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}.get(
        type(value), type(value).__name__
    )
