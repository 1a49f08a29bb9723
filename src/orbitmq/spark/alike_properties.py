"""One property of many messages whose properties are written alike: found in the first, checked in all others.

A client writes the same properties in the same order into each of its messages, so those of a page nearly always begin
with pairs of one length and end with the same text. Then the pair looked for begins at one place in all of them, and
what follows it has one length: nothing has to be searched. Where that does not hold, the answer is None, and
`property_columns`, the plain twin of this, finds out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from orbitmq.spark.spans import as_bytes, at, take_spans

if TYPE_CHECKING:
    import numpy.typing as npt

_BETWEEN = b"\x02"
_NAME_END = b"\x01"
_FIRST_NOT_ASCII = 0x80


def alike_values(
    data: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    name: bytes,
) -> pa.Array | None:
    """The values of a property that each text `data[begins[i]:ends[i]]` has, or None if it cannot be told this way."""
    found = _place_in(data[int(begins[0]) : int(ends[0])].tobytes(), name) if len(begins) else None
    if found is None:
        return None
    lead, mark, rest = found
    value_begins, value_ends = begins + (lead + len(mark)), ends - len(rest)
    if not (value_begins < value_ends).all():
        return None
    if not _all_are(data, begins + lead, mark) or not _all_are(data, value_ends, rest):
        return None
    values = take_spans(data, value_begins, value_ends, pa.string())
    text = _text_of(values)
    # A value that holds a separator ends earlier than supposed; what is not ASCII might not be UTF-8 either.
    if int(text.max()) >= _FIRST_NOT_ASCII or (text == _BETWEEN[0]).any():
        return None
    return values


def _place_in(text: bytes, name: bytes) -> tuple[int, bytes, bytes] | None:
    """Where the pair begins, the bytes there up to its value, and all that follows the value."""
    mark = name + _NAME_END
    if text.startswith(mark):
        lead = 0
    else:
        mark = _BETWEEN + mark
        lead = text.find(mark)
    begin = lead + len(mark)
    end = text.find(_BETWEEN, begin)
    rest = text[end:] if end >= 0 else b""
    # The last pair of a name is the one that counts.
    if lead < 0 or rest.find(_BETWEEN + name + _NAME_END) >= 0:
        return None
    return lead, mark, rest


def _all_are(data: npt.NDArray[np.uint8], places: npt.NDArray[np.int64], text: bytes) -> bool:
    if not text:
        return True
    # As one run of bytes: to compare texts one by one takes numpy ten times as long.
    return at(data, f"V{len(text)}")[places].tobytes() == text * len(places)


def _text_of(values: pa.Array) -> npt.NDArray[np.uint8]:
    _, places, text = values.buffers()
    offsets = np.frombuffer(places, np.int32)[values.offset : values.offset + len(values) + 1]
    return as_bytes(text)[int(offsets[0]) : int(offsets[-1])]
