"""The charts and tasks in the docs are true: they can be published, and an editor that knows the schema takes them.

A block fenced as ```json chart is a whole chart, one fenced as ```json task is what `createTask` is given.
"""

import json
from typing import Any

import jsonschema_rs
import pytest

from holdfast.engine.charts import document
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.schema import CHART_SCHEMA
from holdfast.engine.charts.task_params import OF_TYPE
from tests.test_docs import FENCE, PAGES, ROOT

SCHEMA = jsonschema_rs.Draft202012Validator(CHART_SCHEMA)


def examples(word: str) -> list[Any]:
    return [
        pytest.param(block[2], id=f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, block.start()) + 1}")
        for page in PAGES
        for text in [page.read_text()]
        for block in FENCE.finditer(text)
        if block[1] == f"json {word}"
    ]


def publishable(chart: dict[str, Any]) -> None:
    compile_chart(document.reread(chart))
    SCHEMA.validate(chart)


@pytest.mark.parametrize("text", examples("chart"))
def test_every_chart_shown_can_be_published(text: str) -> None:
    publishable(json.loads(text))


@pytest.mark.parametrize("text", examples("task"))
def test_every_task_shown_can_be_asked_for(text: str) -> None:
    asked = {"type": "createTask", "params": json.loads(text)}
    publishable({"id": "shown", "initial": "only", "states": {"only": {"entry": asked}}})


@pytest.mark.parametrize("type_", OF_TYPE)
def test_the_page_about_tasks_names_every_field_of_every_type(type_: str) -> None:
    text = (ROOT / "docs" / "tasks.md").read_text()
    for field in sorted(OF_TYPE[type_]):
        assert f"`{field}`" in text or f'"{field}"' in text or f"`{field}," in text, f"docs/tasks.md lacks {field}"
