"""Lint of events, invokes and tasks: what is raised and nobody hears, answers that nobody waits for, greedy stars."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Any

from holdfast.engine.charts.document import Problem
from holdfast.engine.charts.lint_survey import Survey, asked_with, certain, constant_fields, matches, type_of, warning
from holdfast.engine.charts.nodes import Cancel, Constant, Deed, Invoke, Node, ObjectOf, Raise
from holdfast.engine.charts.plain import event_words
from holdfast.engine.charts.walking import upwards

SHOWN_MAX = 4  # names in one message
HOMES_MAX = 500  # states that one `*` is held against
AUTOMATIC = frozenset(("HTTP", "EMAIL", "AI", "SYSTEM"))


class Events:
    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.chart = survey.chart
        self.actions = survey.actions
        self.handled = survey.handled

    def warnings(self) -> Iterator[Problem]:
        for rule in (self._raised, self._cancelled, self._invokes, self._tasks, self._swallowed):
            yield from rule()

    def _raised(self) -> Iterator[Problem]:
        for action in self.actions:
            if isinstance(action, Raise):
                event = type_of(action.event)
                if event is not None and not self.handled(event):
                    yield warning(
                        f"{action.path}/event", f"no state handles {event!r}: add it to an `on`, or remove this raise"
                    )

    def _cancelled(self) -> Iterator[Problem]:
        raised = {action.id for action in self.actions if isinstance(action, Raise) and action.delay is not None}
        # A named action that nobody runs yet is reported as unused; its tasks still count as known here.
        tasks = {params.get("name") for _, params in self.chart.tasks}
        for action in self.actions:
            if isinstance(action, Cancel) and action.id not in raised:
                yield warning(f"{action.path}/id", f"no delayed raise has the id {action.id!r}: correct it")
            elif isinstance(action, Deed) and action.type == "cancelTask":
                params = action.params.value if isinstance(action.params, Constant) else {}
                if params.get("name") not in tasks:
                    yield warning(f"{action.path}/params/name", f"no task is named {params.get('name')!r}: correct it")

    # -- invokes and tasks

    def _invokes(self) -> Iterator[Problem]:
        types = {path: params.get("type") for path, params in self.chart.tasks}
        for node in self.chart.nodes:
            for invoke in node.invokes:
                if types.get(f"{invoke.path}/src/task") in ("HUMAN", "TIMER"):
                    continue  # neither fails by itself
                event = f"xstate.error.actor.{invoke.id}"
                if not self.survey.heard_with(node, event):
                    yield warning(
                        invoke.path, f"add onError to {_words_of(invoke)}: if it fails for good, the instance fails"
                    )

    def _tasks(self) -> Iterator[Problem]:
        for path, params in self.chart.tasks:
            type_, name = params.get("type"), params.get("name")
            if type_ == "HUMAN" and not params.get("assignee") and not params.get("groups"):
                yield warning(path, f"nobody finds the HUMAN task {name!r}: give it `assignee` or `groups`")
            if type_ == "AI":
                yield from self._policy(path, params.get("policy"))
            if path.endswith("/src/task"):
                continue  # answers with onDone and onError
            for key in ("completion_event", "failure_event"):
                event = params.get(key)
                if isinstance(event, str) and not self.handled(event):
                    then = "the instance would fail" if key == "failure_event" else "the answer would be ignored"
                    yield warning(f"{path}/{key}", f"no state handles {event!r}, so {then}: add it to an `on`")
            failed = f"task.failed.{name}"
            if type_ in AUTOMATIC and "failure_event" not in params and not self.handled(failed):
                yield warning(
                    path,
                    f"no state handles {failed!r}: if the {type_} task {name!r} fails for good, the instance fails. "
                    "Handle it, or name a failure_event that is handled",
                )

    def _policy(self, path: str, policy: Any) -> Iterator[Problem]:
        allowed = policy.get("allowed_events") if isinstance(policy, dict) else None
        for n, event in enumerate(allowed if isinstance(allowed, list) else []):
            if isinstance(event, str) and not self.handled(event):
                yield warning(
                    f"{path}/policy/allowed_events/{n}",
                    f"the AI may cause {event!r}, which no state handles: correct the name, or take it out",
                )

    # -- stars

    def _swallowed(self) -> Iterator[Problem]:
        """`*` takes internal events too: done, after and error that somebody else waits for, or that nobody does."""
        homes = [node.index for node in self.chart.nodes if any(_internal(node))]
        for node in self.survey.listeners.get("*", []):
            if node.index not in self.survey.reachable:
                continue
            taken: list[str] = []
            for home in islice(self._around(node, homes), HOMES_MAX):
                taken += [event_words(home, event) for event in _internal(home) if _takes(node, home, event)]
                if len(taken) >= SHOWN_MAX:
                    break
            if taken:
                words = ", ".join(list(dict.fromkeys(taken))[:SHOWN_MAX])
                yield warning(
                    f"{node.path}/on/*",
                    f"* also takes internal events ({words}): handle those by name where * stands, or narrow it to a "
                    "prefix such as order.*",
                )

    def _around(self, node: Node, homes: list[int]) -> Iterator[Node]:
        """Of these states, those that can be active with `node`: itself, around it, inside it, in other regions."""
        spans = [(node.index, node.last)]
        for at in upwards(node):
            if at.parent is not None:
                spans.append((at.parent.index, at.parent.index))
                if at.parent.type == "parallel":
                    spans += [(region.index, region.last) for region in at.parent.children if region is not at]
        for first, last in spans:
            for index in homes[bisect_left(homes, first) : bisect_right(homes, last)]:
                yield self.chart.nodes[index]


def _internal(home: Node) -> Iterator[str]:
    """The internal events that a state causes while it is active."""
    for delay in home.after:
        yield delay.event
    for invoke in home.invokes:
        yield f"xstate.done.actor.{invoke.id}"
        yield f"xstate.error.actor.{invoke.id}"
    if home.parent is not None and (home.type == "parallel" or any(child.type == "final" for child in home.children)):
        yield f"xstate.done.state.{home.id}"


def _takes(node: Node, home: Node, event: str) -> bool:
    """Whether the `*` of `node` takes an internal event that `home` is meant to hear."""
    if any(word != "*" and matches(event, word) for word in node.on):
        return False  # it hears it by name
    if home is node or node.holds(home):
        # Asked after home and what lies between: it gets what those let pass.
        between = [at for at in upwards(home) if at is not node and node.holds(at)]
        heard = [t for at in between for word, ts in at.on.items() if matches(event, word) for t in ts]
        return not any(certain(t.guard) for t in heard)
    if home.holds(node) and event.startswith("xstate.done.state."):
        # When a compound state is done, none of its states but a final one is active.
        return home.type == "parallel" and not node.atomic
    return asked_with(node, home)


def _words_of(invoke: Invoke) -> str:
    source = invoke.src
    if "workflow" in source:
        return f"the workflow {source['workflow']!r}"
    task = source.get("task")
    name = constant_fields(task).get("name") if task is not None else None
    if isinstance(task, ObjectOf) and isinstance(task.items["name"], Constant):
        name = task.items["name"].value
    return f"the invoke of {name!r}"
