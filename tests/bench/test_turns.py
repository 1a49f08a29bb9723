"""The benchmark's clients take turns: seen with small programs in the client's place."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from bench.turns import PATIENCE, Client, taking_turns


def client(label: str, *passes: str) -> list[str]:
    """A program that waits for its turn before each of these, like the client with `--turns 1`."""
    steps = "".join(f"print('TURN', flush=True); input()\n{step}\n" for step in passes)
    return [
        sys.executable,
        "-c",
        f"import sys\nsay = lambda n: print('{{\"%s\": %d}}' % ('{label}', n))\n{steps}",
    ]


def figures(label: str, *stolen: Sequence[float]) -> list[str]:
    """A program with a figure for each sequence, whose passes go on until it hears that it is enough."""
    return [
        sys.executable,
        "-c",
        f"""
for number, stolen in enumerate({stolen!r}):
    print("TURN", flush=True); assert input() == ""
    n = 0
    while True:
        print("TURN", n, flush=True)
        if input() == "enough":
            break
        cores = stolen[n % len(stolen)]
        print('{{"{label}": %d, "pass": %d, "steal_cores": %f}}' % (number, n, cores), flush=True)
        n += 1
""",
    ]


def test_a_pass_of_one_is_followed_by_the_same_of_the_other() -> None:
    lines = taking_turns([figures("a", [0.0], [0.0]), figures("b", [0.0], [0.0])], 2)
    seen = [(*line.items(),)[0] + (line["pass"],) for line in lines]
    one = [("a", 0, 0), ("b", 0, 0), ("a", 0, 1), ("b", 0, 1)]
    assert seen == one + [(label, 1, number) for label, _, number in one]


def test_turns_that_the_host_disturbs_for_one_are_taken_again_by_both() -> None:
    lines = list(taking_turns([figures("a", [0.0, 0.9, 0.0, 0.0]), figures("b", [0.0, 0.0, 0.3, 0.1])], 2))
    assert [(line["pass"], line["quiet"]) for line in lines] == [
        (0, True),
        (0, True),
        (1, False),
        (1, False),
        (2, False),
        (2, False),
        (3, True),
        (3, True),
    ]


def test_a_host_that_never_rests_does_not_keep_a_figure_forever() -> None:
    lines = list(taking_turns([figures("a", [0.0], [0.0]), figures("b", [0.9], [0.0])], 2))
    disturbed, calm = lines[: 2 * 2 * PATIENCE], lines[2 * 2 * PATIENCE :]
    assert not any(line["quiet"] for line in disturbed)
    assert len(calm) == 2 * 2 and all(line["quiet"] for line in calm)


def test_a_client_that_fails_ends_the_comparison_and_the_other_client() -> None:
    with pytest.raises(SystemExit, match="ended with status 3"):
        list(taking_turns([client("a", "say(1)", "say(2)"), client("b", "say(1)", "sys.exit(3)")], 1))


def test_clients_with_different_numbers_of_passes_are_no_comparison() -> None:
    with pytest.raises(SystemExit, match="different numbers of turns"):
        list(taking_turns([client("a", "say(1)", "say(2)"), client("b", "say(1)")], 1))


def test_clients_that_are_at_different_passes_are_no_comparison() -> None:
    with pytest.raises(SystemExit, match="different numbers of turns"):
        list(taking_turns([figures("a", [0.0]), client("b", "say(1)", "say(2)")], 1))


def test_a_client_that_never_ends_its_turn_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.turns.TURN_LIMIT_S", 0.5)
    with pytest.raises(SystemExit, match="ended with status -9"), Client(client("a", "input()")) as waits:
        list(waits.turn())


def test_whoever_leaves_early_leaves_no_client_behind() -> None:
    with Client(client("a", "input()")) as started:
        process = started._process
    assert process.returncode == -9
