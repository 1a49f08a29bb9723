"""Members of one consumer group in several languages, and what each of them got from which queue."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import orbitmq
from tests.peer.java_peer import VERSION, build_directory

CONSUME = Path(__file__).with_name("Consume.java")
GO_SOURCE = Path(__file__).with_name("go_member")
STOP_LIMIT_S = 20.0
READY_LIMIT_S = 40.0


class Got(NamedTuple):
    at: float
    member: str
    queue_id: int
    body: str


class Record:
    """Everything that arrived anywhere, in the order of arrival."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.counts: Counter[str] = Counter()

    def add(self, member: str, queue_id: int, body: str) -> None:
        self.got.append(Got(time.monotonic(), member, queue_id, body))
        self.counts[body] += 1

    def owners(self, window_s: float) -> dict[int, set[str]]:
        """Who got something from which queue lately."""
        since = time.monotonic() - window_s
        found: dict[int, set[str]] = {}
        for got in reversed(self.got):
            if got.at < since:
                break
            found.setdefault(got.queue_id, set()).add(got.member)
        return found


class Foreign:
    """A program that prints what it gets and leaves the group when its input ends."""

    def __init__(self, name: str, command: list[str], record: Record) -> None:
        self.name = name
        self._command = command
        self._record = record
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        assert self._process.stdout is not None
        async with asyncio.timeout(READY_LIMIT_S):
            while (line := await self._process.stdout.readline()) != b"ready\n":
                assert line, f"{self.name} ended with {await self._process.wait()} before it was ready"
                self._take(line)
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def _read(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            self._take(line)

    def _take(self, line: bytes) -> None:
        queue_id, tab, body = line.decode().rstrip("\n").partition("\t")
        if tab and queue_id.isdigit():  # anything else is a log line of the client
            self._record.add(self.name, int(queue_id), body)

    async def leave(self) -> None:
        """In good order: progress saved, brokers told."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        await self._end()

    async def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        await self._end()

    async def _end(self) -> None:
        assert self._process is not None and self._reading is not None
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._reading
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            raise
        self._process = None

    async def aclose(self) -> None:
        if self._process is not None:
            await self.kill()


class Native:
    """This project's consumer, with a handler that takes a moment."""

    def __init__(self, name: str, namesrv: str, group: str, topic: str, record: Record) -> None:
        self.name = name
        self._namesrv = namesrv
        self._group = group
        self._topic = topic
        self._record = record
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        mq = await self._stack.enter_async_context(orbitmq.connect(self._namesrv, instance=self.name))
        inbox = await self._stack.enter_async_context(mq.consumer(self._group, self._topic, start="first"))
        running = asyncio.create_task(inbox.run(self._handle))
        self._stack.push_async_callback(self._finish, inbox, running)

    async def _finish(self, inbox: orbitmq.Consumer, running: asyncio.Task[None]) -> None:
        inbox.stop()
        await running

    async def _handle(self, msg: orbitmq.Message) -> None:
        await asyncio.sleep(0.001)
        self._record.add(self.name, msg.queue_id, msg.text)

    async def leave(self) -> None:
        await self._stack.aclose()

    async def aclose(self) -> None:
        await self._stack.aclose()


def java_member(namesrv: str, group: str, topic: str, record: Record) -> Foreign:
    jars = f"{build_directory() / f'peer-{VERSION}'}/*"
    quiet = ["-Drocketmq.client.logUseSlf4j=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    command = ["java", "-Xmx256m", *quiet, "-cp", jars, str(CONSUME), namesrv, group, topic]
    return Foreign("java", command, record)


def go_member(program: Path, namesrv: str, group: str, topic: str, record: Record) -> Foreign:
    return Foreign("go", [str(program), namesrv, group, topic], record)


def build_go_member() -> Path | None:
    """None where Go is not installed."""
    if shutil.which("go") is None:
        return None
    program = build_directory() / "go-member"
    program.parent.mkdir(parents=True, exist_ok=True)
    build = ["go", "build", "-buildvcs=false", "-o", str(program), "."]
    done = subprocess.run(build, cwd=GO_SOURCE, env=os.environ, check=False, timeout=300)
    assert done.returncode == 0, "the Go member could not be built; the compiler's reason is above"
    return program
