"""How far a group is behind: a number, or the reason why nobody can tell. Never a zero that stands for "unknown"."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from orbitmq.client.admin.groups import GroupProgress, QueueProgress


@dataclass(frozen=True, slots=True)
class Lag:
    """`messages` are stored and not yet acknowledged; `queues` says where they are."""

    messages: int
    queues: tuple[QueueProgress, ...]

    def __int__(self) -> int:
        return self.messages

    @property
    def last_acknowledged_at(self) -> datetime | None:
        """When the newest message that the group has acknowledged was stored."""
        times = [queue.last_consumed_ms for queue in self.queues if queue.last_consumed_ms is not None]
        return datetime.fromtimestamp(max(times) / 1000, UTC) if times else None


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is no number, for this reason. What is known of single queues is in `queues`."""

    reason: str
    queues: tuple[QueueProgress, ...] = ()

    def __bool__(self) -> bool:
        raise TypeError(
            f"the lag is unknown ({self.reason}): neither zero nor more; look with `isinstance(lag, Unknown)`"
        )


def lag_of(progress: GroupProgress) -> Lag | Unknown:
    queues = tuple(progress.queues)
    if progress.lag is None:
        return Unknown(progress.lag_unknown or "the brokers did not tell", queues)
    return Lag(progress.lag, queues)
