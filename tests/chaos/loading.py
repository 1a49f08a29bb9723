"""Starts and steers the processes of `tests.chaos.load`, and loads what they wrote down."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from scripts.serving import SOURCE
from tests.chaos.harness import GROUP, ChaosCluster
from tests.chaos.history import Event, History, Recorder, load_history
from tests.chaos.load import Plan

START_LIMIT_S = 40.0
DRAIN_LIMIT_S = 60.0
TOPIC = "Chaos"


class LoadProcess:
    """Ready and at work when the constructor returns."""

    def __init__(self, cluster: ChaosCluster, name: str, **plan: Any) -> None:
        self.name = name
        self.history = cluster.directory / f"{name}.history"
        _, under = cluster.place(name)
        chosen = {"namesrv": cluster.namesrv, "topic": TOPIC, "broker": GROUP, "queues": 4, **plan}
        text = msgspec.json.encode(Plan(name=name, history=str(self.history), **chosen)).decode()
        self._log = cluster.directory / f"{name}.out"
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*under, sys.executable, "-m", "tests.chaos.load", text],
                cwd=SOURCE.parent,
                env={**os.environ, "PYTHONPATH": str(SOURCE)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._expect("ready", START_LIMIT_S)

    @property
    def acks(self) -> int:
        """How many of its producers' messages were acknowledged so far; the probes' do not count."""
        self._tell("acks")
        return int(self._next(START_LIMIT_S))

    def quiet(self) -> None:
        """No more messages; those under way are waited for."""
        self._tell("quiet")
        self._expect("quiet", START_LIMIT_S)

    def send_last(self, limit_s: float = DRAIN_LIMIT_S) -> list[str]:
        """Keys of messages that all consumers must have before they can be stopped."""
        self._tell(f"last {limit_s}")
        return self._next(limit_s + START_LIMIT_S).split()

    def wait_for(self, keys: list[str], limit_s: float = DRAIN_LIMIT_S) -> str:
        """Empty when its consumers have these; otherwise what is missing."""
        self._tell(f"wait {limit_s} {' '.join(keys)}")
        line = self._next(limit_s + START_LIMIT_S)
        return "" if line == "arrived" else line

    def stop(self) -> None:
        self._tell("stop")
        self._expect("stopped", START_LIMIT_S)
        self._process.wait(START_LIMIT_S)
        self._close()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(5)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())

    def _next(self, limit_s: float) -> str:
        try:
            return self._lines.get(timeout=limit_s)
        except queue.Empty:
            said = self._log.read_text("utf-8", "replace")[-3000:]
            raise AssertionError(f"{self.name} said nothing for {limit_s:g} s:\n{said}") from None

    def _expect(self, word: str, limit_s: float) -> None:
        line = self._next(limit_s)
        assert line == word, f"{self.name} said {line!r} instead of {word!r}"


class Diary:
    """What was done to the cluster and when, kept beside the histories of the loads."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "diary.history"
        self._recorder = Recorder(self.path)

    def note(self, what: str) -> float:
        now = time.monotonic()
        self._recorder.event(Event(now, what))
        return now

    def close(self) -> None:
        self._recorder.close()


def read_histories(diary: Diary, *loads: LoadProcess) -> History:
    return load_history([diary.path, *(load.history for load in loads)])
