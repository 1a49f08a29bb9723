"""A producer's property texts differ in their unique id: what stands around it is known from the message before."""

from __future__ import annotations

from typing import Final, NamedTuple

from orbitmq.wire.properties import Prop

UNIQUE: Final = f"{Prop.UNIQ_KEY}\x01"
_LONGEST_TEXT: Final = 8000


class Around(NamedTuple):
    before: str
    unique_id: str
    behind: str


def around_unique_id(text: str) -> Around | None:
    """None for a text without a plain id, and for one that is too long to be worth remembering."""
    found = text.find(UNIQUE)
    if found < 0 or len(text) > _LONGEST_TEXT:
        return None
    start = found + len(UNIQUE)
    end = text.find("\x02", start)
    if end < 0:
        end = len(text)
    unique_id = text[start:end]
    if not unique_id or not unique_id.isascii():
        return None
    return Around(text[:found], unique_id, text[end:])
