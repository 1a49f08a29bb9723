from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.dedup.claims import Claims, Recent
from orbitmq.client.dedup.tokens import Name

STEPS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["work", "fail", "cancel"])), max_size=12)


@given(STEPS)
def test_one_holder_at_a_time_and_nobody_is_forgotten(steps: list[tuple[int, str]]) -> None:
    """Whoever works, fails or is cancelled, waiting or working: the next one always gets its turn."""

    async def main() -> None:
        claims, holders, most, served = Claims(), [0, 0], [0, 0], set()

        async def work(index: int, number: int, how: str) -> None:
            async with claims.hold(Name("group", str(number))):
                holders[number] += 1
                most[number] = max(most[number], holders[number])
                try:
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                finally:
                    holders[number] -= 1
                served.add(index)
                if how == "fail":
                    raise ZeroDivisionError

        tasks = [asyncio.create_task(work(index, *step)) for index, step in enumerate(steps)]
        for index, (_, how) in enumerate(steps):
            if how == "cancel":
                for _ in range(index % 4):
                    await asyncio.sleep(0)
                tasks[index].cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(*tasks, return_exceptions=True)
        assert len(claims) == 0 and max(most) <= 1
        assert {index for index, (_, how) in enumerate(steps) if how != "cancel"} <= served

    asyncio.run(main())


def test_recent_forgets_the_oldest_first() -> None:
    recent = Recent(capacity=2)
    names = [Name("group", text) for text in "abc"]
    recent.add(names[0])
    recent.add(names[1])
    recent.add(names[0])
    recent.add(names[2])
    assert [name in recent for name in names] == [True, False, True]
    assert len(recent) == 2
