"""Property texts of plain sends: what is stored of them, and which are not plain.

As in `store.property_shapes`, what stands around the unique id is nearly always known from the message before.
"""

from __future__ import annotations

from typing import NamedTuple

from orbitmq.wire.java_hash import tag_code
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES

UNIQUE = "UNIQ_KEY\x01"
UNIQUE_CHARS = len(UNIQUE)
ID_CHARS = 32
_MOST_SHAPES = 4096
_LONGEST_SHAPE = 512

# Whatever makes the broker do more than store the message.
_SPECIAL = frozenset(
    {
        "DELAY",
        "TRAN_MSG",
        "CLUSTER",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_DEL_UNIQKEY",
        "INNER_MULTI_DISPATCH",
        "MSG_TYPE",
    }
)


class Shape(NamedTuple):
    """A text with a known before and behind is stored as `before` + id + `behind`."""

    before: bytes
    behind: bytes
    tags_code: int


class Plain(NamedTuple):
    properties: bytes
    tags_code: int
    unique_key: bytes
    keys: list[bytes] | None


class SendShapes:
    __slots__ = ("_cluster", "known")

    def __init__(self, cluster: str) -> None:
        self._cluster = "CLUSTER\x01" + cluster
        self.known: dict[tuple[str, str], Shape] = {}

    def learn(self, text: str) -> Plain | None:
        """The text as it is stored: without WAIT, with CLUSTER. None when the message is not plain."""
        unique = keys = tags = ""
        stored: list[str] = []
        for pair in text.split("\x02"):
            name, _, value = pair.partition("\x01")
            if not name or not value:
                continue
            if name == "WAIT":
                if value != "true":
                    return None
                continue
            if name in _SPECIAL:
                return None
            if name == "UNIQ_KEY":
                if unique:
                    return None
                unique = value
            elif name == "KEYS":
                keys = value
            elif name == "TAGS":
                tags = value
            stored.append(pair)
        stored.append(self._cluster)
        joined = "\x02".join(stored)
        properties = joined.encode("utf-8", "replace")
        if len(properties) > MAX_PROPERTIES_BYTES:
            return None
        tags_code = tag_code(tags.encode("utf-8", "replace")) if tags else 0
        if not keys and len(unique) == ID_CHARS and len(text) <= _LONGEST_SHAPE and text.isascii():
            self._remember(text, joined, unique, tags_code)
        split = [key for key in keys.encode("utf-8", "replace").split(b" ") if key] if keys else None
        return Plain(properties, tags_code, unique.encode("utf-8", "replace"), split)

    def _remember(self, text: str, stored: str, unique: str, tags_code: int) -> None:
        found = text.find(UNIQUE)
        end = found + UNIQUE_CHARS + ID_CHARS
        if (found and text[found - 1] != "\x02") or text[end : end + 1] not in ("", "\x02"):
            return
        if text[found + UNIQUE_CHARS : end] != unique or UNIQUE in text[end:] or stored.count(unique) != 1:
            return
        before, _, behind = stored.partition(unique)
        if len(self.known) >= _MOST_SHAPES:
            self.known.clear()
        self.known[text[:found], text[end:]] = Shape(before.encode(), behind.encode(), tags_code)
