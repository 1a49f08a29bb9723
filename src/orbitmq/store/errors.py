"""What can go wrong with a store. Each error says what happened, and its hint says what to do."""

from __future__ import annotations


class StoreError(Exception):
    """Root of the store's errors: `problem` is what happened and why, `hint` is the way out."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


class StoreLocked(StoreError):
    """Another broker has this store directory open."""

    def __init__(self, directory: str, pid: int | None) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"the store directory {directory} is in use by another broker ({holder})",
            "stop that broker first, or give this one its own storePathRootDir",
        )
        self.directory = directory
        self.pid = pid


class StoreDamaged(StoreError):
    """Bytes on disk are not what the store wrote; `offset` is the byte within `path`, when it is known."""

    def __init__(self, path: str, offset: int | None, problem: str, hint: str = "") -> None:
        where = path if offset is None else f"{path} at byte {offset}"
        super().__init__(f"{where}: {problem}", hint or "run `orbitmq store verify` on the stopped store")
        self.path = path
        self.offset = offset


class WrongFileSize(StoreError):
    """A store file is not as long as the configuration says; opening it would misplace every offset."""

    def __init__(self, path: str, actual: int, expected: int, config_key: str) -> None:
        super().__init__(
            f"{path} has {actual} bytes, but {expected} are expected from {config_key}",
            f"set {config_key} to the value this store was written with, or restore the file from a copy",
        )
        self.path = path
        self.actual = actual
        self.expected = expected


class StoreReadOnly(StoreError):
    """The store refuses writes: a flush failed, the disk is full, or the store is a slave."""


class StoreClosed(StoreError):
    """An operation reached a store that was not opened, or was closed meanwhile."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed", "open the store before using it")
