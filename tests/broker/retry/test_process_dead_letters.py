"""Retries and dead letters of a real broker, and the commands that people use on them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from orbitmq.wire.codes import RequestCode
from orbitmq.wire.properties import encode_properties
from tests.support.commands import Commands
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import SOURCE, ServerProcess

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("dead")
    with ServerProcess(directory, messageDelayLevel="1s 2s 1s 1s") as running:
        yield running


@pytest.fixture
def orbitmq(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys, server.namesrv)


async def send_back(client: RawClient, offset: int, group: str, **fields: str) -> None:
    ext = {"offset": str(offset), "group": group, "delayLevel": "0", **fields}
    await client.ok(RequestCode.CONSUMER_SEND_MSG_BACK, ext)


def bury(server: ServerProcess, topic: str, group: str, count: int) -> None:
    """Sends messages and gives up on each at once; every third failed for a reason of its own."""

    async def work() -> None:
        async with RawClient(server.broker_addr) as client:
            await client.create_topic(topic, 1)
            for i in range(count):
                properties = encode_properties(
                    {
                        "KEYS": f"k{i}",
                        "TAGS": "odd" if i % 2 else "even",
                        "UNIQ_KEY": f"{topic}-{i}",
                        "mine": str(i),
                    }
                ).decode()
                sent = await client.ok(
                    RequestCode.SEND_MESSAGE_V2, send_ext(topic, 0, properties), f"body {i}".encode()
                )
                reason = "no stock" if i % 3 == 0 else "timeout"
                offset = int(sent.ext["msgId"][16:], 16)
                await send_back(client, offset, group, delayLevel="-1", failureReason=reason)

    asyncio.run(work())


def copies(server: ServerProcess, topic: str, sent: int) -> Counter[bytes]:
    """What came into the topic after the first `sent` messages."""

    async def work() -> Counter[bytes]:
        async with RawClient(server.broker_addr) as client:
            return Counter(message.body for message in await client.read_queue(topic, 0, sent))

    return asyncio.run(work())


def test_two_tries_with_their_waits_and_then_dead(server: ServerProcess) -> None:
    async def work() -> list[float]:
        async with asyncio.timeout(LIMIT_S), RawClient(server.broker_addr) as client:
            await client.create_topic("Tries", 1)
            sent = await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext("Tries", 0), b"again")
            offset, waited = int(sent.ext["msgId"][16:], 16), []
            for attempt in range(2):
                started = time.monotonic()
                await send_back(client, offset, "tries", maxReconsumeTimes="2")
                while await client.max_offset("%RETRY%tries", 0) == attempt:
                    await asyncio.sleep(0.01)
                waited.append(time.monotonic() - started)
                message = (await client.read_queue("%RETRY%tries", 0, attempt))[0]
                assert (message.reconsume_times, message.body) == (attempt + 1, b"again")
                offset = message.physical_offset
            await send_back(client, offset, "tries", maxReconsumeTimes="2")
            (dead,) = await client.read_queue("%DLQ%tries", 0)
            assert dead.body == b"again" and dead.properties["RETRY_TOPIC"] == "Tries"
            return waited

    waited = asyncio.run(work())
    assert all(0.9 < wait < 3 for wait in waited), waited


def test_list_show_and_redrive(server: ServerProcess, orbitmq: Commands) -> None:
    bury(server, "Orders", "billing", 12)
    assert {"group": "billing", "messages": 12}.items() <= next(
        row for row in orbitmq.ok("dead", "list", "--json").json if row["group"] == "billing"
    ).items()
    letters = orbitmq.ok("dead", "list", "billing", "--json").json_lines
    assert [letter["body"] for letter in letters] == [f"body {i}" for i in range(12)]
    assert (
        letters[0]["origin_topic"] == "Orders"
        and letters[0]["reason"] == "no stock"
        and letters[0]["tries"] == 1
    )
    assert "timeout" in orbitmq.ok("dead", "list", "billing").out
    filters = {
        ("--key", "k7"): [7],
        ("--tag", "odd", "--reason", "STOCK"): [3, 9],
        ("--to", "1h"): [],
        ("--max", "2"): [0, 1],
    }
    for options, expected in filters.items():
        found = orbitmq.ok("dead", "list", "billing", *options, "--json").json_lines
        assert [letter["msg_id"] for letter in found] == [f"Orders-{i}" for i in expected], options

    shown = orbitmq.ok("dead", "show", "billing", "Orders-4", "--json").json
    assert shown["body"] == "body 4" and shown["reason"] == "timeout"
    assert orbitmq.ok("dead", "show", "billing", shown["offset_msg_id"], "--json").json == shown
    assert "no stock" in orbitmq.ok("dead", "show", "billing", "Orders-3").out
    assert orbitmq("dead", "show", "billing", "nothing").code == 3

    plan = orbitmq.ok("dead", "redrive", "billing", "--reason", "stock", "--dry-run", "--json").json
    assert (plan["sent"], plan["passed_over"], plan["topics"]) == (4, 8, {"Orders": 4}) and plan["dry_run"]
    assert not copies(server, "Orders", 12)

    started = time.monotonic()
    done = orbitmq.ok(
        "dead", "redrive", "billing", "--reason", "stock", "--rate", "20", "--yes", "--json"
    ).json
    assert (done["sent"], done["failed"]) == (4, 0)
    assert time.monotonic() - started > 3 / 20
    assert copies(server, "Orders", 12) == Counter(f"body {i}".encode() for i in (0, 3, 6, 9))

    ended = orbitmq.ok("dead", "redrive", "billing", "--yes", "--rate", "0")
    assert "8" in ended.out and "sent before" in ended.out
    assert copies(server, "Orders", 12) == Counter(f"body {i}".encode() for i in range(12))
    nothing = orbitmq("dead", "redrive", "billing", "--yes")
    assert nothing.code == 3 and "nothing to redrive" in nothing.err

    copy = orbitmq.ok("message", "at", "Orders", "0", "12", "--json").json
    assert copy["reconsume_times"] == 0 and copy["keys"] == ["k0"] and copy["tag"] == "even"
    assert copy["properties"]["mine"] == "0" and copy["properties"]["DLQ_ORIGIN_MESSAGE_ID"] == "Orders-0"
    assert "RETRY_TOPIC" not in copy["properties"] and copy["msg_id"] != "Orders-0"


def test_what_cannot_be_done_is_said_clearly(server: ServerProcess, orbitmq: Commands) -> None:
    bury(server, "Short", "short", 2)
    assert orbitmq("dead", "redrive", "short").code == 2, "a program must say yes"
    unmatched = orbitmq("dead", "redrive", "short", "--key", "zzz", "--yes")
    assert unmatched.code == 3 and "none of the 2 dead letters" in unmatched.err
    for words in (("list", "nobody"), ("show", "nobody", "x"), ("redrive", "nobody", "--yes")):
        ended = orbitmq("dead", *words)
        assert ended.code == 3 and "no dead letters" in ended.err, words
    assert orbitmq("dead", "list", "short", "--reason", "(").code == 2
    assert orbitmq("dead", "list", "short", "--from", "whenever").code == 2
    assert orbitmq("dead", "redrive", "short", "--rate", "-1").code == 2

    orbitmq.ok("topic", "delete", "Short", "--yes")
    failed = orbitmq("dead", "redrive", "short", "--yes", "--json")
    assert failed.code == 1 and failed.json["failed"] == 2
    assert "does not exist any more" in failed.json["failures"][0]["reason"]
    orbitmq.ok("topic", "create", "Short", "--queues", "1")
    assert orbitmq.ok("dead", "redrive", "short", "--yes", "--json").json["sent"] == 2


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_can_be_stopped_at_any_moment_and_goes_on(
    server: ServerProcess, orbitmq: Commands, how: signal.Signals
) -> None:
    topic, count = f"Stop{how.name}", 40
    bury(server, topic, topic, count)
    command = [sys.executable, "-m", "orbitmq", "dead", "redrive", topic, "--yes", "--json", "--rate", "20"]
    run = subprocess.Popen(
        [*command, "-n", server.namesrv],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
    )
    deadline = time.monotonic() + LIMIT_S
    while not copies(server, topic, count) and time.monotonic() < deadline:
        time.sleep(0.01)
    run.send_signal(how)
    out, _ = run.communicate(timeout=LIMIT_S)
    time.sleep(0.3)  # what it sent last may still be on its way
    first = sum(copies(server, topic, count).values())
    assert 0 < first < count
    if how is signal.SIGINT:
        assert run.returncode == 130 and b"interrupted" in out
    report = orbitmq.ok("dead", "redrive", topic, "--yes", "--rate", "0", "--json").json
    assert report["sent"] == count - first
    assert copies(server, topic, count) == Counter(f"body {i}".encode() for i in range(count))
