from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orbitmq.client.client import Client, connect
from orbitmq.client.route_watch import RouteWatch
from orbitmq.client.routes import TopicRoute
from orbitmq.net.channel import Channel
from orbitmq.net.connection import Connection
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, decode, encode, request
from orbitmq.wire.frame import FrameReader
from tests.support.fake_servers import FakeServer, fake_cluster, reply, route_body
from tests.support.tiny_server import run, until

BEATS = {RequestCode.HEART_BEAT: reply(), RequestCode.UNREGISTER_CLIENT: reply()}


class Consumer:
    group = "readers"

    def __init__(self) -> None:
        self.answers: list[tuple[str, int]] = []

    def consumer_data(self) -> bodies.ConsumerData:
        return bodies.ConsumerData(group_name=self.group)

    def heartbeat_answer(self, addr: str, response: Command) -> None:
        self.answers.append((addr, response.code))


def beats(server: FakeServer) -> list[bodies.HeartbeatData]:
    return [
        bodies.decode(bodies.HeartbeatData, command.body)
        for command in server.requests(RequestCode.HEART_BEAT)
    ]


async def known(mq: Client) -> TopicRoute:
    return await mq.cluster.route("TopicA")


def test_every_broker_hears_of_producers_and_consumers_and_of_their_end() -> None:
    async def main() -> None:
        async with fake_cluster(BEATS, BEATS) as fake:
            member = Consumer()
            async with connect(fake.namesrv.addr) as mq:
                await known(mq)
                mq.presence.add_producer("writers")
                mq.presence.add_consumer(member)
                assert await mq.presence.beat_now() == []
                for broker in fake.brokers.values():
                    beat = beats(broker)[-1]
                    assert beat.client_id == mq.client_id
                    assert [data.group_name for data in beat.producer_data_set] == ["writers"]
                    assert [data.group_name for data in beat.consumer_data_set] == ["readers"]
                assert sorted(set(member.answers)) == sorted((addr, 0) for addr in fake.addrs.values())
                await mq.presence.remove_consumer("readers")
                await mq.presence.remove_producer("writers")
                for broker in fake.brokers.values():
                    left = [command.ext for command in broker.requests(RequestCode.UNREGISTER_CLIENT)]
                    assert left == [
                        {"clientID": mq.client_id, "consumerGroup": "readers"},
                        {"clientID": mq.client_id, "producerGroup": "writers"},
                    ]

    run(main)


def test_a_new_member_is_made_known_without_waiting_for_the_period() -> None:
    async def main() -> None:
        async with fake_cluster(BEATS) as fake, connect(fake.namesrv.addr) as mq:
            await known(mq)
            mq.presence.add_producer("one")
            await until(lambda: bool(beats(fake.brokers["broker-a"])))
            mq.presence.add_producer("two")
            await until(lambda: len(beats(fake.brokers["broker-a"])[-1].producer_data_set) == 2)

    run(main)


def test_a_lost_connection_is_made_again_and_introduced() -> None:
    connections: list[Connection] = []

    def hear(conn: Connection, command: Command) -> Command:
        connections.append(conn)
        return command.reply()

    async def main() -> None:
        answers = {**BEATS, RequestCode.HEART_BEAT: hear}
        async with fake_cluster(answers) as fake, connect(fake.namesrv.addr) as mq:
            await known(mq)
            mq.presence.add_producer("writers")
            await until(lambda: len(connections) == 1)
            connections[0].close()
            await until(lambda: len(connections) == 2)
            assert connections[1] is not connections[0]

    run(main)


def test_a_broker_hears_of_the_client_as_soon_as_a_route_names_it() -> None:
    async def main() -> None:
        async with fake_cluster(BEATS, BEATS) as fake, connect(fake.namesrv.addr) as mq:
            mq.presence.add_producer("writers")
            await asyncio.sleep(0.02)
            assert not beats(fake.brokers["broker-a"])
            await known(mq)
            await until(lambda: all(beats(broker) for broker in fake.brokers.values()))

    run(main)


def test_introduce_beats_once_per_connection_and_state() -> None:
    async def main() -> None:
        async with fake_cluster(BEATS) as fake, connect(fake.namesrv.addr) as mq:
            addr = fake.addrs["broker-a"]
            mq.presence.add_producer("writers")
            for _ in range(3):
                await mq.presence.introduce(addr)
            assert len(beats(fake.brokers["broker-a"])) == 1
            mq.presence.add_producer("more")
            await mq.presence.introduce(addr)
            assert len(beats(fake.brokers["broker-a"])) == 2

    run(main)


def test_a_broker_that_is_down_does_not_keep_the_others_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with fake_cluster(BEATS, BEATS) as fake, connect(fake.namesrv.addr) as mq:
            await known(mq)
            await fake.brokers["broker-a"].stop()
            mq.presence.add_producer("writers")
            assert await mq.presence.beat_now() == [fake.addrs["broker-a"]]
            assert beats(fake.brokers["broker-b"])

    run(main)
    assert "no heartbeat to" in caplog.text


async def serve(mq: Client, command: Command) -> Command | None:
    result: Any = mq.presence.serve(Channel("127.0.0.1:1"), command)
    return await result if asyncio.iscoroutine(result) else result


def test_requests_of_brokers_go_to_the_handler_that_knows_the_group() -> None:
    def of_group(group: str) -> Any:
        def handle(channel: Channel, command: Command) -> Command | None:
            return command.reply(remark=f"by {group}") if command.ext.get("consumerGroup") == group else None

        return handle

    async def later(channel: Channel, command: Command) -> Command | None:
        await asyncio.sleep(0)
        return command.reply(remark="later") if command.ext.get("consumerGroup") == "c" else None

    async def main() -> None:
        async with connect("127.0.0.1:1") as mq:
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            unknown = await serve(mq, request(code))
            assert unknown is not None and unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            mq.presence.on(code, of_group("a"))
            remove = mq.presence.on(code, of_group("b"))
            mq.presence.on(code, later)
            answers = [await serve(mq, request(code, {"consumerGroup": group})) for group in "abcd"]
            assert [answer and answer.remark for answer in answers[:3]] == ["by a", "by b", "later"]
            assert answers[3] is not None and answers[3].code == ResponseCode.SYSTEM_ERROR
            assert "nobody in client" in (answers[3].remark or "")
            remove()
            gone = await serve(mq, request(code, {"consumerGroup": "b"}))
            assert gone is not None and gone.code == ResponseCode.SYSTEM_ERROR
            assert await serve(mq, request(code, oneway=True)) is None

    run(main)


def test_a_broker_gets_its_answer_over_the_connection() -> None:
    asked: list[Connection] = []

    def hear(conn: Connection, command: Command) -> Command:
        asked.append(conn)
        return command.reply()

    async def main() -> None:
        answers = {**BEATS, RequestCode.HEART_BEAT: hear}
        async with fake_cluster(answers) as fake, connect(fake.namesrv.addr) as mq:
            handled = asyncio.Event()

            def notified(channel: Channel, command: Command) -> None:
                assert channel.addr == fake.addrs["broker-a"]
                handled.set()

            mq.presence.on(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, notified)
            mq.presence.add_producer("writers")
            await mq.presence.introduce(fake.addrs["broker-a"])
            note = request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "g"}, oneway=True)
            asked[0].send(encode(note))
            await asyncio.wait_for(handled.wait(), 5)

    run(main)


def test_a_new_route_reaches_its_watchers() -> None:
    async def main() -> None:
        async with fake_cluster(BEATS, BEATS, topics=()) as fake, connect(fake.namesrv.addr) as mq:
            watch = RouteWatch(mq.cluster, period_s=0.02, doubt_first_s=0.005)
            seen: list[TopicRoute | None] = []
            unwatch = watch.watch("TopicA", seen.append)
            task = asyncio.create_task(watch.run())
            await asyncio.sleep(0.05)
            assert seen == []
            one = {"broker-a": fake.addrs["broker-a"]}
            fake.namesrv.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = reply(body=route_body(one))
            await until(lambda: len(seen) == 1)
            fake.namesrv.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = reply(body=route_body(fake.addrs))
            await until(lambda: len(seen) == 2)
            assert [len(route.brokers) for route in seen if route] == [1, 2]
            fake.namesrv.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = reply(ResponseCode.TOPIC_NOT_EXIST)
            await until(lambda: len(seen) == 3)
            assert seen[2] is None
            unwatch()
            assert watch.topics == ()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(main)


def test_the_heartbeat_on_the_wire_is_what_a_broker_reads() -> None:
    frame = encode(request(RequestCode.HEART_BEAT, body=bodies.encode(bodies.HeartbeatData(client_id="c@1"))))
    command = decode(FrameReader().feed(frame)[0])
    assert b'"clientID":"c@1"' in command.body
