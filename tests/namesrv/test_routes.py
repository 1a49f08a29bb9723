from __future__ import annotations

import time

from orbitmq.namesrv.routes import (
    DataVersion,
    Evicted,
    QueueSpec,
    RegisterResult,
    Registration,
    RouteTable,
)

V1 = DataVersion(1000, 1)
V2 = DataVersion(1000, 2)
SPEC = QueueSpec(4, 4, 6, 0)


def reg(
    addr: str = "10.0.0.1:10911",
    *,
    name: str = "broker-a",
    broker_id: int = 0,
    version: DataVersion = V1,
    topics: dict[str, QueueSpec] | None = None,
    cluster: str = "C",
    conn: object = None,
    filter_servers: tuple[str, ...] | None = (),
) -> Registration:
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        addr=addr,
        ha_addr=addr.rpartition(":")[0] + ":10912",
        version=version,
        topics={"T": SPEC} if topics is None else topics,
        filter_servers=filter_servers,
        conn=conn,
    )


def brokers_of(table: RouteTable, topic: str) -> dict[str, dict[int, str]]:
    route = table.route(topic)
    if route is None:
        return {}
    datas = route["brokerDatas"]
    assert isinstance(datas, list)
    return {data["brokerName"]: data["brokerAddrs"] for data in datas}


def queues_of(table: RouteTable, topic: str) -> list[dict[str, object]]:
    route = table.route(topic)
    assert route is not None
    queues = route["queueDatas"]
    assert isinstance(queues, list)
    return queues


def test_a_route_has_exactly_the_fields_clients_read() -> None:
    table = RouteTable()
    table.register(reg(), 0)
    table.register(reg("10.0.0.2:10911", broker_id=1), 0)
    assert table.route("T") == {
        "brokerDatas": [
            {
                "brokerAddrs": {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"},
                "brokerName": "broker-a",
                "cluster": "C",
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }
    assert table.route("other") is None


def test_a_slave_learns_where_its_master_is() -> None:
    table = RouteTable()
    assert table.register(reg("10.0.0.2:10911", broker_id=1), 0) == RegisterResult(is_new=True)
    assert table.register(reg(), 0).master_addr is None
    result = table.register(reg("10.0.0.2:10911", broker_id=1), 0)
    assert (result.master_addr, result.ha_server_addr) == ("10.0.0.1:10911", "10.0.0.1:10912")
    assert not result.is_new


def test_a_slave_brings_no_topics() -> None:
    table = RouteTable()
    table.register(reg(broker_id=1), 0)
    assert table.topic_list() == []
    assert table.system_topics() == (["C", "broker-a"], "10.0.0.1:10911")


def test_the_same_version_changes_no_topic() -> None:
    table = RouteTable()
    assert table.register(reg(), 0).new_topics == ("T",)
    before = table.generation
    assert table.register(reg(topics={"U": SPEC}), 1).new_topics == ()
    assert table.topic_list() == ["T"]
    assert table.generation == before, "a heartbeat must not make clients' answers stale"
    assert table.register(reg(topics={"U": SPEC}, version=V2), 2).new_topics == ("U",)
    assert table.topic_list() == ["T", "U"], "registrations merge"


def test_a_changed_topic_is_replaced() -> None:
    table = RouteTable()
    table.register(reg(), 0)
    table.register(reg(version=V2, topics={"T": QueueSpec(8, 2, 4, 1)}), 0)
    assert queues_of(table, "T") == [
        {"brokerName": "broker-a", "perm": 4, "readQueueNums": 8, "topicSysFlag": 1, "writeQueueNums": 2}
    ]


def test_a_slave_becomes_master_at_its_address() -> None:
    table = RouteTable()
    table.register(reg(), 0)
    table.register(reg("10.0.0.2:10911", broker_id=1), 0)
    table.unregister("broker-a", "10.0.0.1:10911")
    assert brokers_of(table, "T") == {"broker-a": {1: "10.0.0.2:10911"}}
    table.register(reg("10.0.0.2:10911", broker_id=0, topics={"T": SPEC, "U": SPEC}), 0)
    assert brokers_of(table, "U") == {"broker-a": {0: "10.0.0.2:10911"}}


def test_a_second_master_of_the_name_replaces_the_first_loudly() -> None:
    table = RouteTable()
    table.register(reg(conn="first"), 0)
    result = table.register(reg("10.0.0.9:10911", conn="second"), 0)
    assert brokers_of(table, "T") == {"broker-a": {0: "10.0.0.9:10911"}}
    (warning,) = result.warnings
    assert "10.0.0.9:10911 replaces 10.0.0.1:10911 as master of broker 'broker-a'" in warning
    assert "change one of them" in warning
    # What the loser does on its way out must not hurt the winner.
    assert table.unregister("broker-a", "10.0.0.1:10911") is not None
    assert table.connection_lost("first") == []
    assert brokers_of(table, "T") == {"broker-a": {0: "10.0.0.9:10911"}}


def test_a_restart_at_another_address_is_silent() -> None:
    table = RouteTable()
    table.register(reg(conn=1), 0)
    table.connection_lost(1)
    assert table.register(reg("10.0.0.9:10911", conn=2), 0).warnings == ()


def test_an_address_has_one_name() -> None:
    table = RouteTable()
    table.register(reg(), 0)
    result = table.register(reg(name="broker-b", topics={"U": SPEC}), 0)
    assert "was 'broker-a' before" in result.warnings[0]
    assert table.topic_list() == ["U"]
    assert table.cluster_info() == {
        "brokerAddrTable": {
            "broker-b": {"brokerAddrs": {0: "10.0.0.1:10911"}, "brokerName": "broker-b", "cluster": "C"}
        },
        "clusterAddrTable": {"C": ["broker-b"]},
    }


def test_a_broker_name_has_one_cluster() -> None:
    table = RouteTable()
    table.register(reg(), 0)
    result = table.register(reg("10.0.0.2:10911", broker_id=1, cluster="D"), 0)
    assert "moves from cluster 'C' to 'D'" in result.warnings[0]
    assert table.topics_by_cluster("C") == []
    assert table.topics_by_cluster("D") == ["T"]


def test_a_lost_connection_evicts_at_once() -> None:
    table = RouteTable()
    table.register(reg(conn="c1"), 0)
    table.register(reg("10.0.0.2:10911", name="broker-b", conn="c2", topics={"T": SPEC, "U": SPEC}), 0)
    assert table.connection_lost("c2") == [Evicted("10.0.0.2:10911", "broker-b", 0, "c2")]
    assert table.topic_list() == ["T"]
    assert brokers_of(table, "T") == {"broker-a": {0: "10.0.0.1:10911"}}
    assert table.connection_lost("c2") == []
    assert table.connection_lost("stranger") == []


def test_the_old_connection_of_a_reconnected_broker_means_nothing() -> None:
    table = RouteTable()
    table.register(reg(conn="old"), 0)
    table.register(reg(conn="new"), 1)
    assert table.connection_lost("old") == []
    assert table.topic_list() == ["T"]
    assert len(table.connection_lost("new")) == 1


def test_all_brokers_of_one_connection_go_with_it() -> None:
    table = RouteTable()
    table.register(reg(conn=1), 0)
    table.register(reg("10.0.0.2:10911", name="broker-b", conn=1), 0)
    assert [gone.broker_name for gone in table.connection_lost(1)] == ["broker-a", "broker-b"]
    assert table.cluster_info() == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_topics_stay_while_a_slave_is_left() -> None:
    table = RouteTable()
    table.register(reg(conn=1), 0)
    table.register(reg("10.0.0.2:10911", broker_id=1, conn=2), 0)
    table.connection_lost(1)
    assert brokers_of(table, "T") == {"broker-a": {1: "10.0.0.2:10911"}}
    table.connection_lost(2)
    assert table.route("T") is None


def test_silence_evicts_after_the_timeout() -> None:
    table = RouteTable()
    table.register(reg(), 1_000)
    assert table.scan(121_000) == []
    assert [gone.addr for gone in table.scan(121_001)] == ["10.0.0.1:10911"]
    assert table.topic_list() == []


def test_an_unchanged_version_query_is_a_sign_of_life() -> None:
    table = RouteTable()
    assert table.query_version("10.0.0.1:10911", V1, 0) == (True, None)
    table.register(reg(), 0)
    assert table.query_version("10.0.0.1:10911", V2, 100_000) == (True, V1)
    assert table.query_version("10.0.0.1:10911", V1, 50_000) == (False, V1)
    assert table.scan(170_000) == []
    assert len(table.scan(170_001)) == 1


def test_unregistering_another_brokers_address_does_nothing() -> None:
    table = RouteTable()
    table.register(reg(), 0)
    assert table.unregister("broker-b", "10.0.0.1:10911") is None
    assert table.unregister("broker-a", "10.0.0.2:10911") is None
    assert table.topic_list() == ["T"]


def test_write_permission_is_taken_and_given_back() -> None:
    table = RouteTable()
    table.register(reg(topics={"T": QueueSpec(4, 4, 7), "U": SPEC}), 0)
    table.register(reg("10.0.0.2:10911", name="broker-b"), 0)
    assert table.wipe_write_perm("broker-a") == 2
    assert [queue["perm"] for queue in queues_of(table, "T")] == [5, 6]
    table.register(reg(), 1)
    assert [queue["perm"] for queue in queues_of(table, "T")] == [5, 6], "a heartbeat does not undo it"
    assert table.add_write_perm("broker-a") == 2
    assert [queue["perm"] for queue in queues_of(table, "T")] == [6, 6]
    assert table.wipe_write_perm("nobody") == 0


def test_deleting_a_topic() -> None:
    table = RouteTable()
    table.register(reg(), 0)
    table.register(reg("10.0.0.2:10911", name="broker-b", cluster="D"), 0)
    assert not table.delete_topic("T", "no-such-cluster")
    assert table.delete_topic("T", "D")
    assert list(brokers_of(table, "T")) == ["broker-a"]
    assert table.delete_topic("T")
    assert not table.delete_topic("T")
    assert table.topic_list() == []
    table.connection_lost(None)
    assert table.scan(10**9) != []


def test_topic_lists_by_flag_and_cluster() -> None:
    table = RouteTable()
    topics = {f"F{flag}": QueueSpec(1, 1, 6, flag) for flag in range(4)}
    table.register(reg(topics=topics), 0)
    table.register(reg("10.0.0.2:10911", name="broker-b", cluster="D", topics={"X": SPEC, "F0": SPEC}), 0)
    assert table.unit_topics() == ["F1", "F3"]
    assert table.unit_sub_topics() == ["F2", "F3"]
    assert table.unit_sub_ununit_topics() == ["F2"]
    assert table.topics_by_cluster("D") == ["F0", "X"]
    assert table.topics_by_cluster("nope") == []
    assert table.system_topics() == (["C", "broker-a", "D", "broker-b"], "10.0.0.1:10911")


def test_member_group() -> None:
    table = RouteTable()
    table.register(reg(), 0)
    group = {"brokerAddrs": {0: "10.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "C"}
    assert table.member_group("C", "broker-a") == group
    assert table.member_group("C", "x") == {"brokerAddrs": {}, "brokerName": "x", "cluster": "C"}


def test_filter_servers_follow_their_broker() -> None:
    table = RouteTable()
    table.register(reg(filter_servers=("10.0.0.1:30000",)), 0)
    route = table.route("T")
    assert route is not None
    assert route["filterServerTable"] == {"10.0.0.1:10911": ["10.0.0.1:30000"]}
    table.register(reg(filter_servers=()), 0)
    route = table.route("T")
    assert route is not None
    assert route["filterServerTable"] == {}


def test_ten_thousand_topics_cost_their_first_registration_only() -> None:
    table = RouteTable()
    topics = {f"topic-{n}": QueueSpec(8, 8, 6) for n in range(10_000)}
    began = time.perf_counter()
    for n in range(8):
        table.register(reg(f"10.0.0.{n}:10911", name=f"broker-{n}", topics=topics, conn=n), 0)
    first = time.perf_counter() - began
    began = time.perf_counter()
    for n in range(8):
        table.register(reg(f"10.0.0.{n}:10911", name=f"broker-{n}", topics=topics, conn=n), 1)
    again = time.perf_counter() - began
    assert first < 1.0
    assert again < 0.05
    assert len(table.topic_list()) == 10_000
    table.connection_lost(3)
    assert len(queues_of(table, "topic-1")) == 7
