"""How far the delivery of delayed messages has come, by level: config/delayOffset.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class DelayOffsets:
    """Level (1 is the first) to the next offset of that level's queue in the schedule topic."""

    def __init__(self) -> None:
        self.table: dict[int, int] = {}
        self.changes = 0

    def get(self, level: int) -> int:
        return self.table.get(level, 0)

    def put(self, level: int, offset: int) -> None:
        if self.table.get(level) != offset:
            self.table[level] = offset
            self.changes += 1

    def to_json(self) -> dict[str, object]:
        return {"offsetTable": dict(self.table)}

    def from_json(self, data: Any) -> None:
        if not isinstance(data, Mapping):
            raise ValueError("the delay offsets are not a JSON object; expected offsetTable")
        self.table = {int(level): int(offset) for level, offset in (data.get("offsetTable") or {}).items()}
