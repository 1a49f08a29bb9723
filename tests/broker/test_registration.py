from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orbitmq.broker.registration import BrokerIdentity, Registrar
from orbitmq.config import NamesrvConfig
from orbitmq.namesrv.service import NameServer
from orbitmq.net.connection import Connection
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command

MASTER = BrokerIdentity("C", "broker-a", 0, "127.0.0.1:10911", "127.0.0.1:10912")
SLAVE = BrokerIdentity("C", "broker-a", 1, "127.0.0.1:11911", "127.0.0.1:11912")


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


class Topics:
    """A topic table, as much of it as a registrar sees."""

    def __init__(self, *names: str) -> None:
        self.counter = 1
        self.table = {name: self.config(name) for name in names}

    @staticmethod
    def config(name: str) -> dict[str, object]:
        return {
            "order": False,
            "perm": 6,
            "readQueueNums": 4,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": 4,
        }

    def wrapper(self, *only: str) -> dict[str, Any]:
        table = {name: self.table[name] for name in only} if only else dict(self.table)
        return {
            "dataVersion": {"counter": self.counter, "timestamp": 1700000000000},
            "topicConfigTable": table,
        }

    def add(self, name: str) -> dict[str, Any]:
        self.counter += 1
        self.table[name] = self.config(name)
        return self.wrapper(name)


class Watched(NameServer):
    """A name server that notes what it is asked, and can be told to refuse or stay silent."""

    def __init__(self, tmp_path: Path) -> None:
        config, _ = NamesrvConfig.from_properties(
            {"listenHost": "127.0.0.1", "kvConfigPath": str(tmp_path / "kv.json")}
        )
        super().__init__(config)
        self.asked: list[Command] = []
        self.refusal = ""
        self.silent = False

    def command(self, conn: Connection, command: Command) -> None:
        self.asked.append(command)
        if self.silent:
            return
        if self.refusal:
            self.answer(conn, command, command.reply(1, remark=self.refusal))
            return
        super().command(conn, command)

    def codes(self) -> list[int]:
        return [command.code for command in self.asked]

    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"


async def started(tmp_path: Path, port: int = 0) -> Watched:
    server = Watched(tmp_path)
    await server.start("127.0.0.1", port)
    return server


@pytest.mark.parametrize("compressed", [False, True])
def test_registers_with_every_name_server_and_unregisters_at_the_end(
    tmp_path: Path, compressed: bool
) -> None:
    async def main() -> None:
        servers = [await started(tmp_path) for _ in range(2)]
        topics = Topics("A", "B")
        registrar = Registrar(
            [s.addr() for s in servers], MASTER, topics.wrapper, compressed=compressed, period_s=60
        )
        await registrar.start()
        for server in servers:
            assert server.routes.topic_list() == ["A", "B"]
            (command,) = server.asked
            assert command.ext["compressed"] == ("true" if compressed else "false")
            assert int(command.ext["bodyCrc32"]) > 0
            assert command.body[:1] == (b"x" if compressed else b"{")
        assert [(state.registered, state.error) for state in registrar.states()] == [(True, ""), (True, "")]
        await registrar.stop()
        for server in servers:
            assert server.codes() == [RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER]
            assert server.routes.broker_count() == 0
            await server.stop()

    run(main)


def test_repeats_itself_every_period(tmp_path: Path) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        registrar = Registrar([server.addr()], MASTER, Topics("A").wrapper, period_s=0.02)
        await registrar.start()
        await until(lambda: server.codes().count(RequestCode.REGISTER_BROKER) >= 4)
        await registrar.stop()
        await server.stop()

    run(main)


def test_asks_for_the_version_first_if_registration_is_not_forced(tmp_path: Path) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        topics = Topics("A")
        registrar = Registrar([server.addr()], MASTER, topics.wrapper, period_s=0.02, force_register=False)
        await registrar.start()
        await until(lambda: server.codes().count(RequestCode.QUERY_DATA_VERSION) >= 3)
        assert server.codes().count(RequestCode.REGISTER_BROKER) == 1
        # A change nobody reported is found by the question.
        topics.add("B")
        await until(lambda: server.routes.topic_list() == ["A", "B"])
        await registrar.stop()
        await server.stop()

    run(main)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_changed_topic_goes_out_alone_and_at_once(tmp_path: Path, compressed: bool) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        topics = Topics("A")
        registrar = Registrar([server.addr()], MASTER, topics.wrapper, period_s=60, compressed=compressed)
        await registrar.start()
        await registrar.register_topic(topics.add("New"))
        assert server.routes.topic_list() == ["A", "New"]
        assert len(server.asked) == 2
        if not compressed:
            assert b'"A"' not in server.asked[1].body
        for n in range(20):
            registrar.register_topic_soon(topics.add(f"T{n}"))
        await until(lambda: len(server.routes.topic_list()) == 22)
        assert len(server.asked) <= 4, "changes that come together leave together"
        await registrar.stop()
        await server.stop()

    run(main)


def test_after_a_restart_of_the_name_server_all_topics_come_first(tmp_path: Path) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        topics = Topics("A", "B")
        registrar = Registrar([server.addr()], MASTER, topics.wrapper, period_s=60, retry_s=0.02)
        await registrar.start()
        port = server.port
        await server.stop()
        await until(lambda: not registrar.states()[0].registered)
        # Sent now, this one topic would otherwise be the first thing the new name server hears.
        registrar.register_topic_soon(topics.add("C"))
        again = await started(tmp_path, port)
        await until(lambda: again.routes.topic_list() == ["A", "B", "C"])
        await until(lambda: registrar.states()[0].registered)
        await registrar.stop()
        await again.stop()

    run(main)


def test_one_dead_and_one_silent_name_server_delay_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        alive, dead, mute = [await started(tmp_path) for _ in range(3)]
        await dead.stop()
        mute.silent = True
        topics = Topics("A")
        addrs = [dead.addr(), mute.addr(), alive.addr()]
        registrar = Registrar(addrs, MASTER, topics.wrapper, period_s=60, timeout_s=0.1, retry_s=0.02)
        await registrar.start()
        assert alive.routes.topic_list() == ["A"]
        loop = asyncio.get_running_loop()
        began = loop.time()
        await registrar.register_topic(topics.add("B"))
        assert loop.time() - began < 0.5
        assert alive.routes.topic_list() == ["A", "B"]
        problems = await registrar.register_all()
        assert problems[alive.addr()] == ""
        assert "could not connect" in problems[dead.addr()]
        assert "did not answer REGISTER_BROKER" in problems[mute.addr()]
        mute.silent = False
        revived = await started(tmp_path, dead.port)
        await until(lambda: revived.routes.topic_list() == ["A", "B"] == mute.routes.topic_list())
        await until(lambda: all(state.registered for state in registrar.states()))
        await registrar.stop()
        for server in (alive, mute, revived):
            await server.stop()

    with caplog.at_level(logging.INFO, "orbitmq.broker"):
        run(main)
    assert "again" in caplog.text


def test_a_refusal_is_reported_and_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        server.refusal = "not today"
        registrar = Registrar([server.addr()], MASTER, Topics("A").wrapper, period_s=60, retry_s=0.02)
        await registrar.start()
        (state,) = registrar.states()
        assert not state.registered
        assert "SYSTEM_ERROR (1): not today" in state.error
        server.refusal = ""
        await until(lambda: registrar.states()[0].registered)
        await registrar.stop()
        await server.stop()

    run(main)


def test_a_failing_snapshot_does_not_end_the_registrar(tmp_path: Path) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        topics = Topics("A")
        failures = [RuntimeError("not ready")]

        def snapshot() -> dict[str, Any]:
            if failures:
                raise failures.pop()
            return topics.wrapper()

        registrar = Registrar([server.addr()], MASTER, snapshot, period_s=60, retry_s=0.02)
        await registrar.start()
        assert registrar.states()[0].error == "not ready"
        await until(lambda: server.routes.topic_list() == ["A"])
        await registrar.stop()
        await server.stop()

    run(main)


def test_a_slave_learns_its_master_and_keeps_it_while_name_servers_are_away(tmp_path: Path) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        server.kv.put("ORDER_TOPIC_CONFIG", "A", "broker-a:4")
        topics = Topics("A")
        told: list[str | None] = []
        slave = Registrar(
            [server.addr()],
            SLAVE,
            topics.wrapper,
            period_s=60,
            retry_s=0.02,
            on_answer=lambda registrar: told.append(registrar.master_addr),
        )
        assert (slave.master_addr, slave.ha_server_addr, slave.order_config) == (None, None, {})
        await slave.start()
        assert slave.master_addr is None
        assert slave.order_config == {"A": "broker-a:4"}
        master = Registrar([server.addr()], MASTER, topics.wrapper, period_s=60)
        await master.start()
        await slave.register_all()
        assert (slave.master_addr, slave.ha_server_addr) == ("127.0.0.1:10911", "127.0.0.1:10912")
        assert told == [None, "127.0.0.1:10911"]
        assert (master.master_addr, master.ha_server_addr) == (None, None)
        await server.stop()
        await until(lambda: not slave.states()[0].registered)
        assert slave.master_addr == "127.0.0.1:10911"
        await master.stop()
        await slave.stop()

    run(main)


def test_a_changed_identity_is_announced(tmp_path: Path) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        registrar = Registrar([server.addr()], SLAVE, Topics("A").wrapper, period_s=60)
        await registrar.start()
        assert server.routes.topic_list() == []
        registrar.identity = BrokerIdentity("C", "broker-a", 0, SLAVE.addr, SLAVE.ha_addr)
        registrar.register_soon()
        await until(lambda: server.routes.topic_list() == ["A"])
        assert server.routes.member_group("C", "broker-a")["brokerAddrs"] == {0: SLAVE.addr}
        await registrar.stop()
        await server.stop()

    run(main)


def test_the_list_of_name_servers_can_change(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = [await started(tmp_path) for _ in range(2)]
        registrar = Registrar([first.addr()], MASTER, Topics("A").wrapper, period_s=60)
        await registrar.start()
        await registrar.set_name_servers([second.addr()])
        await until(lambda: second.routes.topic_list() == ["A"])
        assert first.routes.broker_count() == 0
        assert [state.addr for state in registrar.states()] == [second.addr()]
        await registrar.stop()
        await first.stop()
        await second.stop()

    run(main)


def test_without_name_servers_nothing_happens() -> None:
    async def main() -> None:
        registrar = Registrar([], MASTER, Topics("A").wrapper)
        await registrar.start()
        assert await registrar.register_all() == {}
        await registrar.register_topic(Topics("A").wrapper())
        registrar.register_soon()
        await registrar.stop()

    run(main)


def test_stopping_answers_everybody_who_waits(tmp_path: Path) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        registrar = Registrar([server.addr()], MASTER, Topics("A").wrapper, period_s=60, timeout_s=30)
        await registrar.start()
        server.silent = True
        waiting = asyncio.create_task(registrar.register_all())
        await until(lambda: len(server.asked) == 2)
        server.silent = False
        await registrar.stop()
        assert await waiting == {server.addr(): "stopped"}
        assert await registrar.register_all() == {server.addr(): "stopped"}
        await server.stop()

    run(main)


def test_the_plain_body_is_what_a_java_broker_sends(tmp_path: Path) -> None:
    async def main() -> None:
        server = await started(tmp_path)
        registrar = Registrar([server.addr()], MASTER, Topics("TopicA").wrapper, period_s=60)
        await registrar.start()
        assert server.asked[0].body.decode() == (
            '{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":1,'
            '"timestamp":1700000000000},"topicConfigTable":{"TopicA":{"order":false,"perm":6,'
            '"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":0,'
            '"writeQueueNums":4}}}}'
        )
        await registrar.stop()
        await server.stop()

    run(main)
