from __future__ import annotations

import pytest

from orbitmq.wire import topics


def test_derived_topics() -> None:
    assert topics.retry_topic("cg") == "%RETRY%cg"
    assert topics.dead_topic("cg") == "%DLQ%cg"
    assert topics.reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_anything", "BenchmarkTest"])
def test_system_topics(name: str) -> None:
    assert topics.is_system_topic(name)


@pytest.mark.parametrize("name", ["TopicA", "%RETRY%cg", "RMQ_SYS_other"])
def test_user_topics(name: str) -> None:
    assert not topics.is_system_topic(name)


def test_clients_may_not_forge_internal_messages() -> None:
    assert topics.is_send_forbidden(topics.HALF_TOPIC)
    assert topics.is_send_forbidden(topics.SCHEDULE_TOPIC)
    assert not topics.is_send_forbidden(topics.TRACE_TOPIC)
    assert not topics.is_send_forbidden(topics.DEFAULT_TOPIC)


def test_system_groups() -> None:
    assert topics.is_system_group("CID_RMQ_SYS_TRANS")
    assert topics.is_system_group("TOOLS_CONSUMER")
    assert not topics.is_system_group("CID_orders")


@pytest.mark.parametrize("name", ["TopicA", "%RETRY%ns%cg", "a|b", "with-dash_and_under", "x" * 127])
def test_good_topics(name: str) -> None:
    assert topics.validate_topic(name) is None


@pytest.mark.parametrize("name", ["", "  ", "a b", "a.b", "../etc", "a/b", "тема", "a\n", "x" * 128])
def test_bad_topics(name: str) -> None:
    reason = topics.validate_topic(name)
    assert reason is not None
    assert reason.startswith("The specified topic")


def test_groups_may_be_longer_than_topics() -> None:
    assert topics.validate_group("g" * 255) is None
    assert topics.validate_group("g" * 256) is not None
    assert topics.validate_group("") is not None
    assert topics.validate_group("a b") is not None
