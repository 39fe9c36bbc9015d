"""A payment of which nobody knows whether it happened: how Holdfast stops, asks, and goes on by a person's word.

The bank takes the money and then does not answer. Repeating could pay twice, giving up could pay nothing, so the
instance waits on the effect desk until somebody has looked at the bank's own list.

    python examples/unknown_payment.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Context, Holdfast, StepInfo
from holdfast.testing import FakeProvider, Harness

hf = Holdfast()
bank = FakeProvider()


@hf.workflow("payout")
async def payout(ctx: Context, given: dict[str, Any]) -> dict[str, Any]:
    paid = await ctx.effect("pay", pay, given["amount_minor"], mode="manual")
    return {"paid": paid["id"]}


def pay(amount_minor: int, info: StepInfo) -> Any:
    return bank.call(info.idempotency_key, amount_minor)


async def main() -> dict[str, Any]:
    async with Harness(hf) as test:
        bank.plan("timeout_after")  # it does the deed, and the answer is lost
        handle = await test.start("payout", {"amount_minor": 4200})
        await test.run_until_idle()
        view = await handle.status()
        print(f"The instance is {view.status} on {view.waiting_on}.")

        [unknown] = await test.effects.list()
        print(f"On the desk: step {unknown.step!r}, key {unknown.idempotency_key}, error {unknown.error}.")
        await test.advance(days=30)
        print(f"Thirty days later it still waits: the bank was called {len(bank.calls)} time(s).")

        # A person looks at the bank's list, finds our key there, and says so; on the command line:
        #   holdfast effects resolve EFFECT happened --actor ann --reason "on the list of 1 May" --result '{"id": …}'
        receipt = bank.find(unknown.idempotency_key)
        await test.effects.resolve(
            unknown.id, "happened", actor="ann", reason="found on the bank's list", result=receipt
        )  # fmt: skip
        await test.run_until_idle()
        result: dict[str, Any] = await handle.result(timeout=0)
        settled = await test.effects.show(unknown.id)
        print(f"{settled.resolved_by} said it {settled.resolution} ({settled.reason}). The result is {result}.")
        return result


if __name__ == "__main__":
    asyncio.run(main())
