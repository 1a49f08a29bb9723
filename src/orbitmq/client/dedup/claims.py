"""What this process handles right now, and what it handled lately.

Two copies of a message may be under way at the same moment. The second waits for the first to end, then looks
again: it is a duplicate if the first succeeded, and its turn if the first failed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from orbitmq.client.dedup.tokens import Name

RECENT: Final = 65_536


class Claims:
    """One holder at a time for each name; those who wait get it in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: dict[Name, list[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def hold(self, name: Name) -> AsyncIterator[None]:
        await self._take(name)
        try:
            yield
        finally:
            self._pass_on(name)

    async def _take(self, name: Name) -> None:
        queue = self._waiting.get(name)
        if queue is None:
            self._waiting[name] = []
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # The turn may have come in the very moment of the cancellation: then it is ours to pass on.
            if turn.done() and not turn.cancelled():
                self._pass_on(name)
            elif turn in queue:
                queue.remove(turn)
            raise

    def _pass_on(self, name: Name) -> None:
        queue = self._waiting[name]
        while queue:
            turn = queue.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[name]

    def __len__(self) -> int:
        return len(self._waiting)


class Recent:
    """The names handled last, the oldest forgotten first."""

    def __init__(self, capacity: int = RECENT) -> None:
        self._capacity = capacity
        self._names: OrderedDict[Name, None] = OrderedDict()

    def add(self, name: Name) -> None:
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > self._capacity:
            self._names.popitem(last=False)

    def __contains__(self, name: Name) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)
