"""The two brokers under test behind one interface: start on a store directory, stop, and their process id."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from scripts.serving import ServerProcess, free_broker_port

PEER = Path(__file__).resolve().parent / "peer" / "peer.sh"


class PeerFailed(RuntimeError):
    """The Java broker could not be started or stopped."""


class Broker(Protocol):
    label: str
    pid: int
    namesrv: str
    ready_ms: float

    def start(self) -> None: ...

    def stop(self) -> None: ...


class OrbitBroker:
    """Name server and broker are one process here: its start-up time and memory are those of both."""

    label = "orbitmq"

    def __init__(self, store: Path, settings: Mapping[str, str]) -> None:
        self._server = ServerProcess(store, settings, start=False)
        self.namesrv = self._server.namesrv
        self.pid = 0
        self.ready_ms = 0.0

    def start(self) -> None:
        self._server.start()
        self.pid, self.ready_ms = self._server.pid, self._server.ready_ms

    def stop(self) -> None:
        self._server.stop(60)


class JavaBroker:
    """Start-up time and memory are the broker's alone, in its favour: its name server is another process."""

    label = "java"

    def __init__(self, store: Path, settings: Mapping[str, str]) -> None:
        self._store = store
        self._settings = [f"{key}={value}" for key, value in settings.items()]
        self._namesrv_port = free_broker_port()
        self._started: list[str] = []
        self.namesrv = f"127.0.0.1:{self._namesrv_port}"
        self.pid = 0
        self.ready_ms = 0.0

    def start(self) -> None:
        self._launch("namesrv", str(self._namesrv_port))
        try:
            broker = self._launch(
                "broker", str(free_broker_port()), str(self._store), self.namesrv, *self._settings
            )
        except PeerFailed:
            self.stop()
            raise
        self.pid, self.ready_ms = int(broker["pid"]), float(broker["ready_ms"])

    def stop(self) -> None:
        while self._started:
            _peer("stop", self._started.pop())

    def _launch(self, *words: str) -> dict[str, str]:
        found: dict[str, str] = json.loads(_peer(*words))
        self._started.append(found["name"])
        return found


def _peer(*words: str) -> str:
    done = subprocess.run([str(PEER), *words], stdout=subprocess.PIPE, text=True, check=False, timeout=600)
    if done.returncode != 0:
        raise PeerFailed(
            f"peer.sh {' '.join(words)} ended with status {done.returncode}; its reason is above"
        )
    return done.stdout


def anonymous_memory_mb(pid: int) -> float:
    """Memory that is the process's own; mapped store files are the page cache's and not counted."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return float("nan")
