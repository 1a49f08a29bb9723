"""How often a message is tried again, and after how long. Pure."""

from __future__ import annotations

from typing import Final

# From this protocol version on (3.4.9) a client's own limit counts.
CLIENT_LIMIT_VERSION: Final = 121
FIRST_LEVEL: Final = 3
DEAD: Final = -1
MAX_RECONSUME_TIMES: Final = 2**31 - 1
MAX_REASON_CHARS: Final = 1000


def limit_of(group_limit: int, client_limit: int | None, client_version: int) -> int:
    """How many tries after the first one a message gets."""
    if client_limit is not None and client_version >= CLIENT_LIMIT_VERSION:
        return client_limit
    return group_limit


def next_level(reconsume_times: int, limit: int, asked_level: int, levels: int) -> int:
    """The delay level of the next try, or DEAD. Past the last level every try waits as long as that one."""
    if asked_level < 0 or reconsume_times >= limit:
        return DEAD
    level = asked_level or FIRST_LEVEL + max(0, reconsume_times)
    return min(level, levels)


def next_times(reconsume_times: int) -> int:
    """One try more; the record has four bytes for it."""
    return min(max(0, reconsume_times) + 1, MAX_RECONSUME_TIMES)


def clean_reason(text: str | None) -> str:
    """A reason as it can be stored in a property: one line of bounded length, without separators."""
    words = " ".join((text or "").replace("\x01", " ").replace("\x02", " ").split())
    return words if len(words) <= MAX_REASON_CHARS else words[: MAX_REASON_CHARS - 1] + "…"
