"""Our interpreter against npm XState: the same random machines, the same events, every step compared.

XState runs twice: as it is, and with the points patched in on which we differ on purpose (docs/charts-and-xstate.md).
A machine on which we agree with the second only is counted apart; one on which we agree with neither is a fault.

    .venv/bin/python -m tests.charts.differential --machines 2000 --first 1
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.engine import codec
from holdfast.engine.charts import document
from holdfast.engine.charts.compiler import compile_chart
from holdfast.engine.charts.interpreter import Answer, ChartTurn, advance, start
from holdfast.engine.charts.nodes import Chart, StepFault
from holdfast.engine.charts.snapshots import Snapshot, snapshot_from, snapshot_text
from tests.charts.machines import Machine, random_machine
from tests.support.node import node, npm

HERE = Path(__file__).resolve().parent
RUNNER = HERE / "xstate" / "run.mjs"


def install_xstate(into: Path) -> Path:
    """The pinned XState in a folder of its own, by npm's lock file."""
    if (into / "node_modules" / "xstate" / "package.json").exists():
        return into
    into.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / "xstate" / name, into / name)
    subprocess.run(
        [*npm(), "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=into, check=True, capture_output=True
    )
    return into


def xstate_folder() -> Path:
    given = os.environ.get("HOLDFAST_XSTATE")
    if given:
        return Path(given)
    return install_xstate(Path(tempfile.gettempdir()) / f"holdfast-xstate-{os.getuid()}")


def run_xstate(machines: list[Machine], folder: Path, *, by_design: bool) -> list[list[dict[str, Any]]]:
    lines = "".join(json.dumps({"js": m.js, "input": m.input, "events": m.events}) + "\n" for m in machines)
    flags = ["--by-design"] if by_design else []
    done = subprocess.run(
        [node(), str(RUNNER), *flags], input=lines, capture_output=True, text=True,
        env={**os.environ, "HOLDFAST_XSTATE": str(folder)}, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"the XState runner failed: {done.stderr[-2000:]}")
    return [json.loads(line)["steps"] for line in done.stdout.splitlines()]


class Difference(NamedTuple):
    step: int
    what: str
    ours: Any
    theirs: Any


def compare(machine: Machine, steps: list[dict[str, Any]]) -> Difference | None:
    """The first step on which we differ, or None. Our snapshot goes through JSON before every event."""
    chart = compile_chart(document.reread(machine.spec), version=1)
    snapshot: Snapshot | None = None
    for number, theirs in enumerate(steps):
        if theirs.get("skipped"):
            continue
        try:
            if snapshot is None:
                turn = start(chart, machine.input, 0)
            else:
                event = theirs["event"]
                turn = advance(chart, snapshot, event, 0, _answer(snapshot, event))
        except StepFault as fault:
            if theirs["status"] == "loop":
                return None
            return Difference(number, "fault", str(fault), theirs)
        if theirs["status"] == "loop":
            return Difference(number, "loop", turn.snapshot.status, "loop")
        difference = _differ(chart, turn, theirs)
        if difference is not None:
            return Difference(number, *difference)
        snapshot = snapshot_from(chart, codec.encode(codec.decode(snapshot_text(turn.snapshot))))
    return None


def _answer(snapshot: Snapshot, event: dict[str, Any]) -> Answer | None:
    type_ = event["type"]
    for kind in ("xstate.done.actor.", "xstate.error.actor."):
        if type_.startswith(kind):
            id_ = type_.removeprefix(kind)
            return Answer("child", id_, snapshot.children[id_].visit)
    for id_, timer in snapshot.timers.items():
        if type_ == id_ or (type_.startswith("xstate.after.") and timer.event["type"] == type_):
            return Answer("timer", id_, timer.visit)
    return None


def _differ(chart: Chart, turn: ChartTurn, theirs: dict[str, Any]) -> tuple[str, Any, Any] | None:
    snapshot = turn.snapshot
    ours = {
        "status": snapshot.status,
        "value": codec.decode(bytes(snapshot.value)),
        "context": snapshot.context,
        "output": snapshot.output,
        "error": snapshot.error,
        "actions": [_action(effect.type, effect.body) for effect in turn.effects],
        "history": {key: sorted(value) for key, value in snapshot.history_value.items() if value},
    }
    for what, mine in ours.items():
        found = theirs.get(what)
        if what == "history":
            found = {key: sorted(value) for key, value in (found or {}).items() if value}
        if mine != found:
            return what, mine, found
    return None


def _action(type_: str, body: dict[str, Any]) -> dict[str, Any]:
    if type_ == "schedule":
        return {"type": "schedule", "id": body["id"], "event": body["event"], "delay": body["delay"] / 1000}
    if type_ == "cancel":
        return {"type": "cancel", "id": body["id"]}
    if type_ == "stop":
        return {"type": "stop", "id": body["id"]}
    if type_ == "invoke":
        return {"type": "invoke", "id": body["id"], "src": body["src"]["task"]["name"], "input": body["input"]}
    return {"type": type_, "params": body["params"]}


class Verdict(msgspec.Struct):
    machines: int = 0
    steps: int = 0
    transitions: int = 0
    as_it_is: int = 0
    by_design_only: int = 0
    loops: int = 0
    differences: list[tuple[int, Difference]] = []


def run(first: int, count: int, folder: Path) -> Verdict:
    verdict = Verdict(differences=[])
    seeds = range(first, first + count)
    machines = [random_machine(seed) for seed in seeds]
    plain = run_xstate(machines, folder, by_design=False)
    patched = run_xstate(machines, folder, by_design=True)
    for seed, machine, steps, by_design in zip(seeds, machines, plain, patched, strict=True):
        verdict.machines += 1
        verdict.steps += sum(1 for step in steps if not step.get("skipped"))
        verdict.loops += sum(1 for step in steps if step.get("status") == "loop")
        if compare(machine, steps) is None:
            verdict.as_it_is += 1
            continue
        difference = compare(machine, by_design)
        if difference is None:
            verdict.by_design_only += 1
        else:
            verdict.differences.append((seed, difference))
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(description="compare the interpreter with npm XState on random machines")
    parser.add_argument("--machines", type=int, default=2000)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--batch", type=int, default=200)
    given = parser.parse_args()
    folder = xstate_folder()
    total: Counter[str] = Counter()
    for first in range(given.first, given.first + given.machines, given.batch):
        verdict = run(first, min(given.batch, given.first + given.machines - first), folder)
        total.update(
            machines=verdict.machines, steps=verdict.steps, as_it_is=verdict.as_it_is, loops=verdict.loops,
            by_design_only=verdict.by_design_only, differences=len(verdict.differences),
        )  # fmt: skip
        for seed, difference in verdict.differences:
            print(f"\nseed {seed}, step {difference.step}: {difference.what}")
            print(f"  ours   {json.dumps(difference.ours, default=repr)[:1500]}")
            print(f"  theirs {json.dumps(difference.theirs, default=repr)[:1500]}")
        print(f"\r{dict(total)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(json.dumps(dict(total)))
    sys.exit(1 if total["differences"] else 0)


if __name__ == "__main__":
    main()
