"""A built workflow as a chart document, only to be drawn: what draws charts then draws it, too."""

from __future__ import annotations

import re
from typing import Any

from holdfast.engine.builder import BuiltBranch, BuiltStep, Workflow
from holdfast.engine.charts import document as doc
from holdfast.engine.charts.compiler import chart_from
from holdfast.engine.charts.nodes import Chart

END = "(end)"


def chart_of(workflow: Workflow) -> Chart:
    """Its steps as states, one after the other. A transition is named by what leads on: `done`, a route, `again`."""
    return chart_from(doc.written({"id": _word(workflow.name), **_sequence(workflow.steps)}))


def _sequence(steps: tuple[BuiltStep, ...]) -> dict[str, Any]:
    names: list[str] = []
    for step in steps:
        names.append(_unlike(names, _word(step.name if step.kind == "step" else f"{step.name} ({step.kind})")))
    states: dict[str, Any] = {}
    for step, name, following in zip(steps, names, [*names, END][1:], strict=True):
        states |= _states(step, name, following, [*names, *states])
    return {"initial": next(iter(names), END), "states": states | {END: {"type": "final"}}}


def _states(step: BuiltStep, name: str, following: str, taken: list[str]) -> dict[str, Any]:
    if step.kind == "parallel":
        regions: dict[str, Any] = {}
        for branch in step.branches:
            regions[_unlike(list(regions), _branch_word(branch))] = {}
        return {name: {"type": "parallel", "states": regions, "on": {"done": following}}}
    if step.kind != "route":
        again = {"again": name} if step.kind == "loop" else {}
        return {name: {"on": again | {"done": following}}}
    made: dict[str, Any] = {}
    ways: dict[str, str] = {}
    for branch in step.branches:
        event = _unlike(list(ways), _word(branch.name))
        ways[event] = following
        if branch.steps:
            place = ways[event] = _unlike([*taken, *made], _word(f"{step.name}: {branch.name}"))
            made[place] = {**_sequence(branch.steps), "on": {"done": following}}
    return {name: {"on": ways}, **made}


def _branch_word(branch: BuiltBranch) -> str:
    kinds = {step.kind for step in branch.steps} - {"step"}
    return _word(f"{branch.name} ({kinds.pop()})" if kinds else branch.name)


def _word(name: str) -> str:
    """A name as a chart takes it for a state or an event: a few signs have a meaning there."""
    word = re.sub(r"[.#*/\\]", "_", name)[:80].strip() or "_"
    return f"_{word}" if word.isdigit() else word


def _unlike(taken: list[str], word: str) -> str:
    found, number = word, 2
    while found in taken or found == END:
        found, number = f"{word} {number}", number + 1
    return found
