"""Pages: a native reader says how many bytes it takes at once, and official clients keep the configured limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orbitmq.wire.codes import RequestCode, ResponseCode
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
