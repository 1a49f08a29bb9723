from __future__ import annotations

from orbitmq.broker.producers import ProducerTable
from tests.broker.fakes import FakeChannel


def join(table: ProducerTable, conn: FakeChannel, group: str, client_id: str, now_ms: int = 0) -> None:
    table.register(conn, group, client_id, "PYTHON", 407, now_ms)


def test_a_connection_may_be_in_many_groups() -> None:
    table = ProducerTable()
    conn = FakeChannel()
    join(table, conn, "g1", "c1")
    join(table, conn, "g2", "c1")
    assert table.connections() == 1
    table.connection_lost(conn)
    assert table.groups == {}
    assert table.find("c1") is None


def test_checks_go_around_and_skip_closed_connections() -> None:
    table = ProducerTable()
    conns = [FakeChannel(f"10.0.0.{n}:1") for n in range(3)]
    for number, conn in enumerate(conns):
        join(table, conn, "g1", f"c{number}")
    asked = [table.pick("g1") for _ in range(6)]
    assert sorted(client.client_id for client in asked if client) == ["c0", "c0", "c1", "c1", "c2", "c2"]
    conns[0].closed = conns[1].closed = True
    assert {client.client_id for _ in range(4) if (client := table.pick("g1"))} == {"c2"}
    conns[2].closed = True
    assert table.pick("g1") is None
    assert table.pick("unknown") is None


def test_a_reply_goes_to_the_newest_connection_of_a_client() -> None:
    table = ProducerTable()
    old, new = FakeChannel(), FakeChannel()
    join(table, old, "g1", "c1")
    join(table, new, "g1", "c1")
    found = table.find("c1")
    assert found is not None
    assert found.conn is new
    table.connection_lost(new)
    found = table.find("c1")
    assert found is not None
    assert found.conn is old


def test_a_connection_that_changes_its_client_id_is_the_new_client() -> None:
    table = ProducerTable()
    conn = FakeChannel()
    join(table, conn, "g1", "c1")
    join(table, conn, "g1", "c2")
    assert table.find("c1") is None
    assert [client.client_id for client in table.groups["g1"].values()] == ["c2"]


def test_silent_clients_are_taken_out() -> None:
    table = ProducerTable()
    silent, alive = FakeChannel(), FakeChannel()
    join(table, silent, "g1", "c1", now_ms=0)
    join(table, alive, "g1", "c2", now_ms=0)
    join(table, alive, "g1", "c2", now_ms=100)
    assert table.expired(50) == [silent]
    assert [client.client_id for client in table.groups["g1"].values()] == ["c2"]


def test_leaving_a_group_one_is_not_in_does_nothing() -> None:
    table = ProducerTable()
    table.leave(FakeChannel(), "nowhere")
    join(table, FakeChannel(), "g1", "c1")
    table.leave(FakeChannel(), "g1")
    assert len(table.groups["g1"]) == 1
