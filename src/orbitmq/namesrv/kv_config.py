"""The name server's key-value store: namespace, key, value; kept in one small JSON file.

The one module of this room that touches files, because a name server has no store. The file is read by, and
may come from, Apache RocketMQ: `{"configTable":{"namespace":{"key":"value"}}}`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from orbitmq.wire import fastjson
from orbitmq.wire.errors import WireError

log = logging.getLogger("orbitmq.namesrv")

Table = dict[str, dict[str, str]]


class KvConfig:
    """What was put is on disk before `put` returns; if it cannot be saved, it is not taken over either."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = Path(path) if path else None
        self._table: Table = {}

    def load(self) -> None:
        """Reads the file or, if that is missing or damaged, the copy kept of the one before."""
        if self._path is None:
            return
        for path in (self._path, _backup(self._path)):
            try:
                self._table = _parse(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, WireError) as error:
                log.warning("%s cannot be used: %s; trying the copy before it", path, error)
                continue
            if path != self._path:
                log.warning("key-value configuration restored from %s", path)
            return

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """A copy of all keys of a namespace; None if nothing was ever put there."""
        keys = self._table.get(namespace)
        return None if keys is None else dict(keys)

    def put(self, namespace: str, key: str, value: str) -> None:
        self._replace(namespace, {**self._table.get(namespace, {}), key: value})

    def delete(self, namespace: str, key: str) -> bool:
        keys = self.namespace(namespace)
        if keys is None or key not in keys:
            return False
        del keys[key]
        self._replace(namespace, keys)
        return True

    def _replace(self, namespace: str, keys: dict[str, str]) -> None:
        table = {**self._table, namespace: keys}
        if self._path is not None:
            write_atomic(self._path, fastjson.dumps({"configTable": table}))
        self._table = table


def write_atomic(path: Path, data: bytes) -> None:
    """After a crash the file has its old content or the new one; the old one also stays beside it as .bak."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    if path.exists():
        copy = _backup(path).with_name(path.name + ".bak.tmp")
        copy.write_bytes(path.read_bytes())
        copy.replace(_backup(path))
    fresh.replace(path)
    if os.name != "posix":
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _parse(data: bytes) -> Table:
    if not data.strip():
        return {}
    content = fastjson.loads(data)
    table = content.get("configTable", {}) if isinstance(content, dict) else None
    if not isinstance(table, dict) or not all(isinstance(keys, dict) for keys in table.values()):
        raise WireError('it is not of the form {"configTable":{"namespace":{"key":"value"}}}')
    return {
        str(namespace): {str(key): str(value) for key, value in keys.items()}
        for namespace, keys in table.items()
    }
