"""The version of a table, compared by name servers, slaves and tools to see whether they are up to date."""

from __future__ import annotations

from collections.abc import Mapping


class DataVersion:
    """A change counter and the time of the last change; equal versions mean equal tables."""

    __slots__ = ("counter", "timestamp")

    def __init__(self, counter: int = 0, timestamp: int = 0) -> None:
        self.counter = counter
        self.timestamp = timestamp

    def bump(self, now_ms: int) -> None:
        self.counter += 1
        self.timestamp = now_ms

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, data: object) -> DataVersion:
        """Tolerant: a file without a version starts at zero."""
        if not isinstance(data, Mapping):
            return cls()
        return cls(int(data.get("counter") or 0), int(data.get("timestamp") or 0))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataVersion):
            return NotImplemented
        return self.counter == other.counter and self.timestamp == other.timestamp

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"DataVersion(counter={self.counter}, timestamp={self.timestamp})"
