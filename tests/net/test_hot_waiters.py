from __future__ import annotations

import asyncio

import pytest

from orbitmq.net.channel import Channel
from orbitmq.net.errors import ConnectionClosed, RequestTimeout
from orbitmq.net.hot_waiters import FIRST_OPAQUE, LAST_OPAQUE
from orbitmq.wire.command import CODEC_BINARY, Command, encode, request
from tests.support.tiny_server import TinyServer, run, silent, tiny_server, until


def frame_of(opaque: int, body: bytes = b"") -> bytes:
    return encode(Command(310, 0, opaque, {"b": "T"}, body))


def deadline(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def test_answers_of_every_form_reach_their_waiters() -> None:
    async def answer(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        ext = {"msgId": "M", "queueId": "2", "queueOffset": "77"}
        if cmd.body == b"typed":
            writer.write(encode(cmd.reply(ext=ext)))
        elif cmd.body == b"with a body":
            writer.write(encode(cmd.reply(ext=ext, body=b"more")))
        elif cmd.body == b"binary":
            cmd.codec = CODEC_BINARY
            writer.write(encode(cmd.reply(ext=ext)))
        elif cmd.body == b"bare":
            header = b'{code:0,flag:1,opaque:%d,extFields:{msgId:"M",queueId:2,queueOffset:77}}' % cmd.opaque
            writer.write((len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        else:
            writer.write(encode(cmd.reply(1, remark="no")))

    async def main() -> None:
        async with tiny_server(answer) as server:
            channel = await Channel.connect(server.addr)
            waiting = []
            for body in (b"typed", b"with a body", b"binary", b"bare", b"refuse"):
                opaque = channel.next_opaque()
                waiting.append(channel.submit(opaque, frame_of(opaque, body), deadline(5), 5))
            plain = channel.request(request(105))
            answers = await asyncio.gather(*waiting)
            for got in answers[:4]:
                assert (got.code, got.extFields.queueId, got.extFields.queueOffset) == (0, 2, 77)
                assert got.extFields.msgId == "M"
            assert (answers[4].code, answers[4].remark) == (1, "no")
            assert (await plain).remark == "no"
            assert not channel._hot.waiting
            await channel.aclose()

    run(main)


def test_each_deadline_is_kept_with_one_timer() -> None:
    async def main() -> None:
        async with tiny_server(silent) as server:
            channel = await Channel.connect(server.addr)
            loop = asyncio.get_running_loop()
            start = loop.time()

            async def one(seconds: float) -> float:
                opaque = channel.next_opaque()
                with pytest.raises(RequestTimeout, match=f"SEND_MESSAGE_V2 within {seconds:g} s"):
                    await channel.submit(opaque, frame_of(opaque), start + seconds, seconds)
                return loop.time() - start

            ended = await asyncio.gather(one(0.2), one(0.05), one(0.1))
            for when, wished in zip(ended, (0.2, 0.05, 0.1), strict=True):
                assert wished - 0.01 <= when < wished + 0.5
            assert not channel._hot.waiting
            await channel.aclose()

    run(main)


def test_a_cancelled_waiter_and_a_late_answer_harm_nobody() -> None:
    held: list[Command] = []

    async def keep(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        held.append(cmd)
        if len(held) == 3:
            for each in held:
                writer.write(encode(each.reply()))

    async def main() -> None:
        async with tiny_server(keep) as server:
            channel = await Channel.connect(server.addr)
            opaques = [channel.next_opaque() for _ in range(3)]
            late = channel.submit(opaques[0], frame_of(opaques[0]), deadline(0.02), 0.02)
            with pytest.raises(RequestTimeout):
                await late
            gone = channel.submit(opaques[1], frame_of(opaques[1]), deadline(5), 5)
            gone.cancel()
            last = channel.submit(opaques[2], frame_of(opaques[2]), deadline(5), 5)
            assert (await last).code == 0
            await until(lambda: not channel._hot.waiting)
            await channel.aclose()

    run(main)


def test_a_lost_connection_fails_all_and_takes_no_more() -> None:
    async def main() -> None:
        async with tiny_server(silent) as server:
            channel = await Channel.connect(server.addr)
            opaques = [channel.next_opaque() for _ in range(20)]
            waiting = [channel.submit(one, frame_of(one), deadline(5), 5) for one in opaques]
            await until(lambda: len(server.seen) == 20)
            server.writers[0].close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, ConnectionClosed) for result in results)
            with pytest.raises(ConnectionClosed, match="was not sent"):
                channel.submit(1, b"", 0, 0)
            with pytest.raises(ConnectionClosed, match="was not sent"):
                channel.push(b"")
            await channel.aclose()

    run(main)


def test_opaques_stay_in_their_half() -> None:
    async def main() -> None:
        async with tiny_server(silent) as server:
            channel = await Channel.connect(server.addr)
            assert channel.next_opaque() == FIRST_OPAQUE
            channel._hot._opaque = LAST_OPAQUE - 1
            assert [channel.next_opaque(), channel.next_opaque()] == [LAST_OPAQUE, FIRST_OPAQUE]
            channel._opaque = FIRST_OPAQUE - 1
            command = request(10)
            channel.oneway(command)
            assert command.opaque < FIRST_OPAQUE
            await channel.aclose()

    run(main)
