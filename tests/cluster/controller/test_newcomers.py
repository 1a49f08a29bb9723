"""Who may join, and what is refused because it would cost messages later."""

from __future__ import annotations

import pytest

from orbitmq.cluster.controller.machine import Rules
from orbitmq.cluster.controller.newcomers import FORGET_AFTER_LEASES, MAX_REPLICAS
from orbitmq.cluster.controller.steps import Refusal
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.controller_bodies import LEAVING, MASTER, SLAVE
from tests.support.controller_desk import LEASE_MS, WALL_MS, Desk, beat


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.beat("t1")
    desk.beat("t2")
    return desk


def misconfigured(refusal: Refusal, *words: str) -> None:
    assert refusal.code == ResponseCode.MISCONFIGURED, refusal
    assert [word for word in words if word not in refusal.text] == []


def test_a_copied_store_never_gets_in_beside_the_original(desk: Desk) -> None:
    """The copy of the master's directory is started; both go on speaking."""
    answers = []
    for _ in range(20):
        desk.now_ms += LEASE_MS // 5
        assert desk.beat("t1", MASTER, epoch=1).master == 1, "the original is not disturbed"
        answers.append(desk.ask(beat("t1", epoch=1, run="copy", address="elsewhere:1")))
    waiting = [answer for answer in answers if not isinstance(answer, Refusal)]
    assert waiting and all(answer.master is None for answer in waiting)  # type: ignore[union-attr]
    last = answers[-1]
    assert isinstance(last, Refusal)
    misconfigured(last, "this store directory is a copy", "t1:10911", "Stop one of the two")
    assert desk.state().epoch == 1
    assert desk.state().replicas[1].address == "t1:10911"


def test_a_copied_store_does_not_get_in_after_a_controllers_restart_either(desk: Desk) -> None:
    desk.restart()
    assert desk.beat("t1", epoch=1, run="copy").master is None
    assert desk.beat("t1", MASTER, epoch=1).master == 1


def test_one_late_message_of_a_dead_process_does_not_shut_out_the_next(desk: Desk) -> None:
    desk.now_ms += 100
    desk.beat("t2", run="t2-run-2")
    desk.now_ms += 50
    desk.beat("t2", SLAVE)  # sent before it was killed
    for _ in range(6):
        desk.now_ms += LEASE_MS // 4
        desk.beat("t1", MASTER, epoch=1)
        last = desk.beat("t2", run="t2-run-2")
    assert last.master == 1


def test_a_broker_name_belongs_to_one_cluster(desk: Desk) -> None:
    refusal = desk.refused("t9", cluster="Other")
    misconfigured(refusal, "belongs to cluster 'C'", "'Other'", "brokerClusterName")


def test_a_store_belongs_to_one_group(desk: Desk) -> None:
    misconfigured(desk.refused("t1", broker="b2"), "belongs to broker group 'b'", "'b2'", "brokerName")
    desk.beat("x1", broker="b2")
    misconfigured(desk.refused("t2", broker="b2"), "belongs to broker group 'b'")
    misconfigured(desk.refused("x1"), "belongs to broker group 'b2'")


@pytest.mark.parametrize(("gap_ms", "words"), [(10_001, "10.0 s ahead of"), (-60_000, "60.0 s behind")])
def test_clocks_far_apart_are_refused_at_the_start(desk: Desk, gap_ms: int, words: str) -> None:
    clock_ms = WALL_MS + gap_ms
    misconfigured(desk.refused("t3", clock_ms=clock_ms), words, "allowed are 10 s", "NTP")
    misconfigured(desk.refused("x1", broker="b2", clock_ms=clock_ms), words)
    misconfigured(desk.refused("t2", run="t2-run-2", clock_ms=clock_ms), words)


def test_a_broker_that_runs_is_not_stopped_because_somebody_sets_a_clock(desk: Desk) -> None:
    assert desk.beat("t1", MASTER, epoch=1, clock_ms=WALL_MS + 3_600_000).master == 1
    desk.restart()
    assert desk.beat("t2", SLAVE, clock_ms=WALL_MS - 3_600_000).master == 1


def test_the_allowed_gap_is_a_setting() -> None:
    desk = Desk(Rules(lease_ms=LEASE_MS, max_clock_gap_ms=50))
    misconfigured(desk.refused("t1", clock_ms=WALL_MS + 51), "allowed are 0.05 s", "controllerMaxClockGap")
    desk.beat("t1", clock_ms=WALL_MS + 50)


def test_a_log_from_elsewhere_is_not_overwritten(desk: Desk) -> None:
    misconfigured(desk.refused("t3", end=4096), "log offset 4096", "empty", "another brokerName")
    misconfigured(desk.refused("t3", epoch=1), "never part of broker group 'b'")
    assert desk.beat("t3").replica == 3
    assert desk.beat("t3", SLAVE, end=4096, epoch=1).replica == 3, (
        "one of the group may have as much as it likes"
    )


def test_the_first_of_a_group_may_bring_a_log_along() -> None:
    desk = Desk()
    assert desk.beat("t1", end=4096).master == 1


def test_a_controller_that_forgot_a_group_does_not_begin_it_anew() -> None:
    desk = Desk()
    misconfigured(desk.refused("t1", epoch=7, end=1), "up to epoch 7", "controllerAddr", "--unclean")
    rescued = Desk(Rules(lease_ms=LEASE_MS, unclean=True))
    answer = rescued.beat("t1", epoch=7, end=1)
    assert (answer.master, answer.epoch) == (1, 8), "epochs only grow"


def test_a_controller_with_old_data_notices(desk: Desk) -> None:
    misconfigured(desk.refused("t2", epoch=5), "has seen epoch 5", "knows only of 1", "newest data")


def test_a_directory_that_was_emptied_takes_the_place_of_its_old_self(desk: Desk) -> None:
    desk.now_ms += 10 * LEASE_MS
    answer = desk.beat("t2-new", address="t2:10911")
    assert answer.replica == 3
    assert sorted(desk.state().replicas) == [1, 3]


def test_a_group_does_not_grow_without_end() -> None:
    desk = Desk()
    for number in range(1, MAX_REPLICAS + 1):
        desk.beat(f"t{number}")
    full = desk.refused("one-more")
    assert full.code == ResponseCode.SYSTEM_BUSY and str(MAX_REPLICAS) in full.text
    desk.now_ms += (FORGET_AFTER_LEASES + 1) * LEASE_MS
    assert desk.beat("one-more").replica == MAX_REPLICAS + 1
    assert sorted(desk.state().replicas) == [1, MAX_REPLICAS + 1], "the in-sync set stays, whoever is silent"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"role": "king"}, "role 'king'"),
        ({"broker": ""}, "broker has 0 characters"),
        ({"token": "x" * 256}, "token has 256"),
        ({"run": ""}, "run has 0"),
        ({"end": -1}, "end -1"),
        ({"epoch": -1}, "epoch -1"),
    ],
)
def test_what_is_no_heartbeat_is_refused_by_name(fields: dict[str, object], why: str) -> None:
    desk = Desk()
    given = {"token": "t1", "role": "starting", **fields}
    refusal = desk.ask(beat(**given))  # type: ignore[arg-type]
    assert isinstance(refusal, Refusal)
    assert refusal.code == ResponseCode.INVALID_PARAMETER and why in refusal.text
    assert not desk.rows


def test_one_that_leaves_is_not_made_a_member_first(desk: Desk) -> None:
    assert desk.refused("t9", LEAVING).code == ResponseCode.QUERY_NOT_FOUND
    assert sorted(desk.state().replicas) == [1, 2]
