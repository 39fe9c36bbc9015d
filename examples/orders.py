"""An order, from reservation to shipping: a retry, a payment, a timer, a person's word, and the way back.

    holdfast dev --app examples.orders:hf

runs it live. Kill the process at any line and start it again: the order goes on where it was, and is paid once.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import msgspec

from holdfast import Context, Holdfast, StepInfo

hf = Holdfast()
COOLING_OFF = timedelta(seconds=4)
ANSWER_WITHIN = timedelta(days=3)


class Order(msgspec.Struct):
    id: str
    item: str
    amount_minor: int
    currency: str


class Declined(Exception):
    """The customer said no, or nothing at all."""


# -- the workflow


@hf.workflow("order", version=1)
async def order(ctx: Context, given: Order) -> dict[str, str]:
    place = await ctx.step(
        "reserve", reserve, given, compensate=release, max_attempts=5, backoff=timedelta(seconds=1)
    )  # fmt: skip
    payment = await ctx.effect("pay", pay, given, mode="keyed", window=timedelta(hours=24), compensate=refund)
    await ctx.sleep("cooling-off", COOLING_OFF)
    answer = await ctx.wait_for_signal("confirmed", timeout=ANSWER_WITHIN)
    if not (answer or {}).get("ok"):
        # Raising is how a workflow fails: what was done is undone, last thing first.
        raise Declined("nobody answered in time" if answer is None else answer.get("why", "the customer said no"))
    parcel = await ctx.step("ship", ship, given, place)
    return {"payment": payment["id"], "parcel": parcel}


# -- its steps


async def reserve(given: Order, info: StepInfo) -> str:
    if info.attempt == 1:
        raise ConnectionError("the warehouse did not answer")  # so that you see a retry
    return f"shelf-7/{given.item}"


async def release(place: str) -> None:
    await asyncio.sleep(0)  # the warehouse puts it back


def pay(given: Order, info: StepInfo) -> dict[str, str]:
    return charge(info.idempotency_key, {"order": given.id, "amount_minor": given.amount_minor})


def refund(payment: dict[str, str], info: StepInfo) -> None:
    charge(info.idempotency_key, {"refund_of": payment["id"]})


async def ship(given: Order, place: str) -> str:
    return f"parcel of {given.item} from {place}"


# -- a payment provider that knows its keys: a folder with one file per key


def provider_folder() -> Path:
    return Path(os.environ.get("ORDERS_PROVIDER", ".holdfast/provider"))


def charge(key: str, request: dict[str, object]) -> dict[str, str]:
    """The same key twice is one charge, and gives the same receipt: this is what `mode="keyed"` relies on."""
    folder = provider_folder()
    folder.mkdir(parents=True, exist_ok=True)
    receipt = {"id": f"ch_{key[:8]}"}
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".new", delete=False) as file:
        file.write(json.dumps({**request, **receipt}))
    try:
        os.link(file.name, folder / f"{key}.json")
    except FileExistsError:
        pass  # charged before: nothing happens, and the receipt is the same
    finally:
        Path(file.name).unlink()
    return receipt


# -- called by `holdfast dev` once its worker runs


async def dev(hf: Holdfast) -> None:
    living = [one for status in ("waiting", "running", "pending") for one in await hf.instances(status=status)]
    orders = [one for one in living if one.workflow == "order"]
    if orders:
        id_ = orders[0].id
        print(f"\nOrder {id_} is on its way already, and goes on where it was.")
    else:
        id_ = (await hf.start("order", Order("o-1", "teapot", 4200, "EUR"))).id
        print(f"\nStarted order {id_}.")
    print("It will wait for the customer's word. Give it in a second terminal, in this folder:\n")
    print(f"  {command(hf, 'signal', id_, 'confirmed', '--payload', json.dumps({'ok': True}))}\n")
    print("""or say no, with '{"ok": false}', and see the payment and the reservation undone. Another order:\n""")
    another = json.dumps({"id": "o-2", "item": "cup", "amount_minor": 900, "currency": "EUR"})
    print(f"  {command(hf, 'start', 'order', '--app', 'examples.orders:hf', '--input', another)}\n")


def command(hf: Holdfast, *words: str) -> str:
    """What to type: the command this process was started with, on the same file. A server's URL may hold a password,
    so it is not printed: set HOLDFAST_DATABASE_URL in the other terminal too."""
    name = sys.argv[0] if Path(sys.argv[0]).name == "holdfast" else "holdfast"
    default = "sqlite:///.holdfast/holdfast.db"
    elsewhere = ["--database", hf.url] if hf.url.startswith("sqlite:") and hf.url != default else []
    return shlex.join([name, *words, *elsewhere])


# -- as a script: one order, confirmed at once


async def main() -> None:
    async with hf, hf.worker(verbose=True):
        handle = await hf.start("order", Order("o-1", "teapot", 4200, "EUR"))
        await handle.signal("confirmed", {"ok": True})  # early is fine: a signal waits for its wait
        print(await handle.result(timeout=60))


if __name__ == "__main__":
    asyncio.run(main())
