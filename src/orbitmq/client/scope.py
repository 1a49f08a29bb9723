"""The owner of every background task of a client: nothing runs without it, nothing is left after it.

`spawn` runs a piece of work once, `keep` runs a loop for as long as the scope is open: a loop that fails is
logged and started again after a pause that grows, because a client that silently stops renewing its locks or
committing its offsets is worse than one that fails at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from orbitmq.client.errors import Closed

log = logging.getLogger("orbitmq.client")

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 10.0
# A loop that ran this long before it failed was healthy: its next pause is the first one again.
HEALTHY_AFTER_S: Final = 30.0
# Tasks get this long to end after being cancelled before somebody is told.
GRACE_S: Final = 5.0

Work = Coroutine[Any, Any, Any]
T = TypeVar("T")


class Scope:
    """Owns tasks. Not thread-safe: the loop that uses it owns it."""

    def __init__(
        self,
        name: str,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        longest_pause_s: float = LONGEST_PAUSE_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self.name = name
        self.closed = False
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._grace_s = grace_s
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def tasks(self) -> frozenset[asyncio.Task[Any]]:
        """What runs now."""
        return frozenset(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str, awaited: bool = False) -> asyncio.Task[T]:
        """Runs a coroutine once. Its error is logged, quietly if somebody who awaits the task gets it anyway."""
        if self.closed:
            work.close()
            raise Closed(f"{name} is not started: {self.name} is closed", hint="open a new client")
        task = asyncio.get_running_loop().create_task(work, name=f"{self.name}/{name}")
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, awaited))
        return task

    def keep(self, make: Callable[[], Work], *, name: str) -> asyncio.Task[None]:
        """Runs a loop until the scope closes or the loop returns; a failed one is started again."""
        return self.spawn(self._kept(make, name), name=name)

    async def aclose(self) -> None:
        """Cancels everything and returns when nothing is left. May be called from a task of the scope itself."""
        self.closed = True
        own = asyncio.current_task()
        while left := [task for task in self._tasks if task is not own]:
            for task in left:
                task.cancel()
            _, stuck = await asyncio.wait(left, timeout=self._grace_s)
            for task in stuck:
                log.error("%s does not end %g s after being cancelled", task.get_name(), self._grace_s)

    async def _kept(self, make: Callable[[], Work], name: str) -> None:
        clock = asyncio.get_running_loop().time
        pause_s = self._first_pause_s
        while True:
            started = clock()
            try:
                await make()
            except Exception:
                if clock() - started >= HEALTHY_AFTER_S:
                    pause_s = self._first_pause_s
                log.exception("%s/%s failed and is started again in %g s", self.name, name, pause_s)
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._longest_pause_s)

    def _ended(self, task: asyncio.Task[Any], awaited: bool) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            quiet = awaited or isinstance(error, Closed)
            level = logging.DEBUG if quiet else logging.WARNING
            log.log(level, "%s failed: %s", task.get_name(), error, exc_info=error)
