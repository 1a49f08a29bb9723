"""Streams killed with SIGKILL at random moments and started again: every message is in the output once.

ORBITMQ_CRASH_SEED repeats a run, ORBITMQ_CRASH_ROUNDS sets how often each stream is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orbitmq.wire.message import Message
from tests.spark.archived import archived_bodies
from tests.spark.reading_back import bodies, messages
from tests.spark.topics import Topics, numbered
from tests.spark_slow.standalone import ROOT, environment
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("ORBITMQ_CRASH_ROUNDS", "4"))
SEED = int(os.environ.get("ORBITMQ_CRASH_SEED", str(random.randrange(1 << 30))))
PER_SEND = 100
MOST_SENT = 15_000
# Only to end at all: how long a start takes on a busy machine says nothing about what is tested.
START_LIMIT_S = 600
FINISH_LIMIT_S = 900
FINISH_TRIES = 3


class Filler:
    """Sends on and on while streams live and die; `stop` tells how many there are."""

    def __init__(self, addr: str, topic: str) -> None:
        self._topics = Topics(addr, timeout_s=300)
        self._topic = topic
        self._stopping = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="filler")
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.2) and self.sent < MOST_SENT:
            batch = numbered(PER_SEND, self.sent)
            self._topics.fill(self._topic, self.sent // PER_SEND % 3, batch)
            self.sent += PER_SEND

    def stop(self) -> int:
        self._stopping.set()
        self._thread.join(300)
        self._topics.close()
        return self.sent


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "server", flushDiskType="ASYNC_FLUSH") as running:
        topics = Topics(running.broker_addr)
        for topic in ("KilledIn", "KilledOut"):
            topics.create(topic, 3)
        topics.close()
        yield running


def killed(command: list[str], checkpoint: Path, log: Path) -> int:
    """Kills the command in rounds, each time after it has begun new batches; how often that was."""
    chance = random.Random(SEED)
    kills = 0
    for _ in range(ROUNDS):
        begun = batches(checkpoint)
        with log.open("ab") as out:
            # A group of its own: driver and Java die together, as on a machine that loses its power.
            process = subprocess.Popen(
                [*command, "--per-batch", "400", "--every", "100 milliseconds"],
                env=environment(),
                cwd=ROOT,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            # On a machine that is too busy Spark may give up by itself, which is one more way to die.
            until(
                lambda begun=begun, process=process: batches(checkpoint) > begun or process.poll() is not None
            )
            time.sleep(chance.uniform(0, 4))
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
            process.wait(30)
    return kills


def finished(command: list[str]) -> None:
    """Lets the command catch up and end."""
    for left in reversed(range(FINISH_TRIES)):
        done = subprocess.run(
            command,
            env=environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=FINISH_LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            return
        assert left, f"seed {SEED}: {done.stderr[-4000:]}"


def batches(checkpoint: Path) -> int:
    return len([path for path in checkpoint.glob("offsets/*") if path.name.isdigit()])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the stream did not begin"
        time.sleep(0.02)


def test_the_archive_has_every_message_once(server: ServerProcess, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    filler = Filler(server.broker_addr, "KilledIn")
    command = [sys.executable, "-m", "orbitmq.spark.pipelines.archive", str(archive), "-t", "KilledIn"]
    command += ["-n", server.namesrv, "--master", "local[2]"]
    try:
        kills = killed(command, archive / "_checkpoint", tmp_path / "archive.log")
    finally:
        sent = filler.stop()
    finished(command)
    counted = archived_bodies(archive)
    expected = Counter(message.body for message in numbered(sent))
    assert kills and sent >= PER_SEND
    assert counted == expected, f"seed {SEED}"


def test_the_sink_writes_every_message_once(server: ServerProcess, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    filler = Filler(server.broker_addr, "KilledIn")
    command = [sys.executable, "-m", "orbitmq.spark.pipelines.route", "KilledOut", "-t", "KilledIn"]
    command += ["-n", server.namesrv, "--master", "local[2]", "--checkpoint", str(checkpoint)]
    try:
        kills = killed(command, checkpoint, tmp_path / "route.log")
    finally:
        sent = filler.stop()
    finished(command)
    assert kills and sent >= PER_SEND
    expected = Counter(message.body for message in numbered(sent))
    assert bodies(server.namesrv, "KilledOut") == expected, f"seed {SEED}"
    originals = {message.body: message for message in messages(server.namesrv, "KilledIn")}
    for copy in messages(server.namesrv, "KilledOut"):
        assert described(copy) == described(originals[copy.body])


def described(message: Message) -> tuple[object, ...]:
    return message.tags, message.key_list, message.properties["n"]
