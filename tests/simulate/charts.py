"""Charts of the simulation: a few shapes with a drawn mode, and the handlers of their tasks."""

from __future__ import annotations

from random import Random
from typing import Any

from holdfast import Holdfast, TaskInfo
from tests.simulate.programs import MODES, Author

TIMEOUT = 3.0


def pay_task(mode: str) -> dict[str, Any]:
    return {
        "src": {"task": {"type": "SYSTEM", "name": f"pay-{mode}", "max_attempts": 5}},
        "input": {"@expr": "context.n"},
    }


def approval(mode: str) -> dict[str, Any]:
    """A person decides, or nobody does in time; then something is paid."""
    human = {"type": "HUMAN", "name": "approve", "groups": ["staff"], "completion_event": "decided"}
    return {
        "id": "approval",
        "context": {"n": {"@expr": "event.input.n"}},
        "initial": "review",
        "states": {
            "review": {
                "entry": {"type": "createTask", "params": human},
                "on": {"decided": "paying", "go": "paying"},
                "after": {"PT40S": "refused"},
            },
            "paying": {"invoke": pay_task(mode) | {"onDone": "paid", "onError": "refused"}},
            "paid": {"type": "final"},
            "refused": {"type": "final"},
        },
    }


def reminders(mode: str) -> dict[str, Any]:
    """Timers that set one another, and a handler that fails at first."""
    return {
        "id": "reminders",
        "context": {"n": {"@expr": "event.input.n"}, "asked": 0},
        "initial": "idle",
        "states": {
            "idle": {
                "on": {"go": {"actions": {"type": "assign", "assign": {"asked": {"@expr": "context.asked + 1"}}}}},
                "after": {"PT5S": "busy"},
            },
            "busy": {
                "invoke": {"src": "flaky", "input": {"@expr": "context.n"}, "onDone": "resting", "onError": "over"}
            },
            "resting": {"after": {"PT12S": "over"}},
            "over": {"type": "final"},
        },
    }


def both(mode: str) -> dict[str, Any]:
    """A payment and a person at once."""
    human = {"type": "HUMAN", "name": "sign", "groups": ["staff"], "completion_event": "signed"}
    return {
        "id": "both",
        "type": "parallel",
        "context": {"n": {"@expr": "event.input.n"}},
        "states": {
            "money": {
                "initial": "paying",
                "states": {
                    "paying": {"invoke": pay_task(mode) | {"onDone": "paid", "onError": "paid"}},
                    "paid": {"type": "final"},
                },
            },
            "paper": {
                "initial": "open",
                "states": {
                    "open": {
                        "entry": {"type": "createTask", "params": human},
                        "on": {"signed": "signed", "go": "signed"},
                    },
                    "signed": {"type": "final"},
                },
            },
        },
    }


def talkative(mode: str) -> dict[str, Any]:
    """One that sends events to itself, beside those that come from elsewhere, before it pays."""
    tell = {"type": "send", "to": {"@expr": "event.me"}, "event": {"type": "next", "me": {"@expr": "event.me"}}}
    more = {"type": "assign", "assign": {"told": {"@expr": "context.told + 1"}}}
    return {
        "id": "talkative",
        "context": {"n": {"@expr": "event.input.n"}, "told": 0},
        "initial": "talking",
        "states": {
            "talking": {
                "on": {
                    "go": {"actions": [tell]},
                    "next": [{"guard": {"@expr": "context.told < 3"}, "actions": [more, tell]}, {"target": "paying"}],
                },
                "after": {"PT40S": "refused"},
            },
            "paying": {"invoke": pay_task(mode) | {"onDone": "paid", "onError": "refused"}},
            "paid": {"type": "final"},
            "refused": {"type": "final"},
        },
    }


SHAPES = (approval, reminders, both, talkative)


def drawn(rng: Random) -> dict[str, Any]:
    return rng.choice(SHAPES)(rng.choice(MODES))


def register(hf: Holdfast, author: Author) -> None:
    for mode in MODES:
        statement = {"k": "effect", "name": f"pay-{mode}", "mode": mode, "timeout": TIMEOUT}
        options: dict[str, Any] = {"lookup": author.provider.find} if mode == "lookup" else {}

        def declare(statement: dict[str, Any], mode: str, options: dict[str, Any]) -> None:
            @hf.task_handler("SYSTEM", statement["name"], kind="effect", mode=mode, timeout=TIMEOUT, **options)  # type: ignore[arg-type]
            async def pay(n: Any, info: TaskInfo) -> Any:
                return await author.provider.call(info, statement, n)

        declare(statement, mode, options)

    @hf.task_handler("SYSTEM", "flaky")
    async def flaky(n: Any, info: TaskInfo) -> str:
        return author.worked({"name": "flaky", "fails": 1}, None, _Place(info.instance_id, "flaky")) and "there"  # type: ignore[arg-type]


class _Place:
    def __init__(self, instance_id: str, step: str) -> None:
        self.instance_id, self.step = instance_id, step
