from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orbitmq.broker.groups import GroupConfig, GroupTable
from orbitmq.config import BrokerConfig

NOW = 1_700_000_000_000


def test_built_in_groups_exist_at_start() -> None:
    table = GroupTable(BrokerConfig())
    assert set(table.names()) == {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
    assert all(table.is_builtin(name) for name in table.names())


def test_a_group_is_made_when_first_used() -> None:
    table = GroupTable(BrokerConfig())
    assert table.get("billing") is None
    made = table.find("billing", NOW)
    assert made is not None
    assert (made.retry_max_times, made.retry_queue_nums, made.consume_enable) == (16, 1, True)
    assert table.find("billing", NOW + 1) is made
    assert table.data_version.to_json() == {"counter": 1, "timestamp": NOW}


def test_without_auto_creation_only_system_groups_appear() -> None:
    config = BrokerConfig()
    config.auto_create_subscription_group = False
    table = GroupTable(config)
    assert table.find("billing", NOW) is None
    assert table.find("CID_RMQ_SYS_TRANS", NOW) is not None


def test_bad_names_are_never_made() -> None:
    table = GroupTable(BrokerConfig())
    assert table.find("no spaces allowed", NOW) is None
    assert table.find("x" * 256, NOW) is None
    assert table.find("", NOW) is None


def test_changes_are_versioned_and_told() -> None:
    table = GroupTable(BrokerConfig())
    told: list[tuple[str, bool]] = []
    table.on_change.append(lambda name, group: told.append((name, group is None)))
    table.put(GroupConfig("billing", consume_enable=False), NOW)
    assert table.delete("billing", NOW + 1)
    assert not table.delete("billing", NOW + 2)
    assert told == [("billing", False), ("billing", True)]
    assert table.changes == 2


def test_settings_of_newer_brokers_are_kept() -> None:
    data = {
        "groupName": "billing",
        "consumeEnable": False,
        "consumeTimeoutMinute": 15,
        "attributes": {"a": "b"},
    }
    group = GroupConfig.from_json(data)
    assert not group.consume_enable
    saved = group.to_json()
    assert saved["consumeTimeoutMinute"] == 15
    assert saved["attributes"] == {"a": "b"}
    assert list(saved) == sorted(saved)


def test_a_slave_becomes_exactly_its_master() -> None:
    master, slave = GroupTable(BrokerConfig()), GroupTable(BrokerConfig())
    master.find("billing", NOW)
    slave.find("gone", NOW)
    slave.replace(master.to_json())
    assert slave.to_json() == master.to_json()


groups = st.builds(
    GroupConfig,
    st.text(min_size=1),
    consume_enable=st.booleans(),
    consume_from_min_enable=st.booleans(),
    consume_broadcast_enable=st.booleans(),
    retry_queue_nums=st.integers(0, 100),
    retry_max_times=st.integers(-1, 1000),
    broker_id=st.integers(0, 10),
    which_broker_when_consume_slowly=st.integers(0, 10),
    notify_consumer_ids_changed_enable=st.booleans(),
)


@given(groups)
def test_a_group_survives_its_json_form(group: GroupConfig) -> None:
    assert GroupConfig.from_json(group.to_json()) == group
