"""One of each kind of message that a broker can store, written through its port."""

from __future__ import annotations

import asyncio

from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.compression import Compression, compress
from orbitmq.wire.message_id import parse_offset_msg_id
from orbitmq.wire.properties import encode_properties
from orbitmq.wire.topics import retry_topic
from tests.broker.transaction.producer import COMMIT, ROLLBACK, Producer
from tests.support.raw_client import RawClient, send_ext

TOPIC = "Kinds"
QUEUES = 2
GROUP = "kinds-group"
_GROUP_CONFIG = (
    b'{"groupName":"kinds-group","consumeEnable":true,"consumeBroadcastEnable":true,"consumeFromMinEnable":true,'
    b'"retryQueueNums":1,"retryMaxTimes":16,"brokerId":0,"whichBrokerWhenConsumeSlowly":1}'
)


def text(name: str, **properties: str) -> str:
    return encode_properties({"UNIQ_KEY": name.upper().ljust(32, "0"), "WAIT": "true", **properties}).decode()


async def write_kinds(addr: str) -> None:
    """Plain, keyed, compressed, batched, delayed (delivered and waiting), in all states of a transaction, retried."""
    async with RawClient(addr) as client, Producer(addr) as producer:
        await client.create_topic(TOPIC, QUEUES)
        await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, _GROUP_CONFIG)

        async def send(
            name: str, body: bytes, *, sys_flag: int = 0, queue_id: int = 0, **properties: str
        ) -> str:
            ext = send_ext(TOPIC, queue_id, text(name, **properties), f=str(sys_flag), h="7")
            return (await client.ok(RequestCode.SEND_MESSAGE_V2, ext, body)).ext["msgId"]

        await send("plain", b"plain")
        await send("empty", b"e", queue_id=1)
        await send("tagged", b"tagged", TAGS="TagA", KEYS="k1 k2 k3")
        await send("unicode", "жук 日本 \U0001f680".encode(), TAGS="жук", note="日本", KEYS="日本")
        await send("long", b"x" * 40_000, note="y" * 20_000)
        packed = compress(b"to be packed " * 1000, Compression.ZLIB)
        await send("packed", packed, sys_flag=Compression.ZLIB.sys_flag, KEYS="packed")
        items = [(0, b"batched %d" % n, text(f"batch{n}", KEYS=f"b{n}").encode()) for n in range(20)]
        await client.ok(
            RequestCode.SEND_BATCH_MESSAGE, send_ext(TOPIC, 1, "WAIT\x01true", m="true"), encode_batch(items)
        )
        await send("delay1", b"a second late", DELAY="1", TAGS="Late")
        await send("delay9", b"five minutes late", DELAY="9", KEYS="late")
        committed = await producer.prepare(TOPIC, "C" * 32, b"committed")
        await producer.end(committed, COMMIT, "C" * 32)
        rolled_back = await producer.prepare(TOPIC, "R" * 32, b"rolled back")
        await producer.end(rolled_back, ROLLBACK, "R" * 32)
        await producer.prepare(TOPIC, "P" * 32, b"pending")
        back = await send("back", b"sent back", TAGS="Back", KEYS="back")
        ext = {
            "offset": str(parse_offset_msg_id(back)[2]),
            "group": GROUP,
            "delayLevel": "1",
            "originMsgId": "BACK".ljust(32, "0"),
            "originTopic": TOPIC,
            "unitMode": "false",
            "maxReconsumeTimes": "16",
        }
        await client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        async with asyncio.timeout(15):
            while not (await client.by_key(retry_topic(GROUP), "back") and await _late_has_come(client)):
                await asyncio.sleep(0.2)


async def _late_has_come(client: RawClient) -> bool:
    return any(message.tags == "Late" for message in await client.read_queue(TOPIC, 0))
