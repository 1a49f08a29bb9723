"""Servers as child processes of this one: started, waited for, watched, and stopped in the opposite order.

Each child writes to a log file of its own; its ready line is looked for there, and so are its last words when it dies.
Its standard input is a pipe into which nobody writes. The pipe ends with this process, however that ends, and the child
stops then (`STOP_AT_EOF`): nothing is left running behind a parent that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# A server with this in its environment stops when its standard input ends.
STOP_AT_EOF: Final = "ORBITMQ_STOP_AT_EOF"

START_LIMIT_S: Final = 60.0
# A server gives its own stop ten seconds; whoever needs longer than this hangs.
STOP_LIMIT_S: Final = 12.0
LOOK_S: Final = 0.02
WATCH_S: Final = 0.2
LAST_LINES: Final = 10
LAST_BYTES: Final = 16 * 1024
RESTART_FIRST_S: Final = 1.0
RESTART_LONGEST_S: Final = 30.0


class ChildFailed(Exception):
    """A child did not become ready: `what` says which and how, `last_words` what it wrote last."""

    def __init__(self, what: str, last_words: str) -> None:
        super().__init__(f"{what}\n{last_words}")
        self.what = what
        self.last_words = last_words


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run as `orbitmq ARGS`, and how its ready line begins."""

    name: str
    args: tuple[str, ...]
    ready: str


class Child:
    """One process, over all its restarts."""

    def __init__(self, spec: Spec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.ready_line = ""
        self.restarts = 0
        self.ended = False
        """Its end was noticed and told."""
        self.start_again_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self.ready_line, self.ended, self.start_again_at = "", False, None
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_path, "ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orbitmq", *self.spec.args],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", STOP_AT_EOF: "1"},
                # Ctrl-C in the terminal is for the parent, which knows in which order to stop.
                start_new_session=True,
            )

    def look(self) -> bool:
        """Whether its ready line is there."""
        if not self.ready_line:
            for line in self._written().splitlines():
                if line.startswith(self.spec.ready):
                    self.ready_line = line
        return bool(self.ready_line)

    def signal(self, number: int) -> None:
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):  # it ended a moment ago
                self._process.send_signal(number)

    def reap(self) -> None:
        """After the end: nothing of the process is left behind."""
        if self._process is not None:
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()

    def last_words(self) -> str:
        lines = [line for line in self._written().splitlines() if line.strip()]
        return "\n".join(f"  {line}" for line in lines[-LAST_LINES:]) or "  (it wrote nothing)"

    def how_it_ended(self) -> str:
        code = self.exit_code or 0
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    def _written(self) -> str:
        """What it wrote since its start, the last part of it if that is long."""
        with open(self.log_path, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - LAST_BYTES))
            return log.read().decode(errors="replace")


class ChildProcesses:
    """Children in stages: those of one stage start and stop together, later stages rest on earlier ones.

    `tell` hears of every end that nobody asked for. With `restart`, a child that died is started again; one that
    stopped by itself with exit code 0 was asked to by somebody and stays away.
    """

    def __init__(self, logs: Path, tell: Callable[[str], None], *, restart: bool = False) -> None:
        self._logs = logs
        self._tell = tell
        self._restart = restart
        self._stages: list[list[Child]] = []
        self._watcher: asyncio.Task[None] | None = None

    @property
    def children(self) -> list[Child]:
        return [child for stage in self._stages for child in stage]

    async def start(self, specs: Sequence[Spec]) -> list[Child]:
        """One more stage; returns when all of it are ready. When one fails, everything is stopped."""
        stage = [Child(spec, self._logs / f"{spec.name}.log") for spec in specs]
        self._stages.append(stage)
        try:
            for child in stage:
                child.start()
            await asyncio.gather(*(self._until_ready(child) for child in stage))
        except BaseException:
            await self.stop()
            raise
        return stage

    def watch(self) -> None:
        """From now on ends are told."""
        self._watcher = asyncio.create_task(self._watch(), name="watch-children")

    async def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        while self._stages:
            await self._stop_stage(self._stages[-1])
            self._stages.pop()

    def kill(self) -> None:
        """Ends everything now: for whoever is tired of waiting for `stop`."""
        for child in self.children:
            child.signal(signal.SIGKILL)

    async def _until_ready(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_LIMIT_S
        while not child.look():
            if not child.running:
                if child.look():
                    break
                raise self._failed(child, f"{child.how_it_ended()} before it was ready")
            if loop.time() > deadline:
                raise self._failed(child, f"was not ready within {START_LIMIT_S:.0f} s")
            await asyncio.sleep(LOOK_S)

    @staticmethod
    def _failed(child: Child, how: str) -> ChildFailed:
        return ChildFailed(f"{child.spec.name} {how}; {child.log_path} has more", child.last_words())

    async def _stop_stage(self, stage: list[Child]) -> None:
        for child in stage:
            child.signal(signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + STOP_LIMIT_S
        while any(child.running for child in stage):
            if asyncio.get_running_loop().time() > deadline:
                for child in stage:
                    if child.running:
                        self._tell(f"{child.spec.name} (pid {child.pid}) does not stop and is killed")
                        child.signal(signal.SIGKILL)
                break
            await asyncio.sleep(LOOK_S)
        for child in stage:
            child.reap()

    async def _watch(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(WATCH_S)
            for child in self.children:
                if child.start_again_at is not None:
                    if now() >= child.start_again_at:
                        child.start()
                        self._tell(f"{child.spec.name} is started again, pid {child.pid}")
                elif not child.ended and child.exit_code is not None:
                    self._note_end(child, now())

    def _note_end(self, child: Child, now: float) -> None:
        child.ended = True
        child.reap()
        if child.exit_code == 0:
            self._tell(f"{child.spec.name} (pid {child.pid}) has stopped; the others go on")
            return
        again = ""
        if self._restart:
            pause_s = min(RESTART_FIRST_S * 2 ** min(child.restarts, 10), RESTART_LONGEST_S)
            child.restarts += 1
            child.start_again_at = now + pause_s
            again = f" It is started again in {pause_s:.0f} s."
        self._tell(
            f"{child.spec.name} (pid {child.pid}) {child.how_it_ended()}; the others go on.{again} "
            f"{child.log_path} ends with\n{child.last_words()}"
        )
