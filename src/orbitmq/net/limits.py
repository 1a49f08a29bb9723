"""What a listener lets its peers do."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    max_frame_bytes: int = 16 * MIB
    max_connections: int = 20_000
    max_partial_bytes: int = 512 * MIB
    """Bytes of unfinished frames over all connections; past it the connection that asks for more is closed."""
    write_high_bytes: int = 8 * MIB
    """A peer that leaves more than this unread is not read from until it has caught up."""
    idle_seconds: float = 120.0
    sweep_seconds: float = 5.0
