"""Clients that take turns: each waits for a word before every pass, and so that of one broker follows the other's.

The machine may be a noisy one. Figures that are minutes apart then tell more about the neighbours than about brokers;
of passes that are seconds apart, and many, the medians do not.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.brokers import Broker

CLIENT: Final = Path(__file__).resolve().parent / "client" / "bench.sh"
TURN_LIMIT_S: Final = 1800


def client_command(broker: Broker, run: Sequence[str]) -> list[str]:
    about = ["-n", broker.namesrv, "--broker-pid", str(broker.pid), "--label", broker.label]
    return [str(CLIENT), *about, "--turns", "1", *run]


def taking_turns(commands: Sequence[Sequence[str]]) -> Iterator[dict[str, Any]]:
    """What the clients measure, until all have ended. They have as many passes each, or somebody has failed."""
    with ExitStack() as running:
        waiting = [running.enter_context(Client(command)) for command in commands]
        while waiting:
            for client in waiting:
                yield from client.turn()
            if len({client.ended for client in waiting}) > 1:
                raise SystemExit("the benchmark clients took different numbers of turns")
            waiting = [client for client in waiting if not client.ended]


class Client:
    """Entered, it runs and has come to its first pass; left, it has ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self.ended = False

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        list(self._until_the_next())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def turn(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        yield from self._until_the_next()

    def _until_the_next(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        limit = threading.Timer(TURN_LIMIT_S, self._process.kill)
        limit.start()
        try:
            for text in self._process.stdout:
                if text.startswith("TURN"):
                    return
                if text.startswith("{"):
                    yield json.loads(text)
        finally:
            limit.cancel()
        self.ended = True
        if self._process.wait() != 0:
            words = " ".join(self._command)
            raise SystemExit(f"the benchmark client ended with status {self._process.returncode}: {words}")
