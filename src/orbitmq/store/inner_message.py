"""A message as the store takes it: fields checked, properties rendered, keys and tag hash taken out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from orbitmq.wire.java_hash import tag_code
from orbitmq.wire.properties import find_property

NO_HOST = bytes(8)


@dataclass(slots=True)
class InnerMessage:
    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    tags_code: int = 0
    unique_key: bytes | None = None
    keys: bytes | None = None
    sys_flag: int = 0
    flag: int = 0
    born_ms: int = 0
    born_host: bytes = NO_HOST
    reconsume_times: int = 0
    prepared_offset: int = 0
    delay_ms: int | None = None
    """Given when the queue unit carries a delivery time instead of the tag's hash: so long after the store time."""

    def index_properties(self) -> InnerMessage:
        """Takes tag hash and keys from the rendered properties, for messages that do not come by the fast path."""
        tag = find_property(self.properties, b"TAGS")
        self.tags_code = tag_code(tag) if tag else 0
        self.unique_key = find_property(self.properties, b"UNIQ_KEY")
        self.keys = find_property(self.properties, b"KEYS")
        return self


class PutResult(NamedTuple):
    position: int
    queue_offset: int
    size: int
    store_ms: int
