"""CPU and memory of a process with everything it has started, from /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_TICKS: Final = os.sysconf("SC_CLK_TCK")
SAMPLE_S: Final = 0.25


def family(pid: int) -> dict[int, str]:
    """This process and all that descend from it, with their names."""
    names: dict[int, str] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            name, fields = stat
            names[int(entry.name)] = name
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        member = waiting.pop()
        if member in names:
            found[member] = names[member]
            waiting += children.get(member, ())
    return found


def family_cpu_s(pid: int) -> float:
    """User and system time of all of them, and of those that have ended and were waited for."""
    ticks = 0
    for member in family(pid):
        if (stat := _stat(member)) is not None:
            ticks += sum(int(field) for field in stat[1][11:15])
    return ticks / _TICKS


def _stat(pid: int) -> tuple[str, list[str]] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended meanwhile
        return None
    head, _, tail = text.rpartition(")")
    return head.partition("(")[2], tail.split()


class MemoryPeak:
    """While it is entered, looks several times a second. Mapped files are the page cache's and not counted."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.java_mb = 0.0
        self.python_mb = 0.0
        """All Python processes but the driver's own."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            java = python = 0.0
            for member, name in family(self._pid).items():
                if name == "java":
                    java += _anonymous_mb(member)
                elif member != self._pid:
                    python += _anonymous_mb(member)
            self.java_mb, self.python_mb = max(self.java_mb, java), max(self.python_mb, python)
            if self._stop.wait(SAMPLE_S):
                return


def _anonymous_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:")), 0.0)
