from __future__ import annotations

from pathlib import Path

import pytest

from orbitmq.broker.admin.settings import READ_ONLY
from orbitmq.config import BrokerConfig, load_properties
from orbitmq.wire.codes import RequestCode as R
from orbitmq.wire.codes import ResponseCode
from tests.broker.admin.world import World

KEY = "maxTransferCountOnMessageInMemory"
# A tool that does not find one of these fails as a whole (mqadmin exportConfigs).
EXPORTED = """
brokerClusterName brokerId brokerName brokerRole fileReservedTime filterServerNums flushDiskType
maxMessageSize
messageDelayLevel msgTraceTopicName slaveReadEnable traceOn traceTopicEnable useTLS autoCreateTopicEnable
autoCreateSubscriptionGroup
"""


def read(world: World) -> dict[str, str]:
    answer = world.ok(R.GET_BROKER_CONFIG)
    assert answer.ext["version"].startswith('{"counter":')
    return load_properties(answer.body.decode())


def test_settings_are_read_changed_and_restored(world: World) -> None:
    old = read(world)
    assert {*EXPORTED.split(), "listenPort", "mappedFileSizeCommitLog", KEY} <= old.keys()
    world.ok(R.UPDATE_BROKER_CONFIG, f"{KEY}=33\n".encode())
    assert read(world)[KEY] == "33"
    assert world.config.max_transfer_count_on_message_in_memory == 33
    assert world.configured == 1
    assert world.config_version.counter == 1
    world.ok(R.UPDATE_BROKER_CONFIG, f"{KEY}={old[KEY]}\n".encode())
    assert read(world) == old


@pytest.mark.parametrize(
    "key", ["brokerName", "listenPort", "storePathRootDir", "flushDiskType", "aclEnable", "brokerConfigPath"]
)
def test_what_was_settled_at_the_start_cannot_be_changed(world: World, key: str) -> None:
    code, remark = world.refusal(R.UPDATE_BROKER_CONFIG, f"{KEY}=33\n{key}=1\n".encode())
    assert code == ResponseCode.NO_PERMISSION
    assert key in remark
    assert world.config.max_transfer_count_on_message_in_memory == 32


def test_a_tool_may_send_back_all_it_read(world: World) -> None:
    answer = world.ok(R.GET_BROKER_CONFIG)
    assert world.ok(R.UPDATE_BROKER_CONFIG, answer.body).remark is None
    assert world.config_version.counter == 0


@pytest.mark.parametrize(
    ("body", "part"),
    [(f"{KEY}=many".encode(), "many"), (b"\xff\xfe", "properties"), (b"a=\\u12", "properties")],
)
def test_a_wrong_value_changes_nothing(world: World, body: bytes, part: str) -> None:
    before = world.config.to_properties()
    code, remark = world.refusal(R.UPDATE_BROKER_CONFIG, b"brokerPermission=4\n" + body)
    assert code == ResponseCode.SYSTEM_ERROR
    assert part in remark
    assert "nothing was changed" in remark
    assert world.config.to_properties() == before
    assert world.configured == 0


def test_unknown_settings_are_ignored_and_named(world: World) -> None:
    answer = world.ok(R.UPDATE_BROKER_CONFIG, f"noSuchThing=1\n{KEY}=34".encode())
    assert "noSuchThing" in str(answer.remark)
    assert world.config.max_transfer_count_on_message_in_memory == 34


def test_changes_reach_the_configuration_file(world: World, tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"# mine\nbrokerName=b1\n{KEY}=32\n")
    world.config_path = str(file)
    world.ok(R.UPDATE_BROKER_CONFIG, f"{KEY}=40\nnoSuchThing=1".encode())
    assert file.read_text() == f"# mine\nbrokerName=b1\n{KEY}=40\n"


def test_a_file_that_cannot_be_written_is_told(world: World, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    world.config_path = str(tmp_path / "plain" / "broker.conf")
    code, remark = world.refusal(R.UPDATE_BROKER_CONFIG, f"{KEY}=40".encode())
    assert code == ResponseCode.SYSTEM_ERROR
    assert "lost at the next start" in remark
    assert world.config.max_transfer_count_on_message_in_memory == 40


def test_a_new_permission_is_told_to_the_name_servers(world: World) -> None:
    before = world.topics.data_version.counter
    world.ok(R.UPDATE_BROKER_CONFIG, b"brokerPermission=4")
    assert world.registered == [None]
    assert world.topics.data_version.counter == before + 1


def test_every_read_only_name_is_spelt_like_a_setting() -> None:
    # The three others are the Java broker's own list.
    assert READ_ONLY - BrokerConfig().to_properties().keys() == {
        "brokerConfigPath",
        "rocketmqHome",
        "configBlackList",
    }
