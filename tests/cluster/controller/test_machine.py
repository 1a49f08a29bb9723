"""The controller's decisions, one by one: leases, elections, hand-overs, in-sync sets."""

from __future__ import annotations

import msgspec
import pytest

from orbitmq.cluster.controller.machine import Rules
from orbitmq.cluster.controller.state import Stored
from orbitmq.cluster.controller.steps import Refusal, Store
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.controller_bodies import DECLINED, LEAVING, MASTER, RESIGNED, SLAVE, GroupAnswer, GroupView
from tests.support.controller_desk import LEASE_MS, WALL_MS, Desk, beat


@pytest.fixture
def trio() -> Desk:
    """Replica 1 is master of epoch 1, all three are in sync and have just been heard."""
    desk = Desk()
    desk.beat("t1")
    desk.beat("t2")
    desk.beat("t3")
    granted = desk.alter(1, 1, 1, 1, 2, 3)
    assert isinstance(granted, GroupAnswer) and granted.version == 2
    everybody(desk)
    return desk


def everybody(desk: Desk, *numbers: int, epoch: int = 1, ends: tuple[int, ...] = (100, 100, 100)) -> None:
    for number in numbers or (1, 2, 3):
        role = MASTER if number == desk.state().master else SLAVE
        desk.beat(f"t{number}", role, epoch=epoch, end=ends[number - 1])


def without_master(desk: Desk) -> None:
    """The others go on; the master is silent until its lease has run out."""
    for _ in range(4):
        desk.now_ms += LEASE_MS // 4
        everybody(desk, 2, 3)
    desk.now_ms += LEASE_MS // 8


def test_the_first_replica_of_a_group_becomes_its_master() -> None:
    desk = Desk()
    first = desk.beat("t1")
    assert (first.replica, first.epoch, first.master, first.in_sync) == (1, 1, 1, [1])
    assert (first.master_address, first.master_ha_address) == ("t1:10911", "t1:10912")
    assert first.lease_ms == LEASE_MS
    second = desk.beat("t2")
    assert (second.replica, second.master, second.in_sync) == (2, 1, [1])


def test_a_number_belongs_to_a_store_for_good() -> None:
    desk = Desk()
    assert [desk.beat(token).replica for token in ("t1", "t2", "t1", "t3", "t2")] == [1, 2, 1, 3, 2]
    desk.restart()
    assert desk.beat("t3").replica == 3
    assert desk.beat("t4").replica == 4


def test_a_heartbeat_that_changes_nothing_stores_nothing(trio: Desk) -> None:
    before = trio.swaps
    for _ in range(50):
        trio.now_ms += 10
        everybody(trio)
    assert trio.swaps == before


def test_a_new_address_is_stored_before_it_is_told(trio: Desk) -> None:
    trio.beat("t1", MASTER, epoch=1, address="elsewhere:1", ha_address="elsewhere:2")
    assert trio.state().replicas[1].address == "elsewhere:1"
    assert trio.beat("t2", SLAVE, epoch=1).master_address == "elsewhere:1"


def test_nobody_is_chosen_while_the_lease_lasts_and_a_tenth_longer(trio: Desk) -> None:
    trio.now_ms += LEASE_MS + LEASE_MS // 10
    for _ in range(3):
        assert trio.beat("t2", SLAVE, epoch=1, end=100).master == 1
        assert trio.beat("t3", SLAVE, epoch=1, end=100).master == 1
    assert trio.state().epoch == 1


def test_a_silent_master_is_replaced_by_the_one_with_the_longest_log(trio: Desk) -> None:
    without_master(trio)
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master is None, "replica 3 has not been heard since"
    assert trio.beat("t3", SLAVE, epoch=1, end=140).master == 3
    told = trio.beat("t2", SLAVE, epoch=1, end=100)
    assert (told.master, told.epoch, told.in_sync) == (3, 2, [3])


def test_a_later_epoch_counts_more_than_a_longer_log(trio: Desk) -> None:
    without_master(trio)
    trio.beat("t2", SLAVE, epoch=0, end=500)
    assert trio.beat("t3", SLAVE, epoch=1, end=100).master == 3


def test_the_lowest_number_wins_a_tie(trio: Desk) -> None:
    without_master(trio)
    trio.beat("t3", SLAVE, epoch=1, end=100)
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master == 2


def test_only_members_of_the_in_sync_set_are_chosen(trio: Desk) -> None:
    trio.alter(1, 1, 2, 1, 2)
    for _ in range(20):
        trio.now_ms += LEASE_MS // 4
        assert trio.beat("t3", SLAVE, epoch=1, end=900).master in (None, 1)
    view = trio.view()
    assert (view.master, view.epoch) == (None, 1)
    assert view.problem == "nobody of the in-sync set (replica 1, 2) is alive"
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master == 2


def test_an_unclean_election_needs_somebody_to_ask_for_it(trio: Desk) -> None:
    trio.alter(1, 1, 2, 1)
    trio.now_ms += 5 * LEASE_MS
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master is None
    assert trio.view().problem == "nobody of the in-sync set (replica 1) is alive"
    assert isinstance(trio.hand_over(unclean=True), GroupView)
    elected = trio.beat("t2", SLAVE, epoch=1, end=100)
    assert (elected.master, elected.epoch, elected.in_sync) == (2, 2, [2])


def test_the_setting_for_unclean_elections_waits_a_lease_for_a_clean_one() -> None:
    desk = Desk(Rules(lease_ms=LEASE_MS, unclean=True))
    desk.beat("t1")
    desk.beat("t2")
    desk.now_ms += LEASE_MS + LEASE_MS // 10 + 1
    assert desk.beat("t2", SLAVE).master is None
    desk.now_ms += LEASE_MS
    assert desk.beat("t2", SLAVE).master == 2


def test_a_master_that_was_only_away_goes_on_in_its_epoch(trio: Desk) -> None:
    trio.now_ms += 3 * LEASE_MS
    back = trio.beat("t1", MASTER, epoch=1, end=100)
    assert (back.master, back.epoch) == (1, 1)


def test_a_replaced_master_is_told_so(trio: Desk) -> None:
    without_master(trio)
    everybody(trio, 2, 3)
    everybody(trio, 2, 3)
    back = trio.beat("t1", MASTER, epoch=1, end=120)
    assert (back.master, back.epoch, back.in_sync) == (2, 2, [2])


def test_a_restarted_master_is_chosen_anew_or_not_at_all(trio: Desk) -> None:
    """Its new process may know less than the old one did."""
    fresh = trio.beat("t1", epoch=1, end=100, run="t1-run-2")
    assert fresh.master is None, "the old process may still hold its lease"
    without_master(trio)
    trio.beat("t1", epoch=1, end=150, run="t1-run-2")
    everybody(trio, 2, 3)
    chosen = trio.beat("t1", epoch=1, end=150, run="t1-run-2")
    assert (chosen.master, chosen.epoch) == (1, 2)


def test_a_new_process_is_not_told_of_the_epoch_that_the_one_before_was_chosen_for(trio: Desk) -> None:
    """Storing an election takes time, so its lease may outlast the time for which the chosen process is waited for."""
    without_master(trio)
    everybody(trio, 2, 3)
    election = trio.machine.heartbeat(beat("t2", SLAVE, epoch=1, end=100), trio.now_ms, WALL_MS)
    assert isinstance(election, Store) and election.state.master == 2
    trio.now_ms += 50
    revision = trio.swap(election)
    assert revision is not None
    trio.machine.stored(election.key, election.state, revision, trio.now_ms)
    trio.now_ms += trio.rules.patience_ms - 20
    fresh = trio.beat("t2", epoch=1, end=100, run="t2-run-2")
    assert (fresh.epoch, fresh.master) == (2, None), "it would serve with a lease that nobody renews"
    assert trio.beat("t3", SLAVE, epoch=1, end=100).master == 2
    trio.now_ms += 20
    chosen = trio.beat("t2", epoch=1, end=100, run="t2-run-2")
    assert (chosen.epoch, chosen.master) == (3, 2)


def test_a_controller_that_starts_gives_every_master_a_full_lease(trio: Desk) -> None:
    trio.now_ms += LEASE_MS
    trio.restart()
    trio.now_ms += LEASE_MS
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master == 1
    assert trio.beat("t3", SLAVE, epoch=1, end=100).master == 1


def test_a_controller_that_starts_remembers_which_process_was_chosen(trio: Desk) -> None:
    trio.restart()
    fresh = trio.beat("t1", epoch=1, end=100, run="t1-run-2")
    assert fresh.master is None
    assert trio.beat("t1", MASTER, epoch=1, end=100).master == 1


def test_members_that_may_be_alive_are_waited_for_one_lease(trio: Desk) -> None:
    trio.restart()
    trio.beat("t1", LEAVING, epoch=1, end=100)
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master is None
    assert "waiting for replica 3" in (trio.view().problem or "")
    trio.now_ms += LEASE_MS // 2
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master is None
    trio.now_ms += LEASE_MS // 2
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master == 2


def test_a_leaving_master_is_replaced_at_once(trio: Desk) -> None:
    trio.now_ms += 10
    left = trio.beat("t1", LEAVING, epoch=1, end=100)
    assert left.master is None
    trio.beat("t2", SLAVE, epoch=1, end=100)
    trio.beat("t3", SLAVE, epoch=1, end=100)
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master == 2


def test_whatever_arrives_late_from_a_process_that_left_changes_nothing(trio: Desk) -> None:
    trio.now_ms += 10
    trio.beat("t1", LEAVING, epoch=1, end=100)
    assert trio.beat("t1", MASTER, epoch=1, end=100).master is None
    everybody(trio, 2, 3)
    everybody(trio, 2, 3)
    assert trio.state().master == 2


def test_who_leaves_and_comes_back_is_welcome_at_once() -> None:
    desk = Desk()
    desk.beat("t1")
    desk.now_ms += 10
    desk.beat("t1", LEAVING, epoch=1)
    again = desk.beat("t1", run="t1-run-2")
    assert (again.master, again.epoch) == (1, 2)


def test_a_hand_over_asks_the_master_and_takes_the_wished_one(trio: Desk) -> None:
    assert not trio.beat("t1", MASTER, epoch=1, end=100).resign
    trio.now_ms += 10
    trio.hand_over(to=3)
    assert trio.beat("t1", MASTER, epoch=1, end=100).resign
    assert not trio.beat("t3", SLAVE, epoch=1, end=100).resign
    trio.now_ms += 10
    assert trio.beat("t1", RESIGNED, epoch=1, end=100).master is None
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master is None
    told = trio.beat("t3", SLAVE, epoch=1, end=100)
    assert (told.master, told.epoch, told.resign) == (3, 2, False)
    assert trio.beat("t1", RESIGNED, epoch=1, end=100).master == 3


def test_a_resigned_master_comes_back_only_when_there_is_nobody_else(trio: Desk) -> None:
    trio.now_ms += 10
    trio.beat("t1", RESIGNED, epoch=1, end=100)
    for _ in range(10):
        trio.now_ms += LEASE_MS // 8
        assert trio.beat("t1", RESIGNED, epoch=1, end=100).master in (None, 1)
    state = trio.state()
    assert (state.master, state.epoch) == (1, 2)
    assert trio.beat("t1", RESIGNED, epoch=1, end=100).master == 1, "it resigned from epoch 1, not from 2"


def test_an_elected_one_that_cannot_begin_makes_way_for_the_others(trio: Desk) -> None:
    without_master(trio)
    everybody(trio, 2, 3)
    everybody(trio, 2, 3)
    assert (trio.state().master, trio.state().in_sync) == (2, (2,))
    trio.now_ms += 10
    assert trio.beat("t2", DECLINED, epoch=2, end=100).master is None
    assert trio.state().in_sync == (1, 2, 3), "nothing of epoch 2 exists: all of them have everything"
    elected = trio.beat("t3", SLAVE, epoch=1, end=100)
    assert (elected.master, elected.epoch, elected.in_sync) == (3, 3, [3])


def test_one_that_cannot_begin_is_tried_again_when_nobody_else_is_there() -> None:
    desk = Desk()
    desk.beat("t1")
    desk.now_ms += 10
    desk.beat("t1", LEAVING, epoch=1)
    assert desk.beat("t1", run="t1-run-2", epoch=1).master == 1
    desk.now_ms += 10
    assert desk.beat("t1", DECLINED, run="t1-run-2", epoch=2).master is None
    desk.now_ms += LEASE_MS
    again = desk.beat("t1", DECLINED, run="t1-run-2", epoch=2)
    assert (again.master, again.epoch) == (1, 3)


def test_a_master_that_has_served_cannot_undo_its_election(trio: Desk) -> None:
    without_master(trio)
    everybody(trio, 2, 3)
    everybody(trio, 2, 3)
    trio.alter(2, 2, trio.state().version, 2)
    trio.beat("t2", DECLINED, epoch=2, end=100)
    assert trio.state().in_sync == (2,)


def test_a_hand_over_that_cannot_be_is_refused(trio: Desk) -> None:
    unknown = trio.hand_over(to=9)
    assert isinstance(unknown, Refusal) and unknown.code == ResponseCode.QUERY_NOT_FOUND
    trio.alter(1, 1, 2, 1, 2)
    outside = trio.hand_over(to=3)
    assert isinstance(outside, Refusal) and "replica 3 is not alive and in sync" in outside.text
    assert "wait until it has caught up" in outside.text
    trio.alter(1, 1, 3, 1)
    alone = trio.hand_over()
    assert isinstance(alone, Refusal) and "nobody else is alive and in sync" in alone.text
    assert not trio.beat("t1", MASTER, epoch=1).resign
    same = trio.hand_over(to=1)
    assert isinstance(same, GroupView) and same.master == 1


def test_a_wish_is_given_up_when_nothing_comes_of_it(trio: Desk) -> None:
    trio.hand_over()
    for _ in range(11):
        trio.now_ms += LEASE_MS
        trio.beat("t1", MASTER, epoch=1)
    assert any("given up" in notice for notice in trio.machine.tick(trio.now_ms))
    assert not trio.beat("t1", MASTER, epoch=1).resign


def test_in_sync_sets_are_granted_on_top_of_what_is_known(trio: Desk) -> None:
    granted = trio.alter(1, 1, 2, 1, 3)
    assert isinstance(granted, GroupAnswer)
    assert (granted.in_sync, granted.version, granted.replica, granted.master) == ([1, 3], 3, 1, 1)
    fence = trio.alter(1, 1, 3, 3, 1)
    assert isinstance(fence, GroupAnswer) and fence.version == 4, "the same set, under a new version"


@pytest.mark.parametrize(
    ("replica", "epoch", "version", "wanted", "why"),
    [
        (1, 1, 1, (1, 2), "version 1, known are"),
        (1, 2, 2, (1, 2), "epoch 2"),
        (2, 1, 2, (1, 2), "replica 2 asks as master"),
        (1, 1, 2, (2, 3), "lacks 1"),
        (1, 1, 2, (1, 7), "replica 7 is not known"),
    ],
)
def test_in_sync_sets_that_do_not_fit_are_refused_with_what_is(
    trio: Desk, replica: int, epoch: int, version: int, wanted: tuple[int, ...], why: str
) -> None:
    refusal = trio.alter(replica, epoch, version, *wanted)
    assert isinstance(refusal, Refusal) and refusal.code == ResponseCode.IN_SYNC_REFUSED
    assert why in refusal.text
    assert refusal.body is not None and (refusal.body.in_sync, refusal.body.version) == ([1, 2, 3], 2)


def test_a_master_without_a_lease_does_not_change_the_set_others_are_chosen_from(trio: Desk) -> None:
    trio.now_ms += 2 * LEASE_MS
    refusal = trio.alter(1, 1, 2, 1)
    assert isinstance(refusal, Refusal) and "no lease any more" in refusal.text
    assert trio.state().in_sync == (1, 2, 3)


def test_a_state_that_was_changed_elsewhere_is_not_told_before_the_old_lease_is_over(trio: Desk) -> None:
    """A swap whose outcome was unknown took place after all: replica 2 was elected, replica 1 has a lease."""
    state = trio.state()
    elsewhere = msgspec.structs.replace(
        state, master=2, master_run="t2-run-1", epoch=2, in_sync=(2,), version=9
    )
    trio.machine.reloaded("b", Stored(elsewhere, 77), trio.now_ms)
    assert trio.machine.groups["b"].revision == 77
    step = trio.beat("t2", SLAVE, epoch=1, end=100)
    assert (step.master, step.epoch) == (None, 2)
    trio.now_ms += LEASE_MS + LEASE_MS // 10 + 1
    assert trio.beat("t2", SLAVE, epoch=1, end=100).master == 2


def test_a_lost_master_is_told_to_people_once(trio: Desk) -> None:
    assert trio.machine.tick(trio.now_ms) == []
    without_master(trio)
    (notice,) = trio.machine.tick(trio.now_ms)
    assert "replica 1 is not master any more" in notice
    assert trio.machine.tick(trio.now_ms + 1) == []
    everybody(trio, 2, 3)
    everybody(trio, 2, 3)
    assert trio.machine.tick(trio.now_ms) == []
    trio.now_ms += 2 * LEASE_MS
    (notice,) = trio.machine.tick(trio.now_ms)
    assert "replica 2 is not master any more" in notice


def test_deadlines_do_not_pile_up(trio: Desk) -> None:
    for round_ in range(300):
        trio.now_ms += LEASE_MS // 3
        everybody(trio, epoch=1)
        if round_ % 3 == 0:
            trio.hand_over()
        trio.machine.tick(trio.now_ms)
    assert len(trio.machine._deadlines) < 10
