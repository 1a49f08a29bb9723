"""Which client of a group may consume a queue in order.

Only the owner of a queue's lock consumes it orderly, so two members never work on one queue at the same time
while a rebalance moves it. A lock ends by itself 60 s after it was last taken, because a crashed owner cannot
give it back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from orbitmq.wire.fastjson import MessageQueue

LOCK_EXPIRE_MS: Final = 60_000


class _Lock(NamedTuple):
    client_id: str
    taken_ms: int


class QueueLocks:
    """Locks by group and queue, owned by client ids."""

    def __init__(self, expire_ms: int = LOCK_EXPIRE_MS) -> None:
        self.expire_ms = expire_ms
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
    ) -> list[MessageQueue]:
        """Take or renew the locks; returns the queues the client owns afterwards."""
        held = self._groups.setdefault(group, {})
        owned = []
        for queue in queues:
            lock = held.get(queue)
            if lock is None or lock.client_id == client_id or self._is_over(lock, now_ms):
                held[queue] = _Lock(client_id, now_ms)
                owned.append(queue)
        if not held:
            del self._groups[group]
        return owned

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; those of other clients are left alone."""
        held = self._groups.get(group)
        if held is None:
            return
        for queue in queues:
            lock = held.get(queue)
            if lock is not None and lock.client_id == client_id:
                del held[queue]
        if not held:
            del self._groups[group]

    def owner(self, group: str, queue: MessageQueue, now_ms: int) -> str | None:
        lock = self._groups.get(group, {}).get(queue)
        return None if lock is None or self._is_over(lock, now_ms) else lock.client_id

    def release(self, group: str, client_id: str) -> int:
        """Give back all locks of a client that left its group in an orderly way."""
        held = self._groups.get(group, {})
        mine = [queue for queue, lock in held.items() if lock.client_id == client_id]
        self.unlock(group, client_id, mine)
        return len(mine)

    def expire(self, now_ms: int) -> int:
        """Forget locks that ran out, so that the table does not grow with clients that are gone."""
        count = 0
        for group, held in list(self._groups.items()):
            over = [queue for queue, lock in held.items() if self._is_over(lock, now_ms)]
            for queue in over:
                del held[queue]
            count += len(over)
            if not held:
                del self._groups[group]
        return count

    def _is_over(self, lock: _Lock, now_ms: int) -> bool:
        return now_ms - lock.taken_ms > self.expire_ms
