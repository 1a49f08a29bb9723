from __future__ import annotations

import time

import pytest

from orbitmq.broker.stats import BrokerStats
from orbitmq.broker.stats_runtime import local_day, uptime_text

START = 1_700_000_000_000


def run(stats: BrokerStats, seconds: int, start_ms: int = START) -> int:
    """Lets time pass with one send of 2 messages and one pull of 3 in each second."""
    now = start_ms
    for _ in range(seconds):
        now += 1000
        stats.put("orders", 2, 200)
        stats.get("orders", "billing", 3, 300, latency_ms=4)
        stats.miss()
        stats.tick(now)
    return now


def rate(stats: BrokerStats, name: str, key: str, window: str = "statsMinute") -> dict[str, float]:
    data = stats.view(name, key)
    assert data is not None
    found = data[window]
    assert isinstance(found, dict)
    return found


def test_rates_per_topic_and_group() -> None:
    stats = BrokerStats(START, "C")
    run(stats, 120)
    assert rate(stats, "TOPIC_PUT_NUMS", "orders") == {"sum": 120, "tps": 2.0, "avgpt": 2.0}
    assert rate(stats, "TOPIC_PUT_SIZE", "orders")["tps"] == 200.0
    assert rate(stats, "GROUP_GET_NUMS", "orders@billing") == {"sum": 180, "tps": 3.0, "avgpt": 3.0}
    assert rate(stats, "GROUP_GET_SIZE", "orders@billing")["sum"] == 18_000
    assert rate(stats, "GROUP_GET_LATENCY", "orders@billing")["avgpt"] == 4.0
    assert rate(stats, "GROUP_GET_LATENCY", "0@orders@billing")["avgpt"] == 4.0
    assert rate(stats, "BROKER_PUT_NUMS", "C")["sum"] == 120
    assert rate(stats, "BROKER_GET_NUMS", "C")["sum"] == 180
    assert stats.tps("GROUP_GET_NUMS", "orders@billing") == 3.0


def test_hours_and_days() -> None:
    stats = BrokerStats(START, "C")
    run(stats, 2 * 3600)
    assert rate(stats, "TOPIC_PUT_NUMS", "orders", "statsHour")["sum"] == 7200
    assert rate(stats, "TOPIC_PUT_NUMS", "orders", "statsDay")["sum"] == 14_400
    assert rate(stats, "TOPIC_PUT_NUMS", "orders", "statsDay")["tps"] == pytest.approx(2.0)


def test_messages_sent_back_are_counted() -> None:
    stats = BrokerStats(START, "C")
    stats.send_back("orders", "billing", 3)
    stats.tick(START + 10_000)
    assert rate(stats, "SNDBCK_PUT_NUMS", "orders@billing")["sum"] == 3


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "idle"),
        ("GROUP_GET_NUMS", "orders"),
        ("GROUP_GET_NUMS", ""),
        ("BROKER_PUT_NUMS", "other"),
        ("NO_SUCH_STATS", "orders"),
        ("NO_SUCH_STATS", "orders@billing"),
    ],
)
def test_what_was_never_counted_does_not_exist(name: str, key: str) -> None:
    stats = BrokerStats(START, "C")
    run(stats, 20)
    assert stats.view(name, key) is None
    assert stats.tps(name, key) == 0.0


def test_deleted_topics_and_groups_are_forgotten() -> None:
    stats = BrokerStats(START, "C")
    run(stats, 20)
    stats.send_back("orders", "billing")
    stats.forget_group("billing")
    assert stats.view("GROUP_GET_NUMS", "orders@billing") is None
    assert stats.view("SNDBCK_PUT_NUMS", "orders@billing") is None
    stats.forget_topic("orders")
    assert stats.view("TOPIC_PUT_NUMS", "orders") is None
    assert (stats.put_total, stats.get_total) == (40, 60)


def test_topics_without_traffic_for_a_day_are_forgotten() -> None:
    stats = BrokerStats(START, "C")
    now = run(stats, 20)
    for hour in range(30):
        stats.tick(now + hour * 3_600_000)
    assert list(stats.topic_totals()) == []
    assert list(stats.group_totals()) == []
    assert stats.put_total == 40


def test_runtime_rates_are_three_numbers_and_missing_ones_are_blank() -> None:
    stats = BrokerStats(START, "C")
    assert stats.runtime(START)["putTps"] == "  "
    now = run(stats, 11)
    assert stats.runtime(now)["putTps"] == "2.0  "
    now = run(stats, 50, now)
    assert stats.runtime(now)["putTps"] == "2.0 2.0 "
    now = run(stats, 600, now)
    figures = stats.runtime(now)
    assert figures["putTps"] == "2.0 2.0 2.0"
    assert figures["getFoundTps"] == "1.0 1.0 1.0"
    assert figures["getMissTps"] == "1.0 1.0 1.0"
    assert figures["getTotalTps"] == "2.0 2.0 2.0"
    assert figures["getTransferedTps"] == figures["getTransferredTps"] == "3.0 3.0 3.0"
    assert figures["runtime"] == "[ 0 days, 0 hours, 11 minutes, 1 seconds ]"
    assert figures["putMessageAverageSize"] == "100.0"


def test_totals_of_today_and_yesterday() -> None:
    stats = BrokerStats(START, "C")
    now = run(stats, 10)
    now = run(stats, 10, now + 86_400_000)
    now = run(stats, 10, now + 86_400_000)
    figures = stats.runtime(now)
    # The first tick after midnight already holds that second's two messages.
    assert figures["msgPutTotalYesterdayMorning"] == "22"
    assert figures["msgPutTotalTodayMorning"] == "42"
    assert figures["msgPutTotalTodayNow"] == "60"
    assert figures["msgGetTotalTodayNow"] == "90"


def test_append_times_fall_into_classes() -> None:
    stats = BrokerStats(START, "C")
    for ms in (0, 0, 1, 10, 11, 999, 1000, 1001, 20_000):
        stats.put_time(ms)
    stats.get_time(7)
    figures = stats.runtime(START)
    classes = dict(item.rsplit(":", 1) for item in figures["putMessageDistributeTime"].split(" "))
    assert {k: v for k, v in classes.items() if v != "0"} == {
        "[<=0ms]": "2",
        "[0~10ms]": "2",
        "[10~50ms]": "1",
        "[500ms~1s]": "2",
        "[1~2s]": "1",
        "[10s~]": "1",
    }
    assert figures["putMessageEntireTimeMax"] == "20000"
    assert figures["getMessageEntireTimeMax"] == "7"
    assert figures["putLatency99"] == "20000.0"


def test_counting_is_cheap_enough_for_every_request() -> None:
    stats = BrokerStats(START, "C")
    began = time.process_time()
    for _ in range(20_000):
        stats.put("orders", 1, 100)
    assert time.process_time() - began < 0.5


def test_days_and_uptimes() -> None:
    assert local_day(START) != local_day(START + 86_400_000)
    assert uptime_text(((26 * 60 + 3) * 60 + 4) * 1000) == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
