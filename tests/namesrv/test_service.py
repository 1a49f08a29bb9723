from __future__ import annotations

import asyncio
import json
import logging
import time
from pathlib import Path

import pytest

from orbitmq.config import NamesrvConfig
from orbitmq.namesrv.service import NameServer
from orbitmq.net.channel import Channel
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from tests.support.namesrv_peer import Clock, Peer, make_config, run, served, topic_config, wrapper_body


def test_routes_are_written_for_new_and_for_old_clients(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (_, peer):
            assert (await peer.register()).code == 0
            assert (await peer.register(broker_id=1, addr="127.0.0.1:11911")).code == 0
            queues = (
                '"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,'
                '"topicSysFlag":0,"writeQueueNums":4}]}'
            )
            bare = (
                '{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",1:"127.0.0.1:11911"},'
                '"brokerName":"broker-a","cluster":"DefaultCluster"}],' + queues
            )
            strict = bare.replace('{0:"', '{"0":"').replace(',1:"', ',"1":"')
            ask = RequestCode.GET_ROUTEINFO_BY_TOPIC
            for _ in range(2):  # the second answer comes from the kept bytes
                assert (await peer.ok(ask, version=400, topic="TopicA")).body.decode() == bare
                assert (await peer.ok(ask, version=401, topic="TopicA")).body.decode() == strict
                old_but_strict = await peer.ok(
                    ask, version=399, topic="TopicA", acceptStandardJsonOnly="true"
                )
                assert old_but_strict.body.decode() == strict

    run(main)


def test_the_error_for_a_missing_route_names_the_cause(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (_, peer):
            start = "No topic route info in name server for the topic: Nope"
            for topics, counter, cause in (
                (None, 0, "No broker is registered here"),
                (("TopicA",), 1, "auto-creation is off"),
                (("TBW102",), 2, "made by the first send"),
            ):
                if topics is not None:
                    await peer.register(topics=topics, counter=counter)
                reply = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="Nope")
                assert reply.code == ResponseCode.TOPIC_NOT_EXIST
                assert reply.remark is not None
                assert reply.remark.startswith(start)
                assert cause in reply.remark

    run(main)


@pytest.mark.parametrize("compressed", [False, True])
def test_registration_plain_and_compressed(tmp_path: Path, compressed: bool) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (_, peer):
            reply = await peer.register(topics=("A", "B"), compressed=compressed)
            assert (reply.code, reply.ext, reply.body) == (0, {}, b"")
            # Heartbeats with the same version say nothing new, whatever they contain.
            await peer.register(topics=("A", "B", "C"), compressed=compressed)
            topics = await peer.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            assert topics.body == b'{"topicList":["A","B"]}'
            await peer.register(topics=("C",), counter=2, compressed=compressed)
            topics = await peer.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            assert topics.body == b'{"topicList":["A","B","C"]}'
            slave = await peer.register(broker_id=1, addr="127.0.0.1:11911", compressed=compressed)
            assert slave.ext == {"haServerAddr": "127.0.0.1:10912", "masterAddr": "127.0.0.1:10911"}

    run(main)


def test_damaged_registrations_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (server, peer):
            for reply in (
                await peer.register(crc=12345),
                await peer.register(body=b"{]"),
                await peer.register(body=b"\x78\xdanonsense", compressed=True),
                await peer.register(body=wrapper_body(("A",), 1, 0, True)[:-9], compressed=True),
                await peer.ask(RequestCode.REGISTER_BROKER, brokerName="b"),
                await peer.register(body=b"[1]"),
            ):
                assert reply.code == ResponseCode.SYSTEM_ERROR
                assert reply.remark
            assert (await peer.register(crc=12345)).remark is not None
            assert server.routes.broker_count() == 0
            assert (await peer.register(crc=0)).code == 0, "0 means unchecked"

    run(main)


def test_ancient_and_empty_registration_bodies(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (server, peer):
            bare = json.dumps(
                {
                    "dataVersion": {"counter": 1, "timestamp": 5},
                    "topicConfigTable": {"Old": topic_config("Old")},
                }
            ).encode()
            assert (await peer.register(body=bare, version=36)).code == 0
            assert server.routes.topic_list() == ["Old"]
            assert (await peer.register("broker-b", addr="127.0.0.1:12911", body=b"")).code == 0
            assert server.routes.broker_count() == 2

    run(main)


def test_a_closed_connection_evicts_the_broker_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (server, peer):
            broker = await Channel.connect(peer.channel.addr)
            await Peer(broker).register()
            assert (await peer.route("TopicA"))["brokerDatas"]
            await broker.aclose()
            while server.routes.broker_count():
                await asyncio.sleep(0.005)
            reply = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TopicA")
            assert reply.code == ResponseCode.TOPIC_NOT_EXIST

    run(main)


def test_a_silent_broker_is_evicted_and_disconnected(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with served(make_config(tmp_path), clock) as (server, peer):
            broker = await Channel.connect(peer.channel.addr)
            await Peer(broker).register()
            clock.now_ms += 120_000
            server.scan()
            assert server.routes.broker_count() == 1
            clock.now_ms += 1
            server.scan()
            assert server.routes.broker_count() == 0
            await broker.wait_closed()

    run(main)


def test_the_scan_runs_by_itself(tmp_path: Path) -> None:
    class Fast(NamesrvConfig):
        __slots__ = ()
        scan_interval_ms = 10
        broker_timeout_ms = 30

    async def main() -> None:
        config = Fast()
        config.update({"kvConfigPath": str(tmp_path / "kv.json")})
        server = NameServer(config)
        port = await server.start("127.0.0.1", 0)
        channel = await Channel.connect(f"127.0.0.1:{port}")
        await Peer(channel).register()
        await channel.wait_closed()
        assert server.routes.broker_count() == 0
        await server.stop()

    run(main)


def test_unregister(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (server, peer):
            await peer.register()
            await peer.ok(
                RequestCode.UNREGISTER_BROKER,
                brokerName="broker-a",
                brokerAddr="127.0.0.1:10911",
                clusterName="DefaultCluster",
                brokerId="0",
            )
            assert server.routes.topic_list() == []

    run(main)


def test_query_data_version(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (_, peer):

            async def query(counter: int) -> tuple[str, bytes]:
                reply = await peer.ok(
                    RequestCode.QUERY_DATA_VERSION,
                    b'{"counter":%d,"timestamp":1700000000000}' % counter,
                    brokerName="broker-a",
                    brokerAddr="127.0.0.1:10911",
                    clusterName="DefaultCluster",
                    brokerId="0",
                )
                return reply.ext["changed"], reply.body

            assert await query(1) == ("true", b"")
            await peer.register()
            assert await query(1) == ("false", b'{"counter":1,"timestamp":1700000000000}')
            assert await query(2) == ("true", b'{"counter":1,"timestamp":1700000000000}')

    run(main)


def test_two_masters_of_one_name_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (_, peer):
            await peer.register()
            await peer.register(addr="127.0.0.1:20911")
            assert (await peer.route("TopicA"))["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:20911"}

    with caplog.at_level(logging.WARNING, "orbitmq.namesrv"):
        run(main)
    assert "127.0.0.1:20911 replaces 127.0.0.1:10911 as master" in caplog.text


def test_cluster_info_and_lists(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (_, peer):
            await peer.register(topics=("Unit",), sys_flag=1)
            await peer.register(
                "broker-b", addr="127.0.0.1:20911", topics=("Sub",), sys_flag=2, cluster="Other"
            )
            info = await peer.ok(RequestCode.GET_BROKER_CLUSTER_INFO, version=479)
            assert info.body.decode() == (
                '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911"},"brokerName":"broker-a",'
                '"cluster":"DefaultCluster"},"broker-b":{"brokerAddrs":{0:"127.0.0.1:20911"},'
                '"brokerName":"broker-b","cluster":"Other"}},'
                '"clusterAddrTable":{"DefaultCluster":["broker-a"],"Other":["broker-b"]}}'
            )
            lists = {
                RequestCode.GET_UNIT_TOPIC_LIST: ["Unit"],
                RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: ["Sub"],
                RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: ["Sub"],
            }
            for code, topics in lists.items():
                assert json.loads((await peer.ok(code)).body) == {"topicList": topics}
            by_cluster = await peer.ok(RequestCode.GET_TOPICS_BY_CLUSTER, cluster="Other")
            assert by_cluster.body == b'{"topicList":["Sub"]}'
            system = await peer.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
            assert json.loads(system.body) == {
                "brokerAddr": "127.0.0.1:10911",
                "topicList": ["DefaultCluster", "broker-a", "Other", "broker-b"],
            }
            group = await peer.ok(
                RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="Other", brokerName="broker-b"
            )
            assert group.body.decode() == (
                '{"brokerMemberGroup":{"brokerAddrs":{0:"127.0.0.1:20911"},"brokerName":"broker-b",'
                '"cluster":"Other"}}'
            )

    run(main)


def test_write_permission(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (_, peer):
            await peer.register(topics=("TopicA", "B"))
            assert (await peer.route("TopicA"))["queueDatas"][0]["perm"] == 6
            wiped = await peer.ok(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
            assert wiped.ext == {"wipeTopicCount": "2"}
            assert (await peer.route("TopicA"))["queueDatas"][0]["perm"] == 4
            added = await peer.ok(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
            assert added.ext == {"addTopicCount": "2"}
            assert (await peer.route("TopicA"))["queueDatas"][0]["perm"] == 6

    run(main)


def test_delete_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (server, peer):
            await peer.register(topics=("A", "B"))
            await peer.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="A", clusterName="DefaultCluster")
            await peer.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="missing")
            assert server.routes.topic_list() == ["B"]

    run(main)


def test_unknown_requests_are_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (_, peer):
            reply = await peer.ask(RequestCode.BROKER_HEARTBEAT)
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            missing = await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            assert missing.code == ResponseCode.SYSTEM_ERROR
            assert "topic" in str(missing.remark)

    run(main)


def test_a_oneway_registration_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(make_config(tmp_path)) as (server, peer):
            body = wrapper_body(("TopicA",), 1)
            ext = {
                "brokerName": "broker-a",
                "brokerAddr": "127.0.0.1:10911",
                "clusterName": "C",
                "haServerAddr": "127.0.0.1:10912",
                "brokerId": "0",
            }
            peer.channel.oneway(request(RequestCode.REGISTER_BROKER, ext, body, oneway=True))
            await peer.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            assert server.routes.topic_list() == ["TopicA"]

    run(main)


@pytest.mark.parametrize("compressed", [False, True])
def test_ten_thousand_topics(tmp_path: Path, compressed: bool) -> None:
    topics = tuple(f"topic-{n}" for n in range(10_000))

    async def main() -> None:
        async with served(make_config(tmp_path)) as (server, peer):
            body = wrapper_body(topics, 1, 0, compressed)
            began = time.process_time()
            await peer.register(body=body, compressed=compressed)
            first = time.process_time() - began
            assert len(server.routes.topic_list()) == 10_000
            began = time.process_time()
            await peer.register(body=body, compressed=compressed)
            again = time.process_time() - began
            # CPU, since other work on the machine is none of its business: far from the 30 s between two heartbeats.
            assert first < 2.0
            assert again < first / 2
            listed = await peer.ok(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            assert len(fastjson.loads(listed.body)["topicList"]) == 10_000

    run(main)
