"""Source, stream and sink on the real Java broker; it ends a transaction as often as it is asked to, we only once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from orbitmq.client.admin.topics import create_topic
from orbitmq.client.cluster import Cluster
from orbitmq.spark.sink_end import Ender, is_native
from orbitmq.spark.sink_handles import Handles
from orbitmq.spark.sink_markers import DONE, Markers
from orbitmq.spark.sink_options import SinkOptions, producer_group
from orbitmq.spark.sink_rows import BadRow
from tests.peer.java_peer import JavaPeer
from tests.spark.test_sink_protocol import Job
from tests.spark_slow.test_cluster import check, make_topics, run_job

pytestmark = [pytest.mark.slow, pytest.mark.peer]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(tmp_path_factory.mktemp("java"), {"autoCreateTopicEnable": "true"}) as peer:
        peer.start()
        yield peer


def test_batch_stream_and_sink(java: JavaPeer, tmp_path: Path) -> None:
    make_topics(java.broker_addr)
    check(java, run_job("local[2]", java, tmp_path), in_columns=True)


@pytest.mark.parametrize("ended_before", [0, 3, 5])
def test_a_driver_that_dies_after_its_decision_is_finished_by_the_next(
    java: JavaPeer, ended_before: int
) -> None:
    async def body() -> None:
        async with asyncio.timeout(90), Cluster(java.namesrv, timeout_s=10) as cluster:
            topic = f"JavaFinished{ended_before}"
            await create_topic(cluster, topic, read_queues=2, write_queues=2)
            job = Job(cluster, SinkOptions(java.namesrv, retry_timeout_s=20), topic)
            handles = Handles.unpacked((await job.task(*"abcde")).packed)
            (broker,) = handles.of_broker
            assert not await is_native(cluster, await cluster.broker_addr(broker))
            group = producer_group(job.app_id)
            await Markers(cluster, job.app_id).decide(3, group, handles, ordered=False)
            ender = Ender(cluster, group, retry_timeout_s=20)
            await ender.commit(broker, list(handles.pairs(broker))[:ended_before], perhaps_before=False)
            await until_indexed(job, ended_before)
            for _ in range(2):
                await job.committer().commit(3, [await job.task(*"edcba")])
                assert await job.visible() == Counter("abcde")
            newest = await Markers(cluster, job.app_id).newest()
            assert newest is not None and (newest.batch, newest.state) == (3, DONE)
            with pytest.raises(BadRow, match="cannot delay transactional messages"):
                await job.task("later", delay_level=3)

    asyncio.run(body())


async def until_indexed(job: Job, count: int) -> None:
    """Java dispatches a little later: a driver takes longer to come back than that, a test does not."""
    while True:
        newest = await Markers(job.cluster, job.app_id).newest()
        if newest is not None and sum((await job.visible()).values()) == count:
            await asyncio.sleep(0.5)
            return
        await asyncio.sleep(0.1)
