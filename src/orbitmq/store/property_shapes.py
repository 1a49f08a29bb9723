"""Property texts that come again and again, differing only in the message's unique id.

A producer renders the same properties in the same order for every message, so what stands before and behind the
unique id is nearly always known. For a known shape the stored text and the tag's hash are a look-up.
"""

from __future__ import annotations

from typing import NamedTuple

from orbitmq.wire.java_hash import tag_code

_MOST_SHAPES = 4096
_LONGEST_SHAPE = 512
_UNIQUE = b"UNIQ_KEY\x01"


class Shape(NamedTuple):
    """Texts with this before and behind the id are stored as before + id + `behind`."""

    behind: bytes
    tags_code: int


class Parsed(NamedTuple):
    properties: bytes
    tags_code: int
    keys: list[bytes]


class PropertyShapes:
    """Adds one fixed text to property texts and takes out what dispatch needs of them."""

    __slots__ = ("_more", "added_bytes", "known")

    def __init__(self, more: bytes) -> None:
        self._more = more
        self.added_bytes = len(more) + 1
        self.known: dict[tuple[bytes, bytes], Shape] = {}

    def learn(self, text: bytes) -> Parsed:
        """The plain way for one text; its shape is remembered when it may come again."""
        unique = keys = tags = b""
        for pair in text.split(b"\x02"):
            name, _, value = pair.partition(b"\x01")
            if not value:
                continue
            if name == b"UNIQ_KEY":
                unique = value
            elif name == b"KEYS":
                keys = value
            elif name == b"TAGS":
                tags = value
        tags_code = tag_code(tags) if tags else 0
        stored = text.rstrip(b"\x02")
        stored = stored + b"\x02" + self._more if stored and self._more else stored + self._more
        all_keys = [unique] if unique else []
        if keys:
            all_keys += [key for key in keys.split(b" ") if key]
        elif len(unique) == 32 and len(text) <= _LONGEST_SHAPE:
            self._remember(text, stored, unique, tags_code)
        return Parsed(stored, tags_code, all_keys)

    def _remember(self, text: bytes, stored: bytes, unique: bytes, tags_code: int) -> None:
        found = text.find(_UNIQUE)
        key_at = found + len(_UNIQUE)
        key_end = key_at + len(unique)
        # Only where the first match is the pair itself, whole: not the end of another name, not part of a value.
        whole = found == 0 or text[found - 1 : found] == b"\x02"
        if not whole or text[key_at:key_end] != unique or text[key_end : key_end + 1] not in (b"", b"\x02"):
            return
        if _UNIQUE in text[key_end:]:
            return
        if len(self.known) >= _MOST_SHAPES:
            self.known.clear()
        self.known[text[:key_at], text[key_end:]] = Shape(stored[key_end:], tags_code)
