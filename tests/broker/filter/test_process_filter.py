"""SQL92 filters of a real broker, asked for as clients ask."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from orbitmq.client.cluster import Cluster
from orbitmq.client.sender import Sender
from orbitmq.wire import bodies
from orbitmq.wire.codes import PullFlag, RequestCode, ResponseCode
from orbitmq.wire.message import decode_records
from orbitmq.wire.properties import encode_properties
from tests.broker.fakes import beat, consumer, subscribe
from tests.support.commands import Commands
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("filter")
    with ServerProcess(directory, mappedFileSizeCommitLog=16 << 20, enablePropertyFilter=True) as running:
        yield running


async def send(server: ServerProcess, topic: str, rows: list[dict[str, str]]) -> None:
    async with Cluster(server.namesrv) as cluster:
        sender = Sender(cluster, "p")
        for row in rows:
            await sender.send(sender.prepare(topic, row["body"].encode(), properties=row), queue_id=0)


def row(number: int) -> dict[str, str]:
    return {"body": f"m{number}", "a": str(number), "color": "red" if number % 2 else "blue"}


async def pull(
    client: RawClient, group: str, topic: str, offset: int = 0, *, sql: str = "", suspend_ms: int = 0
) -> tuple[int, list[str], str]:
    """First code, bodies and first remark; pulls on as clients do until nothing is left.

    With `sql` a pull brings its subscription along.
    """
    flags = (PullFlag.SUBSCRIPTION if sql else 0) | (PullFlag.SUSPEND if suspend_ms else 0)
    ext = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(flags),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subVersion": "1",
    }
    if sql:
        ext |= {"subscription": sql, "expressionType": "SQL92"}
    answer = await client.ask(RequestCode.PULL_MESSAGE, ext)
    code, remark, found = answer.code, answer.remark or "", []
    while answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
        found += decode_records(answer.body)
        ext["queueOffset"] = answer.ext["nextBeginOffset"]
        if int(answer.ext["nextBeginOffset"]) >= int(answer.ext["maxOffset"]):
            break
        answer = await client.ask(RequestCode.PULL_MESSAGE, ext)
    return code, [message.body.decode() for message in found], remark


async def join(client: RawClient, group: str, topic: str, sql: str) -> None:
    body = bodies.encode(beat(f"{group}-1", consumer(group, subscribe(topic, sql, kind="SQL92"))))
    await client.ok(RequestCode.HEART_BEAT, body=body)


def test_a_group_gets_what_its_expression_wants_and_its_filter_is_saved(server: ServerProcess) -> None:
    async def main() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic("FilterA", 1)
            await send(server, "FilterA", [row(n) for n in range(12)])
            await join(client, "sql-a", "FilterA", "a BETWEEN 3 AND 8 AND color LIKE '_ed'")
            assert await pull(client, "sql-a", "FilterA") == (0, ["m3", "m5", "m7"], "FOUND")
            code, found, _ = await pull(client, "pull", "FilterA", sql="a > 100")
            assert (code, found) == (ResponseCode.PULL_RETRY_IMMEDIATELY, [])
            assert (await pull(client, "pull", "FilterA", sql="color IN ('blue') AND a < 3"))[1] == [
                "m0",
                "m2",
            ]

            await asyncio.sleep(1.2)  # the table follows the clients every second

    asyncio.run(main())
    server.restart()
    saved = json.loads((server.data / "config" / "consumerFilter.json").read_text())
    data = saved["filterDataByTopic"]["FilterA"]["groupFilterData"]["sql-a"]
    assert (data["expression"], data["dead"]) == ("a BETWEEN 3 AND 8 AND color LIKE '_ed'", True)


def test_a_held_pull_wakes_up_for_a_match_and_sleeps_on_otherwise(server: ServerProcess) -> None:
    async def main() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic("FilterHeld", 1)
            await join(client, "sql-held", "FilterHeld", "color = 'red'")
            held = asyncio.create_task(pull(client, "sql-held", "FilterHeld", suspend_ms=8000))
            await send(server, "FilterHeld", [row(0), row(2)])
            await asyncio.sleep(0.3)
            assert not held.done()
            started = time.monotonic()
            await send(server, "FilterHeld", [row(1)])
            assert (await held)[1] == ["m1"]
            assert time.monotonic() - started < 6

    asyncio.run(main())


def test_a_wrong_expression_is_refused_when_subscribing_and_when_pulling(server: ServerProcess) -> None:
    async def main() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic("FilterBad", 1)
            check = bodies.CheckClientBody(
                client_id="c", group="g", subscription_data=subscribe("FilterBad", "a > > 3", kind="SQL92")
            )
            answer = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=bodies.encode(check))
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "at character 5" in (answer.remark or "")
            await join(client, "sql-bad", "FilterBad", "a > > 3")  # heartbeats are taken as they come
            code, _, remark = await pull(client, "sql-bad", "FilterBad")
            assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "at character 5" in remark
            assert (await pull(client, "g", "FilterBad", sql="(" * 5000))[0] == 23
            assert (await pull(client, "g", "FilterBad", sql="a = 'x"))[0] == 23

    asyncio.run(main())


def test_without_the_switch_sql_is_refused_and_tags_still_work(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    orbitmq = Commands(capsys, server.namesrv)
    orbitmq.ok("cluster", "config", "broker-a", "--set", "enablePropertyFilter=false")

    async def main() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic("FilterOff", 1)
            code, _, remark = await pull(client, "g", "FilterOff", sql="a = 1")
            assert (code, "enablePropertyFilter=true" in remark) == (ResponseCode.SYSTEM_ERROR, True)
            check = bodies.CheckClientBody(
                client_id="c", group="g", subscription_data=subscribe("FilterOff", "a = 1", kind="SQL92")
            )
            answer = await client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=bodies.encode(check))
            assert answer.code == ResponseCode.SYSTEM_ERROR

    try:
        asyncio.run(main())
    finally:
        orbitmq.ok("cluster", "config", "broker-a", "--set", "enablePropertyFilter=true")


def test_retried_messages_are_filtered_again_only_when_asked_for(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    orbitmq = Commands(capsys, server.namesrv)

    async def read(group: str) -> list[str]:
        retry = f"%RETRY%{group}"
        async with RawClient(server.broker_addr) as client:
            subscriptions = (subscribe("FilterRetry", "color = 'red'", kind="SQL92"), subscribe(retry))
            body = bodies.encode(beat(f"{group}-1", consumer(group, *subscriptions)))
            await client.ok(RequestCode.HEART_BEAT, body=body)
            for number in range(4):
                text = encode_properties({**row(number), "RETRY_TOPIC": "FilterRetry"}).decode()
                await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(retry, 0, text), b"m%d" % number)
            return (await pull(client, group, retry))[1]

    assert asyncio.run(read("retry-plain")) == ["m0", "m1", "m2", "m3"]
    orbitmq.ok("cluster", "config", "broker-a", "--set", "filterSupportRetry=true")
    try:
        assert asyncio.run(read("retry-filtered")) == ["m1", "m3"]
    finally:
        orbitmq.ok("cluster", "config", "broker-a", "--set", "filterSupportRetry=false")


def test_tags_are_told_apart_by_text_where_their_hashes_clash(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """`AaAa` and `BBBB` have the same hash: the broker sends both, `tail` shows the one asked for."""
    orbitmq = Commands(capsys, server.namesrv)
    orbitmq.ok("topic", "create", "FilterTags", "--queues", "1")
    for tag in ("AaAa", "BBBB", "CCCC"):
        orbitmq.ok("send", "FilterTags", f"body-{tag}", "--tag", tag)
    shown = orbitmq.ok(
        "tail", "FilterTags", "--from", "first", "--no-follow", "--tag", "BBBB", "--json"
    ).json_lines
    assert [message["tag"] for message in shown] == ["BBBB"]
