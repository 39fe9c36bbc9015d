"""The project's one Holdfast. Importing it opens nothing: `hf.sync` opens in each process at the first use."""

from datetime import timedelta
from typing import Any

from django.db import close_old_connections

from holdfast import Context, Holdfast, StepInfo

hf = Holdfast()


@hf.workflow("fulfil")
async def fulfil(ctx: Context, reference: str) -> str:
    answer = await ctx.wait_for_signal("approved", timeout=timedelta(days=3))
    if answer is None:
        await ctx.step("expire", mark, reference, "expired")
        return "expired"
    paid: str = await ctx.effect("pay", pay, reference, mode="keyed", window=timedelta(hours=24))
    await ctx.step("mark", mark, reference, "paid")
    return paid


def pay(reference: str, info: StepInfo) -> str:
    """Hand the key to your provider, so that a repeat is recognised."""
    return f"{reference}-{info.idempotency_key[:8]}"


def mark(reference: str, status: str) -> None:
    """A step without `async` runs in a thread, where Django's ORM may be used. No request ends here, so nobody else
    closes a connection that the database has dropped."""
    from orders.models import Order

    close_old_connections()
    Order.objects.filter(reference=reference).update(status=status)


def as_json(instance: str) -> dict[str, Any]:
    view = hf.sync.instance(instance).status().to_dict()
    return {name: view[name] for name in ("id", "status", "waiting_on", "result", "created_at", "completed_at")}
