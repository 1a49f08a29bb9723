"""Orders walk through two groups; each sends on what it has done.

    shop ──▶ orders ──▶ billing ──▶ invoices ──▶ shipping

Run it with `make up` in another terminal: python examples/orders_pipeline.py
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

import orbitmq

PRICES = {"lamp": 4_900, "chair": 12_900, "table": 39_900}


@dataclass
class Order:
    id: str
    item: str
    pieces: int


@dataclass
class Invoice:
    order_id: str
    cents: int


app = orbitmq.App()
shipped: asyncio.Queue[str] = asyncio.Queue()


@app.on("orders", group="billing", concurrency=8)
async def bill(order: Order) -> None:
    """An unknown item raises KeyError: the message is tried again later, and in the end put aside."""
    invoice = Invoice(order.id, PRICES[order.item] * order.pieces)
    await app.producer().send("invoices", msgspec.json.encode(invoice), keys=[order.id])


@app.on("invoices", group="shipping")
async def ship(invoice: Invoice) -> None:
    print(f"{invoice.order_id}: {invoice.cents / 100:.2f} paid, parcel on its way")
    await shipped.put(invoice.order_id)


async def main() -> None:
    orders = [Order("order-1", "lamp", 2), Order("order-2", "table", 1), Order("order-3", "chair", 4)]
    async with app:
        for order in orders:
            await app.producer().send("orders", msgspec.json.encode(order), keys=[order.id])
        done = {await shipped.get() for _ in orders}
    print(f"{len(done)} orders shipped")


if __name__ == "__main__":
    asyncio.run(main())
