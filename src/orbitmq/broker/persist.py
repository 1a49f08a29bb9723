"""Saving the broker's tables as config/*.json, in the layout of the Java broker, and reading them back.

A table tells by its `changes` counter whether it is dirty. Encoding happens in the loop's thread, where
tables are stable; writing (with its fsync) may happen in another one. An older snapshot never overwrites a
newer file.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, NamedTuple, Protocol

from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreError
from orbitmq.wire import fastjson
from orbitmq.wire.errors import WireError

log = logging.getLogger("orbitmq.broker")

TOPICS = "topics.json"
GROUPS = "subscriptionGroup.json"
OFFSETS = "consumerOffset.json"
DELAYS = "delayOffset.json"
FILTERS = "consumerFilter.json"


class Persistent(Protocol):
    """A table that can be saved. `changes` grows with every change."""

    @property
    def changes(self) -> int: ...
    def to_json(self) -> dict[str, object]: ...
    def from_json(self, data: Any, /) -> None: ...


class ConfigDamaged(StoreError):
    """Neither a saved table nor its backup can be read; starting without it would lose it for good."""


class Pending(NamedTuple):
    """An encoded table on its way to the disk."""

    name: str
    data: bytes
    changes: int


class ConfigStore:
    """Saves and loads named tables in one directory."""

    def __init__(self, disk: Disk, config_dir: str) -> None:
        self._disk = disk
        self._dir = config_dir
        self._tables: dict[str, Persistent] = {}
        # Guarded by the lock, because writes may run in several threads.
        self._written: dict[str, int] = {}
        self._restored: set[str] = set()
        self._lock = threading.Lock()

    def add(self, name: str, table: Persistent) -> None:
        self._tables[name] = table

    def load(self) -> list[str]:
        """Reads every table that was ever saved; returns the names of those that were found."""
        found = []
        for name, table in self._tables.items():
            if self._load(name, table):
                found.append(name)
                if name not in self._restored:
                    self._written[name] = table.changes
        return found

    def changes(self, name: str) -> int:
        """A number that is another one after every change of the table."""
        return self._tables[name].changes

    def dirty(self) -> list[str]:
        return [name for name, table in self._tables.items() if self._written.get(name) != table.changes]

    def snapshot(self) -> list[Pending]:
        """Encodes what changed since it was last written."""
        return [self._encode(name) for name in self.dirty()]

    def write(self, pending: Pending) -> None:
        """Safe in any thread. Raises OSError, after which the table is still dirty."""
        with self._lock:
            if self._written.get(pending.name, -1) >= pending.changes:
                return
            self._disk.makedirs(self._dir)
            # A damaged file must not replace the good backup it was restored from.
            backup = pending.name not in self._restored
            self._disk.write_atomic(self._path(pending.name), pending.data, backup=backup)
            self._restored.discard(pending.name)
            self._written[pending.name] = pending.changes

    def save(self, *names: str) -> list[str]:
        """Writes the named tables now if they changed, or all that changed; returns what was written."""
        dirty = self.dirty()
        chosen = [name for name in dirty if not names or name in names]
        for name in chosen:
            self.write(self._encode(name))
        return chosen

    def text(self, name: str) -> bytes:
        """A table as its file would be now."""
        return fastjson.dumps_pretty(self._tables[name].to_json())

    def _encode(self, name: str) -> Pending:
        return Pending(name, self.text(name), self._tables[name].changes)

    def _load(self, name: str, table: Persistent) -> bool:
        path = self._path(name)
        problems = []
        for candidate in (path, path + ".bak"):
            data = self._read(candidate)
            if not data.strip():
                continue
            try:
                table.from_json(fastjson.loads(data))
            except (WireError, ValueError, TypeError, AttributeError) as error:
                problems.append(f"{candidate}: {error}")
                continue
            if candidate != path:
                self._restored.add(name)
            if problems:
                log.warning("%s is damaged, its backup was loaded instead (%s)", path, problems[0])
            elif candidate != path:
                log.warning("%s is missing or empty, its backup was loaded instead", path)
            return True
        if problems:
            raise ConfigDamaged(
                f"neither {path} nor its backup can be read ({'; '.join(problems)}); "
                "repair or remove the files to start without them"
            )
        return False

    def _read(self, path: str) -> bytes:
        try:
            return self._disk.read_file(path)
        except FileNotFoundError:
            return b""

    def _path(self, name: str) -> str:
        return os.path.join(self._dir, name)
