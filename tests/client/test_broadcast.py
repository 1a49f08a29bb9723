"""Broadcasting: everybody gets everything, and keeps its own progress in a file."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from orbitmq.client.broadcast import LocalOffsets, stable_id
from orbitmq.client.client import connect
from orbitmq.client.errors import OrbitMQError
from orbitmq.testing import Server
from orbitmq.wire.fastjson import MessageQueue
from tests.support.consuming import collect, nothing_more, run, send, until

QUEUE = MessageQueue("TopicA", "broker-a", 0)


def test_everybody_gets_everything_from_now_on(orbitmq_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as one, connect(orbitmq_server.namesrv) as two:
            await send(one, "news", ["old"])
            options = {"broadcast": True}
            async with (
                one.consumer("readers", "news", offsets_dir=tmp_path / "1", **options) as first,
                two.consumer("readers", "news", offsets_dir=tmp_path / "2", **options) as second,
            ):
                await until(lambda: len(first.queues) == len(second.queues) == 4)
                await send(one, "news", range(6))
                for inbox in (first, second):
                    assert sorted(await collect(inbox, 6)) == [str(number) for number in range(6)]

    run(scenario)


def test_progress_is_kept_in_the_file_over_a_restart(orbitmq_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            options = {"broadcast": True, "offsets_dir": tmp_path, "start": "first"}
            await send(mq, "news", range(3), queue_id=0)
            async with mq.consumer("readers", "news", **options) as inbox:
                assert await collect(inbox, 3) == ["0", "1", "2"]
            await send(mq, "news", ["3"], queue_id=0)
        async with connect(orbitmq_server.namesrv) as again:
            async with again.consumer("readers", "news", **options) as inbox:
                assert await collect(inbox, 1) == ["3"]
                await nothing_more(inbox)
            assert again.client_id != mq.client_id
        (path,) = tmp_path.glob("*@DEFAULT/readers/offsets.json")
        assert b'{\n\t"offsetTable":{{' in path.read_bytes()
        assert orbitmq_server.inspect(lambda broker: broker.offsets.query("readers", "news", 0)) == -1

    run(scenario)


def test_a_failure_is_told_and_not_repeated(
    orbitmq_server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    orbitmq_server.create_topic("news")

    async def scenario() -> None:
        async with (
            connect(orbitmq_server.namesrv) as mq,
            mq.consumer("readers", "news", broadcast=True, offsets_dir=tmp_path) as inbox,
        ):
            await until(lambda: len(inbox.queues) == 4)
            await send(mq, "news", ["bad"], queue_id=0)
            with caplog.at_level(logging.WARNING):
                async with await anext(inbox):
                    raise ValueError("no luck")
                await until(lambda: sum(inbox.positions().values()) == 1)
            assert "is not repeated: ValueError: no luck" in caplog.text

    run(scenario)


def test_the_file_is_javas_and_the_one_before_it_helps_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        offsets = LocalOffsets(tmp_path, "10.0.0.1@DEFAULT", "g")
        assert offsets.path == tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
        assert await offsets.load(QUEUE) is None
        assert await offsets.save({QUEUE: 5}) == {QUEUE}
        assert offsets.path.read_text() == (
            '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"TopicA"\n\t\t}:5'
            "\n\t}\n}"
        )
        await offsets.save({QUEUE: 6})
        assert await LocalOffsets(tmp_path, "10.0.0.1@DEFAULT", "g").load(QUEUE) == 6
        offsets.path.write_text("{")
        assert await LocalOffsets(tmp_path, "10.0.0.1@DEFAULT", "g").load(QUEUE) == 5
        offsets.path.with_suffix(".json.bak").write_text("[")
        with pytest.raises(OrbitMQError, match="cannot be read") as caught:
            await LocalOffsets(tmp_path, "10.0.0.1@DEFAULT", "g").load(QUEUE)
        assert "remove it" in caught.value.hint

    asyncio.run(scenario())


def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        offsets = LocalOffsets(tmp_path, "ip@x", "g")
        in_the_way = offsets.path.with_suffix(".json.tmp")
        in_the_way.mkdir(parents=True)
        assert await offsets.save({QUEUE: 5}) == set()
        in_the_way.rmdir()
        assert await offsets.save({QUEUE: 5}) == {QUEUE}

    asyncio.run(scenario())


def test_an_id_with_a_process_in_it_is_made_stable() -> None:
    assert stable_id("10.0.0.1@4711#1") == "10.0.0.1@DEFAULT"
    assert stable_id("10.0.0.1@shop-3") == "10.0.0.1@shop-3"
