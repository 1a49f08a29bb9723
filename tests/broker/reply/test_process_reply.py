"""Replies over a real broker: they reach the producer that waits, or their sender is told why not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, encode, request
from orbitmq.wire.message_id import parse_offset_msg_id
from orbitmq.wire.properties import decode_properties, encode_properties
from tests.broker.fakes import beat
from tests.support.commands import Commands
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import ServerProcess

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
LONG_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("reply"), mappedFileSizeCommitLog=16 << 20) as running:
        yield running


def text(client_id: str | None, **more: str) -> str:
    named = {"REPLY_TO_CLIENT": client_id} if client_id else {}
    fields = {"CORRELATION_ID": "c-1", "TTL": "3000", "MSG_TYPE": "reply", "CLUSTER": "DefaultCluster"}
    return encode_properties({**fields, **named, **more}).decode()


async def wait_for_push(client: RawClient, code: int = 0) -> Command:
    """What a waiting producer does: takes the pushed reply and confirms it."""
    async with asyncio.timeout(5):
        while (pushed := await client.read()).code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            pass
    client.writer.write(encode(pushed.reply(code)))
    return pushed


async def online(client: RawClient, client_id: str) -> None:
    body = bodies.encode(beat(client_id, producers=(f"pg-{client_id}",)))
    await client.ok(RequestCode.HEART_BEAT, body=body)


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_reply_is_pushed_confirmed_and_stored(server: ServerProcess, code: RequestCode) -> None:
    async def main() -> None:
        async with RawClient(server.broker_addr) as asker, RawClient(server.broker_addr) as replier:
            await online(asker, f"asker-{code}")
            waiting = asyncio.create_task(wait_for_push(asker))
            ext = send_ext(REPLY_TOPIC, 0, text(f"asker-{code}", UNIQ_KEY=f"U{int(code)}"))
            if code == RequestCode.SEND_REPLY_MESSAGE:
                ext = {LONG_NAMES.get(letter, letter): value for letter, value in ext.items()}
            answer = await replier.ok(code, ext, b"here you are")
            pushed = await waiting
            assert pushed.body == b"here you are"
            assert pushed.ext["topic"] == REPLY_TOPIC
            assert pushed.ext["storeHost"] == server.broker_addr
            properties = decode_properties(pushed.ext["properties"])
            assert properties["CORRELATION_ID"] == "c-1"
            assert int(properties["PUSH_REPLY_TIME"]) == int(pushed.ext["storeTimestamp"])
            _, _, offset = parse_offset_msg_id(answer.ext["msgId"])
            stored = (await replier.read_queue(REPLY_TOPIC, 0))[int(answer.ext["queueOffset"])]
            assert (stored.physical_offset, stored.body) == (offset, b"here you are")
            assert stored.properties == decode_properties(text(f"asker-{code}", UNIQ_KEY=f"U{int(code)}"))

    asyncio.run(main())


def test_a_reply_that_cannot_be_pushed_says_why(server: ServerProcess) -> None:
    async def main() -> None:
        async with RawClient(server.broker_addr) as asker, RawClient(server.broker_addr) as replier:

            async def refusal(properties: str) -> str:
                answer = await replier.ask(
                    RequestCode.SEND_REPLY_MESSAGE_V2, send_ext(REPLY_TOPIC, 0, properties), b"r"
                )
                assert answer.code == ResponseCode.SYSTEM_ERROR
                return answer.remark or ""

            assert await refusal(text("nobody")) == "push reply message fail, channel of <nobody> not found."
            assert "REPLY_TO_CLIENT" in await refusal(text(None))
            await online(asker, "unwilling")
            waiting = asyncio.create_task(wait_for_push(asker, code=1))
            assert "push reply message to unwilling fail" in await refusal(text("unwilling"))
            await waiting
            await online(asker, "leaving")

            async def leave() -> None:
                while (await asker.read()).code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                    pass
                await asker.close()

            leaving = asyncio.create_task(leave())
            assert "push reply message to leaving fail" in await refusal(text("leaving"))
            await leaving

    asyncio.run(main())


def test_bad_replies_are_refused_like_bad_messages(server: ServerProcess) -> None:
    async def main() -> None:
        async with RawClient(server.broker_addr) as client:
            for topic, code in (
                ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
                ("a b", ResponseCode.SYSTEM_ERROR),
            ):
                ext = send_ext(topic, 0, text("x"))
                assert (await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"r")).code == code

    asyncio.run(main())


def test_replies_need_not_be_stored(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    orbitmq = Commands(capsys, server.namesrv)

    async def main() -> None:
        async with RawClient(server.broker_addr) as asker, RawClient(server.broker_addr) as replier:
            before = await replier.max_offset(REPLY_TOPIC, 0)
            await online(asker, "unstored")
            waiting = asyncio.create_task(wait_for_push(asker))
            ext = send_ext(REPLY_TOPIC, -1, text("unstored"))
            answer = await replier.ok(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"r")
            await waiting
            assert (answer.ext["msgId"], answer.ext["queueOffset"]) == ("0", "0")
            assert await replier.max_offset(REPLY_TOPIC, 0) == before
            # One-way: pushed all the same, and nothing comes back.
            waiting = asyncio.create_task(wait_for_push(asker))
            replier.write([request(RequestCode.SEND_REPLY_MESSAGE_V2, ext, b"oneway", oneway=True)])
            assert (await waiting).body == b"oneway"

    orbitmq.ok("cluster", "config", "broker-a", "--set", "storeReplyMessageEnable=false")
    try:
        asyncio.run(main())
    finally:
        orbitmq.ok("cluster", "config", "broker-a", "--set", "storeReplyMessageEnable=true")
