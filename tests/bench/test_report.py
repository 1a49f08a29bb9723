from __future__ import annotations

from typing import Any

import pytest

from bench import plan
from bench.report import BEGIN, END, Pair, doubts, markdown, process_pairs, rows, with_section


def line(label: str, msg_s: float, **more: Any) -> dict[str, Any]:
    return {
        "scenario": "sync",
        "label": label,
        "threads": 16,
        "size": 128,
        "msg_s": msg_s,
        "broker_cores": 0.5,
        "lat_p99_us": 900.0,
        "ok": 10,
        "stored": 10,
        "fail": 0,
        "round": 1,
        "flush": "ASYNC_FLUSH",
        **more,
    }


def test_a_figure_is_the_median_over_rounds_and_the_ratio_is_ours_to_java() -> None:
    lines = [line("orbitmq", n) for n in (100, 300, 900)] + [line("java", n) for n in (100, 200)]
    (row,) = rows(lines)
    assert (row.name, row.size) == ("sync, 16 threads", 128)
    assert (row.msg_s.ours, row.msg_s.java, row.msg_s.ratio) == (300, 150, 2.0)
    assert row.cpu_us.ours == pytest.approx(0.5 / 300 * 1e6)


def test_flush_modes_sizes_and_threads_are_kept_apart() -> None:
    lines = [
        line("java", 1),
        line("java", 1, threads=1),
        line("java", 1, size=1024),
        line("java", 1, flush="SYNC_FLUSH"),
    ]
    assert [(row.name, row.size) for row in rows(lines)] == [
        ("sync, 16 threads", 128),
        ("sync, 1 thread", 128),
        ("sync, 16 threads", 1024),
        ("sync, 16 threads, SYNC_FLUSH", 128),
    ]


def test_what_was_not_measured_is_never_shown_as_zero() -> None:
    (row,) = rows([line("orbitmq", 100)])
    assert row.msg_s.ratio is None
    assert "| 100 | – | – |" in markdown([line("orbitmq", 100)], "here")


def test_a_missed_bar_is_bold() -> None:
    bar = plan.THROUGHPUT_BARS["sync"]
    assert Pair(130, 100, bar).verdict == "1.30"
    assert Pair(129, 100, bar).verdict == "**1.29**"
    assert Pair(60, 100, plan.CPU_BAR).verdict == "**0.60**"


def test_other_kinds_of_messages_may_cost_as_much_as_in_java() -> None:
    (tx,) = rows([line("orbitmq", 100, scenario="tx"), line("java", 100, scenario="tx")])
    assert (tx.name, tx.msg_s.verdict, tx.cpu_us.verdict) == ("transactional, 16 threads", "1.00", "1.00")
    (sync,) = rows([line("orbitmq", 100), line("java", 100)])
    assert (sync.msg_s.verdict, sync.cpu_us.verdict) == ("**1.00**", "**1.00**")


def test_delayed_messages_cost_what_their_whole_life_took_and_are_late_beyond_their_delay() -> None:
    arrival = {
        "scenario": "delayed_arrival",
        "label": "java",
        "size": 128,
        "msg_s": 50.0,
        "late_p99_us": 70.0,
    }
    (row,) = rows([{**arrival, "broker_cores": 0.5, "broker_cpu_us": 30.0}])
    assert (row.name, row.cpu_us.java, row.p99_us.java) == ("delayed by 1 s, arrival", 30.0, 70.0)


def test_memory_under_load_is_the_highest_of_each_round() -> None:
    lines = [
        line("orbitmq", 1, broker_RssAnon_mb=40),
        line("orbitmq", 1, broker_RssAnon_mb=60),
        line("orbitmq", 1, broker_RssAnon_mb=80, round=2),
        line("java", 1, broker_RssAnon_mb=1000),
        {"scenario": "process", "label": "orbitmq", "ready_ms": 200.0, "idle_anon_mb": 30.0},
        {"scenario": "process", "label": "java", "ready_ms": 2000.0, "idle_anon_mb": 900.0},
    ]
    pairs = process_pairs(lines)
    assert pairs["start to ready (ms)"].ratio == pytest.approx(0.1)
    under_load = pairs["anonymous memory, highest median under load (MB)"]
    assert (under_load.ours, under_load.java) == (70, 1000)


def test_doubtful_figures_are_named() -> None:
    lines = [
        line("orbitmq", 1, stored=9, fail=2, first_error="busy", other_cores=0.8),
        line("java", 1, scenario="push_drain", pull_batch=32, complete="false"),
    ]
    lines += [line("java", 1, scenario="orderly_drain", pull_batch=32, duplicates=3, unwanted=0, disorder=2)]
    failed, stored, busy, drain, twice, disorder = doubts(lines)
    assert "2 requests failed (busy)" in failed
    assert "10 acknowledged, 9 stored" in stored
    assert "0.80 cores" in busy
    assert "did not end" in drain
    assert "3 messages came twice" in twice
    assert "2 messages came out of order" in disorder
    assert doubts([line("java", 1)]) == []


def test_what_the_host_took_away_is_told_once_a_row() -> None:
    taken = [line("java", 1, steal_cores=cores) for cores in (0.1, 0.5, 0.4)]
    calm = [line("orbitmq", 1, steal_cores=cores) for cores in (0.1, 0.9, 0.2)]
    (told,) = doubts(taken + calm)
    assert told == "sync, 16 threads, 128 B, java: the host took 0.40 cores away, up to 0.50, in 3 passes"


def test_quiet_passes_count_where_there_are_some_of_both() -> None:
    passes = [(100, True), (300, True), (900, False)]
    ours = [line("orbitmq", rate, quiet=quiet) for rate, quiet in passes]
    java = [line("java", rate, quiet=quiet) for rate, quiet in passes]
    (row,) = rows(ours + java)
    assert (row.msg_s.ours, row.msg_s.java) == (200, 200)
    assert doubts(ours + java) == ["sync, 16 threads, 128 B: 4 of 6 passes were quiet and count"]


def test_all_passes_count_where_too_few_were_quiet_for_one_of_the_brokers() -> None:
    ours = [line("orbitmq", rate, quiet=True) for rate in (100, 300, 900)]
    java = [line("java", rate, quiet=rate == 100) for rate in (100, 300, 900)]
    (row,) = rows(ours + java)
    assert (row.msg_s.ours, row.msg_s.java) == (300, 300)
    assert doubts(ours + java) == []


def test_a_pair_is_a_row_of_its_own_with_the_cpu_of_both_together_and_apart() -> None:
    pair = {"role": "SYNC_MASTER", "slave_cores": 0.1}
    lines = [line("orbitmq", 1000, **pair), line("java", 1000, **pair, slave_behind_bytes=5 << 20)]
    alone, both = rows([line("orbitmq", 1000), *lines])
    assert (alone.name, both.name) == ("sync, 16 threads", "sync, 16 threads, SYNC_MASTER with slave")
    assert (alone.cpu_us.ours, both.cpu_us.ours) == (pytest.approx(500), pytest.approx(600))
    assert (both.msg_s.verdict, both.cpu_us.verdict) == ("1.00", "1.00")
    apart = "| sync, 16 threads, SYNC_MASTER with slave | 128 | 500.0 | 500.0 | 1.00 | 100.0 | 100.0 | 1.00 |"
    assert apart in markdown(lines, "here")
    assert "apart" not in markdown([line("orbitmq", 1000)], "here")
    (behind,) = doubts(lines)
    assert "java" in behind
    assert "5,242,880 bytes behind" in behind


def test_a_pair_has_a_life_of_its_own_for_each_role() -> None:
    lives = plan.lives(("sync", "pair-sync", "pair-async"), (128,), plan.QUICK)
    assert [life.name for life in lives] == [
        "ASYNC_FLUSH",
        "ASYNC_FLUSH-ASYNC_MASTER",
        "ASYNC_FLUSH-SYNC_MASTER",
    ]
    assert lives[0].runs[0][:2] == ["--scenario", "sync"]
    assert lives[2].runs[0][:2] == ["--scenario", "sync,async"]


def test_the_section_of_a_document_is_replaced_and_the_rest_kept() -> None:
    document = f"# Speed\n{BEGIN}\nold\n{END}\ntail\n"
    assert with_section(document, "new\n") == f"# Speed\n{BEGIN}\nnew\n{END}\ntail\n"
    with pytest.raises(ValueError, match="no section"):
        with_section("# Speed", "new")


def test_each_scenario_reaches_the_client_under_one_flush_mode() -> None:
    throughput, latency = plan.client_runs(plan.ASYNC, plan.SCENARIOS, plan.SIZES, plan.FULL)
    assert throughput[:2] == ["--scenario", "sync,async,batch,push,pull,orderly,tag,sql,delayed,tx"]
    assert latency[:2] == ["--scenario", "latency"]
    (sync,) = plan.client_runs(plan.SYNC, plan.SCENARIOS, plan.SIZES, plan.FULL)
    assert sync[:2] == ["--scenario", "sync"]
    assert plan.client_runs(plan.SYNC, ("push",), plan.SIZES, plan.FULL) == []
