"""Many stretches of one buffer as one Arrow array, without a Python object for any of them.

An Arrow array of texts is one run of bytes with the place where each text ends. Records keep their bodies apart, so
the array is first laid over the whole buffer, with what lies between the stretches as elements of its own, and then
only the wanted elements are taken: one copy, made by Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

Ints = "npt.NDArray[np.int64]"
Bytes = "npt.NDArray[np.uint8]"

# Offsets inside an Arrow array of this kind take 32 bits.
MAX_SPREAD_BYTES = (1 << 31) - 1


def take_spans(
    data: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    kind: pa.DataType,
    present: npt.NDArray[np.bool_] | None = None,
) -> pa.Array:
    """`data[begins[i]:ends[i]]` for each i, in rising order and not overlapping.

    With `present`, the stretches belong to the rows that are True there, and the other rows are null.
    """
    count = len(begins)
    if count == 0:
        return pa.nulls(0 if present is None else len(present), kind)
    size = int(ends[0] - begins[0])
    if present is None and 0 < size * count <= MAX_SPREAD_BYTES and (ends - begins == size).all():
        # All of one length: twice as fast, and many topics are like that.
        block = at(data, f"V{size}")[begins]
        places = np.arange(0, size * count + 1, size, dtype=np.int32)
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(places), pa.py_buffer(block)])
    origin = int(begins[0])
    offsets = np.empty(2 * count, dtype=np.int32)
    offsets[0::2] = begins - origin
    offsets[1::2] = ends - origin
    raw = pa.py_buffer(data[origin : int(ends[-1])])
    laid = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), raw])
    return laid.take(_wanted(count, present))


def _wanted(count: int, present: npt.NDArray[np.bool_] | None) -> pa.Array:
    if present is None or count == len(present):
        return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))
    places = np.zeros(len(present), dtype=np.int32)
    places[present] = np.arange(0, 2 * count, 2, dtype=np.int32)
    return pa.array(places, mask=~present)


def constant(value: str | None, count: int) -> pa.Array:
    if value is None:
        return pa.nulls(count, pa.string())
    return pa.repeat(pa.scalar(value, pa.string()), count)


def at(data: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    """The number that begins at each byte of the buffer: index it with positions to gather a field of many records."""
    kind = np.dtype(dtype)
    return np.ndarray(max(len(data) - kind.itemsize + 1, 0), kind, data, strides=(1,))


def as_bytes(data: Any) -> npt.NDArray[np.uint8]:
    """Any buffer as numpy sees it, without a copy."""
    return np.frombuffer(data, dtype=np.uint8)
