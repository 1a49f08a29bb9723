"""The bits by which a Java broker marks a consumer's filter in its bloom filter, for `consumerFilter.json`.

They are not used here. A Java broker that takes the directory over only keeps filters whose bits have the
form that its own settings would give, so they are worked out as it does: murmur3 of "group#topic".
"""

from __future__ import annotations

from struct import unpack
from typing import Final

# From the defaults expectConsumerNumUseFilter=32 and maxErrorRateOfBloomFilter=20.
BIT_NUM: Final = 112
HASHES: Final = 3

_MASK = 0xFFFFFFFFFFFFFFFF
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F


def bit_positions(group: str, topic: str) -> list[int]:
    hashed = murmur3_64(f"{group}#{topic}".encode("utf-8", "replace"))
    first, second = _signed(hashed & 0xFFFFFFFF), _signed(hashed >> 32)
    positions = []
    for number in range(1, HASHES + 1):
        combined = _signed((first + number * second) & 0xFFFFFFFF)
        positions.append((~combined if combined < 0 else combined) % BIT_NUM)
    return positions


def murmur3_64(data: bytes) -> int:
    """The first half of MurmurHash3 x64 128 with seed 0."""
    h1 = h2 = 0
    whole = len(data) - len(data) % 16
    for at in range(0, whole, 16):
        k1, k2 = unpack("<QQ", data[at : at + 16])
        h1 ^= _mixed(k1, _C1, 31, _C2)
        h1 = ((_rotated(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mixed(k2, _C2, 33, _C1)
        h2 = ((_rotated(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    k1, k2 = unpack("<QQ", data[whole:].ljust(16, b"\0"))
    h2 ^= _mixed(k2, _C2, 33, _C1)
    h1 ^= _mixed(k1, _C1, 31, _C2)
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_final(h1) + _final(h2)) & _MASK


def _mixed(k: int, by: int, turns: int, then_by: int) -> int:
    return _rotated(k * by & _MASK, turns) * then_by & _MASK


def _rotated(value: int, turns: int) -> int:
    return (value << turns | value >> (64 - turns)) & _MASK


def _final(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & _MASK
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return h ^ h >> 33


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
