"""What a name server keeps on disk: key values and its own configuration."""

from __future__ import annotations

from pathlib import Path

from orbitmq.config import load_properties
from orbitmq.wire.codes import RequestCode, ResponseCode
from tests.support.namesrv_peer import make_config, run, served


def test_key_values_survive_and_order_routes(tmp_path: Path) -> None:
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA"}

    async def first() -> None:
        async with served(make_config(tmp_path)) as (_, peer):
            missing = await peer.ask(RequestCode.GET_KV_CONFIG, **order)
            assert missing.code == ResponseCode.QUERY_NOT_FOUND
            none = await peer.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
            assert none.code == ResponseCode.QUERY_NOT_FOUND
            await peer.ok(RequestCode.PUT_KV_CONFIG, **order, value="broker-a:4")

    async def second() -> None:
        config = make_config(tmp_path)
        async with served(config) as (_, peer):
            assert (await peer.ok(RequestCode.GET_KV_CONFIG, **order)).ext == {"value": "broker-a:4"}
            table = b'{"table":{"TopicA":"broker-a:4"}}'
            listed = await peer.ok(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="ORDER_TOPIC_CONFIG")
            assert listed.body == table
            assert (await peer.register()).body == table
            assert "orderTopicConf" not in await peer.route("TopicA")
            await peer.ok(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")
            assert (await peer.route("TopicA"))["orderTopicConf"] == "broker-a:4"
            await peer.ok(RequestCode.PUT_KV_CONFIG, **order, value="broker-a:8")
            assert (await peer.route("TopicA"))["orderTopicConf"] == "broker-a:8"
            await peer.ok(RequestCode.DELETE_KV_CONFIG, **order)
            assert "orderTopicConf" not in await peer.route("TopicA")

    run(first)
    run(second)


def test_an_unwritable_key_value_file_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        config = make_config(tmp_path)
        (tmp_path / "file").write_text("")
        config.update({"kvConfigPath": str(tmp_path / "file" / "kv.json")})
        async with served(config) as (_, peer):
            reply = await peer.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "cannot be written" in str(reply.remark)
            assert (await peer.ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k")).code == 22

    run(main)


def test_configuration_is_read_changed_and_saved(tmp_path: Path) -> None:
    async def main() -> None:
        config = make_config(tmp_path)
        async with served(config) as (_, peer):
            shown = load_properties((await peer.ok(RequestCode.GET_NAMESRV_CONFIG)).body.decode())
            assert shown["orderMessageEnable"] == "false"
            await peer.ok(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\nnoSuchKey=1\n")
            assert config.order_message_enable is True
            saved = load_properties((tmp_path / "namesrv.properties").read_text())
            assert saved == {"orderMessageEnable": "true"}
            for body, code in (
                (b"kvConfigPath=/tmp/elsewhere\n", ResponseCode.NO_PERMISSION),
                (b"configStorePath=/tmp/elsewhere\n", ResponseCode.NO_PERMISSION),
                (b"orderMessageEnable=perhaps\n", ResponseCode.SYSTEM_ERROR),
                (b"x=\\u12\n", ResponseCode.SYSTEM_ERROR),
                (b"\xff\xfe", ResponseCode.SYSTEM_ERROR),
            ):
                reply = await peer.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body)
                assert reply.code == code
                assert reply.remark
            assert config.order_message_enable is True

    run(main)
