from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orbitmq.broker.locks import QueueLocks
from orbitmq.wire.fastjson import MessageQueue

QUEUES = [MessageQueue("orders", "broker-a", n) for n in range(3)]


def test_one_owner_at_a_time() -> None:
    locks = QueueLocks()
    assert locks.lock("billing", "c1", QUEUES[:2], 0) == QUEUES[:2]
    assert locks.lock("billing", "c2", QUEUES, 1) == QUEUES[2:]
    assert locks.owner("billing", QUEUES[0], 1) == "c1"


def test_groups_do_not_see_each_other() -> None:
    locks = QueueLocks()
    locks.lock("billing", "c1", QUEUES, 0)
    assert locks.lock("audit", "c2", QUEUES, 0) == QUEUES


def test_a_lock_runs_out_60_s_after_it_was_last_taken() -> None:
    locks = QueueLocks()
    locks.lock("billing", "c1", QUEUES[:1], 0)
    locks.lock("billing", "c1", QUEUES[:1], 20_000)
    assert locks.lock("billing", "c2", QUEUES[:1], 80_000) == []
    assert locks.lock("billing", "c2", QUEUES[:1], 80_001) == QUEUES[:1]


def test_only_the_owner_unlocks() -> None:
    locks = QueueLocks()
    locks.lock("billing", "c1", QUEUES[:1], 0)
    locks.unlock("billing", "c2", QUEUES)
    assert locks.owner("billing", QUEUES[0], 0) == "c1"
    locks.unlock("billing", "c1", QUEUES)
    assert locks.owner("billing", QUEUES[0], 0) is None
    locks.unlock("nobody", "c1", QUEUES)


def test_a_client_that_leaves_gives_all_its_locks_back() -> None:
    locks = QueueLocks()
    locks.lock("billing", "c1", QUEUES[:2], 0)
    locks.lock("billing", "c2", QUEUES[2:], 0)
    assert locks.release("billing", "c1") == 2
    assert locks.release("billing", "c1") == 0
    assert locks.lock("billing", "c2", QUEUES, 1) == QUEUES


clients = st.sampled_from(["c1", "c2", "c3"])
groups = st.sampled_from(["g1", "g2"])
some_queues = st.lists(st.sampled_from(QUEUES), unique=True)


class LocksModel(RuleBasedStateMachine):
    """Against a dictionary that never forgets: owner and time of every lock."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = QueueLocks()
        self.now = 0
        self.model: dict[tuple[str, MessageQueue], tuple[str, int]] = {}

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        owner, taken = self.model.get((group, queue), (None, 0))
        return owner if owner is not None and self.now - taken <= 60_000 else None

    @rule(group=groups, client=clients, queues=some_queues)
    def lock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        expected = [queue for queue in queues if self.holder(group, queue) in (None, client)]
        assert self.locks.lock(group, client, queues, self.now) == expected
        for queue in expected:
            self.model[group, queue] = (client, self.now)

    @rule(group=groups, client=clients, queues=some_queues)
    def unlock(self, group: str, client: str, queues: list[MessageQueue]) -> None:
        self.locks.unlock(group, client, queues)
        for queue in queues:
            if self.model.get((group, queue), ("", 0))[0] == client:
                del self.model[group, queue]

    @rule(group=groups, client=clients)
    def release(self, group: str, client: str) -> None:
        self.locks.release(group, client)
        for key in [k for k, v in self.model.items() if k[0] == group and v[0] == client]:
            del self.model[key]

    @rule(step_ms=st.sampled_from([1, 20_000, 60_000, 60_001]))
    def time_passes(self, step_ms: int) -> None:
        self.now += step_ms

    @rule()
    def expire(self) -> None:
        self.locks.expire(self.now)

    @invariant()
    def owners_agree(self) -> None:
        for group in ("g1", "g2"):
            for queue in QUEUES:
                assert self.locks.owner(group, queue, self.now) == self.holder(group, queue)


TestLocksModel = LocksModel.TestCase


def test_locks_of_clients_that_are_gone_leave_no_trace() -> None:
    locks = QueueLocks()
    locks.lock("billing", "c1", QUEUES, 0)
    locks.lock("idle", "c1", [], 0)
    assert locks.expire(60_000) == 0
    assert locks.expire(60_001) == 3
    assert locks._groups == {}
