"""One real server for all the tests that misbehave towards it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from orbitmq.wire.codes import RequestCode
from orbitmq.wire.message import decode_records
from tests.net.misuse import MAX_BODY, MAX_PARTIAL, QUEUES, TOPIC
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("bad-input")
    with ServerProcess(
        directory,
        flushDiskType="ASYNC_FLUSH",
        autoCreateTopicEnable=False,
        maxMessageSize=MAX_BODY,
        maxInFlightBytes=MAX_PARTIAL,
        mappedFileSizeCommitLog=64 << 20,
        serverChannelMaxIdleTimeSeconds=120,
    ) as started:
        asyncio.run(_prepare(started.broker_addr))
        yield started
    assert "Traceback" not in started.printed, started.printed


async def _prepare(addr: str) -> None:
    async with RawClient(addr) as client:
        await client.create_topic(TOPIC, QUEUES)


@pytest.fixture
def still_serves(server: ServerProcess) -> Iterator[None]:
    """After every test a normal client sends and reads, at once."""
    yield
    assert server.running, server.printed

    async def normal() -> None:
        async with asyncio.timeout(5), RawClient(server.broker_addr) as client:
            sent = await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0), b"still here")
            answer = await client.pull(TOPIC, 0, int(sent.ext["queueOffset"]))
            assert decode_records(answer.body)[0].body == b"still here"

    asyncio.run(normal())
    asyncio.run(_namesrv_answers(server.namesrv))


async def _namesrv_answers(addr: str) -> None:
    async with asyncio.timeout(5), RawClient(addr) as client:
        await client.ok(RequestCode.GET_BROKER_CLUSTER_INFO)


@pytest.fixture(params=["broker", "name server"])
def addr(request: pytest.FixtureRequest, server: ServerProcess) -> str:
    return server.broker_addr if request.param == "broker" else server.namesrv
