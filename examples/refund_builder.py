"""The same engine, written as a chain: a refund with a route, a poll and two branches at once.

Every handler takes one `StepInfo`: `info.input`, `info.results` of the steps before, and the call's own facts.

    python examples/refund_builder.py
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

from holdfast import Holdfast, StepInfo, Workflow, effect
from holdfast.testing import FakeProvider, Harness

hf = Holdfast()
bank = FakeProvider()
mail = FakeProvider()
looks: Counter[str] = Counter()


def check(info: StepInfo) -> dict[str, Any]:
    return {"amount_minor": info.input["amount_minor"], "account": "DE-1"}


def by_amount(info: StepInfo) -> str:
    return "high" if info.results["check"]["amount_minor"] > 10_000 else "low"


def ask_for_papers(info: StepInfo) -> str:
    return f"papers for {info.input['id']}"


def send_money(info: StepInfo) -> Any:
    return bank.call(info.idempotency_key, info.results["check"])


def find_payment(key: str) -> Any:
    return bank.find(key)


def take_back(info: StepInfo) -> None:
    bank.call(info.idempotency_key, {"undo": info.result})


def look(info: StepInfo) -> dict[str, Any]:
    looks[info.instance_id] += 1
    return {"arrived": looks[info.instance_id] >= 3}  # the other bank takes its time


def is_done(info: StepInfo) -> bool:
    return bool(info.result["arrived"])


def tell_crm(info: StepInfo) -> str:
    return f"noted {info.input['id']}"


def send_mail(info: StepInfo) -> Any:
    return mail.call(info.idempotency_key, f"your refund {info.input['id']}")


refund = (
    Workflow("refund")
    .step("check", check)
    .route("risk", choose=by_amount, routes={"high": Workflow("papers").step("ask", ask_for_papers), "low": None})
    .effect("pay", send_money, mode="lookup", lookup=find_payment, compensate=take_back)
    .loop("arrived", look, until=is_done, every=timedelta(minutes=5), max_rounds=20)
    .parallel("notify", {"crm": tell_crm, "mail": effect(send_mail, mode="manual")})
)
hf.register(refund)


async def main() -> list[Any]:
    results = []
    async with Harness(hf) as test:  # a temporary database, and a clock that we move
        for amount in (4_200, 250_000):
            handle = await test.start("refund", {"id": f"r-{amount}", "amount_minor": amount})
            results.append(await test.finish(handle, within=timedelta(hours=1)))
            print(results[-1])
    return results


if __name__ == "__main__":
    asyncio.run(main())
