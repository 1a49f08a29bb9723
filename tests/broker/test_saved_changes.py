"""A topic that a tool was told is made, or gone, stays so when the broker is killed at that moment."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from orbitmq.wire.codes import RequestCode, ResponseCode
from tests.support.raw_client import RawClient, pull_ext
from tests.support.server_process import ServerProcess


async def make_and_kill(server: ServerProcess, name: str, gone: str) -> None:
    async with RawClient(server.broker_addr) as client:
        if gone:
            await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": gone})
        await client.create_topic(name, 3)
        os.kill(server.pid, signal.SIGKILL)


async def is_known(server: ServerProcess, name: str) -> bool:
    async with RawClient(server.broker_addr) as client:
        answer = await client.ask(RequestCode.PULL_MESSAGE, pull_ext(name, 2, 0))
        return answer.code != ResponseCode.TOPIC_NOT_EXIST


def test_an_answered_change_survives_a_kill_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, mappedFileSizeCommitLog=1 << 20) as server:
        before = ""
        for turn in range(4):
            name = f"Made{turn}"
            asyncio.run(make_and_kill(server, name, gone=before))
            server.wait_stopped()
            server.start()
            assert asyncio.run(is_known(server, name))
            assert not before or not asyncio.run(is_known(server, before))
            before = name


async def make_many(server: ServerProcess) -> None:
    async with RawClient(server.broker_addr) as one, RawClient(server.broker_addr) as other:
        for number in range(40):
            await asyncio.gather(one.create_topic(f"A{number}", 1), other.create_topic(f"B{number}", 1))


def test_many_who_wait_are_all_answered(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, mappedFileSizeCommitLog=1 << 20) as server:
        asyncio.run(asyncio.wait_for(make_many(server), 30))
