"""A private event loop in a thread of its own: how blocking code uses asynchronous parts.

Callers may be many threads, and each of them may have a running loop of its own (a notebook, an asynchronous
test): they wait in their thread, the work is done in this one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

log = logging.getLogger("orbitmq.loop")

T = TypeVar("T")

CLOSE_SECONDS: Final = 10.0
MOST_WORKERS: Final = 1024

# A loop of the parent process must not be collected in a forked child: its end would take the descriptors
# out of the poll set that both processes share, and the parent would never wake up again.
_left_by_a_fork: list[asyncio.AbstractEventLoop] = []


class LoopClosed(RuntimeError):
    """The loop was closed before the work was done."""


class LoopThread:
    """Starts at once. `run` may be called from any thread but its own."""

    def __init__(self, name: str, *, workers: str = "orbitmq-worker", close_s: float = CLOSE_SECONDS) -> None:
        """`workers` is the beginning of the names of threads that run blocking work for the loop."""
        self.pid = os.getpid()
        self._close_s = close_s
        # The resolving of names runs there as well, so the number of threads must not be what bounds other work: a
        # full pool would keep a client from connecting again. Threads are only made when there is work for them.
        self._pool = ThreadPoolExecutor(MOST_WORKERS, thread_name_prefix=workers)
        self._loop = new_event_loop()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made it: threads do not survive a fork."""
        return self.pid != os.getpid()

    @property
    def closed(self) -> bool:
        return self._closed

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(self._pool)
        self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the coroutine. An interrupted caller cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(
                "a blocking call was made inside the event loop's own thread, where it would wait for itself; "
                "await the asynchronous twin there"
            )
        if self._closed or self.forked:
            work.close()
            raise LoopClosed("the event loop behind this object is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise LoopClosed("the event loop behind this object was closed during the call") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, action: Callable[[], T]) -> T:
        """Runs a plain function in the loop's thread, where no lock is needed for what the loop owns."""

        async def once() -> T:
            return action()

        return self.run(once())

    def post(self, action: Callable[[], object]) -> None:
        """Has a plain function called in the loop's thread soon, and goes on."""
        if not self._closed and not self.forked:
            self._loop.call_soon_threadsafe(action)

    def leave(self) -> None:
        """In a forked child: lets go of the parent's loop without touching it."""
        _left_by_a_fork.append(self._loop)
        self._closed = True

    def close(self) -> None:
        """Cancels what is left, ends the thread. Closing twice does no harm."""
        with self._closing:
            if self._closed:
                return
            if self.forked:
                self.leave()
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(self._close_s)
        ending = threading.Thread(target=self._pool.shutdown, name="orbitmq-ending", daemon=True)
        ending.start()
        ending.join(self._close_s)
        if ending.is_alive():
            log.warning("blocking work still runs %g s after %s was closed", self._close_s, self._thread.name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self._close_s)
        self._loop.close()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _cancel_all() -> None:
    mine = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not mine]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
