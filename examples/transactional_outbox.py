"""An order is saved and announced, or neither, without a table of outgoing messages and a job that empties it.

The message is stored first, where no consumer sees it: that is the outbox. Then the order is saved. Leaving the block
releases the message, an exception discards it. And when the program dies in between, the broker asks the group's
other producers, who look into the database.

Run it with `make up` in another terminal: python examples/transactional_outbox.py
The third order takes about a minute there: so long does a broker wait before it asks (`transactionCheckInterval`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import orbitmq

TOPIC = "announced-orders"
DATABASE = Path(os.environ.get("SHOP_DB") or Path(tempfile.mkdtemp(prefix="orbitmq-outbox-")) / "shop.db")

app = orbitmq.App()
announced: asyncio.Queue[str] = asyncio.Queue()


class CardRefused(Exception):
    pass


async def place(producer: orbitmq.Producer, order: str) -> None:
    async with producer.transaction(TOPIC, order.encode(), keys=[order]):
        with closing(sqlite3.connect(DATABASE)) as db, db:
            db.execute("INSERT INTO orders VALUES (?)", (order,))
            if order == "order-2":
                raise CardRefused
        if order == "order-3":
            os._exit(1)  # saved, and the message not released: the worst moment to die


@app.on_check("shop")
def was_saved(prepared: orbitmq.Message) -> bool:
    """A broker wants to know what became of a message whose producer is silent."""
    with closing(sqlite3.connect(DATABASE)) as db:
        return db.execute("SELECT 1 FROM orders WHERE id = ?", prepared.keys).fetchone() is not None


@app.on(TOPIC, group="warehouse")
async def prepare_parcel(msg: orbitmq.Message) -> None:
    await announced.put(msg.text)


async def main() -> None:
    with closing(sqlite3.connect(DATABASE)) as db, db:
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY)")
    async with app:
        producer = app.producer("shop")
        await place(producer, "order-1")
        print(f"{await announced.get()} was saved and announced")

        try:
            await place(producer, "order-2")
        except CardRefused:
            print("order-2 was neither saved nor announced")

        dying = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "order-3", env={**os.environ, "SHOP_DB": str(DATABASE)}
        )
        await dying.wait()
        print("order-3 was saved by a program that died before it could announce it")
        print(f"{await announced.get()} was announced after the broker had asked")
    shutil.rmtree(DATABASE.parent)


async def place_one(order: str) -> None:
    async with orbitmq.connect() as mq:
        await place(mq.producer("shop"), order)


if __name__ == "__main__":
    asyncio.run(place_one(sys.argv[1]) if len(sys.argv) > 1 else main())
