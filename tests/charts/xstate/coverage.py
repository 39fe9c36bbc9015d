"""What random machines really exercise: `python -m tests.charts.xstate.coverage [how many] [first seed]`.

Counts two things: what the machines contain, and what happened when XState ran them. A feature that is in many machines
and in no step is not covered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.charts.machines import Machine, random_machine

RUNNER = Path(__file__).with_name("run.mjs")
ACTIONS = ("assign", "raise", "cancel", "choose", "log", "createTask")
GUARDS = ("and", "or", "not", "stateIn")


def traced(machines: list[Machine]) -> list[dict[str, Any]]:
    lines = "".join(f"{json.dumps({'js': one.js, 'input': one.input, 'events': one.events})}\n" for one in machines)
    done = subprocess.run(["node", str(RUNNER), "--trace"], input=lines, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: crashes, which the report counts
        sys.exit(done.returncode)
    return [json.loads(line) for line in done.stdout.splitlines()]


def states(spec: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    yield path, spec
    for key, child in spec.get("states", {}).items():
        yield from states(child, (*path, key))


def contained(machine: Machine) -> set[str]:
    """The features that a machine's text has."""
    found: set[str] = set()
    spec = machine.spec
    for path, state in states(spec):
        kind = state.get("type", "compound" if "states" in state else "atomic")
        found.add(f"state {kind}" + (" root" if not path else ""))
        found |= {f"state with {key}" for key in ("always", "after", "invoke", "tags", "onDone") if key in state}
        found.add(f"depth {len(path)}")
        children = state.get("states", {}).values()
        if kind == "parallel" and path and any(child.get("type") == "parallel" for child in children):
            found.add("parallel directly in parallel")
        for child in children:
            if child.get("type") == "history":
                default = "with" if "target" in child else "without"
                found.add(f"history {child.get('history', 'unsaid')} in {kind} {default} default")
        if path and "id" in state:
            found.add("state with id")
        if isinstance(state.get("initial"), dict):
            found.add("initial with actions")
        if "output" in state:
            found.add("output of a final state" if path else "output of the root")
        found |= {f"after {after_kind(key)}" for key in state.get("after", {})}
        whole = [key for key in state.get("after", {}) if key.isdigit()]
        if whole != sorted(whole, key=int):
            found.add("after with numbers out of order")
        found |= {f"on {event}" for event in state.get("on", {}) if event.endswith("*")}
    found |= set(mentioned(spec, spec))
    return found


def mentioned(value: Any, spec: dict[str, Any]) -> Iterator[str]:
    """The guards and actions anywhere in this value."""
    if isinstance(value, list):
        for item in value:
            yield from mentioned(item, spec)
    elif isinstance(value, dict):
        yield from (f"guard {key}" for key in GUARDS if key in value)
        name = value.get("type")
        if isinstance(name, str) and name in ACTIONS:
            more = [key for key in ("delay", "id") if key in value and name == "raise"]
            yield " with ".join([f"action {name}", *more])
        with_params = " with params" if "params" in value else ""
        if isinstance(name, str):
            yield from (f"named {kind[:-1]}{with_params}" for kind in ("guards", "actions") if name in spec[kind])
        if isinstance(value.get("guard"), str):
            yield "named guard as text"
        for inner in (cond.get("actions") for cond in value.get("conds", [])):
            inside = inner if isinstance(inner, list) else [inner]
            if any(isinstance(one, dict) and one.get("type") == "choose" for one in inside):
                yield "choose in choose"
        if "@expr" in value and "state.value" in value["@expr"]:
            yield "expression with state.value"
        for item in value.values():
            yield from mentioned(item, spec)


def after_kind(key: str) -> str:
    return "number" if key.isdigit() else "duration" if key.startswith("P") else "named"


def happened(machine: Machine, steps: list[dict[str, Any]]) -> Iterator[str]:
    """What XState did, one word for each time; of its steps with microsteps (--trace)."""
    nodes = {state.get("id", ".".join(("m", *path))): state for path, state in states(machine.spec)}
    before: dict[str, Any] = {}
    for place, step in enumerate(steps):
        if step.get("skipped"):
            yield "step skipped"
            continue
        yield f"step {step['status']}"
        if step["status"] == "done":
            yield f"step done of {machine.spec.get('type', 'compound')} root"
        if place and step["handled"]:
            yield "step with a transition for its event"
        if place and not step["handled"]:
            yield "step ignored"
        if step.get("actions"):
            yield "step with actions"
        if place and step["status"] != "loop" and step["value"] != before.get("value"):
            yield "step to another value"
        if step.get("output") is not None:
            yield "step with output"
        yield from (f"action {action['type']}" for action in step.get("actions", ()))
        before = step
        if len(step["microsteps"]) > 3:
            yield "step of more than 3 microsteps"
        for number, microstep in enumerate(step["microsteps"]):
            taken = microstep["transitions"]
            if len(taken) > 1:
                yield "microstep with several transitions"
            if number and not taken:
                yield "raised event without a transition"
            for transition in taken:
                yield from described(transition, microstep["event"], nodes)


def described(transition: dict[str, Any], event: str, nodes: dict[str, dict[str, Any]]) -> Iterator[str]:
    on, target = transition["on"], transition["target"]
    match on.split("."):
        case [""]:
            yield "always" + (" without a target" if target is None else "")
        case [*_, "*"]:
            yield "wildcard" + (" for an internal event" if event.startswith("xstate.") else "")
        case ["xstate", "after", key, *_]:
            yield f"after {after_kind(key)}"
        case ["xstate", "done", "state", *_]:
            yield f"done state of {nodes[transition['source']].get('type', 'compound')}"
        case ["xstate", kind, of, *_]:
            yield f"{kind} {of}"
        case ["i", _]:
            yield "raised"
        case parts:
            yield "event" + (" with dots" if len(parts) > 1 else "")
    if transition["guarded"]:
        yield "guarded"
    if transition["source"] == "m":
        yield "from the root"
    if target is None:
        yield "without a target" if transition["actions"] else "forbidden"
        return
    if transition["reenter"]:
        yield "reenter" + (" of the root" if transition["source"] == "m" else "")
    if len(target) > 1:
        yield "to several targets"
    for name in target:
        if name == "m":
            yield "to the root"
        if name == transition["source"]:
            yield "to itself"
        node = nodes[name]
        yield f"to {node.get('type', 'compound' if 'states' in node else 'atomic')}"
        if node.get("type") == "history":
            yield f"to {node.get('history', 'unsaid')} history"


def report(count: int, first: int) -> None:
    machines = [random_machine(seed) for seed in range(first, first + count)]
    answers = traced(machines)
    crashed = [first + place for place, answer in enumerate(answers) if "crash" in answer]
    texts: Counter[str] = Counter()
    deeds: Counter[str] = Counter()
    alive: Counter[str] = Counter()
    for machine, answer in zip(machines, answers, strict=True):
        texts.update(contained(machine))
        deeds.update(happened(machine, answer.get("steps", [])))
        alive.update(set(happened(machine, answer.get("steps", []))))
    print(f"{count} machines from seed {first}; crashes: {crashed or 'none'}")
    print("\nin the text of so many machines")
    for name, number in sorted(texts.items()):
        print(f"{number:8}  {name}")
    print("\nhappened so many times, in so many machines")
    for name, number in sorted(deeds.items()):
        print(f"{number:8} {alive[name]:6}  {name}")


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    report(*(numbers + [500, 0][len(numbers) :]))
