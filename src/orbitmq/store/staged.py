"""What one commit of the log leaves for dispatch: units by queue, and the keys to index in columns."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from orbitmq.store.consume_queue import UNIT_BYTES, ConsumeQueue

# Structs, since they are made at each commit, and without a call into Python.


class Keys(Struct, eq=False):
    """Keys to be hashed, with what stands before each and where its message lies."""

    prefixes: list[bytes] = []
    keys: list[bytes] = []
    offsets: list[int] = []


class Hashes(Struct, eq=False):
    """Keys already hashed: native 32-bit hashes and 64-bit log offsets, as the accelerator leaves them."""

    hashes: bytes
    offsets: bytes


class Staged(Struct, eq=False):
    """`units` holds, per queue, byte strings of one or more units; `index` is in log order."""

    units: dict[ConsumeQueue, list[bytes]] = {}
    store_ms: int = 0
    index: list[Keys | Hashes] = []

    def take(self, units_of: Iterable[tuple[ConsumeQueue, bytes]]) -> None:
        """Units with the next offsets of their queues."""
        for queue, units in units_of:
            queue.next_offset += len(units) // UNIT_BYTES
            self.units.setdefault(queue, []).append(units)

    def add_units(self, queue: ConsumeQueue, units: bytes) -> None:
        self.units.setdefault(queue, []).append(units)

    def keys(self) -> Keys:
        """Where further keys go."""
        last = self.index[-1] if self.index else None
        if isinstance(last, Keys):
            return last
        fresh = Keys()
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
