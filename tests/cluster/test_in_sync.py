"""The in-sync set as the master keeps it: what it answers, when it asks, and that an old request cannot fool it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orbitmq.cluster.in_sync import EVERYTHING, InSync
from orbitmq.store.durability import Durable

TIMEOUT = 300
LIMIT = 100
NEAR = 50


class World:
    """A master, number 1, with a log of 1000 bytes and the clock of the test."""

    def __init__(self, *members: int, min_in_sync: int = 2, wait_for_copies: bool = True) -> None:
        self.now = 0
        self.wishes = 0
        self.confirms: list[int] = []
        self.answers: list[Durable] = []
        self.set = InSync(
            1,
            members or (1,),
            7,
            1000,
            lambda: self.now,
            min_in_sync=min_in_sync,
            timeout_ms=TIMEOUT,
            not_caught_up_ms=LIMIT,
            near_bytes=NEAR,
            wait_for_copies=wait_for_copies,
        )
        self.set.listen(self.confirms.append)
        self.set.on_wish = self.wished

    def wished(self) -> None:
        self.wishes += 1

    def put(self, end: int) -> None:
        self.set.after(end, self.answers.append)(Durable.YES)

    def wait(self, ms: int) -> None:
        """As in a broker, the clock is looked at often."""
        until = self.now + ms
        while self.now < until:
            self.now = min(until, self.now + 10)
            self.set.expire()
            self.set.wish()

    def grant(self, *members: int) -> None:
        self.set.asked(members)
        self.set.granted(members, self.set.version + 1)


def pair() -> World:
    world = World()
    world.set.confirmed(2, 1000)
    world.grant(1, 2)
    return world


def test_a_message_is_confirmed_when_everybody_of_the_set_has_it() -> None:
    world = pair()
    world.put(1010)
    world.put(1020)
    world.set.confirmed(2, 1010)
    assert world.answers == [Durable.YES]
    world.set.confirmed(2, 1020)
    assert world.answers == [Durable.YES, Durable.YES]
    assert world.confirms == [1010, 1020]


def test_consumers_hear_before_senders() -> None:
    world = pair()
    order: list[str] = []
    world.set.listen(lambda offset: order.append("shown"))
    world.set.after(1010, lambda outcome: order.append("answered"))(Durable.YES)
    world.set.confirmed(2, 1010)
    assert order == ["shown", "answered"]


def test_alone_the_master_says_that_there_is_no_copy() -> None:
    world = World()
    world.put(1010)
    assert world.answers == [Durable.NO_COPY]
    assert world.set.confirm_offset == 1010  # nobody else can be elected, so it will stay


def test_alone_is_enough_where_it_was_said_to_be() -> None:
    world = World(min_in_sync=1)
    world.put(1010)
    assert world.answers == [Durable.YES]


def test_what_fails_on_the_own_device_is_not_waited_for() -> None:
    world = pair()
    world.set.after(1010, world.answers.append)(Durable.FAILED)
    assert world.answers == [Durable.FAILED]
    assert world.set.held == 1000


def test_a_copy_that_takes_too_long_is_named() -> None:
    world = pair()
    world.put(1010)
    world.wait(TIMEOUT - 1)
    assert world.answers == []
    world.wait(1)
    assert world.answers == [Durable.COPY_TIMEOUT]


def test_a_slave_that_is_near_joins_and_is_asked_for_when_it_has_what_was_confirmed() -> None:
    world = World()
    world.set.confirmed(2, 1000 - NEAR - 1)
    assert world.set.ack_set == {1}
    world.set.confirmed(2, 1000 - NEAR)
    assert world.set.ack_set == {1, 2}
    world.put(1010)
    assert world.set.confirm_offset == 1000  # nothing more is confirmed without it
    assert world.set.wish() is None
    assert world.wishes == 0
    world.set.confirmed(2, 1000)
    assert world.wishes == 1
    assert world.set.wish() == {1, 2}


def test_a_slave_is_not_asked_for_before_it_has_the_tables() -> None:
    world = World()
    has_tables = False
    world.set.may_join = lambda replica: has_tables
    world.set.confirmed(2, 1000)
    assert (world.set.wish(), world.wishes) == (None, 0)
    has_tables = True
    world.set.look_again(2)
    assert (world.set.wish(), world.wishes) == ({1, 2}, 1)


def test_one_that_came_near_and_stays_there_does_not_hold_up_the_others_for_long() -> None:
    world = pair()
    world.set.confirmed(3, 980)
    world.put(1010)
    world.set.confirmed(2, 1010)
    assert world.answers == []
    world.wait(LIMIT)
    assert world.answers == [Durable.YES]
    world.set.confirmed(3, 980)  # it still says the same
    assert world.set.ack_set == {1, 2}
    world.set.confirmed(3, 990)
    assert world.set.ack_set == {1, 2, 3}


def test_one_that_came_near_and_went_does_not_count() -> None:
    world = pair()
    world.set.confirmed(3, 980)
    world.set.lost(3)
    assert world.set.ack_set == {1, 2}


def stands_still(world: World) -> None:
    world.set.confirmed(2, 1000)


def is_gone(world: World) -> None:
    world.set.lost(2)


@pytest.mark.parametrize("fault", [stands_still, is_gone])
def test_a_member_that_does_not_come_on_has_to_go_but_counts_until_it_is_let_go(
    fault: Callable[[World], None],
) -> None:
    world = pair()
    world.set.confirmed(3, 1000)
    world.grant(1, 2, 3)
    fault(world)
    world.put(1010)
    for replica in (3,):
        world.set.confirmed(replica, 1010)
    world.wait(LIMIT - 1)
    assert world.set.wish() is None
    world.wait(1)
    assert world.set.wish() == {1, 3}
    world.set.asked({1, 3})
    assert world.answers == []
    world.set.granted({1, 3}, 10)
    assert world.answers == [Durable.YES]
    assert world.set.wish() is None


def test_a_member_that_only_connects_again_and_again_has_to_go() -> None:
    """A full disk: it greets, cannot write, and goes; everybody would wait for it for ever."""
    world = pair()
    world.put(1100)
    for _ in range(LIMIT // 20 + 1):
        world.set.lost(2)
        world.wait(10)
        world.set.confirmed(2, 1000)
        world.wait(10)
    assert world.set.wish() == {1}


def test_a_member_that_comes_on_slowly_stays() -> None:
    world = pair()
    world.put(1100)
    for offset in range(1001, 1010):
        world.wait(LIMIT - 10)
        world.set.confirmed(2, offset)
    assert world.set.wish() is None


def test_time_in_which_there_was_nothing_to_do_is_not_held_against_a_member() -> None:
    world = pair()
    world.wait(10 * LIMIT)
    world.put(1010)
    world.wait(LIMIT - 1)
    assert world.set.wish() is None


def test_time_in_which_the_master_itself_did_not_run_is_not_held_against_anybody() -> None:
    world = pair()
    world.put(1010)
    world.now += 10 * LIMIT
    assert world.set.wish() is None
    world.wait(LIMIT)
    assert world.set.wish() == {1}


def test_a_set_that_becomes_too_small_is_said_to_all_who_wait() -> None:
    world = pair()
    world.put(1010)
    world.grant(1)
    assert world.answers == [Durable.NO_COPY]
    assert world.set.confirm_offset == 1010


def test_a_request_counts_until_a_greater_version_is_known() -> None:
    world = pair()
    world.set.confirmed(3, 1000)
    world.set.asked({1, 2, 3})
    world.set.lost(3)
    world.set.refused({1, 2}, world.set.version)  # perhaps only this copy of it was refused
    assert world.set.ack_set == {1, 2, 3}
    world.put(1010)
    world.set.confirmed(2, 1010)
    assert world.answers == []
    assert world.set.wish() == {1, 2}  # asked for what is in force already: its new version settles it
    world.set.asked({1, 2})
    world.set.granted({1, 2}, world.set.version + 1)
    assert world.answers == [Durable.YES]
    assert world.set.wish() is None


def test_a_refusal_can_tell_that_an_earlier_request_was_granted() -> None:
    world = pair()
    world.set.confirmed(3, 1000)
    world.set.asked({1, 2, 3})
    world.set.asked({1, 2, 3})
    world.set.refused({1, 2, 3}, world.set.version + 1)
    assert world.set.members == {1, 2, 3}
    assert world.set.wish() is None


def test_an_old_answer_changes_nothing() -> None:
    world = pair()
    version = world.set.version
    world.set.granted({1}, version)
    world.set.granted({1}, version - 1)
    assert (world.set.members, world.set.version) == ({1, 2}, version)


def test_a_member_that_comes_back_with_less_counts_with_that() -> None:
    world = pair()
    world.set.confirmed(2, 1010)
    world.set.lost(2)
    world.set.confirmed(2, 500)
    world.put(1010)
    assert world.answers == []
    assert world.set.confirm_offset == 1000


def test_who_does_not_wait_for_copies_still_keeps_the_set() -> None:
    world = World(wait_for_copies=False)
    assert world.set.visible_offset == EVERYTHING
    world.set.confirmed(2, 1000)
    assert world.set.wish() == {1, 2}


def test_everything_is_held_when_the_whole_set_has_the_log() -> None:
    world = pair()
    world.set.own(1010)
    assert not world.set.everything_held(1010)
    world.set.confirmed(2, 1010)
    assert world.set.everything_held(1010)


def test_after_the_end_of_a_mastership_nobody_hears_yes() -> None:
    world = pair()
    world.put(1010)
    world.set.close()
    world.set.confirmed(2, 1020)
    world.put(1020)
    assert world.answers == [Durable.COPY_TIMEOUT] * 2
    assert world.set.confirm_offset == 1000
    world.wait(LIMIT)
    assert world.set.wish() is None
