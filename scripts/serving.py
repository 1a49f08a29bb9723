"""Real `orbitmq` servers in processes of their own, for scripts, benchmarks and tests from outside."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

SOURCE = Path(__file__).resolve().parents[1] / "src"
START_LIMIT_S = 30.0
STOP_LIMIT_S = 15.0


class ServerFailed(AssertionError):
    """The server did not become ready or did not stop; the message ends with what it printed."""


def free_port(*more_offsets: int) -> int:
    """A port that is free now, as are the ports at the given distances from it."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            if all(_is_free(port + offset) for offset in more_offsets):
                return port
    raise OSError("no free port with free neighbours was found")


def free_broker_port() -> int:
    """Brokers of this family also use the port two below (VIP) and one above (replication)."""
    return free_port(-2, 1)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class OrbitProcess:
    """One `orbitmq ARGS` that serves until it is stopped, always by its own process id.

    Its output is kept in `output`; `ready_ms` is how long its last start took. `under` are the words of a command
    that becomes the server, as `nsenter` does.
    """

    def __init__(
        self,
        args: Sequence[str],
        *,
        ready: str,
        wait: bool = True,
        start: bool = True,
        under: Sequence[str] = (),
    ) -> None:
        self.args = list(args)
        self.under = list(under)
        self.ready = ready
        self.ready_ms = 0.0
        self.output: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._started = 0.0
        if start:
            self.start(wait=wait)

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the server is not running"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def printed(self) -> str:
        return "".join(self.output)

    def start(self, *, wait: bool = True) -> None:
        assert self._process is None, "the server is running already"
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            [*self.under, sys.executable, "-m", "orbitmq", *self.args],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines = queue.SimpleQueue()
        # The reader goes on for the life of the server, which would stop when nobody emptied its pipe.
        self._reader = threading.Thread(
            target=self._read_output, args=(self._process, self._lines), daemon=True
        )
        self._reader.start()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> str:
        """The ready line; fails with what the server printed when it ends or stays silent."""
        deadline = time.monotonic() + START_LIMIT_S
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left_s)
            except queue.Empty:
                break
            if line is None:
                code = self.wait_stopped()
                raise ServerFailed(f"the server ended with {code} before it was ready:\n{self.printed}")
            if line.startswith(self.ready):
                self.ready_ms = (time.perf_counter() - self._started) * 1000
                return line
        self.kill()
        raise ServerFailed(f"the server was not ready within {START_LIMIT_S} s:\n{self.printed}")

    def wait_stopped(self, limit_s: float = STOP_LIMIT_S) -> int:
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"the server did not stop within {limit_s} s:\n{self.printed}") from None
        self._forget()
        return code

    def stop(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Asks it to stop (SIGTERM) and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait_stopped(limit_s)

    def kill(self) -> None:
        """Ends it without any chance to clean up (SIGKILL)."""
        self.process.kill()
        self.process.wait()
        self._forget()

    def restart(self) -> None:
        """Starts again with the same ports and data; stops it first if it is running."""
        if self._process is not None:
            self.stop()
        self.start()

    def _read_output(self, process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.output.append(line)
            lines.put(line.rstrip("\n"))
        lines.put(None)

    def _forget(self) -> None:
        assert self._process is not None
        if self._reader is not None:
            self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        if self.running and error is None:
            self.stop()
        else:
            self.kill()


class ServerProcess(OrbitProcess):
    """`orbitmq server` on free ports; they and the data stay the same over `restart`.

    Settings are RocketMQ's keys (`flushDiskType`).
    """

    def __init__(
        self, data: Path, settings: Mapping[str, str | int | bool], *, wait: bool = True, start: bool = True
    ) -> None:
        self.data = data
        self.namesrv_port = free_port()
        self.port = free_broker_port()
        ports = ["--namesrv-port", str(self.namesrv_port), "--port", str(self.port), "--console-port", "0"]
        args = ["server", "--data", str(data), *ports, *set_options({"brokerIP1": "127.0.0.1", **settings})]
        super().__init__(args, ready="OrbitMQ ready", wait=wait, start=start)

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def broker_addr(self) -> str:
        return f"127.0.0.1:{self.port}"


def set_options(settings: Mapping[str, str | int | bool]) -> list[str]:
    options = []
    for key, value in settings.items():
        options += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return options


@contextlib.contextmanager
def serving(data: Path, settings: Mapping[str, str | int | bool]) -> Iterator[ServerProcess]:
    """A server that is there for a block and has to end well."""
    with ServerProcess(data, settings) as server:
        yield server
        if (status := server.stop()) != 0:
            raise ServerFailed(f"ended with status {status} instead of 0\n{server.printed}")
