"""Your tables and Holdfast's in one SQLite file: an order row and its workflow appear together or not at all.

`start(connection=…)` joins the transaction you have open; a transaction step writes your tables in the same commit as
its own journal row, so it is booked exactly once.

    python examples/in_your_transaction.py
"""

from __future__ import annotations

import asyncio
from typing import Any

import apsw

from holdfast import Context, Handle, Holdfast
from holdfast.testing import Harness

app = Holdfast()


@app.workflow("fulfil")
async def fulfil(ctx: Context, order_id: str) -> int:
    booking: int = await ctx.transaction("book", book, order_id)
    return booking


def book(tx: apsw.Connection, order_id: str) -> int:
    tx.execute("insert into bookings (order_id) values (?)", (order_id,))
    tx.execute("update orders set status = 'booked' where id = ?", (order_id,))
    return tx.last_insert_rowid()


async def take_order(hf: Holdfast, order_id: str, *, fail: bool = False) -> Handle:
    """Your code: your own row and the start, in your own transaction."""
    with hf.connection() as connection, connection:  # apsw commits at the end of the block, or rolls back
        connection.execute("insert into orders (id, status) values (?, 'new')", (order_id,))
        handle = await hf.start("fulfil", order_id, business_key=order_id, connection=connection)
        if fail:
            raise ValueError("the card was declined")
    return handle


async def main() -> dict[str, Any]:
    async with Harness(app) as hf:  # a temporary database; yours is Holdfast("sqlite:///shop.db")
        with hf.connection() as connection:
            connection.execute("create table orders (id text primary key, status text not null) strict")
            connection.execute("create table bookings (number integer primary key, order_id text not null) strict")
        try:
            await take_order(hf, "o-1", fail=True)
        except ValueError as error:
            print(f"o-1: {error}, so neither the order nor the instance exists")
        handle = await take_order(hf, "o-2")
        await hf.run_until_idle()
        booking = await handle.result(timeout=0)
        with hf.connection() as connection:
            orders = connection.execute("select id, status from orders").fetchall()
        instances = [one.business_key for one in await hf.instances()]
        print(f"o-2: booking {booking}; orders {orders}; instances {instances}")
        return {"booking": booking, "orders": orders, "instances": instances}


if __name__ == "__main__":
    asyncio.run(main())
