"""Where the fields of many records lie: the layout of a record as arithmetic on columns of positions.

Records of one page nearly always share one layout. IPv6 hosts and the second magic (long topics) shift the fields; a
page that mixes layouts is cut into groups of one layout each by `layout_groups`.
"""

from __future__ import annotations

from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from orbitmq.spark.errors import SourceError
from orbitmq.spark.spans import as_bytes, at
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import (
    BORN_HOST_AT,
    BORN_MS_AT,
    FIXED_BYTES,
    MAGIC_AT,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYS_FLAG_AT,
    V6_EXTRA_BYTES,
    RecordKind,
    check_record,
)
from orbitmq.wire.message_id import HOST_V4_BYTES

if TYPE_CHECKING:
    import numpy.typing as npt

HEAD_BYTES: Final = 88
"""Up to the length of the body, in a record without IPv6 hosts: shorter than any record."""

_SIZE = Struct(">i").unpack_from
_V6_FLAGS = SysFlag.BORN_V6 | SysFlag.STORE_V6
# So many records of one size in a row, and the rest is looked for in bulk.
_RUN = 8
_MOST_RUN = 4096


def record_starts(page: Any, end: int | None = None) -> npt.NDArray[np.int64]:
    """Where each record of a page begins: a chain of sizes, so it has to be walked, equal sizes in strides."""
    limit = len(page) if end is None else end
    sizes = at(as_bytes(page), ">i4")
    page = memoryview(page)
    starts: list[int] = []
    parts: list[npt.NDArray[np.int64]] = []
    pos = last = same = 0
    while pos < limit:
        size = _SIZE(page, pos)[0] if limit - pos >= 4 else 0
        if not FIXED_BYTES <= size <= limit - pos:
            raise bad_record(page, pos, limit)
        starts.append(pos)
        pos += size
        same = same + 1 if size == last else 0
        last = size
        if same >= _RUN:
            same = 0
            ahead = sizes[pos : min(pos + size * _MOST_RUN, limit - size + 1) : size]
            other = np.flatnonzero(ahead != size)
            count = int(other[0]) if len(other) else len(ahead)
            if count:
                parts += [np.array(starts, np.int64), pos + size * np.arange(count, dtype=np.int64)]
                starts = []
                pos += size * count
                same = _RUN if count == _MOST_RUN else 0
    parts.append(np.array(starts, np.int64))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def bad_record(page: Any, pos: int, limit: int) -> SourceError:
    check = check_record(page, pos, limit, check_crc=False)
    reason = check.reason if check.kind is RecordKind.BAD else "there is no record"
    return SourceError(
        f"a page of messages is damaged at byte {pos}: {reason}",
        hint="check the broker's store with `orbitmq store verify`",
    )


class Heads:
    """The first bytes of many records, side by side.

    Records lie far apart, and to fetch a field costs what it costs to reach its record: so each is reached once.
    """

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        block: npt.NDArray[np.void] | None = None,
    ) -> None:
        self.starts = starts
        self._data = data
        self._block: npt.NDArray[np.void] = at(data, f"V{HEAD_BYTES}")[starts] if block is None else block

    def field(self, place: int, dtype: str) -> npt.NDArray[Any]:
        """One field of every record, in the byte order of the store."""
        if not len(self.starts):
            return np.empty(0, dtype)
        return np.ndarray(len(self.starts), np.dtype(dtype), self._block, place, (HEAD_BYTES,))

    def subset(self, chosen: npt.NDArray[Any] | slice) -> Heads:
        return Heads(self._data, self.starts[chosen], self._block[chosen])


class Records:
    """Records of one layout at `starts` of a buffer. Fields are gathered when they are first asked for."""

    def __init__(self, data: npt.NDArray[np.uint8], heads: Heads, layout: int = 0) -> None:
        self.data = data
        self.starts = heads.starts
        self._heads = heads
        self._layout = layout
        self.v6_born, self.v6_store = bool(layout & 1), bool(layout & 2)
        self.long_topic = bool(layout & 4)
        self._topic_length_bytes = 2 if self.long_topic else 1
        born = HOST_V4_BYTES + (V6_EXTRA_BYTES if self.v6_born else 0)
        store = HOST_V4_BYTES + (V6_EXTRA_BYTES if self.v6_store else 0)
        self.born_host_bytes, self.store_host_bytes = born, store
        self._store_ms_at = BORN_HOST_AT + born
        self.store_host_at = self._store_ms_at + 8
        self._reconsume_at = self.store_host_at + store
        self._body_length_at = self._reconsume_at + 12
        self._body_at = self._body_length_at + 4

    def __len__(self) -> int:
        return len(self.starts)

    def subset(self, mask: npt.NDArray[np.bool_]) -> Records:
        return Records(self.data, self._heads.subset(mask), self._layout)

    def field(self, place: int, stored: str, kind: type[np.integer[Any]]) -> npt.NDArray[Any]:
        """One field of every record, as the machine likes it."""
        if place + np.dtype(stored).itemsize <= HEAD_BYTES:
            return self._heads.field(place, stored).astype(kind)
        room = self._body_at + self._topic_length_bytes + 2  # IPv6 hosts push fields out of the head
        self._check(self.sizes >= room)
        return at(self.data, stored)[self.starts + place].astype(kind)

    def raw(self, place: int, size: int) -> npt.NDArray[np.uint8]:
        """`size` bytes (a multiple of 4) of every record, as rows."""
        out = np.empty((len(self), size), dtype=np.uint8)
        width = 8 if size % 8 == 0 else 4
        words = at(self.data, f"u{width}")
        columns = out.view(f"u{width}")
        for column in range(size // width):
            columns[:, column] = words[self.starts + (place + width * column)]
        return out

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        return self.field(0, ">i4", np.int64)

    @cached_property
    def queue_ids(self) -> npt.NDArray[np.int32]:
        return self.field(QUEUE_ID_AT, ">i4", np.int32)

    @cached_property
    def queue_offsets(self) -> npt.NDArray[np.int64]:
        return self.field(QUEUE_OFFSET_AT, ">i8", np.int64)

    @cached_property
    def physical_offsets(self) -> npt.NDArray[np.int64]:
        return self.field(PHYSICAL_OFFSET_AT, ">i8", np.int64)

    @cached_property
    def sys_flags(self) -> npt.NDArray[np.int32]:
        return self.field(SYS_FLAG_AT, ">i4", np.int32)

    @cached_property
    def born_ms(self) -> npt.NDArray[np.int64]:
        return self.field(BORN_MS_AT, ">i8", np.int64)

    @cached_property
    def store_ms(self) -> npt.NDArray[np.int64]:
        return self.field(self._store_ms_at, ">i8", np.int64)

    @cached_property
    def reconsume_times(self) -> npt.NDArray[np.int32]:
        return self.field(self._reconsume_at, ">i4", np.int32)

    @cached_property
    def body_begins(self) -> npt.NDArray[np.int64]:
        return self.starts + self._body_at

    @cached_property
    def body_ends(self) -> npt.NDArray[np.int64]:
        lengths: npt.NDArray[np.int64] = self.field(self._body_length_at, ">i4", np.int64)
        ends = self.body_begins + lengths
        room = self.starts + self.sizes - self._topic_length_bytes - 2
        self._check((lengths >= 0) & (ends <= room))
        return ends

    @cached_property
    def topic_begins(self) -> npt.NDArray[np.int64]:
        return self.body_ends + self._topic_length_bytes

    @cached_property
    def topic_ends(self) -> npt.NDArray[np.int64]:
        lengths = at(self.data, ">i2" if self.long_topic else "i1")[self.body_ends].astype(np.int64)
        ends = self.topic_begins + lengths
        self._check((lengths >= 0) & (ends + 2 <= self.starts + self.sizes))
        return ends

    @cached_property
    def properties_begins(self) -> npt.NDArray[np.int64]:
        begins = self.topic_ends + 2
        lengths = at(self.data, ">i2")[self.topic_ends].astype(np.int64)
        self._check(begins + lengths == self.starts + self.sizes)
        return begins

    @cached_property
    def properties_ends(self) -> npt.NDArray[np.int64]:
        return self.starts + self.sizes

    def _check(self, sound: npt.NDArray[np.bool_]) -> None:
        """Nothing may be read past a record's end, whatever its lengths claim."""
        if not sound.all():
            raise bad_record(self.data, int(self.starts[int(np.argmin(sound))]), len(self.data))


def layouts_of(data: npt.NDArray[np.uint8], heads: Heads) -> npt.NDArray[np.int32]:
    """The layout of each record: bit 0 and 1 for IPv6 hosts, bit 2 for the second magic."""
    magic = heads.field(MAGIC_AT, ">u4")
    flags = heads.field(SYS_FLAG_AT, ">i4")
    layouts: npt.NDArray[np.int32] = ((flags & _V6_FLAGS) >> 4).astype(np.int32)
    first = magic == MESSAGE_MAGIC
    if not first.all():
        second = magic == MESSAGE_MAGIC_V2
        strange = ~second & ~first
        if strange.any():
            raise bad_record(data, int(heads.starts[int(np.argmax(strange))]), len(data))
        layouts |= second.astype(np.int32) << 2
    return layouts


def layout_groups(data: npt.NDArray[np.uint8], heads: Heads) -> list[tuple[Records, npt.NDArray[np.int64]]]:
    """The records by layout, each group with the rows it stands for."""
    count = len(heads.starts)
    if not count:
        return [(Records(data, heads), np.arange(0))]
    layouts = layouts_of(data, heads)
    first = int(layouts[0])
    if (layouts == first).all():
        return [(Records(data, heads, first), np.arange(count))]
    groups = []
    for layout in np.unique(layouts):
        rows = np.flatnonzero(layouts == layout)
        groups.append((Records(data, heads.subset(rows), int(layout)), rows))
    return groups
