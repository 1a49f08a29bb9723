"""A real consumer process whose effect is a row: `python worker.py '{…}'`, with what `Job` holds.

It may be told to die by SIGKILL, without any chance to clean up: in the handler when the effect is made and not
committed, or when it is committed and the message not acknowledged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from orbitmq.client.client import connect
from orbitmq.client.dedup import Dedup, Guard
from orbitmq.client.message import Message


class Job(msgspec.Struct):
    namesrv: str
    topic: str
    group: str
    sqlite: str = ""
    redis: str = ""
    postgres: str = ""
    die: Literal["", "before the commit", "after the commit"] = ""
    die_at: int = 0
    """The number of the new message, from 1 on, at which it dies."""
    pause_s: float = 0.0


class DeadlyGuard:
    """A guard that ends the process around the commit of the n-th new message."""

    def __init__(self, inner: Guard, job: Job) -> None:
        self.inner = inner
        self.job = job
        self.new = 0
        self.open = inner.open
        self.close = inner.close

    @asynccontextmanager
    async def guard(self, msg: Any, group: str = "") -> AsyncIterator[bool]:
        mine = False
        async with self.inner.guard(msg, group) as new:
            yield new
            self.new += new
            mine = new and self.new == self.job.die_at
            if mine and self.job.die == "before the commit":
                os.kill(os.getpid(), signal.SIGKILL)
        print("new" if new else "old", msg.keys[0], flush=True)
        if mine and self.job.die == "after the commit":
            os.kill(os.getpid(), signal.SIGKILL)


async def main(job: Job) -> None:
    if job.sqlite:
        dedup, insert = Dedup.sqlite(job.sqlite), "INSERT INTO effects VALUES (?)"
    else:
        dedup, insert = Dedup.redis_postgres(job.redis, job.postgres), "INSERT INTO effects VALUES (%s)"

    async def handle(msg: Message) -> None:
        await asyncio.sleep(job.pause_s)
        await msg.transaction.execute(insert, (msg.keys[0],))

    async with connect(job.namesrv) as mq:
        options = {"start": "first", "concurrency": 4, "handover": 1.0, "dedup": DeadlyGuard(dedup, job)}
        async with mq.consumer(job.group, job.topic, **options) as consumer:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
            print("ready", flush=True)
            await consumer.run(handle)


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Job)))
