"""Owned queues: what is saved in which order, locks that are not kept, offsets that nobody takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from orbitmq.client.assignments import Assignments, Rules
from orbitmq.client.core.process_queue import Limits
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.holding import Holding, Shared, Tally
from orbitmq.client.inbox import Inbox
from orbitmq.client.ordered import OrderedHolding, OrderedInbox
from orbitmq.client.scope import Scope
from orbitmq.wire.fastjson import MessageQueue
from tests.support.consuming import run, until

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(3)]


class Store:
    """Offsets in memory; fails as often as it is told."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.saves: list[dict[MessageQueue, int]] = []
        self.failures = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, queue: MessageQueue) -> int | None:
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise OrbitMQError("not now")
        return self.offsets.get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        self.saves.append(dict(offsets))
        await asyncio.sleep(0.005)
        if self.failures:
            self.failures -= 1
            return set()
        self.offsets.update(offsets)
        return set(offsets)


class FakeLocks:
    def __init__(self) -> None:
        self.taken_by_others: set[MessageQueue] = set()
        self.mine: set[MessageQueue] = set()

    async def take(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        got = set(queues) - self.taken_by_others
        self.mine |= got
        return got

    async def give(self, queues: Iterable[MessageQueue]) -> None:
        self.mine -= set(queues)


class Stage:
    def __init__(self, *, ordered: bool = False) -> None:
        self.scope = Scope("test")
        self.store = Store()
        self.locks = FakeLocks()
        self.started: list[Holding] = []
        now = asyncio.get_running_loop().time
        self.line: Any = OrderedInbox(now) if ordered else Inbox()
        shared = Shared(Limits(), self.line, self.scope, self, Tally())  # type: ignore[arg-type]
        kind = OrderedHolding if ordered else Holding
        self.assignments = Assignments(
            self.scope,
            self.store,
            self.locks,  # type: ignore[arg-type]
            Rules(ordered=ordered, handover_s=0.05, retry_after_s=0.02),
            make=lambda queue, offset: kind(queue, offset, shared),
            first_offset=self.first_offset,
            go_on=self.started.append,
            moved=lambda: None,
            clock_ms=lambda: 1,
        )

    async def first_offset(self, queue: MessageQueue) -> int:
        return 7

    def apply(self, *queues: MessageQueue, from_others: Iterable[MessageQueue] = ()) -> None:
        now = asyncio.get_running_loop().time()
        self.assignments.apply(queues, now, from_others=list(from_others))

    async def owned(self, *queues: MessageQueue) -> None:
        held = self.assignments.holdings
        await until(lambda: {q for q, h in held.items() if not h.dropped} == set(queues))


@asynccontextmanager
async def stage(**options: Any) -> AsyncIterator[Stage]:
    made = Stage(**options)
    try:
        yield made
    finally:
        await made.scope.aclose()


def test_a_queue_starts_where_the_store_says_or_at_the_place_for_new_groups() -> None:
    async def scenario() -> None:
        async with stage() as made:
            made.store.offsets[QUEUES[0]] = 40
            made.store.failures = 2
            made.apply(*QUEUES[:2])
            await made.owned(*QUEUES[:2])
            assert {h.queue: h.unfinished.next_offset for h in made.started} == {QUEUES[0]: 40, QUEUES[1]: 7}
            await made.assignments.commit()
            assert made.store.saves == [{QUEUES[1]: 7}], "only what the store does not know yet is saved"

    run(scenario)


def test_a_failed_save_is_repeated_until_it_is_taken() -> None:
    async def scenario() -> None:
        async with stage() as made:
            made.apply(QUEUES[0])
            await made.owned(QUEUES[0])
            made.store.failures = 2
            for _ in range(4):
                await made.assignments.commit()
            assert made.store.saves == [{QUEUES[0]: 7}] * 3 and made.store.offsets == {QUEUES[0]: 7}

    run(scenario)


def test_a_reset_is_not_overwritten_by_a_commit_of_what_was_before() -> None:
    async def scenario() -> None:
        async with stage() as made:
            made.apply(QUEUES[0])
            await made.owned(QUEUES[0])
            (old,) = made.started
            old.unfinished.add((), (), 500)
            made.assignments.replace(old, 100)
            while not made.store.saves:
                await asyncio.sleep(0)
            await made.assignments.commit()  # begins while the reset is being saved
            await until(lambda: len(made.started) == 2)
            await made.assignments.commit()
            assert made.store.offsets[QUEUES[0]] == 100
            assert made.started[1].unfinished.next_offset == 100

    run(scenario)


def test_a_broker_that_refuses_every_offset_is_not_asked_in_a_tight_circle() -> None:
    async def scenario() -> None:
        async with stage() as made:
            made.apply(QUEUES[0])
            await made.owned(QUEUES[0])
            began = asyncio.get_running_loop().time()
            for number in range(1, 4):
                made.assignments.replace(made.started[-1], number)
                await until(lambda: len(made.started) == number + 1)  # noqa: B023
            assert asyncio.get_running_loop().time() - began >= 0.04

    run(scenario)


def test_a_queue_that_is_not_wanted_any_more_is_not_taken_and_its_lock_is_given_back() -> None:
    async def scenario() -> None:
        async with stage() as made:
            made.store.gate.clear()
            made.apply(QUEUES[0])
            await until(lambda: made.locks.mine == {QUEUES[0]})
            made.apply()
            await until(lambda: made.locks.mine == set())
            made.store.gate.set()
            await made.owned()
            assert made.started == []

    run(scenario)


def test_a_lock_of_a_living_owner_is_waited_for_and_a_stale_one_is_not() -> None:
    async def scenario() -> None:
        async with stage() as made:
            made.locks.taken_by_others = set(QUEUES[:2])
            made.apply(*QUEUES[:2], from_others=[QUEUES[0]])
            await made.owned(QUEUES[1])
            made.locks.taken_by_others.clear()
            await made.owned(*QUEUES[:2])

    run(scenario)


def test_an_ordered_queue_is_never_taken_without_its_lock_and_rests_when_it_is_lost() -> None:
    async def scenario() -> None:
        async with stage(ordered=True) as made:
            made.locks.taken_by_others = {QUEUES[0]}
            made.apply(QUEUES[0])
            await asyncio.sleep(0.1)
            assert made.started == []
            made.locks.taken_by_others = set()
            await made.owned(QUEUES[0])
            (holding,) = made.started
            before = holding.locked_until
            made.locks.taken_by_others = {QUEUES[0]}
            await made.assignments.renew_locks()
            assert holding.locked_until == before
            made.locks.taken_by_others = set()
            await asyncio.sleep(0.002)
            await made.assignments.renew_locks()
            assert holding.locked_until > before

    run(scenario)


def test_at_the_end_everything_is_saved_and_given_back() -> None:
    async def scenario() -> None:
        async with stage() as made:
            made.apply(*QUEUES)
            await made.owned(*QUEUES)
            made.started[0].unfinished.add((), (), 9)
            await made.assignments.leave_all(1.0, returns_only=True)
            assert sorted(made.store.offsets.values()) == [7, 7, 9]
            assert made.locks.mine == set() and made.assignments.holdings == {}

    run(scenario)
