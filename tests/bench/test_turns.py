"""The benchmark's clients take turns: seen with small programs in the client's place."""

from __future__ import annotations

import sys

import pytest

from bench.turns import Client, taking_turns


def client(label: str, *passes: str) -> list[str]:
    """A program that waits for its turn before each of these, like the client with `--turns 1`."""
    steps = "".join(f"print('TURN', flush=True); input()\n{step}\n" for step in passes)
    return [
        sys.executable,
        "-c",
        f"import sys\nsay = lambda n: print('{{\"%s\": %d}}' % ('{label}', n))\n{steps}",
    ]


def test_a_pass_of_one_is_followed_by_the_same_of_the_other() -> None:
    lines = taking_turns(
        [client("a", "pass", "say(1)", "say(2); say(3)"), client("b", "pass", "say(1)", "say(2)")]
    )
    assert list(lines) == [{"a": 1}, {"b": 1}, {"a": 2}, {"a": 3}, {"b": 2}]


def test_a_client_that_fails_ends_the_comparison_and_the_other_client() -> None:
    with pytest.raises(SystemExit, match="ended with status 3"):
        list(taking_turns([client("a", "say(1)", "say(2)"), client("b", "say(1)", "sys.exit(3)")]))


def test_clients_with_different_numbers_of_passes_are_no_comparison() -> None:
    with pytest.raises(SystemExit, match="different numbers of turns"):
        list(taking_turns([client("a", "say(1)", "say(2)"), client("b", "say(1)")]))


def test_a_client_that_never_ends_its_turn_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.turns.TURN_LIMIT_S", 0.5)
    with pytest.raises(SystemExit, match="ended with status -9"), Client(client("a", "input()")) as waits:
        list(waits.turn())


def test_whoever_leaves_early_leaves_no_client_behind() -> None:
    with Client(client("a", "input()")) as started:
        process = started._process
    assert process.returncode == -9
