"""Progress of a broadcasting consumer: a file on its own machine, in the layout of the official clients.

Every member of a broadcasting group reads all queues, so there is no common progress that a broker could keep.
The file lies at <folder>/<client id>/<group>/offsets.json, with the one before it as offsets.json.bak.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from orbitmq.client.errors import OrbitMQError
from orbitmq.wire import fastjson
from orbitmq.wire.bodies import decode_reset_offsets
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue

log = logging.getLogger("orbitmq.consumer")

FOLDER: Final = ".rocketmq_offsets"
FILE: Final = "offsets.json"
# Official broadcasting consumers keep this instance name, so that a restart finds the file again.
STABLE_INSTANCE: Final = "DEFAULT"


def stable_id(client_id: str) -> str:
    """The name of the folder: an id with a process id in it would be another one after each restart."""
    ip, at, instance = client_id.partition("@")
    return f"{ip}@{STABLE_INSTANCE}" if at and "#" in instance else client_id


class LocalOffsets:
    """Offsets in the file. Reading is done once; a damaged file is replaced by the one before it."""

    def __init__(self, folder: Path | None, client_id: str, group: str) -> None:
        base = folder if folder is not None else Path.home() / FOLDER
        self.path = base / stable_id(client_id) / group / FILE
        self._offsets: dict[MessageQueue, int] | None = None

    async def load(self, queue: MessageQueue) -> int | None:
        return self._known().get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        known = self._known()
        known.update(offsets)
        body = fastjson.dumps_pretty({"offsetTable": known})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            new = self.path.with_suffix(".json.tmp")
            new.write_bytes(body)
            if self.path.exists():
                os.replace(self.path, self.path.with_suffix(".json.bak"))
            os.replace(new, self.path)
        except OSError as error:
            log.warning("offsets are not written and will be tried again: %s", error)
            return set()
        return set(offsets)

    def _known(self) -> dict[MessageQueue, int]:
        if self._offsets is None:
            self._offsets = self._read()
        return self._offsets

    def _read(self) -> dict[MessageQueue, int]:
        bad = ""
        for path in (self.path, self.path.with_suffix(".json.bak")):
            try:
                found = decode_reset_offsets(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, WireError) as error:
                bad = f"{path}: {error}"
                log.warning("offsets in %s cannot be read: %s", path, error)
                continue
            return found
        if bad:
            raise OrbitMQError(
                f"the offsets of this broadcasting consumer cannot be read: {bad}",
                hint="repair the file, or remove it to begin at the end of every queue",
            )
        return {}
