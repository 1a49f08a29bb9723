"""Running `orbitmq` commands inside the test's own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from orbitmq.cli.main import main


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        return json.loads(self.err)


class Commands:
    """`orbitmq(...)` with the name server of a test's cluster, if it has one."""

    def __init__(self, capsys: pytest.CaptureFixture[str], namesrv: str | None = None) -> None:
        self._capsys = capsys
        self._namesrv = namesrv

    def __call__(self, *args: str) -> Ended:
        self._capsys.readouterr()
        code = main([*args, "-n", self._namesrv] if self._namesrv else list(args))
        captured = self._capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    def ok(self, *args: str) -> Ended:
        ended = self(*args)
        assert ended.code == 0, f"orbitmq {' '.join(args)} ended with {ended.code}: {ended.err}"
        return ended
