"""Java's String.hashCode, which decides tag filters and the slots of the key index.

h = 31*h + unit over the UTF-16 units of the text, wrapping at 32 bits. A sum of unit times power of 31 is the
same number and lets C loops (and numpy, for columns of keys) do the work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from operator import mul
from typing import TYPE_CHECKING

from orbitmq.wire.numeric import np

if TYPE_CHECKING:
    import numpy.typing as npt


MASK = 0xFFFFFFFF
SIGN = 0x80000000

# Longer texts are hashed each time: a peer choosing 32 KiB tags must not be able to fill the cache with them.
CACHED_TEXT_CHARS = 128
CACHED_TEXTS = 8192

_CHUNK_UNITS = 256
_UTF16 = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"


def _powers_down(count: int) -> tuple[int, ...]:
    """31 to the powers count-1 … 0, each wrapped at 32 bits."""
    return tuple(pow(31, power, MASK + 1) for power in range(count - 1, -1, -1))


_ALL_POWERS = _powers_down(_CHUNK_UNITS)
_POWERS = tuple(_ALL_POWERS[_CHUNK_UNITS - count :] for count in range(_CHUNK_UNITS + 1))
_CHUNK_FACTOR = pow(31, _CHUNK_UNITS, MASK + 1)


def _utf16_units(text: str) -> Sequence[int]:
    return memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")


def _dot(units: Sequence[int]) -> int:
    total: int = sum(map(mul, units, _POWERS[len(units)]))
    return total


def unsigned_hash(text: str) -> int:
    """String.hashCode as an unsigned number, without the cache."""
    units: Sequence[int] = text.encode() if text.isascii() else _utf16_units(text)
    count = len(units)
    if count <= _CHUNK_UNITS:
        return _dot(units) & MASK
    first = count % _CHUNK_UNITS
    hashed = _dot(units[:first])
    for start in range(first, count, _CHUNK_UNITS):
        hashed = (hashed * _CHUNK_FACTOR + _dot(units[start : start + _CHUNK_UNITS])) & MASK
    return hashed


def _signed_hash(text: str) -> int:
    hashed = unsigned_hash(text)
    return hashed - (MASK + 1) if hashed & SIGN else hashed


_cached_hash = lru_cache(CACHED_TEXTS)(_signed_hash)


def string_hash(text: str) -> int:
    """String.hashCode as Java shows it: a signed 32-bit number. Cached, meant for tags."""
    return _cached_hash(text) if len(text) <= CACHED_TEXT_CHARS else _signed_hash(text)


@lru_cache(CACHED_TEXTS)
def _cached_tag(tag: bytes) -> int:
    return _signed_hash(tag.decode("utf-8", "replace"))


def tag_code(tag: bytes) -> int:
    """string_hash of a tag as it lies in a property text."""
    return _cached_tag(tag) if len(tag) <= CACHED_TEXT_CHARS else _signed_hash(tag.decode("utf-8", "replace"))


def index_hash(text: str) -> int:
    """The hash kept in the key index for "topic#key": never negative.

    Not cached: keys are mostly unique, they would only push the tags out.
    """
    hashed = unsigned_hash(text)
    if not hashed & SIGN:
        return hashed
    # Math.abs(Integer.MIN_VALUE) is still negative in Java; the index then uses 0.
    return 0 if hashed == SIGN else MASK + 1 - hashed


@lru_cache(256)
def _power_column(count: int) -> npt.NDArray[np.uint32]:
    column = np.array(_powers_down(count), dtype=np.uint32)
    column.setflags(write=False)
    return column


def hash_keys(prefix_hash: int, keys: list[bytes]) -> npt.NDArray[np.uint32]:
    """Unsigned hashes of prefix + key for ASCII keys of one length.

    prefix_hash is the (signed or unsigned) hash of the text before the key, usually "topic#".
    """
    if not keys:
        return np.empty(0, dtype=np.uint32)
    length = len(keys[0])
    joined = b"".join(keys)
    if len(set(map(len, keys))) != 1 or not joined.isascii():
        raise ValueError("hash_keys takes ASCII keys of one length; group keys by length, hash others singly")
    folded = (prefix_hash & MASK) * pow(31, length, MASK + 1) & MASK
    if not length:
        return np.full(len(keys), folded, dtype=np.uint32)
    units = np.frombuffer(joined, dtype=np.uint8).reshape(len(keys), length)
    hashes: npt.NDArray[np.uint32] = np.einsum("ij,j->i", units.astype(np.uint32), _power_column(length))
    hashes += np.uint32(folded)
    return hashes


def index_hashes(hashes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The never-negative form of a column of unsigned hashes; the columnar twin of index_hash."""
    # Negating an unsigned column wraps: 0x80000000 stays itself, the only value left with a sign bit.
    absolute = np.where(hashes & np.uint32(SIGN), np.negative(hashes), hashes)
    absolute[absolute == SIGN] = 0
    return absolute
