"""What is done to real consumer processes, and what must be true of their effects afterwards."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from orbitmq.client.cluster import Cluster
from orbitmq.client.sender import Sender
from tests.client.dedup.worker import Job

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 30.0
TOPIC = "payments"
GROUP = "bank"


class Worker:
    """One consumer process; it is stopped, or has died, when the block ends."""

    def __init__(self, job: Job) -> None:
        self.lines: list[str] = []
        self._new_line: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.client.dedup.worker", msgspec.json.encode(job).decode()],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._new_line.put(line.strip())
        self._new_line.put(None)

    def wait_for(self, enough: Callable[[list[str]], bool]) -> None:
        """Reads what it prints until that is enough; fails when it ends or stays silent before."""
        while not enough(self.lines):
            line = self._new_line.get(timeout=LIMIT_S)
            assert line is not None, f"the worker ended after {self.lines[-5:]}"
            self.lines.append(line)

    def wait_dead(self) -> int:
        return self.process.wait(LIMIT_S)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(LIMIT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def send_twice(namesrv: str, keys: list[str]) -> None:
    """Every key in two separate messages, as a program does that did not hear the first answer."""

    async def send() -> None:
        async with Cluster(namesrv) as cluster:
            sender = Sender(cluster, "shop")
            for _ in range(2):
                for key in keys:
                    await sender.send(sender.prepare(TOPIC, b"pay", tag="paid", keys=[key]))

    asyncio.run(send())


def handled(lines: list[str]) -> int:
    """How many messages were dealt with, as new or as duplicates."""
    return sum(line.startswith(("new ", "old ")) for line in lines)


def crash_around_the_commit(job: Job, keys: list[str], effects: Callable[[], list[str]]) -> None:
    """One dies before the commit, one after it, and a third finds everything as if nobody had."""
    send_twice(job.namesrv, keys)
    before = msgspec.structs.replace(job, die="before the commit", die_at=5)
    with Worker(before) as worker:
        assert worker.wait_dead() == -9
    made = effects()
    assert 0 < len(made) < len(keys), "it died too early or too late to show anything"

    after = msgspec.structs.replace(job, die="after the commit", die_at=5)
    with Worker(after) as worker:
        assert worker.wait_dead() == -9
    assert len(made) < len(effects()) < len(keys)

    with Worker(job) as worker:
        # Nothing was acknowledged by the dead ones, so all comes again.
        worker.wait_for(lambda lines: handled(lines) >= 2 * len(keys))
        assert worker.stop() == 0
        assert any(line.startswith("old ") for line in worker.lines)
    assert sorted(effects()) == sorted(keys)


def members_come_and_go(job: Job, keys: list[str], effects: Callable[[], list[str]]) -> None:
    """Queues move while their messages are being handled: to a second member, back by its death, to a third."""
    slow = msgspec.structs.replace(job, pause_s=0.01)
    parts = [keys[number::4] for number in range(4)]
    send_twice(job.namesrv, parts[0])
    with Worker(slow) as staying:
        staying.wait_for(lambda lines: handled(lines) >= len(parts[0]))
        with Worker(slow) as dying:
            dying.wait_for(lambda lines: "ready" in lines)
            send_twice(job.namesrv, parts[1])
            dying.wait_for(lambda lines: handled(lines) >= 5)
            dying.kill()
        with Worker(slow) as heir:
            heir.wait_for(lambda lines: "ready" in lines)
            send_twice(job.namesrv, parts[2])
            heir.wait_for(lambda lines: handled(lines) >= 5)
            staying.kill()
            send_twice(job.namesrv, parts[3])
            heir.wait_for(lambda lines: set(effects()) == set(keys))
            assert heir.stop() == 0
    assert sorted(effects()) == sorted(keys)
