"""How far an archive is, and whether a checkpoint is the one that it was made with.

Spark numbers the steps of a stream. The checkpoint has a file per step, written before the step (`offsets`) and after
it (`commits`); the archive has the list of finished files, one entry per step, written in between. So the newest step
of the archive is planned in its checkpoint, and the newest finished one of the checkpoint is in the archive, at
whatever moment a run is killed.

With another checkpoint steps are numbered anew, and Spark takes every number that the archive has already for a
repetition: it skips the step and goes on behind its messages, which then are nowhere. Hence the checks here. A note in
the archive tells which checkpoint made it, for two that happen to be equally far.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orbitmq.client.errors import BadRequest
from orbitmq.spark.errors import SourceError
from orbitmq.spark.offsets import Offsets, from_json
from orbitmq.spark.pipelines.small_files import SmallFiles, small_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT: Final = "_checkpoint"
NOTE: Final = "_orbitmq/checkpoint"
NONE: Final = -1


@dataclass(frozen=True)
class Note:
    query_id: str
    checkpoint: str


@dataclass(frozen=True)
class Places:
    """Where an archive has got to in each queue."""

    of_queue: Offsets
    exact: bool
    """It is of the newest step in the archive; otherwise that may be one step further."""


class ArchiveLog:
    def __init__(self, spark: SparkSession, path: str, checkpoint: str | None = None) -> None:
        self._files: SmallFiles = small_files(spark)
        self._path = path
        self._note = self._read_note()
        self.checkpoint = checkpoint or below(path, CHECKPOINT)

    def newest_step(self) -> int | None:
        """In the list of finished files; None where that cannot be seen, -1 before the first."""
        if not self._files.sees_metadata:
            return None
        return _newest(self._files.names(below(self._path, "_spark_metadata")))

    # --- before a run -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuses a checkpoint with which messages would be skipped."""
        step = self.newest_step()
        query_id = self._query_id(self.checkpoint)
        planned = _newest(self._files.names(below(self.checkpoint, "offsets")))
        done = _newest(self._files.names(below(self.checkpoint, "commits")))
        is_noted = self._note is not None and query_id == self._note.query_id
        if step is None:
            # Steps without a message leave no file; that somebody else has been here tells of them.
            begun = bool(self._files.names(self._path)) or (self._note is not None and not is_noted)
        else:
            begun = step > NONE
        if begun and self._note and query_id and not is_noted:
            raise self._other(f"it was made with another one, in {self._note.checkpoint}")
        if begun and planned == NONE:
            raise self._other(f"the archive has been begun, and {self.checkpoint} holds no progress")
        if step is None:
            return
        if step > planned:
            raise self._other(f"the archive is at step {step}, and {self.checkpoint} at step {planned}")
        if done > step:
            raise self._other(
                f"{self.checkpoint} has finished step {done}, which the archive does not have "
                f"({f'its last one is {step}' if begun else 'it is empty'})"
            )

    def _other(self, why: str) -> BadRequest:
        made_with = f" ({self._note.checkpoint})" if self._note else ""
        return BadRequest(
            f"the archive {self._path} cannot go on with the checkpoint {self.checkpoint}: {why}; "
            "Spark would leave messages out of the archive without a word",
            hint=f"give the checkpoint that it was made with{made_with}, or archive anew to another path",
        )

    # --- during a run -----------------------------------------------------------------------------------------

    def note(self, query_id: str) -> None:
        """Writes down whose archive this is."""
        note = Note(query_id, self.checkpoint)
        if note != self._note:
            self._files.replace(below(self._path, NOTE), json.dumps(vars(note)))
            self._note = note

    # --- for readers ------------------------------------------------------------------------------------------

    def places(self) -> Places | None:
        """How far the archive is in each queue; None where its checkpoint is not found."""
        for checkpoint in dict.fromkeys(self._checkpoints()):
            if self._note and self._query_id(checkpoint) != self._note.query_id:
                continue
            step = self.newest_step()
            exact = step is not None
            if step is None:
                step = _newest(self._files.names(below(checkpoint, "commits")))
            offsets = _offsets(self._files.lines(below(checkpoint, f"offsets/{step}")))
            if offsets is not None:
                return Places(offsets, exact)
        return None

    def _checkpoints(self) -> Iterable[str]:
        if self._note:
            yield self._note.checkpoint
        yield below(self._path, CHECKPOINT)

    def _read_note(self) -> Note | None:
        for line in self._files.lines(below(self._path, NOTE)):
            try:
                return Note(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise SourceError(
                    f"{below(self._path, NOTE)} is damaged: {line[:100]!r}",
                    hint="delete this directory if you are sure which checkpoint belongs to the archive",
                ) from error
        return None

    def _query_id(self, checkpoint: str) -> str | None:
        for line in self._files.lines(below(checkpoint, "metadata")):
            return str(json.loads(line)["id"])
        return None


def below(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _newest(names: Iterable[str]) -> int:
    numbers = [name.removesuffix(".compact") for name in names]
    return max((int(number) for number in numbers if number.isdecimal()), default=NONE)


def _offsets(lines: list[str]) -> Offsets | None:
    """Of a file in `offsets`: a version, settings, and a line for each source, of which there is one."""
    if len(lines) != 3 or lines[0] != "v1":
        return None
    try:
        return from_json(json.loads(lines[2]))
    except (ValueError, SourceError):
        return None
