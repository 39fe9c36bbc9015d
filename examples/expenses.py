"""An expense claim as a chart: an AI suggests, a person decides, deputies are asked after two days, one payout, a mail.

    holdfast dev --app examples.expenses:hf

publishes `examples/expense.json`, starts a claim and waits for you: the commands it prints complete the claim. The
model is scripted and mails land in a folder, so nothing leaves the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from examples.orders import command
from holdfast import Holdfast, Outside, TaskInfo
from holdfast.handlers.ports import LlmRequest
from holdfast.testing import FileMailbox, ScriptedLlm

CHART = Path(__file__).parent / "expense.json"
FOLDER = Path(os.environ.get("EXPENSES_FOLDER", ".holdfast/expenses"))
CLAIM = {
    "claimant": "Ada", "email": "ada@example.org", "amount_minor": 12_500, "currency": "EUR",
    "reason": "train to the customer",
}  # fmt: skip


def advise(request: LlmRequest) -> str:
    """What stands in for a model: it likes travel."""
    said = request.messages[-1]["content"]
    event = "approve" if "train" in said else "refuse"
    return json.dumps({"event": event, "confidence": 0.9, "reason": f"it looks like a case to {event}"})


hf = Holdfast(
    outside=Outside(llm=ScriptedLlm(advise), mail=FileMailbox(FOLDER / "mail"), mail_from="expenses@example.org")
)


@hf.task_handler("SYSTEM", "bank.payout", kind="effect", mode="keyed")
def payout(order: dict[str, Any], task: TaskInfo) -> dict[str, Any]:
    """A bank that knows its keys: the same key twice is one payout, and gives the same receipt."""
    bank = FOLDER / "bank"
    bank.mkdir(parents=True, exist_ok=True)
    file = bank / f"{task.idempotency_key}.json"
    receipt = {"id": f"po-{task.idempotency_key[:8]}", **order}
    with tempfile.NamedTemporaryFile("w", dir=bank, delete=False) as draft:
        json.dump(receipt, draft)
    try:
        os.link(draft.name, file)
    except FileExistsError:
        pass  # paid before: the receipt is the one from then
    finally:
        Path(draft.name).unlink()
    found: dict[str, Any] = json.loads(file.read_text())
    return found


async def dev(hf: Holdfast) -> None:
    """Called by `holdfast dev`: a claim that waits for you."""
    await hf.publish(CHART.read_text(), actor="examples")
    handle = await hf.start("expense", CLAIM, business_key=os.environ.get("EXPENSE_ID", "claim-1"))
    task = await _task_of(handle.id)
    if task is None:
        print(f"\n{handle.id} is {(await handle.status()).status}: EXPENSE_ID=another make run starts another\n")
        return
    proposal = task.input.get("proposal")
    word = {"decision": "apply", "hash": proposal["hash"]} if proposal else {"approve": True, "why": "fine with me"}
    print(f"\nExpense claim {handle.id} waits for a person. In a second terminal, in this folder:\n")
    for words in (
        ("tasks", "list"),
        ("tasks", "show", task.id),
        ("tasks", "complete", task.id, "--actor", "you", "--output", json.dumps(word)),
        ("instances", "history", handle.id),
        ("definitions", "graph", "expense", "--instance", handle.id),
    ):
        print(f"  {command(hf, *words)}")
    print(f"\nThe mail it sends lands in {FOLDER / 'mail'}; the bank keeps its payouts in {FOLDER / 'bank'}.\n")


async def _task_of(instance: str) -> Any:
    """The open task of that instance, as soon as there is one."""
    for _ in range(100):
        found = [t for t in await hf.tasks.list(type="HUMAN") if t.instance_id == instance]
        if found:
            return found[0]
        if (await hf.instance(instance).status()).status in ("completed", "failed", "cancelled"):
            return None
        await asyncio.sleep(0.1)
    return None
