"""A limit for everything that runs here, page cache included, as a container has it.

A broker that has been up for a while writes into pages that the system takes from the oldest cached ones. On a large
machine with empty memory a benchmark never gets there: every page it writes is a new one, and where the machine is
virtual, the host may have to find it first, which costs ten times as much, for whichever broker writes. So the limit
is filled with cached pages when the brokers have started, before the first figure is taken.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PIECE = bytes(1 << 20)
CONTROL_GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def memory_limit(gigabytes: int, root: Path = CONTROL_GROUPS) -> Iterator[None]:
    """This process and all that it starts from now on have this much memory together. 0 is no limit."""
    if not gigabytes:
        yield
        return
    first_version = root / "memory"
    base, limit = (first_version, "memory.limit_in_bytes") if first_version.is_dir() else (root, "memory.max")
    group = base / f"orbitmq-bench-{os.getpid()}"
    try:
        if base == root:
            with suppress(OSError):  # it may be on already
                (root / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        for name, value in ((limit, gigabytes << 30), ("cgroup.procs", os.getpid())):
            with (group / name).open("r+") as file:  # made by the kernel, or this is no control group
                file.write(str(value))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise SystemExit(
            f"the memory cannot be limited: {error}; run as root on Linux with control groups, or without --memory"
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # what still runs keeps the group alive
            (base / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()


def fill_memory(size_bytes: int, directory: Path) -> None:
    """So much page cache of a file, which has to stay until the end: pages that nobody holds go back to the host."""
    with (directory / "cached").open("wb", buffering=0) as file:
        for _ in range(size_bytes // len(_PIECE)):
            file.write(_PIECE)
        os.fsync(file.fileno())  # pages of what is on the disk can be given to others at once
