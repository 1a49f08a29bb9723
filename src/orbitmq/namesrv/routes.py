"""The route table: which broker serves which topic, and which broker is alive. Pure: event and time in.

Rules that clients and brokers in the field rely on:

* Only a master (id 0) says what topics its broker name has, and only when its data version differs from the
  one known for its address, or when the address is new. Registrations merge; they never take a topic away.
* An address stands for one process: registered under another id or name, it leaves its old place.
* A broker goes when its connection ends, when it unregisters, or when it was silent for too long. With the
  last address of a broker name go the name and its topics; while a slave is left, they stay readable.
* Taking write permission away lasts until the master's data version changes.

Invariants: every address of a broker is alive; every topic and every cluster has at least one broker.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from orbitmq.wire.codes import Perm, TopicFlag

MASTER_ID: Final = 0
BROKER_TIMEOUT_MS: Final = 120_000


class DataVersion(NamedTuple):
    """A broker's version of its topic table. Only equality means anything."""

    timestamp: int = 0
    counter: int = 0
    state_version: int = 0

    def to_dict(self) -> dict[str, int]:
        version = {"counter": self.counter, "timestamp": self.timestamp}
        if self.state_version:
            version["stateVersion"] = self.state_version
        return dict(sorted(version.items()))


class QueueSpec(NamedTuple):
    """The queues of one topic on one broker."""

    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class Registration:
    cluster: str
    broker_name: str
    broker_id: int
    addr: str
    ha_addr: str
    version: DataVersion
    topics: Mapping[str, QueueSpec]
    filter_servers: tuple[str, ...] | None = None
    conn: Hashable = None


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """What the broker is told, and what a person should be told."""

    master_addr: str | None = None
    ha_server_addr: str | None = None
    is_new: bool = False
    new_topics: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Evicted(NamedTuple):
    addr: str
    broker_name: str
    broker_id: int
    conn: Hashable


@dataclass(slots=True)
class _Broker:
    cluster: str
    addrs: dict[int, str] = field(default_factory=dict)
    # The topics this name has, so that its end costs its own topics and not a walk over all of them.
    topics: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Live:
    broker_name: str
    broker_id: int
    last_ms: int
    version: DataVersion
    conn: Hashable
    ha_addr: str


class RouteTable:
    def __init__(self, broker_timeout_ms: int = BROKER_TIMEOUT_MS) -> None:
        self.broker_timeout_ms = broker_timeout_ms
        # Grows with every change a client could see, so that encoded answers can be kept in between.
        self.generation = 0
        self._topics: dict[str, dict[str, QueueSpec]] = {}
        self._brokers: dict[str, _Broker] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[str, _Live] = {}
        self._filter_servers: dict[str, tuple[str, ...]] = {}
        self._by_conn: dict[Hashable, set[str]] = {}

    def is_known(self, broker_name: str, broker_id: int, addr: str, version: DataVersion) -> bool:
        """Whether a registration with these facts would leave all topics as they are."""
        if broker_id != MASTER_ID:
            return True
        live = self._live.get(addr)
        broker = self._brokers.get(broker_name)
        return (
            live is not None
            and live.version == version
            and live.broker_name == broker_name
            and broker is not None
            and MASTER_ID in broker.addrs
        )

    def register(self, reg: Registration, now_ms: int) -> RegisterResult:
        warnings: list[str] = []
        topics_known = self.is_known(reg.broker_name, reg.broker_id, reg.addr, reg.version)
        before = self._live.get(reg.addr)
        broker = self._place(reg, before, warnings)
        new_topics = () if topics_known else self._merge_topics(reg, broker)
        self._set_live(reg, now_ms)
        if reg.filter_servers is not None:
            self._set_filter_servers(reg.addr, reg.filter_servers)
        master_addr = ha_addr = None
        if reg.broker_id != MASTER_ID:
            master_addr = broker.addrs.get(MASTER_ID)
            ha_addr = self._live[master_addr].ha_addr if master_addr is not None else None
        return RegisterResult(master_addr, ha_addr, before is None, new_topics, tuple(warnings))

    def unregister(self, broker_name: str, addr: str) -> Evicted | None:
        """Only the process that holds a place may leave it: a replaced master must not evict its heir."""
        live = self._live.get(addr)
        if live is None or live.broker_name != broker_name:
            return None
        return self._evict(addr)

    def connection_lost(self, conn: Hashable) -> list[Evicted]:
        return [self._evict(addr) for addr in sorted(self._by_conn.get(conn, ()))]

    def scan(self, now_ms: int) -> list[Evicted]:
        """Drops the brokers that were silent for longer than the timeout."""
        before = now_ms - self.broker_timeout_ms
        silent = [addr for addr, live in self._live.items() if live.last_ms < before]
        return [self._evict(addr) for addr in silent]

    def query_version(self, addr: str, version: DataVersion, now_ms: int) -> tuple[bool, DataVersion | None]:
        """(changed, the version known here). An unchanged version counts as a sign of life."""
        live = self._live.get(addr)
        if live is None:
            return True, None
        changed = live.version != version
        if not changed:
            live.last_ms = max(live.last_ms, now_ms)
        return changed, live.version

    def wipe_write_perm(self, broker_name: str) -> int:
        return self._change_perm(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        return self._change_perm(broker_name, lambda perm: Perm.READ | Perm.WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> bool:
        """Forgets a topic, everywhere or in one cluster; tells whether there was anything to forget."""
        specs = self._topics.get(topic, {})
        names = [name for name in specs if not cluster or self._brokers[name].cluster == cluster]
        for name in names:
            del specs[name]
            self._brokers[name].topics.discard(topic)
        if not names:
            return False
        if not specs:
            del self._topics[topic]
        self.generation += 1
        return True

    def route(self, topic: str) -> dict[str, object] | None:
        """TopicRouteData with integer broker ids; None if no broker serves the topic."""
        specs = self._topics.get(topic)
        if specs is None:
            return None
        filter_servers = {
            addr: list(self._filter_servers[addr])
            for name in specs
            for addr in self._brokers[name].addrs.values()
            if addr in self._filter_servers
        }
        return {
            "brokerDatas": [self._broker_data(name) for name in specs],
            "filterServerTable": filter_servers,
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": spec.perm,
                    "readQueueNums": spec.read_queues,
                    "topicSysFlag": spec.sys_flag,
                    "writeQueueNums": spec.write_queues,
                }
                for name, spec in specs.items()
            ],
        }

    def cluster_info(self) -> dict[str, object]:
        return {
            "brokerAddrTable": {name: self._broker_data(name) for name in self._brokers},
            "clusterAddrTable": {cluster: list(names) for cluster, names in self._clusters.items()},
        }

    def member_group(self, cluster: str, broker_name: str) -> dict[str, object]:
        broker = self._brokers.get(broker_name)
        addrs = dict(sorted(broker.addrs.items())) if broker is not None and broker.cluster == cluster else {}
        return {"brokerAddrs": addrs, "brokerName": broker_name, "cluster": cluster}

    def topic_list(self) -> list[str]:
        return list(self._topics)

    def topics_by_cluster(self, cluster: str) -> list[str]:
        topics: dict[str, None] = {}
        for name in self._clusters.get(cluster, ()):
            topics.update(dict.fromkeys(sorted(self._brokers[name].topics)))
        return list(topics)

    def system_topics(self) -> tuple[list[str], str | None]:
        """Cluster and broker names (each is a topic too), and the address of a broker that knows the rest."""
        names: list[str] = []
        for cluster, broker_names in self._clusters.items():
            names += [cluster, *broker_names]
        first = next(iter(self._brokers.values()), None)
        return list(dict.fromkeys(names)), first.addrs[min(first.addrs)] if first else None

    def unit_topics(self) -> list[str]:
        return self._topics_where(lambda flag: bool(flag & TopicFlag.UNIT))

    def unit_sub_topics(self) -> list[str]:
        return self._topics_where(lambda flag: bool(flag & TopicFlag.UNIT_SUB))

    def unit_sub_ununit_topics(self) -> list[str]:
        return self._topics_where(lambda flag: bool(flag & TopicFlag.UNIT_SUB) and not flag & TopicFlag.UNIT)

    def broker_count(self) -> int:
        return len(self._live)

    def _place(self, reg: Registration, before: _Live | None, warnings: list[str]) -> _Broker:
        """Puts the address at its id, and takes it and whoever was there away from where they were."""
        name, addr, broker_id = reg.broker_name, reg.addr, reg.broker_id
        if before is not None and before.broker_name != name:
            warnings.append(
                f"{addr} registered as broker {name!r} and was {before.broker_name!r} before: the old name "
                "loses this address; give every broker an address of its own"
            )
            self._leave(addr, before)
        broker = self._brokers.get(name)
        if broker is None:
            broker = self._brokers[name] = _Broker(reg.cluster)
            self._clusters.setdefault(reg.cluster, {})[name] = None
            self.generation += 1
        elif broker.cluster != reg.cluster:
            warnings.append(
                f"broker {name!r} moves from cluster {broker.cluster!r} to {reg.cluster!r}, because {addr} "
                "says so: give all brokers of one name the same brokerClusterName"
            )
            self._leave_cluster(name, broker.cluster)
            broker.cluster = reg.cluster
            self._clusters.setdefault(reg.cluster, {})[name] = None
            self.generation += 1
        if (
            before is not None
            and before.broker_id != broker_id
            and broker.addrs.get(before.broker_id) == addr
        ):
            del broker.addrs[before.broker_id]
        holder = broker.addrs.get(broker_id)
        if holder != addr:
            if holder is not None:
                role = "master" if broker_id == MASTER_ID else f"slave {broker_id}"
                warnings.append(
                    f"{addr} replaces {holder} as {role} of broker {name!r}, though {holder} has not left: "
                    "after a failover that is as it should be; if both run with fixed roles, they have the same "
                    "brokerName and brokerId and push each other out of the routes: change one of them"
                )
            broker.addrs[broker_id] = addr
            self.generation += 1
        return broker

    def _merge_topics(self, reg: Registration, broker: _Broker) -> tuple[str, ...]:
        name = reg.broker_name
        new: list[str] = []
        for topic, spec in reg.topics.items():
            specs = self._topics.get(topic)
            if specs is None:
                specs = self._topics[topic] = {}
                new.append(topic)
            specs[name] = spec
        broker.topics.update(reg.topics)
        if reg.topics:
            self.generation += 1
        return tuple(new)

    def _set_live(self, reg: Registration, now_ms: int) -> None:
        before = self._live.get(reg.addr)
        if before is not None:
            self._unlink(reg.addr, before.conn)
        self._live[reg.addr] = _Live(
            reg.broker_name, reg.broker_id, now_ms, reg.version, reg.conn, reg.ha_addr
        )
        if reg.conn is not None:
            self._by_conn.setdefault(reg.conn, set()).add(reg.addr)

    def _set_filter_servers(self, addr: str, servers: tuple[str, ...]) -> None:
        if self._filter_servers.get(addr, ()) == servers:
            return
        if servers:
            self._filter_servers[addr] = servers
        else:
            del self._filter_servers[addr]
        self.generation += 1

    def _evict(self, addr: str) -> Evicted:
        live = self._live.pop(addr)
        self._unlink(addr, live.conn)
        self._filter_servers.pop(addr, None)
        self._leave(addr, live)
        return Evicted(addr, live.broker_name, live.broker_id, live.conn)

    def _leave(self, addr: str, live: _Live) -> None:
        """Takes an address out of its broker name, and the name with its topics if it was the last one."""
        broker = self._brokers.get(live.broker_name)
        if broker is None or broker.addrs.get(live.broker_id) != addr:
            return
        del broker.addrs[live.broker_id]
        self.generation += 1
        if broker.addrs:
            return
        name = live.broker_name
        for topic in broker.topics:
            specs = self._topics[topic]
            del specs[name]
            if not specs:
                del self._topics[topic]
        del self._brokers[name]
        self._leave_cluster(name, broker.cluster)

    def _leave_cluster(self, name: str, cluster: str) -> None:
        names = self._clusters[cluster]
        del names[name]
        if not names:
            del self._clusters[cluster]

    def _unlink(self, addr: str, conn: Hashable) -> None:
        addrs = self._by_conn.get(conn)
        if addrs is not None:
            addrs.discard(addr)
            if not addrs:
                del self._by_conn[conn]

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        broker = self._brokers.get(broker_name)
        if broker is None:
            return 0
        for topic in broker.topics:
            specs = self._topics[topic]
            specs[broker_name] = specs[broker_name]._replace(perm=change(specs[broker_name].perm))
        self.generation += 1
        return len(broker.topics)

    def _broker_data(self, name: str) -> dict[str, object]:
        broker = self._brokers[name]
        addrs = dict(sorted(broker.addrs.items()))
        return {"brokerAddrs": addrs, "brokerName": name, "cluster": broker.cluster}

    def _topics_where(self, accept: Callable[[int], bool]) -> list[str]:
        # A topic's first broker speaks for the topic: the flag is the same on all of them.
        return [topic for topic, specs in self._topics.items() if accept(next(iter(specs.values())).sys_flag)]
