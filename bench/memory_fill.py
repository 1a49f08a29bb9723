"""A machine whose memory is in use, as it is where a broker has run for a day: the page cache holds old files.

Whoever writes then gets pages that the system takes from the oldest cached ones. On a machine with empty memory every
page is a new one, and where the machine is virtual, the host has to find it first, which costs ten times as much, for
whichever broker writes. The pages here are those of holes: nothing is read from or written to the device.
"""

from __future__ import annotations

import os
from pathlib import Path

MEMORY = Path("/proc/meminfo")
_FILE_BYTES = 1 << 40
_STEP_BYTES = 64 << 20
_PIECE = bytearray(1 << 20)
_STEPS_WITHOUT_LESS = 8
"""So many steps without less free memory than before: the system takes back as much as it gives."""


class MemoryFill:
    def __init__(self, directory: Path) -> None:
        self._path = directory / "holes"
        self._next = 0

    def fill(self) -> None:
        """Until hardly a page is free: after a store was deleted, its pages are filled again."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(fd, _FILE_BYTES)
            least, since = free_bytes(), 0
            while since < _STEPS_WITHOUT_LESS:
                self._read_step(fd)
                free = free_bytes()
                since = 0 if free < least else since + 1
                least = min(least, free)
        finally:
            os.close(fd)

    def _read_step(self, fd: int) -> None:
        for at in range(self._next, self._next + _STEP_BYTES, len(_PIECE)):
            os.preadv(fd, [_PIECE], at)
        self._next = (self._next + _STEP_BYTES) % _FILE_BYTES


def free_bytes() -> int:
    for line in MEMORY.read_text().splitlines():
        if line.startswith("MemFree:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"{MEMORY} does not tell how much memory is free; run with --empty-memory")
