from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.admin.resize import Shrink, Size, Step, grow_topic, next_step
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, OrbitMQError
from orbitmq.wire.codes import RequestCode
from tests.support.fake_servers import fake_cluster, reply


@pytest.mark.parametrize(
    ("read", "write", "read_to_the_end", "step"),
    [
        (4, 4, False, Step.LOWER_WRITE),
        (4, 4, True, Step.LOWER_WRITE),
        (4, 2, False, Step.WAIT),
        (4, 2, True, Step.LOWER_READ),
        (2, 2, False, Step.DONE),
        (2, 1, False, Step.DONE),
    ],
)
def test_producers_leave_before_consumers(read: int, write: int, read_to_the_end: bool, step: Step) -> None:
    assert next_step(Size(read=read, write=write), 2, read_to_the_end=read_to_the_end) is step


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 16))
def test_every_way_ends_with_nobody_in_the_removed_queues(read: int, write: int, wanted: int) -> None:
    """Wherever an interrupted run left off."""
    for _ in range(3):
        step = next_step(Size(read=read, write=write), wanted, read_to_the_end=True)
        if step is Step.LOWER_WRITE:
            write = wanted
        elif step is Step.LOWER_READ:
            assert write <= wanted
            read = wanted
    assert step is Step.DONE
    assert max(read, write) <= wanted


def topic_table(read: int, write: int) -> bytes:
    return (
        b'{"topicConfigTable":{"TopicA":{"order":false,"perm":6,"readQueueNums":%d,"topicFilterType":"SINGLE_TAG",'
        b'"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":%d}}}' % (read, write)
    )


def test_the_wrong_direction_is_named_and_nothing_is_changed() -> None:
    async def main() -> None:
        answers = {RequestCode.GET_ALL_TOPIC_CONFIG: reply(body=topic_table(4, 4))}
        async with fake_cluster(answers) as fake, Cluster(fake.namesrv.addr) as cluster:
            with pytest.raises(BadRequest, match="fewer than 8"):
                await Shrink(cluster, "TopicA", 8).run()
            with pytest.raises(BadRequest, match="more than 2"):
                await grow_topic(cluster, "TopicA", 2)
            with pytest.raises(BadRequest, match="0 queues"):
                await Shrink(cluster, "TopicA", 0).run()
            with pytest.raises(OrbitMQError, match="no master|not served"):
                await Shrink(cluster, "TopicA", 2, broker="other").run()
            assert not fake.brokers["broker-a"].requests(RequestCode.UPDATE_AND_CREATE_TOPIC)

    asyncio.run(main())
