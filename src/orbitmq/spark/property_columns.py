"""Properties of many messages as columns: one pass over all separators instead of a dictionary per message.

The rules are those of `wire.properties`: a pair counts if both sides are non-empty, the first 0x01 of a pair parts
name and value, the last of two equal names wins, and broken UTF-8 is replaced.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orbitmq.spark.spans import as_bytes, at, take_spans

if TYPE_CHECKING:
    import numpy.typing as npt

_ROW_BEGIN = 0
_NAME_END = 1
_PAIR_END = 2


class PropertyColumns:
    """All pairs of all rows: where name and value of each begin and end in one run of text."""

    def __init__(
        self, data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> None:
        self._rows = len(begins)
        # The byte in front of a text is that of its length, and becomes the mark of a row.
        self._data, row_begins = _contiguous(take_spans(data, begins - 1, ends, pa.binary()))
        self._split(row_begins)

    def _split(self, row_begins: npt.NDArray[np.int64]) -> None:
        text = self._data
        separators = np.flatnonzero(text <= _PAIR_END)
        kinds = text[separators]
        if np.count_nonzero(kinds == _ROW_BEGIN) != self._rows:  # some text has such bytes of its own
            is_row = np.zeros(len(text), dtype=np.bool_)
            is_row[row_begins] = True
            separators = separators[(kinds != _ROW_BEGIN) | is_row[separators]]
            kinds = text[separators]
        is_name_end = kinds == _NAME_END
        # With values as mixed as these, a mask as an index is several times slower.
        name_ends = np.compress(is_name_end, separators)
        between = np.compress(~is_name_end, separators)
        begins = between + 1
        pair_ends = np.append(between[1:], len(text))
        rows: npt.NDArray[np.int64] = np.cumsum(text[between] == _ROW_BEGIN) - 1
        full = pair_ends > begins
        if not full.all():  # rows without properties, and the last 0x02 that newer writers leave
            begins, pair_ends, rows = begins[full], pair_ends[full], rows[full]
        if len(name_ends) != len(pair_ends) or not ((name_ends >= begins) & (name_ends < pair_ends)).all():
            # Not one 0x01 per pair: take the first in each, and none of those that have none.
            places = np.searchsorted(name_ends, begins)
            padded = np.append(name_ends, len(text))
            name_ends = np.minimum(padded[places], pair_ends)
        valid = (name_ends > begins) & (name_ends + 1 < pair_ends)
        if not valid.all():
            begins, name_ends, pair_ends, rows = (
                begins[valid],
                name_ends[valid],
                pair_ends[valid],
                rows[valid],
            )
        self._begins, self._name_ends, self._ends = begins, name_ends, pair_ends
        self._pair_rows: npt.NDArray[np.int64] = rows

    def value(self, name: bytes) -> pa.Array:
        """The values of one property, null where a message lacks it."""
        size = len(name)
        pairs = np.flatnonzero(self._name_ends - self._begins == size)
        width = 8 if size == 8 else 4
        if size not in (4, 8):
            raise ValueError("only names of 4 or 8 bytes are looked for")
        words = at(self._data, f"u{width}")[self._begins[pairs]]
        pairs = pairs[words == np.frombuffer(name, f"u{width}")[0]]
        # Later assignments to the same row win, as later pairs do.
        chosen = np.full(self._rows, -1, dtype=np.int64)
        chosen[self._pair_rows[pairs]] = pairs
        present = chosen >= 0
        picked = chosen[present]
        return take_spans(self._data, self._name_ends[picked] + 1, self._ends[picked], pa.string(), present)

    @cached_property
    def maps(self) -> pa.Array:
        """All properties of each message."""
        names = take_spans(self._data, self._begins, self._name_ends, pa.string())
        values = take_spans(self._data, self._name_ends + 1, self._ends, pa.string())
        rows: npt.NDArray[np.int64] = self._pair_rows
        last = _last_of_equal_names(names, rows, self._rows)
        if last is not None:
            names, values, rows = names.filter(last), values.filter(last), rows[last]
        offsets = np.zeros(self._rows + 1, dtype=np.int32)
        np.cumsum(np.bincount(rows, minlength=self._rows), out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def _contiguous(texts: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of all rows behind each other, in valid UTF-8 and with a mark as first byte, and where each begins."""
    if not len(texts):
        return np.zeros(0, np.uint8), np.zeros(0, np.int64)
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = as_bytes(data_buffer)[int(offsets[0]) : int(offsets[-1])].copy()
    begins = offsets[:-1].astype(np.int64) - int(offsets[0])
    text[begins] = _ROW_BEGIN
    # A character that a row's end cuts is not mended by the next row, which begins with the mark.
    if int(text.max()) < 0x80 or _is_utf8(text):
        return text, begins
    mended = [bytes([_ROW_BEGIN]) + row[1:].decode("utf-8", "replace").encode() for row in texts.to_pylist()]
    ends = np.cumsum([len(row) for row in mended], dtype=np.int64)
    return as_bytes(b"".join(mended)), np.concatenate(([0], ends[:-1]))


def _is_utf8(text: npt.NDArray[np.uint8]) -> bool:
    try:
        bytes(text).decode()
    except UnicodeDecodeError:
        return False
    return True


def _last_of_equal_names(
    names: pa.Array, rows: npt.NDArray[np.int64], row_count: int
) -> npt.NDArray[np.bool_] | None:
    """Which pairs to keep so that each name is there once in a row; None when all are."""
    if not len(names):
        return None
    encoded = pc.dictionary_encode(names)
    kinds = len(encoded.dictionary)
    cells = rows * kinds + encoded.indices.to_numpy(zero_copy_only=False)
    newest = np.full(row_count * kinds, -1, dtype=np.int64) if row_count * kinds <= 16 * len(names) else None
    pairs = np.arange(len(names))
    if newest is not None:
        newest[cells] = pairs
        keep = newest[cells] == pairs
    else:
        keep = np.zeros(len(names), dtype=np.bool_)
        keep[len(names) - 1 - np.unique(cells[::-1], return_index=True)[1]] = True
    return None if keep.all() else keep
