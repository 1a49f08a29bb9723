"""The comparison of clients: medians, verdicts, and the section of the page."""

from __future__ import annotations

import pytest

from bench.clients.load import AWAITED, PAGES, STREAM
from bench.clients.stopwatch import Figure
from bench.clients.table import BEGIN, END, markdown, verdicts, with_section

CALLS = {
    "orbitmq": {STREAM: "`send_many`", AWAITED: "`send`", PAGES: "`read`"},
    "aiokafka": {STREAM: "`send`", AWAITED: "`send_and_wait`", PAGES: "`getmany`"},
}


def figure(client: str, row: str, per_second: int, cpu_us: float, **more: float) -> Figure:
    fields = {"other_cores": 0.0, **more}
    return Figure(client, row, per_second, 1.0, cpu_us * per_second / 1e6, **fields)


def test_the_median_of_the_rounds_counts() -> None:
    rounds = [figure("orbitmq", AWAITED, n, 8.0, p50_us=1.0, p99_us=float(n)) for n in (10, 90_000, 40_000)]
    text = markdown(rounds, CALLS, "setting")
    assert (
        "| awaited sends, 64 at a time | orbitmq | `send` | 40,000 | 8.0 | 1 | 40,000 |" in text.splitlines()
    )


def test_verdicts_name_bars_and_goal() -> None:
    both = [figure("orbitmq", STREAM, 190_000, 4.0), figure("aiokafka", STREAM, 100_000, 10.0)]
    assert verdicts(both) == [
        "sends without waiting for each: 1.90 times aiokafka, bar 2: **missed**",
        "sends without waiting for each: 0.40 of the best other's CPU, goal 0.5: reached",
    ]
    assert "reached" in verdicts([figure("orbitmq", PAGES, 2, 1.0), figure("aiokafka", PAGES, 2, 1.0)])[0]


def test_what_was_not_measured_is_not_judged() -> None:
    assert verdicts([figure("orbitmq", PAGES, 1000, 1.0)]) == []


def test_a_busy_machine_is_told() -> None:
    busy = figure("orbitmq", PAGES, 1000, 1.0, other_cores=0.8)
    assert "other processes used up to 0.8 cores during 1 of 1 figures" in markdown([busy], CALLS, "setting")


def test_the_section_is_replaced_or_added() -> None:
    page = with_section("# Page\n", "first\n")
    assert page == f"# Page\n\n{BEGIN}\nfirst\n{END}\n"
    assert with_section(page, "second\n") == f"# Page\n\n{BEGIN}\nsecond\n{END}\n"
    with pytest.raises(ValueError, match="without"):
        with_section(f"# Page\n{BEGIN}\n", "x\n")
