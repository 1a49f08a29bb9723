"""Before its figures each side of the Spark benchmark warms up by one rule, and none of these runs counts."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from bench.spark import job
from bench.spark.figure import Figure
from bench.spark.load import COUNT, SIDES, SIZES, SUM, WARM_RUNS, WARM_TOPIC, Load, Step, Work, topic_of


@pytest.mark.parametrize("side", SIDES)
def test_a_query_is_warmed_alike_on_every_side(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[str, str]] = []
    measured: list[Step] = []

    def run(spark: Any, work: Work, row: str, topic: str) -> int:
        runs.append((row, topic))
        return 0

    def figure(spark: Any, work: Work, row: str, size: int) -> Figure:
        measured.append(Step(row, size, len(runs)))
        return Figure(side, row, size, 1, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)

    monkeypatch.setattr(job, "run_query", run)
    monkeypatch.setattr(job, "until_settled", lambda run, *others: run())
    monkeypatch.setattr(job, "query_figure", figure)
    driver = job.Driver(None, Work(side, "", 0, "", "", Load()))  # type: ignore[arg-type]
    for row in (COUNT, SUM):
        for size in SIZES:
            for number in range(2):
                assert len(list(driver.figures(Step(row, size, number)))) == 1
    expected = []
    for row in (COUNT, SUM):
        expected += [(row, WARM_TOPIC)] * (WARM_RUNS + 1)
        for size in SIZES:
            expected += [(row, topic_of(size)), *[(row, WARM_TOPIC)] * 2]
    assert runs == expected
    assert [step.number - WARM_RUNS - 1 for step in measured[:4]] == [2, 3, 5, 6]


@pytest.mark.parametrize(
    ("compiled_in_each", "runs"),
    [
        ([0.0], job.ROUND_RUNS),
        ([0.5, 0.06, 0.04], 3 * job.ROUND_RUNS),
        ([0.5] * 100, job.MOST_ROUNDS * job.ROUND_RUNS),
    ],
)
def test_warming_goes_on_until_java_has_settled(compiled_in_each: list[float], runs: int) -> None:
    """Rounds of one second of CPU each, of which the compiler takes a share."""
    done: list[None] = []

    def rounds() -> int:
        return len(done) // job.ROUND_RUNS

    job.until_settled(
        lambda: done.append(None), lambda: sum(compiled_in_each[: rounds()]), lambda: float(rounds())
    )
    assert len(done) == runs
