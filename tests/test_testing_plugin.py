"""The server for tests: quick to start, on a clock that moves messages, visible from the inside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orbitmq.client.cluster import Cluster
from orbitmq.client.sender import Sender
from orbitmq.config import ConfigError
from orbitmq.testing import Server
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request
from tests.broker.transaction.producer import COMMIT, UNKNOWN, Producer

LIMIT_S = 15.0
START_LIMIT_S = 0.1


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(bounded())


def send(server: Server, topic: str, *bodies: bytes, **options: Any) -> None:
    async def work() -> None:
        async with Cluster(server.namesrv, clock=server.clock) as cluster:
            sender = Sender(cluster)
            for body in bodies:
                await sender.send(sender.prepare(topic, body, **options))

    run(work())


def bodies(server: Server, topic: str) -> list[bytes]:
    return [message.body for message in server.sent(topic)]


def in_ms(server: Server, delay: timedelta) -> int:
    return server.clock() + round(delay.total_seconds() * 1000)


def test_a_server_is_ready_in_less_than_a_tenth_of_a_second() -> None:
    with Server():
        pass  # the first one also pays for modules that are imported late
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        with Server():
            taken.append(time.perf_counter() - started)
    assert min(taken) < START_LIMIT_S


def test_what_was_sent_is_seen_in_its_order_and_chosen_by_tag_or_key(orbitmq_server: Server) -> None:
    send(orbitmq_server, "Orders", b"one", tag="paid", keys=["order-1", "user-7"])
    send(orbitmq_server, "Orders", *(str(number).encode() for number in range(20)), tag="new")
    assert bodies(orbitmq_server, "Orders") == [b"one", *(str(number).encode() for number in range(20))]
    assert [message.body for message in orbitmq_server.sent("Orders", tag="paid")] == [b"one"]
    assert [message.tag for message in orbitmq_server.sent("Orders", key="user-7")] == ["paid"]
    assert orbitmq_server.sent("Orders", key="user-8") == []
    assert orbitmq_server.sent("Nothing") == []


def test_hours_pass_in_a_moment_and_each_message_comes_at_its_time(orbitmq_server: Server) -> None:
    began = orbitmq_server.now()
    send(orbitmq_server, "Reminders", b"later", deliver_ms=in_ms(orbitmq_server, timedelta(hours=2)))
    send(orbitmq_server, "Reminders", b"sooner", deliver_ms=in_ms(orbitmq_server, timedelta(minutes=30)))
    send(orbitmq_server, "Reminders", b"tomorrow", deliver_ms=in_ms(orbitmq_server, timedelta(days=1)))
    send(orbitmq_server, "Reminders", b"by level", delay_level=5)
    waiting = orbitmq_server.waiting("Reminders")
    assert [message.body for message in waiting] == [b"by level", b"sooner", b"later", b"tomorrow"]
    assert bodies(orbitmq_server, "Reminders") == []

    real_start = time.monotonic()
    now = orbitmq_server.advance(hours=3)
    assert time.monotonic() - real_start < 30
    assert now - began >= timedelta(hours=3)

    delivered = orbitmq_server.sent("Reminders")
    assert [message.body for message in delivered] == [b"by level", b"sooner", b"later"]
    minutes = [(message.stored_at - began) / timedelta(minutes=1) for message in delivered]
    assert minutes == pytest.approx([1, 30, 120], abs=0.2)
    assert [message.body for message in orbitmq_server.waiting()] == [b"tomorrow"]


def test_more_messages_than_one_step_delivers_are_all_there_when_the_time_has_passed(
    orbitmq_server: Server,
) -> None:
    async def work() -> None:
        async with Cluster(orbitmq_server.namesrv) as cluster:
            sender = Sender(cluster)
            due_ms = in_ms(orbitmq_server, timedelta(minutes=10))
            made = [sender.prepare("Many", b"x" * 100, deliver_ms=due_ms) for _ in range(1500)]
            await asyncio.gather(*(sender.send(message) for message in made[:1]))
            await asyncio.gather(*(sender.send(message) for message in made[1:]))

    run(work())
    orbitmq_server.advance(minutes=9)
    assert orbitmq_server.sent("Many") == []
    orbitmq_server.advance(minutes=2)
    assert len(orbitmq_server.sent("Many")) == 1500


def test_a_failed_message_is_tried_again_after_its_back_off(orbitmq_server: Server) -> None:
    send(orbitmq_server, "Orders", b"unlucky")
    message = orbitmq_server.sent("Orders")[0]

    async def send_back() -> None:
        async with Cluster(orbitmq_server.namesrv) as cluster:
            fields = {
                "group": "billing",
                "offset": str(message.commit_log_offset),
                "delayLevel": "0",
                "originMsgId": message.msg_id,
                "originTopic": "Orders",
                "maxReconsumeTimes": "16",
            }
            command = request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            await cluster.request(orbitmq_server.address, command)

    run(send_back())
    assert [(one.topic, one.retry) for one in orbitmq_server.waiting()] == [("%RETRY%billing", True)]
    orbitmq_server.advance(seconds=9)
    assert orbitmq_server.sent("%RETRY%billing") == []
    orbitmq_server.advance(seconds=2)
    again = orbitmq_server.sent("%RETRY%billing")
    assert [(one.body, one.reconsume_times, one.topic) for one in again] == [(b"unlucky", 1, "Orders")]
    assert orbitmq_server.dead("billing") == []


def test_an_open_transaction_is_asked_for_when_its_time_has_passed(orbitmq_server: Server) -> None:
    answers = iter([UNKNOWN, COMMIT])

    async def work() -> None:
        async with Producer(orbitmq_server.address, "shop", lambda msg_id: next(answers)) as producer:
            await producer.prepare("Orders", "M1", b"half")
            assert orbitmq_server.sent("Orders") == []
            orbitmq_server.advance(minutes=1)
            await producer.asked.wait()
            assert orbitmq_server.sent("Orders") == []
            producer.asked.clear()
            orbitmq_server.advance(minutes=1)
            await producer.asked.wait()
            await asyncio.to_thread(orbitmq_server.wait_sent, "Orders")

    run(work())
    assert bodies(orbitmq_server, "Orders") == [b"half"]


def test_clients_are_not_taken_for_dead_when_days_pass(orbitmq_server: Server) -> None:
    def producers() -> int:
        count: int = orbitmq_server.inspect(lambda broker: len(broker.clients.producer_group("shop")))
        return count

    async def work() -> None:
        async with Producer(orbitmq_server.address, "shop"):
            assert producers() == 1
            orbitmq_server.advance(days=3)
            from orbitmq.broker import client_handlers

            orbitmq_server.inspect(lambda broker: client_handlers.expire(broker, broker.liveness()))
            assert producers() == 1

    run(work())


def test_time_does_not_go_back(orbitmq_server: Server) -> None:
    before = orbitmq_server.now()
    with pytest.raises(ValueError, match="does not go back"):
        orbitmq_server.advance(hours=-1)
    assert orbitmq_server.advance(timedelta(hours=1)) - before >= timedelta(hours=1)
    assert orbitmq_server.advance(2.5) - before >= timedelta(hours=1, seconds=2.5)


def test_a_broker_that_stops_comes_back_with_its_messages_and_timers(orbitmq_server: Server) -> None:
    address = orbitmq_server.address
    send(orbitmq_server, "Orders", b"kept")
    send(orbitmq_server, "Orders", b"timed", deliver_ms=in_ms(orbitmq_server, timedelta(hours=1)))
    orbitmq_server.stop_broker()
    with pytest.raises(RuntimeError, match="start_broker"):
        orbitmq_server.sent("Orders")
    orbitmq_server.start_broker()
    assert orbitmq_server.address == address
    assert bodies(orbitmq_server, "Orders") == [b"kept"]
    orbitmq_server.advance(hours=1)
    assert bodies(orbitmq_server, "Orders") == [b"kept", b"timed"]


@pytest.mark.orbitmq(autoCreateTopicEnable=False, defaultTopicQueueNums=3)
def test_settings_of_the_broker_come_from_a_marker(orbitmq_server: Server) -> None:
    chosen = orbitmq_server.inspect(
        lambda broker: (broker.config.auto_create_topic_enable, broker.config.default_topic_queue_nums)
    )
    assert chosen == (False, 3)
    orbitmq_server.create_topic("Orders", queues=2)
    send(orbitmq_server, "Orders", b"taken")
    assert bodies(orbitmq_server, "Orders") == [b"taken"]


def test_a_misspelt_setting_is_refused_with_the_right_name_and_nothing_stays(tmp_path: Path) -> None:
    threads = threading.active_count()
    with pytest.raises(ConfigError, match="did you mean autoCreateTopicEnable"):
        Server(tmp_path, autoCreateTopicsEnable=False).start()
    assert threading.active_count() == threads


def test_waiting_for_something_that_never_comes_says_what(orbitmq_server: Server) -> None:
    with pytest.raises(TimeoutError, match=r"2 message\(s\) in topic 'Orders'"):
        orbitmq_server.wait_sent("Orders", 2, timeout=0.05)


def test_a_stopped_server_leaves_no_thread_and_no_files() -> None:
    threads = threading.active_count()
    server = Server()
    with server:
        send(server, "Orders", b"gone soon")
        directory = server._directory
        assert directory.exists()
    server.stop()
    assert not directory.exists()
    assert threading.active_count() == threads


def test_the_fixture_is_there_for_who_installs_the_package(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(
        "import sys\n"
        "def test_nothing_of_the_server_is_loaded_before_it_is_asked_for():\n"
        "    assert 'orbitmq.pytest_plugin' in sys.modules\n"
        "    assert 'orbitmq.testing' not in sys.modules and 'orbitmq.client' not in sys.modules\n"
        "def test_shop(orbitmq_server):\n"
        "    assert orbitmq_server.sent('Orders') == []\n"
        "    orbitmq_server.advance(hours=2)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
