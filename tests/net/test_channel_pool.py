from __future__ import annotations

import asyncio

import pytest

from orbitmq.net.channel import Channel, ChannelPool, parse_addr
from orbitmq.net.errors import ConnectFailed, ConnectionClosed
from orbitmq.wire.command import request
from tests.support.tiny_server import TinyServer, echo, run, silent, tiny_server, until


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
