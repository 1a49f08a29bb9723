"""Which topics an option means."""

from __future__ import annotations

from orbitmq.spark.options import parse_read_options
from orbitmq.spark.subscription import SINK_TOPIC, is_subscribed, matching


def test_a_pattern_means_no_topic_of_the_system_nor_of_the_sink() -> None:
    topics = ["orders", "%RETRY%billing", "TBW102", "rmq_sys_wheel_timer", SINK_TOPIC, "old-orders"]
    assert matching(topics, ".*") == ["orders", "old-orders"]
    assert matching(topics, "%RETRY%.*") == ["%RETRY%billing"]
    assert matching(topics, "orders") == ["orders"]


def test_each_way_to_say_what_is_read() -> None:
    for given in ({"subscribe": "orders,old"}, {"subscribePattern": "o.*"}, {"assign": '{"orders":[0]}'}):
        options = parse_read_options(given, streaming=True)
        assert is_subscribed(options, "orders"), given
        assert not is_subscribed(options, "payments"), given
