from __future__ import annotations

from orbitmq.broker.consumers import ConsumerGroup, ConsumerTable, Registration
from orbitmq.broker.subscriptions import Mismatch
from orbitmq.wire.bodies import SubscriptionData
from tests.broker.fakes import FakeChannel, consumer, subscribe


def join(
    table: ConsumerTable,
    conn: FakeChannel,
    client_id: str,
    *subscriptions: SubscriptionData,
    refuse: bool = False,
    now_ms: int = 0,
) -> Registration:
    data = consumer("billing", *subscriptions)
    return table.register(conn, client_id, "PYTHON", 407, data, now_ms, refuse_mismatch=refuse)


def group_of(table: ConsumerTable) -> ConsumerGroup:
    return table.groups["billing"]


def test_joining_is_told_to_all_members_and_repeating_is_not() -> None:
    table = ConsumerTable()
    one, two = FakeChannel(), FakeChannel()
    first = join(table, one, "c1", subscribe("orders"))
    assert first.change is not None
    assert first.change.conns == (one,)
    second = join(table, two, "c2", subscribe("orders"))
    assert second.change is not None
    assert second.change.conns == (one, two)
    assert join(table, two, "c2", subscribe("orders")).change is None


def test_a_subscription_is_replaced_only_by_a_newer_one() -> None:
    table = ConsumerTable()
    conn = FakeChannel()
    join(table, conn, "c1", subscribe("orders", "A", version=5))
    join(table, conn, "c1", subscribe("orders", "B", version=5))
    found = table.subscription("billing", "orders")
    assert found is not None
    assert found.sub_string == "A"
    join(table, conn, "c1", subscribe("orders", "B", version=6))
    found = table.subscription("billing", "orders")
    assert found is not None
    assert found.sub_string == "B"


def test_topics_not_in_the_heartbeat_are_dropped_and_that_is_a_change() -> None:
    table = ConsumerTable()
    conn = FakeChannel()
    join(table, conn, "c1", subscribe("orders"), subscribe("refunds"))
    gone = join(table, conn, "c1", subscribe("orders"))
    assert gone.change is not None
    assert table.subscription("billing", "refunds") is None
    back = join(table, conn, "c1", subscribe("orders"), subscribe("refunds"))
    assert back.change is not None


def test_a_newer_expression_alone_needs_no_rebalance() -> None:
    table = ConsumerTable()
    conn = FakeChannel()
    join(table, conn, "c1", subscribe("orders", "A", version=1))
    assert join(table, conn, "c1", subscribe("orders", "B", version=2)).change is None


def test_the_newest_of_two_subscriptions_to_one_topic_counts() -> None:
    table = ConsumerTable()
    join(table, FakeChannel(), "c1", subscribe("orders", "A", 1), subscribe("orders", "B", 2))
    found = table.subscription("billing", "orders")
    assert found is not None
    assert found.sub_string == "B"


def test_model_and_type_of_the_last_heartbeat_win() -> None:
    table = ConsumerTable()
    join(table, FakeChannel(), "c1", subscribe("orders"))
    data = consumer("billing", subscribe("orders"), model="broadcasting")
    table.register(FakeChannel(), "c2", "GO", 317, data, 0, refuse_mismatch=False)
    assert group_of(table).message_model == "BROADCASTING"


def test_a_client_id_is_listed_once_while_its_old_connection_lingers() -> None:
    table = ConsumerTable()
    old, new = FakeChannel(), FakeChannel()
    join(table, old, "c1", subscribe("orders"))
    join(table, new, "c1", subscribe("orders"))
    assert group_of(table).client_ids() == ["c1"]
    old.closed = True
    found = group_of(table).find("c1")
    assert found is not None
    assert found.conn is new
    assert group_of(table).find("nobody") is None


def test_the_group_ends_with_its_last_member() -> None:
    table = ConsumerTable()
    one, two = FakeChannel(), FakeChannel()
    join(table, one, "c1", subscribe("orders"))
    join(table, two, "c2", subscribe("orders"))
    change = table.leave(one, "billing")
    assert change is not None
    assert change.conns == (two,)
    assert [c.conns for c in table.connection_lost(two)] == [()]
    assert table.groups == {}
    assert table.connections() == 0
    assert table.leave(one, "billing") is None


def test_silent_members_are_taken_out_and_the_rest_is_told_once() -> None:
    table = ConsumerTable()
    conns = [FakeChannel() for _ in range(3)]
    for number, conn in enumerate(conns):
        join(table, conn, f"c{number}", subscribe("orders"), now_ms=0)
    join(table, conns[2], "c2", subscribe("orders"), now_ms=100)
    gone, changes = table.expired(50)
    assert gone == conns[:2]
    assert [change.conns for change in changes] == [(conns[2],)]


def test_a_mismatch_is_reported_once_and_again_when_it_changes() -> None:
    table = ConsumerTable()
    one, two, three = FakeChannel(), FakeChannel(), FakeChannel()
    assert join(table, one, "c1", subscribe("orders", "A")).mismatches == []
    odd = Mismatch("c2", "orders", "B", "A")
    assert join(table, two, "c2", subscribe("orders", "B")).mismatches == [odd]
    assert join(table, two, "c2", subscribe("orders", "B")).mismatches == []
    assert join(table, one, "c1", subscribe("orders", "A")).mismatches == []
    more = join(table, three, "c3", subscribe("refunds")).mismatches
    assert odd in more
    assert Mismatch("c3", "refunds", "*", None) in more
    assert group_of(table).mismatches() == more


def test_a_mismatch_that_comes_back_is_reported_again() -> None:
    table = ConsumerTable()
    one, two = FakeChannel(), FakeChannel()
    join(table, one, "c1", subscribe("orders", "A"))
    assert join(table, two, "c2", subscribe("orders", "B")).mismatches
    table.connection_lost(two)
    assert group_of(table).mismatches() == []
    assert join(table, two, "c2", subscribe("orders", "B")).mismatches


def test_refusal_keeps_the_odd_member_out() -> None:
    table = ConsumerTable()
    one, two = FakeChannel(), FakeChannel()
    join(table, one, "c1", subscribe("orders", "A"), refuse=True)
    refused = join(table, two, "c2", subscribe("orders", "B"), refuse=True)
    assert refused.refused == [Mismatch("c2", "orders", "B", "A")]
    assert refused.change is None
    assert group_of(table).client_ids() == ["c1"]
    found = table.subscription("billing", "orders")
    assert found is not None
    assert found.sub_string == "A"


def test_a_member_that_changes_its_mind_alone_is_taken_out() -> None:
    table = ConsumerTable()
    one, two = FakeChannel(), FakeChannel()
    join(table, one, "c1", subscribe("orders", "A"), refuse=True)
    join(table, two, "c2", subscribe("orders", "A"), refuse=True)
    refused = join(table, one, "c1", subscribe("orders", "B", version=2), refuse=True)
    assert refused.refused
    assert refused.change is not None
    assert refused.change.conns == (two,)
    assert group_of(table).client_ids() == ["c2"]


def test_a_single_client_may_change_its_subscription_even_across_a_reconnect() -> None:
    table = ConsumerTable()
    old, new = FakeChannel(), FakeChannel()
    join(table, old, "c1", subscribe("orders", "A", 1), refuse=True)
    assert join(table, old, "c1", subscribe("orders", "B", 2), refuse=True).refused == []
    assert join(table, new, "c1", subscribe("orders", "C", 3), refuse=True).refused == []
