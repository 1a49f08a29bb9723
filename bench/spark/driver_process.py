"""The process of one side's Spark driver (`bench.spark.job`), as the benchmark sees it: steps in, figures out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

import msgspec

from bench.spark.figure import Figure
from bench.spark.load import Step, Work

STOP_LIMIT_S: Final = 60


class DriverProcess:
    """Entered, it runs and waits for steps; left, it has ended."""

    def __init__(self, work: Work) -> None:
        self._side = work.side
        self._command = [sys.executable, "-m", "bench.spark.job", msgspec.json.encode(work).decode()]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        list(self._answers())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._to.close()
        try:
            self._process.wait(STOP_LIMIT_S)
        finally:
            self._process.kill()

    def figures(self, step: Step) -> Iterator[Figure]:
        self._to.write(msgspec.json.encode(step).decode() + "\n")
        self._to.flush()
        for line in self._answers():
            yield Figure.from_json(json.loads(line))

    def _answers(self) -> Iterator[str]:
        while (line := self._from.readline()) != "\n":
            if not line:
                raise SystemExit(f"the driver of {self._side} ended with status {self._process.wait()}")
            yield line
