"""The route table against a model that keeps plain facts and looks everything up by walking over them."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orbitmq.namesrv.routes import DataVersion, QueueSpec, Registration, RouteTable

TIMEOUT_MS = 100

# Few values, so that the same broker comes back often: the rules are about what it was before.
names = st.sampled_from(["a", "b"])
ids = st.sampled_from([0, 0, 1])
addrs = st.sampled_from(["h1:1", "h2:1", "h3:1"])
clusters = st.sampled_from(["C", "C", "D"])
conns = st.sampled_from(["k1", "k2", "k3"])
versions = st.sampled_from([DataVersion(1, 1), DataVersion(1, 2)])
specs = st.builds(
    QueueSpec, st.integers(1, 3), st.integers(1, 3), st.sampled_from([4, 6, 7]), st.integers(0, 3)
)
topics = st.dictionaries(st.sampled_from(["T", "U", "V"]), specs, max_size=3)


class Heard(NamedTuple):
    name: str
    version: DataVersion
    conn: str
    at: int


class Model:
    """Facts only: who sits where, who was heard when, which broker name has which topic."""

    def __init__(self) -> None:
        self.seats: dict[tuple[str, int], str] = {}
        self.cluster: dict[str, str] = {}
        self.heard: dict[str, Heard] = {}
        self.queues: dict[tuple[str, str], QueueSpec] = {}

    def register(self, reg: Registration, conn: str, now: int) -> tuple[str | None, str | None]:
        seat = (reg.broker_name, reg.broker_id)
        old_seat = next((place for place, addr in self.seats.items() if addr == reg.addr), None)
        before = self.heard.get(reg.addr)
        takes_topics = reg.broker_id == 0 and (
            seat not in self.seats
            or before is None
            or before.version != reg.version
            or before.name != reg.broker_name
        )
        if old_seat is not None and old_seat != seat:
            del self.seats[old_seat]
        self.seats[seat] = reg.addr
        self.cluster[reg.broker_name] = reg.cluster
        self.forget_empty_names()
        if takes_topics:
            for topic, spec in reg.topics.items():
                self.queues[topic, reg.broker_name] = spec
        self.heard[reg.addr] = Heard(reg.broker_name, reg.version, conn, now)
        if reg.broker_id == 0:
            return None, None
        master = self.seats.get((reg.broker_name, 0))
        return master, None if master is None else f"ha-{master}"

    def evict(self, addr: str) -> None:
        self.heard.pop(addr)
        self.seats = {place: each for place, each in self.seats.items() if each != addr}
        self.forget_empty_names()

    def forget_empty_names(self) -> None:
        alive = {name for name, _ in self.seats}
        self.cluster = {name: cluster for name, cluster in self.cluster.items() if name in alive}
        self.queues = {key: spec for key, spec in self.queues.items() if key[1] in alive}

    def members(self, name: str) -> dict[int, str]:
        return {broker_id: addr for (each, broker_id), addr in self.seats.items() if each == name}


class RoutesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(TIMEOUT_MS)
        self.model = Model()
        self.now = 0

    @rule(
        name=names, broker_id=ids, addr=addrs, cluster=clusters, conn=conns, version=versions, topics=topics
    )
    def register(
        self,
        name: str,
        broker_id: int,
        addr: str,
        cluster: str,
        conn: str,
        version: DataVersion,
        topics: dict[str, QueueSpec],
    ) -> None:
        reg = Registration(cluster, name, broker_id, addr, f"ha-{addr}", version, topics, (), conn)
        result = self.table.register(reg, self.now)
        assert (result.master_addr, result.ha_server_addr) == self.model.register(reg, conn, self.now)

    @rule(name=names, addr=addrs)
    def unregister(self, name: str, addr: str) -> None:
        gone = self.table.unregister(name, addr)
        if addr in self.model.heard and self.model.heard[addr].name == name:
            assert gone is not None
            self.model.evict(addr)
        else:
            assert gone is None

    @rule(conn=conns)
    def connection_lost(self, conn: str) -> None:
        expected = sorted(addr for addr, heard in self.model.heard.items() if heard.conn == conn)
        assert [gone.addr for gone in self.table.connection_lost(conn)] == expected
        for addr in expected:
            self.model.evict(addr)

    @rule(passed=st.integers(0, 2 * TIMEOUT_MS))
    def time_passes(self, passed: int) -> None:
        self.now += passed
        expected = {addr for addr, heard in self.model.heard.items() if heard.at + TIMEOUT_MS < self.now}
        assert {gone.addr for gone in self.table.scan(self.now)} == expected
        for addr in expected:
            self.model.evict(addr)

    @rule(addr=addrs, version=versions)
    def query_version(self, addr: str, version: DataVersion) -> None:
        known = self.model.heard.get(addr)
        changed = known is None or known.version != version
        expected = None if known is None else known.version
        assert self.table.query_version(addr, version, self.now) == (changed, expected)
        if known is not None and not changed:
            self.model.heard[addr] = known._replace(at=self.now)

    @rule(name=names, wipe=st.booleans())
    def change_write_perm(self, name: str, wipe: bool) -> None:
        keys = [key for key in self.model.queues if key[1] == name]
        count = self.table.wipe_write_perm(name) if wipe else self.table.add_write_perm(name)
        assert count == len(keys)
        for key in keys:
            spec = self.model.queues[key]
            self.model.queues[key] = spec._replace(perm=spec.perm & ~2 if wipe else 6)

    @rule(topic=st.sampled_from(["T", "U", "V"]), cluster=st.sampled_from([None, "", "C", "D", "E"]))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        doomed = [
            key
            for key in self.model.queues
            if key[0] == topic and (not cluster or self.model.cluster[key[1]] == cluster)
        ]
        assert self.table.delete_topic(topic, cluster) is bool(doomed)
        for key in doomed:
            del self.model.queues[key]

    @invariant()
    def same_routes(self) -> None:
        for topic in ("T", "U", "V"):
            expected = {name: spec for (each, name), spec in self.model.queues.items() if each == topic}
            route = self.table.route(topic)
            if not expected:
                assert route is None
                continue
            assert route is not None
            datas, queues = route["brokerDatas"], route["queueDatas"]
            assert isinstance(datas, list)
            assert isinstance(queues, list)
            assert {data["brokerName"]: data["brokerAddrs"] for data in datas} == {
                name: self.model.members(name) for name in expected
            }
            assert {
                queue["brokerName"]: QueueSpec(
                    queue["readQueueNums"], queue["writeQueueNums"], queue["perm"], queue["topicSysFlag"]
                )
                for queue in queues
            } == expected

    @invariant()
    def same_lists(self) -> None:
        model = self.model
        assert set(self.table.topic_list()) == {topic for topic, _ in model.queues}
        info = self.table.cluster_info()
        brokers, by_cluster = info["brokerAddrTable"], info["clusterAddrTable"]
        assert isinstance(brokers, dict)
        assert isinstance(by_cluster, dict)
        assert {name: (data["cluster"], data["brokerAddrs"]) for name, data in brokers.items()} == {
            name: (cluster, model.members(name)) for name, cluster in model.cluster.items()
        }
        assert {cluster: set(members) for cluster, members in by_cluster.items()} == {
            cluster: {name for name, each in model.cluster.items() if each == cluster}
            for cluster in model.cluster.values()
        }
        for cluster in ("C", "D"):
            assert set(self.table.topics_by_cluster(cluster)) == {
                topic for topic, name in model.queues if model.cluster[name] == cluster
            }
        assert self.table.broker_count() == len(model.heard)

    @invariant()
    def nothing_lingers(self) -> None:
        table = self.table
        linked = {addr for addrs in table._by_conn.values() for addr in addrs}
        assert linked == set(table._live)
        assert all(broker.addrs for broker in table._brokers.values())
        assert all(table._topics.values())
        assert all(table._clusters.values())


RoutesMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestRoutes = RoutesMachine.TestCase
