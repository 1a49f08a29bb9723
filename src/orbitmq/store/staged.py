"""What one commit of the log leaves for dispatch: units by queue, and the keys to index in columns."""

from __future__ import annotations

from orbitmq.store.consume_queue import ConsumeQueue


class Staged:
    __slots__ = ("keys", "offsets", "prefixes", "store_ms", "units")

    def __init__(self) -> None:
        self.units: dict[ConsumeQueue, list[bytes]] = {}
        self.store_ms = 0
        self.prefixes: list[bytes] = []
        self.keys: list[bytes] = []
        self.offsets: list[int] = []

    def add_unit(self, queue: ConsumeQueue, unit: bytes) -> None:
        units = self.units.get(queue)
        if units is None:
            self.units[queue] = [unit]
        else:
            units.append(unit)

    def add_key(self, prefix: bytes, key: bytes, offset: int) -> None:
        self.prefixes.append(prefix)
        self.keys.append(key)
        self.offsets.append(offset)
