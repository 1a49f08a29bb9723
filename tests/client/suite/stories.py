"""All scenarios, and how one is run: bounded in time, with nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tests.client.suite import consuming, conversing, looking, sending
from tests.client.suite.world import World

Story = Callable[[World], Awaitable[None]]
STORIES: Final[tuple[Story, ...]] = (
    *sending.SCENARIOS,
    *conversing.SCENARIOS,
    *consuming.SCENARIOS,
    *looking.SCENARIOS,
)
LIMIT_S = 60.0


def play(story: Story, world: World) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await story(world)
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    asyncio.run(bounded())
