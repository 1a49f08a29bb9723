"""What every guard promises, whatever database is behind it: run by the tests of each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pytest

from orbitmq.client.dedup import Guard
from orbitmq.client.errors import BadRequest, OrbitMQError

Then = Callable[["FakeMessage"], Awaitable[None]]


@dataclass
class FakeMessage:
    """As much of a message as a guard looks at."""

    keys: list[str] = field(default_factory=lambda: ["order-1"])
    topic: str = "orders"
    tag: str | None = "paid"
    msg_id: str = "0A000001"
    rejected: bool = False
    transaction: Any = None


class Place(Protocol):
    """A database with a table `effects (name)`, and guards on it."""

    insert: str

    def guard(self, **options: Any) -> Guard: ...
    async def effects(self) -> list[str]: ...
    async def run(self, sql: str) -> None:
        """Runs a statement from outside, committed at once."""
        ...


async def handle(
    place: Place, guard: Guard, msg: FakeMessage, group: str = "billing", then: Then | None = None
) -> bool:
    """One delivery of a message to a handler whose effect is a row; tells whether the handler ran."""
    async with guard.guard(msg, group) as new:
        if new:
            await msg.transaction.execute(place.insert, (msg.keys[0],))
            if then is not None:
                await then(msg)
    return new


async def fail(msg: FakeMessage) -> None:
    raise ZeroDivisionError


async def opened(place: Place, **options: Any) -> Guard:
    guard = place.guard(**options)
    await guard.open()
    return guard


async def a_duplicate_has_no_second_effect(place: Place) -> None:
    guard = await opened(place)
    assert await handle(place, guard, FakeMessage())
    assert not await handle(place, guard, FakeMessage(msg_id="another send of the same order"))
    assert await handle(place, guard, FakeMessage(keys=["order-2"]))
    assert await place.effects() == ["order-1", "order-2"]
    await guard.close()


async def a_token_outlives_the_process_that_made_it(place: Place) -> None:
    for expected in (True, False):
        guard = await opened(place)
        assert await handle(place, guard, FakeMessage()) is expected
        await guard.close()
    assert await place.effects() == ["order-1"]


async def a_failed_handler_leaves_neither_effect_nor_token(place: Place) -> None:
    guard = await opened(place)
    msg = FakeMessage()
    with pytest.raises(ZeroDivisionError):
        await handle(place, guard, msg, then=fail)
    assert await place.effects() == [] and msg.transaction is None
    assert await handle(place, guard, FakeMessage())
    assert await place.effects() == ["order-1"]
    await guard.close()


async def a_retry_asked_for_leaves_neither_effect_nor_token(place: Place) -> None:
    guard = await opened(place)

    async def ask_for_a_retry(msg: FakeMessage) -> None:
        msg.rejected = True

    assert await handle(place, guard, FakeMessage(), then=ask_for_a_retry)
    assert await place.effects() == []
    assert await handle(place, guard, FakeMessage())
    await guard.close()


async def a_cancelled_handler_leaves_neither_effect_nor_token(place: Place) -> None:
    guard = await opened(place)
    begun = asyncio.Event()

    async def hang(msg: FakeMessage) -> None:
        begun.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(handle(place, guard, FakeMessage(), then=hang))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await place.effects() == []
    assert await handle(place, guard, FakeMessage())
    assert await place.effects() == ["order-1"]
    await guard.close()


async def each_group_handles_a_message_once(place: Place) -> None:
    guard = await opened(place)
    assert await handle(place, guard, FakeMessage(), "billing")
    assert await handle(place, guard, FakeMessage(), "shipping")
    assert not await handle(place, guard, FakeMessage(), "shipping")
    await guard.close()


async def another_scope_handles_everything_anew(place: Place) -> None:
    first, second = await opened(place), await opened(place, scope="billing, second run")
    assert await handle(place, first, FakeMessage())
    assert await handle(place, second, FakeMessage())
    assert not await handle(place, second, FakeMessage())
    await first.close()
    await second.close()


async def the_user_may_choose_the_token(place: Place) -> None:
    guard = await opened(place, token=lambda msg: msg.keys[0].partition("#")[0])
    assert await handle(place, guard, FakeMessage(keys=["order-1#a"]))
    assert not await handle(place, guard, FakeMessage(keys=["order-1#b"]))
    await guard.close()


async def of_two_at_once_the_second_waits_and_is_the_duplicate(place: Place) -> None:
    guard = await opened(place)
    ran = await asyncio.gather(*(handle(place, guard, FakeMessage()) for _ in range(8)))
    assert sorted(ran) == [False] * 7 + [True]
    assert await place.effects() == ["order-1"]
    await guard.close()


async def of_two_at_once_the_second_takes_over_when_the_first_fails(place: Place) -> None:
    guard = await opened(place)
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def fail_later(msg: FakeMessage) -> None:
        inside.set()
        await go_on.wait()
        raise ZeroDivisionError

    first = asyncio.create_task(handle(place, guard, FakeMessage(), then=fail_later))
    await inside.wait()
    second = asyncio.create_task(handle(place, guard, FakeMessage()))
    await asyncio.sleep(0.02)
    assert not second.done(), "the second copy was handled beside the first"
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        await first
    assert await second is True
    assert await place.effects() == ["order-1"]
    await guard.close()


async def two_processes_at_once_have_one_effect(place: Place) -> None:
    """Two guards know nothing of each other, like those of two members during a rebalance."""
    first, second = await opened(place), await opened(place)

    async def slow(guard: Guard) -> None:
        msg = FakeMessage()
        async with guard.guard(msg, "billing") as new:
            if new:
                await asyncio.sleep(0.02)
                await msg.transaction.execute(place.insert, ("order-1",))
                await asyncio.sleep(0.02)

    await asyncio.gather(slow(first), slow(second))
    assert await place.effects() == ["order-1"]
    await first.close()
    await second.close()


async def a_handler_without_statements_counts_all_the_same(place: Place) -> None:
    guard = await opened(place)
    async with guard.guard(FakeMessage(), "billing") as new:
        assert new
    async with guard.guard(FakeMessage(), "billing") as new:
        assert not new
    await guard.close()


async def statements_see_each_other_and_the_raw_connection_joins(place: Place) -> None:
    guard = await opened(place)
    msg = FakeMessage()
    async with guard.guard(msg, "billing"):
        assert await msg.transaction.execute(place.insert, ("a",)) == 1
        connection = await msg.transaction.connection()
        done = connection.execute(place.insert, ("b",))
        if asyncio.iscoroutine(done):
            await done
        assert await msg.transaction.fetch("SELECT name FROM effects ORDER BY name") == [("a",), ("b",)]
        assert await place.effects() == [], "another connection sees what is not committed"
    assert await place.effects() == ["a", "b"]
    await guard.close()


async def a_transaction_ends_with_its_handler(place: Place) -> None:
    guard = await opened(place)
    msg = FakeMessage()
    async with guard.guard(msg, "billing"):
        kept = msg.transaction
    with pytest.raises(BadRequest, match="transaction is over") as caught:
        await kept.execute(place.insert, ("too late",))
    assert "inside the handler" in caught.value.hint
    assert await place.effects() == []
    await guard.close()


async def old_tokens_are_forgotten_and_young_ones_kept(place: Place) -> None:
    guard = await opened(place)
    assert await handle(place, guard, FakeMessage())
    assert await handle(place, guard, FakeMessage(keys=["order-2"]))
    await guard.close()
    await place.run("UPDATE orbitmq_handled SET handled_at = handled_at - 700000 WHERE token LIKE '%order-1'")
    guard = await opened(place)
    assert await handle(place, guard, FakeMessage(keys=["order-3"])), "the message that clears up"
    assert await handle(place, guard, FakeMessage()), "a token of last week was kept"
    assert not await handle(place, guard, FakeMessage(keys=["order-2"]))
    await guard.close()


async def a_guard_is_open_until_its_last_user_closes_it(place: Place) -> None:
    guard = place.guard()
    with pytest.raises(BadRequest, match="not open"):
        await handle(place, guard, FakeMessage())
    await guard.open()
    await guard.open()
    await guard.close()
    assert await handle(place, guard, FakeMessage())
    await guard.close()
    with pytest.raises(OrbitMQError, match="not open"):
        await handle(place, guard, FakeMessage())


CASES: list[Callable[[Place], Awaitable[None]]] = [
    a_duplicate_has_no_second_effect,
    a_token_outlives_the_process_that_made_it,
    a_failed_handler_leaves_neither_effect_nor_token,
    a_retry_asked_for_leaves_neither_effect_nor_token,
    a_cancelled_handler_leaves_neither_effect_nor_token,
    each_group_handles_a_message_once,
    another_scope_handles_everything_anew,
    the_user_may_choose_the_token,
    of_two_at_once_the_second_waits_and_is_the_duplicate,
    of_two_at_once_the_second_takes_over_when_the_first_fails,
    two_processes_at_once_have_one_effect,
    a_handler_without_statements_counts_all_the_same,
    statements_see_each_other_and_the_raw_connection_joins,
    a_transaction_ends_with_its_handler,
    old_tokens_are_forgotten_and_young_ones_kept,
    a_guard_is_open_until_its_last_user_closes_it,
]


def run_case(case: Callable[[Place], Awaitable[None]], place: Place) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await case(place)

    asyncio.run(bounded())
