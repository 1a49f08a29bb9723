"""Sends at a low rate, each body the moment it was sent: `python -m bench.spark.sender SIDE ADDR RATE SECONDS`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import orbitmq
from bench.clients import kafka_client
from bench.spark.load import KAFKA, LATENCY_TOPIC


async def send_at(rate: float, seconds: float, send: Callable[[bytes], Awaitable[object]]) -> None:
    """Awaited one by one; a send that takes longer than its turn shifts the others."""
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        await send(b"%.6f" % time.time())


async def main(side: str, addr: str, rate: float, seconds: float) -> None:
    if side == KAFKA:
        producer = kafka_client.library().AIOKafkaProducer(bootstrap_servers=addr)
        await producer.start()
        try:
            await send_at(rate, seconds, lambda body: producer.send_and_wait(LATENCY_TOPIC, body))
        finally:
            await producer.stop()
        return
    async with orbitmq.connect(addr, timeout=30) as mq:
        ours = mq.producer("bench")
        await send_at(rate, seconds, lambda body: ours.send(LATENCY_TOPIC, body))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])))
