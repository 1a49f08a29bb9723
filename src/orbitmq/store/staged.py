"""What one commit of the log leaves for dispatch: units by queue, and the keys to index in columns."""

from __future__ import annotations

from typing import NamedTuple

from orbitmq.store.consume_queue import UNIT_BYTES, ConsumeQueue


class Keys(NamedTuple):
    """Keys to be hashed, with what stands before each and where its message lies."""

    prefixes: list[bytes]
    keys: list[bytes]
    offsets: list[int]

    def __len__(self) -> int:
        return len(self.keys)


class Hashes(NamedTuple):
    """Keys already hashed: native 32-bit hashes and 64-bit log offsets, as the accelerator leaves them."""

    hashes: bytes
    offsets: bytes

    def __len__(self) -> int:
        return len(self.hashes) // 4


class Staged:
    """`units` holds, per queue, byte strings of one or more units; `index` is in log order."""

    __slots__ = ("index", "store_ms", "units")

    def __init__(self) -> None:
        self.units: dict[ConsumeQueue, list[bytes]] = {}
        self.store_ms = 0
        self.index: list[Keys | Hashes] = []

    def add_units(self, queue: ConsumeQueue, units: bytes) -> None:
        chunks = self.units.get(queue)
        if chunks is None:
            self.units[queue] = [units]
        else:
            chunks.append(units)

    def keys(self) -> Keys:
        """Where further keys go."""
        last = self.index[-1] if self.index else None
        if isinstance(last, Keys):
            return last
        fresh = Keys([], [], [])
        self.index.append(fresh)
        return fresh

    def add_key(self, prefix: bytes, key: bytes, offset: int) -> None:
        keys = self.keys()
        keys.prefixes.append(prefix)
        keys.keys.append(key)
        keys.offsets.append(offset)

    def undo(self) -> None:
        """The queues take back the offsets they gave."""
        for queue, chunks in self.units.items():
            queue.next_offset -= sum(map(len, chunks)) // UNIT_BYTES
