"""Things the broker does every so often. One task each, so that a slow one does not delay the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

log = logging.getLogger("orbitmq.broker")


class Timers:
    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def every(self, seconds: Callable[[], float] | float, action: Callable[[], object], name: str) -> None:
        """Repeats `action`; a failure is reported and does not end the repetition."""
        self._tasks.append(asyncio.create_task(self._repeat(seconds, action), name=name))

    def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Work that has its own rhythm; it ends with the others."""
        self._tasks.append(asyncio.create_task(work, name=name))

    @staticmethod
    async def _repeat(seconds: Callable[[], float] | float, action: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(seconds() if callable(seconds) else seconds)
            try:
                action()
            except Exception:
                log.exception("a periodic task failed and will be tried again")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
