"""`orbitmq message trace` on reports written as official clients write them, into a real broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from orbitmq.wire.codes import RequestCode
from orbitmq.wire.properties import encode_properties
from orbitmq.wire.topics import TRACE_TOPIC
from orbitmq.wire.trace import PubTrace, SubAfterTrace, SubBeforeTrace, Trace, encode_traces, trace_keys
from tests.support.commands import Commands
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import ServerProcess

MSG_ID = "7F0000010000" + "2A9F" * 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("trace"), mappedFileSizeCommitLog=16 << 20, traceTopicEnable=True
    ) as running:
        yield running


@pytest.fixture
def orbitmq(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys, server.namesrv)


async def send(client: RawClient, topic: str, body: bytes, **properties: str) -> str:
    text = encode_properties(properties).decode()
    return (await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(topic, 0, text), body)).ext["msgId"]


async def report(client: RawClient, topic: str, *traces: Trace) -> None:
    """One trace message: a batch of contexts under the ids and keys of all of them."""
    await send(
        client, topic, encode_traces(traces), KEYS=trace_keys(traces), UNIQ_KEY=f"T{time.time_ns():031d}"
    )


@pytest.fixture(scope="module")
def offset_id(server: ServerProcess) -> str:
    """A message sent, delivered, failed once, retried and consumed; all of it reported."""

    async def work() -> str:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic("Orders", 1)
            now = time.time_ns() // 1_000_000
            found = await send(client, "Orders", b"hello", UNIQ_KEY=MSG_ID, KEYS="order-42", TAGS="paid")
            sent = PubTrace(
                now, "R", "pg", "Orders", MSG_ID, "paid", "order-42", server.broker_addr, 5, 4, 0, found, True
            )
            await report(
                client,
                TRACE_TOPIC,
                sent,
                PubTrace(now, "R", "pg", "Orders", "OTHER", None, "x", "h", 1, 1, 0, "o", True),
            )
            await report(
                client, TRACE_TOPIC, SubBeforeTrace(now + 60_000, "R", "cg", "req-1", MSG_ID, 0, "order-42")
            )
            await report(
                client,
                TRACE_TOPIC,
                SubAfterTrace("req-1", MSG_ID, 9, False, "order-42", 4, now + 60_009, "cg"),
            )
            await send(client, "%RETRY%cg", b"hello", UNIQ_KEY=MSG_ID, RETRY_TOPIC="Orders")
            await report(
                client,
                TRACE_TOPIC,
                SubBeforeTrace(now + 120_000, "R", "cg", "req-2", MSG_ID, 1, "order-42"),
                SubAfterTrace("req-2", MSG_ID, 2, True, "order-42", 0, now + 120_002, "cg"),
            )
            await asyncio.sleep(0.3)  # the key index follows the log
            return found

    return asyncio.run(work())


def test_the_time_line_of_a_message(orbitmq: Commands, server: ServerProcess, offset_id: str) -> None:
    line = orbitmq.ok("message", "trace", MSG_ID, "--json").json
    assert (line["msg_id"], line["topic"], line["tag"], line["keys"]) == (
        MSG_ID,
        "Orders",
        "paid",
        ["order-42"],
    )
    what = [event["what"] for event in line["events"]]
    assert sorted(what[:3]) == ["sent", "stored", "stored to be retried by cg"]
    assert what[3:] == ["delivered", "failed", "delivered (retry 1)", "consumed"]
    stored = next(event for event in line["events"] if event["what"] == "stored")
    assert stored["place"] == f"{server.broker_addr} Orders queue 0 offset 0"
    assert [event["cost_ms"] for event in line["events"] if event["cost_ms"]] == [4, 9, 2]


def test_the_same_by_key_and_by_offset_id(orbitmq: Commands, offset_id: str) -> None:
    by_id = orbitmq.ok("message", "trace", MSG_ID, "--json").json
    assert orbitmq.ok("message", "trace", "order-42", "--json").json == by_id
    assert orbitmq.ok("message", "trace", offset_id, "--json").json == by_id


def test_a_page_for_people(orbitmq: Commands, offset_id: str) -> None:
    shown = orbitmq.ok("message", "trace", "order-42").out
    assert f"{MSG_ID}  topic Orders, tag paid, keys order-42" in shown
    assert "delivered (retry 1)" in shown
    assert "cg: consumed after 120,002 ms, 2 tries" in shown


def test_without_reports_the_stored_message_is_still_shown(orbitmq: Commands, server: ServerProcess) -> None:
    async def work() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic("Silent", 1)
            await send(client, "Silent", b"x", UNIQ_KEY="S" * 32, KEYS="quiet")
            await asyncio.sleep(0.3)

    asyncio.run(work())
    missing = orbitmq("message", "trace", "quiet", "--json")
    assert missing.code == 3
    assert "no client reported anything about 'quiet'" in missing.error["error"]
    line = orbitmq.ok("message", "trace", "quiet", "--topic", "Silent", "--json").json
    assert [event["what"] for event in line["events"]] == ["born", "stored"]


def test_a_missing_trace_topic_is_named_with_the_fix(orbitmq: Commands) -> None:
    ended = orbitmq("message", "trace", "x", "--trace-topic", "NoTraces", "--json")
    assert ended.code == 3
    assert "there is no trace topic 'NoTraces'" in ended.error["error"]
    assert "traceTopicEnable=true" in ended.error["hint"]


def test_many_reports_about_one_key_are_all_found(orbitmq: Commands, server: ServerProcess) -> None:
    """More than a broker gives at once, and a garbled one among them."""

    async def work() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic("MyTraces", 1)
            await send(client, "MyTraces", b"Pub\x01garbled\x02", KEYS="hot")
            for number in range(150):
                trace = SubBeforeTrace(
                    1_700_000_000_000 + number, "R", "cg", f"r{number}", "HOT", number, "hot"
                )
                await report(client, "MyTraces", trace)
                if number % 40 == 0:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)

    asyncio.run(work())
    line = orbitmq.ok("message", "trace", "hot", "--trace-topic", "MyTraces", "--json").json
    assert [event["attempt"] for event in line["events"]] == list(range(150))
