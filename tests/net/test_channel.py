from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable

import pytest

from orbitmq.net import channel as channel_module
from orbitmq.net.channel import Channel, parse_addr
from orbitmq.net.errors import (
    ConnectFailed,
    ConnectionClosed,
    RequestError,
    RequestTimeout,
    SendRefused,
)
from orbitmq.wire.command import Command, encode, request
from tests.support.tiny_server import TinyServer, echo, run, silent, tiny_server, until


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("broker-a.svc:10911", ("broker-a.svc", 10911)),
        ("[::1]:10911", ("::1", 10911)),
        (" host:1 ", ("host", 1)),
    ],
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert parse_addr(text) == parsed


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":9876", "host:abc", "host:0", "host:65536", "host:-1"]
)
def test_a_bad_address_is_named_and_never_retried(text: str) -> None:
    with pytest.raises(ConnectFailed, match="is not an address") as caught:
        parse_addr(text)
    assert not caught.value.retryable


def test_answers_find_their_requests_in_any_order() -> None:
    held: list[Command] = []

    async def backwards(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        held.append(cmd)
        if len(held) == 50:
            for each in reversed(held):
                writer.write(encode(each.reply(body=each.body)))

    async def main() -> None:
        async with tiny_server(backwards) as server:
            channel = await Channel.connect(server.addr)
            bodies = [b"%d" % n for n in range(50)]
            answers = await asyncio.gather(*(channel.request(request(10, body=body)) for body in bodies))
            assert [answer.body for answer in answers] == bodies
            assert len({cmd.opaque for cmd in held}) == 50
            await channel.aclose()

    run(main)


def test_an_error_answer_is_an_answer() -> None:
    async def refuse(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        writer.write(encode(cmd.reply(17, remark="no such topic")))

    async def main() -> None:
        async with tiny_server(refuse) as server:
            channel = await Channel.connect(server.addr)
            answer = await channel.request(request(105, {"topic": "T"}))
            assert (answer.code, answer.remark) == (17, "no such topic")
            await channel.aclose()

    run(main)


def test_a_silent_server_ends_in_a_timeout_and_the_channel_lives_on() -> None:
    async def late(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        if cmd.ext:
            await asyncio.sleep(0.1)
        await echo(server, writer, cmd)

    async def main() -> None:
        async with tiny_server(late) as server:
            channel = await Channel.connect(server.addr)
            with pytest.raises(RequestTimeout, match=r"did not answer PULL_MESSAGE within 0.03 s") as caught:
                await channel.request(request(11, {"late": "yes"}), timeout_s=0.03)
            assert caught.value.retryable
            # The late answer must not be taken for the answer to this one.
            answer = await channel.request(request(11, body=b"second"))
            assert answer.body == b"second"
            await channel.aclose()

    run(main)


def test_a_lost_connection_fails_everything_that_waits() -> None:
    async def main() -> None:
        lost: list[Channel] = []
        async with tiny_server(silent) as server:
            channel = await Channel.connect(server.addr, on_lost=lost.append)
            waiting = [asyncio.create_task(channel.request(request(10), timeout_s=10)) for _ in range(5)]
            await until(lambda: len(server.seen) == 5)
            server.writers[0].close()
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(result, ConnectionClosed) for result in results)
            assert "the server closed it" in str(results[0])
            assert channel.closed
            assert lost == [channel]
            with pytest.raises(ConnectionClosed, match="was not sent"):
                await channel.request(request(10))
            with pytest.raises(ConnectionClosed):
                channel.oneway(request(10))
            await channel.wait_closed()

    run(main)


def test_closing_on_this_side_fails_waiters_and_still_writes_what_was_sent() -> None:
    async def main() -> None:
        async with tiny_server(silent) as server:
            channel = await Channel.connect(server.addr)
            waiting = asyncio.create_task(channel.request(request(10)))
            await asyncio.sleep(0)
            channel.oneway(request(15, body=b"last words"))
            channel.close()
            with pytest.raises(ConnectionClosed, match="closed on this side"):
                await waiting
            await channel.wait_closed()
            await until(lambda: len(server.seen) == 2)
            assert server.seen[-1].is_oneway
            assert server.seen[-1].body == b"last words"
            await channel.aclose()

    run(main)


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with tiny_server(silent) as server:
            channel = await Channel.connect(server.addr)
            waiting = asyncio.create_task(channel.request(request(10), timeout_s=10))
            await until(lambda: len(server.seen) == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not channel._pending
            await channel.aclose()

    run(main)


def test_no_server_no_connection() -> None:
    async def main() -> None:
        async with tiny_server(silent) as server:
            addr = server.addr
        with pytest.raises(ConnectFailed, match=f"could not connect to {addr}") as caught:
            await Channel.connect(addr)
        assert caught.value.retryable
        assert caught.value.hint

    run(main)


def test_frames_in_single_bytes_are_put_together() -> None:
    async def drip(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        for byte in encode(cmd.reply(body=b"x" * 40)):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)

    async def main() -> None:
        async with tiny_server(drip) as server:
            channel = await Channel.connect(server.addr)
            assert (await channel.request(request(10))).body == b"x" * 40
            await channel.aclose()

    run(main)


@pytest.mark.parametrize(
    "junk",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x08\x00\x00\x00\x04{]xx"],
)
def test_junk_from_the_server_closes_the_channel(junk: bytes) -> None:
    async def answer(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        writer.write(junk)

    async def main() -> None:
        async with tiny_server(answer) as server:
            channel = await Channel.connect(server.addr)
            with pytest.raises(ConnectionClosed, match="cannot be read"):
                await channel.request(request(10))
            assert channel.closed
            await channel.wait_closed()

    run(main)


def test_a_request_larger_than_a_frame_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        async with tiny_server(echo) as server:
            channel = await Channel.connect(server.addr)
            with pytest.raises(SendRefused, match="SEND_MESSAGE") as caught:
                await channel.request(request(10, body=bytes(17 * 1024 * 1024)))
            assert not caught.value.retryable
            assert (await channel.request(request(10, body=b"small"))).body == b"small"
            await channel.aclose()

    run(main)


def test_requests_of_one_turn_leave_in_one_write() -> None:
    async def main() -> None:
        async with tiny_server(echo) as server:
            channel = await Channel.connect(server.addr)
            writes: list[int] = []
            transport = channel._transport
            assert transport is not None

            class Counting:
                def write(self, data: bytes) -> None:
                    writes.append(len(data))
                    transport.write(data)

                def __getattr__(self, name: str) -> object:
                    return getattr(transport, name)

            channel._transport = Counting()  # type: ignore[assignment]
            await asyncio.gather(*(channel.request(request(10)) for _ in range(100)))
            assert len(writes) == 1
            channel._transport = transport
            await channel.aclose()

    run(main)


def test_back_pressure_when_the_server_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "WRITE_HARD_BYTES", 24 * 1024 * 1024)
    go_on = asyncio.Event()

    async def stuck(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        await go_on.wait()

    async def main() -> None:
        async with tiny_server(stuck) as server:
            channel = await Channel.connect(server.addr)
            block = request(10, body=bytes(256 * 1024))
            with pytest.raises(RequestTimeout, match="does not read"):
                collections.deque((channel.oneway(block) for _ in range(400)), maxlen=0)
            with pytest.raises(RequestTimeout, match="was not sent within"):
                await channel.request(request(10), timeout_s=0.05)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await channel.drain()
            sent = channel._opaque
            go_on.set()
            await channel.drain()
            await until(lambda: len(server.seen) >= sent - 2)
            await channel.aclose()

    run(main)


def test_a_stuck_server_cannot_hold_up_closing() -> None:
    go_on = asyncio.Event()

    async def stuck(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        await go_on.wait()

    async def main() -> None:
        async with tiny_server(stuck) as server:
            channel = await Channel.connect(server.addr)
            for _ in range(110):
                channel.oneway(request(10, body=bytes(256 * 1024)))
            draining = asyncio.create_task(channel.drain())
            await asyncio.sleep(0.01)
            async with asyncio.timeout(3):
                await channel.aclose()
            with pytest.raises(ConnectionClosed):
                await draining
            go_on.set()

    run(main)


async def ask_back(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
    """Sends requests 1000..1003 of its own after the first request, then answers it."""
    if not cmd.is_response:
        for n in range(4):
            writer.write(encode(Command(code=1000 + n, opaque=n, flag=2 if n == 3 else 0)))
        writer.write(encode(cmd.reply()))


def test_requests_of_the_server_are_served() -> None:
    def on_request(channel: Channel, cmd: Command) -> Command | Awaitable[Command | None] | None:
        async def later() -> Command | None:
            await asyncio.sleep(0.01)
            if cmd.code == 1002:
                raise RuntimeError("boom")
            return cmd.reply(body=b"later")

        if cmd.code == 1000:
            raise RequestError(206, "not here")
        return later()

    async def main() -> None:
        async with tiny_server(ask_back) as server:
            channel = await Channel.connect(server.addr, on_request=on_request)
            await channel.request(request(34))
            await until(lambda: len(server.seen) == 4)
            await asyncio.sleep(0.02)
            answers = {cmd.opaque: cmd for cmd in server.seen if cmd.is_response}
            assert sorted(answers) == [0, 1, 2], "a oneway request gets no answer"
            assert (answers[0].code, answers[0].remark) == (206, "not here")
            assert (answers[1].code, answers[1].body) == (0, b"later")
            assert (answers[2].code, answers[2].remark) == (1, "RuntimeError: boom")
            await channel.aclose()

    run(main)


def test_without_a_callback_requests_of_the_server_are_unsupported() -> None:
    async def main() -> None:
        async with tiny_server(ask_back) as server:
            channel = await Channel.connect(server.addr)
            await channel.request(request(34))
            await until(lambda: len(server.seen) == 4)
            assert {cmd.code for cmd in server.seen if cmd.is_response} == {3}
            await channel.aclose()

    run(main)


def test_too_many_requests_of_the_server_get_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "MAX_SERVED_AT_ONCE", 2)

    async def never(channel: Channel, cmd: Command) -> Command | None:
        await asyncio.sleep(60)
        return None

    async def main() -> None:
        async with tiny_server(ask_back) as server:
            channel = await Channel.connect(server.addr, on_request=never)
            await channel.request(request(34))
            await until(lambda: any(cmd.is_response for cmd in server.seen))
            assert [(cmd.opaque, cmd.code) for cmd in server.seen if cmd.is_response] == [(2, 2)]
            # Closing cancels what is still being served; `run` checks that no task is left.
            await channel.aclose()

    run(main)
