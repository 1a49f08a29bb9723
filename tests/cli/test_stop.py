"""Stopping with company: held pulls, open connections, stuck readers, load, and name servers that do not answer."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from random import Random

import pytest

from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from tests.support.checker import Checker
from tests.support.load import Ledger, finish, load_until
from tests.support.raw_client import RawClient, pull_ext, send_ext
from tests.support.server_process import BrokerProcess, OrbitProcess, ServerProcess, free_port

SMALL = {"mappedFileSizeCommitLog": 1 << 20}
LIMIT_S = 10


def stops_in_time(server: OrbitProcess, how: signal.Signals = signal.SIGTERM) -> None:
    started = time.monotonic()
    server.process.send_signal(how)
    assert server.wait_stopped(LIMIT_S) == 0, server.printed
    assert time.monotonic() - started < LIMIT_S
    assert "Traceback" not in server.printed, server.printed


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_held_pulls_are_answered_and_readers_that_are_stuck_left_behind(
    tmp_path: Path, how: signal.Signals
) -> None:
    async def talk() -> None:
        async with RawClient(server.broker_addr) as waiting, RawClient(server.broker_addr) as stuck:
            idle = [await RawClient(server.broker_addr).connect() for _ in range(50)]
            await waiting.create_topic("Held", 2)
            for _ in range(20):
                await waiting.ok(RequestCode.SEND_MESSAGE_V2, send_ext("Held", 1), bytes(200_000))
            stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
            stuck.write([request(RequestCode.PULL_MESSAGE, pull_ext("Held", 1, 0)) for _ in range(500)])
            held = waiting.write(
                [
                    request(RequestCode.PULL_MESSAGE, pull_ext("Held", 0, 0, suspend_ms=60_000))
                    for _ in range(20)
                ]
            )
            await asyncio.sleep(0.3)
            await asyncio.to_thread(stops_in_time, server, how)
            for number in held:
                assert (await waiting.answer(number)).code == ResponseCode.PULL_NOT_FOUND
            assert await waiting.hung_up()
            for client in idle:
                await client.close()

    with ServerProcess(tmp_path, **SMALL) as server:
        asyncio.run(talk())


def test_a_stop_under_load_loses_nothing_acknowledged(tmp_path: Path) -> None:
    ledger, random = Ledger(), Random(4)

    async def load() -> None:
        tasks = await load_until(server.broker_addr, ledger, {"Load": 4}, random, 0.5)
        await asyncio.to_thread(stops_in_time, server)
        await finish(tasks)

    async def look() -> None:
        async with RawClient(server.broker_addr) as client:
            await Checker(ledger).check(client, random)

    with ServerProcess(tmp_path, **SMALL) as server:
        asyncio.run(load())
        assert not (server.data / "abort").exists(), "the stop was in good order, the store says otherwise"
        server.start()
        asyncio.run(look())
    assert "was not stopped in good order" not in server.printed
    assert len(ledger.acks) > 100


def test_a_broker_stops_without_its_name_server(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, f"127.0.0.1:{free_port()}", "alone", **SMALL) as broker:
        stops_in_time(broker)


def test_a_second_signal_changes_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **SMALL) as server:
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGINT)
        stops_in_time(server)


def test_a_signal_during_the_start_is_heeded(tmp_path: Path) -> None:
    for delay_s in (0.25, 0.35, 0.45, 0.6):
        server = ServerProcess(tmp_path, wait=False, **SMALL)
        time.sleep(delay_s)
        server.process.send_signal(signal.SIGTERM)
        # Before Python can listen, the system ends it; afterwards it stops in good order.
        assert server.wait_stopped(LIMIT_S) in (0, -signal.SIGTERM)
        assert "Traceback" not in server.printed


def test_settings_that_cannot_be_read_are_told_in_one_line(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **SMALL) as server:
        server.stop()
        for name in ("topics.json", "topics.json.bak"):
            (server.data / "config" / name).write_text('{"topicConfigTable": {"broken')
        server.output.clear()
        server.start(wait=False)
        assert server.wait_stopped(LIMIT_S) == 1
        assert "topics.json" in server.printed
        assert "repair or remove" in server.printed
        assert "Traceback" not in server.printed


def test_a_log_of_another_size_is_told_in_one_line(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **SMALL) as server:
        server.stop()
    other = ServerProcess(tmp_path, wait=False, mappedFileSizeCommitLog=2 << 20)
    assert other.wait_stopped(LIMIT_S) == 1
    assert "mappedFileSizeCommitLog" in other.printed
    assert "Traceback" not in other.printed
