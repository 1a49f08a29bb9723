"""What the broker counts: per topic and group for VIEW_BROKER_STATS_DATA, in all for the runtime info.

The hot path only adds integers; everything derived is made by `tick`, once a second, or when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from orbitmq.broker.stats_runtime import RuntimeStats, Totals
from orbitmq.broker.stats_window import DAY, DAY_STEP_MS, HOUR, HOUR_STEP_MS, MINUTE, MINUTE_STEP_MS, Window

# A topic or group without traffic for so long is forgotten: the tables stay as small as the traffic is.
FORGET_AFTER_MS: Final = 25 * DAY_STEP_MS
_STEPS: Final = ((MINUTE, MINUTE_STEP_MS), (HOUR, HOUR_STEP_MS), (DAY, DAY_STEP_MS))


class Cell:
    """The raw counters of one topic, or of one group on one topic."""

    __slots__ = ("bytes", "count", "latency_ms", "requests", "sampled_requests", "windows")

    def __init__(self, names: tuple[str, ...], now_ms: int) -> None:
        self.count = 0
        self.bytes = 0
        self.requests = 0
        self.latency_ms = 0
        self.sampled_requests = [0] * len(_STEPS)
        self.windows = {name: Window(now_ms) for name in names}

    @property
    def moved_ms(self) -> int:
        """When a sample last showed a change."""
        return max(window.moved_ms for window in self.windows.values())


_PUT: Final = ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
_GET: Final = ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY")
_BACK: Final = ("SNDBCK_PUT_NUMS",)
_TOTAL: Final = ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")
# Which raw counter a window follows.
_FOLLOWS: Final = {
    "TOPIC_PUT_NUMS": "count",
    "TOPIC_PUT_SIZE": "bytes",
    "GROUP_GET_NUMS": "count",
    "GROUP_GET_SIZE": "bytes",
    "GROUP_GET_LATENCY": "latency_ms",
    "SNDBCK_PUT_NUMS": "count",
}


class BrokerStats(RuntimeStats):
    """All counters of one broker. Counts are messages unless the name says requests or bytes."""

    def __init__(self, now_ms: int, cluster_name: str) -> None:
        super().__init__(now_ms)
        self._cluster_name = cluster_name
        self._now_ms = now_ms
        self._puts: dict[str, Cell] = {}
        self._gets: dict[tuple[str, str], Cell] = {}
        self._backs: dict[tuple[str, str], Cell] = {}
        self._forgotten = Totals()
        self._broker_put = Window(now_ms)
        self._broker_get = Window(now_ms)
        self._last_tick_ms = [now_ms] * len(_STEPS)

    def put(self, topic: str, count: int, size: int) -> None:
        """A send request stored messages."""
        cell = self._puts.get(topic)
        if cell is None:
            cell = self._puts[topic] = Cell(_PUT, self._now_ms)
        cell.count += count
        cell.bytes += size
        cell.requests += 1

    def get(self, topic: str, group: str, count: int, size: int, latency_ms: int = 0) -> None:
        """A pull request found messages."""
        cell = self._gets.get((topic, group))
        if cell is None:
            cell = self._gets[topic, group] = Cell(_GET, self._now_ms)
        cell.count += count
        cell.bytes += size
        cell.latency_ms += latency_ms
        cell.requests += 1

    def send_back(self, topic: str, group: str, count: int = 1) -> None:
        """A consumer sent messages back to be retried."""
        cell = self._backs.get((topic, group))
        if cell is None:
            cell = self._backs[topic, group] = Cell(_BACK, self._now_ms)
        cell.count += count
        cell.requests += 1

    def tick(self, now_ms: int) -> None:
        """One round of sampling; call it about once a second."""
        self._now_ms = now_ms
        self.sample_runtime(now_ms)
        for level, step_ms in _STEPS:
            if now_ms - self._last_tick_ms[level] >= step_ms:
                self._last_tick_ms[level] = now_ms
                self._sample(level, now_ms)
        if self._last_tick_ms[DAY] == now_ms:
            self._forget_idle(now_ms)

    def view(self, stats_name: str, stats_key: str) -> dict[str, object] | None:
        """The BrokerStatsData of one item, None if nothing was ever counted under this name and key."""
        window = self._window(stats_name, stats_key)
        if window is None:
            return None
        return {
            "statsDay": window.rate(DAY, self._last_tick_ms[DAY]).to_json(),
            "statsHour": window.rate(HOUR, self._last_tick_ms[HOUR]).to_json(),
            "statsMinute": window.rate(MINUTE, self._last_tick_ms[MINUTE]).to_json(),
        }

    def tps(self, stats_name: str, stats_key: str) -> float:
        """Per second over the last minute; an item that was never counted had no traffic."""
        window = self._window(stats_name, stats_key)
        return 0.0 if window is None else window.rate(MINUTE, self._last_tick_ms[MINUTE]).tps

    def topic_totals(self) -> Iterator[tuple[str, int, int]]:
        """(topic, messages, bytes) put since the topic was first seen."""
        return ((topic, cell.count, cell.bytes) for topic, cell in self._puts.items())

    def group_totals(self) -> Iterator[tuple[str, str, int, int]]:
        """(topic, group, messages, bytes) delivered since the pair was first seen."""
        return ((topic, group, cell.count, cell.bytes) for (topic, group), cell in self._gets.items())

    def totals(self) -> Totals:
        """Summed up here rather than counted, so that a request pays for one counter only."""
        seen = _sum(self._puts.values(), self._gets.values())
        summed = [now + gone for now, gone in zip(seen, self._forgotten, strict=True)]
        return Totals(*summed)._replace(missed=self.get_missed)

    @property
    def put_total(self) -> int:
        return self.totals().put

    @property
    def get_total(self) -> int:
        return self.totals().get

    def forget_topic(self, topic: str) -> None:
        self._forget(lambda key: key == topic, lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        self._forget(lambda key: False, lambda key: key[1] == group)

    def _window(self, stats_name: str, stats_key: str) -> Window | None:
        if stats_name in _TOTAL:
            if stats_key != self._cluster_name:
                return None
            return self._broker_put if stats_name == "BROKER_PUT_NUMS" else self._broker_get
        cell: Cell | None
        if stats_name in _PUT:
            cell = self._puts.get(stats_key)
        else:
            # The latency of one queue (queueId@topic@group) is answered with that of the group on all queues.
            topic, group = (["", *stats_key.split("@")])[-2:]
            cell = (self._gets if stats_name in _GET else self._backs).get((topic, group))
        return None if cell is None else cell.windows.get(stats_name)

    def _sample(self, level: int, now_ms: int) -> None:
        totals = self.totals()
        for window, value, times in (
            (self._broker_put, totals.put, totals.put_requests),
            (self._broker_get, totals.get, totals.found),
        ):
            window.value, window.times = value, times
            window.sample(level, now_ms)
        for cell in self._cells():
            if cell.sampled_requests[level] == cell.requests:
                continue
            cell.sampled_requests[level] = cell.requests
            for name, window in cell.windows.items():
                window.value = getattr(cell, _FOLLOWS[name])
                window.times = cell.requests
                window.sample(level, now_ms)

    def _cells(self) -> Iterator[Cell]:
        yield from self._puts.values()
        yield from self._gets.values()
        yield from self._backs.values()

    def _forget_idle(self, now_ms: int) -> None:
        before_ms = now_ms - FORGET_AFTER_MS
        idle_puts = {key for key, cell in self._puts.items() if cell.moved_ms < before_ms}
        idle_pairs = {
            key
            for cells in (self._gets, self._backs)
            for key, cell in cells.items()
            if cell.moved_ms < before_ms
        }
        self._forget(idle_puts.__contains__, idle_pairs.__contains__)

    def _forget(self, put_key: Callable[[str], bool], pair: Callable[[tuple[str, str]], bool]) -> None:
        """Drops items but not what they counted: totals never go down."""
        puts = [self._puts.pop(key) for key in list(self._puts) if put_key(key)]
        gets = [self._gets.pop(key) for key in list(self._gets) if pair(key)]
        for key in [key for key in self._backs if pair(key)]:
            del self._backs[key]
        gone = _sum(puts, gets)
        self._forgotten = Totals(*map(sum, zip(self._forgotten, gone, strict=True)))


def _sum(puts: Iterable[Cell], gets: Iterable[Cell]) -> Totals:
    put = put_bytes = put_requests = get = get_bytes = found = 0
    for cell in puts:
        put += cell.count
        put_bytes += cell.bytes
        put_requests += cell.requests
    for cell in gets:
        get += cell.count
        get_bytes += cell.bytes
        found += cell.requests
    return Totals(put, put_bytes, put_requests, get, get_bytes, found)
