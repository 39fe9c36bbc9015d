"""Refuses, from its text alone, an expression that could build more than it is given."""

from __future__ import annotations

import re

from holdfast.engine.charts.expression_trees import VARIABLES
from holdfast.engine.charts.expression_words import BadExpression

TEXT_LIMIT = 4096  # characters of one expression
USES_LIMIT = 64  # how often one expression may name a variable: bounds what `+` can build
LOOP_DEPTH = 2
LOOPS = frozenset(("all", "exists", "exists_one", "map", "filter"))
_TOKEN = re.compile(
    r"""(?P<text>[bBrR]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<number>\d[\w.]*)|(?P<space>\s+|//[^\n]*)|(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


def check_bounds(text: str, named: bool) -> None:
    """Refuse what could build more than it is given."""
    if len(text) > TEXT_LIMIT:
        raise BadExpression(f"it has {len(text):,} characters, the limit is {TEXT_LIMIT:,}: split it up")
    tokens = [(str(m.lastgroup), m[0]) for m in _TOKEN.finditer(text) if m.lastgroup != "space"]
    uses = sum(
        1 for n, (kind, word) in enumerate(tokens)
        if kind == "name" and word in VARIABLES and (n == 0 or tokens[n - 1][1] != ".")
    )  # fmt: skip
    if uses > USES_LIMIT:
        raise BadExpression(f"it names variables {uses} times, the limit is {USES_LIMIT}: split it up with assign")
    if not named and any(
        kind == "name" and word == "params" and (n == 0 or tokens[n - 1][1] != ".")
        for n, (kind, word) in enumerate(tokens)
    ):
        raise BadExpression("`params` is only there inside a named guard or action that is called with params")
    open_: list[tuple[str, bool]] = []  # every bracket that is open: "loop" | "literal" | "other"; seen its comma
    for n, (kind, word) in enumerate(tokens):
        before = tokens[n - 1] if n else ("mark", "")
        inside = any(what == "loop" and comma for what, comma in open_)
        if kind == "name":
            if any(what == "literal" for what, _ in open_) and inside and word not in ("true", "false", "null"):
                raise BadExpression("a list or map made inside a loop may hold constants only")
            if inside and word in ("bytes", "string") and n + 1 < len(tokens) and tokens[n + 1][1] == "(":
                raise BadExpression(f"{word}(…) inside a loop could build too much: do it outside")
        if kind != "mark":
            continue
        if word == "+" and inside:
            raise BadExpression("`+` inside a loop could build too much: use -, or add outside the loop")
        if word in "([{":
            what = "other"
            if word == "(" and before[1] in LOOPS and n >= 2 and tokens[n - 2][1] == ".":
                what = "loop"
                if sum(1 for w, _ in open_ if w == "loop") >= LOOP_DEPTH:
                    raise BadExpression(f"loops stand inside each other more than {LOOP_DEPTH} deep")
            elif word == "{" or (
                word == "[" and before[0] not in ("name", "text") and before[1] not in (")", "]", "}")
            ):
                what = "literal"
            open_.append((what, False))
        elif word in ")]}" and open_:
            open_.pop()
        elif word == "," and open_ and open_[-1][0] == "loop":
            open_[-1] = ("loop", True)
