"""A question as a message, and its answer as another: a call that waits in a queue while nobody is there to serve it.

Run it with `make up` in another terminal: python examples/request_reply.py
"""

from __future__ import annotations

import asyncio

import orbitmq

PRICES = {"lamp": "49.00", "chair": "129.00"}


async def serve(mq: orbitmq.Client) -> None:
    """Any number of these may run; each question goes to one of them."""
    producer = mq.producer("price-service")
    async with mq.consumer("price-service", "price-questions") as inbox:
        async for question in inbox:
            async with question:
                price = PRICES.get(question.text, "unknown")
                await producer.reply(question, price.encode())


async def main() -> None:
    async with orbitmq.connect() as mq, asyncio.TaskGroup() as tasks:
        service = tasks.create_task(serve(mq))
        producer = mq.producer("shop")
        for item in ("lamp", "chair", "piano"):
            answer = await producer.request("price-questions", item.encode(), timeout=10)
            print(f"{item}: {answer.text}")
        service.cancel()


if __name__ == "__main__":
    asyncio.run(main())
