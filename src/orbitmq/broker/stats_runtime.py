"""Totals of the whole broker and how fast they grow: the figures of GET_BROKER_RUNTIME_INFO."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

TPS_WINDOWS_S: Final = (10, 60, 600)

# Upper bounds in ms of the classes of putMessageDistributeTime; a class holds bound[i-1] < t <= bound[i].
_TIME_BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10000)
_TIME_LABELS: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]",
    "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip


class Totals(NamedTuple):
    """Counters of all topics since the start. Put and get are messages, found and missed are requests."""

    put: int = 0
    put_bytes: int = 0
    put_requests: int = 0
    get: int = 0
    get_bytes: int = 0
    found: int = 0
    missed: int = 0


class _Sample(NamedTuple):
    at_ms: int
    totals: Totals


_Value = Callable[[Totals], int]


class RuntimeStats(ABC):
    """Totals of the broker, sampled every second for ten minutes."""

    def __init__(self, now_ms: int) -> None:
        self.started_ms = now_ms
        self.put_failed_total = 0
        self.get_missed = 0
        self._put_times = [0] * len(_TIME_LABELS)
        self._put_time_max_ms = 0
        self._get_time_max_ms = 0
        self._samples: deque[_Sample] = deque(maxlen=TPS_WINDOWS_S[-1] + 1)
        self._day = local_day(now_ms)
        self._put_morning = self._put_yesterday = 0
        self._get_morning = self._get_yesterday = 0

    @abstractmethod
    def totals(self) -> Totals:
        """The counters as they are now."""

    def miss(self) -> None:
        """A pull request found nothing."""
        self.get_missed += 1

    def put_failed(self, count: int = 1) -> None:
        self.put_failed_total += count

    def put_time(self, ms: int) -> None:
        """How long one append took."""
        self._put_times[0 if ms <= 0 else bisect_right(_TIME_BOUNDS_MS, ms - 1)] += 1
        if ms > self._put_time_max_ms:
            self._put_time_max_ms = ms

    def get_time(self, ms: int) -> None:
        """How long one read took."""
        if ms > self._get_time_max_ms:
            self._get_time_max_ms = ms

    def sample_runtime(self, now_ms: int) -> None:
        totals = self.totals()
        day = local_day(now_ms)
        if day != self._day:
            self._day = day
            self._put_yesterday, self._put_morning = self._put_morning, totals.put
            self._get_yesterday, self._get_morning = self._get_morning, totals.get
        self._samples.append(_Sample(now_ms, totals))

    def runtime(self, now_ms: int) -> dict[str, str]:
        """Runtime keys that come from counting; the store and the broker add theirs."""
        totals = self.totals()
        transferred = self._triple(lambda t: t.get)
        return {
            "bootTimestamp": str(self.started_ms),
            "runtime": uptime_text(now_ms - self.started_ms),
            "putMessageEntireTimeMax": str(self._put_time_max_ms),
            "putMessageTimesTotal": str(totals.put),
            "putMessageFailedTimes": str(self.put_failed_total),
            "putMessageSizeTotal": str(totals.put_bytes),
            "putMessageDistributeTime": " ".join(
                f"{label}:{count}" for label, count in zip(_TIME_LABELS, self._put_times, strict=True)
            ),
            "putMessageAverageSize": str(totals.put_bytes / totals.put if totals.put else 0.0),
            "putLatency99": self._put_percentile(0.99),
            "putLatency999": self._put_percentile(0.999),
            "getMessageEntireTimeMax": str(self._get_time_max_ms),
            "putTps": self._triple(lambda t: t.put),
            "getFoundTps": self._triple(lambda t: t.found),
            "getMissTps": self._triple(lambda t: t.missed),
            "getTotalTps": self._triple(lambda t: t.found + t.missed),
            # 4.9 misspells it, 5.x does not; tools read the one or the other.
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,
            "msgPutTotalYesterdayMorning": str(self._put_yesterday),
            "msgPutTotalTodayMorning": str(self._put_morning),
            "msgPutTotalTodayNow": str(totals.put),
            "msgGetTotalYesterdayMorning": str(self._get_yesterday),
            "msgGetTotalTodayMorning": str(self._get_morning),
            "msgGetTotalTodayNow": str(totals.get),
        }

    def _put_percentile(self, share: float) -> str:
        """The upper bound in ms of the class that the percentile falls into."""
        wanted = sum(self._put_times) * share
        seen = 0
        for bound_ms, count in zip((*_TIME_BOUNDS_MS, self._put_time_max_ms), self._put_times, strict=True):
            seen += count
            if seen >= wanted:
                return str(float(min(bound_ms, self._put_time_max_ms)))
        return str(float(self._put_time_max_ms))

    def _triple(self, value: _Value) -> str:
        """ "10s 60s 600s": a window that is not yet full is left out, as a rate over less would mislead."""
        samples = self._samples
        rates = [
            str(_per_second(samples[-1 - seconds], samples[-1], value)) if len(samples) > seconds else ""
            for seconds in TPS_WINDOWS_S
        ]
        return " ".join(rates)


def _per_second(first: _Sample, last: _Sample, value: _Value) -> float:
    elapsed_ms = last.at_ms - first.at_ms
    return (value(last.totals) - value(first.totals)) * 1000.0 / elapsed_ms if elapsed_ms > 0 else 0.0


def local_day(now_ms: int) -> int:
    """A number that changes at local midnight."""
    local = time.localtime(now_ms / 1000)
    return local.tm_year * 1000 + local.tm_yday


def uptime_text(ms: int) -> str:
    seconds = max(ms, 0) // 1000
    return (
        f"[ {seconds // 86400} days, {seconds // 3600 % 24} hours, "
        f"{seconds // 60 % 60} minutes, {seconds % 60} seconds ]"
    )
