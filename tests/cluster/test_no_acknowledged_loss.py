"""Controller, in-sync sets and logs together, in virtual time: what was acknowledged is in every later master.

Each example is a seed for the network and a list of faults. A failing one is repeated by its printed arguments;
`ORBITMQ_SIM_EXAMPLES` asks for more of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.cluster.controller import machine
from orbitmq.cluster.controller.election import Choice
from orbitmq.cluster.controller.machine import Rules
from orbitmq.cluster.controller.presence import Presence
from orbitmq.cluster.controller.state import GroupState
from orbitmq.cluster.in_sync import InSync
from orbitmq.wire.controller_bodies import DECLINED, HandOver
from tests.support import sim_replica
from tests.support.sim_replica import SimReplica
from tests.support.sim_world import GROUP, Weather, World

LEASE_MS = 200
EXAMPLES = int(os.environ.get("ORBITMQ_SIM_EXAMPLES", "30"))
STORM_MS = 20 * LEASE_MS
CALM_MS = 25 * LEASE_MS


class Fault(NamedTuple):
    at: float
    kind: str
    who: int
    other: int
    leases: float


def crash(world: World, fault: Fault) -> None:
    world.replicas[fault.who].crash(fault.leases * LEASE_MS)


def crash_master(world: World, fault: Fault) -> None:
    master = world.serving()
    if master is not None:
        master.crash(fault.leases * LEASE_MS)


def freeze(world: World, fault: Fault) -> None:
    world.replicas[fault.who].freeze(fault.leases * LEASE_MS)


def freeze_master(world: World, fault: Fault) -> None:
    master = world.serving()
    if master is not None:
        master.freeze(fault.leases * LEASE_MS)


def leave(world: World, fault: Fault) -> None:
    world.replicas[fault.who].leave(fault.leases * LEASE_MS)


def crash_controller(world: World, fault: Fault) -> None:
    world.controller.crash(fault.leases * LEASE_MS)


def hand_over(world: World, fault: Fault) -> None:
    wish = HandOver(broker=GROUP, to=fault.other + 1 if fault.leases > 2 else None)
    world.ask_controller("tool", wish, lambda step: None)


def part(world: World, pair: frozenset[str], for_ms: float) -> None:
    world.apart.add(pair)
    world.after(for_ms, lambda: world.apart.discard(pair))


def part_from_controller(world: World, fault: Fault) -> None:
    part(world, frozenset((world.replicas[fault.who].name, "controller")), fault.leases * LEASE_MS)


def part_replicas(world: World, fault: Fault) -> None:
    if fault.who != fault.other:
        names = (world.replicas[fault.who].name, world.replicas[fault.other].name)
        part(world, frozenset(names), fault.leases * LEASE_MS)


FAULTS: dict[str, Callable[[World, Fault], None]] = {
    function.__name__: function
    for function in (
        crash,
        crash_master,
        freeze,
        freeze_master,
        leave,
        crash_controller,
        hand_over,
        part_from_controller,
        part_replicas,
    )
}
faults = st.lists(
    st.builds(
        Fault,
        at=st.floats(0, STORM_MS),
        kind=st.sampled_from(sorted(FAULTS)),
        who=st.integers(0, 2),
        other=st.integers(0, 2),
        leases=st.floats(0.1, 5),
    ),
    max_size=14,
)
weathers = st.builds(
    Weather,
    loss=st.sampled_from([0.0, 0.05, 0.2]),
    double=st.sampled_from([0.0, 0.1]),
    late=st.sampled_from([0.0, 0.03, 0.15]),
    engine_fails=st.sampled_from([0.0, 0.1]),
    crash_after_swap=st.sampled_from([0.0, 0.1]),
    cannot_begin=st.sampled_from([0.0, 0.4]),
)


def play(seed: int, weather: Weather, planned: list[Fault], min_in_sync: int) -> World:
    """A storm with all these faults, then a calm in which everybody has to find together again."""
    world = World(seed, Rules(lease_ms=LEASE_MS), weather)
    for number in range(3):
        SimReplica(world, f"r{number + 1}", min_in_sync)
    for fault in planned:
        world.after(fault.at, lambda fault=fault: FAULTS[fault.kind](world, fault))  # type: ignore[misc]
    keep_busy(world)
    world.run(STORM_MS)
    world.weather = Weather(loss=0, double=0, late=0)
    world.run(CALM_MS)
    return world


def keep_busy(world: World) -> None:
    def work() -> None:
        for replica in world.replicas:
            if world.rng.random() < 0.6:
                replica.produce()
            if world.rng.random() < 0.3:
                replica.consume()
        world.serving()
        world.after(world.rng.expovariate(1 / 12), work)

    work()


def recovered(world: World) -> None:
    """Nothing is lost for good: there is a master, everybody is in sync, and sends are acknowledged again."""
    master = world.serving()
    assert master is not None and master.in_sync is not None
    assert master.in_sync.members == {1, 2, 3}
    before = len(world.ledger.acked)
    world.run(2 * LEASE_MS)
    assert len(world.ledger.acked) > before


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32), weather=weathers, planned=faults, min_in_sync=st.sampled_from([1, 2, 2, 3])
)
def test_an_acknowledged_message_is_in_every_later_master(
    seed: int, weather: Weather, planned: list[Fault], min_in_sync: int
) -> None:
    world = play(seed, weather, planned, min_in_sync)
    recovered(world)


def test_a_day_without_faults_is_one_epoch() -> None:
    world = play(1, Weather(loss=0, double=0, late=0), [], 2)
    recovered(world)
    assert list(world.ledger.offices) == [1]
    assert len(world.ledger.acked) > 100


def test_a_dead_master_is_replaced_within_two_leases() -> None:
    world = play(1, Weather(loss=0, double=0, late=0), [], 2)
    master = world.serving()
    assert master is not None
    master.crash(100 * LEASE_MS)
    world.run(2 * LEASE_MS)
    successor = world.serving()
    assert successor is not None and successor is not master
    assert len(world.ledger.offices) == 2


def ask_without_counting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSync, "asked", lambda self, wished: None)


def settle_by_an_equal_version(patch: pytest.MonkeyPatch) -> None:
    granted = InSync.granted

    def sooner(self: InSync, members: Iterable[int], version: int) -> None:
        if version == self.version:
            self._asked = frozenset()
            self._count_anew()
        granted(self, members, version)

    patch.setattr(InSync, "granted", sooner)


def forget_who_is_away(patch: pytest.MonkeyPatch) -> None:
    lost = InSync.lost

    def sooner(self: InSync, replica: int) -> None:
        self.members -= {replica}
        lost(self, replica)

    patch.setattr(InSync, "lost", sooner)


def join_before_it_has_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSync, "_is_ready", lambda self, replica: self._copies[replica].connected)


def show_what_only_the_master_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSync, "visible_offset", property(lambda self: self._own))


def elect_before_the_lease_is_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rules, "patience_ms", property(lambda self: self.lease_ms * 3 // 4))


def elect_anybody(patch: pytest.MonkeyPatch) -> None:
    def choose(state: GroupState, presence: Presence, _: object, now_ms: int, lease_ms: int) -> Choice:
        alive = [number for number in state.replicas if presence.alive(number, now_ms)]
        return Choice(max(alive, default=None))

    patch.setattr(machine, "choose", choose)


def compare_logs_by_length(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sim_replica, "common_end", lambda mine, my_end, theirs, their_end: min(my_end, their_end))


def give_an_epoch_back_unused_after_using_it(patch: pytest.MonkeyPatch) -> None:
    tick = SimReplica.tick

    def lie(self: SimReplica) -> None:
        tick(self)
        if self.in_sync is not None and self.world.rng.random() < 0.05:
            self._close()
            self.role = DECLINED
            self.lease.give_up()

    patch.setattr(SimReplica, "tick", lie)


@pytest.mark.parametrize(
    "break_a_rule",
    [
        ask_without_counting,
        settle_by_an_equal_version,
        forget_who_is_away,
        join_before_it_has_all,
        show_what_only_the_master_has,
        elect_before_the_lease_is_over,
        elect_anybody,
        compare_logs_by_length,
        give_an_epoch_back_unused_after_using_it,
    ],
)
def test_the_play_notices_when_a_rule_is_broken(
    break_a_rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise this file would prove nothing."""
    break_a_rule(monkeypatch)
    kinds = ["part_replicas", "crash_master", "freeze_master", "part_replicas", "part_from_controller"] * 3

    def storms() -> None:
        for seed in range(100):
            rng = random.Random(seed)
            planned = [
                Fault(rng.uniform(0, STORM_MS), kind, rng.randrange(3), rng.randrange(3), rng.uniform(0.3, 2))
                for kind in kinds
            ]
            play(seed, Weather(loss=0.2, double=0.2, late=0.3), planned, 1)

    with pytest.raises(AssertionError, match=r"acknowledged|seen|lease|was not in|wait for"):
        storms()
