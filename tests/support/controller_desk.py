"""A controller's machine with a memory for its states, driven by hand: what a service does, without any waiting."""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.cluster.controller.machine import Machine, Rules
from orbitmq.cluster.controller.state import GroupState, Stored, decode_state, encode_state
from orbitmq.cluster.controller.steps import Answer, Refusal, Step, Store
from orbitmq.wire.controller_bodies import (
    STARTING,
    AlterInSync,
    GroupAnswer,
    GroupView,
    HandOver,
    ReplicaHeartbeat,
)

WALL_MS = 1_700_000_000_000
LEASE_MS = 1000


class Desk:
    """`now_ms` is set by the test. States survive `restart`, all else is forgotten."""

    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules(lease_ms=LEASE_MS)
        self.now_ms = 0
        self.rows: dict[str, tuple[bytes, int]] = {}
        self.swaps = 0
        self.restart()

    def restart(self) -> None:
        self.machine = Machine(self.rules)
        known = {key: self.stored(key) for key in self.rows}
        self.machine.take_over(known, self.now_ms)

    def stored(self, broker: str = "b") -> Stored:
        data, revision = self.rows[broker]
        return Stored(decode_state(broker, data), revision)

    def state(self, broker: str = "b") -> GroupState:
        return decode_state(broker, self.rows[broker][0])

    def swap(self, step: Store) -> int | None:
        _, revision = self.rows.get(step.key, (b"", None))
        if revision != step.expected:
            return None
        self.swaps += 1
        self.rows[step.key] = (encode_state(step.state), (step.expected or 0) + 1)
        return self.rows[step.key][1]

    def run(self, decide: Callable[[], Step]) -> GroupAnswer | GroupView | Refusal:
        for _ in range(5):
            step = decide()
            if isinstance(step, Answer):
                return step.body
            if isinstance(step, Refusal):
                return step
            revision = self.swap(step)
            assert revision is not None, "nobody else writes here"
            self.machine.stored(step.key, step.state, revision, self.now_ms)
            if step.answer_to is not None:
                return self.machine.answer_to(step.key, step.answer_to, self.now_ms)
        raise AssertionError("the machine does not come to an end")

    def ask(self, heartbeat: ReplicaHeartbeat) -> GroupAnswer | GroupView | Refusal:
        return self.run(lambda: self.machine.heartbeat(heartbeat, self.now_ms, WALL_MS))

    def beat(self, token: str, role: str = STARTING, **fields: object) -> GroupAnswer:
        """A heartbeat that must be welcome."""
        answer = self.ask(beat(token, role, **fields))
        assert isinstance(answer, GroupAnswer), answer
        return answer

    def refused(self, token: str, role: str = STARTING, **fields: object) -> Refusal:
        answer = self.ask(beat(token, role, **fields))
        assert isinstance(answer, Refusal), answer
        return answer

    def alter(
        self, replica: int, epoch: int, version: int, *in_sync: int
    ) -> GroupAnswer | GroupView | Refusal:
        wish = AlterInSync(
            broker="b", cluster="C", replica=replica, epoch=epoch, version=version, in_sync=list(in_sync)
        )
        return self.run(lambda: self.machine.alter(wish, self.now_ms))

    def hand_over(self, to: int | None = None, *, unclean: bool = False) -> GroupAnswer | GroupView | Refusal:
        wish = HandOver(broker="b", to=to, unclean=unclean)
        return self.run(lambda: self.machine.hand_over(wish, self.now_ms))

    def view(self) -> GroupView:
        return self.machine.views(self.now_ms)[0]


def beat(token: str, role: str = STARTING, **fields: object) -> ReplicaHeartbeat:
    """A heartbeat of the broker group `b` in the cluster `C`; its run is the token's first unless told otherwise."""
    usual: dict[str, object] = {
        "cluster": "C",
        "broker": "b",
        "run": f"{token}-run-1",
        "address": f"{token}:10911",
        "ha_address": f"{token}:10912",
        "clock_ms": WALL_MS,
    }
    return ReplicaHeartbeat(token=token, role=role, **{**usual, **fields})  # type: ignore[arg-type]
