"""A real `orbitmq server` process on free ports, for scripts, benchmarks and tests from outside."""

from __future__ import annotations

import contextlib
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

READY_LINE = "OrbitMQ ready"
LAST_LINES = 40


class ServerFailed(RuntimeError):
    """The server did not become ready or did not stop; the message ends with what it printed."""


def free_broker_port() -> int:
    """A port with free neighbours: a broker may also use port - 2 (VIP) and port + 1 (slaves)."""
    for _ in range(200):
        port = random.randrange(20_000, 55_000)
        if all(_is_free(p) for p in (port - 2, port, port + 1)):
            return port
    raise ServerFailed("no free port between 20000 and 55000 was found")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class ServerProcess:
    """Started by `start`, ended by `stop` (SIGTERM) or `kill` (SIGKILL); always by its own process id."""

    def __init__(self, data: Path, settings: Mapping[str, str] | None = None, *, port: int = 0) -> None:
        self.data = data
        self.settings = {"brokerIP1": "127.0.0.1", **(settings or {})}
        self.port = port or free_broker_port()
        self.namesrv_port = free_broker_port()
        self.ready_ms = 0.0
        self.output: deque[str] = deque(maxlen=LAST_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self, timeout_s: float = 30) -> None:
        command = [Path(sys.executable).with_name("orbitmq"), "server", "--data", self.data]
        command += ["--namesrv-port", str(self.namesrv_port), "--port", str(self.port), "--console-port", "0"]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        # The reader goes on for the life of the server, which would stop when nobody emptied its pipe.
        threading.Thread(target=self._read_output, daemon=True).start()
        while True:
            left = started + timeout_s - time.perf_counter()
            line = self._next_line(left)
            if line is not None and line.startswith(READY_LINE):
                self.ready_ms = (time.perf_counter() - started) * 1000
                return
            if line is None:
                self.kill()
                raise ServerFailed(f"no line '{READY_LINE}' within {timeout_s:.0f} s\n{self.tail()}")

    def stop(self, timeout_s: float = 15) -> int:
        """Asks it to end and returns its exit status."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"did not end within {timeout_s:.0f} s of SIGTERM\n{self.tail()}") from None

    def kill(self) -> None:
        process = self._running()
        process.kill()
        process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ServerFailed("the server was not started")
        return self._process

    def _next_line(self, timeout_s: float) -> str | None:
        with contextlib.suppress(queue.Empty):
            return self._lines.get(timeout=max(timeout_s, 0.001))
        return None

    def _read_output(self) -> None:
        output = self._running().stdout
        assert output is not None
        with output:
            for line in output:
                self.output.append(line.rstrip("\n"))
                if not self.ready_ms:
                    self._lines.put(line)
        self._lines.put(None)

    def tail(self) -> str:
        return "\n".join(self.output) or "(it printed nothing)"


@contextlib.contextmanager
def serving(data: Path, settings: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    server = ServerProcess(data, settings)
    server.start()
    try:
        yield server
    except BaseException:
        server.kill()
        raise
    if (status := server.stop()) != 0:
        raise ServerFailed(f"ended with status {status} instead of 0\n{server.tail()}")
