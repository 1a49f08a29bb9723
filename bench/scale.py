"""`python -m bench.scale [--brokers 10,25,50,100,150,200] [--rounds 10] [--docs]`.

More brokers than one machine holds, simulated: real heartbeats as bytes, through the real decoders, route table and
controller machine, without sockets. Each broker group has a master and a slave; each topic lives in four groups.

Out: CPU per heartbeat as the cluster grows, and what an outage of half of it costs. With `--docs` the picture
`docs/images/scale.png` and the section in `docs/performance.md`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.clients.table import with_section
from orbitmq.cluster.controller.machine import Machine, Rules
from orbitmq.cluster.controller.steps import Answer, Store
from orbitmq.namesrv.registration import decode_registration
from orbitmq.namesrv.routes import RouteTable
from orbitmq.wire import bodies, fastjson, register_body
from orbitmq.wire.codes import OrbitCode, RequestCode
from orbitmq.wire.command import Command, decode, encode, request
from orbitmq.wire.controller_bodies import MASTER, SLAVE, STARTING, AlterInSync, GroupAnswer, ReplicaHeartbeat

HERE: Final = Path(__file__).resolve().parent
PAGE: Final = HERE.parent / "docs" / "performance.md"
PICTURE: Final = HERE.parent / "docs" / "images" / "scale.png"
BEGIN, END = "<!-- scale:begin -->", "<!-- scale:end -->"

SIZES: Final = (10, 25, 50, 100, 150, 200)
TOPICS_PER_BROKER: Final = 50
"""So that 200 brokers have 10,000 topics."""
GROUPS_PER_TOPIC: Final = 4
LEASE_MS: Final = 2000
MEASURED_S: Final = 0.05
TICK_MS: Final = 100
BEAT_MS: Final = 200
"""Between two heartbeats of a broker to the controller, at the default lease."""
WALL_MS: Final = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Figures:
    """CPU of one size of cluster."""

    brokers: int
    topics: int
    register_us: float
    """Name server: a master repeats its registration, nothing changed."""
    heartbeat_us: float
    """Controller: one heartbeat, from the frame to the answer's frame."""
    controller_share: float
    """Of one core: what the controller uses for all heartbeats and its timer, without sockets."""
    route_us: float
    """Name server: the route of one topic, as a client asks for it after a change."""
    outage_ms: float
    """Controller: half of all masters gone, until every group of theirs has a new one."""


class NameServerSide:
    """The route table, and each master's registration as bytes."""

    def __init__(self, brokers: int) -> None:
        self.groups = max(1, brokers // 2)
        self.topics = brokers * TOPICS_PER_BROKER
        self.routes = RouteTable()
        self._placed: list[list[str]] = [[] for _ in range(self.groups)]
        for number in range(self.topics):
            for step in range(min(GROUPS_PER_TOPIC, self.groups)):
                self._placed[(number + step) % self.groups].append(f"topic-{number:05}")
        self.requests = [self._registration(group) for group in range(self.groups)]
        for frame in self.requests:
            self.register(frame)
        for group in range(self.groups):
            self.register(self._request(group, 1, b""))

    def register(self, frame: bytes) -> None:
        command = decode(frame[4:])
        self.routes.register(decode_registration(command, self.routes, None), 0)

    def route(self, topic: str) -> bytes:
        return fastjson.dumps_strict(self.routes.route(topic))

    def _registration(self, group: int) -> bytes:
        table = {name: bodies.TopicConfig(topic_name=name) for name in self._placed[group]}
        wrapper = bodies.TopicConfigWrapper(
            data_version=bodies.DataVersion(counter=1, timestamp=1), topic_config_table=table
        )
        body = bodies.RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)
        return self._request(group, 0, register_body.encode(body))

    def _request(self, group: int, broker_id: int, body: bytes) -> bytes:
        address = f"10.0.{group}.{broker_id + 1}:10911"
        ext = {
            "brokerName": f"broker-{group}",
            "brokerAddr": address,
            "clusterName": "DefaultCluster",
            "haServerAddr": address,
            "brokerId": str(broker_id),
            "compressed": "false",
            "bodyCrc32": str(register_body.crc32(body) if body else 0),
        }
        return encode(request(RequestCode.REGISTER_BROKER, ext, body))


class ControllerSide:
    """The machine with every group in sync, and each broker's heartbeat as bytes."""

    def __init__(self, brokers: int) -> None:
        self.groups = max(1, brokers // 2)
        self.now_ms = 0
        self.machine = Machine(Rules(lease_ms=LEASE_MS))
        self.machine.take_over({}, 0)
        for group in range(self.groups):
            for replica in (1, 2):
                self.beat(self.frame(group, replica, STARTING, 0))
            wish = AlterInSync(
                broker=f"broker-{group}",
                cluster="DefaultCluster",
                replica=1,
                epoch=1,
                version=1,
                in_sync=[1, 2],
            )
            self._store(self.machine.alter(wish, self.now_ms))
        self.frames = [
            self.frame(group, replica, role, 1)
            for group in range(self.groups)
            for replica, role in ((1, MASTER), (2, SLAVE))
        ]

    def beat(self, frame: bytes) -> GroupAnswer:
        """What the service does with a frame, without the socket."""
        command = decode(frame[4:])
        beat = bodies.decode(ReplicaHeartbeat, command.body)
        while True:
            step = self.machine.heartbeat(beat, self.now_ms, WALL_MS)
            if isinstance(step, Answer) and isinstance(step.body, GroupAnswer):
                encode(command.reply(body=bodies.encode(step.body)))
                return step.body
            self._store(step)

    def live(self, for_ms: int) -> None:
        """Heartbeats and the timer, as they come."""
        for _ in range(for_ms // TICK_MS):
            self.now_ms += TICK_MS
            assert not self.machine.tick(self.now_ms)
            if self.now_ms % BEAT_MS == 0:
                for frame in self.frames:
                    self.beat(frame)

    def outage(self) -> int:
        """Every second group's master falls silent; how many of them have another one in the end."""
        self.now_ms += self.machine.rules.patience_ms - LEASE_MS // 4
        slaves = [self.frame(group, 2, SLAVE, 1) for group in range(0, self.groups, 2)]
        for frame in slaves:
            self.beat(frame)
        self.now_ms += LEASE_MS // 4 + 1
        return sum(self.beat(frame).master == 2 for frame in slaves)

    def frame(self, group: int, replica: int, role: str, epoch: int) -> bytes:
        address = f"10.0.{group}.{replica}"
        body = ReplicaHeartbeat(
            address=f"{address}:10911",
            broker=f"broker-{group}",
            clock_ms=WALL_MS,
            cluster="DefaultCluster",
            end=123_456_789 if epoch else 0,
            epoch=epoch,
            ha_address=f"{address}:10912",
            role=role,
            run=f"run-{group}-{replica}",
            token=f"token-{group}-{replica}",
        )
        command: Command = request(OrbitCode.CONTROLLER_HEARTBEAT, body=bodies.encode(body))
        return encode(command)

    def _store(self, step: object) -> None:
        assert isinstance(step, Store), step
        self.machine.stored(step.key, step.state, (step.expected or 0) + 1, self.now_ms)


class Stand:
    """One size of cluster, measured again and again; the least of each figure counts: others disturb it the least."""

    def __init__(self, brokers: int) -> None:
        self.brokers = brokers
        self.namesrv, self.controller = NameServerSide(brokers), ControllerSide(brokers)
        count = self.namesrv.topics
        self._some_topics = [f"topic-{number:05}" for number in range(0, count, max(1, count // 200))]
        self._best: dict[str, float] = {}

    def measure(self) -> None:
        controller = self.controller
        self._time("register", self._register, self.namesrv.groups)
        self._time(
            "beat", lambda: [controller.beat(frame) for frame in controller.frames], len(controller.frames)
        )
        self._time("live", lambda: controller.live(2 * LEASE_MS), 2 * LEASE_MS)
        self._time("route", lambda: list(map(self.namesrv.route, self._some_topics)), len(self._some_topics))
        side = ControllerSide(self.brokers)
        began = time.process_time()
        chosen = side.outage()
        self._note("outage", time.process_time() - began)
        assert chosen == (side.groups + 1) // 2, f"{chosen} of {side.groups} groups have a new master"

    def figures(self) -> Figures:
        best = self._best
        return Figures(
            brokers=self.brokers,
            topics=self.namesrv.topics,
            register_us=best["register"] * 1e6,
            heartbeat_us=best["beat"] * 1e6,
            controller_share=best["live"] * 1e3,
            route_us=best["route"] * 1e6,
            outage_ms=best["outage"] * 1e3,
        )

    def _register(self) -> None:
        for frame in self.namesrv.requests:
            self.namesrv.register(frame)

    def _time(self, name: str, work: Callable[[], object], count: int) -> None:
        done, began = 0, time.process_time()
        while (took := time.process_time() - began) < MEASURED_S or not done:
            work()
            done += count
        self._note(name, took / done)

    def _note(self, name: str, seconds: float) -> None:
        self._best[name] = min(seconds, self._best.get(name, seconds))


def measure(sizes: Sequence[int], rounds: int) -> list[Figures]:
    """The sizes take turns, so that a busy moment of the machine does not fall on one of them alone."""
    stands = [Stand(brokers) for brokers in sizes]
    for _ in range(rounds):
        for stand in stands:
            stand.measure()
    return [stand.figures() for stand in stands]


def markdown(figures: Sequence[Figures], setting: str) -> str:
    lines = [
        setting,
        "",
        "| brokers | topics | registration µs | route µs | controller heartbeat µs | controller, of a core "
        "| half of the masters gone, ms |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {each.brokers} | {each.topics:,} | {each.register_us:.0f} | {each.route_us:.0f} | {each.heartbeat_us:.1f} "
        f"| {each.controller_share:.1%} | {each.outage_ms:.1f} |"
        for each in figures
    ]
    first, last = figures[0], figures[-1]
    lines += [
        "",
        f"From {first.brokers} to {last.brokers} brokers a heartbeat's cost grows by a factor of "
        f"{last.heartbeat_us / first.heartbeat_us:.2f} at the controller and "
        f"{last.register_us / first.register_us:.2f} at the name server.",
        "",
        "![CPU per heartbeat as the cluster grows](images/scale.png)",
        "",
    ]
    return "\n".join(lines)


def draw(figures: Sequence[Figures], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = [each.brokers for each in figures]
    canvas, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for label, values in (
        ("name server: registration, nothing changed", [each.register_us for each in figures]),
        ("name server: route of a topic", [each.route_us for each in figures]),
        ("controller: heartbeat", [each.heartbeat_us for each in figures]),
    ):
        left.plot(sizes, values, marker="o", label=label)
    left.set_ylim(bottom=0)
    left.set_xlabel(f"brokers ({TOPICS_PER_BROKER} topics for each)")
    left.set_ylabel("µs of CPU for one")
    left.legend(loc="best", frameon=False)
    left.set_title("Cost of one request")
    right.plot(sizes, [each.controller_share * 100 for each in figures], marker="o", color="tab:green")
    right.set_ylim(bottom=0)
    right.set_xlabel("brokers")
    right.set_ylabel("percent of one core")
    right.set_title(f"All of the controller, a heartbeat every {BEAT_MS} ms")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.set_xlim(left=0)
    canvas.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110)
    pyplot.close(canvas)


def setting_of(rounds: int) -> str:
    python = sys.version.split()[0]
    return (
        f"{time.strftime('%Y-%m-%d')}, CPython {python}, best of {rounds} rounds; CPU of the decoders, tables and "
        "encoders, without sockets. Every broker group has a master and a slave, every topic four groups."
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--brokers", default=",".join(map(str, SIZES)), help="sizes of the cluster")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--picture", type=Path, help="draw it there")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md and its picture")
    args = parser.parse_args(argv)
    figures = measure([int(brokers) for brokers in args.brokers.split(",")], args.rounds)
    section = markdown(figures, setting_of(args.rounds))
    print(section)
    if args.picture:
        draw(figures, args.picture)
    if args.docs:
        draw(figures, PICTURE)
        PAGE.write_text(with_section(PAGE.read_text("utf-8"), section, BEGIN, END), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
