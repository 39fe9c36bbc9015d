"""Refunds behind FastAPI: the lifespan opens Holdfast and runs a worker, a dependency hands it to the endpoints.

    uvicorn examples.fastapi_service:app
    curl -d '{"id": "o-1", "amount_minor": 4200}' -H 'Content-Type: application/json' http://127.0.0.1:8000/refunds
    curl -X POST 'http://127.0.0.1:8000/refunds/ins_…/approve?by=ann'

The database is the one of HOLDFAST_DATABASE_URL, else of holdfast.toml, else .holdfast/holdfast.db. Workers may run
elsewhere too: leave `hf.worker()` out of the lifespan, and start `holdfast worker --app examples.fastapi_service:hf`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, PositiveInt

from holdfast import (
    BadInput,
    BusinessKeyTaken,
    Context,
    HistoryEntry,
    Holdfast,
    InstanceEnded,
    InstanceNotFound,
    InstanceView,
    StepInfo,
)

hf = Holdfast()


class Order(BaseModel):
    id: str
    amount_minor: PositiveInt


# -- the workflow


@hf.workflow("refund")
async def refund(ctx: Context, order: Order) -> dict[str, str]:
    answer = await ctx.wait_for_signal("approved", timeout=timedelta(days=3))
    if answer is None:
        raise TimeoutError("nobody approved in time")
    paid = await ctx.effect("pay", pay, order, mode="keyed", window=timedelta(hours=24))
    return {"paid": paid, "approved_by": answer["by"]}


async def pay(order: Order, info: StepInfo) -> str:
    """Hand the key to your bank, so that a repeat is recognised."""
    return f"paid-{order.id}-{order.amount_minor}-{info.idempotency_key[:8]}"


# -- the service


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    async with hf, hf.worker():
        yield


app = FastAPI(title="Refunds", lifespan=lifespan)


def holdfast() -> Holdfast:
    """Tests replace it: `app.dependency_overrides[holdfast] = lambda: harness`."""
    return hf


Engine = Annotated[Holdfast, Depends(holdfast)]


@app.exception_handler(InstanceNotFound)
async def not_found(_request: Request, error: InstanceNotFound) -> JSONResponse:
    """Also for an id that cannot be one: callers need not know what ids look like."""
    return JSONResponse({"detail": error.fact}, status_code=404)


@app.exception_handler(BadInput)
async def bad_input(_request: Request, error: BadInput) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status_code=422)


@app.exception_handler(InstanceEnded)
@app.exception_handler(BusinessKeyTaken)
async def conflict(_request: Request, error: InstanceEnded | BusinessKeyTaken) -> JSONResponse:
    """`BusinessKeyTaken`: this id was used for another amount."""
    return JSONResponse({"detail": str(error)}, status_code=409)


@app.post("/refunds", status_code=201)
async def ask_for(order: Order, hf: Engine) -> InstanceView:
    """The same order again is the same instance."""
    handle = await hf.start("refund", order, business_key=order.id)
    return await handle.status()


@app.get("/refunds")
async def all_refunds(hf: Engine, status: str | None = None) -> list[InstanceView]:
    return await hf.instances(key="refund", status=status)


@app.get("/refunds/{id}")
async def one(id: str, hf: Engine) -> InstanceView:
    return await hf.instance(id).status()


@app.get("/refunds/{id}/history")
async def history(id: str, hf: Engine) -> list[HistoryEntry]:
    return await hf.instance(id).history()


@app.post("/refunds/{id}/approve", status_code=202)
async def approve(id: str, by: str, hf: Engine) -> dict[str, bool]:
    """`id=`: who clicks twice approves once."""
    return {"new": await hf.instance(id).signal("approved", {"by": by}, id=f"approved-by-{by}")}


@app.get("/refunds/{id}/why")
def why(id: str, hf: Engine) -> dict[str, str]:
    """Without `async` FastAPI runs it in a thread: there `hf.sync` uses the store that the lifespan has opened."""
    return {"why": hf.sync.instance(id).why()}
