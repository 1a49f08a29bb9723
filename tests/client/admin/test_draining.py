from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.admin.draining import Step, Traffic, next_step
from orbitmq.client.admin.leftover import behind_on
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.fastjson import MessageQueue
from tests.support.fake_servers import fake_cluster, reply


@pytest.mark.parametrize(
    ("takes_messages", "quiet", "settled", "behind", "step"),
    [
        (True, False, False, False, Step.LEAVE),
        (True, True, False, False, Step.CLOSE),
        (True, False, True, True, Step.CLOSE),
        (False, False, False, True, Step.READ),
        (False, False, False, False, Step.DONE),
    ],
)
def test_the_door_is_closed_before_anybody_is_waited_for(
    takes_messages: bool, quiet: bool, settled: bool, behind: bool, step: Step
) -> None:
    found = next_step(takes_messages=takes_messages, quiet=quiet, settled=settled, behind=behind)
    assert found is step


@given(st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_every_way_ends_with_a_closed_door(open_: bool, quiet: bool, settled: bool, behind: bool) -> None:
    """Wherever an interrupted run left off; time passes, and groups read."""
    for _ in range(4):
        step = next_step(takes_messages=open_, quiet=quiet, settled=settled, behind=behind)
        if step is Step.LEAVE:
            settled = True
        elif step is Step.CLOSE:
            open_ = False
        elif step is Step.READ:
            assert not open_
            behind = False
    assert step is Step.DONE
    assert not open_


def runtime(total: int | str, boot: str = "1") -> Any:
    return reply(body=fastjson.dumps({"table": {"bootTimestamp": boot, "putMessageTimesTotal": str(total)}}))


def test_traffic_is_what_the_broker_counts_and_a_new_run_is_no_silence() -> None:
    async def main() -> None:
        answers = {RequestCode.GET_BROKER_RUNTIME_INFO: runtime(10)}
        async with fake_cluster(answers) as fake, Cluster(fake.namesrv.addr) as cluster:
            broker = fake.brokers["broker-a"]
            traffic = Traffic(cluster)
            await traffic.look(broker.addr)
            assert (traffic.in_per_s, traffic.quiet_for_s) == (None, 0)
            await asyncio.sleep(0.05)
            await traffic.look(broker.addr)
            assert traffic.in_per_s == 0
            assert traffic.quiet_for_s >= 0.05
            broker.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(40)
            await traffic.look(broker.addr)
            assert traffic.in_per_s is not None and traffic.in_per_s > 0
            assert traffic.quiet_for_s == 0
            broker.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = runtime(40, boot="2")
            await traffic.look(broker.addr)
            assert (traffic.in_per_s, traffic.quiet_for_s) == (None, 0)
            broker.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = runtime("many")
            with pytest.raises(OrbitMQError, match="how many messages"):
                await traffic.look(broker.addr)

    asyncio.run(main())


def test_what_is_left_to_read_is_told_by_group_and_queue() -> None:
    def progress(end: int, at: int, **more: object) -> dict[str, object]:
        return {"brokerOffset": end, "consumerOffset": at, "lastTimestamp": 0, **more}

    def queue(topic: str, number: int) -> MessageQueue:
        return MessageQueue(topic, "broker-a", number)

    stats = [
        {"one": [{"offsetTable": {queue("T", 0): progress(9, 4), queue("T", 1): progress(7, 7)}}]},
        {"new": [{"offsetTable": {queue("T", 1): progress(7, 0, noOffset=True)}}]},
        {"idle": [{"offsetTable": {queue("T", 2): progress(0, 0, noOffset=True)}}]},
        {"left": [{"offsetTable": {queue("T", 0): progress(9, 0)}}]},
        {"none": []},
    ]

    async def main() -> None:
        answers = {
            RequestCode.GET_BROKER_CONSUME_STATS: reply(body=fastjson.dumps({"consumeStatsList": stats})),
            RequestCode.GET_CONSUMER_CONNECTION_LIST: reply(code=ResponseCode.CONSUMER_NOT_ONLINE),
        }
        async with fake_cluster(answers) as fake, Cluster(fake.namesrv.addr) as cluster:
            broker = fake.brokers["broker-a"]
            found = await behind_on(cluster, broker.addr, ["left"])
            assert [(item.group, item.topic, item.queue_id, item.behind) for item in found] == [
                ("new", "T", 1, None),
                ("one", "T", 0, 5),
            ]
            assert not any(item.online for item in found)
            broker.answers[RequestCode.GET_BROKER_CONSUME_STATS] = reply(body=b'{"consumeStatsList":[1]}')
            with pytest.raises(OrbitMQError, match=re.escape(broker.addr)):
                await behind_on(cluster, broker.addr)

    asyncio.run(main())
