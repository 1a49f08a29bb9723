"""Name servers as processes: independent of each other, dead and back, and with ten thousand topics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orbitmq.client.cluster import Cluster
from tests.support.commands import Commands
from tests.support.server_process import BrokerProcess, OrbitProcess, free_port
from tests.support.steady_load import SteadyLoad

SMALL = {"mappedFileSizeCommitLog": 4 << 20, "mappedFileSizeConsumeQueue": 100_000}
TOPICS = 10_000
HEARTBEAT_S = 30.0


class Namesrv(OrbitProcess):
    def __init__(self, directory: Path, number: int) -> None:
        self.port = free_port()
        self.addr = f"127.0.0.1:{self.port}"
        args = ["namesrv", "--port", str(self.port), "--data", str(directory / f"ns-{number}")]
        super().__init__(args, ready="OrbitMQ name server ready")


@pytest.fixture
def namesrvs(tmp_path: Path) -> Iterator[list[Namesrv]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Namesrv(tmp_path, number)) for number in range(2)]


def eventually(condition: Callable[[], bool], what: str, limit_s: float = 20) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + limit_s, f"not within {limit_s} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began


def brokers_at(capsys: pytest.CaptureFixture[str], namesrv: Namesrv) -> list[str]:
    rows = Commands(capsys, namesrv.addr).ok("cluster", "list", "--json").json
    return sorted(row["broker"] for row in rows)


def test_traffic_outlives_every_name_server_and_all_is_known_again_when_they_return(
    tmp_path: Path, namesrvs: list[Namesrv], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = namesrvs
    both = f"{one.addr};{two.addr}"
    orbitmq = Commands(capsys, both)
    with (
        BrokerProcess(tmp_path, both, "broker-a", **SMALL),
        BrokerProcess(tmp_path, both, "broker-b", **SMALL),
    ):
        for namesrv in namesrvs:  # each has been told everything, neither by the other
            assert brokers_at(capsys, namesrv) == ["broker-a", "broker-b"]
        orbitmq.ok("topic", "create", "Work", "--queues", "2")
        with SteadyLoad(both, "Work") as load:
            load.until(lambda: len(load.brokers) == 2)
            one.kill()
            load.until(lambda: bool(orbitmq.ok("topic", "route", "Work")))
            two.kill()
            before = dict(load.brokers)
            # Several times over, routes are asked for in vain.
            load.until(lambda: all(load.taken_by(name) > count + 50 for name, count in before.items()))
            assert load.failed == []
            for namesrv in namesrvs:
                namesrv.start()
            for namesrv in namesrvs:
                eventually(lambda n=namesrv: len(brokers_at(capsys, n)) == 2, "both register again")  # type: ignore[misc]
            shares = Commands(capsys, two.addr).ok("topic", "route", "Work", "--json").json["brokers"]
            assert {share["broker"] for share in shares} == {"broker-a", "broker-b"}
            load.finish()
        assert load.failed == []


def test_ten_thousand_topics_register_within_one_heartbeat(
    tmp_path: Path, namesrvs: list[Namesrv], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = namesrvs
    names = [f"topic-{number}" for number in range(TOPICS)]
    config = tmp_path / "many" / "config"
    config.mkdir(parents=True)
    table = {name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for name in names}
    version = {"counter": 1, "timestamp": 1_700_000_000_000}
    (config / "topics.json").write_text(json.dumps({"dataVersion": version, "topicConfigTable": table}))

    def known_to(namesrv: Namesrv) -> int:
        return len(Commands(capsys, namesrv.addr).ok("topic", "list", "--json").json)

    with BrokerProcess(tmp_path, f"{one.addr};{two.addr}", "many", **SMALL) as broker:
        assert broker.ready_ms < HEARTBEAT_S * 1000  # it is ready when the name servers have answered
        assert [known_to(namesrv) for namesrv in namesrvs] == [TOPICS, TOPICS]
        two.kill()
        two.start()
        again_s = eventually(lambda: known_to(two) == TOPICS, "all are known again", HEARTBEAT_S)

        async def routes() -> float:
            async with Cluster(two.addr) as cluster:
                began = time.perf_counter()
                found = await asyncio.gather(*(cluster.route(name) for name in names[::100]))
                assert all(len(route.publish_queues()) == 4 for route in found)
                return time.perf_counter() - began

        took_s = asyncio.run(routes())
        assert took_s < HEARTBEAT_S
        orbitmq = Commands(capsys, two.addr)
        orbitmq.ok("topic", "create", "one-more", "--queues", "1")
        assert orbitmq.ok("topic", "route", "one-more", "--json").json["brokers"]
        print(
            f"10,000 topics: broker ready after {broker.ready_ms:.0f} ms, known to a fresh name server after "
            f"{again_s:.2f} s, 100 routes in {took_s * 1000:.0f} ms"
        )
