"""How large a pattern of matches() is, for RE2 takes time in proportion to text times pattern."""

from __future__ import annotations

import re

from holdfast.engine.charts.expression_trees import Node, nodes_of
from holdfast.engine.charts.expression_words import BadExpression

PATTERN_LIMIT = 2_000  # characters of a pattern for matches(), with its repetitions written out
_UNICODE = 2_600
_ATOM = re.compile(
    r"(?P<open>\()|(?P<close>\))|\{(?P<low>\d+)(?:,(?P<high>\d*))?\}|(?P<unicode>\\[pP](?:\{[^}]*\}|.))"
    r"|(?P<quote>\\Q)|(?P<class>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\])|(?P<one>\\.|.)",
    re.DOTALL,
)


def check_patterns(tree: Node) -> None:
    for node in nodes_of(tree):
        if node.kind == "call" and node.name == "matches":
            if node.parts[-1].kind != "constant":
                raise BadExpression("the pattern of matches(…) stands in the expression, as one constant text")
            size = written_out(node.parts[-1].name)
            if size > PATTERN_LIMIT:
                raise BadExpression(
                    f"the pattern of matches(…) has {size:,} characters with its repetitions written out, the limit is "
                    f"{PATTERN_LIMIT:,}: repeat less often; \\p… counts as {_UNICODE:,}, [a-z] as five"
                )


def written_out(pattern: str) -> int:
    """How many characters it has when x{3} is written xxx."""
    groups: list[list[int]] = [[]]
    for found in _ATOM.finditer(pattern):
        atoms = groups[-1]
        match found.lastgroup:
            case "open":
                groups.append([1])
            case "close":
                if len(groups) > 1:
                    inner = sum(groups.pop())
                    groups[-1].append(inner + 1)
            case "low" | "high":
                if atoms:
                    atoms[-1] *= max(1, int(found["low"]), int(found["high"] or 0))
            case "quote":
                return PATTERN_LIMIT + len(pattern)  # \Q…\E would hide brackets from us
            case "unicode":
                atoms.append(_UNICODE)
            case _:
                atoms.append(len(found[0]) + _UNICODE * len(re.findall(r"\\[pP]", found[0])))
    return sum(sum(group) for group in groups)
