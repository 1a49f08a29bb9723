"""The in-sync machine against a controller whose messages are lost, late, doubled and out of order.

What must hold whatever happens: every replica that could be elected, now or by a request that is still on its way, has
all that was acknowledged or shown.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orbitmq.cluster.in_sync import InSync
from orbitmq.store.durability import Durable

ME = 1
SLAVES = (2, 3, 4)
slaves = st.sampled_from(SLAVES)
LIMIT = 100


class Controller:
    def __init__(self) -> None:
        self.members = frozenset({ME})
        self.version = 1

    def alter(self, version: int, wanted: frozenset[int]) -> tuple[str, frozenset[int], int]:
        if version != self.version:
            return "refused", self.members, self.version
        self.members = wanted
        self.version += 1
        return "granted", self.members, self.version


class InSyncMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.log = 0
        self.has = dict.fromkeys(SLAVES, 0)
        self.controller = Controller()
        self.requests: list[tuple[int, frozenset[int]]] = []
        self.answers: list[tuple[str, frozenset[int], int]] = []
        self.acked = 0
        self.on_device: list[int] = []
        self.yes = 0
        self.set = InSync(
            ME,
            {ME},
            1,
            0,
            lambda: self.now,
            min_in_sync=2,
            timeout_ms=3 * LIMIT,
            not_caught_up_ms=LIMIT,
            near_bytes=20,
        )

    def could_be_elected(self) -> frozenset[int]:
        """From the set in force, and from any that a request on its way could still put in force."""
        open_requests = [wanted for version, wanted in self.requests if version == self.controller.version]
        return self.controller.members.union(*open_requests) - {ME}

    def answered(self, end: int, outcome: Durable) -> None:
        if outcome is Durable.YES:
            assert len(self.set.members) >= 2
            assert all(self.has[replica] >= end for replica in self.could_be_elected())
            self.acked = max(self.acked, end)
            self.yes += 1

    @rule(size=st.integers(1, 10), flushed=st.booleans())
    def put(self, size: int, flushed: bool) -> None:
        self.log += size
        self.on_device.append(self.log)
        if flushed:
            self.flush()

    def flush(self) -> None:
        ends, self.on_device = self.on_device, []
        for end in ends:
            self.set.after(end, lambda outcome, end=end: self.answered(end, outcome))(Durable.YES)

    @rule(replica=slaves, size=st.integers(1, 20), unsaid=st.integers(0, 3))
    def copy(self, replica: int, size: int, unsaid: int) -> None:
        """It never says more than it has, often less."""
        self.has[replica] = min(self.log, self.has[replica] + size)
        self.set.confirmed(replica, max(0, self.has[replica] - unsaid))

    @rule(replica=slaves)
    def copy_all(self, replica: int) -> None:
        self.has[replica] = self.log
        self.set.confirmed(replica, self.log)

    @rule(replica=slaves, size=st.integers(1, 8))
    def copy_silently(self, replica: int, size: int) -> None:
        self.has[replica] = min(self.log, self.has[replica] + size)

    @rule(replica=slaves)
    def lose(self, replica: int) -> None:
        self.set.lost(replica)

    @rule(ms=st.sampled_from((1, LIMIT // 4, LIMIT // 2, 5 * LIMIT)))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.set.expire()

    @rule(copies=st.integers(1, 2), delivered=st.booleans())
    def ask(self, copies: int, delivered: bool) -> None:
        wish = self.set.wish()
        if wish is None:
            return
        for _ in range(copies):
            self.set.asked(wish)
            self.requests.append((self.set.version, wish))
        if delivered:
            self.answers.append(self.controller.alter(*self.requests.pop()))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), again=st.booleans(), lost_answer=st.booleans())
    def deliver_request(self, data: st.DataObject, again: bool, lost_answer: bool) -> None:
        at = data.draw(st.integers(0, len(self.requests) - 1))
        request = self.requests[at] if again else self.requests.pop(at)
        answer = self.controller.alter(*request)
        if not lost_answer:
            self.answers.append(answer)

    @precondition(lambda self: self.requests)
    @rule()
    def lose_request(self) -> None:
        self.requests.pop(0)

    @rule()
    def heartbeat(self) -> None:
        self.answers.append(("refused", self.controller.members, self.controller.version))

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), again=st.booleans())
    def deliver_answer(self, data: st.DataObject, again: bool) -> None:
        at = data.draw(st.integers(0, len(self.answers) - 1))
        outcome, members, version = self.answers[at] if again else self.answers.pop(at)
        (self.set.granted if outcome == "granted" else self.set.refused)(members, version)

    @invariant()
    def whoever_is_elected_has_everything_that_was_promised(self) -> None:
        promised = max(self.acked, self.set.confirm_offset)
        for replica in self.controller.members - {ME}:
            assert self.has[replica] >= promised

    @invariant()
    def all_who_could_be_elected_count(self) -> None:
        assert self.could_be_elected() <= self.set.ack_set

    def teardown(self) -> None:
        """When all goes well again, all are in the set, and messages are acknowledged."""
        self.requests.clear()
        for _ in range(6):
            self.now += 1
            for replica in SLAVES:
                self.copy_all(replica)
            self.set.refused(self.controller.members, self.controller.version)
            wish = self.set.wish()
            if wish is not None:
                self.set.asked(wish)
                _, members, version = self.controller.alter(self.set.version, wish)
                self.set.granted(members, version)
        assert self.set.members == self.set.ack_set == {ME, *SLAVES}
        assert self.set.wish() is None
        before = self.yes
        self.put(1, False)
        count = len(self.on_device)
        self.flush()
        for replica in SLAVES:
            self.copy_all(replica)
        assert self.yes >= before + count
        assert self.set.everything_held(self.log)


InSyncMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestInSync = InSyncMachine.TestCase
