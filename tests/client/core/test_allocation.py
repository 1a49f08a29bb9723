"""Who gets which queue: the same rule in every member, and nothing left out."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.core.allocation import (
    AVERAGE,
    BY_NAME,
    Circle,
    ConsistentHash,
    Fixed,
    MachineRoom,
    NearbyRoom,
    Strategy,
    share,
    strategy_named,
)
from orbitmq.client.errors import BadRequest
from orbitmq.wire.fastjson import MessageQueue

EIGHT = [MessageQueue("TopicA", "broker-a", number) for number in range(8)]


def ids(strategy: Strategy, members: list[str], queues: list[MessageQueue] = EIGHT) -> list[list[int]]:
    return [[queue.queue_id for queue in share(strategy, member, queues, members)] for member in members]


def test_average_gives_blocks_and_the_first_members_one_more() -> None:
    assert ids(AVERAGE, ["c1", "c2", "c3"]) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_circle_deals_out_in_turn() -> None:
    assert ids(Circle(), ["c1", "c2", "c3"]) == [[0, 3, 6], [1, 4, 7], [2, 5]]


def test_consistent_hash_agrees_with_java() -> None:
    assert ids(ConsistentHash(), ["c1", "c2", "c3"]) == [[0], [1, 2, 3, 4, 5, 6], [7]]


def test_machine_room_takes_only_brokers_of_the_room_and_deals_the_rest_from_the_front() -> None:
    queues = [MessageQueue("T", "r1@a", n) for n in range(5)] + [
        MessageQueue("T", "r2@b", n) for n in range(5)
    ]
    rooms = MachineRoom(frozenset({"r1"}))
    assert ids(rooms, ["c1", "c2"], queues) == [[0, 1, 4], [2, 3]]
    assert ids(rooms, ["c1"], [MessageQueue("T", "plain", 0)]) == [[]]


def test_fixed_takes_what_it_was_given_and_exists() -> None:
    mine = Fixed((EIGHT[2], MessageQueue("TopicA", "gone", 0)))
    assert ids(mine, ["c1", "c2"]) == [[2], [2]]


def test_nearby_rooms_serve_their_own_queues_and_share_those_without_members() -> None:
    queues = [MessageQueue("T", f"{room}-broker", n) for room in ("east", "north", "west") for n in range(2)]
    nearby = NearbyRoom(
        lambda queue: queue.broker_name.split("-")[0], lambda client: client.split("@")[0], AVERAGE
    )
    assert nearby.name == "MACHINE_ROOM_NEARBY-AVG"
    members = ["east@1", "west@1", "west@2"]
    got = {member: share(nearby, member, queues, members) for member in members}
    assert [queue.broker_name for queue in got["east@1"]] == ["east-broker", "east-broker", "north-broker"]
    assert sorted(chain(*got.values())) == sorted(queues)
    assert all(queue.broker_name != "east-broker" for member in members[1:] for queue in got[member])


NAMES = st.text("abcdefgh0123456789@#", min_size=1, max_size=8)
QUEUES = st.lists(
    st.builds(MessageQueue, st.just("T"), st.sampled_from(["a", "b", "c"]), st.integers(0, 31)), unique=True
)


@given(st.sampled_from(sorted(BY_NAME)), st.lists(NAMES, min_size=1, unique=True), QUEUES, st.randoms())
def test_every_queue_has_exactly_one_owner_whatever_order_the_lists_come_in(
    name, members, queues, random
) -> None:  # type: ignore[no-untyped-def]
    owned: list[MessageQueue] = []
    for member in members:
        shuffled, mixed = list(members), list(queues)
        random.shuffle(shuffled)
        random.shuffle(mixed)
        owned += share(BY_NAME[name], member, mixed, shuffled)
    assert sorted(owned) == sorted(queues)


@given(st.lists(NAMES, min_size=1, unique=True), QUEUES)
def test_average_and_circle_differ_by_one_queue_at_most(members, queues) -> None:  # type: ignore[no-untyped-def]
    for strategy in (AVERAGE, Circle()):
        sizes = [len(share(strategy, member, queues, members)) for member in members]
        assert max(sizes) - min(sizes) <= 1


@given(st.lists(NAMES, min_size=2, unique=True), QUEUES)
def test_consistent_hash_moves_only_the_queues_of_the_member_that_left(members, queues) -> None:  # type: ignore[no-untyped-def]
    gone, *rest = members
    for member in rest:
        before = set(share(ConsistentHash(), member, queues, members))
        assert before <= set(share(ConsistentHash(), member, queues, rest))
    assert gone not in rest


def test_a_stranger_gets_nothing() -> None:
    assert share(AVERAGE, "me", EIGHT, ["others"]) == []
    assert share(AVERAGE, "me", [], ["me"]) == []


def test_an_unknown_strategy_is_refused_with_the_names_there_are() -> None:
    assert strategy_named("CONSISTENT_HASH").name == "CONSISTENT_HASH"
    with pytest.raises(BadRequest) as caught:
        strategy_named("fair")
    assert "average, circle, consistent-hash" in caught.value.hint
