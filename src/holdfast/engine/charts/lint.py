"""What is probably a mistake in a chart that compiles. Warnings only: each says where it is and what to do.

It must stay quiet about charts that are fine, or nobody reads it: where it cannot know, it says nothing.
"""

from __future__ import annotations

from typing import Any

from holdfast.engine.charts.document import Problem
from holdfast.engine.charts.lint_events import Events
from holdfast.engine.charts.lint_flow import Flow
from holdfast.engine.charts.lint_names import Names
from holdfast.engine.charts.lint_survey import Survey, warning
from holdfast.engine.charts.nodes import Chart

WARNINGS_MAX = 200


def lint(chart: Chart, document: dict[str, Any]) -> list[Problem]:
    """Everything that looks like a mistake. `document` is the one that `chart` was compiled from."""
    survey = Survey(chart, document)
    rules = (Flow(survey), Events(survey), Names(survey))
    found = list(dict.fromkeys(problem for rule in rules for problem in rule.warnings()))
    if len(found) > WARNINGS_MAX:
        more = len(found) - WARNINGS_MAX
        found = [*found[:WARNINGS_MAX], warning("", f"and {more:,} more: mend these first")]
    return found
