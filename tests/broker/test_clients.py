from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orbitmq.broker.clients import ClientManager
from tests.broker.fakes import FakeChannel, beat, consumer, subscribe


def test_a_heartbeat_registers_everything_a_client_does() -> None:
    clients = ClientManager()
    conn = FakeChannel()
    data = beat("c1", consumer("billing", subscribe("orders")), producers=("web", "batch"))
    result = clients.heartbeat(conn, data, "GO", 317, 5)
    assert [change.group for change in result.changes] == ["billing"]
    assert clients.consumer_ids("billing") == ["c1"]
    assert clients.consumer_groups() == ["billing"]
    assert clients.groups_of_topic("orders") == ["billing"]
    assert clients.groups_of_topic("refunds") == []
    assert clients.subscription("billing", "orders") is not None
    assert clients.subscription("nobody", "orders") is None
    assert [client.language for client in clients.producer_group("web")] == ["GO"]
    assert set(clients.producer_groups()) == {"web", "batch"}
    picked = clients.pick_producer("web")
    assert picked is not None
    assert picked is clients.producer_group("web")[0]
    assert clients.find_producer("c1") is not None
    member = clients.find_consumer("billing", "c1")
    assert member is not None
    assert (member.version, member.last_seen_ms) == (317, 5)
    assert clients.counts() == (1, 1)


def test_unknown_names_are_not_errors() -> None:
    clients = ClientManager()
    assert clients.consumer_group("x") is None
    assert clients.consumer_ids("x") == []
    assert clients.find_consumer("x", "c1") is None
    assert clients.mismatches("x") == []
    assert clients.producer_group("x") == []
    assert clients.find_producer("c1") is None


def test_unregistering_leaves_only_the_named_groups() -> None:
    clients = ClientManager()
    conn = FakeChannel()
    data = beat("c1", consumer("billing", subscribe("orders")), producers=("web", "batch"))
    clients.heartbeat(conn, data, "JAVA", 407, 0)
    assert clients.unregister(conn, "c1", "web", None) == []
    assert set(clients.producer_groups()) == {"batch"}
    (change,) = clients.unregister(conn, "c1", None, "billing")
    assert change == ("billing", ())
    assert clients.unregister(conn, "c1", "web", "billing") == []


def test_one_client_cannot_unregister_another() -> None:
    clients = ClientManager()
    conn = FakeChannel()
    data = beat("c1", consumer("billing", subscribe("orders")), producers=("web",))
    clients.heartbeat(conn, data, "JAVA", 407, 0)
    assert clients.unregister(conn, "c2", "web", "billing") == []
    assert clients.unregister(FakeChannel(), "c1", "web", "billing") == []
    assert clients.counts() == (1, 1)


def test_silence_of_120_s_ends_a_client() -> None:
    clients = ClientManager()
    conn = FakeChannel()
    data = beat("c1", consumer("billing", subscribe("orders")), producers=("web",))
    clients.heartbeat(conn, data, "JAVA", 407, 1000)
    assert clients.expire(121_000) == ([], [])
    expired = clients.expire(121_001)
    assert expired.conns == [conn]
    assert [change.group for change in expired.changes] == ["billing"]
    assert clients.counts() == (0, 0)


def test_a_refused_group_does_not_harm_the_others_of_the_same_heartbeat() -> None:
    clients = ClientManager()
    clients.heartbeat(FakeChannel(), beat("c1", consumer("billing", subscribe("orders"))), "JAVA", 407, 0)
    odd = beat("c2", consumer("billing", subscribe("refunds")), consumer("audit", subscribe("orders")))
    result = clients.heartbeat(FakeChannel(), odd, "JAVA", 407, 0, refuse_mismatch=True)
    assert list(result.refused) == ["billing"]
    assert clients.consumer_ids("audit") == ["c2"]
    assert clients.consumer_ids("billing") == ["c1"]


CONNS = [FakeChannel(f"10.0.0.{n}:1") for n in range(4)]
conns = st.sampled_from(range(4))
groups = st.sampled_from(["g1", "g2"])
topics = st.frozensets(st.sampled_from(["t1", "t2", "t3"]), max_size=3)
expressions = st.sampled_from(["*", "A"])
EXPIRE_MS = 100


class MembershipModel(RuleBasedStateMachine):
    """Against plain facts: who was last heard of when, in which group, with which topics."""

    def __init__(self) -> None:
        super().__init__()
        self.clients = ClientManager(EXPIRE_MS)
        self.now = 0
        self.version = 0
        self.facts: dict[tuple[str, int], tuple[int, frozenset[str], str]] = {}
        self.topics: dict[str, frozenset[str]] = {}

    def members(self, group: str) -> set[int]:
        return {conn for name, conn in self.facts if name == group}

    def forget(self, group: str, conn: int) -> None:
        self.facts.pop((group, conn), None)
        if not self.members(group):
            self.topics.pop(group, None)

    @rule(conn=conns, group=groups, names=topics, expression=expressions)
    def heartbeat(self, conn: int, group: str, names: frozenset[str], expression: str) -> None:
        self.version += 1
        subscriptions = [subscribe(name, expression, self.version) for name in sorted(names)]
        result = self.clients.heartbeat(
            CONNS[conn], beat(f"c{conn}", consumer(group, *subscriptions)), "JAVA", 407, self.now
        )
        changed = (group, conn) not in self.facts or self.topics[group] != names
        self.facts[group, conn] = (self.now, names, expression)
        self.topics[group] = names
        assert [change.group for change in result.changes] == ([group] if changed else [])
        for change in result.changes:
            assert set(change.conns) == {CONNS[n] for n in self.members(group)}

    @rule(conn=conns, group=groups)
    def unregister(self, conn: int, group: str) -> None:
        changes = self.clients.unregister(CONNS[conn], f"c{conn}", None, group)
        assert bool(changes) == ((group, conn) in self.facts)
        self.forget(group, conn)

    @rule(conn=conns)
    def hang_up(self, conn: int) -> None:
        changes = self.clients.connection_lost(CONNS[conn])
        lost = [name for name, member in self.facts if member == conn]
        assert sorted(change.group for change in changes) == sorted(lost)
        for name in lost:
            self.forget(name, conn)

    @rule(step_ms=st.sampled_from([1, 60, EXPIRE_MS]))
    def time_passes(self, step_ms: int) -> None:
        self.now += step_ms

    @rule()
    def expire(self) -> None:
        expired = self.clients.expire(self.now)
        old = [key for key, fact in self.facts.items() if fact[0] < self.now - EXPIRE_MS]
        assert set(expired.conns) == {CONNS[conn] for _, conn in old}
        assert {change.group for change in expired.changes} == {group for group, _ in old}
        for group, conn in old:
            self.forget(group, conn)
        for change in expired.changes:
            assert set(change.conns) == {CONNS[n] for n in self.members(change.group)}

    @invariant()
    def tables_agree(self) -> None:
        for group in ("g1", "g2"):
            assert set(self.clients.consumer_ids(group)) == {f"c{n}" for n in self.members(group)}
            found = self.clients.consumer_group(group)
            assert (set() if found is None else set(found.subscriptions)) == self.topics.get(group, set())

    @invariant()
    def mismatches_are_found_and_only_they(self) -> None:
        for group in ("g1", "g2"):
            shapes = {
                frozenset((topic, fact[2]) for topic in fact[1])
                for (name, _), fact in self.facts.items()
                if name == group
            }
            assert bool(self.clients.mismatches(group)) == (len(shapes) > 1)


MembershipModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestMembership = MembershipModel.TestCase
