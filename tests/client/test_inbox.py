"""The line of messages: order, turns for others, waiting tasks, queues taken out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orbitmq.client.core.advice import HandlingTimes
from orbitmq.client.core.process_queue import Limits
from orbitmq.client.holding import Holding, Shared, Tally
from orbitmq.client.inbox import CHUNK, Inbox
from orbitmq.client.message import Message
from orbitmq.client.ordered import OrderedHolding, OrderedInbox
from orbitmq.client.scope import Scope
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import encode_record
from tests.support.tiny_server import run


class NeverBack:
    async def give_back(self, msg: Message, level: int, reason: str) -> None:
        raise AssertionError("nothing is given back here")


def holding_on(line: Any, number: int = 0, kind: type[Holding] = Holding, **options: Any) -> Holding:
    shared = Shared(Limits(), line, Scope("test"), NeverBack(), Tally(), **options)
    return kind(MessageQueue("T", "broker-a", number), 0, shared)


def page(holding: Holding, count: int) -> tuple[Holding, bytes, list[int]]:
    first = holding.unfinished.next_offset
    records = [
        encode_record(topic="T", body=b"%d" % offset, queue_offset=offset, queue_id=holding.queue.queue_id)
        for offset in range(first, first + count)
    ]
    size = len(records[0])
    holding.unfinished.add(range(first, first + count), [len(one) for one in records], first + count)
    assert all(len(one) == size for one in records) or count > 10
    starts, at = [], 0
    for one in records:
        starts.append(at)
        at += len(one)
    return holding, b"".join(records), starts


async def take(inbox: Any, count: int) -> list[Message]:
    return [await anext(inbox) for _ in range(count)]


def offsets(messages: list[Message]) -> list[int]:
    return [msg.queue_offset for msg in messages]


def test_messages_come_in_the_order_of_their_queue() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        inbox.put(*page(holding_on(inbox), CHUNK * 2 + 5))
        assert len(inbox) == CHUNK * 2 + 5
        assert offsets(await take(inbox, CHUNK * 2 + 5)) == list(range(CHUNK * 2 + 5))
        assert len(inbox) == 0

    run(scenario)


def test_the_loop_gets_a_turn_between_chunks() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        inbox.put(*page(holding_on(inbox), CHUNK * 3))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        await take(inbox, CHUNK * 3)
        task.cancel()
        assert turns >= 3

    run(scenario)


def test_waiting_tasks_get_one_message_each() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        waiting = [asyncio.create_task(anext(inbox)) for _ in range(3)]  # type: ignore[arg-type]
        await asyncio.sleep(0)
        inbox.put(*page(holding_on(inbox), 3))
        assert sorted(offsets(await asyncio.gather(*waiting))) == [0, 1, 2]

    run(scenario)


def test_a_task_that_is_cancelled_while_being_woken_passes_the_message_on() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        first = asyncio.create_task(anext(inbox))  # type: ignore[arg-type]
        second = asyncio.create_task(anext(inbox))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        inbox.put(*page(holding_on(inbox), 1))
        first.cancel()
        assert offsets([await second]) == [0]
        assert first.cancelled()

    run(scenario)


def test_a_queue_is_taken_out_whole() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        gone, stays = holding_on(inbox, 0), holding_on(inbox, 1)
        inbox.put(*page(gone, CHUNK + 3))
        inbox.put(*page(stays, 2))
        inbox.put(*page(gone, 1))
        await take(inbox, 2)
        assert inbox.purge(gone) == CHUNK + 2
        assert [msg.queue_id for msg in await take(inbox, 2)] == [1, 1]

    run(scenario)


def test_closing_ends_every_iteration_and_tells_why() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        waiting = asyncio.create_task(anext(inbox, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        inbox.put(*page(holding_on(inbox), 1))
        assert await waiting is not None
        inbox.put(*page(holding_on(inbox), 5))
        await anext(inbox)
        inbox.close()
        assert [msg async for msg in inbox] == []
        failed = Inbox()
        failed.close(RuntimeError("refused"))
        with pytest.raises(RuntimeError, match="refused"):
            await anext(failed)

    run(scenario)


def test_times_are_measured_per_chunk() -> None:
    async def scenario() -> None:
        wall = cpu = 0.0
        times = HandlingTimes()
        inbox = Inbox(times, clock=lambda: wall, cpu_clock=lambda: cpu)
        inbox.put(*page(holding_on(inbox), CHUNK))
        await take(inbox, CHUNK)
        wall, cpu = CHUNK * 0.010, CHUNK * 0.002
        inbox.close()
        assert await anext(inbox, None) is None
        assert times.samples == 1 and round(times.mean_ms, 6) == 10

    run(scenario)


def test_a_stopped_queue_is_pulled_again_when_half_is_done() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        shared = Shared(Limits(messages=10), inbox, Scope("test"), NeverBack(), Tally())
        holding = Holding(MessageQueue("T", "broker-a", 0), 0, shared)
        inbox.put(*page(holding, 10))
        waiting = asyncio.create_task(holding.wait_for_room())
        for msg in await take(inbox, 4):
            msg.ack()
        await asyncio.sleep(0)
        assert not waiting.done()
        (await anext(inbox)).ack()
        assert await waiting == 5

    run(scenario)


def test_giving_a_queue_away_waits_for_what_is_in_hand() -> None:
    async def scenario() -> None:
        inbox = Inbox()
        holding = holding_on(inbox)
        inbox.put(*page(holding, 6))
        first, second, third = await take(inbox, 3)
        first.ack()
        holding.drop()
        assert holding.in_hand == 2 and len(inbox) == 0
        assert not await holding.settle(0.01)
        leaving = asyncio.create_task(holding.settle(5))
        await asyncio.sleep(0)
        second.ack()
        assert third.fail(asyncio.CancelledError()) is False
        assert await leaving
        # The third was cancelled and the rest never handed out: all of that belongs to the next owner.
        assert holding.unfinished.commit_offset == 2

    run(scenario)


def locked(inbox: OrderedInbox, number: int = 0, **options: Any) -> OrderedHolding:
    holding = holding_on(inbox, number, OrderedHolding, **options)
    holding.locked_until = 1e18
    assert isinstance(holding, OrderedHolding)
    return holding


def test_ordered_one_message_of_a_queue_at_a_time_and_queues_in_turn() -> None:
    async def scenario() -> None:
        inbox = OrderedInbox(asyncio.get_running_loop().time)
        inbox.put(*page(locked(inbox, 0), 2))
        inbox.put(*page(locked(inbox, 1), 2))
        first, other = await take(inbox, 2)
        assert (first.queue_id, other.queue_id) == (0, 1)
        waiting = asyncio.create_task(anext(inbox))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert not waiting.done()
        other.ack()
        following = await waiting
        assert (following.queue_id, following.queue_offset) == (1, 1)

    run(scenario)


def test_ordered_a_failed_message_comes_again_before_the_next() -> None:
    async def scenario() -> None:
        inbox = OrderedInbox(asyncio.get_running_loop().time)
        inbox.put(*page(locked(inbox), 2))
        msg = await anext(inbox)
        msg.retry(after=0.01)
        again = await anext(inbox)
        assert (again.queue_offset, again.reconsume_times) == (0, 1)
        again.ack()
        assert (await anext(inbox)).queue_offset == 1

    run(scenario)


def test_ordered_nothing_without_the_lock() -> None:
    async def scenario() -> None:
        now = 0.0
        inbox = OrderedInbox(lambda: now)
        holding = locked(inbox)
        holding.locked_until = 30.0
        inbox.put(*page(holding, 3))
        (await anext(inbox)).ack()
        now = 30.0
        waiting = asyncio.create_task(anext(inbox))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        assert not waiting.done()
        holding.locked_until = 60.0
        holding.nudge()
        assert (await waiting).queue_offset == 1

    run(scenario)


def test_ordered_a_queue_given_away_during_a_pause_is_free_at_once() -> None:
    async def scenario() -> None:
        inbox = OrderedInbox(asyncio.get_running_loop().time)
        holding = locked(inbox)
        inbox.put(*page(holding, 3))
        (await anext(inbox)).retry(after=30)
        holding.drop()
        assert await holding.settle(0.5)
        assert holding.unfinished.commit_offset == 0

    run(scenario)
