from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from orbitmq.net import channel as channel_module
from orbitmq.net.channel import Channel, ChannelPool, parse_addr
from orbitmq.net.errors import (
    ConnectFailed,
    ConnectionClosed,
    RequestError,
    RequestTimeout,
    SendRefused,
)
from orbitmq.wire.command import Command, decode, encode, request
from orbitmq.wire.frame import FrameReader

Answer = Callable[["TinyServer", asyncio.StreamWriter, Command], Awaitable[None]]


class TinyServer:
    """Reads frames, hands each to `answer`, keeps everything it saw."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[Command] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.accepted = 0
        self.addr = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)
        frames = FrameReader()
        try:
            while data := await reader.read(65536):
                for frame in frames.feed(data):
                    cmd = decode(frame)
                    self.seen.append(cmd)
                    await self.answer(self, writer, cmd)
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def tiny_server(answer: Answer) -> AsyncIterator[TinyServer]:
    tiny = TinyServer(answer)
    server = await asyncio.start_server(tiny.serve, "127.0.0.1", 0)
    tiny.addr = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tiny
    finally:
        server.close()
        for writer in tiny.writers:
            writer.close()
        await asyncio.sleep(0.02)


async def echo(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
    if not cmd.is_oneway and not cmd.is_response:
        writer.write(encode(cmd.reply(ext=dict(cmd.ext), body=cmd.body)))


async def silent(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
    return


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, f"tasks left behind: {others}"

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


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
    monkeypatch.setattr(channel_module, "WRITE_HARD_BYTES", 4 * 1024 * 1024)
    go_on = asyncio.Event()

    async def stuck(server: TinyServer, writer: asyncio.StreamWriter, cmd: Command) -> None:
        await go_on.wait()

    async def main() -> None:
        async with tiny_server(stuck) as server:
            channel = await Channel.connect(server.addr)
            block = request(10, body=bytes(256 * 1024))
            with pytest.raises(RequestTimeout, match="does not read"):
                collections.deque((channel.oneway(block) for _ in range(200)), maxlen=0)
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
            for _ in range(40):
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


def test_the_pool_shares_one_connection() -> None:
    async def main() -> None:
        async with tiny_server(echo) as server:
            pool = ChannelPool()
            assert pool.peek(server.addr) is None
            channels = await asyncio.gather(*(pool.get(server.addr) for _ in range(20)))
            assert len(set(map(id, channels))) == 1
            assert pool.peek(server.addr) is channels[0]
            assert (await pool.request(server.addr, request(10, body=b"b"))).body == b"b"
            await pool.oneway(server.addr, request(15))
            await until(lambda: len(server.seen) == 2)
            assert server.accepted == 1
            await pool.close()

    run(main)


def test_the_pool_replaces_a_dead_channel() -> None:
    async def main() -> None:
        lost: list[Channel] = []
        async with tiny_server(echo) as server:
            pool = ChannelPool(on_lost=lost.append)
            first = await pool.get(server.addr)
            server.writers[0].close()
            await first.wait_closed()
            assert lost == [first]
            assert pool.peek(server.addr) is None
            second = await pool.get(server.addr)
            assert second is not first
            pool.drop(server.addr)
            assert second.closed
            third = await pool.get(server.addr)
            assert not third.closed
            assert server.accepted == 3
            await pool.close()
            assert third.closed

    run(main)


def test_a_failed_connect_fails_all_who_wait_and_is_tried_again() -> None:
    async def main() -> None:
        async with tiny_server(silent) as server:
            addr = server.addr
        pool = ChannelPool()
        results = await asyncio.gather(*(pool.get(addr) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(result, ConnectFailed) for result in results)
        host, port = parse_addr(addr)
        tiny = TinyServer(echo)
        server = await asyncio.start_server(tiny.serve, host, port)
        channel = await pool.get(addr)
        assert (await channel.request(request(10))).code == 0
        await pool.close()
        server.close()
        await asyncio.sleep(0.02)

    run(main)


def test_one_impatient_caller_does_not_spoil_the_connect_for_others() -> None:
    async def main() -> None:
        async with tiny_server(echo) as server:
            pool = ChannelPool()
            impatient = asyncio.create_task(pool.get(server.addr))
            patient = asyncio.create_task(pool.get(server.addr))
            await asyncio.sleep(0)
            impatient.cancel()
            assert not (await patient).closed
            await pool.close()

    run(main)


def test_a_closed_pool_connects_no_more_and_leaves_nothing() -> None:
    async def main() -> None:
        async with tiny_server(silent) as server:
            pool = ChannelPool()
            waiting = asyncio.create_task(pool.get(server.addr))
            await asyncio.sleep(0)
            await pool.close()
            result = (await asyncio.gather(waiting, return_exceptions=True))[0]
            assert isinstance(result, asyncio.CancelledError) or (
                isinstance(result, Channel) and result.closed
            )
            with pytest.raises(ConnectionClosed, match="channels were closed"):
                await pool.get(server.addr)

    run(main)


def test_the_name_is_resolved_at_each_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with tiny_server(echo) as server:
            loop = asyncio.get_running_loop()
            real = loop.getaddrinfo
            asked: list[object] = []

            async def counting(host: object, *args: object, **kwargs: object) -> object:
                if host == "moving.invalid":
                    asked.append(host)
                    host = "127.0.0.1"
                return await real(host, *args, **kwargs)  # type: ignore[arg-type]

            monkeypatch.setattr(loop, "getaddrinfo", counting)
            pool = ChannelPool()
            addr = "moving.invalid:" + server.addr.rpartition(":")[2]
            await pool.request(addr, request(10))
            pool.drop(addr)
            await pool.request(addr, request(10))
            assert len(asked) == 2
            await pool.close()

    run(main)
