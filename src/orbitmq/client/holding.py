"""A queue that this member owns now: what is unfinished of it, and what becomes of its messages.

A holding is never reused: when a queue is given away and comes back, or is set to another offset, a new one is made.
Whatever a handler says about a message of the old one then changes nothing any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from orbitmq.client.core import back_off
from orbitmq.client.core.process_queue import Limits, ProcessQueue
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.message import DONE, QUEUE_OFFSET, Message

if TYPE_CHECKING:
    from orbitmq.client.scope import Scope
    from orbitmq.wire.fastjson import MessageQueue

log = logging.getLogger("orbitmq.consumer")

LOCAL_RETRY_S: Final = 5.0
STUCK_WARNING_S: Final = 30.0


class Line(Protocol):
    """The inbox as a holding sees it."""

    def put(self, holding: Holding, buf: bytes, starts: list[int]) -> None: ...
    def put_back(self, msg: Message) -> None: ...
    def purge(self, holding: Holding) -> int: ...


class Returns(Protocol):
    """Where failed messages go."""

    async def give_back(self, msg: Message, level: int, reason: str) -> None: ...


class Tally:
    """Counts of a whole consumer."""

    __slots__ = ("buried", "failed", "pulled", "pulled_bytes", "returned")

    def __init__(self) -> None:
        self.pulled = 0
        self.pulled_bytes = 0
        self.failed = 0
        self.returned = 0
        self.buried = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """What all holdings of a consumer have in common."""

    limits: Limits
    line: Line
    scope: Scope
    returns: Returns
    tally: Tally
    local_retry_s: float = LOCAL_RETRY_S
    max_retries: int | None = None
    """For ordered consumers, whose retries no broker counts."""
    message: type[Message] = Message


class Holding:
    """One owned queue. It is the origin of its messages and hears what became of them."""

    def __init__(self, queue: MessageQueue, start: int, shared: Shared) -> None:
        self.queue = queue
        self.unfinished = ProcessQueue(start, shared.limits)
        self.dropped = False
        self.replaced = False
        self.committed: int | None = None
        self.pull_task: asyncio.Task[None] | None = None
        self.last_pull_ms = 0
        self.locked_until = 0.0
        self.lock_taken_ms = 0
        self.message = shared.message
        self._line = shared.line
        self._scope = shared.scope
        self._returns = shared.returns
        self._tally = shared.tally
        self._local_retry_s = shared.local_retry_s
        # Unfinished messages that no handler has at the moment; only counted once the queue is given away.
        self._resting = 0
        self._pausing: dict[int, asyncio.TimerHandle] = {}
        # Messages that are on their way back to a broker.
        self.returning = 0
        self._changed: asyncio.Future[None] | None = None
        self._warned_stuck = False

    def __repr__(self) -> str:
        return f"{self.queue.topic} queue {self.queue.queue_id} of {self.queue.broker_name}"

    # --- what handlers say ------------------------------------------------------------------------------------

    def finish(self, msg: Message) -> None:
        unfinished = self.unfinished
        # Once per message, so the offset is read here without a further call.
        offset = QUEUE_OFFSET.unpack_from(msg._buf, msg._start)[0]
        if not unfinished.finish(offset) or self._changed is None:
            return
        # Somebody waits: to give the queue away, or to pull again.
        if self.dropped or unfinished.drained():
            self._notify()

    def retry(self, msg: Message, after_s: float | None, reason: str) -> Awaitable[None]:
        self._tally.failed += 1
        return self._start(self._give_back(msg, back_off.level_for(after_s), reason), "retry")

    def bury(self, msg: Message, reason: str) -> Awaitable[None]:
        self._tally.failed += 1
        return self._start(self._give_back(msg, back_off.STRAIGHT_TO_DEAD, reason), "bury")

    def release(self, msg: Message) -> None:
        if self.dropped:
            self._rest()
        else:
            self._line.put_back(msg.again())

    async def _give_back(self, msg: Message, level: int, reason: str) -> None:
        self.returning += 1
        try:
            await self._returns.give_back(msg, level, reason)
        except OrbitMQError as error:
            log.warning(
                "%r cannot be given back to any broker and is tried here again in %g s: %s",
                msg,
                self._local_retry_s,
                error,
            )
            self._later(msg, self._local_retry_s)
        else:
            if level == back_off.STRAIGHT_TO_DEAD:
                self._tally.buried += 1
            else:
                self._tally.returned += 1
            self.finish(msg)
        finally:
            self.returning -= 1
            if self.dropped:
                self._notify()

    def _later(self, msg: Message, pause_s: float) -> None:
        """Hands a failed message out again after a pause, unless the queue is given away before."""
        if self.dropped:
            self._rest()
            return
        offset = msg.queue_offset

        def again() -> None:
            del self._pausing[offset]
            self._line.put_back(msg.again(failed=True))

        self._pausing[offset] = asyncio.get_running_loop().call_later(pause_s, again)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> Awaitable[None]:
        if self._scope.closed:
            work.close()  # the consumer is closed: the message comes again in any case
            return DONE
        # Awaiting it may be given up; the work itself goes on.
        return asyncio.shield(self._scope.spawn(work, name=f"{name}-{self!r}"))

    # --- flow control -----------------------------------------------------------------------------------------

    async def wait_for_room(self) -> int:
        """How many messages may be pulled; waits until there is room, and says so when that takes long."""
        unfinished = self.unfinished
        while not (room := unfinished.room()):
            finished_before = unfinished.finished
            try:
                async with asyncio.timeout(STUCK_WARNING_S):
                    await self._change()
            except TimeoutError:
                if unfinished.finished == finished_before and not self._warned_stuck:
                    self._warned_stuck = True
                    log.warning(
                        "nothing was finished on %r for %g s, so no more is pulled: %s. Messages are acknowledged "
                        "by `async with msg` or msg.ack(), never by asking for the next one",
                        self,
                        STUCK_WARNING_S,
                        unfinished.why_full(),
                    )
            else:
                self._warned_stuck = False
        return room

    def nudge(self) -> None:
        """Its lock was renewed."""

    # --- giving the queue away --------------------------------------------------------------------------------

    def drop(self) -> None:
        """No more pulls and nothing more to handlers; what they have may still be finished."""
        if self.dropped:
            return
        self.dropped = True
        if self.pull_task is not None:
            self.pull_task.cancel()
        for timer in self._pausing.values():
            timer.cancel()
        self._resting += self._line.purge(self) + len(self._pausing)
        self._pausing.clear()
        self._notify()

    @property
    def in_hand(self) -> int:
        """Messages that handlers have, or that are on their way back to a broker."""
        return max(0, len(self.unfinished) - self._resting)

    async def settle(self, deadline_s: float, *, returns_only: bool = False) -> bool:
        """Waits after `drop` until everything in hand is finished; False when the time is over before."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.returning if returns_only else self.in_hand:
                    await self._change()
        except TimeoutError:
            return False
        return True

    def _rest(self) -> None:
        self._resting += 1
        self._notify()

    async def _change(self) -> None:
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def _notify(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None and not changed.done():
            changed.set_result(None)
