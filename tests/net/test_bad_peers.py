"""Peers that behave badly: probes, half a frame, answers never read, silence. Memory and descriptors stay bounded."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import encode, request
from tests.net.misuse import MAX_PARTIAL, TOPIC
from tests.support.raw_client import RawClient, pull_ext, send_ext
from tests.support.server_process import ServerProcess

MIB = 1 << 20
KEPT_BLOCKS = 2 * 31 * MIB  # the C library trims at twice the largest block that it keeps

pytestmark = pytest.mark.usefixtures("still_serves")


def test_a_thousand_probes(addr: str, server: ServerProcess) -> None:
    host, _, port = addr.rpartition(":")
    before = open_files(server.pid)
    for number in range(1000):
        probe = socket.create_connection((host, int(port)), timeout=5)
        if number % 3 == 0:
            # Gone without a good-bye: the server sees a reset.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        probe.close()
    asyncio.run(_settle(lambda: open_files(server.pid) <= before + 5))


def test_half_a_frame_and_then_nothing(server: ServerProcess) -> None:
    async def talk() -> None:
        clients = [await RawClient(server.broker_addr).connect() for _ in range(200)]
        data = encode(request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0), b"never whole"))
        for number, client in enumerate(clients):
            client.writer.write(data[: 1 + number % (len(data) - 1)])
        await asyncio.sleep(0.2)
        for client in clients:
            client.writer.transport.abort()

    before = open_files(server.pid)
    asyncio.run(talk())
    asyncio.run(_settle(lambda: open_files(server.pid) <= before + 5))


def test_unfinished_frames_are_bounded_over_all_connections(server: ServerProcess) -> None:
    """Each may be as long as a frame, all together only as long as maxInFlightBytes."""

    async def talk() -> int:
        clients = [await RawClient(server.broker_addr).connect() for _ in range(24)]
        for client in clients:
            client.writer.write(struct.pack(">I", MIB) + bytes(900_000))
        await asyncio.sleep(1)
        grown = memory(server.pid) - before
        ended = [client for client in clients if client.reader.at_eof() or client.writer.is_closing()]
        for client in clients:
            try:
                async with asyncio.timeout(0.05):
                    if not await client.reader.read(1):
                        ended.append(client)
            except TimeoutError:
                continue
            except ConnectionError:
                ended.append(client)
        for client in clients:
            client.writer.transport.abort()
        assert len(set(ended)) >= 24 - MAX_PARTIAL // 900_000 - 1
        return grown

    before = memory(server.pid)
    assert asyncio.run(talk()) < 3 * MAX_PARTIAL
    assert "maxInFlightBytes" in server.printed


def test_pulls_that_are_never_read_take_bounded_memory(server: ServerProcess) -> None:
    async def talk() -> int:
        async with RawClient(server.broker_addr) as filler:
            for _ in range(40):
                await filler.ok(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 1), bytes(100_000))
        clients = [await RawClient(server.broker_addr).connect() for _ in range(5)]
        for client in clients:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            pulls = [request(RequestCode.PULL_MESSAGE, pull_ext(TOPIC, 1, 5)) for _ in range(2000)]
            client.write(pulls)
        await asyncio.sleep(2)
        grown = memory(server.pid) - before
        for client in clients:
            client.writer.transport.abort()
        return grown

    # 10 000 answers of 200 KB are asked for. Eight MiB and what is under way may wait on each connection. Of what is
    # freed the C library keeps as much as `orbitmq.allocation` lets it, once: a second time next to nothing is added.
    for kept in (KEPT_BLOCKS, 8 * MIB):
        before = memory(server.pid)
        assert asyncio.run(talk()) < 5 * 16 * MIB
        asyncio.run(_settle(lambda most=before + kept: memory(server.pid) < most))


def test_held_pulls_that_are_never_read_take_bounded_memory(server: ServerProcess) -> None:
    """One message answers all pulls that wait for it; a peer that left thousands of them must read to get more."""

    async def talk() -> int:
        async with RawClient(server.broker_addr) as sender, RawClient(server.broker_addr) as greedy:
            end = await sender.max_offset(TOPIC, 2)
            greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
            greedy.write(
                [
                    request(RequestCode.PULL_MESSAGE, pull_ext(TOPIC, 2, end, suspend_ms=20_000))
                    for _ in range(5000)
                ]
            )
            await asyncio.sleep(0.5)
            for _ in range(3):
                await sender.ok(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 2), bytes(150_000))
            grown = memory(server.pid) - before
            greedy.writer.transport.abort()
            return grown

    before = memory(server.pid)
    assert asyncio.run(talk()) < 64 * MIB


def test_a_held_pull_of_a_slow_reader_is_answered_when_it_reads_again(server: ServerProcess) -> None:
    async def talk() -> None:
        async with RawClient(server.broker_addr) as sender, RawClient(server.broker_addr) as slow:
            end = await sender.max_offset(TOPIC, 2)
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            held = [
                request(RequestCode.PULL_MESSAGE, pull_ext(TOPIC, 2, end, suspend_ms=20_000))
                for _ in range(200)
            ]
            numbers = slow.write(held)
            await asyncio.sleep(0.3)
            await sender.ok(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 2), bytes(150_000))
            await asyncio.sleep(0.3)
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(10):
                for number in numbers:
                    assert (await slow.answer(number)).code == ResponseCode.SUCCESS

    asyncio.run(talk())


def test_silent_connections_are_closed(tmp_path: Path) -> None:
    async def talk() -> None:
        async with RawClient(server.broker_addr) as silent, RawClient(server.broker_addr) as stuck:
            await stuck.create_topic("Stuck", 1)
            for _ in range(30):
                await stuck.ok(RequestCode.SEND_MESSAGE_V2, send_ext("Stuck", 0), bytes(300_000))
            stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
            stuck.write([request(RequestCode.PULL_MESSAGE, pull_ext("Stuck", 0, n % 30)) for n in range(500)])
            own_port = stuck.writer.get_extra_info("sockname")[1]
            assert server_holds(server.port, own_port)
            assert await silent.hung_up()
            # One that never takes its answers cannot be closed politely; it has to go all the same.
            await _settle(lambda: not server_holds(server.port, own_port))

    with ServerProcess(tmp_path, serverChannelMaxIdleTimeSeconds=1, mappedFileSizeCommitLog=MIB) as server:
        asyncio.run(talk())


async def _settle(happened: Callable[[], bool], limit_s: float = 20) -> None:
    async with asyncio.timeout(limit_s):
        while not happened():
            await asyncio.sleep(0.1)


def memory(pid: int) -> int:
    """Anonymous memory in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the system does not tell")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def server_holds(server_port: int, client_port: int) -> bool:
    """Whether the server still has a descriptor for the connection between these two ports."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ports = [int(address.rpartition(":")[2], 16) for address in fields[1:3]]
        if ports == [server_port, client_port]:
            return fields[9] != "0"
    return False
