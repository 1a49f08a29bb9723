"""The broker's tables on their way to the slaves: which is the newest, who has saved which, and who waits for that.

No input or output: what slaves say comes in, the clock is a parameter. Tables are sent whole, so only the newest of
each matters: whoever waits for an older one is content with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from orbitmq.wire import fastjson


class TableFrame(NamedTuple):
    seq: int
    name: str
    body: bytes


class _Waiting(NamedTuple):
    name: str
    seq: int
    until_ms: int
    answer: Callable[[bool], None]


class TableFeed:
    """`seq` counts what was put, over all tables."""

    def __init__(self, clock_ms: Callable[[], int], timeout_ms: int) -> None:
        self._clock_ms = clock_ms
        self._timeout_ms = timeout_ms
        self._newest: dict[str, TableFrame] = {}
        self._saved: dict[int, dict[str, int]] = {}
        self._waiting: list[_Waiting] = []
        self.seq = 0

    def put(self, name: str, data: bytes | Mapping[str, Any]) -> int:
        """`data`: the whole table, or its JSON text as it stands in the file."""
        self.seq += 1
        text = data if isinstance(data, bytes) else fastjson.dumps(data)
        body = b'{"seq":%d,"table":%s,"data":%s}' % (self.seq, fastjson.dumps(name), text)
        self._newest[name] = TableFrame(self.seq, name, body)
        return self.seq

    def since(self, seq: int) -> list[TableFrame]:
        """What a slave that was sent everything up to `seq` still has to get."""
        return sorted(frame for frame in self._newest.values() if frame.seq > seq)

    def begins(self, replica: int) -> None:
        """A slave connected: what it had saved before is not relied on."""
        self._saved[replica] = {}

    def saved(self, replica: int, name: str, seq: int) -> None:
        self._saved.setdefault(replica, {})[name] = seq

    def has_all(self, replica: int) -> bool:
        saved = self._saved.get(replica, {})
        return all(saved.get(name, 0) >= frame.seq for name, frame in self._newest.items())

    def when_saved(
        self, name: str, seq: int, replicas: Collection[int], answer: Callable[[bool], None]
    ) -> None:
        """True when all these replicas have saved the table as of `seq` or later, False when it takes too long."""
        if self._all_have(name, seq, replicas):
            answer(True)
        else:
            self._waiting.append(_Waiting(name, seq, self._clock_ms() + self._timeout_ms, answer))

    def look(self, replicas: Collection[int]) -> None:
        """Somebody saved something, or the replicas that count are others now, or time has passed."""
        if not self._waiting:
            return
        now_ms = self._clock_ms()
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if self._all_have(each.name, each.seq, replicas):
                each.answer(True)
            elif each.until_ms <= now_ms:
                each.answer(False)
            else:
                self._waiting.append(each)

    def _all_have(self, name: str, seq: int, replicas: Collection[int]) -> bool:
        return all(self._saved.get(replica, {}).get(name, 0) >= seq for replica in replicas)

    def close(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.answer(False)
