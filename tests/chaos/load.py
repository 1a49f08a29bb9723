"""Producers and consumers of a fault run, in a process of their own that survives what happens to the cluster.

`python -m tests.chaos.load PLAN` (JSON) prints `ready` and works until told otherwise by lines on its input. `acks`
prints how many messages were acknowledged. `quiet` ends the producers and prints `quiet`. `last SECONDS` sends a last
message to each queue and prints their keys, with those of messages that arrive later than others. `wait SECONDS KEY…`
prints `arrived` when the consumers have these, or what is missing. `stop` ends the process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import orbitmq
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.receipt import SEND_STATUS
from orbitmq.wire.codes import RequestCode, response_name
from tests.chaos.history import Answer, Attempt, Delivery, Queue, Recorder
from tests.chaos.special import Special, body_of, key_in, reason
from tests.support.raw_client import RawClient, send_ext

PROBE_TIMEOUT_S = 0.5
RECONNECT_S = 0.05


class Plan(msgspec.Struct, kw_only=True):
    """Who sends how much, and who listens."""

    name: str
    """Begins every key, so that several loads do not use one twice."""
    history: str
    namesrv: str
    topic: str
    broker: str
    queues: int
    senders: int = 3
    """Each sends one message at a time, once, to the queues in turn."""
    free_senders: int = 1
    """As a program would: any queue, tried again by the client."""
    rate: float = 40.0
    """Messages per second and sender."""
    special_rate: float = 4.0
    """Delayed messages and transactions per second, and half as many topics and groups."""
    timeout_s: float = 1.0
    probes: list[str] = []
    """Addresses of replicas, each asked all the time whether it takes messages, whatever the routes say."""
    probe_rate: float = 25.0
    consumers: int = 2
    stay_s: float = 3.0
    """Another consumer stays about so long, leaves, and comes back: it depends on the offsets that brokers keep."""
    group: str = "chaos"


class Load:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.recorder = Recorder(Path(plan.history))
        self.acks = 0
        self.delivered: set[str] = set()
        self._random = Random(plan.name)
        self._stack = AsyncExitStack()
        self._sending: list[asyncio.Task[None]] = []
        self._quiet = asyncio.Event()
        self._stopping = asyncio.Event()
        self._delivery = asyncio.Event()
        self._producer: orbitmq.Producer
        self._special: Special | None = None
        self._consumers: list[orbitmq.Consumer] = []

    async def start(self) -> None:
        plan = self.plan
        mq = await self._stack.enter_async_context(orbitmq.connect(plan.namesrv, instance=plan.name))
        self._producer = mq.producer(f"pg-{plan.name}", timeout=plan.timeout_s)
        for number in range(plan.consumers):
            await self._listen(f"{plan.name}-c{number}")
        if plan.consumers and plan.stay_s:
            task = asyncio.create_task(self._come_and_go(f"{plan.name}-g"))
            self._stack.push_async_callback(self._wait_for, task)
        for number in range(plan.senders):
            self._spawn(self._send_in_turn(f"{plan.name}-s{number}", number))
        for number in range(plan.free_senders):
            self._spawn(self._send_anywhere(f"{plan.name}-f{number}"))
        for number, addr in enumerate(plan.probes):
            self._spawn(self._probe(f"{plan.name}-p{number}", addr))
        if plan.special_rate:
            self._special = Special(plan.name, plan.topic, mq, self._producer, self.recorder)
            self._spawn(self._repeat(plan.special_rate, self._special.send_later))
            self._spawn(self._repeat(plan.special_rate, self._special.send_in_transaction))
            self._spawn(self._repeat(plan.special_rate / 2, self._special.make))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._sending.append(asyncio.create_task(work))

    # --- sending ----------------------------------------------------------------------------------------------

    async def _repeat(self, rate: float, work: Callable[[int], Awaitable[object]]) -> None:
        for number in itertools.count():
            if await self._pause(rate):
                return
            await work(number)

    async def _send_in_turn(self, sender: str, first: int) -> None:
        queues = self.plan.queues
        await self._repeat(
            self.plan.rate, lambda number: self._send(f"{sender}-{number}", sender, (first + number) % queues)
        )

    async def _send_anywhere(self, sender: str) -> None:
        await self._repeat(self.plan.rate, lambda number: self._send(f"{sender}-{number}", sender, None))

    async def _send(self, key: str, sender: str, queue_id: int | None) -> bool:
        """One message and what became of it; whether that was SEND_OK."""
        topic, broker = self.plan.topic, self.plan.broker
        queue = None if queue_id is None else (broker, queue_id)
        self.recorder.attempt(Attempt(time.monotonic(), key, sender, resends=queue is None))
        try:
            receipt = await self._producer.send(topic, body_of(key), queue=queue)
        except OrbitMQError as error:
            self.recorder.answer(Answer(time.monotonic(), key, reason(error)))
            return False
        place = Queue(topic, receipt.broker, receipt.queue_id)
        self.recorder.answer(Answer(time.monotonic(), key, receipt.status, place, receipt.queue_offset))
        self.acks += receipt.ok
        return receipt.ok

    async def _probe(self, sender: str, addr: str) -> None:
        """Sends to one replica over a connection of its own, and makes another when that is gone or does not answer."""
        client: RawClient | None = None
        for number in itertools.count():
            if await self._pause(self.plan.probe_rate):
                break
            try:
                if client is None:
                    made = RawClient(addr)
                    async with asyncio.timeout(PROBE_TIMEOUT_S):
                        client = await made.connect()
                await self._ask(client, f"{sender}-{number}", sender, number % self.plan.queues)
            except OSError:  # TimeoutError is one, too
                if client is not None:
                    client.writer.transport.abort()
                client = None
                await asyncio.sleep(RECONNECT_S)
        if client is not None:
            await client.close()

    async def _ask(self, client: RawClient, key: str, sender: str, queue_id: int) -> None:
        topic = self.plan.topic
        status, place, offset = "no answer", None, -1
        self.recorder.attempt(Attempt(time.monotonic(), key, sender))
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                ext = send_ext(topic, queue_id, f"UNIQ_KEY\x01{key}\x02WAIT\x01true")
                answer = await client.ask(RequestCode.SEND_MESSAGE_V2, ext, body_of(key))
            status = SEND_STATUS.get(answer.code) or response_name(answer.code)
            if answer.code in SEND_STATUS:
                place = Queue(topic, self.plan.broker, int(answer.ext["queueId"]))
                offset = int(answer.ext["queueOffset"])
        finally:
            self.recorder.answer(Answer(time.monotonic(), key, status, place, offset))

    async def _pause(self, rate: float) -> bool:
        """Until it is time for the next message; True when there shall be none."""
        try:
            async with asyncio.timeout(self._random.uniform(0.5, 1.5) / rate):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    # --- receiving --------------------------------------------------------------------------------------------

    async def _listen(self, name: str) -> None:
        mq = await self._stack.enter_async_context(orbitmq.connect(self.plan.namesrv, instance=name))
        inbox = await self._stack.enter_async_context(self._consumer(mq))
        self._consumers.append(inbox)
        task = asyncio.create_task(self._receive(inbox, name))
        self._stack.push_async_callback(self._finish, inbox, task)

    async def _come_and_go(self, name: str) -> None:
        for visit in itertools.count():
            visitor = f"{name}{visit}"
            try:
                async with (
                    orbitmq.connect(self.plan.namesrv, instance=visitor) as mq,
                    self._consumer(mq) as inbox,
                ):
                    task = asyncio.create_task(self._receive(inbox, visitor))
                    stopped = await self._stopped_within(self._random.uniform(0.5, 1.5) * self.plan.stay_s)
                    await self._finish(inbox, task)
            except OrbitMQError as error:
                # Nobody is there to take it in; the members that stay must cope, a newcomer may try again.
                print(f"{visitor}: {error}", file=sys.stderr)
                stopped = await self._stopped_within(0.5)
            if stopped:
                return

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    def _consumer(self, mq: orbitmq.Client) -> orbitmq.Consumer:
        # Everything sooner than by default, so that a run need not wait for it.
        pace: dict[str, Any] = {"commit_every": 0.5, "rebalance_every": 2, "handover": 2}
        return mq.consumer(self.plan.group, self.plan.topic, start="first", **pace)

    async def _receive(self, inbox: orbitmq.Consumer, name: str) -> None:
        async for msg in inbox:
            key = key_in(msg.body)
            queue = Queue(msg.topic, msg.broker, msg.queue_id)
            offset, group = msg.queue_offset, self.plan.group
            self.recorder.delivery(Delivery(time.monotonic(), key, queue, offset, name, group))
            self.delivered.add(key)
            self._delivery.set()
            msg.ack()

    async def _finish(self, inbox: orbitmq.Consumer, task: asyncio.Task[None]) -> None:
        inbox.stop()
        await task

    async def _wait_for(self, task: asyncio.Task[None]) -> None:
        await task

    # --- ending -----------------------------------------------------------------------------------------------

    async def quiet(self) -> None:
        self._quiet.set()
        await asyncio.gather(*self._sending)

    async def send_last(self, limit_s: float) -> list[str]:
        """One message more to each queue: who has read that has read all before it. Its keys, fewer if it fails."""
        last: list[str] = []
        try:
            async with asyncio.timeout(limit_s):
                for queue_id in range(self.plan.queues):
                    last.append(await self._send_last(queue_id))
        except TimeoutError:
            return last
        return [*last, *(self._special.acknowledged if self._special else ())]

    async def wait_for(self, limit_s: float, keys: set[str]) -> str:
        """Empty when all of them have arrived; otherwise what is missing."""
        try:
            async with asyncio.timeout(limit_s):
                while not self.delivered.issuperset(keys):
                    self._delivery.clear()
                    await self._delivery.wait()
        except TimeoutError:
            positions = [
                f"{consumer.client.client_id} {consumer.positions()}" for consumer in self._consumers
            ]
            missing = sorted(keys - self.delivered)
            return f"{missing} did not arrive at {self.plan.group}; consumers are at {positions}"
        return ""

    async def _send_last(self, queue_id: int) -> str:
        for number in itertools.count():
            key = f"{self.plan.name}-last{queue_id}-{number}"
            if await self._send(key, "last", queue_id):
                return key
            await asyncio.sleep(0.1)
        raise AssertionError

    async def stop(self) -> None:
        await self.quiet()
        self._stopping.set()
        await self._stack.aclose()
        self.recorder.close()


class Clocked(logging.Formatter):
    """With the clock of the histories."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{time.monotonic():.3f} {super().format(record)}"


def log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(Clocked())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


async def serve(plan: Plan) -> None:
    load = Load(plan)
    await load.start()
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while words := (await reader.readline()).decode().split():
        if words[0] == "stop":
            break
        if words[0] == "acks":
            print(load.acks, flush=True)
        if words[0] == "quiet":
            await load.quiet()
            print("quiet", flush=True)
        if words[0] == "last":
            print(" ".join(await load.send_last(float(words[1]))), flush=True)
        if words[0] == "wait":
            print(await load.wait_for(float(words[1]), set(words[2:])) or "arrived", flush=True)
    await load.stop()
    print("stopped", flush=True)


if __name__ == "__main__":
    log_to_stderr()
    asyncio.run(serve(msgspec.json.decode(sys.argv[1], type=Plan)))
