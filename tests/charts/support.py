"""Charts that the tests of flows share, and an app that runs them with a provider which remembers."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast, TaskInfo
from holdfast.testing import FakeProvider


def human(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "createTask", "params": {"type": "HUMAN", "name": name, "groups": ["staff"], **more}}


EXPENSE: dict[str, Any] = {
    "id": "expense",
    "context": {"amount": {"@expr": "event.input.amount"}, "reminders": 0},
    "initial": "review",
    "output": {"amount": {"@expr": "context.amount"}, "reminders": {"@expr": "context.reminders"}},
    "states": {
        "review": {
            "entry": human(
                "approve",
                completion_event="decided",
                form={"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}},
            ),
            "on": {
                "decided": [
                    {"guard": {"@expr": "event.output.ok"}, "target": "posting"},
                    {"target": "refused"},
                ],
                "remind": {"actions": {"type": "assign", "assign": {"reminders": {"@expr": "context.reminders + 1"}}}},
                "withdraw": "refused",
            },
            "after": {"P3D": "refused"},
        },
        "posting": {
            "invoke": {
                "src": "ledger.post",
                "input": {"amount": {"@expr": "context.amount"}},
                "onDone": "paying",
                "onError": "refused",
            }
        },
        "paying": {
            "invoke": {
                "src": {"task": {"type": "SYSTEM", "name": "pay", "max_attempts": 3, "backoff": 1000}},
                "input": {"amount": {"@expr": "context.amount"}},
                "onDone": "paid",
                "onError": "refused",
            }
        },
        "paid": {"type": "final"},
        "refused": {"type": "final"},
    },
}


def app(provider: FakeProvider | None = None, mode: str = "manual") -> Holdfast:
    hf = Holdfast("sqlite:///unused.db")
    provider = provider or FakeProvider()

    @hf.task_handler("SYSTEM", "ledger.post", thread=False)
    def post(given: Any) -> Any:
        return {"posted": given["amount"]}

    options: dict[str, Any] = {"lookup": provider.find} if mode == "lookup" else {}

    @hf.task_handler("SYSTEM", "pay", kind="effect", mode=mode, thread=False, **options)  # type: ignore[arg-type]
    def pay(given: Any, info: TaskInfo) -> Any:
        return provider.call(info.idempotency_key, given)

    return hf
