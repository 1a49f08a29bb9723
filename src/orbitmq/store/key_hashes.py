"""Hashes of "topic#key" for a slice of index rows: the dearest step of dispatch, so done in columns.

Keys of one length make a byte matrix; its product with the powers of 31 is Java's hash. The hash of the
prefix is folded in afterwards (hash(a + b) = hash(a) * 31^len(b) + hash(b)), so one matrix serves all topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orbitmq.wire.java_hash import MASK, hash_keys, index_hash, index_hashes, unsigned_hash
from orbitmq.wire.numeric import np

if TYPE_CHECKING:
    import numpy.typing as npt

# A broker sees few topics; the bound only keeps a flood of topic names from growing the table for ever.
CACHED_PREFIXES = 8192


def plain_hash(prefix: bytes, key: bytes) -> int:
    """The index hash of one key; the plain twin of KeyHasher.columns."""
    return index_hash((prefix + key).decode("utf-8", "replace"))


class KeyHasher:
    """Hashes columns, remembering the hashes of prefixes."""

    def __init__(self) -> None:
        self._prefixes: dict[bytes, int] = {}

    def columns(self, prefixes: Sequence[bytes], keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """The index hash of each row's prefix + key."""
        ascii_only = b"".join(keys).isascii()
        lengths = set(map(len, keys))
        if ascii_only and len(lengths) == 1:
            hashes = self._of_one_length(prefixes, list(keys))
            return index_hashes(hashes).astype(np.int64)
        hashes = np.empty(len(keys), dtype=np.uint32)
        groups: dict[int, list[int]] = {}
        for row, key in enumerate(keys):
            if ascii_only or key.isascii():
                groups.setdefault(len(key), []).append(row)
            else:
                hashes[row] = unsigned_hash((prefixes[row] + key).decode("utf-8", "replace"))
        for rows in groups.values():
            hashes[rows] = self._of_one_length([prefixes[row] for row in rows], [keys[row] for row in rows])
        return index_hashes(hashes).astype(np.int64)

    def _of_one_length(self, prefixes: Sequence[bytes], keys: list[bytes]) -> npt.NDArray[np.uint32]:
        distinct = set(prefixes)
        if len(distinct) == 1:
            return hash_keys(self._prefix_hash(prefixes[0]), keys)
        known = {prefix: self._prefix_hash(prefix) for prefix in distinct}
        folded = np.array([known[prefix] for prefix in prefixes], dtype=np.uint32)
        folded *= np.uint32(pow(31, len(keys[0]), MASK + 1))
        folded += hash_keys(0, keys)
        return folded

    def _prefix_hash(self, prefix: bytes) -> int:
        known = self._prefixes.get(prefix)
        if known is None:
            if len(self._prefixes) >= CACHED_PREFIXES:
                self._prefixes.clear()
            known = self._prefixes[prefix] = unsigned_hash(prefix.decode("utf-8", "replace"))
        return known
