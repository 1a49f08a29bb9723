"""The real Java broker on a store directory, and the official Java client reading from it."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.server_process import free_broker_port, free_port

PEER = Path(__file__).resolve().parents[2] / "bench" / "peer" / "peer.sh"
DRAIN = Path(__file__).with_name("Drain.java")
VERSION = "4.9.7"
LIMIT_S = 120.0
START_TRIES = 3


def build_directory() -> Path:
    return Path(os.environ.get("BUILD") or Path.home() / ".cache" / "orbitmq-bench")


def peer(*words: str) -> str:
    """`peer.sh WORDS`, and what it printed. The first call fetches the jars."""
    env = {**os.environ, "VERSION": VERSION, "HEAP": "512m"}
    done = subprocess.run(
        [str(PEER), *words], env=env, stdout=subprocess.PIPE, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, (
        f"peer.sh {' '.join(words)} ended with {done.returncode}; its reason is above"
    )
    return done.stdout


class JavaPeer:
    """Starts and stops as often as wished, always on the same directory; its name server stays up in between."""

    def __init__(self, store: Path, settings: dict[str, str | int]) -> None:
        self._store = store
        self._settings = [f"{key}={value}" for key, value in settings.items()]
        self._namesrv_port = free_port()
        self._broker = ""
        self._pid = 0
        self.broker_addr = ""

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self._namesrv_port}"

    def __enter__(self) -> Self:
        self._namesrv = json.loads(peer("namesrv", str(self._namesrv_port)))["name"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._broker:
            self.stop()
        peer("stop", self._namesrv)

    def start(self) -> None:
        started, port = self._started()
        self._broker, self._pid = started["name"], int(started["pid"])
        self.broker_addr = f"127.0.0.1:{port}"

    def _started(self) -> tuple[dict[str, str], int]:
        """Java needs three free ports in a row and ends at once if somebody takes one meanwhile: then others."""
        for attempt in range(START_TRIES):
            port = free_broker_port()
            try:
                return json.loads(
                    peer("broker", str(port), str(self._store), self.namesrv, *self._settings)
                ), port
            except AssertionError:
                if attempt == START_TRIES - 1:
                    raise
        raise AssertionError("it was never tried")

    def stop(self) -> None:
        peer("stop", self._broker)
        self._broker = ""

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self.stop()


class Drained(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int
    msg_id: str
    tags: str | None
    keys: str | None
    body: bytes


def drain(namesrv: str, topics: list[str]) -> list[Drained]:
    """Everything in these topics, as the official client reads it."""
    jars = f"{build_directory() / f'peer-{VERSION}'}/*"
    with tempfile.TemporaryDirectory() as directory:
        lines = Path(directory, "drained.tsv")
        command = ["java", "-Xmx256m", "-cp", jars, str(DRAIN), str(lines), namesrv, *topics]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr[-3000:]
        text = lines.read_text()
    found = []
    for line in text.splitlines():
        topic, queue_id, queue_offset, msg_id, tags, keys, body = line.split("\t")
        found.append(
            Drained(
                topic,
                int(queue_id),
                int(queue_offset),
                msg_id,
                None if tags == "null" else tags,
                None if keys == "null" else keys,
                base64.b64decode(body),
            )
        )
    return found
