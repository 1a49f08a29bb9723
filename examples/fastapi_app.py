"""A web shop: the request is answered as soon as the order is safe, and the work is done behind it.

Run it with `make up` in another terminal (pip install fastapi uvicorn):

    uvicorn examples.fastapi_app:web
    curl -X POST localhost:8000/orders -H 'content-type: application/json' -d '{"item": "lamp", "pieces": 2}'
    curl localhost:8000/orders/…
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

import orbitmq

PRICES = {"lamp": 4_900, "chair": 12_900}


class NewOrder(BaseModel):
    item: str
    pieces: int = 1


class Order(NewOrder):
    id: str
    status: str = "accepted"
    cents: int | None = None


queue = orbitmq.App()
orders: dict[str, Order] = {}  # a database in real life


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    """Consumers start and stop with the web server; what is being handled is finished first."""
    async with queue:
        yield


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
async def accept(new: NewOrder) -> Order:
    order = Order(id=uuid4().hex, **new.model_dump())
    orders[order.id] = order
    await queue.producer().send("web-orders", order.model_dump_json().encode(), keys=[order.id])
    return order


@web.get("/orders/{order_id}")
async def show(order_id: str) -> Order:
    if order_id not in orders:
        raise HTTPException(404, "no such order")
    return orders[order_id]


@queue.on("web-orders", group="web-shop", concurrency=8)
async def fulfil(order: Order) -> None:
    """Pydantic models are decoded and checked before the handler sees them."""
    orders[order.id] = order.model_copy(
        update={"status": "billed", "cents": PRICES[order.item] * order.pieces}
    )
