"""Brokers that are set up wrongly: each is refused, told why and what to do, and never counts as a copy."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orbitmq.broker.master_check import clock_of
from orbitmq.broker.neighbours import refuse_a_taken_place
from orbitmq.config import BrokerConfig, ConfigError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from scripts.serving import ServerFailed, set_options
from tests.cluster.test_replication import LOG_FILE, SLAVE, eventually, log_bytes, pull_code, send
from tests.support import other_time
from tests.support.fake_servers import FakeServer, reply, silent
from tests.support.server_process import (
    BrokerProcess,
    OrbitProcess,
    ServerProcess,
    free_broker_port,
    free_port,
)

SMALL: dict[str, Any] = {"mappedFileSizeCommitLog": LOG_FILE, "flushDiskType": "ASYNC_FLUSH"}
NAMED: dict[str, Any] = {**SMALL, "brokerName": "broker-a"}
FOLLOWER: dict[str, Any] = {**SLAVE, **SMALL}
ALONE = [ResponseCode.SLAVE_NOT_AVAILABLE]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its answers to sends tell whether anybody counts as a copy."""
    with ServerProcess(tmp_path_factory.mktemp("master"), brokerRole="SYNC_MASTER", **SMALL) as server:
        yield server


def is_alone(server: ServerProcess) -> bool:
    return asyncio.run(send(server.broker_addr, "Alone", [b"x"])) == ALONE


def test_a_second_master_is_refused_while_the_first_lives_and_takes_its_place_when_it_is_gone(
    tmp_path: Path,
) -> None:
    port = free_port()
    names = OrbitProcess(
        ["namesrv", "--port", str(port), "--data", str(tmp_path / "names")], ready="OrbitMQ name server ready"
    )
    processes: list[OrbitProcess] = [names]
    try:
        first = BrokerProcess(tmp_path, f"127.0.0.1:{port}", "first", **NAMED)
        processes.append(first)
        with pytest.raises(
            ServerFailed, match=rf"has a master already: {first.broker_addr}.*brokerRole=SLAVE"
        ):
            BrokerProcess(tmp_path, f"127.0.0.1:{port}", "second", **NAMED)
        first.kill()
        processes.append(BrokerProcess(tmp_path, f"127.0.0.1:{port}", "second", **NAMED))
        with pytest.raises(ServerFailed, match="has a master already"):
            first.start()
    finally:
        for process in reversed(processes):
            if process.running:
                process.kill()


def test_a_second_slave_of_the_same_number_is_refused(master: ServerProcess, tmp_path: Path) -> None:
    slave = BrokerProcess(tmp_path, master.namesrv, "slave", **FOLLOWER)
    try:
        eventually(lambda: not is_alone(master), "the slave follows")
        with pytest.raises(ServerFailed, match=rf"brokerId=1 of broker-a is taken: {slave.broker_addr}"):
            BrokerProcess(tmp_path, master.namesrv, "other", **FOLLOWER)
        second = BrokerProcess(tmp_path, master.namesrv, "other", **{**FOLLOWER, "brokerId": 2})
        second.kill()
    finally:
        slave.kill()
    eventually(lambda: is_alone(master), "the master is alone again")


def test_a_name_of_another_cluster_is_refused(master: ServerProcess, tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="belongs to brokerClusterName=DefaultCluster"):
        BrokerProcess(tmp_path, master.namesrv, "x", **{**FOLLOWER, "brokerClusterName": "Elsewhere"})


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"brokerName": "broker-z"}, "has brokerName=broker-a, this slave has brokerName=broker-z"),
        (
            {"brokerName": "broker-a", "brokerClusterName": "Elsewhere"},
            "has brokerClusterName=DefaultCluster, this slave has brokerClusterName=Elsewhere",
        ),
        ({"mappedFileSizeCommitLog": LOG_FILE * 2}, f"has mappedFileSizeCommitLog={LOG_FILE}"),
    ],
)
def test_a_slave_of_another_group_does_not_follow_and_never_counts(
    master: ServerProcess, tmp_path: Path, wrong: dict[str, Any], reason: str
) -> None:
    here = f"127.0.0.1:{free_port()}"  # no name server that could have warned it
    settings = {**FOLLOWER, "haMasterAddress": f"127.0.0.1:{master.port + 1}", **wrong}
    slave = BrokerProcess(tmp_path, here, "stray", **settings)
    try:
        eventually(lambda: reason in slave.printed, reason)
        assert is_alone(master)
        assert slave.printed.count("not following the master") == 1
        assert not log_bytes(slave.data).rstrip(b"\0")
    finally:
        slave.kill()


def test_a_store_from_elsewhere_is_not_followed_with_not_shown_and_not_touched(tmp_path: Path) -> None:
    settings = {**SMALL, "brokerRole": "SYNC_MASTER"}
    with ServerProcess(tmp_path / "one", **settings) as first:
        slave = BrokerProcess(tmp_path, first.namesrv, "slave", **FOLLOWER)
        eventually(lambda: not is_alone(first), "the slave follows")
        asyncio.run(send(first.broker_addr, "Elsewhere", [b"of the first"] * 20))
        eventually(lambda: log_bytes(slave.data) == log_bytes(first.data), "it has everything")
        slave.stop()
        before = log_bytes(slave.data)
    with ServerProcess(tmp_path / "two", **settings) as second:
        asyncio.run(send(second.broker_addr, "Elsewhere", [b"of the second"] * 40))
        moved = BrokerProcess(tmp_path, second.namesrv, "slave", **FOLLOWER)
        try:
            told = "this store does not belong to broker-a's master"
            eventually(lambda: told in moved.printed, told)
            assert f"empty {moved.data}" in moved.printed
            assert is_alone(second)
            second.kill()
            eventually(
                lambda: pull_code(moved, "Elsewhere") == ResponseCode.PULL_RETRY_IMMEDIATELY,
                "nobody is shown the first one's messages as the second one's",
            )
        finally:
            moved.kill()
        assert log_bytes(moved.data) == before
        shutil.rmtree(moved.data)
        second.start()
        moved.start()
        try:
            eventually(lambda: not is_alone(second), "an emptied slave follows")
        finally:
            moved.kill()


def test_a_slave_whose_clock_is_an_hour_off_does_not_follow(master: ServerProcess, tmp_path: Path) -> None:
    def late(name: str, **more: Any) -> OrbitProcess:
        where = ["-n", master.namesrv, "--data", str(tmp_path / name), "--port", str(free_broker_port())]
        settings = set_options({"brokerIP1": "127.0.0.1", **FOLLOWER, **more})
        under = [sys.executable, str(other_time.__file__), "-3600"]
        return OrbitProcess(["broker", *where, *settings], ready="OrbitMQ broker ready", under=under)

    with late("late") as slave:
        told = "clock is about 3600 s behind"
        eventually(lambda: told in slave.printed, told)
        assert "set both by NTP" in slave.printed
        assert is_alone(master)
    with late("allowed", maxClockDifference=0):
        eventually(lambda: not is_alone(master), "it was told not to mind")


def registered(addr: str, cluster: str = "DefaultCluster") -> bytes:
    broker = {"brokerAddrs": {0: addr}, "brokerName": "broker-a", "cluster": cluster}
    return fastjson.dumps(
        {"brokerAddrTable": {"broker-a": broker}, "clusterAddrTable": {cluster: ["broker-a"]}}
    )


def test_only_a_living_broker_holds_a_place() -> None:
    async def main() -> None:
        broker, names = FakeServer({}), FakeServer({})
        await broker.start()
        await names.start()
        config, _ = BrokerConfig.from_properties({"brokerName": "broker-a", "namesrvAddr": names.addr})

        async def claim(answer: Any, addr: str = broker.addr) -> None:
            names.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = reply(body=registered(addr))
            broker.answers[RequestCode.GET_BROKER_CONFIG] = answer
            await refuse_a_taken_place(config, "127.0.0.1:10911")

        try:
            with pytest.raises(ConfigError, match="has a master already"):
                await claim(reply(body=b"brokerName=broker-a\nbrokerId=0\n"))
            with pytest.raises(ConfigError, match="has a master already"):
                await claim(reply(ResponseCode.NO_PERMISSION))  # whatever it is, it is there
            await claim(reply(body=b"brokerName=broker-b\nbrokerId=0\n"))  # the address was given away
            await claim(silent)
            await claim(silent, f"127.0.0.1:{free_port()}")
            await claim(silent, "127.0.0.1:10911")  # ourselves, before the restart
            for nonsense in (b"[]", b"{}", b"no", b'{"brokerAddrTable":{"broker-a":7}}'):
                names.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = reply(body=nonsense)
                await refuse_a_taken_place(config, "127.0.0.1:10911")
        finally:
            await broker.stop()
            await names.stop()
        await refuse_a_taken_place(config, "127.0.0.1:10911")  # no name server answers

    asyncio.run(main())


def test_a_brokers_clock_is_read_from_what_it_says_about_its_life() -> None:
    def table(**figures: str) -> bytes:
        return fastjson.dumps({"table": figures})

    runtime = "[ 1,002 days, 3 hours, 4 minutes, 5 seconds ]"
    life_s = ((1002 * 24 + 3) * 60 + 4) * 60 + 5
    assert clock_of(table(bootTimestamp="1000", runtime=runtime)) == 1000 + life_s * 1000
    for nothing in (b"", b"[]", table(), table(bootTimestamp="x", runtime=runtime), table(runtime="soon")):
        assert clock_of(nothing) is None
