"""A disk that forgets: what a power cut leaves of a store's files.

Names, lengths and deletions reach the device in their order, as journalling file systems keep them; any sync makes all
that came before safe. Data that was not synced is there or not, page by page, as it pleases the disk.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from orbitmq.store.disk import Disk, StrPath

PAGE = 4096


@dataclass(eq=False)
class Inode:
    size: int = 0
    safe: bytes = b""
    """Content at the last sync."""
    last: bytes | None = None
    """Content when it was deleted; None while it is there."""


@dataclass
class Names:
    """Names as the device knows them after some of the changes."""

    inodes: dict[str, Inode] = field(default_factory=dict)

    def apply(self, change: tuple[str, str, Inode | str | None]) -> None:
        kind, path, what = change
        if kind == "create":
            assert isinstance(what, Inode)
            self.inodes[path] = what
        elif kind == "rename":
            assert isinstance(what, str)
            self.inodes[what] = self.inodes.pop(path)
        else:
            self.inodes.pop(path, None)


class VolatileDisk(Disk):
    def __init__(self) -> None:
        super().__init__()
        self._now = Names()
        self._changes: list[tuple[str, str, Inode | str | None]] = []
        self._safe_changes = 0
        self._paths: dict[int, str] = {}

    def _change(self, kind: str, path: str, what: Inode | str | None = None) -> None:
        self._changes.append((kind, path, what))
        self._now.apply((kind, path, what))

    def _committed(self) -> None:
        self._safe_changes = len(self._changes)

    def open_rw(self, path: StrPath, create: bool = False, size: int | None = None) -> int:
        name = os.fspath(path)
        fd = super().open_rw(path, create, size)
        self._paths[fd] = name
        if name not in self._now.inodes:
            self._change("create", name, Inode(os.fstat(fd).st_size))
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        super().close(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        super().ftruncate(fd, size)
        name = self._paths.get(fd)
        if name is not None:
            self._now.inodes[name].size = size

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        name = self._paths[fd]
        if name in self._now.inodes:
            self._now.inodes[name].safe = Path(name).read_bytes()
        self._committed()

    def sync_map(self, fd: int, mapped: mmap.mmap) -> None:
        mapped.flush()
        self.fdatasync(fd)

    def fsync_dir(self, path: StrPath) -> None:
        super().fsync_dir(path)
        self._committed()

    def unlink(self, path: StrPath) -> None:
        name = os.fspath(path)
        if name in self._now.inodes:
            self._now.inodes[name].last = Path(name).read_bytes()
        super().unlink(path)
        self._change("unlink", name)

    def rename(self, source: StrPath, target: StrPath) -> None:
        old, new = os.fspath(source), os.fspath(target)
        if new in self._now.inodes:
            self._now.inodes[new].last = Path(new).read_bytes()
        super().rename(source, target)
        self._change("rename", old, new)

    def cut(self, root: Path, target: Path, random: Random) -> None:
        """Writes to `target` what a power cut at this moment may leave of `root`."""
        names = Names()
        for change in self._changes[: random.randint(self._safe_changes, len(self._changes))]:
            names.apply(change)
        current = {id(inode): Path(path) for path, inode in self._now.inodes.items()}
        luck = random.choice((0.0, 0.3, 0.9, 1.0))
        for path, inode in names.inodes.items():
            home = current.get(id(inode))
            latest = home.read_bytes() if home is not None else inode.last or b""
            copy = target / Path(path).relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(mixed(inode.safe, latest, random, luck))


def mixed(safe: bytes, latest: bytes, random: Random, luck: float) -> bytes:
    """Page by page the old or the new content, at the new length."""
    safe = safe.ljust(len(latest), b"\0")[: len(latest)]
    if safe == latest:
        return latest
    pages = []
    for at in range(0, len(latest), PAGE):
        old, new = safe[at : at + PAGE], latest[at : at + PAGE]
        pages.append(new if random.random() < luck else old)
    return b"".join(pages)
