"""Pages: a native reader says how many bytes it takes at once, and official clients keep the configured limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.message import decode_records
from tests.support.raw_client import RawClient, pull_ext, send_ext
from tests.support.server_process import ServerProcess

MESSAGES = 600


async def pages(server: ServerProcess) -> None:
    async with RawClient(server.broker_addr) as client:
        await client.create_topic("Paged", 1)
        for number in range(MESSAGES):
            body = b"%04d" % number + bytes(196)
            await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext("Paged", 0), body)

        async def bodies(max_messages: int, **more: str) -> list[bytes]:
            ext = pull_ext("Paged", 0, 0, max_messages) | more
            answer = await client.ask(RequestCode.PULL_MESSAGE, ext)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            found = [message.body[:4] for message in decode_records(answer.body)]
            assert int(answer.ext["nextBeginOffset"]) == len(found)
            assert found == [b"%04d" % number for number in range(len(found))]
            return found

        assert len(await bodies(4096)) == 32, "the configured limit"
        assert len(await bodies(4096, pageBytes=str(1 << 20))) == MESSAGES
        assert len(await bodies(100, pageBytes=str(1 << 20))) == 100
        assert 10 < len(await bodies(4096, pageBytes="10000")) < 50, "as many as fit"
        assert len(await bodies(4096, pageBytes="1")) == 1, "one message is always allowed"
        assert len(await bodies(4096, pageBytes=str((1 << 31) - 1))) == MESSAGES
        assert len(await bodies(4096, pageBytes="-5")) == 32, "nonsense leaves the limits as they are"


def test_a_page_holds_what_its_reader_asks_for(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, flushDiskType="ASYNC_FLUSH", mappedFileSizeCommitLog=16 << 20) as server:
        asyncio.run(pages(server))


LARGE = 4000
LARGE_BYTES = 1024


async def large_pages(server: ServerProcess) -> None:
    """Pages of a megabyte go to the socket without being put together first, if it is idle and takes them."""
    bodies = [b"%08d" % number * (LARGE_BYTES // 8) for number in range(LARGE)]
    async with RawClient(server.broker_addr) as client:
        await client.create_topic("Large", 1)
        sent = [request(RequestCode.SEND_MESSAGE_V2, send_ext("Large", 0), body) for body in bodies]
        for number in client.write(sent):
            assert (await client.answer(number)).code == ResponseCode.SUCCESS

        def page(offset: int) -> dict[str, str]:
            return pull_ext("Large", 0, offset, 8000) | {"pageBytes": str(1 << 20)}

        async def whole_queue(offsets: list[int], numbers: list[int]) -> None:
            for offset, number in zip(offsets, numbers, strict=True):
                answer = await client.answer(number)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                found = [message.body for message in decode_records(answer.body)]
                assert len(found) > 800
                assert found == bodies[offset : offset + len(found)]
                assert int(answer.ext["nextBeginOffset"]) == offset + len(found)

        for offset in (0, 0, 500):  # one at a time
            await whole_queue([offset], client.write([request(RequestCode.PULL_MESSAGE, page(offset))]))
        # Many at once, small answers between them, and a peer that is slow to read.
        for pause_s in (0.0, 0.3):
            offsets = [number * 97 % 3000 for number in range(30)]
            transport = client.writer.transport
            transport.pause_reading()  # type: ignore[attr-defined]
            numbers, small = [], []
            for offset in offsets:
                small += client.write(
                    [request(RequestCode.GET_MAX_OFFSET, {"topic": "Large", "queueId": "0"})]
                )
                numbers += client.write([request(RequestCode.PULL_MESSAGE, page(offset))])
            await asyncio.sleep(pause_s)
            transport.resume_reading()  # type: ignore[attr-defined]
            await whole_queue(offsets, numbers)
            for number in small:
                assert (await client.answer(number)).ext["offset"] == str(LARGE)


def test_large_pages_arrive_whole_and_in_order(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, flushDiskType="ASYNC_FLUSH", mappedFileSizeCommitLog=16 << 20) as server:
        asyncio.run(large_pages(server))
