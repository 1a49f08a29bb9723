from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.broker.topics import TopicConfig, TopicTable
from orbitmq.config import BrokerConfig

NOW = 1_700_000_000_000


def config(**settings: object) -> BrokerConfig:
    made = BrokerConfig()
    made.broker_name, made.broker_cluster_name = "broker-a", "LabCluster"
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def test_system_topics_exist_at_start_without_a_new_version() -> None:
    table = TopicTable(config())
    shapes = {t.name: (t.read_queue_nums, t.write_queue_nums, t.perm) for t in table.table.values()}
    assert shapes == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "LabCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "LabCluster_REPLY_TOPIC": (1, 1, 6),
    }
    assert table.data_version.counter == 0
    assert table.changes == 0


def test_system_topics_follow_the_configuration() -> None:
    table = TopicTable(
        config(auto_create_topic_enable=False, trace_topic_enable=True, cluster_topic_enable=False)
    )
    assert table.get("TBW102") is None
    assert table.get("RMQ_SYS_TRACE_TOPIC") is not None
    cluster = table.get("LabCluster")
    assert cluster is not None
    assert (cluster.readable, cluster.writable) == (False, False)
    assert table.is_system("LabCluster")
    assert table.is_system("rmq_sys_anything")
    assert not table.is_system("orders")


def test_first_send_makes_the_topic_after_its_default_topic() -> None:
    table = TopicTable(config())
    told: list[tuple[str, object]] = []
    table.on_change.append(lambda name, topic: told.append((name, topic)))
    made = table.create_on_send("orders", "TBW102", 4, NOW)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (4, 4, 6)
    assert table.data_version.to_json() == {"counter": 1, "timestamp": NOW}
    assert told == [("orders", made)]
    assert table.create_on_send("orders", "TBW102", 2, NOW + 1) is made
    assert table.data_version.counter == 1


@pytest.mark.parametrize(("asked", "got"), [(100, 8), (0, 1), (-3, 1), (5, 5)])
def test_queues_of_a_made_topic_are_bounded(asked: int, got: int) -> None:
    made = TopicTable(config()).create_on_send("orders", "TBW102", asked, NOW)
    assert made is not None
    assert made.queue_count == got


def test_first_send_makes_nothing_without_an_inheritable_default_topic() -> None:
    table = TopicTable(config())
    assert table.create_on_send("orders", "NoSuchTopic", 4, NOW) is None
    assert table.create_on_send("orders", "BenchmarkTest", 4, NOW) is None
    assert table.get("orders") is None


def test_switching_auto_creation_off_works_although_the_file_still_has_the_default_topic() -> None:
    settings = config()
    table = TopicTable(settings)
    settings.auto_create_topic_enable = False
    assert table.create_on_send("orders", "TBW102", 4, NOW) is None


def test_retry_and_dead_topics_are_made_once() -> None:
    table = TopicTable(config())
    retry = table.create_retry_topic("billing", 1, NOW, unit_mode=True)
    assert (retry.name, retry.queue_count, retry.perm, retry.topic_sys_flag) == ("%RETRY%billing", 1, 6, 2)
    assert table.create_retry_topic("billing", 3, NOW) is retry
    assert table.create_dead_topic("billing", NOW).name == "%DLQ%billing"


def test_deletion_is_told_and_versioned() -> None:
    table = TopicTable(config())
    table.put(TopicConfig("orders"), NOW)
    told: list[tuple[str, object]] = []
    table.on_change.append(lambda name, topic: told.append((name, topic)))
    assert table.delete("orders", NOW + 5)
    assert not table.delete("orders", NOW + 6)
    assert told == [("orders", None)]
    assert table.data_version.to_json() == {"counter": 2, "timestamp": NOW + 5}


def test_order_topics_of_the_name_server_are_taken_over() -> None:
    table = TopicTable(config())
    table.put(TopicConfig("orders"), NOW)
    table.set_order_topics({"orders", "elsewhere"}, NOW + 1)
    orders = table.get("orders")
    assert orders is not None
    assert orders.order
    assert table.data_version.counter == 2
    table.set_order_topics({"orders"}, NOW + 2)
    assert table.data_version.counter == 2


def test_a_restricted_broker_registers_restricted_topics() -> None:
    table = TopicTable(config())
    table.put(TopicConfig("orders"), NOW)
    wrapper = table.wrapper(["orders", "unknown"], broker_perm=4)
    assert wrapper["topicConfigTable"] == {"orders": {**TopicConfig("orders").to_json(), "perm": 4}}
    full = table.wrapper(["orders"])
    assert full["topicConfigTable"] == {"orders": TopicConfig("orders").to_json()}


def test_a_slave_becomes_exactly_its_master() -> None:
    master, slave = TopicTable(config()), TopicTable(config())
    master.put(TopicConfig("orders", 4, 4), NOW)
    slave.put(TopicConfig("gone"), NOW)
    told: list[str] = []
    slave.on_change.append(lambda name, topic: told.append(f"{name}{'' if topic else ' gone'}"))
    slave.replace(master.to_json())
    assert slave.to_json() == master.to_json()
    assert sorted(told) == ["gone gone", "orders"]
    assert slave.changes == 2


def test_loading_keeps_the_files_settings_and_adds_missing_system_topics() -> None:
    table = TopicTable(config())
    default = TopicConfig("TBW102", 2, 2, 7).to_json()
    table.from_json({"dataVersion": {"counter": 9, "timestamp": 5}, "topicConfigTable": {"TBW102": default}})
    loaded = table.get("TBW102")
    assert loaded is not None
    assert loaded.write_queue_nums == 2
    assert table.get("SELF_TEST_TOPIC") is not None
    assert table.data_version.counter == 9


@pytest.mark.parametrize("damaged", [[], {"topicConfigTable": [1]}, None])
def test_a_damaged_table_is_refused_and_nothing_changes(damaged: object) -> None:
    table = TopicTable(config())
    before = table.to_json()
    with pytest.raises(ValueError, match="JSON object"):
        table.from_json(damaged)
    assert table.to_json() == before


topics = st.builds(
    TopicConfig,
    st.text(min_size=1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 15),
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    topic_sys_flag=st.integers(0, 3),
    order=st.booleans(),
    attributes=st.dictionaries(st.text(), st.text()),
)


@given(topics)
def test_a_topic_survives_its_json_form(topic: TopicConfig) -> None:
    assert TopicConfig.from_json(topic.to_json()) == topic
    assert list(topic.to_json()) == sorted(topic.to_json())
