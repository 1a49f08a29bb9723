"""A broker group in virtual time: a network that loses, doubles, delays and reorders, faults, and what must never be.

The controller's machine, the in-sync set and the comparison of logs are the real ones; processes, disks, sockets and
clocks are played. Everything follows from a seed.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from orbitmq.cluster.controller.machine import Machine, Rules
from orbitmq.cluster.controller.state import GroupState, Stored
from orbitmq.cluster.controller.steps import Answer, Refusal, Step, Store
from orbitmq.wire.controller_bodies import AlterInSync, GroupAnswer, HandOver, ReplicaHeartbeat

if TYPE_CHECKING:
    from tests.support.sim_replica import SimReplica

GROUP = "b"
WALL_MS = 1_700_000_000_000


class Record(NamedTuple):
    epoch: int
    number: int


@dataclass(frozen=True)
class Weather:
    """How bad the network is."""

    loss: float = 0.02
    double: float = 0.02
    late: float = 0.02
    engine_fails: float = 0.0
    crash_after_swap: float = 0.0
    cannot_begin: float = 0.0
    """Of the elected ones: those that find, for example, that their disk is full."""


@dataclass
class Ledger:
    """What was promised, to producers and consumers, and whether each later master keeps it."""

    acked: dict[int, tuple[Record, int]] = field(default_factory=dict)
    seen: dict[int, tuple[Record, int]] = field(default_factory=dict)
    offices: dict[int, tuple[str, list[Record]]] = field(default_factory=dict)

    def promise(self, kind: str, offset: int, record: Record, epoch: int) -> None:
        book = self.acked if kind == "acknowledged" else self.seen
        known = book.get(offset)
        assert known is None or known[0] == record, f"at {offset} {known} was {kind}, and now {record}"
        if known is None:
            book[offset] = (record, epoch)
        for later, (who, log) in self.offices.items():
            if later > epoch:
                _has(log, offset, record, f"{who}, master of epoch {later}", kind)

    def take_office(self, who: str, epoch: int, log: list[Record]) -> None:
        assert epoch not in self.offices, (
            f"{who} and {self.offices[epoch][0]} are both master of epoch {epoch}"
        )
        self.offices[epoch] = (who, list(log))
        for kind, book in (("acknowledged", self.acked), ("seen", self.seen)):
            for offset, (record, promised_in) in book.items():
                if promised_in < epoch:
                    _has(log, offset, record, f"{who}, master of epoch {epoch}", kind)

    def cut(self, who: str, log: list[Record], point: int) -> None:
        for offset in range(point, len(log)):
            for kind, book in (("acknowledged", self.acked), ("seen", self.seen)):
                assert book.get(offset, (None,))[0] != log[offset], (
                    f"{who} cuts {log[offset]} at {offset}, which was {kind}"
                )


def _has(log: list[Record], offset: int, record: Record, who: str, kind: str) -> None:
    found = log[offset] if offset < len(log) else None
    assert found == record, f"{who} has {found} at {offset} where {record} was {kind}"


class SimController:
    """The machine with rows that outlive it. A swap may fail with or without effect, a crash may follow it."""

    def __init__(self, world: World, rules: Rules, rate: float) -> None:
        self.world = world
        self.rules = rules
        self.rate = rate
        self.row: Stored | None = None
        self.up = False
        self.start()

    @property
    def now_ms(self) -> int:
        return int(self.world.now * self.rate)

    def start(self) -> None:
        self.machine = Machine(self.rules)
        self.unsure = False
        self.up = True
        self.machine.take_over({GROUP: self.row} if self.row else {}, self.now_ms)

    def crash(self, down_ms: float) -> None:
        if self.up:
            self.up = False
            self.world.after(down_ms, self.start)

    def receive(
        self, message: ReplicaHeartbeat | AlterInSync | HandOver, reply: Callable[[Answer | Refusal], None]
    ) -> None:
        if not self.up:
            return
        received_ms = self.now_ms
        if self.unsure:
            self.unsure = False
            if self.row is not None:
                self.row = self.row._replace(revision=self.row.revision + 1)
            self.machine.reloaded(GROUP, self.row, self.now_ms)

        def decide() -> Step:
            if isinstance(message, ReplicaHeartbeat):
                return self.machine.heartbeat(message, received_ms, WALL_MS)
            if isinstance(message, AlterInSync):
                return self.machine.alter(message, received_ms)
            return self.machine.hand_over(message, received_ms)

        for _ in range(5):
            step = decide()
            if not isinstance(step, Store):
                reply(step)
                self.machine.tick(self.now_ms)
                return
            if not self._store(step):
                return
            if step.answer_to is not None:
                reply(Answer(self.machine.answer_to(GROUP, step.answer_to, self.now_ms)))
                return
        raise AssertionError("the machine does not come to an end")

    def _store(self, step: Store) -> bool:
        rng, weather = self.world.rng, self.world.weather
        assert step.expected == (self.row.revision if self.row else None), "nobody else writes here"
        fails = rng.random() < weather.engine_fails
        if not fails or rng.random() < 0.5:
            before = self.row.state if self.row else None
            self.row = Stored(step.state, (step.expected or 0) + 1)
            self.world.stored(before, step.state)
        if fails:
            self.unsure = True
            return False
        if rng.random() < weather.crash_after_swap:
            self.crash(rng.uniform(0, 3) * self.rules.lease_ms)
            return False
        assert self.row is not None
        self.machine.stored(GROUP, *self.row, self.now_ms)
        return True


class World:
    def __init__(self, seed: int, rules: Rules, weather: Weather) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.weather = weather
        self.rules = rules
        self.ledger = Ledger()
        self.replicas: list[SimReplica] = []
        self.apart: set[frozenset[str]] = set()
        self.produced = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.controller = SimController(self, rules, self.rng.uniform(0.97, 1.03))

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_ms, self._count, action))

    def run(self, for_ms: float) -> None:
        end = self.now + for_ms
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end

    def delay(self) -> float:
        if self.rng.random() < self.weather.late:
            return self.rng.uniform(0, 2.5 * self.rules.lease_ms)
        return self.rng.expovariate(1 / 3) + 0.5

    def are_apart(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.apart

    def ask_controller(
        self,
        who: str,
        message: ReplicaHeartbeat | AlterInSync | HandOver,
        on_answer: Callable[[Answer | Refusal], None],
    ) -> None:
        """A question and its answer, each of which may get lost, doubled, late."""

        def reply(step: Answer | Refusal) -> None:
            self._datagram(who, lambda: on_answer(step))

        self._datagram(who, lambda: self.controller.receive(message, reply))

    def _datagram(self, who: str, action: Callable[[], None]) -> None:
        for _ in range(2 if self.rng.random() < self.weather.double else 1):
            if self.rng.random() >= self.weather.loss and not self.are_apart(who, "controller"):
                self.after(self.delay(), action)

    def stored(self, before: GroupState | None, state: GroupState) -> None:
        """Looks at every change of what the controller remembers."""
        for kind, book in (("acknowledged", self.ledger.acked), ("seen", self.ledger.seen)):
            for offset, (record, _) in book.items():
                self._all_have(state, offset, record, kind)
        self.counts_all(state)
        if before is None:
            return
        assert state.version >= before.version and state.epoch >= before.epoch, (
            "versions and epochs only grow"
        )
        if state.epoch == before.epoch:
            assert (state.master, state.master_run) == (before.master, before.master_run)
            return
        assert state.version > before.version
        assert self.rules.unclean or state.master in before.in_sync, (
            f"{state.master} was not in {before.in_sync}"
        )
        for replica in self.replicas:
            assert not replica.holds_lease, f"{state.master} is elected while {replica.name} holds its lease"

    def promise(self, kind: str, offset: int, record: Record, epoch: int) -> None:
        self.ledger.promise(kind, offset, record, epoch)
        if self.controller.row is not None:
            self._all_have(self.controller.row.state, offset, record, kind)

    def _all_have(self, state: GroupState, offset: int, record: Record, kind: str) -> None:
        """Whoever could be elected next has it."""
        for number in state.in_sync:
            replica = self._called(state, number)
            _has(replica.log, offset, record, f"{replica.name}, in sync in epoch {state.epoch}", kind)

    def counts_all(self, state: GroupState) -> None:
        """A master waits for everybody who could be elected, whatever it has heard of the controller's decisions."""
        master = self._called(state, state.master)
        if master.up and master.in_sync is not None and master.epoch == state.epoch:
            uncounted = set(state.in_sync) - master.in_sync.ack_set
            assert not uncounted, f"{master.name} does not wait for {uncounted}, who may be elected"

    def _called(self, state: GroupState, number: int) -> SimReplica:
        return next(each for each in self.replicas if each.name == state.replicas[number].token)

    def serving(self) -> SimReplica | None:
        """The master, if there is one; never two of them."""
        if self.controller.row is not None:
            self.counts_all(self.controller.row.state)
        found = [replica for replica in self.replicas if replica.holds_lease]
        assert len(found) <= 1, f"{[replica.name for replica in found]} hold a lease at once"
        return found[0] if found else None

    def answer_body(self, step: Answer | Refusal) -> GroupAnswer | None:
        body = step.body
        return body if isinstance(body, GroupAnswer) else None
