"""When the interop kit's verdict stands, and when a suite is run again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts import interop

RACE = "java:lite-pull-assign"


@pytest.mark.parametrize(
    ("results", "status", "runs"),
    [
        ([(0, [])], 0, [[]]),
        ([(1, ["go:send-sync"])], 1, [[]]),
        ([(1, [RACE, "java:send-sync"])], 1, [[]]),
        ([(1, [])], 1, [[]]),
        ([(1, ["java-binary:lite-pull-assign"])], 1, [[]]),
        ([(1, [RACE]), (0, [])], 0, [[], ["java"]]),
        ([(1, [RACE]), (1, [RACE])], 1, [[], ["java"]]),
        ([(1, [RACE]), (1, ["java:send-sync"])], 1, [[], ["java"]]),
    ],
)
def test_only_a_known_race_of_a_client_has_a_second_chance(
    results: list[tuple[int, list[str]]], status: int, runs: list[list[str]]
) -> None:
    asked: list[list[str]] = []
    left = iter(results)

    def run(suites: Sequence[str]) -> tuple[int, list[str]]:
        asked.append(list(suites))
        return next(left)

    assert interop.judged(run, []) == status
    assert asked == runs


def test_failures_are_read_from_what_the_kit_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kit = tmp_path / "run.sh"
    kit.write_text(
        f"#!/bin/sh\necho PASS java:a 1\necho 'FAIL {RACE} why (3 ms)'\necho '1 passed, 1 failed'\nexit 1\n"
    )
    kit.chmod(0o755)
    monkeypatch.setattr(interop, "KIT", kit)
    assert interop.run_kit("127.0.0.1:1", ["java"]) == (1, [RACE])
    assert "1 passed, 1 failed" in capfd.readouterr().out
