"""Clients that take turns: each waits for a word before every pass, and so that of one broker follows the other's.

The machine may be a noisy one. Figures that are minutes apart then tell more about the neighbours than about brokers;
of passes that are seconds apart, and many, the medians do not. Where the host takes cores away during a pass, it is
taken again: what decides is the machine's own count of stolen time, never the figure.
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
GO_ON, ENOUGH = "", "enough"
QUIET_CORES: Final = 0.2
"""What the host may take away from all cores together during a pass that counts as quiet."""
PATIENCE: Final = 4
"""So many times the passes of a figure are taken at most."""


def client_command(broker: Broker, run: Sequence[str]) -> list[str]:
    about = ["-n", broker.namesrv, "--broker-pid", str(broker.pid), "--label", broker.label]
    return [str(CLIENT), *about, "--turns", "1", *run]


def taking_turns(commands: Sequence[Sequence[str]], passes: int) -> Iterator[dict[str, Any]]:
    """What the clients measure, until all have ended. Each line says whether its turn was a quiet one for everybody.

    A figure gets so many passes, and further ones until as many were quiet or its patience is at an end.
    """
    with ExitStack() as running:
        clients = [running.enter_context(Client(command)) for command in commands]
        quiet_turns = 0
        while not any(client.ended for client in clients):
            offered = {client.offered for client in clients}
            if len(offered) > 1:
                break
            number = offered.pop()
            if number == 0:
                quiet_turns = 0
            done = number is not None and (
                number >= passes * PATIENCE or (number >= passes and quiet_turns >= passes)
            )
            lines = [line for client in clients for line in client.turn(ENOUGH if done else GO_ON)]
            quiet = all(line.get("steal_cores", 0.0) <= QUIET_CORES for line in lines)
            quiet_turns += quiet
            yield from ({**line, "quiet": quiet} for line in lines)
        if not all(client.ended for client in clients):
            raise SystemExit("the benchmark clients took different numbers of turns")


class Client:
    """Entered, it runs and has come to its first pass; left, it has ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self.ended = False
        self.offered: int | None = None
        """The number of the pass that it would do next; None for something that is not measured."""

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

    def turn(self, word: str = GO_ON) -> Iterator[dict[str, Any]]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        yield from self._until_the_next()

    def _until_the_next(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        limit = threading.Timer(TURN_LIMIT_S, self._process.kill)
        limit.start()
        try:
            for text in self._process.stdout:
                if text.startswith("TURN"):
                    number = text.removeprefix("TURN").strip()
                    self.offered = int(number) if number else None
                    return
                if text.startswith("{"):
                    yield json.loads(text)
        finally:
            limit.cancel()
        self.ended = True
        if self._process.wait() != 0:
            words = " ".join(self._command)
            raise SystemExit(f"the benchmark client ended with status {self._process.returncode}: {words}")
