"""The steps of one order happen in order; different orders do not wait for each other.

Messages with the same `order_key` go to the same queue, and an ordered consumer handles a queue's messages one
after the other. A step that fails is tried again before the next one of its queue is begun.

Run it with `make up` in another terminal: python examples/ordered_workflow.py
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import orbitmq

STEPS = ("created", "paid", "packed", "shipped")
ORDERS = [f"order-{number}" for number in range(1, 6)]

app = orbitmq.App()
history: defaultdict[str, list[str]] = defaultdict(list)
failed_once: set[str] = set()
all_done = asyncio.Event()


@app.on("order-steps", group="workflow", ordered=True)
async def step(msg: orbitmq.Message) -> None:
    order, name = msg.keys[0], msg.text
    await asyncio.sleep(random.uniform(0, 0.01))
    if name == "packed" and order not in failed_once:
        failed_once.add(order)
        await msg.retry(after=0.05)  # the shelf is empty for a moment; "shipped" waits for it
        return
    history[order].append(name)
    if sum(map(len, history.values())) == len(ORDERS) * len(STEPS):
        all_done.set()


async def main() -> None:
    async with app:
        for name in STEPS:
            for order in ORDERS:
                await app.producer().send("order-steps", name.encode(), keys=[order], order_key=order)
        await all_done.wait()
    for order in ORDERS:
        print(f"{order}: {' → '.join(history[order])}")


if __name__ == "__main__":
    asyncio.run(main())
