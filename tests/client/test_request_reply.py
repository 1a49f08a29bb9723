"""Requests and replies over a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from orbitmq.client.client import Client, connect
from orbitmq.client.errors import BadRequest, Refused, Unreachable
from orbitmq.client.message import Message
from orbitmq.client.producer import Producer
from tests.client.live import SMALL, run, stored
from tests.support.server_process import ServerProcess

Answer = Callable[[Producer, Message], Awaitable[object]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("requests"), **SMALL) as running:
        yield running


@asynccontextmanager
async def replier(namesrv: str, topic: str, answer: Answer) -> AsyncIterator[None]:
    """Another client that looks at every message of a topic."""

    async def work(mq: Client) -> None:
        producer, seen = mq.producer("replier"), set()
        while True:
            for record in await stored(mq, topic):
                if record.offset_msg_id not in seen:
                    seen.add(record.offset_msg_id)
                    await answer(producer, as_message(record, mq))
            await asyncio.sleep(0.01)

    async with connect(namesrv) as mq:
        task = asyncio.create_task(work(mq))
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def as_message(record: object, mq: Client) -> Message:
    from orbitmq.wire.message import Message as Record
    from orbitmq.wire.message import encode_record
    from orbitmq.wire.properties import encode_properties

    assert isinstance(record, Record)
    raw = encode_record(
        topic=record.topic,
        body=record.body,
        properties=encode_properties(record.properties),
        queue_id=record.queue_id,
        sys_flag=record.sys_flag,
    )
    return Message(raw, 0, "broker-a", None)


def test_requests_get_their_own_replies(server: ServerProcess) -> None:
    async def double(producer: Producer, msg: Message) -> object:
        number = int(msg.body)
        return await producer.reply(msg, b"%d" % (number * 2) * 2000, tag="r", properties={"by": "replier"})

    async def main() -> None:
        async with connect(server.namesrv) as mq, replier(server.namesrv, "Ask", double):
            producer = mq.producer("asker")
            replies = await asyncio.gather(
                *(producer.request("Ask", b"%d" % n, keys=f"k{n}", timeout=10) for n in range(10, 20))
            )
            assert [reply.body for reply in replies] == [b"%d" % (n * 2) * 2000 for n in range(10, 20)]
            assert replies[0].tag == "r" and replies[0].properties["by"] == "replier"
            assert replies[0].topic == "DefaultCluster_REPLY_TOPIC"
            assert replies[0].born_ms > 0

    run(main)


def test_no_reply_in_time(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            start = time.monotonic()
            with pytest.raises(Unreachable, match="no reply to a request to 'Nobody' within 0.3 s") as caught:
                await mq.producer("asker").request("Nobody", b"?", timeout=0.3)
            assert 0.25 < time.monotonic() - start < 2.9
            assert "reply(msg" in caught.value.hint and caught.value.maybe_processed

    run(main)


def test_a_reply_that_comes_too_late_is_refused(server: ServerProcess) -> None:
    refusals: list[str] = []
    told = asyncio.Event()

    async def late(producer: Producer, msg: Message) -> object:
        await asyncio.sleep(0.3)
        try:
            return await producer.reply(msg, b"late")
        except Refused as error:
            refusals.append(str(error))
            told.set()
            return None

    async def main() -> None:
        async with replier(server.namesrv, "Late", late), connect(server.namesrv) as mq:
            with pytest.raises(Unreachable, match="no reply"):
                await mq.producer("asker").request("Late", b"?", timeout=0.2)
            await told.wait()
        assert "push reply message" in refusals[0]

    run(main)


def test_only_requests_can_be_replied_to(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("asker")
            receipt = await producer.send("NoRequest", b"x")
            (record,) = await stored(mq, "NoRequest")
            with pytest.raises(BadRequest, match=f"message {receipt.msg_id} .* is not a request"):
                await producer.reply(as_message(record, mq), b"y")
            with pytest.raises(BadRequest, match="the body is text"):
                await producer.request("NoRequest", "text")  # type: ignore[arg-type]

    run(main)
