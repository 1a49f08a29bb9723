"""What a check of a store found: findings for people, figures for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "info"]

# One broken page can spoil a million units; the first few tell the story, the rest are counted.
MAX_FINDINGS_OF_A_KIND = 20

# Without the checkpoint and with the mark of a crash, a start reads the whole log and writes what is missing.
REBUILD = (
    "stop the broker, delete consumequeue, index, checkpoint and recovery.json, create an empty file named "
    "abort: the next start rebuilds them from the log"
)
RESTORE_LOG = "restore the file from a slave or a copy; without one these messages are lost"
RESTORE_CONFIG = "restore the file from its .bak or a copy"


@dataclass(frozen=True, slots=True)
class Finding:
    """`file` is relative to the store, `offset` counts bytes in it where one place is meant."""

    severity: Severity
    file: str
    offset: int | None
    text: str
    fix: str = ""

    def __str__(self) -> str:
        place = self.file if self.offset is None else f"{self.file} at {self.offset}"
        return f"{self.severity}: {place}: {self.text}" + (f" ({self.fix})" if self.fix else "")


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """How long the files are; None where there is no file to tell."""

    commit_log: int | None = None
    consume_queue: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of the log without a sound record; `good_after` counts those behind it in its file."""

    start: int
    end: int
    problem: str
    good_after: int = 0


@dataclass(slots=True)
class QueueSummary:
    """A queue as its units and the log's records show it. Times are those of its first and last record."""

    topic: str
    queue_id: int
    min_offset: int = 0
    max_offset: int = 0
    records: int = 0
    record_bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(slots=True)
class VerifyReport:
    path: str
    sizes: StoreSizes = field(default_factory=StoreSizes)
    clean_stop: bool = True
    """False while a broker runs on the store, or when the last one was killed: its tail may be unfinished."""
    log_start: int = 0
    log_end: int = 0
    records: int = 0
    last_ms: int = 0
    blanks: int = 0
    index_entries: int = 0
    damage: list[Damage] = field(default_factory=list)
    queues: list[QueueSummary] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    suppressed: dict[str, int] = field(default_factory=dict)
    """Findings beyond the first few of a kind, by kind."""
    _counts: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> bool:
        """Nothing is lost or wrong. Warnings and notes do not count against a store."""
        return not any(self.of("error"))

    def of(self, severity: Severity) -> Iterator[Finding]:
        return (finding for finding in self.findings if finding.severity == severity)

    def add(
        self,
        severity: Severity,
        file: str,
        offset: int | None,
        text: str,
        fix: str = "",
        *,
        kind: str = "",
    ) -> None:
        """Keep a finding; of those with the same `kind` only the first few."""
        if kind:
            count = self._counts[kind] = self._counts.get(kind, 0) + 1
            if count > MAX_FINDINGS_OF_A_KIND:
                self.suppressed[kind] = count - MAX_FINDINGS_OF_A_KIND
                return
        self.findings.append(Finding(severity, file, offset, text, fix))

    def error(self, file: str, offset: int | None, text: str, fix: str = "", *, kind: str = "") -> None:
        self.add("error", file, offset, text, fix, kind=kind)

    def warning(self, file: str, offset: int | None, text: str, fix: str = "", *, kind: str = "") -> None:
        self.add("warning", file, offset, text, fix, kind=kind)

    def info(self, file: str, offset: int | None, text: str, fix: str = "", *, kind: str = "") -> None:
        self.add("info", file, offset, text, fix, kind=kind)

    def damaged(self, offset: int) -> Damage | None:
        """The damaged stretch of the log that holds this offset."""
        for damage in self.damage:
            if damage.start <= offset < damage.end:
                return damage
        return None
