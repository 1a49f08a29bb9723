from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq import config_keys
from orbitmq.config import (
    BrokerConfig,
    BrokerRole,
    ConfigError,
    FlushDiskType,
    Mismatch,
    NamesrvConfig,
    local_ip,
    parse_assignments,
    read_properties,
    save_changes,
    server_configs,
    warnings_for,
)
from orbitmq.config_model import keys_of


def test_defaults_are_those_of_the_java_broker() -> None:
    properties = BrokerConfig().to_properties()
    assert {
        "brokerClusterName": "DefaultCluster",
        "brokerId": "0",
        "brokerRole": "ASYNC_MASTER",
        "listenPort": "10911",
        "mappedFileSizeCommitLog": "1073741824",
        "mappedFileSizeConsumeQueue": "6000000",
        "maxHashSlotNum": "5000000",
        "maxIndexNum": "20000000",
        "maxMessageSize": "4194304",
        "fileReservedTime": "72",
        "deleteWhen": "04",
        "autoCreateTopicEnable": "true",
        "enablePropertyFilter": "false",
        "transactionCheckInterval": "60000",
        "maxTransferCountOnMessageInMemory": "32",
        "serverChannelMaxIdleTimeSeconds": "120",
    }.items() <= properties.items()


def test_an_acknowledgement_means_on_disk_unless_configured_otherwise() -> None:
    assert BrokerConfig().sync_flush
    assert BrokerConfig().flush_disk_type == "SYNC_FLUSH"


@pytest.mark.parametrize("table", [BrokerConfig, NamesrvConfig])
def test_keys_and_attributes_are_the_same_words(table: type) -> None:
    spelled_otherwise = {"serverChannelMaxIdleTimeSeconds"}
    for key in keys_of(table):
        if key.name not in spelled_otherwise:
            assert key.attribute.replace("_", "") == key.name.lower()
        assert key.doc


def test_no_key_is_both_known_and_called_inert() -> None:
    known = {key.name for table in (BrokerConfig, NamesrvConfig) for key in keys_of(table)}
    assert not known & config_keys.INERT_ELSEWHERE


@pytest.mark.parametrize("table", [BrokerConfig, NamesrvConfig])
def test_every_setting_survives_being_written_and_read(table: type[BrokerConfig]) -> None:
    config, unknown = table.from_properties(table().to_properties())
    assert unknown == []
    assert config == table()


def test_values_are_typed() -> None:
    config, _ = BrokerConfig.from_properties(
        {
            "flushDiskType": "async_flush",
            "brokerRole": "SYNC_MASTER",
            "aclEnable": "TRUE",
            "brokerId": " 2 ",
            "subscriptionMismatch": "refuse",
            "brokerIP1": "10.0.0.7",
        }
    )
    assert config.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert config.broker_role is BrokerRole.SYNC_MASTER
    assert config.acl_enable is True
    assert config.broker_id == 2
    assert config.subscription_mismatch is Mismatch.REFUSE
    assert config.broker_ip1 == "10.0.0.7"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("flushDiskType", "FOO", "flushDiskType=FOO: expected SYNC_FLUSH or ASYNC_FLUSH"),
        ("brokerRole", "BOSS", "brokerRole=BOSS: expected ASYNC_MASTER, SYNC_MASTER or SLAVE"),
        ("listenPort", "70000", "listenPort=70000: expected a whole number, 0 to 65535"),
        ("maxMessageSize", "0", "maxMessageSize=0: expected a whole number, 1 or more"),
        ("brokerId", "1.5", "brokerId=1.5: expected a whole number"),
        ("brokerId", "", "brokerId=: expected a whole number"),
        ("brokerId", "٣", "brokerId=٣: expected a whole number"),
        ("aclEnable", "yes", "aclEnable=yes: expected true or false"),
        ("deleteWhen", "04;24", "deleteWhen=04;24: expected hours of the day"),
        ("messageDelayLevel", "1s 5x", "messageDelayLevel=1s 5x: expected delays such as"),
        ("messageDelayLevel", "", "messageDelayLevel=: expected delays such as"),
        ("mappedFileSizeConsumeQueue", "30", "mappedFileSizeConsumeQueue=30: expected a multiple of 20"),
    ],
)
def test_a_wrong_value_is_refused_with_key_value_and_expectation(key: str, value: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig.from_properties({key: value})
    assert str(refused.value).startswith(expected)


def test_an_update_with_a_wrong_value_changes_nothing() -> None:
    config = BrokerConfig()
    with pytest.raises(ConfigError):
        config.update({"brokerId": "3", "aclEnable": "perhaps"})
    assert config.broker_id == 0


def test_an_update_returns_the_keys_it_does_not_know() -> None:
    config = BrokerConfig()
    assert config.update({"brokerId": "3", "colour": "red"}) == ["colour"]
    assert config.broker_id == 3


def test_warnings_name_the_key_and_what_was_probably_meant() -> None:
    assert warnings_for(["brokerNmae"], BrokerConfig) == [
        "unknown setting brokerNmae is ignored; did you mean brokerName?"
    ]
    (far_off,) = warnings_for(["zzz"], BrokerConfig)
    assert far_off.startswith("unknown setting zzz is ignored; see ")


def test_a_java_setting_without_effect_is_said_to_have_none() -> None:
    pools, tls = warnings_for(["sendMessageThreadPoolNums", "useTLS"], BrokerConfig)
    assert pools.startswith("setting sendMessageThreadPoolNums has no effect here: ")
    assert tls.startswith("setting useTLS has no effect here: ")
    assert warnings_for(["brokerName"], BrokerConfig) == []


def test_both_spellings_of_the_idle_limit() -> None:
    for name in ("serverChannelMaxIdleTimeSeconds", "connectionIdleSeconds"):
        config, unknown = BrokerConfig.from_properties({name: "7"})
        assert (config.connection_idle_seconds, unknown) == (7, [])
    assert "connectionIdleSeconds" not in BrokerConfig().to_properties()


def test_delay_levels_and_hours() -> None:
    config = BrokerConfig()
    levels = config.delay_levels_ms()
    assert (len(levels), levels[0], levels[4], levels[17]) == (18, 1000, 60_000, 7_200_000)
    config.update({"messageDelayLevel": "2s 1d", "deleteWhen": "04;16"})
    assert config.delay_levels_ms() == (2000, 86_400_000)
    assert config.delete_hours() == {4, 16}


def test_blanks_are_filled_from_the_host_but_never_overwrite() -> None:
    config, _ = BrokerConfig.from_properties({"listenPort": "20911", "storePathRootDir": "shop"})
    config.fill_blanks(host_name="alpha", ip="10.1.2.3")
    assert (config.broker_name, config.broker_ip1, config.broker_ip2) == ("alpha", "10.1.2.3", "10.1.2.3")
    assert (config.ha_listen_port, config.store_path_commit_log) == (20912, "shop/commitlog")

    given_all, _ = BrokerConfig.from_properties(
        {"brokerName": "b", "brokerIP1": "1.1.1.1", "brokerIP2": "2.2.2.2", "haListenPort": "5"}
    )
    before = given_all.to_properties()
    given_all.fill_blanks(host_name="alpha", ip="10.1.2.3")
    after = given_all.to_properties()
    assert {k for k in before if before[k] != after[k]} <= {"storePathRootDir", "storePathCommitLog"}


def test_name_server_addresses_are_split() -> None:
    config, _ = BrokerConfig.from_properties({"namesrvAddr": "a:9876; b:9877;"})
    assert config.namesrv_addresses == ["a:9876", "b:9877"]


def test_one_file_serves_broker_and_name_server_of_one_process() -> None:
    broker, namesrv, unknown = server_configs(
        {"listenPort": "20911", "orderMessageEnable": "true", "aclEnable": "true", "colour": "red"}
    )
    assert (broker.listen_port, namesrv.listen_port) == (20911, 9876)
    assert (broker.acl_enable, namesrv.order_message_enable) == (True, True)
    assert unknown == ["colour"]


def test_assignments_of_a_command_line() -> None:
    assert parse_assignments(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_assignments(["brokerName"])


def test_a_file_is_read_and_its_faults_are_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    with pytest.raises(ConfigError, match=r"broker\.conf cannot be read: No such file"):
        read_properties(path)
    path.write_bytes(b"a=\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        read_properties(path)
    path.write_text("ok=1\nbad=\\u12\n")
    with pytest.raises(ConfigError, match=r"line 2: .*four hexadecimal digits"):
        read_properties(path)
    path.write_text("# a broker\nbrokerName = broker-a\n")
    assert read_properties(path) == {"brokerName": "broker-a"}


def test_saved_changes_keep_the_operators_file(tmp_path: Path) -> None:
    path = tmp_path / "conf" / "broker.conf"
    save_changes(path, {"brokerId": "1"})
    assert path.read_text() == "brokerId=1\n"
    path.write_text("# mine\nbrokerId = 1\n\nbrokerName=b\n")
    save_changes(path, {"brokerId": "2", "aclEnable": "true"})
    assert path.read_text() == "# mine\nbrokerId=2\n\nbrokerName=b\naclEnable=true\n"
    assert [p.name for p in path.parent.iterdir()] == ["broker.conf"]


def test_there_is_always_a_local_address() -> None:
    assert local_ip().count(".") == 3


@given(st.integers(min_value=1, max_value=2**40))
def test_any_allowed_number_is_taken_as_it_is(number: int) -> None:
    config, _ = BrokerConfig.from_properties({"maxMessageSize": str(number)})
    assert config.max_message_size == number
