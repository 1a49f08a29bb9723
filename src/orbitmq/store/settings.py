"""What a store must know: where it lies, how long its files are, when it flushes and what it keeps."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

GIB = 1 << 30
DEFAULT_DELAY_LEVELS_MS = tuple(
    1000 * s for s in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)


def _physical_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 * GIB


@dataclass(slots=True)
class StoreSettings:
    root: str
    commit_log_dir: str = ""
    """Empty: `commitlog` below the root."""
    store_host: bytes = b"\x7f\0\0\x01\0\0\x2a\x9f"
    """Address that the records (and with them the offset ids) name: ip + 4-byte port."""
    commit_log_file_bytes: int = GIB
    consume_queue_file_bytes: int = 300_000 * 20
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    index_enable: bool = True
    sync_flush: bool = True
    sync_flush_timeout_ms: int = 5_000
    flush_interval_ms: int = 500
    queue_sync_interval_ms: int = 10_000
    delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS
    in_memory_ratio: float = 0.40
    memory_bytes: int = field(default_factory=_physical_memory_bytes)

    @property
    def log_directory(self) -> str:
        return self.commit_log_dir or os.path.join(self.root, "commitlog")

    @property
    def in_memory_bytes(self) -> int:
        """Data written longer ago than this is taken to be on disk only."""
        return int(self.memory_bytes * self.in_memory_ratio)
